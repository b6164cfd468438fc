//! Failures: one line for people, what to do, the exit code, and the code on the wire.

use std::io;

pub use haul_io::error::plain;

use crate::text::printable;

/// Linux's numbers, the same on every architecture, for errors that `io::ErrorKind` has no name
/// for: too many open files in the process, in the system.
const EMFILE: i32 = 24;
const EFBIG: i32 = 27;
const ENFILE: i32 = 23;

/// What to do about a transfer that was cut.
pub const RESUME: &str = "run the same command again; it resumes where it stopped";

/// A failure as users, scripts and peers see it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Fault {
    /// The kind of failure.
    pub code: Code,
    /// What happened, one line without control characters.
    pub text: String,
    /// What to do.
    pub hint: Option<String>,
}

/// The kinds of failure. The numbers go over the wire and are never given a new meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Any other failure.
    Other = 1,
    /// The command line or the request is wrong.
    Usage = 2,
    /// A directory does not exist.
    DirectoryNotFound = 3,
    /// A file does not exist.
    FileNotFound = 4,
    /// No connection could be made.
    Unreachable = 5,
    /// The connection was lost or timed out.
    PeerGone = 6,
    /// The server's sessions are all taken.
    ServerBusy = 7,
    /// Another transfer is writing the same target.
    TargetBusy = 8,
    /// The source is no longer what was offered.
    SourceChanged = 9,
    /// The peer is not haul.
    NotHaul = 10,
    /// The two ends have no protocol version in common.
    Version = 11,
    /// The peer broke the protocol.
    Protocol = 12,
    /// The system denies access.
    Denied = 13,
    /// This end does not do what was asked (read-only server, unsafe name, not a regular file).
    Refused = 14,
    /// Data stayed damaged although it was retransmitted.
    Integrity = 15,
    /// The target's file system or quota is full.
    DiskFull = 16,
    /// Reading or writing a file failed.
    FileError = 17,
    /// The target exists and may not be replaced.
    Exists = 18,
    /// Authentication failed.
    NotAuthenticated = 19,
}

impl Fault {
    /// Makes a failure without advice.
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        Self {
            code,
            text: printable(text.into().as_bytes()),
            hint: None,
        }
    }

    /// Adds what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(printable(hint.into().as_bytes()));
        self
    }

    /// Appends to the text.
    #[must_use]
    pub fn with(mut self, more: &str) -> Self {
        self.text.push_str(more);
        self
    }

    /// Makes the failure of a peer that broke the protocol.
    pub fn protocol(text: impl Into<String>) -> Self {
        Self::new(Code::Protocol, text)
            .hint("run the same haul version at both ends; if both are equal, please report this")
    }

    /// Makes the failure of a file operation; `doing` reads like "cannot write 'name'".
    pub fn file(doing: &str, error: &io::Error) -> Self {
        let fault = Self::new(file_code(error), format!("{doing}: {}", plain(error)));
        match (fault.code, error.raw_os_error()) {
            (Code::DiskFull, _) => fault.hint("make room there and run the same command again"),
            (Code::Denied, _) => fault.hint("check the owner, the permissions and the mount"),
            (_, Some(EMFILE | ENFILE)) => {
                fault.hint("move fewer files at a time, or raise the limit (ulimit -n)")
            }
            (_, Some(EFBIG)) => fault.hint("raise the limit of file sizes there (ulimit -f)"),
            _ => fault,
        }
    }

    /// Makes the failure of a host without a thread, memory or descriptor.
    pub fn system(error: &io::Error) -> Self {
        let (what, limit) = match error.raw_os_error() {
            Some(EMFILE | ENFILE) => ("open a descriptor", "descriptors (ulimit -n)"),
            _ => ("start a thread", "processes (ulimit -u, pids.max)"),
        };
        Self::new(Code::Other, format!("cannot {what}: {}", plain(error))).hint(format!(
            "raise the limit of {limit}, or run fewer transfers at a time"
        ))
    }

    /// Makes the failure of an open connection.
    pub fn connection(error: &io::Error) -> Self {
        Self::new(Code::PeerGone, format!("connection lost: {}", plain(error))).hint(RESUME)
    }

    /// Returns the process exit code.
    pub fn exit(&self) -> u8 {
        self.code.exit()
    }
}

