use std::time::{Duration, Instant};

use crate::fuse::Folder;
use crate::odd::rounds;
use crate::proxy::Proxy;
use crate::support::{
    MIB, Place, Server, events, haul, make_file, read_file, set_time, start, text, wait_until,
};

/// 25 MB/s: slow enough to be killed on the way.
const RATE: &str = "200Mbit";
const RATE_BYTES: u64 = 25_000_000;
/// What may be lost of the last moments: a second between commits, another for a busy machine.
const SLACK: u64 = 2 * RATE_BYTES + 8 * MIB as u64;

#[test]
fn a_killed_sender_goes_on_where_it_stopped() {
    let place = Place::new();
    let server = place.serve();
    let source = place.client("big");
    let content = make_file(&source, 100 * MIB, 1);
    let mut before = 0;
    for kill_at in [10, 40] {
        let args = [
            "send",
            &text(&source),
            &server.at(""),
            "--rate",
            RATE,
            "--json-stream",
        ];
        let client = start(args);
        let reached = client.wait_for_bytes(kill_at * MIB as u64);
        let resumed = resumed_at_start(&client.stdout());
        assert!(
            resumed + 8 * MIB as u64 >= before,
            "{resumed} of {before} were kept"
        );
        before = reached;
        client.kill();
    }
    let ended = haul(["send", &text(&source), &server.at(""), "--json"])
        .ok()
        .json();
    assert!(read_file(&place.server("big")) == content);
    let resumed = ended["resumed_bytes"].as_u64().unwrap();
    // The server notices at once and keeps every block that was whole.
    assert!(
        resumed + 8 * MIB as u64 >= before,
        "{resumed} of {before} were kept"
    );
    assert_eq!(
        ended["moved_bytes"].as_u64().unwrap() + resumed,
        content.len() as u64
    );
    assert_eq!(
        ended["files"][0]["blake3"],
        blake3::hash(&content).to_hex().as_str()
    );
}

#[test]
fn a_killed_server_loses_at_most_the_last_moments() {
    let place = Place::new();
    let mut server = place.serve();
    let source = place.client("big");
    let content = make_file(&source, 120 * MIB, 2);
    let args = [
        "send",
        &text(&source),
        &server.at(""),
        "--rate",
        RATE,
        "--json-stream",
    ];
    let client = start(args.iter().chain(&["--give-up-after", "0"]));
    let reached = client.wait_for_bytes(70 * MIB as u64);
    server.kill();
    client.end().failed(5, "");
    assert!(!place.server("big").exists());
    let server = place.serve();
    let ended = haul(["send", &text(&source), &server.at(""), "--json"])
        .ok()
        .json();
    assert!(read_file(&place.server("big")) == content);
    assert_kept(&ended, reached);
}

/// Of what was reached, nearly all was resumed.
#[track_caller]
fn assert_kept(ended: &serde_json::Value, reached: u64) {
    let resumed = ended["resumed_bytes"].as_u64().unwrap();
    assert!(
        resumed > 0 && resumed + SLACK >= reached,
        "{resumed} of {reached} were kept"
    );
}

#[test]
fn a_killed_getter_goes_on_where_it_stopped() {
    let place = Place::new();
    let server = place.serve();
    let content = make_file(&place.server("big"), 100 * MIB, 3);
    let into = text(&place.client(""));
    let client = start([
        "get",
        &server.at("big"),
        &into,
        "--rate",
        RATE,
        "--json-stream",
        "--channel=tcp",
        "--streams=2",
    ]);
    let reached = client.wait_for_bytes(60 * MIB as u64);
    client.kill();
    let ended = haul(["get", &server.at("big"), &into, "--json"])
        .ok()
        .json();
    assert!(read_file(&place.client("big")) == content);
    assert_kept(&ended, reached);
}

