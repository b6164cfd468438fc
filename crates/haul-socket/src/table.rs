//! The table: what the applications under `haul run` and its agents know together, in shared
//! memory.
//!
//! One per user, network namespace and discovery port. [`Socket`] records are written by the
//! applications, [`Peer`] records by the agents, questions go from applications to agents through a
//! ring. Everything is an atomic number and nothing read here is trusted further than its type:
//! another process of the same user may have written anything.

use std::hash::Hasher;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::futex;
use siphasher::sip::SipHasher13;

use crate::buffer::{SOCKETS, Streams};
use crate::map::{Mapped, Shared};

/// Peers of one table, in sets of [`WAYS`].
pub(crate) const PEERS: usize = 1 << 18;
/// Records that a peer may be in.
const WAYS: usize = 8;
/// Peers that are looked through together, if there is one among them.
const BLOCK: usize = 1024;
/// Questions that wait for an agent; more are asked again.
const QUESTIONS: usize = 1024;
/// `haul run`s at the same time.
const RUNS: usize = 256;
/// Part of the file's name: another layout is another table.
const LAYOUT: u32 = 6;

/// What a socket speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Protocol {
    /// UDP, carried by UD.
    Udp = 1,
    /// TCP, carried by RC.
    Tcp = 2,
}

impl Protocol {
    pub(crate) const fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Udp),
            2 => Some(Self::Tcp),
            _ => None,
        }
    }
}

/// Why a socket, or what it sent, stayed with the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Why {
    /// It was taken, or there was nothing to carry.
    None = 0,
    /// The peer's host has no agent: it refused, or did not answer.
    NoAgent = 1,
    /// The peer's agent knows no such socket.
    NoSocket = 2,
    /// Between the two hosts, addresses are translated.
    Translated = 3,
    /// An option of the socket that framing cannot keep.
    Option = 4,
    /// To several receivers, or to an address of one link.
    Address = 5,
    /// An option of `haul run` excludes this protocol.
    Excluded = 6,
    /// No agent here: another user has the discovery port, or `haul run` has ended.
    NoLocalAgent = 7,
    /// The peer was announced as a speaker of it and is none.
    PeerPlain = 8,
    /// Already connected when it was inherited.
    Inherited = 9,
    /// Longer than a datagram with its header.
    TooLong = 10,
    /// A flag of a call, likewise.
    Flag = 11,
    /// On this host or this link, where no gateway leads.
    Near = 12,
    /// The connection could not be made through the gateway.
    NotMade = 13,
}

impl Why {
    pub(crate) const fn from_number(number: u32) -> Self {
        match number {
            1 => Self::NoAgent,
            2 => Self::NoSocket,
            3 => Self::Translated,
            4 => Self::Option,
            5 => Self::Address,
            6 => Self::Excluded,
            7 => Self::NoLocalAgent,
            8 => Self::PeerPlain,
            9 => Self::Inherited,
            10 => Self::TooLong,
            11 => Self::Flag,
            12 => Self::Near,
            13 => Self::NotMade,
            _ => Self::None,
        }
    }

    /// In words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::None => "",
            Self::NoAgent => "no agent at the peer",
            Self::NoSocket => "the peer's socket is not under haul run",
            Self::Translated => "addresses are translated on the way",
            Self::Option => "a socket option that framing cannot keep",
            Self::Address => "multicast, broadcast or link-local",
            Self::Excluded => "left alone as haul run was told",
            Self::NoLocalAgent => "no agent here",
            Self::PeerPlain => "the peer answered in plain",
            Self::Inherited => "connected before haul run",
            Self::TooLong => "longer than a framed datagram",
            Self::Flag => "sent with a flag that framing cannot keep",
            Self::Near => "on this host or link",
            Self::NotMade => "the gateway could not make the connection",
        }
    }
}

/// An address in shared memory: sixteen bytes as IPv6, then the port.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Address([AtomicU32; 5]);

/// An address as numbers, IPv4 mapped into IPv6.
pub(crate) type Words = [u32; 5];

