//! Reliable datagram: one queue pair with many peers. To each peer, messages arrive in order and
//! exactly once, and a completion means that the peer has the message
//! (docs/protocol/reliable-datagram.md).
//!
//! Contract: after every call that takes `&mut`, drain [`RdQp::poll_probe`] and
//! [`RdQp::poll_transmit`], then [`RdQp::poll_event`], then [`RdQp::poll_timeout`]. If
//! [`RdQp::handle_datagram`] returns a placement, place the payload and call
//! [`RdQp::handle_placed`] before any other method.
//!
//! Map: `work` requests and completions · this file the queue pair: peers, lists, transmission ·
//! `handshake` opens and closes associations · `deliver` checks, placements, effects · `peer` one
//! peer · in it `sending`: requests and responses to packets · `window`: packets in flight, loss,
//! timeouts · `samples` for the congestion control · `receiving`: arrived packets, messages that
//! wait for order · `sizes` of segments · `bits` flags in a ring · `access` checks of memory ·
//! `cookie`.

mod access;
mod bits;
mod control;
mod cookie;
mod deliver;
mod handshake;
mod notices;
mod peer;
mod pending;
mod receiving;
mod samples;
mod sending;
mod sizes;
mod window;
mod work;

pub use work::{
    Down, RdArrived, RdCompletion, RdConfig, RdEvent, RdStats, RdStatus, RdTransmit, Remote,
};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use haul_cc::Time;
use haul_cc::time::{MICROSECOND_NS, SECOND_NS};

use crate::datagram::paths::Paths;
use crate::datagram::search::{Found, SHORT, Searches};
use crate::datagram::wire::{Body, CONTROL_MAX, Datagram, Flags, MsgId, NoticeCode, Psn, Reject};

use crate::error::PostError;
use crate::memory::Memory;
use crate::operation::{CompletionKind, Operation, RecvWr};
use crate::qp::SendWr;

use access::Access;
use control::{CLOSE_ROOM, CLOSE_USER, Control, DATAGRAM_MIN, PeerId, control_shim, low, whole};
use cookie::Cookies;
use notices::Notices;
use peer::{Peer, Phase};
use pending::Pending;
use sending::{Stamp, Withdrawn, Wqe, count_of};
use window::Expired;

/// Bytes that a header slot must have.
pub const RD_HEADER_MAX: usize = if crate::datagram::wire::DATA_HEADER_MAX > CONTROL_MAX {
    crate::datagram::wire::DATA_HEADER_MAX
} else {
    CONTROL_MAX
};

/// A reliable-datagram queue pair. See the module.
#[derive(Debug)]
pub struct RdQp {
    config: RdConfig,
    access: Access,
    cookies: Cookies,
    paths: Paths,
    searches: Searches,
    state: State,
    peers: Vec<Option<Box<Peer>>>,
    free: Vec<PeerId>,
    index: BTreeMap<Remote, PeerId>,
    /// Peers that may have something to send now.
    ready: VecDeque<PeerId>,
    timers: BTreeSet<(Time, PeerId)>,
    /// Peers that could be closed, the longest idle first.
    idle: BTreeSet<(u64, PeerId)>,
    /// A counter for values that must be unique: idle times, random numbers.
    nonce: u64,
    receives: VecDeque<RecvWr>,
    /// Peers that were refused a receive, the longest waiting first.
    starved: VecDeque<PeerId>,
    /// Requests that are posted and not completed.
    posted: u32,
    /// A datagram that is being placed.
    pending: Option<Pending>,
    /// The outbox of control datagrams.
    outbox: VecDeque<Control>,
    notices: Notices,
    events: VecDeque<RdEvent>,
    stats: RdStats,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// Closed: only the outbox is still sent.
    Over,
}