impl Code {
    const ALL: [Self; 19] = [
        Self::Other,
        Self::Usage,
        Self::DirectoryNotFound,
        Self::FileNotFound,
        Self::Unreachable,
        Self::PeerGone,
        Self::ServerBusy,
        Self::TargetBusy,
        Self::SourceChanged,
        Self::NotHaul,
        Self::Version,
        Self::Protocol,
        Self::Denied,
        Self::Refused,
        Self::Integrity,
        Self::DiskFull,
        Self::FileError,
        Self::Exists,
        Self::NotAuthenticated,
    ];

    /// Returns the process exit code: rclone's 0 to 10 where they apply, then 11 integrity,
    /// 12 authentication, 13 disk or quota full.
    pub const fn exit(self) -> u8 {
        match self {
            Self::Other | Self::FileError => 1,
            Self::Usage => 2,
            Self::DirectoryNotFound => 3,
            Self::FileNotFound => 4,
            Self::Unreachable
            | Self::PeerGone
            | Self::ServerBusy
            | Self::TargetBusy
            | Self::SourceChanged => 5,
            Self::NotHaul
            | Self::Version
            | Self::Protocol
            | Self::Denied
            | Self::Refused
            | Self::Exists => 7,
            Self::Integrity => 11,
            Self::NotAuthenticated => 12,
            Self::DiskFull => 13,
        }
    }

    /// Returns the name used in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Other => "other",
            Self::Usage => "usage",
            Self::DirectoryNotFound => "directory_not_found",
            Self::FileNotFound => "file_not_found",
            Self::Unreachable => "unreachable",
            Self::PeerGone => "peer_gone",
            Self::ServerBusy => "server_busy",
            Self::TargetBusy => "target_busy",
            Self::SourceChanged => "source_changed",
            Self::NotHaul => "not_haul",
            Self::Version => "version",
            Self::Protocol => "protocol",
            Self::Denied => "denied",
            Self::Refused => "refused",
            Self::Integrity => "integrity",
            Self::DiskFull => "disk_full",
            Self::FileError => "file_error",
            Self::Exists => "exists",
            Self::NotAuthenticated => "not_authenticated",
        }
    }

    /// Returns whether the failure is transient: the same attempt may succeed later.
    pub const fn passes(self) -> bool {
        matches!(
            self,
            Self::Unreachable | Self::PeerGone | Self::ServerBusy | Self::TargetBusy
        )
    }

    /// Returns the number used on the wire.
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// Returns the kind with this number; [`Code::Other`] for the unknown one of a newer peer.
    pub fn from_number(number: u16) -> Self {
        Self::ALL
            .into_iter()
            .find(|code| code.number() == number)
            .unwrap_or(Self::Other)
    }
}

fn file_code(error: &io::Error) -> Code {
    match error.kind() {
        io::ErrorKind::NotFound => Code::FileNotFound,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Code::Denied,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::DiskFull,
        io::ErrorKind::AlreadyExists => Code::Exists,
        io::ErrorKind::CrossesDevices => Code::Refused,
        _ => Code::FileError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_the_wire_and_fails_the_process() {
        for code in Code::ALL {
            assert_eq!(Code::from_number(code.number()), code);
            assert_ne!(code.exit(), 0);
        }
        assert_eq!(Code::from_number(9999), Code::Other);
    }

    #[test]
    fn no_room_exits_13_with_a_hint() {
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            let fault = Fault::file("cannot write 'x'", &kind.into());
            assert_eq!(fault.exit(), 13);
            assert!(fault.hint.is_some());
        }
    }
}
