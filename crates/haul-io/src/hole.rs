//! Connections that are made from the other end: a socket connects to a *hole*, which answers
//! nothing, and is connected when this process connects to it (TCP's simultaneous open, RFC 9293
//! §3.5), or fails when it is turned away.
//!
//! So a connection of another program on this machine can wait for something before it is
//! established, in the kernel, where `poll`, `epoll` and a `connect(2)` that waits see it as any
//! other. A hole is a listener whose queue is full: the kernel drops what asks for more.

#![expect(
    clippy::disallowed_types,
    reason = "this crate is where sockets are opened"
)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// An address of this machine that takes no connections and refuses none.
#[derive(Debug)]
pub struct Hole {
    address: SocketAddr,
    _listener: Socket,
    /// The connection that fills its queue.
    _stopper: TcpStream,
}

impl Hole {
    /// On the loopback interface, for sockets of IPv4.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn v4() -> io::Result<Self> {
        Self::open(Ipv4Addr::LOCALHOST.into())
    }

    /// On the loopback interface, for sockets of IPv6.
    ///
    /// # Errors
    /// Those of the system calls: `AddrNotAvailable` where there is no IPv6.
    pub fn v6() -> io::Result<Self> {
        Self::open(Ipv6Addr::LOCALHOST.into())
    }

    fn open(ip: IpAddr) -> io::Result<Self> {
        let listener = bound(SocketAddr::new(ip, 0))?;
        // The kernel queues one connection more than the backlog.
        listener.listen(0)?;
        let address = listener.local_addr()?;
        let address = address.as_socket().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self {
            address,
            _listener: listener,
            _stopper: TcpStream::connect(address)?,
        })
    }

    /// Where sockets connect to.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Establishes the connection of a socket that connects to this hole. The stream returned never
    /// waits, and is connected when it is writable. When it is dropped, or this process ends, the
    /// connection is reset, unless [`crate::stream::Stream::finish_on_drop`] was called, so that
    /// the peer does not take it for an orderly end.
    ///
    /// # Errors
    /// The socket is not connecting to this hole, or of the system calls.
    pub fn meet(&self, caller: impl AsFd) -> io::Result<TcpStream> {
        let peer = local_addr(&caller)?;
        let socket = bound(self.address)?;
        socket.set_nonblocking(true)?;
        socket.set_linger(Some(Duration::ZERO))?;
        match socket.connect(&peer.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(OwnedFd::from(socket).into()),
        }
    }
}

/// Ends the connecting of a socket that connects to a hole: it fails with `ECONNRESET`.
///
/// # Errors
/// The socket is not connecting.
pub fn turn_away(caller: impl AsFd) -> io::Result<()> {
    SockRef::from(&caller).shutdown(Shutdown::Both)
}

/// The address that a socket has; an IPv4 address within IPv6 is one of IPv4.
///
/// # Errors
/// It is no socket of the internet, or has no port.
pub fn local_addr(socket: impl AsFd) -> io::Result<SocketAddr> {
    let address = SockRef::from(&socket).local_addr()?.as_socket();
    let address = address.filter(|address| address.port() != 0);
    let address = address.ok_or(io::ErrorKind::NotConnected)?;
    Ok(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// A socket that shares its address with the hole's listener and its other sockets.
fn bound(address: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_port(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;
    use crate::clock::Clock;
    use crate::poller::{Events, Interest, Poller};

    /// A socket that has begun to connect to the hole.
    fn caller(hole: &Hole) -> TcpStream {
        let domain = Domain::for_address(hole.address());
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let error = socket.connect(&hole.address().into()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINPROGRESS));
        OwnedFd::from(socket).into()
    }

    /// Whether the socket becomes ready within so many milliseconds.
    fn is_ready(socket: &TcpStream, ms: u64) -> bool {
        let mut poller = Poller::new().unwrap();
        poller.add(socket, 0, Interest::WRITE).unwrap();
        let (clock, mut events) = (Clock::new(), Events::with_capacity(1));
        let until = clock.now_ns() + ms * 1_000_000;
        poller.wait(&mut events, Some(until), clock).unwrap();
        !events.is_empty()
    }

    fn holes() -> Vec<Hole> {
        let v6 = Hole::v6();
        if let Err(error) = &v6 {
            eprintln!("SKIPPED: no IPv6 here: {error}");
        }
        Hole::v4().into_iter().chain(v6).collect()
    }

    #[test]
    fn a_caller_waits_until_it_is_met() {
        for hole in holes() {
            let callers = [caller(&hole), caller(&hole)];
            for mut caller in callers {
                assert!(!is_ready(&caller, 20));
                let mut met = hole.meet(&caller).unwrap();
                assert!(is_ready(&caller, 10_000) && is_ready(&met, 10_000));
                assert!(caller.take_error().unwrap().is_none());
                assert_eq!(caller.peer_addr().unwrap(), hole.address());
                for stream in [&caller, &met] {
                    stream.set_nonblocking(false).unwrap();
                    stream
                        .set_read_timeout(Some(Duration::from_secs(10)))
                        .unwrap();
                }
                caller.write_all(b"there").unwrap();
                met.write_all(b"back").unwrap();
                met.shutdown(Shutdown::Write).unwrap();
                caller.shutdown(Shutdown::Write).unwrap();
                let (mut there, mut back) = (String::new(), String::new());
                met.read_to_string(&mut there).unwrap();
                caller.read_to_string(&mut back).unwrap();
                assert_eq!((there.as_str(), back.as_str()), ("there", "back"));
            }
        }
    }

    #[test]
    fn a_caller_whose_other_end_is_dropped_unended_sees_a_reset() {
        for hole in holes() {
            let mut caller = caller(&hole);
            let met = hole.meet(&caller).unwrap();
            assert!(is_ready(&caller, 10_000) && is_ready(&met, 10_000));
            drop(met);
            caller.set_nonblocking(false).unwrap();
            let error = caller.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
    }

    #[test]
    fn a_caller_that_is_turned_away_sees_a_reset() {
        for hole in holes() {
            let caller = caller(&hole);
            turn_away(&caller).unwrap();
            assert!(is_ready(&caller, 10_000));
            let error = caller.take_error().unwrap().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
    }

    #[test]
    fn one_that_does_not_call_cannot_be_met() {
        let hole = Hole::v4().unwrap();
        let bystander = bound(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)).unwrap();
        // Nothing listens there: whether that is known at once or a moment later, there is no
        // connection.
        if let Ok(met) = hole.meet(&bystander) {
            assert!(is_ready(&met, 10_000));
            assert!(met.take_error().unwrap().is_some());
        }
    }
}
