//! The trait of data channels, and its vocabulary.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use haul_io::stream::Stream;
use haul_slab::{AccessFlags, Region, Registration};
use haul_soft::udt::plain;
use haul_verbs::cm::ConnectRequest;
use haul_verbs::{Mr, Peer, RateLimit};
use haul_xsp::bag::plan::octets_in;
use haul_xsp::bag::{Get, GetId, Put, PutId};
use haul_xsp::wire::{ChanParams, Key};
use haul_xsp::{ChanId, SECOND_NS, SlabSeq, Time};

use crate::config::ChannelKind;
use crate::host::socket_addr;

/// Reads that an end may have outstanding (ORD), and answers at a time (IRD), unless the device has
/// fewer.
pub(crate) const READS_MAX: u16 = 64;

/// Time for a data connection to be there and its cookie to be found right, ns. Where firewalls let
/// nothing through the next kind waits for it, and programs with it.
pub(super) const CONNECT_NS: u64 = 5 * SECOND_NS;

/// What a session wants of its data channels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// Channels.
    pub(crate) lanes: u16,
    /// What all of them together may send.
    pub(crate) limit: Option<RateLimit>,
    /// Octets are moved by writes.
    pub(crate) pushes: bool,
}

impl Wanted {
    /// What each channel may send.
    pub(super) fn lane_limit(&self) -> Option<RateLimit> {
        let lanes = u64::from(self.lanes.max(1));
        self.limit.map(|limit| RateLimit {
            bits_per_second: (limit.bits_per_second / lanes).max(8),
            max_burst_bytes: limit.max_burst_bytes.map(|burst| burst / lanes),
        })
    }
}

/// What may be sent where the network lets `rate_bps` pass and `burst_bytes` beyond it, as one end
/// has told the other: of the burst half, since packets come to a policer closer together than they
/// left.
pub(crate) fn limit(rate_bps: Option<u64>, burst_bytes: Option<u64>) -> Option<RateLimit> {
    rate_bps.map(|bits_per_second| RateLimit {
        bits_per_second,
        max_burst_bytes: burst_bytes.map(|burst| burst / 2),
    })
}

/// What a rate lets pass at once where nobody has told its burst, ns of it.
const BURST_NS: u64 = SECOND_NS / 50;
/// The least burst that is made out for a rate, or that a peer is peer_burst, octets.
pub(crate) const BURST_MIN: u64 = 4 << 10;

/// The burst that ends keep to whose device does not pace, so that there is one.
pub(crate) fn burst(rate_bps: Option<u64>, burst_bytes: Option<u64>) -> Option<u64> {
    burst_bytes.or_else(|| rate_bps.map(|rate_bps| octets_in(rate_bps, BURST_NS).max(BURST_MIN)))
}

/// A data channel, or the control connection, is over.
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

/// What became of a queue pair that was accepted.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// It may be used.
    Up,
    /// It is over.
    Down(String),
}

/// News of the data channels.
#[derive(Debug)]
pub(crate) enum News {
    /// A read is over.
    Got(GetId, bool),
    /// A write is placed, or has failed.
    Put(PutId, bool),
    /// The peer's writes of a slab are in place.
    Written(SlabSeq),
    /// Somebody has shown this cookie at a data channel.
    Shown(ChanId, Peer, [u8; 16]),
    /// A data channel may be used.
    Up,
    /// A data channel could not be made.
    Failed(ChanId, String),
    /// One that was there is over.
    Down(String),
}

/// Memory that the peer may use in the way it was opened, until this is dropped.
#[derive(Debug)]
pub(crate) enum Guard {
    /// It is registered with a device.
    Registered { _mr: Mr },
    /// The region that it is in is registered as a whole, until the fabric ends.
    Whole,
    /// It has a name in the fabric's own table.
    Named { _registration: Registration },
}

/// Data channels of one kind, and what they share. Dropping it ends them: nothing more is placed
/// then.
pub(crate) trait Fabric: Debug + Send {
    fn kind(&self) -> ChannelKind;

