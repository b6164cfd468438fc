use crate::schema::Schema;
use crate::support::{MIB, Place, haul};

#[test]
fn bench_counts_every_byte_in_both_directions() {
    let place = Place::new();
    let server = place.serve();
    let port = server.port.to_string();
    let schema = Schema::load("bench-v1.json");
    for flags in [
        &[][..],
        &["--reverse"],
        &["--channel", "tcp", "--streams", "4"],
    ] {
        let mut args = vec![
            "bench",
            "127.0.0.1",
            "--port",
            &port,
            "--bytes",
            "64MiB",
            "--json",
        ];
        args.extend(flags);
        let json = haul(args).ok().json();
        schema.check(&json);
        assert_eq!(json["bytes"], 64 * MIB);
        let counted: u64 = json["intervals"]
            .as_array()
            .unwrap()
            .iter()
            .map(|interval| interval["bytes"].as_u64().unwrap())
            .sum();
        assert_eq!(counted, 64 * MIB as u64);
    }
}

#[test]
fn bench_stops_when_its_time_is_up() {
    let place = Place::new();
    let server = place.serve();
    let port = server.port.to_string();
    let args = [
        "bench",
        "127.0.0.1",
        "--port",
        &port,
        "--time",
        "1s",
        "--rate",
        "80Mbit",
        "--json",
    ];
    let json = haul(args).ok().json();
    let bytes = json["bytes"].as_f64().unwrap();
    assert!(
        (5e6..20e6).contains(&bytes),
        "a second at 10 MB/s, not {bytes} bytes"
    );
}

#[test]
fn a_bench_that_fails_is_an_object_too() {
    let ended = haul(["bench", "127.0.0.1", "--port", "1", "--json"]);
    let json = ended.failed(5, "nothing listens").json();
    Schema::load("bench-v1.json").check(&json);
}

#[test]
fn a_bench_takes_every_congestion_control_that_its_help_names() {
    let place = Place::new();
    let server = place.serve();
    let port = server.port.to_string();
    let help = haul(["bench", "--help"]).ok().stdout;
    let (_, rest) = help.split_once("Congestion control. udt: ").unwrap();
    let (names, _) = rest.split_once("; tcp:").unwrap();
    let names: Vec<&str> = names
        .split(',')
        .map(|name| name.trim().trim_end_matches(" (default)"))
        .collect();
    haul(["bench", "127.0.0.1", "--port", &port, "--cc=nonesuch"])
        .failed(2, &format!("there are {}", names.join(", ")));
    for name in names {
        let control = format!("--cc={name}");
        let args = [
            "bench",
            "127.0.0.1",
            "--port",
            &port,
            "--bytes=1MiB",
            "--reverse",
            "--json",
            &control,
        ];
        assert_eq!(haul(args).ok().json()["bytes"], MIB);
    }
}
