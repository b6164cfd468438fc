//! Connections within a session: opened, refused, half closed, reset, finished; and the peer's PDUs
//! about them.

use super::entry::{Conn, ConnPhase};
use super::{Event, Session, State};
use crate::ConnId;
use crate::bag::End;
use crate::error::{Error, Misbehaviour, Misuse};
use crate::time::Time;
use crate::wire::{
    BODY_MAX, ConnState, EARLY_MAX, Endpoint, First, Metadata, NackStatus, PathAction, PathState,
    Pdu, SlabAnnounce,
};

/// First bytes of connections that wait for an answer, in one direction.
const EARLY_UNANSWERED_MAX: usize = 2 << 20;

impl Session {
    // Commands.

    /// Opens a connection to `to` at the far end. Bytes can be handed in once it is accepted.
    ///
    /// # Errors
    /// The session is not open, or has too many connections.
    pub fn open_conn(&mut self, to: Endpoint) -> Result<ConnId, Misuse> {
        self.open_conn_with(to, Metadata::default(), Vec::new())
    }

    /// As [`Self::open_conn`], with metadata of its application, which every hop receives before
    /// the first byte, and the first bytes of the stream, which save a round trip.
    ///
    /// # Errors
    /// As there, or more first bytes than [`Self::early_room`].
    pub fn open_conn_with(
        &mut self,
        to: Endpoint,
        metadata: Metadata,
        early: Vec<u8>,
    ) -> Result<ConnId, Misuse> {
        let conn = self.next_own();
        self.open_conn_as(conn, to, metadata, early)?;
        self.pass_number();
        Ok(conn)
    }

    /// Returns how many first bytes the request for a connection may have now.
    #[must_use]
    pub fn early_room(&self) -> usize {
        if !self.takes_early(false) {
            return 0;
        }
        EARLY_MAX.min(EARLY_UNANSWERED_MAX.saturating_sub(self.early_out))
    }

    /// Whether the peer, or `own`, this end, has agreed to take first bytes with CONN_OPEN.
    const fn takes_early(&self, own: bool) -> bool {
        if self.is_opener == own {
            self.open.takes_early
        } else {
            self.ack.takes_early
        }
    }

    const fn next_own(&self) -> ConnId {
        let side = if self.is_opener {
            0
        } else {
            ConnId::BY_TERMINUS
        };
        ConnId(self.next_conn | side)
    }

    const fn pass_number(&mut self) {
        self.next_conn = (self.next_conn + 1) & !ConnId::BY_TERMINUS;
    }

    /// A connection that is asked for along with the session.
    pub(super) fn first(&mut self, to: Endpoint, metadata: Metadata) -> First {
        let conn = self.next_own();
        self.begin_conn(conn, to.clone(), metadata.clone(), Vec::new());
        self.pass_number();
        let credit = self.consumer.credit(conn);
        First {
            conn,
            credit,
            to,
            metadata,
        }
    }

    /// Handles connections requested along with the session, which is now open. If the peer has not
    /// `taken` them, repeats the request.
    pub(super) fn on_firsts(&mut self, taken: bool) {
        let firsts: Vec<ConnId> = self.conns.keys().copied().collect();
        for conn in firsts {
            // In the original order, because credit was granted from memory in the same state.
            self.producer.open(conn, 0);
            self.consumer.open(conn, 0);
            if taken {
                // The peer has received it.
                self.consumer.credit(conn);
            } else {
                self.send_conn_open(conn);
            }
        }
    }

    /// Accepts connections that the peer requested along with the session.
    pub(super) fn take_firsts(&mut self, firsts: Vec<First>) -> Result<(), Error> {
        firsts
            .into_iter()
            .try_for_each(|first| self.on_conn_open(first, Vec::new()))
    }

    /// As [`Self::open_conn`], with the number that the connection has on the other segment of a
    /// gateway.
    ///
    /// # Errors
    /// As there, or the number is in use or the other end's.
    pub fn open_conn_as(
        &mut self,
        conn: ConnId,
        to: Endpoint,
        metadata: Metadata,
        early: Vec<u8>,
    ) -> Result<(), Misuse> {
        if self.state != State::Open {
            return Err(Misuse::NotOpen);
        }
        if self.conns.len() >= self.config.conns_max {
            return Err(Misuse::Full);
        }
        if conn.is_by_terminus() == self.is_opener || self.conns.contains_key(&conn) {
            return Err(Misuse::NoConnection);
        }
        if early.len() > self.early_room() {
            return Err(Misuse::TooLarge);
        }
        // Dropped metadata is not passed on.
        let metadata = if metadata.is_dropped() {
            Metadata::default()
        } else {
            metadata
        };
        self.begin_conn(conn, to, metadata, early);
        self.send_conn_open(conn);
        Ok(())
    }

