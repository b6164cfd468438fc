//! Connections through gateways, as applications see them.

use std::io::{Read as _, Write as _};

use crate::common::{
    self, KINDS, assert_reset, connect, echo_server, entry_gateway, exchange, exit_gateway, pattern,
};

#[test]
fn bytes_come_back_unchanged_over_each_kind_of_channel() {
    for kind in KINDS {
        for mode in ["pull", "push"] {
            let (far, far_lines) = exit_gateway("");
            let route = format!("channels = ['{kind}']\nmode = '{mode}'\nstreams = 3");
            let (near, near_lines) =
                entry_gateway(&[far.listen_addr().unwrap()], echo_server(), &route);
            for (seed, len) in [1, 100_000, 8 << 20].into_iter().enumerate() {
                let sent = pattern(len, seed as u64);
                let got = exchange(connect(near.listener_addrs()[0]), sent.clone());
                assert!(
                    got == sent,
                    "{kind} {mode}: {len}: {:?} {:?}",
                    near_lines.all(),
                    far_lines.all()
                );
            }
            assert!(near_lines.contain(&format!("data channel {kind} (")));
        }
    }
}

#[test]
fn a_gateway_between_changes_the_kind_of_channel() {
    let (last, last_lines) = exit_gateway("");
    let (middle, middle_lines) = exit_gateway("next = ['127.0.0.1']");
    let route = "channels = ['iwarp/udt']";
    let via = [middle.listen_addr().unwrap(), last.listen_addr().unwrap()];
    let text = format!(
        "name = 'entry'\nanonymous = true\n[[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:0'\nto = '{}'\n\
         [[route]]\nto = ['*']\nring = '4MiB'\n{route}\n\
         via = [{{ gateway = '{}', channels = ['tcp'] }}, {{ gateway = '{}', channels = ['iwarp/udt'] }}]",
        echo_server(),
        via[0],
        via[1]
    );
    let (near, near_lines) = common::start(&text);
    for (seed, len) in [1, 100_000, 16 << 20].into_iter().enumerate() {
        let sent = pattern(len, seed as u64);
        let got = exchange(connect(near.listener_addrs()[0]), sent.clone());
        let said = (near_lines.all(), middle_lines.all(), last_lines.all());
        assert!(got == sent, "{len}: {said:?}");
    }
    assert!(
        near_lines.contain("data channel tcp"),
        "{:?}",
        near_lines.all()
    );
    assert!(
        middle_lines.contain("data channel iwarp/udt"),
        "{:?}",
        middle_lines.all()
    );
}

#[test]
fn many_connections_share_a_session_and_each_has_its_own_octets() {
    let (far, _) = exit_gateway("");
    let (near, lines) = entry_gateway(&[far.listen_addr().unwrap()], echo_server(), "");
    let listener = near.listener_addrs()[0];
    let threads: Vec<_> = (0..64)
        .map(|seed| {
            std::thread::spawn(move || {
                let sent = pattern(100_000 + seed * 1_000, seed as u64);
                assert!(exchange(connect(listener), sent.clone()) == sent, "{seed}");
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    let opened = lines
        .all()
        .iter()
        .filter(|line| line.contains("is open"))
        .count();
    assert_eq!(opened, 1, "{:?}", lines.all());
}

#[test]
fn half_close_goes_through_and_what_comes_after_it_too() {
    let server = common::serve(|mut stream| {
        let mut octets = Vec::new();
        stream.read_to_end(&mut octets).unwrap();
        stream
            .write_all(format!("{} octets", octets.len()).as_bytes())
            .unwrap();
    });
    let (far, _) = exit_gateway("");
    for kind in KINDS {
        let route = format!("channels = ['{kind}']");
        let (near, lines) = entry_gateway(&[far.listen_addr().unwrap()], server, &route);
        let got = exchange(connect(near.listener_addrs()[0]), vec![7; 12_345]);
        let got = String::from_utf8(got).unwrap();
        assert_eq!(got, "12345 octets", "{kind}: {:?}", lines.all());
    }
}

#[test]
fn a_reset_of_the_server_reaches_the_client_behind_what_came_before_it() {
    let server = common::serve(|mut stream| {
        stream.write_all(b"before").unwrap();
        let mut octets = [0; 16];
        // Closing with unread data resets the connection.
        let _ = stream.peek(&mut octets).unwrap();
    });
    let (far, _) = exit_gateway("");
    for kind in KINDS {
        let route = format!("channels = ['{kind}']");
        let (near, lines) = entry_gateway(&[far.listen_addr().unwrap()], server, &route);
        let mut stream = connect(near.listener_addrs()[0]);
        let mut before = [0; 6];
        stream.read_exact(&mut before).unwrap();
        assert_eq!(&before, b"before");
        stream.write_all(b"never read").unwrap();
        let error = stream.read(&mut before).unwrap_err().kind();
        let reset = std::io::ErrorKind::ConnectionReset;
        assert_eq!(error, reset, "{kind}: {:?}", lines.all());
    }
}

#[test]
fn a_client_with_a_forbidden_or_silent_destination_is_reset() {
    let (far, _) = exit_gateway("");
    let nobody = "127.0.0.1:1".parse().unwrap();
    let forbidden = "192.0.2.1:80".parse().unwrap();
    for to in [nobody, forbidden] {
        let (near, _) = entry_gateway(&[far.listen_addr().unwrap()], to, "");
        assert_reset(near.listener_addrs()[0]);
    }
    let (near, lines) = entry_gateway(&[nobody], nobody, "");
    assert_reset(near.listener_addrs()[0]);
    assert!(lines.contain("cannot be reached"), "{:?}", lines.all());
}
