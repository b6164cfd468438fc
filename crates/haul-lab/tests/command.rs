//! The commands, as a user runs them, and what they leave behind: nothing.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the tests wait for real processes, and what goes wrong there fails the test"
)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

/// Nothing here takes longer, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// `haul lab`, with a runtime directory of its own.
struct Bench {
    runtime: TempDir,
}

impl Bench {
    fn new() -> Self {
        Self {
            runtime: tempfile::tempdir().unwrap(),
        }
    }

    /// `None` after saying why no lab can be started here.
    fn with_labs() -> Option<Self> {
        let bench = Self::new();
        let output = bench.run(&["run", "-q", "metro", "--", "true"]);
        if output.status.success() {
            return Some(bench);
        }
        let message = text(&output.stderr);
        assert!(message.contains("root"), "{message}");
        println!("SKIPPED: {message}");
        None
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command
            .args(arguments)
            .env("XDG_RUNTIME_DIR", self.runtime.path())
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn scenario(&self, text: &str) -> String {
        let path = self.runtime.path().join("scenario.toml");
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    }

    /// The labs that have left something on disk.
    fn labs(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.runtime.path().join("haul-lab"));
        entries.map_or_else(
            |_| Vec::new(),
            |entries| entries.flatten().map(|entry| entry.path()).collect(),
        )
    }
}

/// The example is built along with the tests, one directory above them.
fn program() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let program = tests.ancestors().nth(2).unwrap().join("examples/lab");
    assert!(
        program.exists(),
        "build it with `cargo build -p haul-lab --examples`"
    );
    program
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_string()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The processes whose command line is or contains this.
fn processes(mark: &str) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let runs = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        text(&line).replace('\0', " ").contains(mark)
    };
    pids.filter(runs).collect()
}

/// A lab with processes that left their parents, sessions and groups; they sleep for `mark`
/// seconds.
fn start_crowd(bench: &Bench, mark: &str) -> Child {
    let path = bench.scenario(&format!(
        "[path]\nrtt = \"1ms\"\n\
         [[run]]\nhost = \"b\"\nbackground = true\n\
         command = \"setsid sh -c 'sleep {mark} & sleep {mark}' & sleep {mark}\"\n\
         [[run]]\nhost = \"a\"\ncommand = \"trap '' TERM INT; sleep {mark}; sleep {mark}\"\n"
    ));
    let mut command = bench.command(&["run", "-q", &path]);
    let child = command.stderr(Stdio::null()).spawn().unwrap();
    eventually("all processes of the lab run", || {
        processes(&format!("sleep {mark}")).len() >= 6
    });
    child
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn an_interrupted_lab_leaves_no_process_and_no_file() {
    let Some(bench) = Bench::with_labs() else {
        return;
    };
    let mut child = start_crowd(&bench, "7654.5");
    signal(&child, Signal::INT);
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert_eq!(processes("sleep 7654.5"), [] as [i32; 0]);
    assert_eq!(bench.labs(), [] as [PathBuf; 0]);
}

#[test]
fn a_killed_lab_is_cleaned_up_by_the_next_command() {
    let Some(bench) = Bench::with_labs() else {
        return;
    };
    let mut child = start_crowd(&bench, "7653.5");
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    assert_eq!(bench.labs().len(), 1);
    let listed = bench.run(&["list"]);
    assert_eq!(text(&listed.stderr), "no lab is up");
    assert_eq!(processes("sleep 7653.5"), [] as [i32; 0]);
    assert_eq!(bench.labs(), [] as [PathBuf; 0]);
}

#[test]
fn a_lab_in_the_background_can_be_found_used_and_taken_down() {
    let Some(bench) = Bench::with_labs() else {
        return;
    };
    let up = bench.run(&["up", "metro", "--name", "one"]);
    assert!(up.status.success(), "{}", text(&up.stderr));
    assert!(text(&up.stderr).contains("lab one is up"));

    let again = bench.run(&["up", "metro", "--name", "one"]);
    assert!(!again.status.success());
    let message = text(&again.stderr);
    assert!(message.contains("up already"), "{message}");

    let script = "echo $HAUL_LAB_HOST $LAB_B; grep -w b /etc/hosts; exit 3";
    let inside = bench.run(&["exec", "a", "--", "sh", "-c", script]);
    assert_eq!(inside.status.code(), Some(3), "{}", text(&inside.stderr));
    assert_eq!(text(&inside.stdout), "a 10.77.0.2\n10.77.0.2 b");
    let missing = bench.run(&["exec", "a", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(127));
    let nowhere = bench.run(&["exec", "c", "true"]);
    assert!(text(&nowhere.stderr).contains("a, b"));

    let listed = bench.run(&["list", "--json"]).stdout;
    let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap();
    assert_eq!(listed[0]["name"], "one");
    let holder = listed[0]["pid"].as_i64().unwrap();

    let mut left = bench
        .command(&["exec", "b", "sleep", "7652.5"])
        .spawn()
        .unwrap();
    eventually("the process inside runs", || {
        processes("sleep 7652.5").len() == 1
    });
    let down = bench.run(&["down"]);
    assert!(down.status.success(), "{}", text(&down.stderr));
    left.wait().unwrap();
    eventually("the process that held the lab has ended", || {
        let stat = std::fs::read_to_string(format!("/proc/{holder}/stat"));
        // The process that adopted it may not have reaped it yet.
        stat.map_or(true, |stat| stat.contains(") Z"))
    });
    assert_eq!(bench.labs(), [] as [PathBuf; 0]);
}

#[test]
fn a_lab_of_another_pid_namespace_is_seen_and_left_alone() {
    let Some(bench) = Bench::with_labs() else {
        return;
    };
    let up = bench.run(&["up", "metro", "--name", "far"]);
    assert!(up.status.success(), "{}", text(&up.stderr));
    // There its process has no number.
    let elsewhere = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--mount-proc"])
            .arg(program())
            .args(arguments)
            .env("XDG_RUNTIME_DIR", bench.runtime.path())
            .stdin(Stdio::null());
        command.output().unwrap()
    };
    let listed = elsewhere(&["list"]);
    let message = text(&listed.stderr);
    if message.contains("unshare:") {
        println!("SKIPPED: {message}");
    } else {
        assert!(text(&listed.stdout).starts_with("far"), "{message}");
        for refused in [&["down", "far"][..], &["exec", "a", "true"]] {
            let output = elsewhere(refused);
            let message = text(&output.stderr);
            assert!(!output.status.success(), "{refused:?}");
            assert!(message.contains("another PID namespace"), "{message}");
        }
        let inside = bench.run(&["exec", "a", "true"]);
        assert!(inside.status.success(), "{}", text(&inside.stderr));
    }
    let down = bench.run(&["down", "far"]);
    assert!(down.status.success(), "{}", text(&down.stderr));
    assert_eq!(bench.labs(), [] as [PathBuf; 0]);
}

#[test]
fn a_run_answers_with_its_commands_exit_code_and_reports_the_path() {
    let Some(bench) = Bench::with_labs() else {
        return;
    };
    let path =
        bench.scenario("[path]\nrtt = \"1ms\"\n[[run]]\nhost = \"b\"\ncommand = \"exit 5\"\n");
    assert_eq!(bench.run(&["run", &path]).status.code(), Some(5));
    let script = "echo to stderr; exit 6";
    let output = bench.run(&[
        "run", "--json", &path, "--host", "b", "--", "sh", "-c", script,
    ]);
    assert_eq!(output.status.code(), Some(6));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["emulator_drops"], 0);
    assert!(text(&output.stderr).contains("to stderr"));
}

