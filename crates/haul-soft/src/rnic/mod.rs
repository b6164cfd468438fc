//! The software RNIC: verbs over kernel sockets, without privileges, on any host.
//!
//! What flows through: work requests go into a queue pair's core (`haul-iwarp`), which makes
//! segments of them; headers and payload are gathered from registered memory into one system call.
//! What arrives goes through a small buffer that all connections of a shard share, just so far that
//! the headers can be read; payload is received straight into its place.
//!
//! **Whoever waits drives** (docs/adr/0008). A *shard* owns a poller and queue pairs, behind a
//! mutex that is its *baton*. An application's thread that posts, polls or waits takes the baton
//! and moves the shard's connections itself: no other thread stands between it and the socket. The
//! shard's engine thread does so only while nobody else does.
//!
//! Map: [`provider`], [`Options`] the door · `context` an opened device · `shard` baton and engine
//! thread · `pair` a queue pair inside its shard · `wire` its connection, `tcp` or `udt` ·
//! `buffers` from work requests to memory · `qp`, `cq`, `srq`, `memory`, `cm`, `endpoint`, `events`
//! what applications hold · `datagram` queue pairs without connections · `patience` whether to look
//! or to sleep · `places` how full a work queue is · `slots` numbers for buffers · `tap` what was
//! said, as pcap.

mod buffers;
mod cm;
mod context;
mod cq;
mod datagram;
mod endpoint;
mod events;
mod memory;
mod pair;
mod patience;
mod places;
mod qp;
mod shard;
mod slots;
mod srq;
mod tap;
mod tcp;
mod udt;
mod wire;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use haul_io::clock::Clock;
use haul_iwarp::SECOND_NS;
use haul_verbs::provider::{ContextOps, DeviceOps, Provider};
use haul_verbs::{Device, DeviceAttributes, DeviceCaps, Error, Result, Transport};

use context::Rnic;

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
    fn check(&self) -> Result<()> {
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

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

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

/// The provider of software RNICs.
#[must_use]
pub fn provider(options: Options) -> Arc<dyn Provider> {
    Arc::new(Soft { options })
}

#[derive(Debug)]
struct Soft {
    options: Options,
}

impl Provider for Soft {
    fn name(&self) -> &'static str {
        PROVIDER
    }

    fn devices(&self) -> Result<Vec<Device>> {
        let device = |transport| {
            let options = self.options.clone();
            Device::from_ops(Arc::new(SoftDevice { transport, options }))
        };
        Ok(vec![
            device(Transport::Iwarp),
            device(Transport::IwarpUdt),
            device(Transport::IwarpUdp),
        ])
    }
}

/// The name of this provider.
pub const PROVIDER: &str = "soft";

#[derive(Debug)]
struct SoftDevice {
    transport: Transport,
    options: Options,
}

impl DeviceOps for SoftDevice {
    fn name(&self) -> &str {
        match self.transport {
            Transport::IwarpUdt => "soft-udt",
            Transport::IwarpUdp => "soft-udp",
            _ => "soft-tcp",
        }
    }

    fn provider(&self) -> &'static str {
        PROVIDER
    }

    fn attributes(&self) -> Result<DeviceAttributes> {
        Ok(attributes(self.transport))
    }

    fn open(&self) -> Result<Arc<dyn ContextOps>> {
        Ok(Rnic::open(self.transport, &self.options)?)
    }
}

/// Work requests of a queue: what memory is spent on is taken as it is used.
pub(super) const QP_WR_MAX: u32 = 1 << 16;
/// Pieces of a work request.
pub(super) const SGES_MAX: u32 = 4;
const _: () = assert!(SGES_MAX as usize == haul_verbs::SGE_MAX);
/// Octets of inline data.
pub(super) const INLINE_MAX: u32 = 1_024;
/// Entries of a completion queue.
pub(super) const CQE_MAX: u32 = 1 << 22;
/// Reads at once, by 14 bits of RFC 6581 less the value that means "not negotiated".
pub(super) const RD_ATOMIC_MAX: u16 = 0x3ffe;
/// Private data: 512 octets of MPA less IRD and ORD (RFC 6581 §4) and less what Longhaul ends tell
/// each other.
pub(super) const PRIVATE_DATA_MAX: usize = 512 - 4 - 8;

fn attributes(transport: Transport) -> DeviceAttributes {
    let both = DeviceCaps::SRQ | DeviceCaps::ZERO_BASED | DeviceCaps::RATE_LIMIT;
    let connections = DeviceCaps::RC
        | DeviceCaps::ATOMIC
        | DeviceCaps::SEND_WITH_INVALIDATE
        | DeviceCaps::WRITE_WITH_IMM
        | DeviceCaps::SEND_WITH_IMM
        | DeviceCaps::REMOTE_PLACEMENT
        | DeviceCaps::ENDPOINTS;
    let datagrams = DeviceCaps::UD
        | DeviceCaps::RD
        | DeviceCaps::WRITE_RECORD
        | DeviceCaps::WRITE_WITH_IMM
        | DeviceCaps::ATOMIC
        | DeviceCaps::SEND_WITH_INVALIDATE;
    DeviceAttributes {
        transport,
        caps: match transport {
            Transport::IwarpUdp => both | datagrams,
            _ => both | connections,
        },
        max_qp: shard::PAIRS_MAX,
        max_qp_wr: QP_WR_MAX,
        max_sge: SGES_MAX,
        max_inline: INLINE_MAX,
        max_cqe: CQE_MAX,
        max_mr: haul_slab::REGIONS_MAX,
        max_mr_size: u64::try_from(isize::MAX).unwrap_or(u64::MAX),
        max_message: u64::from(u32::MAX),
        max_rd_atomic: RD_ATOMIC_MAX.into(),
        max_init_rd_atomic: RD_ATOMIC_MAX.into(),
        max_private_data: u32::try_from(PRIVATE_DATA_MAX).unwrap_or(u32::MAX),
    }
}

/// What a thread that panicked has left is whole: no state spans a call that may panic on outside
/// input.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When `timeout` is over, nanoseconds of the clock; none is never.
fn deadline(clock: Clock, timeout: Option<Duration>) -> Option<u64> {
    Some(clock.now_ns().saturating_add(ns(timeout?)))
}

/// How long it is from `now` to `end`.
fn remaining(end: Option<u64>, now: u64) -> Option<u64> {
    end.map(|end| end.saturating_sub(now))
}
