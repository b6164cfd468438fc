//! What both ends of a channel agree on, and what a session does with it once it is open.

use std::io;
use std::time::Duration;

use haul_soft::bulk::{Sink, Source};

use crate::fault::{Code, Fault, plain};
use crate::wire::{Causes, OpenChannel};

/// A data channel that is open. Its calls may come from different threads.
pub trait Channel: Send + Sync {
    /// Sends the space as it grows. Returns when it is complete and all of it has been handed to
    /// the transport, or when the channel is closed.
    ///
    /// # Errors
    /// [`ChannelError`].
    fn send(&self, source: &dyn Source) -> Result<(), ChannelError>;

    /// Places what arrives until the peer has sent all, or the channel is closed.
    ///
    /// # Errors
    /// [`ChannelError`].
    fn receive(&self, sink: &dyn Sink) -> Result<(), ChannelError>;

    /// Ends `send` and `receive` at once; whatever the peer has not got yet is given up. The
    /// session calls it only after the receiver has said over the control connection that it has
    /// everything, or after a failure.
    fn close(&self);

    /// Counters so far.
    fn stats(&self) -> ChannelStats;
}

/// Why a channel ended early, by where the error arose.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The source could not be read, or the sink took no more.
    #[error("{0}")]
    Store(Fault),
    /// The connection is gone: a new one may do.
    #[error("{0}")]
    Lost(String),
    /// The peer broke the protocol.
    #[error("{0}")]
    Peer(String),
    /// This host has no thread or memory for it.
    #[error("no thread or memory: {0}")]
    System(#[source] io::Error),
}

impl ChannelError {
    /// The transport failed.
    pub(crate) fn lost(error: &io::Error) -> Self {
        Self::Lost(plain(error))
    }

    /// A source or a sink failed; those of this crate put the [`Fault`] into the error.
    pub(crate) fn store(error: io::Error) -> Self {
        let fault = error.downcast::<Fault>();
        Self::Store(fault.unwrap_or_else(|error| Fault::file("cannot read or write", &error)))
    }

    /// The fault that the user sees.
    pub(crate) fn fault(&self) -> Fault {
        match self {
            Self::Store(fault) => fault.clone(),
            Self::Lost(why) => {
                Fault::new(Code::PeerGone, format!("the data connection failed: {why}"))
                    .hint("run the same command again; what has arrived is not sent twice")
            }
            Self::Peer(why) => Fault::protocol(why.as_str()),
            Self::System(error) => Fault::system(error),
        }
    }
}

/// What a channel counts, at the end that asks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChannelStats {
    /// Payload that has left this end, bytes, each byte counted once; none where the transport does
    /// not tell.
    pub sent: Option<u64>,
    /// Payload sent again, bytes; 0 at the receiving end.
    pub retransmitted: u64,
    /// Of `retransmitted`; `None` where the transport does not count by cause.
    pub causes: Option<Causes>,
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: Option<u32>,
}

/// The kinds of channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Kernel TCP, one or more streams.
    Tcp,
    /// UDT over UDP, one connection.
    Udt,
}

impl Kind {
    /// The name on the command line and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udt => "udt",
        }
    }

    const fn number(self) -> u8 {
        match self {
            Self::Tcp => 0,
            Self::Udt => 1,
        }
    }

    const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Tcp),
            1 => Some(Self::Udt),
            _ => None,
        }
    }
}

/// The most streams of one channel.
pub const STREAMS_MAX: u16 = 64;

/// The lowest rate that can be declared, bits per second: a packet takes a fifth of a second then.
pub const RATE_BPS_MIN: u64 = 64_000;

/// 62 bits that bind data connections to a session: 31 that a UDT handshake carries as its initial
/// sequence number, 31 as its socket id. TCP streams carry them whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(u64);

impl Token {
    const MASK: u64 = (1 << 62) - 1;

    /// Draws a token.
    ///
    /// # Errors
    /// Where the system has no random bytes.
    pub fn random() -> Result<Self, Fault> {
        let bytes = haul_io::random::bytes::<8>().map_err(|error| {
            Fault::new(Code::Other, format!("cannot read random bytes: {error}"))
        })?;
        Ok(Self(u64::from_ne_bytes(bytes) & Self::MASK))
    }

    /// The token that a peer sent.
    pub const fn from_wire(token: u64) -> Self {
        Self(token & Self::MASK)
    }

    /// The token as it goes over the wire.
    pub const fn to_wire(self) -> u64 {
        self.0
    }
}

/// What both ends know about a channel before it is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// Which transport.
    pub kind: Kind,
    /// What binds its connections to the session.
    pub token: Token,
    /// How many parallel streams.
    pub streams: u16,
    /// Declared rate, bits per second: the sender goes no faster.
    pub rate_bps: Option<u64>,
    /// Congestion control: of [`haul_cc::Algorithm::NAMED`] for UDT, of the kernel's for TCP. A
    /// declared rate of UDT needs none.
    pub congestion: Option<String>,
    /// The channel is lost after this time without progress.
    pub dead_after: Duration,
}

impl Setup {
    pub(crate) fn to_message(&self) -> OpenChannel {
        OpenChannel {
            kind: self.kind.number(),
            token: self.token.to_wire(),
            streams: self.streams,
            rate_bps: self.rate_bps,
            congestion: self.congestion.clone(),
        }
    }

    pub(crate) fn from_message(open: &OpenChannel, dead_after: Duration) -> Result<Self, Fault> {
        let kind = Kind::from_number(open.kind).ok_or_else(|| {
            Fault::new(
                Code::Refused,
                format!("channel kind {} is not known here", open.kind),
            )
            .hint("use --channel tcp, or update haul at the server")
        })?;
        if open.streams == 0 || open.streams > STREAMS_MAX {
            return Err(Fault::protocol(format!(
                "{} streams were asked for",
                open.streams
            )));
        }
        Ok(Self {
            kind,
            token: Token::from_wire(open.token),
            streams: open.streams,
            rate_bps: open.rate_bps.map(|rate| rate.max(RATE_BPS_MIN)),
            congestion: open.congestion.clone(),
            dead_after,
        })
    }
}
