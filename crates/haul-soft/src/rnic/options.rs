//! How the software RNIC is to work.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use haul_io::thread::Cpus;
use haul_iwarp::SECOND_NS;
use haul_seal::handshake::Protect;
use haul_verbs::{Error, Result};

use super::time::ns;

/// Settings of the software RNIC. Build it from [`Options::default`], then set fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Asks for CRCs (RFC 5044 §4.4). They are off only if both ends turn them off. Default: true.
    pub crc: bool,
    /// The longest FPDU, in bytes, from 512 to 65,536. Peers other than Longhaul get FPDUs no
    /// longer than a TCP segment. Default: 65,536.
    pub fpdu_max: u32,
    /// Verifies CRCs before placing anything, which costs a copy. Default: false.
    pub strict: bool,
    /// Engine threads, at least one. Queue pairs are assigned to them in turn. Default: 1.
    pub shards: usize,
    /// Whose threads send and receive. Default: those of the application.
    pub drive: Drive,
    /// Processors of the engine threads; needs [`Drive::Engine`]. Default: none, those of the
    /// thread that opens the device.
    pub engine_cpus: Option<Cpus>,
    /// Requested size of the sockets' buffers, in bytes. Default: none, the kernel chooses.
    pub socket_buffer: Option<usize>,
    /// Fixed sending rate over UDT, in wire bits per second, for a reserved circuit. Default: none,
    /// congestion control finds the rate.
    pub rate_bps: Option<u64>,
    /// File that gets everything sent and received, as a packet capture. Default: none.
    pub pcap: Option<PathBuf>,
    /// Timeout of an attempt to connect, after which it ends with
    /// [`CmEvent::Unreachable`](haul_verbs::cm::CmEvent::Unreachable); none: 30 s over TCP, 10 s
    /// over UDT.
    pub connect_timeout: Option<Duration>,
    /// How long a connection waits for the peer to close, after a disconnect or after its queue
    /// pair was dropped. Default: 5 s.
    pub close_timeout: Duration,
    /// How long a peer may answer nothing, idle or not, before its connection is lost. 30 s by
    /// default; TCP counts whole seconds while it is idle. Over TCP a peer whose process is stopped
    /// is noticed only while something waits for it.
    pub peer_timeout: Duration,
    /// Encrypts and authenticates connections over TCP and UDT, and refuses peers that do not.
    /// Datagram services have their own. Default: none.
    pub protect: Option<Arc<dyn Protect>>,
}

/// Whose threads send and receive (docs/adr/0008, 0057).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Drive {
    /// Each thread of the application that posts, polls or waits; an engine thread while none does.
    /// It has the lowest latency.
    #[default]
    Caller,
    /// The engine threads alone: the application only posts into a queue and looks at completion
    /// queues. A request that the connection no longer admits when the engine takes it ends with a
    /// completion instead of an error of the post.
    Engine,
}

impl Options {
    pub(super) fn check(&self) -> Result<()> {
        if self.engine_cpus.is_some() && self.drive == Drive::Caller {
            return Err(Error::Invalid(
                "engine_cpus is set, and needs drive = Engine",
            ));
        }
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
            drive: Drive::default(),
            engine_cpus: None,
            socket_buffer: None,
            rate_bps: None,
            pcap: None,
            connect_timeout: None,
            close_timeout: Duration::from_secs(5),
            peer_timeout: Duration::from_secs(30),
            protect: None,
        }
    }
}
