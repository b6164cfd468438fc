//! Why a gateway does not start.

/// States in one line why a gateway cannot start, or why it cannot apply a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StartError(pub(crate) String);
