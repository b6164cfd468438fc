//! Which ports of the range a path lets through: every port open at the agent, TCP and UDP, and an
//! answer only to who knows the token that went over ssh.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use crate::ports::Ports;

/// Bytes of the token.
pub(super) const TOKEN: usize = 16;
/// Timeout of a TCP connection, and of its answer.
const TCP_TIMEOUT: Duration = Duration::from_secs(3);
/// Datagrams for each port, and the timeout of each.
const TRIES: u32 = 4;
const UDP_TIMEOUT: Duration = Duration::from_millis(700);

/// The transports that a path lets through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    /// A port that the agent listens on.
    pub port: u16,
    /// TCP arrives and the answer comes back.
    pub tcp: bool,
    /// UDP arrives and the answer comes back.
    pub udp: bool,
}

/// Opens every free port of the range, for as long as this process lives; returns those.
pub(super) fn open(ports: Ports, token: [u8; TOKEN]) -> Vec<u16> {
    let open = |port: u16| open_port(port, token).then_some(port);
    ports.iter().filter_map(open).collect()
}

fn open_port(port: u16, token: [u8; TOKEN]) -> bool {
    let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let mut is_open = false;
    for ip in any {
        let address = SocketAddr::new(ip, port);
        let Ok(listener) = haul_io::tcp::listen(address) else {
            // A host without IPv6, or another process has the port.
            continue;
        };
        let Ok(socket) = UdpSocket::bind(address) else {
            // Where IPv6 sockets take IPv4 as well, the first socket serves both.
            is_open |= spawn(move || answer_tcp(&listener, token));
            continue;
        };
        is_open |= spawn(move || answer_tcp(&listener, token));
        is_open |= spawn(move || answer_udp(&socket, token));
    }
    is_open
}

/// Returns whether there is a thread for it.
fn spawn(work: impl FnOnce() + Send + 'static) -> bool {
    let builder = std::thread::Builder::new().name("haul-probe".into());
    builder.spawn(work).is_ok()
}

/// One connection at a time: there is one client.
fn answer_tcp(listener: &TcpListener, token: [u8; TOKEN]) {
    while let Ok((mut stream, _)) = listener.accept() {
        let mut got = [0; TOKEN];
        let bounded = stream
            .set_read_timeout(Some(TCP_TIMEOUT))
            .and_then(|()| stream.set_write_timeout(Some(TCP_TIMEOUT)));
        if bounded.and_then(|()| stream.read_exact(&mut got)).is_ok() && got == token {
            // The client sees a connection that ends without an answer.
            let _ = stream.write_all(&token);
        }
    }
}

/// An answer is as long as its question.
fn answer_udp(socket: &UdpSocket, token: [u8; TOKEN]) {
    let mut got = [0; TOKEN + 1];
    while let Ok((len, peer)) = socket.recv_from(&mut got) {
        if got[..len] == token {
            // A lost answer is asked for again.
            let _ = socket.send_to(&token, peer);
        }
    }
}

/// Tries each of the ports, all at once.
pub(super) fn check(ip: IpAddr, ports: &[u16], token: [u8; TOKEN]) -> Vec<Reach> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ports
            .iter()
            .map(|&port| {
                let address = SocketAddr::new(ip, port);
                let both = move || Reach {
                    port,
                    tcp: tcp_passes(address, token),
                    udp: udp_passes(address, token).unwrap_or(false),
                };
                (port, std::thread::Builder::new().spawn_scoped(scope, both))
            })
            .collect();
        let join = |(port, thread): (
            u16,
            std::io::Result<std::thread::ScopedJoinHandle<'_, Reach>>,
        )| {
            thread
                .ok()
                .and_then(|thread| thread.join().ok())
                .unwrap_or(Reach {
                    port,
                    tcp: false,
                    udp: false,
                })
        };
        threads.into_iter().map(join).collect()
    })
}

fn tcp_passes(address: SocketAddr, token: [u8; TOKEN]) -> bool {
    let Ok(mut stream) = TcpStream::connect_timeout(&address, TCP_TIMEOUT) else {
        return false;
    };
    let mut got = [0; TOKEN];
    stream
        .set_read_timeout(Some(TCP_TIMEOUT))
        .and_then(|()| stream.write_all(&token))
        .and_then(|()| stream.read_exact(&mut got))
        .is_ok_and(|()| got == token)
}

fn udp_passes(address: SocketAddr, token: [u8; TOKEN]) -> std::io::Result<bool> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(UDP_TIMEOUT))?;
    let mut got = [0; TOKEN + 1];
    for _ in 0..TRIES {
        // A refusal by ICMP shows in the next call.
        let _ = socket.send(&token);
        if let Ok(len) = socket.recv(&mut got)
            && got[..len] == token
        {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_ports_answer_and_closed_ones_do_not() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let token = [7; TOKEN];
        let range = Ports::new(port, port).unwrap();
        assert_eq!(open(range, token), [port]);
        let localhost = IpAddr::from([127, 0, 0, 1]);
        let reach = |token| check(localhost, &[port], token);
        let of = |tcp, udp| vec![Reach { port, tcp, udp }];
        assert_eq!(reach(token), of(true, true));
        // Who does not know the token gets nothing.
        assert_eq!(reach([8; TOKEN]), of(false, false));
    }
}