pub(crate) fn words(address: SocketAddr) -> Words {
    let ip = match address.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let bits = u128::from(ip);
    #[expect(clippy::cast_possible_truncation, reason = "32 bits of it at a time")]
    let word = |shift: u32| (bits >> shift) as u32;
    [
        word(96),
        word(64),
        word(32),
        word(0),
        u32::from(address.port()),
    ]
}

pub(crate) fn address(words: Words) -> SocketAddr {
    let bits = words[..4]
        .iter()
        .fold(0, |bits: u128, word| bits << 32 | u128::from(*word));
    let ip = IpAddr::V6(Ipv6Addr::from(bits)).to_canonical();
    SocketAddr::new(ip, u16::try_from(words[4] & 0xffff).unwrap_or(0))
}

impl Address {
    pub(crate) fn load(&self) -> Words {
        self.0.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    pub(crate) fn store(&self, words: Words) {
        for (word, value) in self.0.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
    }

    #[inline]
    fn is(&self, words: &Words) -> bool {
        let differing = self.0.iter().zip(words).fold(0, |differing, (own, other)| {
            differing | (own.load(Ordering::Relaxed) ^ other)
        });
        differing == 0
    }
}

/// A socket of an application.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Socket {
    /// 0 free, 1 in use, 2 closed.
    pub(crate) state: AtomicU32,
    /// The process id of its `haul run`.
    pub(crate) run: AtomicU32,
    /// The process that opened it, and its descriptor.
    pub(crate) pid: AtomicU32,
    pub(crate) descriptor: AtomicU32,
    pub(crate) protocol: AtomicU32,
    /// Agents may announce it.
    pub(crate) published: AtomicU32,
    pub(crate) listening: AtomicU32,
    /// Taken streams: 1.
    pub(crate) taken: AtomicU32,
    pub(crate) why: AtomicU32,
    /// Other processes may hold it too.
    pub(crate) shared: AtomicU32,
    /// The record of the peer it sent to last, plus one.
    pub(crate) last_peer: AtomicU32,
    /// The last datagram was framed.
    pub(crate) last_framed: AtomicU32,
    pub(crate) local: Address,
    pub(crate) remote: Address,
    /// Datagrams or segments that were refused.
    pub(crate) malformed: AtomicU32,
    /// Its name, once it is published.
    qpn: AtomicU32,
    epoch: AtomicU32,
    /// Datagrams here are Write-Records.
    pub(crate) write_record: AtomicU32,
    /// Connected, or connecting, through a gateway: the attempt's number.
    pub(crate) gateway: AtomicU32,
    /// Why that has failed, as `errno`.
    pub(crate) error: AtomicU32,
    /// The supervisor has taken it, and nobody counts its bytes.
    pub(crate) supervised: AtomicU32,
    pub(crate) inode: AtomicU64,
    /// Bytes of payload.
    pub(crate) carried_out: AtomicU64,
    pub(crate) carried_in: AtomicU64,
    pub(crate) plain_out: AtomicU64,
    pub(crate) plain_in: AtomicU64,
    /// Both directions of a stream, for `stream`.
    pub(crate) tx: Direction,
    pub(crate) rx: Direction,
}

/// What one direction of a stream must remember, across `fork` and `exec`.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Direction {
    /// Thread that has it, or 0.
    pub(crate) lock: AtomicU32,
    pub(crate) words: [AtomicU32; 24],
}

impl Socket {
    pub(crate) const FREE: u32 = 0;
    pub(crate) const OPEN: u32 = 1;
    pub(crate) const CLOSED: u32 = 2;

    pub(crate) fn protocol(&self) -> Option<Protocol> {
        Protocol::from_number(self.protocol.load(Ordering::Relaxed))
    }

    pub(crate) fn refuse(&self, why: Why) {
        self.why.store(why as u32, Ordering::Relaxed);
    }

