//! How the software RNIC is to work.

use std::path::PathBuf;
use std::time::Duration;

use haul_iwarp::SECOND_NS;
use haul_verbs::{Error, Result};

use super::time::ns;

/// How the software RNIC is to work.
#[derive(Debug, Clone)]
pub struct Options {
    /// Ask for CRCs (RFC 5044 §4.4). They are off only if both ends say so.
    pub crc: bool,
    /// The longest FPDU, octets: 512 to 65,536. Ends that are not Longhaul's get no more than the
    /// path's segment either.
    pub fpdu_max: u32,
    /// Verify CRCs before anything is placed, at the price of a copy.
    pub strict: bool,
    /// Engine threads; queue pairs are dealt out to them.
    pub shards: usize,
    /// Ask for this size of the sockets' buffers, octets; the kernel finds its own where there is
    /// none.
    pub socket_buffer: Option<usize>,
    /// Send at this rate over UDT, wire bits per second, whatever the path does: for a circuit that
    /// is the user's. A congestion control finds the rate where there is none.
    pub rate_bps: Option<u64>,
    /// Write all that is sent and received to this file, as a packet capture.
    pub pcap: Option<PathBuf>,
    /// How long an attempt to connect may take before
    /// [`CmEvent::Unreachable`](haul_verbs::cm::CmEvent::Unreachable); none: 30 s over TCP, 10 s
    /// over UDT.
    pub connect_timeout: Option<Duration>,
    /// How long a connection that this end disconnects, or whose queue pair was dropped, waits for
    /// the peer to close. 5 s by default.
    pub close_timeout: Duration,
    /// How long a peer may answer nothing, idle or not, before its connection is lost. 30 s by
    /// default; TCP counts whole seconds while it is idle.
    pub peer_timeout: Duration,
}

impl Options {
    pub(super) fn check(&self) -> Result<()> {
        Error::at_least("shards", self.shards as u64, 1)?;
        Error::at_least("fpdu_max", self.fpdu_max.into(), FPDU_MIN)?;
        Error::at_most("fpdu_max", self.fpdu_max.into(), FPDU_MAX)?;
        if let Some(connect) = self.connect_timeout {
            Error::at_least("connect_timeout (ns)", ns(connect), 1)?;
        }
        Error::at_least("close_timeout (ns)", ns(self.close_timeout), 1)?;
        Error::at_least("peer_timeout (ns)", ns(self.peer_timeout), SECOND_NS)
    }
}

const FPDU_MIN: u64 = 512;
const FPDU_MAX: u64 = 65_536;

impl Default for Options {
    fn default() -> Self {
        Self {
            crc: true,
            fpdu_max: 65_536,
            strict: false,
            shards: 1,
            socket_buffer: None,
            rate_bps: None,
            pcap: None,
            connect_timeout: None,
            close_timeout: Duration::from_secs(5),
            peer_timeout: Duration::from_secs(30),
        }
    }
}
