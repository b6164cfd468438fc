//! A connection: opening, data both ways, closing.

mod established;
mod path;
mod stats;
mod transmit;

use std::collections::VecDeque;
use std::net::IpAddr;

use haul_cc::{Algorithm, Rate, Remembered, Time};

pub use stats::Stats;
pub use transmit::{PayloadRange, Transmit};

use crate::config::{Config, Params};
use crate::error::{Error, Misbehaviour, SendError};
use crate::handshake::{Agreed, Identity, Opening, Role, SealContext, own_body};
use crate::listener::Request;
use crate::numbering::{Numbering, Opener};
use crate::recv::Received;
use crate::slots::{Message, Piece, Slots};
use crate::wire::{
    Control, ControlWriter, Handshake, Offer, Packet, RequestKind, SEALED_HEAD_LEN, Sealed,
    SocketId, SocketKind, check, opened_packet,
};
use established::Established;

/// A UDT connection.
///
/// Four families of methods: inputs (`handle_*`), commands (`write`, `send_message`, `consume`,
/// `close`), outputs (`poll_*`), and getters. After every input or command drain
/// [`Connection::poll_transmit`] and [`Connection::poll_event`], then ask
/// [`Connection::poll_timeout`].
#[derive(Debug)]
pub struct Connection {
    config: Config,
    local: SocketId,
    seed: u64,
    phase: Phase,
    /// Headers and control packets carry a check, both ways ([`Params::check`]).
    checked: bool,
    /// Of a sealed connection, from when it opens.
    seal: Option<(SealContext, Box<Numbering>)>,
    /// The reply to a handshake that the peer repeats, and whether one is due.
    repeat: Option<(Handshake, Offer)>,
    repeat_due: bool,
    events: VecDeque<Event>,
}

#[derive(Debug)]
enum Phase {
    Opening(Box<Opening>),
    Open(Box<Established>),
    /// Closed; until then, a peer that missed the notice receives it again.
    Closed {
        peer: SocketId,
        notices: u32,
        until: Time,
        /// Data that had arrived and was not taken yet.
        rest: Option<Box<Established>>,
    },
}

/// An event for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The connection is open.
    Connected(Params),
    /// The peer has closed, in order: nothing more will arrive.
    PeerClosed,
    /// Whether the connection is over.
    Closed(Option<Error>),
}

/// A lost shutdown leaves the peer waiting for its idle timeout, so it is sent more than once.
const SHUTDOWN_COPIES: u32 = 2;
const CLOSED_NOTICES_NS: u64 = 3 * haul_cc::time::SECOND_NS;

impl Connection {
    /// Connects to a listener at the address `peer`; `seed` feeds the congestion control.
    #[must_use]
    pub fn connect(now: Time, config: Config, own: Identity, peer: IpAddr, seed: u64) -> Self {
        Self::begin(now, config, Role::Client, own, peer, seed)
    }

    /// Connects to a peer that does the same.
    #[must_use]
    pub fn rendezvous(now: Time, config: Config, own: Identity, peer: IpAddr, seed: u64) -> Self {
        Self::begin(now, config, Role::Rendezvous, own, peer, seed)
    }

    fn begin(
        now: Time,
        config: Config,
        role: Role,
        own: Identity,
        peer: IpAddr,
        seed: u64,
    ) -> Self {
        let opening = Opening::new(now, &config, role, own, peer);
        Self {
            config,
            local: own.socket,
            seed,
            checked: false,
            seal: None,
            repeat: None,
            repeat_due: false,
            events: VecDeque::new(),
            phase: Phase::Opening(Box::new(opening)),
        }
    }

