//! The programs that are compared: how each is started, and how its output is parsed.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use super::arrivals::Ends;
use super::cell::Cell;
use super::gridftp::Stack;
use super::plan::{Load, Plan, Reported};
use super::programs::Resolved;
use crate::scenario::unit::{Rate, Span};
use crate::usage::Usage;

/// The default port of `iperf3`.
pub const IPERF_PORT: u16 = 5201;

/// One program with its options.
#[derive(Clone, Debug)]
pub struct Tool {
    /// As on the command line.
    pub name: String,
    kind: Kind,
    streams: u16,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    HaulUdt {
        control: Control,
    },
    HaulTcp {
        congestion: Option<String>,
    },
    Iperf {
        congestion: String,
    },
    /// Datagrams at a fixed rate.
    Udp {
        rate: Rate,
    },
    Libudt,
    Gridftp(Stack),
}

/// The rate control of a UDT channel.
#[derive(Clone, Debug, PartialEq)]
enum Control {
    Default,
    Named(String),
    /// The path's rate is declared.
    Declared,
}

/// The tools of the command line.
pub fn parse_all(names: &[String]) -> Result<Vec<Tool>> {
    names.iter().map(|name| Tool::parse(name)).collect()
}

/// Some tools take no others.
pub fn whole_seconds(time: Span) -> Result<u32> {
    let seconds = u32::try_from(time.ns / 1_000_000_000).ok();
    seconds
        .filter(|&seconds| seconds > 0 && time.ns.is_multiple_of(1_000_000_000))
        .with_context(|| {
            Usage(format!(
                "--time {time} must be whole seconds: iperf3 takes no others"
            ))
        })
}

impl Tool {
    /// Reads a tool's name, as the command line has it.
    ///
    /// # Errors
    /// If there is no such tool.
    pub fn parse(name: &str) -> Result<Self> {
        let number = name.rsplit_once('-').and_then(|(rest, last)| {
            let streams: u16 = last.parse().ok()?;
            Some((rest, streams))
        });
        let (base, streams) = number.unwrap_or((name, 1));
        let kind = match base {
            "gridftp-tcp" => Kind::Gridftp(Stack::Tcp),
            "gridftp-tcp-untuned" => Kind::Gridftp(Stack::TcpUntuned),
            "gridftp-udt" => Kind::Gridftp(Stack::Udt),
            "gridftp-haul-tcp" => Kind::Gridftp(Stack::HaulTcp),
            "gridftp-haul-udt" => Kind::Gridftp(Stack::HaulUdt),
            "gridftp-haul-stream" => Kind::Gridftp(Stack::HaulStream),
            "haul-udt" => Kind::HaulUdt {
                control: Control::Default,
            },
            "haul-udt-rate" => Kind::HaulUdt {
                control: Control::Declared,
            },
            "haul-tcp" => Kind::HaulTcp { congestion: None },
            "libudt" if streams == 1 => Kind::Libudt,
            _ => Kind::parse(base).with_context(|| {
                Usage(format!(
                    "no tool `{name}`: use haul-udt, haul-udt-rate, haul-udt-CC, haul-tcp, haul-tcp-CC, iperf3-CC, udp-RATE, libudt, gridftp-tcp, \
                     gridftp-tcp-untuned, gridftp-udt, gridftp-haul-tcp, gridftp-haul-udt or gridftp-haul-stream, \
                     with -N for N streams"
                ))
            })?,
        };
        if !(1..=128).contains(&streams) {
            return Err(Usage(format!("`{name}`: 1 to 128 streams")).into());
        }
        Ok(Self {
            name: name.into(),
            kind,
            streams,
        })
    }

    /// It knows the rate beforehand.
    pub fn is_declared(&self) -> bool {
        self.kind
            == Kind::HaulUdt {
                control: Control::Declared,
            }
    }

    /// Parallel flows.
    pub fn streams(&self) -> u16 {
        self.streams
    }

    /// The rate at which it sends full packets without a control, bits per second of whole IP
    /// packets.
    pub fn offers_bps(&self, mtu: u16) -> Option<f64> {
        let Kind::Udp { rate } = self.kind else {
            return None;
        };
        #[expect(clippy::cast_precision_loss, reason = "rates are far below 2^53")]
        let payload_bps = rate.bps as f64;
        Some(payload_bps * f64::from(mtu) / f64::from(mtu - self.header_bytes()))
    }

