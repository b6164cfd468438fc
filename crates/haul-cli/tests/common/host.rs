//! Hosts of tests: network namespaces with processes in them.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A network namespace that lives as long as the process that holds it.
pub(crate) struct Host(Child);

impl Host {
    pub(crate) fn new() -> Option<Self> {
        let child = Command::new("unshare")
            .args(["--net", "sleep", "600"])
            .stdin(Stdio::null())
            .spawn()
            .ok()?;
        let host = Self(child);
        let own = std::fs::read_link("/proc/self/ns/net").ok()?;
        let until = Instant::now() + Duration::from_secs(5);
        while std::fs::read_link(format!("/proc/{}/ns/net", host.id())).ok()? == own {
            if Instant::now() > until {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        host.run("ip link set lo up").then_some(host)
    }

    /// The process, by which its namespace has a name.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// A command that runs on this host.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.id()));
        command.arg(program);
        command
    }

    /// Runs lines of shell; whether all of them succeeded.
    pub(crate) fn run(&self, lines: &str) -> bool {
        is_ok(self.command("sh").args(["-ec", lines]))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn is_ok(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}
