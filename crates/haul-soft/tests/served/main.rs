//! The tests of byte streams, with ends that could be two processes.
#![allow(
    clippy::allow_attributes,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "a test ends at what it did not expect; a relay between the ends has sockets of its own"
)]

#[path = "../stream/cases.rs"]
mod cases;
mod over;
