//! The tests of the software RNIC that use nothing but verbs, over devices of an engine.
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

#[path = "../../../haul-soft/tests/rnic/connections.rs"]
mod connections;
#[path = "../../../haul-soft/tests/rnic/misuse.rs"]
mod misuse;
#[path = "../../../haul-soft/tests/rnic/operations.rs"]
mod operations;
mod over;
#[path = "../../../haul-soft/tests/rnic/random.rs"]
mod random;
#[path = "../shared/mod.rs"]
mod shared;
#[path = "../../../haul-soft/tests/rnic/support.rs"]
mod support;
#[path = "../../../haul-soft/tests/rnic/waiting.rs"]
mod waiting;
