use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{
    Disk, MIB, Place, Server, haul, make_file, read_file, start, text, wait_until,
};

#[test]
fn a_missing_source_exits_4() {
    let place = Place::new();
    let server = place.serve();
    let begun = Instant::now();
    haul(["send", &text(&place.client("nothing")), &server.at("")]).failed(4, "there is no file");
    haul(["get", &server.at("nothing"), &text(&place.client(""))])
        .failed(4, "'nothing' is not a file of the server");
    // globus-cli#1056 waited a day.
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn a_missing_directory_exits_3() {
    let place = Place::new();
    let server = place.serve();
    make_file(&place.client("a"), 10, 1);
    haul(["send", &text(&place.client("a")), &server.at("nowhere")])
        .failed(3, "'nowhere' is not a directory of the server");
    make_file(&place.server("file"), 10, 1);
    haul(["send", &text(&place.client("a")), &server.at("file/")])
        .failed(3, "'file/' is not a directory of the server");
    make_file(&place.server("b"), 10, 1);
    haul(["get", &server.at("b"), &text(&place.client("nowhere"))]).failed(3, "is not a directory");
    haul(["serve", &text(&place.outside("nowhere"))]).failed(3, "is not a directory");
}

#[test]
fn wrong_usage_exits_2() {
    assert_eq!(haul(["send", "a"]).code, Some(2));
    assert_eq!(haul(["frobnicate"]).code, Some(2));
    assert_eq!(
        haul(["send", "a", "haul://host/", "--rate", "10Gb"]).code,
        Some(2)
    );
    haul(["send", "a", "b"]).failed(2, "'b' names no host");
    haul(["get", "h:a", "i:b", "."]).failed(2, "different hosts");
    haul(["send", "a", "x/a", "haul://h/"]).code.unwrap();
    assert_eq!(haul(["run", "--gatway", "--", "true"]).code, Some(2));
    assert_eq!(
        haul(["lab", "exec", "a", "--nam", "x", "true"]).code,
        Some(2)
    );
}

#[test]
fn what_is_behind_a_program_is_the_programs() {
    // It gets as far as the library, which is not there.
    let output = haul(["run", "--preload", "/nowhere", "ls", "--gatway", "-l"]);
    assert_eq!(output.code, Some(125));
}

#[test]
fn options_that_a_channel_does_not_have_exit_2() {
    let place = Place::new();
    let server = place.serve();
    make_file(&place.client("a"), 10, 1);
    let (file, at) = (text(&place.client("a")), server.at(""));
    haul(["send", &file, &at, "--channel=udt", "--streams=2"]).failed(2, "one stream");
    haul([
        "send",
        &file,
        &at,
        "--channel=udt",
        "--rate=1Gbit",
        "--cc=cubic",
    ])
    .failed(2, "keeps a declared rate");
}

#[test]
fn a_wrong_address_exits_5() {
    let place = Place::new();
    make_file(&place.client("a"), 10, 1);
    let free = free_port();
    haul([
        "send",
        &text(&place.client("a")),
        &format!("haul://127.0.0.1:{free}/"),
    ])
    .failed(5, "nothing listens at");
    haul([
        "send",
        &text(&place.client("a")),
        "haul://no-such-host.invalid/",
    ])
    .failed(5, "cannot find a host called 'no-such-host.invalid'");
}

#[test]
fn a_server_serves_while_nobody_reads_its_log() {
    let place = Place::new();
    let (mut log, mut full) = std::io::pipe().unwrap();
    // As much as a pipe holds.
    let mut filling = vec![b'x'; 64 << 10];
    full.write_all(&filling).unwrap();
    let server = Server::with_log(&place.server(""), free_port(), full);
    wait_until("the server", || {
        TcpStream::connect(("127.0.0.1", server.port)).is_ok()
    });
    make_file(&place.client("a"), 10, 1);
    make_file(&place.client("b"), 10, 2);
    haul(["send", &text(&place.client("a")), &server.at("")]).ok();
    log.read_exact(&mut filling).unwrap();
    assert!(filling.iter().all(|byte| *byte == b'x'));
    haul(["send", &text(&place.client("b")), &server.at("")]).ok();
    // The line of the second transfer, or the one that the first has written meanwhile.
    let line = BufReader::new(log).lines().next().unwrap().unwrap();
    let count = line.strip_prefix("haul: log lines dropped, because stderr was not read: ");
    let count: u32 = count.unwrap_or_else(|| panic!("{line}")).parse().unwrap();
    assert!(count >= 1, "{line}");
}

#[test]
fn a_listener_that_is_not_haul_exits_7() {
    let place = Place::new();
    make_file(&place.client("a"), 10, 1);
    let port = answer_with(b"SSH-2.0-OpenSSH_9.2\r\n");
    haul([
        "send",
        &text(&place.client("a")),
        &format!("haul://127.0.0.1:{port}/"),
    ])
    .failed(7, "is not haul; it answers 'SSH-2.0-'");
}

#[test]
fn a_listener_that_says_nothing_exits_5() {
    let place = Place::new();
    make_file(&place.client("a"), 10, 1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!(
        "haul://127.0.0.1:{}/",
        listener.local_addr().unwrap().port()
    );
    haul([
        "send",
        &text(&place.client("a")),
        &at,
        "--connect-timeout",
        "500ms",
    ])
    .failed(5, "sends nothing");
}

#[test]
fn a_server_without_tls_exits_5_and_the_line_names_both_versions() {
    let place = Place::new();
    make_file(&place.client("a"), 10, 1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!(
        "haul://127.0.0.1:{}/",
        listener.local_addr().unwrap().port()
    );
    // As haul with session protocol 4 does with a preamble that it does not know.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 8]);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {}
        }
    });
    let ended = haul(["send", &text(&place.client("a")), &at]);
    let ended = ended.failed(5, "accepts the connection and closes it");
    assert!(
        ended.stderr.contains("session protocol 4 or earlier") && ended.stderr.contains("haul/1"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_client_without_tls_is_told_so_in_its_own_format() {
    let place = Place::new();
    let server = place.serve();
    let ask = |first: &[u8]| {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.write_all(first).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    };
    // The hello of session protocol 5 to 5, from which an older client makes its line.
    let answer = ask(b"haulctl\n\0\0\0\x25anything that a client of version 4 says");
    let frame = answer.strip_prefix(b"haulctl\n").unwrap();
    assert_eq!(
        frame[..4],
        (u32::try_from(frame.len()).unwrap() - 4).to_be_bytes()
    );
    assert_eq!(frame[4..10], [0x82, 0, 0x81, 0x85, 5, 5]);
    assert!(frame.windows(5).any(|part| part == b"haul "));
    server.wait_for_log("the client is an older haul without TLS");
    let answer = ask(b"{\"is\":\"ask\",\"protocol\":\"haul-bench\",\"version\":3}\n");
    let line = String::from_utf8(answer).unwrap();
    for part in [
        "{\"is\":\"failed\",\"code\":11,",
        "haul/1",
        "haul-bench 3",
        "update haul",
    ] {
        assert!(line.contains(part), "{line}");
    }
    assert!(line.ends_with("\"}\n"));
}

#[test]
fn a_full_disk_exits_13_before_the_first_byte() {
    let place = Place::new();
    let Some(disk) = Disk::mount(&place.server(""), "size=4m") else {
        return;
    };
    let server = place.serve();
    let source = place.client("big");
    make_file(&source, 6 * MIB, 1);
    let ended = haul(["send", &text(&source), &server.at(""), "--json"]);
    assert!(ended.stderr.contains("make room"), "{}", ended.stderr);
    let json = ended.failed(13, "the target has no room").json();
    assert_eq!(json["error"]["code"], "disk_full");
    assert_eq!(
        std::fs::read_dir(place.server("")).unwrap().count(),
        0,
        "nothing is left there"
    );
    make_file(&source, MIB, 2);
    haul(["send", &text(&source), &server.at("")]).ok();
    drop(server);
    drop(disk);
}

#[test]
fn an_unwritable_target_exits_7() {
    let place = Place::new();
    // Root may write anywhere but to what is mounted read-only.
    let disk = Disk::mount(&place.server(""), "ro");
    if disk.is_none() {
        std::fs::set_permissions(place.server(""), PermissionsExt::from_mode(0o555)).unwrap();
    }
    let server = place.serve();
    make_file(&place.client("a"), 10, 1);
    let ended = haul(["send", &text(&place.client("a")), &server.at("")]);
    assert!(
        ended.stderr.contains("cannot write 'a'"),
        "{}",
        ended.stderr
    );
    ended.failed(7, "permissions");
    drop(server);
    drop(disk);
}

#[test]
fn a_source_that_becomes_shorter_on_the_way_is_not_delivered() {
    changed_on_the_way("became shorter", |path| {
        std::fs::File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_len(MIB as u64)
            .unwrap();
    });
}

#[test]
fn a_source_that_is_written_to_on_the_way_is_not_delivered() {
    use std::os::unix::fs::FileExt;
    changed_on_the_way("was written to", |path| {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.write_all_at(b"new", 100).unwrap();
    });
}

#[test]
fn a_source_that_grows_on_the_way_is_not_delivered() {
    changed_on_the_way("grew", |path| {
        let mut file = std::fs::File::options().append(true).open(path).unwrap();
        file.write_all(b"more").unwrap();
    });
}

fn changed_on_the_way(how: &str, change: impl FnOnce(&Path)) {
    let place = Place::new();
    let server = place.serve();
    let source = place.client("a");
    make_file(&source, 12 * MIB, 1);
    let client = start([
        "send",
        &text(&source),
        &server.at(""),
        "--rate",
        "32Mbit",
        "--json-stream",
    ]);
    // After a second of three.
    client.wait_for_bytes(1);
    change(&source);
    client.end().failed(5, how);
    assert!(!place.server("a").exists(), "nothing under the final name");
}

#[test]
fn of_two_writers_of_one_target_the_second_is_told() {
    let place = Place::new();
    let server = place.serve();
    let (one, two) = (place.client("a"), place.outside("a"));
    let content = make_file(&one, 16 * MIB, 1);
    make_file(&two, 16 * MIB, 2);
    let mut first = start([
        "send",
        &text(&one),
        &server.at(""),
        "--rate",
        "16Mbit",
        "--json-stream",
    ]);
    first.wait_for_bytes(1);
    haul(["send", &text(&two), &server.at("")]).failed(5, "another transfer is writing 'a'");
    assert!(first.is_running());
    first.kill();
    haul(["send", &text(&one), &server.at("")]).ok();
    assert!(read_file(&place.server("a")) == content);
}

#[test]
fn a_full_server_says_that_it_is_busy() {
    let place = Place::new();
    let server = Server::start(&place.server(""), "127.0.0.1:0", &["--max-sessions", "1"]);
    make_file(&place.client("a"), 8 * MIB, 1);
    make_file(&place.client("b"), 10, 1);
    let first = start([
        "send",
        &text(&place.client("a")),
        &server.at(""),
        "--rate",
        "16Mbit",
        "--json-stream",
    ]);
    first.wait_for_bytes(1);
    let (file, at) = (text(&place.client("b")), server.at(""));
    let second = haul(["send", &file, &at, "--give-up-after", "100ms"]);
    second.failed(5, "1 transfers are running, which is all it may");
    first.kill();
}

#[test]
fn clients_wait_for_a_full_server_within_their_time() {
    const CLIENTS: usize = 12;
    let place = Place::new();
    let server = Server::start(&place.server(""), "127.0.0.1:0", &["--max-sessions", "2"]);
    let contents = (0..CLIENTS).map(|client| {
        let path = place.client(&client.to_string());
        make_file(&path, MIB, client as u64 + 1)
    });
    let contents: Vec<_> = contents.collect();
    let clients = (0..CLIENTS).map(|client| {
        let (file, to) = (text(&place.client(&client.to_string())), server.at(""));
        // Long enough for all of them to want a place at once.
        start(["send", &file, &to, "--rate=16Mbit", "--give-up-after=60s"])
    });
    let clients: Vec<_> = clients.collect();
    let ended: Vec<_> = clients
        .into_iter()
        .map(|client| client.end().ok())
        .collect();
    let waited = ended
        .iter()
        .filter(|ended| ended.stderr.contains("transfers are running"));
    assert!(waited.count() >= CLIENTS / 2, "{ended:?}");
    for (client, content) in contents.iter().enumerate() {
        assert!(read_file(&place.server(&client.to_string())) == *content);
    }
}

#[test]
fn a_read_only_server_takes_nothing() {
    let place = Place::new();
    let server = Server::start(&place.server(""), "127.0.0.1:0", &["--read-only"]);
    make_file(&place.client("a"), 10, 1);
    haul(["send", &text(&place.client("a")), &server.at("")]).failed(7, "it is read-only");
    make_file(&place.server("b"), 10, 1);
    haul(["get", &server.at("b"), &text(&place.client(""))]).ok();
}

#[test]
fn a_pipe_as_source_is_refused_at_once() {
    let place = Place::new();
    let server = place.serve();
    let made = Command::new("mkfifo")
        .arg(place.client("pipe"))
        .arg(place.server("pipe"))
        .status();
    assert!(made.unwrap().success());
    let neither = "neither a regular file nor a directory";
    haul(["send", &text(&place.client("pipe")), &server.at("")]).failed(7, neither);
    haul(["get", &server.at("pipe"), &text(&place.client(""))]).failed(7, neither);
}

#[test]
fn a_server_without_clients_is_told_how_to_have_some() {
    let place = Place::new();
    let nothing = text(&place.outside("nothing"));
    let ended = haul([
        "serve",
        &text(&place.server("")),
        "--authorized-keys",
        &nothing,
    ]);
    let ended = ended.failed(2, "the server knows no clients");
    assert!(ended.stderr.contains("haul key new"), "{}", ended.stderr);
}

#[test]
fn an_unknown_congestion_control_is_a_clear_failure() {
    let place = Place::new();
    let server = place.serve();
    make_file(&place.client("a"), 10, 1);
    haul([
        "send",
        &text(&place.client("a")),
        &server.at(""),
        "--channel=tcp",
        "--cc=nonesuch",
    ])
    .failed(2, "no congestion control 'nonesuch'");
    haul([
        "send",
        &text(&place.client("a")),
        &server.at(""),
        "--cc=nonesuch",
    ])
    .failed(
        2,
        "no congestion control `nonesuch`: there are model, cubic,",
    );
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Takes one connection after another and answers each with the same.
fn answer_with(answer: &[u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = answer.to_vec();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let answer = answer.clone();
            std::thread::spawn(move || {
                let mut scratch = [0; 4096];
                stream
                    .set_read_timeout(Some(Duration::from_secs(2)))
                    .unwrap();
                let _ = stream.read(&mut scratch);
                let _ = stream.write_all(&answer);
                // Read on, so that closing does not reset the connection.
                while stream.read(&mut scratch).is_ok_and(|n| n > 0) {}
            });
        }
    });
    port
}
