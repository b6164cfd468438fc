//! Two ends of one connection within this process.

use std::fs::Permissions;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::connection::Connection;
use crate::duplex::{Receiver, Sender};
use crate::fault::{Code, Fault};
use crate::frame::Greeting;
use crate::identity::{Certificate, Identity, PeerIdentity, PrivateKey, certificates};
use crate::server::{Client, Log, Server, Service};
use crate::stream::Stream;
use crate::trust::{ClientConfig, Refusal, Rights, ServerConfig, Trust, admit_all};
use crate::{SOFTWARE, lock};

mod attacks;

const LIMIT: Duration = Duration::from_secs(10);

fn greeting(service: &str) -> Greeting {
    Greeting {
        software: SOFTWARE.into(),
        service: service.into(),
        features: 0,
        dead_after_ms: 1000,
        task: [7; 16],
    }
}

pub(crate) type End = Result<Connection, Fault>;

/// Completes a handshake over two streams; returns both ends after the greetings.
fn meet(near: Stream, far: Stream, client: &ClientConfig, server: &ServerConfig) -> (End, End) {
    let deadline = Instant::now() + LIMIT;
    std::thread::scope(|scope| {
        let far = scope.spawn(|| {
            let (mut far, _) = Connection::server(far, &[], server, "client:1", deadline)?;
            far.greet(&greeting(""), &[])?;
            assert_eq!(far.greeting()?.service, "files");
            Ok(far)
        });
        let near = (|| {
            let mut near = Connection::client(near, client, "server:1", deadline)?;
            near.greet(&greeting("files"), &[b"request".to_vec()])?;
            near.greeting()?;
            Ok(near)
        })();
        (near, far.join().unwrap())
    })
}

fn pair() -> (Stream, Stream) {
    let (one, other) = haul_io::tcp::pair().unwrap();
    (Stream::tcp(one).unwrap(), Stream::tcp(other).unwrap())
}

pub(crate) fn join(client: &ClientConfig, server: &ServerConfig) -> (End, End) {
    let (near, far) = pair();
    meet(near, far, client, server)
}

fn server_of(key: &PrivateKey) -> ServerConfig {
    ServerConfig::new(&[Identity::Key(key.clone())], &[], admit_all()).unwrap()
}

fn split(connection: Connection) -> (Sender, Receiver<Vec<u8>>) {
    connection
        .split(LIMIT, |bytes| Ok(Some(bytes.to_vec())))
        .unwrap()
}

fn key() -> PrivateKey {
    PrivateKey::generate().unwrap()
}

#[test]
fn both_ends_know_the_others_key_and_have_the_same_secrets() {
    let (own, theirs) = (key(), key());
    let trust = Trust::Keys(vec![key().public(), theirs.public()]);
    let client = ClientConfig::new(Some(&Identity::Key(own.clone())), &trust).unwrap();
    let (near, far) = join(&client, &server_of(&theirs));
    let (near, mut far) = (near.unwrap(), far.unwrap());
    assert_eq!(near.peer(), &PeerIdentity::Key(theirs.public()));
    assert_eq!(far.peer(), &PeerIdentity::Key(own.public()));
    let secret = near.export("EXPORTER-haul-channel", b"1").unwrap();
    assert_eq!(far.export("EXPORTER-haul-channel", b"1").unwrap(), secret);
    assert_ne!(far.export("EXPORTER-haul-channel", b"2").unwrap(), secret);
    assert_ne!(far.export("EXPORTER-haul-other", b"1").unwrap(), secret);
    assert_eq!(far.receive().unwrap(), b"request");
    let (near, far) = (split(near), split(far));
    assert_eq!(far.0.export("EXPORTER-haul-channel", b"1").unwrap(), secret);
    far.0.send(b"answer".to_vec()).unwrap();
    assert_eq!(near.1.receive().unwrap(), b"answer");
    let long = vec![7; 3 << 20];
    near.0.send(long.clone()).unwrap();
    assert!(far.1.receive().unwrap() == long);
}

