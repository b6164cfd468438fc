//! Who sets paths up.

use std::time::Duration;

use haul_io::notify::Signal;
use haul_xsp::wire::PathState;

use super::exec;
use super::http;
use super::request::{Action, Outcome, Request};
use crate::config::PathSignalling;

/// Who is asked.
#[derive(Debug)]
pub(crate) enum Backend {
    Nobody,
    Program(exec::Program),
    Service(http::Service),
}

impl Backend {
    /// # Errors
    /// A line for the operator: no program, no URL, roots that cannot be read.
    pub(crate) fn new(config: &PathSignalling) -> Result<Self, String> {
        Ok(match config {
            PathSignalling::None => Self::Nobody,
            PathSignalling::Exec { program, timeout } => {
                Self::Program(exec::Program::new(program, Duration::from_secs(*timeout))?)
            }
            PathSignalling::Http {
                url,
                roots,
                timeout,
            } => Self::Service(http::Service::new(
                url,
                roots.as_deref(),
                Duration::from_secs(*timeout),
            )?),
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
            Self::Service(service) => service.ask(request, action, end, tell),
        }
    }
}
