//! GridFTP as Debian has it, from memory to memory between a server on each host: Globus' own TCP,
//! Debian's UDT driver, and the driver of Longhaul (docs/gridftp.md).

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::arrivals::{DAY_S, Ends};
use super::plan::{Load, Plan, Reported};
use super::programs::in_path;
use crate::driver::DRIVER;

/// The transport of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stack {
    /// With the buffer sizes of the lab's hosts, which suffice for any of its paths.
    Tcp,
    /// With the defaults of Linux.
    TcpUntuned,
    Udt,
    HaulTcp,
    HaulUdt,
    /// UDT without RDMA.
    HaulStream,
}

/// Where a host's buffers of TCP are set, and what Linux sets there on a machine with memory.
const UNTUNED: &str = r#"
if test -n "$UNTUNED"; then
  echo '4096 131072 6291456' >/proc/sys/net/ipv4/tcp_rmem
  echo '4096 16384 4194304' >/proc/sys/net/ipv4/tcp_wmem
fi
"#;

/// The port of host `b`'s server; that of host `a`'s is the next one, 2812 or 0AFC.
const PORT: u16 = 2811;
/// A server on host `b`. When it is asked to end, it waits for its sessions, which close after
/// their client has gone, and prints its log and the statistics of the driver.
const SERVER: &str = r#"
dir=$1
shift
GLOBUS_HOSTNAME=$LAB_B "$@" -p 2811 -control-interface "$LAB_B" -data-interface "$LAB_B" -d ALL -l "$dir/b.log" >&2 &
server=$!
finish() {
  tries=0
  while test -n "$(cat /proc/$server/task/*/children)" && test $tries -lt 40; do sleep 0.05; tries=$((tries + 1)); done
  kill $server
  wait $server
  cat "$dir/b.log" "$HAUL_XIO_STATS" "$dir/end"
  exit 0
}
trap finish TERM
wait $server
"#;
/// The client on host `a`, with a server of its own: it requests a transfer between the two
/// servers. Debian's UDT driver notices the end of a transfer by polling every 10 s. So the client
/// waits for the log of host `b`'s server, which does not count a transfer whose abort it takes for
/// a failure, and records the end itself.
const CLIENT: &str = r#"
dir=$1 seconds=$2 streams=$3
shift 3
: >"$HAUL_XIO_STATS"
GLOBUS_HOSTNAME=$LAB_A "$@" -p 2812 -control-interface "$LAB_A" -data-interface "$LAB_A" -d ALL -l "$dir/a.log" >&2 &
server=$!
until awk '$4 == "0A" && $2 ~ /:0AFC$/ { up = 1 } END { exit !up }' /proc/net/tcp /proc/net/tcp6; do
  kill -0 $server || exit 1
  sleep 0.02
done
globus-url-copy -t "$seconds" -p "$streams" "ftp://$LAB_A:2812/dev/zero" "ftp://$LAB_B:2811/dev/null" >&2
status=$?
date -u +END=%Y%m%d%H%M%S.%N >"$dir/end"
tries=0
until grep -q 'Transfer stats:.*TYPE=STOR\|Failure attempting to transfer' "$dir/b.log" || test $status != 0 || test $tries -gt 300; do
  sleep 0.05
  tries=$((tries + 1))
done
tries=0
while test -n "$(cat /proc/$server/task/*/children)" && test $tries -lt 40; do sleep 0.05; tries=$((tries + 1)); done
kill $server
wait $server
exit $status
"#;

impl Stack {
    /// It is the driver of Longhaul that carries.
    pub(super) fn is_ours(self) -> bool {
        matches!(self, Self::HaulTcp | Self::HaulUdt | Self::HaulStream)
    }