    fn begin_conn(&mut self, conn: ConnId, to: Endpoint, metadata: Metadata, early: Vec<u8>) {
        self.producer.open(conn, early.len() as u64);
        self.consumer.open(conn, 0);
        self.early_out += early.len();
        let mut begun = Conn::new(to, metadata, ConnPhase::Opening, true);
        (begun.early_len, begun.early) = (early.len(), early);
        self.conns.insert(conn, begun);
        self.asking.push_back((conn, None));
    }

    fn send_conn_open(&mut self, conn: ConnId) {
        let credit = self.consumer.credit(conn);
        if let (Some(link), Some(known)) = (&mut self.link, self.conns.get(&conn)) {
            link.send(&Pdu::ConnOpen {
                conn,
                credit,
                to: known.to.clone(),
                metadata: known.metadata.clone(),
                early: known.early.clone(),
            });
        }
    }

    /// Accepts a connection that the peer opens.
    ///
    /// # Errors
    /// It does not wait for that.
    pub fn accept_conn(&mut self, conn: ConnId) -> Result<(), Misuse> {
        let known = self
            .conns
            .get_mut(&conn)
            .filter(|known| known.state == ConnPhase::Asked);
        let known = known.ok_or(Misuse::NoConnection)?;
        known.state = ConnPhase::Open;
        self.early_in -= known.early_len;
        self.consumer.open(conn, known.early_len as u64);
        self.send_conn_ack(conn);
        Ok(())
    }

    fn send_conn_ack(&mut self, conn: ConnId) {
        let credit = self.consumer.credit(conn);
        self.send_or_defer(&Pdu::ConnAck {
            conn,
            status: 0,
            credit,
        });
    }

    /// Refuses a connection that the peer opens. `status` is not 0.
    ///
    /// # Errors
    /// It does not wait for that.
    pub fn refuse_conn(&mut self, conn: ConnId, status: u16) -> Result<(), Misuse> {
        if self
            .conns
            .get(&conn)
            .is_none_or(|known| known.state != ConnPhase::Asked)
        {
            return Err(Misuse::NoConnection);
        }
        self.forget(conn);
        self.send_or_defer(&Pdu::ConnAck {
            conn,
            status: status.max(1),
            credit: 0,
        });
        Ok(())
    }

    /// Half close: no more data follows. The peer is notified after the last byte.
    pub fn finish_conn(&mut self, conn: ConnId) {
        self.end_conn(conn, End::Fin);
    }

    /// Ends the stream to the peer after all committed data; for relays.
    pub fn end_conn(&mut self, conn: ConnId, end: End) {
        self.producer.finish(conn, end);
        self.ending.insert(conn);
    }

    /// Resets the connection in both directions: data that is not in a slab is dropped; the peer is
    /// notified after the data in slabs.
    pub fn reset_conn(&mut self, conn: ConnId, code: u16) {
        match self.conns.get_mut(&conn) {
            Some(known) if known.state == ConnPhase::Open => {}
            Some(known) if known.state == ConnPhase::Opening => {
                known.reset_later = known.reset_later.or(Some(code));
                return self.withdraw(conn);
            }
            _ => return,
        }
        self.producer.discard(conn);
        self.producer.finish(conn, End::Reset(code));
        self.stop_conn(conn, code);
    }

    /// Takes back a request whose first bytes would have an effect although nobody waits for it. It
    /// stays known until the peer has answered.
    pub(super) fn withdraw(&mut self, conn: ConnId) {
        let known = self.conns.get(&conn).filter(|known| known.early_len > 0);
        if let Some(code) = known.and_then(|known| known.reset_later) {
            self.send_or_defer(&Pdu::ConnReset { conn, code });
        }
    }

    /// Closes the receiving side; the peer ends its stream with a reset.
    pub fn stop_conn(&mut self, conn: ConnId, code: u16) {
        let Some(known) = self
            .conns
            .get_mut(&conn)
            .filter(|known| known.stopped.is_none())
        else {
            return;
        };
        known.stopped = Some(code);
        self.consumer.discard(conn);
        self.ending.insert(conn);
        self.send_or_defer(&Pdu::ConnReset { conn, code });
    }

