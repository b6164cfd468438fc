//! The status of a session: updated at most four times a second, and only after something has
//! happened.

use haul_xsp::bag::plan::Mode;
use haul_xsp::wire::{Hop, SessOpen};
use haul_xsp::{SECOND_NS, SessionId, State, Time};

use super::super::edges::{Counts, Ended};
use super::Worker;
use super::metadata::pairs;
use crate::access::Access;
use crate::channel::kind;
use crate::host::{Shown, hex};
use crate::status::{Limit, Role, Segment, Status};
use crate::sync::lock;

/// Shortest time between two updates, ns.
const STATUS_NS: u64 = SECOND_NS / 4;

impl Worker {
    /// Shows a session that is about to be opened.
    pub(super) fn show_plan(&self, session: SessionId, open: &SessOpen) {
        let mut shown = lock(&self.report.status);
        shown.session = hex(&session.0);
        shown.state = "connecting".to_owned();
        let hops = open.hops.iter();
        shown.hops = hops.map(|hop| Shown(&hop.endpoint).to_string()).collect();
        shown.memory = self.memory();
    }

    /// Returns when the next update is due; `None` while nothing happens.
    pub(super) fn status_due(&self) -> Option<Time> {
        (self.is_registered && self.report.has_news).then(|| self.report.at.after(STATUS_NS))
    }

    pub(super) fn show_status(&mut self, now: Time) {
        self.count_connections();
        self.return_memory();
        let mut status = Status {
            role: self.part.role(),
            since_ns: self.report.since.as_ns(),
            at_ns: now.as_ns(),
            connections: self.edges.status(),
            memory: self.memory(),
            paths: self.paths.shown(),
            metadata: pairs(&self.described.metadata),
            opener: self.opener_name().unwrap_or_default().to_owned(),
            ..Status::default()
        };
        let (mut has_unread, mut sends) = (Vec::with_capacity(2), Vec::with_capacity(2));
        status.more_connections = self.edges.len() - status.connections.len();
        self.describe(&mut status.connections);
        for side in 0..2 {
            let (Some(session), Some(segment)) =
                (self.body.session(side), self.segments[side].side.as_ref())
            else {
                continue;
            };
            if side == 0 {
                status.session = hex(&session.id().0);
                status.position = match self.part.role() {
                    Role::Opener => 0,
                    _ => usize::from(session.hop_index()) + 1,
                };
            }
            if let Some(until) = session.suspended_until() {
                let earlier = status.ends_at_ns.unwrap_or(u64::MAX);
                status.ends_at_ns = Some(earlier.min(until.as_ns()));
            }
            let state = state(session.state());
            if side == 0 || status.state == OPEN {
                state.clone_into(&mut status.state);
            }
            if side == 0 {
                let (agreed, at) = (session.agreed().segments.len(), session.hop_index());
                status.hops = present(session.hops(), at, agreed);
            }
            // The last side's: what a relay has learned from the next hop.
            let agreed = session.agreed().segments.iter();
            status.agreed = agreed.map(|segment| kind(segment.proto)).collect();
            let mut segment = segment.status(session);
            state.clone_into(&mut segment.state);
            has_unread.push(session.consumer().has_unread());
            let push = session.agreed().segments.first();
            let mode = push.map_or(Mode::Pull, |segment| segment.params.mode());
            sends.push(Sends {
                is_held: session.producer().is_held(),
                lacks_credit: self.edges.lack_credit(session),
                round_trips: mode.round_trips(),
                room: self.segments[side]
                    .granted
                    .ring
                    .min(segment.window_size.unwrap_or(u64::MAX)),
            });
            status.segments.push(segment);
        }
        if self.part.role() == Role::Terminus {
            status.agreed.clear();
        }
        let (is_starved, is_slow) = (self.edges.is_starved(), self.edges.is_slow());
        let mut shown = lock(&self.report.status);
        let span_ns = status.at_ns.saturating_sub(shown.at_ns);
        // While data moves, another update follows: the last one shows that none does.
        self.report.has_news = false;
        for (side, segment) in status.segments.iter_mut().enumerate() {
            let has_moved = shown.segments.get(side).is_none_or(|before| {
                (before.octets_in, before.octets_out) != (segment.octets_in, segment.octets_out)
            });
            let before = shown.segments.get(side);
            let sent = before.map_or(0, |before| {
                segment.octets_out.saturating_sub(before.octets_out)
            });
            let received = before.map_or(0, |before| {
                segment.octets_in.saturating_sub(before.octets_in)
            });
            segment.limit = match self.part.role() {
                Role::Relay if has_unread[side] && segment.channel.is_some() => Limit::Next,
                _ => limit(
                    segment,
                    has_moved.then_some(received > sent),
                    is_slow,
                    is_starved.then(|| sends[side].limit(sent, span_ns, segment.rtt_ns)),
                    sends[side].is_held,
                ),
            };
            self.report.has_news |= has_moved;
        }
        *shown = status;
        drop(shown);
        self.report.at = now;
    }

    pub(super) fn count_connections(&mut self) {
        let Counts { begun, ended, lost } = self.edges.take_counts();
        self.shared.count(|totals| {
            totals.connections += begun;
            totals.connections_lost += lost;
        });
        if ended.is_empty() {
            return;
        }
        let is_opener = self.part.role() == Role::Opener;
        let gateway = self.opener_name().filter(|_| !is_opener);
        let gateway = gateway.map(str::to_owned);
        let session = self.body.session(0).filter(|_| !is_opener);
        let identity = session.and_then(|session| session.peer().map(str::to_owned));
        for Ended { access, why } in ended {
            let access = Access {
                gateway: gateway.clone(),
                identity: identity.clone(),
                ..access
            };
            self.shared.note_ended(&access, why.as_deref());
        }
    }
}

