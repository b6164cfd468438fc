//! A listener's thread: accepts connections, performs the handshake, hands them on. It waits in one
//! place.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use haul_io::clock::Clock;
use haul_io::poller::{Event, Events, Interest, Poller};
use haul_io::stream::{Acceptor, Stream, is_exhausted, is_own_address};
use haul_xsp::wire::{Endpoint, Metadata};

use super::arrival::{Arrival, Greeting};
use super::connect::{Connect, HEAD_MAX};
use super::handshake::Handshake;
use super::socks::Socks;
use super::step::Step;
use crate::answer::Answer;
use crate::{config, host};
use haul_io::watch::Watch;

/// Pending clients at a time; further ones wait in the kernel.
const PENDING_MAX: usize = 1024;

/// Limits on clients that have not named their destination.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Pending clients at a time; further ones wait in the kernel.
    pub(super) pending: usize,
    /// Timeout of a handshake, ns.
    pub(super) handshake_ns: u64,
    /// Time for a refused client to read why, ns.
    pub(super) leave_ns: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pending: PENDING_MAX,
            handshake_ns: 10_000_000_000,
            leave_ns: 1_000_000_000,
        }
    }
}

/// Bytes that the pending clients of a listener take at most.
pub(crate) const CLIENT_MEMORY: u64 = PENDING_MAX as u64 * HEAD_MAX as u64;

/// A client that speaks first mostly has done so when it is accepted. What it has sent saves a
/// round trip; one that is silent for so long waits for its destination, ns.
const SILENCE_NS: u64 = 500_000;

/// Pause after the system has run out of descriptors or memory, ns.
const EXHAUSTED_NS: u64 = 100_000_000;
/// Connections accepted in a row before clients are served.
const ACCEPT_MAX: usize = 64;
/// Bytes inspected in one call.
const PEEK_LEN: usize = 2048;
/// Bytes discarded from a refused client: a close with unread bytes is a reset, which would
/// overtake the refusal.
const LEAVE_BYTES_MAX: usize = 64 << 10;

const ACCEPTOR: u64 = u64::MAX - 1;

#[derive(Debug)]
pub(super) struct ClientAcceptor {
    acceptor: Watch<Acceptor>,
    listener: config::Listener,
    greeting: Greeting,
    limits: Limits,
    poller: Poller,
    is_closing: Arc<AtomicBool>,
    clock: Clock,
    address: SocketAddr,
    /// Nothing is accepted before, ns.
    exhausted_until: Option<u64>,
    /// By token. At most `limits.pending`.
    pending: BTreeMap<u64, PendingClient>,
    next_token: u64,
}

/// A client that has not named its destination, or not spoken, or was refused.
#[derive(Debug)]
struct PendingClient {
    stream: Stream,
    client: SocketAddr,
    deadline_ns: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Greeting(Handshake),
    /// Its destination is known, and it has not sent anything.
    Silent(Endpoint),
    /// It was refused; bytes discarded since.
    Leaving(usize),
}

/// The outcome of a client.
enum Progress {
    Stays,
    Gone,
    Goes(Endpoint, Answer, Metadata),
}

impl ClientAcceptor {
    pub(super) fn new(
        acceptor: Acceptor,
        listener: config::Listener,
        greeting: Greeting,
        limits: Limits,
        poller: Poller,
        is_closing: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let address = acceptor.local_addr()?;
        let mut acceptor = Watch::new(acceptor, ACCEPTOR);
        acceptor.set(&poller, true)?;
        Ok(Self {
            address,
            acceptor,
            listener,
            greeting,
            limits,
            poller,
            is_closing,
            clock: Clock::new(),
            exhausted_until: None,
            pending: BTreeMap::new(),
            next_token: 0,
        })
    }

    /// Runs until the listener is closed.
    pub(super) fn run(mut self, deliver: &dyn Fn(Arrival), report: &dyn Fn(&str)) {
        let mut events = Events::with_capacity(256);
        while !self.is_closing.load(Ordering::Acquire) {
            let deadline = self
                .pending
                .values()
                .map(|client| client.deadline_ns)
                .chain(self.exhausted_until)
                .min();
            if self.poller.wait(&mut events, deadline, self.clock).is_err() {
                // It fails only for an invalid descriptor.
                return;
            }
            let now = self.clock.now_ns();
            self.end_waits(now, deliver);
            for event in events.iter() {
                if event.token == ACCEPTOR {
                    self.accept(now, deliver, report);
                } else {
                    self.serve(event, now, deliver);
                }
            }
            self.exhausted_until = self.exhausted_until.filter(|until| *until > now);
            self.watch_acceptor();
        }
    }

    /// Accepts while there is room and the system has resources.
    fn watch_acceptor(&mut self) {
        let wanted = self.pending.len() < self.limits.pending && self.exhausted_until.is_none();
        if self.acceptor.set(&self.poller, wanted).is_err() {
            self.exhausted_until = Some(self.clock.now_ns() + EXHAUSTED_NS);
        }
    }

    fn accept(&mut self, now: u64, deliver: &dyn Fn(Arrival), report: &dyn Fn(&str)) {
        for _ in 0..ACCEPT_MAX {
            if self.pending.len() >= self.limits.pending {
                return;
            }
            match self.acceptor.listener.accept() {
                Ok(Some((stream, client))) => self.admit(stream, client, now, deliver),
                Ok(None) => return,
                Err(error) if is_exhausted(&error) => {
                    self.exhausted_until = Some(now + EXHAUSTED_NS);
                    let listener = self.address;
                    report(&format!(
                        "listener at {listener}: {error}; connections wait in the kernel"
                    ));
                    return;
                }
                // That connection is gone already; the next may be there.
                Err(_) => {}
            }
        }
    }

