//! Byte streams with a thread of their own, over sockets of this machine.
#![allow(
    clippy::allow_attributes,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "a test ends at what it did not expect; a relay between the ends has sockets of its own"
)]

mod cases;
mod over;
