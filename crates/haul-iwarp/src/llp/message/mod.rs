//! A reliable connection over messages that arrive each at its own time, once and unchanged: over
//! UDT, one DDP segment per message and packet (docs/protocol/iwarp.md).
//!
//! Tagged and untagged payload is placed when it arrives; the effect of a message, above all its
//! completion, waits for earlier messages. The lower layer numbers the messages of a direction from
//! 0, without gaps, in the order in which they were sent, and repeats those that are lost:
//! [`MessageConnection::repeat`] makes any of them again until it is released, so that no copy of a
//! header is kept.

mod arrivals;

use std::collections::VecDeque;
use std::ops::Range;

use crate::crc::{CRC_LEN, Crc32c};
use crate::error::{Error, Incompatible, PostError};
use crate::llp::agree::{answer, conclude};
use crate::llp::{HEADER_MAX, Params, ReliableConnection, Segment};
use crate::memory::{Memory, Placement, Target};
use crate::operation::RecvWr;
use crate::qp::{
    Effect, Emission, Event, Incoming, Order, Payload, Qp, QpConfig, SendWr, State, Violation,
    quote_request,
};
use crate::time::{SECOND_NS, Time};
use crate::wire::ddp::{Header, UNTAGGED_LEN};
use crate::wire::hello::{Hello, Terms};
use crate::wire::mpa::PRIVATE_DATA_MAX;
use crate::wire::rdmap::Opcode;
use crate::wire::{Features, ParseError, TermCode};

use arrivals::{Arrival, Arrivals};

/// The least segment size that two ends agree on, bytes.
const SEGMENT_MIN: u32 = 256;
/// Close notices are for streams: here the final message states how the connection ends.
const FEATURES: Features = Features {
    close_notice: false,
    ..Features::ALL
};

/// How a connection over messages is to be. Build it from [`MessageConfig::default`], then set
/// fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageConfig {
    /// The queue pair.
    pub qp: QpConfig,
    /// The longest DDP segment, bytes: the capacity of a message of the lower layer, less four for
    /// the CRC. The lesser of both ends' applies.
    pub segment_max: u32,
    /// The lower layer authenticates every message, so segments need no CRC. They have one unless
    /// both ends set this. Default: false.
    pub sealed: bool,
    /// Messages that may be in flight: the lower layer's window, or more. Costs one bit each, while
    /// they are.
    pub window: u64,
    /// How long the peer may take for each step of start-up.
    pub startup_timeout_ns: u64,
    /// How long the peer may take to close after this end has.
    pub close_timeout_ns: u64,
}

impl Default for MessageConfig {
    fn default() -> Self {
        Self {
            qp: QpConfig::default(),
            segment_max: 1_452,
            sealed: false,
            window: 1 << 20,
            startup_timeout_ns: 5 * SECOND_NS,
            close_timeout_ns: 5 * SECOND_NS,
        }
    }
}

/// A message to be sent: header slot, payload, and [`Datagram::trailer`] if it has a CRC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    /// Header and payload; [`Segment::index`] is the number of the message.
    pub segment: Segment,
    /// A CRC follows the payload.
    pub crc: bool,
}

impl Datagram {
    /// Returns the CRC; `digest` is over header slot and payload.
    #[must_use]
    pub fn trailer(&self, digest: Crc32c) -> [u8; CRC_LEN] {
        digest.to_wire()
    }

    /// Returns the length of the message, in bytes.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        self.segment.header_len + self.segment.payload_len as usize + crc_len(self.crc)
    }
}

/// A message that is to be retransmitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// It was appended to `control`, whole.
    Control,
    /// As from [`MessageConnection::poll_transmit`].
    Datagram(Datagram),
}

/// Payload of a message that has passed the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    /// The bytes of the message.
    pub payload: Range<usize>,
    /// Where they belong.
    pub placement: Placement,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    AwaitReply,
    AwaitRequest,
    /// The request without its private data.
    Decide {
        ird: u16,
        ord: u16,
        segment_max: u32,
        features: Features,
    },
    Open,
}

