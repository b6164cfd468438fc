//! The thread of the administration server: a few connections, one request on each.
//!
//! It has no authentication. So it listens on loopback unless the operator allows more, it changes
//! nothing, and it answers no page but its own.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use haul_io::clock::Clock;
use haul_io::poller::{Events, Interest, Poller};
use haul_io::stream::{Acceptor, Stream};
use haul_xsp::SECOND_NS;

use super::http::{self, Guard, HEAD_BYTES_MAX, Read, Response};
use super::metrics;
use super::snapshot::Snapshots;
use crate::config;
use crate::log::Level;
use crate::shared::Shared;
use crate::thread::{Stop, Thread};
use crate::watch::Watch;

/// Connections at a time; further ones wait in the kernel.
const CLIENTS_MAX: usize = 16;
/// Timeout for a request, and again for its response, ns.
const PATIENCE_NS: u64 = 5 * SECOND_NS;
/// Time for the client to close after the response, ns.
const LEAVE_NS: u64 = SECOND_NS;
/// Pause after the system has run out of descriptors or memory, ns.
const PAUSE_NS: u64 = SECOND_NS / 5;

const ACCEPTOR: u64 = u64::MAX - 1;

/// The administration server, until it is dropped.
#[derive(Debug)]
pub(crate) struct Admin {
    address: SocketAddr,
    thread: Thread,
}

impl Admin {
    /// Opens the server.
    ///
    /// # Errors
    /// States in one line that the address is in use, or is not loopback without `allow_remote`.
    pub(crate) fn open(shared: &Arc<Shared>, config: &config::Admin) -> Result<Self, String> {
        let listen = config.listen;
        if !listen.ip().is_loopback() && !config.allow_remote {
            return Err(format!(
                "[admin] listen = \"{listen}\" would show this gateway's traffic to everybody who reaches it, without authentication; set \
                 allow_remote = true if that is intended"
            ));
        }
        let text = |error: io::Error| format!("cannot listen at {listen}: {error}");
        let acceptor = Acceptor::bind(listen).map_err(text)?;
        let address = acceptor.local_addr().map_err(text)?;
        let poller = Poller::new().map_err(text)?;
        let (snapshots, guard) = (Snapshots::new(shared), Guard::new(&config.names));
        let shared = Arc::clone(shared);
        let thread = Thread::spawn("haul-admin", poller, |poller, stop| {
            let server = Server {
                shared,
                acceptor: Watch::new(acceptor, ACCEPTOR),
                poller,
                stop,
                snapshots,
                guard,
                clients: BTreeMap::new(),
                next_token: 0,
                paused_until: None,
            };
            server.run();
        });
        Ok(Self {
            address,
            thread: thread.map_err(text)?,
        })
    }

    pub(crate) const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    pub(crate) const fn thread(&self) -> &Thread {
        &self.thread
    }
}

struct Server {
    shared: Arc<Shared>,
    acceptor: Watch<Acceptor>,
    poller: Poller,
    stop: Stop,
    snapshots: Snapshots,
    guard: Guard,
    /// By token; at most [`CLIENTS_MAX`].
    clients: BTreeMap<u64, Client>,
    next_token: u64,
    /// Nothing is accepted before, ns.
    paused_until: Option<u64>,
}

struct Client {
    stream: Stream,
    deadline_ns: u64,
    state: State,
}

enum State {
    /// The request so far.
    Asking(Vec<u8>),
    /// The response, and the bytes of it that are sent.
    Answered(Vec<u8>, usize),
    /// The client is to close: a close with unread bytes is a reset, which would overtake the
    /// response.
    Leaving,
}

impl Server {
    fn run(mut self) {
        let clock = Clock::new();
        let mut events = Events::with_capacity(CLIENTS_MAX + 1);
        while !self.stop.is_set() {
            self.watch_acceptor();
            let deadlines = self.clients.values().map(|client| client.deadline_ns);
            let deadline = deadlines.chain(self.paused_until).min();
            if let Err(error) = self.poller.wait(&mut events, deadline, clock) {
                let text = format!("the administration server has stopped: {error}");
                return self.shared.log(Level::Error, text);
            }
            let now = clock.now_ns();
            self.clients.retain(|_, client| client.deadline_ns > now);
            for event in events.iter() {
                if event.token == ACCEPTOR {
                    self.accept(now);
                } else {
                    self.serve(event.token, now);
                }
            }
            self.paused_until = self.paused_until.filter(|until| *until > now);
        }
    }

