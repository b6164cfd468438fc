//! A reliable connection over a byte stream: MPA (RFC 5044, RFC 6581) below, the queue pair above.
//!
//! Input: bytes of the stream; [`Next`] returns where to place the payload among them. Output:
//! start-up frames ([`StreamConnection::poll_startup`]), then FPDUs
//! ([`StreamConnection::poll_transmit`]) as header bytes, a payload by name, and a trailer.

mod config;
mod next;
mod rx;
mod startup;
mod tx;

use crate::crc::Crc32c;
use crate::error::{Error, Incompatible, PostError};
use crate::llp::{HEADER_MAX, Params, ReliableConnection, Segment};
use crate::memory::{Memory, Placement, Target};
use crate::operation::{Operation, RecvWr};
use crate::qp::{Effect, Event, Incoming, Order, Payload, Qp, QpConfig, SendWr, State, Violation};
use crate::stag::Stag;
use crate::time::Time;
use crate::wire::TermCode;
use crate::wire::mpa::{LENGTH_LEN, RtrKinds};

pub use config::StreamConfig;
pub use next::{Next, Received};
pub use tx::{Fpdu, Piece, Pieces, Trailer};

use rx::{Rx, Seen};
use startup::{Startup, Step};
use tx::ulpdu_len;

/// A reliable connection over a byte stream.
///
/// Contract: after every call that takes `&mut self`, drain [`Self::poll_startup`],
/// [`Self::poll_transmit`] and [`Self::poll_event`], then ask [`Self::poll_timeout`].
#[derive(Debug)]
pub struct StreamConnection {
    config: StreamConfig,
    qp: Qp,
    startup: Option<Box<Startup>>,
    /// A start-up frame being sent.
    frame: Vec<u8>,
    params: Option<Params>,
    private: Box<[u8]>,
    is_initiator: bool,
    /// The responder sends nothing before it has seen a good FPDU.
    heard_fpdu: bool,
    rx: Rx,
    /// The effect of the FPDU that is being received, or why it is refused.
    admitted: Result<Effect, Violation>,
    /// Strict: a verified FPDU lies in the stage.
    unstaging: Option<Placement>,
    /// Bytes sent since start-up.
    position: u64,
    deadline: Option<Time>,
    /// Since when something waits for the peer and nothing has moved.
    waits_since: Option<Time>,
    shut_down: bool,
    disconnected: bool,
}

impl StreamConnection {
    /// Makes the initiator's end: the stream is connected, the request is the first to be sent.
    ///
    /// # Errors
    /// The private data does not fit.
    pub fn connect(now: Time, config: StreamConfig, private: &[u8]) -> Result<Self, PostError> {
        let mut frame = Vec::new();
        let startup = Startup::connect(&config, private, &mut frame)?;
        Ok(Self::new(now, config, startup, frame))
    }

    /// Makes the responder's end: the request is the first to be received.
    #[must_use]
    pub fn listen(now: Time, config: StreamConfig) -> Self {
        Self::new(now, config, Startup::accept(), Vec::new())
    }

    fn new(now: Time, config: StreamConfig, startup: Startup, frame: Vec<u8>) -> Self {
        Self {
            qp: Qp::new(config.qp, Order::InOrder),
            is_initiator: startup.is_initiator(),
            startup: Some(Box::new(startup)),
            frame,
            params: None,
            private: Box::default(),
            heard_fpdu: false,
            rx: Rx::new(),
            admitted: Ok(Effect::None),
            unstaging: None,
            position: 0,
            deadline: Some(now.after(config.startup_timeout_ns)),
            waits_since: None,
            shut_down: false,
            disconnected: false,
            config,
        }
    }

    /// Takes bytes of the stream that have arrived.
    pub fn handle_bytes(&mut self, now: Time, memory: &mut impl Memory, bytes: &[u8]) -> Received {
        let mut at = 0;
        self.waits_since = None;
        if self.startup.is_some() {
            at = self.handle_startup(now, bytes);
            if self.startup.is_some() {
                return Received {
                    consumed: at,
                    next: Next::More { at_least: 1 },
                };
            }
        }
        let next = self.receive(memory, bytes, &mut at);
        self.settle(now);
        Received { consumed: at, next }
    }

