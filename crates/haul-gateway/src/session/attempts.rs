//! The data channels that a segment tries: requested, accepted, connected; and the next kind when
//! one fails.

use std::sync::Arc;

use haul_xsp::bag::plan::Mode;
use haul_xsp::wire::{ChanParams, NackStatus, Params};
use haul_xsp::{ChanId, SECOND_NS, Session, Time};

use super::shape::Shape;
use super::side::SegmentSide;
use crate::channel::{
    BURST_MIN, DataConnection, Fabric, Lost, Network, Wanted, burst, kind, limit, proto,
};
use crate::config::ChannelKind;
use crate::host::endpoint;
use crate::log::Level;
use crate::shared::{SessionHandle, Shared};

/// Most data channels of a segment. Several attempts may be in flight before the peer has answered
/// the first.
const LANES_MAX: u16 = 16;

/// A kind is given up after this many losses.
const LOSSES_MAX: u32 = 3;
/// A channel that has lasted this long resets the count, ns.
const LASTING_NS: u64 = 60 * SECOND_NS;
/// The kinds that the end which opened the segment tries, best first.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    kinds: Vec<ChannelKind>,
    /// The kind that is tried or used.
    at: usize,
    lanes: u16,
    /// The limit of the network: bits per second, and burst bytes.
    rate_bps: Option<u64>,
    burst_bytes: Option<u64>,
    /// Errors of the kinds tried before it, for log lines.
    given_up: Vec<String>,
    /// Channels asked for in the present attempt.
    asked: Vec<ChanId>,
    /// Since when the present kind has been in use.
    used_since: Option<Time>,
    /// Losses of the present kind, each soon after it was up.
    losses: u32,
}

impl Attempts {
    /// Creates the list for an open segment: the agreed kind, and then the others offered.
    pub(super) fn new(
        session: &Session,
        offered: &[ChannelKind],
        streams: u16,
        shape: &Shape,
    ) -> Self {
        let agreed = session
            .agreed()
            .segments
            .first()
            .and_then(|segment| kind(segment.proto));
        let others = offered.iter().copied().filter(|kind| Some(*kind) != agreed);
        Self {
            kinds: agreed.into_iter().chain(others).collect(),
            at: 0,
            lanes: streams.clamp(1, LANES_MAX),
            rate_bps: shape.rate_bps,
            burst_bytes: shape.burst_bytes,
            given_up: Vec::new(),
            asked: Vec::new(),
            used_since: None,
            losses: 0,
        }
    }

    /// Asks the peer for data channels of the present kind.
    pub(super) fn ask(
        &mut self,
        shared: &Arc<Shared>,
        session: &mut Session,
        segment: &mut SegmentSide,
    ) -> Result<(), Lost> {
        loop {
            let Some(kind) = self.kinds.get(self.at).copied() else {
                self.at = 0;
                let tried = std::mem::take(&mut self.given_up).join("; ");
                return Err(Lost(format!("no data channel can be opened ({tried})")));
            };
            if let Err(why) = self.ask_for(kind, shared, session, segment) {
                self.give_up(shared, session, segment, &why);
                continue;
            }
            return Ok(());
        }
    }

    fn ask_for(
        &mut self,
        kind: ChannelKind,
        shared: &Arc<Shared>,
        session: &mut Session,
        segment: &mut SegmentSide,
    ) -> Result<(), String> {
        let network = shared.network(kind).ok_or("this gateway has none")?;
        let limits = (self.rate_bps, self.burst_bytes);
        replace(shared, session, segment, network, self.lanes, limits)?;
        self.asked.clear();
        for _ in 0..self.lanes {
            let params = ChanParams {
                chan: ChanId(0),
                proto: proto(kind),
                role: 0,
                params: Params {
                    streams: Some(self.lanes),
                    rate_bps: self.rate_bps,
                    burst_bytes: self.burst_bytes,
                    ..Params::default()
                },
                endpoints: Vec::new(),
                cookie: None,
            };
            let chan = session
                .open_chan(params)
                .map_err(|error| error.to_string())?;
            self.asked.push(chan);
        }
        Ok(())
    }

    /// Whether this channel belongs to the present attempt.
    pub(super) fn awaits(&self, chan: ChanId) -> bool {
        self.asked.contains(&chan)
    }

    /// Gives up the present kind; the next one follows.
    pub(super) fn give_up(
        &mut self,
        shared: &Shared,
        session: &mut Session,
        segment: &SegmentSide,
        why: &str,
    ) {
        for chan in self.asked.drain(..) {
            close(session, chan);
        }
        if let Some(kind) = self.kinds.get(self.at) {
            self.given_up.push(format!("{kind}: {why}"));
            let next = self.kinds.get(self.at + 1);
            let then = next.map_or_else(
                || "no other kind is left".to_owned(),
                |next| format!("trying {next}"),
            );
            shared.log(
                Level::Warning,
                format!("{}: no data channel {kind}: {why}; {then}", segment.peer),
            );
        }
        self.at += 1;
        self.losses = 0;
    }

    /// A data channel is up.
    pub(super) fn note_up(&mut self, now: Time) {
        self.used_since.get_or_insert(now);
    }

    /// The data channels in use have broken.
    pub(super) fn note_lost(
        &mut self,
        now: Time,
        shared: &Shared,
        session: &mut Session,
        segment: &SegmentSide,
    ) {
        let Some(since) = self.used_since.take() else {
            return;
        };
        if now.since(since) >= LASTING_NS {
            self.losses = 0;
        }
        self.losses += 1;
        if self.losses == LOSSES_MAX {
            self.give_up(
                shared,
                session,
                segment,
                &format!("it was lost {LOSSES_MAX} times"),
            );
            if self.at == self.kinds.len() {
                self.at = 0;
            }
        }
    }

