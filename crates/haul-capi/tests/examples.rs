//! The programs of c/examples on loopback: as they are, with sanitizers, under valgrind, and built
//! against an installed library. Each checks what it does itself; here they are compiled, run, and
//! must end well.
#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "helpers of tests run programs, wait, and look for free ports"
)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

/// Programs that are both ends themselves.
const ALONE: [&str; 6] = ["hello", "srq", "verbs", "errors", "ud", "rd"];
/// Programs of two ends, and the arguments of the one that connects.
const BETWEEN_TWO: [(&str, &[&str]); 4] = [
    ("pingpong", &["300", "64"]),
    ("put", &["8"]),
    ("get", &["8"]),
    ("stream", &["8"]),
];
/// Seconds after which a program is taken for stuck.
const PATIENCE: &str = "150";

/// What stands before a program, and its environment.
#[derive(Default)]
struct Run<'a> {
    wrapper: &'a [&'a str],
    environment: &'a [(&'a str, &'a str)],
}

#[test]
fn the_library_exports_what_the_header_declares() {
    let folder = build("exports", &[]);
    let symbols = succeed(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(folder.join("libhaul.so")),
    );
    let exported: BTreeSet<_> = symbols
        .lines()
        .filter_map(|line| line.split(' ').nth(2))
        .filter_map(|symbol| symbol.strip_suffix("@@HAUL_1"))
        .map(str::to_owned)
        .collect();
    let all = symbols.lines().filter(|line| !line.ends_with(" A HAUL_1"));
    assert_eq!(exported.len(), all.count(), "{symbols}");
    assert_eq!(exported, declared());
}

#[test]
fn the_page_shows_the_first_example() {
    let read = |path| std::fs::read_to_string(root().join(path)).unwrap();
    assert!(read("docs/write-rdma-programs.md").contains(&read("c/examples/hello.c")));
}

#[test]
fn every_example_runs() {
    let folder = build("plain", &[]);
    run_all(&folder, &Run::default());
    let asleep = Run {
        environment: &[("HAUL_SLEEP", "1")],
        ..Run::default()
    };
    between_two(&folder, "pingpong", &["100", "64"], &asleep);
}

#[test]
fn every_example_runs_with_an_engine_that_alone_drives() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.split("Cpus_allowed_list:").nth(1).unwrap().trim();
    let (first, _) = list.split_once(|c: char| !c.is_ascii_digit()).unwrap();
    let folder = build("engine", &[]);
    for device in ["soft-tcp", "soft-udt"] {
        let run = Run {
            environment: &[("HAUL_DEVICE", device), ("HAUL_ENGINE", first)],
            ..Run::default()
        };
        for program in ["srq", "verbs"] {
            check(program, &command(&folder, program, &run).output().unwrap());
        }
        for (program, arguments) in BETWEEN_TWO {
            between_two(&folder, program, arguments, &run);
        }
    }
}

#[test]
fn every_example_runs_over_udt() {
    let run = Run {
        environment: &[("HAUL_DEVICE", "soft-udt")],
        ..Run::default()
    };
    let folder = build("udt", &[]);
    for program in ["srq", "verbs"] {
        check(program, &command(&folder, program, &run).output().unwrap());
    }
    for (program, arguments) in BETWEEN_TWO {
        between_two(&folder, program, arguments, &run);
    }
}

#[test]
fn examples_run_over_the_devices_of_an_engine() {
    let folder = build("engines", &[]);
    let socket = folder.join("engine.sock");
    let server = haul_engine::Server::bind(&socket, haul_engine::Options::default()).unwrap();
    let stop = server.stopper();
    let running = std::thread::spawn(move || {
        server.run(&(std::sync::Arc::new(|line: &str| eprintln!("{line}")) as _))
    });
    let socket = socket.to_str().unwrap();
    for device in ["engine-tcp", "engine-udt"] {
        let run = Run {
            environment: &[
                ("HAUL_ENGINE_SOCKET", socket),
                ("HAUL_DEVICE", device),
                ("HAUL_STREAM_DEVICE", "engine-udt"),
            ],
            ..Run::default()
        };
        check("srq", &command(&folder, "srq", &run).output().unwrap());
        for (program, arguments) in BETWEEN_TWO {
            between_two(&folder, program, arguments, &run);
        }
    }
    stop.stop();
    running.join().unwrap().unwrap();
}

#[test]
fn every_example_runs_with_sanitizers() {
    let flags = "CFLAGS=-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer";
    let run = Run {
        environment: &[(
            "ASAN_OPTIONS",
            "detect_leaks=1:detect_stack_use_after_return=1",
        )],
        ..Run::default()
    };
    run_all(&build("sanitized", &[flags]), &run);
}

