use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::support::{Disk, MIB, Place, Server, haul, make_file, read_file, set_time, text};

const SIZES: [usize; 9] = [
    0,
    1,
    1024,
    MIB - 1,
    MIB,
    MIB + 1,
    2 * MIB,
    5 * MIB - 1,
    7 * MIB + 12_345,
];

#[test]
fn files_of_odd_sizes_go_there_and_back_byte_exact() {
    let place = Place::new();
    let server = place.serve();
    let mut send = vec!["send".to_owned()];
    let mut contents = Vec::new();
    for (index, size) in (0_u64..).zip(SIZES) {
        let path = place.client(&format!("file {index}"));
        contents.push(make_file(&path, size, index + 1));
        send.push(text(&path));
    }
    send.push(server.at("/"));
    send.push("--json".into());
    let sent = haul(&send).ok().json();
    std::fs::create_dir(place.client("back")).unwrap();
    let mut get = vec!["get".to_owned()];
    get.extend((0..SIZES.len()).map(|index| server.at(&format!("file {index}"))));
    get.push(text(&place.client("back")));
    get.extend([
        "--json".into(),
        "--channel=tcp".into(),
        "--streams=3".into(),
    ]);
    let got = haul(&get).ok().json();
    for (index, content) in contents.iter().enumerate() {
        let name = format!("file {index}");
        assert!(
            read_file(&place.server(&name)) == *content,
            "{name} at the server"
        );
        assert!(
            read_file(&place.client("back").join(&name)) == *content,
            "{name} back"
        );
        let hash = blake3::hash(content).to_hex().to_string();
        assert_eq!(sent["files"][index]["blake3"], hash.as_str());
        assert_eq!(got["files"][index]["blake3"], hash.as_str());
    }
    let total: usize = SIZES.iter().sum();
    assert_eq!(sent["bytes"], total);
    assert_eq!(sent["moved_bytes"], total);
    let left = std::fs::read_dir(place.server("")).unwrap().count();
    assert_eq!(left, SIZES.len(), "no part file or journal is left");
}

#[test]
fn a_server_with_several_addresses_answers_from_the_one_it_was_asked_at() {
    let place = Place::new();
    for (number, (listen, asked)) in (1..).zip([("0.0.0.0:0", "127.0.0.9"), ("[::]:0", "[::1]")]) {
        let server = Server::start(&place.server(""), listen, &["--allow-insecure"]);
        let content = make_file(&place.client("a"), 2 * MIB, number);
        haul([
            "send",
            &text(&place.client("a")),
            &server.at_address(asked, ""),
        ])
        .ok();
        assert!(read_file(&place.server("a")) == content, "{listen} {asked}");
    }
}

#[test]
fn files_go_there_and_back_over_ipv6() {
    let place = Place::new();
    let server = Server::start(&place.server(""), "[::1]:0", &[]);
    let content = make_file(&place.client("a"), 5 * MIB + 1, 1);
    std::fs::create_dir(place.client("back")).unwrap();
    for channel in ["--channel=udt", "--channel=tcp"] {
        let to = server.at_address("[::1]", "new/");
        haul(["send", channel, "--recheck", &text(&place.client("a")), &to]).ok();
        assert!(read_file(&place.server("new/a")) == content);
        let from = server.at_address("[::1]", "new/a");
        haul([
            "get",
            channel,
            "--recheck",
            &from,
            &text(&place.client("back")),
        ])
        .ok();
        assert!(read_file(&place.client("back/a")) == content);
        let at = format!("[::1]:{}", server.port);
        let forth = ["bench", channel, "--time=300ms", &at, "--json"];
        haul(forth).ok();
        haul(forth.iter().chain(&["--reverse"])).ok();
    }
}

