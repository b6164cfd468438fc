//! Data connections bound to a session: how the bytes of a transfer space get from one end to the
//! other.
//!
//! The client opens a channel, also when it receives, because servers are easier to reach than
//! clients; both ends know it by the token in `OpenChannel`. Opening runs beside the control
//! handshake, so it costs no round trip of its own.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use haul_soft::bulk::{Sink, Source};

use crate::dial::Server;
use crate::fault::{Code, Fault, plain};
use crate::random_bytes;
use crate::wire::{Causes, OpenChannel};

pub(crate) mod tcp;
pub(crate) mod udt;

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
    /// The source could not be read.
    #[error("reading what is to be sent: {0}")]
    Source(#[source] io::Error),
    /// The sink took no more: it could not be written, or nobody asked for what came.
    #[error("placing what arrived: {0}")]
    Sink(#[source] io::Error),
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

    /// The fault that the user sees. A sink that could not be written has said so itself before:
    /// here it was not asked for.
    pub(crate) fn fault(&self) -> Fault {
        match self {
            Self::Source(error) => Fault::file("cannot read a source", error),
            Self::Sink(_) => Fault::protocol("the peer sent data that was not asked for"),
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
        let bytes = random_bytes::<8>().map_err(|error| {
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

/// A channel on its way to being open, on a thread of its own. Dropped before it is finished, it is
/// cancelled.
pub(crate) struct Opening {
    /// `None` once finished.
    thread: Option<JoinHandle<Result<Arc<dyn Channel>, Fault>>>,
    cancel: Cancel,
}

impl Drop for Opening {
    fn drop(&mut self) {
        if self.thread.is_some() {
            (self.cancel)();
        }
    }
}

/// Has an [`Opening`] fail soon instead of waiting out its time.
pub(crate) type Cancel = Arc<dyn Fn() + Send + Sync>;

impl Opening {
    /// The client's side.
    pub(crate) fn connect(
        setup: &Setup,
        server: &Server,
        timeout: Duration,
    ) -> Result<Self, Fault> {
        let (setup, server) = (setup.clone(), server.clone());
        match setup.kind {
            // The server's kernel answers, or nobody does, and then nothing else goes on either.
            Kind::Tcp => Self::spawn(Arc::new(|| {}), move || {
                Ok(Arc::new(tcp::TcpChannel::connect(
                    &setup, &server, timeout,
                )?))
            }),
            Kind::Udt => {
                let udp = server.address().ok_or_else(|| {
                    Fault::new(Code::Usage, "the udt channel does not go through gateways")
                })?;
                let connecting = udt::Connecting::begin(&setup, udp, timeout)?;
                let remote = connecting.remote();
                Self::spawn(Arc::new(move || remote.close()), move || {
                    Ok(Arc::new(connecting.finish()?))
                })
            }
        }
    }

    /// The server's side; `doors` are where data connections come in.
    pub(crate) fn accept(
        setup: &Setup,
        doors: &Arc<Doors>,
        timeout: Duration,
    ) -> Result<Self, Fault> {
        let setup = setup.clone();
        let deadline = Instant::now() + timeout;
        match setup.kind {
            Kind::Tcp => {
                // Claimed here and not on the thread: the first connection may come at once.
                let claim = Arc::new(doors.tcp.claim(setup.token));
                let claimed = Arc::clone(&claim);
                Self::spawn(Arc::new(move || claimed.give_up()), move || {
                    Ok(Arc::new(tcp::TcpChannel::accept(&setup, &claim, deadline)?))
                })
            }
            Kind::Udt => {
                let claim = Arc::new(doors.udt.claim(&setup)?);
                let claimed = Arc::clone(&claim);
                Self::spawn(Arc::new(move || claimed.give_up()), move || {
                    Ok(Arc::new(udt::UdtChannel::accept(&claim, deadline)?))
                })
            }
        }
    }

    /// Waits until the channel is open.
    pub(crate) fn finish(mut self) -> Result<Arc<dyn Channel>, Fault> {
        let opened = self.thread.take().map(JoinHandle::join);
        opened
            .and_then(Result::ok)
            .unwrap_or_else(|| Err(Fault::new(Code::Other, "opening the channel failed")))
    }

    pub(crate) fn cancel(&self) -> Cancel {
        Arc::clone(&self.cancel)
    }

    fn spawn(
        cancel: Cancel,
        open: impl FnOnce() -> Result<Arc<dyn Channel>, Fault> + Send + 'static,
    ) -> Result<Self, Fault> {
        let builder = std::thread::Builder::new().name("haul-open".into());
        let thread = builder.spawn(open).map_err(|error| Fault::system(&error))?;
        Ok(Self {
            thread: Some(thread),
            cancel,
        })
    }
}

/// Where a server's data connections come in.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    pub(crate) tcp: tcp::Door,
    pub(crate) udt: udt::Door,
}
