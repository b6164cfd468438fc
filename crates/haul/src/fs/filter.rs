//! Which entries of a tree are taken: rules in order, ignore files, lists.
//!
//! Rules have rsync's order and form: the first that matches decides, and what none matches is
//! included. `/` at the start anchors a pattern at the root of the tree; without it, the pattern
//! matches at the end of a path, at a component's start. `/` at the end matches directories only.
//! `*` and `?` match no `/`; `**` stands for any number of components and is one itself; `dir/***`
//! matches a directory and all below it. `[…]` is a class, and `\` takes the next character as it
//! is. What lies below an excluded directory is not looked at, so no rule can include it.
//!
//! A file `.haulignore` in a directory has the form of `.gitignore` and excludes below that
//! directory; of several that match, the deepest decides. Rules that match come before it.

use std::ffi::OsStr;
use std::io::{self, BufRead, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use globset::{Candidate, GlobBuilder, GlobSet, GlobSetBuilder};
use haul_io::file::Dir;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::path::Relative;
use crate::fault::{Code, Fault};
use crate::name::PATH_MAX;
use crate::printable;

/// The name of an ignore file.
pub const IGNORE_FILE: &str = ".haulignore";
/// The size of an ignore file, bytes.
const IGNORE_FILE_MAX: u64 = 1 << 20;
/// Bytes of all paths of a list.
const LIST_MAX: usize = 128 << 20;

/// The action of a rule on entries that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Takes it.
    Include,
    /// Leaves it out.
    Exclude,
}

/// Decides which entries of a tree are taken.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    rules: Arc<Rules>,
    reads_ignore_files: bool,
}

#[derive(Debug, Default)]
struct Rules {
    globs: GlobSet,
    /// For each glob, its action and whether it matches directories only.
    actions: Vec<(Action, bool)>,
}

impl Filter {
    /// Takes rules in order. `reads_ignore_files` is whether `.haulignore` counts.
    ///
    /// # Errors
    /// [`Code::Usage`] for a pattern that is none.
    pub fn new<'a>(
        rules: impl IntoIterator<Item = (Action, &'a str)>,
        reads_ignore_files: bool,
    ) -> Result<Self, Fault> {
        let mut globs = GlobSetBuilder::new();
        let mut actions = Vec::new();
        for (action, pattern) in rules {
            let refuse = |why: &dyn std::fmt::Display| {
                let shown = printable(pattern.as_bytes());
                Fault::new(Code::Usage, format!("the pattern '{shown}' {why}"))
            };
            for (glob, is_directory) in translate(pattern).map_err(|why| refuse(&why))? {
                let mut built = GlobBuilder::new(&glob);
                let built = built.literal_separator(true).backslash_escape(true).build();
                let built =
                    built.map_err(|error| refuse(&format_args!("is wrong: {}", error.kind())));
                globs.add(built?);
                actions.push((action, is_directory));
            }
        }
        let globs = globs.build().map_err(|error| {
            Fault::new(Code::Usage, format!("the patterns cannot be used: {error}"))
        })?;
        Ok(Self {
            rules: Arc::new(Rules { globs, actions }),
            reads_ignore_files,
        })
    }

    /// Reads the ignore file of a directory, where it has one.
    ///
    /// # Errors
    /// It exists and cannot be read or understood. Without it, nothing below may be taken.
    pub fn enter(&self, dir: &Dir, path: &Relative, outer: &Scope) -> io::Result<Scope> {
        if !self.reads_ignore_files {
            return Ok(outer.clone());
        }
        let file = match dir.open_file(Path::new(IGNORE_FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(outer.clone()),
            result => result?,
        };
        let mut text = String::new();
        if !file.metadata()?.is_file() {
            let text = "it is not a file; --no-ignore takes no notice of it";
            return Err(io::Error::other(text));
        }
        file.take(IGNORE_FILE_MAX + 1).read_to_string(&mut text)?;
        if text.len() as u64 > IGNORE_FILE_MAX {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "over 1 MiB"));
        }
        let mut builder = GitignoreBuilder::new("");
        for line in text.lines() {
            builder.add_line(None, line).map_err(io::Error::other)?;
        }
        let ignored = builder.build().map_err(io::Error::other)?;
        Ok(Scope(Some(Arc::new(Level {
            outer: outer.clone(),
            directory: path.clone(),
            ignored,
        }))))
    }

    /// Returns whether the entry of this path, in a directory with this scope, is left out.
    #[must_use]
    pub fn excludes(&self, scope: &Scope, path: &Relative, is_directory: bool) -> bool {
        self.rules
            .find(path, is_directory)
            .unwrap_or_else(|| scope.find(path, is_directory))
            == Action::Exclude
    }
}

