//! Carries the TCP connections of applications that do not load the library: static ones, Go, other
//! libcs, applications that call the kernel themselves.
//!
//! A seccomp filter has the kernel ask `haul run` about each connect(2) of the application and its
//! children (seccomp_unotify(2)). The supervisor takes a duplicate of the socket, connects it to a
//! hole, and makes a `Call` of it, as the library would ([`crate::gateway`]). What is not TCP to
//! another host goes on in the kernel. A blocking connect(2) is answered when the gateway has
//! answered; a non-blocking one at once, and its error when the application asks for it.
//!
//! If the supervisor cannot look into a process, the connect(2) fails: no connection goes past the
//! gateway unseen. docs/adr/0032-static-applications.md explains why not otherwise.

mod asker;
mod filter;
mod listener;

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use haul_io::clock::Clock;
use haul_io::poller::{Events, Interest, Poller, Waker};
use libc::{sockaddr_storage, socklen_t};

use asker::{Asker, Blind, duplicate, octets, read, write};
use listener::{Handover, Listener};

use crate::gateway::{self, Calls, Message, Outcome, Told};
use crate::sys;
use crate::table::{Protocol, Socket, Why, words};

/// Sockets whose destinations are known; the oldest are forgotten.
const ATTEMPTS_MAX: usize = 1 << 17;

/// A supervisor whose application has not been started.
pub(crate) struct Prepared {
    calls: (Arc<gateway::Side>, gateway::Deliver),
    say: Say,
    handover: Handover,
}

/// Decides system calls on a thread of its own until it is dropped.
#[derive(Debug)]
pub(crate) struct Supervisor {
    is_over: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

/// Tells people of a connection that could not be carried.
pub(crate) type Say = Box<dyn FnMut(&str) + Send>;

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Prepared")
    }
}

impl Prepared {
    /// Has `command` start with the filter. What cannot be carried is refused, and `say` gets a
    /// line about it.
    ///
    /// # Errors
    /// Of the system calls.
    pub(crate) fn new(calls: &Calls, command: &mut Command, say: Say) -> io::Result<Self> {
        Ok(Self {
            calls: calls.parts(),
            say,
            handover: Handover::new(command)?,
        })
    }

    /// Begins to decide.
    ///
    /// # Errors
    /// `Unsupported` if the kernel has not taken the filter; else of the system calls.
    pub(crate) fn begin(self) -> io::Result<Supervisor> {
        let listener = self.handover.listener();
        let listener = listener.ok_or(io::ErrorKind::Unsupported)?;
        let (calls, deliver) = self.calls;
        calls.table().note_supervised(calls.run());
        let poller = Poller::new()?;
        poller.add(&listener, 0, Interest::READ)?;
        let (waker, is_over) = (poller.waker(), Arc::new(AtomicBool::new(false)));
        let ending = Arc::clone(&is_over);
        let mut deciding = Deciding {
            shared: Arc::new(Shared {
                listener,
                attempts: Mutex::default(),
            }),
            limits: Vec::new(),
            calls,
            deliver,
            say: self.say,
            said: String::new(),
        };
        let thread = std::thread::Builder::new().name("supervisor".into());
        let thread = thread.spawn(move || deciding.run(poller, &ending))?;
        Ok(Supervisor {
            is_over,
            waker,
            thread: Some(thread),
        })
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // Where it panicked, that was printed.
            let _ = thread.join();
        }
    }
}

/// What the supervisor's thread and the threads of the gateway know together.
#[derive(Debug)]
struct Shared {
    listener: Listener,
    attempts: Mutex<Attempts>,
}

/// Sockets that have connected, or are connecting, by their numbers.
#[derive(Debug, Default)]
struct Attempts {
    by_inode: HashMap<u64, Attempt>,
    /// In the order of time.
    order: VecDeque<(u64, u32)>,
}

#[derive(Debug)]
struct Attempt {
    number: u32,
    /// The number of its record.
    record: usize,
    to: SocketAddr,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Connecting(Waiting),
    Connected,
    /// `errno`.
    Failed(c_int),
}

