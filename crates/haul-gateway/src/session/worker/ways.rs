//! The ways of a session: the next one when one cannot be had, for sessions that their ends
//! acknowledge also while they are there; and optional gateways that are left out.

use haul_xsp::wire::{Endpoint, Hop, Metadata, NackStatus, SessOpen};
use haul_xsp::{Admission, ConnId, Error, Misuse, SECOND_NS, Session, SessionId, State, Time};

use super::super::attempts::Attempts;
use super::super::shape;
use super::{Body, Dial, Worker, drop_control};
use crate::caller::Call;
use crate::channel::{Lost, kind};
use crate::config::{Route, Via, way_in_words};
use crate::host::Shown;
use crate::log::Level;
use crate::status::Role;

/// First and longest wait before another attempt at the next hop, ns.
const BACKOFF_NS: (u64, u64) = (SECOND_NS / 10, 5 * SECOND_NS);
/// Tries to have the present way back, before another is tried.
const TRIES: u32 = 2;
/// Fewer, where they have taken so long, ns.
const PATIENCE_NS: u64 = 2 * SECOND_NS;

/// A way that an opener may go.
#[derive(Debug)]
struct Way {
    hops: Vec<Hop>,
    first: Dial,
    /// For people.
    words: String,
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

impl Dial {
    /// For the next hop of a session of others.
    pub(super) fn to(hop: &Hop) -> Self {
        let streams = hop.offers.iter().find_map(|offer| offer.params.streams);
        let offered = hop.offers.iter().filter_map(|offer| kind(offer.proto));
        Self {
            hop: Shown(&hop.endpoint).to_string(),
            offered: offered.collect(),
            streams: streams.unwrap_or(1),
            ..Self::default()
        }
    }
}

/// The ways of a session, and what becomes of the one that it goes or tries.
#[derive(Debug, Default)]
pub(super) struct Ways {
    /// Of an opener, the best first.
    all: Vec<Way>,
    at: usize,
    end_to_end: bool,
    is_opened: bool,
    /// Since when it is without a way, and which it had.
    since: Option<Time>,
    home: usize,
    /// Tries on the present way since then that have failed.
    tries: u32,
    /// Another way has been tried since then; of a gateway between, its owner has been told.
    has_changed: bool,
    /// A hop says that its next is gone: it is no use to resume there.
    is_cut: bool,
    /// The session is to be opened anew, on the same hops too.
    is_anew: bool,
    /// The hop has just given up what it had of the session, and is to be asked again.
    is_given_up: bool,
    why: String,
    /// What became of ways by which it could not be opened.
    failed: Vec<String>,
    /// What is asked for along with the session, and what the session calls it.
    along: Vec<(ConnId, Endpoint, Option<Endpoint>, Metadata)>,
    /// Of a gateway between: what it opens at the next hop.
    relayed: Option<(SessionId, SessOpen)>,
}

/// What to do when a try has failed.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    /// The same way again, in a while.
    Stay,
    /// This way, at once; or in a while, if all have been tried.
    Change { to: usize, at_once: bool },
}

impl Ways {
    /// Those of a route; none, if it has no gateways.
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

    /// Why the present way cannot be had, in words.
    pub(super) fn note(&mut self, why: &str) {
        why.clone_into(&mut self.why);
    }

    /// A hop has refused what was asked for again.
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

    /// What it has been told may have been lost.
    pub(super) const fn owner_is_back(&mut self) {
        self.has_changed = false;
    }

    /// What is asked for along with the session may have to be asked for again.
    pub(super) fn ask_along(&mut self, conn: ConnId, call: &Call) {
        let named = call.named.clone();
        let metadata = call.metadata.clone();
        self.along.push((conn, call.to.clone(), named, metadata));
    }

    /// Why the session has ended, where it was tried by other ways before.
    pub(super) fn end_reason(&self, last: &str) -> String {
        let all = self.failed.iter().map(String::as_str).chain([last]);
        all.collect::<Vec<_>>().join("; ")
    }

    /// On a new control connection to the first hop: the session is resumed there, or opened anew
    /// by another way.
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

    /// The next way that ends at the same gateway.
    fn next(&self) -> Option<usize> {
        let (count, own) = (self.all.len(), self.all.get(self.at)?);
        let mut others = (1..count).map(|step| (self.at + step) % count);
        others.find(|other| self.all[*other].terminus() == own.terminus())
    }

