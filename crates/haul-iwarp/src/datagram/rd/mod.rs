//! Reliable datagram: one queue pair, many peers, and to each of them what a reliable connection
//! gives: order, exactly once, and a completion that means that the peer has it
//! (docs/protocol/reliable-datagram.md).
//!
//! Contract: after every call that takes `&mut`, drain [`RdQp::poll_transmit`], then
//! [`RdQp::poll_event`], then ask [`RdQp::poll_timeout`]. What [`RdQp::handle_datagram`] wants
//! placed is placed before anything else is called, and [`RdQp::handle_placed`] says so.
//!
//! Map: `work` what users see · this file the queue pair: peers, lists, what leaves · `handshake`
//! how peers are met, and forgotten · `deliver` checks, placements, effects · `peer` one
//! peer · in it `sending`: requests and answers to packets · `window`: packets on their way, loss,
//! time-outs · `samples` for the congestion control · `receiving`: what is there, what waits for
//! order · `bits` flags in a ring · `access` whose memory · `cookie`.

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
use crate::datagram::wire::{Body, CONTROL_MAX, Datagram, Flags, MsgId, NoticeCode, Psn, Reject};

use crate::error::PostError;
use crate::memory::Memory;
use crate::operation::{CompletionKind, Operation};
use crate::qp::{RecvWr, SendWr};

use access::Access;
use control::{CLOSE_ROOM, CLOSE_USER, Control, DATAGRAM_MIN, PeerId, low, whole};
use cookie::Jar;
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
    jar: Jar,
    paths: Paths,
    state: State,
    peers: Vec<Option<Box<Peer>>>,
    free: Vec<PeerId>,
    index: BTreeMap<Remote, PeerId>,
    /// Peers that may have something to send now.
    ready: VecDeque<PeerId>,
    timers: BTreeSet<(Time, PeerId)>,
    /// Peers that could be closed, the longest idle first.
    idle: BTreeSet<(u64, PeerId)>,
    /// Counts what must differ each time: times of idleness, random numbers.
    nonce: u64,
    receives: VecDeque<RecvWr>,
    /// Peers that were refused a receive, the longest waiting first.
    starved: VecDeque<PeerId>,
    /// Requests that are posted and not completed.
    posted: u32,
    /// A datagram that is being placed.
    pending: Option<Pending>,
    /// Short datagrams for anybody.
    outbox: VecDeque<Control>,
    notices: Notices,
    events: VecDeque<RdEvent>,
    stats: RdStats,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// What is in the outbox is sent, and that is all.
    Over,
}

/// A peer in the middle of a message that says nothing for this long is given up; longer than any
/// sender tries.
const SILENCE_NS_MAX: u64 = 60 * SECOND_NS;
impl RdQp {
    /// Makes a queue pair that is open for everybody.
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
            jar: Jar::new(config.secret),
            paths: Paths::new(config.secret),
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

    /// Takes a request to `to`, which is called if it is not known. Its buffers are read again at
    /// each retransmission, so they stay as they are until the completion.
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

    /// Notes that there are receives again, in the shared queue or here: the peer that waits for
    /// longest is told.
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

    /// Forgets a peer and tells it so; what is posted to it is flushed.
    pub fn disconnect(&mut self, now: Time, peer: Remote) {
        if let Some(&id) = self.index.get(&peer) {
            self.say_close(id, CLOSE_USER);
            self.forget(now, id, Down::Closed, RdStatus::Flushed, None);
        }
    }

    /// Ends the queue pair: peers are told, everything is flushed. Drain what is left to transmit.
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

    /// Takes a datagram from `source`. Its CRC is checked here; whoever has checked it already
    /// calls [`RdQp::handle_checked`].
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
        self.handle_memory_gone(now); // the caller owes an answer: what is not placed is not there
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
            Body::Rate(_) | Body::Probe(_) | Body::ProbeAck(_) => None,
        }
    }

    /// Notes that the path to a host carries no more than this many bytes of UDP payload. That is
    /// remembered for ten minutes. Peers there with whom longer ones were agreed on are met anew:
    /// requests that were begun end as flushed.
    pub fn handle_path(&mut self, now: Time, host: IpAddr, octets: u32) {
        let octets = octets.max(DATAGRAM_MIN.into());
        self.paths.note(now, host, octets);
        let peers = self.peers.iter().flatten();
        let too_long =
            peers.filter(|peer| peer.remote.addr.ip() == host && u32::from(peer.offered) > octets);
        let remotes: Vec<Remote> = too_long.map(|peer| peer.remote).collect();
        for remote in remotes {
            if let Some(&id) = self.index.get(&remote) {
                let keep = |_: &Wqe, begun: bool| !begun;
                self.forget_but(now, id, Down::Path, RdStatus::Flushed, None, keep);
            }
        }
    }

    /// Handles the timeout that [`RdQp::poll_timeout`] named.
    pub fn handle_timeout(&mut self, now: Time) {
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
        let &(at, _) = self.timers.first()?;
        Some(at)
    }

    // ---- getters

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> RdStats {
        self.stats
    }

    /// Returns how many peers are known or being called.
    #[must_use]
    pub fn peer_count(&self) -> usize {
        self.index.len()
    }

    /// Returns whether `peer` and this end know each other.
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
        self.jar.random(self.nonce)
    }

    /// A new peer; none if there is no room.
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

    /// Forgets a peer. Its requests end: the one to blame, or the oldest that was begun, with
    /// `status`. Answers those that were never begun, if they are to be kept.
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

    /// As [`RdQp::forget`]; requests that `keep` chooses are posted again, to the peer as it is met
    /// anew.
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

    /// Reports what has completed.
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

    /// Puts a peer where it belongs: with those that have something to send, on the clock, with
    /// those that are idle.
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

    // ---- what leaves

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
                self.forget(now, id, Down::Unreachable, RdStatus::Unreachable, None);
                return None;
            }
            Some(Expired::Probe | Expired::All(_)) => self.stats.timeouts += 1,
            None => {}
        }
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
                // What was asked for cannot be read any more: its asker is told, and it is over.
                self.refuse(now, id, msg, Psn(low(psn)), NoticeCode::Access);
                return None;
            }
        };
        let octets = count_of(packet.header_len + crate::crc::CRC_LEN) + packet.payload_len;
        peer.handle_sent(now, psn, octets + self.config.lower_len);
        self.stats.sent += 1;
        self.stats.repeated += u64::from(again);
        Some(RdTransmit {
            to: peer.remote.addr,
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
