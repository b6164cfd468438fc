//! Which entries of a tree a request is about: rules, ignore files and a list of paths, here and on
//! the wire.

use std::collections::HashSet;

use minicbor::{Decode, Encode};

use crate::fault::{Code, Fault};
use crate::fs::filter::{self, Action, Filter};
use crate::fs::path::Relative;
use crate::fs::walk;
use crate::printable;

/// Maximum number of rules of a request.
const RULES_MAX: usize = 4096;
/// Maximum size of all patterns of a request, bytes.
const PATTERNS_MAX: usize = 64 << 10;
/// Maximum size of the list of a request, bytes.
const LIST_MAX: usize = 3 << 20;

/// Chooses entries of a tree. By default it takes all of them.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// Rules in order, as for [`Filter::new`].
    pub rules: Vec<(Action, String)>,
    /// `.haulignore` files count.
    pub reads_ignore_files: bool,
    /// The only paths to take, as [`filter::read_list`] returns them.
    pub list: Option<Vec<Relative>>,
    /// A request that names a file is refused.
    pub only_trees: bool,
    /// The only paths that a client which gets trees takes, as the server offers them, besides
    /// directories: a list without a limit, because the client keeps it.
    pub only: Option<HashSet<Relative>>,
}

/// Makes the fault of a file where only trees are taken.
pub(crate) fn no_tree(path: &[u8]) -> Fault {
    let text = format!("'{}' is not a directory", printable(path));
    Fault::new(Code::DirectoryNotFound, text).hint("haul send and haul get take files")
}

impl Choice {
    /// Returns the filter of the rules and ignore files, without the list.
    ///
    /// # Errors
    /// [`Code::Usage`] for a pattern that is none.
    pub fn filter(&self) -> Result<Filter, Fault> {
        let rules = self.rules.iter();
        let rules = rules.map(|(action, pattern)| (*action, pattern.as_str()));
        Filter::new(rules, self.reads_ignore_files)
    }

    /// Returns how a local tree is walked.
    ///
    /// # Errors
    /// As [`Choice::filter`].
    pub fn options(&self) -> Result<walk::Options, Fault> {
        Ok(walk::Options {
            filter: self.filter()?,
            list: self.list.clone(),
            ..walk::Options::default()
        })
    }

    /// Returns the form for the wire; `None` if it takes everything.
    pub(crate) fn chosen(&self) -> Result<Option<Chosen>, Fault> {
        if self.rules.is_empty() && !self.reads_ignore_files && self.list.is_none() {
            return Ok(None);
        }
        let list = self.list.as_ref().map(|list| {
            let bytes = list.iter().map(|path| match path.is_root() {
                true => b".",
                false => path.as_bytes(),
            });
            bytes.collect::<Vec<_>>().join(&0)
        });
        let chosen = Chosen {
            rules: self.rules.iter().map(Rule::new).collect(),
            ignore_files: self.reads_ignore_files,
            list,
        };
        chosen.check()?;
        Ok(Some(chosen))
    }
}

/// A [`Choice`] on the wire.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Chosen {
    #[n(0)]
    rules: Vec<Rule>,
    /// `.haulignore` counts.
    #[n(1)]
    ignore_files: bool,
    /// Paths, with a NUL between them.
    #[cbor(n(2), with = "minicbor::bytes")]
    list: Option<Vec<u8>>,
}

/// A rule on the wire.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Rule {
    /// Includes what matches; otherwise excludes it.
    #[n(0)]
    pub(crate) include: bool,
    #[n(1)]
    pub(crate) pattern: String,
}

impl Rule {
    pub(crate) fn new((action, pattern): &(Action, String)) -> Self {
        Self {
            include: *action == Action::Include,
            pattern: pattern.clone(),
        }
    }

    fn parts(&self) -> (Action, &str) {
        let action = match self.include {
            true => Action::Include,
            false => Action::Exclude,
        };
        (action, &self.pattern)
    }
}

