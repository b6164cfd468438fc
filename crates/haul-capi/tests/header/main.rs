//! include/haul.h and the Rust code say the same: every function, structure and number, word by
//! word, and every layout as a C compiler sees it. The header is written by hand, for it is the
//! documentation; this is what keeps it true.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests are not seen as tests")]

mod c;
mod layout;
mod rust;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn the_header_declares_the_functions_of_the_library() {
    same(&rust::functions(&sources()), &c::functions(&header()));
}

#[test]
fn the_header_declares_the_structures_of_the_library() {
    same(&rust::structures(&sources()), &c::structures(&header()));
}

#[test]
fn every_object_of_the_header_is_one_of_the_library() {
    let ours = rust::objects(&sources());
    same(&ours, &c::objects(&header()));
    assert!(ours.contains("haul_context"), "{ours:?}");
}

#[test]
fn every_number_of_the_header_is_one_of_the_library() {
    let ours = rust::numbers(&sources());
    let names = ours.iter().map(|(name, _)| name.clone()).collect();
    same(&names, &c::numbers(&header()));
    let checks: String = ours
        .iter()
        .map(|(name, value)| format!("static_assert({name} == ({value}), \"{name}\");\n"))
        .collect();
    compile("numbers", &checks, "c11", "c");
}

#[test]
fn a_c_compiler_lays_structures_out_as_rust_does() {
    let layouts = layout::all();
    let known: BTreeSet<_> = layouts
        .iter()
        .map(|layout| layout.name.to_owned())
        .collect();
    let declared = c::structures(&header());
    let declared = declared.iter().filter_map(|text| text.split(' ').next());
    same(&known, &declared.map(str::to_owned).collect());
    let checks: String = layouts.iter().map(layout::Layout::assertions).collect();
    compile("layout", &checks, "c11", "c");
}

#[test]
fn initialisers_set_the_size_and_the_defaults_of_the_library() {
    let uses = |constant| layout::INITIALISERS.replace("CONSTANT", constant);
    compile("initialisers", &uses("const"), "c11", "c");
    let checks = uses("constexpr") + &layout::defaults();
    compile("initialisers_cxx", &checks, "c++11", "c++");
}

#[test]
fn functions_know_their_own_names() {
    let wrong = rust::misnamed(&sources());
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[track_caller]
fn same(library: &BTreeSet<String>, header: &BTreeSet<String>) {
    let missing: Vec<_> = library.difference(header).collect();
    let surplus: Vec<_> = header.difference(library).collect();
    assert!(
        missing.is_empty() && surplus.is_empty() && !library.is_empty(),
        "\nthe library has, and include/haul.h has not: {missing:#?}\ninclude/haul.h has, and the library has not: {surplus:#?}\n"
    );
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn header() -> String {
    std::fs::read_to_string(root().join("include/haul.h")).unwrap()
}

fn sources() -> Vec<syn::File> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let rust = files.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    rust.map(|path| syn::parse_file(&std::fs::read_to_string(path).unwrap()).unwrap())
        .collect()
}

/// Compiles the header with `checks` behind it, with every warning an error.
#[track_caller]
fn compile(name: &str, checks: &str, standard: &str, language: &str) {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join(name);
    std::fs::write(
        &source,
        format!("#include \"haul.h\"\n#include <assert.h>\n{checks}"),
    )
    .unwrap();
    let compiler = if language == "c" { "cc" } else { "c++" };
    let output = Command::new(compiler)
        .args(["-x", language, &format!("-std={standard}")])
        .args([
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-fsyntax-only",
            "-I",
        ])
        .arg(root().join("include"))
        .arg(&source)
        .output()
        .expect("run the C compiler");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