    /// The far end has all of a connection before `delivered`: to be passed on, at gateways.
    pub fn pass_delivered(&mut self, conn: ConnId, delivered: u64) {
        if let Some(known) = self.conns.get_mut(&conn) {
            known.passed = known.passed.max(delivered);
            self.acked.insert(conn, known.passed);
            self.ending.insert(conn);
        }
    }

    /// Asks for something with the network's path, of the peer and all behind it.
    ///
    /// # Errors
    /// The session is not open.
    pub fn request_path(
        &mut self,
        action: PathAction,
        request: u32,
        rules: Vec<String>,
    ) -> Result<(), Misuse> {
        self.send(&Pdu::NetPath {
            action,
            request,
            rules,
        })
    }

    /// Answers a request for a path.
    ///
    /// # Errors
    /// The session is not open.
    pub fn path_status(
        &mut self,
        request: u32,
        state: PathState,
        text: &str,
    ) -> Result<(), Misuse> {
        self.send(&Pdu::PathStatus {
            request,
            state,
            text: text.to_owned(),
        })
    }

    /// Sends application data to the far end, in order among themselves; option 1 is reserved for
    /// [`Self::set_metadata`]. They are not retransmitted: those in flight when the control
    /// connection breaks are lost.
    ///
    /// # Errors
    /// The session is not open, or there are too many bytes.
    pub fn send_app(&mut self, option: u32, octets: Vec<u8>) -> Result<(), Misuse> {
        let most = BODY_MAX.min(self.open.max_ctrl as usize).saturating_sub(4);
        if octets.len() > most {
            return Err(Misuse::TooLarge);
        }
        self.send(&Pdu::AppData { option, octets })
    }

    /// Sends a PDU about a connection, now or, without a control connection, when there is one
    /// again: then [`Self::sync`] sends it.
    fn send_or_defer(&mut self, pdu: &Pdu) {
        let is_open = matches!(self.state, State::Open | State::Draining);
        if let Some(link) = self.link.as_mut().filter(|_| is_open) {
            link.send(pdu);
        }
    }

    pub(super) fn send(&mut self, pdu: &Pdu) -> Result<(), Misuse> {
        let link = self
            .link
            .as_mut()
            .filter(|_| matches!(self.state, State::Open | State::Draining))
            .ok_or(Misuse::NotOpen)?;
        if link.out.len() >= super::QUEUE_MAX {
            return Err(Misuse::Full);
        }
        link.send(pdu);
        Ok(())
    }

    // Handles a PDU of the peer.

    pub(super) fn on_open_pdu(&mut self, now: Time, pdu: Pdu) -> Result<(), Error> {
        match pdu {
            Pdu::ConnOpen {
                conn,
                credit,
                to,
                metadata,
                early,
            } => {
                let asked = First {
                    conn,
                    credit,
                    to,
                    metadata,
                };
                return self.on_conn_open(asked, early);
            }
            Pdu::ConnAck {
                conn,
                status,
                credit,
            } => self.on_conn_ack(conn, status, credit),
            Pdu::ConnFin { conn, end } => {
                // Longhaul's records carry the end of a stream in order; this peer sends it as
                // a PDU of its own.
                let record = crate::wire::Record {
                    conn,
                    offset: end,
                    len: 0,
                    crc: None,
                    fin: true,
                    reset: None,
                    key: crate::wire::Key::default(),
                };
                self.consumer
                    .on_end(now, &record)
                    .map_err(Misbehaviour::Slab)?;
                self.ending.insert(conn);
            }
            Pdu::ConnReset { conn, code } => self.on_conn_reset(conn, code),
            Pdu::ConnCredit { conn, credit } => self.producer.on_credit(conn, credit),
            Pdu::ConnAcked { conn, delivered } => self.on_conn_acked(conn, delivered)?,
            Pdu::SlabAnnounce(slab) if slab.grant => {
                self.producer.on_grant(&slab).map_err(Misbehaviour::Slab)?
            }
            Pdu::SlabAnnounce(slab) => self.on_slab(now, &slab, false)?,
            Pdu::SlabPushed(slab) => self.on_slab(now, &slab, true)?,
            Pdu::SlabAck(ack) | Pdu::SlabCredit(ack) => self
                .producer
                .on_ack(now, &ack)
                .map_err(Misbehaviour::Slab)?,
            Pdu::SlabNack { seq, .. } => self.producer.on_nack(seq).map_err(Misbehaviour::Slab)?,
            Pdu::SlabRevoke { seq } => {
                let code = NackStatus::Error.code();
                self.consumer
                    .on_revoke(seq, code)
                    .map_err(Misbehaviour::Slab)?;
            }
            Pdu::NetPath {
                action,
                request,
                rules,
            } => self.events.push_back(Event::PathRequest {
                action,
                request,
                rules,
            }),
            Pdu::PathStatus {
                request,
                state,
                text,
            } => self.events.push_back(Event::PathStatus {
                request,
                state,
                text,
            }),
            Pdu::AppData { option, octets } => self.on_app_data(option, octets),
            pdu => return self.on_chan_pdu(pdu),
        }
        Ok(())
    }

