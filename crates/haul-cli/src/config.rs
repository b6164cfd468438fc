//! Configuration files: values of options that neither the command line nor the environment gives.
//!
//! A key is the name of an option. [`Presets::read`] reads the files, [`Presets::preset`] makes
//! their values the defaults of the command line, so that the options' own parsers check them.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use haul::fault::{Code, Fault};
use haul::printable;
use toml::{Table, Value};

use crate::place;

/// What the value of a key may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A string or a number.
    Text,
    /// A file, relative to the configuration file.
    File,
    /// `[NAME=]FILE`.
    NamedFile,
    /// A string, or several.
    List,
    /// Whether an option without a value is given.
    Flag,
}

/// Keys, and the commands whose options they are.
#[derive(Debug)]
pub(crate) struct Section {
    /// Its TOML table; none is the top of the file.
    table: Option<&'static str>,
    /// A command has some of these options; the first one has all of them.
    commands: &'static [&'static str],
    keys: &'static [(&'static str, Kind)],
}

/// All keys.
pub(crate) const SECTIONS: [Section; 2] = [
    Section {
        table: None,
        commands: &[
            "sync", "send", "get", "ls", "verify", "receive", "doctor", "api",
        ],
        keys: &[
            ("key", Kind::File),
            ("port", Kind::Text),
            ("ports", Kind::Text),
            ("ssh", Kind::Text),
            ("remote-haul", Kind::Text),
            ("gateway", Kind::List),
            ("gateway-key", Kind::NamedFile),
            ("bwlimit", Kind::Text),
            ("rate", Kind::Text),
            ("channel", Kind::Text),
            ("connect-timeout", Kind::Text),
            ("peer-timeout", Kind::Text),
            ("give-up-after", Kind::Text),
            ("durable", Kind::Text),
            ("checksum", Kind::Flag),
            ("recheck", Kind::Flag),
            ("strict-metadata", Kind::Flag),
        ],
    },
    Section {
        table: Some("serve"),
        commands: &["serve"],
        keys: &[
            ("listen", Kind::List),
            ("port", Kind::Text),
            ("key", Kind::File),
            ("authorized-keys", Kind::File),
            ("max-sessions", Kind::Text),
            ("patience", Kind::Text),
            ("metrics", Kind::Text),
        ],
    },
];

impl Section {
    /// Returns the section of a command.
    pub(crate) fn of(command: &str) -> Option<&'static Self> {
        SECTIONS
            .iter()
            .find(|section| section.commands.contains(&command))
    }

    /// Returns the command that has all options of the section.
    pub(crate) const fn command(&self) -> &'static str {
        self.commands[0]
    }

    /// Returns the commands that have some of its options.
    pub(crate) const fn commands(&self) -> &'static [&'static str] {
        self.commands
    }

    /// Returns the options that are keys.
    pub(crate) fn options(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().map(|(key, _)| *key)
    }
}

/// The value of a key.
#[derive(Debug)]
struct Preset {
    table: Option<&'static str>,
    key: &'static str,
    /// As on the command line. clap keeps references, so they live as long as the process.
    values: Vec<&'static str>,
    file: PathBuf,
}

/// The values of all files.
#[derive(Debug, Default)]
pub(crate) struct Presets(Vec<Preset>);

impl Presets {
    /// Reads the files that exist. Later ones have precedence.
    pub(crate) fn read() -> Result<Self, Fault> {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        let mut presets = Self::default();
        for file in place::configurations() {
            match std::fs::read_to_string(&file) {
                Ok(text) => presets.add(&file, &text)?,
                Err(error) if matches!(error.kind(), NotFound | NotADirectory) => {}
                Err(error) => {
                    let text = format!("cannot read '{}'", shown(&file));
                    return Err(Fault::file(&text, &error));
                }
            }
        }
        Ok(presets)
    }

