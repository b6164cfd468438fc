//! The trait of data channels, and its vocabulary.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use haul_io::stream::Stream;
use haul_slab::{AccessFlags, Region, Registration};
use haul_verbs::cm::ConnectRequest;
use haul_verbs::{Mr, RateLimit};
use haul_xsp::bag::plan::octets_in;
use haul_xsp::bag::{Get, GetId, Put, PutId};
use haul_xsp::wire::{ChanParams, Key};
use haul_xsp::{ChanId, SECOND_NS, SlabSeq, Time};

use crate::config::ChannelKind;
use crate::host::socket_addr;

/// Reads in flight of an end (ORD), and responses in flight (IRD), unless the device allows fewer.
pub(crate) const READS_MAX: u16 = 64;

/// Writes in flight of an end on a queue pair, unless the device allows fewer: small ones of many
/// connections fill a path too.
pub(super) const WRITES_MAX: u32 = 4_096;

/// Timeout of a data connection with its cookie, ns. Behind a firewall the next kind, and the
/// applications, wait for it.
pub(super) const CONNECT_NS: u64 = 5 * SECOND_NS;

/// The interface between a session and its data channels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// The number of channels.
    pub(crate) lanes: u16,
    /// The rate limit of all of them together.
    pub(crate) limit: Option<RateLimit>,
    /// Data is moved by writes (push).
    pub(crate) pushes: bool,
}

impl Wanted {
    /// The rate limit of each channel.
    pub(super) fn lane_limit(&self) -> Option<RateLimit> {
        let lanes = u64::from(self.lanes.max(1));
        self.limit.map(|limit| {
            RateLimit::new((limit.bits_per_second / lanes).max(8))
                .with_burst(limit.max_burst_bytes.map(|burst| burst / lanes))
        })
    }
}

/// Returns the rate limit for a path of `rate_bps` and `burst_bytes`, as announced by one end. Half
/// of the burst is used, because packets arrive at a policer closer together than they left.
pub(crate) fn limit(rate_bps: Option<u64>, burst_bytes: Option<u64>) -> Option<RateLimit> {
    rate_bps.map(|bits_per_second| {
        RateLimit::new(bits_per_second).with_burst(burst_bytes.map(|burst| burst / 2))
    })
}

/// The burst assumed for a rate without one, ns of the rate.
const BURST_NS: u64 = SECOND_NS / 50;
/// The least burst: assumed for a rate, or accepted from a peer, bytes.
pub(crate) const BURST_MIN: u64 = 4 << 10;

/// Returns the burst of ends whose device does not pace.
pub(crate) fn burst(rate_bps: Option<u64>, burst_bytes: Option<u64>) -> Option<u64> {
    burst_bytes.or_else(|| rate_bps.map(|rate_bps| octets_in(rate_bps, BURST_NS).max(BURST_MIN)))
}

/// A data channel or control connection is lost.
#[derive(Debug)]
pub(crate) struct Lost(pub(crate) String);

impl From<haul_verbs::Error> for Lost {
    fn from(error: haul_verbs::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<std::io::Error> for Lost {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

/// The outcome of an accepted queue pair.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// It is connected.
    Up,
    /// It has ended.
    Down(String),
}

/// Events of the data channels.
#[derive(Debug)]
pub(crate) enum News {
    /// A read has completed, or failed.
    Got(GetId, bool),
    /// A write is placed, or has failed.
    Put(PutId, bool),
    /// The peer's writes of a slab are in place.
    Written(SlabSeq),
    /// A data channel is up.
    Up,
    /// A data channel could not be opened.
    Failed(ChanId, String),
    /// A data channel that was up has ended.
    Down(String),
}

/// Memory that the peer may use until this is dropped.
#[derive(Debug)]
pub(crate) enum Guard {
    /// It is registered with a device.
    Registered { _mr: Mr },
    /// Its whole region is registered until the fabric ends.
    Whole,
    /// It is registered in the fabric's own table.
    Named { _registration: Registration },
}

/// Data channels of one kind, and what they share. Dropping it ends them; nothing is placed
/// afterwards.
pub(crate) trait Fabric: Debug + Send {
    fn kind(&self) -> ChannelKind;

    /// Whether it keeps to the rate limit.
    fn paces(&self) -> bool {
        true
    }

    /// Connects a data channel to which the peer has agreed.
    fn connect(&mut self, now: Time, params: &ChanParams) -> Result<(), Lost>;

    /// Accepts a data connection whose cookie is verified. Returns the number of its queue pair if
    /// its events come to [`Self::on_accepted`].
    fn accept(
        &mut self,
        chan: ChanId,
        connection: DataConnection,
        news: &mut Vec<News>,
    ) -> Result<Option<u32>, Lost>;

    /// Returns the queue pairs whose events come to [`Self::on_accepted`].
    fn qp_nums(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Handles the outcome of an accepted queue pair.
    fn on_accepted(&mut self, _qp_num: u32, _what: Accepted, _news: &mut Vec<News>) {}

    /// Readable while [`Self::poll`] has work.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// Returns when [`Self::poll`] must be called even if nothing is readable.
    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// Collects events since the last call.
    fn poll(&mut self, now: Time, news: &mut Vec<News>) -> Result<(), Lost>;

    /// Whether a data channel that was up has ended.
    fn has_broken(&self) -> bool;

    /// Data channels that are up.
    fn lanes_up(&self) -> usize;

    /// Reads and writes in flight.
    fn posts(&self) -> usize;

    /// Packets retransmitted, as far as the transport reports them.
    fn resent(&self) -> u64;

    /// Packets that arrived out of order, because earlier ones were lost or overtaken; as far as
    /// the transport reports them.
    fn out_of_order(&self) -> u64;

    /// Opens memory to the peer, and returns its key.
    fn open(
        &mut self,
        region: &Region,
        at: u64,
        len: u64,
        access: AccessFlags,
    ) -> Result<(Guard, Key), Lost>;

    /// Reads the peer's memory into the arena.
    fn get(&mut self, get: Get);

    /// Longest write, bytes.
    fn put_bytes_max(&self) -> u32 {
        1 << 20
    }

    /// Writes from `region` into the peer's memory. All writes of a place come from the same
    /// region.
    fn put(&mut self, put: &Put, region: &Region) -> Result<(), Lost>;

    /// Marks a slab: once all writes so far are in place, the peer gets [`News::Written`] for the
    /// slab.
    fn mark(&mut self, seq: SlabSeq);

    /// Posts queued requests, as far as the channels take them.
    fn post(&mut self) -> Result<(), Lost>;

    /// Ends all data channels. Nothing is placed afterwards, and everything in flight fails.
    fn end(self: Box<Self>, news: &mut Vec<News>);
}

/// A peer's data connection that has sent a cookie.
#[derive(Debug)]
pub(crate) enum DataConnection {
    /// Of an RDMA device.
    Request(ConnectRequest),
    /// A TCP connection.
    Tcp(Stream),
}

/// Returns where the peer expects a data connection, and its cookie.
pub(super) fn meeting_point(params: &ChanParams) -> Result<(SocketAddr, [u8; 16]), Lost> {
    let address = params.endpoints.iter().find_map(socket_addr);
    let address = address.ok_or_else(|| Lost("the peer names no address".to_owned()))?;
    let cookie = params.cookie;
    let cookie = cookie.ok_or_else(|| Lost("the peer gives no cookie".to_owned()))?;
    Ok((address, cookie))
}
