//! `haul bench run`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use haul::fault::{Code, Fault};
use haul_bench::path::document::{Document, Kind, Setting};
use haul_bench::path::{Config, measure, show};

use crate::args::path::{BenchRun, Options, ServerArgs};
use crate::operand::host_and_port;
use crate::output::path::PathOutput;
use crate::{provider, trust};

/// With `--vs` each setting is measured so often, unless the user sets how often.
const REPEAT_VS: u32 = 3;

/// Measures.
pub(crate) fn run(args: &BenchRun) -> ExitCode {
    let output = Arc::new(PathOutput::new(args.output));
    match output.watch().and_then(|()| run_all(args, &output)) {
        Ok(document) => output.finish(&document),
        Err(fault) => output.fault(&fault),
    }
}

fn run_all(args: &BenchRun, output: &PathOutput) -> Result<Document, Fault> {
    let settings = settings(args)?;
    let repeat = args
        .repeat
        .unwrap_or(if settings.len() > 1 { REPEAT_VS } else { 1 });
    let out = args.out.as_deref();
    out.map_or(Ok(()), make_directory)?;
    let mut document = Document::new(Kind::Run, command_line());
    document.settings = settings
        .iter()
        .map(|(label, options)| Setting {
            label: (*label).into(),
            options: show::plan(&options.plan()),
        })
        .collect();
    with_server(&args.host, &args.server, |config| {
        for repetition in 0..repeat {
            for (label, options) in &settings {
                let plan = options.plan();
                output.begin(label, repetition, &plan, settings.len() > 1);
                let found = measure(config, &plan, &|progress| output.progress(&progress))?;
                let mut run = found.run;
                (run.setting, run.repetition) = ((*label).into(), repetition);
                document.peer = found.peer.to_string();
                document.server = found.server.or_else(|| document.server.take());
                output.run(&run);
                document.runs.push(run);
            }
        }
        Ok(())
    })?;
    document.compare();
    if let Some(out) = out {
        write_report(out, &document, output)?;
    }
    Ok(document)
}

/// The settings with their labels; every one makes sense.
fn settings(args: &BenchRun) -> Result<Vec<(&'static str, Options)>, Fault> {
    let mut settings = vec![("A", args.options.clone())];
    if let Some(text) = &args.vs {
        let vs = Options::parse_words(text)
            .map_err(|why| Fault::new(Code::Usage, format!("--vs '{text}': {why}")))?;
        settings.push(("B", vs.over(&args.options)));
    }
    for (label, options) in &settings {
        options.plan().validate().map_err(|fault| Fault {
            text: if settings.len() > 1 {
                format!("setting {label}: {fault}")
            } else {
                fault.text
            },
            ..Fault::new(fault.code, "")
        })?;
    }
    Ok(settings)
}

/// Does something against the server that the command line names.
pub(crate) fn with_server<T>(
    host: &str,
    args: &ServerArgs,
    work: impl FnOnce(&Config<'_>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let (host, port) = host_and_port(host);
    let device = args.device.clone();
    let port = port.unwrap_or(args.port);
    let config = Config {
        control: trust::of_bench(&args.trust, &host, port)?,
        host,
        port,
        files: haul_bench::path::Files {
            source: args.source_file.clone(),
            sink: args.sink_file.clone(),
        },
        devices: &|service, wire| provider::device(&device, service, wire),
        connect_timeout: args.connect_timeout.max(Duration::from_millis(1)),
        dead_after: args.peer_timeout.max(Duration::from_secs(1)),
    };
    work(&config)
}

/// The directory of results. It is made before anything is measured: a measurement that cannot be
/// kept is lost.
pub(crate) fn make_directory(out: &Path) -> Result<(), Fault> {
    let name = haul::printable(out.as_os_str().as_encoded_bytes());
    std::fs::create_dir_all(out)
        .map_err(|error| Fault::file(&format!("cannot make '{name}'"), &error))
}

/// Writes the page, the document and the table.
pub(crate) fn write_report(
    out: &Path,
    document: &Document,
    output: &PathOutput,
) -> Result<(), Fault> {
    let json = serde_json::to_string_pretty(document);
    let json =
        json.map_err(|error| Fault::new(Code::Other, format!("cannot write JSON: {error}")))?;
    let files = [
        ("report.html", haul_bench::html(document)),
        ("results.json", json + "\n"),
        ("results.csv", show::csv(document)),
    ];
    for (name, text) in files {
        let path = out.join(name);
        let shown = haul::printable(path.as_os_str().as_encoded_bytes());
        std::fs::write(&path, text)
            .map_err(|error| Fault::file(&format!("cannot write '{shown}'"), &error))?;
        output.note(&format!("wrote {shown}"));
    }
    Ok(())
}

/// The command as it was typed, for a reader of the report.
pub(crate) fn command_line() -> String {
    let quoted = |word: std::ffi::OsString| {
        let word = haul::printable(word.as_encoded_bytes());
        if word.is_empty() || word.contains([' ', '\'', '"', '$', '*']) {
            format!("'{}'", word.replace('\'', "'\\''"))
        } else {
            word
        }
    };
    let words = std::env::args_os().skip(1).map(quoted);
    std::iter::once("haul".to_owned())
        .chain(words)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Formats the number of a run, and the time left for those that follow.
pub(super) fn progress(number: usize, count: usize, left: Duration, what: &str) -> String {
    let seconds = left.as_secs();
    format!(
        "{number:>3}/{count}, about {}:{:02} left: {what}",
        seconds / 60,
        seconds % 60
    )
}
