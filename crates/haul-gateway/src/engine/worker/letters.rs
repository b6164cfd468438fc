//! What others have for a session: programs' connections, control connections, addresses, data connections, the wish to end.

use std::net::SocketAddr;

use crossbeam_channel::Sender;
use haul_xsp::wire::NackStatus;
use haul_xsp::{ConnId, Session, Side, State, Time};

use super::super::channel;
use super::super::fabric::Knock;
use super::super::half::Half;
use super::{Body, Worker, drop_control};
use crate::caller::{Call, Refusal};
use crate::config::ChannelKind;
use crate::control::Control;
use crate::house::{Letter, code};
use crate::log::Level;
use crate::status::Role;

/// Connections that wait for their session to be open.
const WAITING_MAX: usize = 1_024;

impl Worker {
    pub(super) fn read_letters(&mut self) {
        while let Ok(letter) = self.letters.try_recv() {
            self.on_letter(letter);
        }
    }

    fn on_letter(&mut self, letter: Letter) {
        let now = self.now();
        match letter {
            Letter::Call(call) => self.on_call(call),
            Letter::Withdrawn => {
                self.calls.retain(|call| call.party.is_wanted());
                if let Some(session) = self.body.session(0) {
                    self.edges.withdraw(session);
                }
                self.drain();
            }
            Letter::Await(waiter) => self.on_await(waiter),
            Letter::Dialled(result) => self.on_dialled(result),
            Letter::Resolved(conn, result) => self.on_resolved(conn, result),
            Letter::Knock {
                kind,
                cookie,
                knock,
            } => self.on_knock(kind, &cookie, knock),
            Letter::Accepted { kind, qp_num, news } => {
                let of = |half: &&mut Half| {
                    half.fabric.as_ref().is_some_and(|fabric| {
                        fabric.kind() == kind && fabric.qp_nums().contains(&qp_num)
                    })
                };
                if let Some(half) = self.halves.iter_mut().flatten().find(of) {
                    half.on_accepted(kind, qp_num, news);
                }
            }
            Letter::Resume {
                mut fresh,
                control,
                request,
            } => {
                let session = self.body.session(0);
                let own = session.filter(|session| session.holds(&request.ticket));
                match own.map(|session| session.adopt(now, &mut fresh, &request)) {
                    Some(Ok(())) => self.take_control(*control),
                    _ => turn_back(now, *fresh, *control, (NackStatus::UnknownSession, 0)),
                }
            }
            Letter::Anew {
                mut fresh,
                control,
                open,
            } => {
                let hop_index = open.hop_index;
                let session = self.body.session(0);
                let is_newer = session.is_some_and(|session| session.is_superseded_by(&open));
                match (self.role, self.body.session(0)) {
                    (Role::Terminus, Some(session)) if is_newer => {
                        if session.adopt_anew(now, &mut fresh, &open).is_ok() {
                            self.take_control(*control);
                        }
                    }
                    (Role::Relay, _) if is_newer => {
                        if let Body::Two(relay) = &mut self.body {
                            relay.supersede();
                        }
                        let text = "its owner opens the session on a newer way";
                        self.house.say(Level::Info, text);
                        self.is_over = true;
                        turn_back(now, *fresh, *control, (NackStatus::Closing, hop_index));
                    }
                    _ => turn_back(now, *fresh, *control, (NackStatus::Loop, hop_index)),
                }
            }
            Letter::Path(number, state, text) => self.on_path_news(number, state, &text),
            Letter::MakeRoom => self.is_over |= self.role == Role::Guest,
            Letter::Drain => {
                self.is_draining = true;
                self.drain();
            }
            Letter::Abort => self.abort(),
        }
    }

    /// Ends now. At a gateway between ends that acknowledge without a word, as if it had died: they go on with the session by another
    /// way, or here when it is back.
    fn abort(&mut self) {
        if let Body::Two(relay) = &mut self.body
            && relay.side(Side::Near).agreed().end_to_end
        {
            relay.supersede();
            self.is_over = true;
            return;
        }
        if let Some(session) = self.body.session(0) {
            session.close(NackStatus::Closing, true);
        }
        self.is_over |= matches!(self.body, Body::None);
    }

    /// Ends when what there is is finished; what waits for the session to be open, or was asked for along with it, belongs to it.
    pub(super) fn drain(&mut self) {
        let session = self.body.session(0);
        let is_opening = session
            .is_some_and(|session| matches!(session.state(), State::Greeting | State::Opening));
        let waits = !self.calls.is_empty() || (is_opening && self.edges.len() > 0);
        if !self.is_draining || waits {
            return;
        }
        if let Some(session) = self.body.session(0) {
            session.close(NackStatus::Done, false);
        }
        self.is_over |= matches!(self.body, Body::None);
    }

