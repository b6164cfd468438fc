//! Clients that mean harm, and clients whose rights end.

use std::io::Write as _;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;

use super::*;
use crate::connection::{decrypt, encrypted};
use crate::pairing::{self, Outcome, PairingService};

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "no {what} in time");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn bytes_behind_a_close_notify_are_ignored() {
    let (near, far) = join(
        &ClientConfig::insecure().unwrap(),
        &ServerConfig::insecure().unwrap(),
    );
    let (mut near, mut far) = (near.unwrap(), far.unwrap());
    near.tls.send_close_notify();
    let mut bytes = encrypted(&mut near.tls).unwrap();
    bytes.extend([7; 8 << 10]);
    let (done, end) = channel();
    std::thread::spawn(move || {
        let mut inbox = Vec::new();
        let result = decrypt(&mut far.tls, &bytes, &mut inbox);
        done.send((result, inbox)).unwrap();
    });
    assert_eq!(end.recv_timeout(LIMIT).unwrap(), (Ok(()), Vec::new()));
}

#[test]
fn a_message_that_does_not_arrive_whole_in_time_is_a_lost_connection() {
    let (near, far) = join(
        &ClientConfig::insecure().unwrap(),
        &ServerConfig::insecure().unwrap(),
    );
    let mut near = near.unwrap();
    let timeout = Duration::from_secs(1);
    let decode = |bytes: &[u8]| Ok(Some(bytes.to_vec()));
    let (_sender, receiver) = far.unwrap().split(timeout, decode).unwrap();
    assert_eq!(receiver.receive().unwrap(), b"request");
    let (done, is_done) = channel();
    let client = std::thread::spawn(move || {
        // A length of 1 MiB, then never so little at once that the peer seems to be gone.
        let mut bytes: &[u8] = &[0, 16, 0, 0, 1];
        while is_done.recv_timeout(timeout / 20).is_err() {
            near.tls.writer().write_all(bytes).unwrap();
            let records = encrypted(&mut near.tls).unwrap();
            // The server may have closed the connection.
            let _ = near.stream.write(&records, Instant::now() + LIMIT);
            bytes = &[7];
        }
    });
    let begun = Instant::now();
    let fault = receiver.receive().unwrap_err();
    assert_eq!(fault.code, Code::PeerGone);
    assert!(fault.text.contains("did not arrive within 1 s"), "{fault}");
    assert!(begun.elapsed() < LIMIT);
    done.send(()).unwrap();
    client.join().unwrap();
}

#[test]
fn ends_that_send_at_once_more_than_the_path_holds_do_not_wait_for_each_other() {
    let (near, far) = join(
        &ClientConfig::insecure().unwrap(),
        &ServerConfig::insecure().unwrap(),
    );
    let mut far = far.unwrap();
    far.receive().unwrap();
    let (near, far) = (split(near.unwrap()), split(far));
    std::thread::scope(|scope| {
        for (sender, receiver) in [&near, &far] {
            scope.spawn(|| {
                for _ in 0..6 {
                    sender.send(vec![7; 7 << 20]).unwrap();
                }
            });
            scope.spawn(|| {
                for _ in 0..6 {
                    assert_eq!(receiver.receive().unwrap().len(), 7 << 20);
                }
            });
        }
    });
}

#[test]
fn a_session_ends_with_the_rights_that_it_began_with() {
    let may_write = Arc::new(AtomicBool::new(true));
    let now = Arc::clone(&may_write);
    let admission = Arc::new(move |_: &PeerIdentity| {
        Ok(Rights {
            write: now.load(Ordering::Relaxed),
            ..Rights::all("client")
        })
    });
    let config = ServerConfig::new(&[Identity::Key(key())], &[], admission).unwrap();
    let make = || Server::new(config.clone(), vec![Arc::new(Echo)], None, Arc::new(|_| {}));
    let begin = |server: Arc<Server>| {
        may_write.store(true, Ordering::Relaxed);
        let address = run(&server);
        let echo = ask(address, &ClientConfig::insecure().unwrap(), "echo").unwrap();
        wait_until("session", || server.sessions() == 1);
        assert_eq!(server.reconfigure(config.clone()), 0);
        may_write.store(false, Ordering::Relaxed);
        (server, echo)
    };
    let (server, _echo) = begin(Arc::new(make()));
    assert_eq!(server.reconfigure(config.clone()), 1);
    wait_until("end", || server.sessions() == 0);
    // Without a signal, as when a date is over.
    let mut server = make();
    server.review_every = Duration::from_millis(20);
    let (server, _echo) = begin(Arc::new(server));
    wait_until("end", || server.sessions() == 0);
}