    /// Whether it keeps to the limit that was wanted, if there is one.
    fn paces(&self) -> bool {
        true
    }

    /// The peer wants a channel, to which this end is about to agree: what it needs to know goes
    /// into `params`. The port to be found at, if it is not the network's.
    fn prepare(&mut self, _params: &mut ChanParams) -> Result<Option<u16>, Lost> {
        Ok(None)
    }

    /// Connects a data channel to which the peer has agreed.
    fn connect(&mut self, now: Time, params: &ChanParams) -> Result<(), Lost>;

    /// Accepts a data connection of the peer's that has shown its cookie. The number of its queue
    /// pair, if its news come to [`Self::on_accepted`].
    fn accept(
        &mut self,
        chan: ChanId,
        connection: DataConnection,
        news: &mut Vec<News>,
    ) -> Result<Option<u32>, Lost>;

    /// The data channel whose cookie `peer` has shown, as [`News::Shown`] has said, is there.
    fn admit(&mut self, _chan: ChanId, _peer: Peer, _news: &mut Vec<News>) {}

    /// Numbers of queue pairs whose news come to [`Self::on_accepted`].
    fn qp_nums(&self) -> Vec<u32> {
        Vec::new()
    }

    /// What became of a queue pair that was accepted.
    fn on_accepted(&mut self, _qp_num: u32, _what: Accepted, _news: &mut Vec<News>) {}

    /// Readable while there is something for [`Self::poll`].
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// When it wants [`Self::poll`] to be called though nothing is readable.
    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// What is over since the last call.
    fn poll(&mut self, now: Time, news: &mut Vec<News>) -> Result<(), Lost>;

    /// Whether a data channel that could be used has ended.
    fn has_broken(&self) -> bool;

    /// Data channels that may be used.
    fn lanes_up(&self) -> usize;

    /// Reads and writes under way.
    fn posts(&self) -> usize;

    /// Segments that were sent more than once, as far as the transport tells.
    fn resent(&self) -> u64;

    /// Memory that the peer may use in this way, and its key.
    fn open(
        &mut self,
        region: &Region,
        at: u64,
        len: u64,
        access: AccessFlags,
    ) -> Result<(Guard, Key), Lost>;

    /// Has the peer's memory read into the arena.
    fn get(&mut self, get: Get);

    /// Octets that a write may have.
    fn put_bytes_max(&self) -> u32 {
        1 << 20
    }

    /// Has `region` written into the peer's memory. The region is the same for all that is written
    /// from it.
    fn put(&mut self, put: &Put, region: &Region) -> Result<(), Lost>;

    /// Tells the peer when all that was given to [`Self::put`] so far is in place that this slab's
    /// writes are ([`News::Written`]).
    fn mark(&mut self, seq: SlabSeq);

    /// Begins what waits, as far as there is room.
    fn post(&mut self) -> Result<(), Lost>;

    /// Ends all data channels, so that nothing more is placed, and says that everything under way
    /// has failed.
    fn end(self: Box<Self>, news: &mut Vec<News>);
}

/// A data connection of a peer that has shown a cookie.
#[derive(Debug)]
pub(crate) enum DataConnection {
    /// Of an RDMA device.
    Request(ConnectRequest),
    /// A TCP connection.
    Tcp(Stream),
    /// A UDT connection.
    Udt(Box<plain::Stream>),
}

/// Where the peer expects a data connection, and what that is to begin with.
pub(super) fn meeting_point(params: &ChanParams) -> Result<(SocketAddr, [u8; 16]), Lost> {
    let address = params.endpoints.iter().find_map(socket_addr);
    let address = address.ok_or_else(|| Lost("the peer names no address".to_owned()))?;
    let cookie = params.cookie;
    let cookie = cookie.ok_or_else(|| Lost("the peer gives no cookie".to_owned()))?;
    Ok((address, cookie))
}
