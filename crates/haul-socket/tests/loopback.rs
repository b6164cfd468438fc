//! The C functions on real sockets, with an agent, all in one process: it asks itself.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "calls of C functions on descriptors that the test has just opened"
)]
#![expect(clippy::unwrap_used, reason = "a failed test")]

use std::ffi::{CString, c_int};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use haul_socket::agent::Standing;
use haul_socket::run::{Carrier, Config, Report, Row, Run};
use haul_socket::table::{Options, Why};
use haul_socket::*;

/// Far beyond what anything here takes: on a machine that is so busy that the agent seems silent,
/// it is asked again after a minute.
const PATIENCE: Duration = Duration::from_secs(180);

/// The `haul run` of this process, which has joined it.
fn run() -> &'static Run {
    static RUN: OnceLock<(tempfile::TempDir, Run)> = OnceLock::new();
    let start = || {
        let folder = tempfile::tempdir().unwrap();
        let config = Config {
            port: free_udp_port(),
            options: Options {
                datagram: true,
                stream: true,
                write_record: false,
                gateway: false,
            },
            table: Some(folder.path().join("table")),
        };
        let run = Run::start(&config).unwrap();
        run.wait_ready(PATIENCE);
        assert_eq!(run.standing(), Standing::Agent);
        let [(_, table), (_, id)] = run.environment();
        let table = CString::new(table.into_encoded_bytes()).unwrap();
        let id = CString::new(id.into_encoded_bytes()).unwrap();
        // SAFETY: two strings.
        let joined = unsafe { haul_socket_start(table.as_ptr(), id.as_ptr()) };
        assert_eq!(joined, 1);
        (folder, run)
    };
    &RUN.get_or_init(start).1
}

fn free_udp_port() -> u16 {
    let any = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
    #[expect(clippy::disallowed_types, reason = "only to find a free port")]
    let socket = std::net::UdpSocket::bind(any).unwrap();
    socket.local_addr().unwrap().port()
}

/// A socket as an application under the shim has it.
struct Sock(OwnedFd);

impl Sock {
    fn open(kind: c_int) -> Self {
        run();
        // SAFETY: numbers only; the descriptor is new.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_INET, kind | libc::SOCK_CLOEXEC, 0);
            assert!(fd >= 0);
            OwnedFd::from_raw_fd(fd)
        };
        haul_socket_opened(fd.as_raw_fd(), libc::AF_INET, kind, 0);
        Self(fd)
    }

    fn fd(&self) -> c_int {
        self.0.as_raw_fd()
    }

    fn bind(&self) -> SocketAddrV4 {
        let any = raw(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));
        // SAFETY: an address and its length.
        let bound = unsafe { libc::bind(self.fd(), (&raw const any).cast(), LEN) };
        assert_eq!(bound, 0);
        haul_socket_bound(self.fd());
        self.name()
    }

    fn name(&self) -> SocketAddrV4 {
        let (mut name, mut len) = (raw(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)), LEN);
        // SAFETY: an address and its length.
        let got = unsafe { libc::getsockname(self.fd(), (&raw mut name).cast(), &raw mut len) };
        assert_eq!(got, 0);
        let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
        SocketAddrV4::new(ip, u16::from_be(name.sin_port))
    }

    fn listen() -> (Self, SocketAddrV4) {
        let sock = Self::open(libc::SOCK_STREAM);
        let at = sock.bind();
        // SAFETY: numbers only.
        assert_eq!(unsafe { libc::listen(sock.fd(), 16) }, 0);
        haul_socket_listening(sock.fd());
        (sock, at)
    }

    fn connect(&self, to: SocketAddrV4) -> c_int {
        let to = raw(to);
        // SAFETY: an address and its length.
        unsafe { haul_socket_connect(self.fd(), (&raw const to).cast(), LEN) }
    }

    fn accept(&self) -> Self {
        // SAFETY: nothing is written without a pointer; the descriptor is new.
        let fd = unsafe {
            let fd = libc::accept(self.fd(), std::ptr::null_mut(), std::ptr::null_mut());
            assert!(fd >= 0);
            OwnedFd::from_raw_fd(fd)
        };
        haul_socket_accepted(self.fd(), fd.as_raw_fd());
        Self(fd)
    }

    fn send(&self, octets: &[u8], to: Option<SocketAddrV4>, flags: c_int) -> isize {
        let mut to = to.map(raw);
        let mut buffer = libc::iovec {
            iov_base: octets.as_ptr().cast_mut().cast(),
            iov_len: octets.len(),
        };
        let mut message = message(&mut buffer);
        if let Some(to) = &mut to {
            message.msg_name = (&raw mut *to).cast();
            message.msg_namelen = LEN;
        }
        // SAFETY: a message whose buffers live as long as the call.
        unsafe { haul_socket_sendmsg(self.fd(), &raw const message, flags | libc::MSG_NOSIGNAL) }
    }

    fn receive(&self, octets: &mut [u8], flags: c_int) -> (isize, c_int) {
        let mut buffer = libc::iovec {
            iov_base: octets.as_mut_ptr().cast(),
            iov_len: octets.len(),
        };
        let mut message = message(&mut buffer);
        // SAFETY: a message whose buffers live as long as the call.
        let got = unsafe { haul_socket_recvmsg(self.fd(), &raw mut message, flags) };
        (got, message.msg_flags)
    }

    fn receive_exactly(&self, len: usize) -> Vec<u8> {
        let mut octets = vec![0; len];
        let (got, _) = self.receive(&mut octets, libc::MSG_WAITALL);
        assert_eq!(usize::try_from(got), Ok(len));
        octets
    }

    fn kind(&self) -> c_int {
        haul_socket_kind(self.fd())
    }

    fn patient(self) -> Self {
        let patience = libc::timeval {
            tv_sec: 60,
            tv_usec: 0,
        };
        let len = libc::socklen_t::try_from(size_of::<libc::timeval>()).unwrap();
        // SAFETY: a value and its length.
        let set = unsafe {
            let value = (&raw const patience).cast();
            libc::setsockopt(self.fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, value, len)
        };
        assert_eq!(set, 0);
        self
    }
}