    /// By what it is known; zeros before it is published, which nothing is addressed to.
    pub(crate) fn named(&self) -> Named {
        Named {
            qpn: self.qpn.load(Ordering::Relaxed),
            epoch: self.epoch.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn set_named(&self, named: Named) {
        self.qpn.store(named.qpn, Ordering::Relaxed);
        self.epoch.store(named.epoch, Ordering::Relaxed);
    }

    fn clear(&self) {
        for number in [
            &self.run,
            &self.pid,
            &self.descriptor,
            &self.protocol,
            &self.published,
            &self.listening,
            &self.taken,
            &self.why,
            &self.shared,
            &self.last_peer,
            &self.last_framed,
            &self.malformed,
            &self.write_record,
            &self.gateway,
            &self.error,
            &self.supervised,
            &self.qpn,
            &self.epoch,
        ] {
            number.store(0, Ordering::Relaxed);
        }
        for number in [
            &self.inode,
            &self.carried_out,
            &self.carried_in,
            &self.plain_out,
            &self.plain_in,
        ] {
            number.store(0, Ordering::Relaxed);
        }
        self.local.store([0; 5]);
        self.remote.store([0; 5]);
        for direction in [&self.tx, &self.rx] {
            direction.lock.store(0, Ordering::Relaxed);
            direction
                .words
                .iter()
                .for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }
}

/// What is known about speaking from a local port to a remote address. A cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Peer {
    /// Counts changes; the lowest three bits are the [`Verdict`]'s number.
    state: AtomicU32,
    /// Protocol in the upper half, local port in the lower.
    from: AtomicU32,
    to: Address,
    qpn: AtomicU32,
    epoch: AtomicU32,
    /// Why not.
    why: AtomicU32,
    /// A message has gone to it since the agent looked.
    pub(crate) used: AtomicU32,
    /// Datagrams sent to it; packet and message numbers follow from it.
    pub(crate) sent: AtomicU32,
    /// The agent's clock, in milliseconds, when it was written.
    stamp: AtomicU32,
    /// The record of the socket that asks, plus one.
    socket: AtomicU32,
}

/// What is known about a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// An agent is asking.
    Asked,
    /// It speaks.
    Yes(Named),
    /// It does not.
    No(Why),
}

/// By what a peer is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Named {
    /// 24 bits.
    pub(crate) qpn: u32,
    /// Not zero.
    pub(crate) epoch: u32,
}

const FREE: u32 = 0;
const WRITING: u32 = 1;
const ASKED: u32 = 2;
const YES: u32 = 3;
const NO: u32 = 4;
const STATE_MASK: u32 = 7;

impl Peer {
    fn verdict_at(&self, state: u32) -> Option<Verdict> {
        match state & STATE_MASK {
            ASKED => Some(Verdict::Asked),
            YES => Some(Verdict::Yes(Named {
                qpn: self.qpn.load(Ordering::Relaxed) & 0x00ff_ffff,
                epoch: self.epoch.load(Ordering::Relaxed),
            })),
            NO => Some(Verdict::No(Why::from_number(
                self.why.load(Ordering::Relaxed),
            ))),
            _ => None,
        }
    }

    /// The verdict, if the record is about `key` and was not changed meanwhile.
    #[inline]
    pub(crate) fn verdict(&self, key: &Key) -> Option<Verdict> {
        let before = self.state.load(Ordering::Acquire);
        let verdict = self.verdict_at(before)?;
        if self.from.load(Ordering::Relaxed) != key.from || !self.to.is(&key.to) {
            return None;
        }
        std::sync::atomic::fence(Ordering::Acquire);
        (self.state.load(Ordering::Relaxed) == before).then_some(verdict)
    }

    /// The address that the asking socket is bound to, if it is bound to one.
    pub(crate) fn asker(&self, table: &Table) -> Option<IpAddr> {
        let at = (self.socket.load(Ordering::Acquire) as usize).checked_sub(1)?;
        let local = address(table.socket(at)?.local.load()).ip();
        (!local.is_unspecified()).then_some(local)
    }

    /// Milliseconds since it was written; none if that was after `now_ms`, which may have been read
    /// some time ago.
    pub(crate) fn age_ms(&self, now_ms: u32) -> u32 {
        let age = now_ms.wrapping_sub(self.stamp.load(Ordering::Relaxed));
        if age > u32::MAX / 2 { 0 } else { age }
    }