    /// Overhead of each full IPv4 packet: IP and UDP and UDT's header, or IP and TCP with time
    /// stamps.
    pub fn header_bytes(&self) -> u16 {
        match self.kind {
            Kind::Udp { .. } => 20 + 8,
            Kind::HaulUdt { .. } | Kind::Libudt => 20 + 8 + 16,
            Kind::HaulTcp { .. } | Kind::Iperf { .. } => 20 + 20 + 12,
            Kind::Gridftp(stack) => stack.header_bytes(),
        }
    }

    /// Why it cannot run here, if so.
    pub fn missing(&self, programs: &Resolved, load: Load) -> Option<String> {
        match (&self.kind, load) {
            (Kind::Udp { .. }, Load::Bytes(_)) => Some("it sends for a time only, and --bytes was asked for".into()),
            (Kind::Iperf { .. } | Kind::Udp { .. }, _) if programs.iperf.is_none() => {
                Some("iperf3 is not installed".into())
            }
            (Kind::Gridftp(stack), _) => stack.missing(programs.xio_driver.as_deref(), load),
            (Kind::Libudt, Load::Bytes(_)) => Some("it sends for a time only, and --bytes was asked for".into()),
            (Kind::Libudt, _) => match &programs.udt_bench {
                None => Some("there is no udt_bench: make it with tests/interop/build.sh DIR (it needs libudt-dev) and pass --udt-bench DIR/udt_bench".into()),
                Some(path) if !path.is_file() => Some(format!("{} is not there", path.display())),
                Some(_) => None,
            },
            (Kind::HaulTcp { congestion: Some(name) } | Kind::Iperf { congestion: name }, _) => no_congestion_control(name),
            _ => None,
        }
    }

    /// Why it cannot run on this path, if so.
    pub fn unfit(&self, cell: &Cell) -> Option<&'static str> {
        (self.is_declared() && cell.rate_bps().is_none())
            .then_some("the path has no rate to declare")
    }

    /// Its command lines. Flow `index` of several has a port of its own.
    pub fn plan(
        &self,
        programs: &Resolved,
        cell: &Cell,
        load: Load,
        dir: &Path,
        index: u16,
    ) -> Result<Plan> {
        match &self.kind {
            Kind::HaulUdt { .. } | Kind::HaulTcp { .. } => {
                self.plan_haul(programs, cell, load, dir, 4725 + index)
            }
            Kind::Iperf { congestion } => {
                let options = ["-C", congestion].map(OsString::from);
                Ok(self.plan_iperf(programs, &options, load, IPERF_PORT + index))
            }
            Kind::Udp { rate } => {
                let payload = cell.scenario.mtu - self.header_bytes();
                let (rate, payload) = (rate.bps.to_string(), payload.to_string());
                let options = ["-u", "-b", &rate, "-l", &payload].map(OsString::from);
                Ok(self.plan_iperf(programs, &options, load, IPERF_PORT + index))
            }
            Kind::Libudt => plan_libudt(programs, cell, load, 9000 + index),
            // The clients of a server on each host share its port.
            Kind::Gridftp(_) if index > 0 => bail!("{} runs alone on a path", self.name),
            Kind::Gridftp(stack) => {
                stack.plan(programs.xio_driver.as_deref(), load, self.streams, dir)
            }
        }
    }

    fn plan_haul(
        &self,
        programs: &Resolved,
        cell: &Cell,
        load: Load,
        dir: &Path,
        port: u16,
    ) -> Result<Plan> {
        let haul = programs.haul.as_os_str();
        let mut server = words(
            haul,
            &["serve", "--listen", "0.0.0.0", "--allow-insecure", "-q"],
        );
        server.extend(["--port".into(), port.to_string().into(), dir.into()]);
        let mut client = words(haul, &["bench", "b", "--json", "-q", "--port"]);
        client.push(port.to_string().into());
        client.extend(match load {
            Load::Seconds(seconds) => ["--time".into(), format!("{seconds}s").into()],
            Load::Bytes(bytes) => ["--bytes".into(), bytes.to_string().into()],
        });
        let streams = self.streams.to_string();
        let mut options = vec!["--streams", &streams, "--channel"];
        let rate;
        match &self.kind {
            Kind::HaulUdt {
                control: Control::Declared,
            } => {
                let bps = cell.rate_bps().with_context(|| {
                    format!("{} has no rate to declare to {}", cell.name, self.name)
                })?;
                rate = format!("{bps}bit");
                options.extend(["udt", "--rate", &rate]);
            }
            Kind::HaulTcp {
                congestion: Some(name),
            } => options.extend(["tcp", "--cc", name]),
            Kind::HaulTcp { congestion: None } => options.push("tcp"),
            Kind::HaulUdt {
                control: Control::Named(name),
            } => options.extend(["udt", "--cc", name]),
            _ => options.push("udt"),
        }
        client.extend(options.into_iter().map(OsString::from));
        Ok(Plan {
            server,
            client,
            port,
            udp: false,
            server_ends: false,
        })
    }

    fn plan_iperf(&self, programs: &Resolved, options: &[OsString], load: Load, port: u16) -> Plan {
        plan_iperf(programs, "b", self.streams, options, load, port)
    }

    /// Parses the output of both ends.
    pub fn reported(&self, server: &str, client: &str, cell: &Cell) -> Result<Reported> {
        let reported = match self.kind {
            Kind::HaulUdt { .. } | Kind::HaulTcp { .. } => reported_haul(client),
            Kind::Iperf { .. } => reported_iperf(client, cell.rtt_s()),
            Kind::Udp { .. } => reported_udp(client),
            Kind::Gridftp(stack) => stack.reported(server, cell.rtt_s()),
            Kind::Libudt => reported_libudt(server, client, payload_bytes(cell, self)),
        };
        let reported =
            reported.with_context(|| format!("cannot understand what {} printed", self.name))?;
        if reported.bytes == 0 || reported.seconds <= 0.0 {
            bail!("{} moved nothing", self.name);
        }
        Ok(reported)
    }
}

