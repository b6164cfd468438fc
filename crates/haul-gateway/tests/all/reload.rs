//! Configurations that change while a gateway carries something.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_types,
    reason = "programs at the edges are like any others, and what is not there where it must be fails the test"
)]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use haul_gateway::Gateway;

use crate::common::gate::Gate;
use crate::common::{
    self, Filed, assert_reset, connect, echo, echo_server, exchange, exit_gateway, pattern,
    wait_until,
};

/// A forwarding listener to `to`, at `listen`.
fn listener(listen: &str, to: SocketAddr) -> String {
    format!("[[listener]]\nkind = 'forward'\nlisten = '{listen}'\nto = '{to}'\n")
}

fn entry(listeners: &str, via: SocketAddr, route: &str) -> String {
    format!(
        "name = 'entry'\nanonymous = true\n{listeners}\n[[route]]\nto = ['*']\nvia = ['{via}']\nring = '8MiB'\n{route}\n"
    )
}

const ANY: &str = "127.0.0.1:0";

#[test]
fn a_transfer_goes_on_while_its_route_and_its_listener_go() {
    let (far, _) = exit_gateway("");
    let (via, server) = (far.listen_addr().unwrap(), echo_server());
    let mut near = Filed::start(&entry(&listener(ANY, server), via, ""));
    let mut stream = connect(near.listener(0));
    echo(&mut stream, 1, 0);
    let before = near.listener(0);

    let total = 32 << 20;
    let sent = pattern(total, 7);
    let sending = sent.clone();
    let mut writer = stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        writer.write_all(&sending).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    // In the midst of it, and with much more to come than the buffers on the way hold.
    let mut got = vec![0; 1 << 20];
    stream.read_exact(&mut got).unwrap();
    near.reload(&entry(&listener("127.0.0.2:0", server), via, "regions = 4"))
        .unwrap();
    assert_eq!(near.listener(0).ip().to_string(), "127.0.0.2");
    assert!(
        TcpStream::connect(before).is_err(),
        "its listener is closed"
    );
    // New connections take the new route, in a session of their own.
    let fresh = pattern(100_000, 9);
    assert!(exchange(connect(near.listener(0)), fresh.clone()) == fresh);
    assert_eq!(near.gateway.sessions().len(), 2);

    stream.read_to_end(&mut got).unwrap();
    sending.join().unwrap();
    assert!(got == sent, "{} of {total}", got.len());
    drop(stream);
    wait_until("the end of the old route's session", || {
        near.gateway.sessions().len() == 1
    });
    assert!(
        near.lines.contain("1 new, 1 gone and 0 kept routes"),
        "{:?}",
        near.lines.all()
    );
}

#[test]
fn a_broken_file_changes_nothing_and_is_explained() {
    let (far, _) = exit_gateway("");
    let (via, server) = (far.listen_addr().unwrap(), echo_server());
    let good = entry(&listener(ANY, server), via, "");
    let mut near = Filed::start(&good);
    let at = near.listener(0);
    let held = echo_server();
    for (broken, why) in [
        ("name = ".to_owned(), "gateway.toml"),
        (format!("{good}\nspeed = 1\n"), "speed"),
        (
            entry("[[key]]\nname = 'k'\nfile = '/nonexistent'\n", via, ""),
            "/nonexistent",
        ),
        // One of two new listeners cannot be opened: the other is not opened either.
        (
            entry(
                &format!(
                    "{}{}",
                    listener(ANY, server),
                    listener(&held.to_string(), server)
                ),
                via,
                "",
            ),
            "cannot open the listener",
        ),
        // Nor where its address was free only in part: the old listener is back.
        (
            entry(
                &format!(
                    "{}{}",
                    listener(&at.to_string(), held),
                    listener(&held.to_string(), server)
                ),
                via,
                "",
            ),
            "cannot open the listener",
        ),
    ] {
        let said = near.reload(&broken).unwrap_err();
        assert!(said.contains(why), "{said}");
        assert!(near.lines.contain("nothing has changed"));
        assert_eq!(near.gateway.listener_addrs().len(), 1, "{why}");
        let sent = pattern(1_000, 1);
        assert!(
            exchange(connect(near.listener(0)), sent.clone()) == sent,
            "{why}"
        );
    }
    near.reload(&good).unwrap();
    assert!(
        near.lines.contain("0 new, 0 gone and 1 kept listeners"),
        "{:?}",
        near.lines.all()
    );
}