    /// Whether the present way leads on without a gateway behind the first.
    fn may_leave_out(&self) -> bool {
        let hops = self.all.get(self.at).map_or(&[][..], |way| &way.hops);
        hops.iter().skip(1).any(|hop| hop.flags.optional)
    }

    /// The present way is lost, or could not be had back.
    fn fail(&mut self, now: Time) -> Turn {
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

impl Worker {
    /// What is to be opened by the present way.
    pub(super) fn plan_way(&mut self) -> Result<(), String> {
        let id = haul_io::random::bytes().map_err(|error| error.to_string())?;
        let way = self.ways.all.get(self.ways.at).ok_or("there is no way")?;
        let open = SessOpen {
            resumable: self.probe.is_none(),
            dry_run: self.probe.is_some(),
            end_to_end: self.ways.end_to_end,
            hops: way.hops.clone(),
            ..SessOpen::default()
        };
        self.dials[0] = way.first.clone();
        self.show_plan(SessionId(id), &open);
        self.wanted = Some((SessionId(id), open));
        Ok(())
    }

    /// The session could not be opened by the present way: whether it is tried by the next.
    pub(super) fn open_by_next_way(&mut self, status: NackStatus, why: &str) -> bool {
        let may_do_elsewhere = matches!(
            status,
            NackStatus::NoRoute
                | NackStatus::CannotConnect
                | NackStatus::Busy
                | NackStatus::TimedOut
                | NackStatus::Closing
        );
        let ways = &mut self.ways;
        if !may_do_elsewhere || ways.is_opened || ways.at + 1 >= ways.all.len() {
            return false;
        }
        let (from, to) = (&ways.all[ways.at].words, &ways.all[ways.at + 1].words);
        let text = format!("no session by {from}: {why}; trying by {to}");
        self.shared.log(Level::Warning, text);
        ways.failed.push(why.to_owned());
        ways.at += 1;
        for (conn, to, named, metadata) in std::mem::take(&mut ways.along).into_iter().rev() {
            if let Some((party, from)) = self.edges.take_back(conn) {
                self.calls.push_front(Call {
                    party,
                    from,
                    to,
                    named,
                    metadata,
                    is_again: true,
                });
            }
        }
        self.unregister();
        self.body = Body::None;
        if let Some(segment) = &mut self.segments[0] {
            drop_control(segment, &self.poller, &mut self.watched[0]);
        }
        let planned = self.plan_way();
        if planned.is_ok() {
            self.dial(0);
        }
        planned.is_ok()
    }

    /// As [`Self::open_by_next_way`], for a session that has ended before it was open.
    pub(super) fn is_opened_elsewhere(&mut self, error: &Error) -> bool {
        let status = match error {
            Error::Lost | Error::TimedOut => NackStatus::TimedOut,
            Error::Ended { status, .. } => *status,
            _ => return false,
        };
        if self.role != Role::Opener {
            return false;
        }
        let why = self.end_reason(0, error);
        self.open_by_next_way(status, &why)
    }

    fn unregister(&mut self) {
        let id = self.body.session(0).map(|session| session.id());
        if let Some(id) = id.filter(|_| self.is_registered) {
            self.shared.registers().sessions.remove(&id);
            self.is_registered = false;
        }
    }

    /// The next hop is lost, or could not be had back: it is tried again, or the next way is.
    pub(super) fn dial_later(&mut self, side: usize) {
        let now = self.now();
        let at_once = match self.role {
            Role::Opener => self.change_way(now),
            _ => {
                self.notify_owner(now, side);
                false
            }
        };
        let dialled = &mut self.dials[side];
        if at_once {
            dialled.again_at = Some(now);
            return;
        }
        dialled.wait_ns = (dialled.wait_ns * 2).clamp(BACKOFF_NS.0, BACKOFF_NS.1);
        dialled.again_at = Some(now.after(dialled.wait_ns));
    }

    /// Whether another way is to be tried at once.
    fn change_way(&mut self, now: Time) -> bool {
        let may = self.body.session(0).is_some_and(|session| {
            session.agreed().end_to_end && matches!(session.state(), State::Suspended(_))
        });
        let from = self.ways.at;
        if !may || self.dials[0].is_under_way {
            return false;
        }
        let Turn::Change { to, at_once } = self.ways.fail(now) else {
            return false;
        };
        let wait_ns = self.dials[0].wait_ns;
        self.dials[0] = Dial {
            wait_ns,
            ..self.ways.all[to].first.clone()
        };
        let (old, new) = (&self.ways.all[from].words, &self.ways.all[to].words);
        let text = match from == to {
            true => format!("the session is opened anew by {new}: {}", self.ways.why),
            false => format!(
                "the session is to go on by {new}, not by {old}: {}",
                self.ways.why
            ),
        };
        self.shared.log(Level::Warning, text);
        at_once
    }

    /// At a gateway between: the session's owner may know another way than by the next hop, which
    /// is gone.
    fn notify_owner(&mut self, now: Time, side: usize) {
        let since = *self.ways.since.get_or_insert(now);
        if since == now || side != 1 || self.ways.has_changed {
            return;
        }
        self.ways.tries += 1;
        if self.ways.tries < TRIES && now.since(since) < PATIENCE_NS {
            return;
        }
        let text = format!("{}: {}", self.dials[1].hop, self.ways.why);
        if let Some(near) = self.body.session(0)
            && near.agreed().end_to_end
        {
            // While the owner is away, the next failure tells it.
            let told = near.notice(NackStatus::CannotConnect, &text);
            self.ways.has_changed = told.is_ok();
        }
    }

    /// The other end of a segment says something that it need not have said.
    pub(super) fn on_notice(&mut self, side: usize, code: u16, text: &str) {
        if code == NackStatus::Closing.code() {
            return self.on_gateway_closing(side, text);
        }
        if code != NackStatus::CannotConnect.code() {
            return;
        }
        match (self.role, side) {
            (Role::Relay, 1) => {
                if let Some(near) = self.body.session(0) {
                    // An owner that is away learns it when it is back.
                    let _ = near.notice(NackStatus::CannotConnect, text);
                }
            }
            (Role::Opener, _) => {
                let session = self.body.session(0);
                let may = session.is_some_and(|session| session.agreed().end_to_end);
                if may && (self.ways.next().is_some() || self.ways.may_leave_out()) {
                    self.ways.is_cut = true;
                    self.lose(0, &Lost(text.to_owned()));
                }
            }
            _ => {}
        }
    }

    /// A gateway on the way is being stopped.
    fn on_gateway_closing(&mut self, side: usize, text: &str) {
        match (self.role, side) {
            (Role::Relay, 1) => self.notify_owner_of_end(text.to_owned()),
            (Role::Opener, _) => self.retire(),
            _ => {}
        }
    }

    /// The session is on another way, whose first segment may have agreed on something else.
    pub(super) fn renew_attempts(&mut self) {
        let dialled = &self.dials[0];
        let session = self.body.session(0).filter(|_| !dialled.hop.is_empty());
        if let Some(session) = session {
            self.attempts[0] =
                Attempts::new(session, &dialled.offered, dialled.streams, &self.shape);
        }
    }

    /// Opens a session of others at the next hop, that `open` names.
    pub(super) fn go_to(&mut self, id: SessionId, open: SessOpen) {
        self.ways.relayed = Some((id, open.clone()));
        self.wanted = Some((id, open));
        self.dial(1);
    }

    /// The next hop of a session of others cannot be had: whether it is tried without it.
    pub(super) fn leave_out(&mut self, why: &str) -> bool {
        let near = self.body.session(0).map(|session| session.state());
        let relayed = self.ways.relayed.clone();
        // Nobody waits for it where its owner is gone.
        let Some((id, open)) = relayed.filter(|_| near == Some(State::Opening)) else {
            return false;
        };
        let index = open.hop_index;
        let hop = open.hops.get(usize::from(index));
        let Some(hop) = hop.filter(|hop| hop.flags.optional && !hop.flags.last) else {
            return false;
        };
        let Admission::Next(next) = self.shared.directory().next_hop(&open.hops, index) else {
            return false;
        };
        let Some(to) = open.hops.get(usize::from(next)) else {
            return false;
        };
        let (left_out, to_words) = (Shown(&hop.endpoint), Shown(&to.endpoint));
        let text = format!("{left_out} is left out: {why}; going on to {to_words}");
        self.shared.log(Level::Warning, text);
        if let Some(segment) = &mut self.segments[1] {
            drop_control(segment, &self.poller, &mut self.watched[1]);
        }
        self.dials[1] = Dial::to(to);
        let open = SessOpen {
            hop_index: next,
            ..open
        };
        self.go_to(id, open);
        true
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