/// A peer that is silent for this long in the middle of a message is dropped; longer than any
/// sender retries.
const SILENCE_NS_MAX: u64 = 60 * SECOND_NS;
impl RdQp {
    /// Makes a queue pair that accepts any peer.
    #[must_use]
    pub fn new(config: RdConfig) -> Self {
        let config = RdConfig {
            datagram_max: config.datagram_max.max(DATAGRAM_MIN),
            window: config.window.clamp(64, 65_536),
            epoch: config.epoch.max(1),
            ..config
        };
        Self {
            access: Access::new(&config.qp),
            cookies: Cookies::new(config.secret),
            paths: Paths::new(config.secret),
            searches: Searches::new(config.secret, config.around),
            state: State::Open,
            peers: Vec::new(),
            free: Vec::new(),
            index: BTreeMap::new(),
            ready: VecDeque::new(),
            timers: BTreeSet::new(),
            idle: BTreeSet::new(),
            nonce: 0,
            receives: VecDeque::new(),
            starved: VecDeque::new(),
            posted: 0,
            pending: None,
            outbox: VecDeque::new(),
            notices: Notices::default(),
            events: VecDeque::new(),
            stats: RdStats::default(),
            config,
        }
    }

    // ---- commands

    /// Posts a request to `to`, after a handshake if there is no association. Its buffers are read
    /// again at each retransmission, so they stay as they are until the completion.
    ///
    /// # Errors
    /// Reliable datagrams do not have the operation, the queue or the table of peers is full, or
    /// the queue pair is closed.
    pub fn post_send(&mut self, now: Time, to: Remote, wr: SendWr) -> Result<(), PostError> {
        if self.state != State::Open {
            return Err(PostError::NotOpen);
        }
        if let Operation::SendImmediate { .. }
        | Operation::Write { placed: true, .. }
        | Operation::LocalInvalidate(_) = wr.op
        {
            return Err(PostError::Unsupported);
        }
        if self.posted >= self.config.qp.send_depth {
            return Err(PostError::Full);
        }
        if wr.op.is_answered() && self.config.qp.ord == 0 {
            return Err(PostError::NoReads);
        }
        let id = match self.index.get(&to) {
            Some(&id) => id,
            None => self.call(now, to).ok_or(PostError::Full)?,
        };
        let seed = self.random();
        let Some(peer) = self.peers[id as usize].as_deref_mut() else {
            return Err(PostError::NotOpen);
        };
        if peer.is_known() && wr.op.is_answered() && peer.ord == 0 {
            return Err(PostError::NoReads);
        }
        peer.post(now, &self.config, seed, wr);
        self.posted += 1;
        self.schedule(now, id);
        Ok(())
    }

    /// Takes a receive. Messages of any peer go into it: as with a shared queue, of two that arrive
    /// out of order the later may get the earlier receive; they complete in order.
    ///
    /// # Errors
    /// The queue is full, or the queue pair is closed.
    pub fn post_receive(&mut self, now: Time, wr: RecvWr) -> Result<(), PostError> {
        if self.state != State::Open {
            return Err(PostError::NotOpen);
        }
        if self.receives.len() >= self.config.qp.recv_depth as usize {
            return Err(PostError::Full);
        }
        self.receives.push_back(wr);
        self.handle_receives(now);
        Ok(())
    }

    /// Notes that receives were posted, in the shared queue or here, and notifies the peer that has
    /// waited for longest.
    pub fn handle_receives(&mut self, now: Time) {
        while let Some(id) = self.starved.pop_front() {
            let Some(peer) = self.peers[id as usize].as_deref_mut() else {
                continue;
            };
            peer.schedule.starved = false;
            if peer.refused.take().is_some() {
                peer.want_ack(now, true, &self.config);
                self.schedule(now, id);
                return;
            }
        }
    }

    /// Closes a peer: sends it a CLOSE and flushes the requests posted to it.
    pub fn disconnect(&mut self, now: Time, peer: Remote) {
        if let Some(&id) = self.index.get(&peer) {
            self.say_close(id, CLOSE_USER);
            self.forget(now, id, Down::Closed, RdStatus::Flushed, None);
        }
    }

