//! The thread of a server of pages and metrics: a few connections, one request on each.
//!
//! It has no authentication. So it changes nothing, and it answers no page but its own; its caller
//! decides at which addresses it listens.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};

use haul_io::address;
use haul_io::clock::Clock;
use haul_io::poller::{Events, Interest, Poller};
use haul_io::stream::{Acceptor, Stream};
use haul_io::thread::{Stop, Thread};
use haul_io::watch::Watch;

use crate::http::{self, Guard, HEAD_BYTES_MAX, Read, Request, Response};

const SECOND_NS: u64 = 1_000_000_000;
/// Connections at a time. A further one takes the place of the oldest of the source that has most,
/// so that silent connections keep out nobody. If no source has two, it waits in the kernel.
const CLIENTS_MAX: usize = 16;
/// Timeout for a request, and again for its response, ns.
const PATIENCE_NS: u64 = 5 * SECOND_NS;
/// Time for the client to close after the response, ns.
const LEAVE_NS: u64 = SECOND_NS;
/// Pause after the system has run out of descriptors or memory, ns.
const PAUSE_NS: u64 = SECOND_NS / 5;

const ACCEPTOR: u64 = u64::MAX - 1;

/// Answers requests.
pub type Answer = Box<dyn FnMut(&Request) -> Response + Send>;
/// Takes the error that has stopped the server.
pub type Stopped = Box<dyn FnOnce(&io::Error) + Send>;

/// A server of pages and metrics, until it is dropped.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    thread: Thread,
}

impl Admin {
    /// Listens at `listen`, and answers requests that call the server by an address, `localhost` or
    /// one of `names`.
    ///
    /// # Errors
    /// That of `bind(2)` or `listen(2)`, or if the system has no thread.
    pub fn open(
        listen: SocketAddr,
        names: &[String],
        answer: Answer,
        stopped: Stopped,
    ) -> io::Result<Self> {
        let acceptor = Acceptor::bind(listen)?;
        let address = acceptor.local_addr()?;
        let guard = Guard::new(names);
        let thread = Thread::spawn("haul-admin", Poller::new()?, |poller, stop| {
            let server = Server {
                acceptor: Watch::new(acceptor, ACCEPTOR),
                poller,
                stop,
                guard,
                answer,
                clients: BTreeMap::new(),
                next_token: 0,
                paused_until: None,
            };
            if let Err(error) = server.run() {
                stopped(&error);
            }
        })?;
        Ok(Self { address, thread })
    }

    /// Returns the address that it listens at.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns its thread.
    #[must_use]
    pub const fn thread(&self) -> &Thread {
        &self.thread
    }
}

struct Server {
    acceptor: Watch<Acceptor>,
    poller: Poller,
    stop: Stop,
    guard: Guard,
    answer: Answer,
    /// By token; at most [`CLIENTS_MAX`].
    clients: BTreeMap<u64, Client>,
    next_token: u64,
    /// Nothing is accepted before, ns.
    paused_until: Option<u64>,
}

struct Client {
    stream: Stream,
    /// [`address::source`].
    source: IpAddr,
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
    fn run(mut self) -> io::Result<()> {
        let clock = Clock::new();
        let mut events = Events::with_capacity(CLIENTS_MAX + 1);
        while !self.stop.is_set() {
            self.watch_acceptor();
            let deadlines = self.clients.values().map(|client| client.deadline_ns);
            let deadline = deadlines.chain(self.paused_until).min();
            self.poller.wait(&mut events, deadline, clock)?;
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
        Ok(())
    }

    fn watch_acceptor(&mut self) {
        let has_room = self.clients.len() < CLIENTS_MAX || self.surplus().is_some();
        let wanted = has_room && self.paused_until.is_none();
        if self.acceptor.set(&self.poller, wanted).is_err() {
            self.paused_until = Some(Clock::new().now_ns() + PAUSE_NS);
        }
    }

    fn accept(&mut self, now: u64) {
        for _ in 0..CLIENTS_MAX {
            let is_full = self.clients.len() >= CLIENTS_MAX;
            let surplus = if is_full { self.surplus() } else { None };
            if is_full && surplus.is_none() {
                return;
            }
            match self.acceptor.listener.accept() {
                Ok(Some((stream, peer))) => {
                    if let Some(token) = surplus {
                        self.clients.remove(&token);
                    }
                    self.admit(stream, address::source(peer.ip()), now);
                }
                Ok(None) => return,
                Err(_) => {
                    self.paused_until = Some(now + PAUSE_NS);
                    return;
                }
            }
        }
    }

    /// Returns the oldest connection of the source that has most, if that has more than one.
    fn surplus(&self) -> Option<u64> {
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        for client in self.clients.values() {
            *counts.entry(client.source).or_default() += 1;
        }
        let (most, count) = counts.into_iter().max_by_key(|&(_, count)| count)?;
        let mut clients = self.clients.iter();
        let (oldest, _) = clients.find(|(_, client)| client.source == most)?;
        (count > 1).then_some(*oldest)
    }

    fn admit(&mut self, stream: Stream, source: IpAddr, now: u64) {
        let token = self.next_token;
        self.next_token += 1;
        if self.poller.add(&stream, token, Interest::READ).is_ok() {
            let client = Client {
                stream,
                source,
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
            .serve(now, |bytes| self.answer(bytes))
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
    fn answer(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let request = match http::read(bytes, &self.guard) {
            Read::More => return None,
            Read::Refused(response) => return Some(response.bytes(false)),
            Read::Request(request) => request,
        };
        let response = (self.answer)(&request);
        Some(response.bytes(request.is_head))
    }
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
                State::Answered(bytes, sent) => self.stream.write(&bytes[*sent..]).map(|count| {
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
            if matches!(&self.state, State::Answered(bytes, sent) if *sent == bytes.len()) {
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

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_types, reason = "clients are ordinary sockets")]

    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, TcpStream};
    use std::time::Duration;

    use super::*;

    #[test]
    fn silent_connections_keep_out_no_request() {
        let answer = |_: &Request| Response::new("text/plain", "here");
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let admin = Admin::open(listen, &[], Box::new(answer), Box::new(|_| {})).unwrap();
        let connect = || TcpStream::connect(admin.local_addr()).unwrap();
        let silent: Vec<_> = (0..3 * CLIENTS_MAX).map(|_| connect()).collect();
        let mut stream = connect();
        // Sooner than the silent ones time out.
        let patience = Duration::from_nanos(PATIENCE_NS / 2);
        stream.set_read_timeout(Some(patience)).unwrap();
        write!(stream, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("here"), "{text}");
        drop(silent);
    }
}
