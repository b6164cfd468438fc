//! Failures, their numbers, and what to do about them.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::io;

use haul_soft::udt::LinkError;
use haul_verbs::{Blame, Failure, PostError};

use crate::number::*;

/// Why a function did nothing.
#[derive(Debug)]
pub(crate) enum Error {
    /// A verb failed.
    Verbs(haul_verbs::Error),
    /// An argument that never became a verb: NULL, a structure that is too short, an unknown flag.
    Argument(&'static str),
    /// A text with a value that cannot be used.
    Text(String),
    /// No device has this name; those that have one.
    NoDevice { wanted: String, found: String },
    /// A byte stream is over, or could not begin.
    Stream {
        status: c_int,
        errno: Option<c_int>,
        what: String,
    },
    /// A byte stream's end, after all of it.
    Ended,
    /// A panic, caught at the border.
    Internal(String),
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl From<haul_verbs::Error> for Error {
    fn from(error: haul_verbs::Error) -> Self {
        Self::Verbs(error)
    }
}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        Self::Verbs(error.error)
    }
}

impl From<&LinkError> for Error {
    fn from(error: &LinkError) -> Self {
        let (status, errno) = match error {
            LinkError::Protocol(haul_soft::udt::Error::TimedOut) => (HAUL_ERR_TIMED_OUT, None),
            LinkError::Silent(source) => (HAUL_ERR_TIMED_OUT, source.raw_os_error()),
            LinkError::Network(source) | LinkError::System(source) => {
                (HAUL_ERR_OS, source.raw_os_error())
            }
            _ => (HAUL_ERR_DISCONNECTED, None),
        };
        Self::Stream {
            status,
            errno,
            what: error.to_string(),
        }
    }
}

impl Error {
    pub(crate) fn os(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Verbs(haul_verbs::Error::Os { what, source })
    }

    /// A field with a value that haul.h does not define; `known` lists those that it defines.
    pub(crate) fn unknown(field: &str, value: u32, known: &str) -> Self {
        Self::Text(format!("{field} is {value:#x}, and must be {known}"))
    }

    /// Reserved fields are zero, so that later versions can give them a meaning.
    pub(crate) fn reserved(of: &str, are_zero: bool) -> Result<()> {
        if are_zero {
            return Ok(());
        }
        Err(Self::Text(format!("reserved of {of} is not 0")))
    }

    /// The number of include/haul.h.
    pub(crate) fn status(&self) -> c_int {
        use haul_verbs::Error as Verbs;
        match self {
            Self::Verbs(Verbs::Unsupported(_)) => HAUL_ERR_UNSUPPORTED,
            Self::Verbs(Verbs::Invalid(_) | Verbs::Limit { .. })
            | Self::Argument(_)
            | Self::Text(_) => HAUL_ERR_INVALID,
            Self::Verbs(Verbs::Full(_)) => HAUL_ERR_FULL,
            Self::Verbs(Verbs::State(_)) => HAUL_ERR_STATE,
            Self::Verbs(Verbs::Exhausted(_)) => HAUL_ERR_EXHAUSTED,
            Self::Verbs(Verbs::Busy(_)) => HAUL_ERR_BUSY,
            Self::Verbs(Verbs::CqOverflow) => HAUL_ERR_CQ_OVERFLOW,
            Self::Verbs(Verbs::Os { source, .. }) if source.kind() == io::ErrorKind::TimedOut => {
                HAUL_ERR_TIMED_OUT
            }
            Self::Verbs(Verbs::Os { .. }) => HAUL_ERR_OS,
            Self::NoDevice { .. } => HAUL_ERR_NO_DEVICE,
            Self::Stream { status, .. } => *status,
            Self::Ended => HAUL_ERR_ENDED,
            Self::Verbs(_) | Self::Internal(_) => HAUL_ERR_INTERNAL,
        }
    }

    /// The `errno` that an application of sockets would have seen.
    pub(crate) fn errno(&self) -> c_int {
        if let Self::Verbs(haul_verbs::Error::Os { source, .. }) = self
            && let Some(errno) = source.raw_os_error()
        {
            return errno;
        }
        if let Self::Stream {
            errno: Some(errno), ..
        } = self
        {
            return *errno;
        }
        match self.status() {
            HAUL_ERR_UNSUPPORTED => libc::EOPNOTSUPP,
            HAUL_ERR_INVALID => libc::EINVAL,
            HAUL_ERR_FULL => libc::EAGAIN,
            HAUL_ERR_STATE => libc::ENOTCONN,
            HAUL_ERR_EXHAUSTED => libc::ENOMEM,
            HAUL_ERR_BUSY => libc::EBUSY,
            HAUL_ERR_CQ_OVERFLOW => libc::EOVERFLOW,
            HAUL_ERR_TIMED_OUT => libc::ETIMEDOUT,
            HAUL_ERR_NO_DEVICE => libc::ENODEV,
            HAUL_ERR_ENDED => libc::ENODATA,
            HAUL_ERR_DISCONNECTED => libc::ECONNRESET,
            _ => libc::EIO,
        }
    }