    fn on_slab(&mut self, now: Time, slab: &SlabAnnounce, is_pushed: bool) -> Result<(), Error> {
        self.consumer
            .on_announce(now, slab, is_pushed)
            .map_err(Misbehaviour::Slab)?;
        let ends = slab
            .records
            .iter()
            .filter(|record| record.fin || record.reset.is_some());
        self.ending.extend(ends.map(|record| record.conn));
        Ok(())
    }

    fn on_conn_open(&mut self, asked: First, early: Vec<u8>) -> Result<(), Error> {
        let First {
            conn, credit, to, ..
        } = asked;
        if conn.is_by_terminus() != self.is_opener || conn.0 & !ConnId::BY_TERMINUS == 0 {
            return Err(Misbehaviour::Slab(crate::bag::Breach::Connection).into());
        }
        if let Some(known) = self.conns.get(&conn) {
            // Repeated after a resumption: the answer may be lost, or in flight.
            if known.is_own || known.to != to {
                return Err(Misbehaviour::Slab(crate::bag::Breach::Connection).into());
            }
            if known.state == ConnPhase::Open {
                self.send_conn_ack(conn);
            }
            return Ok(());
        }
        if self.conns.len() >= self.config.conns_max || self.state != State::Open {
            if let Some(link) = &mut self.link {
                let status = NackStatus::Busy.code();
                link.send(&Pdu::ConnAck {
                    conn,
                    status,
                    credit: 0,
                });
            }
            return Ok(());
        }
        let waiting = self.early_in + early.len();
        if waiting > EARLY_UNANSWERED_MAX || !early.is_empty() && !self.takes_early(true) {
            return Err(Misbehaviour::Slab(crate::bag::Breach::Early).into());
        }
        self.early_in = waiting;
        self.producer.open(conn, 0);
        self.producer.on_credit(conn, credit);
        let metadata = self.admit_metadata(asked.metadata);
        let mut asked = Conn::new(to.clone(), metadata.clone(), ConnPhase::Asked, false);
        asked.early_len = early.len();
        self.conns.insert(conn, asked);
        self.events.push_back(Event::ConnRequest {
            conn,
            to,
            metadata,
            early,
        });
        Ok(())
    }

    fn on_conn_ack(&mut self, conn: ConnId, status: u16, credit: u64) {
        let Some(known) = self.conns.get_mut(&conn).filter(|known| known.is_own) else {
            return;
        };
        let was_opening = known.state == ConnPhase::Opening;
        if status != 0 {
            if was_opening {
                self.refused(conn, status);
            }
            return;
        }
        if was_opening {
            known.state = ConnPhase::Open;
            self.early_out -= std::mem::take(&mut known.early).len();
        }
        let reset = known.reset_later.take();
        self.producer.on_credit(conn, credit);
        match reset {
            Some(code) => self.reset_conn(conn, code),
            None if was_opening => self.events.push_back(Event::ConnAccepted(conn)),
            None => {}
        }
    }

    /// A connection that this end asked for is refused.
    fn refused(&mut self, conn: ConnId, status: u16) {
        let is_known = self.conns.get(&conn).is_some_and(|conn| conn.is_given_up);
        self.forget(conn);
        if !is_known {
            self.events.push_back(Event::ConnRefused { conn, status });
        }
    }

