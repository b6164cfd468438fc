//! The rules of this repository that no compiler checks, as functions that return what breaks them.
//!
//! `tests/tidy.rs` applies every rule to the tree, one test each, so that `cargo test -p xtask` is
//! the style check and a broken rule names the place. A rule that clippy or rustc can check belongs
//! there, not here.
//!
//! Map: [`edges`] which crate may depend on which · [`supply`] licences, sources and Rust versions
//! of dependencies · [`structure`] circles of files and arrows up, from [`arrows`], but for
//! those in [`left`] · [`modules`] files that nothing compiles · [`text`] what source files and
//! documents may hold · [`tree`] the files · [`graph`] what cargo says about the packages ·
//! [`spdx`] licence expressions.
#![forbid(unsafe_code)]

pub mod arrows;
pub mod edges;
pub mod graph;
pub mod left;
pub mod modules;
pub mod spdx;
pub mod structure;
pub mod supply;
pub mod text;
pub mod tree;

/// One broken rule: where, and what to do about it.
pub type Finding = String;