impl Drop for Sock {
    fn drop(&mut self) {
        haul_socket_closed(self.fd());
    }
}

#[expect(clippy::cast_possible_truncation, reason = "sixteen bytes")]
const LEN: libc::socklen_t = size_of::<libc::sockaddr_in>() as libc::socklen_t;

fn raw(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::sa_family_t::try_from(libc::AF_INET).unwrap(),
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(*address.ip()).to_be(),
        },
        sin_zero: [0; 8],
    }
}

fn message(buffer: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: pointers and numbers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = buffer;
    message.msg_iovlen = 1;
    message
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    let octet = |at: usize| u8::try_from((at * 31 + seed * 7 + at / 251) % 256).unwrap();
    (0..len).map(octet).collect()
}

fn row(report: &Report, local: SocketAddrV4) -> &Row {
    let is_it = |row: &&Row| row.local == Some(local.into()) && !row.listening;
    // The last one: ports are used again.
    report.rows.iter().rev().find(is_it).unwrap()
}

/// Two datagram sockets of which the first knows that the second speaks.
fn datagram_pair() -> (Sock, Sock, SocketAddrV4) {
    let a = Sock::open(libc::SOCK_DGRAM).patient();
    let b = Sock::open(libc::SOCK_DGRAM).patient();
    a.bind();
    let to = b.bind();
    #[expect(clippy::disallowed_methods, reason = "a deadline, far away")]
    let begun = Instant::now();
    let mut sent = 0_usize;
    loop {
        assert_eq!(a.send(b"hello", Some(to), 0), 5);
        let mut octets = [0; 16];
        assert_eq!(b.receive(&mut octets, 0).0, 5);
        assert_eq!(&octets[..5], b"hello");
        sent += 1;
        if row(&run().report(), a.name()).carried.unwrap().0 > 0 {
            return (a, b, to);
        }
        assert!(begun.elapsed() < PATIENCE, "plain after {sent} datagrams");
        std::thread::yield_now();
    }
}