impl Rules {
    fn find(&self, path: &Relative, is_directory: bool) -> Option<Action> {
        if self.actions.is_empty() {
            return None;
        }
        let candidate = Candidate::from_bytes(path.as_bytes());
        let matching = self.globs.matches_candidate(&candidate).into_iter();
        // The least index is the first rule.
        let first = matching
            .filter(|glob| is_directory || !self.actions[*glob].1)
            .min()?;
        Some(self.actions[first].0)
    }
}

/// The ignore files that count in a directory.
#[derive(Debug, Clone, Default)]
pub struct Scope(Option<Arc<Level>>);

#[derive(Debug)]
struct Level {
    outer: Scope,
    directory: Relative,
    ignored: Gitignore,
}

impl Scope {
    fn find(&self, path: &Relative, is_directory: bool) -> Action {
        let Some(level) = &self.0 else {
            return Action::Include;
        };
        let below = match level.directory.as_bytes().len() {
            0 => path.as_bytes(),
            len => &path.as_bytes()[len + 1..],
        };
        match level
            .ignored
            .matched(OsStr::from_bytes(below), is_directory)
        {
            Match::Ignore(_) => Action::Exclude,
            Match::Whitelist(_) => Action::Include,
            Match::None => level.outer.find(path, is_directory),
        }
    }
}

/// Translates a pattern to globs on whole paths; with each, whether it is for directories only.
fn translate(pattern: &str) -> Result<Vec<(String, bool)>, &'static str> {
    let (prefix, rest) = match pattern.strip_prefix('/') {
        Some(rest) => ("", rest),
        None => ("**/", pattern),
    };
    let (rest, below) = match rest.strip_suffix("/***") {
        Some(rest) => (rest, true),
        None => (rest, false),
    };
    let (rest, is_directory) = match rest.strip_suffix('/') {
        Some(rest) => (rest, true),
        None => (rest, false),
    };
    if rest.is_empty() {
        return Err("is empty");
    }
    for component in rest.split('/') {
        if matches!(component, "" | "." | "..") {
            return Err("has an empty component, '.' or '..', which no path has");
        }
        if component.contains("**") && component != "**" {
            return Err("has '**' beside other characters: make it a component of its own");
        }
    }
    let glob = format!("{prefix}{}", without_braces(rest));
    let mut globs = vec![(glob.clone(), is_directory || below)];
    if below {
        globs.push((format!("{glob}/**"), false));
    }
    Ok(globs)
}

/// Makes braces characters like others, as they are to rsync; a glob has alternatives in them.
fn without_braces(pattern: &str) -> String {
    let mut glob = String::new();
    let (mut is_escaped, mut is_in_class) = (false, false);
    for character in pattern.chars() {
        match character {
            '{' | '}' if !is_escaped && !is_in_class => {
                glob.extend(['[', character, ']']);
                continue;
            }
            '[' if !is_escaped => is_in_class = true,
            ']' if !is_escaped => is_in_class = false,
            _ => {}
        }
        is_escaped = character == '\\' && !is_escaped;
        glob.push(character);
    }
    glob
}

