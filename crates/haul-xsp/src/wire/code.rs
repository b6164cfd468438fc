//! Codes: reasons of a refusal, operations on a path, authentication methods.

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $code:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)*
            /// A code that this version does not know.
            Other(u16),
        }

        impl $name {
            /// Returns the number on the wire.
            #[must_use]
            pub const fn code(self) -> u16 {
                match self {
                    $(Self::$variant => $code,)*
                    Self::Other(code) => code,
                }
            }

            /// Returns the code with this number on the wire.
            #[must_use]
            pub const fn from_code(code: u16) -> Self {
                match code {
                    $($code => Self::$variant,)*
                    code => Self::Other(code),
                }
            }
        }
    };
}

codes! {
    /// Why something is refused or ends. 1, 2, 0xfffe and 0xffff are version 1's.
    NackStatus {
        /// No way to the next hop.
        NoRoute = 1,
        /// The next hop cannot be reached.
        CannotConnect = 2,
        /// Authentication of the requester failed or is missing.
        NotAuthenticated = 3,
        /// The requester is not authorised.
        Forbidden = 4,
        /// No protocol that both ends of a segment have.
        NoProtocol = 5,
        /// The session already passes through this hop: a loop.
        Loop = 6,
        /// No session with this ticket.
        UnknownSession = 7,
        /// Limits are reached.
        Busy = 8,
        /// A rule of the protocol was broken.
        Protocol = 9,
        /// No answer in time.
        TimedOut = 10,
        /// Something that must be understood is not.
        Unsupported = 11,
        /// The name of the target cannot be resolved.
        CannotResolve = 12,
        /// The end of a session that is done.
        Done = 0xfffd,
        /// The end closes.
        Closing = 0xfffe,
        /// None of the others.
        Error = 0xffff,
    }
}

codes! {
    /// An operation on a path.
    PathAction {
        /// Set it up.
        Create = 1,
        /// Take it down.
        Delete = 2,
        /// Change it.
        Modify = 3,
        /// Report its state.
        Query = 4,
    }
}

codes! {
    /// How a path is.
    PathState {
        /// Asked for.
        Pending = 1,
        /// There.
        Up = 2,
        /// Not available.
        Failed = 3,
        /// Over.
        Expired = 4,
    }
}

codes! {
    /// How the ends of a control connection authenticate each other.
    AuthMethod {
        /// Not at all.
        Anonymous = 1,
        /// A shared key: HMAC-SHA256 over both nonces and the transcript.
        SharedKey = 2,
        /// TLS below has done it.
        Tls = 3,
        /// A tunnel of SSH below has done it.
        Ssh = 4,
    }
}
