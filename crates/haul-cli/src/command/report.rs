//! `haul report`.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use haul::fault::{Code, Fault};
use haul_bench::path::document::{Document, SCHEMA};
use haul_bench::path::{compare, show};

use super::fail;
use crate::args::profile::Report;
use crate::output::tell;

/// The largest file of results that is read, bytes.
const BYTES_MAX: u64 = 1 << 30;

/// Shows or compares.
pub(crate) fn run(args: &Report) -> ExitCode {
    match report(args) {
        Ok(text) => {
            // Whoever reads stdout may have gone.
            let _ = std::io::stdout().lock().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(fault) => fail(&fault),
    }
}

fn report(args: &Report) -> Result<String, Fault> {
    let a = read(&args.a)?;
    let (text, html) = match &args.b {
        None => (alone(&a), haul_bench::html(&a)),
        Some(b) => {
            let b = read(b)?;
            (
                printable_lines(&compare::text(&a, &b)),
                compare::html(&a, &b),
            )
        }
    };
    if let Some(path) = &args.html {
        let name = haul::printable(path.as_os_str().as_encoded_bytes());
        std::fs::write(path, html)
            .map_err(|error| Fault::file(&format!("cannot write '{name}'"), &error))?;
        tell(&format!("wrote {name}"));
    }
    Ok(text)
}

fn alone(document: &Document) -> String {
    let mut text = format!("{}\n{}\n", document.command, document.client.line());
    for run in &document.runs {
        text += &format!("{:10} {}\n", run.section, show::line(run));
    }
    for finding in &document.findings {
        text += &format!("{}: {}\n", finding.about, finding.text);
    }
    printable_lines(&text)
}

/// Returns the text of a file without control characters but for ends of lines.
fn printable_lines(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| haul::printable(line.as_bytes()) + "\n");
    lines.collect()
}

fn read(path: &Path) -> Result<Document, Fault> {
    let file = if path.is_dir() {
        path.join("results.json")
    } else {
        path.to_owned()
    };
    let name = haul::printable(file.as_os_str().as_encoded_bytes());
    let failed = |error: std::io::Error| Fault::file(&format!("cannot read '{name}'"), &error);
    let len = std::fs::metadata(&file).map_err(failed)?.len();
    if len > BYTES_MAX {
        return Err(Fault::new(
            Code::Refused,
            format!("'{name}' is too large to be results"),
        ));
    }
    let text = std::fs::read(&file).map_err(failed)?;
    let document: Result<Document, _> = serde_json::from_slice(&text);
    let hint = "give what 'haul bench run --out' or 'haul profile' wrote";
    let document = document.map_err(|error| {
        Fault::new(Code::Usage, format!("'{name}' has no results: {error}")).hint(hint)
    })?;
    if document.schema != SCHEMA {
        let schema = &document.schema;
        return Err(Fault::new(
            Code::Version,
            format!("'{name}' is of schema {schema}, not {SCHEMA}"),
        )
        .hint(hint));
    }
    Ok(document)
}
