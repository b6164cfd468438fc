//! First bytes of clients, which go with the requests for their connections.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "what is not there where it must be fails the test; programs are threads with sockets"
)]

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use haul_gateway::Gateway;
use haul_io::stream::Stream;

use crate::common::{
    connect, echo_server, entry_gateway, exchange, exit_gateway, pattern, serve, wait_until,
};

/// Two gateways before `server`, with a session that is open, and the near one's listener.
fn gateways(server: SocketAddr) -> (Gateway, Gateway, SocketAddr) {
    let (far, _) = exit_gateway("");
    let (near, _) = entry_gateway(&[far.listen_addr().unwrap()], server, "ready = true");
    let listener = near.listener_addrs()[0];
    wait_until("the session", || {
        near.sessions()
            .iter()
            .any(|session| session.state == "open")
    });
    (far, near, listener)
}

#[test]
fn what_a_client_sends_at_once_and_later_arrives_in_order() {
    let (_far, _near, listener) = gateways(echo_server());
    for first in [1, 1_023, 1_024, 1_025, 100_000] {
        let sent = pattern(first + 50_000, 7);
        let mut stream = connect(listener);
        stream.write_all(&sent[..first]).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(exchange(stream, sent[first..].to_vec()) == sent, "{first}");
    }
}

#[test]
fn a_server_that_sends_first_reaches_its_client() {
    let server = serve(|mut stream| {
        stream.write_all(b"220 ready\r\n").unwrap();
        let mut request = [0; 6];
        stream.read_exact(&mut request).unwrap();
        stream.write_all(&request).unwrap();
    });
    let (_far, _near, listener) = gateways(server);
    let mut stream = connect(listener);
    let mut received = [0; 11];
    stream.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"220 ready\r\n");
    stream.write_all(b"QUIT\r\n").unwrap();
    stream.read_exact(&mut received[..6]).unwrap();
    assert_eq!(&received[..6], b"QUIT\r\n");
}

#[test]
fn a_client_that_resets_does_not_look_like_one_that_has_ended() {
    let (ends, outcomes) = mpsc::channel();
    let server = serve(move |mut stream| {
        let mut bytes = Vec::new();
        // The test may be over.
        let _ = ends.send(stream.read_to_end(&mut bytes).is_ok());
    });
    let (_far, _near, listener) = gateways(server);
    for round in 0..60 {
        let mut stream = connect(listener);
        if round % 3 == 0 {
            stream.write_all(b"first").unwrap();
        }
        std::thread::sleep(Duration::from_micros(100 * (round % 20)));
        Stream::adopt(stream).unwrap().reset_on_drop();
    }
    while let Ok(is_end) = outcomes.recv_timeout(Duration::from_millis(500)) {
        assert!(!is_end, "the server has read the end of a stream");
    }
    echo_ends(listener);
}

/// The gateways still work: what a client sends ends where it ends.
fn echo_ends(listener: SocketAddr) {
    let mut stream = connect(listener);
    stream.write_all(b"all").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
}
