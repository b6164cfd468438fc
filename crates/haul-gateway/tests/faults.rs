//! What goes wrong on the way, and what programs see of it.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_types,
    reason = "what is not there where it must be fails the test; programs are threads with sockets"
)]

mod common;

use std::io::Write as _;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{
    KINDS, connect, echo_server, entry_gateway, exchange, exchange_past, exit_gateway, pattern,
};

/// Passes control connections on, until they are cut.
struct Breaker {
    address: SocketAddr,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Breaker {
    fn new(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let streams: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let kept = Arc::clone(&streams);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(to) else {
                    continue;
                };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                kept.lock().unwrap().extend([near, far]);
            }
        });
        Self { address, streams }
    }

    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

#[test]
fn a_session_whose_control_connection_breaks_goes_on_where_it_was() {
    let kinds = KINDS
        .into_iter()
        .flat_map(|kind| ["pull", "push"].map(|mode| (kind, mode)));
    for (kind, mode) in kinds {
        let (far, _far_lines) = exit_gateway("");
        let breaker = Breaker::new(far.listen_addr().unwrap());
        let (near, lines) = entry_gateway(
            &[breaker.address],
            echo_server(),
            &format!("channels = ['{kind}']\nmode = '{mode}'"),
        );
        let sent = pattern(24 << 20, 5);
        // Behind the first there is more than what has come to this side already.
        let marks = [2 << 20, 8 << 20, 14 << 20];
        let stream = connect(near.door_addrs()[0]);
        let got = exchange_past(&marks, stream, sent.clone(), || breaker.cut());
        assert!(got == sent, "{kind} {mode}: {:?}", lines.all());
        assert!(
            lines.contain("goes on"),
            "it was over before it was cut: {:?}",
            lines.all()
        );
    }
}

#[test]
fn a_reader_that_does_not_read_holds_up_nobody_else() {
    let (far, _) = exit_gateway("");
    let (near, _) = entry_gateway(&[far.listen_addr().unwrap()], echo_server(), "");
    let door = near.door_addrs()[0];
    let mut stalled = connect(door);
    stalled
        .set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let piece = vec![1; 64 << 10];
    let mut taken = 0;
    while let Ok(count) = stalled.write(&piece) {
        taken += count;
        assert!(taken < 1 << 30, "nobody reads, and all of it is taken");
    }
    let sent = pattern(8 << 20, 9);
    assert!(exchange(connect(door), sent.clone()) == sent);
    let left = near.sessions()[0].segments[0].clone();
    assert!(
        left.arena_used <= left.arena_size && left.ring_used <= left.ring_size,
        "{left:?}"
    );
}

#[test]
fn junk_and_half_open_sessions_disturb_nothing() {
    let (far, lines) = exit_gateway("");
    let listen = far.listen_addr().unwrap();
    let (near, _) = entry_gateway(&[listen], echo_server(), "");
    let sent = pattern(16 << 20, 3);
    let (door, octets) = (near.door_addrs()[0], sent.clone());
    let transfer = std::thread::spawn(move || exchange(connect(door), octets));
    let mut half_open = Vec::new();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    for round in 0..50_u64 {
        let mut stream = connect(listen);
        stream.write_all(&pattern(500, round)).unwrap();
        let mut quiet = connect(listen);
        // The beginning of a header of a version that there is.
        quiet.write_all(&[2, 0, 0, 1]).unwrap();
        half_open.push(quiet);
        udp.send_to(&pattern(1_000, round), listen).unwrap();
    }
    assert!(transfer.join().unwrap() == sent, "{:?}", lines.all());
}
