//! Why the report says that a socket did not go through the gateway: the C functions on real
//! sockets of this process. The gateway is this test.
#![expect(
    clippy::cast_possible_truncation,
    clippy::disallowed_types,
    clippy::multiple_unsafe_ops_per_block,
    clippy::unwrap_used,
    reason = "C functions, with C's types, on descriptors that the test has just opened"
)]

use std::ffi::{CString, c_int};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex};

use haul_socket::run::{Call, Carrier, Config, Failure, Run};
use haul_socket::table::{Options, Why};
use haul_socket::*;

/// No host of the internet has these addresses (RFC 5737).
const SERVED: &str = "192.0.2.1:80";
const REFUSED: &str = "192.0.2.2:80";

fn open(kind: c_int) -> OwnedFd {
    // SAFETY: numbers only; the descriptor is new.
    let fd = unsafe {
        let fd = libc::socket(libc::AF_INET, kind | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0);
        OwnedFd::from_raw_fd(fd)
    };
    haul_socket_opened(fd.as_raw_fd(), libc::AF_INET, kind, 0);
    fd
}

/// The error of connect(2), or 0.
fn connect(fd: &OwnedFd, to: SocketAddr) -> i32 {
    let port = to.port().to_be();
    // SAFETY: plain numbers, for which zero is a value; an address and its length.
    let connected = unsafe {
        match to {
            SocketAddr::V4(to) => {
                let mut raw: libc::sockaddr_in = std::mem::zeroed();
                raw.sin_family = libc::AF_INET as libc::sa_family_t;
                raw.sin_port = port;
                raw.sin_addr.s_addr = u32::from(*to.ip()).to_be();
                let len = size_of_val(&raw) as libc::socklen_t;
                haul_socket_connect(fd.as_raw_fd(), (&raw const raw).cast(), len)
            }
            SocketAddr::V6(to) => {
                let mut raw: libc::sockaddr_in6 = std::mem::zeroed();
                raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                raw.sin6_port = port;
                raw.sin6_addr.s6_addr = to.ip().octets();
                let len = size_of_val(&raw) as libc::socklen_t;
                haul_socket_connect(fd.as_raw_fd(), (&raw const raw).cast(), len)
            }
        }
    };
    match connected {
        0 => 0,
        _ => std::io::Error::last_os_error().raw_os_error().unwrap(),
    }
}

/// What the report says of this socket.
fn seen(run: &Run, fd: &OwnedFd) -> (Carrier, Why, Option<SocketAddr>) {
    let descriptor = u32::try_from(fd.as_raw_fd()).unwrap();
    let rows = run.report().rows;
    let mut of = rows.into_iter().filter(|row| row.descriptor == descriptor);
    let row = of.next().unwrap();
    (row.carrier, row.why, row.remote)
}

#[test]
fn the_reason_of_each_socket_is_what_became_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        port: 4793,
        options: Options {
            datagram: false,
            stream: false,
            write_record: false,
            gateway: true,
        },
        table: Some(folder.path().join("table")),
    };
    let run = Run::start(&config).unwrap();
    let served: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
    let kept = Arc::clone(&served);
    let calls = run.take_calls(move |call: Call| match call.to().to_string().as_str() {
        SERVED => kept.lock().unwrap().push(call.accept().unwrap()),
        REFUSED => call.refuse(Failure::Refused),
        _ => call.refuse(Failure::NoWay),
    });
    let calls = calls.unwrap();
    let [(_, table), (_, id)] = run.environment();
    let table = CString::new(table.into_encoded_bytes()).unwrap();
    let id = CString::new(id.into_encoded_bytes()).unwrap();
    // SAFETY: two strings.
    assert_eq!(unsafe { haul_socket_start(table.as_ptr(), id.as_ptr()) }, 1);

    let (served_at, refused_at) = (SERVED.parse().unwrap(), REFUSED.parse().unwrap());
    let carried = open(libc::SOCK_STREAM);
    assert_eq!(connect(&carried, served_at), 0);
    assert_eq!(
        seen(&run, &carried),
        (Carrier::Gateway, Why::None, Some(served_at))
    );

    let refused = open(libc::SOCK_STREAM);
    assert_eq!(connect(&refused, refused_at), libc::ECONNREFUSED);
    assert_eq!(
        seen(&run, &refused),
        (Carrier::Kernel, Why::NotMade, Some(refused_at))
    );
    // It may try another, and the first reason is true no longer.
    assert_eq!(connect(&refused, served_at), 0);
    assert_eq!(
        seen(&run, &refused),
        (Carrier::Gateway, Why::None, Some(served_at))
    );

    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let near_at = server.local_addr().unwrap();
    let near = open(libc::SOCK_STREAM);
    assert_eq!(connect(&near, near_at), 0);
    assert_eq!(
        seen(&run, &near),
        (Carrier::Kernel, Why::Near, Some(near_at))
    );

    // Of another family than the socket: the kernel's error, wherever the destination is.
    let wrong = open(libc::SOCK_STREAM);
    let far = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    let error = connect(&wrong, SocketAddrV6::new(far, 80, 0, 0).into());
    assert!(
        [libc::EAFNOSUPPORT, libc::EINVAL].contains(&error),
        "{error}"
    );
    assert_eq!(seen(&run, &wrong).1, Why::None);

    let datagram = open(libc::SOCK_DGRAM);
    assert_eq!(connect(&datagram, near_at), 0);
    let (carrier, why, _) = seen(&run, &datagram);
    assert_eq!((carrier, why), (Carrier::Kernel, Why::Excluded));
    drop(calls);
}
