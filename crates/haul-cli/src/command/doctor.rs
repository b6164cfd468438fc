//! `haul doctor`.

use std::ffi::OsStr;
use std::io::{BufRead as _, Write as _};
use std::net::IpAddr;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use haul::fault::{Code, Fault};
use haul::ports::Ports;
use haul::printable;
use haul::ssh::{Reach, Ssh};
use haul_bench::doctor::{Finding, Host, Level, Target, examine};
use serde_json::{Value, json};

use super::fail;
use super::transfer::ssh_settings;
use crate::args::profile::Doctor;
use crate::config::Presets;
use crate::operand::{Remote, Way};
use crate::output::{print_line, tell};
use crate::place;

/// Schema of the object.
const SCHEMA: &str = "haul.doctor/1";
/// There is something to mend.
const FOUND: u8 = 1;

/// Looks; the exit code is 1 where something costs throughput.
pub(crate) fn run(args: &Doctor) -> ExitCode {
    let target = Target {
        rate_bps: args.rate,
        rtt_ms: u64::try_from(args.rtt.as_millis())
            .unwrap_or(u64::MAX)
            .max(1),
    };
    let path = match args.host.as_ref().map(|host| Path::check(args, host)) {
        None => None,
        Some(Ok(path)) => Some(path),
        Some(Err(fault)) => return fail(&fault),
    };
    let mut findings = examine(&Host::read(), &target);
    findings.extend(remembered());
    findings.push(configuration());
    let warned = findings
        .iter()
        .any(|finding| finding.level == Level::Warning)
        || path.as_ref().is_some_and(|path| !path.is_open());
    if args.json {
        print_line(&json!({
            "schema": SCHEMA, "ok": !warned, "rate_bps": target.rate_bps, "rtt_ms": target.rtt_ms,
            "findings": findings, "path": path.as_ref().map(Path::json),
        }));
    } else {
        // Whoever reads stdout may have gone.
        let _ = std::io::stdout().lock().write_all(
            (path.map_or(String::new(), |path| path.text()) + &text(&findings, args.all))
                .as_bytes(),
        );
    }
    if args.fix {
        return match fix(&findings, args.yes) {
            Ok(()) => ExitCode::SUCCESS,
            Err(fault) => fail(&fault),
        };
    }
    if warned {
        ExitCode::from(FOUND)
    } else {
        ExitCode::SUCCESS
    }
}

/// Runs the lines that mend what was found, once the user agrees.
fn fix(findings: &[Finding], is_agreed: bool) -> Result<(), Fault> {
    let wanted = findings
        .iter()
        .filter(|finding| finding.level > Level::Unknown);
    let lines: Vec<&str> = wanted
        .filter_map(|finding| finding.fix.as_deref())
        .collect();
    if lines.is_empty() {
        tell("there is nothing to change");
        return Ok(());
    }
    tell("this changes:");
    for line in &lines {
        tell(&format!("  {line}"));
    }
    if !haul::is_root() {
        let text = "only root may change these settings";
        return Err(Fault::new(Code::Denied, text).hint("run it again with sudo"));
    }
    if !is_agreed && !agrees()? {
        tell("nothing was changed");
        return Ok(());
    }
    let mut failed = 0;
    for line in &lines {
        let ended = Command::new("sh")
            .args(["-c", line])
            .stdout(Stdio::null())
            .status();
        if !ended.is_ok_and(|status| status.success()) {
            failed += 1;
            tell(&format!("failed: {line}"));
        }
    }
    if failed > 0 {
        let text = format!("{failed} of {} commands failed", lines.len());
        return Err(Fault::new(Code::Other, text)
            .hint("their messages are above; in a container the host must run them"));
    }
    tell("done; 'haul doctor' checks again");
    Ok(())
}

