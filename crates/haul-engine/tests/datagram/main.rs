//! The tests of datagram services that use nothing but verbs, over a device of an engine.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests of an engine wait, look at the clock, and send what no engine would"
)]
#![expect(
    clippy::unwrap_used,
    reason = "a failure of the set-up is a failure of the test"
)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "lengths of tests fit into 32 bits"
)]
#![expect(
    dead_code,
    reason = "what these tests share with others is not all used here"
)]

#[path = "../../../haul-soft/tests/datagram/messages.rs"]
mod messages;
mod over;
#[path = "../../../haul-soft/tests/datagram/records.rs"]
mod records;
#[path = "../../../haul-soft/tests/datagram/relay.rs"]
mod relay;
#[path = "../../../haul-soft/tests/datagram/reliable.rs"]
mod reliable;
#[path = "../shared/mod.rs"]
mod shared;
#[path = "../../../haul-soft/tests/datagram/support.rs"]
mod support;
