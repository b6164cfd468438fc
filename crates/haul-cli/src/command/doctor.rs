//! `haul doctor`.

use std::io::Write;
use std::process::ExitCode;

use haul_bench::doctor::{Finding, Host, Level, Target, examine};
use serde_json::json;

use crate::args::profile::Doctor;
use crate::output::print_line;

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
    let findings = examine(&Host::read(), &target);
    let warned = findings
        .iter()
        .any(|finding| finding.level == Level::Warning);
    if args.json {
        print_line(&json!({
            "schema": SCHEMA, "ok": !warned, "rate_bps": target.rate_bps, "rtt_ms": target.rtt_ms,
            "findings": findings,
        }));
    } else {
        // Whoever reads stdout may have gone.
        let _ = std::io::stdout()
            .lock()
            .write_all(text(&findings, args.all).as_bytes());
    }
    if warned {
        ExitCode::from(FOUND)
    } else {
        ExitCode::SUCCESS
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
