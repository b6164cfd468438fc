use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use haul_control::connection::Connection;
use haul_control::frame::Greeting;
use haul_control::stream::Stream;
use haul_control::trust::ClientConfig;

use crate::support::{MIB, Place, Server, haul, make_file, read_file, start, text, wait_until};

#[test]
fn nothing_outside_the_served_directory_is_reached() {
    let place = Place::new();
    let server = place.serve();
    let secret = make_file(&place.outside("secret"), 100, 1);
    make_file(&place.client("a"), 10, 2);
    symlink(place.outside(""), place.server("up")).unwrap();
    symlink(place.outside("secret"), place.server("link")).unwrap();
    let into = text(&place.client(""));
    for path in ["../secret", "x/../../secret", "up/secret", "link"] {
        haul(["get", &server.at(path), &into]).failed(7, "outside the directory");
    }
    assert!(!place.client("secret").exists());
    for path in ["..", "../", "up/", "up/new/", "x/../.."] {
        haul(["send", &text(&place.client("a")), &server.at(path)])
            .failed(7, "outside the directory");
    }
    assert!(!place.outside("a").exists());
    assert!(read_file(&place.outside("secret")) == secret);
}

#[test]
fn a_link_planted_at_the_target_is_not_written_through() {
    let place = Place::new();
    let server = place.serve();
    let victim = make_file(&place.outside("victim"), 100, 1);
    make_file(&place.client("a"), 3 * MIB, 2);
    symlink(place.outside("victim"), place.server("a")).unwrap();
    haul(["send", &text(&place.client("a")), &server.at("")])
        .failed(7, "a symbolic link at the target");
    std::fs::remove_file(place.server("a")).unwrap();
    for planted in [".a.haul-part", ".a.haul-journal"] {
        symlink(place.outside("victim"), place.server(planted)).unwrap();
        let ended = haul(["send", &text(&place.client("a")), &server.at("")]);
        assert_eq!(ended.code, Some(7), "{}", ended.stderr);
        std::fs::remove_file(place.server(planted)).unwrap();
    }
    std::fs::hard_link(place.outside("victim"), place.server(".a.haul-part")).unwrap();
    haul(["send", &text(&place.client("a")), &server.at("")]).failed(7, ".haul-part");
    assert!(read_file(&place.outside("victim")) == victim);
}

#[test]
fn a_hard_link_in_the_place_of_a_journal_is_not_written_through() {
    let place = Place::new();
    let server = place.serve();
    let victim = make_file(&place.outside("victim"), 100, 1);
    let journal = place.server(".f.haul-journal");
    std::fs::hard_link(place.outside("victim"), journal).unwrap();
    let file = make_file(&place.client("f"), 2 * MIB, 2);
    haul(["send", &text(&place.client("f")), &server.at("")]).ok();
    assert!(read_file(&place.server("f")) == file);
    assert!(read_file(&place.outside("victim")) == victim);
}

#[test]
fn names_that_steer_terminals_are_escaped() {
    let place = Place::new();
    let server = place.serve();
    let name = "a\x1b]0;owned\x07\nb";
    make_file(&place.client(name), 10, 1);
    let ended = haul(["send", &text(&place.client(name)), &server.at(""), "--json"]).ok();
    assert!(place.server(name).exists());
    server.wait_for_log("complete: a\\u{1b}]0;owned\\u{7}\\nb");
    let all = ended.stderr + &ended.stdout;
    assert!(all.chars().all(|c| c == '\n' || !c.is_control()), "{all:?}");
    haul(["get", &server.at("no\x1b[2Jsuch"), &text(&place.client(""))])
        .failed(4, "'no\\u{1b}[2Jsuch'");
}

#[test]
fn names_of_our_own_files_are_refused() {
    let place = Place::new();
    let server = place.serve();
    make_file(&place.client(".a.haul-journal"), 10, 1);
    haul([
        "send",
        &text(&place.client(".a.haul-journal")),
        &server.at(""),
    ])
    .failed(7, "haul itself uses");
}

