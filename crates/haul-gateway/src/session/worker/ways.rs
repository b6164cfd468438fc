//! The ways of a session that this gateway opens: the next one when one fails, for sessions with
//! end-to-end acknowledgement also while they are open.

use haul_xsp::wire::{Endpoint, Hop, Metadata, NackStatus};
use haul_xsp::{ConnId, Misuse, SECOND_NS, Session, Time};

use super::super::shape;
use super::state::Dial;
use crate::caller::Call;
use crate::config::{Route, Via, way_in_words};
use crate::host::Shown;

/// Attempts to restore the present way before another is tried.
pub(super) const TRIES: u32 = 2;
/// Fewer, if they have taken this long, ns.
pub(super) const PATIENCE_NS: u64 = 2 * SECOND_NS;

/// A way of an opener's session.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) hops: Vec<Hop>,
    pub(super) first: Dial,
    /// For log lines.
    pub(super) words: String,
}

impl Way {
    fn new(route: &Route, way: &[Via]) -> Option<Self> {
        let first = way.first()?;
        Some(Self {
            hops: shape::hops(route, way)?,
            first: Dial {
                hop: Shown(first.gateway().endpoint()).to_string(),
                offered: route.first_channels(way).to_vec(),
                streams: route.streams,
                key: first.key().or(route.key.as_deref()).map(str::to_owned),
                ..Dial::default()
            },
            words: way_in_words(way),
        })
    }

    fn terminus(&self) -> Option<&Endpoint> {
        self.hops.last().map(|hop| &hop.endpoint)
    }
}

/// The ways of a session, and the state of the present one.
#[derive(Debug, Default)]
pub(super) struct Ways {
    /// Best first.
    pub(super) all: Vec<Way>,
    pub(super) at: usize,
    pub(super) end_to_end: bool,
    pub(super) is_opened: bool,
    /// Since when the session is without a way, and which it had.
    since: Option<Time>,
    home: usize,
    /// Failed attempts on the present way since then.
    tries: u32,
    /// Another way has been tried since then.
    has_changed: bool,
    /// A hop has reported that its next hop is lost: resuming there is useless.
    pub(super) is_cut: bool,
    /// The session must be opened anew, even on the same hops.
    is_anew: bool,
    /// The hop has just discarded the session, and must be asked again.
    is_given_up: bool,
    pub(super) why: String,
    /// Errors of ways by which the session could not be opened.
    pub(super) failed: Vec<String>,
    /// The connections requested along with the session, with their numbers there.
    pub(super) along: Vec<(ConnId, Endpoint, Option<Endpoint>, Metadata)>,
}

/// The action after a failed attempt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Try the same way again, later.
    Stay,
    /// Try this way, at once; or later, if all have been tried.
    Change { to: usize, at_once: bool },
}

impl Ways {
    /// Returns the ways of a route; `None` if it has no gateways.
    pub(super) fn of_route(route: &Route) -> Option<Self> {
        let ways = route.ways().into_iter();
        let all: Option<Vec<Way>> = ways.map(|way| Way::new(route, way)).collect();
        let all = all.filter(|all| !all.is_empty())?;
        let end_to_end = route.end_to_end;
        Some(Self {
            all,
            end_to_end,
            ..Self::default()
        })
    }

    /// Notes why the present way failed, in words.
    /// Has the ways that are down tried last. The session must not have been opened.
    pub(super) fn put_last(&mut self, is_down: impl Fn(&str) -> bool) {
        self.all.sort_by_key(|way| is_down(&way.words));
    }

    pub(super) fn note(&mut self, why: &str) {
        why.clone_into(&mut self.why);
    }

    /// A hop has refused a repeated request for now.
    pub(super) fn put_off(&mut self, status: NackStatus, text: &str) {
        self.is_given_up = status == NackStatus::Closing;
        self.note(text);
    }

    /// The session has a way.
    pub(super) fn settle(&mut self) {
        self.is_opened = true;
        (self.since, self.tries) = (None, 0);
        (
            self.has_changed,
            self.is_cut,
            self.is_anew,
            self.is_given_up,
        ) = Default::default();
        self.failed.clear();
        self.along.clear();
    }

    /// Notes what is asked for along with the session, which may have to be asked for again.
    pub(super) fn ask_along(&mut self, conn: ConnId, call: &Call) {
        let named = call.named.clone();
        let metadata = call.metadata.clone();
        self.along.push((conn, call.to.clone(), named, metadata));
    }

    /// Returns why the session has ended, with what became of the ways tried before.
    pub(super) fn end_reason(&self, last: &str) -> String {
        let all = self.failed.iter().map(String::as_str).chain([last]);
        all.collect::<Vec<_>>().join("; ")
    }

    /// On a new control connection to the first hop: resumes the session there, or opens it anew by
    /// another way.
    pub(super) fn go_on(&mut self, now: Time, session: &mut Session) -> Result<(), Misuse> {
        let way = self.all.get(self.at);
        let anew = way.filter(|way| self.is_anew || session.hops() != way.hops);
        match anew {
            Some(way) => session.reopen(now, way.hops.clone())?,
            None => session.reattach(now)?,
        }
        self.is_anew = false;
        Ok(())
    }

