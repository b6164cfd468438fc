//! The limit of a run, and its remedy.

use haul_report::axis::{bytes, number, rate};

use super::plan::{Engine, PathLimit};
use super::record::{End, Run, Stage, Verdict};

/// A thread that works so much of the time, percent, has no more to give.
const THREAD_FULL: f64 = 90.0;
/// The same of all processors of a machine.
const MACHINE_FULL: f64 = 95.0;
/// An end that uses less than this share of its machine, percent, does not fill it.
const OWN_SHARE: f64 = 20.0;
/// The share of a run, percent, from which waiting for something is its limit.
const WAITED: f64 = 30.0;
/// So close to the rate that was asked for, it is the limit.
const RATE_REACHED: f64 = 0.95;
/// A round trip is this much longer than its least where a queue stands.
const QUEUE_FACTOR: f64 = 1.25;
/// A smaller share of retransmitted payload counts as none, percent.
const REPAIRED: f64 = 0.001;
/// The outstanding RDMA requests that fill a path, in multiples of what the path holds; more with
/// retransmissions, because requests complete in order, so those behind a lost segment wait for it.
const DEPTH_STEADY: f64 = 1.1;
const DEPTH_REPAIRING: f64 = 3.0;

impl Run {
    /// Adds what limited the run, and a warning if others kept a machine busy.
    pub(crate) fn judged(mut self) -> Self {
        self.verdict = judge(&self);
        let whose = match (others_busy(&self.sender), others_busy(&self.receiver)) {
            (true, true) => Some("both ends' machines"),
            (true, false) => Some("the sender's machine"),
            (false, true) => Some("the receiver's machine"),
            (false, false) => None,
        };
        if let Some(whose) = whose {
            let text = format!("others kept the processors of {whose} busy");
            self.warnings.push(text);
        }
        self
    }
}

/// Judges a run by the counters of its ends, in the order of certainty: a resource that was
/// measured as full or waited for comes before the path, which remains if no other was.
fn judge(run: &Run) -> Verdict {
    [asked_rate, disks, processors, windows, depth]
        .iter()
        .find_map(|judge| judge(run))
        .unwrap_or_else(|| path(run))
}

fn verdict(stage: Stage, why: String, advice: &str) -> Verdict {
    Verdict {
        stage,
        why,
        advice: advice.into(),
    }
}

fn asked_rate(run: &Run) -> Option<Verdict> {
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let asked = run.plan.rate_bps? as f64;
    (run.goodput_bps >= asked * RATE_REACHED).then(|| {
        let why = format!(
            "{} were asked for, {} arrived",
            rate(asked),
            rate(run.goodput_bps)
        );
        verdict(Stage::Rate, why, "ask for a higher --rate, or leave it out")
    })
}

fn disks(run: &Run) -> Option<Verdict> {
    let source = run.path.source_percent.unwrap_or(0.0);
    let sink = run.path.sink_percent.unwrap_or(0.0);
    if source.max(sink) < WAITED {
        return None;
    }
    let why = |share: f64, doing: &str| {
        format!("the streams spent {} % of the time {doing}", number(share))
    };
    Some(if source >= sink {
        verdict(
            Stage::SourceDisk,
            why(source, "reading the source's file"),
            "a faster disk or more of them; more --streams read at the same time; --send sendfile saves a copy",
        )
    } else {
        verdict(
            Stage::SinkDisk,
            why(sink, "writing the sink's file"),
            "a faster disk or more of them; more --streams write at the same time",
        )
    })
}

fn is_full(end: &End) -> bool {
    end.machine_percent
        .is_some_and(|percent| percent >= MACHINE_FULL)
}

/// The machine of an end is full, and the end has little part in it: figures are those of a busy
/// machine.
fn others_busy(end: &End) -> bool {
    is_full(end)
        && end
            .machine_own_percent
            .is_some_and(|percent| percent < OWN_SHARE)
}

