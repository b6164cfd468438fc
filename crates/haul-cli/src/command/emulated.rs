//! Profiles of paths that are emulated on this machine: each is a lab, with a server on host `b`
//! and a client on host `a`.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use haul::fault::{Code, Fault};
use haul_bench::path::document::Document;
use haul_bench::path::record::{Beside, Run};
use haul_bench::path::show;
use haul_bench::profile::findings;
use haul_bench::profile::schedule::omitted;
use haul_lab::{Lab, Scenario};
use haul_report::axis::{bytes, number, rate};

use super::path::progress;
use crate::args::path::{Connect, Engine};
use crate::args::profile::{Emulated, Profile, Sweep};
use crate::output::path::PathOutput;

/// A run sends for so many round trips, between these.
const ROUND_TRIPS: u32 = 60;
const SHORTEST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(12);
/// Making a lab and connecting takes about so long.
const OVERHEAD: Duration = Duration::from_millis(1500);
/// The least time in which anything is measured.
pub(super) const LEAST: Duration = SHORTEST.saturating_add(OVERHEAD);

/// A whole profile of one scenario.
pub(super) fn scenario(args: &Profile, which: &str, document: &mut Document) -> Result<(), Fault> {
    let scenario = Scenario::load(which).map_err(|error| usage(&error))?;
    let host = Host::start(&scenario)?;
    let mut words = vec![
        "profile".to_owned(),
        "b".into(),
        "--json".into(),
        "--inside".into(),
    ];
    let list = |words: Vec<String>| words.join(",");
    if !args.only.is_empty() {
        words.extend(["--only".into(), list(args.only.iter().map(word).collect())]);
    }
    words.extend([
        "--engines".into(),
        list(args.engines.iter().map(word).collect()),
    ]);
    words.extend([
        "--max-time".into(),
        format!("{}s", args.max_time.as_secs_f64()),
    ]);
    words.extend(["--repetitions".into(), args.repetitions.to_string()]);
    if args.full {
        words.push("--full".into());
    }
    if args.output.quiet {
        words.push("--quiet".into());
    }
    let words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
    let found = host.ask(&words)?;
    let command = std::mem::take(&mut document.command);
    *document = Document {
        command,
        peer: format!("scenario {}", scenario.name),
        server: None,
        ..found
    };
    Ok(())
}

/// One run over one emulated path.
struct Cell {
    section: &'static str,
    rtt: Duration,
    loss: f64,
    /// The share of packets that are held back.
    reorder: f64,
    engine: Engine,
    streams: u16,
    /// Of a sweep.
    rdma: Option<Rdma>,
}

/// What a sweep asks of RDMA.
#[derive(Clone, Copy)]
struct Rdma {
    size: u32,
    depth: u32,
    connect: Connect,
}

impl Cell {
    fn words(&self) -> String {
        let ms = self.rtt.as_secs_f64() * 1e3;
        let share = |name: &str, share: f64| {
            if share > 0.0 {
                format!(", {name} {}", number(share))
            } else {
                String::new()
            }
        };
        let (loss, reorder) = (share("loss", self.loss), share("reordered", self.reorder));
        let what = match &self.rdma {
            None if self.streams == 1 => "1 stream".to_owned(),
            None => format!("{} streams", self.streams),
            Some(rdma) => {
                let cm = match rdma.connect {
                    Connect::Cm => "",
                    Connect::Exchange => ", without connection manager",
                };
                format!("{} x {}{cm}", bytes(rdma.size.into()), rdma.depth)
            }
        };
        format!(
            "{}: {}, {} ms{loss}{reorder}, {what}",
            self.section,
            word(&self.engine),
            number(ms),
        )
    }

    /// How long it sends, `most` at most.
    fn time(&self, most: Duration) -> Duration {
        (self.rtt * ROUND_TRIPS).clamp(SHORTEST, most)
    }

    fn level(&self) -> f64 {
        match self.section {
            findings::LOSS | findings::LOSS_SWEEP => self.loss,
            findings::REORDER_SWEEP => self.reorder,
            _ => self.rtt.as_secs_f64() * 1e3,
        }
    }

