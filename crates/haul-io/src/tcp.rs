//! TCP: sockets, their options, and sending from a file without a copy in user space.

#![expect(
    clippy::disallowed_types,
    reason = "this crate is where sockets are opened"
)]

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// Segments of this many bytes cross every path that carries IPv6 (RFC 8200 §5: packets of 1280).
const SAFE_SEGMENT: u32 = 1220;

/// Connections that wait to be accepted: as many as Linux allows by default (net.core.somaxconn).
/// What is beyond is dropped, and tries again after a second.
const BACKLOG: i32 = 4096;

/// Connects, with segments in both directions that cross narrow paths even if ICMP is filtered. For
/// connections that carry little and must not stall.
///
/// # Errors
/// The address cannot be reached within `timeout`.
pub fn connect_narrow(address: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(
        Domain::for_address(*address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_tcp_mss(SAFE_SEGMENT)?;
    socket.connect_timeout(&(*address).into(), timeout)?;
    Ok(socket.into())
}

/// The kernel's state of a connection (`TCP_INFO`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Info {
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: u32,
    /// Bytes of payload sent, retransmissions included.
    pub bytes_sent: u64,
    /// Bytes of payload retransmitted.
    pub bytes_retransmitted: u64,
    /// Bytes of payload that the peer has acknowledged: in order, and selectively behind a hole
    /// (SACK). The kernel counts the latter in segments; they are taken for as long as those sent
    /// are on average.
    pub bytes_acknowledged: u64,
    /// The smallest round-trip time that was seen, microseconds.
    pub rtt_us_min: u32,
    /// The congestion window, bytes.
    pub window_bytes: u64,
    /// Time in which there was something to send, microseconds.
    pub busy_us: u64,
    /// Of that, time in which the receiver's window was full.
    pub receiver_limited_us: u64,
    /// Of that, time in which this end's send buffer was too small.
    pub buffer_limited_us: u64,
    /// The congestion window, packets.
    pub window_packets: u32,
    /// Segments that arrived out of order, because earlier ones were lost or overtaken.
    pub out_of_order: u32,
    /// A loss has reduced the window and is being repaired.
    pub recovering: bool,
}

/// Listens on exactly `address`; an IPv6 address takes no IPv4 connections.
///
/// # Errors
/// That of `socket(2)`, `bind(2)` or `listen(2)`.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    listen_with(address, |_| Ok(()))
}

/// As [`listen`], with connections that netfilter's TPROXY hands over, wherever they were going to.
///
/// # Errors
/// `PermissionDenied` without `CAP_NET_ADMIN`; else as [`listen`].
pub(crate) fn listen_transparent(address: SocketAddr) -> io::Result<TcpListener> {
    listen_with(address, |socket| match address {
        SocketAddr::V4(_) => socket.set_ip_transparent_v4(true),
        SocketAddr::V6(_) => socket.set_ip_transparent_v6(true),
    })
}

/// The two ends of a connection within this process, over the loopback interface.
///
/// # Errors
/// Those of the system calls; `ConnectionAborted` where others connected first, again and again.
pub fn pair() -> io::Result<(TcpStream, TcpStream)> {
    /// Unknown peers that are sent away; the port is open for a moment only.
    const UNRELATED_MAX: usize = 64;
    let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let own = one.local_addr()?;
    for _ in 0..UNRELATED_MAX {
        let (other, peer) = listener.accept()?;
        if peer == own {
            return Ok((one, other));
        }
    }
    Err(io::ErrorKind::ConnectionAborted.into())
}

/// The two ends of a connection within this process that crosses no network device, so that no
/// packet filter sees it. They are Unix sockets: [`send_at_once`] and [`detect_dead_peer`] change
/// nothing, and they have no addresses, no [`info`] and no congestion control.
///
/// # Errors
/// That of `socketpair(2)`.
pub fn local_pair() -> io::Result<(TcpStream, TcpStream)> {
    let (one, other) = UnixStream::pair()?;
    Ok((OwnedFd::from(one).into(), OwnedFd::from(other).into()))
}

/// Returns whether it is an end of a [`local_pair`].
fn is_local(stream: &TcpStream) -> io::Result<bool> {
    Ok(SockRef::from(stream).domain()? == Domain::UNIX)
}

/// Sends small writes at once instead of gathering them (`TCP_NODELAY`).
///
/// # Errors
/// That of `setsockopt(2)`.
pub fn send_at_once(stream: &TcpStream) -> io::Result<()> {
    if is_local(stream)? {
        return Ok(());
    }
    stream.set_nodelay(true)
}

fn listen_with(
    address: SocketAddr,
    prepare: impl FnOnce(&Socket) -> io::Result<()>,
) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    prepare(&socket)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Returns how many bytes have arrived and not been read.
///
/// # Errors
/// That of `ioctl(2)`.
pub fn unread(stream: &TcpStream) -> io::Result<u64> {
    Ok(rustix::io::ioctl_fionread(stream)?)
}

