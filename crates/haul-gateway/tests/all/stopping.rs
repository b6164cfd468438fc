//! Gateways on the way of a session that are being stopped, and sessions that their owners have
//! left.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "what is not there where it must be fails the test; the patience is a program's"
)]

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::common::gate::Gate;
use crate::common::{
    Lines, connect, echo, echo_server, entry_gateway, exit_gateway, pattern, start, wait_until,
};
use haul_gateway::{Cause, Gateway};

const PATIENCE: Duration = Duration::from_secs(20);

/// A gateway between others.
fn middle(name: &str) -> (Gateway, SocketAddr) {
    let (gateway, _) = start(&format!(
        "name = '{name}'\nlisten = '127.0.0.1:0'\nanonymous = true\nnext = ['127.0.0.1']\nring = '4MiB'\n\
         [[channel]]\nkind = 'tcp'\nlisten = '127.0.0.1:0'\n"
    ));
    let at = gateway.listen_addr().unwrap();
    (gateway, at)
}

/// A near gateway, whose sessions to the far one pass through the first gateway between, else
/// through the second.
fn around(route: &str) -> (Gateway, Lines, [Gateway; 3]) {
    let (near, lines, gateways, ()) = behind(|at| ((), at), route);
    (near, lines, gateways)
}

/// The same, with something before the first gateway between.
fn behind<T>(
    before: impl FnOnce(SocketAddr) -> (T, SocketAddr),
    route: &str,
) -> (Gateway, Lines, [Gateway; 3], T) {
    let (far, _) = exit_gateway("");
    let last = far.listen_addr().unwrap();
    let ((first, at), (second, other)) = (middle("first"), middle("second"));
    let (gate, at) = before(at);
    let route = format!("or_via = [['{other}', '{last}']]\nchannels = ['tcp']\n{route}");
    let (near, lines) = entry_gateway(&[at, last], echo_server(), &route);
    (near, lines, [far, first, second], gate)
}

#[test]
fn a_gateway_between_that_is_stopped_sends_what_comes_another_way_and_finishes_what_there_is() {
    let (near, lines, [_far, mut first, second]) = around("");
    let listener = near.listener_addrs()[0];
    let mut old = connect(listener);
    echo(&mut old, 100_000, 1);
    first.begin_drain();
    lines.wait_for(&["gateway 'first' is being stopped"]);
    let mut new = connect(listener);
    echo(&mut new, 100_000, 2);
    echo(&mut old, 100_000, 3);
    assert_eq!((first.sessions().len(), second.sessions().len()), (1, 1));
    assert!(!first.wait(Duration::from_secs(1)), "there is a connection");
    echo(&mut old, 100_000, 4);
    drop(old);
    assert!(first.wait(PATIENCE));
    echo(&mut new, 100_000, 5);
    assert_eq!(near.sessions().len(), 1);
}

#[test]
fn connections_that_come_while_a_gateway_between_begins_to_stop_are_not_refused() {
    let (near, lines, [_far, mut first, second]) = around("");
    let listener = near.listener_addrs()[0];
    echo(&mut connect(listener), 1_000, 1);
    let clients = std::thread::spawn(move || {
        let mut count = 0;
        while second.sessions().is_empty() || count < 200 {
            echo(&mut connect(listener), 1_000, count);
            count += 1;
        }
    });
    std::thread::sleep(Duration::from_millis(20));
    first.begin_drain();
    clients.join().unwrap();
    assert!(first.wait(PATIENCE));
    assert!(!lines.contain("refused"), "{:?}", lines.all());
}

#[test]
fn an_owner_that_is_away_when_a_gateway_begins_to_stop_learns_it_when_it_is_back() {
    let (near, lines, [_far, mut first, second], gate) = behind(Gate::before, "");
    let listener = near.listener_addrs()[0];
    let mut old = connect(listener);
    echo(&mut old, 100_000, 1);
    gate.shut();
    wait_until("the loss", || near.sessions()[0].state == "suspended");
    first.begin_drain();
    gate.open();
    lines.wait_for(&["gateway 'first' is being stopped"]);
    echo(&mut connect(listener), 1_000, 2);
    assert_eq!(second.sessions().len(), 1);
    echo(&mut old, 100_000, 3);
    drop(old);
    assert!(first.wait(PATIENCE), "{:?}", first.sessions());
}

