//! TCP connections that go through a gateway.
//!
//! The application's socket connects to a hole ([`haul_io::hole`]) instead of its destination, and
//! its `haul run` gets a duplicate of it with the destination. When the far end has accepted, `haul
//! run` connects to the application's socket; when it has refused, it leaves the reason in the
//! socket's record and turns the socket away. Until then, and from then on, the socket is the
//! kernel's: waiting, polling, bytes.

use std::ffi::c_int;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use haul_io::hole::{self, Hole};
use libc::socklen_t;
use rustix::net::{self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::net::{SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::process::{Entry, Process};
use crate::sys;
use crate::table::{Protocol, Socket, Table, Why, address, words};

/// What the application's side sends: the record's number, which of its attempts this is, and the
/// destination, as numbers of this machine.
const MESSAGE_LEN: usize = 28;
/// States of a socket that connects, and of one without a connection, as `TCP_INFO` has them.
const SYN_SENT: u8 = 2;
const CLOSE: u8 = 7;

/// Where the `haul run` of that process id takes calls.
fn path(table: &Table, run: u32) -> PathBuf {
    let mut path = table.path().as_os_str().to_owned();
    path.push(format!(".{run}"));
    path.into()
}

// The application's side.

/// connect(2) of a TCP socket to a destination.
pub(crate) fn connect(
    entry: &Entry,
    to: *const libc::sockaddr,
    len: socklen_t,
    (target, link): (SocketAddr, u32),
) -> c_int {
    let socket = entry.socket;
    if socket.gateway.load(Ordering::Acquire) != 0 {
        return again(entry);
    }
    let family = sys::option(entry.fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
    let is_near = is_near(target, link);
    if is_near || family != sys::family(to, len) {
        if is_near {
            socket.refuse(Why::Near);
        }
        let connected = sys::connect(entry.fd, to, len);
        entry.note_addresses(target);
        return connected;
    }
    let Some(hole) = hole_of(entry.process, family) else {
        sys::set_errno(libc::ENETUNREACH);
        return -1;
    };
    begin(entry, target, hole)
}

/// Whether a destination is on this host or this link, where no gateway leads.
pub(crate) fn is_near(target: SocketAddr, link: u32) -> bool {
    let ip = target.ip();
    let is_of_link = match ip {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || is_of_link || link != 0
}

/// Where sockets of a family connect to.
fn hole_of(process: &Process, family: Option<c_int>) -> Option<SocketAddr> {
    hole_of_family(process.table.holes(process.run())?, family)
}

fn hole_of_family((v4, v6): (u16, u16), family: Option<c_int>) -> Option<SocketAddr> {
    let ip: IpAddr = match family? {
        libc::AF_INET => Ipv4Addr::LOCALHOST.into(),
        libc::AF_INET6 if v6 != 0 => return Some((Ipv6Addr::LOCALHOST, v6).into()),
        // Without IPv6 on the loopback interface such a socket reaches IPv4.
        libc::AF_INET6 => Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(),
        _ => return None,
    };
    Some((ip, v4).into())
}

fn begin(entry: &Entry, target: SocketAddr, hole: SocketAddr) -> c_int {
    let (socket, fd) = (entry.socket, entry.fd);
    let Some(flags) = sys::status_flags(fd) else {
        return -1;
    };
    let waits = flags & libc::O_NONBLOCK == 0;
    let error = enter(fd, flags, hole);
    if error != libc::EINPROGRESS {
        sys::set_errno(error);
        return if error == 0 { 0 } else { -1 };
    }
    socket.error.store(0, Ordering::Relaxed);
    socket.refuse(Why::None);
    if let Some(inode) = sys::inode(fd) {
        socket.inode.store(inode, Ordering::Release);
    }
    entry.note_addresses(target);
    let attempt = next_attempt();
    socket.gateway.store(attempt, Ordering::Release);
    if let Err(error) = call(entry, attempt, target) {
        sys::shutdown(fd, libc::SHUT_RDWR);
        return failed(entry, error);
    }
    if waits {
        let connected = again(entry);
        // Its time to wait (SO_SNDTIMEO) has passed; for the kernel this was the second call.
        if connected != 0 && sys::errno() == libc::EALREADY {
            sys::set_errno(libc::EINPROGRESS);
        }
        return connected;
    }
    sys::set_errno(libc::EINPROGRESS);
    -1
}

/// Has a socket with these flags connect to a hole, without waiting: the other side must not be
/// informed before the socket calls. Returns the error of connect(2): `EINPROGRESS` is success.
fn enter(fd: c_int, flags: c_int, hole: SocketAddr) -> c_int {
    // It would put the connection off until there is something to send.
    sys::clear_option(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT);
    let waits = flags & libc::O_NONBLOCK == 0;
    if waits {
        sys::set_status_flags(fd, flags | libc::O_NONBLOCK);
    }
    let connected = sys::connect_to(fd, hole);
    let error = if connected == 0 { 0 } else { sys::errno() };
    if waits {
        sys::set_status_flags(fd, flags);
    }
    error
}

/// A number that no other attempt of a record's sockets has had lately, and never 0.
pub(crate) fn next_attempt() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    (std::process::id().wrapping_shl(16) ^ count).max(1)
}

/// Notifies `haul run`; returns the error of connect(2) if it cannot be reached.
fn call(entry: &Entry, attempt: u32, target: SocketAddr) -> Result<(), c_int> {
    let number = u32::try_from(entry.number).map_err(|_| libc::ENETUNREACH)?;
    let mut message = [0; MESSAGE_LEN];
    let words = [number, attempt].into_iter().chain(words(target));
    for (place, word) in message.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    let path = path(&entry.process.table, entry.process.run());
    sys::send_descriptor(&path, &message, entry.fd).map_err(|error| match error {
        libc::EMFILE | libc::ENFILE | libc::ETOOMANYREFS => libc::ENOBUFS,
        // It has ended, and so has the way.
        _ => libc::ENETUNREACH,
    })
}

/// connect(2) of a socket that is connecting, or connected; waits as the socket does.
fn again(entry: &Entry) -> c_int {
    let error = || entry.socket.error.load(Ordering::Acquire);
    let told = error();
    if told == 0 {
        let family = sys::option(entry.fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
        let Some(hole) = hole_of(entry.process, family) else {
            sys::set_errno(libc::ENETUNREACH);
            return -1;
        };
        if sys::connect_to(entry.fd, hole) == 0 {
            return 0;
        }
        let is_on_its_way = matches!(
            sys::errno(),
            libc::EINPROGRESS | libc::EALREADY | libc::EISCONN | libc::EINTR
        );
        if is_on_its_way && error() == 0 {
            return -1;
        }
        let own = sys::errno();
        if is_on_its_way {
            // Turned away in this moment, it has begun anew. What does not connect must not be shut
            // down: it would stay so.
            sys::shutdown(entry.fd, libc::SHUT_RDWR);
        }
        let told = error();
        return failed(entry, if told == 0 { own } else { number(told) });
    }
    failed(entry, number(told))
}

fn number(error: u32) -> c_int {
    c_int::try_from(error).unwrap_or(libc::ENETUNREACH)
}

/// The socket is as it was before connect(2), which has failed.
fn failed(entry: &Entry, error: c_int) -> c_int {
    // The kernel's reason is replaced by a better one.
    sys::option(entry.fd, libc::SOL_SOCKET, libc::SO_ERROR);
    forget(entry);
    entry.socket.refuse(Why::NotMade);
    sys::set_errno(error);
    -1
}

/// The socket is not connected any more.
pub(crate) fn forget(entry: &Entry) {
    entry.socket.gateway.store(0, Ordering::Release);
    entry.socket.error.store(0, Ordering::Relaxed);
}

/// Returns why a socket failed, after `SO_ERROR` has reported it.
pub(crate) fn error(entry: &Entry) -> Option<c_int> {
    let error = entry.socket.error.load(Ordering::Acquire);
    let is_ours = entry.socket.gateway.load(Ordering::Acquire) != 0 && error != 0;
    is_ours.then(|| {
        failed(entry, 0);
        number(error)
    })
}

/// The peer of a socket that is connected through a gateway.
pub(crate) fn peer(entry: &Entry) -> Option<SocketAddr> {
    let is_ours = entry.socket.gateway.load(Ordering::Acquire) != 0;
    is_ours.then(|| address(entry.socket.remote.load()))
}

// The side of `haul run`.

/// Receives the applications' calls until it is dropped.
#[derive(Debug)]
pub struct Calls {
    side: Arc<Side>,
    deliver: Deliver,
    path: PathBuf,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What calls need, from applications or from the supervisor.
#[derive(Debug)]
pub(crate) struct Side {
    table: Arc<Table>,
    run: u32,
    holes: Holes,
}

/// The receiver of calls. Calls hold no reference, so it can end while some still wait.
#[derive(Clone)]
pub(crate) struct Deliver(Arc<dyn Fn(Call) + Send + Sync>);

impl fmt::Debug for Deliver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deliver")
    }
}

impl Deliver {
    /// A call of an application's socket, which is connecting to a hole.
    pub(crate) fn call(
        &self,
        side: &Arc<Side>,
        socket: OwnedFd,
        message: Message,
        told: Option<Told>,
    ) {
        (self.0)(Call {
            socket: Some(socket),
            message,
            side: Arc::clone(side),
            told,
        });
    }
}

/// A connection that an application wants. Dropped, it is refused.
#[derive(Debug)]
pub struct Call {
    socket: Option<OwnedFd>,
    message: Message,
    side: Arc<Side>,
    /// Learns what becomes of it.
    told: Option<Told>,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The socket is being connected.
    Met,
    /// The application has given up.
    Gone,
    /// `errno` of connect(2). The receiver of this refuses the socket.
    Failed(c_int),
}

/// The result of a call, reported once.
pub(crate) struct Told(pub(crate) Tell);

type Tell = Box<dyn FnOnce(Outcome, &OwnedFd) + Send>;

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Told")
    }
}

/// Why a connection cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No way leads through the gateways.
    NoWay,
    /// A gateway does not allow it.
    Forbidden,
    /// The destination refuses connections.
    Refused,
    /// The destination cannot be reached.
    Unreachable,
    /// The destination does not answer.
    TimedOut,
}

