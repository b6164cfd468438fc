//! Servers, clients and files for the tests; everything ends with its guard.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

pub(crate) const MIB: usize = 1 << 20;
/// No command in these tests takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// A directory with one for the server and one for the client in it.
pub(crate) struct Place {
    root: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("server")).unwrap();
        std::fs::create_dir(root.path().join("client")).unwrap();
        Self { root }
    }

    pub(crate) fn outside(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn server(&self, name: &str) -> PathBuf {
        self.root.path().join("server").join(name)
    }

    pub(crate) fn client(&self, name: &str) -> PathBuf {
        self.root.path().join("client").join(name)
    }

    pub(crate) fn serve(&self) -> Server {
        Server::start(&self.server(""), "127.0.0.1:0", &[])
    }
}

/// A file of `size` bytes that no other seed gives.
pub(crate) fn make_file(path: &Path, size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut content = Vec::with_capacity(size + 8);
    while content.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        content.extend_from_slice(&state.to_le_bytes());
    }
    content.truncate(size);
    File::create(path).unwrap().write_all(&content).unwrap();
    content
}

pub(crate) fn read_file(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A running `haul serve`.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    log: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(crate) fn start(dir: &Path, listen: &str, flags: &[&str]) -> Self {
        let mut args = vec![OsStr::new("serve"), dir.as_os_str()];
        args.extend(["--listen", listen].map(OsStr::new));
        args.extend(flags.iter().map(OsStr::new));
        Self::spawn(args)
    }

    /// A server that may open no more than so many files.
    pub(crate) fn start_limited(dir: &Path, open_files: u32) -> Self {
        let mut args = vec![OsStr::new("serve"), dir.as_os_str()];
        args.extend(["--listen", "127.0.0.1:0"].map(OsStr::new));
        Self::spawn_as(limited(&format!("-n {open_files}")), args)
    }

    /// Starts a server whose first line ends with its port.
    pub(crate) fn spawn<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Self {
        Self::spawn_as(program(), args)
    }

    /// A server with more in its environment, `NAME=value` each.
    pub(crate) fn start_with<S: AsRef<OsStr>>(
        environment: &[String],
        args: impl IntoIterator<Item = S>,
    ) -> Self {
        Self::spawn_as(program_with(environment), args)
    }

    /// The same with another way to start the program.
    pub(crate) fn spawn_as<S: AsRef<OsStr>>(
        mut program: Command,
        args: impl IntoIterator<Item = S>,
    ) -> Self {
        let mut child = program
            .args(insecure(args))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut first = String::new();
        let is_other = |line: &str| {
            line.is_empty()
                || line.starts_with("haul: warning:")
                || line.starts_with("haul: made the key")
        };
        while is_other(&first) {
            first = lines.next().unwrap().unwrap();
        }
        let port = first.rsplit(':').next().and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("the server says: {first}"));
        let log = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                keep.lock().unwrap().push(line);
            }
        });
        Self { child, port, log }
    }

    /// A server at a port, whose log goes elsewhere.
    pub(crate) fn with_log(dir: &Path, port: u16, log: impl Into<Stdio>) -> Self {
        let listen = format!("--listen=127.0.0.1:{port}");
        let args = [OsStr::new("serve"), dir.as_os_str(), listen.as_ref()];
        let child = program()
            .args(insecure(args))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let log = Arc::default();
        Self { child, port, log }
    }

    /// `haul://127.0.0.1:PORT/path`, as the command line takes it.
    pub(crate) fn at(&self, path: &str) -> String {
        self.at_address("127.0.0.1", path)
    }

    /// The same for a server that listens elsewhere; an IPv6 address in brackets.
    pub(crate) fn at_address(&self, address: &str, path: &str) -> String {
        format!("haul://{address}:{}/{path}", self.port)
    }

    /// Processor time that it has used, hundredths of a second.
    pub(crate) fn cpu_ticks(&self) -> u64 {
        let stat = read_text(&format!("/proc/{}/stat", self.child.id()));
        // Behind the name, which ends with the last parenthesis, come the state and eleven more
        // fields.
        let fields = stat.rsplit(')').next().unwrap().split_whitespace();
        fields
            .skip(11)
            .take(2)
            .map(|ticks| ticks.parse::<u64>().unwrap())
            .sum()
    }

    /// How many threads it has.
    pub(crate) fn threads(&self) -> u64 {
        self.status("Threads:")
    }

    /// Memory that it has touched, KiB.
    pub(crate) fn resident_kib(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// Memory that it has touched at most, KiB.
    pub(crate) fn peak_kib(&self) -> u64 {
        self.status("VmHWM:")
    }

    /// How many files and sockets it has open.
    pub(crate) fn open_files(&self) -> usize {
        let dir = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        dir.unwrap().count()
    }

    /// Bytes that it has handed to the kernel to write.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.count("io", "wchar:")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn status(&self, field: &str) -> u64 {
        self.count("status", field)
    }

    fn count(&self, file: &str, field: &str) -> u64 {
        let lines = read_text(&format!("/proc/{}/{file}", self.child.id()));
        let line = lines.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Sends it a signal, by its name.
    pub(crate) fn signal(&self, name: &str) {
        let (option, pid) = (format!("-{name}"), self.child.id().to_string());
        let sent = Command::new("kill").args([option, pid]).status();
        assert!(sent.unwrap().success());
    }

    /// What kill -9 does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// What it has logged since its first line.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the log has a line with `text` in it.
    pub(crate) fn wait_for_log(&self, text: &str) {
        wait_until(&format!("'{text}' in the server's log"), || {
            self.log
                .lock()
                .unwrap()
                .iter()
                .any(|line| line.contains(text))
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have been killed by the test.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !std::thread::panicking() {
            let log = self.log();
            assert!(
                !log.iter().any(|line| line.contains("panicked")),
                "{log:#?}"
            );
        }
    }
}

/// A `haul` command that is running.
pub(crate) struct Client {
    child: Child,
    stdout: Arc<Mutex<String>>,
    readers: Vec<std::thread::JoinHandle<()>>,
    stderr: Arc<Mutex<String>>,
}

/// A `haul` command that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Starts `haul` with these arguments.
pub(crate) fn start<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Client {
    start_as(program(), args)
}

/// `haul`, which minds signals: what a shell starts in the background ignores SIGINT, and so would
/// all that a test starts there.
fn program() -> Command {
    program_with(&[])
}

pub(crate) fn program_with(environment: &[String]) -> Command {
    let mut env = Command::new("env");
    env.arg("--default-signal=INT").args(environment);
    env.arg(env!("CARGO_BIN_EXE_haul"));
    env
}

/// Starts `haul` with these arguments and more in its environment, `NAME=value` each.
pub(crate) fn start_with<S: AsRef<OsStr>>(
    environment: &[String],
    args: impl IntoIterator<Item = S>,
) -> Client {
    start_as(program_with(environment), args)
}

/// The same, and it may open no more than so many files.
pub(crate) fn start_limited<S: AsRef<OsStr>>(
    open_files: u32,
    args: impl IntoIterator<Item = S>,
) -> Client {
    start_as(limited(&format!("-n {open_files}")), args)
}

/// `haul`, once a shell has set a limit: an option of `ulimit` and its value.
pub(crate) fn limited(limit: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c");
    shell.arg(format!(r#"ulimit {limit} && exec "$0" "$@""#));
    shell.arg(env!("CARGO_BIN_EXE_haul"));
    shell
}

pub(crate) fn start_as<S: AsRef<OsStr>>(
    program: Command,
    args: impl IntoIterator<Item = S>,
) -> Client {
    start_exactly(program, insecure(args))
}

/// The same with these arguments and no others.
pub(crate) fn start_exactly<S: AsRef<OsStr>>(
    mut program: Command,
    args: impl IntoIterator<Item = S>,
) -> Client {
    let mut child = program
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (stdout, stderr) = (Arc::default(), Arc::default());
    let readers = vec![
        gather(child.stdout.take().unwrap(), &stdout),
        gather(child.stderr.take().unwrap(), &stderr),
    ];
    Client {
        child,
        stdout,
        readers,
        stderr,
    }
}

/// The arguments, and that keys do not matter, where a server of files or its client says nothing
/// about keys.
pub(crate) fn insecure<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Vec<OsString> {
    let args: Vec<OsString> = args
        .into_iter()
        .map(|arg| arg.as_ref().to_owned())
        .collect();
    let has = |of: fn(&str) -> bool| args.iter().any(|arg| arg.to_str().is_some_and(of));
    let is_plain = match args.first().and_then(|verb| verb.to_str()) {
        Some("serve") => true,
        Some("send" | "get" | "sync" | "ls" | "verify") => has(|arg| arg.starts_with("haul://")),
        _ => false,
    };
    let says = has(|arg| {
        const TRUST: [&str; 6] = [
            "--allow-insecure",
            "--authorized-keys",
            "--key",
            "--roots",
            "--server-key",
            "--shared-key",
        ];
        TRUST.contains(&arg.split('=').next().unwrap_or_default())
    });
    let added = (is_plain && !says).then(|| "--allow-insecure".into());
    args.into_iter().chain(added).collect()
}

/// Runs `haul` with these arguments to its end.
pub(crate) fn haul<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ended {
    start(args).end()
}

impl Client {
    /// What it has printed on stdout so far.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn stdout(&self) -> String {
        self.stdout.lock().unwrap().clone()
    }

    /// Waits until its `--json-stream` says that at least `bytes` are at the receiver; returns how
    /// many it said last.
    pub(crate) fn wait_for_bytes(&self, bytes: u64) -> u64 {
        let mut present = 0;
        wait_until("progress", || {
            present = events(&self.stdout())
                .iter()
                .filter_map(|event| event["present_bytes"].as_u64())
                .next_back()
                .unwrap_or(0);
            present >= bytes
        });
        present
    }

    /// Waits until its `--json-stream` says how many bytes were there before.
    pub(crate) fn wait_for_plan(&self) -> u64 {
        let mut present = None;
        wait_until("the plan", || {
            let events = events(&self.stdout());
            let plan = events.iter().find(|event| event["event"] == "plan");
            present = plan.and_then(|plan| plan["present_bytes"].as_u64());
            present.is_some()
        });
        present.unwrap()
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until its `--json-stream` has an event of this name.
    pub(crate) fn wait_for_event(&self, name: &str) {
        wait_until(&format!("'{name}' on stdout"), || {
            events(&self.stdout())
                .iter()
                .any(|event| event["event"] == name)
        });
    }

    /// Sends it a signal, by its name.
    pub(crate) fn signal(&self, name: &str) {
        let (option, pid) = (format!("-{name}"), self.child.id().to_string());
        let sent = Command::new("kill").args([option, pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Memory that it has touched at most, KiB; `None` once it has ended.
    pub(crate) fn peak_kib(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn end(mut self) -> Ended {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                self.child.kill().unwrap();
                self.child.wait().unwrap();
                panic!("haul did not end; stderr: {}", self.stderr.lock().unwrap());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        for reader in self.readers {
            reader.join().unwrap();
        }
        let (stdout, stderr) = (self.stdout.lock().unwrap(), self.stderr.lock().unwrap());
        Ended {
            code: status.code(),
            stdout: stdout.clone(),
            stderr: stderr.clone(),
        }
    }
}

impl Ended {
    /// It must have gone well.
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "stderr: {}", self.stderr);
        self
    }

    /// The one object that `--json` printed.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.stdout.lines().count(), 1, "stdout: {}", self.stdout);
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// It must have failed with this exit code and one line that has `text` in it.
    pub(crate) fn failed(self, code: i32, text: &str) -> Self {
        assert_eq!(self.code, Some(code), "stderr: {}", self.stderr);
        self.failed_somehow(text)
    }

    /// It must have failed with one line that has `text` in it.
    pub(crate) fn failed_somehow(self, text: &str) -> Self {
        assert!(self.code.is_some_and(|code| code > 0), "{self:?}");
        let last = self.stderr.lines().next_back().unwrap_or_default();
        assert!(
            last.starts_with("haul: ") && last.contains(text),
            "stderr: {}",
            self.stderr
        );
        assert!(!self.stderr.contains("panicked"), "stderr: {}", self.stderr);
        self
    }
}

/// The events of `--json-stream`, as far as their lines are whole.
pub(crate) fn events(stdout: &str) -> Vec<Value> {
    stdout
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// Waits for something that happens soon.
pub(crate) fn wait_until(what: &str, done: impl FnMut() -> bool) {
    wait_within(PATIENCE, what, done);
}

/// Waits until `done`, for at most `limit`.
pub(crate) fn wait_within(limit: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A small file system, for as long as the guard lives.
pub(crate) struct Disk(String);

impl Disk {
    /// Mounts it where that is allowed.
    pub(crate) fn mount(at: &Path, options: &str) -> Option<Self> {
        let at = text(at);
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs", &at])
            .output();
        if mount.is_ok_and(|mount| mount.status.success()) {
            return Some(Self(at));
        }
        println!("SKIPPED: mounting a small file system needs root");
        None
    }

    /// Mounts an ext4 with the smallest inodes, where that is allowed: its times have whole seconds
    /// and end in 2038.
    pub(crate) fn mount_coarse(image: &Path, at: &Path) -> Option<Self> {
        std::fs::write(image, vec![0; 16 * MIB]).unwrap();
        let (image, at) = (text(image), text(at));
        let done = |program: &str, args: &[&str]| {
            let output = Command::new(program).args(args).output();
            output.is_ok_and(|output| output.status.success())
        };
        if done("mkfs.ext4", &["-q", "-I", "128", &image])
            && done("mount", &["-o", "loop", &image, &at])
        {
            return Some(Self(at));
        }
        println!("SKIPPED: a file system with coarse times needs root, loop devices and mkfs.ext4");
        None
    }

    /// Mounts an ext4 whose root ignores case, where that is allowed.
    pub(crate) fn mount_casefold(image: &Path, at: &Path) -> Option<Self> {
        std::fs::write(image, vec![0; 32 * MIB]).unwrap();
        let (image, at) = (text(image), text(at));
        let done = |program: &str, args: &[&str]| {
            let output = Command::new(program).args(args).output();
            output.is_ok_and(|output| output.status.success())
        };
        if done("mkfs.ext4", &["-q", "-O", "casefold", &image])
            && done("mount", &["-o", "loop", &image, &at])
        {
            let disk = Self(at);
            let lost = format!("{}/lost+found", disk.0);
            std::fs::remove_dir(lost).unwrap();
            if done("chattr", &["+F", &disk.0]) {
                return Some(disk);
            }
        }
        println!("SKIPPED: ext4 that ignores case needs root, a loop device and CONFIG_UNICODE");
        None
    }

    pub(crate) fn resize(&self, size: &str) {
        let options = format!("remount,size={size}");
        let mount = Command::new("mount")
            .args(["-o", &options, &self.0])
            .status();
        assert!(mount.unwrap().success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", &self.0]).status();
    }
}

pub(crate) fn read_text(path: &str) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// Gives a file this time of its last change, seconds and nanoseconds since 1970.
pub(crate) fn set_time(path: &Path, seconds: u64, nanos: u32) {
    let file = File::options().write(true).open(path).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
    file.set_modified(time).unwrap();
}

pub(crate) fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn gather(
    mut from: impl Read + Send + 'static,
    into: &Arc<Mutex<String>>,
) -> std::thread::JoinHandle<()> {
    let into = Arc::clone(into);
    std::thread::spawn(move || {
        let mut scratch = [0; 4096];
        while let Ok(n) = from.read(&mut scratch) {
            if n == 0 {
                return;
            }
            into.lock()
                .unwrap()
                .push_str(&String::from_utf8_lossy(&scratch[..n]));
        }
    })
}