/// A reliable connection over messages.
///
/// Contract: after every call that takes `&mut self`, drain [`Self::poll_control`],
/// [`Self::poll_transmit`] and [`Self::poll_event`], then ask [`Self::poll_timeout`].
#[derive(Debug)]
pub struct MessageConnection {
    config: MessageConfig,
    qp: Qp,
    phase: Phase,
    params: Option<Params>,
    private: Box<[u8]>,
    is_initiator: bool,
    arrivals: Arrivals,
    /// The effects of arrived messages that wait for earlier ones, in order; bounded by the depths
    /// of the queues.
    waiting: VecDeque<(u64, Delivery)>,
    /// Control messages that are not released, and how many of them are handed out.
    control: VecDeque<(u64, Box<[u8]>)>,
    control_sent: usize,
    /// Segments handed out.
    segments: u64,
    /// A pending placement: the message, its effect, and the place.
    placing: Option<(u64, Delivery, Target)>,
    peer_finished: bool,
    deadline: Option<Time>,
    shut_down: bool,
    disconnected: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Effect(Effect),
    /// The peer has sent its last, and has all messages below this number.
    Finish(u64),
}

impl MessageConnection {
    /// Makes the initiator's end: the lower layer is connected, the request is the first to be
    /// sent.
    ///
    /// # Errors
    /// The private data does not fit.
    pub fn connect(now: Time, config: MessageConfig, private: &[u8]) -> Result<Self, PostError> {
        let mut connection = Self::new(now, config, Phase::AwaitReply);
        let terms = connection.terms(config.qp.ird, config.qp.ord, config.segment_max, private)?;
        connection.queue_control(0, &Hello::Request(terms));
        Ok(connection)
    }

    /// Makes the responder's end: the request is the first to be received.
    #[must_use]
    pub fn listen(now: Time, config: MessageConfig) -> Self {
        Self::new(now, config, Phase::AwaitRequest)
    }

    fn new(now: Time, config: MessageConfig, phase: Phase) -> Self {
        Self {
            qp: Qp::new(config.qp, Order::Any),
            phase,
            params: None,
            private: Box::default(),
            is_initiator: phase == Phase::AwaitReply,
            arrivals: Arrivals::default(),
            waiting: VecDeque::new(),
            control: VecDeque::new(),
            control_sent: 0,
            segments: 0,
            placing: None,
            peer_finished: false,
            deadline: Some(now.after(config.startup_timeout_ns)),
            shut_down: false,
            disconnected: false,
            config,
        }
    }