    fn add(&mut self, file: &Path, text: &str) -> Result<(), Fault> {
        let refuse = |what: String| Fault::new(Code::Usage, format!("'{}': {what}", shown(file)));
        let content: Table = text.parse().map_err(|error: toml::de::Error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.unwrap_or_default().matches('\n').count() + 1;
            refuse(format!("line {line}: {}", error.message()))
        })?;
        for section in &SECTIONS {
            let table = match section.table.map(|name| content.get(name)) {
                None => &content,
                Some(None) => continue,
                Some(Some(Value::Table(table))) => table,
                Some(Some(_)) => {
                    let name = section.table.unwrap_or_default();
                    return Err(refuse(format!("'{name}' is no table: write [{name}]")));
                }
            };
            for (name, value) in table {
                let is_table = |section: &Section| section.table == Some(name);
                if section.table.is_none() && SECTIONS.iter().any(is_table) {
                    continue;
                }
                let key = section.keys.iter().find(|(key, _)| key == name);
                let Some((key, kind)) = key else {
                    return Err(
                        refuse(format!("unknown key '{name}'")).hint(nearest(section, name))
                    );
                };
                let values = values(*kind, value, file.parent().unwrap_or(file))
                    .map_err(|wanted| refuse(format!("'{key}' must be {wanted}")))?;
                self.0
                    .retain(|old| old.table != section.table || old.key != *key);
                self.0.push(Preset {
                    table: section.table,
                    key,
                    values: values.into_iter().map(|value| &*value.leak()).collect(),
                    file: file.to_owned(),
                });
            }
        }
        Ok(())
    }

    fn of<'a>(&'a self, section: &Section) -> impl Iterator<Item = &'a Preset> {
        let table = section.table;
        self.0.iter().filter(move |preset| preset.table == table)
    }

    /// Returns the file that gives an option of a section its value, if one does.
    pub(crate) fn origin(&self, section: &Section, option: &str) -> Option<&Path> {
        let found = self.of(section).find(|preset| preset.key == option);
        found.map(|preset| preset.file.as_path())
    }

    /// Returns the value of a key at the top of the files.
    pub(crate) fn value(&self, key: &str) -> Option<&'static str> {
        let found = self.of(&SECTIONS[0]).find(|preset| preset.key == key);
        found.and_then(|preset| preset.values.first().copied())
    }

    /// Makes the values the defaults of the options.
    pub(crate) fn preset(&self, mut command: Command) -> Command {
        for section in &SECTIONS {
            for name in section.commands {
                command = command.mut_subcommand(name, |sub| {
                    sub.mut_args(|arg| {
                        let option = arg.get_long();
                        let preset = self.of(section).find(|preset| option == Some(preset.key));
                        match preset {
                            Some(preset) => arg.default_values(&preset.values),
                            None => arg,
                        }
                    })
                });
            }
        }
        command
    }

    /// Returns the failure of a file, if its value is what the parser of an option refuses.
    pub(crate) fn blame(&self, error: &clap::Error) -> Option<Fault> {
        let context = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.as_str()),
            _ => None,
        };
        if !matches!(
            error.kind(),
            ErrorKind::ValueValidation | ErrorKind::InvalidValue
        ) {
            return None;
        }
        let option = context(ContextKind::InvalidArg)?.trim_start_matches("--");
        let option = option.split(' ').next()?;
        let value = context(ContextKind::InvalidValue)?;
        let preset = self
            .0
            .iter()
            .find(|preset| preset.key == option && preset.values.contains(&value))?;
        let why = std::error::Error::source(error).map(|source| format!(": {source}"));
        let text = format!(
            "'{}': '{value}' is no value of '{option}'{}",
            shown(&preset.file),
            why.unwrap_or_default()
        );
        let command = preset.table.unwrap_or(SECTIONS[0].command());
        let hint = format!("'haul help {command}' describes --{option}");
        Some(Fault::new(Code::Usage, text).hint(hint))
    }
}