#[test]
fn a_server_with_another_key_is_refused_at_both_ends_and_named() {
    let theirs = key();
    let client = ClientConfig::new(None, &Trust::Keys(vec![key().public()])).unwrap();
    let (near, far) = join(&client, &server_of(&theirs));
    let (near, far) = (near.unwrap_err(), far.unwrap_err());
    assert_eq!(
        (near.code, far.code),
        (Code::NotAuthenticated, Code::NotAuthenticated)
    );
    assert!(near.text.contains(&theirs.public().to_string()), "{near}");
    assert!(
        near.text
            .contains("server:1 presents a key that is not trusted"),
        "{near}"
    );
    assert!(
        far.text.contains("client:1 does not trust this end's key"),
        "{far}"
    );
    assert_eq!(client.refused_key(), Some(theirs.public()));
}

#[test]
fn admission_decides_and_its_reason_is_told_inside_tls() {
    let known = key();
    let public = known.public();
    let admission = Arc::new(move |peer: &PeerIdentity| match peer {
        PeerIdentity::Key(key) if *key == public => Ok(Rights::all("known")),
        peer => Err(Refusal {
            text: format!("{peer} may not connect"),
            hint: Some("ask".into()),
        }),
    });
    let server = ServerConfig::new(&[Identity::Key(key())], &[], admission).unwrap();
    let client = |key: &PrivateKey| {
        ClientConfig::new(Some(&Identity::Key(key.clone())), &Trust::Anyone).unwrap()
    };
    let (near, far) = join(&client(&known), &server);
    near.and(far).unwrap();
    let unknown = key();
    let (near, far) = join(&client(&unknown), &server);
    let (near, far) = (near.unwrap_err(), far.unwrap_err());
    assert_eq!(
        (near.code, far.code),
        (Code::NotAuthenticated, Code::NotAuthenticated)
    );
    let expected = format!("the server: {} may not connect", unknown.public());
    assert_eq!((near.text, near.hint.as_deref()), (expected, Some("ask")));
    let (near, _) = join(&ClientConfig::insecure().unwrap(), &server);
    assert!(near.unwrap_err().text.contains("anonymous may not connect"));
}

/// Writes a certificate and its key for `name`, signed by `issuer`.
fn certify(dir: &Path, issuer: &CertifiedIssuer<'_, KeyPair>, name: &str) -> Identity {
    certify_until(dir, issuer, name, 4096)
}

fn certify_until(
    dir: &Path,
    issuer: &CertifiedIssuer<'_, KeyPair>,
    name: &str,
    year: i32,
) -> Identity {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::OrganizationName, "an organisation");
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, format!("the {name}"));
    let certificate = params.signed_by(&key, issuer).unwrap();
    let (chain, private) = (dir.join(name), dir.join(format!("{name}.key")));
    std::fs::write(&chain, certificate.pem()).unwrap();
    std::fs::write(&private, key.serialize_pem()).unwrap();
    std::fs::set_permissions(&private, Permissions::from_mode(0o600)).unwrap();
    Identity::Certificate(Certificate::read(&chain, &private).unwrap())
}

fn issuer(dir: &Path, name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(dir.join(name), issuer.pem()).unwrap();
    issuer
}