#[test]
fn a_client_outlives_its_server_and_goes_on_by_itself() {
    let place = Place::new();
    let mut server = place.serve();
    let listen = format!("127.0.0.1:{}", server.port);
    let source = place.client("big");
    let content = make_file(&source, 60 * MIB, 4);
    let args = [
        "send",
        &text(&source),
        &server.at(""),
        "--rate",
        RATE,
        "--json",
        "--json-stream",
    ];
    let client = start(args);
    client.wait_for_bytes(20 * MIB as u64);
    server.kill();
    std::thread::sleep(Duration::from_millis(300));
    let _server = Server::start(&place.server(""), &listen, &[]);
    let ended = client.end().ok();
    assert!(read_file(&place.server("big")) == content);
    let events = events(&ended.stdout);
    assert!(events.iter().any(|event| event["event"] == "retry"));
    let summary = events.last().unwrap();
    assert!(summary["reconnects"].as_u64().unwrap() >= 1);
    assert_eq!(
        summary["resumed_bytes"], 0,
        "nothing was there before the command"
    );
}

#[test]
fn of_several_files_those_that_are_complete_are_not_sent_again() {
    let place = Place::new();
    let server = place.serve();
    let (small, big) = (place.client("a"), place.client("b"));
    make_file(&small, 3 * MIB, 5);
    let content = make_file(&big, 60 * MIB, 6);
    let send = ["send", &text(&small), &text(&big), &server.at("")].map(str::to_owned);
    let client = start(
        send.iter()
            .map(String::as_str)
            .chain(["--rate", RATE, "--json-stream"]),
    );
    client.wait_for_bytes(15 * MIB as u64);
    wait_until("the first file", || place.server("a").exists());
    client.kill();
    let ended = haul(send.iter().map(String::as_str).chain(["--json"]))
        .ok()
        .json();
    assert_eq!(ended["files"][0]["status"], "already_there");
    assert!(read_file(&place.server("b")) == content);
}

#[test]
fn a_source_that_has_changed_starts_over_and_says_so() {
    let place = Place::new();
    let server = place.serve();
    let source = place.client("big");
    make_file(&source, 60 * MIB, 7);
    let args = [
        "send",
        &text(&source),
        &server.at(""),
        "--rate",
        RATE,
        "--json-stream",
    ];
    let client = start(args);
    client.wait_for_bytes(10 * MIB as u64);
    client.kill();
    let content = make_file(&source, 40 * MIB, 8);
    let ended = haul(["send", &text(&source), &server.at(""), "--json"]).ok();
    assert!(
        ended
            .stderr
            .contains("'big' has changed since its partial copy was made")
    );
    assert_eq!(ended.json()["resumed_bytes"], 0);
    assert!(read_file(&place.server("big")) == content);
}

#[test]
fn recheck_finds_a_block_that_went_bad_on_the_disk() {
    use std::os::unix::fs::FileExt;
    let place = Place::new();
    let server = place.serve();
    let source = place.client("big");
    let content = make_file(&source, 60 * MIB, 9);
    let args = [
        "send",
        &text(&source),
        &server.at(""),
        "--rate",
        RATE,
        "--json-stream",
    ];
    let client = start(args);
    client.wait_for_bytes(20 * MIB as u64);
    client.kill();
    server.wait_for_log("failed after");
    let part = std::fs::File::options()
        .write(true)
        .open(place.server(".big.haul-part"))
        .unwrap();
    part.write_all_at(b"rot", 5 * MIB as u64 + 99).unwrap();
    drop(part);
    let ended = haul([
        "send",
        &text(&source),
        &server.at(""),
        "--json",
        "--recheck",
    ])
    .ok()
    .json();
    assert!(ended["resumed_bytes"].as_u64().unwrap() > 0);
    assert!(read_file(&place.server("big")) == content);
}

/// How a source is given other content of the same size and time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rewrite {
    InPlace,
    ThroughMemory,
    AnotherInode,
}