    fn admit(&mut self, stream: Stream, client: SocketAddr, now: u64, deliver: &dyn Fn(Arrival)) {
        // The drop resets a client that may not connect.
        if !self.listener.admits(client) {
            return;
        }
        let state = match &self.greeting {
            Greeting::Known(to) => State::Silent(to.clone()),
            Greeting::Diverted => match self.destination(&stream) {
                Some(to) => State::Silent(host::endpoint(to)),
                None => return,
            },
            Greeting::Socks5 => State::Greeting(Handshake::Socks(Socks::default())),
            Greeting::Http => State::Greeting(Handshake::Connect(Connect::default())),
        };
        let patience_ns = match &state {
            State::Silent(to) => match stream.peek(&mut [0]) {
                Ok(_) => return deliver(Arrival::silent(stream, client, to.clone())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => SILENCE_NS,
                // The client is gone.
                Err(_) => return,
            },
            _ => self.limits.handshake_ns,
        };
        let token = self.next_token;
        self.next_token += 1;
        if self.poller.add(&stream, token, Interest::READ).is_ok() {
            let deadline_ns = now + patience_ns;
            self.pending.insert(
                token,
                PendingClient {
                    stream,
                    client,
                    deadline_ns,
                    state,
                },
            );
        }
    }

    /// Drops clients whose time is over, and hands on those that wait for nothing but their
    /// destination's first bytes.
    fn end_waits(&mut self, now: u64, deliver: &dyn Fn(Arrival)) {
        let late =
            |(token, client): (&u64, &PendingClient)| (client.deadline_ns <= now).then_some(*token);
        let late: Vec<u64> = self.pending.iter().filter_map(late).collect();
        for token in late {
            if let Some(client) = self.pending.remove(&token)
                && let State::Silent(to) = client.state
                && self.poller.remove(&client.stream).is_ok()
            {
                deliver(Arrival::silent(client.stream, client.client, to));
            }
        }
    }

    /// Returns the original destination of a diverted connection: REDIRECT has recorded it, TPROXY
    /// preserves it. `None` if that is this listener: a direct connection would loop.
    fn destination(&self, stream: &Stream) -> Option<SocketAddr> {
        let to = stream
            .original_destination()
            .or_else(|| stream.local_addr())?;
        let is_here = to.port() == self.address.port()
            && (to.ip() == self.address.ip() || is_own_address(to.ip()));
        (!is_here).then_some(to)
    }

    fn serve(&mut self, event: Event, now: u64, deliver: &dyn Fn(Arrival)) {
        let Some(client) = self.pending.get_mut(&event.token) else {
            return;
        };
        let fate = client
            .serve(now, self.limits.leave_ns)
            .unwrap_or(Progress::Gone);
        if matches!(fate, Progress::Stays) {
            return;
        }
        let Some(client) = self.pending.remove(&event.token) else {
            return;
        };
        if let Progress::Goes(to, answer, metadata) = fate
            && self.poller.remove(&client.stream).is_ok()
        {
            let PendingClient { stream, client, .. } = client;
            deliver(Arrival {
                stream,
                client,
                to,
                answer,
                metadata,
            });
        }
    }
}

impl PendingClient {
    /// Reads the handshake, and answers it.
    ///
    /// # Errors
    /// The error of the connection.
    fn serve(&mut self, now: u64, leave_ns: u64) -> io::Result<Progress> {
        let mut octets = [0; PEEK_LEN];
        loop {
            let handshake = match &mut self.state {
                State::Greeting(handshake) => handshake,
                State::Silent(to) => {
                    let to = to.clone();
                    return Ok(Progress::Goes(to, Answer::None, Metadata::default()));
                }
                State::Leaving(_) => return self.leave(),
            };
            let count = match self.stream.peek(&mut octets) {
                Ok(0) => {
                    self.stream.finish_on_drop();
                    return Ok(Progress::Gone);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Progress::Stays);
                }
                count => count?,
            };
            let (taken, step) = handshake.handle(&octets[..count]);
            let answer = handshake.answer();
            let metadata = match step {
                Step::Done(_) => handshake.take_metadata(),
                _ => Metadata::default(),
            };
            // These bytes have been peeked.
            self.stream.read(&mut octets[..taken])?;
            match step {
                Step::More => {}
                Step::Reply(reply) => self.tell(reply)?,
                Step::Done(to) => return Ok(Progress::Goes(to, answer, metadata)),
                Step::Refuse(refusal) => {
                    // The client gets the refusal.
                    self.stream.finish_on_drop();
                    self.tell(&refusal)?;
                    self.stream.shutdown_send();
                    self.deadline_ns = now + leave_ns;
                    self.state = State::Leaving(0);
                }
            }
        }
    }

    /// Sends a few bytes, for which a new connection always has room.
    fn tell(&self, octets: &[u8]) -> io::Result<()> {
        match self.stream.write(octets)? {
            count if count == octets.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Waits for the client to close, so that it can read the refusal.
    fn leave(&mut self) -> io::Result<Progress> {
        let State::Leaving(dropped) = &mut self.state else {
            return Ok(Progress::Stays);
        };
        let mut octets = [0; PEEK_LEN];
        while *dropped < LEAVE_BYTES_MAX {
            match self.stream.read(&mut octets) {
                Ok(0) => return Ok(Progress::Gone),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Progress::Stays);
                }
                count => *dropped += count?,
            }
        }
        Ok(Progress::Gone)
    }
}