    fn terms<'a>(
        &self,
        ird: u16,
        ord: u16,
        segment_max: u32,
        private: &'a [u8],
    ) -> Result<Terms<'a>, PostError> {
        if private.len() > PRIVATE_DATA_MAX {
            return Err(PostError::PrivateData);
        }
        Ok(Terms {
            features: self.features(),
            ird,
            ord,
            segment_max,
            private,
        })
    }

    fn features(&self) -> Features {
        Features {
            no_crc: self.config.sealed,
            ..FEATURES
        }
    }

    fn queue_control(&mut self, index: u64, hello: &Hello<'_>) {
        let mut message = Vec::new();
        hello.emit(&mut message);
        self.control.push_back((index, message.into()));
    }

    /// Responder, before [`Self::accept`]: bytes of a message at most, now that the path is known
    /// better.
    pub fn set_segment_max(&mut self, bytes: u32) {
        self.config.segment_max = bytes;
    }

    fn establish(&mut self, ird: u16, ord: u16, segment_max: u32, peer: Features) {
        let features = self.features().common(peer);
        self.phase = Phase::Open;
        self.params = Some(Params {
            ird,
            ord,
            crc: !features.no_crc,
            markers_out: false,
            markers_in: false,
            ulpdu_max: segment_max,
            features,
            extended: true,
            revision: 1,
            peer_to_peer: true,
        });
        self.qp.set_limits(ird, ord, features);
        self.qp.event(Event::Established);
    }

    /// Whether segments have a CRC.
    fn has_crc(&self) -> bool {
        self.params.is_none_or(|params| params.crc)
    }

    /// Whether a message is as it was sent. To be asked before the lower layer acknowledges it: one
    /// that is not is lost. Of a segment without CRC the lower layer has authenticated all.
    #[must_use]
    pub fn verify(&self, message: &[u8]) -> bool {
        if !self.has_crc() && !Hello::is_hello(message) {
            return true;
        }
        let Some((body, crc)) = message.split_last_chunk::<CRC_LEN>() else {
            return false;
        };
        let mut digest = Crc32c::new();
        digest.update(body);
        digest.to_wire() == *crc
    }

    /// Notes that message `index` has arrived, possibly before others and possibly again; it was
    /// verified. Of its bytes only headers are read. If there is an answer, put the payload there
    /// and call [`Self::handle_placed`].
    pub fn handle_message(
        &mut self,
        now: Time,
        memory: &mut impl Memory,
        index: u64,
        message: &[u8],
    ) -> Option<Arrived> {
        debug_assert!(self.placing.is_none(), "handle_placed comes first");
        if matches!(self.qp.state(), State::Terminating | State::Closed) {
            return None;
        }
        let arrived = if self.phase == Phase::Open {
            self.receive(memory, index, message)
        } else {
            self.handle_startup(index, message);
            None
        };
        self.settle(now);
        arrived
    }

    fn receive(&mut self, memory: &mut impl Memory, index: u64, message: &[u8]) -> Option<Arrived> {
        match self.arrivals.insert(index, self.config.window) {
            Arrival::Fresh => {}
            Arrival::Duplicate => return None,
            Arrival::BeyondWindow => {
                self.refuse(TermCode::STREAM_CATASTROPHIC.into(), &[], 0);
                return None;
            }
        }
        self.note_first_segment();
        if Hello::is_hello(message) {
            self.receive_control(memory, index, message);
            return None;
        }
        let body_len = message.len().saturating_sub(crc_len(self.has_crc()));
        let headers = headers_of(&message[..body_len]);
        let len = u32::try_from(body_len).unwrap_or(u32::MAX);
        let admitted = match headers {
            Some(octets) => self.qp.admit(memory, &Incoming { octets, len }),
            None => Err(TermCode::UNSPECIFIED.into()),
        };
        let octets = headers.unwrap_or_default();
        match admitted {
            Err(violation) => self.refuse(violation, octets, len),
            // Messages that were lost before a Terminate are not retransmitted: it is delivered out
            // of order.
            Ok((None, Effect::Terminate)) => {
                let _ended = self.qp.deliver(memory, Effect::Terminate);
            }
            Ok((None, effect)) => self.enqueue(memory, index, Delivery::Effect(effect)),
            Ok((Some(placement), effect)) => {
                self.placing = Some((index, Delivery::Effect(effect), placement.target));
                let payload = octets.len()..body_len;
                return Some(Arrived { payload, placement });
            }
        }
        None
    }

    /// Notes that the payload of the message is in its place.
    pub fn handle_placed(&mut self, now: Time, memory: &mut impl Memory) {
        if let Some((index, delivery, _)) = self.placing.take() {
            self.enqueue(memory, index, delivery);
        }
        self.settle(now);
    }

    /// Notes that a placement could not be carried out: the memory was withdrawn meanwhile.
    pub fn handle_memory_gone(&mut self, now: Time) {
        if let Some((_, _, target)) = self.placing.take() {
            self.qp.charge_placement(target);
        }
        let violation = Violation {
            code: TermCode::DDP_INVALID_STAG,
            read: None,
            local: true,
        };
        self.refuse(violation, &[], 0);
        self.settle(now);
    }

    /// Notes that the payload of a segment cannot be sent: its memory was withdrawn meanwhile.
    pub fn handle_payload_gone(&mut self, now: Time, payload: Payload) {
        let violation = self.qp.charge_payload(payload);
        self.refuse(violation, &[], 0);
        self.settle(now);
    }

    fn refuse(&mut self, violation: Violation, octets: &[u8], len: u32) {
        self.waiting.clear();
        self.qp.terminate(violation, octets, len);
    }

    /// Queues the effect of a message, and performs all effects that are due.
    fn enqueue(&mut self, memory: &mut impl Memory, index: u64, delivery: Delivery) {
        if matches!(self.qp.state(), State::Terminating | State::Closed) {
            return;
        }
        if delivery != Delivery::Effect(Effect::None) {
            let at = self.waiting.partition_point(|(before, _)| *before < index);
            self.waiting.insert(at, (index, delivery));
        }
        let qp = &self.config.qp;
        let most = qp.recv_depth as usize + usize::from(qp.ird) + usize::from(qp.ord) + 8;
        if self.waiting.len() > most {
            self.refuse(TermCode::STREAM_CATASTROPHIC.into(), &[], 0);
            return;
        }
        while let Some(&(index, delivery)) = self.waiting.front() {
            if index >= self.arrivals.base() {
                return;
            }
            self.waiting.pop_front();
            let done = match delivery {
                Delivery::Effect(effect) => self.qp.deliver(memory, effect),
                Delivery::Finish(received) => self.deliver_finish(received),
            };
            if let Err(violation) = done {
                // The segment itself was not kept.
                let quoted = match delivery {
                    Delivery::Effect(Effect::ReadRequest(_, msn)) => {
                        Some((Opcode::ReadRequest, msn))
                    }
                    Delivery::Effect(Effect::AtomicRequest(_, msn)) => {
                        Some((Opcode::AtomicRequest, msn))
                    }
                    _ => None,
                };
                match quoted.map(|(opcode, msn)| quote_request(opcode, msn)) {
                    Some((octets, len)) => self.refuse(violation, &octets, len),
                    None => self.refuse(violation, &[], 0),
                }
                return;
            }
        }
    }

    /// The lower layer's acknowledgements may lag behind the peer's final message.
    fn deliver_finish(&mut self, received: u64) -> Result<(), Violation> {
        if received > self.index_of(self.segments) {
            return Err(TermCode::STREAM_CATASTROPHIC.into());
        }
        self.release(received);
        self.peer_finished = true;
        self.qp.peer_finished();
        Ok(())
    }

    fn receive_control(&mut self, memory: &mut impl Memory, index: u64, message: &[u8]) {
        match Hello::parse(message) {
            Ok(Hello::Ready) => self.enqueue(memory, index, Delivery::Effect(Effect::None)),
            Ok(Hello::Finish { received }) => {
                self.enqueue(memory, index, Delivery::Finish(received));
            }
            _ => self.refuse(TermCode::STREAM_CATASTROPHIC.into(), &[], 0),
        }
    }

    /// The first message after the request shows that the reply is there: the responder may send.
    fn note_first_segment(&mut self) {
        if !self.is_initiator && self.qp.state() == State::Waiting {
            self.deadline = None;
            self.qp.open();
        }
    }

    fn handle_startup(&mut self, index: u64, message: &[u8]) {
        if index != 0 {
            // Nothing but the request precedes the reply, and nothing the Ready of the initiator.
            self.qp.fail(Error::Startup(ParseError::Role));
            return;
        }
        let hello = match Hello::parse(message) {
            Ok(hello) => hello,
            Err(error) => {
                self.qp.fail(Error::Startup(error));
                return;
            }
        };
        match (self.phase, hello) {
            // A request that is repeated while the user decides.
            (Phase::Decide { .. }, Hello::Request(_)) => {}
            (Phase::AwaitRequest, Hello::Request(terms)) if terms.segment_max >= SEGMENT_MIN => {
                self.arrivals.insert(index, self.config.window);
                self.private = terms.private.into();
                self.deadline = None;
                self.phase = Phase::Decide {
                    ird: terms.ird,
                    ord: terms.ord,
                    segment_max: terms.segment_max,
                    features: terms.features,
                };
                self.qp.event(Event::Request);
            }
            (Phase::AwaitReply, Hello::Reply(terms)) => self.conclude(&terms),
            (Phase::AwaitReply, Hello::Refusal(terms)) => {
                self.private = terms.private.into();
                self.qp.fail(Error::Rejected);
            }
            (Phase::AwaitRequest, Hello::Request(_)) => {
                let error = Error::PeerIncompatible(Incompatible::SegmentSize);
                self.qp.fail(error);
            }
            _ => self.qp.fail(Error::Startup(ParseError::Role)),
        }
    }

    /// The initiator has a reply.
    fn conclude(&mut self, terms: &Terms<'_>) {
        self.arrivals.insert(0, self.config.window);
        self.private = terms.private.into();
        self.deadline = None;
        let own = self.config.qp;
        let segment_max = terms.segment_max.min(self.config.segment_max);
        let incompatible = if segment_max < SEGMENT_MIN {
            Some(Incompatible::SegmentSize)
        } else {
            None
        };
        let ord = conclude(own.ird, own.ord, terms.ird, terms.ord);
        let (Some(ord), None) = (ord, incompatible) else {
            let why = incompatible.unwrap_or(Incompatible::Reads);
            self.qp.fail(Error::PeerIncompatible(why));
            return;
        };
        self.queue_control(1, &Hello::Ready);
        self.establish(own.ird, ord, segment_max, terms.features);
        self.qp.open();
    }

    /// Notes that messages below `index` are acknowledged: their payload is not needed any more.
    pub fn handle_released(&mut self, now: Time, index: u64) {
        self.release(index);
        self.settle(now);
    }

    fn release(&mut self, index: u64) {
        while self.control_sent > 0 && self.control.front().is_some_and(|(at, _)| *at < index) {
            self.control.pop_front();
            self.control_sent -= 1;
        }
        let segments = index.saturating_sub(self.index_of(0)).min(self.segments);
        self.qp.release(segments);
    }

    /// Notes that the peer has closed the lower layer.
    pub fn handle_eof(&mut self, now: Time) {
        let expected = self.peer_finished || self.qp.state() == State::Finished;
        if expected || self.qp.state() == State::Terminating {
            self.qp.peer_finished();
        } else {
            self.qp.fail(Error::Lost);
        }
        self.settle(now);
    }

    /// Notes that the lower layer is broken.
    pub fn handle_lost(&mut self, now: Time) {
        self.qp.fail(Error::Lost);
        self.settle(now);
    }

    /// Appends a whole message, to be sent before any segment polled later, to `out`, and returns
    /// its number.
    pub fn poll_control(&mut self, out: &mut Vec<u8>) -> Option<u64> {
        let (index, message) = self.control.get(self.control_sent)?;
        out.extend_from_slice(message);
        self.control_sent += 1;
        Some(*index)
    }

    /// Returns the next segment, its header written to `header`.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        memory: &mut impl Memory,
        header: &mut [u8; HEADER_MAX],
    ) -> Option<Datagram> {
        let params = self.params?;
        if self.control_sent < self.control.len() {
            return None;
        }
        let emission = self.qp.poll_segment(memory, params.ulpdu_max, header);
        self.segments += u64::from(emission.is_some());
        self.settle(now);
        Some(self.datagram(&emission?))
    }

    fn datagram(&self, emission: &Emission) -> Datagram {
        Datagram {
            segment: Segment {
                index: self.index_of(emission.index),
                header_len: emission.header_len,
                payload: emission.payload,
                payload_len: emission.payload_len,
            },
            crc: self.has_crc(),
        }
    }

    /// Number of the message with that segment: a request and a Ready, or a reply, come before the
    /// first.
    fn index_of(&self, segment: u64) -> u64 {
        segment + if self.is_initiator { 2 } else { 1 }
    }

    /// Makes a message again that was handed out and is not released: its header is written to
    /// `header`, or all of it appended to `control`. `None`: it is not needed any more, or its
    /// memory was withdrawn and [`Self::handle_payload_gone`] is in order.
    pub fn repeat(
        &self,
        memory: &impl Memory,
        index: u64,
        header: &mut [u8; HEADER_MAX],
        control: &mut Vec<u8>,
    ) -> Option<Repeat> {
        let mut sent = self.control.iter().take(self.control_sent);
        if let Some((_, message)) = sent.find(|(at, _)| *at == index) {
            control.extend_from_slice(message);
            return Some(Repeat::Control);
        }
        let segment = index.checked_sub(self.index_of(0))?;
        let ulpdu_max = self.params?.ulpdu_max;
        let emission = self.qp.regenerate(memory, segment, ulpdu_max, header)?;
        Some(Repeat::Datagram(self.datagram(&emission)))
    }

    /// Returns how far the queue pair is.
    #[must_use]
    pub fn state(&self) -> State {
        self.qp.state()
    }

    /// Returns the peer's Terminate, if it sent one.
    #[must_use]
    pub fn terminate(&self) -> Option<&crate::wire::rdmap::Terminate> {
        self.qp.peer_terminate()
    }

    /// Returns how many messages have arrived while one before them was missing, and that are
    /// complete but for that.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn shut_down(&mut self, now: Time) {
        if !self.shut_down {
            self.shut_down = true;
            self.qp.event(Event::ShutdownSend);
            self.deadline = Some(now.after(self.config.close_timeout_ns));
        }
    }

    /// Applies the queue pair's state to the lower layer.
    fn settle(&mut self, now: Time) {
        if self.qp.is_drained() {
            self.qp.finish();
            let index = self.index_of(self.segments);
            let received = self.arrivals.base();
            self.queue_control(index, &Hello::Finish { received });
            self.shut_down(now);
        }
        if self.qp.state() == State::Terminating && !self.qp.must_terminate() {
            self.shut_down(now);
        }
        if self.qp.state() == State::Closed && !self.disconnected {
            self.disconnected = true;
            self.deadline = None;
            self.qp.event(Event::Disconnect);
        }
    }
}

