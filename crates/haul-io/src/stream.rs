//! Byte streams between a socket and memory that others may write: gathered, scattered,
//! non-blocking.

#![expect(
    clippy::disallowed_types,
    reason = "this crate is where sockets are opened"
)]

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use haul_slab::{Gather, Scatter};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

/// The most ranges in one call: `UIO_MAXIOV` of Linux.
pub const RANGES_MAX: usize = 1024;

/// Sends `ranges` in order, as far as the socket buffer takes them, and returns the number of
/// bytes. With `more`, the kernel holds a partial packet back for data that follows at once.
///
/// # Errors
/// `WouldBlock` where there is no room; else that of `sendmsg(2)`.
pub fn send(socket: impl AsFd, ranges: &[Gather<'_>], more: bool) -> io::Result<usize> {
    let mut flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    if more {
        flags |= libc::MSG_MORE;
    }
    if let [range] = ranges {
        // SAFETY: `Gather` has the layout of iovec.
        let range = unsafe { &*std::ptr::from_ref(range).cast::<libc::iovec>() };
        // A message costs the kernel more than a range does.
        return retry(|| {
            // SAFETY: the range is borrowed, and the call reads it and nothing else.
            unsafe {
                libc::send(
                    socket.as_fd().as_raw_fd(),
                    range.iov_base,
                    range.iov_len,
                    flags,
                )
            }
        });
    }
    let message = message(ranges.as_ptr().cast_mut().cast(), ranges.len());
    retry(|| {
        // SAFETY: the message names live memory only: `Gather` has the layout of iovec, borrows
        // what it names, and the call reads it and nothing else.
        unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, flags) }
    })
}