fn processors(run: &Run) -> Option<Verdict> {
    let (sender, receiver) = (&run.sender, &run.receiver);
    // RDMA has no figures per thread: one drives a queue pair, or several.
    let busiest = |end: &End| match end.thread_percent {
        Some(percent) => percent,
        None => end.percent().min(100.0),
    };
    let (of_sender, of_receiver) = (busiest(sender), busiest(receiver));
    let by_thread = of_sender.max(of_receiver) >= THREAD_FULL;
    let by_machine = [sender, receiver]
        .iter()
        .any(|end| is_full(end) && !others_busy(end));
    if !by_thread && !by_machine {
        return None;
    }
    let why = |end: &str, percent: f64| {
        if by_thread {
            format!(
                "the {end}'s busiest thread was at work {} % of the time",
                number(percent.min(100.0))
            )
        } else {
            format!("all processors of the machine were busy; the {end} used most")
        }
    };
    let sender_is = if by_thread {
        of_sender >= of_receiver
    } else {
        sender.percent() >= receiver.percent()
    };
    Some(if sender_is {
        let advice = if run.plan.engine == Engine::Tcp {
            "--send sendfile or zerocopy saves copies; more --streams use more cores; larger messages cost fewer calls"
        } else {
            "more --streams use more cores; larger messages cost fewer calls; check offloads with 'haul doctor'"
        };
        verdict(Stage::SenderCpu, why("sender", of_sender), advice)
    } else {
        verdict(
            Stage::ReceiverCpu,
            why("receiver", of_receiver),
            "more --streams use more cores; check receive offload (GRO) and the governor with 'haul doctor'",
        )
    })
}

fn windows(run: &Run) -> Option<Verdict> {
    let receiver = run.path.receiver_limited_percent.unwrap_or(0.0);
    let sender = run.path.buffer_limited_percent.unwrap_or(0.0);
    if let Some(drops) = run
        .datagrams
        .filter(|lost| lost.kernel_drops > lost.sent / 1000)
    {
        let why = format!(
            "the receiver's kernel dropped {} datagrams: its socket buffer was full",
            drops.kernel_drops
        );
        return Some(verdict(
            Stage::Window,
            why,
            "raise net.core.rmem_max at the receiver ('haul doctor' has the line), or send slower",
        ));
    }
    if receiver.max(sender) < WAITED {
        return None;
    }
    Some(if receiver >= sender {
        let why = format!(
            "the receiver's window was full {} % of the time",
            number(receiver)
        );
        let advice = "raise net.ipv4.tcp_rmem at the receiver ('haul doctor' has the line), or use more --streams";
        verdict(Stage::Window, why, advice)
    } else {
        let why = format!(
            "the sender's buffer was too small {} % of the time",
            number(sender)
        );
        let advice = "raise net.ipv4.tcp_wmem at the sender ('haul doctor' has the line), or use more --streams";
        verdict(Stage::Window, why, advice)
    })
}

/// Returns RDMA's outstanding bytes, if the path holds at least as many at this rate.
fn depth(run: &Run) -> Option<Verdict> {
    run.plan.engine.verbs()?;
    let [streams, depth, message] = [run.plan.streams.into(), run.plan.depth, run.plan.message];
    let outstanding = f64::from(streams) * f64::from(depth) * f64::from(message);
    let rtt_ms = run.path.rtt_ms?;
    let held = run.goodput_bps / 8.0 * rtt_ms / 1e3;
    let repaired = run.retransmitted_percent().unwrap_or(0.0) >= REPAIRED;
    let needed = held
        * if repaired {
            DEPTH_REPAIRING
        } else {
            DEPTH_STEADY
        };
    (outstanding <= needed).then(|| {
        let why = format!(
            "{} may be outstanding, and the round trip of {} ms held {}",
            bytes(outstanding),
            number(rtt_ms),
            bytes(held)
        );
        verdict(
            Stage::Window,
            why,
            "larger messages (--message 1MiB) or more of them at a time (--depth): a path that loses needs a multiple of what it holds",
        )
    })
}

