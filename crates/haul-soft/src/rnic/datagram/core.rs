//! The core of a service, unreliable or reliable, as the engine sees both.

use std::net::{IpAddr, SocketAddr};

use haul_iwarp::datagram::rd::{RD_HEADER_MAX, RdConfig, RdEvent, RdQp, Remote};
use haul_iwarp::datagram::wire::{CONTROL_MAX, DATA_HEADER_MAX, Datagram};
use haul_iwarp::datagram::{Action, Destination, Source, Ud, UdConfig, UdEvent, UdSendWr};
use haul_iwarp::{Payload, Placement, PostError, RecvWr, Stag, Target, Time};
use haul_verbs::DatagramStatistics;

use super::memory::Memory;
use super::request::Request;
use super::work;

/// Bytes of the longest header, or datagram without payload.
pub(super) const HEADER_MAX: usize = if DATA_HEADER_MAX > RD_HEADER_MAX {
    DATA_HEADER_MAX
} else {
    RD_HEADER_MAX
};

/// See the module.
#[derive(Debug)]
pub(super) enum Core {
    Ud(Box<Ud>),
    Rd(Box<RdQp>),
}

/// An event of either core.
#[derive(Debug)]
pub(super) enum CoreEvent {
    Ud(UdEvent),
    Rd(RdEvent),
}

/// A datagram that is to leave.
#[derive(Debug, Clone, Copy)]
pub(super) struct OutgoingDatagram {
    pub(super) to: SocketAddr,
    pub(super) header_len: usize,
    pub(super) payload: Payload,
    pub(super) payload_len: u32,
    /// The header is the whole datagram, checksum and all.
    pub(super) is_whole: bool,
    /// The request that it belongs to.
    pub(super) slot: Option<u32>,
}

impl Core {
    pub(super) fn unreliable(config: UdConfig) -> Self {
        Self::Ud(Box::new(Ud::new(config)))
    }

    /// A reliable one with the same numbers.
    pub(super) fn reliable(config: &UdConfig, lower_len: u32, mut rest: RdConfig) -> Self {
        let qp = &mut rest.qp;
        (qp.pd, qp.qp) = (config.pd, config.qp);
        (qp.send_depth, qp.recv_depth) = (config.send_depth, config.recv_depth);
        qp.shared_receive = config.shared_receive;
        (qp.ird, qp.ord) = (READS, READS);
        rest.qpn = config.qpn;
        rest.epoch = config.epoch;
        rest.secret = config.key;
        rest.datagram_max = u16::try_from(config.datagram_max).unwrap_or(u16::MAX);
        rest.lower_len = lower_len + config.around;
        rest.around = config.around;
        Self::Rd(Box::new(RdQp::new(rest)))
    }

    pub(super) fn post_send(&mut self, now: Time, request: &Request) -> Result<(), PostError> {
        let Request { to, wr } = *request;
        match self {
            Self::Ud(core) => {
                let mut request = UdSendWr::new(wr.id, wr.slot, to, wr.op, wr.len);
                request.signalled = wr.signalled;
                core.post_send(request)
            }
            Self::Rd(core) => {
                let to = Remote {
                    addr: to.addr,
                    qpn: to.qpn,
                };
                core.post_send(now, to, wr)
            }
        }
    }

    pub(super) fn post_receive(&mut self, now: Time, wr: RecvWr) -> Result<(), PostError> {
        match self {
            Self::Ud(core) => core.post_receive(wr),
            Self::Rd(core) => core.post_receive(now, wr),
        }
    }

    /// There are receives in the shared queue.
    pub(super) fn handle_receives(&mut self, now: Time) {
        if let Self::Rd(core) = self {
            core.handle_receives(now);
        }
    }

    /// A datagram that is whole: where its payload belongs, if it has any to place. And whether it
    /// was taken at all.
    pub(super) fn handle_datagram(
        &mut self,
        now: Time,
        memory: &mut Memory<'_, '_>,
        from: SocketAddr,
        datagram: &Datagram<'_>,
    ) -> (Option<Placement>, bool) {
        match self {
            Self::Ud(core) => match core.handle_datagram(now, memory, from, datagram) {
                Action::Place(placement) => (Some(placement), true),
                Action::Done => (None, true),
                Action::Drop(_) => (None, false),
            },
            Self::Rd(core) => {
                memory.sender = Some(Source {
                    addr: from,
                    qpn: datagram.shim.src_qpn,
                    epoch: datagram.shim.epoch,
                });
                let arrived = core.handle_checked(now, memory, from, datagram);
                (arrived.map(|arrived| arrived.placement), true)
            }
        }
    }

