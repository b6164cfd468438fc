//! One end of one segment of a session: its control connection, its channels, its connections, its
//! two directions of slabs.
//!
//! Contract: after every call that takes `&mut`, drain [`Session::poll_transmit`],
//! [`Session::poll_event`] and the `poll_*` of [`Session::producer`] and [`Session::consumer`],
//! then ask [`Session::poll_timeout`], before the next.

#[cfg(debug_assertions)]
mod added;
mod chan;
mod conn;
mod control;
mod entry;
mod event;
mod link;
mod metadata;
mod reach;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::auth::{AuthConfig, Secrets, same};
use crate::bag::{Breach, Consumer, ConsumerConfig, Producer, ProducerConfig};
use crate::error::{Error, Misbehaviour, Misuse};
use crate::time::{SECOND_NS, Time};
use crate::wire::{
    BODY_MAX, Claim, Endpoint, FIRSTS_MAX, HOPS_MAX, Hop, Metadata, NackStatus, Pdu, ProtoOffer,
    SessAck, SessOpen, TICKET_LEN,
};
use crate::{ChanId, ConnId, SessionId};

use entry::{Chan, Conn, Loss};
use link::ControlLink;

pub use control::negotiate;
pub use event::{Event, ResumeRequest};

/// Events that wait for the engine. Beyond, nothing more is taken from the peer.
const EVENTS_MAX: usize = 256;
/// Messages that wait for the peer. Beyond, nothing more is taken from it.
const QUEUE_MAX: usize = 1_024;

/// Settings of the local user.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// Most bytes of a body that this end takes, at most 1 MiB.
    pub max_ctrl: u32,
    /// Keep-alive interval, ns. The lesser of both ends' applies.
    pub keepalive_ns: u64,
    /// How long a session outlives its control connection, ns.
    pub lifetime_ns: u64,
    /// The same while every attempt shows that the peer is gone, ns: see [`Session::note_gone`].
    pub hold_ns: u64,
    /// Timeout of a silent peer with a pending request for a connection or the session, ns.
    pub answer_ns: u64,
    /// Time for a session to be opened or resumed, ns. While requests to hops beyond the peer are
    /// pending, as much again for each.
    pub handshake_ns: u64,
    /// Most connections at a time; no more than the consumer's arena has extents, and
    /// `consumer.conns_max` follows.
    pub conns_max: usize,
    /// Most channels at a time.
    pub chans_max: usize,
    /// Protocols of this end, for the segment to it.
    pub protocols: Vec<ProtoOffer>,
    /// The required identity of the peer.
    pub auth: AuthConfig,
    /// Limits of the sending side.
    pub producer: ProducerConfig,
    /// Limits of the receiving side.
    pub consumer: ConsumerConfig,
    /// This end is an end of the session, not a gateway: it keeps what it sends and acknowledges
    /// what it gets where the session is acknowledged from end to end.
    pub is_end: bool,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            max_ctrl: 1 << 20,
            keepalive_ns: 10 * SECOND_NS,
            lifetime_ns: 300 * SECOND_NS,
            hold_ns: 15 * SECOND_NS,
            answer_ns: 2_800_000_000,
            handshake_ns: 10 * SECOND_NS,
            conns_max: 16_384,
            chans_max: 64,
            protocols: Vec::new(),
            auth: AuthConfig::default(),
            producer: ProducerConfig::default(),
            consumer: ConsumerConfig::default(),
            is_end: true,
        }
    }
}

/// The state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The ends authenticate each other.
    Greeting,
    /// Requested, without an answer.
    Opening,
    /// Open.
    Open,
    /// Without a control connection; resumed or over by this time.
    Suspended(Time),
    /// Closing: data in flight is finished.
    Draining,
    /// Over.
    Closed,
}

/// The request to this end, or by it.
#[derive(Debug)]
enum Asked {
    Nothing,
    Open(SessOpen),
    Resume([u8; TICKET_LEN]),
}

