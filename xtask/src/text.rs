//! What source files and documents may hold.

use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};

use crate::Finding;
use crate::graph::Graph;
use crate::tree::TextFile;

/// Lines in a source file, tests and documentation included.
const SOURCE_LINES_MAX: usize = 1_000;
/// Lines in ARCHITECTURE.md: more would not be read.
const ARCHITECTURE_LINES_MAX: usize = 400;

/// Columns of a comment, as of code (rustfmt.toml).
const COMMENT_WIDTH_MAX: usize = 100;
/// Characters in the subject of a commit.
const SUBJECT_LEN_MAX: usize = 72;

/// Words and phrases that leave the reader guessing, and what to write instead.
const AVOIDED: &[(&str, &str)] = &[
    ("be had", "\"be available\""),
    ("be told", "who informs whom"),
    ("believe", "\"trust\" or \"accept\""),
    ("believes", "\"trusts\" or \"accepts\""),
    ("door", "\"listener\""),
    ("doors", "\"listeners\""),
    ("heard", "\"received\""),
    ("hears", "\"receives\""),
    ("heed", "\"obey\" or \"use\""),
    ("heeds", "\"obeys\" or \"uses\""),
    ("house", "\"shared state\""),
    ("keeper", "what it keeps"),
    ("knock", "\"handshake\" or \"request\""),
    ("knocks", "\"connects\" or \"requests\""),
    ("lobby", "\"pending connections\""),
    ("obituary", "\"close notice\""),
    ("octet", "\"byte\""),
    ("octets", "\"bytes\""),
    ("porter", "\"acceptor\""),
    ("said", "who sends, reports or states what"),
    ("says", "who sends, reports or states what"),
    ("sent again", "\"retransmitted\""),
    ("stranger", "\"pending peer\""),
    ("strangers", "\"pending peers\""),
    ("to and fro", "\"in both directions\""),
    ("under way", "\"in flight\" or \"in progress\""),
    ("weave", "\"interleave\""),
    ("weaves", "\"interleaves\""),
];

/// The word that only some crates may use, in two parts so that this file passes its own rule.
const UNSAFE: &str = concat!("un", "safe");
/// Crates whose purpose needs it: system calls, memory that others write, and pointers that
/// programs hand in.
const UNSAFE_ALLOWED: [&str; 5] = [
    "crates/haul-capi/",
    "crates/haul-ibv/",
    "crates/haul-io/",
    "crates/haul-slab/",
    "crates/haul-socket/",
];

/// Marks of unfinished work, in two parts each for the same reason.
const UNFINISHED: [&str; 6] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X:"),
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
    concat!("db", "g!("),
];

/// Where people keep their checkouts; such a path means something on one machine only.
const PERSONAL: [&str; 4] = [
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/wo", "rk/"),
];

/// Source files too long to be read in one sitting.
#[must_use]
pub fn check_lengths(files: &[TextFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let limit = match file.path.as_str() {
            "ARCHITECTURE.md" => ARCHITECTURE_LINES_MAX,
            _ if file.has_extension("rs") => SOURCE_LINES_MAX,
            _ => continue,
        };
        let lines = file.text.lines().count();
        if lines > limit {
            findings.push(format!("{}: {lines} lines, {limit} at most", file.path));
        }
    }
    findings
}