/// The call that waits for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// Nobody: the socket does not wait.
    Nobody,
    /// A thread in connect(2), by its notification.
    Thread(u64),
}

impl Shared {
    fn attempts(&self) -> MutexGuard<'_, Attempts> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a thread still waits: no signal has interrupted it.
    fn is_waiting(&self, waiting: Waiting) -> bool {
        matches!(waiting, Waiting::Thread(id) if self.listener.is_waiting(id))
    }

    /// Tells whoever waits for an attempt what has become of it.
    fn settle(&self, inode: u64, number: u32, outcome: Outcome, socket: &OwnedFd) {
        // Nobody asks about the socket until it is as it is to be found.
        let mut attempts = self.attempts();
        let attempt = attempts.by_inode.get_mut(&inode);
        if attempt.as_ref().is_some_and(|one| one.number != number) {
            // The socket is connecting to another destination.
            return;
        }
        if matches!(outcome, Outcome::Failed(_)) {
            gateway::turn_away(socket);
        }
        let Some(attempt) = attempt else {
            return;
        };
        let State::Connecting(waiting) = attempt.state else {
            return;
        };
        let errno = match outcome {
            Outcome::Met => {
                attempt.state = State::Connected;
                if let Waiting::Thread(id) = waiting {
                    // The kernel waits for the last step of the connection.
                    self.listener.go_on(id);
                }
                return;
            }
            Outcome::Gone => libc::ECONNABORTED,
            Outcome::Failed(errno) => errno,
        };
        let is_told = match waiting {
            Waiting::Thread(id) => {
                gateway::clear_error(socket);
                self.listener.answer(id, errno)
            }
            Waiting::Nobody => false,
        };
        if is_told || outcome == Outcome::Gone {
            attempts.by_inode.remove(&inode);
        } else {
            attempt.state = State::Failed(errno);
        }
    }
}

impl Attempts {
    fn insert(&mut self, inode: u64, attempt: Attempt) {
        self.order.push_back((inode, attempt.number));
        self.by_inode.insert(inode, attempt);
        while self.order.len() > ATTEMPTS_MAX {
            if let Some((inode, number)) = self.order.pop_front()
                && self
                    .by_inode
                    .get(&inode)
                    .is_some_and(|one| one.number == number)
            {
                self.by_inode.remove(&inode);
            }
        }
    }
}

/// When a thread stops waiting in connect(2), and what it gets.
struct Limit {
    at_ns: u64,
    inode: u64,
    id: u64,
    errno: c_int,
}

/// The supervisor's thread.
struct Deciding {
    shared: Arc<Shared>,
    limits: Vec<Limit>,
    calls: Arc<gateway::Side>,
    deliver: gateway::Deliver,
    say: Say,
    said: String,
}

/// What the supervisor does with a call.
enum Decision {
    /// The kernel makes it.
    GoOn,
    /// It returns 0, or this error.
    Answer(c_int),
    /// Somebody answers later.
    Later,
}

impl Deciding {
    fn run(&mut self, mut poller: Poller, is_over: &AtomicBool) {
        let (clock, mut events) = (Clock::new(), Events::with_capacity(1));
        while !is_over.load(Ordering::Acquire) {
            let next = self.limits.iter().map(|limit| limit.at_ns).min();
            if poller.wait(&mut events, next, clock).is_err() {
                return;
            }
            self.end_waits(clock.now_ns());
            let Some(event) = events.iter().next() else {
                continue;
            };
            if event.closed {
                // Nobody is left whom the filter is for.
                return;
            }
            // It fails where the thread was ended meanwhile.
            if let Ok(notification) = self.shared.listener.receive() {
                self.handle(&notification);
            }
        }
    }