/// What arrives is the source as it is at the second run, whatever its size and time say.
#[test]
fn a_source_rewritten_with_the_same_size_and_time_arrives_as_it_is() {
    use std::os::unix::fs::FileExt;
    for (rewrite, flags) in [
        (Rewrite::InPlace, &[][..]),
        (Rewrite::InPlace, &["--recheck"]),
        (Rewrite::AnotherInode, &[]),
        (Rewrite::ThroughMemory, &["--channel=tcp"]),
    ] {
        let place = Place::new();
        let server = place.serve();
        let source = place.client("big");
        let mut content = make_file(&source, 60 * MIB, 12);
        let modified = source.metadata().unwrap().modified().unwrap();
        let (name, to) = (text(&source), server.at(""));
        let args = ["send", &name, &to, "--rate", RATE, "--json-stream"];
        let client = start(args);
        client.wait_for_bytes(20 * MIB as u64);
        client.kill();
        server.wait_for_log("failed after");
        // Blocks that the receiver has, and the first that it lacks, are partly of each.
        let fresh = vec![0x5a; 3 * MIB];
        content[MIB / 2..][..fresh.len()].copy_from_slice(&fresh);
        if rewrite == Rewrite::AnotherInode {
            std::fs::write(place.client("new"), &content).unwrap();
            std::fs::rename(place.client("new"), &source).unwrap();
        }
        let file = std::fs::File::options().write(true).open(&source).unwrap();
        match rewrite {
            Rewrite::InPlace => file.write_all_at(&fresh, MIB as u64 / 2).unwrap(),
            Rewrite::ThroughMemory => write_mapped(&source, MIB / 2, fresh.len()),
            Rewrite::AnotherInode => {}
        }
        file.set_modified(modified).unwrap();
        drop(file);
        let args = ["send", &name, &to, "--json"];
        let ended = haul(args.iter().chain(flags)).ok();
        assert!(read_file(&place.server("big")) == content, "{rewrite:?}");
        assert!(
            ended.stderr.contains("what differs is fetched again"),
            "{}",
            ended.stderr
        );
        let summary = ended.json();
        let number = |name: &str| summary[name].as_u64().unwrap();
        assert!(number("resumed_bytes") > 0, "{rewrite:?}");
        assert_eq!(
            number("resumed_bytes") + number("moved_bytes"),
            content.len() as u64
        );
        assert_eq!(number("repaired_bytes"), 0);
    }
}

/// A source on which every attribute lies: size, both times, inode and device are as before, and
/// only reading shows that its content is not.
#[test]
fn a_source_whose_attributes_all_lie_arrives_as_it_is() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    for (verb, flags) in [
        ("send", &[][..]),
        ("send", &["--recheck", "--channel=tcp"]),
        ("get", &["--channel=tcp"]),
        ("get", &["--recheck"]),
    ] {
        for is_tree in [false, true] {
            let place = Place::new();
            let (at, into) = match verb {
                "send" => (place.client("t"), place.server("")),
                _ => (place.server("t"), place.client("")),
            };
            std::fs::create_dir(&at).unwrap();
            let Some(_mounted) = Folder::default().mount(&at) else {
                return;
            };
            let server = place.serve();
            let source = at.join("big");
            let mut content = make_file(&source, 40 * MIB, 14);
            set_time(&source, 1_700_000_000, 5);
            let attributes = || {
                let meta = source.metadata().unwrap();
                let times = [
                    meta.mtime(),
                    meta.mtime_nsec(),
                    meta.ctime(),
                    meta.ctime_nsec(),
                ];
                (meta.dev(), meta.ino(), meta.size(), times)
            };
            let before = attributes();
            let (operand, arrived) = match is_tree {
                true => ("t", into.join("t/big")),
                false => ("t/big", into.join("big")),
            };
            let operands = match verb {
                "send" => [text(&place.client(operand)), server.at("")],
                _ => [server.at(operand), text(&into)],
            };
            let args = [verb, &operands[0], &operands[1]];
            let client = start(args.iter().chain(&["--rate", RATE, "--json-stream"]));
            client.wait_for_bytes(20 * MIB as u64);
            client.kill();
            if verb == "send" {
                server.wait_for_log("failed after");
            }
            // A whole block that the receiver has, and parts of its neighbours.
            let fresh = vec![0x5a; 3 * MIB];
            content[MIB / 2..][..fresh.len()].copy_from_slice(&fresh);
            let file = std::fs::File::options().write(true).open(&source).unwrap();
            file.write_all_at(&fresh, MIB as u64 / 2).unwrap();
            drop(file);
            set_time(&source, 1_700_000_000, 5);
            assert_eq!(attributes(), before);
            let ended = haul(args.iter().chain(&["--json"]).chain(flags)).ok();
            let context = format!("{verb} {flags:?} {is_tree}: {ended:?}");
            assert!(read_file(&arrived) == content, "{context}");
            let moved = ended.json()["moved_bytes"].as_u64().unwrap();
            assert!(moved < content.len() as u64, "{context}");
            if !flags.contains(&"--recheck") {
                continue;
            }
            // Of a file that is complete as well.
            std::fs::write(&source, vec![0x33; content.len()]).unwrap();
            set_time(&source, 1_700_000_000, 5);
            assert_eq!(attributes(), before);
            haul(args.iter().chain(flags)).ok();
            assert!(
                read_file(&arrived) == vec![0x33; content.len()],
                "{context}"
            );
        }
    }
}

