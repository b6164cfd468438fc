//! Unmodified programs between the hosts of a lab, natively and under `haul run`: the common part
//! of figures 9 to 11.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use haul_io::process::Ended;
use haul_report::machine;
use serde_json::Value;

use super::bench::Context;
use super::record::Figure;
use haul_lab::compare::programs::in_path;
use haul_lab::compare::runner::{Running, Stop, spawn};
use haul_lab::lab::topology::WAN;
use haul_lab::lab::{Engine, Lab};
use haul_lab::scenario::Scenario;

/// The user for programs that refuse to run as root: `nobody`.
pub(super) const NOBODY: u32 = 65_534;
/// How long a program may take to end: a report of thousands of sockets is written meanwhile.
const END: Duration = Duration::from_secs(30);

/// By what a program's bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    NativeUdp,
    Ud,
    UdRecord,
    NativeTcp,
    Rc,
}

/// All of them, in the order of their turns.
pub(super) const CARRIERS: [Carrier; 5] = [
    Carrier::NativeUdp,
    Carrier::Ud,
    Carrier::UdRecord,
    Carrier::NativeTcp,
    Carrier::Rc,
];

impl Carrier {
    /// As `haul run` calls it in its reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::NativeUdp => "native UDP",
            Self::Ud => "UD send/recv",
            Self::UdRecord => "UD Write-Record",
            Self::NativeTcp => "native TCP",
            Self::Rc => "RC",
        }
    }

    /// The program's sockets are TCP's.
    pub(super) fn is_tcp(self) -> bool {
        matches!(self, Self::NativeTcp | Self::Rc)
    }

    /// The options of `haul run`; nothing where a program runs without.
    fn options(self) -> Option<&'static [&'static str]> {
        match self {
            Self::NativeUdp | Self::NativeTcp => None,
            Self::Ud | Self::Rc => Some(&[]),
            Self::UdRecord => Some(&["--write-record"]),
        }
    }
}

/// A directory that goes away with it.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Makes it, for everybody to read.
    pub(super) fn new() -> Result<Self> {
        let name = format!("haul-reproduce.{}", rustix::process::getpid().as_raw_pid());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let folder = Self(path);
        std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o755))?;
        Ok(folder)
    }

    /// A file in it.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A directory in it that belongs to [`NOBODY`].
    pub(super) fn nobodys(&self) -> Result<PathBuf> {
        let path = self.file("nobody");
        std::fs::create_dir(&path)?;
        chown(&path, Some(NOBODY), Some(NOBODY)).context("cannot give a directory away")?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A leftover is only a temporary file.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Two hosts joined directly, and the programs on them.
pub(super) struct Stage<'a> {
    context: &'a Context<'a>,
    lab: Lab,
    carrier: Carrier,
    /// The command prefix of every program, `haul run` included.
    before: Vec<OsString>,
    /// Where reports go.
    reports: PathBuf,
}

impl<'a> Stage<'a> {
    /// A fresh lab.
    pub(super) fn new(
        context: &'a Context<'a>,
        carrier: Carrier,
        before: &[OsString],
        reports: &Path,
    ) -> Result<Self> {
        Ok(Self {
            context,
            lab: direct()?,
            carrier,
            before: before.to_vec(),
            reports: reports.to_path_buf(),
        })
    }

    /// The lab.
    pub(super) fn lab(&self) -> &Lab {
        &self.lab
    }

    /// A host's address.
    pub(super) fn address(&self, host: &str) -> Result<String> {
        Ok(self.lab.host(host)?.addresses().v4.to_string())
    }

    /// So many addresses of host a: its own, and others that it is given.
    pub(super) fn addresses_of_a(&self, count: u32) -> Result<Vec<String>> {
        let own = self.lab.host("a")?.addresses().v4;
        let [a, b, c, _] = own.octets();
        let mut addresses = vec![own.to_string()];
        for number in 1..count {
            let last = u8::try_from(100 + number).context("too many addresses")?;
            let address = Ipv4Addr::new(a, b, c, last);
            let line = format!("address add {address}/24 dev {WAN}");
            tried(self.lab.command("a", "ip")?.args(line.split(' ')))?;
            addresses.push(address.to_string());
        }
        Ok(addresses)
    }

    /// Starts a program; its line is noted once, without what is different in every run.
    pub(super) fn start(
        &self,
        host: &str,
        line: &[String],
        figure: &mut Figure,
    ) -> Result<Running> {
        let words = self.words(host, line);
        let told: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let told = told
            .join(" ")
            .replace(&*self.reports.to_string_lossy(), "DIR");
        let told = format!("{host}: {told}");
        figure.command(told);
        spawn(&self.lab, host, &words)
    }

    fn words(&self, host: &str, line: &[String]) -> Vec<OsString> {
        let mut words = self.before.clone();
        if let Some(options) = self.carrier.options() {
            words.push(self.context.runner.programs.haul.clone().into());
            words.push("run".into());
            words.extend(options.iter().map(OsString::from));
            words.push("--json".into());
            let mut report = OsString::from("--report=");
            report.push(self.report(host));
            words.extend([report, "--".into()]);
        }
        words.extend(line.iter().map(OsString::from));
        words
    }

    /// Asks a program to end; how it did is its own affair.
    pub(super) fn end(&self, running: &mut Running) -> Result<Ended, Stop> {
        self.context.runner.end(running, END)
    }

