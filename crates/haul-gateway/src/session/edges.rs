//! Applications' connections at an end of a session: from their sockets into the ring, from the
//! arena into their sockets.
//!
//! A socket is reset when it is dropped, or the process ends in whatever way, until both directions
//! have ended in order. So no application mistakes a failure for the end of the stream.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;

use haul_io::address::attempt_deadline_ns;
use haul_io::clock::Clock;
use haul_io::poller::{Interest, Poller};
use haul_io::stream::{self, Stream, is_exhausted};
use haul_xsp::bag::{Data, End, Read};
use haul_xsp::wire::{Endpoint, NackStatus};
use haul_xsp::{ConnId, SECOND_NS, Session, Time};

use super::side::{SegmentSide, checksum};
use crate::access::{Access, Outcome};
use crate::caller::{Call, Party};
use crate::channel::UNSENT_BYTES;
use crate::host::Shown;
use crate::proxy;
use crate::refusal::{code, status_of};
use crate::shared::Shared;
use crate::status::Connection;

/// Bytes received into the ring at a time.
const FILL_BYTES: u64 = 256 << 10;
/// Bytes that one connection may read before others are served.
const TURN_BYTES: u64 = 1 << 20;
/// Timeout of a connection to an application, ns.
const CONNECT_NS: u64 = 10 * SECOND_NS;
/// Most connections listed in the status.
const SHOWN_MAX: usize = 200;

/// The reset code for a broken connection: ECONNRESET.
const RESET: u16 = 104;

#[derive(Debug)]
enum Phase {
    /// The far end has not answered.
    Asked(Party),
    /// The name is being resolved.
    Resolving {
        by_rdma: bool,
    },
    /// This end connects; these addresses are left to try.
    Connecting {
        left: Vec<SocketAddr>,
        until: Time,
        /// When the present attempt is given up for the next, ns.
        attempt_until: Time,
        /// Why the last attempt failed.
        status: u16,
    },
    Open,
}

/// An application's connection.
#[derive(Debug)]
struct Edge {
    /// Reset when it is dropped, unless both directions have ended.
    stream: Option<Stream>,
    phase: Phase,
    from: String,
    to: String,
    began: Time,
    /// Sent first: the reply of the listener's protocol; at the far end the header of the PROXY
    /// protocol, and the bytes that came with the request.
    greeting: Vec<u8>,
    /// Bytes being written to the application.
    held: Option<Data>,
    /// The application has received its stream up to this offset.
    written: u64,
    /// The application sends no more.
    is_read: bool,
    /// The application has received everything, and the end.
    is_written: bool,
    interest: Option<Interest>,
    /// It has data to send, and the ring is full.
    is_starved: bool,
    octets_in: u64,
    octets_out: u64,
    /// Of these, at the last call of `Edges::is_slow`.
    octets_seen: u64,
}

/// Applications' connections of a session.
#[derive(Debug, Default)]
pub(crate) struct Edges {
    edges: HashMap<ConnId, Edge>,
    starved: Vec<ConnId>,
    /// No attempt to connect is given up before.
    attempts_until: Option<Time>,
    counts: Counts,
}

/// Connections since the last call of `take_counts`.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Accepted or made.
    pub(crate) begun: u64,
    /// Reset because their session has ended.
    pub(crate) lost: u64,
    /// Those that have ended, or were refused.
    pub(crate) ended: Vec<Ended>,
}

/// A connection that has ended, and why it was refused, if more is known than its status.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) access: Access,
    pub(crate) why: Option<String>,
}

impl Counts {
    fn end(&mut self, edge: &Edge, outcome: Outcome, why: Option<String>) {
        let access = Access {
            client: edge.from.clone(),
            gateway: None,
            identity: None,
            target: edge.to.clone(),
            received: edge.octets_in,
            sent: edge.octets_out,
            began: edge.began,
            ended: now(),
            outcome,
        };
        self.ended.push(Ended { access, why });
    }
}

fn now() -> Time {
    Time::from_ns(Clock::new().now_ns())
}

/// Limits what the kernel buffers for an application that does not read. Where the system has no
/// such limit, it buffers more.
fn limit_unsent(stream: &Stream) {
    let _ = stream.limit_unsent(UNSENT_BYTES);
}