#[test]
fn certificates_and_keys_work_on_one_port_in_every_pairing() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let issuer = issuer(dir, "root");
    let roots = certificates(&dir.join("root")).unwrap();
    let theirs = key();
    let identities = [
        Identity::Key(theirs.clone()),
        certify(dir, &issuer, "server.test"),
    ];
    let server = ServerConfig::new(&identities, &roots, admit_all()).unwrap();
    let by_name = Trust::certificates(&dir.join("root"), "server.test").unwrap();
    let by_key = Trust::Keys(vec![theirs.public()]);
    let own = [certify(dir, &issuer, "client.test"), Identity::Key(key())];
    for trust in [&by_name, &by_key] {
        for identity in own.iter().map(Some).chain([None]) {
            let client = ClientConfig::new(identity, trust).unwrap();
            let (near, far) = join(&client, &server);
            let (near, far) = (near.unwrap(), far.unwrap());
            assert_eq!(
                matches!(near.peer(), PeerIdentity::Key(_)),
                matches!(trust, Trust::Keys(_))
            );
            match (identity, far.peer()) {
                (Some(Identity::Certificate(_)), PeerIdentity::Certificate { subject, sans }) => {
                    assert_eq!(subject, "the client.test");
                    assert_eq!(sans, &["client.test"]);
                }
                (Some(Identity::Key(key)), PeerIdentity::Key(found)) => {
                    assert_eq!(*found, key.public());
                }
                (None, PeerIdentity::Anonymous) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_certificate_that_does_not_fit_is_refused_with_a_line_at_both_ends() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (known, other) = (issuer(dir, "root"), issuer(dir, "other"));
    let server = |identity| ServerConfig::new(&[identity], &[], admit_all()).unwrap();
    for (identity, words) in [
        (certify(dir, &known, "elsewhere.test"), "another name"),
        (certify(dir, &other, "server.test"), "a trusted root"),
        (
            certify_until(dir, &known, "server.test", 2001),
            "has expired",
        ),
    ] {
        let trust = Trust::certificates(&dir.join("root"), "server.test").unwrap();
        let client = ClientConfig::new(None, &trust).unwrap();
        let (near, far) = join(&client, &server(identity));
        let (near, far) = (near.unwrap_err(), far.unwrap_err());
        assert_eq!(
            (near.code, far.code),
            (Code::NotAuthenticated, Code::NotAuthenticated)
        );
        assert!(near.text.contains(words), "{near}");
        assert!(
            far.text.contains("refuses") || far.text.contains("trust"),
            "{far}"
        );
    }
    // A server that has no certificate at all.
    let trust = Trust::certificates(&dir.join("root"), "server.test").unwrap();
    let (near, far) = join(
        &ClientConfig::new(None, &trust).unwrap(),
        &server_of(&key()),
    );
    assert_eq!(near.unwrap_err().code, Code::NotAuthenticated);
    assert_eq!(far.unwrap_err().code, Code::NotAuthenticated);
}

#[test]
fn pipes_carry_it_as_well() {
    let ((near_in, far_out), (far_in, near_out)) =
        (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let near = Stream::pipes(near_in.into(), near_out.into());
    let far = Stream::pipes(far_in.into(), far_out.into());
    let client = ClientConfig::insecure().unwrap();
    let (near, far) = meet(near, far, &client, &ServerConfig::insecure().unwrap());
    let (near, mut far) = (near.unwrap(), far.unwrap());
    assert_eq!(far.receive().unwrap(), b"request");
    let (near, far) = (split(near), split(far));
    let long = vec![9; 1 << 20];
    near.0.send(long.clone()).unwrap();
    assert!(far.1.receive().unwrap() == long);
    near.0.closer().cancel();
    let fault = far.1.receive().unwrap_err();
    assert_eq!(fault.code, Code::PeerGone, "{fault}");
}

#[test]
fn the_peers_fault_ends_the_session_and_names_the_peer() {
    let (near, far) = join(
        &ClientConfig::insecure().unwrap(),
        &ServerConfig::insecure().unwrap(),
    );
    let (near, far) = (split(near.unwrap()), split(far.unwrap()));
    assert_eq!(far.1.receive().unwrap(), b"request");
    far.0
        .report(&Fault::new(Code::DiskFull, "no room").hint("make some"));
    far.0
        .report(&Fault::new(Code::Other, "only the first is sent"));
    let fault = near.1.receive().unwrap_err();
    assert_eq!(
        fault,
        Fault::new(Code::DiskFull, "the server: no room").hint("make some")
    );
    drop(near);
    let fault = far.1.receive().unwrap_err();
    assert_eq!(fault.code, Code::PeerGone);
}

/// 100 MiB pass a receiver that always has some left. Not so many wait for one that takes none.
#[test]
fn what_waits_for_the_session_is_bounded_and_not_what_passes() {
    let (near, far) = join(
        &ClientConfig::insecure().unwrap(),
        &ServerConfig::insecure().unwrap(),
    );
    let near: (Sender, Receiver<Vec<u8>>) = near
        .unwrap()
        .split(Duration::from_secs(6), |_| Ok(None))
        .unwrap();
    let far = split(far.unwrap());
    assert_eq!(far.1.receive().unwrap(), b"request");
    let send = || near.0.send(vec![7; 1 << 20]);
    for index in 0..100 {
        send().unwrap();
        if index >= 8 {
            assert_eq!(far.1.receive().unwrap().len(), 1 << 20, "message {index}");
        }
    }
    // The reader ends, so the socket fills, and nobody makes room.
    while send().is_ok() {}
    let taken = std::iter::from_fn(|| Some(far.1.receive()));
    let fault = taken.take(100).find_map(Result::err).unwrap();
    assert_eq!(fault.code, Code::Protocol);
}

/// Answers each message with the same.
struct Echo;

impl Service for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn serve(&self, client: Client) {
        let (sender, receiver) = split(client.connection);
        while let Ok(message) = receiver.receive() {
            sender.send(message).unwrap();
        }
    }
}

/// Starts a server of `Echo`; returns its address and its log.
fn serve(config: ServerConfig) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = Arc::clone(&lines);
    let log: Log = Arc::new(move |line: &str| lock(&log).push(line.to_owned()));
    let server = Server::new(config, vec![Arc::new(Echo)], None, log);
    (run(&Arc::new(server)), lines)
}

/// Has a server accept; returns its address.
fn run(server: &Arc<Server>) -> SocketAddr {
    let listener = haul_io::tcp::listen(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap();
    let server = Arc::clone(server);
    std::thread::spawn(move || server.accept(&listener));
    address
}

fn ask(address: SocketAddr, config: &ClientConfig, service: &str) -> End {
    let stream = Stream::tcp(TcpStream::connect(address).unwrap()).unwrap();
    let deadline = Instant::now() + LIMIT;
    let mut near = Connection::client(stream, config, "server:1", deadline)?;
    near.greet(&greeting(service), &[b"request".to_vec()])?;
    near.greeting()?;
    Ok(near)
}

/// The first line of a server's log, once it is there: the server writes it after its answer.
fn first_line(log: &Mutex<Vec<String>>) -> String {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(line) = lock(log).first() {
            return line.clone();
        }
        assert!(Instant::now() < deadline, "nothing was logged");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_port_serves_what_the_greeting_names() {
    let (address, log) = serve(ServerConfig::insecure().unwrap());
    let config = ClientConfig::insecure().unwrap();
    let mut echo = ask(address, &config, "echo").unwrap();
    assert_eq!(echo.receive().unwrap(), b"request");
    // The server greets before it knows what is asked for.
    let mut other = ask(address, &config, "files").unwrap();
    let fault = other.receive().unwrap_err();
    assert_eq!(fault.code, Code::Refused);
    assert_eq!(fault.text, "the server: it does not serve 'files'");
    assert!(first_line(&log).contains("refused: it does not serve 'files'"));
}

#[test]
fn a_client_of_another_version_is_told_both_inside_tls_and_another_protocol_is_not_haul() {
    let (address, log) = serve(ServerConfig::insecure().unwrap());
    let speaking = |name: &str| {
        let mut config = ClientConfig::insecure().unwrap();
        let client = Arc::get_mut(&mut config.tls).unwrap();
        let mut tls = (*client.config).clone();
        tls.alpn_protocols = vec![name.into()];
        client.config = Arc::new(tls);
        ask(address, &config, "echo").unwrap_err()
    };
    let fault = speaking("haul/2");
    let text = format!("the server: {SOFTWARE} here speaks haul/1; the client speaks haul/2");
    assert_eq!((fault.code, fault.text), (Code::Version, text));
    assert!(first_line(&log).contains("the client speaks haul/2"));
    assert_eq!(speaking("http/1.1").code, Code::NotHaul);
}

#[test]
fn openssl_verifies_a_servers_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let issuer = issuer(dir, "root");
    let identity = certify(dir, &issuer, "server.test");
    let config = ServerConfig::new(&[identity], &[], admit_all()).unwrap();
    let (address, _) = serve(config);
    let run = |name: &str| {
        let mut openssl = Command::new("openssl");
        openssl.args([
            "s_client",
            "-connect",
            &address.to_string(),
            "-alpn",
            "haul/1",
        ]);
        openssl.args(["-verify_hostname", name, "-verify_return_error", "-brief"]);
        openssl.arg("-CAfile").arg(dir.join("root"));
        openssl.stdin(Stdio::null()).output()
    };
    let Ok(output) = run("server.test") else {
        println!("SKIPPED: no openssl");
        return;
    };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("TLSv1.3") && text.contains("Verification: OK"),
        "{text}"
    );
    assert!(!run("elsewhere.test").unwrap().status.success());
}

/// Copies what arrives at one stream to another and flips a bit of the byte with this number.
fn relay(from: TcpStream, to: TcpStream, flip: Option<u64>, count: &AtomicU64) {
    use std::io::{Read, Write};
    let mut piece = [0; 4096];
    while let Ok(got @ 1..) = (&from).read(&mut piece) {
        let at = count.fetch_add(got as u64, Ordering::Relaxed);
        if let Some(flip) = flip.and_then(|flip| flip.checked_sub(at))
            && let Some(byte) = piece[..got].get_mut(usize::try_from(flip).unwrap())
        {
            *byte ^= 4;
        }
        if (&to).write_all(&piece[..got]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

#[test]
fn a_flipped_bit_anywhere_in_either_direction_is_a_lost_connection() {
    let client = ClientConfig::new(Some(&Identity::Key(key())), &Trust::Anyone).unwrap();
    let server = ServerConfig::insecure().unwrap();
    let run = |flips: [Option<u64>; 2]| {
        let (near, outer) = haul_io::tcp::pair().unwrap();
        let (inner, far) = haul_io::tcp::pair().unwrap();
        let counts = [AtomicU64::new(0), AtomicU64::new(0)];
        let clone = |stream: &TcpStream| stream.try_clone().unwrap();
        let ends = std::thread::scope(|scope| {
            scope.spawn(|| relay(clone(&outer), clone(&inner), flips[0], &counts[0]));
            scope.spawn(|| relay(clone(&inner), clone(&outer), flips[1], &counts[1]));
            let (near, far) = (Stream::tcp(near).unwrap(), Stream::tcp(far).unwrap());
            let (near, far) = meet(near, far, &client, &server);
            [near.map(drop), far.map(drop)]
        });
        (ends, counts.map(AtomicU64::into_inner))
    };
    let (ends, totals) = run([None, None]);
    assert_eq!(ends, [Ok(()), Ok(())]);
    let (mut runs, mut harmless) = (0, 0);
    for direction in 0..2 {
        for at in (0..totals[direction]).step_by(41) {
            let mut flips = [None, None];
            flips[direction] = Some(at);
            let (ends, _) = run(flips);
            runs += 1;
            // A reader ignores the version in a record's header (RFC 8446 §5.1).
            harmless += u32::from(ends.iter().all(Result::is_ok));
            for fault in ends.into_iter().filter_map(Result::err) {
                // An end that seems to name another kind of key, or another protocol, is told so; a
                // client tries once more then.
                let lost = matches!(
                    fault.code,
                    Code::PeerGone | Code::NotHaul | Code::NotAuthenticated
                );
                assert!(lost, "byte {at} of {direction}: {fault}");
            }
        }
    }
    assert!(harmless * 10 < runs, "{harmless} of {runs}");
}
