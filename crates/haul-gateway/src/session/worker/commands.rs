//! What others have for a session: programs' connections, control connections, addresses, data
//! connections, the wish to end.

use std::net::SocketAddr;

use crossbeam_channel::Sender;
use haul_xsp::wire::NackStatus;
use haul_xsp::{ConnId, Misuse, SECOND_NS, Session, Side, State, Time};

use super::super::attempts;
use super::super::dispatch::dispatch;
use super::super::side::SegmentSide;
use super::{BEING_STOPPED, Body, Worker, drop_control};
use crate::caller::Call;
use crate::channel::DataConnection;
use crate::config::ChannelKind;
use crate::control::Control;
use crate::log::Level;
use crate::refusal::{Refusal, code};
use crate::shared::{SessionCommand, Standing};
use crate::status::Role;

/// Connections that wait for their session to be open.
const WAITING_MAX: usize = 1_024;
/// Time for the owner of a session that is to end to heed it, for each segment that there may be
/// between, ns.
const NOTICE_NS: u64 = SECOND_NS;

impl Worker {
    pub(super) fn read_commands(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            self.on_command(command);
        }
    }

    fn on_command(&mut self, command: SessionCommand) {
        let now = self.now();
        match command {
            SessionCommand::Call(call) => self.on_call(call),
            SessionCommand::Withdrawn => {
                self.calls.retain(|call| call.party.is_wanted());
                if let Some(session) = self.body.session(0) {
                    self.edges.withdraw(session);
                }
                self.drain();
            }
            SessionCommand::Await(waiter) => self.on_await(waiter),
            SessionCommand::Dialled(result) => self.on_dialled(result),
            SessionCommand::Resolved(conn, result) => self.on_resolved(conn, result),
            SessionCommand::DataConnection {
                kind,
                cookie,
                connection,
            } => self.on_data_connection(kind, &cookie, connection),
            SessionCommand::Accepted { kind, qp_num, news } => {
                let of = |segment: &&mut SegmentSide| {
                    segment.fabric.as_ref().is_some_and(|fabric| {
                        fabric.kind() == kind && fabric.qp_nums().contains(&qp_num)
                    })
                };
                if let Some(segment) = self.segments.iter_mut().flatten().find(of) {
                    segment.on_accepted(kind, qp_num, news);
                }
            }
            SessionCommand::Resume {
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
            SessionCommand::Anew {
                mut fresh,
                control,
                open,
            } => {
                let hop_index = open.hop_index;
                let session = self.body.session(0);
                let is_newer = session.is_some_and(|session| session.is_superseded_by(&open));
                match (self.role, self.body.session(0)) {
                    (Role::Terminus, Some(session)) if is_newer => {
                        match session.adopt_anew(now, &mut fresh, &open) {
                            Ok(()) => self.take_control(*control),
                            Err(misuse) => {
                                let status = match misuse {
                                    Misuse::NoProtocol => NackStatus::NoProtocol,
                                    _ => NackStatus::UnknownSession,
                                };
                                turn_back(now, *fresh, *control, (status, hop_index));
                            }
                        }
                    }
                    (Role::Relay, _) if is_newer => {
                        if let Body::Two(relay) = &mut self.body {
                            relay.supersede();
                        }
                        let text = "its owner opens the session on a newer way";
                        self.shared.log(Level::Info, text);
                        self.is_over = true;
                        turn_back(now, *fresh, *control, (NackStatus::Closing, hop_index));
                    }
                    _ => turn_back(now, *fresh, *control, (NackStatus::Loop, hop_index)),
                }
            }
            SessionCommand::Path(number, state, text) => self.on_path_news(number, state, &text),
            SessionCommand::MakeRoom(asked) => self.make_room(asked),
            SessionCommand::Drain => {
                let is_new = !std::mem::replace(&mut self.is_draining, true);
                if is_new && matches!(self.role, Role::Terminus | Role::Relay) {
                    let name = &self.shared.config().name;
                    self.notify_owner_of_end(format!("gateway '{name}' is being stopped"));
                }
                self.drain();
            }
            SessionCommand::Abort => self.abort(),
        }
    }

    /// Ends, if nobody is there whom that would hurt.
    fn make_room(&mut self, asked: Option<Sender<()>>) {
        if self.role == Role::Pending {
            self.is_over |= self.standing() < Standing::Authenticated;
            return;
        }
        let Some(session) = self.body.session(0) else {
            return;
        };
        let text = if self.idle.is_some() && session.conns() == 0 {
            "it carries nothing, its owner has not shown who it is, and others need the room"
        } else if matches!(session.state(), State::Suspended(_)) {
            "its owner has left without a word and not come back, and others need the room"
        } else {
            return;
        };
        self.shared
            .log(Level::Warning, format!("a session ends: {text}"));
        self.trouble = Some(text.to_owned());
        self.room = asked;
        self.abort();
    }

    /// Ends now. At a gateway between ends that acknowledge without a word, as if it had died: they
    /// go on with the session by another way, or here when it is back.
    fn abort(&mut self) {
        if let Body::Two(relay) = &mut self.body
            && relay.side(Side::Near).agreed().end_to_end
        {
            relay.supersede();
            self.is_over = true;
            return;
        }
        // The far end first: by itself the near one's end has it wait for what is under way.
        for side in [1, 0] {
            if let Some(session) = self.body.session(side) {
                session.close(NackStatus::Closing, true);
            }
        }
        self.is_over |= matches!(self.body, Body::None);
    }

    /// The owner of a session that ends or passes here learns that a gateway is being stopped: what
    /// its programs ask for from now on had better go another way, and, if it is this gateway and
    /// the ends acknowledge, the session itself. It is told again whenever it is back.
    pub(super) fn notify_owner_of_end(&mut self, text: String) {
        let now = self.now();
        let can_send = self.segments[0]
            .as_ref()
            .is_some_and(|segment| segment.reads_until.is_none());
        if let Some(session) = self.body.session(0).filter(|_| can_send) {
            let is_between = self.role == Role::Relay;
            if self.is_draining && is_between && session.agreed().end_to_end {
                let _ = session.notice(NackStatus::CannotConnect, &text);
            }
            let is_sent = session.notice(NackStatus::Closing, &text).is_ok();
            if is_sent && self.is_draining {
                let hops = session.hops().len() as u64;
                self.open_until = Some(now.after(NOTICE_NS * hops));
            }
        }
        self.stopping = Some(text);
    }

    /// The session takes no more connections, for a gateway on its way is being stopped: those that
    /// come from now on get another one.
    pub(super) fn retire(&mut self) {
        if self.is_draining || !self.shared.registers().may_retire(&self.handle) {
            return;
        }
        self.shared.registers().retire(&self.handle);
        self.is_draining = true;
        self.drain();
    }

    /// Ends when what there is is finished; what waits for the session to be open, or was asked for
    /// along with it, belongs to it.
    pub(super) fn drain(&mut self) {
        if !self.is_draining || self.open_until.is_some() || !self.calls.is_empty() {
            return;
        }
        let (has_edges, is_relay) = (self.edges.len() > 0, self.role == Role::Relay);
        let is_told_later = self.stopping.is_some();
        let Some(session) = self.body.session(0) else {
            self.is_over = true;
            return;
        };
        match session.state() {
            State::Opening if is_relay => {
                let hop_index = session.hop_index();
                let _ = session.refuse_session(NackStatus::Closing, hop_index, BEING_STOPPED);
            }
            State::Greeting | State::Opening if has_edges => {}
            // When its owner is back and has been told, it still takes connections for a while.
            State::Suspended(_) if is_told_later && session.conns() > 0 => {}
            _ => session.close(NackStatus::Done, false),
        }
    }

    /// The session's owner is back: what the data channels of before have under way is over.
    fn take_control(&mut self, control: Control) {
        // The session was suspended just now, if it had not been before: that is about the old
        // control connection.
        self.take_events(self.now());
        self.end_fabric(0);
        if let Some(segment) = &mut self.segments[0] {
            drop_control(segment, &self.poller, &mut self.watched[0]);
            segment.control = Some(control);
            segment.was_left = false;
        }
        self.shared.registers().abandoned.remove(&self.handle);
    }

    pub(super) fn on_call(&mut self, call: Call) {
        let state = self.body.session(0).map(|session| session.state());
        if state != Some(State::Open) {
            if state == Some(State::Draining) {
                // It came too late for this session, which may end because the peer says so.
                self.shared.registers().retire(&self.handle);
                dispatch(&self.shared, call);
            } else if self.calls.len() < WAITING_MAX {
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
        self.shared.count(|totals| totals.connections_refused += 1);
        call.refuse(status, self.trouble.as_deref());
    }

    fn on_await(&mut self, waiter: Sender<Result<(), Refusal>>) {
        self.waiters.push(waiter);
        let fabric = self.segments[0]
            .as_ref()
            .and_then(|segment| segment.fabric.as_ref());
        if fabric.is_some_and(|fabric| fabric.lanes_up() > 0) {
            self.notify_waiters(&Ok(()));
        }
    }

    /// Those who wait for the session learn what has become of it.
    pub(super) fn notify_waiters(&mut self, result: &Result<(), Refusal>) {
        for waiter in self.waiters.drain(..) {
            // Whoever does not wait any more need not know.
            let _ = waiter.send(result.clone());
        }
    }

    fn on_data_connection(
        &mut self,
        kind: ChannelKind,
        cookie: &[u8; 16],
        connection: DataConnection,
    ) {
        let mut connection = Some(connection);
        for side in 0..2 {
            let (Some(session), Some(segment)) =
                (self.body.session(side), self.segments[side].as_mut())
            else {
                continue;
            };
            let Some(offered) = connection.take() else {
                return;
            };
            match attempts::on_data_connection(session, segment, kind, cookie, offered) {
                Ok(Some(qp_num)) => {
                    self.shared.registers().adopt_qp(kind, qp_num, &self.handle);
                }
                Ok(None) => {}
                Err(back) => connection = back,
            }
        }
        // What nobody wants is rejected with its drop.
    }

    fn on_resolved(&mut self, conn: ConnId, result: Result<Vec<SocketAddr>, String>) {
        let rules = self.shared.config();
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

/// Refuses what a control connection asks of a session that is here, and closes it. Whoever does
/// not hear it sees that it is closed, and asks again. The hop is this one, as the asker counts.
fn turn_back(
    now: Time,
    mut fresh: Session,
    mut control: Control,
    (status, hop_index): (NackStatus, u16),
) {
    let text = match status {
        NackStatus::Loop => "the session is here already, and not on an older way",
        NackStatus::Closing => "the session of before is given up: it may be asked for again",
        NackStatus::NoProtocol => "no common protocol",
        _ => "the session is not to be resumed with this ticket, or not on this way",
    };
    // Fails only where nothing was asked for.
    let _ = fresh.refuse_session(status, hop_index, text);
    while let Some(octets) = fresh.poll_transmit(now) {
        control.push(octets);
    }
    let _ = control.flush();
}
