//! A session that this gateway opens: its ways, and the connections that wait for it.

use std::io;
use std::sync::Arc;

use crossbeam_channel::Sender;
use haul_xsp::wire::{NackStatus, SessOpen};
use haul_xsp::{Error, SessionId, State, Time};

use super::super::attempts::Attempts;
use super::super::dispatch::dispatch;
use super::super::shape::Shape;
use super::super::side::SegmentSide;
use super::Worker;
use super::metadata::GATEWAY;
use super::part::{Opener, Part, Probed, Waiting};
use super::segments::drop_control;
use super::state::{Body, Dial};
use super::ways::{Turn, Ways};
use crate::caller::Call;
use crate::config::Route;
use crate::log::Level;
use crate::refusal::Refusal;
use crate::shared::{SessionHandle, Shared};
use crate::status::Role;

/// Connections that wait for their session to be open.
const WAITING_MAX: usize = 1_024;

impl Worker {
    /// Starts a thread that opens a session for a route.
    pub(crate) fn open(shared: &Arc<Shared>, route: &Route) -> Result<SessionHandle, String> {
        Self::open_route(shared, route, None, false)
    }

    /// Starts a thread that opens a session for a route to try its data channels.
    pub(crate) fn open_trial(shared: &Arc<Shared>, route: &Route) -> Result<SessionHandle, String> {
        Self::open_route(shared, route, None, true)
    }

    /// Starts a thread that asks whether a session for a route can be opened, and answers `probe`.
    pub(crate) fn probe(
        shared: &Arc<Shared>,
        route: &Route,
        probe: Sender<Probed>,
    ) -> Result<(), String> {
        Self::open_route(shared, route, Some(probe), false).map(drop)
    }

    pub(super) fn open_route(
        shared: &Arc<Shared>,
        route: &Route,
        probe: Option<Sender<Probed>>,
        is_trial: bool,
    ) -> Result<SessionHandle, String> {
        let text = |error: io::Error| error.to_string();
        let shape = Shape::of_route(&shared.config(), route);
        let mut ways = Ways::of_route(route).ok_or("a route without gateways")?;
        ways.put_last(|way| shared.health.is_down(way));
        let is_probe = probe.is_some();
        let mut opener = Opener::new(ways, probe);
        opener.is_trial = is_trial;
        let part = Part::Opener(Box::new(opener));
        let mut worker = Self::new(Arc::clone(shared), part, shape).map_err(text)?;
        worker.class.clone_from(&route.class);
        if is_probe {
            // Nothing is carried.
            let bare = SegmentSide::bare(worker.shape.verifies).map_err(text)?;
            worker.segments[0].side = Some(bare);
        } else {
            worker.take_memory(true)?;
        }
        worker.plan_way()?;
        worker.paths.rules.clone_from(&route.path);
        worker.described.metadata = route.metadata.0.clone();
        // `check` limits the name.
        let name = &shared.config().name;
        let _ = worker.described.metadata.set(GATEWAY, name);
        worker.dial(0);
        let handle = worker.handle.clone();
        worker.spawn("haul-opener").map_err(text)?;
        Ok(handle)
    }

    /// Prepares to open the session by the present way.
    pub(super) fn plan_way(&mut self) -> Result<(), String> {
        let id = haul_io::random::bytes().map_err(|error| error.to_string())?;
        let id = SessionId(id);
        let opener = self.part.opener_mut().ok_or("it opens no session")?;
        let way = opener.ways.present().ok_or("there is no way")?;
        let open = SessOpen {
            resumable: opener.probe.is_none() && !opener.is_trial,
            dry_run: opener.probe.is_some(),
            end_to_end: opener.ways.end_to_end,
            takes_early: true,
            hops: way.hops.clone(),
            ..SessOpen::default()
        };
        self.segments[0].dial = way.first.clone();
        opener.wanted = Some((id, open.clone()));
        self.show_plan(id, &open);
        Ok(())
    }