    fn receive(&mut self, memory: &mut impl Memory, bytes: &[u8], at: &mut usize) -> Next {
        loop {
            if self.ignores_input() {
                *at = bytes.len();
                return Next::More { at_least: 1 };
            }
            if let Some(placement) = self.unstaging {
                return Next::Unstage(placement);
            }
            match self.rx.look(bytes, at) {
                Seen::Incomplete => {
                    let at_least = self.rx.wants();
                    return Next::More { at_least };
                }
                Seen::Headers => self.admit(memory),
                Seen::Payload if self.config.strict => return self.rx.stage(),
                Seen::Payload => return Next::Place(self.rx.placement()),
                Seen::Whole { crc_matches } => self.conclude(memory, crc_matches),
                Seen::BadMarker => self.qp.terminate(TermCode::MPA_MARKER.into(), &[], 0),
            }
        }
    }

    /// Whatever arrives is dropped.
    fn ignores_input(&self) -> bool {
        matches!(self.qp.state(), State::Terminating | State::Closed)
    }

    /// The headers of an FPDU are there. Strict: they are looked at when they are verified.
    fn admit(&mut self, memory: &mut impl Memory) {
        if self.is_initiator && !self.qp.has_sent() {
            // RFC 5044 §7.1.2 rule 4: the responder must wait for the initiator's first FPDU.
            self.qp.fail(Error::PeerMisbehaved(TermCode::MPA_STARTUP));
            return;
        }
        let mut target = Target::Discard;
        if !self.config.strict {
            self.admitted = match self.check(memory) {
                Ok((placement, effect)) => {
                    target = placement.map_or(Target::Discard, |placement| placement.target);
                    Ok(effect)
                }
                Err(violation) => Err(violation),
            };
        }
        self.rx.begin(target);
    }

    fn check(
        &mut self,
        memory: &mut impl Memory,
    ) -> Result<(Option<Placement>, Effect), Violation> {
        let (octets, len) = self.rx.segment();
        let octets = octets.ok_or(Rx::SHORT)?;
        self.qp.admit(memory, &Incoming { octets, len })
    }

    /// An FPDU is whole.
    fn conclude(&mut self, memory: &mut impl Memory, crc_matches: bool) {
        let checks = self.params.is_some_and(|params| params.crc);
        if checks && !crc_matches {
            // RFC 5044 §8: nothing in it may be trusted, its header included.
            self.qp.terminate(TermCode::MPA_CRC.into(), &[], 0);
            return;
        }
        self.note_first_segment();
        if self.config.strict {
            self.admitted = match self.check(memory) {
                Ok((placement, effect)) => {
                    self.unstaging = placement;
                    Ok(effect)
                }
                Err(violation) => Err(violation),
            };
            if self.unstaging.is_some() {
                return;
            }
        }
        self.deliver(memory);
    }

    /// The first good FPDU opens the responder's side (RFC 5044 §7.1.2 rule 4).
    fn note_first_segment(&mut self) {
        if !self.heard_fpdu {
            self.heard_fpdu = true;
            if !self.is_initiator {
                self.deadline = None;
                self.qp.open();
            }
        }
    }

    fn deliver(&mut self, memory: &mut impl Memory) {
        let admitted = std::mem::replace(&mut self.admitted, Ok(Effect::None));
        let done = admitted.and_then(|effect| self.qp.deliver(memory, effect));
        if let Err(violation) = done {
            let (octets, len) = self.rx.last_segment();
            self.qp.terminate(violation, octets, len);
        }
    }

    /// Notes that `len` bytes of payload were placed, or staged, and run through the digest.
    pub fn handle_placed(&mut self, len: u32) {
        self.waits_since = None;
        self.rx.placed(len);
    }

    /// Notes that the stage was copied to its place.
    pub fn handle_unstaged(&mut self, now: Time, memory: &mut impl Memory) {
        if self.unstaging.take().is_some() {
            self.deliver(memory);
        }
        self.settle(now);
    }

    /// Notes that a placement could not be carried out: the memory was withdrawn meanwhile.
    pub fn handle_memory_gone(&mut self, now: Time) {
        let staged = self.unstaging.take();
        let placement = staged.unwrap_or_else(|| self.rx.placement());
        self.qp.charge_placement(placement.target);
        let (octets, len) = self.rx.last_segment();
        let violation = Violation {
            code: TermCode::DDP_INVALID_STAG,
            read: None,
            local: true,
        };
        self.qp.terminate(violation, octets, len);
        self.settle(now);
    }

    /// Notes that the payload of a segment cannot be sent: its memory was withdrawn meanwhile.
    /// Where the FPDU has `begun` to leave, no Terminate can follow: close the stream in a way that
    /// the peer notices.
    pub fn handle_payload_gone(&mut self, now: Time, payload: Payload, begun: bool) {
        let violation = self.qp.charge_payload(payload);
        if begun {
            self.qp.fail(Error::LocalMemory(TermCode::INVALID_STAG));
        } else {
            self.qp.terminate(violation, &[], 0);
        }
        self.settle(now);
    }