/// Refuses more rules than a request may have.
pub(crate) fn check_rules(rules: &[Rule]) -> Result<(), Fault> {
    let patterns: usize = rules.iter().map(|rule| rule.pattern.len()).sum();
    if rules.len() <= RULES_MAX && patterns <= PATTERNS_MAX {
        return Ok(());
    }
    let kib = PATTERNS_MAX >> 10;
    let text = format!("a request has at most {RULES_MAX} rules and {kib} KiB of patterns");
    Err(Fault::new(Code::Usage, text))
}

/// Returns the filter of the rules of a request.
pub(crate) fn filter_of(rules: &[Rule], reads_ignore_files: bool) -> Result<Filter, Fault> {
    check_rules(rules)?;
    Filter::new(rules.iter().map(Rule::parts), reads_ignore_files)
}

impl Chosen {
    fn check(&self) -> Result<(), Fault> {
        check_rules(&self.rules)?;
        if self.list.as_ref().is_some_and(|list| list.len() > LIST_MAX) {
            let mib = LIST_MAX >> 20;
            let text =
                format!("the list of files has more than {mib} MiB, the most of one request");
            return Err(Fault::new(Code::Usage, text).hint("split it, or name directories"));
        }
        Ok(())
    }

    /// Returns how the tree of the request is walked.
    ///
    /// # Errors
    /// It exceeds the bounds, a pattern is none, or a path leads outside.
    pub(crate) fn options(&self) -> Result<walk::Options, Fault> {
        self.check()?;
        let list = self.list.as_deref();
        Ok(walk::Options {
            filter: filter_of(&self.rules, self.ignore_files)?,
            list: list.map(|list| filter::read_list(list, true)).transpose()?,
            ..walk::Options::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Relative {
        Relative::new(text.as_bytes()).unwrap()
    }

    fn choice() -> Choice {
        Choice {
            rules: vec![(Action::Exclude, "*.tmp".to_owned())],
            reads_ignore_files: true,
            list: Some(vec![path("a"), path("b/\u{e9}\n")]),
            ..Choice::default()
        }
    }

    #[test]
    fn a_choice_arrives_as_it_was() {
        assert_eq!(Choice::default().chosen().unwrap(), None);
        let chosen = choice().chosen().unwrap().unwrap();
        let bytes = minicbor::to_vec(&chosen).unwrap();
        let decoded: Chosen = minicbor::decode(&bytes).unwrap();
        assert_eq!(decoded, chosen);
        let options = decoded.options().unwrap();
        assert_eq!(options.list, choice().list);
        let scope = filter::Scope::default();
        assert!(options.filter.excludes(&scope, &path("x/y.tmp"), false));
        let whole = Choice {
            list: Some(vec![Relative::root()]),
            ..Choice::default()
        };
        let options = whole.chosen().unwrap().unwrap().options().unwrap();
        assert_eq!(options.list, whole.list);
    }

    #[test]
    fn more_than_a_request_may_have_is_refused_at_both_ends() {
        let with = |rules: usize, pattern: usize, list: Option<usize>| Chosen {
            rules: vec![
                Rule {
                    include: true,
                    pattern: "a".repeat(pattern),
                };
                rules
            ],
            ignore_files: false,
            list: list.map(|len| vec![b'a'; len]),
        };
        assert!(with(RULES_MAX, 16, None).options().is_ok());
        for wrong in [
            with(RULES_MAX + 1, 1, None),
            with(2, PATTERNS_MAX / 2 + 1, None),
            with(1, 1, Some(LIST_MAX + 1)),
        ] {
            assert_eq!(wrong.options().unwrap_err().code, Code::Usage);
        }
        for outside in [&b"/etc"[..], b"a\0../b"] {
            let chosen = Chosen {
                list: Some(outside.to_vec()),
                ..with(0, 0, None)
            };
            assert!(chosen.options().is_err(), "{outside:?}");
        }
        let long = Choice {
            list: Some(vec![path(&"a".repeat(200)); LIST_MAX / 200 + 1]),
            ..Choice::default()
        };
        assert_eq!(long.chosen().unwrap_err().code, Code::Usage);
    }
}