    /// The path, in the words of a scenario.
    fn scenario(&self, args: &Emulated) -> String {
        let mut text = format!(
            "[path]\nrate = \"{}bit\"\nrtt = \"{}ns\"\nloss = {:e}\n",
            args.rate,
            self.rtt.as_nanos(),
            self.loss
        );
        if self.reorder > 0.0 {
            text += &format!(
                "reorder = {{ probability = {:e}, delay = \"{}ns\" }}\n",
                self.reorder,
                args.reorder_delay.as_nanos()
            );
        }
        text
    }
}

/// Goodput by distance and by loss.
pub(super) fn sweep(
    args: &Profile,
    document: &mut Document,
    output: &PathOutput,
) -> Result<(), Fault> {
    let cells = if args.emulated.sweep.is_empty() {
        cells(args)
    } else {
        sweep_cells(args)
    };
    let most = most(cells.len(), args.max_time);
    let cost = |cells: &[Cell]| {
        cells
            .iter()
            .map(|cell| cell.time(most) + OVERHEAD)
            .sum::<Duration>()
    };
    document.peer = format!("emulated paths of {}", rate(f64_of(args.emulated.rate)));
    let (begun, mut skipped) = (Instant::now(), 0);
    for (index, cell) in cells.iter().enumerate() {
        let left = cost(&cells[index..]).min(args.max_time.saturating_sub(begun.elapsed()));
        if index > 0 && begun.elapsed() + cell.time(most) + OVERHEAD > args.max_time {
            skipped += 1;
            continue;
        }
        output.status(&progress(index + 1, cells.len(), left, &cell.words()));
        match measure(args, cell, cell.time(most)) {
            Ok(run) => {
                show_run(output, &run);
                document.runs.push(run);
            }
            Err(fault) if document.runs.is_empty() => return Err(fault),
            Err(fault) => {
                output.status_over();
                output.note(&format!("left out: {}: {fault}", cell.words()));
                document.left_out.push(format!("{}: {fault}", cell.words()));
            }
        }
    }
    if skipped > 0 {
        let text = format!("the time was up before {skipped} of {} runs", cells.len());
        output.status_over();
        output.note(&format!("left out: {text}; add time with --max-time"));
        document.left_out.push(text);
    }
    document.findings = findings::of(document);
    Ok(())
}

/// How long a run may send, so that all of them fit into the time.
fn most(cells: usize, time: Duration) -> Duration {
    let each = time / u32::try_from(cells.max(1)).unwrap_or(u32::MAX);
    each.saturating_sub(OVERHEAD).clamp(SHORTEST, LONGEST)
}

fn cells(args: &Profile) -> Vec<Cell> {
    let emulated = &args.emulated;
    let mut cells = Vec::new();
    for engine in &args.engines {
        for rtt in &emulated.distances {
            cells.extend(emulated.streams.iter().map(|streams| Cell {
                section: findings::DISTANCE,
                rtt: *rtt,
                loss: 0.0,
                reorder: 0.0,
                engine: *engine,
                streams: *streams,
                rdma: None,
            }));
        }
    }
    let middle = middle(emulated);
    for engine in &args.engines {
        cells.extend(emulated.losses.iter().map(|loss| Cell {
            section: findings::LOSS,
            rtt: middle,
            loss: *loss,
            reorder: 0.0,
            engine: *engine,
            streams: 1,
            rdma: None,
        }));
    }
    cells
}

/// The middle one of the distances.
fn middle(emulated: &Emulated) -> Duration {
    let distances = &emulated.distances;
    distances
        .get(distances.len() / 2)
        .copied()
        .unwrap_or_default()
}