/// Reads a list of paths: one a line, or with `is_nul` each ended by a NUL. Empty ones are skipped.
///
/// Returns them as [`to_list`] does.
///
/// # Errors
/// [`Code::Usage`] for an absolute path, one with `..`, or more than 128 MiB of paths; that of
/// reading otherwise.
pub fn read_list(mut list: impl BufRead, is_nul: bool) -> Result<Vec<Relative>, Fault> {
    let end = if is_nul { 0 } else { b'\n' };
    let (mut paths, mut total) = (Vec::new(), 0);
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        // One path cannot fill the memory either.
        let read = (&mut list)
            .take(2 * PATH_MAX as u64)
            .read_until(end, &mut line);
        let read = read.map_err(|error| Fault::file("cannot read the list of files", &error))?;
        if read == 0 {
            break;
        }
        total += read;
        if total > LIST_MAX {
            let text = "the list of files has more than 128 MiB";
            return Err(Fault::new(Code::Usage, text).hint("split it"));
        }
        if read > PATH_MAX + 1 {
            let text = format!("line {number} of the list has over {PATH_MAX} bytes");
            return Err(Fault::new(Code::Usage, text));
        }
        let bytes = line.strip_suffix(&[end]).unwrap_or(&line);
        if bytes.is_empty() {
            continue;
        }
        paths.push(Relative::of_user(bytes).map_err(|fault| Fault {
            code: Code::Usage,
            text: format!("line {number} of the list: {}", fault.text),
            ..fault
        })?);
    }
    Ok(to_list(paths))
}

