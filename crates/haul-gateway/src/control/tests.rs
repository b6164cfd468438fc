//! Control connections over loopback, with certificates that are made for it.

use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::path::Path;

use haul_io::notify::wait_readable;
use haul_io::stream::Acceptor;

use super::*;
use crate::tls::tests::{Authority, Validity, context};

const SECOND_NS: u64 = 1_000_000_000;

fn pair() -> (Stream, Stream) {
    let acceptor = Acceptor::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let near = Stream::start_connect(acceptor.local_addr().unwrap()).unwrap();
    wait_readable([acceptor.as_fd()], None).unwrap();
    let (far, _) = acceptor.accept().unwrap().unwrap();
    near.connected().unwrap();
    (near, far)
}

fn tls_pair(client: &TlsContext, server: &TlsContext, name: &str) -> (Control, Control) {
    let (near, far) = pair();
    let client = Control::tls_client(near, client, name).unwrap();
    (client, Control::tls_server(far, server).unwrap())
}

/// A step of one end: what it has read, or why it is over.
fn step(control: &mut Control, got: &mut Vec<u8>) -> Result<(), io::Error> {
    let mut octets = [0; 4096];
    let mut advance = |control: &mut Control| {
        control.flush()?;
        loop {
            match control.read(&mut octets) {
                Ok(0) => return Err(io::Error::other("the end")),
                Ok(count) => got.extend_from_slice(&octets[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    };
    advance(control)
}

/// Runs both ends until `done`, or until either has ended; returns the outcome of each.
fn run(
    (near, far): (&mut Control, &mut Control),
    done: impl Fn(&Control, &Control, &[u8], &[u8]) -> bool,
) -> (Result<Vec<u8>, String>, Result<Vec<u8>, String>) {
    let (mut at_near, mut at_far) = (Vec::new(), Vec::new());
    let (mut near_end, mut far_end) = (None, None);
    for _ in 0..100_000 {
        near_end = near_end.or_else(|| step(near, &mut at_near).err());
        far_end = far_end.or_else(|| step(far, &mut at_far).err());
        let are_over = near_end.is_some() && far_end.is_some();
        if are_over || near_end.is_none() && far_end.is_none() && done(near, far, &at_near, &at_far)
        {
            let say =
                |end: Option<io::Error>, got| end.map_or(Ok(got), |error| Err(error.to_string()));
            return (say(near_end, at_near), say(far_end, at_far));
        }
        wait_readable(
            [near.stream().as_fd(), far.stream().as_fd()],
            Some(SECOND_NS / 1000),
        )
        .unwrap();
    }
    panic!("neither ready nor over: {near_end:?}, {far_end:?}");
}

fn are_ready(near: &Control, far: &Control, _: &[u8], _: &[u8]) -> bool {
    near.is_ready() && far.is_ready()
}

/// Returns the errors of both ends of a handshake that must fail.
fn failure(client: &TlsContext, server: &TlsContext, name: &str) -> (String, String) {
    let (mut near, mut far) = tls_pair(client, server, name);
    let (near, far) = run((&mut near, &mut far), |_, _, _, _| false);
    (near.unwrap_err(), far.unwrap_err())
}

/// Two gateways of one authority.
fn friends(dir: &Path) -> (TlsContext, TlsContext) {
    let authority = Authority::new("root");
    let one = authority.issue(&["one.example"], Validity::Now);
    let other = authority.issue(&["other.example"], Validity::Now);
    (
        context(dir, "one", &one, &authority),
        context(dir, "other", &other, &authority),
    )
}

#[test]
fn a_plain_connection_is_ready_at_once_and_binds_to_nothing() {
    let (near, far) = pair();
    let (mut near, mut far) = (Control::new(near), Control::new(far));
    assert!(near.is_ready() && !near.wants_write());
    assert_eq!((near.binding(), near.peer_name()), ([0; 32], None));
    // No message begins with a printable character.
    near.push(b"\x01bytes".to_vec());
    let (_, got) = run((&mut near, &mut far), |_, _, _, got| got.len() == 6);
    assert_eq!(got.unwrap(), b"\x01bytes");
}

#[test]
fn both_ends_know_each_other_and_share_a_binding() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = friends(dir.path());
    let (mut near, mut far) = tls_pair(&one, &other, "other.example");
    assert!(!near.is_ready() && near.wants_write() && near.peer_name().is_none());
    assert_eq!(near.binding(), [0; 32]);
    let _ = run((&mut near, &mut far), are_ready);
    assert_eq!(near.peer_name().as_deref(), Some("other.example"));
    assert_eq!(far.peer_name().as_deref(), Some("one.example"));
    assert_eq!(near.binding(), far.binding());
    assert_ne!(near.binding(), [0; 32]);
    let (mut second, mut far_second) = tls_pair(&one, &other, "other.example");
    let _ = run((&mut second, &mut far_second), are_ready);
    assert_ne!(second.binding(), near.binding());
}

#[test]
fn bytes_pass_in_both_directions_at_any_time() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = friends(dir.path());
    let (mut near, mut far) = tls_pair(&one, &other, "other.example");
    // More than the kernel and TLS keep, put in before anything is agreed on.
    let sent: Vec<u8> = (0..8 << 20).map(|i: u32| i.to_le_bytes()[1]).collect();
    for piece in sent.chunks(1 << 20) {
        near.push(piece.to_vec());
    }
    assert!(!near.has_room());
    far.push(b"answer".to_vec());
    let (answer, got) = run((&mut near, &mut far), |_, _, answer, got| {
        answer.len() == 6 && got.len() == 8 << 20
    });
    assert_eq!(answer.unwrap(), b"answer");
    assert!(got.unwrap() == sent);
    assert!(near.has_room() && !near.wants_write());
}

#[test]
fn a_sender_that_waits_for_the_peer_does_not_wait_for_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (one, _) = friends(dir.path());
    let (near, _far) = pair();
    let mut near = Control::tls_client(near, &one, "other.example").unwrap();
    near.push(b"octets".to_vec());
    assert!(near.wants_write());
    assert!(near.flush().unwrap() && !near.wants_write() && !near.is_ready());
}

#[test]
fn a_dropped_connection_ends_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = friends(dir.path());
    let (mut near, mut far) = tls_pair(&one, &other, "other.example");
    let _ = run((&mut near, &mut far), are_ready);
    drop(near);
    wait_readable([far.stream().as_fd()], None).unwrap();
    assert_eq!(far.read(&mut [0; 16]).unwrap(), 0);
}