impl Kind {
    /// The kinds whose names include parameters.
    fn parse(name: &str) -> Option<Self> {
        if let Some(control) = name.strip_prefix("haul-udt-") {
            let control = Control::Named(control.into());
            return Some(Self::HaulUdt { control });
        }
        if let Some(congestion) = name.strip_prefix("haul-tcp-") {
            let congestion = Some(congestion.into());
            return Some(Self::HaulTcp { congestion });
        }
        match name.split_once('-')? {
            ("iperf3", congestion) => Some(Self::Iperf {
                congestion: congestion.into(),
            }),
            ("udp", rate) => Rate::parse(rate).ok().map(|rate| Self::Udp { rate }),
            _ => None,
        }
    }
}

/// A server on host `b`, and a client that connects to `target`, which leads there.
pub fn plan_iperf(
    programs: &Resolved,
    target: &str,
    streams: u16,
    options: &[OsString],
    load: Load,
    port: u16,
) -> Plan {
    let iperf = programs
        .iperf
        .as_deref()
        .unwrap_or_else(|| Path::new("iperf3"))
        .as_os_str();
    let port_text = port.to_string();
    let amount = match load {
        Load::Seconds(seconds) => ["-t".to_string(), seconds.to_string()],
        Load::Bytes(bytes) => ["-n".to_string(), bytes.to_string()],
    };
    let streams = streams.to_string();
    let mut client = words(
        iperf,
        &[
            "-c",
            target,
            "-J",
            "--get-server-output",
            "-p",
            &port_text,
            "-P",
            &streams,
        ],
    );
    client.extend_from_slice(options);
    client.extend(amount.map(OsString::from));
    Plan {
        server: words(iperf, &["-s", "-1", "-J", "-p", &port_text]),
        client,
        port,
        udp: false,
        server_ends: true,
    }
}

fn plan_libudt(programs: &Resolved, cell: &Cell, load: Load, port: u16) -> Result<Plan> {
    let program = programs
        .udt_bench
        .as_deref()
        .context("there is no udt_bench")?
        .as_os_str();
    let Load::Seconds(seconds) = load else {
        bail!("libudt sends for a time only");
    };
    // Two bandwidth-delay products with a margin, or as much as a fast machine needs without delay.
    let packets = cell.bdp_bytes().unwrap_or(0.0) * 2.0 / f64::from(cell.scenario.mtu);
    let window = format!("{:.0}", packets.max(25_600.0));
    let (port_text, mtu) = (port.to_string(), cell.scenario.mtu.to_string());
    let limit = (seconds + 30).to_string();
    let common = [
        "--window",
        &window,
        "--mss",
        &mtu,
        "--timeout",
        &limit,
        "--bind",
    ];
    let mut server = words(program, &["recv", &port_text]);
    server.extend(common.into_iter().chain(["0.0.0.0"]).map(OsString::from));
    let mut client = words(
        program,
        &["send", "$LAB_B", &port_text, &seconds.to_string()],
    );
    client.extend(common.into_iter().chain(["0.0.0.0"]).map(OsString::from));
    Ok(Plan {
        server,
        client,
        port,
        udp: true,
        server_ends: true,
    })
}