/// Returns the values as they are on the command line, or what kind of value is wanted.
fn values(kind: Kind, value: &Value, folder: &Path) -> Result<Vec<String>, &'static str> {
    let below = |file: &str| Some(folder.join(file).to_str()?.to_owned());
    let text = value.as_str();
    let found = match kind {
        Kind::Text => {
            let number = value.as_integer().map(|number| number.to_string());
            number
                .or_else(|| text.map(str::to_owned))
                .map(|one| vec![one])
        }
        Kind::File => text.and_then(below).map(|file| vec![file]),
        Kind::NamedFile => text
            .and_then(|text| match text.split_once('=') {
                Some((name, file)) => Some(format!("{name}={}", below(file)?)),
                None => below(text),
            })
            .map(|file| vec![file]),
        Kind::Flag => value.as_bool().map(|is_set| vec![is_set.to_string()]),
        Kind::List => {
            let one = std::slice::from_ref(value);
            let all = value.as_array().map_or(one, Vec::as_slice);
            let texts = all.iter().map(|value| value.as_str().map(str::to_owned));
            texts
                .collect::<Option<Vec<_>>>()
                .filter(|all| !all.is_empty())
        }
    };
    found.ok_or(match kind {
        Kind::Text => "a string or a number",
        Kind::File | Kind::NamedFile => "a string, the name of a file",
        Kind::Flag => "true or false",
        Kind::List => "a string or a list of strings",
    })
}

/// Returns a hint that names the key most like an unknown one.
fn nearest(section: &Section, name: &str) -> String {
    let likeness = |key: &str| strsim::jaro_winkler(key, name);
    let mut keys: Vec<_> = section.options().collect();
    keys.sort_by(|a, b| likeness(b).total_cmp(&likeness(a)));
    let place = match section.table {
        Some(table) => format!("in [{table}]"),
        None => "at the top of the file".to_owned(),
    };
    format!(
        "the nearest {place} is '{}'; 'haul config show' lists all",
        keys[0]
    )
}

/// Returns whether a command cannot do without the files. `haul doctor` reports what is wrong with
/// them.
pub(crate) fn is_read_by(command: &str) -> bool {
    command == "agent"
        || command == "config"
        || command != "doctor" && Section::of(command).is_some()
}

/// The options that the command line gives.
static GIVEN: OnceLock<Vec<String>> = OnceLock::new();

/// Notes which options the command line gives.
pub(crate) fn note_given(matches: &ArgMatches) {
    let given = matches
        .ids()
        .filter(|id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine));
    let given = given.map(|id| id.as_str().to_owned()).collect();
    // A second call would have the same matches.
    let _ = GIVEN.set(given);
}

/// Returns whether the command line, not a file or the environment, gives an option.
pub(crate) fn is_given(option: &str) -> bool {
    GIVEN
        .get()
        .is_some_and(|given| given.iter().any(|id| id == option))
}

