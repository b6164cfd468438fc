//! Figure 9: how long VLC fills its buffer before it plays.
//!
//! A VLC on host `b` streams a film in real time, by UDP to host `a` or by HTTP to any client.
//! Another one on host `a` is started when the stream runs. It logs when its buffer is full, and
//! the time since the first time stamp in the stream.
//!
//! How much film the buffer holds decides most of it. Today's VLC takes a second of whatever comes
//! from a network; the VLC of the paper's time had a default for each way. Both are measured.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::bench::Context;
use super::programs::{CARRIERS, Carrier, Folder, NOBODY, Stage, tried};
use super::record::{Figure, Sample, announce};
use haul_lab::compare::plan::Plan;
use haul_lab::compare::runner::Stop;

/// Where HTTP is served, and where UDP goes.
const HTTP_PORT: u16 = 8090;
const UDP_PORT: u16 = 7002;
/// How long a server has streamed when the client starts. Just after its own start VLC's HTTP
/// server sends more than a second of film at once, which would be measured instead.
const WARM_UP: Duration = Duration::from_secs(1);
/// A client that has not filled its buffer by then never will.
const PATIENCE: Duration = Duration::from_secs(20);

/// Milliseconds of film that VLC 1.0 and 1.1 (2009 to 2011) kept by default: `udp-caching` was
/// `DEFAULT_PTS_DELAY`, 300 ms, and `http-caching` four times that.
const UDP_CACHE_2011: u32 = 300;
const HTTP_CACHE_2011: u32 = 1_200;

/// How much film the client keeps.
#[derive(Clone, Copy)]
enum Cache {
    /// VLC's default: a second.
    Today,
    /// The defaults for UDP and for HTTP when the paper was written.
    In2011,
}

impl Cache {
    /// The client's option.
    fn option(self, carrier: Carrier) -> Option<String> {
        let ms = match self {
            Self::Today => return None,
            Self::In2011 if carrier.is_tcp() => HTTP_CACHE_2011,
            Self::In2011 => UDP_CACHE_2011,
        };
        Some(format!("--network-caching={ms}"))
    }
}

/// Measures; charts 0: from the client's start, 1: VLC's own count; 2 and 3 the same with the
/// caches of 2011.
pub(super) fn buffering(context: &Context<'_>, figure: &mut Figure) -> Result<(), Stop> {
    let folder = Folder::new()?;
    let Ok(home) = folder.nobodys() else {
        figure.not_run =
            Some("not run: VLC refuses to be root, and there is nobody else here".into());
        return Ok(());
    };
    let before = as_nobody(&home);
    figure.not_run = context.missing(&["cvlc", "ffmpeg", "setpriv"], &before)?;
    if figure.not_run.is_some() {
        return Ok(());
    }
    let film = folder.file("film.ts");
    make_film(&film)?;
    for repetition in 0..context.repeat {
        context.settle(figure);
        for carrier in CARRIERS {
            for (first, cache) in [(0, Cache::Today), (2, Cache::In2011)] {
                let stage = Stage::new(context, carrier, &before, &home)?;
                let (from_start, own) = measure(context, &stage, (carrier, cache), &film, figure)?;
                figure.charts[first].add(carrier.name(), 0, Sample::of(from_start));
                figure.charts[first + 1].add(carrier.name(), 0, Sample::of(own));
            }
            announce(repetition, carrier.name());
        }
    }
    Ok(())
}

/// Thirty seconds of film: 2 Mbit/s, a key picture twice a second.
fn make_film(path: &Path) -> anyhow::Result<()> {
    let line = "-v error -f lavfi -i testsrc2=size=640x360:rate=25:duration=30 -f lavfi -i sine=duration=30 -c:v mpeg2video -b:v 2M \
                -g 12 -c:a mp2 -f mpegts";
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(line.split_whitespace()).arg(path);
    tried(&mut ffmpeg).context("ffmpeg cannot make a film")
}

/// VLC does not run as root.
fn as_nobody(home: &Path) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["setpriv".into()];
    for option in ["--reuid", "--regid"] {
        words.push(format!("{option}={NOBODY}").into());
    }
    words.extend(["--clear-groups".into(), "env".into()]);
    for variable in ["HOME=", "XDG_RUNTIME_DIR="] {
        let mut word = OsString::from(variable);
        word.push(home);
        words.push(word);
    }
    words
}

/// Milliseconds from the client's start until its buffer is full, and those that it counts itself.
fn measure(
    context: &Context<'_>,
    stage: &Stage<'_>,
    (carrier, cache): (Carrier, Cache),
    film: &Path,
    figure: &mut Figure,
) -> Result<(f64, f64), Stop> {
    let (a, b) = (stage.address("a")?, stage.address("b")?);
    let (to, from) = if carrier.is_tcp() {
        (
            format!("#std{{access=http,mux=ts,dst=:{HTTP_PORT}/film}}"),
            format!("http://{b}:{HTTP_PORT}/film"),
        )
    } else {
        (
            format!("#std{{access=udp,mux=ts,dst={a}:{UDP_PORT}}}"),
            format!("udp://@:{UDP_PORT}"),
        )
    };
    let film = film.to_string_lossy();
    let line = ["cvlc", "-q", &film, "--repeat", "--sout", &to].map(String::from);
    let mut server = stage.start("b", &line, figure)?;
    if carrier.is_tcp() {
        let plan = Plan {
            server: Vec::new(),
            client: Vec::new(),
            port: HTTP_PORT,
            udp: false,
            server_ends: false,
        };
        context.runner.listening(stage.lab(), &plan, &mut server)?;
    }
    context.runner.pause(WARM_UP)?;
    let line = ["cvlc", "-vv", &from, "--vout", "dummy", "--aout", "dummy"];
    let mut line = line.map(String::from).to_vec();
    line.extend(cache.option(carrier));
    let begun = Instant::now();
    let mut client = stage.start("a", &line, figure)?;
    let own = context
        .runner
        .until(&mut client, "VLC", PATIENCE, |client| {
            Ok(own_count(&client.stderr()))
        })?;
    let from_start = begun.elapsed().as_secs_f64() * 1e3;
    stage.end(&mut client)?;
    stage.end(&mut server)?;
    stage.check_carried("a", figure)?;
    // It streamed before the peer's carrier was ready.
    stage.read_report("b")?;
    Ok((from_start, own))
}

/// Of "Stream buffering done (1057 ms in 981 ms)" the second.
fn own_count(log: &str) -> Option<f64> {
    let (_, rest) = log.split_once("Stream buffering done (")?;
    let (_, rest) = rest.split_once(" ms in ")?;
    rest.split_once(" ms)")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlc_reports_its_buffering_time() {
        let log = "x\n[00] main input debug: Stream buffering done (1057 ms in 981 ms)\nmore";
        assert_eq!(own_count(log), Some(981.0));
        assert_eq!(own_count("Buffering 95%\nStream buffering done (10"), None);
    }
}
