//! The status of a session: updated at most four times a second, and only after something has
//! happened.

use haul_xsp::wire::{Hop, SessOpen};
use haul_xsp::{SECOND_NS, SessionId, State, Time};

use super::Worker;
use crate::channel::kind;
use crate::host::{Shown, hex};
use crate::shared::Share;
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

    /// Returns the bytes of memory that the session holds.
    pub(super) fn memory(&self) -> u64 {
        self.share.as_ref().map_or(0, Share::bytes)
    }

    /// Returns when the next update is due; `None` while nothing happens.
    pub(super) fn status_due(&self) -> Option<Time> {
        (self.is_registered && self.report.has_news).then(|| self.report.at.after(STATUS_NS))
    }

    pub(super) fn show_status(&mut self, now: Time) {
        self.count_connections();
        let mut status = Status {
            role: self.part.role(),
            since_ns: self.report.since.as_ns(),
            at_ns: now.as_ns(),
            connections: self.edges.status(),
            memory: self.memory(),
            paths: self.paths.shown(),
            metadata: self.described.metadata.pairs().clone(),
            ..Status::default()
        };
        let (mut has_unread, mut is_held) = (Vec::with_capacity(2), Vec::with_capacity(2));
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
            is_held.push(session.producer().is_held());
            status.segments.push(segment);
        }
        if self.part.role() == Role::Terminus {
            status.agreed.clear();
        }
        let (is_starved, is_slow) = (self.edges.is_starved(), self.edges.is_slow());
        let mut shown = lock(&self.report.status);
        // While data moves, another update follows: the last one shows that none does.
        self.report.has_news = false;
        for (side, segment) in status.segments.iter_mut().enumerate() {
            let has_moved = shown.segments.get(side).is_none_or(|before| {
                (before.octets_in, before.octets_out) != (segment.octets_in, segment.octets_out)
            });
            segment.limit = match self.part.role() {
                Role::Relay if has_unread[side] && segment.channel.is_some() => Limit::Next,
                _ => limit(segment, has_moved, is_held[side], is_starved, is_slow),
            };
            self.report.has_news |= has_moved;
        }
        *shown = status;
        drop(shown);
        self.report.at = now;
    }

    pub(super) fn count_connections(&mut self) {
        let counts = self.edges.take_counts();
        self.shared.count(|totals| {
            totals.connections += counts.begun;
            totals.connections_refused += counts.refused;
        });
    }
}

/// Returns the hops without the optional ones behind number `at` that were left out, as far as the
/// number of agreed segments tells. If only some were left out, all are returned.
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

/// Returns what limits a segment, as far as this end sees.
const fn limit(
    segment: &Segment,
    has_moved: bool,
    is_held: bool,
    is_starved: bool,
    is_slow: bool,
) -> Limit {
    match () {
        () if segment.channel.is_none() => Limit::Channel,
        () if is_slow => Limit::Sink,
        () if is_held => Limit::Share,
        () if is_starved => Limit::Ring,
        () if segment.posts > 0 => Limit::Path,
        () if has_moved || segment.ring_used > 0 => Limit::Source,
        () => Limit::Idle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::session::shape;

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
