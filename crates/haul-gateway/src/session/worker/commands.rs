//! Commands for a session: applications' connections, control connections, addresses, data
//! connections, the request to end.

use std::net::SocketAddr;

use haul_xsp::wire::NackStatus;
use haul_xsp::{ConnId, Misuse, Session, Side, State, Time};

use super::super::attempts;
use super::super::side::SegmentSide;
use super::state::Body;
use super::{BEING_STOPPED, Worker};
use crate::channel::DataConnection;
use crate::config::ChannelKind;
use crate::control::Control;
use crate::log::Level;
use crate::refusal::code;
use crate::shared::SessionCommand;
use crate::status::Role;

impl Worker {
    pub(super) fn read_commands(&mut self) {
        // A connection that comes when this session has failed is one for the next (`leave`).
        while !self.ending.is_over
            && let Ok(command) = self.commands.try_recv()
        {
            self.on_command(command);
        }
    }

    pub(super) fn on_command(&mut self, command: SessionCommand) {
        let now = self.now();
        match command {
            SessionCommand::Call(call) => self.on_call(call),
            SessionCommand::Withdrawn => {
                if let Some(opener) = self.part.opener_mut() {
                    opener
                        .calls
                        .retain(|waiting| waiting.call.party.is_wanted());
                }
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
                if let Some(segment) = self.sides_mut().find(of) {
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
                match (self.part.role(), self.body.session(0)) {
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
                        let text = "its owner has opened the session by another way";
                        self.shared.log(Level::Info, text);
                        self.ending.is_over = true;
                        turn_back(now, *fresh, *control, (NackStatus::Closing, hop_index));
                    }
                    _ => turn_back(now, *fresh, *control, (NackStatus::Loop, hop_index)),
                }
            }
            SessionCommand::Path(number, state, text) => self.on_path_news(number, state, &text),
            SessionCommand::MakeRoom(asked) => self.make_room(asked),
            SessionCommand::Drain => {
                let is_new = !std::mem::replace(&mut self.ending.is_draining, true);
                if is_new && matches!(self.part.role(), Role::Terminus | Role::Relay) {
                    let name = &self.shared.config().name;
                    self.notify_owner_of_end(format!("gateway '{name}' is being stopped"));
                }
                self.drain();
            }
            SessionCommand::Abort => self.abort(),
        }
    }

    /// Ends the session now. A relay between acknowledging ends disappears as if it had crashed:
    /// they go on by another way, or here when it is back.
    pub(super) fn abort(&mut self) {
        if let Body::Two(relay) = &mut self.body
            && relay.side(Side::Near).agreed().end_to_end
        {
            relay.supersede();
            self.ending.is_over = true;
            return;
        }
        // The far end first: closing only the near one would wait for data in flight.
        for side in [1, 0] {
            if let Some(session) = self.body.session(side) {
                session.close(NackStatus::Closing, true);
            }
        }
        self.ending.is_over |= matches!(self.body, Body::None);
    }

    /// Ends the session after its open connections. Connections that wait for the session, or were
    /// asked for along with it, count.
    pub(super) fn drain(&mut self) {
        let owner = self.part.owner();
        let is_open = owner.is_some_and(|owner| owner.open_until.is_some());
        let is_told_later = owner.is_some_and(|owner| owner.stopping.is_some());
        if !self.ending.is_draining || is_open || self.part.has_calls() {
            return;
        }
        let (has_edges, is_relay) = (self.edges.len() > 0, self.part.role() == Role::Relay);
        let Some(session) = self.body.session(0) else {
            self.ending.is_over = true;
            return;
        };
        match session.state() {
            State::Opening if is_relay => {
                let hop_index = session.hop_index();
                let _ = session.refuse_session(NackStatus::Closing, hop_index, BEING_STOPPED);
            }
            State::Greeting | State::Opening if has_edges => {}
            // Once its owner is back and has the notice, the session still takes connections for a
            // while.
            State::Suspended(_) if is_told_later && session.conns() > 0 => {}
            _ => session.close(NackStatus::Done, false),
        }
    }

    pub(super) fn on_data_connection(
        &mut self,
        kind: ChannelKind,
        cookie: &[u8; 16],
        connection: DataConnection,
    ) {
        let mut connection = Some(connection);
        for side in 0..2 {
            let (Some(session), Some(segment)) =
                (self.body.session(side), self.segments[side].side.as_mut())
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
        // The drop rejects an unknown data connection.
    }

    pub(super) fn on_resolved(&mut self, conn: ConnId, result: Result<Vec<SocketAddr>, String>) {
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
                edges.refused(tools.poller, conn, code(NackStatus::Forbidden), None);
                let _ = tools.session.refuse_conn(conn, code(NackStatus::Forbidden));
            }
            Err(why) => {
                let status = code(NackStatus::CannotResolve);
                edges.refused(tools.poller, conn, status, Some(why));
                let _ = tools.session.refuse_conn(conn, status);
            }
        }
    }
}

/// Refuses what a control connection asks of an existing session, and closes it. A peer that misses
/// the refusal sees the close, and retries. The hop is this one, as the peer counts.
fn turn_back(
    now: Time,
    mut fresh: Session,
    mut control: Control,
    (status, hop_index): (NackStatus, u16),
) {
    let text = match status {
        NackStatus::Loop => "the session is already here, and not by an older way",
        NackStatus::Closing => "the old session is closed: retry",
        NackStatus::NoProtocol => "no common protocol",
        _ => "the session cannot be resumed with this ticket, or by this way",
    };
    // It fails only if nothing was asked for.
    let _ = fresh.refuse_session(status, hop_index, text);
    while let Some(octets) = fresh.poll_transmit(now) {
        control.push(octets);
    }
    let _ = control.flush();
}
