//! Goodput as an SVG picture: a panel for each round-trip time, a group of bars for each loss, a
//! bar for each tool.

use haul_lab::compare::cell::percent;
use haul_lab::compare::record::{CellRecord, Results};
use haul_report::svg::{COLOURS, STYLE, escaped, text};

const WIDTH: f64 = 1080.0;
const PANEL_HEIGHT: f64 = 190.0;
const PANEL_GAP: f64 = 70.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const HEAD: f64 = 62.0;
const LEGEND_ROW: f64 = 20.0;
const LEGEND_COLUMNS: usize = 5;
/// Cells that share a picture frame.
struct Panel<'a> {
    title: String,
    cells: Vec<&'a CellRecord>,
}

/// The whole picture.
pub(super) fn render(results: &Results) -> String {
    let tools = tools(results);
    let panels = panels(results);
    #[expect(clippy::cast_precision_loss, reason = "a few rows and panels")]
    let (legend_rows, panel_count) = (
        tools.len().div_ceil(LEGEND_COLUMNS) as f64,
        panels.len() as f64,
    );
    let top = HEAD + legend_rows * LEGEND_ROW + 30.0;
    let height = top + panel_count * (PANEL_HEIGHT + PANEL_GAP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\">\n{STYLE}\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n"
    );
    svg += &text(
        LEFT,
        28.0,
        "title",
        "start",
        "Goodput, payload received per second",
    );
    let about = format!(
        "medians of {} runs, {}; {}",
        results.repeat(),
        results.amount(),
        results.machine.line()
    );
    svg += &text(LEFT, 48.0, "small", "start", &about);
    svg += &legend(&tools);
    let mut y = top;
    for panel in &panels {
        svg += &draw(panel, &tools, y);
        y += PANEL_HEIGHT + PANEL_GAP;
    }
    svg + "</svg>\n"
}

/// The tools that ran, in the order of the command line.
fn tools(results: &Results) -> Vec<&str> {
    let first = results.cells.first();
    first.map_or_else(Vec::new, |cell| {
        cell.tools.iter().map(|tool| tool.tool.as_str()).collect()
    })
}

fn panels(results: &Results) -> Vec<Panel<'_>> {
    let mut panels: Vec<Panel<'_>> = Vec::new();
    for cell in &results.cells {
        let title = if cell.in_matrix {
            let gbit = f64_of(cell.rate_bps.unwrap_or(0)) / 1e9;
            format!("{gbit} Gbit/s, RTT {} ms, MTU {}", cell.rtt_ms, cell.mtu)
        } else {
            "Scenarios".into()
        };
        match panels.iter_mut().find(|panel| panel.title == title) {
            Some(panel) => panel.cells.push(cell),
            None => panels.push(Panel {
                title,
                cells: vec![cell],
            }),
        }
    }
    panels
}

fn legend(tools: &[&str]) -> String {
    let step = (WIDTH - LEFT - RIGHT) / f64_of(LEGEND_COLUMNS as u64);
    let entries = tools.iter().enumerate().map(|(index, tool)| {
        let x = LEFT + f64_of((index % LEGEND_COLUMNS) as u64) * step;
        let y = HEAD + f64_of((index / LEGEND_COLUMNS) as u64) * LEGEND_ROW;
        let colour = COLOURS[index % COLOURS.len()];
        format!("<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\n")
            + &text(x + 18.0, y + 11.0, "", "start", tool)
    });
    entries.collect()
}

fn draw(panel: &Panel<'_>, tools: &[&str], top: f64) -> String {
    let bottom = top + PANEL_HEIGHT;
    let rates = panel
        .cells
        .iter()
        .filter_map(|cell| cell.rate_bps)
        .map(f64_of);
    let medians = panel.cells.iter().flat_map(|cell| &cell.tools);
    let goodputs = medians.filter_map(|tool| Some(tool.median.as_ref()?.goodput_bps));
    let highest = rates.chain(goodputs).fold(0.0, f64::max).max(1.0);
    let step = nice_step(highest);
    let most = highest * 1.08;
    let y_of = |bps: f64| bottom - bps / most * PANEL_HEIGHT;

    let mut svg = text(LEFT, top - 12.0, "panel", "start", &panel.title);
    let mut level = 0.0;
    while level <= most {
        let y = y_of(level);
        svg += &line("grid", LEFT, WIDTH - RIGHT, y);
        svg += &text(LEFT - 8.0, y + 4.0, "small", "end", &label(level));
        level += step;
    }
    let group = (WIDTH - LEFT - RIGHT) / f64_of(panel.cells.len() as u64);
    let bar = group * 0.86 / f64_of(tools.len().max(1) as u64);
    let bar = bar.min(60.0);
    for (index, cell) in panel.cells.iter().enumerate() {
        let x = LEFT + f64_of(index as u64) * group;
        if let Some(rate) = cell.rate_bps {
            svg += &line("rate", x, x + group, y_of(f64_of(rate)));
        }
        let used = bar * f64_of(tools.len() as u64);
        svg += &bars(cell, tools, x + (group - used) / 2.0, bar, &y_of, bottom);
        let name = if cell.in_matrix {
            format!("loss {}", percent(cell.loss))
        } else {
            cell.name.clone()
        };
        svg += &text(x + group / 2.0, bottom + 18.0, "", "middle", &name);
    }
    svg
}

fn bars(
    cell: &CellRecord,
    tools: &[&str],
    left: f64,
    width: f64,
    y_of: &dyn Fn(f64) -> f64,
    bottom: f64,
) -> String {
    let mut svg = String::new();
    for (index, tool) in tools.iter().enumerate() {
        let Some(figures) = cell.median_of(tool) else {
            continue;
        };
        let (x, y) = (
            left + f64_of(index as u64) * width,
            y_of(figures.goodput_bps),
        );
        let colour = COLOURS[index % COLOURS.len()];
        let value = format!("{tool}: {:.1} Mbit/s", figures.goodput_bps / 1e6);
        svg += &format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"><title>{}</title></rect>\n",
            width * 0.9,
            (bottom - y).max(0.5),
            escaped(&value)
        );
        if width >= 26.0 {
            let short = label(figures.goodput_bps);
            svg += &text(x + width * 0.45, y - 3.0, "value", "middle", &short);
        }
    }
    svg
}

fn line(class: &str, from: f64, to: f64, y: f64) -> String {
    format!(
        "<line class=\"{class}\" x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\n"
    )
}

/// A rate in few characters.
fn label(bps: f64) -> String {
    if bps >= 1e9 {
        format!("{}G", (bps / 1e8).round() / 10.0)
    } else {
        format!("{}M", (bps / 1e6).round())
    }
}

/// 1, 2 or 5 times a power of ten, so that about five lines fit below `most`.
fn nice_step(most: f64) -> f64 {
    let power = 10_f64.powf((most / 5.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    steps
        .into_iter()
        .find(|step| most / step <= 6.0)
        .unwrap_or(power)
}

#[expect(clippy::cast_precision_loss, reason = "rates and counts below 2^53")]
fn f64_of(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grid_lines_are_at_round_figures() {
        for (most, step) in [
            (1e9, 2e8),
            (9.4e8, 2e8),
            (5e9, 1e9),
            (14.3e9, 5e9),
            (1.0, 0.2),
        ] {
            assert!(
                (nice_step(most) / step - 1.0).abs() < 1e-9,
                "{most}: {}",
                nice_step(most)
            );
        }
    }
}