/// RDMA over loss and reordering, by message size, depth and way of connecting. The ways are
/// neighbours, so that what changes slowly changes both.
fn sweep_cells(args: &Profile) -> Vec<Cell> {
    let emulated = &args.emulated;
    let mut engines: Vec<Engine> = args.engines.clone();
    engines.retain(|engine| matches!(engine, Engine::IwarpTcp | Engine::IwarpUdt));
    if engines.is_empty() {
        engines = vec![Engine::IwarpTcp, Engine::IwarpUdt];
    }
    let mut rdma = Vec::new();
    for &size in &emulated.sizes {
        for &depth in &emulated.depths {
            rdma.extend(emulated.connect.iter().map(|&connect| Rdma {
                size,
                depth,
                connect,
            }));
        }
    }
    let mut cells = Vec::new();
    for sweep in &emulated.sweep {
        let (section, levels) = match sweep {
            Sweep::Loss => (findings::LOSS_SWEEP, &emulated.losses),
            Sweep::Reorder => (findings::REORDER_SWEEP, &emulated.reorders),
        };
        for &engine in &engines {
            for &level in levels {
                let (loss, reorder) = match sweep {
                    Sweep::Loss => (level, 0.0),
                    Sweep::Reorder => (0.0, level),
                };
                cells.extend(rdma.iter().map(|rdma| Cell {
                    section,
                    rtt: middle(emulated),
                    loss,
                    reorder,
                    engine,
                    streams: 1,
                    rdma: Some(*rdma),
                }));
            }
        }
    }
    cells
}

fn measure(args: &Profile, cell: &Cell, time: Duration) -> Result<Run, Fault> {
    let scenario = Scenario::parse("emulated", &cell.scenario(&args.emulated))
        .map_err(|error| usage(&error))?;
    let host = Host::start(&scenario)?;
    let verbs = matches!(
        cell.engine,
        Engine::IwarpTcp | Engine::IwarpUdt | Engine::Ud | Engine::Rd
    );
    let omit = if verbs {
        Duration::ZERO
    } else {
        omitted(time, Some(cell.rtt))
    };
    let mut words: Vec<OsString> = [
        "bench",
        "run",
        "b",
        "--json",
        "--quiet",
        "--interval",
        "200ms",
        "--engine",
        &word(&cell.engine),
        "--streams",
        &cell.streams.to_string(),
        "--time",
        &format!("{}ms", time.as_millis()),
        "--omit",
        &format!("{}ms", omit.as_millis()),
    ]
    .map(OsString::from)
    .into();
    if let Some(rdma) = &cell.rdma {
        let (size, depth) = (rdma.size.to_string(), rdma.depth.to_string());
        let connect = word(&rdma.connect);
        let more = ["--message", &size, "--depth", &depth, "--connect", &connect];
        words.extend(more.map(OsString::from));
    }
    let found = host.ask(&words)?;
    let run = found.runs.into_iter().next();
    let mut run = run.ok_or_else(|| Fault::new(Code::Other, "nothing was measured"))?;
    run.section = cell.section.into();
    run.setting = word(&cell.engine);
    run.beside = Some(Beside {
        what: format!("emulated: {}", cell.words()),
        level: cell.level(),
        goodput_bps: None,
    });
    Ok(run)
}

/// A lab in which a server listens on host `b`.
struct Host {
    lab: Lab,
    program: PathBuf,
    server: Child,
}