impl Failure {
    /// As connect(2) reports it.
    const fn errno(self) -> c_int {
        match self {
            Self::NoWay => libc::ENETUNREACH,
            Self::Forbidden => libc::EACCES,
            Self::Refused => libc::ECONNREFUSED,
            Self::Unreachable => libc::EHOSTUNREACH,
            Self::TimedOut => libc::ETIMEDOUT,
        }
    }
}

/// The message of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    /// The record's.
    pub(crate) number: usize,
    pub(crate) attempt: u32,
    pub(crate) to: SocketAddr,
}

#[derive(Debug)]
struct Holes {
    v4: Hole,
    v6: Option<Hole>,
}

impl Calls {
    /// Takes the calls of the applications under the `haul run` of this process id, and hands each
    /// to `deliver`, on threads of its own.
    pub(crate) fn take(
        table: &Arc<Table>,
        run: u32,
        deliver: impl Fn(Call) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let holes = Holes {
            v4: Hole::v4()?,
            // There may be no IPv6.
            v6: Hole::v6().ok(),
        };
        let ports = holes.ports();
        let side = Arc::new(Side {
            table: Arc::clone(table),
            run,
            holes,
        });
        let deliver = Deliver(Arc::new(deliver));
        let path = path(table, run);
        let calls = control_socket(&path)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (own, ending) = (Arc::clone(&side), Arc::clone(&is_over));
        let taking = deliver.clone();
        let serve = move || {
            while !ending.load(Ordering::Acquire) {
                if let Some((socket, message)) = receive(&calls, &own.table, run) {
                    taking.call(&own, socket, message, None);
                }
            }
        };
        let thread = std::thread::Builder::new().name("calls".into());
        let calls = Self {
            side,
            deliver,
            path,
            is_over,
            thread: Some(thread.spawn(serve)?),
        };
        table.set_holes(run, ports);
        Ok(calls)
    }