    /// A datagram whose checksum is right, if it goes on where the one before ended: where its
    /// payload belongs.
    pub(super) fn handle_alike<'a>(
        &mut self,
        memory: &Memory<'_, '_>,
        from: SocketAddr,
        covered: &'a [u8],
    ) -> Option<(Target, &'a [u8])> {
        match self {
            Self::Ud(core) => core.handle_alike(memory, from, covered),
            Self::Rd(_) => None,
        }
    }

    /// What was to be placed is, or its memory was gone.
    pub(super) fn handle_placed(
        &mut self,
        now: Time,
        memory: &mut Memory<'_, '_>,
        is_placed: bool,
    ) {
        match self {
            Self::Ud(core) => core.handle_placed(now, is_placed),
            Self::Rd(core) if is_placed => core.handle_placed(now, memory),
            Self::Rd(core) => core.handle_memory_gone(now),
        }
    }

    /// A tag is not valid any more.
    pub(super) fn handle_invalidated(&mut self, stag: Stag) {
        if let Self::Ud(core) = self {
            core.handle_invalidated(stag);
        }
    }

    /// The path to a host carries no more than this many bytes of UDP payload.
    pub(super) fn handle_path(&mut self, now: Time, host: IpAddr, octets: u32) {
        match self {
            Self::Ud(core) => core.handle_path(now, host, octets),
            Self::Rd(core) => core.handle_path(now, host, octets),
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        match self {
            Self::Ud(core) => core.handle_timeout(now),
            Self::Rd(core) => core.handle_timeout(now),
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        match self {
            Self::Ud(core) => core.poll_timeout(),
            Self::Rd(core) => core.poll_timeout(),
        }
    }

    /// A datagram without payload, whole; `room` has [`CONTROL_MAX`] bytes, or as many as the
    /// longest datagram for probes of the path.
    pub(super) fn poll_control(
        &mut self,
        now: Time,
        room: &mut [u8],
    ) -> Option<(SocketAddr, usize)> {
        debug_assert!(room.len() >= CONTROL_MAX);
        match self {
            Self::Ud(core) => core.poll_control(now, room),
            // Its others come with the data.
            Self::Rd(core) => core.poll_probe(now, room),
        }
    }

    pub(super) fn poll_transmit(
        &mut self,
        now: Time,
        memory: &Memory<'_, '_>,
        header: &mut [u8],
    ) -> Option<OutgoingDatagram> {
        match self {
            Self::Ud(core) => {
                let transmit = core.poll_transmit(now, memory, header)?;
                Some(OutgoingDatagram {
                    to: transmit.to,
                    header_len: transmit.header_len,
                    payload: transmit.payload,
                    payload_len: transmit.payload_len,
                    is_whole: false,
                    slot: transmit.slot,
                })
            }
            Self::Rd(core) => {
                let transmit = core.poll_transmit(now, memory, header)?;
                Some(OutgoingDatagram {
                    to: transmit.to,
                    header_len: transmit.header_len,
                    payload: transmit.payload,
                    payload_len: transmit.payload_len,
                    is_whole: !transmit.needs_crc,
                    slot: None,
                })
            }
        }
    }

    /// Makes `outgoing` and its header those of the datagram after it, if that differs in its
    /// numbers only.
    pub(super) fn poll_alike(
        &mut self,
        outgoing: &mut OutgoingDatagram,
        header: &mut [u8],
    ) -> bool {
        let (Self::Ud(core), Payload::Request { offset, .. }) = (self, &mut outgoing.payload)
        else {
            return false;
        };
        let next = core.poll_alike(header);
        *offset = next.unwrap_or(*offset);
        next.is_some()
    }

    pub(super) fn poll_event(&mut self) -> Option<CoreEvent> {
        match self {
            Self::Ud(core) => core.poll_event().map(CoreEvent::Ud),
            Self::Rd(core) => core.poll_event().map(CoreEvent::Rd),
        }
    }

    /// Whether requests wait to be sent or answered.
    pub(super) fn has_outstanding(&self) -> bool {
        match self {
            Self::Ud(core) => core.outstanding() > 0,
            Self::Rd(_) => false,
        }
    }

    /// Asks whether a peer is there, so that it knows this end; whether it could be begun.
    pub(super) fn validate(&mut self, now: Time, to: Destination) -> bool {
        match self {
            Self::Ud(core) => core.validate(now, to).is_ok(),
            Self::Rd(_) => false,
        }
    }

    pub(super) fn close(&mut self, now: Time) {
        match self {
            Self::Ud(core) => core.close(),
            Self::Rd(core) => core.close(now),
        }
    }

    pub(super) fn statistics(&self) -> DatagramStatistics {
        match self {
            Self::Ud(core) => work::statistics(&core.counters()),
            Self::Rd(core) => work::reliable_statistics(core),
        }
    }
}

/// Reads and atomics with a peer at once, in each direction.
const READS: u16 = 16;