    /// The session's owner is back: what the data channels of before have under way is over.
    fn take_control(&mut self, control: Control) {
        // The session was suspended just now, if it had not been before: that is about the old control connection.
        self.take_events(self.now());
        self.end_fabric(0);
        if let Some(half) = &mut self.halves[0] {
            drop_control(half, &self.poller, &mut self.watched[0]);
            half.control = Some(control);
        }
    }

    pub(super) fn on_call(&mut self, call: Call) {
        let is_open = self
            .body
            .session(0)
            .is_some_and(|session| session.state() == State::Open);
        if !is_open {
            if self.calls.len() < WAITING_MAX {
                self.calls.push_back(call);
            } else {
                self.turn_away(call, NackStatus::Busy);
            }
            return;
        }
        let Some(session) = self.body.session(0) else {
            return;
        };
        match session.open_conn_with(call.meant().clone(), call.metadata.clone()) {
            Ok(conn) => {
                self.note_conn(conn, &call.metadata);
                self.edges.ask(conn, call);
            }
            Err(_) => self.turn_away(call, NackStatus::Busy),
        }
    }

    pub(super) fn turn_away(&self, call: Call, status: NackStatus) {
        self.house.count(|totals| totals.connections_refused += 1);
        call.refuse(status, self.trouble.as_deref());
    }

    fn on_await(&mut self, waiter: Sender<Result<(), Refusal>>) {
        self.waiters.push(waiter);
        let fabric = self.halves[0]
            .as_ref()
            .and_then(|half| half.fabric.as_ref());
        if fabric.is_some_and(|fabric| fabric.lanes_up() > 0) {
            self.tell_waiters(&Ok(()));
        }
    }

    /// Those who wait for the session learn what has become of it.
    pub(super) fn tell_waiters(&mut self, result: &Result<(), Refusal>) {
        for waiter in self.waiters.drain(..) {
            // Whoever does not wait any more need not know.
            let _ = waiter.send(result.clone());
        }
    }

    fn on_knock(&mut self, kind: ChannelKind, cookie: &[u8; 16], knock: Knock) {
        let mut knock = Some(knock);
        for side in 0..2 {
            let (Some(session), Some(half)) = (self.body.session(side), self.halves[side].as_mut())
            else {
                continue;
            };
            let Some(knocking) = knock.take() else {
                return;
            };
            match channel::on_knock(session, half, kind, cookie, knocking) {
                Ok(Some(qp_num)) => {
                    self.house.registers().adopt_qp(kind, qp_num, &self.mailbox);
                }
                Ok(None) => {}
                Err(back) => knock = back,
            }
        }
        // What nobody wants is rejected with its drop.
    }

    fn on_resolved(&mut self, conn: ConnId, result: Result<Vec<SocketAddr>, String>) {
        let rules = self.house.config();
        let by_rdma = self.edges.is_by_rdma(conn);
        let allowed = result.map(|addresses| {
            let allowed = addresses
                .into_iter()
                .filter(|address| rules.lets_out(*address, by_rdma));
            allowed.collect::<Vec<_>>()
        });
        let Some((mut tools, edges)) = self.edges_tools() else {
            return;
        };
        match allowed {
            Ok(addresses) if !addresses.is_empty() => edges.connect(&mut tools, conn, addresses),
            Ok(_) => {
                edges.refused(tools.poller, conn, code(NackStatus::Forbidden));
                let _ = tools.session.refuse_conn(conn, code(NackStatus::Forbidden));
            }
            Err(_) => {
                edges.refused(tools.poller, conn, code(NackStatus::CannotConnect));
                let _ = tools
                    .session
                    .refuse_conn(conn, code(NackStatus::CannotConnect));
            }
        }
    }
}

/// Refuses what a control connection asks of a session that is here, and closes it. Whoever does not hear it sees that it is closed,
/// and asks again. The hop is this one, as the asker counts.
fn turn_back(
    now: Time,
    mut fresh: Session,
    mut control: Control,
    (status, hop_index): (NackStatus, u16),
) {
    let text = match status {
        NackStatus::Loop => "the session is here already, and not on an older way",
        NackStatus::Closing => "the session of before is given up: it may be asked for again",
        _ => "the session is not to be resumed with this ticket, or not on this way",
    };
    // Fails only where nothing was asked for.
    let _ = fresh.refuse_session(status, hop_index, text);
    while let Some(octets) = fresh.poll_transmit(now) {
        control.push(octets);
    }
    let _ = control.flush();
}