/// Receives arrived bytes into `ranges` in order, and returns their number; zero is the end of the
/// stream.
///
/// # Errors
/// `WouldBlock` where nothing has arrived; else that of `recvmsg(2)`.
pub fn receive(socket: impl AsFd, ranges: &mut [Scatter<'_>]) -> io::Result<usize> {
    if let [range] = ranges {
        // SAFETY: `Scatter` has the layout of iovec.
        let range = unsafe { &*std::ptr::from_ref(range).cast::<libc::iovec>() };
        return retry(|| {
            // SAFETY: the range is borrowed for writing, and the call writes there and nowhere
            // else.
            unsafe {
                libc::recv(
                    socket.as_fd().as_raw_fd(),
                    range.iov_base,
                    range.iov_len,
                    libc::MSG_DONTWAIT,
                )
            }
        });
    }
    let mut message = message(ranges.as_mut_ptr().cast(), ranges.len());
    retry(|| {
        // SAFETY: the message names live memory only: `Scatter` has the layout of iovec, borrows
        // for writing what it names, and the call writes there and nowhere else.
        unsafe {
            libc::recvmsg(
                socket.as_fd().as_raw_fd(),
                &raw mut message,
                libc::MSG_DONTWAIT,
            )
        }
    })
}

fn message(ranges: *mut libc::iovec, count: usize) -> libc::msghdr {
    libc::msghdr {
        msg_name: std::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: ranges,
        msg_iovlen: count.min(RANGES_MAX),
        msg_control: std::ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    }
}

fn retry(mut call: impl FnMut() -> libc::ssize_t) -> io::Result<usize> {
    loop {
        if let Ok(count) = usize::try_from(call()) {
            return Ok(count);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// A connected, non-blocking TCP stream without Nagle's delay, closed on drop.
#[derive(Debug)]
pub struct Stream(TcpStream);

impl Stream {
    /// Begins to connect to `peer`; the stream becomes writable when that is done, and
    /// [`Stream::connected`] returns the outcome.
    ///
    /// # Errors
    /// That of `socket(2)`, or of `connect(2)` where it is known at once.
    pub fn start_connect(peer: SocketAddr) -> io::Result<Self> {
        let domain = Domain::for_address(peer);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&SockAddr::from(peer)) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        Ok(Self(OwnedFd::from(socket).into()))
    }

    /// Returns the outcome of [`Stream::start_connect`], once the stream is writable.
    ///
    /// # Errors
    /// That of the connection: refused, timed out, no route.
    pub fn connected(&self) -> io::Result<()> {
        match self.0.take_error()? {
            Some(error) => Err(error),
            None => self.0.peer_addr().map(|_| ()),
        }
    }

    /// Connects to `peer`; blocks until the connection is established.
    ///
    /// # Errors
    /// That of `connect(2)`; `TimedOut` without an answer.
    pub fn connect(peer: SocketAddr, timeout: Duration) -> io::Result<Self> {
        Self::adopt(TcpStream::connect_timeout(&peer, timeout)?)
    }

    /// Takes over a connected stream.
    ///
    /// # Errors
    /// That of `fcntl(2)` or `setsockopt(2)`.
    pub fn adopt(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    /// Receives arrived bytes into plain memory and returns their number; zero is the end of the
    /// stream.
    ///
    /// # Errors
    /// `WouldBlock` where nothing has arrived; else that of `recv(2)`.
    pub fn read(&self, octets: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(octets)
    }

    /// Bytes that have arrived, which stay where they are; zero at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` where nothing has arrived; else that of `recv(2)`.
    pub fn peek(&self, octets: &mut [u8]) -> io::Result<usize> {
        self.0.peek(octets)
    }

    /// Sends as much as the socket buffer takes, and returns the number of bytes.
    ///
    /// # Errors
    /// `WouldBlock` where there is no room; else that of `send(2)`.
    pub fn write(&self, octets: &[u8]) -> io::Result<usize> {
        (&self.0).write(octets)
    }

    /// This end's address; none once the connection is gone.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.0.local_addr().ok()
    }

    /// Where the peer connected to before the kernel diverted it here (`SO_ORIGINAL_DST` of
    /// netfilter's REDIRECT and DNAT); none where the kernel knows of no such thing.
    #[must_use]
    pub fn original_destination(&self) -> Option<SocketAddr> {
        let socket = SockRef::from(&self.0);
        let address = match self.local_addr()? {
            SocketAddr::V4(_) => socket.original_dst_v4(),
            SocketAddr::V6(_) => socket.original_dst_v6(),
        };
        address.ok()?.as_socket()
    }

    /// The peer's address; none once the connection is gone.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.0.peer_addr().ok()
    }

    /// The most payload that a segment carries now, bytes (`TCP_MAXSEG`).
    ///
    /// # Errors
    /// That of `getsockopt(2)`.
    pub fn segment_len(&self) -> io::Result<u32> {
        SockRef::from(&self.0).tcp_mss()
    }

    /// The kernel's smoothed round-trip time, ns.
    ///
    /// # Errors
    /// That of `getsockopt(2)`.
    pub fn round_trip_ns(&self) -> io::Result<u64> {
        Ok(u64::from(crate::tcp::info(&self.0)?.rtt_us) * 1_000)
    }

    /// Bytes that the kernel has sent more than once.
    ///
    /// # Errors
    /// That of `getsockopt(2)`.
    pub fn resent_octets(&self) -> io::Result<u64> {
        Ok(crate::tcp::info(&self.0)?.bytes_retransmitted)
    }

    /// Returns the segments that arrived out of order, because earlier ones were lost or overtaken.
    ///
    /// # Errors
    /// That of `getsockopt(2)`.
    pub fn out_of_order(&self) -> io::Result<u64> {
        Ok(u64::from(crate::tcp::info(&self.0)?.out_of_order))
    }

    /// Has the stream be full while so many bytes are taken and not sent, whatever its buffer has
    /// room for (`TCP_NOTSENT_LOWAT`).
    ///
    /// # Errors
    /// That of `setsockopt(2)`.
    pub fn limit_unsent(&self, octets: u32) -> io::Result<()> {
        SockRef::from(&self.0).set_tcp_notsent_lowat(octets)
    }

    /// Chooses the kernel's congestion control by name (`cubic`, `bbr`, …).
    ///
    /// # Errors
    /// `NotFound` where the kernel has no such control, `PermissionDenied` where this user may not
    /// use it.
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        crate::tcp::set_congestion(&self.0, name)
    }

    /// Has the kernel send no faster than this, bytes per second, headers from IP up counted
    /// (`SO_MAX_PACING_RATE`, which counts payload). Before it is connected, segments are taken for
    /// short.
    ///
    /// # Errors
    /// That of `setsockopt(2)`.
    pub fn limit_rate(&self, octets_per_second: u64) -> io::Result<()> {
        // IPv6, TCP and its timestamps; of IPv4 less.
        const HEADERS: u64 = 72;
        const SEGMENT_MIN: u64 = 1_200;
        let segment = u64::from(self.segment_len()?).max(SEGMENT_MIN);
        let payload =
            u128::from(octets_per_second) * u128::from(segment) / u128::from(segment + HEADERS);
        // To the kernel 0 is no limit.
        let payload = u64::try_from(payload).unwrap_or(u64::MAX).max(1);
        crate::tcp::set_max_pacing_rate(&self.0, payload)
    }

    /// Asks the kernel for buffers of this size; as much as the system allows, and nothing is an
    /// error.
    pub fn set_buffers(&self, bytes: usize) {
        let socket = SockRef::from(&self.0);
        let _ = socket.set_send_buffer_size(bytes);
        let _ = socket.set_recv_buffer_size(bytes);
    }

    /// Has the kernel repeat what is lost at even intervals while little is in flight, six times,
    /// before it waits longer each time: what few messages wait for is soon there again after a
    /// short interruption of the path.
    pub fn resend_evenly(&self) {
        // A kernel without it waits longer.
        let _ = SockRef::from(&self.0).set_tcp_thin_linear_timeouts(true);
    }

    /// See [`crate::tcp::detect_dead_peer`].
    ///
    /// # Errors
    /// That of `setsockopt(2)`.
    pub fn detect_dead_peer(&self, dead_after: Duration) -> io::Result<()> {
        crate::tcp::detect_dead_peer(&self.0, dead_after)
    }

    /// Ends this end's direction: the peer reads the end of the stream behind what was sent.
    pub fn shutdown_send(&self) {
        // It fails where the connection is gone, and then the peer knows.
        let _ = self.0.shutdown(Shutdown::Write);
    }

    /// Has the connection reset when the stream is dropped, or when its process ends in whatever
    /// way: the peer is to notice that it did not end in order. What has been sent and not arrived
    /// yet is lost then.
    pub fn reset_on_drop(&self) {
        // It fails where the connection is gone, and then the peer knows.
        let _ = SockRef::from(&self.0).set_linger(Some(Duration::ZERO));
    }

    /// Takes [`Self::reset_on_drop`] back: what has been sent arrives, and its end, also when this
    /// process is no more.
    pub fn finish_on_drop(&self) {
        let _ = SockRef::from(&self.0).set_linger(None);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A listening TCP socket that never waits.
#[derive(Debug)]
pub struct Acceptor(TcpListener);

impl Acceptor {
    /// Listens at `address`.
    ///
    /// # Errors
    /// Those of [`crate::tcp::listen`].
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = crate::tcp::listen(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// Listens at `address` for connections to any address as well, which netfilter's TPROXY hands
    /// over: their local address is where they were going to (`IP_TRANSPARENT`).
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_NET_ADMIN`; else as [`Self::bind`].
    pub fn bind_transparent(address: SocketAddr) -> io::Result<Self> {
        let listener = crate::tcp::listen_transparent(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// Where it listens.
    ///
    /// # Errors
    /// That of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Has connections begin as if [`Stream::reset_on_drop`] had been called: there is no moment at
    /// which the end of this process would end them in order.
    ///
    /// # Errors
    /// That of `setsockopt(2)`.
    pub fn reset_on_drop(&self) -> io::Result<()> {
        // On Linux a connection inherits the options of its listener.
        SockRef::from(&self.0).set_linger(Some(Duration::ZERO))
    }

    /// The next connection, if one waits, and its peer.
    ///
    /// # Errors
    /// Those of `accept(2)`: out of descriptors or memory, above all.
    pub fn accept(&self) -> io::Result<Option<(Stream, SocketAddr)>> {
        match self.0.accept() {
            Ok((stream, peer)) => Ok(Some((Stream::adopt(stream)?, peer))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Acceptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether [`Acceptor::accept`] failed for want of descriptors or memory: connections go on
/// waiting, and asking again at once is of no use.
#[must_use]
pub fn is_exhausted(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    matches!(
        code,
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
}

/// Whether `address` is one of this machine's own.
#[must_use]
pub fn is_own_address(address: IpAddr) -> bool {
    let address = SocketAddr::new(address, 0);
    let bound = Socket::new(Domain::for_address(address), Type::DGRAM, None)
        .and_then(|socket| socket.bind(&address.into()));
    bound.is_ok()
}

#[cfg(test)]
mod tests {
    use haul_slab::Region;

    use super::*;

    fn pair() -> (Stream, Stream) {
        let acceptor = Acceptor::bind((std::net::Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        assert!(acceptor.accept().unwrap().is_none());
        let near = Stream::start_connect(acceptor.local_addr().unwrap()).unwrap();
        crate::notify::wait_readable([acceptor.as_fd()], None).unwrap();
        let (far, _) = acceptor.accept().unwrap().unwrap();
        near.connected().unwrap();
        (near, far)
    }

    #[test]
    fn what_is_gathered_here_is_scattered_there() {
        let (near, far) = pair();
        let (from, to) = (Region::map(4096).unwrap(), Region::map(4096).unwrap());
        from.write(100, b"payload").unwrap();
        let ranges = [
            Gather::from(&b"head"[..]),
            from.gather(100, 7).unwrap(),
            Gather::from(&b"tail"[..]),
        ];
        assert_eq!(send(&near, &ranges, false).unwrap(), 15);
        crate::notify::wait_readable([far.as_fd()], None).unwrap();
        let (mut head, mut rest) = ([0; 4], [0; 10]);
        let mut ranges = [
            Scatter::from(&mut head[..]),
            to.scatter(5, 7).unwrap(),
            Scatter::from(&mut rest[..]),
        ];
        assert_eq!(receive(&far, &mut ranges).unwrap(), 15);
        let mut payload = [0; 7];
        to.read(5, &mut payload).unwrap();
        assert_eq!(
            (&head, &payload, &rest[..4]),
            (b"head", b"payload", &b"tail"[..])
        );
    }

    #[test]
    fn a_stream_without_anything_would_block_and_an_ended_one_ends() {
        let (near, far) = pair();
        let mut byte = [0];
        let nothing = receive(&far, &mut [Scatter::from(&mut byte[..])]).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        drop(near);
        crate::notify::wait_readable([far.as_fd()], None).unwrap();
        assert_eq!(
            receive(&far, &mut [Scatter::from(&mut byte[..])]).unwrap(),
            0
        );
    }

    /// Returns the peer's view after `octets` of a stream that was dropped.
    fn end_behind(octets: &[u8], far: &Stream) -> io::Result<usize> {
        let mut got = vec![0; octets.len()];
        let mut at = 0;
        while at < got.len() {
            crate::notify::wait_readable([far.as_fd()], None).unwrap();
            at += far.read(&mut got[at..]).unwrap();
        }
        assert_eq!(got, octets);
        crate::notify::wait_readable([far.as_fd()], None).unwrap();
        far.read(&mut [0])
    }

    #[test]
    fn a_stream_is_reset_when_it_is_dropped_as_long_as_that_is_wanted() {
        let (near, far) = pair();
        near.reset_on_drop();
        near.write(b"begun").unwrap();
        drop(near);
        let end = end_behind(b"begun", &far).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
        let (near, far) = pair();
        near.reset_on_drop();
        near.write(b"whole").unwrap();
        near.finish_on_drop();
        drop(near);
        assert_eq!(end_behind(b"whole", &far).unwrap(), 0);
    }

    #[test]
    fn incoming_connections_are_reset_from_the_start_if_the_acceptor_requests_it() {
        let acceptor = Acceptor::bind((std::net::Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        acceptor.reset_on_drop().unwrap();
        let client = Stream::start_connect(acceptor.local_addr().unwrap()).unwrap();
        crate::notify::wait_readable([acceptor.as_fd()], None).unwrap();
        drop(acceptor.accept().unwrap().unwrap());
        let end = end_behind(b"", &client).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn what_is_peeked_at_is_still_there() {
        let (near, far) = pair();
        assert_eq!(near.write(b"octets").unwrap(), 6);
        crate::notify::wait_readable([far.as_fd()], None).unwrap();
        let (mut seen, mut read) = ([0; 8], [0; 8]);
        assert_eq!(far.peek(&mut seen).unwrap(), 6);
        assert_eq!(far.read(&mut read).unwrap(), 6);
        assert_eq!(seen, read);
    }

    #[test]
    fn addresses_of_this_machine_are_recognised() {
        assert!(is_own_address([127, 0, 0, 1].into()));
        // TEST-NET-1 of RFC 5737.
        assert!(!is_own_address([192, 0, 2, 1].into()));
    }

    #[test]
    fn a_connection_that_nothing_diverted_went_where_it_is() {
        let (_near, far) = pair();
        let original = far.original_destination();
        assert!(original.is_none() || original == far.local_addr());
    }

    #[test]
    fn a_transparent_socket_takes_connections_to_any_address_or_reports_why_not() {
        match Acceptor::bind_transparent((std::net::Ipv4Addr::LOCALHOST, 0).into()) {
            Ok(acceptor) => assert!(SockRef::from(&acceptor.0).ip_transparent_v4().unwrap()),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
    }

    #[test]
    fn nobody_listening_is_told() {
        let acceptor = Acceptor::bind((std::net::Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = acceptor.local_addr().unwrap();
        drop(acceptor);
        let refused = Stream::start_connect(address).and_then(|stream| {
            crate::notify::wait_readable([stream.as_fd()], Some(1_000_000_000)).unwrap();
            stream.connected()
        });
        assert_eq!(
            refused.unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
    }
}
