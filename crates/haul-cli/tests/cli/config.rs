//! Configuration files, `haul config show`, and what `haul doctor` says of them.

use crate::support::{Ended, Place, make_file, read_file, start_with, text};

/// Runs `haul` with these configuration files of the user, and more in its environment.
fn with_config(place: &Place, content: &str, environment: &[&str], args: &[&str]) -> Ended {
    let file = place.outside("haul/config.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, content).unwrap();
    let home = format!("XDG_CONFIG_HOME={}", text(&place.outside("")));
    let environment = environment.iter().map(|line| (*line).to_owned());
    let environment: Vec<_> = environment.chain([home]).collect();
    start_with(&environment, args).end()
}

/// Returns the columns of an option as `haul config show` prints them.
fn line<'a>(shown: &'a str, option: &str) -> Vec<&'a str> {
    let columns = |line: &'a str| -> Vec<&'a str> {
        let words = line.split("  ").map(str::trim);
        words.filter(|word| !word.is_empty()).collect()
    };
    let mut lines = shown.lines().map(columns);
    let found = lines.find(|columns| columns.first() == Some(&option));
    found.expect(option)
}

#[test]
fn each_value_is_shown_with_its_origin() {
    let place = Place::new();
    let file = text(&place.outside("haul/config.toml"));
    let config = "rate = '1Gbit'\nbwlimit = '200Mbit'\nport = 5000\n[serve]\nmax-sessions = 3\n";
    let shown = with_config(
        &place,
        config,
        &["HAUL_PORT=6000"],
        &["config", "show", "send", "--rate", "2Gbit"],
    );
    let shown = shown.ok().stdout;
    assert_eq!(line(&shown, "rate"), ["rate", "2Gbit", "command line"]);
    assert_eq!(line(&shown, "bwlimit"), ["bwlimit", "200Mbit", &file]);
    assert_eq!(
        line(&shown, "port"),
        ["port", "6000", "environment, HAUL_PORT"]
    );
    assert_eq!(line(&shown, "durable"), ["durable", "batch", "default"]);
    let default = ["key", "~/.config/haul/key.pem, if it exists", "default"];
    assert_eq!(line(&shown, "key"), default);
    assert!(shown.contains("# /etc/haul/config.toml"));
    let shown = with_config(&place, config, &[], &["config", "show"])
        .ok()
        .stdout;
    assert!(shown.contains("# haul sync, send, get"), "{shown}");
    let (_, serve) = shown.split_once("# haul serve").unwrap();
    assert_eq!(line(serve, "max-sessions"), ["max-sessions", "3", &file]);
    with_config(&place, config, &[], &["config", "show", "bench"])
        .failed(2, "'bench' reads no configuration file");
}

#[test]
fn a_transfer_takes_its_values_from_the_file() {
    let place = Place::new();
    let server = place.serve();
    let content = make_file(&place.client("file"), 100_000, 1);
    let port = server
        .at("/")
        .rsplit(':')
        .next()
        .unwrap()
        .trim_end_matches('/')
        .to_owned();
    let file = text(&place.client("file"));
    let config = format!("port = {port}\nchannel = 'tcp'\n");
    let send = ["send", &file, "haul://127.0.0.1/", "--json"];
    let sent = with_config(&place, &config, &[], &send).ok().json();
    assert_eq!(sent["channel"], "tcp");
    assert_eq!(read_file(&place.server("file")), content);
}

/// A gateway is for servers: what a file says of it does not concern ssh.
#[test]
fn a_gateway_of_the_file_leaves_ssh_alone() {
    let place = Place::new();
    make_file(&place.client("file"), 1, 1);
    let file = text(&place.client("file"));
    let config = "gateway = 'gw.example'\nport = 5000\nssh = 'false'\n";
    let ended = with_config(&place, config, &[], &["send", &file, "host:"]);
    assert!(
        !ended.stderr.contains("is for haul:// servers"),
        "{}",
        ended.stderr
    );
    ended.failed_somehow("ssh");
    with_config(
        &place,
        "ssh = 'false'",
        &[],
        &["send", "--gateway", "gw", &file, "host:"],
    )
    .failed(2, "--gateway is for haul:// servers");
}

#[test]
fn a_wrong_file_is_an_error_of_the_commands_that_read_it() {
    let place = Place::new();
    let config = "bwlimt = '200Mbit'\n";
    let ended = with_config(&place, config, &[], &["ls", "haul://127.0.0.1/"]);
    ended
        .failed(2, "unknown key 'bwlimt'")
        .failed_somehow("'bwlimit'");
    let ended = with_config(
        &place,
        "rate = 'fast'\n",
        &[],
        &["send", "a", "haul://127.0.0.1/"],
    );
    ended
        .failed(2, "'fast' is no value of 'rate'")
        .failed_somehow("haul/config.toml");
    with_config(&place, config, &[], &["devices"]).ok();
    let doctor = with_config(&place, config, &[], &["doctor"]);
    assert_eq!(doctor.code, Some(1));
    assert!(
        doctor.stdout.contains("warning configuration: "),
        "{}",
        doctor.stdout
    );
    let good = with_config(&place, "", &[], &["doctor", "--all"]).stdout;
    assert!(good.contains("ok      configuration: '"), "{good}");
}

#[test]
fn another_file_stands_in_for_both() {
    let place = Place::new();
    let file = place.outside("other.toml");
    std::fs::write(&file, "rate = '3Gbit'").unwrap();
    let other = format!("HAUL_CONFIG={}", text(&file));
    let shown = with_config(&place, "bwlimt = 1", &[&other], &["config", "show", "send"]);
    assert_eq!(
        line(&shown.ok().stdout, "rate"),
        ["rate", "3Gbit", &text(&file)]
    );
}

/// Its standard input ends, which is no consent.
#[test]
fn the_doctor_changes_nothing_without_consent() {
    let place = Place::new();
    let line = ["doctor", "--rate", "1000Gbit", "--rtt", "10s", "--fix"];
    let ended = with_config(&place, "", &[], &line);
    assert!(
        ended.stderr.contains("  sysctl -w net."),
        "{}",
        ended.stderr
    );
    let is_refused = ended.stderr.contains("only root may") && ended.code == Some(7);
    let is_unchanged = ended.stderr.contains("nothing was changed") && ended.code == Some(0);
    assert!(is_refused || is_unchanged, "{ended:?}");
}
