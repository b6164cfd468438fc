//! Handshakes between two ends in memory.

use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn key() -> PrivateKey {
    PrivateKey::generate().unwrap()
}

fn pair() -> [Protection; 2] {
    let [a, b] = [key(), key()];
    let [public_a, public_b] = [a.public(), b.public()];
    [
        Protection::keys(a, vec![public_b]).unwrap(),
        Protection::keys(b, vec![public_a]).unwrap(),
    ]
}

fn begin([client, server]: &[Protection; 2]) -> [Box<dyn Handshake>; 2] {
    [
        client.initiate(PEER, Transport::Tcp).unwrap(),
        server.respond(Transport::Tcp).unwrap(),
    ]
}

/// Carries bytes, at most `piece` at a time, until both have what they send; what was not taken of
/// the bytes to the client.
fn run(
    [client, server]: &mut [Box<dyn Handshake>; 2],
    piece: usize,
) -> Result<Vec<u8>, HandshakeError> {
    let mut inboxes = [Vec::new(), Vec::new()];
    loop {
        let before: Vec<usize> = inboxes.iter().map(Vec::len).collect();
        server.write(&mut inboxes[0]);
        client.write(&mut inboxes[1]);
        let mut moved = inboxes.iter().map(Vec::len).ne(before);
        for (end, inbox) in [&mut *client, &mut *server].into_iter().zip(&mut inboxes) {
            let mut at = 0;
            for end_at in (0..=inbox.len()).step_by(piece).chain([inbox.len()]) {
                at += end.read(&inbox[at..end_at.max(at)])?;
            }
            moved |= at > 0;
            inbox.drain(..at);
        }
        if !moved {
            return Ok(std::mem::take(&mut inboxes[0]));
        }
    }
}

#[test]
fn both_ends_get_the_same_keys_however_the_bytes_are_cut() {
    for piece in [1, 7, 1_000, 100_000] {
        let ends = pair();
        let mut handshakes = begin(&ends);
        assert_eq!(run(&mut handshakes, piece).unwrap(), b"");
        let [client, server] = handshakes.map(|handshake| handshake.seal().unwrap());
        assert_eq!(client, server);
        assert_eq!([ends[0].refused(), ends[1].refused()], [0, 0]);
    }
}

#[test]
fn each_handshake_and_each_transport_has_other_keys() {
    let ends = pair();
    let seal = |transport| {
        let mut handshakes = [
            ends[0].initiate(PEER, transport).unwrap(),
            ends[1].respond(transport).unwrap(),
        ];
        run(&mut handshakes, 1_000).unwrap();
        handshakes[0].seal().unwrap()
    };
    assert_ne!(seal(Transport::Tcp), seal(Transport::Tcp));
    let (tcp, udt, stream) = (Transport::Tcp, Transport::Udt, Transport::UdtStream);
    for (one, other) in [(tcp, udt), (udt, stream), (stream, tcp)] {
        let mut crossed = [
            ends[0].initiate(PEER, one).unwrap(),
            ends[1].respond(other).unwrap(),
        ];
        run(&mut crossed, 1_000).unwrap();
        assert_ne!(crossed[0].seal(), crossed[1].seal());
    }
}

#[test]
fn bytes_behind_the_handshake_are_left_to_the_caller() {
    let mut handshakes = begin(&pair());
    let [client, server] = &mut handshakes;
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    client.write(&mut to_server);
    server.read(&to_server).unwrap();
    server.write(&mut to_client);
    assert_eq!(client.read(&to_client).unwrap(), to_client.len());
    let mut last = Vec::new();
    client.write(&mut last);
    let len = last.len();
    last.extend_from_slice(&[23, 3, 3, 0, 40, 1, 2, 3]);
    assert_eq!(server.read(&last).unwrap(), len);
    assert!(server.seal().is_some());
    assert_eq!(server.read(&last[len..]).unwrap(), 0);
}

#[test]
fn a_client_without_an_admitted_key_is_refused_with_a_line_and_counted() {
    let [client, server] = pair();
    let expected = server.0.client.name.clone();
    assert_eq!(expected, client.0.client.name);
    // It knows the server's key, and the server does not know its own.
    let unknown = key();
    let known = match &client.0.peers {
        Peers::Keys(keys) => keys.clone(),
        Peers::Certificates { .. } => panic!("keys"),
    };
    let ends = [Protection::keys(unknown, known).unwrap(), server];
    let mut handshakes = begin(&ends);
    let error = run(&mut handshakes, 1_000).unwrap_err();
    assert!(error.to_string().contains("not one of those"), "{error}");
    assert_eq!(ends[1].refused(), 1);
    let [client, server] = &mut handshakes;
    // The client has completed, and learns it from what comes next.
    assert!(client.seal().is_some());
    assert!(server.seal().is_none());
    let mut answer = Vec::new();
    server.write(&mut answer);
    let said = client.refusal(&answer).unwrap().to_string();
    assert!(said.contains("the peer refuses: its key is not"), "{said}");
}

#[test]
fn a_server_with_another_key_gets_nothing() {
    let [client, _] = pair();
    let impostor = Protection::keys(key(), vec![key().public()]).unwrap();
    let mut handshakes = begin(&[client, impostor]);
    let error = run(&mut handshakes, 1_000).unwrap_err();
    assert!(error.to_string().contains("not trusted"), "{error}");
    assert!(
        handshakes
            .iter()
            .all(|handshake| handshake.seal().is_none())
    );
}