/// Writes bytes of 0x5a through a mapping of the file.
fn write_mapped(path: &std::path::Path, at: usize, len: usize) {
    let script = "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); \
                  a, n = int(sys.argv[2]), int(sys.argv[3]); m[a:a + n] = b'Z' * n";
    let (at, len) = (at.to_string(), len.to_string());
    let python = std::process::Command::new("python3")
        .args(["-c", script, &text(path), &at, &len])
        .status();
    assert!(python.unwrap().success());
}

/// A kill while changed blocks are fetched again leaves no record of blocks that are half of each.
#[test]
fn a_source_rewritten_and_put_back_between_kills_arrives_as_it_is() {
    let place = Place::new();
    let server = place.serve();
    let source = place.client("big");
    let content = make_file(&source, 60 * MIB, 13);
    let modified = source.metadata().unwrap().modified().unwrap();
    let (name, to) = (text(&source), server.at(""));
    let args = ["send", &name, &to, "--rate", RATE, "--json-stream"];
    for reached in [20, 4] {
        let client = start(args);
        let kept = client.wait_for_plan();
        client.wait_for_bytes(reached * MIB as u64);
        if kept > 0 {
            client.wait_for_event("note");
            std::thread::sleep(Duration::from_millis(300));
        }
        client.kill();
        server.wait_for_log("failed after");
        let other = vec![0x33; content.len()];
        let now = if kept > 0 { &content } else { &other };
        std::fs::write(&source, now).unwrap();
        let file = std::fs::File::options().write(true).open(&source).unwrap();
        file.set_modified(modified).unwrap();
    }
    haul(["send", &name, &to]).ok();
    assert!(read_file(&place.server("big")) == content);
}

#[test]
fn kills_of_either_end_or_both_at_random_moments_never_damage_the_file() {
    let place = Place::new();
    let source = place.client("big");
    let content = make_file(&source, 48 * MIB, 11);
    let mut server = place.serve();
    // A fixed sequence (x -> 16807 x mod 2^31 - 1), so that a failure comes again.
    let mut random = 20_260_731_u64;
    for kill in 0..rounds("HAUL_KILLS", 12) {
        random = random * 16_807 % 0x7fff_ffff;
        let args = ["send", &text(&source), &server.at(""), "--rate", "400Mbit"];
        let client = start(args.iter().chain(&["--give-up-after", "0"]));
        std::thread::sleep(Duration::from_millis(random % 500));
        if kill % 3 != 0 {
            server.kill();
        }
        if kill % 3 != 1 {
            client.kill();
        } else {
            client.end();
        }
        if kill % 3 != 0 {
            server = place.serve();
        }
        assert!(
            !place.server("big").exists() || read_file(&place.server("big")) == content,
            "after kill {kill}"
        );
    }
    haul(["send", &text(&source), &server.at("")]).ok();
    assert!(read_file(&place.server("big")) == content);
}

/// Which end is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Sender,
    Receiver,
}

/// Kills of the sender by `kill -9`, each a random number of bytes after the last. `HAUL_KILLS`
/// says how many.
#[test]
fn senders_killed_at_random_positions_send_at_most_a_moment_again() {
    kill_at_random_positions(Victim::Sender, 8 * MIB as u64);
}

#[test]
fn receivers_killed_at_random_positions_lose_at_most_the_last_checkpoint() {
    kill_at_random_positions(Victim::Receiver, 40 * MIB as u64);
}

