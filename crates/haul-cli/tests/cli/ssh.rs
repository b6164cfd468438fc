//! Transfers by ssh, with OpenSSH's client and server. Everything is in a network namespace that
//! the test makes, with keys and files of its own.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::narrow::own_network;
use crate::support::{
    Client, Ended, MIB, Place, make_file, program_with, read_file, start_as, text,
};

/// Where the servers listen: the host, and one behind it.
const BOX: &str = "127.0.0.1";
const INNER: &str = "127.0.0.2";
const PORT: u16 = 2022;
/// The rule that finds local addresses leaves room for those that drop packets.
const SETUP: &str = "ip link set lo up; ip rule add prio 10 lookup local; ip rule del prio 0";

#[test]
fn openssh_carries_transfers_and_falls_back_where_it_must() {
    own_network::run_ignored("ssh::with_openssh", SETUP);
}

#[test]
#[ignore = "needs a namespace of its own; started by openssh_carries_transfers_and_falls_back_where_it_must"]
fn with_openssh() {
    let Some(host) = Host::start() else {
        println!("SKIPPED: no OpenSSH server (scripts/sshd.sh unpacks one)");
        return;
    };
    host.carries_a_file_both_ways();
    host.has_attributes_of_a_directory_without_a_name();
    host.forwards_no_agent();
    host.finds_the_agent_behind_noise();
    host.needs_no_more_than_a_forced_command();
    host.needs_no_more_than_a_restricted_shell();
    host.goes_through_a_jump_host();
    host.falls_back_to_tcp_without_udp();
    host.falls_back_to_ssh_without_ports();
    host.goes_on_when_ssh_is_killed();
    host.logs_in_again_when_the_agent_is_killed();
    host.keeps_no_agent_of_a_client_that_ends();
    host.tells_in_one_line_what_is_wrong();
    host.checks_the_ports();
}

/// Two OpenSSH servers with keys of their own.
struct Host {
    dir: tempfile::TempDir,
    servers: Vec<Child>,
}