#[test]
fn datagrams_are_carried_once_the_agents_have_agreed_and_arrive_as_they_were() {
    let (a, b, to) = datagram_pair();
    assert_eq!(b.kind(), 1);
    let before = row(&run().report(), a.name()).carried.unwrap().0;
    let mut whole = 0;
    for len in [0, 1, 49, 50, 51, 1_400, 9_000, 60_000, 65_453] {
        let sent = pattern(len, len);
        assert_eq!(a.send(&sent, Some(to), 0), isize::try_from(len).unwrap());
        let mut octets = vec![0xee; 65_536];
        let (got, flags) = b.receive(&mut octets, 0);
        assert_eq!((usize::try_from(got).unwrap(), flags), (len, 0));
        assert_eq!(&octets[..len], &sent[..]);
        whole += len as u64;
    }
    let report = run().report();
    assert_eq!(row(&report, a.name()).carried.unwrap().0 - before, whole);
    let of_b = row(&report, to);
    assert_eq!(of_b.carrier, Carrier::Send);
    assert!(of_b.carried.unwrap().1 >= whole);
    assert_eq!(of_b.malformed, 0);
}

#[test]
fn a_short_buffer_cuts_a_datagram_as_the_kernel_does() {
    let (a, b, to) = datagram_pair();
    let sent = pattern(5_000, 1);
    for room in [0, 1, 30, 60, 4_999] {
        for flags in [0, libc::MSG_TRUNC] {
            assert_eq!(a.send(&sent, Some(to), 0), 5_000);
            let mut octets = vec![0; room];
            let (got, told) = b.receive(&mut octets, flags);
            let expected = if flags == 0 { room } else { 5_000 };
            assert_eq!(usize::try_from(got).unwrap(), expected);
            assert_eq!(told, libc::MSG_TRUNC);
            assert_eq!(octets, sent[..room]);
        }
    }
    assert_eq!(row(&run().report(), to).malformed, 0);
}

#[test]
fn a_datagram_that_is_peeked_at_comes_again() {
    let (a, b, to) = datagram_pair();
    a.send(b"once", Some(to), 0);
    for flags in [libc::MSG_PEEK, libc::MSG_PEEK, 0] {
        let mut octets = [0; 100];
        assert_eq!(b.receive(&mut octets, flags).0, 4);
        assert_eq!(&octets[..4], b"once");
    }
    let mut octets = [0; 1];
    assert_eq!(b.receive(&mut octets, libc::MSG_DONTWAIT).0, -1);
}

#[test]
fn plain_and_framed_datagrams_come_in_any_order() {
    let (a, b, to) = datagram_pair();
    #[expect(clippy::disallowed_types, reason = "a plain peer")]
    let plain = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for round in 0..50_usize {
        let sent = pattern(round * 40, round);
        if round % 3 == 0 {
            plain.send_to(&sent, to).unwrap();
        } else {
            a.send(&sent, Some(to), 0);
        }
        let mut octets = vec![0; 4_096];
        let (got, _) = b.receive(&mut octets, 0);
        assert_eq!(
            &octets[..usize::try_from(got).unwrap()],
            &sent[..],
            "{round}"
        );
    }
}

#[test]
fn what_looks_framed_and_is_not_is_delivered_and_what_is_damaged_is_dropped() {
    let (a, b, to) = datagram_pair();
    // A receiver without the interface sees what is on the wire.
    #[expect(clippy::disallowed_types, reason = "a plain peer")]
    let plain = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut foreign = pattern(100, 3);
    foreign[..4].copy_from_slice(&[0xd1, 0, 0x80, 0]);
    plain.send_to(&foreign, to).unwrap();
    let mut octets = vec![0; 200];
    assert_eq!(b.receive(&mut octets, 0).0, 100);
    assert_eq!(octets[..100], foreign[..]);

    // The wire's bytes, with one bit of the payload changed.
    a.send(b"to be damaged", Some(to), 0);
    let mut wire = vec![0; 200];
    // SAFETY: a buffer and its length; past the interface.
    let len = unsafe { libc::recv(b.fd(), wire.as_mut_ptr().cast(), wire.len(), 0) };
    let wire = &mut wire[..usize::try_from(len).unwrap()];
    assert_eq!(wire.len(), 13 + 54);
    wire[50] ^= 1;
    plain.send_to(wire, to).unwrap();
    plain.send_to(b"next", to).unwrap();
    assert_eq!(b.receive(&mut octets, 0).0, 4);
    assert_eq!(row(&run().report(), to).malformed, 1);
    // Undamaged it may come from anywhere, as any datagram may.
    wire[50] ^= 1;
    plain.send_to(wire, to).unwrap();
    assert_eq!(b.receive(&mut octets, 0).0, 13);
}

