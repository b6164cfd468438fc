//! Errors of the command line, in more words than clap's.

use std::error::Error as _;
use std::ffi::OsString;
use std::num::{IntErrorKind, ParseIntError};

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Adds to an error of this command line what clap leaves out: the environment variable of a wrong
/// value, how a number is written, and which commands have an option that this one lacks.
pub(crate) fn explain(mut error: clap::Error, command: &clap::Command) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let (argument, value) = (
        text(ContextKind::InvalidArg),
        text(ContextKind::InvalidValue),
    );
    let Some(argument) = argument else {
        return error;
    };
    let option = argument.split(' ').next().unwrap_or_default();
    let option = option.strip_prefix("--").unwrap_or_default();
    if error.kind() == ErrorKind::UnknownArgument {
        let mut owners = owners(command, command.get_name(), option);
        if let Some(last) = owners.pop() {
            let owners = match owners.is_empty() {
                true => last,
                false => format!("{} and {last}", owners.join(", ")),
            };
            let tip = format!("--{option} is an option of {owners}");
            let tip = ContextValue::StyledStrs(vec![StyledStr::from(tip)]);
            error.insert(ContextKind::Suggested, tip);
        }
        return error;
    }
    let Some(value) = value.filter(|_| error.kind() == ErrorKind::ValueValidation) else {
        return error;
    };
    let shown = variable(command, option, &value).unwrap_or(argument);
    let number = error.source().and_then(|why| why.downcast_ref());
    let why = match number.map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow) => "the number is too large".to_owned(),
        Some(_) => "write a whole number".to_owned(),
        None => error.source().map_or_else(String::new, ToString::to_string),
    };
    let text = format!(
        "invalid value '{value}' for '{shown}': {why}\n\nFor more information, try '--help'.\n"
    );
    clap::Error::raw(ErrorKind::ValueValidation, text)
}

/// Returns the commands below this one that have the option.
fn owners(command: &clap::Command, name: &str, option: &str) -> Vec<String> {
    let commands = command.get_subcommands();
    let commands = commands.filter(|command| !command.is_hide_set());
    commands
        .flat_map(|command| {
            let name = format!("{name} {}", command.get_name());
            let is_of = |arg: &clap::Arg| arg.get_long() == Some(option) && !arg.is_hide_set();
            let below = owners(command, &name, option);
            let own = command.get_arguments().any(is_of).then_some(name);
            own.into_iter().chain(below)
        })
        .collect()
}

/// Returns the variable that holds the value of an option which the command line does not have.
fn variable(command: &clap::Command, option: &str, value: &str) -> Option<String> {
    let flag = format!("--{option}");
    let is_given = |word: OsString| word.to_string_lossy().split('=').next() == Some(&flag);
    if option.is_empty() || std::env::args_os().any(is_given) {
        return None;
    }
    let own = command.get_arguments().find_map(|arg| {
        let name = arg.get_env().filter(|_| arg.get_long() == Some(option))?;
        (std::env::var_os(name)? == value).then(|| name.to_string_lossy().into_owned())
    });
    let below = || {
        let mut commands = command.get_subcommands();
        commands.find_map(|command| variable(command, option, value))
    };
    own.or_else(below)
}