#[test]
fn a_session_that_is_being_opened_through_a_gateway_that_is_stopped_goes_another_way() {
    // Accepts, and sends nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (far, _) = exit_gateway("");
    let (mut first, at) = middle("first");
    let other = far.listen_addr().unwrap();
    let server = echo_server();
    let route = format!("or_via = [['{other}']]");
    let via = [at, silent.local_addr().unwrap()];
    let (near, lines) = entry_gateway(&via, server, &route);
    let to = server.to_string().parse().unwrap();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| near.connect("program", &to, PATIENCE));
        wait_until("the session there", || first.sessions().len() == 1);
        first.begin_drain();
        let mut stream = connecting.join().unwrap().unwrap();
        echo(&mut stream, 1_000, 1);
    });
    assert!(lines.contain("; trying by"), "{:?}", lines.all());
    assert!(first.wait(PATIENCE));
}

#[test]
fn a_session_that_its_ends_acknowledge_leaves_a_gateway_that_is_stopped_with_its_connections() {
    let (near, lines, [_far, mut first, second]) = around("end_to_end = true");
    let mut stream = connect(near.listener_addrs()[0]);
    echo(&mut stream, 100_000, 1);
    let mut writer = stream.try_clone().unwrap();
    let sent = pattern(8 << 20, 2);
    let expected = sent.clone();
    let sending = std::thread::spawn(move || writer.write_all(&sent).unwrap());
    first.begin_drain();
    let mut got = vec![0; expected.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == expected);
    sending.join().unwrap();
    assert!(first.wait(PATIENCE), "{:?}", first.sessions());
    echo(&mut stream, 100_000, 3);
    assert_eq!(second.sessions().len(), 1, "{:?}", lines.all());
    assert_eq!(near.sessions().len(), 1, "{:?}", near.sessions());
    wait_until("the page to show the connection", || {
        near.sessions()[0].connections.len() == 1
    });
}

#[test]
fn a_gateway_between_that_ends_at_once_leaves_nothing_behind_it() {
    let (near, _lines, [far, first, _second]) = around("");
    let mut stream = connect(near.listener_addrs()[0]);
    echo(&mut stream, 100_000, 1);
    drop(first);
    wait_until("the end at the far end", || far.sessions().is_empty());
    let error = stream.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn without_another_way_new_connections_fail_because_the_last_gateway_is_being_stopped() {
    let (mut far, _) = exit_gateway("");
    let server = echo_server();
    let (near, lines) = entry_gateway(&[far.listen_addr().unwrap()], server, "");
    let mut old = connect(near.listener_addrs()[0]);
    echo(&mut old, 100_000, 1);
    far.begin_drain();
    lines.wait_for(&["gateway 'exit' is being stopped"]);
    let to = server.to_string().parse().unwrap();
    let refusal = near.connect("program", &to, PATIENCE).unwrap_err();
    assert!(refusal.text.contains("is being stopped"), "{refusal}");
    assert_eq!(refusal.cause, Cause::Gateway, "{refusal}");
    echo(&mut old, 100_000, 2);
    drop(old);
    assert!(far.wait(PATIENCE));
}

#[test]
fn a_session_whose_owner_has_died_makes_room_for_the_next_but_not_at_once() {
    // For one session, which would wait for longer.
    let (far, lines) = exit_gateway("memory = '12MiB'\nsession = { hold = 120 }");
    let at = far.listen_addr().unwrap();
    let (gate, via) = Gate::before(at);
    let server = echo_server();
    let (gone, _) = entry_gateway(&[via], server, "channels = ['tcp']");
    let mut left = connect(gone.listener_addrs()[0]);
    echo(&mut left, 1_000, 1);
    let room = far.memory_left();
    gate.shut();
    wait_until("the loss", || far.sessions()[0].state == "suspended");
    let since = Instant::now();
    let to = server.to_string().parse().unwrap();
    while since.elapsed() < Duration::from_secs(60) {
        let (near, _) = entry_gateway(&[at], server, "channels = ['tcp']");
        match near.connect("program", &to, PATIENCE) {
            Ok(mut stream) => {
                echo(&mut stream, 1_000, 2);
                assert!(since.elapsed() >= Duration::from_secs(25));
                assert!(lines.contain("others need the memory"), "{:?}", lines.all());
                assert_eq!(far.sessions().len(), 1);
                assert_eq!(far.memory_left(), room);
                return;
            }
            Err(refusal) => assert!(refusal.text.contains("of memory"), "{refusal}"),
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    panic!("it never made room: {:?}", lines.all());
}
