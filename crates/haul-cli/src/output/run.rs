//! What became of the sockets of a program under `haul run`.

use std::fmt::Write;
use std::net::SocketAddr;

use haul_socket::run::{Report, Row};
use haul_socket::table::Protocol;
use serde_json::{Value, json};

/// Schema of the report.
const SCHEMA: &str = "haul.run/1";

/// One line for each socket.
pub(crate) fn table(report: &Report) -> String {
    let head = [
        "PID",
        "FD",
        "PROTO",
        "LOCAL",
        "PEER",
        "BY",
        "OUT",
        "IN",
        "PLAIN OUT",
        "PLAIN IN",
        "WHY NOT",
    ];
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(report.rows.iter().map(cells));
    let width = |column: usize| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths);
        let padded: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}", padded.join("  ").trim_end());
    }
    if report.rows.is_empty() {
        text.push_str(unseen(report));
    }
    if report.left_out > 0 {
        let _ = writeln!(
            text,
            "and {} more for which there was no room",
            report.left_out
        );
    }
    text
}

/// Why there is no row.
fn unseen(report: &Report) -> &'static str {
    match (report.supervised, report.loaded) {
        (true, _) => "no socket was seen: the application made none to another host\n",
        (false, 0) => {
            "no socket was seen: the application did not load the library, because it is static, set-user-ID or of \
             another libc; what it sent went plain\n"
        }
        (false, _) => {
            "no socket was seen: the application made none, or a child that did not load the library made them, \
             and they went plain\n"
        }
    }
}

fn cells(row: &Row) -> [String; 11] {
    let place = |place: Option<SocketAddr>| place.map_or_else(|| "-".into(), |p| p.to_string());
    let mut by = row.carrier.text().to_owned();
    if row.listening {
        by = "listens".to_owned();
    }
    if row.malformed > 0 {
        by = format!("{by}, {} refused", row.malformed);
    }
    [
        row.pid.to_string(),
        row.descriptor.to_string(),
        protocol(row).to_owned(),
        place(row.local),
        place(row.remote),
        by,
        count(row.carried.map(|(out, _)| out)),
        count(row.carried.map(|(_, back)| back)),
        row.plain.0.to_string(),
        row.plain.1.to_string(),
        row.why.text().to_owned(),
    ]
}

/// A number of bytes, where somebody counted them.
fn count(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".into(), |bytes| bytes.to_string())
}

fn protocol(row: &Row) -> &'static str {
    match row.protocol {
        Protocol::Udp => "udp",
        Protocol::Tcp => "tcp",
    }
}

/// One object.
pub(crate) fn json(report: &Report) -> String {
    let rows: Vec<Value> = report.rows.iter().map(object).collect();
    let object = json!({
        "schema": SCHEMA,
        "sockets": rows,
        "left_out": report.left_out,
    });
    format!("{object}\n")
}

fn object(row: &Row) -> Value {
    let why = row.why.text();
    json!({
        "pid": row.pid,
        "fd": row.descriptor,
        "protocol": protocol(row),
        "local": row.local.map(|place| place.to_string()),
        "peer": row.remote.map(|place| place.to_string()),
        "listening": row.listening,
        "by": row.carrier.text(),
        "carried_out_bytes": row.carried.map(|(out, _)| out),
        "carried_in_bytes": row.carried.map(|(_, back)| back),
        "plain_out_bytes": row.plain.0,
        "plain_in_bytes": row.plain.1,
        "refused": row.malformed,
        "why_not": (!why.is_empty()).then_some(why),
    })
}