/// Comments of Rust, C and shell that are wider than the code may be, where a space could break
/// them. Tables and preformatted text in documentation are as wide as they are.
#[must_use]
pub fn check_comment_widths(files: &[TextFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let marks: &[&str] = match Path::new(&file.path).extension() {
            Some(extension)
                if ["rs", "c", "h", "cpp", "hpp"]
                    .iter()
                    .any(|e| extension == *e) =>
            {
                &["//", "/*", "* "]
            }
            Some(extension) if extension == "sh" => &["# "],
            None if file.text.starts_with("#!/") => &["# "],
            _ => continue,
        };
        let mut fenced = false;
        for (number, line) in (1..).zip(file.text.lines()) {
            let comment = line.trim_start();
            if !marks.iter().any(|mark| comment.starts_with(mark)) {
                fenced = false;
                continue;
            }
            let text = comment
                .trim_start_matches(['/', '!', '*', '#'])
                .trim_start();
            fenced ^= text.starts_with("```");
            let width = line.chars().count();
            // A break is a space before the first column beyond the limit.
            let beyond = width.saturating_sub(COMMENT_WIDTH_MAX);
            let fitting = text.chars().rev().skip(beyond.saturating_sub(1));
            let breakable = fitting.collect::<String>().contains(' ');
            if width > COMMENT_WIDTH_MAX && breakable && !fenced && !text.starts_with('|') {
                let place = format!("{}:{number}", file.path);
                findings.push(format!(
                    "{place}: comment of {width} columns, {COMMENT_WIDTH_MAX} at most"
                ));
            }
        }
    }
    findings
}

/// Words of README.md, docs/ and help texts for which there is a better one, outside of code.
/// A help text is a `///` comment in a file that uses clap.
#[must_use]
pub fn check_words(files: &[TextFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let help = file.has_extension("rs") && file.text.contains("use clap::");
        let page =
            file.path == "README.md" || file.path.starts_with("docs/") && file.has_extension("md");
        let mut fenced = false;
        for (number, line) in (1..).zip(file.text.lines()).filter(|_| help || page) {
            let line = if help {
                line.trim_start().strip_prefix("/// ")
            } else {
                Some(line)
            };
            let Some(line) = line else { continue };
            fenced ^= line.trim_start().starts_with("```");
            if fenced {
                continue;
            }
            let prose: Vec<_> = line.split('`').step_by(2).collect();
            let prose = format!(
                " {} ",
                words(&prose.join(" . ").to_lowercase())
                    .collect::<Vec<_>>()
                    .join(" ")
            );
            for (word, instead) in AVOIDED {
                if prose.contains(&format!(" {word} ")) {
                    findings.push(format!(
                        "{}:{number}: \"{word}\": write {instead}",
                        file.path
                    ));
                }
            }
        }
    }
    findings
}

/// Subjects of commits, given one a line after its hash, that are too long to be read in a list.
#[must_use]
pub fn check_subjects(log: &str) -> Vec<Finding> {
    let subjects = log.lines().filter_map(|line| line.split_once(' '));
    let long = subjects.filter(|(_, subject)| subject.chars().count() > SUBJECT_LEN_MAX);
    long.map(|(hash, subject)| format!("{hash}: over {SUBJECT_LEN_MAX} characters: {subject}"))
        .collect()
}

/// Crate roots that do not say why the crate exists.
#[must_use]
pub fn check_introductions(files: &[TextFile]) -> Vec<Finding> {
    let silent = files
        .iter()
        .filter(|file| is_root(file) && !file.text.starts_with("//! "));
    silent
        .map(|file| format!("{}: open with //! and why this exists", file.path))
        .collect()
}

