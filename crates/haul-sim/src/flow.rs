//! What a connection carries, and how the applications at its ends behave.

use haul_cc::{Remembered, Time};
use haul_netem::Rng;
use haul_seal::Seal;
use haul_udt::Config;

/// A connection from the client side to the server side.
#[derive(Debug, Clone, Default)]
pub struct Flow {
    /// Both ends' choices.
    pub client: Config,
    /// The server's.
    pub server: Config,
    /// When the client connects.
    pub starts: Time,
    /// Stream bytes that each side writes: client, server.
    pub stream_bytes: [u64; 2],
    /// Stream bytes that the client writes later: when, and how many.
    pub later: Vec<(Time, u64)>,
    /// Messages that each side sends: client, server.
    pub messages: [Vec<MessageOut>; 2],
    /// Carry and check every byte.
    pub bytes_matter: bool,
    /// Both ends connect to each other (UDT's rendezvous), the server's at this time, instead of
    /// one listening.
    pub rendezvous: Option<Time>,
    /// How long each side's application rests after it has read, ns.
    pub rest_ns: [u64; 2],
    /// When each side's thread does not run.
    pub stalls: [Option<Stalls>; 2],
    /// Kernels tell when a packet came, as with `SO_TIMESTAMPNS`, though its thread did not run.
    /// Otherwise whole hosts stall, as virtual machines do.
    pub stamps_arrivals: bool,
    /// How fast the server's sink takes what has arrived: from when, ns, and bits per second.
    /// Empty: at once.
    pub sink: Vec<(u64, u64)>,
    /// What the client remembers of the path.
    pub remembered: Option<Remembered>,
    /// What client and server seal datagrams with; their `Config::seal` must be set.
    pub seal: Option<[Seal; 2]>,
}

impl Flow {
    /// All that a side writes.
    pub(crate) fn stream_bytes_of(&self, side: usize) -> u64 {
        let later = self.later.iter().filter(|_| side == 0);
        self.stream_bytes[side] + later.map(|(_, bytes)| bytes).sum::<u64>()
    }
}

/// Times in which a host's thread does not run, as its processor is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stalls {
    /// As regular as a clock.
    Regular {
        /// From one stall's begin to the next, ns.
        every_ns: u64,
        /// The length of each, ns.
        length_ns: u64,
    },
    /// Between stalls and during them, times of an exponential distribution.
    Random {
        /// The mean time between two, ns.
        every_ns: u64,
        /// The mean length, ns; the longest is four times that.
        length_ns: u64,
    },
}

impl Stalls {
    /// The begin and the end of the first stall after the one that ended at `now`, ns.
    pub(crate) fn next(self, now: u64, rng: &mut Rng) -> (u64, u64) {
        match self {
            Self::Regular {
                every_ns,
                length_ns,
            } => {
                let begin = now.next_multiple_of(every_ns);
                (begin, begin + length_ns)
            }
            Self::Random {
                every_ns,
                length_ns,
            } => {
                let begin = now + 1 + exponential(every_ns, rng);
                (
                    begin,
                    begin + exponential(length_ns, rng).min(4 * length_ns),
                )
            }
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a mean of less than an hour"
)]
fn exponential(mean_ns: u64, rng: &mut Rng) -> u64 {
    (mean_ns as f64 * -(1.0 - rng.unit()).ln()) as u64
}

/// A message to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageOut {
    /// Bytes.
    pub len: u64,
    /// Not to be delivered before those sent earlier.
    pub in_order: bool,
    /// How long it is worth sending, ns.
    pub ttl_ns: Option<u64>,
}
