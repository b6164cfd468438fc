//! The agent: answers what other hosts ask about the sockets of this table, and asks on behalf of
//! its applications.
//!
//! Agents exchange datagrams between discovery ports only. Whoever receives at that port of an
//! address speaks for the sockets there: a cookie proves the address before anything is remembered,
//! the source port proves that it is the agent, and the address that a socket claims must be the
//! one that was seen. One thread, no state per asker beyond the table's record.
//!
//! One agent per table: whoever holds the lock on its file. The other `haul run`s wait for it to
//! end.

use std::collections::{HashMap, HashSet};
use std::hash::Hasher;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use haul_io::notify::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use siphasher::sip::SipHasher13;

use crate::live;
use crate::table::{Key, Named, Protocol, Socket, Table, Verdict, Why, address, now_ms};
use crate::wire::{Kind, MESSAGE_LEN, Message};

/// The discovery port, UDP.
pub const DEFAULT_PORT: u16 = 4793;

/// When a question that is not answered is asked again, and then given up: milliseconds after the
/// first time.
const TRIES_MS: [u32; 4] = [60, 200, 450, 800];
/// Queries in flight.
const QUESTIONS_MAX: usize = 1024;
/// Hosts that are being asked; each has a socket.
const HOSTS_MAX: usize = 64;
/// Hosts without an agent that are remembered.
const SILENT_MAX: usize = 4096;
/// A host that did not answer is not asked for this long. One that refused is asked again sooner:
/// it costs no waiting.
const SILENT_MS: u32 = 60_000;
const REFUSED_MS: u32 = 2_000;
/// A socket that is not there may be there soon.
const NO_MS: u32 = 2_000;
/// A peer that is sent to is asked about again this often, and one that is not is forgotten after
/// the longer time.
const REFRESH_MS: u32 = 10_000;
const FORGET_MS: u32 = 30_000;
/// A connection that was announced and never made.
const ANNOUNCED_MS: u32 = 600_000;
/// How often the table is looked through.
const SWEEP_MS: u32 = 1_000;
/// The time in which a cookie is good; the one before is good as well.
const COOKIE_MS: u32 = 64_000;

/// What became of the agent of this `haul run`.
#[derive(Debug, Default)]
pub struct Status {
    /// 0 waiting for another one to end, 1 the agent, 2 the port is somebody else's.
    state: AtomicU32,
}

/// Which process is the agent here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Another `haul run` of this user, or nobody yet.
    Waiting,
    /// This one.
    Agent,
    /// Another user, or another application.
    PortTaken,
}

impl Status {
    /// Which process is the agent here.
    #[must_use]
    pub fn standing(&self) -> Standing {
        match self.state.load(Ordering::Acquire) {
            1 => Standing::Agent,
            2 => Standing::PortTaken,
            _ => Standing::Waiting,
        }
    }

    fn set(&self, standing: Standing) {
        let number = match standing {
            Standing::Waiting => 0,
            Standing::Agent => 1,
            Standing::PortTaken => 2,
        };
        self.state.store(number, Ordering::Release);
    }
}