#[test]
fn a_known_key_is_admitted_from_an_address_with_a_penalty() {
    const FAILURES: usize = 20;
    let known = key();
    let public = known.public();
    let admission = Arc::new(move |peer: &PeerIdentity| match peer {
        PeerIdentity::Key(key) if *key == public => Ok(Rights::all("known")),
        _ => Err(Refusal {
            text: "no".into(),
            hint: None,
        }),
    });
    let config = ServerConfig::new(&[Identity::Key(key())], &[], admission).unwrap();
    let (address, log) = serve(config);
    let ask_as = |identity: Option<&Identity>| {
        ask(
            address,
            &ClientConfig::new(identity, &Trust::Anyone).unwrap(),
            "echo",
        )
    };
    for _ in 0..FAILURES {
        let fault = ask_as(None).unwrap_err();
        assert_eq!(fault.code, Code::NotAuthenticated, "{fault}");
    }
    // Silent connections of that address take the places of the penalty, and not the last one.
    let _silent: Vec<_> = (0..200)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    ask_as(Some(&Identity::Key(known))).unwrap();
    let lines = lock(&log);
    let has = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(has("only counted for "), 1, "{lines:?}");
    assert!(lines.len() < FAILURES / 2, "{lines:?}");
}

#[test]
fn clients_that_say_nothing_of_use_are_one_line() {
    let (address, log) = serve(ServerConfig::insecure().unwrap());
    let count = || lock(&log).len();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&[22, 3, 1, 0, 200, 1, 0, 0]).unwrap();
        drop(stream);
    }
    wait_until("line", || count() > 0);
    // After the first message of this client, those before it have been refused.
    let config = ClientConfig::insecure().unwrap();
    for _ in 0..3 {
        ask(address, &config, "echo").unwrap();
    }
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(count(), 1, "{:?}", lock(&log));
}

/// A receiver with its server, and what it tells of attempts.
fn receiver(
    code: &pairing::PairingCode,
) -> (
    SocketAddr,
    Arc<PairingService>,
    std::sync::mpsc::Receiver<Outcome>,
) {
    let (tell, outcomes) = channel();
    let until = Instant::now() + 6 * LIMIT;
    let service = Arc::new(PairingService::new(code.clone(), until, move |outcome| {
        let _ = tell.send(*outcome);
    }));
    let admitting = Arc::clone(&service);
    let admission = Arc::new(move |peer: &PeerIdentity| admitting.admit(peer));
    let config = ServerConfig::new(&[Identity::Key(key())], &[], admission).unwrap();
    let services: Vec<Arc<dyn Service>> = vec![Arc::clone(&service) as _];
    let server = Server::new(config, services, None, Arc::new(|_| {}));
    (run(&Arc::new(server)), service, outcomes)
}

/// Connects to a receiver and says nothing yet.
fn approach(address: SocketAddr, key: &PrivateKey) -> End {
    let config = ClientConfig::new(Some(&Identity::Key(key.clone())), &Trust::Anyone).unwrap();
    let stream = Stream::tcp(TcpStream::connect(address).unwrap()).unwrap();
    let deadline = Instant::now() + LIMIT;
    let mut near = Connection::client(stream, &config, "receiver:1", deadline)?;
    near.greet(&greeting(pairing::SERVICE), &[])?;
    near.greeting()?;
    Ok(near)
}

#[test]
fn a_receiver_pairs_a_few_clients_at_once_and_reads_short_messages() {
    let code = pairing::PairingCode::random().unwrap();
    let (address, service, _) = receiver(&code);
    let mut silent: Vec<Connection> = (0..16)
        .map(|_| approach(address, &key()).unwrap())
        .collect();
    wait_until("16 clients", || service.clients() == 16);
    let fault = approach(address, &key()).unwrap().receive().unwrap_err();
    assert_eq!(fault.code, Code::ServerBusy, "{fault}");
    // One of them announces a long message.
    let mut long = silent.pop().unwrap();
    let _ = long.send(&vec![7; 1 << 20]);
    let fault = long.receive().unwrap_err();
    assert!(fault.text.contains("bytes as one frame"), "{fault}");
    wait_until("room", || service.clients() < 16);
    pairing::prove(&mut approach(address, &key()).unwrap(), &code).unwrap();
}

#[test]
fn after_a_client_was_paired_no_other_is_admitted() {
    let code = pairing::PairingCode::random().unwrap();
    let (address, service, outcomes) = receiver(&code);
    let own = key();
    let peer = PeerIdentity::Key(own.public());
    assert!(!service.admit(&peer).unwrap().write);
    pairing::prove(&mut approach(address, &own).unwrap(), &code).unwrap();
    assert_eq!(
        outcomes.recv_timeout(LIMIT).unwrap(),
        Outcome::Paired(own.public())
    );
    let rights = service.admit(&peer).unwrap();
    assert!(rights.write && rights.drop_only && !rights.read && !rights.bench);
    let fault = approach(address, &key()).unwrap_err();
    assert_eq!(fault.code, Code::NotAuthenticated);
    assert!(
        fault.text.contains("another sender has used the code"),
        "{fault}"
    );
}
