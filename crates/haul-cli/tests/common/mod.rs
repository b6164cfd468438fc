//! Gateways in processes of their own.
#![allow(
    clippy::allow_attributes,
    dead_code,
    reason = "each test uses its part of it"
)]

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A gateway in a process of its own, killed when it is dropped.
pub(crate) struct Gateway {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    _folder: tempfile::TempDir,
}

impl Gateway {
    pub(crate) fn start(config: &str) -> Self {
        Self::start_with(config, &[])
    }

    /// The same, with more on its command line.
    pub(crate) fn start_with(config: &str, args: &[&str]) -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_haul")), config, args)
    }

    /// The same by a command that becomes `haul`.
    pub(crate) fn start_by(mut command: Command, config: &str, args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path: PathBuf = folder.path().join("gateway.toml");
        std::fs::write(&path, config).unwrap();
        let mut child = command
            .args(["gateway", "run"])
            .arg(&path)
            .args(args)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let (stderr, kept) = (child.stderr.take().unwrap(), Arc::clone(&lines));
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                kept.lock().unwrap().push(line);
            }
        });
        Self {
            child,
            lines,
            _folder: folder,
        }
    }

    /// The rest of the line that `text` is in, once it is there.
    pub(crate) fn said(&self, text: &str) -> String {
        self.said_any(&[text])
    }

    /// The same for whichever of `texts` comes first.
    pub(crate) fn said_any(&self, texts: &[&str]) -> String {
        let until = Instant::now() + Duration::from_secs(60);
        let rest = |line: &String| {
            let after = |text: &&str| Some(line.split_once(*text)?.1.to_owned());
            texts.iter().find_map(after)
        };
        loop {
            let lines = self.lines.lock().unwrap().clone();
            if let Some(rest) = lines.iter().find_map(rest) {
                return rest;
            }
            assert!(Instant::now() < until, "none of {texts:?} in {lines:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// All that it has said.
    pub(crate) fn all_said(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    pub(crate) fn sessions_at(&self) -> SocketAddr {
        self.said("sessions at ").parse().unwrap()
    }

    pub(crate) fn listener_at(&self) -> SocketAddr {
        self.said("listener at ").parse().unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal, as kill(1) calls it.
    pub(crate) fn signal(&self, name: &str) {
        let mut command = Command::new("kill");
        command.args(["-s", name, &self.pid().to_string()]);
        assert!(command.status().unwrap().success());
    }

    /// Its exit code, once it has ended by itself.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < until, "it goes on: {:?}", self.all_said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a gateway at which sessions come in, with data channels of this kind, is told; the rest of
/// it is `more`.
pub(crate) fn member(kind: &str, listen: &str, more: &str) -> String {
    format!(
        "name = 'member'\nlisten = '{listen}'\nanonymous = true\nring = '8MiB'\n{more}\n\
         [[channel]]\nkind = '{kind}'\nlisten = '127.0.0.1:0'\n"
    )
}