    /// Threads whose time is over return from connect(2), which goes on.
    fn end_waits(&mut self, now_ns: u64) {
        let over = self.limits.extract_if(.., |limit| limit.at_ns <= now_ns);
        for limit in over {
            let mut attempts = self.shared.attempts();
            if let Some(attempt) = attempts.by_inode.get_mut(&limit.inode)
                && attempt.state == State::Connecting(Waiting::Thread(limit.id))
            {
                attempt.state = State::Connecting(Waiting::Nobody);
                self.shared.listener.answer(limit.id, limit.errno);
            }
        }
    }

    fn handle(&mut self, notification: &libc::seccomp_notif) {
        let id = notification.id;
        let decision = match (filter::call(&notification.data), Asker::of(notification)) {
            (None, _) => Ok(Decision::GoOn),
            (Some(_), None) => Err(("its /proc entry", io::ErrorKind::NotFound.into())),
            (Some(call), Some(asker)) => self.decide(call, asker),
        };
        match decision {
            Ok(Decision::GoOn) => self.shared.listener.go_on(id),
            Ok(Decision::Answer(errno)) => {
                // Fails if the thread was ended meanwhile.
                self.shared.listener.answer(id, errno);
            }
            Ok(Decision::Later) => {}
            Err(_) if !self.shared.listener.is_waiting(id) => {}
            Err((what, error)) => {
                self.shared.listener.answer(id, libc::ENETUNREACH);
                self.tell(&format!(
                    "a connection of process {} cannot be carried and fails: {what}: {error}; \
                     --allow-direct lets it go past the gateway",
                    notification.pid
                ));
            }
        }
    }

    fn tell(&mut self, line: &str) {
        if self.said != line {
            line.clone_into(&mut self.said);
            (self.say)(line);
        }
    }

    fn decide(&mut self, call: filter::Call, asker: Asker) -> Result<Decision, Blind> {
        match call {
            filter::Call::Connect([fd, address, len]) => self.connect(asker, fd, address, len),
            filter::Call::Socketcall(arguments) => {
                let mut words = [0; 12];
                if !read(asker, arguments, &mut words)? {
                    return Ok(Decision::GoOn);
                }
                let word = |at: usize| {
                    let octets = [words[at], words[at + 1], words[at + 2], words[at + 3]];
                    u64::from(u32::from_ne_bytes(octets))
                };
                self.connect(asker, word(0), word(4), word(8))
            }
            // These lead nowhere: the kernel may answer.
            filter::Call::Peer([fd, address, len]) => {
                self.peer(asker, fd, address, len).or(Ok(Decision::GoOn))
            }
            filter::Call::Error([fd, value, len]) => {
                self.error(asker, fd, value, len).or(Ok(Decision::GoOn))
            }
        }
    }

    /// connect(2).
    fn connect(
        &mut self,
        asker: Asker,
        fd: u64,
        address: u64,
        len: u64,
    ) -> Result<Decision, Blind> {
        let mut storage = [0_u64; size_of::<sockaddr_storage>() / 8];
        let len = usize::try_from(len).unwrap_or(0).min(size_of_val(&storage));
        if !read(asker, address, &mut octets(&mut storage)[..len])? {
            return Ok(Decision::GoOn);
        }
        let taken = socklen_t::try_from(len).unwrap_or(0);
        let Some((to, link)) = sys::socket_address(storage.as_ptr().cast(), taken) else {
            return Ok(Decision::GoOn);
        };
        if gateway::is_near(to, link) {
            return Ok(Decision::GoOn);
        }
        let Some(socket) = duplicate(asker, fd)? else {
            return Ok(Decision::GoOn);
        };
        let of = |name| sys::option(socket.as_raw_fd(), libc::SOL_SOCKET, name);
        let is_tcp = of(libc::SO_TYPE) == Some(libc::SOCK_STREAM)
            && of(libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP);
        let family = of(libc::SO_DOMAIN);
        if !is_tcp || family != sys::family(storage.as_ptr().cast(), taken) {
            return Ok(Decision::GoOn);
        }
        let Some(inode) = sys::inode(socket.as_raw_fd()) else {
            return Ok(Decision::GoOn);
        };
        if !self.shared.listener.is_waiting(asker.id) {
            // What was looked at may belong to another process.
            return Ok(Decision::Later);
        }
        if let Some(decision) = self.again(asker, &socket, inode) {
            return Ok(decision);
        }
        Ok(self.begin(asker, fd, socket, inode, to))
    }