#[test]
fn a_wrong_scenario_is_one_clear_message() {
    let bench = Bench::new();
    let output = bench.run(&["run", "no-such-scenario"]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("wan-100ms"));
    let path = bench.scenario("[path]\nrtt = \"1 fortnight\"\n");
    let message = text(&bench.run(&["run", &path]).stderr);
    assert!(message.contains("line 2"), "{message}");
}

#[test]
fn kernel_netem_is_used_or_said_to_be_missing() {
    let Some(bench) = Bench::with_labs() else {
        return;
    };
    let output = bench.run(&["run", "-q", "metro", "--emulator", "kernel", "--", "true"]);
    let message = text(&output.stderr);
    assert!(
        output.status.success() || message.contains("no netem"),
        "{message}"
    );
}

/// An ordinary user, on whose machine the TUN device is open to everybody (as udev makes it) or to
/// root only. It takes root to play that user.
fn as_nobody(bench: &Bench, device_mode: &str, arguments: &[&str]) -> Option<Output> {
    if !rustix::process::getuid().is_root() || !Path::new("/dev/net/tun").exists() {
        println!("SKIPPED: only root, with /dev/net/tun, can play an ordinary user");
        return None;
    }
    let mut builder = tempfile::Builder::new();
    let copy = builder.prefix("haul-lab").tempdir_in("/var/tmp").unwrap();
    std::fs::copy(program(), copy.path().join("lab")).unwrap();
    let script = format!(
        "set -e
         cd {runtime}; mkdir node; mount -t tmpfs none node
         mknod -m {device_mode} node/tun c 10 200; mount --bind node/tun /dev/net/tun
         mkdir -m 700 node/run; chown 65534 node/run; chmod 755 node . {copy}
         export XDG_RUNTIME_DIR={runtime}/node/run
         exec setpriv --reuid=65534 --regid=65534 --clear-groups {copy}/lab \"$@\"",
        runtime = bench.runtime.path().display(),
        copy = copy.path().display(),
    );
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &script, "sh"])
        .args(arguments);
    let output = command.env("RUST_BACKTRACE", "0").output().unwrap();
    let message = text(&output.stderr);
    if message.contains("unshare:") {
        println!("SKIPPED: no mount namespace for an ordinary user here: {message}");
        return None;
    }
    Some(output)
}