/// Returns the hops without the optional ones behind number `at` that were left out, as far as the
/// number of agreed segments determines that. If only some were left out, all are returned.
fn present(hops: &[Hop], at: u16, agreed: usize) -> Vec<String> {
    let is_left_out = |(index, hop): &(usize, &Hop)| *index > usize::from(at) && hop.flags.optional;
    let optional = hops.iter().enumerate().filter(is_left_out).count();
    let all_are = agreed > 0 && hops.len() == usize::from(at) + agreed + optional;
    let shown = hops.iter().enumerate();
    let shown = shown.filter(|hop| !(all_are && is_left_out(hop)));
    shown
        .map(|(_, hop)| Shown(&hop.endpoint).to_string())
        .collect()
}

const OPEN: &str = "open";

const fn state(state: State) -> &'static str {
    match state {
        State::Greeting => "greeting",
        State::Opening => "opening",
        State::Open => OPEN,
        State::Suspended(_) => "suspended",
        State::Draining => "draining",
        State::Closed => "closed",
    }
}

/// The limit of the direction in which applications send, while some of them wait.
struct Sends {
    /// The class has used its share.
    is_held: bool,
    /// All that wait do so because the far end accepts no more.
    lacks_credit: bool,
    /// Round trips for which a byte stays in the ring.
    round_trips: u64,
    /// Bytes that may be in flight.
    room: u64,
}

impl Sends {
    /// Returns the reason why applications wait, if `sent` bytes have left in `span_ns`. If the
    /// ring limits them, data in flight fills it. Otherwise the far applications do not read, or
    /// the path carries no more and the ring holds queued data.
    fn limit(&self, sent: u64, span_ns: u64, rtt_ns: u64) -> Limit {
        let ns = u128::from(rtt_ns) * u128::from(self.round_trips);
        let on_way = u128::from(sent) * ns / u128::from(span_ns.max(1));
        if on_way >= u128::from(self.room) / 4 * 3 && rtt_ns > 0 {
            Limit::Ring
        } else if self.lacks_credit {
            Limit::Sink
        } else {
            Limit::Path
        }
    }
}

/// Returns what limits a segment, as far as this end sees. `moves` tells whether more has arrived
/// than left, if anything moved; `waits` is what applications wait for, if any does.
fn limit(
    segment: &Segment,
    moves: Option<bool>,
    is_slow: bool,
    waits: Option<Limit>,
    is_held: bool,
) -> Limit {
    match waits {
        _ if segment.channel.is_none() => Limit::Channel,
        _ if is_slow => Limit::Sink,
        _ if is_held => Limit::Share,
        Some(limit) => limit,
        None if segment.posts > 0 => Limit::Path,
        None if moves == Some(true) => Limit::Arriving,
        None if moves.is_some() || segment.ring_used > 0 => Limit::Source,
        None => Limit::Idle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::session::shape;

    #[test]
    fn the_ring_limits_only_where_what_is_on_its_way_fills_it() {
        const MIB: u64 = 1 << 20;
        let sends = |round_trips, lacks_credit| Sends {
            is_held: false,
            lacks_credit,
            round_trips,
            room: 64 * MIB,
        };
        let rtt_ns = SECOND_NS / 10;
        // 300 Mb/s: the path, however full the ring is.
        let slow = |sends: &Sends| sends.limit(37 * MIB, SECOND_NS, rtt_ns);
        assert_eq!(slow(&sends(2, false)), Limit::Path);
        assert_eq!(slow(&sends(2, true)), Limit::Sink);
        // 64 MiB in two round trips.
        assert_eq!(
            sends(2, true).limit(300 * MIB, SECOND_NS, rtt_ns),
            Limit::Ring
        );
        assert_eq!(
            sends(1, false).limit(300 * MIB, SECOND_NS, rtt_ns),
            Limit::Path
        );
        assert_eq!(sends(2, false).limit(MIB, 0, 0), Limit::Path);
        let mut segment = Segment {
            channel: Some(crate::config::ChannelKind::Tcp),
            ..Segment::default()
        };
        let limit = |segment: &Segment, moved, waits| limit(segment, moved, false, waits, false);
        assert_eq!(limit(&segment, Some(true), Some(Limit::Path)), Limit::Path);
        assert_eq!(limit(&segment, Some(false), None), Limit::Source);
        assert_eq!(limit(&segment, Some(true), None), Limit::Arriving);
        assert_eq!(limit(&segment, None, None), Limit::Idle);
        segment.channel = None;
        assert_eq!(
            limit(&segment, Some(false), Some(Limit::Ring)),
            Limit::Channel
        );
    }

    #[test]
    fn an_optional_hop_is_shown_unless_it_has_been_left_out() {
        let text = "name = 'g'\n[[route]]\nto = ['*']\n\
                    via = ['a:1', { gateway = 'b:1', optional = true }, 'c:1']\n";
        let config = Config::parse(text).unwrap();
        let route = &config.routes[0];
        let hops = shape::hops(route, &route.via).unwrap();
        let (all, without) = (["a:1", "b:1", "c:1"], ["a:1", "c:1"]);
        assert_eq!(present(&hops, 0, 0), all, "nobody has answered");
        assert_eq!(present(&hops, 0, 3), all);
        assert_eq!(present(&hops, 0, 2), without);
        assert_eq!(present(&hops, 2, 1), all, "where it ends nobody knows");
    }
}