/// The context of edges.
pub(crate) struct Tools<'a> {
    pub(crate) session: &'a mut Session,
    pub(crate) segment: &'a mut SegmentSide,
    pub(crate) poller: &'a Poller,
    pub(crate) now: Time,
    pub(crate) verifies: bool,
    pub(crate) shared: &'a Shared,
}

impl Edges {
    pub(crate) fn len(&self) -> usize {
        self.edges.len()
    }

    /// Adds a connection that is requested from the far end.
    /// `early_len` of its first bytes went with the request.
    pub(crate) fn ask(&mut self, conn: ConnId, call: Call, early_len: usize) {
        let to = Shown(&call.to).to_string();
        self.counts.begun += u64::from(!call.is_again);
        let mut edge = Edge::new(Phase::Asked(call.party), call.from, to, call.began);
        edge.octets_in = early_len as u64;
        self.edges.insert(conn, edge);
    }

    /// Counts a connection whose client has gone before the far end was asked for it.
    pub(crate) fn gone(&mut self, call: Call) {
        let to = Shown(&call.to).to_string();
        self.counts.begun += u64::from(!call.is_again);
        let edge = Edge::new(Phase::Asked(call.party), call.from, to, call.began);
        self.counts.end(&edge, Outcome::Reset, None);
    }

    /// Takes back an unanswered connection, to request it by another way.
    pub(crate) fn take_back(&mut self, conn: ConnId) -> Option<(Party, String, Time)> {
        match self.edges.remove(&conn)? {
            Edge {
                phase: Phase::Asked(party),
                from,
                began,
                ..
            } => Some((party, from, began)),
            other => {
                self.edges.insert(conn, other);
                None
            }
        }
    }

    /// The far end accepts no more from the application; what it sends still arrives.
    pub(crate) fn stopped(&mut self, conn: ConnId) {
        if let Some(edge) = self.edges.get_mut(&conn) {
            edge.is_read = true;
            edge.note_end();
        }
    }

    /// Adds a connection that the far end requests for `client`, to a name that is being resolved;
    /// `early` are the first bytes for the application.
    pub(crate) fn resolve(
        &mut self,
        conn: ConnId,
        to: &Endpoint,
        by_rdma: bool,
        client: String,
        early: Vec<u8>,
    ) {
        let to = Shown(to).to_string();
        let mut edge = Edge::new(Phase::Resolving { by_rdma }, client, to, now());
        edge.greeting = early;
        self.edges.insert(conn, edge);
        self.counts.begun += 1;
    }

    /// Whether it leads to an application by RDMA.
    pub(crate) fn is_by_rdma(&self, conn: ConnId) -> bool {
        let edge = self.edges.get(&conn);
        edge.is_some_and(|edge| matches!(edge.phase, Phase::Resolving { by_rdma: true }))
    }

    /// Drops unanswered connections that their callers no longer want. Once the far end answers,
    /// they are reset.
    pub(crate) fn withdraw(&mut self, session: &mut Session) {
        let is_unwanted = |_: &ConnId, edge: &mut Edge| matches!(&edge.phase, Phase::Asked(party) if !party.is_wanted());
        for (conn, edge) in self.edges.extract_if(is_unwanted) {
            self.counts.end(&edge, Outcome::Reset, None);
            session.reset_conn(conn, RESET);
        }
    }

    /// Connects to the first of `addresses` that accepts. An RDMA application answers through the
    /// connection.
    pub(crate) fn connect(
        &mut self,
        tools: &mut Tools<'_>,
        conn: ConnId,
        addresses: Vec<SocketAddr>,
    ) {
        let until = tools.now.after(CONNECT_NS);
        if self.is_by_rdma(conn) {
            return self.extend(tools, conn, addresses);
        }
        let Some(edge) = self.edges.get_mut(&conn) else {
            return;
        };
        edge.phase = Phase::Connecting {
            left: addresses,
            until,
            attempt_until: until,
            status: code(NackStatus::CannotConnect),
        };
        self.connect_next(tools, conn);
    }