/// Is the agent of `table`, or waits to become it, until `stop`.
///
/// # Errors
/// Of the table's file, or of a socket other than that its port is taken.
pub fn serve(table: &Table, port: u16, stop: &AtomicBool, status: &Status) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let lock = rustix::fs::open(table.path(), flags, Mode::empty())?;
    while !stop.load(Ordering::Acquire) {
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            table.wait_asked(table.asked(), Duration::from_millis(200));
            continue;
        }
        match Agent::new(table, port) {
            Ok(mut agent) => {
                table.agent().store(std::process::id(), Ordering::Release);
                status.set(Standing::Agent);
                table.wake_agents(); // and who waits for one
                let ended = agent.run_with_waker(stop);
                table.agent().store(0, Ordering::Release);
                agent.leave();
                return ended;
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                status.set(Standing::PortTaken);
                table.wake_agents();
                flock(&lock, FlockOperation::Unlock)?;
                table.wait_asked(table.asked(), Duration::from_millis(200));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A host that is asked.
#[derive(Debug)]
struct Host {
    remote: IpAddr,
    /// Bound to, where a socket asks that is bound to an address of its own.
    local: Option<IpAddr>,
    /// What this end is called there.
    seen_as: IpAddr,
    socket: OwnedFd,
    cookie: u64,
    used_ms: u32,
}

/// A query in flight.
#[derive(Debug)]
struct Question {
    key: Key,
    message: Message,
    /// Index in `hosts`.
    host: usize,
    first_ms: u32,
    tries: usize,
}

#[derive(Debug)]
struct Agent<'a> {
    table: &'a Table,
    port: u16,
    listeners: Vec<OwnedFd>,
    hosts: Vec<Host>,
    questions: Vec<Question>,
    silent: HashMap<IpAddr, (u32, u32)>,
    cookies: (u64, u64),
    nonce: (u64, u64, u64),
    swept_ms: u32,
}

impl<'a> Agent<'a> {
    fn new(table: &'a Table, port: u16) -> io::Result<Self> {
        let v4 = bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))?;
        let mut listeners = vec![v4];
        match bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)) {
            Ok(v6) => listeners.push(v6),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
            Err(_) => {} // there is no IPv6 here
        }
        let random = || Ok::<_, io::Error>(u64::from_ne_bytes(haul_io::random::bytes()?));
        Ok(Self {
            table,
            port,
            listeners,
            hosts: Vec::new(),
            questions: Vec::new(),
            silent: HashMap::new(),
            cookies: (random()?, random()?),
            nonce: (random()?, random()?, 0),
            swept_ms: now_ms(),
        })
    }

    /// Applications wake their agent through a futex, hosts through sockets: a second thread turns
    /// the one into the other.
    fn run_with_waker(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let (signal, ended) = (Signal::new()?, AtomicBool::new(false));
        let table = self.table;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut seen = table.asked();
                while !ended.load(Ordering::Acquire) {
                    table.wait_asked(seen, Duration::from_millis(200));
                    let now = table.asked();
                    if now != seen {
                        signal.set();
                    }
                    seen = now;
                }
            });
            let result = self.run(stop, &signal);
            ended.store(true, Ordering::Release);
            table.wake_agents();
            result
        })
    }

    fn run(&mut self, stop: &AtomicBool, signal: &Signal) -> io::Result<()> {
        while !stop.load(Ordering::Acquire) {
            signal.clear();
            self.take_questions();
            self.receive_all();
            self.ask_again();
            let now = now_ms();
            if now.wrapping_sub(self.swept_ms) >= SWEEP_MS {
                self.swept_ms = now;
                self.sweep(now);
            }
            self.wait(signal)?;
        }
        Ok(())
    }

    fn wait(&self, signal: &Signal) -> io::Result<()> {
        let patience_ms = if self.questions.is_empty() { 200 } else { 20 };
        let mut fds: Vec<PollFd<'_>> = [signal.as_fd()]
            .into_iter()
            .chain(self.sockets())
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: patience_ms * 1_000_000,
        };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let hosts = self.hosts.iter().map(|host| host.socket.as_fd());
        self.listeners.iter().map(AsFd::as_fd).chain(hosts)
    }

    /// What applications ask.
    fn take_questions(&mut self) {
        let table = self.table;
        for at in table.questions() {
            let entry = table.peer(at).and_then(|peer| Some((peer, peer.entry()?)));
            if let Some((peer, (key, Verdict::Asked))) = entry {
                self.ask(key, peer.asker(table));
            }
        }
    }

    fn ask(&mut self, key: Key, local: Option<IpAddr>) {
        let Some((protocol, port, target)) = key.parts() else {
            return;
        };
        let now = now_ms();
        if let Some((since, patience)) = self.silent.get(&target.ip())
            && now.wrapping_sub(*since) < *patience
        {
            return self.conclude(&key, Verdict::No(Why::NoAgent));
        }
        if self.questions.len() >= QUESTIONS_MAX || self.questions.iter().any(|q| q.key == key) {
            return; // the program asks again when the record is forgotten
        }
        let Ok(host) = self.host(target.ip(), local, now) else {
            return self.conclude(&key, Verdict::No(Why::NoAgent));
        };
        let message = Message {
            kind: Kind::Query,
            protocol,
            verdict: None,
            nonce: self.next_nonce(),
            cookie: 0,
            named: self.table.named(protocol, port),
            asker: SocketAddr::new(self.hosts[host].seen_as, port),
            target,
        };
        self.questions.push(Question {
            key,
            message,
            host,
            first_ms: now,
            tries: 0,
        });
        self.send_query(self.questions.len() - 1);
    }

    fn next_nonce(&mut self) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.nonce.0, self.nonce.1);
        hasher.write_u64(self.nonce.2);
        self.nonce.2 += 1;
        hasher.finish()
    }

    /// The socket towards a host.
    fn host(&mut self, remote: IpAddr, local: Option<IpAddr>, now: u32) -> io::Result<usize> {
        let known = self
            .hosts
            .iter()
            .position(|host| host.remote == remote && host.local == local);
        if let Some(at) = known {
            self.hosts[at].used_ms = now;
            return Ok(at);
        }
        let any = match remote {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let socket = bind(SocketAddr::new(local.unwrap_or(any), self.port))?;
        rustix::net::connect(&socket, &SocketAddr::new(remote, self.port))?;
        let seen_as = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?.ip();
        let host = Host {
            remote,
            local,
            seen_as,
            socket,
            cookie: 0,
            used_ms: now,
        };
        if self.hosts.len() < HOSTS_MAX {
            self.hosts.push(host);
            return Ok(self.hosts.len() - 1);
        }
        let idle = (0..HOSTS_MAX)
            .filter(|at| self.questions.iter().all(|question| question.host != *at))
            .max_by_key(|at| now.wrapping_sub(self.hosts[*at].used_ms));
        let at = idle.ok_or(io::ErrorKind::ResourceBusy)?;
        self.hosts[at] = host;
        Ok(at)
    }

    fn send_query(&mut self, at: usize) {
        let question = &mut self.questions[at];
        let host = &self.hosts[question.host];
        question.message.cookie = host.cookie;
        question.tries += 1;
        let octets = question.message.emit();
        let sent = rustix::net::send(&host.socket, &octets, SendFlags::NOSIGNAL);
        if let Err(error) = sent
            && error != Errno::AGAIN
        {
            self.host_failed(self.questions[at].host);
        }
    }

    /// A host refuses or cannot be reached: nothing that was asked there will be answered.
    fn host_failed(&mut self, host: usize) {
        self.remember_silent(self.hosts[host].remote, REFUSED_MS);
        let (failed, rest) = std::mem::take(&mut self.questions)
            .into_iter()
            .partition::<Vec<_>, _>(|question| question.host == host);
        self.questions = rest;
        for question in failed {
            self.conclude(&question.key, Verdict::No(Why::NoAgent));
        }
    }

    fn remember_silent(&mut self, host: IpAddr, patience: u32) {
        if self.silent.len() >= SILENT_MAX {
            self.silent.clear();
        }
        self.silent.insert(host, (now_ms(), patience));
    }

    fn conclude(&self, key: &Key, verdict: Verdict) {
        self.table.write(key, verdict, now_ms());
    }

    fn ask_again(&mut self) {
        let now = now_ms();
        let mut at = 0;
        while at < self.questions.len() {
            let question = &self.questions[at];
            let waited = now.wrapping_sub(question.first_ms);
            match TRIES_MS.get(question.tries.saturating_sub(1)) {
                Some(due) if waited < *due => at += 1,
                Some(_) if question.tries < TRIES_MS.len() => {
                    let before = self.questions.len();
                    self.send_query(at);
                    // If the host has failed, the question is gone.
                    at += usize::from(self.questions.len() == before);
                }
                _ => {
                    let question = self.questions.swap_remove(at);
                    let host = &self.hosts[question.host];
                    if host.cookie == 0 {
                        self.remember_silent(host.remote, SILENT_MS);
                    }
                    self.conclude(&question.key, Verdict::No(Why::NoAgent));
                }
            }
        }
    }

    fn receive_all(&mut self) {
        for listener in 0..self.listeners.len() {
            while let Ok(Some((message, from))) = receive(self.listeners[listener].as_fd()) {
                if let Some(reply) = self.handle(&message, from) {
                    send_to(self.listeners[listener].as_fd(), &reply, from);
                }
            }
        }
        let mut host = 0;
        while host < self.hosts.len() {
            match receive(self.hosts[host].socket.as_fd()) {
                Ok(Some((message, from))) => {
                    if let Some(reply) = self.handle(&message, from) {
                        send_to(self.hosts[host].socket.as_fd(), &reply, from);
                    }
                }
                Ok(None) => host += 1,
                Err(_) => {
                    self.host_failed(host);
                    host += 1;
                }
            }
        }
    }

    /// Answers a message of another agent.
    fn handle(&mut self, message: &Message, from: SocketAddr) -> Option<Message> {
        match message.kind {
            Kind::Query => Some(self.answer(message, from)),
            Kind::Cookie => {
                let asked = self.asked(message, from)?;
                let host = self.questions[asked].host;
                if message.cookie != 0 && self.hosts[host].cookie != message.cookie {
                    self.hosts[host].cookie = message.cookie;
                    self.send_query(asked);
                }
                None
            }
            Kind::Answer => {
                let asked = self.asked(message, from)?;
                let question = self.questions.swap_remove(asked);
                let verdict = match message.verdict {
                    None if message.named.epoch != 0 => Verdict::Yes(message.named),
                    None => Verdict::No(Why::NoSocket),
                    Some(why) => Verdict::No(why),
                };
                self.conclude(&question.key, verdict);
                None
            }
            Kind::Notice => {
                if from.port() == self.port && message.target.ip() == from.ip() {
                    self.noticed(message);
                }
                None
            }
        }
    }

    fn asked(&self, message: &Message, from: SocketAddr) -> Option<usize> {
        let of = |question: &Question| {
            question.message.nonce == message.nonce
                && from.port() == self.port
                && question.message.target == message.target
        };
        self.questions.iter().position(of)
    }

    fn answer(&self, query: &Message, from: SocketAddr) -> Message {
        let reply = |kind, verdict, named| Message {
            kind,
            verdict,
            named,
            ..*query
        };
        let now = now_ms();
        let slot = now / COOKIE_MS;
        let good = [slot, slot.wrapping_sub(1)].map(|slot| self.cookie(from.ip(), slot));
        if !good.contains(&query.cookie) {
            let cookie = Message {
                cookie: good[0],
                ..*query
            };
            return Message {
                kind: Kind::Cookie,
                named: Named::default(),
                ..cookie
            };
        }
        if from.port() != self.port || query.asker.ip() != from.ip() {
            return reply(Kind::Answer, Some(Why::Translated), Named::default());
        }
        let key = Key::new(query.protocol, query.target.port(), query.asker);
        let announced = query.named.epoch != 0
            && self.speaks(query)
            && self
                .table
                .write(&key, Verdict::Yes(query.named), now)
                .is_some();
        if !announced {
            return reply(Kind::Answer, Some(Why::NoSocket), Named::default());
        }
        let named = self.table.named(query.protocol, query.target.port());
        reply(Kind::Answer, None, named)
    }

    fn cookie(&self, ip: IpAddr, slot: u32) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.cookies.0, self.cookies.1);
        hasher.write_u32(slot);
        for word in crate::table::words(SocketAddr::new(ip, 0)) {
            hasher.write_u32(word);
        }
        hasher.finish() | 1
    }

    /// Whether a socket of this table is there that takes what the asker would send.
    fn speaks(&self, query: &Message) -> bool {
        self.table
            .sockets()
            .any(|(_, socket)| speaks(socket, query.protocol, query.target, query.asker))
    }

    /// A socket that this table sends to is gone.
    fn noticed(&self, notice: &Message) {
        let key = Key::new(notice.protocol, notice.asker.port(), notice.target);
        if let Some((at, _, verdict)) = self.table.find(&key)
            && verdict == Verdict::Yes(notice.named)
        {
            self.table.forget(at, &key, verdict);
        }
    }

    /// Announces closed sockets and expires old answers; called periodically.
    fn sweep(&mut self, now: u32) {
        live::unpublish_closed(self.table);
        let ports: HashSet<u32> = self
            .table
            .sockets()
            .filter(|(_, socket)| is_published(socket, Protocol::Udp))
            .map(|(_, socket)| socket.local.load()[4])
            .collect();
        for (at, peer) in self.table.peers() {
            let Some((key, verdict)) = peer.entry() else {
                continue;
            };
            let age = peer.age_ms(now);
            match (key.parts(), verdict) {
                (None, _) => self.table.forget(at, &key, verdict),
                (_, Verdict::Asked) if age > 2 * TRIES_MS[3] => {
                    self.table.forget(at, &key, verdict);
                }
                (_, Verdict::No(_)) if age > NO_MS => self.table.forget(at, &key, verdict),
                (Some((Protocol::Tcp, ..)), Verdict::Yes(_)) if age > ANNOUNCED_MS => {
                    self.table.forget(at, &key, verdict);
                }
                (Some((Protocol::Udp, port, target)), Verdict::Yes(_)) => {
                    self.sweep_datagram(now, (at, key), target, ports.contains(&port.into()));
                }
                _ => {}
            }
        }
    }

    fn sweep_datagram(&mut self, now: u32, of: (usize, Key), target: SocketAddr, is_here: bool) {
        let (at, key) = of;
        let Some(peer) = self.table.peer(at) else {
            return;
        };
        let (Some(verdict), Some((_, port, _))) = (peer.verdict(&key), key.parts()) else {
            return;
        };
        let age = peer.age_ms(now);
        if !is_here {
            self.table.forget(at, &key, verdict);
            self.notify(port, target);
        } else if age > FORGET_MS {
            self.table.forget(at, &key, verdict);
        } else if age > REFRESH_MS && peer.used.swap(0, Ordering::Relaxed) != 0 {
            self.ask(key, None);
        }
    }

    /// Tells another agent that the socket at `port` is gone.
    fn notify(&mut self, port: u16, peer: SocketAddr) {
        let now = now_ms();
        let Ok(host) = self.host(peer.ip(), None, now) else {
            return;
        };
        let host = &self.hosts[host];
        let notice = Message {
            kind: Kind::Notice,
            protocol: Protocol::Udp,
            verdict: None,
            nonce: 0,
            cookie: 0,
            named: self.table.named(Protocol::Udp, port),
            asker: peer,
            target: SocketAddr::new(host.seen_as, port),
        };
        let _ = rustix::net::send(&host.socket, &notice.emit(), SendFlags::NOSIGNAL);
    }

    /// Announces that the sockets of a `haul run` that has ended are closed.
    fn leave(&mut self) {
        self.sweep(now_ms());
    }
}