/// One end of one segment of a session.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    is_opener: bool,
    id: SessionId,
    state: State,
    link: Option<ControlLink>,
    secrets: Secrets,
    asked: Asked,
    /// The session as it was opened; for opening it again on another way.
    open: SessOpen,
    ack: SessAck,
    /// The last claim to it: made by an opener, or taken by an acceptor.
    claim: Claim,
    /// Opener: the newest way that the peer has accepted. Slabs are counted on it.
    way: u32,
    /// Opener: other hops have received the request since then, so their refusals are not final.
    is_elsewhere: bool,
    conns: BTreeMap<ConnId, Conn>,
    /// Metadata of the session, if this end is to send it.
    metadata: Metadata,
    /// To be sent to the peer.
    is_metadata_due: bool,
    /// Bytes of metadata of connections that the peer has opened.
    metadata_octets: usize,
    /// First bytes of connections that wait for this end's answer, and for the peer's.
    early_in: usize,
    early_out: usize,
    /// Connections that may have become over since the last [`Self::reap`].
    ending: BTreeSet<ConnId>,
    next_conn: u32,
    chans: BTreeMap<ChanId, Chan>,
    next_chan: u32,
    producer: Producer,
    consumer: Consumer,
    events: VecDeque<Event>,
    /// End-to-end acknowledgements to be passed on.
    acked: BTreeMap<ConnId, u64>,
    /// Set if it is to end when all data has arrived, with the reason: also while it is suspended,
    /// and when it is resumed.
    closing: Option<NackStatus>,
    /// The peer of this control connection has a report of it.
    has_said_so: bool,
    peer_closing: bool,
    /// Set when the control connection is lost, until the session goes on.
    loss: Option<Loss>,
    /// Own connections that may wait for the peer's answer, and since when.
    asking: VecDeque<(ConnId, Option<Time>)>,
}

impl Session {
    /// Opens a session over the hops of `open`: control connection to the hop that `open.hop_index`
    /// names. `seed`: 32 random bytes, used for nothing else.
    ///
    /// # Errors
    /// No hops or too many, or a ring of fewer than three regions.
    pub fn open(
        config: SessionConfig,
        now: Time,
        id: SessionId,
        open: SessOpen,
        seed: [u8; 32],
    ) -> Result<Self, Misuse> {
        Self::open_with(config, now, id, open, &[], seed).map(|(session, _)| session)
    }