    /// Bridges it to an RDMA application, whose answer travels as data.
    fn extend(&mut self, tools: &mut Tools<'_>, conn: ConnId, to: Vec<SocketAddr>) {
        let extender = tools.shared.extender.as_ref();
        let stream = extender.and_then(|extender| extender.reach(to).ok());
        let Some(edge) = self.edges.get_mut(&conn) else {
            return;
        };
        let Some(stream) = stream else {
            let text = format!("{}: unreachable by RDMA; refused", edge.to);
            tools.shared.log_shortage(text);
            self.refused(tools.poller, conn, code(NackStatus::CannotConnect), None);
            // It fails only if the far end no longer waits.
            let _ = tools
                .session
                .refuse_conn(conn, code(NackStatus::CannotConnect));
            return;
        };
        stream.reset_on_drop();
        edge.stream = Some(stream);
        edge.octets_out += edge.greeting.len() as u64;
        if tools.session.accept_conn(conn).is_err() {
            return self.closed(tools.poller, conn);
        }
        edge.phase = Phase::Open;
        self.serve(tools, conn);
    }

    fn connect_next(&mut self, tools: &mut Tools<'_>, conn: ConnId) {
        let Some(edge) = self.edges.get_mut(&conn) else {
            return;
        };
        edge.unwatch(tools.poller);
        edge.stream = None;
        let mut why = code(NackStatus::CannotConnect);
        if let Phase::Connecting {
            left,
            until,
            attempt_until,
            status,
        } = &mut edge.phase
        {
            while !left.is_empty() {
                let (now, until) = (tools.now.as_ns(), until.as_ns());
                let end = attempt_deadline_ns(now, until, left.len() - 1);
                *attempt_until = Time::from_ns(end);
                let earlier = self.attempts_until.unwrap_or(*attempt_until);
                self.attempts_until = Some(earlier.min(*attempt_until));
                let stream = match Stream::start_connect(left.remove(0)) {
                    Ok(stream) => stream,
                    Err(error) => {
                        if is_exhausted(&error) {
                            let text = format!("{}: {error}; refused", edge.to);
                            tools.shared.log_shortage(text);
                        }
                        *status = status_of(&error);
                        continue;
                    }
                };
                stream.reset_on_drop();
                limit_unsent(&stream);
                if tools
                    .poller
                    .add(&stream, token(conn), Interest::WRITE)
                    .is_ok()
                {
                    edge.interest = Some(Interest::WRITE);
                    edge.stream = Some(stream);
                    return;
                }
            }
            why = *status;
        }
        if let Some(edge) = self.edges.remove(&conn) {
            self.counts.end(&edge, Outcome::Refused(why), None);
        }
        // It fails only if the far end no longer waits.
        let _ = tools.session.refuse_conn(conn, why);
    }

    /// The far end has accepted.
    pub(crate) fn accepted(&mut self, tools: &mut Tools<'_>, conn: ConnId) {
        let Some(edge) = self.edges.get_mut(&conn) else {
            return;
        };
        if let Phase::Asked(party) = std::mem::replace(&mut edge.phase, Phase::Open) {
            match party {
                Party::Client(stream, answer) => {
                    edge.greeting = answer.accepted().to_vec();
                    limit_unsent(&stream);
                    edge.stream = Some(stream);
                }
                Party::Own(caller) => {
                    edge.stream = caller.accepted().and_then(Stream::adopt).ok();
                    edge.stream.iter().for_each(Stream::reset_on_drop);
                }
            }
        }
        if edge.stream.is_none() {
            // The caller is gone.
            self.counts.end(edge, Outcome::Reset, None);
            self.edges.remove(&conn);
            return tools.session.reset_conn(conn, RESET);
        }
        self.serve(tools, conn);
    }

    /// The far end has refused, or the connection cannot be asked for; `why` for log lines, if more
    /// is known than the status.
    pub(crate) fn refused(
        &mut self,
        poller: &Poller,
        conn: ConnId,
        status: u16,
        why: Option<String>,
    ) {
        if let Some(mut edge) = self.edges.remove(&conn) {
            self.counts.end(&edge, Outcome::Refused(status), why);
            edge.unwatch(poller);
            if let Phase::Asked(party) = edge.phase {
                party.refuse(status, None);
            }
        }
    }

