//! Every rule of `xtask`, applied to this repository.

use std::path::{Path, PathBuf};
use std::process::Command;

use xtask::graph::Graph;
use xtask::supply::{self, Policy};
use xtask::tree::{self, TextFile};
use xtask::{Finding, edges, left, modules, structure, text};

/// Subjects before this were written under no such rule.
const SUBJECTS_SINCE: &str = "2026-11-25T20:40:00Z";

#[test]
fn crates_depend_downwards_only() {
    none(&edges::check(&graph()));
}

#[test]
fn the_architecture_page_lists_the_dependencies() {
    none(&edges::check_page(content(&files(), "ARCHITECTURE.md")));
}

#[test]
fn files_form_no_circle_and_no_arrow_up_that_is_not_listed() {
    let crates = structure::read_all(root()).expect("read the crates");
    none(&structure::check(&crates, left::LEFT));
}

#[test]
fn every_source_file_is_part_of_a_target() {
    let files = files();
    let root = root().canonicalize().expect("find the root");
    let workspaces = files.iter().filter(|file| {
        file.path.ends_with("Cargo.toml") && file.text.lines().any(|line| line == "[workspace]")
    });
    let roots: Vec<PathBuf> = workspaces
        .map(|manifest| root.join(&manifest.path).with_file_name(""))
        .flat_map(|folder| Graph::load_members(&folder).expect("ask cargo").packages)
        .flat_map(|package| package.targets)
        .filter_map(|target| Some(target.src_path.strip_prefix(&root).ok()?.to_owned()))
        .collect();
    none(&modules::check_reached(&files, &roots));
}

#[test]
fn dependencies_carry_allowed_licences() {
    let files = files();
    let policy = Policy::parse(content(&files, "deny.toml")).unwrap();
    none(&policy.check_licenses(&graph()));
}

#[test]
fn dependencies_come_from_the_registry() {
    none(&supply::check_sources(&graph()));
}

#[test]
fn dependencies_build_with_the_promised_rust() {
    none(&supply::check_rust_versions(&graph()));
}

#[test]
fn files_are_short_enough_to_read() {
    none(&text::check_lengths(&files()));
}

#[test]
fn comments_are_as_narrow_as_code() {
    none(&text::check_comment_widths(&files()));
}

#[test]
fn pages_and_help_texts_use_the_terms_of_the_field() {
    none(&text::check_words(&files()));
}

/// Only what this clone has of the history, and nothing where it has none.
#[test]
fn subjects_of_commits_are_short() {
    let since = format!("--since={SUBJECTS_SINCE}");
    let log = Command::new("git")
        .args(["log", "--no-merges", "--format=%h %s", &since])
        .current_dir(root())
        .output();
    let log = log.map(|output| output.stdout).unwrap_or_default();
    none(&text::check_subjects(&String::from_utf8_lossy(&log)));
}

#[test]
fn every_crate_says_why_it_exists() {
    none(&text::check_introductions(&files()));
}

#[test]
fn raw_memory_and_system_calls_stay_in_haul_io() {
    none(&text::check_unsafe(&files()));
}

#[test]
fn nothing_is_left_unfinished() {
    none(&text::check_unfinished(&files()));
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    none(&text::check_personal_paths(&files()));
}

#[test]
fn links_in_documents_lead_somewhere() {
    none(&text::check_links(root(), &files()));
}

#[test]
fn the_code_map_names_every_crate() {
    none(&text::check_code_map(
        &graph(),
        content(&files(), "ARCHITECTURE.md"),
    ));
}

#[test]
fn every_crate_takes_over_the_shared_lints() {
    none(&text::check_manifests(&files()));
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn files() -> Vec<TextFile> {
    tree::read(root()).expect("read the files")
}

fn graph() -> Graph {
    Graph::load(root()).expect("ask cargo for the packages")
}

fn content<'a>(files: &'a [TextFile], path: &str) -> &'a str {
    let file = files.iter().find(|file| file.path == path);
    file.map(|file| file.text.as_str())
        .unwrap_or_else(|| panic!("{path} is missing"))
}

#[track_caller]
fn none(findings: &[Finding]) {
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}