    /// As [`Self::open`], with requests for connections in the same message. Returns their numbers,
    /// in the order of `firsts`. At most [`FIRSTS_MAX`] are taken, and none with a ticket. Their
    /// outcomes are reported once the session is open; if it never opens, there are none.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(
        config: SessionConfig,
        now: Time,
        id: SessionId,
        mut open: SessOpen,
        firsts: &[(Endpoint, Metadata)],
        seed: [u8; 32],
    ) -> Result<(Self, Vec<ConnId>), Misuse> {
        if open.hops.is_empty()
            || open.hops.len() > HOPS_MAX
            || usize::from(open.hop_index) >= open.hops.len()
        {
            return Err(Misuse::Hops);
        }
        open.max_ctrl = config.max_ctrl;
        open.keepalive_ms = millis(config.keepalive_ns);
        let mut session = Self::new(config, true, seed, open.end_to_end)?;
        session.id = id;
        session.claim = open.claim;
        open.firsts = Vec::new();
        session.open = open.clone();
        let most = if open.ticket.is_none() { FIRSTS_MAX } else { 0 };
        for (to, metadata) in firsts.iter().take(most.min(session.config.conns_max)) {
            open.firsts
                .push(session.first(to.clone(), metadata.clone()));
        }
        let conns = open.firsts.iter().map(|first| first.conn).collect();
        session.asked = Asked::Open(open);
        session.connect(now);
        Ok((session, conns))
    }

    /// Takes a control connection that came in.
    ///
    /// # Errors
    /// A ring of fewer than three regions.
    pub fn accept(config: SessionConfig, now: Time, seed: [u8; 32]) -> Result<Self, Misuse> {
        let mut session = Self::new(config, false, seed, false)?;
        let nonce = session.secrets.draw();
        session.link = Some(session.new_link(now, None, nonce));
        Ok(session)
    }

    fn new(
        mut config: SessionConfig,
        is_opener: bool,
        seed: [u8; 32],
        end_to_end: bool,
    ) -> Result<Self, Misuse> {
        config.max_ctrl = config
            .max_ctrl
            .min(u32::try_from(BODY_MAX).unwrap_or(u32::MAX));
        // Each connection has at least one extent.
        let extents = config.consumer.arena_bytes / config.consumer.extent_bytes_min.max(1);
        let extents = usize::try_from(extents).unwrap_or(usize::MAX);
        config.conns_max = config.conns_max.min(extents);
        config.consumer.conns_max = config.conns_max;
        let (producer, consumer) = directions(&config, end_to_end)?;
        Ok(Self {
            is_opener,
            id: SessionId([0; 16]),
            state: State::Greeting,
            link: None,
            secrets: Secrets::new(seed),
            asked: Asked::Nothing,
            open: SessOpen::default(),
            ack: SessAck::default(),
            claim: Claim::default(),
            way: 0,
            is_elsewhere: false,
            conns: BTreeMap::new(),
            metadata: Metadata::default(),
            is_metadata_due: false,
            metadata_octets: 0,
            early_in: 0,
            early_out: 0,
            ending: BTreeSet::new(),
            next_conn: 1,
            chans: BTreeMap::new(),
            next_chan: 1,
            producer,
            consumer,
            events: VecDeque::new(),
            acked: BTreeMap::new(),
            closing: None,
            has_said_so: false,
            peer_closing: false,
            loss: None,
            asking: VecDeque::new(),
            config,
        })
    }

    fn new_link(&self, now: Time, session: Option<SessionId>, nonce: [u8; 32]) -> ControlLink {
        ControlLink::new(
            now,
            self.is_opener,
            session,
            nonce,
            self.config.max_ctrl,
            self.config.keepalive_ns,
        )
    }

    fn connect(&mut self, now: Time) {
        let nonce = self.secrets.draw();
        let mut link = self.new_link(now, Some(self.id), nonce);
        link.begin(&self.config.auth);
        self.link = Some(link);
        self.ask();
    }

    // Inputs.

    /// Bytes of the control connection: how many were taken. Fewer than there are: drain events
    /// and transmissions first.
    ///
    /// # Errors
    /// [`Error::Damaged`]: the control connection is of no use any more; close it and call
    /// [`Self::handle_lost`]. Another: the session is over; the final messages to the peer are
    /// still in [`Self::poll_transmit`].
    pub fn handle_input(&mut self, now: Time, octets: &[u8]) -> Result<usize, Error> {
        let mut taken = 0;
        while taken < octets.len() && self.wants_input() {
            let Some(link) = &mut self.link else {
                break;
            };
            let (len, pdu) = match link.take(now, &octets[taken..]) {
                Ok(some) => some,
                Err(Misbehaviour::Damaged) => return Err(Error::Damaged),
                Err(Misbehaviour::Version(theirs)) => {
                    return Err(self.fail(Error::Incompatible(theirs)));
                }
                Err(error) => return Err(self.fail(error.into())),
            };
            taken += len;
            let Some(pdu) = pdu else {
                continue;
            };
            let result = if !link.handshake.is_done() {
                let result = link.authenticate(&self.config.auth, &pdu);
                result.map(|()| self.authenticated())
            } else if self.state == State::Greeting && link.handshake.drops_step(&pdu) {
                link.clear();
                Ok(())
            } else {
                link.clear();
                self.on_pdu(now, pdu)
            };
            match result {
                Err(Error::NotAuthenticated(why)) if self.is_elsewhere => {
                    let hop_index = self.open.hop_index;
                    self.put_off(
                        now,
                        NackStatus::NotAuthenticated,
                        hop_index,
                        why.to_string(),
                    );
                }
                Err(error) => return Err(self.fail(error)),
                Ok(()) => {}
            }
        }
        Ok(taken)
    }

    /// Whether bytes of the peer would be taken.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        let queued = self
            .link
            .as_ref()
            .is_some_and(|link| link.out.len() < QUEUE_MAX);
        queued && self.events.len() < EVENTS_MAX && self.state != State::Closed
    }

    /// The control connection is gone. The session is suspended if it may be, else over.
    pub fn handle_lost(&mut self, now: Time) {
        self.link = None;
        match self.state {
            // The opener has ended it, and so has this end, whose final message may be lost: no
            // peer will resume.
            State::Draining if self.peer_closing && !self.is_opener && self.conns.is_empty() => {
                self.end(Error::Closed);
            }
            State::Open | State::Draining if self.ack.resumable => self.suspend(now),
            State::Opening if self.is_resuming() => self.suspend(now),
            State::Greeting if self.is_resuming() => self.suspend(now),
            State::Draining if self.peer_closing => self.end(Error::Closed),
            State::Suspended(_) | State::Closed => {}
            _ => self.end(Error::Lost),
        }
    }

    fn is_resuming(&self) -> bool {
        self.is_opener && self.ack.resumable
    }

    fn suspend(&mut self, now: Time) {
        self.note_asked(now);
        let loss = *self.loss.get_or_insert_with(|| Loss::new(now));
        self.state = State::Suspended(self.over_at(&loss));
        self.has_said_so = false;
        self.consumer.suspend();
        self.producer.suspend();
        self.chans.clear();
        self.events.push_back(Event::Suspended);
    }

    /// Does what is due at a deadline of [`Self::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Time) {
        self.producer.handle_timeout(now);
        self.consumer.handle_timeout(now);
        match self.state {
            State::Suspended(until) if now >= until => {
                let is_gone = self.loss.is_some_and(|loss| loss.is_gone());
                self.end(if is_gone {
                    Error::Gone
                } else {
                    Error::TimedOut
                });
            }
            State::Greeting | State::Opening if self.is_late(now) => {
                if self.is_resuming() {
                    self.handle_lost(now);
                    self.note_silent();
                } else {
                    let _ = self.fail(Error::TimedOut);
                }
            }
            _ => {}
        }
        self.give_up_asking(now);
        let every = self.sign_every();
        let Some(link) = &mut self.link else {
            return;
        };
        let is_up = matches!(self.state, State::Open | State::Draining);
        if is_up && link.is_silent(now) {
            self.handle_lost(now);
        } else if let Some(every) = every
            && link.ping_due(now, every)
        {
            let t_us = now.as_ns() / 1_000;
            link.send(&Pdu::Ping { t_us, echo_us: 0 });
        }
    }

    /// The interval of PINGs, if any are sent.
    fn sign_every(&self) -> Option<u64> {
        let link = self.link.as_ref()?;
        match self.state {
            State::Open | State::Draining => Some(self.probe_ns(link.keepalive_ns)),
            State::Opening if self.is_opener && link.handshake.is_done() => {
                Some(self.probe_ns(self.config.answer_ns / 3))
            }
            _ => None,
        }
    }

    fn is_late(&self, now: Time) -> bool {
        self.late_at().is_some_and(|at| now >= at)
    }

    /// When the session should have been opened or resumed. Each hop beyond has its own time for
    /// that, so that the hop before the silent one is the first to notice.
    fn late_at(&self) -> Option<Time> {
        let hops = self.open.hops.len();
        let beyond = match (self.state, &self.asked) {
            (State::Opening, Asked::Open(_) | Asked::Nothing) => {
                hops.saturating_sub(usize::from(self.open.hop_index) + 1)
            }
            _ => 0,
        };
        let ns = self.config.handshake_ns.saturating_mul(1 + beyond as u64);
        let link = self.link.as_ref()?;
        let at = link.began.after(ns);
        // The peer may need that long to answer, but is not silent meanwhile.
        let silent = link.last_in.after(self.config.answer_ns);
        Some(if self.is_opener { at.min(silent) } else { at })
    }

    // Outputs.

    /// Returns the next bytes for the control connection, a whole PDU.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Vec<u8>> {
        self.note_asked(now);
        if self.is_finishing() {
            return None;
        }
        let is_open = matches!(self.state, State::Open | State::Draining);
        let link = self.link.as_mut()?;
        if let Some(octets) = link.out.pop_front() {
            return Some(octets);
        }
        if let Some(echo_us) = link.pong_due.take() {
            let t_us = now.as_ns() / 1_000;
            return Some(link.encode(&Pdu::Pong { t_us, echo_us }));
        }
        if !is_open {
            return None;
        }
        let pdu = self
            .poll_metadata()
            .or_else(|| self.poll_acked())
            .or_else(|| self.consumer.poll_pdu())
            .or_else(|| self.producer.poll_pdu(now));
        match pdu {
            Some(pdu) => self.link.as_mut().map(|link| link.encode(&pdu)),
            None => self.try_close(),
        }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        // Once for all events: otherwise the cost of many connections that end at once would be
        // quadratic.
        if self.events.is_empty() {
            self.reap();
        }
        self.events.pop_front()
    }

    /// Returns when to call [`Self::handle_timeout`] and to poll for slabs and reads.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let own = match self.state {
            State::Closed => return None,
            State::Suspended(until) => Some(until),
            State::Greeting | State::Opening => [self.late_at(), self.sign_due()]
                .into_iter()
                .flatten()
                .min(),
            State::Open | State::Draining => {
                let dead = self.link.as_ref().map(ControlLink::dead_at);
                [dead, self.sign_due()].into_iter().flatten().min()
            }
        };
        let own = [own, self.answer_due().filter(|_| self.has_answers())]
            .into_iter()
            .flatten()
            .min();
        let bag = [self.producer.poll_timeout(), self.consumer.poll_timeout()];
        bag.into_iter().chain([own]).flatten().min()
    }

    fn sign_due(&self) -> Option<Time> {
        let every = self.sign_every()?;
        self.link.as_ref().map(|link| link.last_ping.after(every))
    }

    // Getters.

    /// Returns the state.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Returns the session id.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.link
            .as_ref()
            .and_then(|link| link.session)
            .unwrap_or(self.id)
    }

    /// Returns the authenticated peer; `None` if authentication was not required.
    #[must_use]
    pub fn peer(&self) -> Option<&str> {
        self.link.as_ref()?.handshake.identity()
    }

    /// Returns the agreed parameters.
    #[must_use]
    pub const fn agreed(&self) -> &SessAck {
        &self.ack
    }

    /// Whether this is the ticket of this session.
    #[must_use]
    pub fn holds(&self, ticket: &[u8; TICKET_LEN]) -> bool {
        let own = self.ack.ticket.or(self.open.ticket);
        own.is_some_and(|own| same(&own, ticket))
    }

    /// Whether the session's owner opens it on a newer way than this gateway's, whose state is then
    /// obsolete.
    #[must_use]
    pub fn is_superseded_by(&self, open: &SessOpen) -> bool {
        let is_own = open.ticket.is_some_and(|ticket| self.holds(&ticket));
        !self.is_opener && is_own && open.claim.way > self.claim.way
    }

    /// Returns the number of connections in any state.
    #[must_use]
    pub fn conns(&self) -> usize {
        self.conns.len()
    }

    /// Returns its hops, the terminus last.
    #[must_use]
    pub fn hops(&self) -> &[Hop] {
        &self.open.hops
    }

    /// Whether this is a dry run, which only checks whether the session could be opened and ends
    /// with the answer.
    #[must_use]
    pub const fn is_dry_run(&self) -> bool {
        self.open.dry_run
    }

    /// Returns the index of the hop at the end of this segment.
    #[must_use]
    pub const fn hop_index(&self) -> u16 {
        self.open.hop_index
    }

    /// Sets how this end authenticates itself on the next control connection.
    pub fn set_auth(&mut self, auth: AuthConfig) {
        self.config.auth = auth;
    }

    /// This end turned out to be a gateway's: before [`Self::accept_session`].
    pub const fn set_relay(&mut self) {
        self.config.is_end = false;
    }

    /// Returns the sending side.
    pub const fn producer(&mut self) -> &mut Producer {
        &mut self.producer
    }

    /// Returns the receiving side.
    pub const fn consumer(&mut self) -> &mut Consumer {
        &mut self.consumer
    }

    /// Notes whether a data channel of this segment is up. Call it before slabs are polled. Without
    /// one, up to 64 KiB are in flight inline, and credit is granted without keys.
    pub fn set_channel(&mut self, is_up: bool) {
        self.producer.set_channel(is_up);
        self.consumer.set_channel(is_up);
    }

    // The end.

    /// Ends the session because of what the peer's slabs showed: an error of [`Consumer`] or
    /// [`Producer`].
    pub fn fail_slab(&mut self, breach: Breach) {
        let _ = self.fail(Misbehaviour::Slab(breach).into());
    }

    /// Ends the session and sends the peer the reason.
    fn fail(&mut self, error: Error) -> Error {
        if self.state != State::Closed {
            let status = error.status();
            let text = error.to_string();
            if let Some(link) = &mut self.link {
                let asked =
                    matches!(self.state, State::Greeting | State::Opening) && !self.is_opener;
                link.send(&if asked {
                    Pdu::SessNack {
                        status,
                        hop_index: self.open.hop_index,
                        text,
                    }
                } else {
                    Pdu::Error {
                        status,
                        severity: 2,
                        ref_seq: 0,
                        hop_index: None,
                        text,
                    }
                });
            }
            self.end(error.clone());
        }
        error
    }

    /// Which hop the peer blames. Towards the terminus that is the peer, which may not know yet
    /// where it is, or one behind it.
    fn blamed(&self, said: Option<u16>) -> Option<u16> {
        if !self.is_opener {
            return said;
        }
        let last = u16::try_from(self.open.hops.len()).unwrap_or(u16::MAX);
        let said = said.unwrap_or_default().min(last.saturating_sub(1));
        Some(said.max(self.open.hop_index))
    }

    /// Ends the session because of another hop's failure, and reports that to the peer. Without an
    /// index it is this one.
    pub fn fail_hop(&mut self, status: NackStatus, hop_index: Option<u16>, text: &str) {
        if self.state == State::Closed {
            return;
        }
        let text = text.to_owned();
        if let Some(link) = &mut self.link {
            link.send(&Pdu::Error {
                status,
                severity: 2,
                ref_seq: 0,
                hop_index,
                text: text.clone(),
            });
        }
        self.end(Error::Ended {
            status,
            hop_index,
            text,
        });
    }

    /// Whether it is open, or closing in order.
    pub(crate) const fn is_up(&self) -> bool {
        matches!(self.state, State::Open | State::Draining)
    }

    /// Whether acknowledgement from end to end was asked for.
    pub(crate) const fn is_end_to_end(&self) -> bool {
        self.open.end_to_end
    }

    /// Ends this end silently: the peer sees its control connection end, and may keep the session.
    pub(crate) fn drop_silently(&mut self) {
        self.link = None;
        self.end(Error::Closed);
    }

    fn end(&mut self, error: Error) {
        if self.state != State::Closed {
            self.state = State::Closed;
            self.events.push_back(Event::Closed(error));
        }
    }

    /// The state of a session that has a control connection again.
    const fn resumed_state(&self) -> State {
        if self.closing.is_some() || self.peer_closing {
            State::Draining
        } else {
            State::Open
        }
    }

    /// Ends the session: when all is done if `abort` is not set, else now. A suspended one waits
    /// for its connections to be resumed, for its lifetime at most.
    pub fn close(&mut self, reason: NackStatus, abort: bool) {
        let is_resuming =
            matches!(self.state, State::Greeting | State::Opening) && self.is_resuming();
        let has_conns = !self.conns.is_empty();
        match self.state {
            State::Closed => {}
            State::Suspended(_) if !abort && has_conns => {
                self.closing = self.closing.or(Some(reason));
            }
            _ if !abort && is_resuming => self.closing = self.closing.or(Some(reason)),
            State::Open | State::Draining if !abort => {
                self.closing = self.closing.or(Some(reason));
                self.state = State::Draining;
            }
            _ => {
                if let Some(link) = &mut self.link {
                    link.send(&Pdu::SessClose {
                        reason,
                        abort: true,
                    });
                }
                self.end(Error::Closed);
            }
        }
    }

    /// Closes when nothing is in flight, and ends when the peer has also closed.
    fn try_close(&mut self) -> Option<Vec<u8>> {
        if self.state != State::Draining
            || !self.conns.is_empty()
            || !self.producer.is_idle()
            || !self.consumer.is_idle()
        {
            return None;
        }
        let due = self.closing.filter(|_| !self.has_said_so);
        self.has_said_so |= due.is_some();
        let said = due.map(|reason| Pdu::SessClose {
            reason,
            abort: false,
        });
        let octets = said.and_then(|pdu| self.link.as_mut().map(|link| link.encode(&pdu)));
        if self.peer_closing {
            self.end(Error::Closed);
        }
        octets
    }
}

fn directions(config: &SessionConfig, end_to_end: bool) -> Result<(Producer, Consumer), Misuse> {
    let keeps = end_to_end && config.is_end;
    let producer = ProducerConfig {
        retain: keeps,
        await_delivery: end_to_end,
        ..config.producer.clone()
    };
    Ok((
        Producer::new(producer)?,
        Consumer::new(config.consumer.clone(), keeps),
    ))
}

fn millis(ns: u64) -> u32 {
    u32::try_from(ns / 1_000_000).unwrap_or(u32::MAX)
}