/// Crates that could hold unsafe code without the compiler refusing it, and files that do.
#[must_use]
pub fn check_unsafe(files: &[TextFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let forbid = format!("#![forbid({UNSAFE}_code)]");
    for file in files.iter().filter(|file| file.has_extension("rs")) {
        if UNSAFE_ALLOWED
            .iter()
            .any(|folder| file.path.starts_with(folder))
        {
            continue;
        }
        if is_root(file) && !file.text.contains(&forbid) {
            findings.push(format!("{}: add {forbid}", file.path));
        }
        for (number, code) in code_lines(&file.text) {
            if words(code).any(|word| word == UNSAFE) {
                findings.push(format!(
                    "{}:{number}: {UNSAFE} belongs to haul-capi, haul-ibv, haul-io, haul-slab and haul-socket",
                    file.path
                ));
            }
        }
    }
    findings
}

/// Work that was left for later without being finished or filed.
#[must_use]
pub fn check_unfinished(files: &[TextFile]) -> Vec<Finding> {
    let sources = files
        .iter()
        .filter(|file| ["rs", "sh", "toml"].iter().any(|e| file.has_extension(e)));
    find_lines(sources, &UNFINISHED, "finish it or file an issue")
}

/// Paths that exist on one machine only.
#[must_use]
pub fn check_personal_paths(files: &[TextFile]) -> Vec<Finding> {
    find_lines(files.iter(), &PERSONAL, "a path of one machine")
}

/// Relative links in documents that lead nowhere.
#[must_use]
pub fn check_links(root: &Path, files: &[TextFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.has_extension("md")) {
        let folder = Path::new(&file.path)
            .parent()
            .unwrap_or_else(|| Path::new(""));
        for target in links(&file.text) {
            let path = target.split('#').next().unwrap_or_default();
            if path.is_empty() || path.contains(':') {
                continue;
            }
            let resolved = normal(&folder.join(path));
            if !resolved.is_some_and(|resolved| root.join(resolved).exists()) {
                findings.push(format!("{}: {target} does not exist", file.path));
            }
        }
    }
    findings
}

/// Crates that ARCHITECTURE.md does not name.
#[must_use]
pub fn check_code_map(graph: &Graph, architecture: &str) -> Vec<Finding> {
    let named: HashSet<&str> = architecture.split('`').skip(1).step_by(2).collect();
    let missing = graph
        .members()
        .filter(|package| !named.contains(package.name.as_str()));
    missing
        .map(|package| format!("ARCHITECTURE.md: `{}` is not in the code map", package.name))
        .collect()
}

/// Manifests of crates that do not take over the lints of the workspace.
#[must_use]
pub fn check_manifests(files: &[TextFile]) -> Vec<Finding> {
    let manifests = files
        .iter()
        .filter(|file| file.path.ends_with("/Cargo.toml"));
    let unlinted = manifests.filter(|file| {
        let manifest: Option<toml::Table> = file.text.parse().ok();
        // A workspace of its own cannot take over another's lints.
        if manifest
            .as_ref()
            .is_some_and(|manifest| manifest.contains_key("workspace"))
        {
            return false;
        }
        let lints = manifest.as_ref().and_then(|manifest| manifest.get("lints"));
        lints.and_then(|lints| lints.get("workspace")) != Some(&toml::Value::Boolean(true))
    });
    unlinted
        .map(|file| format!("{}: add [lints] workspace = true", file.path))
        .collect()
}

fn is_root(file: &TextFile) -> bool {
    ["src/lib.rs", "src/main.rs"]
        .iter()
        .any(|root| file.path.ends_with(root))
}

/// Numbered lines from 1, without line comments.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let code = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    (1..).zip(code)
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_'))
}

fn find_lines<'a>(
    files: impl Iterator<Item = &'a TextFile>,
    marks: &[&str],
    advice: &str,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        for (number, line) in (1..).zip(file.text.lines()) {
            if let Some(mark) = marks.iter().find(|mark| line.contains(**mark)) {
                findings.push(format!("{}:{number}: {mark}: {advice}", file.path));
            }
        }
    }
    findings
}

/// The targets of `[text](target)`, and of `src` and `srcset`, which a picture for two colour
/// schemes needs.
fn links(markdown: &str) -> Vec<&str> {
    let mut targets = Vec::new();
    for (opening, closing) in [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"')] {
        let rests = markdown.split(opening).skip(1);
        targets.extend(
            rests
                .filter_map(|rest| rest.split_once(closing))
                .map(|(target, _)| target),
        );
    }
    targets
}