impl Drop for Host {
    fn drop(&mut self) {
        for server in &mut self.servers {
            // It may have ended by itself.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// The server's program, and the folder of its libraries.
fn sshd() -> Option<(PathBuf, PathBuf)> {
    let target = Path::new(env!("CARGO_BIN_EXE_haul")).ancestors().nth(2)?;
    let root = target.join("sshd");
    let roots = [PathBuf::from("/"), root];
    let found = roots
        .iter()
        .find(|root| root.join("usr/sbin/sshd").exists())?;
    Some((
        found.join("usr/sbin/sshd"),
        found.join("usr/lib/x86_64-linux-gnu"),
    ))
}

impl Host {
    fn start() -> Option<Self> {
        let (program, libraries) = sshd()?;
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| text(&dir.path().join(name));
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        for folder in ["home", "bin"] {
            std::fs::create_dir(path(folder)).unwrap();
        }
        let haul = env!("CARGO_BIN_EXE_haul");
        std::os::unix::fs::symlink(haul, path("bin/haul")).unwrap();
        for key in ["host_key", "user_key", "other_key"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)]);
            keygen.status().ok().filter(|status| status.success())?;
        }
        std::fs::copy(path("user_key.pub"), path("authorized")).unwrap();
        let host_key = std::fs::read_to_string(path("host_key.pub")).unwrap();
        let known = |host: &str| format!("[{host}]:{PORT} {host_key}");
        std::fs::write(path("known"), known(BOX) + &known(INNER)).unwrap();
        let client = format!(
            "Host *\n Port {PORT}\n User root\n BatchMode yes\n IdentityFile {}\n \
             IdentitiesOnly yes\n UserKnownHostsFile {}\n StrictHostKeyChecking yes\n\
             Host box\n HostName {BOX}\nHost inner\n HostName {INNER}\n ProxyJump box\n",
            path("user_key"),
            path("known"),
        );
        std::fs::write(path("client"), client).unwrap();
        let setup = format!(
            "mount -t tmpfs tmpfs /run && mkdir /run/sshd
             grep -v -e ^root: -e ^sshd: /etc/passwd >{0}/passwd
             echo 'root:x:0:0:root:{0}/home:/bin/bash' >>{0}/passwd
             echo 'sshd:x:199:65534::/run/sshd:/usr/sbin/nologin' >>{0}/passwd
             mount --bind {0}/passwd /etc/passwd
             exec \"$0\" -D -e -f \"$1\" 2>>\"$2\"",
            text(dir.path()),
        );
        let mut this = Self {
            dir,
            servers: Vec::new(),
        };
        for address in [BOX, INNER] {
            let config = format!(
                "ListenAddress {address}:{PORT}\nHostKey {}\nAuthorizedKeysFile {}\n\
                 PermitRootLogin prohibit-password\nPasswordAuthentication no\n\
                 KbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\nPidFile none\n\
                 SetEnv PATH={}:/usr/bin:/bin HAUL_TEST={}\nMaxStartups 100\n",
                this.path("host_key"),
                this.path("authorized"),
                this.path("bin"),
                text(this.dir.path()),
            );
            let file = this.path(&format!("sshd-{address}"));
            std::fs::write(&file, config).unwrap();
            let child = Command::new("unshare")
                .args(["--mount", "sh", "-ec", &setup])
                .args([text(&program), file, this.path(&format!("log-{address}"))])
                .env("LD_LIBRARY_PATH", &libraries)
                .stdin(Stdio::null())
                .spawn()
                .unwrap();
            this.servers.push(child);
            let until = Instant::now() + Duration::from_secs(10);
            while std::net::TcpStream::connect((address, PORT)).is_err() {
                let ended = this.servers.last_mut()?.try_wait().unwrap();
                assert!(
                    ended.is_none() && Instant::now() < until,
                    "the OpenSSH server does not start: {}",
                    this.log(address)
                );
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Some(this)
    }

    fn path(&self, name: &str) -> String {
        text(&self.dir.path().join(name))
    }

    fn log(&self, address: &str) -> String {
        std::fs::read_to_string(self.path(&format!("log-{address}"))).unwrap_or_default()
    }

    /// How many logins the host behind this address has seen.
    fn logins(&self, address: &str) -> usize {
        self.log(address).matches("Accepted publickey").count()
    }

    fn start_haul(&self, args: &[&str]) -> Client {
        let ssh = format!("HAUL_SSH=ssh -F {}", self.path("client"));
        start_as(program_with(&[ssh]), args)
    }

    fn haul(&self, args: &[&str]) -> Ended {
        self.start_haul(args).end()
    }

    /// Sends a file; returns what haul said, and checks that one login was enough.
    fn sends(&self, size: usize, args: &[&str], to: &str, address: &str) -> Ended {
        let place = Place::new();
        let content = make_file(&place.client("a"), size, 7);
        let before = self.logins(address);
        let into = format!("{to}:{}/", text(&place.server("")));
        let from = text(&place.client("a"));
        let ended = self
            .haul(&[&["send", "--json", &from, &into], args].concat())
            .ok();
        assert!(read_file(&place.server("a")) == content);
        assert_eq!(self.logins(address) - before, 1, "{}", self.log(address));
        ended
    }

    fn carries_a_file_both_ways(&self) {
        let ended = self.sends(5 * MIB, &[], "box", BOX);
        assert_eq!(ended.json()["channel"], "udt", "{}", ended.stdout);
        assert!(!ended.stderr.contains("ssh"), "{}", ended.stderr);
        // A path without a slash is relative to the home directory.
        let place = Place::new();
        let content = make_file(Path::new(&self.path("home/b")), MIB, 8);
        let into = text(&place.client(""));
        self.haul(&["get", "root@box:b", &into]).ok();
        assert!(read_file(&place.client("b")) == content);
        let (from, to) = (text(&place.client("b")), "box:new/");
        self.haul(&["send", &from, to]).ok();
        assert!(read_file(Path::new(&self.path("home/new/b"))) == content);
        self.haul(&["get", "box:~/new/b", &into]).ok();
        self.haul(&["get", "box:nothing", &into])
            .failed(4, "'nothing'");
        // The agents end with their transfers.
        self.no_agent_is_left();
    }

    fn has_attributes_of_a_directory_without_a_name(&self) {
        let ssh = format!("HAUL_SSH=ssh -F {}", self.path("client"));
        let mut api = program_with(&[ssh]);
        api.arg("api").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut api = api.spawn().unwrap();
        let (mut stdin, mut stdout) = (api.stdin.take().unwrap(), api.stdout.take().unwrap());
        let request = br#"{"id":1,"do":"stat","at":"box:/"}"#;
        let lengths = (u64::try_from(request.len()).unwrap() << 32).to_be_bytes();
        stdin.write_all(&[&lengths, &request[..]].concat()).unwrap();
        let mut lengths = [0; 8];
        stdout.read_exact(&mut lengths).unwrap();
        let mut answer = vec![0; usize::try_from(u64::from_be_bytes(lengths) >> 32).unwrap()];
        stdout.read_exact(&mut answer).unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer["result"]["kind"], "directory", "{answer}");
        drop(stdin);
        api.wait().unwrap();
        self.no_agent_is_left();
    }

    /// The agents that the servers' sessions have started.
    fn agents(&self) -> Vec<u32> {
        let mark = format!("HAUL_TEST={}\0", text(self.dir.path()));
        processes(|pid| {
            proc(pid, "environ").contains(&mark) && proc(pid, "cmdline").contains("agent\0--stdio")
        })
    }

    /// Whatever the user's own configuration asks for.
    fn forwards_no_agent(&self) {
        let socket = self.path("agent-socket");
        let agent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        // It has no keys: it ends each connection.
        std::thread::spawn(move || agent.incoming().for_each(drop));
        let place = Place::new();
        make_file(&place.client("a"), 8 * MIB, 9);
        let (from, into) = (
            text(&place.client("a")),
            format!("box:{}/", text(&place.server(""))),
        );
        let config = std::fs::read_to_string(self.path("client")).unwrap();
        let forwarding = self.path("forwarding");
        std::fs::write(&forwarding, format!("ForwardAgent yes\n{config}")).unwrap();
        let environment = [
            format!("HAUL_SSH=ssh -F {forwarding}"),
            format!("SSH_AUTH_SOCK={socket}"),
        ];
        let send = ["send", "--json-stream", "--rate=20Mbit", &from, &into];
        let client = start_as(program_with(&environment), send);
        client.wait_for_bytes(1 << 20);
        let agents = self.agents();
        assert!(!agents.is_empty());
        for pid in agents {
            let environment = proc(pid, "environ");
            assert!(!environment.contains("SSH_AUTH_SOCK="), "{environment}");
        }
        client.end().ok();
        self.no_agent_is_left();
    }

    fn no_agent_is_left(&self) {
        crate::support::wait_until("the agents to end", || self.agents().is_empty());
    }

    fn finds_the_agent_behind_noise(&self) {
        let bashrc = self.path("home/.bashrc");
        let noise = "seq 2000; echo 'a warning' >&2; printf 'no line end'\n";
        std::fs::write(&bashrc, noise).unwrap();
        let ended = self.sends(100_000, &[], "box", BOX);
        assert!(ended.stderr.contains("ssh: a warning"), "{}", ended.stderr);
        std::fs::write(&bashrc, "exit 0\n").unwrap();
        self.haul(&["send", env!("CARGO_MANIFEST_PATH"), "box:"])
            .failed(7, "no haul answered");
        std::fs::remove_file(bashrc).unwrap();
    }

    fn needs_no_more_than_a_forced_command(&self) {
        let key = std::fs::read_to_string(self.path("user_key.pub")).unwrap();
        let forced = format!("command=\"haul agent --stdio\",restrict {key}");
        std::fs::write(self.path("authorized"), forced).unwrap();
        self.sends(100_000, &[], "box", BOX);
        std::fs::write(self.path("authorized"), key).unwrap();
    }

    fn needs_no_more_than_a_restricted_shell(&self) {
        // A shell that runs single commands by name and refuses all else.
        let profile = "set -r\n";
        std::fs::write(self.path("home/.bashrc"), profile).unwrap();
        self.sends(100_000, &[], "box", BOX);
        std::fs::remove_file(self.path("home/.bashrc")).unwrap();
    }

    fn goes_through_a_jump_host(&self) {
        let ended = self.sends(MIB, &[], "inner", INNER);
        assert_eq!(ended.json()["channel"], "udt", "{}", ended.stdout);
    }

    fn falls_back_to_tcp_without_udp(&self) {
        let _blocked = Blocked::new("ipproto udp");
        let ended = self.sends(MIB, &[], "box", BOX);
        assert_eq!(ended.json()["channel"], "tcp", "{}", ended.stdout);
        assert!(
            ended.stderr.contains("the data goes by TCP"),
            "{}",
            ended.stderr
        );
        // A channel named on the command line has no fallback.
        let ended = self.haul(&[
            "send",
            "--channel",
            "udt",
            env!("CARGO_MANIFEST_PATH"),
            "box:",
        ]);
        ended.failed(5, "cannot open a UDP channel");
    }

    fn falls_back_to_ssh_without_ports(&self) {
        // With --via-ssh there is no warning.
        let ended = self.sends(MIB, &["--via-ssh"], "box", BOX);
        assert!(!ended.stderr.contains("the data goes"), "{}", ended.stderr);
        // The agent reaches its own port at another address.
        let _udp = Blocked::new("ipproto udp");
        let _tcp = Blocked::new("to 127.0.0.2 ipproto tcp dport 24725-24740");
        let ended = self.sends(30 * MIB, &[], "inner", INNER);
        assert_eq!(ended.json()["channel"], "tcp", "{}", ended.stdout);
        assert!(
            ended.stderr.contains("the data goes through ssh"),
            "{}",
            ended.stderr
        );
    }

    /// Starts a transfer of seconds; returns it once it moves, with its file's content.
    fn start_slow(&self, place: &Place) -> (Client, Vec<u8>) {
        let content = make_file(&place.client("a"), 8 * MIB, 9);
        let (from, into) = (
            text(&place.client("a")),
            format!("box:{}/", text(&place.server(""))),
        );
        let client = self.start_haul(&["send", "--json-stream", "--rate=20Mbit", &from, &into]);
        client.wait_for_bytes(1 << 20);
        (client, content)
    }

    fn goes_on_when_ssh_is_killed(&self) {
        let place = Place::new();
        let before = self.logins(BOX);
        let (client, content) = self.start_slow(&place);
        let config = self.path("client");
        let server = self.servers[0].id();
        let at_the_server = processes(|pid| parent(pid) == Some(server));
        kill(&processes(|pid| {
            proc(pid, "cmdline").starts_with(&format!("ssh\0-F\0{config}"))
        }));
        kill(&at_the_server);
        let ended = client.end().ok();
        assert!(read_file(&place.server("a")) == content);
        assert!(!ended.stdout.contains("\"retry\""), "{}", ended.stdout);
        assert_eq!(self.logins(BOX) - before, 1);
        self.no_agent_is_left();
    }

    fn logs_in_again_when_the_agent_is_killed(&self) {
        let place = Place::new();
        let before = self.logins(BOX);
        let (client, content) = self.start_slow(&place);
        kill(&self.agents());
        let ended = client.end().ok();
        assert!(read_file(&place.server("a")) == content);
        assert!(
            ended.stderr.contains("logging in again by ssh"),
            "{}",
            ended.stderr
        );
        assert_eq!(self.logins(BOX) - before, 2);
    }

    /// Whether the signal reaches the client alone, or its ssh too, as from a terminal.
    fn keeps_no_agent_of_a_client_that_ends(&self) {
        for (signal, is_terminal) in [("INT", true), ("TERM", false), ("KILL", false)] {
            let place = Place::new();
            let (client, _) = self.start_slow(&place);
            if is_terminal {
                let config = self.path("client");
                let ssh = processes(|pid| {
                    proc(pid, "cmdline").starts_with(&format!("ssh\0-F\0{config}"))
                });
                signal_all(signal, &ssh);
            }
            client.signal(signal);
            assert_ne!(client.end().code, Some(0));
            self.no_agent_is_left();
        }
    }

    fn tells_in_one_line_what_is_wrong(&self) {
        let file = env!("CARGO_MANIFEST_PATH");
        let one_line = |ended: Ended| {
            assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        };
        // What this host knows needs no login.
        let before = self.logins(BOX);
        one_line(
            self.haul(&["send", "absent", "box:"])
                .failed(4, "there is no file"),
        );
        assert_eq!(self.logins(BOX), before);
        let absent = ["send", "--remote-haul", "no-such-haul", file, "box:"];
        one_line(self.haul(&absent).failed(7, "cannot start 'no-such-haul'"));
        // An older haul has no agent.
        let old = self.path("bin/old-haul");
        let script = "#!/bin/sh\necho \"error: unrecognized subcommand 'agent'\" >&2\n\
                      echo \"For more information, try '--help'.\" >&2\nexit 2\n";
        std::fs::write(&old, script).unwrap();
        std::fs::set_permissions(&old, PermissionsExt::from_mode(0o755)).unwrap();
        let ended = self.haul(&["send", "--remote-haul", "old-haul", file, "box:"]);
        one_line(ended.failed(7, "is older than"));
        let script = "#!/bin/sh\necho 'haul-agent 99 haul 9.9.9'\ncat >/dev/null\n";
        std::fs::write(&old, script).unwrap();
        let ended = self.haul(&["send", "--remote-haul", "old-haul", file, "box:"]);
        one_line(ended.failed(7, "haul 9.9.9"));
        // ssh's own failures: no key, an unknown host, nobody there.
        let ssh = |options: &str| format!("ssh -F {} {options}", self.path("client"));
        let other = ssh(&format!(
            "-i {} -oIdentityFile=none",
            self.path("other_key")
        ));
        std::fs::rename(self.path("user_key"), self.path("hidden")).unwrap();
        one_line(
            self.haul(&["send", "--ssh", &other, file, "box:"])
                .failed(12, "Permission denied"),
        );
        std::fs::rename(self.path("hidden"), self.path("user_key")).unwrap();
        let unknown = ssh("-oUserKnownHostsFile=/dev/null");
        let ended = self.haul(&["send", "--ssh", &unknown, file, "box:"]);
        assert_eq!(ended.code, Some(12), "{}", ended.stderr);
        let nobody = ssh("-p 9");
        one_line(
            self.haul(&["send", "--ssh", &nobody, file, "box:"])
                .failed(5, "Connection refused"),
        );
        let ended = self.haul(&["send", "--ssh", "no-such-ssh", file, "box:"]);
        one_line(ended.failed(5, "cannot start 'no-such-ssh'"));
        // Options of the other ways.
        for option in [
            &["--allow-insecure"][..],
            &["--port", "9"],
            &["--gateway", "gw"],
        ] {
            let ended = self.haul(&[&["send"], option, &[file, "box:"]].concat());
            one_line(ended.failed(2, "is for haul:// servers"));
        }
    }

    fn checks_the_ports(&self) {
        let ended = self.haul(&["doctor", "box:", "--json"]);
        let ports = ended.json()["path"]["ports"].clone();
        let ports = ports.as_array().unwrap();
        assert_eq!(ports.len(), 16, "{}", ended.stdout);
        assert!(
            ports
                .iter()
                .all(|port| port["tcp"] == true && port["udp"] == true)
        );
        let _blocked = Blocked::new("ipproto udp");
        let ended = self.haul(&["doctor", "box:"]);
        assert_eq!(ended.code, Some(1), "{}", ended.stdout);
        assert!(ended.stdout.contains("no UDP"), "{}", ended.stdout);
    }
}

fn kill(pids: &[u32]) {
    signal_all("KILL", pids);
}

fn signal_all(name: &str, pids: &[u32]) {
    assert!(!pids.is_empty());
    let pids = pids.iter().map(u32::to_string);
    // Some may have ended with the others.
    let _ = Command::new("kill").args(["-s", name]).args(pids).status();
}

/// The processes for which this holds.
fn processes(is: impl Fn(u32) -> bool) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is(*pid)).collect()
}

/// A file about a process; empty once it has ended.
fn proc(pid: u32, name: &str) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = proc(pid, "stat");
    stat.rsplit(')')
        .next()?
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

/// A rule by which the kernel drops packets, as long as the guard lives.
struct Blocked(&'static str);

impl Blocked {
    fn new(rule: &'static str) -> Self {
        let this = Self(rule);
        assert!(this.run("add"));
        this
    }

    fn run(&self, what: &str) -> bool {
        let words = self.0.split(' ').chain(["prio", "1", "blackhole"]);
        let mut command = Command::new("ip");
        command.args(["rule", what]).args(words);
        command.status().is_ok_and(|status| status.success())
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.run("del");
    }
}