    pub(crate) fn parts(&self) -> (Arc<Side>, Deliver) {
        (Arc::clone(&self.side), self.deliver.clone())
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        // No application connects to what may soon be somebody else's.
        self.side.table.set_holes(self.side.run, (0, 0));
        self.is_over.store(true, Ordering::Release);
        if wake(&self.path).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // A panic has been reported.
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Holes {
    /// Of IPv4 and IPv6, 0 where there is none.
    fn ports(&self) -> (u16, u16) {
        let v6 = self.v6.as_ref().map_or(0, |hole| hole.address().port());
        (self.v4.address().port(), v6)
    }
}

impl Side {
    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// The process id of the `haul run`.
    pub(crate) const fn run(&self) -> u32 {
        self.run
    }

    /// Whether that is the address of one of the holes.
    pub(crate) fn is_hole(&self, address: Option<SocketAddr>) -> bool {
        let v6 = self.holes.v6.as_ref().map(Hole::address);
        address.is_some() && (address == Some(self.holes.v4.address()) || address == v6)
    }

    /// Has an application's socket connect to a hole, without waiting.
    ///
    /// # Errors
    /// `errno` of connect(2).
    pub(crate) fn enter(&self, socket: &OwnedFd) -> Result<(), c_int> {
        let fd = socket.as_raw_fd();
        let family = sys::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
        let hole = hole_of_family(self.holes.ports(), family).ok_or(libc::ENETUNREACH)?;
        let flags = sys::status_flags(fd).ok_or(libc::EBADF)?;
        let mut error = enter(fd, flags, hole);
        if matches!(error, libc::ECONNABORTED | libc::ECONNRESET) {
            // That was the end of a connection that failed before.
            error = enter(fd, flags, hole);
        }
        match error {
            libc::EINPROGRESS => Ok(()),
            0 => Err(libc::ENETUNREACH),
            error => Err(error),
        }
    }
}

/// Whether a TCP socket has no connection and is making none.
pub(crate) fn is_unconnected(socket: &OwnedFd) -> bool {
    sys::tcp_state(socket.as_raw_fd()) == Some(CLOSE)
}

/// Forgets why a connection failed: the application learns it by other means.
pub(crate) fn clear_error(socket: &OwnedFd) {
    sys::option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR);
}

/// A socket at `path` that nobody but this user can send to.
fn control_socket(path: &std::path::Path) -> io::Result<OwnedFd> {
    let socket = unix_socket()?;
    // The socket's mode becomes the file's.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(0o600))?;
    // Of a process that had this number before.
    let _ = std::fs::remove_file(path);
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn unix_socket() -> io::Result<OwnedFd> {
    let socket = net::socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    );
    Ok(socket?)
}

fn wake(path: &std::path::Path) -> io::Result<()> {
    let to = SocketAddrUnix::new(path)?;
    net::sendto(unix_socket()?, &[], SendFlags::empty(), &to)?;
    Ok(())
}

/// The next call, if what comes is one.
fn receive(calls: &OwnedFd, table: &Table, run: u32) -> Option<(OwnedFd, Message)> {
    let mut octets = [0; MESSAGE_LEN];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(&mut octets)];
    let received = net::recvmsg(calls, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC);
    let descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    let socket = descriptors.last()?;
    let len = received.ok()?.bytes;
    let message = parse(octets.get(..len)?)?;
    let record = table.socket(message.number)?;
    let is_own = record.run.load(Ordering::Relaxed) == run
        && record.state.load(Ordering::Acquire) == Socket::OPEN
        && record.protocol() == Some(Protocol::Tcp);
    if !is_own {
        turn_away(&socket);
        return None;
    }
    Some((socket, message))
}