/// Kills `victim` again and again, up to `spread` bytes after the last kill, and goes on each time.
/// What must be transferred again is at most what was not made durable: of a receiver the last
/// checkpoint's second, of a sender only the blocks that were not whole.
fn kill_at_random_positions(victim: Victim, spread: u64) {
    const RATE_BYTES: u64 = 10_000_000;
    /// Blocks that are not whole, or wait for the sender's digests; and what is in flight.
    const UNDER_WAY: u64 = 5 * MIB as u64;
    let (size, bound) = (
        96 * MIB,
        match victim {
            Victim::Sender => UNDER_WAY,
            // A second between checkpoints, and half of one for a busy disk.
            Victim::Receiver => UNDER_WAY + RATE_BYTES * 3 / 2,
        },
    );
    let place = Place::new();
    let source = place.client("big");
    let mut server = place.serve();
    let mut seed = victim as u64 * 100 + 1;
    let mut content = make_file(&source, size, seed);
    // A fixed sequence (x -> 16807 x mod 2^31 - 1), so that a failure comes again.
    let mut random = 20_261_121_u64 + victim as u64;
    let (mut reached, mut again) = (0, 0);
    let mut kill = 0;
    let kills = rounds("HAUL_KILLS", 20);
    while kill < kills {
        random = random * 16_807 % 0x7fff_ffff;
        let to = server.at("");
        let args = [
            "send",
            &text(&source),
            &to,
            "--rate=80Mbit",
            "--json-stream",
        ];
        let client = start(args.iter().chain(&["--give-up-after=5s"]));
        let kept = client.wait_for_plan();
        let written = server.written_bytes();
        assert!(
            kept + bound >= reached,
            "{victim:?} {kill}: {kept} of {reached} were kept"
        );
        again += reached.saturating_sub(kept);
        let at = kept + 1 + random % spread;
        if at + 2 * UNDER_WAY > size as u64 {
            // Near its end the file is let through, and another one begun.
            client.end().ok();
            assert!(
                read_file(&place.server("big")) == content,
                "{victim:?} {kill}"
            );
            std::fs::remove_file(place.server("big")).unwrap();
            seed += 1;
            content = make_file(&source, size, seed);
            reached = 0;
            continue;
        }
        wait_until("bytes", || {
            reached = kept + (server.written_bytes() - written);
            reached >= at
        });
        match victim {
            Victim::Sender => client.kill(),
            Victim::Receiver => {
                server.kill();
                client.kill();
                server = place.serve();
            }
        }
        kill += 1;
        assert!(!place.server("big").exists());
    }
    haul(["send", &text(&source), &server.at("")]).ok();
    assert!(read_file(&place.server("big")) == content);
    println!("{victim:?}: {again} bytes transferred again after {kills} kills");
}

#[test]
fn a_silent_path_is_noticed_at_both_ends_and_gone_on_from() {
    let place = Place::new();
    let server = place.serve();
    let proxy = Proxy::start(server.port);
    let source = place.client("big");
    let content = make_file(&source, 40 * MIB, 10);
    let args = [
        "send",
        "--channel=tcp",
        &text(&source),
        &proxy.at(""),
        "--rate",
        RATE,
        "--json-stream",
    ];
    let client = start(
        args.iter()
            .chain(&["--peer-timeout", "2s", "--give-up-after", "0"]),
    );
    client.wait_for_bytes(10 * MIB as u64);
    proxy.freeze();
    let frozen = Instant::now();
    client.end().failed(5, "has sent nothing for 2 s");
    assert!(
        frozen.elapsed() < Duration::from_secs(12),
        "{:?}",
        frozen.elapsed()
    );
    server.wait_for_log("has sent nothing for 2 s");
    let ended = haul(["send", &text(&source), &server.at(""), "--json"])
        .ok()
        .json();
    assert!(ended["resumed_bytes"].as_u64().unwrap() > 0);
    assert!(read_file(&place.server("big")) == content);
}

fn resumed_at_start(stdout: &str) -> u64 {
    let events = events(stdout);
    let plan = events
        .iter()
        .find(|event| event["event"] == "plan")
        .unwrap();
    plan["present_bytes"].as_u64().unwrap()
}