/// Nothing at the ends was full.
fn path(run: &Run) -> Verdict {
    if let Some(lost) = run.datagrams.filter(|lost| lost.lost_percent >= 0.1) {
        let why = format!(
            "{} % of the datagrams were lost between the hosts",
            number(lost.lost_percent)
        );
        return verdict(Stage::Path, why, "send at the rate that arrived, or less");
    }
    let again = run
        .retransmitted_percent()
        .filter(|percent| *percent >= REPAIRED);
    if let Some(percent) = again {
        let why = format!(
            "nothing at the ends was full, and {} % were retransmitted",
            number(percent)
        );
        let advice = match run.plan.engine {
            Engine::Tcp => {
                "where loss is not congestion, --engine udt holds its rate; for TCP try --congestion bbr, or more --streams"
            }
            _ => "the path is full, or loses: compare with 'haul bench run --engine udp --rate'",
        };
        return verdict(Stage::Path, why, advice);
    }
    let queue = match (run.path.rtt_ms, run.path.rtt_min_ms) {
        (Some(rtt), Some(least)) if rtt > least * QUEUE_FACTOR && least > 0.0 => Some((rtt, least)),
        _ => None,
    };
    if let Some((rtt, least)) = queue {
        let why = format!(
            "the round trip of {} ms was {} ms longer than its least: a queue stands on the path",
            number(rtt),
            number(rtt - least)
        );
        return verdict(
            Stage::Path,
            why,
            "the path is full: no setting at the ends makes it faster",
        );
    }
    let short = matches!(run.plan.limit, PathLimit::TimeMs(ms) if ms < 5_000);
    let advice = if short {
        "measure longer (--time 10s, --omit 2s): a short run on a long path is mostly its beginning"
    } else {
        "try more --streams: if they are faster together, one alone is held back by its window"
    };
    verdict(
        Stage::Path,
        "nothing at the ends was full and nothing was lost".into(),
        advice,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::record::Lost;
    use crate::path::record::tests::run;

    #[test]
    fn each_stage_is_known_by_what_it_does() {
        let stage = |engine, change: fn(&mut Run)| {
            let mut run = run(engine);
            change(&mut run);
            let verdict = judge(&run);
            assert!(!verdict.why.is_empty() && !verdict.advice.is_empty());
            verdict.stage
        };
        for (engine, change, expected) in [
            (Engine::Tcp, (|_| {}) as fn(&mut Run), Stage::Path),
            (
                Engine::Tcp,
                |run| run.plan.rate_bps = Some(1_000_000_000),
                Stage::Rate,
            ),
            (
                Engine::Tcp,
                |run| run.plan.rate_bps = Some(2_000_000_000),
                Stage::Path,
            ),
            (
                Engine::Tcp,
                |run| run.path.source_percent = Some(80.0),
                Stage::SourceDisk,
            ),
            (
                Engine::Tcp,
                |run| run.path.sink_percent = Some(80.0),
                Stage::SinkDisk,
            ),
            (
                Engine::Tcp,
                |run| run.sender.thread_percent = Some(99.0),
                Stage::SenderCpu,
            ),
            (
                Engine::Udt,
                |run| run.receiver.thread_percent = Some(95.0),
                Stage::ReceiverCpu,
            ),
            (
                Engine::Tcp,
                |run| run.sender.machine_percent = Some(99.0),
                Stage::SenderCpu,
            ),
            (
                Engine::Tcp,
                |run| run.path.receiver_limited_percent = Some(60.0),
                Stage::Window,
            ),
            (
                Engine::Tcp,
                |run| run.path.buffer_limited_percent = Some(60.0),
                Stage::Window,
            ),
        ] {
            assert_eq!(stage(engine, change), expected);
        }
    }

    #[test]
    fn a_machine_that_others_fill_is_not_the_limit_of_an_end() {
        let mut run = run(Engine::Tcp);
        run.sender.machine_percent = Some(99.0);
        run.sender.machine_own_percent = Some(2.0);
        assert!(others_busy(&run.sender));
        assert_eq!(judge(&run).stage, Stage::Path);
        run.sender.machine_own_percent = Some(60.0);
        assert_eq!(judge(&run).stage, Stage::SenderCpu);
    }

    #[test]
    fn datagrams_are_lost_by_the_receiver_or_by_the_path() {
        let mut run = run(Engine::Udp);
        let mut lost = Lost {
            sent: 1000,
            received: 900,
            lost: 100,
            lost_percent: 10.0,
            late: 0,
            jitter_ms: 0.1,
            kernel_drops: 100,
        };
        run.datagrams = Some(lost);
        assert_eq!(judge(&run).stage, Stage::Window);
        lost.kernel_drops = 0;
        run.datagrams = Some(lost);
        assert_eq!(judge(&run).stage, Stage::Path);
    }

    #[test]
    fn few_outstanding_requests_are_a_window() {
        let mut run = run(Engine::IwarpUdt);
        // 12.5 MB in a round trip, and 8 MiB outstanding.
        run.path.rtt_ms = Some(100.0);
        assert_eq!(judge(&run).stage, Stage::Window);
        run.plan.message = 1 << 20;
        assert_eq!(judge(&run).stage, Stage::Path);
        run.plan.depth = 16;
        assert_eq!(judge(&run).stage, Stage::Path);
        // Behind a loss they wait for its repair.
        run.path.retransmitted_bytes = Some(run.bytes / 100);
        let verdict = judge(&run);
        assert_eq!(verdict.stage, Stage::Window);
        assert!(verdict.advice.contains("--depth"));
    }

    #[test]
    fn loss_and_queues_are_distinguished() {
        let mut run = run(Engine::Tcp);
        run.path.retransmitted_bytes = Some(1_250_000);
        assert!(
            judge(&run).why.contains("1 % were retransmitted"),
            "{}",
            judge(&run).why
        );
        run.path.retransmitted_bytes = Some(0);
        (run.path.rtt_ms, run.path.rtt_min_ms) = (Some(150.0), Some(100.0));
        assert!(judge(&run).why.contains("50 ms longer"));
    }
}
