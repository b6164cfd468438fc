//! The software RNIC through the public verbs, over loopback.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of an engine wait and look at the clock"
)]

mod operations;
mod support;