#[test]
fn time_and_permissions_of_the_source_are_kept() {
    let place = Place::new();
    let server = place.serve();
    let source = place.client("tool");
    make_file(&source, 10, 1);
    std::fs::set_permissions(&source, PermissionsExt::from_mode(0o4751)).unwrap();
    haul(["send", &text(&source), &server.at("")]).ok();
    let (before, after) = (
        source.metadata().unwrap(),
        place.server("tool").metadata().unwrap(),
    );
    assert_eq!(
        (before.mtime(), before.mtime_nsec()),
        (after.mtime(), after.mtime_nsec())
    );
    assert_eq!(
        after.mode() & 0o6000,
        0,
        "no set-user-id bit comes over the network"
    );
    assert_eq!(after.mode() & 0o700, 0o700);
}

#[test]
fn what_is_there_already_is_not_sent_again() {
    let place = Place::new();
    let server = place.serve();
    let source = place.client("a");
    make_file(&source, 3 * MIB, 1);
    haul(["send", &text(&source), &server.at("")]).ok();
    let again = haul(["send", &text(&source), &server.at(""), "--json"])
        .ok()
        .json();
    assert_eq!(again["moved_bytes"], 0);
    assert_eq!(again["files"][0]["status"], "already_there");
    let rechecked = haul([
        "send",
        &text(&source),
        &server.at(""),
        "--json",
        "--recheck",
    ])
    .ok()
    .json();
    assert_eq!(rechecked["files"][0]["status"], "copied");
}

#[test]
fn a_changed_file_replaces_the_old_one_unless_told_not_to() {
    let place = Place::new();
    let server = place.serve();
    let source = place.client("a");
    let old = make_file(&source, 1000, 1);
    haul(["send", &text(&source), &server.at("")]).ok();
    let new = make_file(&source, 2000, 2);
    haul(["send", &text(&source), &server.at(""), "--no-replace"])
        .failed(7, "'a' exists at the target");
    assert!(read_file(&place.server("a")) == old);
    haul(["send", &text(&source), &server.at("")]).ok();
    assert!(read_file(&place.server("a")) == new);
}

#[test]
fn files_go_into_a_directory_of_the_server_and_come_out_of_it() {
    let place = Place::new();
    let server = place.serve();
    let content = make_file(&place.client("a"), 5000, 1);
    haul(["send", &text(&place.client("a")), &server.at("/x/y/")]).ok();
    assert!(read_file(&place.server("x/y/a")) == content);
    std::fs::create_dir(place.client("back")).unwrap();
    haul(["get", &server.at("x/./y/a"), &text(&place.client("back"))]).ok();
    assert!(read_file(&place.client("back/a")) == content);
}

#[test]
fn on_success_quiet_prints_nothing() {
    let place = Place::new();
    let server = place.serve();
    make_file(&place.client("a"), 5000, 1);
    let ended = haul(["send", &text(&place.client("a")), &server.at(""), "--quiet"]).ok();
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("", ""));
}

#[test]
fn a_declared_rate_is_kept() {
    let place = Place::new();
    let server = place.serve();
    make_file(&place.client("a"), 4 * MIB, 1);
    let ended = haul([
        "send",
        &text(&place.client("a")),
        &server.at(""),
        "--rate",
        "32Mbit",
        "--json",
    ])
    .ok()
    .json();
    let seconds = ended["seconds"].as_f64().unwrap();
    assert!(
        seconds > 0.8,
        "4 MiB at 32 Mbit/s take a second, not {seconds} s"
    );
}

#[test]
fn a_file_that_says_that_it_is_empty_is_read_to_its_end() {
    let place = Place::new();
    let server = place.serve();
    let source = "/proc/version";
    let content = read_file(source.as_ref());
    for channel in ["udt", "tcp"] {
        let args = ["send", source, &server.at(""), "--channel", channel];
        haul(args).ok();
        assert!(!content.is_empty() && read_file(&place.server("version")) == content);
        std::fs::remove_file(place.server("version")).unwrap();
    }
    let system = Server::start("/proc".as_ref(), "127.0.0.1:0", &[]);
    haul(["get", &system.at("version"), &text(&place.client(""))]).ok();
    assert!(read_file(&place.client("version")) == content);
}