    /// What the application or its user can do; empty where the failure tells it.
    fn advice(&self) -> &'static str {
        match self.status() {
            HAUL_ERR_UNSUPPORTED => "haul_query returns what a device can do; open another one",
            HAUL_ERR_FULL => "poll completions, then post the rest again",
            HAUL_ERR_STATE => {
                "a queue pair connects once, sends after HAUL_CM_ESTABLISHED, and in error can only be destroyed; \
                 haul_qp_query returns its state"
            }
            HAUL_ERR_EXHAUSTED => "destroy what is no longer used; haul_query returns the limits",
            HAUL_ERR_BUSY => "destroy what uses it first",
            HAUL_ERR_CQ_OVERFLOW => {
                "make the queue as long as all the requests that can be outstanding on it, and poll it"
            }
            HAUL_ERR_TIMED_OUT => "look whether the peer is running and reachable, or wait longer",
            HAUL_ERR_OS => self.os_advice(),
            HAUL_ERR_INTERNAL => {
                "this is a bug of Longhaul: report it with this text; destroy the object, other objects can be used"
            }
            _ => "",
        }
    }

    fn os_advice(&self) -> &'static str {
        match self.errno() {
            libc::EMFILE | libc::ENFILE => "raise the limit of open files (ulimit -n)",
            libc::ENOMEM => "use less memory, or raise the limit of locked memory (ulimit -l)",
            libc::EADDRINUSE => "another socket has this port; choose another one",
            libc::EADDRNOTAVAIL => "the address is not one of this machine",
            libc::EACCES | libc::EPERM => {
                "choose a port above 1023, or ask for the right to do this"
            }
            libc::ENETUNREACH | libc::EHOSTUNREACH => "there is no route to the peer",
            _ => "",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verbs(error) => error.fmt(f)?,
            Self::Argument(what) => f.write_str(what)?,
            Self::Text(what) => f.write_str(what)?,
            Self::NoDevice { wanted, found } if found.is_empty() => {
                write!(f, "there is no device {wanted}, nor any other")?;
            }
            Self::NoDevice { wanted, found } => {
                write!(f, "there is no device {wanted}; there are: {found}")?;
            }
            Self::Stream { what, .. } => f.write_str(what)?,
            Self::Ended => f.write_str("the peer has ended its direction of the stream")?,
            Self::Internal(what) => write!(f, "internal error: {what}")?,
        }
        match self.advice() {
            "" => Ok(()),
            advice => write!(f, "; {advice}"),
        }
    }
}

/// Returns the number of whom a failure is blamed on.
pub(crate) fn blame(failure: Option<&Failure>) -> u32 {
    match failure.map(|failure| failure.blame) {
        None => HAUL_BLAME_NONE,
        Some(Blame::Local) => HAUL_BLAME_LOCAL,
        Some(Blame::Peer) => HAUL_BLAME_PEER,
        Some(Blame::PeerComplains) => HAUL_BLAME_PEER_COMPLAINS,
        Some(Blame::Network) => HAUL_BLAME_NETWORK,
    }
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_strerror(status: c_int) -> *const c_char {
    let text: &CStr = match status {
        HAUL_OK => c"success",
        HAUL_ERR_UNSUPPORTED => c"not supported by this device or provider",
        HAUL_ERR_INVALID => c"invalid argument",
        HAUL_ERR_FULL => c"the queue is full",
        HAUL_ERR_STATE => c"the state of the queue pair does not allow it",
        HAUL_ERR_EXHAUSTED => c"a limit of the device, process or machine is reached",
        HAUL_ERR_BUSY => c"still in use",
        HAUL_ERR_CQ_OVERFLOW => c"the completion queue has overflowed",
        HAUL_ERR_OS => c"the operating system refused",
        HAUL_ERR_TIMED_OUT => c"timed out",
        HAUL_ERR_NO_DEVICE => c"no such device",
        HAUL_ERR_INTERNAL => c"internal error",
        HAUL_ERR_ENDED => c"the peer has ended its direction of the stream",
        HAUL_ERR_DISCONNECTED => c"the stream is over",
        _ if status > 0 => c"success",
        _ => c"unknown status",
    };
    text.as_ptr()
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_wc_status_str(status: u32) -> *const c_char {
    let text: &CStr = match status {
        HAUL_WC_SUCCESS => c"success",
        HAUL_WC_LOC_LEN_ERR => c"local length error",
        HAUL_WC_LOC_QP_OP_ERR => c"local queue pair operation error",
        HAUL_WC_LOC_PROT_ERR => c"local protection error",
        HAUL_WC_WR_FLUSH_ERR => c"flushed: the queue pair was in error",
        HAUL_WC_MW_BIND_ERR => c"memory window bind error",
        HAUL_WC_BAD_RESP_ERR => c"bad response",
        HAUL_WC_LOC_ACCESS_ERR => c"the peer accessed local memory without the right to",
        HAUL_WC_REM_INV_REQ_ERR => c"the peer refused the request as invalid",
        HAUL_WC_REM_ACCESS_ERR => c"the peer refused access to its memory",
        HAUL_WC_REM_OP_ERR => c"the peer could not do it",
        HAUL_WC_RETRY_EXC_ERR => c"the peer did not answer",
        HAUL_WC_RNR_RETRY_EXC_ERR => c"the peer had no receive request for too long",
        HAUL_WC_REM_ABORT_ERR => c"the peer aborted it",
        HAUL_WC_FATAL_ERR => c"the device is broken",
        HAUL_WC_RESP_TIMEOUT_ERR => c"no answer in time",
        HAUL_WC_GENERAL_ERR => c"general error",
        _ => c"unknown status",
    };
    text.as_ptr()
}