    /// Returns the CRC of the FPDU that is being received, to be continued over its payload.
    pub fn digest(&mut self) -> &mut Crc32c {
        self.rx.digest()
    }

    /// Notes that FPDUs below `index` ([`Segment::index`]) are in the hands of a lower layer that
    /// does not need the payload any more: it has copied it, or it is acknowledged.
    pub fn handle_released(&mut self, now: Time, index: u64) {
        self.qp.release(index);
        self.waits_since = None;
        self.settle(now);
    }

    /// Notes that the peer has closed its direction of the stream.
    pub fn handle_eof(&mut self, now: Time) {
        if self.startup.take().is_some() {
            let refused_revision = self.is_initiator && self.config.revision == 2;
            self.qp.fail(if refused_revision {
                Error::PeerIncompatible(Incompatible::Revision)
            } else {
                Error::Lost
            });
        } else if self.qp.state() == State::Finished
            || (self.rx.is_between() && self.unstaging.is_none() && self.may_end())
        {
            self.qp.peer_finished();
        } else {
            self.qp.fail(Error::Lost);
        }
        self.settle(now);
    }

    /// Whether the end of the peer's stream is in order. A responder may not send before it has
    /// received: an initiator that has sent nothing expects no close notice.
    fn may_end(&self) -> bool {
        self.qp.may_end() || self.is_initiator && !self.qp.has_sent()
    }

    /// Notes that the stream is broken.
    pub fn handle_lost(&mut self, now: Time) {
        self.startup = None;
        self.qp.fail(Error::Lost);
        self.settle(now);
    }

    /// Appends a start-up frame, which is sent before any FPDU, to `out`.
    pub fn poll_startup(&mut self, out: &mut Vec<u8>) -> bool {
        let frame = std::mem::take(&mut self.frame);
        out.extend_from_slice(&frame);
        !frame.is_empty()
    }

    /// Returns the next FPDU, its header written to `header`.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        memory: &mut impl Memory,
        header: &mut [u8; HEADER_MAX],
    ) -> Option<Fpdu> {
        let params = self.params?;
        if !self.frame.is_empty() {
            return None;
        }
        let slot = &mut header[LENGTH_LEN..];
        let emission = self.qp.poll_segment(memory, params.ulpdu_max, slot);
        self.settle(now);
        let emission = emission?;
        let segment = Segment {
            index: emission.index,
            header_len: LENGTH_LEN + emission.header_len,
            payload: emission.payload,
            payload_len: emission.payload_len,
        };
        let ulpdu = u16::try_from(ulpdu_len(&segment)).unwrap_or(u16::MAX);
        header[..LENGTH_LEN].copy_from_slice(&ulpdu.to_be_bytes());
        let fpdu = Fpdu::new(segment, params.crc, params.markers_out, self.position);
        self.position += fpdu.wire_len();
        Some(fpdu)
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

    fn handle_startup(&mut self, now: Time, bytes: &[u8]) -> usize {
        let Some(startup) = &mut self.startup else {
            return 0;
        };
        let (consumed, step) = startup.handle_bytes(&self.config, bytes);
        match step {
            Step::Pending => {}
            Step::Request(private) => {
                self.private = private;
                self.deadline = None;
                self.qp.event(Event::Request);
                if consumed < bytes.len() {
                    return consumed + self.handle_startup(now, &bytes[consumed..]);
                }
            }
            Step::Reply(private, agreement) => {
                self.private = private;
                self.deadline = None;
                match agreement {
                    Ok((params, kinds)) => self.begin(params, kinds),
                    Err(refused) => self.refuse_reply(&refused),
                }
            }
            Step::Rejected(private) => {
                self.private = private;
                self.startup = None;
                self.qp.fail(Error::Rejected);
            }
            Step::Failed(error) => {
                self.startup = None;
                self.qp.fail(error);
            }
        }
        self.settle(now);
        consumed
    }

    /// The initiator has a reply.
    fn begin(&mut self, params: Params, kinds: Option<RtrKinds>) {
        self.establish(params);
        self.qp.open();
        if let Some(kinds) = kinds {
            self.qp.send_rtr(rtr(kinds));
        }
    }

    /// RFC 6581 §6: unacceptable parameters are answered by a Terminate.
    fn refuse_reply(&mut self, refused: &startup::Agreement) {
        let code = match refused.why {
            Incompatible::Reads => TermCode::MPA_IRD,
            _ => TermCode::MPA_RTR,
        };
        self.startup = None;
        self.params = Some(refused.params);
        let error = Error::PeerIncompatible(refused.why);
        self.qp.terminate_as(code.into(), &[], 0, error);
    }

    fn establish(&mut self, params: Params) {
        self.startup = None;
        self.params = Some(params);
        if params.markers_in {
            self.rx.expect_markers();
        }
        self.qp.set_limits(params.ird, params.ord, params.features);
        self.qp.event(Event::Established);
    }

    /// Applies the queue pair's state to the lower layer.
    fn settle(&mut self, now: Time) {
        let drained = self.qp.is_drained();
        if drained {
            self.qp.finish();
        }
        let told = self.qp.state() == State::Terminating && !self.qp.must_terminate();
        if (drained || told) && !self.shut_down {
            self.shut_down = true;
            self.qp.event(Event::ShutdownSend);
            self.deadline = Some(now.after(self.config.close_timeout_ns));
        }
        self.waits_since = match self.waits_since {
            _ if self.qp.is_idle() => None,
            since => since.or(Some(now)),
        };
        if self.qp.state() == State::Closed && !self.disconnected {
            self.disconnected = true;
            self.deadline = None;
            self.qp.event(Event::Disconnect);
        }
    }
}