    /// Ends the queue pair: sends each peer a CLOSE and flushes all requests. Drain the remaining
    /// datagrams.
    pub fn close(&mut self, now: Time) {
        if self.state == State::Open {
            let ids: Vec<PeerId> = self.index.values().copied().collect();
            for &id in &ids {
                self.say_close(id, CLOSE_USER);
            }
            self.end(now);
        }
    }

    fn end(&mut self, now: Time) {
        self.state = State::Over;
        self.events.push_back(RdEvent::Error);
        let ids: Vec<PeerId> = self.index.values().copied().collect();
        for id in ids {
            self.forget(now, id, Down::Closed, RdStatus::Flushed, None);
        }
        for receive in std::mem::take(&mut self.receives) {
            self.events
                .push_back(RdEvent::Completion(unused_receive(receive)));
        }
    }

    // ---- inputs

    /// Takes a datagram from `source`. Checks its CRC; a caller that has checked it already calls
    /// [`RdQp::handle_checked`].
    pub fn handle_datagram(
        &mut self,
        now: Time,
        memory: &mut impl Memory,
        source: SocketAddr,
        datagram: &[u8],
    ) -> Option<RdArrived> {
        match Datagram::open(datagram) {
            Ok(checked) => self.handle_checked(now, memory, source, &checked),
            Err(Reject::Foreign | Reject::Crc | Reject::Unsupported(_) | Reject::Malformed(_)) => {
                self.stats.malformed += 1;
                None
            }
        }
    }

    /// Takes a datagram that was opened or parsed.
    pub fn handle_checked(
        &mut self,
        now: Time,
        memory: &mut impl Memory,
        source: SocketAddr,
        datagram: &Datagram<'_>,
    ) -> Option<RdArrived> {
        self.handle_memory_gone(now); // not called back: the payload is not placed
        let shim = &datagram.shim;
        if self.state != State::Open {
            return None;
        }
        if shim.dst_qpn != self.config.qpn {
            self.stats.unknown_peer += 1;
            return None;
        }
        let from = Remote {
            addr: source,
            qpn: shim.src_qpn,
        };
        match &datagram.body {
            Body::Data(segment) => {
                let placement = self.on_data(now, memory, from, datagram, segment)?;
                let end = datagram.wire_len - crate::crc::CRC_LEN;
                Some(RdArrived {
                    placement,
                    payload: end - segment.payload.len()..end,
                })
            }
            Body::Ack(ack) => {
                self.on_ack(now, from, shim, ack);
                None
            }
            Body::Hello(hello) => {
                self.on_hello(now, from, shim, hello);
                None
            }
            Body::Cookie(cookie) => {
                self.on_cookie(now, from, shim, *cookie);
                None
            }
            Body::Ready(terms) => {
                self.on_ready(now, from, shim, terms);
                None
            }
            Body::Notice(notice) => {
                self.on_notice(now, from, shim, notice.code);
                None
            }
            Body::Close(close) => {
                self.on_close(now, from, shim, close.code);
                None
            }
            Body::Probe(probe) => {
                self.answer_probe(from, shim, *probe);
                None
            }
            Body::ProbeAck(probe) => {
                self.on_probe_ack(now, from, shim, *probe);
                None
            }
            Body::Rate(_) => None,
        }
    }

    /// Notes that the path to a host carries no more than this many bytes of UDP payload. The limit
    /// holds for ten minutes. Peers with longer datagrams in flight, or that do not accept shorter
    /// ones, need a new handshake: requests in progress end as flushed.
    pub fn handle_path(&mut self, now: Time, host: IpAddr, octets: u32) {
        let octets = octets.max(DATAGRAM_MIN.into());
        self.paths.note(now, host, octets);
        self.searches.handle_too_big(now, host, octets);
        for id in self.peers_at(host) {
            let peer = self.peers[id as usize].as_deref();
            if peer.is_some_and(|peer| peer.is_too_long(octets, &self.config)) {
                self.meet_anew(now, id);
            } else {
                self.choose_size(now, id);
            }
        }
    }

