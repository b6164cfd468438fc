//! `haul config`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory};
use haul::fault::{Code, Fault};
use haul::printable;

use super::fail;
use crate::args::{Args, Config, ConfigShow};
use crate::config::{Presets, SECTIONS, Section};
use crate::place;

pub(crate) fn run(config: &Config, presets: &Presets) -> ExitCode {
    let Config::Show(show) = config;
    match text(show, presets) {
        Ok(text) => {
            // Whoever reads stdout may have gone.
            let _ = std::io::stdout().lock().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(fault) => fail(&fault),
    }
}

fn text(show: &ConfigShow, presets: &Presets) -> Result<String, Fault> {
    let mut text = String::new();
    for file in place::configurations() {
        let state = if file.exists() {
            ""
        } else {
            ", which does not exist"
        };
        let _ = writeln!(
            text,
            "# {}{state}",
            printable(file.as_os_str().as_encoded_bytes())
        );
    }
    let Some((command, options)) = show.line.split_first() else {
        for section in &SECTIONS {
            let _ = writeln!(text, "\n# haul {}", section.commands().join(", "));
            text += &values(section, section.command(), &[], presets);
        }
        return Ok(text);
    };
    let section = Section::of(command).ok_or_else(|| {
        let known: Vec<_> = SECTIONS
            .iter()
            .flat_map(Section::commands)
            .copied()
            .collect();
        let text = format!(
            "'{}' reads no configuration file",
            printable(command.as_bytes())
        );
        Fault::new(Code::Usage, text).hint(format!("these do: {}", known.join(", ")))
    })?;
    text.push('\n');
    Ok(text + &values(section, command, options, presets))
}

/// Returns a line for each key that is an option of this command, with its value and where that
/// comes from.
fn values(section: &Section, command: &str, options: &[String], presets: &Presets) -> String {
    let args = presets.preset(Args::command());
    let Some(parser) = args.find_subcommand(command) else {
        return String::new();
    };
    // The operands do not matter.
    let parser = parser
        .clone()
        .no_binary_name(true)
        .mut_args(|arg| arg.required(false));
    let matches = match parser.clone().try_get_matches_from(options) {
        Ok(matches) => matches,
        Err(error) => match presets.blame(&error) {
            Some(fault) => return format!("# {fault}\n"),
            None => error.exit(),
        },
    };
    let mut text = String::new();
    for option in section.options() {
        let found = parser
            .get_arguments()
            .find(|arg| arg.get_long() == Some(option));
        let Some(arg) = found else { continue };
        let origin = match matches.value_source(arg.get_id().as_str()) {
            Some(ValueSource::CommandLine) => "command line".to_owned(),
            Some(ValueSource::EnvVariable) => {
                let name = arg.get_env().unwrap_or_default();
                format!("environment, {}", printable(name.as_encoded_bytes()))
            }
            _ => presets.origin(section, option).map_or_else(
                || "default".to_owned(),
                |file| printable(file.as_os_str().as_encoded_bytes()),
            ),
        };
        let _ = writeln!(text, "{option:<16}  {:<32}  {origin}", value(arg, &matches));
    }
    text
}

/// Returns the value of an option; what its help names as default if it has none.
fn value(arg: &Arg, matches: &ArgMatches) -> String {
    let raw = matches.get_raw(arg.get_id().as_str()).unwrap_or_default();
    let raw: Vec<_> = raw.map(|raw| printable(raw.as_encoded_bytes())).collect();
    if !raw.is_empty() {
        return raw.join(",");
    }
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let default = help
        .split_once("[default: ")
        .and_then(|(_, rest)| rest.split_once(']'));
    default.map_or_else(|| "-".to_owned(), |(default, _)| default.to_owned())
}
