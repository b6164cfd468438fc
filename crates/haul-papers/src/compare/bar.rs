//! The project's requirements on its UDP channel (issue 2, "How good"), checked against medians.

use haul_lab::compare::record::{
    CellRecord, Figures, RAMP_RTTS, RAMP_RTTS_DECLARED, RIVAL, Results, ToolRecord,
};

/// Where nothing is emulated, medians are compared with this tool instead of [`RIVAL`].
const RIVAL_UNSHAPED: &str = "iperf3-cubic";

/// Above this rate, bits per second, the emulator itself takes part of the machine, and less is
/// asked for.
const FAST_BPS: u64 = 1_500_000_000;
const MIB: f64 = 1_048_576.0;

/// Compares every median with what is asked for.
pub(super) fn judge(results: &mut Results) {
    for cell in &mut results.cells {
        let shortfalls: Vec<_> = cell
            .tools
            .iter()
            .map(|tool| shortfalls(cell, tool))
            .collect();
        for (tool, found) in cell.tools.iter_mut().zip(shortfalls) {
            tool.shortfalls = found;
        }
    }
}

/// Returns the missed requirements, with figure and bound. `None` for a tool without requirements,
/// or one that did not run.
fn shortfalls(cell: &CellRecord, tool: &ToolRecord) -> Option<Vec<String>> {
    if !tool.tool.starts_with("haul-udt") {
        return None;
    }
    let figures = tool.median.as_ref()?;
    let mut found = Vec::new();
    if cell.rate_bps.is_none() {
        unshaped(cell, figures, &mut found);
        return Some(found);
    }
    if let Some(share) = figures.after_ramp_share {
        let asked = share_asked(cell);
        require(
            &mut found,
            "% of ceiling",
            share * 100.0,
            share >= asked,
            asked * 100.0,
        );
    }
    if let Some(rtts) = figures.ramp_rtts {
        let asked = if tool.declared {
            RAMP_RTTS_DECLARED
        } else {
            RAMP_RTTS
        };
        require(&mut found, "ramp RTTs", rtts, rtts <= asked, asked);
    }
    let asked = cell.loss * 1.5 + 0.005;
    let resent = figures.resent_share;
    require(
        &mut found,
        "% resent",
        resent * 100.0,
        resent <= asked,
        asked * 100.0,
    );
    if let Some(rival) = cell.median_of(RIVAL) {
        let ratio = figures.goodput_bps / rival.goodput_bps;
        require(&mut found, "× bbr goodput", ratio, ratio >= 1.0, 1.0);
        let ratio = figures.cpu_s_per_gb() / rival.cpu_s_per_gb();
        require(&mut found, "× bbr CPU", ratio, ratio <= 1.5, 1.5);
    }
    let asked = cell.bdp_bytes.unwrap_or(0.0) * 2.0 / MIB + 64.0;
    let most = figures.peak_rss_a_bytes.max(figures.peak_rss_b_bytes) / MIB;
    require(&mut found, "MiB resident", most, most <= asked, asked);
    Some(found)
}

fn unshaped(cell: &CellRecord, figures: &Figures, found: &mut Vec<String>) {
    let Some(rival) = cell.median_of(RIVAL_UNSHAPED) else {
        return;
    };
    let ratio = figures.goodput_bps / rival.goodput_bps;
    require(found, "× cubic goodput", ratio, ratio >= 0.9, 0.9);
    let ratio = figures.cpu_s_per_gb() / rival.cpu_s_per_gb();
    require(found, "× cubic CPU", ratio, ratio <= 1.2, 1.2);
}

/// The share of the ceiling that is asked for once the ramp's time is left out.
fn share_asked(cell: &CellRecord) -> f64 {
    match cell.rate_bps {
        Some(rate) if rate > FAST_BPS => 0.95,
        _ if cell.loss > 1.5e-3 => 0.93,
        _ => 0.97,
    }
}

fn require(found: &mut Vec<String>, what: &str, figure: f64, met: bool, asked: f64) {
    if !met {
        found.push(format!("{figure:.2} {what} (asked: {asked:.2})"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tool: &str, figures: Figures) -> ToolRecord {
        ToolRecord {
            tool: tool.into(),
            declared: tool.ends_with("-rate"),
            ceiling_bps: None,
            median: Some(figures),
            shortfalls: None,
            runs: Vec::new(),
        }
    }

    fn cell(loss: f64, tools: Vec<ToolRecord>) -> CellRecord {
        CellRecord {
            name: "test".into(),
            description: String::new(),
            in_matrix: true,
            rate_bps: Some(1_000_000_000),
            rtt_ms: 100.0,
            loss,
            mtu: 1500,
            bdp_bytes: Some(12.5e6),
            tools,
        }
    }

    fn good() -> Figures {
        Figures {
            goodput_bps: 9.5e8,
            after_ramp_share: Some(0.98),
            ramp_rtts: Some(2.5),
            resent_share: 0.001,
            cpu_a_s_per_gb: 0.5,
            cpu_b_s_per_gb: 0.5,
            ..Figures::default()
        }
    }

    #[test]
    fn what_is_good_enough_falls_short_of_nothing() {
        let rival = record(RIVAL, good());
        let cell = cell(1e-4, vec![record("haul-udt-rate", good()), rival]);
        assert_eq!(shortfalls(&cell, &cell.tools[0]), Some(vec![]));
        assert_eq!(shortfalls(&cell, &cell.tools[1]), None);
    }

    #[test]
    fn every_shortfall_is_named() {
        let bad = Figures {
            goodput_bps: 1e8,
            after_ramp_share: Some(0.96),
            ramp_rtts: Some(9.0),
            resent_share: 0.02,
            cpu_a_s_per_gb: 2.0,
            peak_rss_a_bytes: 1e9,
            ..good()
        };
        let cell = cell(1e-3, vec![record("haul-udt", bad), record(RIVAL, good())]);
        let found = shortfalls(&cell, &cell.tools[0]).unwrap();
        assert_eq!(found.len(), 6, "{found:?}");
        assert_eq!(found[0], "96.00 % of ceiling (asked: 97.00)");
    }

    #[test]
    fn heavy_loss_lowers_what_is_asked() {
        assert!((share_asked(&cell(1e-2, vec![])) - 0.93).abs() < 1e-12);
        assert!((share_asked(&cell(1e-3, vec![])) - 0.97).abs() < 1e-12);
    }
}