    /// Connects a channel to which the peer has agreed.
    pub(super) fn connect(
        &self,
        now: Time,
        session: &mut Session,
        segment: &mut SegmentSide,
        params: &ChanParams,
    ) -> Result<(), String> {
        match segment.fabric.as_mut().filter(|_| self.awaits(params.chan)) {
            Some(fabric) => fabric.connect(now, params).map_err(|Lost(why)| why),
            None => {
                close(session, params.chan);
                Ok(())
            }
        }
    }
}

/// Whether the segment has agreed on push.
fn pushes(session: &Session) -> bool {
    let segment = session.agreed().segments.first();
    segment.is_some_and(|segment| segment.params.mode() == Mode::Push)
}

/// Closes a channel. One that the peer has not answered yet is closed when it answers.
fn close(session: &mut Session, chan: ChanId) {
    if session.is_chan_up(chan) {
        // It fails only if there is no such channel.
        let _ = session.close_chan(chan, NackStatus::Done);
    }
}

/// Handles the peer's request for a data channel.
pub(super) fn on_request(
    shared: &Arc<Shared>,
    handle: &SessionHandle,
    session: &mut Session,
    segment: &mut SegmentSide,
    params: ChanParams,
) {
    let chan = params.chan;
    let answer = accept(shared, session, segment, params);
    match answer {
        Ok(cookie) => {
            shared.registers().cookies.insert(cookie, handle.clone());
            segment.cookies.push(cookie);
        }
        // It fails only if the request is gone.
        Err(why) => drop(session.refuse_chan(chan, NackStatus::NoProtocol, &why)),
    }
}

fn accept(
    shared: &Arc<Shared>,
    session: &mut Session,
    segment: &mut SegmentSide,
    params: ChanParams,
) -> Result<[u8; 16], String> {
    let none = || "not available here".to_owned();
    let kind = kind(params.proto).ok_or_else(none)?;
    let network = shared.network(kind).ok_or_else(none)?;
    if network.listen.is_none() {
        return Err(none());
    }
    if segment
        .fabric
        .as_ref()
        .is_none_or(|fabric| fabric.kind() != kind)
    {
        let lanes = params.params.streams.unwrap_or(LANES_MAX).min(LANES_MAX);
        let limits = (params.params.rate_bps, params.params.burst_bytes);
        replace(shared, session, segment, network, lanes, limits)?;
        // As at the end with the route: responses to reads leave devices at line rate.
        let (rate_bps, burst_bytes) = match kind {
            ChannelKind::Verbs => (limits.0, peer_burst(limits)),
            _ => (None, None),
        };
        session
            .consumer()
            .set_limit(shared.now(), rate_bps, burst_bytes);
    }
    let mut params = ChanParams {
        endpoints: Vec::new(),
        ..params
    };
    let here = segment.reachable(network).ok_or_else(none)?;
    params.endpoints.push(endpoint(here));
    session
        .accept_chan(params)
        .map_err(|error| error.to_string())
}

/// Returns the burst of a path, at least the minimum: it may come from a peer. Reads and writes are
/// half of it.
fn peer_burst((rate_bps, burst_bytes): (Option<u64>, Option<u64>)) -> Option<u64> {
    burst(rate_bps, burst_bytes).map(|burst| burst.max(BURST_MIN))
}

/// Replaces the fabric by one of `network`'s kind, whose channels together keep to a rate and a
/// burst.
fn replace(
    shared: &Arc<Shared>,
    session: &mut Session,
    segment: &mut SegmentSide,
    network: &Network,
    lanes: u16,
    (rate_bps, burst_bytes): (Option<u64>, Option<u64>),
) -> Result<(), String> {
    let wanted = Wanted {
        lanes,
        limit: limit(rate_bps, burst_bytes),
        pushes: pushes(session),
    };
    segment
        .replace_fabric(network, wanted)
        .map_err(|Lost(why)| why)?;
    let paces = segment.fabric.as_deref().is_none_or(Fabric::paces);
    let (rate_bps, burst_bytes) = if paces {
        (None, None)
    } else {
        (rate_bps, peer_burst((rate_bps, burst_bytes)))
    };
    session
        .producer()
        .set_limit(shared.now(), rate_bps, burst_bytes);
    Ok(())
}

/// Takes a data connection with this cookie; returns it if the cookie is not of this segment.
/// Otherwise returns the number of its queue pair, if its events are wanted.
pub(super) fn on_data_connection(
    session: &mut Session,
    segment: &mut SegmentSide,
    kind: ChannelKind,
    cookie: &[u8; 16],
    connection: DataConnection,
) -> Result<Option<u32>, Option<DataConnection>> {
    if segment
        .fabric
        .as_ref()
        .is_none_or(|fabric| fabric.kind() != kind)
    {
        return Err(Some(connection));
    }
    let Some(chan) = session.check_cookie(cookie) else {
        return Err(Some(connection));
    };
    segment.accept(chan, connection).map_err(|_| None)
}

/// Forgets the cookies and queue pairs of data channels that end.
pub(super) fn forget(shared: &Shared, segment: &mut SegmentSide) {
    let mut registers = shared.registers();
    for cookie in segment.cookies.drain(..) {
        registers.cookies.remove(&cookie);
    }
    if let Some(fabric) = &segment.fabric {
        for qp_num in fabric.qp_nums() {
            registers.forget_qp(fabric.kind(), qp_num);
        }
    }
}