#[test]
fn a_file_that_says_that_it_is_longer_than_it_is_ends_where_reading_ends() {
    let source = Path::new("/sys/devices/system/cpu/online");
    if !std::fs::metadata(source).is_ok_and(|meta| meta.len() == 4096) {
        println!("SKIPPED: no sysfs here");
        return;
    }
    let place = Place::new();
    let server = place.serve();
    let content = read_file(source);
    assert!(content.len() < 4096);
    haul(["send", &text(source), &server.at("")]).ok();
    assert!(read_file(&place.server("online")) == content);
    let system = Server::start(source.parent().unwrap(), "127.0.0.1:0", &[]);
    haul(["get", &system.at("online"), &text(&place.client(""))]).ok();
    assert!(read_file(&place.client("online")) == content);
}

#[test]
fn a_target_with_coarse_times_knows_a_file_again() {
    let place = Place::new();
    let Some(_disk) = Disk::mount_coarse(&place.outside("image"), &place.server("")) else {
        return;
    };
    let server = place.serve();
    for (name, size) in [("a", 3 * MIB + 1), ("b", 5), ("c", 0)] {
        make_file(&place.client(name), size, 1);
        set_time(&place.client(name), 1_700_000_000, 987_654_321);
        let send = || {
            let ended = haul(["send", &text(&place.client(name)), &server.at(""), "--json"]);
            ended.ok().json()["files"][0]["status"].clone()
        };
        assert_eq!(send(), "copied");
        let stored = std::fs::metadata(place.server(name)).unwrap();
        assert_eq!(stored.mtime_nsec(), 0, "its times have whole seconds");
        assert_eq!(send(), "already_there");
        assert!(!place.server(&format!(".{name}.haul-part")).exists());
        // Rewritten with the same size, less than two seconds later.
        make_file(&place.client(name), size, 2);
        set_time(&place.client(name), 1_700_000_001, 500_000_000);
        assert_eq!(send(), "copied");
        assert!(read_file(&place.server(name)) == read_file(&place.client(name)));
        set_time(&place.client(name), 1_700_000_000, 999_999_999);
        assert_eq!(send(), "copied");
    }
}

#[test]
fn a_time_that_the_target_cannot_store_is_refused_by_name() {
    let place = Place::new();
    let Some(_disk) = Disk::mount_coarse(&place.outside("image"), &place.server("")) else {
        return;
    };
    let server = place.serve();
    make_file(&place.client("late"), 5, 1);
    set_time(&place.client("late"), 2_300_000_000, 0);
    let send = ["send", &text(&place.client("late")), &server.at("")];
    haul(send).failed(
        7,
        "the target cannot store the time of 'late', 2300000000 s after 1970",
    );
    assert_eq!(
        std::fs::read_dir(place.server("")).unwrap().count(),
        1,
        "lost+found"
    );
    set_time(&place.client("late"), 2_000_000_000, 0);
    haul(send).ok();
}

#[test]
fn a_time_after_2262_is_kept() {
    let place = Place::new();
    let server = place.serve();
    make_file(&place.client("late"), 5, 1);
    set_time(&place.client("late"), 10_000_000_000, 7);
    if std::fs::metadata(place.client("late")).unwrap().mtime() != 10_000_000_000 {
        println!("SKIPPED: the file system here does not store times after 2262");
        return;
    }
    let send = [
        "send",
        &text(&place.client("late")),
        &server.at(""),
        "--json",
    ];
    haul(send).ok();
    let stored = std::fs::metadata(place.server("late")).unwrap();
    assert_eq!((stored.mtime(), stored.mtime_nsec()), (10_000_000_000, 7));
    let again = haul(send).ok().json();
    assert_eq!(again["files"][0]["status"], "already_there");
    // 2262 and later looked alike where times were counted in 64 bits of nanoseconds.
    set_time(&place.client("late"), 10_000_000_100, 7);
    let changed = haul(send).ok().json();
    assert_eq!(changed["files"][0]["status"], "copied");
}
