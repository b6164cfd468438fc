//! Failures of the verbs and of regions as faults, which name an exit code.

use haul::fault::{Code, Fault};
use haul_verbs::Error;

/// A verb that failed.
pub(crate) fn verb(error: Error) -> Fault {
    match &error {
        Error::Os { what, source } if source.kind() == std::io::ErrorKind::TimedOut => Fault::new(
            Code::Unreachable,
            format!("{what}: the peer does not answer"),
        ),
        Error::Os { .. } => Fault::new(Code::Other, error.to_string()),
        Error::Exhausted(_) => Fault::new(Code::Other, error.to_string())
            .hint("raise the limits of the process (ulimit -n, -l), or ask for less"),
        Error::Unsupported(_) | Error::Invalid(_) | Error::Limit { .. } => {
            Fault::new(Code::Usage, error.to_string())
        }
        _ => Fault::new(Code::Other, error.to_string()),
    }
}

/// An offset of this program's own that does not lie in its region.
pub(crate) fn range(error: haul_slab::OutOfBounds) -> Fault {
    Fault::new(Code::Other, error.to_string())
}