    /// connect(2) of a socket that is known, unless it is to begin anew.
    fn again(&mut self, asker: Asker, socket: &OwnedFd, inode: u64) -> Option<Decision> {
        let mut attempts = self.shared.attempts();
        let state = attempts.by_inode.get(&inode).map(|attempt| attempt.state);
        if gateway::is_unconnected(socket) {
            let Some(State::Failed(errno)) = state else {
                return None;
            };
            attempts.by_inode.remove(&inode);
            gateway::clear_error(socket);
            return Some(Decision::Answer(errno));
        }
        let waiting = waiting(socket, asker);
        if let (Some(State::Connecting(before)), Waiting::Thread(_)) = (state, waiting)
            && !self.shared.is_waiting(before)
            && let Some(attempt) = attempts.by_inode.get_mut(&inode)
        {
            // A signal has interrupted the first one.
            attempt.state = State::Connecting(waiting);
            self.limits
                .extend(limit(socket, asker, inode, libc::EALREADY));
            return Some(Decision::Later);
        }
        // The kernel knows what a second call returns.
        Some(Decision::GoOn)
    }

    /// The socket is not wanted for what it was connecting to before, if anything.
    fn give_up(&self, inode: u64) {
        let Some(before) = self.shared.attempts().by_inode.remove(&inode) else {
            return;
        };
        if let State::Connecting(Waiting::Thread(id)) = before.state {
            self.shared.listener.answer(id, libc::ECONNABORTED);
        }
        if let Some(record) = self.calls.table().socket(before.record)
            && record.gateway.load(Ordering::Acquire) == before.number
            && before.state != State::Connected
        {
            record.gateway.store(0, Ordering::Release);
            record.refuse(Why::NotMade);
        }
    }

    fn begin(
        &mut self,
        asker: Asker,
        fd: u64,
        socket: OwnedFd,
        inode: u64,
        to: SocketAddr,
    ) -> Decision {
        self.give_up(inode);
        if let Err(errno) = self.calls.enter(&socket) {
            return Decision::Answer(errno);
        }
        let Some((at, record)) = self.calls.table().take_socket() else {
            gateway::turn_away(&socket);
            return Decision::Answer(libc::ENOBUFS);
        };
        let number = gateway::next_attempt();
        let process = asker.process.as_raw_pid();
        note(
            record,
            &self.calls,
            (process, fd),
            (inode, number),
            to,
            &socket,
        );
        let waiting = waiting(&socket, asker);
        let attempt = Attempt {
            number,
            record: at,
            to,
            state: State::Connecting(waiting),
        };
        self.shared.attempts().insert(inode, attempt);
        let shared = Arc::clone(&self.shared);
        let told = move |outcome, socket: &OwnedFd| shared.settle(inode, number, outcome, socket);
        let message = Message {
            number: at,
            attempt: number,
            to,
        };
        if waiting != Waiting::Nobody {
            let limit = limit(&socket, asker, inode, libc::EINPROGRESS);
            self.limits.extend(limit);
        }
        let told = Some(Told(Box::new(told)));
        self.deliver.call(&self.calls, socket, message, told);
        match waiting {
            Waiting::Thread(_) => Decision::Later,
            Waiting::Nobody => Decision::Answer(libc::EINPROGRESS),
        }
    }