/// Ends the connecting of a socket, and nothing else.
pub(crate) fn turn_away(socket: &OwnedFd) {
    if sys::tcp_state(socket.as_raw_fd()) == Some(SYN_SENT) {
        // Fails where it has just ended otherwise.
        let _ = hole::turn_away(socket);
    }
}

fn parse(octets: &[u8]) -> Option<Message> {
    let octets: &[u8; MESSAGE_LEN] = octets.try_into().ok()?;
    let mut numbers = [0; MESSAGE_LEN / 4];
    for (number, word) in numbers.iter_mut().zip(octets.as_chunks().0) {
        *number = u32::from_ne_bytes(*word);
    }
    let [number, attempt, to @ ..] = numbers;
    let to = address(to);
    (to.port() != 0).then_some(Message {
        number: number as usize,
        attempt,
        to,
    })
}

impl Call {
    /// Where to.
    #[must_use]
    pub const fn to(&self) -> SocketAddr {
        self.message.to
    }

    fn record(&self) -> Option<&Socket> {
        self.side.table.socket(self.message.number)
    }

    /// Whether the application's socket is still connecting because of this call. It may have been
    /// given up, and used for another destination.
    fn is_wanted(&self, socket: &OwnedFd) -> bool {
        let fd = socket.as_raw_fd();
        let is_of_record = |record: &Socket| {
            record.gateway.load(Ordering::Acquire) == self.message.attempt
                && Some(record.inode.load(Ordering::Acquire)) == sys::inode(fd)
        };
        self.record().is_some_and(is_of_record) && sys::tcp_state(fd) == Some(SYN_SENT)
    }