impl ReliableConnection for MessageConnection {
    fn set_queue_pair(&mut self, qp: QpConfig) {
        self.config.qp = qp;
        self.qp.configure(qp);
    }

    fn requested(&self) -> Option<(u16, u16)> {
        match self.phase {
            Phase::Decide { ird, ord, .. } => Some((ird, ord)),
            _ => None,
        }
    }

    fn accept(&mut self, now: Time, private: &[u8]) -> Result<(), PostError> {
        let Phase::Decide {
            ird,
            ord,
            segment_max,
            features,
        } = self.phase
        else {
            return Err(PostError::NoRequest);
        };
        let own = self.config.qp;
        let answer = answer(own.ird, own.ord, ird, ord);
        let agreed = segment_max.min(self.config.segment_max);
        let terms = self.terms(answer.said_ird, answer.said_ord, agreed, private)?;
        self.queue_control(0, &Hello::Reply(terms));
        self.deadline = Some(now.after(self.config.startup_timeout_ns));
        self.establish(answer.ird, answer.ord, agreed, features);
        Ok(())
    }

    fn reject(&mut self, now: Time, private: &[u8]) -> Result<(), PostError> {
        if !matches!(self.phase, Phase::Decide { .. }) {
            return Err(PostError::NoRequest);
        }
        let terms = self.terms(0, 0, self.config.segment_max, private)?;
        self.queue_control(0, &Hello::Refusal(terms));
        self.phase = Phase::Open;
        self.qp.finish();
        self.shut_down(now);
        Ok(())
    }