#[test]
fn a_reflected_handshake_ends() {
    let key = key();
    let public = key.public();
    let protection = Protection::keys(key, vec![public]).unwrap();
    let mut client = protection.initiate(PEER, Transport::Tcp).unwrap();
    let mut sent = Vec::new();
    client.write(&mut sent);
    assert!(client.read(&sent).is_err());
    assert!(client.seal().is_none());
}

#[test]
fn a_peer_without_protection_or_with_another_protocol_is_refused() {
    let [_, server] = pair();
    for plain in [&b"MPA ID Req Frame"[..], b"LHIW", b"M", &[22, 2, 1]] {
        let mut handshake = server.respond(Transport::Tcp).unwrap();
        assert_eq!(handshake.read(plain), Err(HandshakeError::Unprotected));
    }
    assert_eq!(server.refused(), 4);
    // A control connection's client with the right key.
    let own = key();
    let public = own.public();
    let admits = Protection::keys(own.clone(), vec![public]).unwrap();
    for alpn in [&b"haul/1"[..], b""] {
        let trust = Trust::Keys(vec![public]);
        let mut client =
            tls::TlsClient::new(Some(&Identity::Key(own.clone())), &trust, alpn).unwrap();
        if alpn.is_empty() {
            Arc::get_mut(&mut client.config)
                .unwrap()
                .alpn_protocols
                .clear();
        }
        let tls = rustls::ClientConnection::new(client.config, client.name).unwrap();
        let mut handshakes = [
            admits.begin(tls.into(), Transport::Tcp, false),
            admits.respond(Transport::Tcp).unwrap(),
        ];
        run(&mut handshakes, 1_000).unwrap_err();
        assert!(handshakes[1].seal().is_none(), "{alpn:?}");
    }
}

#[test]
fn a_recorded_handshake_opens_nothing_again() {
    let ends = pair();
    let mut handshakes = begin(&ends);
    let [client, server] = &mut handshakes;
    let (mut first, mut answer, mut last) = (Vec::new(), Vec::new(), Vec::new());
    client.write(&mut first);
    server.read(&first).unwrap();
    server.write(&mut answer);
    client.read(&answer).unwrap();
    client.write(&mut last);
    server.read(&last).unwrap();
    assert!(server.seal().is_some());
    let mut again = ends[1].respond(Transport::Tcp).unwrap();
    again.read(&first).unwrap();
    assert!(again.read(&last).is_err());
    assert!(again.seal().is_none());
}

#[test]
fn certificates_are_verified_at_both_ends() {
    let authority = Authority::new();
    let foreign = Authority::new();
    let end = |of: &Authority, trusts: &Authority, name: Option<&str>| {
        let roots = vec![trusts.certificate.der().clone()];
        Protection::certificates(of.issue("127.0.0.1"), roots, name).unwrap()
    };
    let seals = |ends: [Protection; 2]| {
        let mut handshakes = begin(&ends);
        let result = run(&mut handshakes, 1_000);
        result.map(|_| handshakes.map(|handshake| handshake.seal().unwrap()))
    };
    let good = || end(&authority, &authority, None);
    let [client, server] = seals([good(), good()]).unwrap();
    assert_eq!(client, server);
    let named = |name| seals([end(&authority, &authority, Some(name)), good()]);
    assert!(named("127.0.0.1").is_ok());
    let error = named("elsewhere.example").unwrap_err();
    assert!(error.to_string().contains("another name"), "{error}");
    let unknown = end(&foreign, &authority, None);
    assert!(seals([good(), unknown.clone()]).is_err());
    assert!(seals([unknown, good()]).is_err());
}

struct Authority {
    certificate: rcgen::Certificate,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new([]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        let issuer = rcgen::Issuer::new(params, key);
        Self {
            certificate,
            issuer,
        }
    }

    fn issue(&self, name: &str) -> Certificate {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Certificate {
            chain: vec![certificate.der().clone()],
            key: key.serialize_der().try_into().unwrap(),
        }
    }
}

#[test]
fn the_option_says_what_is_wrong_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    key().write(&file).unwrap();
    let file = file.to_str().unwrap();
    Protection::parse(&format!("key:{file}")).unwrap();
    Protection::parse(&format!("key:{file},{}", key().public())).unwrap();
    for wrong in ["", "key", "key:", "cert:a,b", "none:x", "key:/nonexistent"] {
        assert!(Protection::parse(wrong).is_err(), "{wrong}");
    }
    assert!(Protection::parse(&format!("key:{file},junk")).is_err());
}

proptest! {
    #[test]
    fn damaged_handshakes_give_no_keys(at in 0_usize..4_000, bit in 0_u8..8, to_client: bool) {
        let ends = pair();
        let mut handshakes = begin(&ends);
        let [client, server] = &mut handshakes;
        let flip = |bytes: &mut Vec<u8>| {
            let len = bytes.len();
            bytes[at % len] ^= 1 << bit;
        };
        let (mut first, mut answer, mut last) = (Vec::new(), Vec::new(), Vec::new());
        client.write(&mut first);
        if !to_client {
            flip(&mut first);
        }
        let _ = server.read(&first);
        server.write(&mut answer);
        if to_client && !answer.is_empty() {
            flip(&mut answer);
        }
        let _ = client.read(&answer);
        client.write(&mut last);
        let _ = server.read(&last);
        // The legacy parts of a record's header are not authenticated.
        let both = [client.seal(), server.seal()];
        if let [Some(client), Some(server)] = both {
            prop_assert_eq!(client, server);
        }
    }
}