#[test]
fn a_socket_option_gives_the_socket_back() {
    let sock = Sock::open(libc::SOCK_DGRAM);
    assert_eq!(sock.kind(), 1);
    haul_socket_option(sock.fd(), libc::SOL_UDP, libc::UDP_GRO);
    assert_eq!(sock.kind(), 0);
    let at = sock.bind();
    assert_eq!(row(&run().report(), at).why, Why::Option);
}

/// Both ends of a connection that is RC.
fn stream_pair() -> (Sock, Sock) {
    #[expect(clippy::disallowed_methods, reason = "a deadline, far away")]
    let begun = Instant::now();
    let (listener, at) = Sock::listen();
    loop {
        let a = Sock::open(libc::SOCK_STREAM).patient();
        assert_eq!(a.connect(at), 0);
        let b = listener.accept().patient();
        assert_eq!(a.kind(), b.kind());
        if a.kind() == 2 {
            return (a, b);
        }
        assert!(begun.elapsed() < PATIENCE, "the agent is silent");
        // SAFETY: no descriptors; only to ask less often.
        unsafe { libc::poll(std::ptr::null_mut(), 0, 50) };
    }
}

#[test]
fn a_connection_carries_octets_in_order_whatever_the_sizes() {
    let (a, b) = stream_pair();
    let sent = pattern(3_000_000, 9);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut at, mut size) = (0, 1);
            while at < sent.len() {
                let end = (at + size).min(sent.len());
                let taken = a.send(&sent[at..end], None, 0);
                at += usize::try_from(taken).unwrap();
                size = size * 7 % 150_001 + 1;
            }
            assert_eq!(haul_socket_shutdown(a.fd(), libc::SHUT_WR), 0);
        });
        let mut received = Vec::new();
        let mut size = 1;
        loop {
            let mut octets = vec![0; size];
            let (got, _) = b.receive(&mut octets, 0);
            let got = usize::try_from(got).unwrap();
            if got == 0 {
                break;
            }
            received.extend_from_slice(&octets[..got]);
            size = size * 11 % 200_003 + 1;
        }
        assert_eq!(received.len(), sent.len());
        assert!(received == sent);
    });
    let report = run().report();
    let of_a = row(&report, a.name());
    assert_eq!(
        (of_a.carrier, of_a.carried.unwrap().0),
        (Carrier::Rc, 3_000_000)
    );
}

#[test]
fn single_octets_and_equal_sizes_leave_nothing_behind() {
    let (a, b) = stream_pair();
    for round in 0..200_usize {
        let sent = pattern(round % 70 + 1, round);
        a.send(&sent, None, 0);
        assert_eq!(b.receive_exactly(sent.len()), sent);
        // The message was read whole, trailer and all: nothing makes the socket readable.
        assert_eq!(haul_socket_pending(b.fd()), 0);
        let mut octets = [0; 1];
        // SAFETY: a buffer and its length; past the interface.
        let raw = unsafe {
            libc::recv(
                b.fd(),
                octets.as_mut_ptr().cast(),
                1,
                libc::MSG_DONTWAIT | libc::MSG_PEEK,
            )
        };
        assert_eq!(raw, -1, "round {round}");
        b.send(&octets, None, 0);
        assert_eq!(a.receive_exactly(1), [0]);
    }
}

#[test]
fn octets_that_have_no_room_are_held_and_told_of() {
    let (a, b) = stream_pair();
    a.send(b"0123456789", None, 0);
    assert_eq!(b.receive_exactly(4), b"0123");
    assert!((0..=6).contains(&haul_socket_pending(b.fd())));
    let mut peeked = [0; 3];
    assert_eq!(b.receive(&mut peeked, libc::MSG_PEEK).0, 3);
    assert_eq!(&peeked, b"456");
    assert_eq!(b.receive_exactly(6), b"456789");
    assert_eq!(haul_socket_pending(b.fd()), 0);
    // Nothing of the message is left to make the socket readable.
    // SAFETY: a buffer and its length; past the interface.
    let raw = unsafe { libc::recv(b.fd(), peeked.as_mut_ptr().cast(), 3, libc::MSG_DONTWAIT) };
    assert_eq!(raw, -1);
}