/// Enables the kernel's detection of a dead peer: it probes an idle connection and gives up on
/// unacknowledged data, both within `dead_after`.
///
/// # Errors
/// That of `setsockopt(2)`.
pub fn detect_dead_peer(stream: &TcpStream, dead_after: Duration) -> io::Result<()> {
    const PROBES: u32 = 4;
    if is_local(stream)? {
        // The kernel reports it at once.
        return Ok(());
    }
    let interval = (dead_after / (PROBES + 1)).max(Duration::from_secs(1));
    let keepalive = TcpKeepalive::new()
        .with_time(interval)
        .with_interval(interval)
        .with_retries(PROBES);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(dead_after))
}

/// Chooses the kernel's congestion control by name (`cubic`, `bbr`, …).
///
/// # Errors
/// `NotFound` where the kernel has no such control, `PermissionDenied` where this user may not use
/// it.
pub fn set_congestion(stream: &TcpStream, name: &str) -> io::Result<()> {
    SockRef::from(stream).set_tcp_congestion(name.as_bytes())
}

/// Caps the rate at which the kernel sends, bytes per second (`SO_MAX_PACING_RATE`).
///
/// # Errors
/// That of `setsockopt(2)`.
pub fn set_max_pacing_rate(stream: &TcpStream, bytes_per_second: u64) -> io::Result<()> {
    set_option(
        stream,
        libc::SO_MAX_PACING_RATE,
        &bytes_per_second.to_ne_bytes(),
    )
}

