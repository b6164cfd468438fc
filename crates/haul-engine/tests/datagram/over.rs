//! What the tests of `haul-soft` run over here: a device of an engine.

pub(crate) use crate::shared::provider;

pub(crate) const DEVICE: &str = "engine-udp";

/// Whether posts send, and a completion queue holds no more than was asked for.
pub(crate) const IS_DIRECT: bool = false;