    /// The process that opened the socket.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.record()
            .map_or(0, |record| record.pid.load(Ordering::Relaxed))
    }

    /// The application is connected; the other end of its connection, which never waits.
    ///
    /// # Errors
    /// The application has given up, or a system call failed.
    #[expect(clippy::disallowed_types, reason = "haul-io has made it")]
    pub fn accept(mut self) -> io::Result<std::net::TcpStream> {
        let wanted = self.socket.as_ref().filter(|socket| self.is_wanted(socket));
        let socket = wanted.ok_or(io::ErrorKind::NotConnected)?;
        let holes = &self.side.holes;
        let hole = match (hole::local_addr(socket)?, &holes.v6) {
            (SocketAddr::V6(_), Some(hole)) => hole,
            _ => &holes.v4,
        };
        let stream = hole.meet(socket)?;
        if let Some(socket) = self.socket.take() {
            self.tell(Outcome::Met, &socket);
        }
        Ok(stream)
    }

    /// The application's connect(2) fails.
    pub fn refuse(mut self, why: Failure) {
        self.fail(why);
    }

    fn fail(&mut self, why: Failure) {
        let Some(socket) = self.socket.take() else {
            return;
        };
        if !self.is_wanted(&socket) {
            self.tell(Outcome::Gone, &socket);
            return;
        }
        if self.told.is_some() {
            self.tell(Outcome::Failed(why.errno()), &socket);
            return;
        }
        if let Some(record) = self.record() {
            let errno = u32::try_from(why.errno()).unwrap_or(0);
            record.error.store(errno, Ordering::Release);
        }
        turn_away(&socket);
    }

    /// Reports what becomes of a socket that the supervisor has taken. Its close is not reported,
    /// so its record may be reused from now on.
    fn tell(&mut self, outcome: Outcome, socket: &OwnedFd) {
        let Some(Told(told)) = self.told.take() else {
            return;
        };
        if let Some(record) = self.record() {
            if outcome != Outcome::Met {
                record.gateway.store(0, Ordering::Release);
                record.refuse(Why::NotMade);
            }
            record.state.store(Socket::CLOSED, Ordering::Release);
        }
        told(outcome, socket);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.fail(Failure::NoWay);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_this_host_or_link_stays_there() {
        for text in [
            "127.0.0.1:80",
            "127.8.0.1:80",
            "[::1]:80",
            "0.0.0.0:80",
            "[::]:80",
            "169.254.1.1:80",
            "[fe80::1]:80",
            "224.0.0.1:80",
            "255.255.255.255:80",
        ] {
            assert!(is_near(text.parse().unwrap(), 0), "{text}");
        }
        for text in ["192.0.2.1:80", "10.0.0.1:80", "[2001:db8::1]:80"] {
            assert!(!is_near(text.parse().unwrap(), 0), "{text}");
            assert!(is_near(text.parse().unwrap(), 2), "{text}");
        }
    }

    #[test]
    fn a_call_has_one_length_and_a_port() {
        let mut octets = [0; MESSAGE_LEN];
        octets[..4].copy_from_slice(&7_u32.to_ne_bytes());
        octets[4..8].copy_from_slice(&9_u32.to_ne_bytes());
        for (place, word) in octets[8..]
            .chunks_exact_mut(4)
            .zip(words("192.0.2.1:80".parse().unwrap()))
        {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        let parsed = Some(Message {
            number: 7,
            attempt: 9,
            to: "192.0.2.1:80".parse().unwrap(),
        });
        assert_eq!(parse(&octets), parsed);
        for len in 0..MESSAGE_LEN {
            assert_eq!(parse(&octets[..len]), None);
        }
        octets[24..].copy_from_slice(&[0; 4]);
        assert_eq!(parse(&octets), None);
    }
}
