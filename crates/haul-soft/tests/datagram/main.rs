//! Datagram services of the software RNIC through the public verbs, over loopback and in namespaces
//! of the test's own.
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

mod engine;
mod groups;
mod hostile;
mod many;
mod messages;
mod over;
mod path;
mod places;
mod records;
mod relay;
mod reliable;
mod sealed;
mod support;
