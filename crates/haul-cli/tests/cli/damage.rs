use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::noise::Noise;
use crate::proxy::Proxy;
use crate::support::{MIB, Place, haul, make_file, read_file, text};

/// What is repaired by itself of a block, bytes.
const PIECE: usize = 4 << 10;

#[test]
fn flipped_bits_are_found_and_only_their_pieces_sent_again() {
    let place = Place::new();
    let server = place.serve();
    let proxy = Proxy::start(server.port);
    let content = make_file(&place.client("a"), 12 * MIB + 77, 1);
    proxy.flip(3_000_001, 3);
    let ended = haul([
        "send",
        "--channel=tcp",
        &text(&place.client("a")),
        &proxy.at(""),
        "--json",
    ])
    .ok();
    let json = ended.json();
    assert_eq!(proxy.flipped(), 3);
    assert!(read_file(&place.server("a")) == content);
    assert_eq!(json["repaired_bytes"], 3 * PIECE, "{}", ended.stderr);
    assert_eq!(json["moved_bytes"], 12 * MIB + 77 + 3 * PIECE);
}

#[test]
fn flipped_bits_are_found_in_what_a_server_gives() {
    let place = Place::new();
    let server = place.serve();
    let proxy = Proxy::start(server.port);
    let content = make_file(&place.server("a"), 8 * MIB, 1);
    proxy.flip(2_500_003, 2);
    let get = [
        "get",
        "--channel=tcp",
        &proxy.at("a"),
        &text(&place.client("")),
        "--json",
        "--streams",
        "2",
    ];
    let ended = haul(get).ok();
    assert_eq!(proxy.flipped(), 2);
    assert!(read_file(&place.client("a")) == content);
    assert_eq!(
        ended.json()["repaired_bytes"],
        2 * PIECE,
        "{}",
        ended.stderr
    );
}

#[test]
fn a_path_that_damages_every_piece_is_given_up_with_exit_11() {
    let place = Place::new();
    let server = place.serve();
    let proxy = Proxy::start(server.port);
    make_file(&place.client("a"), 2 * MIB, 1);
    proxy.flip(4_003, u64::MAX);
    haul([
        "send",
        "--channel=tcp",
        &text(&place.client("a")),
        &proxy.at(""),
    ])
    .failed(11, "arrived damaged 33 times");
    assert!(!place.server("a").exists(), "nothing under the final name");
}

/// What is under a final name at the server.
fn names(place: &Place) -> BTreeSet<String> {
    let entries = std::fs::read_dir(place.server("")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !name.starts_with('.')).collect()
}

/// Sends files over a path that damages one packet in `one_in`, and gets the first of them back.
fn survive(channel: &str, one_in: u64, sizes: &[usize]) {
    let place = Place::new();
    let server = place.serve();
    let noise = Noise::start(server.port, one_in);
    let files: Vec<_> = (0..).zip(sizes).collect();
    let files: Vec<_> = files
        .iter()
        .map(|(seed, size)| {
            let name = format!("file-{seed}");
            (name.clone(), make_file(&place.client(&name), **size, *seed))
        })
        .collect();
    let channel = format!("--channel={channel}");
    let options = [
        &channel,
        "--peer-timeout=3s",
        "--give-up-after=120s",
        "--json",
    ];
    let began = Instant::now();
    let mut args = vec!["send".to_owned(), noise.at("")];
    args.splice(
        1..1,
        files.iter().map(|(name, _)| text(&place.client(name))),
    );
    let sent = haul(args.iter().map(String::as_str).chain(options)).ok();
    for (name, content) in &files {
        assert!(read_file(&place.server(name)) == *content, "{name}");
    }
    assert_eq!(
        names(&place),
        files.iter().map(|file| file.0.clone()).collect()
    );
    let (name, content) = &files[0];
    std::fs::remove_file(place.client(name)).unwrap();
    let (from, to) = (noise.at(name), text(&place.client("")));
    haul(["get", &from, &to].into_iter().chain(options)).ok();
    assert!(read_file(&place.client(name)) == *content);
    let (control, data) = noise.damaged();
    assert!(control + data > 0, "no packet was damaged");
    println!(
        "{channel}, one in {one_in}: {:.1} s, damaged (control, data) {:?}, repaired {}",
        began.elapsed().as_secs_f64(),
        noise.damaged(),
        sent.json()["repaired_bytes"],
    );
}

#[test]
fn files_arrive_over_tcp_where_one_packet_in_a_hundred_is_damaged_unnoticed() {
    survive("tcp", 100, &[24 * MIB, 5 * MIB + 1, 1, 0, 700_000]);
}

#[test]
fn files_arrive_over_udt_where_one_packet_in_a_hundred_is_damaged_unnoticed() {
    survive("udt", 100, &[24 * MIB, 5 * MIB + 1, 1, 0, 700_000]);
}

#[test]
fn files_arrive_over_tcp_where_one_packet_in_twenty_is_damaged_unnoticed() {
    survive("tcp", 20, &[3 * MIB, 1, 100_000]);
}

#[test]
fn files_arrive_over_udt_where_one_packet_in_twenty_is_damaged_unnoticed() {
    survive("udt", 20, &[3 * MIB, 1, 100_000]);
}

/// Many clients at once, until HAUL_DAMAGED_MESSAGES (100) control messages have been damaged.
#[test]
fn no_name_and_no_byte_is_wrong_after_many_damaged_control_messages() {
    const CLIENTS: usize = 24;
    let wanted = std::env::var("HAUL_DAMAGED_MESSAGES").map_or(100, |count| count.parse().unwrap());
    let place = Place::new();
    let server = place.serve();
    let noise = Noise::start(server.port, 20);
    let content = make_file(&place.client("a"), 40_000, 1);
    let began = Instant::now();
    let next = AtomicUsize::new(0);
    let work = || {
        while noise.damaged().0 < wanted && began.elapsed() < Duration::from_secs(400) {
            let number = next.fetch_add(1, Ordering::SeqCst);
            let name = format!("file-{number}");
            std::fs::copy(place.client("a"), place.client(&name)).unwrap();
            let (from, to) = (text(&place.client(&name)), noise.at(""));
            let channel = ["tcp", "udt"][number % 2];
            let options = ["--peer-timeout=5s", "--give-up-after=100s", "--channel"];
            let send = ["send", &from, &to].into_iter().chain(options);
            haul(send.chain([channel])).ok();
            assert!(read_file(&place.server(&name)) == content, "{name}");
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(work);
        }
    });
    let (sent, damaged) = (next.into_inner(), noise.damaged());
    let seconds = began.elapsed().as_secs();
    println!("{sent} files in {seconds} s, damaged (control, data) {damaged:?}");
    let expected = (0..sent).map(|number| format!("file-{number}")).collect();
    assert_eq!(names(&place), expected);
    assert!(damaged.0 >= wanted);
}