    fn peers_at(&self, host: IpAddr) -> Vec<PeerId> {
        let peers = self.index.iter();
        peers
            .filter(|(remote, _)| remote.addr.ip() == host)
            .map(|(_, &id)| id)
            .collect()
    }

    /// Closes a peer that has longer packets in flight than the path carries.
    fn meet_anew(&mut self, now: Time, id: PeerId) {
        let keep = |_: &Wqe, begun: bool| !begun;
        self.forget_but(now, id, Down::Path, RdStatus::Flushed, None, keep);
    }

    /// Takes the result of probes: how long datagrams to a host may be.
    fn note_found(&mut self, now: Time, found: Found) {
        for id in self.peers_at(found.host) {
            self.choose_size(now, id);
        }
    }

    /// Returns the bytes of UDP payload that the path to `host` carries, as far as is known.
    fn path_max(&self, now: Time, host: IpAddr) -> u32 {
        let most = self.config.datagram_max.into();
        let told = self.paths.datagram_max(now, host, most);
        self.searches.datagram_max(host, told)
    }

    /// Chooses the segment size of the next messages to a peer.
    fn choose_size(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers[id as usize].as_deref() else {
            return;
        };
        let octets = self.path_max(now, peer.remote.addr.ip());
        if let Some(peer) = self.peers[id as usize].as_deref_mut() {
            peer.choose_size(octets);
        }
    }

    /// Checks from time to time that long datagrams to a peer arrive; call before sending them.
    fn note_use(&mut self, now: Time, to: Remote) {
        let octets = self.config.datagram_max.into();
        let known = self.paths.datagram_max(now, to.addr.ip(), octets);
        self.searches
            .handle_use(now, to.destination(), octets, known);
    }

    /// Handles a timeout of everything in flight to a peer: if it was long, checks the path MTU.
    fn suspect_path(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers[id as usize].as_deref() else {
            return;
        };
        if peer.longest_in_flight(&self.config) > SHORT {
            let (to, octets) = (peer.remote, self.config.datagram_max.into());
            let known = self.paths.datagram_max(now, to.addr.ip(), octets);
            self.searches.suspect(now, to.destination(), octets, known);
        }
    }