/// Sets an option of `SOL_SOCKET`.
fn set_option(stream: &TcpStream, option: libc::c_int, value: &[u8]) -> io::Result<()> {
    let length = libc::socklen_t::try_from(value.len()).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open for the borrow's life, and the value has the stated length.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            value.as_ptr().cast(),
            length,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Receives into `room` once `least` bytes have arrived, and otherwise what has arrived after
/// `patience`; 0 at the end of the stream. The kernel wakes the caller once instead of for each
/// segment (`SO_RCVLOWAT`). Blocks while nothing arrives.
///
/// # Errors
/// Those of `setsockopt(2)`, `poll(2)` and `recv(2)`.
pub fn receive_at_least(
    stream: &TcpStream,
    room: &mut [u8],
    least: usize,
    patience: Duration,
) -> io::Result<usize> {
    let wanted = i32::try_from(least.min(room.len())).unwrap_or(i32::MAX);
    set_option(stream, libc::SO_RCVLOWAT, &wanted.to_ne_bytes())?;
    let mut fds = [PollFd::new(stream, PollFlags::IN)];
    let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
    let ready = match poll(&mut fds, Some(&timeout)) {
        // A signal ends the wait: the patience of the next one would begin anew.
        Err(rustix::io::Errno::INTR) => 0,
        other => other?,
    };
    if ready == 0 {
        set_option(stream, libc::SO_RCVLOWAT, &1_i32.to_ne_bytes())?;
        poll(&mut fds, None)?;
    }
    // A socket without memory for `least` bytes is readable earlier, and must not block then.
    match rustix::net::recv(stream, room, RecvFlags::DONTWAIT) {
        Ok((_, received)) => Ok(received),
        Err(rustix::io::Errno::AGAIN) => Err(io::ErrorKind::Interrupted.into()),
        Err(error) => Err(error.into()),
    }
}

/// Reads `TCP_INFO`. A kernel that is too old for a counter leaves it 0.
///
/// # Errors
/// That of `getsockopt(2)`.
pub fn info(stream: &TcpStream) -> io::Result<Info> {
    // Offsets of struct tcp_info in the kernel's uapi/linux/tcp.h, which only ever grows at its
    // end.
    const CONGESTION_STATE: usize = 1;
    const MSS: usize = 16;
    const SACKED: usize = 28;
    const RTT: usize = 68;
    const WINDOW: usize = 80;
    const BYTES_ACKED: usize = 120;
    const RTT_MIN: usize = 148;
    const DATA_SEGMENTS_SENT: usize = 156;
    const BUSY: usize = 168;
    const RECEIVER_LIMITED: usize = 176;
    const BUFFER_LIMITED: usize = 184;
    const BYTES_SENT: usize = 200;
    const BYTES_RETRANS: usize = 208;
    const OUT_OF_ORDER: usize = 224;
    // Of enum tcp_ca_state: before it are Open and Disorder.
    const CWR: u8 = 2;
    let mut raw = [0_u8; 256];
    let mut length = libc::socklen_t::try_from(raw.len()).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open for the borrow's life, and the kernel writes at most `length`
    // bytes to `raw`.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            raw.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let u32_at = |at: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&raw[at..at + 4]);
        u32::from_ne_bytes(bytes)
    };
    let u64_at = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&raw[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    let bytes_sent = u64_at(BYTES_SENT);
    let segments = u32_at(DATA_SEGMENTS_SENT);
    Ok(Info {
        rtt_us: u32_at(RTT),
        bytes_sent,
        bytes_retransmitted: u64_at(BYTES_RETRANS),
        bytes_acknowledged: u64_at(BYTES_ACKED).saturating_add(bytes_of(
            u32_at(SACKED),
            bytes_sent,
            segments,
        )),
        rtt_us_min: u32_at(RTT_MIN),
        out_of_order: u32_at(OUT_OF_ORDER),
        window_bytes: u64::from(u32_at(WINDOW)) * u64::from(u32_at(MSS)),
        busy_us: u64_at(BUSY),
        receiver_limited_us: u64_at(RECEIVER_LIMITED),
        buffer_limited_us: u64_at(BUFFER_LIMITED),
        window_packets: u32_at(WINDOW),
        recovering: raw[CONGESTION_STATE] >= CWR,
    })
}

/// Bytes of some segments, where so many bytes were sent in `sent_segments`.
fn bytes_of(segments: u32, bytes_sent: u64, sent_segments: u32) -> u64 {
    let bytes = u128::from(segments) * u128::from(bytes_sent) / u128::from(sent_segments.max(1));
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Sends all of `bytes`, telling the kernel that more follows at once.
///
/// # Errors
/// That of `send(2)`; `WriteZero` where nothing could be sent.
pub fn send_all_more(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::net::send(stream, bytes, SendFlags::MORE | SendFlags::NOSIGNAL) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => bytes = &bytes[sent..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Sends `len` bytes of `file` from `position` on, without a copy in user space.
///
/// # Errors
/// That of `sendfile(2)`; `UnexpectedEof` where the file ends early.
pub fn send_file(
    stream: &TcpStream,
    file: BorrowedFd<'_>,
    mut position: u64,
    len: u64,
) -> io::Result<()> {
    let end = position + len;
    while position < end {
        let want = usize::try_from(end - position).unwrap_or(usize::MAX);
        match rustix::fs::sendfile(stream, file, Some(&mut position), want) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests wait for real time")]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn what_is_acknowledged_selectively_counts_by_the_mean_segment() {
        assert_eq!(bytes_of(3, 10_000, 10), 3_000);
        assert_eq!(bytes_of(0, 10_000, 10), 0);
        assert_eq!(bytes_of(1, 0, 0), 0);
        assert_eq!(bytes_of(u32::MAX, u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn the_ends_of_a_local_pair_take_the_settings_of_connections() {
        let (mut one, mut other) = local_pair().unwrap();
        send_at_once(&one).unwrap();
        detect_dead_peer(&one, Duration::from_secs(9)).unwrap();
        one.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        one.write_all(&[7]).unwrap();
        let mut byte = [0];
        other.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [7]);
        other.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(one.read(&mut byte).unwrap(), 0);
    }

    #[test]
    fn a_receiver_wakes_for_enough_bytes_or_when_its_patience_ends() {
        const PATIENCE: Duration = Duration::from_millis(200);
        for (mut one, other) in [pair().unwrap(), local_pair().unwrap()] {
            let mut room = [0; 64];
            let mut receive = |least, patience| {
                let begun = std::time::Instant::now();
                let received = receive_at_least(&other, &mut room, least, patience).unwrap();
                (received, begun.elapsed())
            };
            one.write_all(&[1; 10]).unwrap();
            assert_eq!(receive(10, Duration::from_secs(60)).0, 10);
            one.write_all(&[1; 10]).unwrap();
            let (received, took) = receive(64, PATIENCE);
            assert_eq!(received, 10);
            // Unix sockets have no such limit.
            assert!(is_local(&other).unwrap() || took >= PATIENCE, "{took:?}");
            let late = std::thread::spawn(move || {
                std::thread::sleep(PATIENCE);
                one.write_all(&[1; 5]).unwrap();
            });
            assert_eq!(receive(64, Duration::ZERO).0, 5);
            late.join().unwrap();
            assert_eq!(receive(64, Duration::from_secs(60)).0, 0);
        }
    }

    #[test]
    fn all_that_the_peer_has_is_acknowledged() {
        const LEN: usize = 1 << 20;
        let (mut one, mut other) = pair().unwrap();
        let before = info(&one).unwrap().bytes_acknowledged;
        let peer = std::thread::spawn(move || {
            other.read_exact(&mut vec![0; LEN]).unwrap();
            other.write_all(&[1]).unwrap();
            other
        });
        one.write_all(&vec![1; LEN]).unwrap();
        // Data from the peer acknowledges everything that it has.
        one.read_exact(&mut [0]).unwrap();
        let acknowledged = info(&one).unwrap().bytes_acknowledged - before;
        assert_eq!(acknowledged, LEN as u64);
        peer.join().unwrap();
    }
}