    fn on_conn_reset(&mut self, conn: ConnId, code: u16) {
        match self.conns.get(&conn).map(|known| known.state) {
            Some(ConnPhase::Open) => {}
            Some(ConnPhase::Opening) => return,
            asked => {
                if asked.is_some() {
                    self.forget_asked(conn);
                }
                // The request is withdrawn, or its connection was over before.
                return self.send_or_defer(&Pdu::ConnAck {
                    conn,
                    status: NackStatus::Closing.code(),
                    credit: 0,
                });
            }
        }
        self.producer.abandon(conn);
        if self.producer.is_stoppable(conn) {
            self.producer.discard(conn);
            self.producer.finish(conn, End::Reset(code));
        }
        self.ending.insert(conn);
        self.events.push_back(Event::Stopped { conn, code });
    }

    fn on_conn_acked(&mut self, conn: ConnId, delivered: u64) -> Result<(), Error> {
        if !self.ack.end_to_end {
            return Err(Misbehaviour::OutOfTurn(25).into());
        }
        self.producer
            .on_delivered(conn, delivered)
            .map_err(Misbehaviour::Slab)?;
        self.ending.insert(conn);
        if !self.config.is_end && self.conns.contains_key(&conn) {
            self.events.push_back(Event::Delivered { conn, delivered });
        }
        Ok(())
    }

    /// Reports what [`Self::pass_delivered`] has noted.
    pub(super) fn poll_acked(&mut self) -> Option<Pdu> {
        let (conn, delivered) = self.acked.pop_first()?;
        self.ending.insert(conn);
        Some(Pdu::ConnAcked { conn, delivered })
    }

    // Outcomes of connections.

    /// Removes connections whose directions have both ended.
    pub(super) fn reap(&mut self) {
        while let Some(conn) = self.consumer.poll_readable() {
            self.events.push_back(Event::Readable(conn));
        }
        self.ending.extend(self.producer.take_touched());
        self.ending.extend(self.consumer.take_touched());
        for conn in std::mem::take(&mut self.ending) {
            if !self.is_over(conn) {
                continue;
            }
            if self.conns.contains_key(&conn) {
                self.events.push_back(Event::ConnClosed(conn));
            }
            self.forget(conn);
        }
        debug_assert!(
            self.conns.len() > 64 || !self.conns.keys().any(|conn| self.is_over(*conn)),
            "a connection that is over was not looked at"
        );
    }

    /// Whether both directions have ended. An unknown connection has.
    fn is_over(&self, conn: ConnId) -> bool {
        // First the condition that most of them wait for.
        if !self.producer.is_done(conn) || !self.consumer.is_done(conn) {
            return false;
        }
        let Some(known) = self.conns.get(&conn) else {
            return true;
        };
        let is_dropped = known.stopped.is_some() || self.consumer.was_reset(conn);
        let (delivered, _) = self.consumer.delivered(conn).unwrap_or_default();
        let is_passed = !self.ack.end_to_end || self.config.is_end || known.passed > delivered;
        self.consumer.is_settled(conn)
            && self.consumer.is_quiet(conn)
            && self.is_reported(conn)
            && (is_dropped || is_passed)
    }

    /// Whether no PDU about a connection waits to be sent.
    fn is_reported(&self, conn: ConnId) -> bool {
        !self.acked.contains_key(&conn) && !self.consumer.owes_ack(conn)
    }

    fn forget(&mut self, conn: ConnId) {
        if let Some(known) = self.conns.remove(&conn) {
            self.release_metadata(&known.metadata, known.is_own);
            match known.state {
                ConnPhase::Opening => self.early_out -= known.early_len,
                ConnPhase::Asked => self.early_in -= known.early_len,
                ConnPhase::Open => {}
            }
        }
        self.ending.remove(&conn);
        self.acked.remove(&conn);
        self.producer.remove(conn);
        self.consumer.remove(conn);
    }

    /// How far each connection has got here, for a peer that resumes.
    pub(super) fn states(&self) -> Vec<ConnState> {
        let known = self
            .conns
            .iter()
            .filter(|(_, known)| known.state != ConnPhase::Asked);
        known
            .map(|(conn, _)| {
                let (delivered, finished) = self.consumer.delivered(*conn).unwrap_or_default();
                ConnState {
                    conn: *conn,
                    delivered,
                    finished,
                }
            })
            .collect()
    }