fn is_published(socket: &Socket, protocol: Protocol) -> bool {
    socket.state.load(Ordering::Acquire) == Socket::OPEN
        && socket.published.load(Ordering::Acquire) == 1
        && socket.protocol() == Some(protocol)
}

fn speaks(socket: &Socket, protocol: Protocol, target: SocketAddr, asker: SocketAddr) -> bool {
    if !is_published(socket, protocol) {
        return false;
    }
    let (local, remote) = (address(socket.local.load()), address(socket.remote.load()));
    let is_any = match local.ip() {
        // A wildcard of IPv6 takes IPv4 too, unless it is IPV6_V6ONLY; then nothing of IPv4
        // reaches the port anyway.
        IpAddr::V6(ip) => ip.is_unspecified(),
        IpAddr::V4(ip) => ip.is_unspecified() && target.is_ipv4(),
    };
    let is_here = local.port() == target.port() && (is_any || local.ip() == target.ip());
    let listens = protocol == Protocol::Udp || socket.listening.load(Ordering::Relaxed) == 1;
    let takes = remote.port() == 0 || remote == asker;
    is_here && listens && takes
}

fn bind(local: SocketAddr) -> io::Result<OwnedFd> {
    let family = if local.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    // Of this user's sockets only: SO_REUSEADDR would let other users bind the port as well.
    sockopt::set_socket_reuseport(&socket, true)?;
    if local.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &local)?;
    Ok(socket)
}

