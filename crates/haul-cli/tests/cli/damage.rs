use crate::proxy::Proxy;
use crate::support::{MIB, Place, haul, make_file, read_file, text};

#[test]
fn flipped_bits_are_found_and_only_their_blocks_sent_again() {
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
    assert_eq!(json["repaired_bytes"], 3 * MIB, "{}", ended.stderr);
    assert_eq!(json["moved_bytes"], 15 * MIB + 77);
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
    assert_eq!(ended.json()["repaired_bytes"], 2 * MIB, "{}", ended.stderr);
}

#[test]
fn a_path_that_damages_every_block_is_given_up_with_exit_11() {
    let place = Place::new();
    let server = place.serve();
    let proxy = Proxy::start(server.port);
    make_file(&place.client("a"), 2 * MIB, 1);
    proxy.flip(100_003, u64::MAX);
    haul([
        "send",
        "--channel=tcp",
        &text(&place.client("a")),
        &proxy.at(""),
    ])
    .failed(11, "arrived damaged 5 times");
    assert!(!place.server("a").exists(), "nothing under the final name");
}
