//! Parameters of a channel, and the interface of an open one.

use std::io;
use std::time::Duration;

use haul_cc::Remembered;
use haul_control::connection::Exported;
use haul_seal::{Cipher, Seal, Secret};
use haul_soft::bulk::{Sink, Source};

use crate::fault::{Code, Fault, RESUME, plain};
use crate::wire::{Causes, OpenChannel};

/// An open data channel. Any thread may call its methods.
pub trait Channel: Send + Sync {
    /// Sends the space as it grows. Blocks until the space is complete and all of it has been
    /// handed to the transport, or until the channel is closed.
    ///
    /// # Errors
    /// [`ChannelError`].
    fn send(&self, source: &dyn Source) -> Result<(), ChannelError>;

    /// Places payload as it arrives. Blocks until the peer has sent everything, or until the
    /// channel is closed.
    ///
    /// # Errors
    /// [`ChannelError`].
    fn receive(&self, sink: &dyn Sink) -> Result<(), ChannelError>;

    /// Ends `send` and `receive` at once; payload in flight is lost. The session calls it after the
    /// receiver has acknowledged everything over the control connection, or after a failure.
    fn close(&self);

    /// Returns the counters so far.
    fn stats(&self) -> ChannelStats;

    /// Gives a sealed channel its secret, before `send` or `receive`. One secret MUST serve one
    /// channel only.
    fn set_seal(&self, seal: Seal);

    /// Starts from what an earlier channel found on the path, before `send`. Channels that cannot
    /// use it ignore it.
    fn resume(&self, _remembered: Remembered) {}
}

/// Why a channel ended early, by the place where the error arose.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The source could not be read, or the sink took no more.
    #[error("{0}")]
    Store(Fault),
    /// The connection was lost; a new one may succeed.
    #[error("{0}")]
    Lost(String),
    /// The peer broke the protocol.
    #[error("{0}")]
    Peer(String),
    /// This host lacks a thread or memory.
    #[error("no thread or memory: {0}")]
    System(#[source] io::Error),
}

impl ChannelError {
    /// Makes the error of a failed transport.
    pub(crate) fn lost(error: &io::Error) -> Self {
        Self::Lost(plain(error))
    }

    /// Makes the error of a failed source or sink; those of this crate wrap a [`Fault`].
    pub(crate) fn store(error: io::Error) -> Self {
        let fault = error.downcast::<Fault>();
        Self::Store(fault.unwrap_or_else(|error| Fault::file("cannot read or write", &error)))
    }

    /// Returns the fault that the user sees.
    pub(crate) fn fault(&self) -> Fault {
        match self {
            Self::Store(fault) => fault.clone(),
            Self::Lost(why) => {
                Fault::new(Code::PeerGone, format!("the data connection failed: {why}"))
                    .hint(RESUME)
            }
            Self::Peer(why) => Fault::protocol(why.as_str()),
            Self::System(error) => Fault::system(error),
        }
    }
}

/// Counters of one end of a channel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChannelStats {
    /// Payload that has left this end, bytes, without retransmissions; `None` where the transport
    /// does not count it.
    pub sent: Option<u64>,
    /// Payload retransmitted, bytes; 0 at the receiving end.
    pub retransmitted: u64,
    /// Causes of `retransmitted`; `None` where the transport does not count them.
    pub causes: Option<Causes>,
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: Option<u32>,
    /// What a later channel may start from.
    pub shown: Option<Remembered>,
}

impl ChannelStats {
    /// Returns how many of the `taken` bytes given to the channel have left.
    pub(crate) fn moved(&self, taken: u64) -> u64 {
        self.sent.map_or(taken, |sent| sent.min(taken))
    }
}

/// Kinds of channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelKind {
    /// Kernel TCP, one or more streams.
    Tcp,
    /// UDT over UDP, one connection.
    Udt,
}

impl ChannelKind {
    /// Returns the name on the command line and in JSON.
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

/// Maximum number of streams of one channel.
pub const STREAMS_MAX: u16 = 64;

/// Lowest declared rate, bits per second: one packet then takes 0.2 s.
pub const RATE_BPS_MIN: u64 = 64_000;

/// 62 bits that bind data connections to a session: 31 that a UDT handshake carries as its initial
/// sequence number, 31 as its socket id. TCP streams carry them whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

impl Ticket {
    const MASK: u64 = (1 << 62) - 1;

    /// Draws a random ticket.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub fn random() -> Result<Self, Fault> {
        let bytes = haul_io::random::bytes::<8>().map_err(|error| {
            Fault::new(Code::Other, format!("cannot read random bytes: {error}"))
        })?;
        Ok(Self(u64::from_ne_bytes(bytes) & Self::MASK))
    }

    /// Takes the ticket that a peer sent.
    pub const fn from_wire(ticket: u64) -> Self {
        Self(ticket & Self::MASK)
    }

    /// Returns the ticket as the wire carries it.
    pub const fn to_wire(self) -> u64 {
        self.0
    }
}

