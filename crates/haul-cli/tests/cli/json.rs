use crate::schema::Schema;
use crate::support::{MIB, Place, events, haul, make_file, start, text};

#[test]
fn the_final_object_keeps_to_its_schema() {
    let place = Place::new();
    let server = place.serve();
    make_file(&place.client("a"), MIB + 1, 1);
    let schema = Schema::load("transfer-v1.json");
    let send = ["send", &text(&place.client("a")), &server.at(""), "--json"];
    schema.check(&haul(send).ok().json());
    schema.check(&haul(send).ok().json());
    schema.check(
        &haul(["get", &server.at("a"), &text(&place.client("")), "--json"])
            .ok()
            .json(),
    );
    schema.check(&haul(["get", &server.at("x"), &text(&place.client("")), "--json"]).json());
    schema.check(
        &haul(["send", "a", "b", "--json"])
            .failed(2, "names no host")
            .json(),
    );
}

#[test]
fn retransmissions_are_counted_by_cause_where_the_transport_tells_them_apart() {
    let place = Place::new();
    let server = place.serve();
    for (name, channel) in [("a", "udt"), ("b", "tcp")] {
        make_file(&place.client(name), MIB, 1);
        let source = text(&place.client(name));
        let channel_option = format!("--channel={channel}");
        let sent = haul(["send", &source, &server.at(""), "--json", &channel_option]);
        let summary = sent.ok().json();
        let causes = summary["retransmitted_by_cause"].as_object();
        assert_eq!(causes.is_some(), channel == "udt", "{summary}");
        if let Some(causes) = causes {
            let sum: u64 = causes.values().filter_map(serde_json::Value::as_u64).sum();
            assert_eq!(Some(sum), summary["retransmitted_bytes"].as_u64());
        }
    }
}

#[test]
fn every_event_keeps_to_its_schema_and_the_last_is_the_summary() {
    let place = Place::new();
    let server = place.serve();
    make_file(&place.client("a"), 12 * MIB, 1);
    let args = [
        "send",
        &text(&place.client("a")),
        &server.at(""),
        "--rate",
        "64Mbit",
    ];
    let ended = start(args.iter().chain(&["--json-stream", "--json"]))
        .end()
        .ok();
    let schema = Schema::load("transfer-v1.json");
    let mut lines = events(&ended.stdout);
    assert_eq!(
        lines.len(),
        ended.stdout.lines().count(),
        "every line is an object"
    );
    let summary = lines.pop().unwrap();
    schema.check(&summary);
    for event in &lines {
        schema.check_definition("event", event);
    }
    let kinds: Vec<_> = lines
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    assert_eq!(kinds.first(), Some(&"start"));
    assert_eq!(kinds.last(), Some(&"end"));
    assert!(
        kinds.contains(&"interval") && kinds.contains(&"file"),
        "{kinds:?}"
    );
    let present: Vec<_> = lines
        .iter()
        .filter_map(|event| event["present_bytes"].as_u64())
        .collect();
    assert!(present.is_sorted(), "progress never goes back: {present:?}");
}

#[test]
fn a_failure_is_an_event_and_an_object() {
    let place = Place::new();
    let server = place.serve();
    let args = [
        "get",
        &server.at("x"),
        &text(&place.client("")),
        "--json-stream",
        "--json",
    ];
    let ended = haul(args).failed(4, "'x' is not a file");
    let schema = Schema::load("transfer-v1.json");
    let lines = events(&ended.stdout);
    let [.., error, end, object] = lines.as_slice() else {
        panic!("{}", ended.stdout)
    };
    schema.check_definition("event", error);
    schema.check_definition("event", end);
    schema.check(object);
    assert_eq!(error["exit"], 4);
    assert_eq!(end["ok"], false);
}
