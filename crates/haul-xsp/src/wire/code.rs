//! Numbers with names: why something is refused, what is wanted with a path, how ends prove who
//! they are.

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
            /// The number on the wire.
            #[must_use]
            pub const fn code(self) -> u16 {
                match self {
                    $(Self::$variant => $code,)*
                    Self::Other(code) => code,
                }
            }

            /// Of the number on the wire.
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
        /// Who asks is not who it says, or did not say.
        NotAuthenticated = 3,
        /// Who asks may not.
        Forbidden = 4,
        /// No protocol that both ends of a segment have.
        NoProtocol = 5,
        /// The session is on its way already: a loop.
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
        /// The end of a session that is done.
        Done = 0xfffd,
        /// The end closes.
        Closing = 0xfffe,
        /// None of the others.
        Error = 0xffff,
    }
}

codes! {
    /// What is wanted with a path.
    PathAction {
        /// Set it up.
        Create = 1,
        /// Take it down.
        Delete = 2,
        /// Change it.
        Modify = 3,
        /// Tell its state.
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
        /// Not to be had.
        Failed = 3,
        /// Over.
        Expired = 4,
    }
}

codes! {
    /// How the ends of a control connection prove who they are.
    AuthMethod {
        /// Not at all.
        Anonymous = 1,
        /// A shared key: HMAC-SHA256 over both nonces and all that was said.
        SharedKey = 2,
        /// TLS below has done it.
        Tls = 3,
        /// A tunnel of SSH below has done it.
        Ssh = 4,
    }
}