    /// The key and verdict of a record that is in use.
    pub(crate) fn entry(&self) -> Option<(Key, Verdict)> {
        let key = Key {
            from: self.from.load(Ordering::Relaxed),
            to: self.to.load(),
        };
        self.verdict(&key).map(|verdict| (key, verdict))
    }

    /// Takes the record for writing if its state is still `seen`.
    fn begin(&self, seen: u32) -> bool {
        let writing = (seen & !STATE_MASK) | WRITING;
        self.state
            .compare_exchange(seen, writing, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    fn finish(&self, seen: u32, state: u32) {
        let next = (seen & !STATE_MASK).wrapping_add(STATE_MASK + 1) | state;
        self.state.store(next, Ordering::Release);
        // The connecting side waits for it.
        let _ = futex::wake(&self.state, futex::Flags::empty(), u32::MAX);
    }

    /// Somebody is writing it.
    pub(crate) fn is_being_written(&self) -> bool {
        self.state.load(Ordering::Acquire) & STATE_MASK == WRITING
    }

    /// Waits until the state is not the one of `Asked`, or of being written, any more, or
    /// `patience` is over.
    pub(crate) fn wait(&self, patience: Duration) {
        let start = self.state.load(Ordering::Acquire);
        if matches!(start & STATE_MASK, ASKED | WRITING)
            && let Ok(timeout) = patience.try_into()
        {
            let _ = futex::wait(&self.state, futex::Flags::empty(), start, Some(&timeout));
        }
    }
}

/// Whom a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    from: u32,
    to: Words,
}

impl Key {
    pub(crate) fn new(protocol: Protocol, local_port: u16, remote: SocketAddr) -> Self {
        Self::of_words(protocol, local_port, words(remote))
    }

    pub(crate) const fn of_words(protocol: Protocol, local_port: u16, to: Words) -> Self {
        Self {
            from: (protocol as u32) << 16 | local_port as u32,
            to,
        }
    }

    pub(crate) fn parts(&self) -> Option<(Protocol, u16, SocketAddr)> {
        let protocol = Protocol::from_number(self.from >> 16)?;
        let port = u16::try_from(self.from & 0xffff).unwrap_or(0);
        Some((protocol, port, address(self.to)))
    }
}

/// A `haul run`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RunRecord {
    /// Its process, or 0.
    pub(crate) pid: AtomicU32,
    /// [`Options`].
    pub(crate) options: AtomicU32,
    /// Ports of its holes, of IPv4 in the lower half and of IPv6 in the upper.
    holes: AtomicU32,
    /// How many times a process has loaded the library.
    loaded: AtomicU32,
    /// It sees connections of other applications, too.
    supervised: AtomicU32,
}

/// What a `haul run` wants carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// UDP sockets.
    pub datagram: bool,
    /// TCP sockets.
    pub stream: bool,
    /// UDP by Write-Record where the peer offers slots.
    pub write_record: bool,
    /// TCP connections, through a gateway.
    pub gateway: bool,
}

impl Options {
    const fn number(self) -> u32 {
        self.datagram as u32
            | (self.stream as u32) << 1
            | (self.write_record as u32) << 2
            | (self.gateway as u32) << 3
    }

    pub(crate) const fn from_number(number: u32) -> Self {
        Self {
            datagram: number & 1 != 0,
            stream: number & 2 != 0,
            write_record: number & 4 != 0,
            gateway: number & 8 != 0,
        }
    }
}

/// The whole file.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Layout {
    secret: [AtomicU32; 4],
    /// Process of the agent, or 0.
    pub(crate) agent: AtomicU32,
    /// Sockets that were ever needed.
    next_socket: AtomicU32,
    /// Sockets that found no place.
    pub(crate) overflow: AtomicU32,
    /// Where the next question goes.
    next_question: AtomicU32,
    /// Rises when a question is there to be taken: what agents wait on.
    asked: AtomicU32,
    runs: [RunRecord; RUNS],
    questions: [AtomicU32; QUESTIONS],
    /// Blocks of peers in which something was ever written.
    blocks: [AtomicU32; PEERS / BLOCK],
    sockets: [Socket; SOCKETS],
    peers: [Peer; PEERS],
}

