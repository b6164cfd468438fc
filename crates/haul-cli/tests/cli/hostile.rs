use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use crate::support::{MIB, Place, haul, make_file, read_file, start, text};

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
    haul(["send", &text(&place.client("a")), &server.at("")]).failed(7, "not a regular file");
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
    let stray: &[u8] = b"hauldat\n\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00";
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
fn a_connection_that_says_nothing_is_closed_after_ten_seconds() {
    let place = Place::new();
    let server = place.serve();
    let begun = Instant::now();
    let mut silent = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let mut slow = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let trickle = std::thread::spawn(move || {
        for byte in b"haulctl\n\x00\x00\x00\xff".iter().cycle() {
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
