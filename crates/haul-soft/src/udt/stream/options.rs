//! How streams are opened, and what they tell.

use std::sync::Arc;

use haul_cc::{Algorithm, Rate};
use haul_io::thread::Cpus;
use haul_seal::handshake::Protect;
use haul_udt::wire::SocketKind;
use haul_udt::{Stats, WINDOW_BYTES_MIN};

use crate::udt::LinkOptions;

/// How to open streams. Build it from [`Options::default`], then set fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The connection's choices. Its kind is a stream, and its window the receiving ring.
    pub udt: LinkOptions,
    /// Bytes that are taken to be sent and have not arrived, at most.
    pub send_bytes: usize,
    /// Bytes that have come and were not received, at most.
    pub receive_bytes: usize,
    /// Sends at this rate, wire bits per second, whatever the path does.
    pub rate_bps: Option<u64>,
    /// Processors of the thread of each stream. None: those of the thread that opens it.
    pub engine_cpus: Option<Cpus>,
    /// Streams are encrypted, and both ends authenticated. A listener returns streams that are, and
    /// no others.
    pub protect: Option<Arc<dyn Protect>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            udt: LinkOptions::default(),
            send_bytes: 16 << 20,
            receive_bytes: 16 << 20,
            rate_bps: None,
            engine_cpus: None,
            protect: None,
        }
    }
}

impl Options {
    /// Bytes of the ring of what arrives.
    pub(super) fn ring_bytes(&self) -> usize {
        let least = usize::try_from(WINDOW_BYTES_MIN).unwrap_or(usize::MAX);
        self.receive_bytes.max(least)
    }

    pub(super) fn link(&self) -> LinkOptions {
        let mut link = self.udt.clone();
        link.config.receive_window_bytes = self.receive_bytes as u64;
        if let Some(rate_bps) = self.rate_bps {
            link.config.control = Algorithm::Fixed(Rate::from_bps(rate_bps));
        }
        link
    }

    /// Of the connection that begins: where streams are protected, the one that makes their keys.
    pub(super) fn first(&self) -> LinkOptions {
        let mut link = self.link();
        if self.protect.is_some() {
            link.config.kind = SocketKind::Datagram;
        }
        link
    }
}

bitflags::bitflags! {
    /// What a stream can be waited for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Ready: u32 {
        /// The connection is there.
        const OPEN = 1;
        /// [`Stream::recv`](super::Stream::recv) returns something: bytes, the end, or an error.
        const READABLE = 1 << 1;
        /// [`Stream::send`](super::Stream::send) has room for an eighth of its ring at least.
        const WRITABLE = 1 << 2;
        /// All that was sent has arrived, and the end too if it was sent.
        const SENT = 1 << 3;
        /// The connection is over.
        const OVER = 1 << 4;
    }
}

/// What [`Stream::recv`](super::Stream::recv) found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// So many bytes, more than none.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// The peer has ended its half, and all of it was received.
    End,
}

/// What a connection has measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Measured {
    /// Payload bytes retransmitted.
    pub resent_bytes: u64,
    /// Smoothed round-trip time, ns.
    pub rtt_ns: u64,
    /// The rate that it sends at, bits per second.
    pub rate_bps: u64,
}

impl Measured {
    pub(super) fn of(stats: &Stats) -> Self {
        Self {
            resent_bytes: stats.sent.resent_bytes,
            rtt_ns: stats.rtt_ns,
            rate_bps: stats.control.pacing.bps(),
        }
    }
}