    /// As the server's `-dc-default` has it.
    fn driver(self) -> &'static str {
        match self {
            Self::Tcp | Self::TcpUntuned => "tcp",
            Self::Udt => "udt",
            Self::HaulTcp => "haul:channel=iwarp-tcp",
            Self::HaulUdt => "haul:channel=iwarp-udt",
            Self::HaulStream => "haul:channel=udt",
        }
    }

    /// Overhead of each full IPv4 packet: as TCP, as UDT, or UDT with a tagged DDP header and a
    /// CRC.
    pub(super) fn header_bytes(self) -> u16 {
        match self {
            Self::Tcp | Self::TcpUntuned | Self::HaulTcp => 20 + 20 + 12,
            Self::Udt | Self::HaulStream => 20 + 8 + 16,
            Self::HaulUdt => 20 + 8 + 16 + 14 + 4,
        }
    }

    /// Why it cannot run here, if so. `drivers` is where the driver of Longhaul is, if not where
    /// the system looks.
    pub(super) fn missing(self, drivers: Option<&Path>, load: Load) -> Option<String> {
        if let Some(why) = missing() {
            return Some(why);
        }
        if matches!(load, Load::Bytes(_)) {
            return Some("it sends for a time only, and --bytes was asked for".into());
        }
        if self == Self::Udt {
            let missing = !is_installed("libglobus_xio_udt_driver.so");
            return missing.then(|| "libglobus-xio-udt-driver is not installed".into());
        }
        let missing = self.is_ours() && drivers.is_none() && !is_installed(DRIVER);
        missing.then(|| {
            format!(
                "there is no {DRIVER}: build it with `make -C c xio` (it needs libglobus-xio-dev), or say with --xio-driver FOLDER or \
                 HAUL_XIO_DRIVER where it is"
            )
        })
    }

    /// Its command lines.
    pub(super) fn plan(
        self,
        drivers: Option<&Path>,
        load: Load,
        streams: u16,
        dir: &Path,
    ) -> Result<Plan> {
        let Load::Seconds(seconds) = load else {
            bail!("GridFTP sends for a time only");
        };
        let before = |script: &str| {
            let mut words: Vec<OsString> = vec!["env".into()];
            let mut statistics = OsString::from("HAUL_XIO_STATS=");
            statistics.push(dir.join("xio.json"));
            words.push(statistics);
            if let Some(folder) = drivers {
                let mut path = OsString::from("LD_LIBRARY_PATH=");
                path.push(folder);
                words.push(path);
            }
            if self == Self::TcpUntuned {
                words.push("UNTUNED=yes".into());
            }
            let script = format!("{UNTUNED}{script}");
            words.extend(["sh", "-c", &script, "gridftp"].map(OsString::from));
            words.push(dir.into());
            words
        };
        let server = [
            "globus-gridftp-server",
            "-aa",
            "-anonymous-user",
            "root",
            "-allow-root",
            "-home-dir",
            "/",
            "-threads",
            "2",
            "-dc-whitelist",
            "tcp,gsi,udt,haul",
            "-dc-default",
            self.driver(),
        ];
        let (mut at_b, mut at_a) = (before(SERVER), before(CLIENT));
        at_b.extend(server.map(OsString::from));
        at_a.extend([seconds.to_string().into(), streams.to_string().into()]);
        at_a.extend(server.map(OsString::from));
        Ok(Plan {
            server: at_b,
            client: at_a,
            port: PORT,
            udp: false,
            server_ends: false,
        })
    }

    /// Parses the output of the server on host `b`. The report of Longhaul's driver must show that
    /// it carried the transfer.
    ///
    /// The client aborts the transfer when its time is over. Host `b` receives the abort half an
    /// RTT later, and counts the bytes so far; if it logs the end before, the transfer was
    /// complete.
    pub(super) fn reported(self, server: &str, rtt_s: f64) -> Result<Reported> {
        let Stored { bytes, begin, end } = stored(server)?;
        let since = |moment: f64| (moment - begin).rem_euclid(DAY_S);
        let broken_off = server.lines().rfind(|line| line.starts_with("END="));
        let seconds = match broken_off {
            Some(line) => since(end).min(since(moment(&line["END=".len()..])? + rtt_s / 2.0)),
            None => since(end),
        };
        let carried = carried(server);
        if self.is_ours() && carried < bytes {
            bail!("the driver carried {carried} of {bytes} bytes: was it loaded?");
        }
        if !self.is_ours() && carried > 0 {
            bail!("the driver carried what others should have");
        }
        Ok(Reported {
            bytes,
            seconds,
            ends: Ends::At((begin + seconds).rem_euclid(DAY_S)),
            resent_bytes: 0.0,
            spans: Vec::new(),
        })
    }
}