/// Sorts paths for a list, each once, without those that lie below another one: a directory stands
/// for its content.
#[must_use]
pub fn to_list(mut paths: Vec<Relative>) -> Vec<Relative> {
    paths.sort_unstable_by(|one, other| one.components().cmp(other.components()));
    paths.dedup_by(|later, kept| later.is_in(kept));
    paths
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn path(text: &str) -> Relative {
        Relative::new(text.as_bytes()).unwrap()
    }

    /// Rules as `+ pattern` and `- pattern`.
    fn filter(rules: &[&str]) -> Filter {
        let rules = rules.iter().map(|rule| match rule.split_at(2) {
            ("+ ", pattern) => (Action::Include, pattern),
            (_, pattern) => (Action::Exclude, pattern),
        });
        Filter::new(rules, false).unwrap()
    }

    fn takes(filter: &Filter, path: &str) -> bool {
        let (path, is_directory) = match path.strip_suffix('/') {
            Some(path) => (path, true),
            None => (path, false),
        };
        !filter.excludes(&Scope::default(), &self::path(path), is_directory)
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let filter = filter(&["+ keep.o", "- *.o", "+ *"]);
        assert!(takes(&filter, "keep.o") && takes(&filter, "a/keep.o"));
        assert!(!takes(&filter, "x.o") && !takes(&filter, "a/b/x.o"));
        assert!(takes(&filter, "x.c"));
        assert!(takes(&Filter::default(), "x"));
    }

    #[test]
    fn patterns_are_those_of_rsync() {
        for (pattern, matching, others) in [
            (
                "foo",
                &["foo", "a/foo", "foo/"][..],
                &["foo/bar", "xfoo"][..],
            ),
            ("/foo", &["foo", "foo/"], &["a/foo"]),
            ("foo/", &["foo/", "a/foo/"], &["foo", "a/foo"]),
            ("a/foo", &["a/foo", "x/a/foo"], &["foo", "xa/foo"]),
            ("/a/*.c", &["a/x.c"], &["a/b/x.c", "b/a/x.c"]),
            ("/a/**", &["a/x", "a/b/x"], &["a/", "b/a/x"]),
            ("/a/***", &["a/", "a/x", "a/b/x"], &["b/a/x", "ab"]),
            ("/a/**/x", &["a/x", "a/b/x", "a/b/c/x"], &["x", "b/a/x"]),
            ("**", &["a", "a/b/"], &[]),
            ("?.c", &["a.c", "d/b.c"], &["ab.c", "/.c"]),
            ("[a-c]x", &["ax"], &["dx"]),
            ("[!a]x", &["bx"], &["ax"]),
            ("{a,b}", &["{a,b}"], &["a", "b"]),
            ("\\*", &["*"], &["a"]),
            (".*", &[".x", "a/.x"], &["x"]),
        ] {
            let filter = filter(&[&format!("- {pattern}")]);
            for path in matching {
                assert!(!takes(&filter, path), "{pattern} must match {path}");
            }
            for path in others.iter().filter(|path| !path.starts_with('/')) {
                assert!(takes(&filter, path), "{pattern} must not match {path}");
            }
        }
    }

    #[test]
    fn names_that_are_no_text_are_matched_too() {
        let filter = filter(&["- *.o"]);
        let path = Relative::new(b"d/\xff.o").unwrap();
        assert!(filter.excludes(&Scope::default(), &path, false));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for bad in ["", "/", "a//b", "../x", "a**b", "[", "x/./y"] {
            let fault = Filter::new([(Action::Exclude, bad)], false).unwrap_err();
            assert_eq!(fault.code, Code::Usage, "{bad}");
        }
    }

    #[test]
    fn the_deepest_ignore_file_decides_and_rules_come_before() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        std::fs::write(dir.path().join(IGNORE_FILE), "# text\n*.o\n/build/\n").unwrap();
        std::fs::write(dir.path().join("d").join(IGNORE_FILE), "!keep.o\n").unwrap();
        let filter = Filter::new([(Action::Include, "always.o")], true).unwrap();
        let open = |path: &str| Dir::open(&dir.path().join(path)).unwrap();
        let root = Relative::root();
        let outer = filter.enter(&open(""), &root, &Scope::default()).unwrap();
        let inner = filter.enter(&open("d"), &path("d"), &outer).unwrap();
        assert!(filter.excludes(&outer, &path("x.o"), false));
        assert!(filter.excludes(&outer, &path("build"), true));
        assert!(!filter.excludes(&outer, &path("build"), false));
        assert!(filter.excludes(&inner, &path("d/x.o"), false));
        assert!(!filter.excludes(&inner, &path("d/keep.o"), false));
        assert!(!filter.excludes(&inner, &path("d/always.o"), false));
        assert!(
            !filter.excludes(&inner, &path("d/build"), true),
            "anchored at the root"
        );
    }

    #[test]
    fn an_ignore_file_that_cannot_be_understood_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let filter = Filter::new([], true).unwrap();
        let file = dir.path().join(IGNORE_FILE);
        let enter = || {
            let opened = Dir::open(dir.path()).unwrap();
            filter.enter(&opened, &Relative::root(), &Scope::default())
        };
        std::fs::write(&file, b"\xff").unwrap();
        assert!(enter().is_err());
        std::fs::write(&file, vec![b'\n'; (1 << 20) + 1]).unwrap();
        assert!(enter().is_err());
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/null", &file).unwrap();
        assert!(enter().is_err(), "a link is not followed");
        std::fs::remove_file(&file).unwrap();
        assert!(enter().is_ok());
    }

    #[test]
    fn a_list_is_sorted_and_a_directory_stands_for_its_content() {
        let list = "b\n./a/x\n\na\na-b\na/x\nc/d/\nc\n";
        let paths = read_list(Cursor::new(list), false).unwrap();
        let expected = ["a", "a-b", "b", "c"].map(path);
        assert_eq!(paths, expected);
        let paths = read_list(Cursor::new("x\ny\0z"), true).unwrap();
        assert_eq!(paths, ["x\ny", "z"].map(path));
        for bad in ["/etc", "a\n../b\n"] {
            let fault = read_list(Cursor::new(bad), false).unwrap_err();
            assert_eq!(fault.code, Code::Usage);
        }
        let whole = read_list(Cursor::new(".\na\n"), false).unwrap();
        assert_eq!(whole, [Relative::root()]);
    }

    #[test]
    fn a_path_without_end_is_refused() {
        let endless = io::BufReader::new(io::repeat(b'a'));
        assert_eq!(read_list(endless, false).unwrap_err().code, Code::Usage);
    }
}