    /// Tries the next way after the session could not be opened. Returns whether there is one.
    pub(super) fn open_by_next_way(&mut self, status: NackStatus, why: &str) -> bool {
        let may_do_elsewhere = matches!(
            status,
            NackStatus::NoRoute
                | NackStatus::CannotConnect
                | NackStatus::Busy
                | NackStatus::TimedOut
                | NackStatus::Closing
        );
        let Some(opener) = self.part.opener_mut() else {
            return false;
        };
        let ways = &mut opener.ways;
        if !may_do_elsewhere || !ways.may_open_by_another() {
            return false;
        }
        let (from, to) = (&ways.all[ways.at].words, &ways.all[ways.at + 1].words);
        let text = format!("no session by {from}: {why}; trying by {to}");
        self.shared.log(Level::Warning, text);
        ways.failed.push(why.to_owned());
        ways.at += 1;
        let since = self.shared.now();
        for (conn, to, named, metadata) in std::mem::take(&mut ways.along).into_iter().rev() {
            if let Some((party, from, began)) = self.edges.take_back(conn) {
                let call = Call {
                    party,
                    from,
                    began,
                    to,
                    named,
                    metadata,
                    is_again: true,
                };
                opener.calls.push_front(Waiting { since, call });
            }
        }
        self.unregister();
        self.body = Body::None;
        if let Some(segment) = &mut self.segments[0].side {
            drop_control(segment, &self.poller, &mut self.segments[0].watched);
        }
        let planned = self.plan_way();
        if planned.is_ok() {
            self.dial(0);
        }
        planned.is_ok()
    }

    /// Tries the next way after the session has ended before it was open. Returns whether there is
    /// one.
    pub(super) fn is_opened_elsewhere(&mut self, error: &Error) -> bool {
        let status = match error {
            Error::Lost | Error::TimedOut => NackStatus::TimedOut,
            Error::Ended { status, .. } => *status,
            _ => return false,
        };
        if self.part.role() != Role::Opener {
            return false;
        }
        let why = self.end_reason(0, error);
        self.open_by_next_way(status, &why)
    }

    pub(super) fn unregister(&mut self) {
        let id = self.body.session(0).map(|session| session.id());
        if let Some(id) = id.filter(|_| self.is_registered) {
            self.shared.registers().sessions.remove(&id);
            self.is_registered = false;
        }
    }

    /// Returns whether another way is to be tried at once.
    pub(super) fn change_way(&mut self, now: Time) -> bool {
        let may = self.body.session(0).is_some_and(|session| {
            session.agreed().end_to_end && matches!(session.state(), State::Suspended(_))
        });
        let Some(opener) = self.part.opener_mut() else {
            return false;
        };
        let ways = &mut opener.ways;
        let from = ways.at;
        if !may || self.segments[0].dial.is_under_way {
            return false;
        }
        let Turn::Change { to, at_once } = ways.fail(now) else {
            return false;
        };
        let wait_ns = self.segments[0].dial.wait_ns;
        self.segments[0].dial = Dial {
            wait_ns,
            ..ways.all[to].first.clone()
        };
        let (old, new) = (&ways.all[from].words, &ways.all[to].words);
        let text = match from == to {
            true => format!("the session is opened anew by {new}: {}", ways.why),
            false => format!(
                "the session is to go on by {new}, not by {old}: {}",
                ways.why
            ),
        };
        self.shared.log(Level::Warning, text);
        at_once
    }

    /// The session uses another way, whose first segment may have agreed on another kind.
    pub(super) fn renew_attempts(&mut self) {
        let dialled = &self.segments[0].dial;
        let session = self.body.session(0).filter(|_| !dialled.hop.is_empty());
        if let Some(session) = session {
            self.segments[0].attempts =
                Attempts::new(session, &dialled.offered, dialled.streams, &self.shape);
        }
    }

    /// Retires the session, because a gateway on its way is being stopped: later connections get a
    /// new one.
    pub(super) fn retire(&mut self) {
        if self.ending.is_draining || !self.shared.registers().may_retire(&self.handle) {
            return;
        }
        self.shared.registers().retire(&self.handle);
        self.ending.is_draining = true;
        self.drain();
    }