    fn post_send(&mut self, wr: SendWr) -> Result<(), PostError> {
        self.qp.post_send(wr)
    }

    fn post_receive(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.qp.post_receive(wr)
    }

    fn close(&mut self, now: Time) {
        self.qp.close(true);
        self.settle(now);
    }

    fn abort(&mut self, now: Time) {
        self.qp.fail(Error::Aborted);
        self.settle(now);
    }

    fn handle_timeout(&mut self, now: Time) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        self.deadline = None;
        if self.shut_down {
            self.qp.peer_finished();
        }
        self.qp.fail(Error::TimedOut);
        self.settle(now);
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.deadline
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.qp.poll_event()
    }

    fn params(&self) -> Option<Params> {
        self.params
    }

    fn private_data(&self) -> &[u8] {
        &self.private
    }

    fn error(&self) -> Option<Error> {
        self.qp.error()
    }
}

const fn crc_len(crc: bool) -> usize {
    if crc { CRC_LEN } else { 0 }
}

/// The headers at the start of a segment; `None` if it is too short for them.
fn headers_of(segment: &[u8]) -> Option<&[u8]> {
    let first = *segment.first()?;
    let ddp_len = Header::len_of(first);
    let payload = segment.len().checked_sub(ddp_len)?;
    debug_assert!(ddp_len <= UNTAGGED_LEN);
    segment.get(..ddp_len + Opcode::header_len(segment[1], payload))
}