fn shown(path: &Path) -> String {
    printable(path.as_os_str().as_encoded_bytes())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::args::Args;

    fn presets(text: &str) -> Result<Presets, Fault> {
        let mut presets = Presets::default();
        presets.add(Path::new("/etc/haul/config.toml"), text)?;
        Ok(presets)
    }

    fn refusal(text: &str) -> String {
        let fault = presets(text).unwrap_err();
        assert_eq!(fault.code, Code::Usage);
        [fault.text, fault.hint.unwrap_or_default()].join("; ")
    }

    #[test]
    fn every_key_is_an_option_of_the_first_command_of_its_section() {
        let args = Args::command();
        for section in &SECTIONS {
            for command in section.commands {
                assert!(args.find_subcommand(command).is_some(), "{command}");
            }
            let command = args.find_subcommand(section.command()).unwrap();
            for (key, kind) in section.keys {
                let mut options = command.get_arguments();
                let option = options.find(|arg| arg.get_long() == Some(key)).expect(key);
                let takes_values = option.get_action().takes_values();
                assert_eq!(takes_values, *kind != Kind::Flag, "{key}");
            }
        }
    }

    #[test]
    fn a_file_presets_options_and_the_command_line_overrides_it() {
        let presets = presets(
            "rate = '1Gbit'\nport = 5000\nchecksum = true\ngateway = ['a', 'b:1']\n\
             gateway-key = 'near=keys/k'\n[serve]\nport = 6000\nkey = '/k'",
        )
        .unwrap();
        let parse = |line: &[&str]| {
            let command = presets.preset(Args::command());
            let matches = command.try_get_matches_from(line).unwrap();
            let (_, matches) = matches.subcommand().unwrap();
            let matches = matches.clone();
            move |id: &str| -> Vec<String> {
                let raw = matches.get_raw(id).unwrap_or_default();
                raw.map(|raw| raw.to_str().unwrap().to_owned()).collect()
            }
        };
        let sync = parse(&["haul", "sync", "a", "host:b", "--rate", "2Gbit"]);
        assert_eq!(sync("rate"), ["2Gbit"]);
        assert_eq!(sync("port"), ["5000"]);
        assert_eq!(sync("checksum"), ["true"]);
        assert_eq!(sync("gateway"), ["a", "b:1"]);
        assert_eq!(sync("gateway_key"), ["near=/etc/haul/keys/k"]);
        let serve = parse(&["haul", "serve", "."]);
        assert_eq!(serve("port"), ["6000"]);
        assert_eq!(serve("key"), ["/k"]);
    }

    #[test]
    fn a_later_file_has_precedence() {
        let mut presets = presets("port = 1\nrate = '1Mbit'").unwrap();
        presets
            .add(Path::new("/of-user/config.toml"), "port = 2")
            .unwrap();
        assert_eq!(presets.value("port"), Some("2"));
        assert_eq!(presets.value("rate"), Some("1Mbit"));
        let origin = presets.origin(&SECTIONS[0], "port").unwrap();
        assert_eq!(origin, Path::new("/of-user/config.toml"));
    }

    #[test]
    fn an_unknown_key_names_the_nearest() {
        assert!(refusal("bwlimt = '1Mbit'").contains("'bwlimit'"));
        assert!(refusal("[serve]\nauthorised_keys = 'a'").contains("'authorized-keys'"));
        assert!(refusal("[server]\nport = 1").contains("unknown key 'server'"));
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_refused() {
        assert!(refusal("rate = true").contains("'rate' must be a string or a number"));
        assert!(refusal("checksum = 'yes'").contains("must be true or false"));
        assert!(refusal("gateway = [1]").contains("must be a string or a list of strings"));
        assert!(refusal("gateway = []").contains("must be a string or a list"));
        assert!(refusal("serve = 1").contains("write [serve]"));
        assert!(refusal("port = 1\nrate = ").contains("line 2: "));
    }

    #[test]
    fn a_value_that_the_option_refuses_is_the_files_fault() {
        let presets = presets("rate = 'fast'\nchannel = 'tpc'").unwrap();
        let parse = |line: &[&str]| {
            let command = presets.preset(Args::command());
            command.try_get_matches_from(line).unwrap_err()
        };
        let error = parse(&["haul", "send", "a", "host:b", "--channel", "tcp"]);
        let fault = presets.blame(&error).unwrap().to_string();
        assert!(
            fault.contains("'/etc/haul/config.toml': 'fast' is no value of 'rate'"),
            "{fault}"
        );
        let error = parse(&["haul", "send", "a", "host:b", "--rate", "1Gbit"]);
        assert!(presets.blame(&error).unwrap().to_string().contains("'tpc'"));
        let error = parse(&[
            "haul",
            "send",
            "a",
            "host:b",
            "--rate",
            "slow",
            "--channel",
            "tcp",
        ]);
        assert!(presets.blame(&error).is_none());
    }
}