    /// Accepts a client's request. The connection is open at once.
    ///
    /// # Errors
    /// [`Error::Incompatible`] if the client's packets are too small to be useful, or it does not
    /// offer to seal them and has to.
    pub fn accept(
        now: Time,
        config: Config,
        socket: SocketId,
        request: &Request,
        seed: u64,
    ) -> Result<Self, Error> {
        let theirs = &request.handshake;
        let params = Params::negotiate(&config, theirs.mss, theirs.flight, request.offer)?;
        // As libudt does: the client's first sequence number is that of both directions.
        let own = Identity {
            socket,
            initial: theirs.initial,
        };
        let initial = theirs.initial.get();
        let body = Handshake {
            cookie: theirs.cookie,
            // libudt's client takes the reply as the agreed parameters.
            mss: config.mtu.min(theirs.mss),
            ..own_body(&config, RequestKind::Conclusion, own, request.from.ip())
        };
        let offer = Offer {
            placement: params.placement,
            ecn: params.ecn,
            finish: params.finish,
            // Checks of handshakes, whether or not other packets carry checks.
            check: request.offer.check && config.offer().check,
            path: params.path,
            seal: params.seal,
        };
        let context = SealContext::new(None, (&body, offer), (theirs, request.offer));
        let agreed = Agreed {
            params,
            peer: theirs.socket,
            peer_initial: initial,
            rtt_ns: None,
            seal: context.filter(|_| params.seal),
        };
        let established = Established::new(now, &config, &agreed, initial, seed);
        let mut connection = Self {
            local: socket,
            seed,
            repeat: Some((body, offer)),
            checked: params.check,
            seal: agreed.seal.map(|context| numbered(context, &config)),
            repeat_due: true,
            events: VecDeque::from([Event::Connected(params)]),
            phase: Phase::Open(Box::new(established)),
            config,
        };
        connection.events.reserve(4);
        Ok(connection)
    }

    /// Sets parameters that were unknown when the connection was accepted: its congestion control,
    /// and the idle timeout. For a connection that has sent nothing but its handshake.
    pub fn configure(&mut self, now: Time, control: Algorithm, idle_timeout_ns: u64) {
        self.config.control = control;
        self.config.idle_timeout_ns = idle_timeout_ns;
        if let Phase::Open(open) = &mut self.phase {
            open.configure(now, &self.config, self.seed);
        }
    }

    /// Starts from the path state of an earlier connection. For a connection that has sent nothing
    /// but its handshake; afterwards it does nothing.
    pub fn resume(&mut self, remembered: Remembered) {
        if let Phase::Open(open) = &mut self.phase
            && !open.sender.has_unacknowledged()
            && open.sender.position() == 0
        {
            open.resume(remembered);
        }
    }

    // ---- inputs

    /// Notes that the next datagrams for [`Connection::handle_datagram`], so many, carried a
    /// congestion mark (CE, RFC 3168 §5).
    pub fn handle_marks(&mut self, datagrams: u32) {
        if let Phase::Open(open) = &mut self.phase {
            open.handle_marks(datagrams);
        }
    }