// SAFETY: `repr(C)`, made of `AtomicU32` and `AtomicU64` alone.
unsafe impl Shared for Layout {}

/// The table, mapped.
#[derive(Debug)]
pub struct Table {
    layout: Mapped<Layout>,
    secret: (u64, u64),
    path: PathBuf,
}

impl Table {
    /// Where the table of this user, network namespace and discovery port is.
    ///
    /// # Errors
    /// Without `/proc`.
    pub fn default_path(port: u16) -> io::Result<PathBuf> {
        let namespace = rustix::fs::stat("/proc/self/ns/net")?.st_ino;
        let user = rustix::process::geteuid().as_raw();
        let name = format!("haul-run-{LAYOUT}-{user}-{namespace}-{port}");
        Ok(Path::new("/dev/shm").join(name))
    }

    /// Opens the table, and makes it if it is not there.
    ///
    /// # Errors
    /// Of the file; `PermissionDenied` where it is not this user's own.
    pub fn create(path: &Path) -> io::Result<Self> {
        let table = Self::map(path, true)?;
        for word in &table.layout.secret {
            let random = u32::from_ne_bytes(haul_io::random::bytes()?) | 1;
            // The first one stays.
            let _ = word.compare_exchange(0, random, Ordering::AcqRel, Ordering::Acquire);
        }
        Ok(table.with_secret())
    }

