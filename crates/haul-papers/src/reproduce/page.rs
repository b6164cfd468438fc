//! One self-contained page, without scripts and external pictures or styles.

use super::chart;
use super::record::{Chart, Claim, Figure, Results, figure};
use haul_report::svg::{self, escaped};

const STYLE: &str = "<style>\
:root{color-scheme:light dark;--ink:#1c1c1c;--paper:#ffffff;--line:#d0d0d0;--good:#1a7a2e;--bad:#b3261e;--quiet:#666}\
@media(prefers-color-scheme:dark){:root{--ink:#e8e8e8;--paper:#161616;--line:#444;--good:#6fce82;--bad:#ff8a80;--quiet:#aaa}}\
body{font:16px/1.5 sans-serif;color:var(--ink);background:var(--paper);max-width:900px;margin:2em auto;padding:0 1em}\
h1{font-size:1.5em}h2{font-size:1.2em;margin-top:2.2em;border-top:1px solid var(--line);padding-top:1em}\
svg{width:100%;height:auto;display:block;margin:.6em 0}svg .onDark{fill:#fff}svg .onLight{fill:#1c1c1c}\
table{border-collapse:collapse;margin:.6em 0;font-variant-numeric:tabular-nums}\
td,th{padding:.2em .8em .2em 0;text-align:right;vertical-align:top}th{border-bottom:1px solid var(--line)}\
td:first-child,th:first-child,.words td,.words th{text-align:left}\
.words td:first-child,.words td:nth-child(4){white-space:nowrap}.yes{color:var(--good)}.no{color:var(--bad)}.quiet{color:var(--quiet)}\
code,pre{font-size:.85em}pre{overflow-x:auto}summary{cursor:pointer;color:var(--quiet)}\
.scroll{overflow-x:auto}</style>";

/// The page.
pub(super) fn render(results: &Results) -> String {
    let title = escaped(results.paper);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n{STYLE}{}{}\n</head>\n<body>\n\
         <h1>The paper's figures, measured here</h1>\n<p>{title}</p>\n<p>{}<br>{}</p>\n",
        svg::STYLE,
        chart::MORE,
        escaped(&results.machine.line()),
        escaped(&results.how()),
    );
    if results.interrupted.is_some() {
        page += "<p class=\"no\">It was interrupted: figures are missing.</p>\n";
    }
    page += &overview(results);
    for figure in &results.figures {
        page += &section(figure);
    }
    page + "</body>\n</html>\n"
}

/// The summary: every claim, and whether it holds.
fn overview(results: &Results) -> String {
    let mut rows = String::new();
    for figure in &results.figures {
        for claim in &figure.claims {
            rows += &format!("<tr><td>{}</td>{}</tr>\n", link(figure), cells(claim));
        }
        if let Some(why) = figure.not_run.iter().chain(&figure.failed).next() {
            rows += &format!(
                "<tr><td>{}</td><td colspan=\"3\" class=\"quiet\">{}: {}</td></tr>\n",
                link(figure),
                escaped(figure.title),
                escaped(why)
            );
        }
    }
    if rows.is_empty() {
        return rows;
    }
    format!(
        "<table class=\"words\"><tr><th></th><th>claim</th><th>here</th><th></th></tr>\n{rows}</table>\n"
    )
}

/// Where a figure is on the page.
fn anchor(figure: &Figure) -> String {
    figure.label().replace(' ', "")
}

fn link(figure: &Figure) -> String {
    format!("<a href=\"#{}\">{}</a>", anchor(figure), figure.label())
}

/// Returns the text with its first letter in upper case.
fn heading(label: &str) -> String {
    let mut letters = label.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

fn cells(claim: &Claim) -> String {
    let class = match claim.holds {
        Some(true) => "yes",
        Some(false) => "no",
        None => "quiet",
    };
    format!(
        "<td>{}</td><td>{}</td><td class=\"{class}\">{}</td>",
        escaped(&claim.claim),
        escaped(claim.here.as_deref().unwrap_or("")),
        claim.verdict()
    )
}

fn section(found: &Figure) -> String {
    let mut html = format!(
        "<h2 id=\"{}\">{}: {}</h2>\n<p>{}</p>\n",
        anchor(found),
        heading(&found.label()),
        escaped(found.title),
        escaped(found.about)
    );
    if let Some(why) = &found.not_run {
        html += &format!("<p class=\"quiet\">{}</p>\n", escaped(why));
    }
    if let Some(why) = &found.failed {
        html += &format!("<p class=\"no\">failed: {}</p>\n", escaped(why));
    }
    for one in &found.charts {
        html += &chart::render(one);
    }
    html += &warnings(&found.warnings);
    if !found.charts.is_empty() {
        html += "<details><summary>figures and commands</summary>\n";
        html += &found.charts.iter().map(table).collect::<String>();
        html += &format!(
            "<pre>{}</pre>\n</details>\n",
            escaped(&found.commands.join("\n"))
        );
    }
    html
}

/// Long lists are collapsed, so that the next figure stays visible.
fn warnings(all: &[String]) -> String {
    const SHOWN: usize = 3;
    let lines: String = all
        .iter()
        .map(|one| format!("<p class=\"quiet\">warning: {}</p>\n", escaped(one)))
        .collect();
    if all.len() <= SHOWN {
        return lines;
    }
    let count = all.len();
    format!("<details><summary>{count} warnings</summary>\n{lines}</details>\n")
}

/// The medians, and of what may be lost the counts.
fn table(chart: &Chart) -> String {
    let heads: String = chart
        .series
        .iter()
        .map(|series| format!("<th>{}</th>", escaped(&series.name)))
        .collect();
    let mut rows = String::new();
    for at in chart.sizes() {
        let cells: String = chart
            .series
            .iter()
            .map(|series| {
                let point = series.points.iter().find(|point| point.at == at);
                point.map_or_else(|| "<td></td>".into(), |point| {
                    let messages = point.sent_messages.zip(point.partial_messages).zip(point.lost_messages);
                    let lost = messages.map_or_else(String::new, |((sent, partial), lost)| {
                        format!(" <span class=\"quiet\">({sent} sent, {partial} in part, {lost} lost)</span>")
                    });
                    format!("<td>{}{lost}</td>", figure(point.value))
                })
            })
            .collect();
        let place = chart.place(at);
        rows += &format!("<tr><td>{place}</td>{cells}</tr>\n");
    }
    format!(
        "<p>{}, {}</p>\n<div class=\"scroll\"><table><tr><th>{}</th>{heads}</tr>\n{rows}</table></div>\n",
        escaped(&chart.title),
        escaped(chart.unit),
        chart.along.head()
    )
}