#[test]
fn a_listener_that_leads_elsewhere_has_its_address_again() {
    let (far, _) = exit_gateway("");
    let via = far.listen_addr().unwrap();
    let greet =
        |word: &'static [u8]| common::serve(move |mut stream| stream.write_all(word).unwrap());
    let (old, new) = (greet(b"old"), greet(b"new"));
    let mut near = Filed::start(&entry(&listener(ANY, old), via, ""));
    let at = near.listener(0);
    assert_eq!(exchange(connect(at), Vec::new()), b"old");
    near.reload(&entry(&listener(&at.to_string(), new), via, ""))
        .unwrap();
    assert_eq!(near.listener(0), at);
    assert_eq!(exchange(connect(at), Vec::new()), b"new");
}

#[test]
fn exits_that_are_gone_are_closed_to_new_connections_only() {
    let exit = |exit: &str| {
        format!(
            "name = 'exit'\nlisten = '{ANY}'\nanonymous = true\nexit = [{exit}]\nring = '8MiB'\n\
             [[channel]]\nkind = 'tcp'\nlisten = '{ANY}'\n"
        )
    };
    let mut far = Filed::start(&exit("'127.0.0.0/8'"));
    let via = far.gateway.listen_addr().unwrap();
    let near = Filed::start(&entry(&listener(ANY, echo_server()), via, ""));
    let mut stream = connect(near.listener(0));
    echo(&mut stream, 100_000, 1);
    far.reload(&exit("'192.0.2.0/24'")).unwrap();
    assert_reset(near.listener(0));
    echo(&mut stream, 100_000, 2);
    far.reload(&exit("'127.0.0.0/8'")).unwrap();
    echo(&mut connect(near.listener(0)), 100_000, 3);
    far.reload(&format!("memory = '64MiB'\n{}", exit("'127.0.0.0/8'")))
        .unwrap();
    assert!(
        far.lines.contain("`memory` has changed"),
        "{:?}",
        far.lines.all()
    );
}

#[test]
fn keys_that_change_are_asked_of_new_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, octet: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, octet.repeat(32)).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).unwrap();
        format!("[[key]]\nname = 'k'\nfile = '{}'\n", path.display())
    };
    let (old, new) = (file("old", "0a"), file("new", "0b"));
    let exit = |key: &str| {
        format!(
            "name = 'exit'\nlisten = '{ANY}'\nexit = ['127.0.0.0/8']\nring = '8MiB'\n{key}\
             [[channel]]\nkind = 'tcp'\nlisten = '{ANY}'\n"
        )
    };
    let mut far = Filed::start(&exit(&old));
    let via = far.gateway.listen_addr().unwrap();
    let with = |key: &str| {
        entry(
            &format!("{key}{}", listener(ANY, echo_server())),
            via,
            "key = 'k'",
        )
    };
    let with = |key: &str| with(key).replace("anonymous = true\n", "");
    let near = Filed::start(&with(&old));
    let mut stream = connect(near.listener(0));
    echo(&mut stream, 100_000, 1);
    far.reload(&exit(&new)).unwrap();
    echo(&mut stream, 100_000, 2);
    let mut late = Filed::start(&with(&old));
    assert_reset(late.listener(0));
    late.reload(&with(&new)).unwrap();
    echo(&mut connect(late.listener(0)), 100_000, 3);
}

fn is_open(near: &Gateway) -> bool {
    near.sessions()
        .iter()
        .any(|session| session.state == "open")
}