impl ReliableConnection for StreamConnection {
    fn set_queue_pair(&mut self, qp: QpConfig) {
        self.config.qp = qp;
        self.qp.configure(qp);
    }

    fn requested(&self) -> Option<(u16, u16)> {
        self.startup.as_ref()?.requested()
    }

    fn accept(&mut self, now: Time, private: &[u8]) -> Result<(), PostError> {
        let startup = self.startup.as_mut().ok_or(PostError::NoRequest)?;
        let (params, kinds) = startup.reply(&self.config, private, &mut self.frame)?;
        if kinds.send {
            self.qp.expect_rtr_send();
        }
        // Only a peer-to-peer initiator sends at once.
        let patience = self.config.startup_timeout_ns;
        self.deadline = params.peer_to_peer.then(|| now.after(patience));
        self.establish(params);
        Ok(())
    }

    fn reject(&mut self, now: Time, private: &[u8]) -> Result<(), PostError> {
        let startup = self.startup.as_mut().ok_or(PostError::NoRequest)?;
        startup.refuse(&self.config, private, &mut self.frame)?;
        self.startup = None;
        self.qp.finish();
        self.shut_down = true;
        self.qp.event(Event::ShutdownSend);
        self.deadline = Some(now.after(self.config.close_timeout_ns));
        Ok(())
    }

    fn post_send(&mut self, wr: SendWr) -> Result<(), PostError> {
        self.qp.post_send(wr)
    }

    fn post_receive(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.qp.post_receive(wr)
    }

    fn close(&mut self, now: Time) {
        let opens = |params: Params| params.peer_to_peer && params.features.close_notice;
        self.qp.close(self.params.is_some_and(opens));
        self.settle(now);
    }

    fn abort(&mut self, now: Time) {
        self.qp.fail(Error::Aborted);
        self.settle(now);
    }

    fn handle_timeout(&mut self, now: Time) {
        if self.poll_timeout().is_none_or(|deadline| now < deadline) {
            return;
        }
        self.deadline = None;
        self.startup = None;
        if self.shut_down {
            self.qp.peer_finished();
        }
        self.qp.fail(Error::TimedOut);
        self.settle(now);
    }

    fn poll_timeout(&self) -> Option<Time> {
        let is_open = !self.disconnected && self.params.is_some();
        let since = self.waits_since.filter(|_| is_open);
        let silent = since.zip(self.config.peer_timeout_ns);
        let silent = silent.map(|(since, ns)| since.after(ns));
        self.deadline.into_iter().chain(silent).min()
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

/// The cheapest of the kinds: a Write takes no receive and no answer (docs/protocol/iwarp.md).
fn rtr(kinds: RtrKinds) -> Operation {
    if kinds.write {
        Operation::Write {
            stag: Stag(1),
            to: 0,
            placed: false,
        }
    } else if kinds.read {
        Operation::Read {
            sink: Stag(1),
            sink_to: 0,
            source: Stag(1),
            source_to: 0,
        }
    } else {
        Operation::Send {
            solicited: false,
            invalidate: None,
        }
    }
}
