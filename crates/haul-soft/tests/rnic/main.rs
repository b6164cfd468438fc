//! The software RNIC through the public verbs, over loopback.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of an engine wait and look at the clock"
)]
#![expect(
    clippy::unwrap_used,
    reason = "a failure of the set-up is a failure of the test"
)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "lengths of tests fit into 32 bits"
)]

mod capture;
mod connections;
mod engine;
mod killed;
mod lossy;
mod misuse;
mod operations;
mod over;
mod places;
mod protected;
mod random;
mod support;
mod waiting;