/// Why GridFTP cannot run here at all, if so.
pub fn missing() -> Option<String> {
    let programs = ["globus-gridftp-server", "globus-url-copy"];
    let name = programs.iter().find(|name| in_path(name).is_none())?;
    Some(format!("{name} is not installed"))
}

/// A transfer as the server that took it logged it; times are seconds of the day.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) bytes: u64,
    /// When it was asked to.
    pub(super) begin: f64,
    pub(super) end: f64,
}

pub(super) fn stored(server: &str) -> Result<Stored> {
    let stored = server
        .lines()
        .rfind(|line| line.contains("Transfer stats:") && line.contains("TYPE=STOR"));
    let stored = stored.context("the server did not log a transfer")?;
    let word = |key: &str| {
        let mut words = stored.split_whitespace();
        words.find_map(|word| word.strip_prefix(key))
    };
    Ok(Stored {
        bytes: word("NBYTES=").context("no NBYTES")?.parse()?,
        begin: moment(word("START=").context("no START")?)?,
        end: moment(word("DATE=").context("no DATE")?)?,
    })
}

/// Bytes that came in by the driver.
fn carried(server: &str) -> u64 {
    let lines = server.lines().filter(|line| line.starts_with('{'));
    let reported = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let by_it =
        reported.filter(|reported| reported["role"] == "passive" && reported["channel"] != "tcp");
    by_it
        .filter_map(|reported| reported["rx_bytes"].as_u64())
        .sum()
}

/// Seconds of the day, of 20261121205745.264303.
fn moment(text: &str) -> Result<f64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let part = |from: usize| -> Result<f64> {
        let digits = whole.get(from..from + 2).context("a short time stamp")?;
        Ok(digits.parse()?)
    };
    let fraction: f64 = format!("0.{fraction}").parse()?;
    Ok(part(8)? * 3600.0 + part(10)? * 60.0 + part(12)? + fraction)
}

/// Whether a library is where the system, or this program's environment, looks for libraries.
fn is_installed(file: &str) -> bool {
    let said = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = ["/usr/local/lib", "/usr/lib", "/usr/lib64"].map(PathBuf::from);
    let below = std::fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .flatten();
    let mut all = std::env::split_paths(&said)
        .chain(folders)
        .chain(below.map(|entry| entry.path()));
    all.any(|folder| folder.join(file).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "[9] Sat Nov 21 :: Transfer stats: DATE=20261122000001.250000 NL.EVNT=FTP_INFO START=20261121235958.750000 \
                       NBYTES=1000 TYPE=STOR CODE=226\n";
    const STATISTICS: &str = r#"{"role":"passive","channel":"iwarp-udt","rx_bytes":1017}"#;

    #[test]
    fn a_transfer_is_read_from_the_log() {
        let reported = Stack::Tcp.reported(LOG, 0.0).unwrap();
        assert_eq!(reported.bytes, 1000);
        assert!((reported.seconds - 2.5).abs() < 1e-6);
        let earlier = format!("{LOG}END=20261122000000.750000123\n");
        let reported = Stack::Udt.reported(&earlier, 0.2).unwrap();
        assert!((reported.seconds - 2.1).abs() < 1e-3);
        assert!(matches!(reported.ends, Ends::At(clock_s) if (clock_s - 0.85).abs() < 1e-3));
        let later = format!("{LOG}END=20261122000009.0\n");
        assert!((Stack::Udt.reported(&later, 0.2).unwrap().seconds - 2.5).abs() < 1e-6);
        assert!(Stack::Tcp.reported("nothing", 0.0).is_err());
    }

    #[test]
    fn what_the_driver_did_not_carry_is_no_result_of_its() {
        let both = format!("{LOG}{STATISTICS}\n");
        assert_eq!(Stack::HaulUdt.reported(&both, 0.0).unwrap().bytes, 1000);
        assert!(Stack::HaulUdt.reported(LOG, 0.0).is_err());
        assert!(Stack::Tcp.reported(&both, 0.0).is_err());
    }
}