    /// Opens a table that is there.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self::map(path, false)?.with_secret())
    }

    fn map(path: &Path, create: bool) -> io::Result<Self> {
        Ok(Self {
            layout: Mapped::open(path, create)?,
            secret: (0, 0),
            path: path.to_owned(),
        })
    }

    fn with_secret(mut self) -> Self {
        let word = |at: usize| u64::from(self.layout.secret[at].load(Ordering::Acquire));
        self.secret = (word(0) << 32 | word(1), word(2) << 32 | word(3));
        self
    }

    /// Its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file of that name is still this table.
    pub(crate) fn is_current(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.layout.identity)
    }

    fn hash(&self, write: impl FnOnce(&mut SipHasher13)) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.secret.0, self.secret.1);
        write(&mut hasher);
        hasher.finish()
    }

    /// The name of whatever sockets are bound to a port under this table. Sockets that share a port
    /// share it: the kernel may give a datagram to any of them.
    pub(crate) fn named(&self, protocol: Protocol, port: u16) -> Named {
        let hash = self.hash(|hasher| {
            hasher.write_u32(protocol as u32);
            hasher.write_u16(port);
        });
        #[expect(clippy::cast_possible_truncation, reason = "parts of a hash")]
        let named = Named {
            qpn: (hash as u32 & 0x00ff_ffff).min(0x00ff_fffe),
            epoch: (hash >> 32) as u32 | 1,
        };
        named
    }

    pub(crate) fn streams(&self) -> &Streams {
        &self.layout.streams
    }

    pub(crate) fn agent(&self) -> &AtomicU32 {
        &self.layout.agent
    }

    pub(crate) fn overflow(&self) -> u32 {
        self.layout.overflow.load(Ordering::Relaxed)
    }

    /// Registers this process as a `haul run`; false if there are too many.
    pub(crate) fn register(&self, pid: u32, options: Options) -> bool {
        for run in &self.layout.runs {
            let holder = run.pid.load(Ordering::Acquire);
            let vacant = holder == 0 || !is_alive(holder);
            if vacant
                && run
                    .pid
                    .compare_exchange(holder, pid, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            {
                run.holes.store(0, Ordering::Relaxed);
                run.loaded.store(0, Ordering::Relaxed);
                run.supervised.store(0, Ordering::Relaxed);
                run.options.store(options.number(), Ordering::Release);
                return true;
            }
        }
        false
    }

    /// Takes this process out; true if it was the last.
    pub(crate) fn unregister(&self, pid: u32) -> bool {
        let mut last = true;
        for run in &self.layout.runs {
            let holder = run.pid.load(Ordering::Acquire);
            if holder == pid {
                run.pid.store(0, Ordering::Release);
            } else if holder != 0 && is_alive(holder) {
                last = false;
            }
        }
        last
    }

    fn run(&self, pid: u32) -> Option<&RunRecord> {
        let mut runs = self.layout.runs.iter();
        runs.find(|run| pid != 0 && run.pid.load(Ordering::Acquire) == pid)
    }

    /// What the `haul run` of this process id wants.
    pub(crate) fn options(&self, pid: u32) -> Option<Options> {
        let number = self.run(pid)?.options.load(Ordering::Acquire);
        Some(Options::from_number(number))
    }

    /// Notes that a process under the `haul run` of this process id has loaded the library.
    pub(crate) fn note_loaded(&self, pid: u32) {
        if let Some(run) = self.run(pid) {
            run.loaded.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn loaded(&self, pid: u32) -> u32 {
        self.run(pid)
            .map_or(0, |run| run.loaded.load(Ordering::Relaxed))
    }

    /// Notes that it sees connections of applications without the library.
    pub(crate) fn note_supervised(&self, pid: u32) {
        if let Some(run) = self.run(pid) {
            run.supervised.store(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_supervised(&self, pid: u32) -> bool {
        self.run(pid)
            .is_some_and(|run| run.supervised.load(Ordering::Relaxed) != 0)
    }

    /// Notes the ports of its holes, of IPv4 and of IPv6, 0 where there is none.
    pub(crate) fn set_holes(&self, pid: u32, (v4, v6): (u16, u16)) {
        if let Some(run) = self.run(pid) {
            let both = u32::from(v6) << 16 | u32::from(v4);
            run.holes.store(both, Ordering::Release);
        }
    }

    /// The ports of its holes, if it has any.
    pub(crate) fn holes(&self, pid: u32) -> Option<(u16, u16)> {
        let both = self.run(pid)?.holes.load(Ordering::Acquire);
        let half = |word: u32| u16::try_from(word & 0xffff).unwrap_or(0);
        let (v4, v6) = (half(both), half(both >> 16));
        (v4 != 0).then_some((v4, v6))
    }

    /// A record for a socket.
    pub(crate) fn take_socket(&self) -> Option<(usize, &Socket)> {
        let next = &self.layout.next_socket;
        let reserved = next.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |next| {
            ((next as usize) < SOCKETS).then(|| next + 1)
        });
        if let Ok(at) = reserved {
            let socket = self.layout.sockets.get(at as usize)?;
            socket.clear();
            socket.state.store(Socket::OPEN, Ordering::Release);
            return Some((at as usize, socket));
        }
        self.layout.overflow.fetch_add(1, Ordering::Relaxed);
        self.reuse_socket()
    }

    fn reuse_socket(&self) -> Option<(usize, &Socket)> {
        // From anywhere, so that what was closed last is not forgotten first.
        let start = self.layout.overflow.load(Ordering::Relaxed) as usize * 31;
        for step in 0..SOCKETS {
            let at = (start + step) % SOCKETS;
            let socket = &self.layout.sockets[at];
            let taken = socket.state.compare_exchange(
                Socket::CLOSED,
                Socket::OPEN,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if taken.is_ok() {
                socket.clear();
                return Some((at, socket));
            }
        }
        None
    }

    pub(crate) fn socket(&self, at: usize) -> Option<&Socket> {
        self.layout.sockets.get(at)
    }

    /// All records that were ever used.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = (usize, &Socket)> {
        let used = self.layout.next_socket.load(Ordering::Acquire) as usize;
        self.layout.sockets[..used.min(SOCKETS)]
            .iter()
            .enumerate()
            .filter(|(_, socket)| socket.state.load(Ordering::Acquire) != Socket::FREE)
    }

    pub(crate) fn peer(&self, at: usize) -> Option<&Peer> {
        self.layout.peers.get(at)
    }

    /// All records that may be in use.
    pub(crate) fn peers(&self) -> impl Iterator<Item = (usize, &Peer)> {
        let blocks = self.layout.blocks.iter().enumerate();
        blocks
            .filter(|(_, block)| block.load(Ordering::Relaxed) != 0)
            .flat_map(|(at, _)| at * BLOCK..(at + 1) * BLOCK)
            .map(|at| (at, &self.layout.peers[at]))
    }

    fn set_of(&self, key: &Key) -> usize {
        let hash = self.hash(|hasher| {
            hasher.write_u32(key.from);
            for word in key.to {
                hasher.write_u32(word);
            }
        });
        usize::try_from(hash % (PEERS / WAYS) as u64).unwrap_or(0) * WAYS
    }

    /// The record about `key`.
    pub(crate) fn find(&self, key: &Key) -> Option<(usize, &Peer, Verdict)> {
        let first = self.set_of(key);
        let set = &self.layout.peers[first..first + WAYS];
        set.iter().enumerate().find_map(|(at, peer)| {
            let verdict = peer.verdict(key)?;
            Some((first + at, peer, verdict))
        })
    }

    /// Writes what is known about `key`: in its record, in a free one, or in place of the one that
    /// was written longest ago.
    pub(crate) fn write(&self, key: &Key, verdict: Verdict, now_ms: u32) -> Option<usize> {
        let first = self.set_of(key);
        // Another agent or application may be writing; with bounded patience, the question is asked
        // again.
        for _ in 0..64 {
            let at = self.place(first, key, now_ms)?;
            let peer = &self.layout.peers[at];
            let seen = peer.state.load(Ordering::Acquire);
            if seen & STATE_MASK == WRITING || !peer.begin(seen) {
                std::hint::spin_loop();
                continue;
            }
            let is_new = peer.from.load(Ordering::Relaxed) != key.from || !peer.to.is(&key.to);
            if is_new {
                peer.from.store(key.from, Ordering::Relaxed);
                peer.to.store(key.to);
                peer.sent.store(0, Ordering::Relaxed);
                peer.used.store(0, Ordering::Relaxed);
            }
            peer.stamp.store(now_ms, Ordering::Relaxed);
            self.layout.blocks[at / BLOCK].store(1, Ordering::Relaxed);
            let state = match verdict {
                Verdict::Asked => ASKED,
                Verdict::Yes(named) => {
                    peer.qpn.store(named.qpn, Ordering::Relaxed);
                    peer.epoch.store(named.epoch, Ordering::Relaxed);
                    YES
                }
                Verdict::No(why) => {
                    peer.why.store(why as u32, Ordering::Relaxed);
                    NO
                }
            };
            peer.finish(seen, state);
            return Some(at);
        }
        None
    }

    fn place(&self, first: usize, key: &Key, now_ms: u32) -> Option<usize> {
        let set = &self.layout.peers[first..first + WAYS];
        let same = set
            .iter()
            .position(|peer| peer.from.load(Ordering::Relaxed) == key.from && peer.to.is(&key.to));
        let free = || {
            set.iter()
                .position(|peer| peer.state.load(Ordering::Relaxed) & STATE_MASK == FREE)
        };
        let oldest = || {
            let age = |peer: &Peer| peer.age_ms(now_ms);
            (0..WAYS).max_by_key(|at| age(&set[*at]))
        };
        same.or_else(free).or_else(oldest).map(|at| first + at)
    }

    /// Forgets what is known, if it still is `verdict`.
    pub(crate) fn forget(&self, at: usize, key: &Key, verdict: Verdict) {
        let peer = &self.layout.peers[at];
        let seen = peer.state.load(Ordering::Acquire);
        if peer.verdict(key) == Some(verdict) && peer.begin(seen) {
            peer.finish(seen, FREE);
        }
    }

    /// Asks the agents about a peer, on behalf of the socket with that record.
    pub(crate) fn ask(&self, key: &Key, socket: usize) -> Option<usize> {
        let at = self.write(key, Verdict::Asked, now_ms())?;
        let socket = u32::try_from(socket + 1).unwrap_or(0);
        self.layout.peers[at]
            .socket
            .store(socket, Ordering::Release);
        let number = self.layout.next_question.fetch_add(1, Ordering::Relaxed);
        let slot = &self.layout.questions[number as usize % QUESTIONS];
        slot.store(u32::try_from(at + 1).unwrap_or(0), Ordering::Release);
        // After the question: an agent that sees the new number finds it.
        self.wake_agents();
        Some(at)
    }

    /// The questions that nobody has taken yet.
    pub(crate) fn questions(&self) -> impl Iterator<Item = usize> {
        self.layout
            .questions
            .iter()
            .filter(|slot| slot.load(Ordering::Relaxed) != 0)
            .filter_map(|slot| (slot.swap(0, Ordering::AcqRel) as usize).checked_sub(1))
            .filter(|at| *at < PEERS)
    }

    /// How many questions were asked.
    pub(crate) fn asked(&self) -> u32 {
        self.layout.asked.load(Ordering::Acquire)
    }

    /// Waits until something is asked after `seen`, for a while at most.
    pub(crate) fn wait_asked(&self, seen: u32, patience: Duration) {
        if let Ok(timeout) = patience.try_into() {
            let flags = futex::Flags::empty();
            let _ = futex::wait(&self.layout.asked, flags, seen, Some(&timeout));
        }
    }

    /// Wakes who waits for questions.
    pub(crate) fn wake_agents(&self) {
        self.layout.asked.fetch_add(1, Ordering::AcqRel);
        let _ = futex::wake(&self.layout.asked, futex::Flags::empty(), u32::MAX);
    }
}

/// Milliseconds of the machine's clock, which wrap.
pub(crate) fn now_ms() -> u32 {
    let now = haul_io::clock::Clock::new().now_ns() / 1_000_000;
    u32::try_from(now & u64::from(u32::MAX)).unwrap_or(0)
}

/// Whether there is such a process.
pub(crate) fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An agent that saw the number rise without a question would wait, and leave it to the next
    /// one.
    #[test]
    fn who_sees_that_something_was_asked_finds_it() {
        const ROUNDS: u32 = 10_000;
        // On a busy machine it takes a moment for each of the two to run.
        const MOST_MS: u32 = 2_000;
        let folder = tempfile::tempdir().unwrap();
        let table = Table::create(&folder.path().join("table")).unwrap();
        let key = Key::new(Protocol::Tcp, 1, ([127, 0, 0, 1], 2).into());
        let (start, begun, taken) = (table.asked(), now_ms(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    table.ask(&key, 0).unwrap();
                    while taken.load(Ordering::Acquire) <= round {
                        std::thread::yield_now();
                    }
                }
            });
            let mut missed = 0;
            for round in 0..ROUNDS {
                while table.asked() == start.wrapping_add(round) {
                    std::hint::spin_loop();
                }
                if table.questions().count() == 0 {
                    missed += 1;
                    while table.questions().count() == 0 {}
                }
                if now_ms().wrapping_sub(begun) > MOST_MS {
                    break;
                }
                taken.store(round + 1, Ordering::Release);
            }
            // The rest is not looked at.
            taken.store(u32::MAX, Ordering::Release);
            assert_eq!(missed, 0);
        });
    }

    #[test]
    fn what_was_written_after_the_clock_was_read_has_no_age() {
        let folder = tempfile::tempdir().unwrap();
        let table = Table::create(&folder.path().join("table")).unwrap();
        let key = Key::new(Protocol::Tcp, 1, ([127, 0, 0, 1], 2).into());
        for (written, read, age) in [
            (1_000, 1_500, 500),
            (1_000, 990, 0),
            (u32::MAX, 9, 10),
            (9, u32::MAX, 0),
        ] {
            let at = table.write(&key, Verdict::Asked, written).unwrap();
            assert_eq!(table.peer(at).unwrap().age_ms(read), age);
        }
    }
}
