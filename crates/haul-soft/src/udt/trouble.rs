//! What the errors of a datagram socket mean.
//!
//! A firewall, a route that goes, a host that is short of memory: each is an error of one call, and none says that the path is
//! gone. The packets of that call are lost like others, and the connection's own timers judge. The last error is kept, so that
//! the end of a connection whose peer fell silent can name it.

use std::io;

use haul_cc::Time;

/// What one socket said since something last arrived.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    /// The latest error.
    pub(crate) latest: Option<io::Error>,
    /// When the peer's host first said that nobody listens there.
    refused: Option<Time>,
}

/// An open connection outlives refusals for this long: a firewall or a network interface that is set up anew takes about 2 s.
const REFUSED_NS: u64 = 3 * haul_cc::time::SECOND_NS;

impl Trouble {
    /// Takes note of an error; whether the peer's host refused.
    pub(crate) fn note(&mut self, now: Time, error: io::Error) -> bool {
        let refusal = error.kind() == io::ErrorKind::ConnectionRefused;
        if refusal {
            self.refused.get_or_insert(now);
        }
        self.latest = Some(error);
        refusal
    }

    /// Refusals have come for so long that nobody will listen there again.
    pub(crate) fn is_refused_for_long(&self, now: Time) -> bool {
        self.refused
            .is_some_and(|since| now.since(since) >= REFUSED_NS)
    }
}
