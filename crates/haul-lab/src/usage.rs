//! The error of whoever wrote the command line or the scenario, and errors as a line.

use std::{fmt, io};

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

/// Returns an error and its causes as one line, those of the system without their numbers.
#[must_use]
pub fn line(error: &anyhow::Error) -> String {
    let part = |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref::<io::Error>() {
        Some(error) => haul_io::error::plain(error),
        None => cause.to_string(),
    };
    error.chain().map(part).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn causes_follow_without_the_numbers_of_the_system() {
        let error = std::fs::read("/nonexistent/results.json").unwrap_err();
        let error = Err::<(), _>(error).context("cannot read the results");
        assert_eq!(
            line(&error.unwrap_err()),
            "cannot read the results: no such file or directory"
        );
    }
}
