//! What a connection carries, and how the applications at its ends behave.

use haul_cc::Time;
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
    /// How often and for how long each side's thread does not run: from one pause's begin to the
    /// next, ns, and its length, ns.
    pub pauses: [Option<(u64, u64)>; 2],
    /// How fast the server's sink takes what has arrived: from when, ns, and bits per second.
    /// Empty: at once.
    pub sink: Vec<(u64, u64)>,
}

impl Flow {
    /// When a side's thread that would run at `now` does run, ns.
    pub(crate) fn runs_at(&self, side: usize, now: u64) -> u64 {
        match self.pauses[side] {
            Some((every, length)) if now % every < length => now - now % every + length,
            _ => now,
        }
    }

    /// All that a side writes.
    pub(crate) fn stream_bytes_of(&self, side: usize) -> u64 {
        let later = self.later.iter().filter(|_| side == 0);
        self.stream_bytes[side] + later.map(|(_, bytes)| bytes).sum::<u64>()
    }
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