impl Host {
    fn start(scenario: &Scenario) -> Result<Self, Fault> {
        let failed = |text: String| Fault::new(Code::Other, text);
        let lab = Lab::start(scenario)
            .map_err(|error| failed(format!("there can be no lab: {error:#}")))?;
        let program = std::env::current_exe()
            .map_err(|error| failed(format!("cannot find this program: {error}")))?;
        let mut command = lab.command("b", &program).map_err(|error| usage(&error))?;
        let server = command
            .args([
                "bench",
                "serve",
                "--listen",
                "0.0.0.0",
                "--allow-insecure",
                "--quiet",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(format!("cannot start a server: {error}")))?;
        // From here on it is ended whatever happens.
        let mut host = Self {
            lab,
            program,
            server,
        };
        host.wait_until_ready()?;
        Ok(host)
    }

    fn wait_until_ready(&mut self) -> Result<(), Fault> {
        let stderr = self.server.stderr.take();
        let mut lines = BufReader::new(
            stderr.ok_or_else(|| Fault::new(Code::Other, "a server without words"))?,
        )
        .lines();
        let mut said = String::new();
        while let Some(Ok(line)) = lines.next() {
            if line.contains("ready to measure") {
                return Ok(());
            }
            said = line;
        }
        let said = haul::printable(said.as_bytes());
        Err(Fault::new(
            Code::Other,
            format!("the server did not start: {said}"),
        ))
    }

    /// Runs this program on host `a`, which prints a document.
    fn ask(&self, words: &[OsString]) -> Result<Document, Fault> {
        let failed = |text: String| Fault::new(Code::Other, text);
        let mut command = self
            .lab
            .command("a", &self.program)
            .map_err(|error| usage(&error))?;
        let mut client = command
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|error| failed(format!("cannot start a client: {error}")))?;
        let mut text = String::new();
        if let Some(stdout) = &mut client.stdout {
            let read = stdout.read_to_string(&mut text);
            read.map_err(|error| failed(format!("cannot read the output of the client: {error}")))?;
        }
        let ended = client
            .wait()
            .map_err(|error| failed(format!("cannot wait for the client: {error}")))?;
        if !ended.success() {
            return Err(failed(
                "the measurement failed for the reason in the line above".into(),
            ));
        }
        serde_json::from_str(&text)
            .map_err(|error| failed(format!("the client talks nonsense: {error}")))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The name of a choice on the command line.
fn word(choice: &impl clap::ValueEnum) -> String {
    choice
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

fn usage(error: &impl std::fmt::Display) -> Fault {
    Fault::new(Code::Usage, format!("{error:#}"))
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn f64_of(number: u64) -> f64 {
    number as f64
}

/// Prints a run beside the progress line.
fn show_run(output: &PathOutput, run: &Run) {
    output.ran(run);
    output.status_add(&show::line(run));
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        profile: Profile,
    }

    fn profile(words: &str) -> Profile {
        let words = format!("profile --emulate {words}");
        Command::parse_from(words.split_whitespace()).profile
    }

    fn cost(cells: &[Cell], args: &Profile) -> Duration {
        let most = most(cells.len(), args.max_time);
        cells.iter().map(|cell| cell.time(most) + OVERHEAD).sum()
    }

    #[test]
    fn what_is_asked_for_by_default_fits_its_time() {
        let args = profile("");
        assert!(cost(&cells(&args), &args) <= args.max_time);
        let args = profile("--sweep loss,reorder");
        assert!(cost(&sweep_cells(&args), &args) <= args.max_time);
    }

    #[test]
    fn a_sweep_has_every_combination_once() {
        let args = profile(
            "--sweep loss,reorder --losses 0,1% --reorders 5% --sizes 1,4KiB --depths 3 --connect cm,exchange",
        );
        let cells = sweep_cells(&args);
        let words: std::collections::BTreeSet<String> = cells.iter().map(Cell::words).collect();
        // Engines, levels, sizes and ways of connecting.
        assert_eq!((cells.len(), words.len()), (2 * 3 * 2 * 2, 24));
        for cell in &cells {
            let scenario = Scenario::parse("test", &cell.scenario(&args.emulated)).unwrap();
            let held = scenario.forward.link.reorder;
            assert_eq!(held.map_or(0.0, |held| held.probability), cell.reorder);
            assert_eq!(
                held.map_or(2_000_000, |held| held.delay_ns),
                2_000_000,
                "{}",
                cell.words()
            );
        }
        assert!(words.contains(
            "reorder-sweep: iwarp-udt, 50 ms, reordered 0.05, 4 KiB x 3, without connection manager"
        ), "{words:?}");
        // Only RDMA has depths.
        assert!(
            sweep_cells(&profile("--sweep loss --engines tcp,iwarp-udt"))
                .iter()
                .all(|cell| cell.engine == Engine::IwarpUdt)
        );
    }
}