    /// Decrypts a datagram in place, before its content goes to [`Connection::handle_packet`] or
    /// [`Connection::piece`]. Returns `None` if the datagram must be dropped: it is not sealed and
    /// must be, `keys` do not open it, or its number is a repetition. Then only a counter changes.
    /// If the connection is not sealed, the datagram is the packet.
    pub fn open<'d>(
        &mut self,
        now: Time,
        datagram: &'d mut [u8],
        keys: Option<&mut dyn Opener>,
    ) -> Option<&'d [u8]> {
        let timeout_ns = self.open_state().map_or(0, |open| open.rtt.timeout_ns());
        let Some((_, numbering)) = &mut self.seal else {
            return Some(datagram);
        };
        if check::is_handshake(datagram) {
            return Some(datagram);
        }
        let sealed = numbering.examine(now, datagram)?;
        let keys = keys?;
        if numbering.take_expired(now) {
            keys.forget_previous();
        }
        let (head, text) = datagram.split_at_mut_checked(SEALED_HEAD_LEN)?;
        let Some(len) = keys.open(sealed, head, text) else {
            numbering.refused.forged += 1;
            return None;
        };
        numbering.note_opened(now, sealed, timeout_ns);
        Some(opened_packet(datagram, len))
    }

    /// Takes a datagram that this host received at `arrived` and this call sees at `now`. A sealed
    /// connection takes nothing but handshakes here.
    ///
    /// # Errors
    /// The datagram was ignored; the connection goes on, unless an [`Event::Closed`] follows.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        arrived: Time,
        datagram: &[u8],
    ) -> Result<Received, Error> {
        if let Some((_, numbering)) = &mut self.seal
            && !check::is_handshake(datagram)
        {
            numbering.refused.unsealed += 1;
            return Err(Error::PeerMisbehaved(Misbehaviour::OutOfPlace));
        }
        self.handle_packet(now, arrived, datagram)
    }

    /// As [`Connection::handle_datagram`], for a packet that was in a datagram that opened, or in
    /// pieces of which each did.
    ///
    /// # Errors
    /// As there.
    pub fn handle_packet(
        &mut self,
        now: Time,
        arrived: Time,
        datagram: &[u8],
    ) -> Result<Received, Error> {
        let plain = match &self.phase {
            Phase::Opening(opening) => opening.without_echo(datagram),
            Phase::Open(_) | Phase::Closed { .. } => None,
        };
        let datagram = plain.as_deref().unwrap_or(datagram);
        let packet = Packet::parse(datagram)?;
        if let (Phase::Opening(_), Packet::Data(_)) = (&self.phase, packet) {
            // The peer is connected already; our own answer was lost. Its repetition will come.
            return Ok(Received::Discard);
        }
        let is_handshake = matches!(packet, Packet::Control(Control::Handshake { .. }));
        let destination = if self.checked && !is_handshake {
            Some(check::opened(datagram))
        } else {
            Packet::destination(datagram)
        };
        let unaddressed = is_handshake && destination == Some(SocketId(0));
        if destination != Some(self.local) && !unaddressed {
            return Err(Error::PeerMisbehaved(Misbehaviour::OutOfPlace));
        }
        match packet {
            Packet::Data(data) => match &mut self.phase {
                Phase::Open(open) => open.handle_data(
                    now,
                    arrived,
                    &data,
                    datagram.len() - crate::wire::HEADER_LEN,
                ),
                Phase::Opening(_) => Ok(Received::Discard),
                Phase::Closed { notices, .. } => {
                    *notices = (*notices).max(1);
                    Err(Error::Closed)
                }
            },
            Packet::Control(Control::Handshake { body, offer, .. }) => {
                self.handle_handshake(now, &body, offer)?;
                Ok(Received::Control)
            }
            Packet::Control(Control::Shutdown) => {
                self.handle_shutdown(now);
                Ok(Received::Control)
            }
            Packet::Control(control) => match &mut self.phase {
                Phase::Open(open) => {
                    open.handle_control(now, arrived, &control)?;
                    Ok(Received::Control)
                }
                Phase::Opening(_) => Err(Error::PeerMisbehaved(Misbehaviour::OutOfPlace)),
                Phase::Closed { notices, .. } => {
                    *notices = (*notices).max(1);
                    Err(Error::Closed)
                }
            },
        }
    }

    /// Notes that the kernel refused or reported a packet as too long for the path, whose MTU is
    /// `mtu` if the kernel knows it. Returns whether packets are shorter from now on; `None` where
    /// IP has to fragment them instead.
    pub fn handle_too_big(&mut self, now: Time, mtu: Option<u32>) -> Option<bool> {
        match &mut self.phase {
            Phase::Open(open) => open.handle_too_big(now, mtu),
            _ => None,
        }
    }

    /// Does what is due at a deadline of [`Connection::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Time) {
        match &mut self.phase {
            Phase::Opening(opening) if opening.is_overdue(now) => {
                self.end(now, SocketId(0), Some(Error::TimedOut));
            }
            Phase::Opening(_) | Phase::Closed { .. } => {}
            Phase::Open(open) => {
                if open.is_dead(now) {
                    let peer = open.peer();
                    self.end(now, peer, Some(Error::TimedOut));
                } else if open.handle_timeout(now) {
                    self.finish_close(now);
                }
            }
        }
    }

    // ---- commands

    /// Appends `bytes` bytes to the stream, at the end of the send space. With `push`, all may
    /// leave, even in a short packet; without, a tail shorter than a packet waits for more.
    ///
    /// # Errors
    /// [`SendError`] if this is not an open stream.
    pub fn write(&mut self, now: Time, bytes: u64, push: bool) -> Result<(), SendError> {
        self.sending()?.write(now, bytes, push)
    }

    /// Ends this direction of the stream. The other direction goes on.
    ///
    /// # Errors
    /// [`SendError`] if this is not an open stream, or [`Params::finish`] was not agreed on.
    pub fn finish(&mut self, now: Time) -> Result<(), SendError> {
        self.sending()?.finish(now)
    }

    /// Appends a message of `len` bytes at the end of the send space, in message mode. Returns its
    /// number.
    ///
    /// # Errors
    /// [`SendError`] if this is not an open message connection, or the size does not fit.
    pub fn send_message(
        &mut self,
        now: Time,
        len: u64,
        in_order: bool,
        ttl_ns: Option<u64>,
    ) -> Result<u32, SendError> {
        self.sending()?.send_message(now, len, in_order, ttl_ns)
    }

    fn sending(&mut self) -> Result<&mut Established, SendError> {
        match &mut self.phase {
            Phase::Open(open) if !open.is_closing() => Ok(open),
            _ => Err(SendError::Closed),
        }
    }

    /// Frees the space below offset `to` of a placed stream: the caller has taken those bytes.
    pub fn consume(&mut self, now: Time, to: u64) {
        if let Phase::Open(open) = &mut self.phase {
            open.receiver.consume(now, to);
        }
    }

    /// Limits what the peer sends on a placed stream: this end holds `held` bytes of arrived
    /// payload, and `most` at a time. The peer stays within that space from the first call on; call
    /// again as it changes.
    pub fn limit_room(&mut self, now: Time, held: u64, most: u64) {
        if let Phase::Open(open) = &mut self.phase {
            open.receiver.limit_room(now, held, most);
        }
    }

    /// Returns the next piece of a plain stream in the receive memory, if it has arrived.
    #[must_use]
    pub fn front_piece(&mut self) -> Option<Piece> {
        self.slots_of(SocketKind::Stream)?.front()
    }

    /// Frees the front piece of a plain stream.
    pub fn pop_piece(&mut self) {
        if let Some(slots) = self.slots_of(SocketKind::Stream) {
            slots.pop_front();
        }
        self.note_room();
    }

    /// Returns the next message that has arrived whole, in message mode.
    #[must_use]
    pub fn front_message(&mut self) -> Option<Message> {
        self.slots_of(SocketKind::Datagram)?.message()
    }

    /// Passes the pieces of `message` to `take` in order, and frees them.
    pub fn take_message(&mut self, message: &Message, mut take: impl FnMut(Piece)) {
        if let Some(slots) = self.slots_of(SocketKind::Datagram) {
            slots.pieces(message).for_each(&mut take);
            slots.release(message);
        }
        self.note_room();
    }

    fn slots_of(&mut self, kind: SocketKind) -> Option<&mut Slots> {
        match &mut self.phase {
            Phase::Open(open)
            | Phase::Closed {
                rest: Some(open), ..
            } if self.config.kind == kind => open.receiver.slots(),
            _ => None,
        }
    }

    fn note_room(&mut self) {
        if let Phase::Open(open) = &mut self.phase {
            open.receiver.note_room();
        }
    }

    /// Limits the rate from now on to `rate_max`, with bursts of `burst_bytes` (wire bytes):
    /// [`Config::rate_max`] and [`Config::burst_bytes`], for callers that learn them after the
    /// connection opened.
    pub fn limit_rate(&mut self, rate_max: Rate, burst_bytes: Option<u64>) {
        self.config.rate_max = rate_max;
        self.config.burst_bytes = burst_bytes;
        if let Phase::Open(open) = &mut self.phase {
            open.limit_rate(rate_max, burst_bytes);
        }
    }

    /// Closes once all that was written has arrived, or the linger time has passed.
    pub fn close(&mut self, now: Time) {
        match &mut self.phase {
            Phase::Opening(_) => self.end(now, SocketId(0), None),
            Phase::Open(open) => {
                open.close(now);
                if open.is_drained() {
                    self.finish_close(now);
                }
            }
            Phase::Closed { .. } => {}
        }
    }

    /// Closes at once; unacknowledged data may be lost.
    pub fn abort(&mut self, now: Time) {
        match &self.phase {
            Phase::Opening(_) => self.end(now, SocketId(0), None),
            Phase::Open(_) => self.finish_close(now),
            Phase::Closed { .. } => {}
        }
    }

    // ---- outputs

    /// Returns the piece of a data packet in a datagram, if it is one and was not damaged.
    #[must_use]
    pub fn piece<'a>(&self, datagram: &'a [u8]) -> Option<crate::wire::PacketPiece<'a>> {
        let piece = crate::wire::PacketPiece::parse(datagram)?;
        (!self.checked || check::opened(datagram) == self.local).then_some(piece)
    }

    /// Appends the pieces of a data packet to `out`, each `piece_len` bytes long
    /// ([`piece_len`](crate::wire::piece_len)). Returns how many, and for a sealed connection the
    /// counterpart of [`Transmit::sealed`].
    pub fn cut(
        &mut self,
        packet: &[u8],
        piece_len: usize,
        out: &mut Vec<u8>,
    ) -> (usize, Option<Sealed>) {
        let Phase::Open(open) = &self.phase else {
            return (0, None);
        };
        let count = crate::wire::cut(packet, open.peer, self.checked, piece_len, out);
        match &mut self.seal {
            None => (count, None),
            Some((_, numbering)) => match numbering.assign(count) {
                None => {
                    // A datagram that cannot be sealed must not be sent.
                    out.clear();
                    (0, None)
                }
                sealed => (count, sealed),
            },
        }
    }

    /// Fills `out` with the next control packet or batch of data packets; false when there is
    /// nothing to send now.
    pub fn poll_transmit(&mut self, now: Time, out: &mut Transmit) -> bool {
        let some = self.next_transmit(now, out);
        if some && self.checked {
            out.add_checks();
        }
        if let Some((_, numbering)) = &mut self.seal
            && some
            && !check::is_handshake(&out.control)
        {
            out.sealed = numbering.assign(out.headers.len().max(1));
            return out.sealed.is_some();
        }
        some
    }

    fn next_transmit(&mut self, now: Time, out: &mut Transmit) -> bool {
        out.clear();
        if self.repeat_due
            && let Some((body, offer)) = &self.repeat
        {
            self.repeat_due = false;
            let destination = self.peer();
            ControlWriter::new(&mut out.control, destination).handshake(body, *offer);
            return true;
        }
        match &mut self.phase {
            Phase::Opening(opening) => opening.write(now, &mut out.control),
            Phase::Open(open) => {
                let some = open.poll_transmit(now, out);
                if !some && open.is_closing() && open.is_drained() {
                    self.finish_close(now);
                    return self.next_transmit(now, out);
                }
                some
            }
            Phase::Closed { peer, notices, .. } => {
                if *notices == 0 || *peer == SocketId(0) {
                    return false;
                }
                *notices -= 1;
                ControlWriter::new(&mut out.control, *peer).shutdown();
                true
            }
        }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns when to call [`Connection::handle_timeout`] and [`Connection::poll_transmit`] again
    /// at the latest; `None` when the connection can be dropped.
    #[must_use]
    pub fn poll_timeout(&self, now: Time) -> Option<Time> {
        match &self.phase {
            Phase::Opening(opening) => Some(opening.due()),
            Phase::Open(open) => Some(open.timeout()),
            Phase::Closed { until, .. } => (now < *until).then_some(*until),
        }
    }

    // ---- getters

    /// Returns the features that both ends agreed on, while the connection is open.
    #[must_use]
    pub fn params(&self) -> Option<Params> {
        self.open_state().map(Established::params)
    }

    /// Whether [`Connection::poll_transmit`] writes a handshake next, if anything.
    #[must_use]
    pub fn has_handshake(&self) -> bool {
        self.repeat_due || matches!(self.phase, Phase::Opening(_))
    }

    /// Returns the key-derivation context of a sealed connection; `None` while it opens, and if it
    /// is not sealed.
    #[must_use]
    pub fn seal_context(&self) -> Option<&SealContext> {
        self.seal.as_ref().map(|(context, _)| context)
    }

    /// Whether to send data packets as ECN-capable (ECT(0), RFC 3168 §5): the peer reports
    /// congestion marks, the control responds to them, and the path does not seem to drop such
    /// packets.
    #[must_use]
    pub fn is_ecn_capable(&self) -> bool {
        self.open_state().is_some_and(Established::may_say_ecn) && self.config.control.heeds_marks()
    }

    /// Returns the offset of a placed stream below which all bytes have arrived.
    #[must_use]
    pub fn delivered_offset(&self) -> u64 {
        self.last()
            .map_or(0, |last| last.receiver.delivered_offset())
    }

    /// Whether the peer has ended its direction of the stream, and all of it has arrived.
    #[must_use]
    pub fn has_peer_finished(&self) -> bool {
        self.last().is_some_and(|last| last.receiver.is_finished())
    }

    /// Returns the position of the send space below which all bytes have arrived: they need not be
    /// kept.
    #[must_use]
    pub fn released(&self) -> u64 {
        self.last().map_or(0, |last| last.sender.released())
    }

    /// Returns how many data packets of this end are cumulatively acknowledged, retransmissions not
    /// counted.
    #[must_use]
    pub fn acknowledged_packets(&self) -> u64 {
        self.last().map_or(0, |last| last.sender.acknowledged())
    }

    /// Returns the position of the send space below which all bytes were sent at least once.
    #[must_use]
    pub fn sent_position(&self) -> u64 {
        self.last().map_or(0, |last| last.sender.position())
    }

    /// Returns the bytes of receive memory that positions of [`Placement`](crate::Placement)s refer
    /// to; zero where packets are placed by stream offset.
    #[must_use]
    pub fn receive_memory_bytes(&mut self) -> u64 {
        match &mut self.phase {
            Phase::Open(open) => open
                .receiver
                .slots()
                .map_or(0, |slots| slots.memory_bytes()),
            _ => 0,
        }
    }

    /// Returns when a report to the sender is due. Nothing that arrives need be read before.
    #[must_use]
    pub fn feedback_due(&self) -> Option<Time> {
        self.open_state()
            .and_then(|open| open.receiver.feedback_due())
    }

    /// Returns when the next data packets may leave, if only the pace holds them back.
    #[must_use]
    pub fn paced_until(&self) -> Option<Time> {
        self.open_state().and_then(Established::paced_until)
    }

    /// Whether everything written has arrived, and the end of this direction if it was finished;
    /// unlike [`Connection::is_drained`], also for a connection that is over.
    #[must_use]
    pub fn has_all_arrived(&self) -> bool {
        self.last().is_some_and(Established::is_drained)
    }

    /// Whether everything written has arrived, and the end of this direction if it was finished, or
    /// the connection is over.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.open_state().is_none_or(Established::is_drained)
    }

    /// Whether the connection is over.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed { .. })
    }

    /// Whether IP is to fragment packets that are too long for the path: packets are in flight, for
    /// several round trips none of them was acknowledged, and this end does not find the path's MTU
    /// itself, or not even 1,280 bytes pass.
    #[must_use]
    pub fn wants_fragments(&self, now: Time) -> bool {
        self.open_state()
            .is_some_and(|open| open.wants_fragments(now))
    }

    /// Returns the longest datagram that the path is known to carry, UDP payload in bytes. The
    /// caller cuts longer data packets into pieces ([`Connection::cut`]). [`Params::payload_len`]
    /// limits them where the path is not probed.
    #[must_use]
    pub fn datagram_max(&self) -> usize {
        self.open_state()
            .map_or(usize::MAX, Established::datagram_max)
    }

    /// Whether path MTU discovery beyond the initial size is complete. Messages that fit
    /// [`Connection::datagram_max`] then stay whole unless the path becomes narrower.
    #[must_use]
    pub fn is_path_settled(&self) -> bool {
        self.open_state().is_some_and(Established::is_path_settled)
    }

    /// Returns the counters, while the connection is open.
    #[must_use]
    pub fn stats(&self) -> Option<Stats> {
        let refused = self.seal.as_ref().map(|(_, numbering)| numbering.refused);
        self.open_state().map(|open| Stats {
            refused: refused.unwrap_or_default(),
            ..open.stats()
        })
    }

    // ---- helpers

    fn open_state(&self) -> Option<&Established> {
        match &self.phase {
            Phase::Open(open) => Some(open),
            _ => None,
        }
    }

    /// The connection as it is, or as it was when it ended.
    fn last(&self) -> Option<&Established> {
        match &self.phase {
            Phase::Open(open)
            | Phase::Closed {
                rest: Some(open), ..
            } => Some(open),
            _ => None,
        }
    }

    fn peer(&self) -> SocketId {
        match &self.phase {
            Phase::Opening(_) => SocketId(0),
            Phase::Open(open) => open.peer(),
            Phase::Closed { peer, .. } => *peer,
        }
    }

    fn handle_handshake(&mut self, now: Time, body: &Handshake, offer: Offer) -> Result<(), Error> {
        let Phase::Opening(opening) = &mut self.phase else {
            // The peer has missed our answer, or (rendezvous) waits for the last one.
            self.repeat_due = self.repeat.is_some() && body.request != RequestKind::Agreement;
            return Ok(());
        };
        match opening.handle(now, &self.config, body, offer) {
            Ok(None) => Ok(()),
            Ok(Some(agreed)) => {
                let initial = opening.initial();
                // A client that answered its server's answers would never end.
                self.repeat = opening.is_rendezvous().then(|| opening.repeat());
                self.repeat_due = opening.is_rendezvous() && body.request != RequestKind::Agreement;
                let open = Established::new(now, &self.config, &agreed, initial, self.seed);
                self.phase = Phase::Open(Box::new(open));
                self.checked = agreed.params.check;
                self.seal = agreed.seal.map(|context| numbered(context, &self.config));
                self.events.push_back(Event::Connected(agreed.params));
                Ok(())
            }
            Err(error) => {
                self.end(now, SocketId(0), Some(error));
                Err(error)
            }
        }
    }

    fn handle_shutdown(&mut self, now: Time) {
        if let Phase::Open(open) = &mut self.phase {
            let peer = open.peer();
            self.events.push_back(Event::PeerClosed);
            self.end(now, peer, None);
            if let Phase::Closed { notices, .. } = &mut self.phase {
                *notices = 0;
            }
        }
    }

    fn finish_close(&mut self, now: Time) {
        let peer = self.peer();
        self.end(now, peer, None);
    }

    fn end(&mut self, now: Time, peer: SocketId, error: Option<Error>) {
        let until = now.after(CLOSED_NOTICES_NS);
        let closed = Phase::Closed {
            peer,
            notices: SHUTDOWN_COPIES,
            until,
            rest: None,
        };
        if let Phase::Open(open) = std::mem::replace(&mut self.phase, closed)
            && let Phase::Closed { rest, .. } = &mut self.phase
        {
            *rest = Some(open);
        }
        self.events.push_back(Event::Closed(error));
    }
}

fn numbered(context: SealContext, config: &Config) -> (SealContext, Box<Numbering>) {
    (context, Box::new(Numbering::new(config.rekey_packets)))
}