    /// Repeats the PDUs about connections that may have been lost with the old control connection;
    /// on a new way, drops connections that the far end does not know.
    pub(super) fn sync(&mut self, theirs: &[ConnState], is_anew: bool) -> Result<(), Error> {
        let states = theirs.iter().map(|state| (state.conn, *state));
        let states: std::collections::BTreeMap<ConnId, ConnState> = states.collect();
        self.send_metadata();
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        for conn in conns {
            let Some(known) = self.conns.get(&conn) else {
                continue;
            };
            let (phase, is_own, stopped) = (known.state, known.is_own, known.stopped);
            let has_early = known.early_len > 0;
            let is_withdrawn = has_early && known.reset_later.is_some();
            if known.passed > 0 {
                self.acked.insert(conn, known.passed);
            }
            if phase == ConnPhase::Asked {
                if is_anew {
                    self.forget_asked(conn);
                }
                continue;
            }
            match states.get(&conn) {
                // At a relay, data passed on need not have reached the far end.
                Some(state) if self.ack.end_to_end && is_anew => {
                    self.producer
                        .on_arrived(conn, state.delivered)
                        .map_err(Misbehaviour::Slab)?;
                    if state.finished {
                        self.producer.on_finished(conn);
                    }
                }
                Some(_) => {}
                // The far end may have had its first bytes, and be done with it.
                None if phase == ConnPhase::Opening && has_early && is_anew => {
                    self.refused(conn, NackStatus::Closing.code());
                    continue;
                }
                None if phase == ConnPhase::Opening && is_withdrawn => self.withdraw(conn),
                None if phase == ConnPhase::Opening => self.send_conn_open(conn),
                None if phase == ConnPhase::Open && is_anew => {
                    // A direction that this end itself closed counts as complete.
                    let heard = stopped.is_some() || self.consumer.is_done(conn);
                    let whole = heard && self.producer.has_ended(conn);
                    self.forget(conn);
                    self.events.push_back(if whole {
                        Event::ConnClosed(conn)
                    } else {
                        Event::ConnLost(conn)
                    });
                    continue;
                }
                // The peer has forgotten it: it has all there was.
                None if phase == ConnPhase::Open => self.forgotten(conn)?,
                None => {}
            }
            if phase == ConnPhase::Open && !is_own {
                self.send_conn_ack(conn);
            }
            if let (Some(code), Some(link)) = (stopped, &mut self.link) {
                link.send(&Pdu::ConnReset { conn, code });
            }
            self.ending.insert(conn);
        }
        Ok(())
    }

    /// A connection that waits for this end's answer, on a way that is no more: its opener opens it
    /// again.
    fn forget_asked(&mut self, conn: ConnId) {
        let asked =
            |event: &Event| matches!(event, Event::ConnRequest { conn: of, .. } if *of == conn);
        self.forget(conn);
        match self.events.iter().position(asked) {
            Some(at) => drop(self.events.remove(at)),
            None => self.events.push_back(Event::ConnLost(conn)),
        }
    }

    /// The same peer no longer knows the connection: it has finished it, and its final PDU may be
    /// lost.
    fn forgotten(&mut self, conn: ConnId) -> Result<(), Error> {
        self.producer.abandon(conn);
        let Some(delivered) = self.producer.whole(conn).filter(|_| self.ack.end_to_end) else {
            return Ok(());
        };
        self.on_conn_acked(conn, delivered)
    }

    /// At a gateway that a session comes to on a new way: the connections that both ends know, from
    /// where they have got. `near`: what has arrived at the end on this segment's side for this
    /// gateway's producer to go on from.
    pub(super) fn install(&mut self, rx_from: &[ConnState], tx_from: &[ConnState]) {
        let sending: std::collections::BTreeMap<ConnId, ConnState> =
            tx_from.iter().map(|state| (state.conn, *state)).collect();
        for rx in rx_from.iter().take(self.config.conns_max) {
            let Some(tx) = sending.get(&rx.conn) else {
                continue;
            };
            let conn = rx.conn;
            let to = Endpoint {
                address: crate::wire::Address::Name(String::new()),
                port: 0,
            };
            let is_own = conn.is_by_terminus() != self.is_opener;
            // Its metadata was for the hops of that way.
            let known = Conn::new(to, Metadata::default(), ConnPhase::Open, is_own);
            self.conns.insert(conn, known);
            self.producer.open(conn, tx.delivered);
            self.consumer.open(conn, rx.delivered);
            if tx.finished {
                self.producer.set_ended(conn);
            }
            if rx.finished {
                self.consumer.set_ended(conn);
            }
            if let Some(known) = self.conns.get_mut(&conn) {
                known.passed = rx.delivered.saturating_add(u64::from(rx.finished));
            }
            if !is_own {
                self.send_conn_ack(conn);
            }
            self.ending.insert(conn);
        }
    }
}
