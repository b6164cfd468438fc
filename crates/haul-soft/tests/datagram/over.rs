//! What the tests run over: a device of this process.

pub(crate) use haul_soft::rnic::provider;

pub(crate) const DEVICE: &str = "soft-udp";

/// Whether posts send, and a completion queue holds no more than was asked for.
pub(crate) const IS_DIRECT: bool = true;
