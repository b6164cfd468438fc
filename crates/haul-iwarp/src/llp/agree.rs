//! Negotiation at start-up (RFC 6581 §6, docs/protocol/iwarp.md).

use crate::wire::Features;
use crate::wire::mpa::{NOT_NEGOTIATED, RtrKinds};

/// The agreed parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Params {
    /// Reads and atomics of the peer that are taken at once.
    pub ird: u16,
    /// Reads and atomics that this end may have outstanding.
    pub ord: u16,
    /// CRCs are made and checked.
    pub crc: bool,
    /// This end inserts markers into its stream.
    pub markers_out: bool,
    /// The peer inserts markers into its stream.
    pub markers_in: bool,
    /// The longest ULPDU that this end sends.
    pub ulpdu_max: u32,
    /// Agreed capabilities beyond RFC 5040.
    pub features: Features,
    /// The peer is a Longhaul end.
    pub extended: bool,
    /// Revision of MPA, or version of the hello.
    pub revision: u8,
    /// Which end may send first: in the peer-to-peer model either end, otherwise the initiator.
    pub peer_to_peer: bool,
}

/// The responder's side of RFC 6581 §6: IRD and ORD of this end, and of its reply.
pub(crate) struct Answer {
    pub(crate) ird: u16,
    pub(crate) ord: u16,
    pub(crate) said_ird: u16,
    pub(crate) said_ord: u16,
}

/// Answers an initiator that takes `peer_ird` reads and requests `peer_ord`.
pub(crate) fn answer(own_ird: u16, own_ord: u16, peer_ird: u16, peer_ord: u16) -> Answer {
    let (ird, said_ird) = if peer_ord == NOT_NEGOTIATED {
        (own_ird, NOT_NEGOTIATED)
    } else {
        let ird = own_ird.min(peer_ord);
        (ird, ird)
    };
    let (ord, said_ord) = if peer_ird == NOT_NEGOTIATED {
        (own_ord, NOT_NEGOTIATED)
    } else {
        let ord = own_ord.min(peer_ird);
        (ord, ord)
    };
    Answer {
        ird,
        ord,
        said_ird,
        said_ord,
    }
}

/// The initiator's side: its ORD, if the responder does not want more reads than this end takes.
pub(crate) fn conclude(own_ird: u16, own_ord: u16, peer_ird: u16, peer_ord: u16) -> Option<u16> {
    let enough = peer_ord == NOT_NEGOTIATED || peer_ord <= own_ird;
    let ord = if peer_ird == NOT_NEGOTIATED {
        own_ord
    } else {
        own_ord.min(peer_ird)
    };
    enough.then_some(ord)
}

/// The kinds that both have, or else those that this end has (RFC 6581 §6: at least one).
pub(crate) fn common_kinds(own: RtrKinds, peer: RtrKinds) -> RtrKinds {
    let both = RtrKinds {
        send: own.send && peer.send,
        write: own.write && peer.write,
        read: own.read && peer.read,
    };
    if both == RtrKinds::default() {
        own
    } else {
        both
    }
}