#[test]
fn peeking_a_stream_takes_nothing() {
    let (a, b) = stream_pair();
    a.send(b"peek", None, 0);
    for flags in [libc::MSG_PEEK, libc::MSG_PEEK, 0] {
        let mut octets = [0; 10];
        assert_eq!(b.receive(&mut octets, flags).0, 4);
        assert_eq!(&octets[..4], b"peek");
    }
}

#[test]
fn a_sender_that_does_not_wait_is_continued_where_it_was() {
    let (a, b) = stream_pair();
    let sent = pattern(8_000_000, 5);
    let mut at = 0;
    let mut received = Vec::new();
    let mut refusals = 0;
    let mut octets = vec![0; 100_000];
    while received.len() < sent.len() {
        let end = (at + 300_000).min(sent.len());
        let taken = a.send(&sent[at..end], None, libc::MSG_DONTWAIT);
        match usize::try_from(taken) {
            Ok(taken) => at += taken,
            Err(_) => {
                refusals += 1;
                let (got, _) = b.receive(&mut octets, 0);
                received.extend_from_slice(&octets[..usize::try_from(got).unwrap()]);
            }
        }
        if at == sent.len() {
            let (got, _) = b.receive(&mut octets, 0);
            received.extend_from_slice(&octets[..usize::try_from(got).unwrap()]);
        }
    }
    assert!(received == sent);
    assert!(refusals > 0, "the socket took everything at once");
}

#[test]
#[expect(clippy::disallowed_types, reason = "plain peers")]
fn plain_peers_are_served_by_the_kernel() {
    let (listener, at) = Sock::listen();
    let mut plain = std::net::TcpStream::connect(at).unwrap();
    let accepted = listener.accept();
    assert_eq!(accepted.kind(), 0);
    assert_eq!(accepted.send(b"hi", None, 0), 2);
    let mut octets = [0; 2];
    plain.read_exact(&mut octets).unwrap();
    assert_eq!(&octets, b"hi");

    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let std::net::SocketAddr::V4(at) = server.local_addr().unwrap() else {
        unreachable!("bound to IPv4");
    };
    let sock = Sock::open(libc::SOCK_STREAM);
    assert_eq!(sock.connect(at), 0);
    assert_eq!(sock.kind(), 0);
    assert_eq!(row(&run().report(), sock.name()).why, Why::NoSocket);
    let (mut stream, _) = server.accept().unwrap();
    stream.write_all(b"plain").unwrap();
    let mut octets = [0; 5];
    assert_eq!(sock.receive(&mut octets, libc::MSG_WAITALL).0, 5);
    assert_eq!(&octets, b"plain");
}

#[test]
fn a_damaged_stream_ends_and_nothing_of_it_is_delivered() {
    let (a, b) = stream_pair();
    a.send(b"good", None, 0);
    assert_eq!(b.receive_exactly(4), b"good");
    // An FPDU of four bytes, the second of its connection, with a wrong CRC.
    let mut wire = vec![
        0, 22, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0,
    ];
    wire.extend_from_slice(b"evil\xde\xad\xbe\xef");
    // SAFETY: a buffer and its length; past the interface.
    let sent = unsafe { libc::send(a.fd(), wire.as_ptr().cast(), wire.len(), 0) };
    assert_eq!(sent, 28);
    let mut octets = [0; 16];
    assert_eq!(b.receive(&mut octets, 0).0, -1);
    assert_eq!(
        std::io::Error::last_os_error().raw_os_error(),
        Some(libc::ECONNRESET)
    );
    assert_eq!(b.receive(&mut octets, 0).0, -1);
}

/// Sends past the interface.
fn send_raw(sock: &Sock, octets: &[u8]) {
    // SAFETY: a buffer and its length.
    let sent = unsafe { libc::send(sock.fd(), octets.as_ptr().cast(), octets.len(), 0) };
    assert_eq!(usize::try_from(sent), Ok(octets.len()));
}

/// The bytes of the next FPDU of a connection, which the interface made.
fn fpdu(a: &Sock, b: &Sock, payload: &[u8]) -> Vec<u8> {
    a.send(payload, None, 0);
    let mut wire = vec![0; 24 + payload.len().next_multiple_of(4)];
    // SAFETY: a buffer and its length; past the interface.
    let got = unsafe {
        let flags = libc::MSG_WAITALL;
        libc::recv(b.fd(), wire.as_mut_ptr().cast(), wire.len(), flags)
    };
    assert_eq!(usize::try_from(got), Ok(wire.len()));
    wire
}

