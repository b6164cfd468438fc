//! The examples of docs/write-rdma-programs.md run, and are what the page shows.
#![expect(
    clippy::disallowed_methods,
    reason = "the examples wait, and say so to people"
)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use haul_soft::verbs::Peer;

#[path = "../examples/hello.rs"]
mod hello;
#[path = "../examples/ud.rs"]
#[expect(dead_code, reason = "the test calls what its main calls")]
mod ud;

const PAGE: &str = include_str!("../../../docs/write-rdma-programs.md");
/// Says to this test's own program, started again, to answer.
const ANSWER: &str = "HAUL_TEST_UD_ANSWER";

#[test]
fn the_first_example_runs_and_is_what_the_page_shows() {
    assert!(PAGE.contains(include_str!("../examples/hello.rs")));
    hello::main().unwrap();
}

/// The compiler sees it in the documentation of `QpInit`.
#[test]
fn the_page_fills_structures_as_their_documentation_does() {
    let source = include_str!("../../haul-verbs/src/queue.rs");
    let (_, shown) = PAGE.split_once("then set\nfields:\n\n```rust\n").unwrap();
    let (shown, _) = shown.split_once("```").unwrap();
    for line in shown.lines() {
        assert!(source.contains(&format!("\n/// {line}\n")), "{line}");
    }
}

/// Not a test: the process that answers.
#[test]
fn answering_process() {
    if std::env::var(ANSWER).is_ok() {
        ud::answer(1).unwrap();
    }
}

#[test]
fn two_processes_talk_by_unreliable_datagrams() {
    let source = include_str!("../examples/ud.rs");
    let (_, rest) = source.split_once("/// Answers `count`").unwrap();
    let (shown, _) = rest.split_once("\npub(crate) fn main").unwrap();
    assert!(PAGE.contains(shown));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "answering_process", "--nocapture"])
        .env(ANSWER, "")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let peer = lines.find_map(|line| {
        let line = line.ok()?;
        let (_, peer) = line.split_once("ask me: ")?;
        let (address, number) = peer.split_once(' ')?;
        Some(Peer::new(address.parse().ok()?, number.parse().ok()?))
    });
    assert_eq!(ud::ask(peer.unwrap()).unwrap(), "received: who is there?");
    assert!(child.wait().unwrap().success());
}