#[test]
fn a_cut_connection_is_distinguished_from_an_ended_one() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = friends(dir.path());
    let (mut near, mut far) = tls_pair(&one, &other, "other.example");
    let _ = run((&mut near, &mut far), are_ready);
    near.stream().shutdown_send();
    wait_readable([far.stream().as_fd()], None).unwrap();
    let error = far.read(&mut [0; 16]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(
        error.to_string(),
        "the peer closed the connection without ending TLS"
    );
}

#[test]
fn an_expired_certificate_is_refused_with_a_reason_at_both_ends() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("root");
    let good = authority.issue(&["good.example"], Validity::Now);
    let old = authority.issue(&["old.example"], Validity::Past);
    let early = authority.issue(&["early.example"], Validity::Future);
    let good = context(dir.path(), "good", &good, &authority);
    let old = context(dir.path(), "old", &old, &authority);
    let early = context(dir.path(), "early", &early, &authority);
    let told = "the peer refuses this gateway's certificate: it has expired, or is not valid yet";
    assert_eq!(
        failure(&old, &good, "good.example"),
        (
            told.to_owned(),
            "the peer's certificate has expired".to_owned()
        )
    );
    assert_eq!(
        failure(&good, &old, "old.example"),
        (
            "the peer's certificate has expired".to_owned(),
            told.to_owned()
        )
    );
    assert_eq!(
        failure(&early, &good, "good.example").1,
        "the peer's certificate is not valid yet"
    );
}

#[test]
fn a_certificate_of_another_root_is_refused_with_a_reason_at_both_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let good = context(
        dir.path(),
        "good",
        &ours.issue(&["good.example"], Validity::Now),
        &ours,
    );
    // It trusts our roots, and presents a certificate of another authority.
    let foreign = context(
        dir.path(),
        "foreign",
        &theirs.issue(&["foreign.example"], Validity::Now),
        &ours,
    );
    let seen = "the peer's certificate does not come from one of the roots".to_owned();
    let told =
        "the peer refuses this gateway's certificate: it does not come from one of its roots"
            .to_owned();
    assert_eq!(
        failure(&foreign, &good, "good.example"),
        (told.clone(), seen.clone())
    );
    assert_eq!(failure(&good, &foreign, "foreign.example"), (seen, told));
}

#[test]
fn a_certificate_for_another_name_is_refused_with_a_reason_at_both_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = friends(dir.path());
    let (near, far) = failure(&one, &other, "elsewhere.example");
    assert_eq!(near, "the peer's certificate is not for elsewhere.example");
    assert_eq!(
        far,
        "the peer refuses this gateway's certificate: it is not for the name that it was asked by, or is damaged"
    );
    let (near, far) = pair();
    drop(far);
    assert!(Control::tls_client(near, &one, "no name").is_err());
}