/// Resolves `..`; `None` is a path that leaves the tree.
pub(crate) fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                if !normal.pop() {
                    return None;
                }
            }
            Component::Normal(part) => normal.push(part),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(normal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_long_file_is_found_and_a_long_table_is_not() {
        let lines = "x\n".repeat(SOURCE_LINES_MAX + 1);
        let files = [
            file("crates/a/src/big.rs", &lines),
            file("results/table.csv", &lines),
        ];
        assert_eq!(check_lengths(&files).len(), 1);
        let files = [file(
            "ARCHITECTURE.md",
            &"x\n".repeat(ARCHITECTURE_LINES_MAX + 1),
        )];
        assert_eq!(check_lengths(&files).len(), 1);
    }

    #[test]
    fn a_wide_comment_is_found_where_a_space_could_break_it() {
        let wide = "word ".repeat(21);
        let link = "x".repeat(COMMENT_WIDTH_MAX);
        let rust =
            format!("//! {wide}\n/// {link}\n/// | {wide}|\n/// ```text\n/// {wide}\n/// ```\n");
        let files = [
            file("crates/a/src/a.rs", &rust),
            file("c/a.h", &format!("/*\n * {wide}\n */\n")),
            file("run", &format!("#!/bin/sh\n# {wide}\n")),
            file("docs/a.md", &wide),
        ];
        assert_eq!(check_comment_widths(&files).len(), 3);
    }

    #[test]
    fn words_to_avoid_are_found_in_prose_only() {
        let page = file(
            "docs/a.md",
            "It\n`says` what\n```\nsays\n```\nis Sent again.\n",
        );
        let help = file(
            "crates/a/src/args.rs",
            "use clap::Args;\n/// Knocks.\n// knocks\n",
        );
        let other = file("crates/a/src/b.rs", "/// Knocks.\n");
        assert_eq!(check_words(&[page, help, other]).len(), 2);
    }

    #[test]
    fn a_long_subject_is_found() {
        let long = "x".repeat(SUBJECT_LEN_MAX + 1);
        assert_eq!(
            check_subjects(&format!("abc {long}\ndef {}\n", &long[1..])).len(),
            1
        );
    }

    #[test]
    fn a_crate_that_only_mentions_the_word_passes() {
        let body = format!("//! Why.\n#![forbid({UNSAFE}_code)]\n// no {UNSAFE} here\n");
        assert!(check_unsafe(&[file("crates/a/src/lib.rs", &body)]).is_empty());
    }

    #[test]
    fn raw_code_outside_the_io_crate_is_found() {
        let body = format!("fn f() {{ {UNSAFE} {{ g() }} }}\n");
        assert_eq!(check_unsafe(&[file("crates/a/tests/t.rs", &body)]).len(), 1);
        assert!(check_unsafe(&[file("crates/haul-io/src/udp.rs", &body)]).is_empty());
        assert_eq!(
            check_unsafe(&[file("crates/a/src/lib.rs", "//! Why.\n")]).len(),
            1
        );
    }

    #[test]
    fn links_resolve_from_the_folder_of_their_document() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("docs")).unwrap();
        std::fs::write(root.path().join("README.md"), "").unwrap();
        let text = "[a](../README.md#x) [b](missing.md) [c](https://example.org/) [d](#here) [e](../../out.md)";
        let findings = check_links(root.path(), &[file("docs/page.md", text)]);
        assert_eq!(findings.len(), 2, "{findings:?}");
    }

    #[test]
    fn pictures_are_links_too() {
        let text = r#"<source srcset="dark.svg"> <img src="light.svg">"#;
        assert_eq!(links(text), ["light.svg", "dark.svg"]);
    }

    #[test]
    fn a_manifest_without_the_shared_lints_is_found() {
        let good = file("crates/a/Cargo.toml", "[lints]\nworkspace = true\n");
        let bad = file("crates/b/Cargo.toml", "[package]\nname = \"b\"\n");
        assert_eq!(check_manifests(&[good, bad]).len(), 1);
    }
}
