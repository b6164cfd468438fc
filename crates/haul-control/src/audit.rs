//! What an operator keeps of each session and of each failed login.

use std::fmt;
use std::sync::Arc;

use haul_report::text::cut;

use crate::fault::Fault;

/// One session, or one login that failed.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Who it was: the label and the identity; empty if the client proved none.
    pub identity: &'a str,
    /// The client's address and port.
    pub address: &'a str,
    /// `login` (which failed), `put`, `get`, `list`, `read`, `delete`, `bench` or `session` (which
    /// asked for nothing).
    pub operation: &'a str,
    /// The directory of a put, the first file of a get or a read, what a list or delete named, the
    /// operation of a bench; escaped for a terminal.
    pub path: &'a str,
    /// Further files of a get or a read.
    pub other_paths: u64,
    /// Payload that moved, bytes.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// Why it failed, if it did.
    pub fault: Option<&'a Fault>,
}

/// Most bytes of a path in a line. The client chooses the path, and a log cuts long lines: who it
/// was and how it ended must not be what is cut.
const PATH_SHOWN: usize = 1024;

/// Takes entries as sessions end.
pub type Audit = Arc<dyn Fn(&Entry<'_>) + Send + Sync>;

impl fmt::Display for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.operation == "login" {
            return match self.fault {
                Some(fault) => write!(f, "{}: refused: {fault}", self.address),
                None => write!(f, "{}: refused", self.address),
            };
        }
        write!(f, "{}: {}", self.address, self.operation)?;
        if !self.path.is_empty() {
            let shown = cut(self.path, PATH_SHOWN);
            let rest = if shown == self.path { "" } else { "..." };
            write!(f, " '{shown}{rest}'")?;
        }
        if self.other_paths > 0 {
            write!(f, " and {} more", self.other_paths)?;
        }
        write!(f, " by {}: {} bytes, ", self.identity, self.bytes)?;
        match self.fault {
            None => write!(f, "done in {:.1} s", self.seconds),
            Some(fault) => write!(f, "failed after {:.1} s: {fault}", self.seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Code;

    #[test]
    fn an_entry_is_one_line_with_who_where_what_and_how_it_ended() {
        let fault = Fault::new(Code::Refused, "no");
        let entry = Entry {
            identity: "alice (haul1:x)",
            address: "192.0.2.1:9",
            operation: "put",
            path: "in/",
            other_paths: 0,
            bytes: 7,
            seconds: 1.25,
            fault: None,
        };
        let line = "192.0.2.1:9: put 'in/' by alice (haul1:x): 7 bytes, done in 1.2 s";
        assert_eq!(entry.to_string(), line);
        let many = Entry {
            operation: "read",
            other_paths: 2,
            ..entry
        };
        let line = many.to_string();
        assert!(line.contains("read 'in/' and 2 more by alice"), "{line}");
        let path = format!("x{}", "\u{e9}".repeat(2_000));
        let long = Entry {
            path: &path,
            ..entry
        };
        let line = long.to_string();
        assert!(line.len() < 1_200, "{line}");
        assert!(line.ends_with("...' by alice (haul1:x): 7 bytes, done in 1.2 s"));
        let failed = Entry {
            fault: Some(&fault),
            ..entry
        };
        assert!(
            failed
                .to_string()
                .ends_with("7 bytes, failed after 1.2 s: no")
        );
        let login = Entry {
            operation: "login",
            ..failed
        };
        assert_eq!(login.to_string(), "192.0.2.1:9: refused: no");
    }
}