#[test]
fn a_client_without_a_certificate_is_refused_with_a_reason_at_both_ends() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("root");
    let server = context(
        dir.path(),
        "server",
        &authority.issue(&["server.example"], Validity::Now),
        &authority,
    );
    let nobody = crate::tls::tests::client_without_certificate(&authority);
    let (near, far) = pair();
    let name = ServerName::try_from("server.example").unwrap();
    let client = rustls::ClientConnection::new(nobody, name).unwrap();
    let mut near = Control::over(near, Some(Box::new(client.into())));
    // It sends at once, and must nevertheless receive the reason of the refusal.
    near.push(vec![7; 100_000]);
    let mut far = Control::tls_server(far, &server).unwrap();
    let (near, far) = run((&mut near, &mut far), |_, _, _, _| false);
    assert_eq!(far.unwrap_err(), "the peer showed no certificate");
    assert_eq!(
        near.unwrap_err(),
        "the peer refuses this gateway's certificate: it is missing"
    );
}

#[test]
fn a_certificate_for_an_address_is_valid_for_peers_from_it() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("root");
    let here = context(
        dir.path(),
        "here",
        &authority.issue(&["127.0.0.1"], Validity::Now),
        &authority,
    );
    let there = context(
        dir.path(),
        "there",
        &authority.issue(&["192.0.2.1"], Validity::Now),
        &authority,
    );
    let (mut near, mut far) = by_address(&here, &here);
    let _ = run((&mut near, &mut far), are_ready);
    assert_eq!(far.peer_name().as_deref(), Some("127.0.0.1"));
    assert_eq!(near.peer_name().as_deref(), Some("127.0.0.1"));
    let (mut near, mut far) = by_address(&there, &here);
    let _ = run((&mut near, &mut far), are_ready);
    assert_eq!(far.peer_name(), None);
}

fn by_address(client: &TlsContext, server: &TlsContext) -> (Control, Control) {
    tls_pair(client, server, "127.0.0.1")
}

/// Takes what a new client sends first.
fn hello(context: &TlsContext) -> Vec<u8> {
    let (near, far) = pair();
    let mut near = Control::tls_client(near, context, "other.example").unwrap();
    assert!(near.flush().unwrap());
    wait_readable([far.as_fd()], None).unwrap();
    let mut octets = vec![0; 4096];
    let count = far.read(&mut octets).unwrap();
    octets.truncate(count);
    octets
}

#[test]
fn a_handshake_cut_anywhere_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = friends(dir.path());
    let hello = hello(&one);
    for len in (0..=hello.len())
        .step_by(37)
        .chain([1, 4, 5, 6, hello.len()])
    {
        let (near, far) = pair();
        let mut far = Control::tls_server(far, &other).unwrap();
        assert_eq!(near.write(&hello[..len]).unwrap(), len);
        near.shutdown_send();
        let error = loop {
            match far.read(&mut [0; 16]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait_readable([far.stream().as_fd()], Some(SECOND_NS)).unwrap();
                }
                result => break result.unwrap_err(),
            }
        };
        assert_eq!(
            error.to_string(),
            "the peer closed the connection before TLS was agreed on",
            "{len}"
        );
        assert!(!far.is_ready());
    }
}

#[test]
fn junk_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_, other) = friends(dir.path());
    for junk in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0; 64],
        &[0xff; 64],
        b"\x16\x03\x01\xff\xff",
        b"\x16\x03\x03\x00\x04\x01\x00\x00\x00",
    ] {
        let (near, far) = pair();
        let mut far = Control::tls_server(far, &other).unwrap();
        near.write(junk).unwrap();
        wait_readable([far.stream().as_fd()], None).unwrap();
        let error = far.read(&mut [0; 16]).unwrap_err();
        assert_eq!(
            error.kind(),
            io::ErrorKind::InvalidData,
            "{junk:?}: {error}"
        );
    }
}

#[test]
fn octet_by_octet_is_as_good_as_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = friends(dir.path());
    // Two connections, with a relay between them that forwards single bytes.
    let (near, near_far) = pair();
    let (far_near, far) = pair();
    let mut near = Control::tls_client(near, &one, "other.example").unwrap();
    let mut far = Control::tls_server(far, &other).unwrap();
    near.push(b"question".to_vec());
    far.push(b"answer".to_vec());
    let (mut at_near, mut at_far) = (Vec::new(), Vec::new());
    while at_near.len() < 6 || at_far.len() < 8 {
        step(&mut near, &mut at_near).unwrap();
        step(&mut far, &mut at_far).unwrap();
        let mut moved = false;
        for (from, to) in [(&near_far, &far_near), (&far_near, &near_far)] {
            let mut octet = [0];
            if from.read(&mut octet).is_ok_and(|count| count == 1) {
                assert_eq!(to.write(&octet).unwrap(), 1);
                moved = true;
            }
        }
        if !moved {
            let fds =
                [&near_far, &far_near, near.stream(), far.stream()].map(|stream| stream.as_fd());
            wait_readable(fds, Some(SECOND_NS / 100)).unwrap();
        }
    }
    assert_eq!(
        (at_near.as_slice(), at_far.as_slice()),
        (&b"answer"[..], &b"question"[..])
    );
    assert_eq!(near.binding(), far.binding());
}
