//! Back ends that set paths up.

use std::time::Duration;

use haul_io::notify::Signal;
use haul_xsp::wire::PathState;

use super::exec;
use super::request::{Action, Outcome, Request};
use crate::config::PathSignalling;

/// A back end.
#[derive(Debug)]
pub(crate) enum Backend {
    Nobody,
    Program(exec::Program),
}

impl Backend {
    /// Creates the configured back end.
    ///
    /// # Errors
    /// States in one line that no program is named.
    pub(crate) fn new(config: &PathSignalling) -> Result<Self, String> {
        Ok(match config {
            PathSignalling::None => Self::Nobody,
            PathSignalling::Exec { program, timeout } => {
                Self::Program(exec::Program::new(program, Duration::from_secs(*timeout))?)
            }
        })
    }

    pub(crate) const fn is_nobody(&self) -> bool {
        matches!(self, Self::Nobody)
    }

    pub(crate) fn ask(
        &self,
        request: &Request,
        action: Action,
        end: &Signal,
        tell: &mut dyn FnMut(PathState, &str),
    ) -> Outcome {
        match self {
            Self::Nobody => Outcome::Done,
            Self::Program(program) => program.ask(request, action, end, tell),
        }
    }
}