#[test]
fn nothing_is_delivered_before_its_fpdu_is_whole() {
    let (a, b) = stream_pair();
    let payload = pattern(1_000, 4);
    for room in [1, 999, 1_000, 5_000] {
        let wire = fpdu(&a, &b, &payload);
        let mut octets = vec![0; room];
        for cut in [1, 19, 20, 500, wire.len() - 1] {
            // Each cut adds what is missing up to it.
            let from = [0, 1, 19, 20, 500, wire.len() - 1]
                .into_iter()
                .rfind(|at| *at < cut)
                .unwrap_or(0);
            send_raw(&a, &wire[from..cut]);
            for flags in [libc::MSG_PEEK, 0] {
                let (got, _) = b.receive(&mut octets, flags | libc::MSG_DONTWAIT);
                assert_eq!(got, -1, "{cut} octets");
            }
            assert_eq!(haul_socket_pending(b.fd()), 0);
        }
        send_raw(&a, &wire[wire.len() - 1..]);
        assert_eq!(b.receive_exactly(payload.len()), payload);
    }
}

#[test]
fn an_fpdu_with_a_wrong_end_ends_the_connection_and_what_was_before_it_is_delivered() {
    let (a, b) = stream_pair();
    let at = b.name();
    let good = fpdu(&a, &b, b"good");
    let mut bad = fpdu(&a, &b, &pattern(3_000, 2));
    *bad.last_mut().unwrap() ^= 1;
    send_raw(&a, &good);
    send_raw(&a, &bad);
    let mut octets = vec![0; 100];
    let (got, _) = b.receive(&mut octets[..4], 0);
    assert_eq!((got, &octets[..4]), (4, &b"good"[..]));
    for _ in 0..2 {
        assert_eq!(b.receive(&mut octets, 0).0, -1);
        let error = std::io::Error::last_os_error().raw_os_error();
        assert_eq!(error, Some(libc::ECONNRESET));
    }
    assert_eq!(row(&run().report(), at).malformed, 1);
}

#[test]
fn an_fpdu_that_ends_too_early_is_no_end() {
    let (a, b) = stream_pair();
    let wire = fpdu(&a, &b, b"never whole");
    send_raw(&a, &wire[..wire.len() - 1]);
    // SAFETY: numbers only; past the interface.
    assert_eq!(unsafe { libc::shutdown(a.fd(), libc::SHUT_WR) }, 0);
    let mut octets = [0; 100];
    assert_eq!(b.receive(&mut octets, 0).0, -1);
    let error = std::io::Error::last_os_error().raw_os_error();
    assert_eq!(error, Some(libc::ECONNRESET));
}

#[test]
fn a_peer_that_turns_out_to_be_plain_is_heard_as_it_is() {
    let (a, b) = stream_pair();
    let greeting = b"220 a server that speaks first, and plain; longer than a header\r\n";
    // SAFETY: a buffer and its length; past the interface.
    let sent = unsafe { libc::send(a.fd(), greeting.as_ptr().cast(), greeting.len(), 0) };
    assert_eq!(usize::try_from(sent), Ok(greeting.len()));
    assert_eq!(b.receive_exactly(10), greeting[..10]);
    assert_eq!(b.receive_exactly(greeting.len() - 10), greeting[10..]);
    assert_eq!(b.send(b"yes", None, 0), 3);
    let mut octets = [0; 10];
    // SAFETY: as above.
    let got = unsafe { libc::recv(a.fd(), octets.as_mut_ptr().cast(), 10, 0) };
    assert_eq!((got, &octets[..3]), (3, &b"yes"[..]));
    assert_eq!(row(&run().report(), b.name()).why, Why::PeerPlain);
}

#[test]
fn a_refused_connection_says_so() {
    let (listener, at) = Sock::listen();
    drop(listener);
    let sock = Sock::open(libc::SOCK_STREAM);
    assert_eq!(sock.connect(at), -1);
    assert_eq!(
        std::io::Error::last_os_error().raw_os_error(),
        Some(libc::ECONNREFUSED)
    );
}
