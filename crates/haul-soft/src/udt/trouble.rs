//! What the errors of a datagram socket mean.
//!
//! A firewall, a route that goes, a host that is short of memory: each is an error of one call, and
//! none proves that the path is gone. The packets of that call count as lost, and the connection's
//! own timers decide. The last error is kept, so that the end of a connection whose
//! peer fell silent can name it.

use std::io;
use std::time::Duration;

use haul_cc::Time;
use haul_io::udp::{UdpSocket, is_too_large};
use haul_udt::Connection;

/// What one socket reported since something last arrived.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    /// The latest error.
    latest: Option<io::Error>,
    /// When the peer's host first refused.
    refused: Option<Time>,
    /// The peer's host refused, and nobody has judged that yet.
    refusal: bool,
}

/// An open connection outlives refusals for this long: a firewall or a network interface that is
/// set up anew takes about 2 s.
const REFUSED_NS: u64 = 3 * haul_cc::time::SECOND_NS;

/// Receive calls that fail in a row before the thread rests.
pub(crate) const FAILURES: usize = 4;

/// Rests after [`FAILURES`]: a socket that fails without end is readable without end.
pub(crate) fn rest() {
    std::thread::sleep(Duration::from_millis(1));
}

impl Trouble {
    /// Takes note of an error of `socket`: packets are lost. Returns whether what is being sent
    /// deserves another try, because the error may be about an earlier packet: the first refusal,
    /// or a packet that was too long for the path, which goes in pieces or in IP's fragments from
    /// now on.
    pub(crate) fn note(
        &mut self,
        now: Time,
        error: io::Error,
        socket: &UdpSocket,
        connection: &mut Connection,
    ) -> bool {
        let fits_now = is_too_large(&error)
            && connection
                .handle_too_big(now, socket.path_mtu())
                .unwrap_or_else(|| socket.allow_fragments());
        let refused = error.kind() == io::ErrorKind::ConnectionRefused;
        if refused {
            self.refused.get_or_insert(now);
        }
        let first_refusal = refused && !self.refusal;
        self.refusal |= refused;
        self.latest = Some(error);
        fits_now || first_refusal
    }

    /// Forgets everything but a refusal that nobody has judged yet: something arrived.
    pub(crate) fn clear(&mut self) {
        *self = Self {
            refusal: self.refusal,
            ..Self::default()
        };
    }

    /// Whether the peer's host has refused since this was last asked.
    pub(crate) fn take_refusal(&mut self) -> bool {
        std::mem::take(&mut self.refusal)
    }

    /// Whether the refusals since something last arrived mean that nobody will listen there again:
    /// at once if this end is `ending`, which has no reason to wait for the peer's return.
    pub(crate) fn is_refused_for_good(&self, now: Time, ending: bool) -> bool {
        self.refused
            .is_some_and(|since| ending || now.since(since) >= REFUSED_NS)
    }

    /// Takes the latest error if it is wanted.
    pub(crate) fn take_latest_if(&mut self, wanted: bool) -> Option<io::Error> {
        self.latest.take_if(|_| wanted)
    }
}
