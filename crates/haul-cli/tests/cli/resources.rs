//! When something runs out: file descriptors, room on the disk, patience with refused clients.

use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::odd::rounds;
use crate::support::{
    Disk, Ended, MIB, Place, Server, haul, limited, make_file, read_file, start_as, start_limited,
    text, wait_until, wait_within,
};

#[test]
fn with_few_file_descriptors_a_transfer_works_or_says_why_not() {
    let place = Place::new();
    let server = place.serve();
    let mut worked = 0;
    for (seed, files) in (1..).zip([10, 12, 14, 16, 20, 24, 32, 48, 64]) {
        let content = make_file(&place.client("a"), 2 * MIB, seed);
        for channel in ["--channel=udt", "--channel=tcp"] {
            let (file, to) = (text(&place.client("a")), server.at(""));
            let ended = start_limited(files, ["send", channel, "--recheck", &file, &to]).end();
            if ended.code == Some(0) {
                worked += 1;
                assert!(read_file(&place.server("a")) == content);
            } else {
                ended.failed_somehow("too many open files");
            }
        }
    }
    assert!(worked >= 12, "only {worked} of 18 worked");
}

/// The receiver opens an eighth of its descriptors at a time, and discards early data of the files
/// that come later: the first of these is cut by the limit of early data.
#[test]
fn more_files_than_may_be_open_arrive_whole_although_their_data_is_early() {
    let place = Place::new();
    let names: Vec<_> = (0..20).map(|index| format!("f{index}")).collect();
    for (seed, name) in (1..).zip(&names) {
        let size = [7_000, 260_000][usize::from(seed == 12)];
        make_file(&place.client(name), size, seed);
    }
    for (files, channel) in [(64, "udt"), (64, "tcp"), (96, "udt")] {
        let server = Server::start_limited(&place.server(""), files);
        let (channel, to) = (format!("--channel={channel}"), server.at("to/"));
        let paths: Vec<_> = names.iter().map(|name| text(&place.client(name))).collect();
        let mut args = vec!["send", &channel, "--json"];
        args.extend(paths.iter().map(String::as_str));
        args.push(&to);
        let sent = haul(args).ok().json();
        assert_eq!(sent["entries"]["copied"], 20, "{files}");
        for name in &names {
            let there = read_file(&place.server("to").join(name));
            assert!(there == read_file(&place.client(name)), "{files}: {name}");
        }
        std::fs::remove_dir_all(place.server("to")).unwrap();
    }
}

#[test]
fn with_few_file_descriptors_at_either_end_a_tree_arrives_or_says_why_not() {
    let place = Place::new();
    std::fs::create_dir(place.client("tree")).unwrap();
    for index in 0..150_u64 {
        make_file(&place.client(&format!("tree/{index}")), 500, index + 1);
    }
    for index in 0..24_u64 {
        let path = place.client(&format!("tree/large-{index}"));
        make_file(&path, MIB + 100, index + 1000);
    }
    for files in [20, 24, 32, 48, 64] {
        let server = Server::start_limited(&place.server(""), files);
        let to = format!("{files}/");
        let tree = text(&place.client("tree/."));
        let ended = start_limited(files, ["send", &tree, &server.at(&to)]).end();
        if files < 48 && ended.code != Some(0) {
            let shown = ended.stderr.to_lowercase();
            assert!(
                shown.contains("descriptor") || shown.contains("open files"),
                "{shown}"
            );
            continue;
        }
        assert_eq!(ended.code, Some(0), "{files}: {}", ended.stderr);
        for entry in std::fs::read_dir(place.client("tree")).unwrap() {
            let name = entry.unwrap().file_name();
            let there = read_file(&place.server(&to).join(&name));
            assert!(
                there == read_file(&place.client("tree").join(&name)),
                "{name:?}"
            );
        }
    }
}

/// Of address space (`-v`, KiB) and locked memory (`-l`, KiB). `HAUL_LIMITS` says how many amounts
/// of address space are tried.
#[test]
fn with_little_memory_a_transfer_works_or_says_why_not() {
    let place = Place::new();
    std::fs::create_dir(place.client("tree")).unwrap();
    let content = make_file(&place.client("tree/a"), 3 * MIB, 1);
    for index in 0..20_u64 {
        make_file(&place.client(&format!("tree/{index}")), 500, index + 2);
    }
    let tree = text(&place.client("tree/."));
    let amounts = rounds("HAUL_LIMITS", 12);
    let limits = (1..=amounts).map(|step| format!("-v {}", 600_000 / amounts * step));
    let (mut worked, all) = (0, amounts + 1);
    for limit in limits.chain(["-l 64".to_owned()]) {
        let _ = std::fs::remove_dir_all(place.server("to"));
        let server = place.serve();
        let ended = start_as(limited(&limit), ["send", &tree, &server.at("to/")]).end();
        // The standard library panics where a new thread gets no stack for signals.
        assert!(
            !ended.stderr.contains("panicked at crates"),
            "{limit}: {ended:?}"
        );
        let there = place.server("to/a");
        if ended.code == Some(0) {
            worked += 1;
            assert!(read_file(&there) == content, "{limit}");
        } else {
            assert!(
                !ended.stderr.is_empty() && limit != "-l 64",
                "{limit}: {ended:?}"
            );
            assert!(!there.exists() || read_file(&there) == content, "{limit}");
        }
    }
    println!("{worked} of {all} worked");
    assert!(worked > 1, "{worked} of {all} worked");
}

