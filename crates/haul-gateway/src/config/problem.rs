//! What is wrong with a configuration, and what to do about it.

use std::fmt;

use serde::Serialize;

/// Something that the operator should know before a gateway is started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// Line of the file, from 1; that of the table where the line is not known.
    pub line: Option<usize>,
    /// Which setting: `[[route]] 2: ring`.
    pub place: String,
    /// What is wrong with it.
    pub text: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Problem {
    /// Whether it keeps a gateway from working.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// How bad a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It cannot work.
    Error,
    /// It works, but perhaps not as meant.
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
