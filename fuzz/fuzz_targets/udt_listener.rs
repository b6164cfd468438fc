//! Bytes to a listener: no reply is longer than the request, and what is accepted makes a
//! connection. (libFuzzer watches comparisons, so it does guess cookies.)

#![no_main]

use std::net::SocketAddr;

use haul_cc::Time;
use haul_udt::wire::SocketId;
use haul_udt::{Config, Connection, Listener, Reaction, Transmit};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let config = Config::default();
    let listener = Listener::new(&config, [7; 16]);
    let (now, from) = (Time::from_ns(1), SocketAddr::from(([192, 0, 2, 1], 5_000)));
    let mut reply = Vec::new();
    let reaction = listener.handle_datagram(now, from, bytes, &mut reply);
    assert!(reply.len() <= bytes.len());
    assert_eq!(reaction == Reaction::Reply, !reply.is_empty());
    let Reaction::Accept(request) = reaction else {
        return;
    };
    if let Ok(mut connection) = Connection::accept(now, config, SocketId(1), &request, 1) {
        let mut transmit = Transmit::default();
        assert!(connection.poll_transmit(now, &mut transmit), "the answer");
    }
});
