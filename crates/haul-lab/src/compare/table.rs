//! Medians as a table for people, and every run as CSV.

use super::record::{CellRecord, Figures, RIVAL, Results, ToolRecord};

const HEAD: [&str; 12] = [
    "tool",
    "goodput",
    "% ceiling",
    "after ramp",
    "resent %",
    "ramp ms (RTT)",
    "CPU s/GB a / b",
    "machine",
    "MiB a / b",
    "vs bbr",
    "CPU vs bbr",
    "bar",
];

/// The medians, one block for each path.
pub fn render(results: &Results) -> String {
    let mut text = format!(
        "{}\nmedians of {} runs, {}; goodput in Mbit/s of payload; vs bbr: {RIVAL} in the same cell\n",
        results.machine.line(),
        results.repeat(),
        results.amount()
    );
    for skipped in &results.skipped {
        text += &format!("left out: {} ({})\n", skipped.tool, skipped.reason);
    }
    for cell in &results.cells {
        text += &block(cell);
    }
    text
}

/// The most important figures of one run.
pub fn one_line(figures: &Figures) -> String {
    let ceiling = figures.ceiling_share.map_or_else(String::new, |share| {
        format!(" ({:.1} % of ceiling)", share * 100.0)
    });
    format!(
        "{:.1} Mbit/s{ceiling}, {:.2} % resent, CPU s/GB {:.2} / {:.2}",
        figures.goodput_bps / 1e6,
        figures.resent_share * 100.0,
        figures.cpu_a_s_per_gb,
        figures.cpu_b_s_per_gb
    )
}

/// Every run, one line each.
pub fn csv(results: &Results) -> String {
    let mut text = String::from(
        "cell,rate_bps,rtt_ms,loss,mtu,tool,run,goodput_bps,ceiling_share,after_ramp_bps,after_ramp_share,resent_share,\
         ramp_ms,ramp_rtts,cpu_a_s_per_gb,cpu_b_s_per_gb,machine_s_per_gb,peak_rss_a_bytes,peak_rss_b_bytes,error\n",
    );
    for cell in &results.cells {
        for tool in &cell.tools {
            let runs = tool.runs.iter().enumerate();
            for (index, run) in runs {
                let error = run.error.as_deref();
                text += &csv_line(
                    cell,
                    tool,
                    &(index + 1).to_string(),
                    run.figures.as_ref(),
                    error,
                );
            }
            text += &csv_line(cell, tool, "median", tool.median.as_ref(), None);
        }
    }
    text
}

fn block(cell: &CellRecord) -> String {
    let mut rows = vec![HEAD.map(str::to_string)];
    rows.extend(cell.tools.iter().map(|tool| row(cell, tool)));
    let judged = cell.tools.iter().any(|tool| tool.shortfalls.is_some());
    let columns = if judged { HEAD.len() } else { HEAD.len() - 1 };
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = format!("\n{}", cell.name);
    if !cell.description.is_empty() {
        text += &format!(": {}", cell.description);
    }
    text.push('\n');
    for row in &rows {
        let mut line = String::new();
        for (column, (word, width)) in row.iter().zip(&widths).enumerate() {
            // The first and the last column are words, the others figures.
            line += &match column {
                0 => format!("{word:<width$}"),
                11 => format!("  {word}"),
                _ => format!("  {word:>width$}"),
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn row(cell: &CellRecord, tool: &ToolRecord) -> [String; 12] {
    let Some(figures) = &tool.median else {
        let error = tool.runs.iter().find_map(|run| run.error.as_deref());
        let mut row = [const { String::new() }; 12];
        row[0].clone_from(&tool.tool);
        row[1] = if tool.runs.is_empty() {
            "not run"
        } else {
            "failed"
        }
        .into();
        row[11] = error.unwrap_or("").into();
        return row;
    };
    let rival = cell.median_of(RIVAL);
    let percent =
        |share: Option<f64>| share.map_or_else(none, |share| format!("{:.1}", share * 100.0));
    let ramp = match (figures.ramp_ms, figures.ramp_rtts) {
        (Some(ms), Some(rtts)) => format!("{ms:.0} ({rtts:.1})"),
        (Some(ms), None) => format!("{ms:.0}"),
        _ => none(),
    };
    let ratio = |get: fn(&Figures) -> f64| {
        rival.map_or_else(none, |rival| format!("{:.2}", get(figures) / get(rival)))
    };
    let mib = |bytes: f64| bytes / 1_048_576.0;
    [
        tool.tool.clone(),
        format!("{:.1}", figures.goodput_bps / 1e6),
        percent(figures.ceiling_share),
        percent(figures.after_ramp_share),
        format!("{:.2}", figures.resent_share * 100.0),
        ramp,
        format!(
            "{:.2} / {:.2}",
            figures.cpu_a_s_per_gb, figures.cpu_b_s_per_gb
        ),
        format!("{:.2}", figures.machine_s_per_gb),
        format!(
            "{:.0} / {:.0}",
            mib(figures.peak_rss_a_bytes),
            mib(figures.peak_rss_b_bytes)
        ),
        ratio(|figures| figures.goodput_bps),
        ratio(Figures::cpu_s_per_gb),
        tool.shortfalls.as_ref().map_or_else(String::new, |found| {
            if found.is_empty() {
                "met".into()
            } else {
                found.join(", ")
            }
        }),
    ]
}

fn none() -> String {
    "-".into()
}

fn csv_line(
    cell: &CellRecord,
    tool: &ToolRecord,
    run: &str,
    figures: Option<&Figures>,
    error: Option<&str>,
) -> String {
    let optional = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let figure = |get: fn(&Figures) -> Option<f64>| optional(figures.and_then(get));
    let fields = [
        quoted(&cell.name),
        cell.rate_bps
            .map_or_else(String::new, |rate| rate.to_string()),
        cell.rtt_ms.to_string(),
        cell.loss.to_string(),
        cell.mtu.to_string(),
        tool.tool.clone(),
        run.into(),
        figure(|f| Some(f.goodput_bps)),
        figure(|f| f.ceiling_share),
        figure(|f| f.after_ramp_bps),
        figure(|f| f.after_ramp_share),
        figure(|f| Some(f.resent_share)),
        figure(|f| f.ramp_ms),
        figure(|f| f.ramp_rtts),
        figure(|f| Some(f.cpu_a_s_per_gb)),
        figure(|f| Some(f.cpu_b_s_per_gb)),
        figure(|f| Some(f.machine_s_per_gb)),
        figure(|f| Some(f.peak_rss_a_bytes)),
        figure(|f| Some(f.peak_rss_b_bytes)),
        quoted(error.unwrap_or("")),
    ];
    fields.join(",") + "\n"
}

/// As RFC 4180 has it.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_and_quotes_survive_in_csv() {
        assert_eq!(quoted("plain"), "plain");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