/// The next message; what is none is dropped.
fn receive(socket: BorrowedFd<'_>) -> Result<Option<(Message, SocketAddr)>, Errno> {
    let mut octets = [0; MESSAGE_LEN + 1];
    for _ in 0..64 {
        let (len, from) = match rustix::net::recvfrom(socket, &mut octets, RecvFlags::DONTWAIT) {
            Ok((len, _, from)) => (len, from),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error),
        };
        let from = from.and_then(|from| SocketAddr::try_from(from).ok());
        let message = octets.get(..len).and_then(Message::parse);
        if let (Some(message), Some(from)) = (message, from) {
            let from = SocketAddr::new(from.ip().to_canonical(), from.port());
            return Ok(Some((message, from)));
        }
    }
    Ok(None)
}

fn send_to(socket: BorrowedFd<'_>, message: &Message, to: SocketAddr) {
    // An answer that cannot be sent is asked for again.
    let _ = rustix::net::sendto(socket, &message.emit(), SendFlags::NOSIGNAL, &to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_forgets_old_questions_and_none_that_came_while_it_lasted() {
        let folder = tempfile::tempdir().unwrap();
        let table = Table::create(&folder.path().join("table")).unwrap();
        let mut agent = Agent {
            table: &table,
            port: 0,
            listeners: Vec::new(),
            hosts: Vec::new(),
            questions: Vec::new(),
            silent: HashMap::new(),
            cookies: (0, 0),
            nonce: (0, 0, 0),
            swept_ms: 0,
        };
        let key = Key::new(Protocol::Tcp, 1, ([127, 0, 0, 1], 2).into());
        let began = 1_000_000;
        table.write(&key, Verdict::Asked, began + 300);
        agent.sweep(began);
        let found = table.find(&key).map(|(_, _, verdict)| verdict);
        assert_eq!(found, Some(Verdict::Asked));
        agent.sweep(began + 300 + 2 * TRIES_MS[3] + 1);
        assert!(table.find(&key).is_none());
    }
}