    /// Returns the present way.
    pub(super) fn present(&self) -> Option<&Way> {
        self.all.get(self.at)
    }

    /// Whether the session, which has never been open, can be opened by another way after this one.
    pub(super) const fn may_open_by_another(&self) -> bool {
        !self.is_opened && self.at + 1 < self.all.len()
    }

    /// Whether the session can be opened anew without what has failed.
    pub(super) fn has_alternative(&self) -> bool {
        self.next().is_some() || self.may_leave_out()
    }

    /// Returns the next way that ends at the same gateway.
    /// Whether there is another way that is up, and by which the session itself cannot go on.
    pub(super) fn has_other(&self, is_up: impl Fn(&str) -> bool) -> bool {
        let Some(own) = self.present() else {
            return false;
        };
        let is_other = |way: &Way| way.hops != own.hops && is_up(&way.words);
        let goes_on = |way: &Way| self.end_to_end && way.terminus() == own.terminus();
        self.all.iter().any(|way| is_other(way) && !goes_on(way))
    }

    fn next(&self) -> Option<usize> {
        let (count, own) = (self.all.len(), self.all.get(self.at)?);
        let mut others = (1..count).map(|step| (self.at + step) % count);
        others.find(|other| self.all[*other].terminus() == own.terminus())
    }

    /// Whether the present way has an optional gateway behind the first.
    fn may_leave_out(&self) -> bool {
        let hops = self.all.get(self.at).map_or(&[][..], |way| &way.hops);
        hops.iter().skip(1).any(|hop| hop.flags.optional)
    }

    /// Handles a failure of the present way.
    pub(super) fn fail(&mut self, now: Time) -> Turn {
        let is_cut = std::mem::take(&mut self.is_cut);
        let is_given_up = std::mem::take(&mut self.is_given_up);
        let since = match self.since {
            Some(since) => since,
            None => {
                (self.since, self.home) = (Some(now), self.at);
                if !is_cut {
                    return Turn::Stay;
                }
                now
            }
        };
        self.tries += 1;
        let most = u32::from(is_given_up) + if self.has_changed { 1 } else { TRIES };
        let is_late = !self.has_changed && now.since(since) >= PATIENCE_NS;
        if !(is_cut || is_late || self.tries >= most) {
            return Turn::Stay;
        }
        let to = match self.next() {
            Some(next) => next,
            None if is_cut => self.at,
            None => return Turn::Stay,
        };
        self.is_anew = to == self.at;
        (self.at, self.tries, self.has_changed) = (to, 0, true);
        Turn::Change {
            to,
            at_once: is_cut || to != self.home,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn ways(via: &str) -> Ways {
        let text = format!("name = 'g'\n[[route]]\nto = ['*']\nend_to_end = true\n{via}\n");
        Ways::of_route(&Config::parse(&text).unwrap().routes[0]).unwrap()
    }

    const fn at(ms: u64) -> Time {
        Time::from_ns(SECOND_NS + ms * SECOND_NS / 1_000)
    }

    const fn change(to: usize, at_once: bool) -> Turn {
        Turn::Change { to, at_once }
    }

    #[test]
    fn the_present_way_is_tried_twice_and_then_all_in_turns() {
        let mut ways = ways("via = ['a:1', 'c:1']\nor_via = [['b:1', 'd:1'], ['b:1', 'c:1']]");
        assert_eq!(ways.fail(at(0)), Turn::Stay);
        assert_eq!(ways.fail(at(100)), Turn::Stay);
        // The second ends elsewhere: that gateway does not know the session.
        assert_eq!(ways.fail(at(300)), change(2, true));
        assert_eq!(ways.fail(at(310)), change(0, false));
        assert_eq!(ways.fail(at(700)), change(2, true));
        ways.put_off(NackStatus::Closing, "asked for again");
        assert_eq!(ways.fail(at(710)), Turn::Stay);
        ways.settle();
        assert_eq!(ways.fail(at(5_000)), Turn::Stay);
        assert_eq!(ways.fail(at(5_100)), Turn::Stay);
        assert_eq!(ways.fail(at(5_300)), change(0, true));
    }

    #[test]
    fn a_try_that_takes_long_is_enough() {
        let mut ways = ways("via = ['a:1', 'c:1']\nor_via = [['b:1', 'c:1']]");
        assert_eq!(ways.fail(at(0)), Turn::Stay);
        assert_eq!(ways.fail(at(5_100)), change(1, true));
    }

    #[test]
    fn where_a_hop_behind_the_first_is_gone_the_way_is_changed_at_once() {
        let mut two = ways("via = ['a:1', 'c:1']\nor_via = [['b:1', 'c:1']]");
        two.is_cut = true;
        assert_eq!(two.fail(at(0)), change(1, true));
        assert!(!two.is_anew);
        let mut optional = ways("via = ['a:1', { gateway = 'b:1', optional = true }, 'c:1']");
        assert!(optional.may_leave_out());
        optional.is_cut = true;
        assert_eq!(optional.fail(at(0)), change(0, true));
        assert!(optional.is_anew);
        assert_eq!(optional.fail(at(100)), Turn::Stay);
    }
}
