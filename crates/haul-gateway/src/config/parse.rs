//! Parses a configuration, or finds all settings that do not parse.
//!
//! Each bad setting is reported and removed, so that the next one is found as well.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

use haul_io::error::plain;
use serde::de::{DeserializeOwned, IntoDeserializer};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::lines::Lines;
use super::model::Config;
use super::problem::{Problem, Severity};

/// Names of arrays of tables.
pub(crate) const LISTENER: &str = "listener";
/// The old name of [`LISTENER`], which is still read.
pub(crate) const DOOR: &str = "door";
pub(crate) const ROUTE: &str = "route";
pub(crate) const CHANNEL: &str = "channel";
pub(crate) const KEY: &str = "key";
pub(crate) const CLASS: &str = "class";
pub(crate) const INBOUND_CLASS: &str = "inbound_class";
/// The old name of [`INBOUND_CLASS`], which is still read.
pub(crate) const GUEST_CLASS: &str = "guest_class";

impl Config {
    /// Reads a file. Relative paths in it start at its directory.
    ///
    /// # Errors
    /// All settings that do not parse, or why the file cannot be read.
    pub fn load(path: &Path) -> Result<Self, Vec<Problem>> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            let text = format!("cannot read {}: {}", path.display(), plain(&error));
            vec![problem(None, "", text)]
        })?;
        let mut config = Self::parse(&text)?;
        if let Some(dir) = path.parent() {
            let tls = config.tls.iter_mut();
            let tls = tls.flat_map(|tls| [&mut tls.certificate, &mut tls.key, &mut tls.roots]);
            let keys = config.keys.iter_mut().map(|key| &mut key.file);
            let access = config.access_log.iter_mut().map(|access| &mut access.file);
            tls.chain(keys)
                .chain(access)
                .for_each(|path| *path = dir.join(&*path));
        }
        Ok(config)
    }

    /// Parses text.
    ///
    /// # Errors
    /// All settings that do not parse.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let (root, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            let problem = |error: &toml::de::Error| {
                problem(line(text, error.span()), "", error.message().to_owned())
            };
            return Err(errors.iter().map(problem).collect());
        }
        let mut parser = Parser {
            text,
            problems: Vec::new(),
            lines: Lines::default(),
        };
        let config = parser.config(root);
        match config {
            Some(config) if parser.problems.is_empty() => Ok(Self {
                lines: parser.lines,
                ..config
            }),
            _ => {
                parser.problems.sort_by_key(|problem| problem.line);
                Err(parser.problems)
            }
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    problems: Vec<Problem>,
    lines: Lines,
}

impl<'a> Parser<'a> {
    fn config(&mut self, mut root: Spanned<DeTable<'a>>) -> Option<Config> {
        for (key, _) in root.get_ref() {
            let line = line_of(self.text, key.span().start);
            self.lines
                .named
                .insert(key.get_ref().clone().into_owned(), line);
        }
        let mut listeners = self.tables(&mut root, LISTENER);
        let renamed = self.tables(&mut root, DOOR);
        for number in 0..renamed.len() {
            if let Some(line) = self.lines.of_number(DOOR, number) {
                let number = listeners.len() + number;
                self.lines.numbered.insert((LISTENER, number), line);
            }
        }
        listeners.extend(renamed);
        let routes = self.tables(&mut root, ROUTE);
        let channels = self.tables(&mut root, CHANNEL);
        let keys = self.tables(&mut root, KEY);
        let classes = self.tables(&mut root, CLASS);
        let config: Config = self.table(root, "")?;
        Some(Config {
            listeners,
            routes,
            channels,
            keys,
            classes,
            ..config
        })
    }