    /// Retires a suspended session if new connections can get another one, by another way.
    fn is_replaced(&mut self) -> bool {
        let health = &self.shared.health;
        let Some(opener) = self.part.opener() else {
            return false;
        };
        if !opener.ways.has_other(|way| !health.is_down(way)) {
            return false;
        }
        let failed = opener.ways.present().map(|way| way.words.clone());
        if let Some(way) = failed
            && health.note_failed(&way, &opener.ways.why, self.shared.now())
        {
            let why = &opener.ways.why;
            let text = format!("the way by {way} is down: {why}");
            self.shared.log(Level::Warning, text);
        }
        self.retire();
        self.ending.is_draining
    }

    pub(super) fn on_call(&mut self, call: Call) {
        let state = self.body.session(0).map(|session| session.state());
        if state != Some(State::Open) {
            if state == Some(State::Draining) {
                // The connection came too late for this session, which may have been ended by a
                // peer.
                self.shared.registers().retire(&self.handle);
                dispatch(&self.shared, call);
            } else if matches!(state, Some(State::Suspended(_))) && self.is_replaced() {
                dispatch(&self.shared, call);
            } else if let Some(opener) = self.part.opener_mut()
                && opener.calls.len() < WAITING_MAX
            {
                let since = self.shared.now();
                opener.calls.push_back(Waiting { since, call });
                if matches!(state, Some(State::Suspended(_))) {
                    self.hurry(since);
                }
            } else {
                self.turn_away(call, NackStatus::Busy);
            }
            return;
        }
        let Some(session) = self.body.session(0) else {
            return;
        };
        let Ok(early) = call.party.take_early(session.early_room()) else {
            return self.edges.gone(call);
        };
        let early_len = early.len();
        match session.open_conn_with(call.meant().clone(), call.metadata.clone(), early) {
            Ok(conn) => {
                self.note_conn(conn, &call.metadata);
                self.edges.ask(conn, call, early_len);
            }
            Err(_) => self.turn_away(call, NackStatus::Busy),
        }
    }

    pub(super) fn turn_away(&self, call: Call, status: NackStatus) {
        self.shared
            .turn_away(call, status, self.ending.trouble.as_deref());
    }

    pub(super) fn on_await(&mut self, waiter: Sender<Result<(), Refusal>>) {
        if let Some(opener) = self.part.opener_mut() {
            opener.waiters.push(waiter);
        }
        let fabric = self.segments[0]
            .side
            .as_ref()
            .and_then(|segment| segment.fabric.as_ref());
        if fabric.is_some_and(|fabric| fabric.lanes_up() > 0) {
            self.notify_waiters(&Ok(()));
        }
    }

    /// Answers the callers that wait for the session.
    pub(super) fn notify_waiters(&mut self, result: &Result<(), Refusal>) {
        let Some(opener) = self.part.opener_mut() else {
            return;
        };
        for waiter in opener.waiters.drain(..) {
            // The caller may have stopped waiting.
            let _ = waiter.send(result.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use haul_xsp::Directory;

    use super::*;
    use crate::config::Config;
    use crate::log::Log;
    use crate::path::Backend;
    use crate::resolver::Resolver;
    use crate::shared::Secrets;

    #[test]
    fn a_session_that_cannot_be_opened_leaves_no_status() {
        let text = "name = 'g'\nmemory = '64MiB'\n[[route]]\nto = ['*']\nvia = ['127.0.0.1:9']\n";
        let config = Config::parse(text).unwrap();
        let shared = Arc::new(Shared::new(
            config.clone(),
            Secrets::load(&config).unwrap(),
            Resolver::start().unwrap(),
            Directory::new(config.sessions, config.allowed(), [0; 32]),
            (Vec::new(), None),
            Backend::new(&config.path).unwrap(),
            (Worker::open, Log::new(|_, _| {})),
        ));
        let memory = shared.take_memory(shared.memory_left());
        let why = Worker::open(&shared, &config.routes[0]).unwrap_err();
        assert!(why.contains("bytes of memory"), "{why}");
        assert!(memory.is_some() && shared.registers().statuses.is_empty());
    }
}