/// Processes that may have so many threads together: a control group.
struct Group(PathBuf);

impl Group {
    /// `None` where this process may not make one.
    fn new() -> Option<Self> {
        let name = format!("haul-test-{}", std::process::id());
        let groups = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(|at| Path::new(at).join(&name));
        groups.into_iter().find_map(|folder| {
            std::fs::create_dir(&folder).ok()?;
            let group = Self(folder);
            group.0.join("pids.max").exists().then_some(group)
        })
    }

    fn limit(&self, threads: impl std::fmt::Display) {
        std::fs::write(self.0.join("pids.max"), threads.to_string()).unwrap();
    }

    fn threads(&self) -> u32 {
        let current = std::fs::read_to_string(self.0.join("pids.current")).unwrap();
        current.trim().parse().unwrap()
    }

    /// `haul` in this group.
    fn program(&self) -> Command {
        let mut shell = Command::new("sh");
        let procs = text(&self.0.join("cgroup.procs"));
        shell.args(["-c", &format!(r#"echo $$ > {procs} && exec "$0" "$@""#)]);
        shell.arg(env!("CARGO_BIN_EXE_haul"));
        shell
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its last process has just ended, and the kernel may not have noticed.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn with_few_threads_at_either_end_a_transfer_works_or_says_why_not() {
    let Some(group) = Group::new() else {
        println!("SKIPPED: this process may not make a control group with a limit of threads");
        return;
    };
    let place = Place::new();
    let content = make_file(&place.client("a"), 3 * MIB, 1);
    let send = |channel: &str, to: &str| {
        let from = text(&place.client("a"));
        let options = ["--recheck", "--give-up-after=2s", channel];
        let words = [&["send"], &options[..], &[&from, to]].concat();
        words.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let (mut worked, mut failed) = (0, 0);
    let mut judge = |ended: Ended, shown: &str| {
        assert!(!ended.stderr.contains("panicked"), "{shown}: {ended:?}");
        if ended.code == Some(0) {
            worked += 1;
            assert!(read_file(&place.server("a")) == content, "{shown}");
        } else {
            failed += 1;
            let last = ended.stderr.lines().next_back().unwrap_or_default();
            assert!(last.starts_with("haul: "), "{shown}: {ended:?}");
        }
    };
    let server = place.serve();
    for threads in [1, 2, 3, 4, 6, 8, 12, 16, 32] {
        for channel in ["--channel=udt", "--channel=tcp"] {
            group.limit(threads);
            let ended = start_as(group.program(), send(channel, &server.at(""))).end();
            judge(ended, &format!("{threads} threads, {channel}"));
        }
    }
    group.limit("max");
    let dir = text(&place.server(""));
    let server = Server::spawn_as(
        group.program(),
        ["serve", &dir, "--listen", "127.0.0.1:0", "--allow-insecure"],
    );
    // All threads that it always has are there.
    haul(send("--channel=tcp", &server.at(""))).ok();
    for more in [0, 1, 2, 3, 4, 6, 8, 12, 16, 32] {
        for channel in ["--channel=udt", "--channel=tcp"] {
            group.limit(group.threads() + more);
            let ended = haul(send(channel, &server.at("")));
            judge(
                ended,
                &format!("{more} threads more of the server, {channel}"),
            );
            group.limit("max");
        }
    }
    // It goes on as if nothing had been.
    haul(send("--channel=udt", &server.at(""))).ok();
    let log = server.log().join("\n");
    assert!(!log.contains("panicked"), "{log}");
    println!("{worked} worked, {failed} failed");
    assert!(
        worked >= 4 && failed >= 4,
        "{worked} worked, {failed} failed"
    );
}

#[test]
fn a_file_beyond_the_limit_of_file_sizes_ends_its_transfer_and_no_other() {
    let place = Place::new();
    let dir = text(&place.server(""));
    // Blocks of 512 bytes: 1 MiB.
    let server = Server::spawn_as(
        limited("-f 2048"),
        ["serve", &dir, "--listen", "127.0.0.1:0"],
    );
    let large = make_file(&place.client("large"), 3 * MIB, 1);
    let small = make_file(&place.client("small"), MIB / 2, 2);
    for channel in ["--channel=udt", "--channel=tcp"] {
        let (from, to) = (text(&place.client("large")), server.at(""));
        haul(["send", channel, &from, &to]).failed_somehow("ulimit -f");
        haul(["send", channel, &text(&place.client("small")), &to]).ok();
        assert!(read_file(&place.server("small")) == small);
    }
    // The same at a client that gets.
    std::fs::write(place.server("large"), large).unwrap();
    std::fs::create_dir(place.client("got")).unwrap();
    let (from, to) = (server.at("large"), text(&place.client("got")));
    let ended = start_as(limited("-f 2048"), ["get", &from, &to]).end();
    ended.failed_somehow("ulimit -f");
}

#[test]
fn a_server_out_of_file_descriptors_waits_and_recovers() {
    let place = Place::new();
    let server = Server::start_limited(&place.server(""), 24);
    let content = make_file(&place.client("a"), 3 * MIB, 1);
    let send = [
        "send",
        &text(&place.client("a")),
        &server.at(""),
        "--recheck",
    ];
    haul(send).ok();
    // More connections that say nothing than it has descriptors.
    let idle: Vec<_> = (0..40)
        .map(|_| TcpStream::connect(("127.0.0.1", server.port)).unwrap())
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    let (before, begun) = (server.cpu_ticks(), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    // Of 100 ticks a second.
    let spent = server.cpu_ticks() - before;
    assert!(
        spent < 40,
        "{spent} ticks in {:?}: it does not wait, it spins",
        begun.elapsed()
    );
    drop(idle);
    haul(send).ok();
    assert!(read_file(&place.server("a")) == content);
}

#[test]
fn sessions_that_are_refused_leave_nothing_behind() {
    let place = Place::new();
    let server = Server::start(&place.server(""), "127.0.0.1:0", &["--read-only"]);
    make_file(&place.client("a"), 10, 1);
    let send = || {
        let begun = Instant::now();
        haul(["send", &text(&place.client("a")), &server.at("")]).failed(7, "it is read-only");
        // What it waits for is called off; connecting may take ten seconds.
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{:?}",
            begun.elapsed()
        );
    };
    send();
    std::thread::sleep(Duration::from_secs(3));
    let (threads, files) = (server.threads(), server.open_files());
    for _ in 0..30 {
        send();
    }
    // A session lingers for two seconds; what it waited for would be waited for ten.
    wait_within(
        Duration::from_secs(8),
        "threads and descriptors to go",
        || server.threads() <= threads && server.open_files() <= files,
    );
}

#[test]
fn data_connections_that_nobody_claims_are_few() {
    let place = Place::new();
    let server = place.serve();
    let strays: Vec<_> = (0..600_u64)
        .map(|token| {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            stream.write_all(b"hauldat\n").unwrap();
            stream.write_all(&token.to_be_bytes()).unwrap();
            stream.write_all(&[0, 0]).unwrap();
            stream
        })
        .collect();
    wait_until("the oldest to go", || server.threads() < 300);
    let content = make_file(&place.client("a"), 2 * MIB, 1);
    haul([
        "send",
        "--channel=tcp",
        "--streams=4",
        &text(&place.client("a")),
        &server.at(""),
    ])
    .ok();
    assert!(read_file(&place.server("a")) == content);
    drop(strays);
}

#[test]
fn a_disk_with_hardly_any_room_ends_in_the_whole_file_or_in_exit_13() {
    let place = Place::new();
    const SIZE: usize = 2 * MIB + 5_000;
    let (mut full, mut fitted) = (0, 0);
    // From room for nothing but the directory to room for everything, a page at a time where it is
    // tight.
    for room in [0, 1, 100, 512, 513, 514, 515, 516, 517, 518, 600] {
        let options = format!("size={}", (room + 1) * 4096);
        let Some(disk) = Disk::mount(&place.server(""), &options) else {
            return;
        };
        let server = place.serve();
        let content = make_file(&place.client("a"), SIZE, room);
        let send = [
            "send",
            &text(&place.client("a")),
            &server.at(""),
            "--give-up-after=0",
        ];
        let ended = haul(send);
        if ended.code == Some(0) {
            fitted += 1;
        } else {
            full += 1;
            ended.failed(13, "room");
            assert!(
                !place.server("a").exists(),
                "{room}: nothing under the final name"
            );
            disk.resize("8m");
            haul(send).ok();
        }
        assert!(read_file(&place.server("a")) == content, "{room}");
        drop(server);
    }
    assert!(
        full >= 5 && fitted >= 1,
        "{full} were full, {fitted} fitted"
    );
}

#[test]
fn a_disk_without_a_name_left_exits_13() {
    let place = Place::new();
    let Some(disk) = Disk::mount(&place.server(""), "size=8m,nr_inodes=3") else {
        return;
    };
    let server = place.serve();
    make_file(&place.client("a"), 2 * MIB, 1);
    make_file(&place.client("b"), 2 * MIB, 2);
    let both = [
        "send",
        &text(&place.client("a")),
        &text(&place.client("b")),
        &server.at(""),
    ];
    haul(both).failed(13, "no space left");
    assert!(is_empty(&place.server("")), "what was begun is removed");
    haul(["send", &text(&place.client("a")), &server.at("")]).ok();
    drop(server);
    drop(disk);
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}