#[test]
fn every_example_runs_under_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("SKIPPED: valgrind is not installed (apt-get install valgrind)");
        return;
    }
    let folder = build("valgrind", &[]);
    let log = format!("--log-file={}/valgrind-%p.log", folder.display());
    let wrapper = [
        "valgrind",
        &log,
        // Threads of a busy program starve others without it.
        "--fair-sched=yes",
        "--error-exitcode=99",
        "--leak-check=full",
        "--show-leak-kinds=definite,indirect",
        "--errors-for-leak-kinds=definite,indirect",
    ];
    let run = Run {
        wrapper: &wrapper,
        ..Run::default()
    };
    run_all(&folder, &run);
}

#[test]
fn an_installed_library_is_found_by_pkg_config_shared_and_static() {
    if Command::new("pkg-config")
        .arg("--version")
        .output()
        .is_err()
    {
        println!("SKIPPED: pkg-config is not installed (apt-get install pkg-config)");
        return;
    }
    let prefix = folder("installed");
    let built = folder("to-install");
    // Built for another prefix than the one that it is installed to.
    let elsewhere = format!("PREFIX={}", prefix.join("elsewhere").display());
    make(&built, &["all", &elsewhere]);
    make(
        &built,
        &["install-library", &format!("PREFIX={}", prefix.display())],
    );
    for package in ["haul", "haul-static"] {
        let mut ask = Command::new("pkg-config");
        ask.args(["--cflags", "--libs", package]);
        let flags = succeed(ask.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")));
        let program = built.join(format!("installed-{package}"));
        let mut compile = Command::new("cc");
        compile.args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-o"]);
        compile.arg(&program).arg(root().join("c/examples/verbs.c"));
        succeed(compile.args(flags.split_whitespace()));
        let needed = succeed(Command::new("readelf").arg("-d").arg(&program));
        let is_shared = package == "haul";
        assert_eq!(needed.contains("libhaul.so.1"), is_shared, "{needed}");
        let mut run = Command::new("timeout");
        run.arg(PATIENCE).arg(&program);
        if is_shared {
            run.env("LD_LIBRARY_PATH", prefix.join("lib"));
        }
        succeed(&mut run);
    }
}

/// Debian's libudt on the other side: each sends once, and each begins first once.
#[test]
fn the_program_that_meets_meets_libudt() {
    let (folder, peers) = (build("meeting", &[]), folder("libudt"));
    let script = root().join("tests/interop/build.sh");
    let built = Command::new(script).arg(&peers).output().unwrap();
    if built.status.code() == Some(77) {
        println!("SKIPPED: {}", String::from_utf8_lossy(&built.stderr).trim());
        return;
    }
    assert!(built.status.success(), "{built:?}");
    for head_start_ms in [-300, 0, 300] {
        let [ours, theirs] = free_ports();
        let ends = ["127.0.0.1", &ours, "127.0.0.2", &theirs];
        let receive =
            format!("{theirs} stream --bind 127.0.0.2 --rendezvous 127.0.0.1 --peer-port {ours}");
        let mut receiver = Command::new(peers.join("udt_recv"));
        receiver.args(receive.split(' '));
        let mut sender = command(&folder, "meet", &Run::default());
        sender.args(ends).arg("3000");
        meet(&mut receiver, &mut sender, head_start_ms);
        let [ours, theirs] = free_ports();
        let ends = ["127.0.0.1", &ours, "127.0.0.2", &theirs];
        let send = format!(
            "127.0.0.1 {ours} stream 3000000 --bind 127.0.0.2 --local-port {theirs} --rendezvous"
        );
        let mut receiver = command(&folder, "meet", &Run::default());
        let mut sender = Command::new(peers.join("udt_send"));
        meet(
            receiver.args(ends),
            sender.args(send.split(' ')),
            head_start_ms,
        );
    }
}

/// Runs two programs that meet; what one sends is what the other receives. The receiver begins so
/// much before the sender.
#[track_caller]
fn meet(receiver: &mut Command, sender: &mut Command, head_start_ms: i64) {
    let pause = |ms| std::thread::sleep(Duration::from_millis(u64::try_from(ms).unwrap_or(0)));
    let begin = |program: &mut Command, delay_ms: i64| {
        pause(delay_ms);
        program.stdout(Stdio::piped()).stderr(Stdio::piped());
        program.spawn().unwrap().wait_with_output().unwrap()
    };
    let [received, sent] = std::thread::scope(|scope| {
        let received = scope.spawn(|| begin(receiver, -head_start_ms));
        let sent = scope.spawn(|| begin(sender, head_start_ms));
        [received, sent].map(|end| end.join().unwrap())
    });
    check("the sender", &sent);
    check("the receiver", &received);
    let tally = |output: &Output, word: &str| {
        let out = String::from_utf8(output.stdout.clone()).unwrap();
        let lines = out.lines();
        let mut tallies = lines.filter_map(|line| Some(line.strip_prefix(word)?.to_owned()));
        tallies.next().unwrap_or_else(|| panic!("{out}"))
    };
    assert_eq!(tally(&received, "received "), tally(&sent, "sent "));
}

/// Two UDP ports that were free a moment ago.
fn free_ports() -> [String; 2] {
    let sockets = [(); 2].map(|()| std::net::UdpSocket::bind("0.0.0.0:0").unwrap());
    sockets.map(|socket| socket.local_addr().unwrap().port().to_string())
}

fn run_all(folder: &Path, run: &Run<'_>) {
    for program in ALONE {
        check(program, &command(folder, program, run).output().unwrap());
    }
    for (program, arguments) in BETWEEN_TWO {
        between_two(folder, program, arguments, run);
    }
    let [one, other] = free_ports();
    let [mut receiver, mut sender] = [(); 2].map(|()| command(folder, "meet", run));
    receiver.args(["127.0.0.1", &one, "127.0.0.2", &other]);
    sender.args(["127.0.0.2", &other, "127.0.0.1", &one, "3000"]);
    meet(&mut receiver, &mut sender, 100);
}

/// Runs a program twice: one listens and says where, the other one connects.
fn between_two(folder: &Path, program: &str, arguments: &[&str], run: &Run<'_>) {
    let mut listener = command(folder, program, run)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut words = BufReader::new(listener.stdout.take().unwrap());
    let mut line = String::new();
    words.read_line(&mut line).unwrap();
    let connector = line.trim().strip_prefix("listening on port ").map(|port| {
        let mut connector = command(folder, program, run);
        connector.args(["127.0.0.1", port]).args(arguments).output()
    });
    words.read_to_string(&mut line).unwrap();
    let listener = listener.wait_with_output().unwrap();
    check(&format!("{program}, {}", line.trim()), &listener);
    check(program, &connector.unwrap().unwrap());
}

fn command(folder: &Path, program: &str, run: &Run<'_>) -> Command {
    let mut command = Command::new("timeout");
    command
        .arg(PATIENCE)
        .args(run.wrapper)
        .arg(folder.join(program));
    command.envs(run.environment.iter().copied());
    command
}

#[track_caller]
fn check(program: &str, output: &Output) {
    let (out, err) = (&output.stdout, &output.stderr);
    let (out, err) = (String::from_utf8_lossy(out), String::from_utf8_lossy(err));
    assert!(
        output.status.success(),
        "{program}: {}\n{out}\n{err}",
        output.status
    );
    println!("{program}: {}", out.trim());
}

#[track_caller]
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The static library: that of HAUL_CAPI_ARCHIVE, or as cargo has just built it for this test.
static ARCHIVE: LazyLock<PathBuf> = LazyLock::new(|| {
    if let Some(built) = std::env::var_os("HAUL_CAPI_ARCHIVE") {
        return built.into();
    }
    let cargo = option_env!("CARGO").unwrap_or("cargo");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let mut build = Command::new(cargo);
    build.args([
        "build",
        "--locked",
        "--profile",
        "test",
        "--package",
        "haul-capi",
        "--target-dir",
    ]);
    succeed(build.arg(target).current_dir(root()));
    target.join("debug/libhaul_capi.a")
});

fn build(name: &str, settings: &[&str]) -> PathBuf {
    let folder = folder(name);
    make(&folder, &[&["all", "examples"], settings].concat());
    folder
}

/// A fresh folder.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn make(folder: &Path, arguments: &[&str]) {
    let mut make = Command::new("make");
    make.arg("-C").arg(root().join("c")).args(arguments);
    make.arg(format!("OUT={}", folder.display()));
    succeed(make.arg(format!("ARCHIVE={}", ARCHIVE.display())));
}

/// Names of the functions of include/haul.h.
fn declared() -> BTreeSet<String> {
    let header = std::fs::read_to_string(root().join("include/haul.h")).unwrap();
    let prototypes = header.lines().filter(|line| {
        let starts = ["int ", "void ", "const char *", "uint32_t ", "size_t "];
        starts.iter().any(|start| line.starts_with(start)) && line.contains('(')
    });
    let names = prototypes.filter_map(|line| line.split_once('('));
    names
        .filter_map(|(before, _)| before.rsplit([' ', '*']).next())
        .map(str::to_owned)
        .collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