#[test]
fn junk_connections_harm_nobody() {
    let place = Place::new();
    let server = place.serve();
    let content = make_file(&place.client("a"), 12 * MIB, 1);
    let transfer = start([
        "send",
        &text(&place.client("a")),
        &server.at(""),
        "--rate",
        "80Mbit",
    ]);
    let tls: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    let endless: &[u8] = b"haulctl\n\xff\xff\xff\xff";
    let stray: &[u8] = b"hauldat\n\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x46\x9c\x62\x15";
    let broken: &[u8] = b"haulctl\n\x00\x00\x00\x04\xff\xff\xff\xff";
    let http: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut open = Vec::new();
    for junk in [b"", http, tls, endless, stray, broken]
        .into_iter()
        .cycle()
        .take(900)
    {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        let _ = stream.write_all(junk);
        // Every second one stays open: more than the server lets wait.
        if open.len() < 450 {
            open.push(stream);
        }
    }
    transfer.end().ok();
    assert!(read_file(&place.server("a")) == content);
    make_file(&place.client("b"), 10, 1);
    haul(["send", &text(&place.client("b")), &server.at("")]).ok();
}

#[test]
fn junk_datagrams_harm_nobody() {
    let place = Place::new();
    let server = place.serve();
    let content = make_file(&place.client("a"), 12 * MIB, 1);
    let (memory, files) = (server.resident_kib(), server.open_files());
    let transfer = start([
        "send",
        &text(&place.client("a")),
        &server.at(""),
        "--rate",
        "80Mbit",
    ]);
    let port = server.port;
    let answered: usize = (0..4_u8)
        .map(|thread| std::thread::spawn(move || pelt(port, thread)))
        .map(|thread| thread.join().unwrap())
        .sum();
    assert!(answered > 0, "a first request is answered, to whoever asks");
    transfer.end().ok();
    assert!(read_file(&place.server("a")) == content);
    make_file(&place.client("b"), 10, 1);
    haul(["send", &text(&place.client("b")), &server.at("")]).ok();
    assert!(server.resident_kib() < memory + 32 * 1024);
    wait_until("descriptors to be given back", || {
        server.open_files() <= files
    });
}

/// Sends 20 000 datagrams that no client sends to the server's UDP port, half of them from one
/// socket after another; how many it answered. An answer is never longer than what it answers.
fn pelt(port: u16, seed: u8) -> usize {
    let mut random = u32::from(seed) + 1;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        random
    };
    let socket = || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(("127.0.0.1", port)).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let (mut from, mut answered) = (socket(), 0);
    for number in 0..20_000_u32 {
        if number % 100 == 0 && number % 200 < 100 {
            from = socket();
        }
        let mut datagram: Vec<u8> = (0..next() % 200).map(|_| next().to_le_bytes()[0]).collect();
        match next() % 5 {
            // A handshake for the listener with what follows at random: its cookie is forged.
            0 | 1 if datagram.len() >= 64 => {
                datagram[..16].fill(0);
                datagram[0] = 0x80;
                datagram[24] &= 0x7f;
                datagram[16..20].copy_from_slice(&4_u32.to_be_bytes());
                datagram[20..24].copy_from_slice(&1_u32.to_be_bytes());
                let request: i32 = if next() % 2 == 0 { 1 } else { -1 };
                datagram[36..40].copy_from_slice(&request.to_be_bytes());
            }
            // Data, and acknowledgements of it, for a connection that is none.
            2 if datagram.len() >= 16 => datagram[0] &= 0x7f,
            3 if datagram.len() >= 16 => datagram[..4].copy_from_slice(&[0x80, 2, 0, 0]),
            _ => {}
        }
        // The kernel may be out of room for it, or say that an earlier one was refused.
        let _ = from.send(&datagram);
        let mut answer = [0; 2048];
        while let Ok(len) = from.recv(&mut answer) {
            assert!(len <= 64, "{len} bytes");
            answered += 1;
        }
    }
    answered
}

#[test]
fn a_connection_that_says_nothing_is_closed_after_ten_seconds() {
    let place = Place::new();
    let server = place.serve();
    let begun = Instant::now();
    let mut silent = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let mut slow = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let trickle = std::thread::spawn(move || {
        for byte in b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
            .iter()
            .cycle()
        {
            if slow.write_all(&[*byte]).is_err() || begun.elapsed() > Duration::from_secs(30) {
                return begun.elapsed();
            }
            std::thread::sleep(Duration::from_millis(700));
        }
        begun.elapsed()
    });
    assert_eq!(silent.read(&mut [0; 10]).unwrap_or(0), 0);
    let closed = begun.elapsed();
    assert!(
        closed > Duration::from_secs(8) && closed < Duration::from_secs(13),
        "{closed:?}"
    );
    let slow = trickle.join().unwrap();
    assert!(slow < Duration::from_secs(14), "{slow:?}");
}