#[test]
fn a_route_that_is_ready_has_its_session_before_anybody_asks_and_again_when_it_was_lost() {
    let reserved = TcpListener::bind(ANY).unwrap();
    let via = reserved.local_addr().unwrap();
    drop(reserved);
    let exit = format!(
        "name = 'exit'\nlisten = '{via}'\nanonymous = true\nexit = ['127.0.0.0/8']\nring = '8MiB'\n\
         [[channel]]\nkind = 'tcp'\nlisten = '{ANY}'\n"
    );
    let listeners = listener(ANY, echo_server());
    let mut near = Filed::start(&entry(&listeners, via, "ready = true"));
    // The other gateway is not there yet.
    near.lines.wait_for(&["Connection refused"]);
    let far = common::start(&exit);
    wait_until("the session", || is_open(&near.gateway));
    drop(far);
    wait_until("its loss", || !is_open(&near.gateway));
    let _far = common::start(&exit);
    wait_until("it again", || is_open(&near.gateway));
    echo(&mut connect(near.listener(0)), 100_000, 1);
    assert_eq!(near.gateway.sessions().len(), 1);

    near.reload(&entry(&listeners, via, "")).unwrap();
    wait_until("its end", || near.gateway.sessions().is_empty());
    near.reload(&entry(&listeners, via, "ready = true\nregions = 4"))
        .unwrap();
    wait_until("that of the new route", || is_open(&near.gateway));
}

fn wait_for_loss(near: &Gateway) {
    wait_until("the loss of the control connection", || {
        let sessions = near.sessions();
        sessions.iter().all(|session| session.state == "suspended")
    });
}

/// A connection through a session that is suspended for lack of a control connection.
fn suspended(listener_at: &str) -> (Filed, Gateway, Gate, TcpStream, String) {
    let (far, _) = exit_gateway("");
    let (gate, via) = Gate::before(far.listen_addr().unwrap());
    let config = entry(
        &listener(listener_at, echo_server()),
        via,
        "channels = ['tcp']",
    );
    let near = Filed::start(&config);
    let mut stream = connect(near.listener(0));
    echo(&mut stream, 1_000, 1);
    gate.shut();
    wait_for_loss(&near.gateway);
    (near, far, gate, stream, config)
}

#[test]
fn a_route_that_goes_while_its_session_is_suspended_leaves_it_its_connections() {
    let (mut near, _far, gate, mut stream, config) = suspended(ANY);
    near.reload(&config.replace("ring = '8MiB'", "ring = '16MiB'"))
        .unwrap();
    // A reset would have come by now.
    stream
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    assert!(stream.read(&mut [0]).unwrap_err().kind() == std::io::ErrorKind::WouldBlock);
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    gate.open();
    echo(&mut stream, 100_000, 2);
    drop(stream);
    wait_until("the end of the session", || {
        near.gateway.sessions().is_empty()
    });
    let lines = near.lines.all();
    let ended = lines.iter().find(|line| line.contains("the session ended"));
    assert_eq!(ended, None);
}

#[test]
fn a_gateway_that_is_stopped_while_a_session_is_suspended_waits_for_its_connections() {
    let (mut near, _far, gate, mut stream, _) = suspended(ANY);
    near.gateway.begin_drain();
    assert!(!near.gateway.wait(Duration::from_millis(300)));
    gate.open();
    echo(&mut stream, 100_000, 2);
    drop(stream);
    assert!(near.gateway.wait(Duration::from_secs(20)));
}

#[test]
fn a_gateway_that_is_being_stopped_when_its_path_breaks_ends_when_it_is_back() {
    let (mut near, mut far, gate, mut stream, _) = suspended(ANY);
    gate.open();
    echo(&mut stream, 1_000, 2);
    // Both ends, so that each has to go on with it.
    near.gateway.begin_drain();
    far.begin_drain();
    echo(&mut stream, 1_000, 3);
    gate.shut();
    wait_for_loss(&near.gateway);
    gate.open();
    echo(&mut stream, 100_000, 4);
    drop(stream);
    assert!(near.gateway.wait(Duration::from_secs(20)));
    assert!(far.wait(Duration::from_secs(20)));
}