    /// Handles the timeout that [`RdQp::poll_timeout`] named.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(found) = self.searches.handle_time(now) {
            self.note_found(now, found);
        }
        while let Some(&(at, id)) = self.timers.first() {
            if at > now {
                return;
            }
            self.timers.pop_first();
            if let Some(peer) = self.peers[id as usize].as_deref_mut() {
                peer.schedule.timer = None;
                if !std::mem::replace(&mut peer.schedule.ready, true) {
                    self.ready.push_back(id);
                }
            }
        }
    }

    // ---- outputs

    /// Returns the next probe of a path, whole, in `out`, which has room for the longest datagram:
    /// destination and length. Ask for these before [`RdQp::poll_transmit`].
    pub fn poll_probe(&mut self, now: Time, out: &mut [u8]) -> Option<(SocketAddr, usize)> {
        while let Some((to, probe)) = self.searches.poll(now) {
            let shim = control_shim(&self.config, to.qpn, 0);
            let len = Body::Probe(probe).emit(&shim, out);
            if len > 0 {
                return Some((to.addr, len));
            }
        }
        None
    }

    /// Returns the next datagram to be sent, its header in `out`, which has room for
    /// [`RD_HEADER_MAX`].
    pub fn poll_transmit(
        &mut self,
        now: Time,
        memory: &impl Memory,
        out: &mut [u8],
    ) -> Option<RdTransmit> {
        loop {
            if let Some(control) = self.outbox.pop_front() {
                out[..control.len].copy_from_slice(&control.octets[..control.len]);
                return Some(whole(control.to, control.len));
            }
            let id = self.ready.pop_front()?;
            let Some(peer) = self.peers[id as usize].as_deref_mut() else {
                continue;
            };
            if !std::mem::replace(&mut peer.schedule.ready, false) {
                continue;
            }
            let transmit = self.transmit(now, memory, id, out);
            let earliest = if transmit.is_some() {
                now
            } else {
                now.after(1)
            };
            self.schedule_from(now, id, earliest);
            if transmit.is_some() {
                return transmit;
            }
        }
    }

    /// Returns the next event, oldest first.
    pub fn poll_event(&mut self) -> Option<RdEvent> {
        self.events.pop_front()
    }

    /// Returns when [`RdQp::handle_timeout`] is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let peers = self.timers.first().map(|&(at, _)| at);
        let searches = self.searches.deadline();
        peers.into_iter().chain(searches).min()
    }

    // ---- getters

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> RdStats {
        self.stats
    }

    /// Returns the number of associations, those in the handshake included.
    #[must_use]
    pub fn peer_count(&self) -> usize {
        self.index.len()
    }

    /// Returns whether the handshake with `peer` is complete.
    #[must_use]
    pub fn is_up(&self, peer: Remote) -> bool {
        let id = self.index.get(&peer);
        let peer = id.and_then(|&id| self.peers[id as usize].as_deref());
        peer.is_some_and(Peer::is_known)
    }

    /// Returns the bytes of memory that a peer takes now, but for its entries in the queue pair's
    /// ordered lists.
    #[must_use]
    pub fn peer_bytes(&self, peer: Remote) -> Option<usize> {
        let id = self.index.get(&peer)?;
        let peer = self.peers[*id as usize].as_deref()?;
        Some(size_of::<Peer>() + peer.heap_bytes())
    }

    /// Returns the bytes of memory of all peers; looks at each of them.
    #[must_use]
    pub fn peers_bytes(&self) -> usize {
        let peers = self.peers.iter().flatten();
        peers
            .map(|peer| size_of::<Peer>() + peer.heap_bytes())
            .sum()
    }

    // ---- peers

    fn peer(&mut self, remote: Remote) -> Option<(PeerId, &mut Peer)> {
        let id = *self.index.get(&remote)?;
        let peer = self.peers[id as usize].as_deref_mut()?;
        Some((id, peer))
    }

    fn random(&mut self) -> u64 {
        self.nonce += 1;
        self.cookies.random(self.nonce)
    }

    /// Adds a peer; `None` if the table is full.
    fn insert(&mut self, now: Time, remote: Remote, phase: Phase) -> Option<PeerId> {
        if self.index.len() >= self.config.peers_max as usize {
            let &(_, oldest) = self.idle.first()?;
            self.say_close(oldest, CLOSE_ROOM);
            self.stats.evicted += 1;
            self.forget(now, oldest, Down::Closed, RdStatus::Flushed, None);
        }
        let anywhere = Psn(low(self.random()));
        let (psn, msg) = self.config.first.unwrap_or((anywhere, MsgId(1)));
        let mut peer = Peer::new(remote, phase, psn.0, msg);
        peer.offered = self.offer_to(now, remote);
        peer.ird = self.config.qp.ird;
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.peers.push(None);
                PeerId::try_from(self.peers.len() - 1).ok()?
            }
        };
        self.peers[id as usize] = Some(Box::new(peer));
        self.index.insert(remote, id);
        Some(id)
    }

    /// Takes a peer out of all lists; its receives go back to where they came from.
    fn remove(&mut self, id: PeerId) -> Option<Box<Peer>> {
        let mut peer = self.peers[id as usize].take()?;
        self.index.remove(&peer.remote);
        if let Some(at) = peer.schedule.timer {
            self.timers.remove(&(at, id));
        }
        if let Some(since) = peer.schedule.idle {
            self.idle.remove(&(since, id));
        }
        self.starved.retain(|&starved| starved != id);
        if let Some(receiving) = peer.receiving.take() {
            for receive in receiving.into_receives() {
                self.receives.push_front(receive);
            }
        }
        self.free.push(id);
        Some(peer)
    }

    /// Drops a peer's state. Its requests end: the one to blame, or the oldest in progress, with
    /// `status`. Returns those not yet begun, if they are to be kept.
    fn forget(
        &mut self,
        now: Time,
        id: PeerId,
        down: Down,
        status: RdStatus,
        blamed: Option<MsgId>,
    ) {
        self.forget_but(now, id, down, status, blamed, |_, _| false);
    }

    /// As [`RdQp::forget`]; requests that `keep` chooses are posted again in the next association.
    fn forget_but(
        &mut self,
        now: Time,
        id: PeerId,
        down: Down,
        mut status: RdStatus,
        blamed: Option<MsgId>,
        keep: impl Fn(&Wqe, bool) -> bool,
    ) {
        let Some(mut peer) = self.remove(id) else {
            return;
        };
        let remote = peer.remote;
        self.events.push_back(RdEvent::Down(remote, down));
        let mut kept = Vec::new();
        let wqes = peer.sending.as_mut().map(|sending| sending.drain());
        for (wqe, begun) in wqes.into_iter().flatten() {
            if keep(&wqe, begun) {
                kept.push(wqe.wr);
                continue;
            }
            let is_blamed = blamed.is_none_or(|msg| begun && wqe.msg == msg);
            let ends = if is_blamed { status } else { RdStatus::Flushed };
            if is_blamed {
                status = RdStatus::Flushed;
            }
            self.complete(remote, &wqe, ends);
        }
        self.posted -= count_of(kept.len());
        for wr in kept {
            if self.post_send(now, remote, wr).is_err() {
                self.events
                    .push_back(RdEvent::Completion(flushed(remote, &wr)));
            }
        }
        let whole = matches!(
            down,
            Down::Unreachable | Down::ReceiverNotReady | Down::Refused | Down::Misbehaved
        );
        if whole && self.config.fail_whole && self.state == State::Open {
            self.end(now);
        }
    }

    fn complete(&mut self, remote: Remote, wqe: &Wqe, status: RdStatus) {
        self.posted -= 1;
        self.events.push_back(RdEvent::Completion(RdCompletion {
            status,
            kind: wqe.wr.op.kind(wqe.original),
            ..flushed(remote, &wqe.wr)
        }));
    }

    /// Reports completed requests.
    fn reap(&mut self, id: PeerId) {
        while let Some(peer) = self.peers[id as usize].as_deref_mut() {
            let remote = peer.remote;
            let done = peer.sending.as_mut().and_then(|half| half.pop_completed());
            let Some(wqe) = done else {
                return;
            };
            self.complete(remote, &wqe, RdStatus::Success);
        }
    }

    /// Files a peer under its state: ready to send, waiting for a timer, or idle.
    fn schedule(&mut self, now: Time, id: PeerId) {
        self.schedule_from(now, id, now);
    }

    fn schedule_from(&mut self, now: Time, id: PeerId, earliest: Time) {
        let Some(peer) = self.peers[id as usize].as_deref_mut() else {
            return;
        };
        let silence = peer
            .receiving
            .is_some()
            .then(|| peer.heard().after(SILENCE_NS_MAX));
        let due = match (peer.due(now, &self.config), silence) {
            (Some(due), Some(silence)) => Some(due.min(silence)),
            (due, silence) => due.or(silence),
        };
        let due = due.map(|due| due.max(earliest));
        if due.is_some_and(|due| due <= now) && !peer.schedule.ready {
            peer.schedule.ready = true;
            self.ready.push_back(id);
        }
        let timer = due.filter(|&due| due > now);
        if timer != peer.schedule.timer {
            if let Some(at) = std::mem::replace(&mut peer.schedule.timer, timer) {
                self.timers.remove(&(at, id));
            }
            if let Some(at) = timer {
                self.timers.insert((at, id));
            }
        }
        match (peer.is_idle(), peer.schedule.idle) {
            (true, None) => {
                self.nonce += 1;
                peer.schedule.idle = Some(self.nonce);
                self.idle.insert((self.nonce, id));
            }
            (false, Some(since)) => {
                peer.schedule.idle = None;
                self.idle.remove(&(since, id));
            }
            _ => {}
        }
    }

    // ---- transmission

    fn transmit(
        &mut self,
        now: Time,
        memory: &impl Memory,
        id: PeerId,
        out: &mut [u8],
    ) -> Option<RdTransmit> {
        if let Some(transmit) = self.write_call(now, id, out) {
            return Some(transmit);
        }
        let peer = self.peers[id as usize].as_deref_mut()?;
        let to = peer.remote.addr;
        if let Some(len) = peer.write_ack(now, &self.config, out) {
            return Some(whole(to, len));
        }
        if peer.receiving.is_some() && now >= peer.heard().after(SILENCE_NS_MAX) {
            self.forget(now, id, Down::Unreachable, RdStatus::Unreachable, None);
            return None;
        }
        match peer.handle_silence(now, &self.config) {
            Some(Expired::Dead) => {
                let octets = self.path_max(now, to.ip());
                let peer = self.peers[id as usize].as_deref();
                if peer.is_some_and(|peer| peer.is_too_long(octets, &self.config)) {
                    self.meet_anew(now, id);
                } else {
                    self.forget(now, id, Down::Unreachable, RdStatus::Unreachable, None);
                }
                return None;
            }
            Some(expired @ (Expired::Probe | Expired::All(_))) => {
                self.stats.timeouts += 1;
                if !peer.is_heard() {
                    self.say_ready(id); // it may have been lost
                }
                if expired != Expired::Probe {
                    self.suspect_path(now, id);
                }
            }
            None => {}
        }
        let peer = self.peers[id as usize].as_deref_mut()?;
        peer.rest(now, self.config.linger_ns);
        self.write_packet(now, memory, id, out)
    }

    fn write_packet(
        &mut self,
        now: Time,
        memory: &impl Memory,
        id: PeerId,
        out: &mut [u8],
    ) -> Option<RdTransmit> {
        let peer = self.peers[id as usize].as_deref_mut()?;
        let psn = peer.choose_packet(now, &self.config)?;
        let sending = peer.sending.as_ref()?;
        let again = psn < sending.window.next();
        let stamp = Stamp {
            address: peer.address(&self.config),
            psn,
            timestamp: low(now.as_ns() / MICROSECOND_NS),
            flags: Flags::NONE
                .with_if(Flags::RTX, again)
                .with_if(Flags::ACKREQ, again || peer.wants_ack_of(psn)),
        };
        let packet = match sending.write(memory, &self.access, &stamp, out) {
            Ok(packet) => packet?,
            Err(Withdrawn(msg)) => {
                // The memory of the Read is gone: reports the error to the requester and ends the
                // request.
                self.refuse(now, id, msg, Psn(low(psn)), NoticeCode::Access);
                return None;
            }
        };
        let octets = count_of(packet.header_len + crate::crc::CRC_LEN) + packet.payload_len;
        peer.handle_sent(now, psn, octets + self.config.lower_len);
        let to = peer.remote;
        if !again && octets > SHORT {
            self.note_use(now, to);
        }
        self.stats.sent += 1;
        self.stats.repeated += u64::from(again);
        Some(RdTransmit {
            to: to.addr,
            header_len: packet.header_len,
            payload: packet.payload,
            payload_len: packet.payload_len,
            needs_crc: true,
        })
    }
}

fn flushed(remote: Remote, wr: &SendWr) -> RdCompletion {
    RdCompletion {
        id: wr.id,
        slot: wr.slot,
        status: RdStatus::Flushed,
        kind: wr.op.kind(0),
        len: wr.len,
        signalled: wr.signalled,
        peer: Some(remote),
    }
}

fn unused_receive(receive: RecvWr) -> RdCompletion {
    RdCompletion {
        id: receive.id,
        slot: receive.slot,
        status: RdStatus::Flushed,
        kind: CompletionKind::Receive {
            solicited: false,
            invalidated: None,
        },
        len: 0,
        signalled: true,
        peer: None,
    }
}
