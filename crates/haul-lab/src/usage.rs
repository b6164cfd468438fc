//! The error of whoever wrote the command line or the scenario.

use std::fmt;

/// What is wrong with a command line or a scenario. As an error or the context of one, it tells
/// those that ask [`anyhow::Error::is`] that nothing was tried.
#[derive(Debug)]
pub struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}