fn reported_haul(client: &str) -> Result<Reported> {
    let json: Value = serde_json::from_str(client)?;
    let spans = json["intervals"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    Ok(Reported {
        bytes: count(&json["bytes"])?,
        seconds: number(&json["seconds"])?,
        ends: Ends::LastByte,
        resent_bytes: number(&json["retransmitted_bytes"])?,
        spans: spans.iter().map(span).collect::<Result<_>>()?,
    })
}

fn reported_iperf(client: &str, rtt_s: f64) -> Result<Reported> {
    let json: Value = serde_json::from_str(client)?;
    if let Some(error) = json["error"].as_str() {
        bail!("iperf3 failed: {error}");
    }
    let (sent, received) = (&json["end"]["sum_sent"], &json["end"]["sum_received"]);
    Ok(Reported {
        bytes: count(&received["bytes"])?,
        // The server's clock starts when it requests data from the client: the first byte arrives a
        // round trip later.
        seconds: (number(&received["seconds"])? - rtt_s).max(number(&sent["seconds"])?),
        ends: Ends::Reported,
        resent_bytes: number(&sent["retransmits"])? * number(&json["start"]["tcp_mss_default"])?,
        spans: iperf_spans(&json)?,
    })
}

/// The server's received bytes by time: each span's seconds and bytes.
pub fn iperf_spans(client: &Value) -> Result<Vec<(f64, f64)>> {
    let spans = client["server_output_json"]["intervals"].as_array();
    let spans = spans.map(Vec::as_slice).unwrap_or_default();
    spans.iter().map(|each| span(&each["sum"])).collect()
}

fn reported_udp(client: &str) -> Result<Reported> {
    let json: Value = serde_json::from_str(client)?;
    if let Some(error) = json["error"].as_str() {
        bail!("iperf3 failed: {error}");
    }
    let intervals = json["server_output_json"]["intervals"]
        .as_array()
        .context("the server's intervals are missing")?;
    let spans = intervals.iter().map(|each| span(&each["sum"]));
    let spans = spans.collect::<Result<Vec<_>>>()?;
    let arrived = intervals.iter().map(|each| count(&each["sum"]["bytes"]));
    Ok(Reported {
        bytes: arrived.sum::<Result<u64>>()?,
        seconds: spans.iter().map(|(length, _)| length).sum(),
        ends: Ends::Reported,
        resent_bytes: 0.0,
        spans,
    })
}

fn reported_libudt(server: &str, client: &str, payload: f64) -> Result<Reported> {
    let (receiver, sender): (Value, Value) =
        (serde_json::from_str(server)?, serde_json::from_str(client)?);
    let step = number(&receiver["interval_ms"])? / 1e3;
    let totals = receiver["bytes_by_interval"].as_array();
    let totals = totals.map(Vec::as_slice).unwrap_or_default();
    let totals = totals.iter().map(number).collect::<Result<Vec<f64>>>()?;
    let before = std::iter::once(0.0).chain(totals.iter().copied());
    Ok(Reported {
        bytes: count(&receiver["bytes"])?,
        seconds: number(&receiver["seconds"])?,
        ends: Ends::Reported,
        resent_bytes: number(&sender["packets_retransmitted"])? * payload,
        spans: totals
            .iter()
            .zip(before)
            .map(|(now, before)| (step, now - before))
            .collect(),
    })
}

fn span(json: &Value) -> Result<(f64, f64)> {
    let (start, end) = match json.get("start_s") {
        Some(start) => (start, &json["end_s"]),
        None => (&json["start"], &json["end"]),
    };
    Ok((number(end)? - number(start)?, number(&json["bytes"])?))
}

fn number(json: &Value) -> Result<f64> {
    json.as_f64().ok_or_else(|| anyhow!("a number is missing"))
}

fn count(json: &Value) -> Result<u64> {
    json.as_u64().ok_or_else(|| anyhow!("a count is missing"))
}

fn payload_bytes(cell: &Cell, tool: &Tool) -> f64 {
    f64::from(cell.scenario.mtu) - f64::from(tool.header_bytes())
}

/// Returns why the kernel cannot use a congestion control; `None` if it can.
pub fn no_congestion_control(name: &str) -> Option<String> {
    let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let text = std::fs::read_to_string(path).ok()?;
    let found = text.split_whitespace().any(|each| each == name);
    (!found).then(|| {
        format!(
            "the kernel has not loaded {name} (it has {}); as root, try `modprobe tcp_{name}`",
            text.trim()
        )
    })
}

fn words(program: &std::ffi::OsStr, rest: &[&str]) -> Vec<OsString> {
    std::iter::once(program.to_os_string())
        .chain(rest.iter().map(OsString::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::unit::Probability;

    fn cell() -> Cell {
        let (rate, rtt) = (Rate { bps: 1_000_000_000 }, Span { ns: 10_000_000 });
        super::super::cell::figures(rate, rtt, Probability(0.0), 1500).unwrap()
    }

    #[test]
    fn names_select_the_command() {
        let parse = |name: &str| Tool::parse(name).unwrap();
        let control = Control::Default;
        assert_eq!(parse("haul-udt").kind, Kind::HaulUdt { control });
        let control = Control::Named("htcp".into());
        assert_eq!(parse("haul-udt-htcp").kind, Kind::HaulUdt { control });
        let rate = Rate { bps: 300_000_000 };
        assert_eq!(parse("udp-300Mbit").kind, Kind::Udp { rate });
        let offered = parse("udp-736Mbit").offers_bps(1_500).unwrap();
        assert!((offered - 750e6).abs() < 1.0);
        assert!(parse("haul-udt-rate").is_declared());
        assert_eq!(parse("haul-tcp-8").streams, 8);
        assert_eq!(parse("gridftp-tcp-untuned-4").streams, 4);
        let stack = Stack::HaulStream;
        assert_eq!(parse("gridftp-haul-stream").kind, Kind::Gridftp(stack));
        let congestion = Some("bbr".to_string());
        assert_eq!(parse("haul-tcp-bbr-2").kind, Kind::HaulTcp { congestion });
        let congestion = "cubic".to_string();
        assert_eq!(parse("iperf3-cubic-8").kind, Kind::Iperf { congestion });
        for wrong in [
            "",
            "iperf3",
            "libudt-2",
            "haul-udt-0",
            "quic",
            "haul-x",
            "udp-",
            "udp-x",
        ] {
            assert!(Tool::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_whole_seconds() {
        assert_eq!(whole_seconds(Span { ns: 3_000_000_000 }).unwrap(), 3);
        assert!(whole_seconds(Span { ns: 1_500_000_000 }).is_err());
        assert!(whole_seconds(Span { ns: 0 }).is_err());
    }

    #[test]
    fn iperf_is_counted_from_its_first_byte() {
        let text = r#"{"start":{"tcp_mss_default":1448},"end":{
            "sum_sent":{"seconds":1.0002,"bytes":124649472,"retransmits":10},
            "sum_received":{"seconds":1.013,"bytes":113737504}}}"#;
        let reported = Tool::parse("iperf3-bbr")
            .unwrap()
            .reported("", text, &cell())
            .unwrap();
        assert_eq!(reported.bytes, 113_737_504);
        assert!((reported.seconds - 1.003).abs() < 1e-9);
        assert!((reported.resent_bytes - 14_480.0).abs() < 1e-9);
    }

    #[test]
    fn repairs_after_the_time_is_up_count_for_nothing() {
        let text = r#"{"bytes":2100,"seconds":2.1,"retransmitted_bytes":0,"intervals":[
            {"start_s":0.0,"end_s":1.0,"bytes":1000},{"start_s":1.0,"end_s":2.0,"bytes":1000},
            {"start_s":2.0,"end_s":3.0,"bytes":100}]}"#;
        let reported = Tool::parse("haul-udt")
            .unwrap()
            .reported("", text, &cell())
            .unwrap();
        assert_eq!(reported.within(Some(2.1), Some(2.0)), (2000.0, 2.0));
        // Its first byte came a tenth of a second before it saw it.
        let (bytes, seconds) = reported.within(Some(2.2), Some(2.0));
        assert!((bytes - 1900.0).abs() < 1e-6 && (seconds - 2.0).abs() < 1e-9);
        assert_eq!(reported.within(Some(2.1), None), (2100.0, 2.1));
    }

    #[test]
    fn what_is_no_result_is_an_error() {
        let tool = Tool::parse("iperf3-bbr").unwrap();
        let error = tool
            .reported("", r#"{"error":"unable to connect"}"#, &cell())
            .unwrap_err();
        assert!(format!("{error:#}").contains("unable to connect"));
        for text in [
            "",
            "{}",
            r#"{"bytes":0,"seconds":1,"retransmitted_bytes":0}"#,
        ] {
            assert!(
                Tool::parse("haul-udt")
                    .unwrap()
                    .reported("", text, &cell())
                    .is_err()
            );
        }
    }

    #[test]
    fn libudts_totals_become_spans() {
        let server =
            r#"{"seconds":0.2,"bytes":300,"interval_ms":100,"bytes_by_interval":[100,300]}"#;
        let client = r#"{"packets_retransmitted":2}"#;
        let reported = Tool::parse("libudt")
            .unwrap()
            .reported(server, client, &cell())
            .unwrap();
        assert_eq!(reported.spans, [(0.1, 100.0), (0.1, 200.0)]);
        assert!((reported.resent_bytes - 2912.0).abs() < 1e-9);
    }
}