    fn watch_acceptor(&mut self) {
        let wanted = self.clients.len() < CLIENTS_MAX && self.paused_until.is_none();
        if self.acceptor.set(&self.poller, wanted).is_err() {
            self.paused_until = Some(Clock::new().now_ns() + PAUSE_NS);
        }
    }

    fn accept(&mut self, now: u64) {
        for _ in self.clients.len()..CLIENTS_MAX {
            match self.acceptor.listener.accept() {
                Ok(Some((stream, _))) => self.admit(stream, now),
                Ok(None) => return,
                Err(_) => {
                    self.paused_until = Some(now + PAUSE_NS);
                    return;
                }
            }
        }
    }

    fn admit(&mut self, stream: Stream, now: u64) {
        let token = self.next_token;
        self.next_token += 1;
        if self.poller.add(&stream, token, Interest::READ).is_ok() {
            let client = Client {
                stream,
                deadline_ns: now + PATIENCE_NS,
                state: State::Asking(Vec::new()),
            };
            self.clients.insert(token, client);
        }
    }

    fn serve(&mut self, token: u64, now: u64) {
        let Some(mut client) = self.clients.remove(&token) else {
            return;
        };
        let stays = client
            .serve(now, |octets| self.answer(octets))
            .and_then(|stays| {
                let interest = match client.state {
                    State::Answered(..) => Interest::WRITE,
                    State::Asking(_) | State::Leaving => Interest::READ,
                };
                self.poller.modify(&client.stream, token, interest)?;
                Ok(stays)
            });
        if stays.unwrap_or(false) {
            self.clients.insert(token, client);
        }
    }

    /// Returns the response to a request; `None` while the request is incomplete.
    fn answer(&mut self, octets: &[u8]) -> Option<Vec<u8>> {
        let request = match http::read(octets, &self.guard) {
            Read::More => return None,
            Read::Refused(response) => return Some(response.octets(false)),
            Read::Request(request) => request,
        };
        let response = match request.path.as_str() {
            "/" => page(),
            "/icon.svg" => Response::new("image/svg+xml", ICON),
            "/api/status" => self.snapshots.take().json(),
            "/metrics" => metrics::response(self.snapshots.take()),
            _ => Response::refusal(404, "not found; try /, /api/status or /metrics"),
        };
        Some(response.octets(request.is_head))
    }
}

/// Parses a request, for the fuzz target.
#[cfg(fuzzing)]
pub(crate) fn judge(octets: &[u8]) {
    let _ = http::read(octets, &Guard::new(&[]));
}

const ICON: &str = include_str!("icon.svg");

fn page() -> Response {
    let Ok(nonce) = haul_io::random::bytes::<16>() else {
        return Response::refusal(503, "the system has no random numbers");
    };
    Response::page(include_str!("page.html"), &crate::host::hex(&nonce))
}

impl Client {
    /// Serves the connection; returns false when it is done.
    ///
    /// # Errors
    /// The error of the connection.
    fn serve(
        &mut self,
        now: u64,
        mut answer: impl FnMut(&[u8]) -> Option<Vec<u8>>,
    ) -> io::Result<bool> {
        loop {
            let stepped = match &mut self.state {
                State::Asking(received_bytes) => receive(&self.stream, received_bytes)
                    .map(|count| (count, answer(received_bytes).filter(|_| count > 0))),
                State::Answered(octets, sent) => self.stream.write(&octets[*sent..]).map(|count| {
                    *sent += count;
                    (count, None)
                }),
                State::Leaving => self.stream.read(&mut [0; 1024]).map(|count| (count, None)),
            };
            let (count, answer) = match stepped {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                stepped => stepped?,
            };
            if count == 0 {
                return Ok(false);
            }
            // A client that goes on sending does not delay others.
            if matches!(self.state, State::Leaving) {
                return Ok(true);
            }
            if let Some(answer) = answer {
                self.state = State::Answered(answer, 0);
                self.deadline_ns = now + PATIENCE_NS;
            }
            if matches!(&self.state, State::Answered(octets, sent) if *sent == octets.len()) {
                self.stream.shutdown_send();
                self.state = State::Leaving;
                self.deadline_ns = now + LEAVE_NS;
            }
        }
    }
}

/// Reads up to the longest request.
fn receive(stream: &Stream, received_bytes: &mut Vec<u8>) -> io::Result<usize> {
    let before = received_bytes.len();
    received_bytes.resize(HEAD_BYTES_MAX, 0);
    let received = stream.read(&mut received_bytes[before..]);
    received_bytes.truncate(before + *received.as_ref().unwrap_or(&0));
    received
}