    /// Both directions have ended.
    pub(crate) fn closed(&mut self, poller: &Poller, conn: ConnId) {
        if let Some(mut edge) = self.edges.remove(&conn) {
            let outcome = match edge.phase {
                Phase::Asked(_) => Outcome::Refused(code(NackStatus::Closing)),
                Phase::Open if edge.is_read && edge.is_written => Outcome::Done,
                _ => Outcome::Reset,
            };
            self.counts.end(&edge, outcome, None);
            edge.unwatch(poller);
            if let Phase::Asked(party) = edge.phase {
                party.refuse(code(NackStatus::Closing), None);
            }
        }
    }

    /// The session has ended, `why` in words: all connections are reset.
    pub(crate) fn reset_all(&mut self, poller: &Poller, status: u16, why: Option<&str>) {
        for (_, mut edge) in self.edges.drain() {
            let outcome = match edge.phase {
                Phase::Asked(_) => Outcome::Refused(status),
                _ => Outcome::Reset,
            };
            let told = why.filter(|_| matches!(edge.phase, Phase::Asked(_)));
            self.counts.end(&edge, outcome, told.map(str::to_owned));
            edge.unwatch(poller);
            // Also where both directions have ended: the last bytes may not have arrived at the far
            // end.
            edge.stream.iter().for_each(Stream::reset_on_drop);
            match edge.phase {
                Phase::Asked(party) => party.refuse(status, why),
                Phase::Open => self.counts.lost += 1,
                // The far end refuses it, and counts it so.
                Phase::Resolving { .. } | Phase::Connecting { .. } => {}
            }
        }
        self.starved.clear();
    }

    /// Serves a connection whose socket is ready, or which has data.
    pub(crate) fn serve(&mut self, tools: &mut Tools<'_>, conn: ConnId) {
        let Some(edge) = self.edges.get_mut(&conn) else {
            return;
        };
        match edge.phase {
            Phase::Asked(_) | Phase::Resolving { .. } => return,
            Phase::Connecting { ref mut status, .. } => {
                let connected = edge.stream.as_ref().map(Stream::connected);
                match connected {
                    Some(Ok(())) if tools.session.accept_conn(conn).is_ok() => {
                        edge.phase = Phase::Open;
                        edge.announce_client(tools.shared);
                    }
                    Some(Ok(())) | None => return self.closed(tools.poller, conn),
                    Some(Err(error)) => {
                        *status = status_of(&error);
                        return self.connect_next(tools, conn);
                    }
                }
            }
            Phase::Open => {}
        }
        let result = edge
            .write(tools, conn)
            .and_then(|()| edge.read(tools, conn));
        match result {
            Ok(()) => {
                if edge.is_starved && !self.starved.contains(&conn) {
                    self.starved.push(conn);
                }
                edge.watch(tools.poller, conn);
            }
            Err(_) => {
                edge.unwatch(tools.poller);
                edge.stream = None;
                edge.let_go(tools.session, conn);
                tools.session.reset_conn(conn, RESET);
            }
        }
    }

    /// Serves connections that waited for room. Returns whether any made progress.
    pub(crate) fn retry(&mut self, tools: &mut Tools<'_>) -> bool {
        let mut progress = false;
        for conn in std::mem::take(&mut self.starved) {
            if tools.session.producer().credit(conn) == 0
                && self.edges.get(&conn).is_some_and(|edge| edge.is_starved)
            {
                self.starved.push(conn);
                continue;
            }
            let before = self.edges.get(&conn).map(|edge| edge.octets_in);
            self.serve(tools, conn);
            progress |= before != self.edges.get(&conn).map(|edge| edge.octets_in);
        }
        progress
    }

    /// The session goes on by another way: data in delivery is read again.
    pub(crate) fn rewind(&mut self) {
        for edge in self.edges.values_mut() {
            edge.held = None;
        }
    }

