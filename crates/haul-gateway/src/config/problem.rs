//! Problems of a configuration, and their remedies.

use std::fmt;

use serde::Serialize;

/// A problem that the operator should know before starting a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Its severity.
    pub severity: Severity,
    /// Line of the file, from 1; that of the table if the line is unknown.
    pub line: Option<usize>,
    /// The setting: `[[route]] 2: ring`.
    pub place: String,
    /// The error message.
    pub text: String,
    /// The remedy.
    pub hint: Option<String>,
}

impl Problem {
    /// Returns whether it keeps a gateway from working.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// The severity of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The gateway cannot work.
    Error,
    /// The gateway works, perhaps not as intended.
    Warning,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(match self.severity {
            Severity::Error => "error: ",
            Severity::Warning => "warning: ",
        })?;
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.text)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}