#[test]
fn an_ordinary_user_needs_no_root() {
    let bench = Bench::new();
    let script =
        "id -u; grep -c wan /proc/net/dev; cat /proc/sys/net/ipv4/tcp_slow_start_after_idle";
    let run = ["run", "-q", "metro", "--", "sh", "-c", script];
    let Some(output) = as_nobody(&bench, "666", &run) else {
        return;
    };
    let message = text(&output.stderr);
    if message.contains("user namespace") {
        println!("SKIPPED: {message}");
        return;
    }
    assert!(output.status.success(), "{message}");
    assert_eq!(text(&output.stdout), "0\n1\n0");
}

#[test]
fn without_the_device_an_ordinary_user_gets_the_remedy() {
    let bench = Bench::new();
    let run = ["run", "-q", "metro", "--", "true"];
    let Some(output) = as_nobody(&bench, "600", &run) else {
        return;
    };
    let message = text(&output.stderr);
    assert!(
        !output.status.success() && message.contains("chmod 666 /dev/net/tun"),
        "{message}"
    );
}

/// A `haul` that copies on the disk: `haul lab movers` is tested, not what it measures.
const QUICK_HAUL: &str = r#"#!/bin/sh
case $1 in
  key) touch "$4" ;;
  serve) exec nc -l -k "$4" 4725 ;;
  send) cp -a "$5" "${0%/*}/copies/${6#haul://*/}" ;;
esac
"#;

/// The runs of a measurement: movers, and how they ended.
fn runs(folder: &Path) -> Vec<(String, serde_json::Value)> {
    let text = std::fs::read_to_string(folder.join("results.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let runs = lines.filter(|line: &serde_json::Value| line["line"] == "run");
    runs.map(|run| (run["mover"].as_str().unwrap().to_owned(), run))
        .collect()
}

#[test]
fn movers_end_a_slow_peer_and_go_on_where_they_were() {
    let Some(bench) = Bench::with_labs() else {
        return;
    };
    let is_there = |name: &&str| Path::new("/usr/bin").join(name).exists();
    if let Some(missing) = ["nc", "tar", "bash"].iter().find(|name| !is_there(name)) {
        println!("SKIPPED: {missing} is not installed");
        return;
    }
    let folder = bench.runtime.path();
    let haul = folder.join("haul");
    std::fs::write(&haul, QUICK_HAUL).unwrap();
    std::fs::set_permissions(&haul, std::fs::Permissions::from_mode(0o755)).unwrap();
    let out = folder.join("out");
    let (work, haul) = (folder.join("copies"), haul.to_str().unwrap());
    // 800 kB over this path take a minute, and more than ten times what the copy takes.
    let measure = |arguments: &[&str]| {
        let mut line = vec!["movers", "--work", work.to_str().unwrap(), "--haul", haul];
        line.extend([
            "--out",
            out.to_str().unwrap(),
            "--rate",
            "100kbit",
            "--sets",
            "tiny",
        ]);
        line.extend(["--scale", "0.002", "--rtts", "1ms", "--losses", "0"]);
        line.extend(["--movers", "haul-send,tar-nc"]);
        line.extend(arguments);
        let output = bench.run(&line);
        (
            output.status.success(),
            text(&output.stderr),
            text(&output.stdout),
        )
    };
    let (is_ok, said, table) = measure(&["--repeat", "1"]);
    assert!(is_ok, "{said}");
    let first = runs(&out);
    assert_eq!(first.len(), 2, "{first:?}");
    assert!(first[0].1["seconds"].as_f64().unwrap() > 0.0, "{first:?}");
    let cut = first[1].1["cut_after_s"].as_f64();
    assert!(
        cut >= first[0].1["seconds"].as_f64().map(|ours| ours * 10.0),
        "{first:?}"
    );
    assert!(table.contains("> 10  ended; "), "{table}");
    // Again, with a second round: what was ended is not repeated.
    let (is_ok, said, _) = measure(&["--repeat", "2"]);
    assert!(is_ok && !said.contains("making tiny"), "{said}");
    let second = runs(&out);
    assert_eq!(second[..2], first);
    let names: Vec<&str> = second.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["haul-send", "tar-nc", "haul-send"]);
    // No time is left for a third.
    let (is_ok, said, _) = measure(&["--repeat", "3", "--budget", "0s"]);
    assert!(is_ok && said.contains("--budget is over"), "{said}");
    assert_eq!(runs(&out), second);
    assert_eq!(bench.labs(), [] as [PathBuf; 0]);
}