/// Parameters that both ends know before a channel is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// Transport.
    pub kind: ChannelKind,
    /// Binds its connections to the session.
    pub ticket: Ticket,
    /// Number of parallel streams.
    pub streams: u16,
    /// Declared rate, bits per second: an upper bound for the sender.
    pub rate_bps: Option<u64>,
    /// Congestion control: of [`haul_cc::Algorithm::NAMED`] for UDT, of the kernel's for TCP. A
    /// declared rate of UDT needs none.
    pub congestion: Option<String>,
    /// Without progress for this long, the channel is lost.
    pub dead_after: Duration,
    /// Cipher that encrypts and authenticates everything ([`Channel::set_seal`]); `None` leaves the
    /// channel in clear.
    pub sealed: Option<Cipher>,
}

impl Setup {
    pub(crate) fn to_message(&self) -> OpenChannel {
        OpenChannel {
            kind: self.kind.number(),
            ticket: self.ticket.to_wire(),
            streams: self.streams,
            rate_bps: self.rate_bps,
            congestion: self.congestion.clone(),
            cipher: self.sealed.map(cipher_number),
            arrived: Vec::new(),
        }
    }

    /// Takes a client's offer. `agreed` is the cipher that a sealed channel must have.
    pub(crate) fn from_message(
        open: &OpenChannel,
        agreed: Cipher,
        dead_after: Duration,
    ) -> Result<Self, Fault> {
        let kind = ChannelKind::from_number(open.kind).ok_or_else(|| {
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
        let sealed = open.cipher.map(cipher_from_number).transpose()?;
        if sealed.is_some_and(|cipher| cipher != agreed) {
            let text = "the cipher of the channel is not the one that TLS agreed on";
            return Err(
                Fault::new(Code::Refused, text).hint("run the same haul version at both ends")
            );
        }
        Ok(Self {
            kind,
            ticket: Ticket::from_wire(open.ticket),
            streams: open.streams,
            rate_bps: open.rate_bps.map(|rate| rate.max(RATE_BPS_MIN)),
            congestion: open.congestion.clone(),
            dead_after,
            sealed,
        })
    }

    /// Derives what both ends of a sealed channel hold, by the exporter of the control connection
    /// (RFC 8446 §7.5). `offer` is the client's message `OpenChannel`: whoever changes it ends with
    /// another secret.
    pub(crate) fn seal(
        &self,
        offer: &[u8],
        export: impl FnOnce(&str, &[u8]) -> Result<Exported, Fault>,
    ) -> Result<Option<Seal>, Fault> {
        const LABEL: &str = "EXPORTER-haul-channel";
        let Some(cipher) = self.sealed else {
            return Ok(None);
        };
        let mut context = self.ticket.to_wire().to_be_bytes().to_vec();
        context.push(self.kind.number());
        context.extend(offer);
        let secret = Secret::new(*export(LABEL, &context)?);
        Ok(Some(Seal { secret, cipher }))
    }
}

const fn cipher_number(cipher: Cipher) -> u8 {
    match cipher {
        Cipher::Aes128Gcm => 1,
        Cipher::ChaCha20Poly1305 => 2,
    }
}

fn cipher_from_number(number: u8) -> Result<Cipher, Fault> {
    match number {
        1 => Ok(Cipher::Aes128Gcm),
        2 => Ok(Cipher::ChaCha20Poly1305),
        _ => {
            let text = format!("cipher {number} is not known here");
            Err(Fault::new(Code::Refused, text).hint("update haul at the server"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{self, Message};

    #[test]
    fn a_secret_is_bound_to_all_of_the_offer() {
        let setup = Setup {
            kind: ChannelKind::Udt,
            ticket: Ticket::from_wire(7),
            streams: 1,
            rate_bps: None,
            congestion: None,
            dead_after: Duration::from_secs(1),
            sealed: Some(Cipher::Aes128Gcm),
        };
        let context = |setup: &Setup| {
            let mut found = Vec::new();
            let offer = wire::encode(&Message::OpenChannel(setup.to_message())).unwrap();
            let seal = setup.seal(&offer, |label, context| {
                assert_eq!(label, "EXPORTER-haul-channel");
                found = context.to_vec();
                Ok(Exported::default())
            });
            seal.unwrap().map(|_| found)
        };
        let same = context(&setup);
        assert!(same.is_some());
        // The server has what the client sent.
        let sent = setup.to_message();
        let take =
            |sent: &OpenChannel, agreed| Setup::from_message(sent, agreed, Duration::from_secs(9));
        let taken = take(&sent, Cipher::Aes128Gcm).unwrap();
        assert_eq!(context(&taken), same);
        let changed = |change: fn(&mut Setup)| {
            let mut setup = setup.clone();
            change(&mut setup);
            context(&setup)
        };
        for other in [
            changed(|setup| setup.kind = ChannelKind::Tcp),
            changed(|setup| setup.ticket = Ticket::from_wire(8)),
            changed(|setup| setup.streams = 2),
            changed(|setup| setup.rate_bps = Some(1 << 30)),
            changed(|setup| setup.congestion = Some("cubic".into())),
            changed(|setup| setup.sealed = Some(Cipher::ChaCha20Poly1305)),
            changed(|setup| setup.sealed = None),
        ] {
            assert_ne!(other, same);
        }
        let refused = take(&sent, Cipher::ChaCha20Poly1305);
        assert_eq!(refused.unwrap_err().code, Code::Refused);
        let unknown = OpenChannel {
            cipher: Some(3),
            ..sent
        };
        let refused = take(&unknown, Cipher::Aes128Gcm);
        assert_eq!(refused.unwrap_err().code, Code::Refused);
    }
}
