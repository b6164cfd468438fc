//! `haul gateway fill`: how fast slabs can merely be filled here.

use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use haul::fault::{Code, Fault};
use haul_gateway::{Filler, Log, Taken};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::interrupt::not_ignored;
use crate::{args, output};

/// Time between two lines.
const TICK: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &args::GatewayFill) -> ExitCode {
    match try_run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => super::fail(&fault),
    }
}

/// Until a signal ends it.
fn try_run(args: &args::GatewayFill) -> Result<(), Fault> {
    let mut signals = Signals::new(not_ignored(&[SIGINT, SIGTERM]))
        .map_err(|error| Fault::new(Code::Other, format!("cannot take signals: {error}")))?;
    let (sender, ended) = channel::<()>();
    std::thread::spawn(move || {
        signals.forever().next();
        drop(sender);
    });
    let log = Log::new(|_, line| eprintln!("haul gateway: {line}"));
    let filler = Filler::start(args.listen, args.ring, log)
        .map_err(|error| Fault::new(Code::Other, error.to_string()))?;
    output::fill_started(filler.local_addr(), args.ring);
    let (mut before, mut since) = (taken(&filler)?, Instant::now());
    while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        let (now, at) = (taken(&filler)?, Instant::now());
        let octets = now.octets - before.octets;
        if octets > 0 {
            output::filled(octets, at - since, now.cpu.saturating_sub(before.cpu));
        }
        (before, since) = (now, at);
        if !filler.is_running() {
            return Err(Fault::new(Code::Other, "slabs are filled no more"));
        }
    }
    Ok(())
}

fn taken(filler: &Filler) -> Result<Taken, Fault> {
    let taken = filler.taken();
    taken.map_err(|error| Fault::new(Code::Other, format!("no processor time: {error}")))
}
