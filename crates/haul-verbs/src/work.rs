//! Work requests.

use crate::address::{Peer, Remote};
use crate::completion::WcOpcode;

/// The most pieces of a work request, on any provider.
pub const SGE_MAX: usize = 4;

/// A piece of local memory (`ibv_sge`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sge {
    /// Address of its first byte, as the memory region counts ([`Mr::addr`](crate::Mr::addr)).
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// The memory region's key.
    pub lkey: u32,
}

/// Up to [`SGE_MAX`] pieces, in the work request itself.
#[derive(Clone, Copy, Default)]
pub struct SgeList {
    pieces: [Sge; SGE_MAX],
    len: Pieces,
}

/// How many. Not a number, so that what may be a list takes no more memory than a list: there is
/// one for each work request.
#[derive(Debug, Clone, Copy, Default)]
#[repr(u8)]
enum Pieces {
    #[default]
    None,
    One,
    Two,
    Three,
    Four,
}

const COUNTS: [Pieces; SGE_MAX + 1] = [
    Pieces::None,
    Pieces::One,
    Pieces::Two,
    Pieces::Three,
    Pieces::Four,
];

impl SgeList {
    /// No memory: a message without payload.
    pub const EMPTY: Self = Self {
        pieces: [Sge {
            addr: 0,
            len: 0,
            lkey: 0,
        }; SGE_MAX],
        len: Pieces::None,
    };

    /// Makes a list of these pieces; none if there are more than [`SGE_MAX`].
    #[must_use]
    pub fn new(pieces: &[Sge]) -> Option<Self> {
        let mut list = Self::EMPTY;
        list.pieces.get_mut(..pieces.len())?.copy_from_slice(pieces);
        list.len = *COUNTS.get(pieces.len())?;
        Some(list)
    }

    /// Returns the pieces.
    #[must_use]
    pub fn as_slice(&self) -> &[Sge] {
        &self.pieces[..self.len as usize]
    }

    /// Returns the length of all pieces in bytes.
    #[must_use]
    pub fn total_len(&self) -> u64 {
        self.as_slice()
            .iter()
            .map(|piece| u64::from(piece.len))
            .sum()
    }
}

impl From<Sge> for SgeList {
    fn from(piece: Sge) -> Self {
        let mut list = Self::EMPTY;
        list.pieces[0] = piece;
        list.len = Pieces::One;
        list
    }
}

impl std::fmt::Debug for SgeList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// The operation of a send work request (`ibv_wr_opcode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendOp {
    /// Into the buffer of a receive work request of the peer.
    Send,
    /// [`SendOp::Send`] with 32 bits for the peer's completion. To iWARP peers other than Longhaul,
    /// and by datagrams, without payload only: RFC 7306 §6 has immediate data as a message of its
    /// own.
    SendWithImm(u32),
    /// The same, and the peer's memory region of this key ends when the message is delivered.
    SendWithInv(u32),
    /// Into the peer's memory.
    RdmaWrite(Remote),
    /// The same, then 32 bits for the completion of a receive work request of the peer.
    RdmaWriteWithImm(Remote, u32),
    /// Into the peer's memory, and the peer learns which bytes are valid; takes no receive work
    /// request. Datagram services only (datagram-iwarp-2011 §IV.B).
    WriteRecord(Remote),
    /// [`SendOp::Send`] with 32 bits for the record.
    WriteRecordWithImm(Remote, u32),
    /// Out of the peer's memory, into the pieces.
    RdmaRead(Remote),
    /// 8 bytes of the peer become `swap` if they are `compare`; the piece gets what they were. The
    /// address is a multiple of 8; numbers are in the machines' own byte order.
    CompareSwap {
        /// The peer's 8 bytes.
        remote: Remote,
        /// What they must be.
        compare: u64,
        /// What they become.
        swap: u64,
    },
    /// 8 bytes of the peer grow by `add`, wrapping; the piece gets what they were.
    FetchAdd {
        /// The peer's 8 bytes.
        remote: Remote,
        /// How much.
        add: u64,
    },
    /// The local memory region of this key ends, when the requests before it are complete. It has
    /// no data.
    LocalInv(u32),
}