    /// getpeername(2): the destination, not the hole.
    fn peer(&self, asker: Asker, fd: u64, address: u64, len: u64) -> Result<Decision, Blind> {
        let Some(socket) = duplicate(asker, fd)? else {
            return Ok(Decision::GoOn);
        };
        let remote = sys::remote(socket.as_raw_fd());
        let Some(inode) = sys::inode(socket.as_raw_fd()).filter(|_| self.calls.is_hole(remote))
        else {
            return Ok(Decision::GoOn);
        };
        let to = self
            .shared
            .attempts()
            .by_inode
            .get(&inode)
            .map(|attempt| attempt.to);
        let mut room = [0; 4];
        let (Some(to), true) = (to, read(asker, len, &mut room)?) else {
            return Ok(Decision::GoOn);
        };
        let mut storage = [0_u64; size_of::<sockaddr_storage>() / 8];
        let whole = socklen_t::try_from(size_of_val(&storage)).unwrap_or(0);
        let place = storage.as_mut_ptr().cast();
        let taken = sys::put_peer(socket.as_raw_fd(), to, place, whole);
        let count = usize::try_from(taken.min(u32::from_ne_bytes(room))).unwrap_or(0);
        let written = write(asker, address, &octets(&mut storage)[..count])?
            && write(asker, len, &taken.to_ne_bytes())?;
        Ok(Decision::Answer(if written { 0 } else { libc::EFAULT }))
    }

    /// getsockopt(2) of `SO_ERROR`: what the gateway has answered, not the reset of the hole.
    fn error(&self, asker: Asker, fd: u64, value: u64, len: u64) -> Result<Decision, Blind> {
        let Some(socket) = duplicate(asker, fd)? else {
            return Ok(Decision::GoOn);
        };
        let Some(inode) = sys::inode(socket.as_raw_fd()) else {
            return Ok(Decision::GoOn);
        };
        let mut attempts = self.shared.attempts();
        let state = attempts.by_inode.get(&inode).map(|attempt| attempt.state);
        let Some(State::Failed(errno)) = state else {
            return Ok(Decision::GoOn);
        };
        let mut room = [0; 4];
        let written = read(asker, len, &mut room)?
            && u32::from_ne_bytes(room) >= 4
            && write(asker, value, &errno.to_ne_bytes())?
            && write(asker, len, &4_u32.to_ne_bytes())?;
        if !written {
            return Ok(Decision::GoOn);
        }
        attempts.by_inode.remove(&inode);
        gateway::clear_error(&socket);
        Ok(Decision::Answer(0))
    }
}

/// Fills in the record of a socket that the supervisor has taken.
fn note(
    record: &Socket,
    calls: &gateway::Side,
    (process, fd): (i32, u64),
    (inode, attempt): (u64, u32),
    to: SocketAddr,
    socket: &OwnedFd,
) {
    record.run.store(calls.run(), Ordering::Relaxed);
    record
        .pid
        .store(u32::try_from(process).unwrap_or(0), Ordering::Relaxed);
    record
        .descriptor
        .store(u32::try_from(fd).unwrap_or(0), Ordering::Relaxed);
    record.supervised.store(1, Ordering::Relaxed);
    record.remote.store(words(to));
    if let Some(local) = sys::local(socket.as_raw_fd()) {
        record.local.store(words(local));
    }
    record.inode.store(inode, Ordering::Release);
    record.gateway.store(attempt, Ordering::Release);
    record
        .protocol
        .store(Protocol::Tcp as u32, Ordering::Release);
}

/// The call that waits until this socket connects.
fn waiting(socket: &OwnedFd, asker: Asker) -> Waiting {
    let flags = sys::status_flags(socket.as_raw_fd()).unwrap_or(libc::O_NONBLOCK);
    match flags & libc::O_NONBLOCK {
        0 => Waiting::Thread(asker.id),
        _ => Waiting::Nobody,
    }
}

/// The end of a wait, where the socket has a time limit (`SO_SNDTIMEO`).
fn limit(socket: &OwnedFd, asker: Asker, inode: u64, errno: c_int) -> Option<Limit> {
    let after = sys::send_timeout_ns(socket.as_raw_fd())?;
    Some(Limit {
        at_ns: Clock::new().now_ns().saturating_add(after),
        inode,
        id: asker.id,
        errno,
    })
}