    /// Gives up attempts whose time is over, and refuses connections without further addresses.
    pub(crate) fn handle_timeout(&mut self, tools: &mut Tools<'_>) {
        let now = tools.now;
        let note_late = |(conn, edge): (&ConnId, &mut Edge)| match &mut edge.phase {
            Phase::Connecting {
                attempt_until,
                status,
                ..
            } if *attempt_until <= now => {
                *status = code(NackStatus::TimedOut);
                Some(*conn)
            }
            _ => None,
        };
        let late: Vec<ConnId> = self.edges.iter_mut().filter_map(note_late).collect();
        for conn in late {
            self.connect_next(tools, conn);
        }
        let until = |edge: &Edge| match edge.phase {
            Phase::Connecting { attempt_until, .. } => Some(attempt_until),
            _ => None,
        };
        self.attempts_until = self.edges.values().filter_map(until).min();
    }

    /// Returns when to call [`Self::handle_timeout`]. It may be too early: that of an attempt that
    /// has ended.
    pub(crate) const fn poll_timeout(&self) -> Option<Time> {
        self.attempts_until
    }

    /// Whether any connection waits for room in the ring.
    pub(crate) fn is_starved(&self) -> bool {
        !self.starved.is_empty()
    }

    /// Whether all connections that wait for room wait for the far end to accept more.
    pub(crate) fn lack_credit(&self, session: &mut Session) -> bool {
        let producer = session.producer();
        self.starved.iter().all(|conn| producer.credit(*conn) == 0)
    }

    /// Whether applications do not read their data, and no other has received any since the last
    /// call.
    pub(crate) fn is_slow(&mut self) -> bool {
        let (mut any_waits, mut any_reads) = (false, false);
        // One that is alone and receives may still be slower than the path.
        let is_one_of_many = self.edges.len() > 1;
        for edge in self.edges.values_mut() {
            let before = std::mem::replace(&mut edge.octets_seen, edge.octets_out);
            any_waits |= edge.held.is_some();
            let has_read = edge.octets_out > before;
            any_reads |= has_read && (is_one_of_many || edge.held.is_none());
        }
        any_waits && !any_reads
    }

    /// Takes the counts since the last call.
    pub(crate) fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Returns the connections for the status.
    pub(crate) fn status(&self) -> Vec<Connection> {
        let mut shown: Vec<Connection> = self
            .edges
            .iter()
            .take(SHOWN_MAX)
            .map(|(conn, edge)| Connection {
                number: conn.0,
                from: edge.from.clone(),
                to: edge.to.clone(),
                octets_in: edge.octets_in,
                octets_out: edge.octets_out,
                waits: edge.is_starved,
                ..Connection::default()
            })
            .collect();
        shown.sort_unstable_by_key(|connection| connection.number);
        shown
    }
}

impl Edge {
    const fn new(phase: Phase, from: String, to: String, began: Time) -> Self {
        Self {
            began,
            stream: None,
            phase,
            from,
            to,
            greeting: Vec::new(),
            held: None,
            written: 0,
            is_read: false,
            is_written: false,
            interest: None,
            is_starved: false,
            octets_in: 0,
            octets_out: 0,
            octets_seen: 0,
        }
    }

    /// Sends the PROXY protocol header first, if the configuration requires it.
    fn announce_client(&mut self, shared: &Shared) {
        self.octets_out += self.greeting.len() as u64;
        let server = self.stream.as_ref().and_then(Stream::peer_addr);
        let server = server.filter(|server| shared.config().announces_client(*server));
        if let Some(server) = server {
            let header = proxy::header(self.from.parse().ok(), server);
            self.greeting.splice(..0, header);
        }
    }