impl SendOp {
    /// Returns the operation in its completion.
    #[must_use]
    pub fn completes_as(self) -> WcOpcode {
        match self {
            Self::RdmaWrite(_) | Self::RdmaWriteWithImm(..) => WcOpcode::RdmaWrite,
            Self::WriteRecord(_) | Self::WriteRecordWithImm(..) => WcOpcode::WriteRecord,
            Self::RdmaRead(_) => WcOpcode::RdmaRead,
            Self::CompareSwap { .. } => WcOpcode::CompSwap,
            Self::FetchAdd { .. } => WcOpcode::FetchAdd,
            Self::LocalInv(_) => WcOpcode::LocalInv,
            Self::Send | Self::SendWithImm(_) | Self::SendWithInv(_) => WcOpcode::Send,
        }
    }

    /// Returns whether it brings bytes from the peer, and so takes a place in the peer's queue of
    /// inbound reads (ORD, IRD).
    #[must_use]
    pub fn is_read_or_atomic(self) -> bool {
        matches!(
            self,
            Self::RdmaRead(_) | Self::CompareSwap { .. } | Self::FetchAdd { .. }
        )
    }
}

bitflags::bitflags! {
    /// Modifiers of a send work request (`ibv_send_flags`; for `IBV_SEND_INLINE` see
    /// [`Data::Inline`]).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct SendFlags: u32 {
        /// Report the completion. Without it only an error is reported (unless
        /// [`QpInit::signal_all`](crate::QpInit::signal_all)), and polling the next reported
        /// completion of the queue pair frees the request's place in the send queue.
        const SIGNALED = 1;
        /// Wait until all reads and atomics before it are complete.
        const FENCE = 1 << 1;
        /// The peer's completion counts as solicited.
        const SOLICITED = 1 << 2;
    }
}

/// The local bytes of a send work request.
#[derive(Debug, Clone, Copy)]
pub enum Data<'a> {
    /// Registered memory; it belongs to the work request until that is complete.
    Sges(SgeList),
    /// Any memory, copied when posted (`IBV_SEND_INLINE`); as long as
    /// [`QpCapacity::max_inline`](crate::QpCapacity::max_inline) allows. Not for reads and atomics.
    Inline(&'a [u8]),
}

impl Data<'_> {
    /// Returns the length in bytes.
    #[must_use]
    pub fn total_len(&self) -> u64 {
        match self {
            Self::Sges(list) => list.total_len(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }
}

impl From<Sge> for Data<'_> {
    fn from(piece: Sge) -> Self {
        Self::Sges(piece.into())
    }
}

impl From<SgeList> for Data<'_> {
    fn from(list: SgeList) -> Self {
        Self::Sges(list)
    }
}

/// A send work request (`ibv_send_wr`).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SendWr<'a> {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Modifiers.
    pub flags: SendFlags,
    /// Local bytes.
    pub data: Data<'a>,
    /// Where to: datagram services need it, connections have none.
    pub peer: Option<Peer>,
}

impl<'a> SendWr<'a> {
    /// Makes a signalled work request.
    #[must_use]
    pub fn new(wr_id: u64, op: SendOp, data: impl Into<Data<'a>>) -> Self {
        Self {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            data: data.into(),
            peer: None,
        }
    }

    /// Sets the peer of a datagram service that it goes to.
    #[must_use]
    pub fn to(self, peer: Peer) -> Self {
        Self {
            peer: Some(peer),
            ..self
        }
    }

    /// Sets the modifiers.
    #[must_use]
    pub fn with_flags(self, flags: SendFlags) -> Self {
        Self { flags, ..self }
    }
}

/// A receive work request (`ibv_recv_wr`).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RecvWr {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// Where the message goes; it belongs to the work request until that is complete.
    pub sges: SgeList,
}

impl RecvWr {
    /// Makes a receive work request.
    #[must_use]
    pub fn new(wr_id: u64, sges: impl Into<SgeList>) -> Self {
        Self {
            wr_id,
            sges: sges.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_holds_so_many_pieces_and_no_more() {
        let piece = Sge {
            addr: 1,
            len: u32::MAX,
            lkey: 3,
        };
        let list = SgeList::new(&[piece; SGE_MAX]).unwrap();
        assert_eq!(list.as_slice(), [piece; SGE_MAX]);
        assert_eq!(list.total_len(), u64::from(u32::MAX) * SGE_MAX as u64);
        assert!(SgeList::new(&[piece; SGE_MAX + 1]).is_none());
        assert_eq!(size_of::<Option<SgeList>>(), size_of::<SgeList>());
        assert_eq!(SgeList::EMPTY.total_len(), 0);
    }
}