    /// Takes all tables of a name. A value of another type stays, to be reported by its type.
    fn tables<T: DeserializeOwned>(
        &mut self,
        root: &mut Spanned<DeTable<'a>>,
        name: &'static str,
    ) -> Vec<T> {
        let array = root
            .get_ref()
            .get(name)
            .and_then(|value| value.get_ref().as_array());
        if !array.is_some_and(|array| array.iter().all(|value| value.get_ref().is_table())) {
            return Vec::new();
        }
        let Some(DeValue::Array(array)) = root.get_mut().remove(name).map(Spanned::into_inner)
        else {
            return Vec::new();
        };
        let mut parsed = Vec::new();
        for (number, value) in array.into_iter().enumerate() {
            let span = value.span();
            self.lines
                .numbered
                .insert((name, number), line_of(self.text, span.start));
            if let DeValue::Table(table) = value.into_inner() {
                let place = format!("[[{name}]] {}", number + 1);
                parsed.extend(self.table(Spanned::new(span, table), &place));
            }
        }
        parsed
    }

    fn table<T: DeserializeOwned>(
        &mut self,
        mut table: Spanned<DeTable<'a>>,
        place: &str,
    ) -> Option<T> {
        let mut removed = Vec::new();
        loop {
            let error = match T::deserialize(table.clone().into_deserializer()) {
                Ok(parsed) => return removed.is_empty().then_some(parsed),
                Err(error) => error,
            };
            let at = error.span().unwrap_or_else(|| table.span());
            // A missing setting is reported for the whole table.
            let culprit = Some(&table)
                .filter(|table| at != table.span())
                .and_then(|table| culprit(table.get_ref(), &at));
            // A removed setting is not missing.
            let is_missing = error.message().starts_with("missing field");
            let is_sent =
                |key: &String| is_missing && error.message().contains(&format!("`{key}`"));
            if !removed.iter().any(is_sent) {
                let mut place = place.to_owned();
                for key in culprit.iter().flatten() {
                    place = join(&place, key.get_ref());
                }
                self.tell(at.start, &place, error.message());
            }
            let culprit = culprit?;
            removed.extend(remove(table.get_mut(), &culprit));
        }
    }

    fn tell(&mut self, at: usize, place: &str, text: &str) {
        let text = text.lines().collect::<Vec<_>>().join(", ");
        self.problems
            .push(problem(Some(line_of(self.text, at)), place, text));
    }
}

/// A key and the tables around it, outermost first.
type KeyPath<'a> = Vec<Spanned<Cow<'a, str>>>;

/// Finds the innermost setting that contains `at`. The span of a table with its own header ends
/// with the header, so its settings are asked.
fn culprit<'a>(table: &DeTable<'a>, at: &Range<usize>) -> Option<KeyPath<'a>> {
    table.iter().find_map(|(key, value)| {
        let inner = match value.get_ref() {
            DeValue::Table(inner) => culprit(inner, at),
            _ => None,
        };
        if let Some(mut path) = inner {
            path.insert(0, key.clone());
            return Some(path);
        }
        let holds =
            key.span().start.min(value.span().start) <= at.start && at.end <= value.span().end;
        holds.then(|| vec![key.clone()])
    })
}

/// Removes a setting, and returns its name.
fn remove<'a>(table: &mut DeTable<'a>, path: &[Spanned<Cow<'a, str>>]) -> Option<String> {
    let (key, inner) = path.split_first()?;
    if inner.is_empty() {
        return table
            .remove(key)
            .map(|_| key.get_ref().clone().into_owned());
    }
    match table.get_mut(key)?.get_mut() {
        DeValue::Table(table) => remove(table, inner),
        _ => None,
    }
}

fn join(place: &str, name: &str) -> String {
    if place.is_empty() {
        name.to_owned()
    } else {
        format!("{place}: {name}")
    }
}

fn problem(line: Option<usize>, place: &str, text: String) -> Problem {
    Problem {
        severity: Severity::Error,
        line,
        place: place.to_owned(),
        text,
        hint: None,
    }
}

fn line(text: &str, span: Option<Range<usize>>) -> Option<usize> {
    span.map(|span| line_of(text, span.start))
}

fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().iter().take(at);
    before.filter(|octet| **octet == b'\n').count() + 1
}