    /// Reads from the application into the ring.
    fn read(&mut self, tools: &mut Tools<'_>, conn: ConnId) -> io::Result<()> {
        let Some(stream) = self.stream.as_ref().filter(|_| !self.is_read) else {
            return Ok(());
        };
        self.is_starved = false;
        let mut turn = 0;
        while turn < TURN_BYTES {
            let producer = tools.session.producer();
            let Some(fill) = producer.reserve(tools.now, conn, FILL_BYTES) else {
                self.is_starved = true;
                return Ok(());
            };
            let place = (usize::try_from(fill.at), usize::try_from(fill.len));
            let region = tools.segment.region(fill.region.0);
            let (Some(region), (Ok(at), Ok(len))) = (region, place) else {
                producer.commit(tools.now, conn, 0, None);
                return Err(io::ErrorKind::OutOfMemory.into());
            };
            let received = region
                .scatter(at, len)
                .map_err(|_| io::ErrorKind::OutOfMemory.into())
                .and_then(|range| stream::receive(stream, &mut [range]));
            let count = *received.as_ref().unwrap_or(&0) as u64;
            let crc = (tools.verifies && count > 0).then(|| checksum(region, fill.at, count));
            producer.commit(tools.now, conn, count, crc);
            match received {
                Ok(0) => {
                    self.is_read = true;
                    self.note_end();
                    tools.session.finish_conn(conn);
                    return Ok(());
                }
                Ok(_) => {
                    self.octets_in += count;
                    turn += count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
            if count < fill.len {
                // The socket was empty; the poller reports new data.
                return Ok(());
            }
        }
        Ok(())
    }

    /// Writes from the arena to the application.
    fn write(&mut self, tools: &mut Tools<'_>, conn: ConnId) -> io::Result<()> {
        let Some(stream) = self.stream.as_ref().filter(|_| !self.is_written) else {
            return Ok(());
        };
        while !self.greeting.is_empty() {
            match stream.write(&self.greeting) {
                // Its memory is not kept for the life of the connection.
                Ok(count) if count == self.greeting.len() => self.greeting = Vec::new(),
                Ok(count) => drop(self.greeting.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        loop {
            if self.held.is_none() {
                match tools.session.consumer().read(conn, TURN_BYTES) {
                    Some(Read::Data(data)) => self.held = Some(data),
                    Some(Read::End(End::Fin)) => {
                        stream.shutdown_send();
                        self.is_written = true;
                        self.note_end();
                        return Ok(());
                    }
                    Some(Read::End(End::Reset(_))) => {
                        return Err(io::ErrorKind::ConnectionReset.into());
                    }
                    None => return Ok(()),
                }
            }
            let Some(data) = self.held else {
                return Ok(());
            };
            // After a change of the way, data may arrive again that the application has received in
            // part.
            let sent = self.written.saturating_sub(data.offset).min(data.len);
            if sent == data.len {
                self.held = None;
                tools
                    .session
                    .consumer()
                    .release(conn, data.offset, data.len);
                continue;
            }
            let (Ok(at), Ok(len)) = (
                usize::try_from(data.at + sent),
                usize::try_from(data.len - sent),
            ) else {
                return Err(io::ErrorKind::OutOfMemory.into());
            };
            let range = tools.segment.arena().gather(at, len);
            let range = range.map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
            match stream::send(stream, &[range], false) {
                Ok(count) => {
                    self.written = data.offset + sent + count as u64;
                    self.octets_out += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Once both directions have ended in order, the kernel delivers what it has, whatever becomes
    /// of this process.
    fn note_end(&self) {
        if self.is_read && self.is_written {
            self.stream.iter().for_each(Stream::finish_on_drop);
        }
    }

    /// Releases data that was being written.
    fn let_go(&mut self, session: &mut Session, conn: ConnId) {
        if let Some(data) = self.held.take() {
            session.consumer().release(conn, data.offset, data.len);
        }
    }

    /// Watches the socket for what the connection needs.
    fn watch(&mut self, poller: &Poller, conn: ConnId) {
        let Some(stream) = &self.stream else {
            return;
        };
        let wanted = Interest {
            readable: !self.is_read && !self.is_starved,
            writable: self.held.is_some() || !self.greeting.is_empty(),
        };
        let wanted = (wanted.readable || wanted.writable).then_some(wanted);
        if wanted == self.interest {
            return;
        }
        let result = match (self.interest, wanted) {
            (None, Some(wanted)) => poller.add(stream, token(conn), wanted),
            (Some(_), Some(wanted)) => poller.modify(stream, token(conn), wanted),
            (Some(_), None) => poller.remove(stream),
            (None, None) => Ok(()),
        };
        self.interest = wanted.filter(|_| result.is_ok());
    }

    fn unwatch(&mut self, poller: &Poller) {
        if let (Some(stream), Some(_)) = (&self.stream, self.interest.take()) {
            // It may not be watched.
            let _ = poller.remove(stream);
        }
    }
}

/// Returns the poller's token of a connection.
pub(crate) fn token(conn: ConnId) -> u64 {
    u64::from(conn.0)
}

#[cfg(test)]
mod tests;