    fn report(&self, host: &str) -> PathBuf {
        self.reports.join(format!("report-{host}.json"))
    }

    /// The program on a host has ended under `haul run`: bytes of its own must have been carried.
    /// Prints a warning if most were not.
    pub(super) fn check_carried(&self, host: &str, figure: &mut Figure) -> Result<()> {
        let Some((carried, plain)) = self.read_report(host)? else {
            return Ok(());
        };
        if plain > carried {
            figure.warn(format!(
                "{}, host {host}: only {:.0} % of the bytes were carried; the first bytes used the plain socket",
                self.carrier.name(),
                percent(carried, plain)
            ));
        }
        Ok(())
    }

    /// Bytes that were carried, which are some, and those that went plain; nothing where a program
    /// runs natively.
    pub(super) fn read_report(&self, host: &str) -> Result<Option<(u64, u64)>> {
        if self.carrier.options().is_none() {
            return Ok(None);
        }
        let path = self.report(host);
        let text = std::fs::read_to_string(&path).context("`haul run` wrote no report")?;
        std::fs::remove_file(&path)?;
        let found = carried(&text, self.carrier)?;
        let name = self.carrier.name();
        ensure!(found.0 > 0, "nothing was carried by {name} on host {host}");
        Ok(Some(found))
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
fn percent(part: u64, rest: u64) -> f64 {
    100.0 * part as f64 / (part + rest).max(1) as f64
}

/// Returns the bytes of a report that the carrier carried, and those of the same protocol that went
/// plain. A socket's sending mode does not determine its receiving mode: one that only received may
/// be of either kind of UD.
fn carried(report: &str, carrier: Carrier) -> Result<(u64, u64)> {
    let json: Value = serde_json::from_str(report).context("cannot understand a report")?;
    let rows = json["sockets"].as_array().context("a report of nothing")?;
    let protocol = if carrier.is_tcp() { "tcp" } else { "udp" };
    let rows = rows.iter().filter(|row| row["protocol"] == protocol);
    let octets = |row: &Value, kind: &str| -> u64 {
        let count = |way| row[format!("{kind}_{way}_bytes")].as_u64().unwrap_or(0);
        count("in") + count("out")
    };
    Ok(rows.fold((0, 0), |(carried, plain), row| {
        let only_received = row["carried_out_bytes"] == 0;
        let is_ud = row["by"] == Carrier::Ud.name() || row["by"] == Carrier::UdRecord.name();
        let by_it = row["by"] == carrier.name() || only_received && is_ud && !carrier.is_tcp();
        let more = if by_it { octets(row, "carried") } else { 0 };
        (carried + more, plain + octets(row, "plain"))
    }))
}

impl Context<'_> {
    /// Waits for an idle machine; prints a warning if it stays busy.
    pub(super) fn settle(&self, figure: &mut Figure) {
        let busy = machine::settle(self.runner.settle) > machine::IDLE_SHARE;
        if busy && !self.quick {
            figure.warn("others kept the processors busy before a measurement".into());
        }
    }

    /// Returns what these programs lack to run under `haul run`; `before` is the command prefix.
    pub(super) fn missing(
        &self,
        programs: &[&str],
        before: &[OsString],
    ) -> Result<Option<String>, Stop> {
        if let Some(name) = programs.iter().find(|name| in_path(name).is_none()) {
            return Ok(Some(format!(
                "not run: the program {name} is not installed"
            )));
        }
        let lab = direct()?;
        let mut words = before.to_vec();
        words.push(self.runner.programs.haul.clone().into());
        words.extend(["run", "--", "true"].map(OsString::from));
        let tried = tried(lab.command("a", &words[0])?.args(&words[1..]));
        Ok(tried
            .err()
            .map(|why| format!("not run: `haul run` does not work here: {why}")))
    }
}

/// A lab of two hosts joined directly.
fn direct() -> Result<Lab> {
    let scenario = Scenario::parse("reproduce", "[path]\nrtt = \"0ms\"\n")?;
    Lab::start_with(&scenario, Engine::None)
}

/// Runs a command that prints nothing unless it fails.
pub(super) fn tried(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    Err(anyhow!("{} ({})", last.unwrap_or("failed"), output.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_shows_carried_and_plain_bytes() {
        let report = r#"{"sockets":[
            {"protocol":"udp","by":"UD send/recv","carried_in_bytes":3,"carried_out_bytes":4,"plain_in_bytes":1,"plain_out_bytes":0},
            {"protocol":"udp","by":"kernel","carried_in_bytes":0,"carried_out_bytes":0,"plain_in_bytes":0,"plain_out_bytes":9},
            {"protocol":"tcp","by":"RC","carried_in_bytes":50,"carried_out_bytes":0,"plain_in_bytes":0,"plain_out_bytes":0}]}"#;
        assert_eq!(carried(report, Carrier::Ud).unwrap(), (7, 10));
        assert_eq!(carried(report, Carrier::UdRecord).unwrap(), (0, 10));
        let received = report.replace(r#""carried_out_bytes":4"#, r#""carried_out_bytes":0"#);
        assert_eq!(carried(&received, Carrier::UdRecord).unwrap(), (3, 10));
        assert_eq!(carried(report, Carrier::Rc).unwrap(), (50, 0));
        assert!(carried("{}", Carrier::Rc).is_err());
    }
}