/// Asks at the terminal, or reads the answer from standard input.
fn agrees() -> Result<bool, Fault> {
    let mut stderr = std::io::stderr().lock();
    // Without a prompt the answer can still be entered.
    let _ = write!(stderr, "haul: run these commands? [y/N] ").and_then(|()| stderr.flush());
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Fault::file("cannot read the answer", &error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Which configuration files commands read.
fn configuration() -> Finding {
    let files = place::configurations()
        .into_iter()
        .filter(|file| file.exists());
    let files = files.map(|file| format!("'{}'", printable(file.as_os_str().as_encoded_bytes())));
    let files: Vec<_> = files.collect();
    let (level, found) = match Presets::read() {
        Err(fault) => {
            let hint = fault.hint.iter().map(|hint| format!(" ({hint})"));
            (
                Level::Warning,
                fault.text.clone() + &hint.collect::<String>(),
            )
        }
        Ok(_) if files.is_empty() => (Level::Ok, "none".to_owned()),
        Ok(_) => (Level::Ok, files.join(" and ")),
    };
    Finding {
        check: "configuration".into(),
        level,
        found,
        why: "files preset options; 'haul config show' prints each value and where it comes from"
            .into(),
        fix: None,
    }
}

/// Where transfers keep the rates of their paths.
fn remembered() -> Option<Finding> {
    let file = place::paths()?;
    let file = printable(file.as_os_str().as_encoded_bytes());
    Some(Finding {
        check: "path memory".into(),
        level: Level::Ok,
        found: format!("transfers keep the rates of their paths in '{file}'"),
        why: "the next transfer to the same host starts faster; the file may be deleted".into(),
        fix: None,
    })
}

/// Which ports of the range pass between this host and one that is reached by ssh.
struct Path {
    host: String,
    ip: IpAddr,
    range: Ports,
    ports: Vec<Reach>,
}

impl Path {
    fn check(args: &Doctor, operand: &OsStr) -> Result<Self, Fault> {
        let wrong = || {
            let shown = printable(operand.as_encoded_bytes());
            let text = format!("'{shown}' is not [USER@]HOST: of a host that is reached by ssh");
            let hint = "put a colon behind the host; a server of haul serve cannot be checked";
            Fault::new(Code::Usage, text).hint(hint)
        };
        let remote = Remote::parse(operand).map_err(|_| wrong())?;
        let Way::Ssh(host) = &remote.way else {
            return Err(wrong());
        };
        let ssh = Ssh::new(ssh_settings(&args.ssh, host), Arc::new(tell));
        let (ip, range, ports) = ssh.check()?;
        Ok(Self {
            host: host.clone(),
            ip,
            range,
            ports,
        })
    }

    fn is_open(&self) -> bool {
        !self.ports.is_empty() && self.ports.iter().all(|port| port.tcp && port.udp)
    }

    fn json(&self) -> Value {
        let ports = self
            .ports
            .iter()
            .map(|port| json!({ "port": port.port, "tcp": port.tcp, "udp": port.udp }));
        json!({
            "host": self.host, "address": self.ip, "range": self.range.to_string(),
            "ports": ports.collect::<Vec<_>>(),
        })
    }

    fn text(&self) -> String {
        let Self {
            host, ip, range, ..
        } = self;
        let count =
            |passes: fn(&Reach) -> bool| self.ports.iter().filter(|port| passes(port)).count();
        let (all, tcp, udp) = (
            self.ports.len(),
            count(|port| port.tcp),
            count(|port| port.udp),
        );
        if all == 0 {
            return format!(
                "warning path: no port of {range} is free at {host}\n        # set HAUL_PORT_RANGE there\n"
            );
        }
        let amount = |protocol: &str, some: usize| match some {
            0 => format!("no {protocol}"),
            some if some == all => protocol.to_owned(),
            some => format!("{protocol} to {some} of {all} ports"),
        };
        let level = if self.is_open() {
            "ok      "
        } else {
            "warning "
        };
        let mut text = format!(
            "{level}path: {} and {} reach {host} at {ip}, ports {range}\n",
            amount("TCP", tcp),
            amount("UDP", udp)
        );
        if !self.is_open() {
            text += &format!(
                "        without UDP the data goes by TCP, without both through ssh itself, which is \
                 slower\n        # open TCP and UDP {range} of {ip} in every firewall on the way, or name \
                 other ports by HAUL_PORT_RANGE at {host}\n"
            );
        }
        text
    }
}

fn text(findings: &[Finding], all: bool) -> String {
    let mut text = String::new();
    let shown = findings
        .iter()
        .filter(|finding| all || finding.level > Level::Unknown);
    for finding in shown {
        let level = match finding.level {
            Level::Ok => "ok      ",
            Level::Unknown => "unknown ",
            Level::Advice => "advice  ",
            Level::Warning => "warning ",
        };
        text += &format!("{level}{}: {}\n", finding.check, finding.found);
        if finding.level > Level::Unknown {
            text += &format!("        {}\n", finding.why);
            if let Some(fix) = &finding.fix {
                text += &format!("        # {fix}\n");
            }
        }
    }
    let count = |level| {
        findings
            .iter()
            .filter(|finding| finding.level == level)
            .count()
    };
    let (warnings, advice) = (count(Level::Warning), count(Level::Advice));
    let fine = count(Level::Ok);
    text + &format!("warnings: {warnings}, advice: {advice}, passed: {fine}\n")
}