/// What a client of `haul send` says first, up to where it waits for an answer.
fn first_flight(place: &Place) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    make_file(&place.client("first"), 10, 1);
    let to = format!("haul://127.0.0.1:{port}/");
    let client = start(["send", &text(&place.client("first")), &to]);
    let (mut stream, _) = listener.accept().unwrap();
    let (mut flight, mut piece) = (Vec::new(), [0; 4096]);
    // The client may be slow to begin.
    let mut limit = Duration::from_secs(10);
    loop {
        stream.set_read_timeout(Some(limit)).unwrap();
        match stream.read(&mut piece) {
            Ok(count @ 1..) => flight.extend(&piece[..count]),
            _ => break,
        }
        limit = Duration::from_millis(300);
    }
    client.kill();
    flight
}

#[test]
fn one_first_flight_replayed_many_times_takes_bounded_threads_and_keeps_nobody_out() {
    let place = Place::new();
    let flight = first_flight(&place);
    assert!(flight.starts_with(&[22, 3]), "{flight:?}");
    let server = Server::start_limited(&place.server(""), 1_024);
    let before = server.threads();
    let mut most = 0;
    let mut open = Vec::new();
    for number in 0..900 {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        // The server may have closed it by now.
        let _ = stream.write_all(&flight);
        open.push(stream);
        if number % 50 == 0 {
            most = most.max(server.threads());
        }
    }
    std::thread::sleep(Duration::from_millis(300));
    most = most.max(server.threads());
    assert!(most < before + 600, "{most} threads");
    let content = make_file(&place.client("a"), MIB, 1);
    haul(["send", &text(&place.client("a")), &server.at("")]).ok();
    assert!(read_file(&place.server("a")) == content);
    drop(open);
    // One of them runs, and its channel waits to be opened.
    let are_gone = within_a_second(|| server.threads() <= before + 8);
    assert!(are_gone, "{} threads are left of {most}", server.threads());
}

/// Whether something happens within a second. Where other processes take the machine, this one's
/// turns come later, and so do those of the server.
fn within_a_second(has_happened: impl Fn() -> bool) -> bool {
    (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        has_happened()
    })
}

#[test]
fn many_clients_of_one_transfer_take_bounded_threads_and_keep_nobody_out() {
    const CLIENTS: usize = 300;
    const SESSIONS: u64 = 8;
    let place = Place::new();
    let flags = ["--max-sessions", &SESSIONS.to_string()];
    let server = Server::start(&place.server(""), "127.0.0.1:0", &flags);
    // All threads that serve nobody have started.
    make_file(&place.client("first"), 10, 1);
    haul(["send", &text(&place.client("first")), &server.at("")]).ok();
    let before = (server.threads(), server.open_files() as u64);
    let config = ClientConfig::insecure().unwrap();
    let greeting = Greeting {
        software: "test".into(),
        service: "files/7".into(),
        features: 0,
        dead_after_ms: 20_000,
        task: [7; 16],
    };
    let mut most = before;
    let clients: Vec<Connection> = (0..CLIENTS)
        .map(|_| {
            let stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            let deadline = Instant::now() + Duration::from_secs(10);
            let stream = Stream::tcp(stream).unwrap();
            let mut client = Connection::client(stream, &config, "server", deadline).unwrap();
            client.greet(&greeting, &[]).unwrap();
            most.0 = most.0.max(server.threads());
            most.1 = most.1.max(server.open_files() as u64);
            client
        })
        .collect();
    let content = make_file(&place.client("a"), MIB, 1);
    haul(["send", &text(&place.client("a")), &server.at("")]).ok();
    assert!(read_file(&place.server("a")) == content);
    drop(clients);
    let left = || (server.threads(), server.open_files() as u64);
    let are_gone = within_a_second(|| left().0 <= before.0 && left().1 <= before.1);
    let left = left();
    println!("threads and descriptors: {before:?}, at most {most:?}, {left:?} left");
    // A few for each session, and for as many clients as are being refused at leisure.
    assert!(most.0 < before.0 + 4 * SESSIONS, "{most:?}");
    assert!(most.1 < before.1 + 4 * SESSIONS, "{most:?}");
    assert!(are_gone, "{left:?}");
}
