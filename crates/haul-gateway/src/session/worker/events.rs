//! Events of the state machines: of a session, its segments and its connections.

use haul_xsp::bag::End;
use haul_xsp::wire::{Address, Endpoint, NackStatus};
use haul_xsp::{ConnId, Error, Event, RelayEvent, Side, State, Time};

use super::super::attempts::Attempts;
use super::super::dial::resolve;
use super::Worker;
use super::segments::drop_control;
use super::state::Body;
use crate::channel::{Lost, kind};
use crate::host::{Shown, hex, of_rdma, socket_addr};
use crate::log::Level;
use crate::refusal::{Cause, Refusal, code, meaning};
use crate::status::Role;

impl Worker {
    pub(super) fn take_events(&mut self, now: Time) -> bool {
        let mut progress = false;
        loop {
            let next = match &mut self.body {
                Body::None => return progress,
                Body::One(session) => session.poll_event().map(Some),
                Body::Two(relay) => match relay.poll(now) {
                    Some(event) => {
                        self.on_relay_event(event);
                        Some(None)
                    }
                    None => None,
                },
            };
            let Some(next) = next else {
                return progress;
            };
            progress = true;
            if let Some(event) = next {
                self.on_event(event);
            }
        }
    }

    pub(super) fn on_event(&mut self, event: Event) {
        match event {
            Event::OpenRequest(open) => self.on_open_request(open),
            Event::ResumeRequest(request) => self.on_resume_request(request),
            Event::Opened(_) => self.on_opened(0),
            Event::Suspended => self.on_suspended(0),
            Event::Resumed { anew } => {
                if anew {
                    self.edges.rewind();
                    self.renew_attempts();
                }
                self.on_resumed(0);
                if anew {
                    self.open_paths_anew();
                }
            }
            Event::Closed(error) => self.on_closed(0, &error),
            Event::ConnRequest {
                conn,
                to,
                metadata,
                early,
            } => {
                self.note_conn(conn, &metadata);
                self.on_conn_request(conn, &to, early);
            }
            Event::Metadata(metadata) => self.note_session(metadata),
            Event::ConnAccepted(conn) => {
                if let Some((mut tools, edges)) = self.edges_tools() {
                    edges.accepted(&mut tools, conn);
                }
            }
            Event::ConnRefused { conn, status } => self.on_conn_refused(conn, status),
            Event::Stopped { conn, code } => {
                if let Some((tools, edges)) = self.edges_tools() {
                    edges.stopped(conn);
                    tools.session.end_conn(conn, End::Reset(code));
                }
            }
            Event::ConnClosed(conn) | Event::ConnLost(conn) => {
                self.edges.closed(&self.poller, conn)
            }
            Event::Readable(conn) => {
                if let Some((mut tools, edges)) = self.edges_tools() {
                    edges.serve(&mut tools, conn);
                }
            }
            Event::PathRequest {
                action,
                request,
                rules,
            } => self.on_path_request(0, action, request, &rules),
            Event::PathStatus {
                request,
                state,
                text,
            } => self.on_path_status(request, state, &text),
            other => self.on_segment_event(0, other),
        }
    }

    pub(super) fn on_relay_event(&mut self, event: RelayEvent) {
        match event {
            RelayEvent::HopFailed(error) => {
                if self.leave_out(&error.to_string()) {
                    return;
                }
                let why = self.end_reason(1, &error);
                self.shared.log(Level::Error, why);
                if let Body::Two(relay) = &mut self.body {
                    relay.give_up(&error);
                }
            }
            RelayEvent::Opened => {
                self.on_opened(1);
            }
            RelayEvent::Suspended(side) => self.on_suspended(index(side)),
            RelayEvent::Resumed(side) => self.on_resumed(index(side)),
            RelayEvent::PathRequest {
                action,
                request,
                rules,
                from,
            } => self.on_path_request(index(from), action, request, &rules),
            RelayEvent::Metadata {
                conn: None,
                metadata,
            } => self.note_session(metadata),
            RelayEvent::Metadata {
                conn: Some(conn),
                metadata,
            } => self.note_conn(conn, &metadata),
            RelayEvent::Segment(side, event) => self.on_segment_event(index(side), event),
            RelayEvent::Closed(side, error) => self.on_closed(index(side), &error),
        }
    }

    /// Handles a notice of a peer.
    pub(super) fn on_notice(&mut self, side: usize, code: u16, text: &str) {
        if code == NackStatus::Closing.code() {
            return self.on_gateway_closing(side, text);
        }
        if code != NackStatus::CannotConnect.code() {
            return;
        }
        match (self.part.role(), side) {
            (Role::Relay, 1) => {
                if let Some(near) = self.body.session(0) {
                    // An absent owner is notified when it is back.
                    let _ = near.notice(NackStatus::CannotConnect, text);
                }
            }
            (Role::Opener, _) => {
                let session = self.body.session(0);
                let may = session.is_some_and(|session| session.agreed().end_to_end);
                if let Some(opener) = self.part.opener_mut()
                    && may
                    && opener.ways.has_alternative()
                {
                    opener.ways.is_cut = true;
                    self.lose(0, &Lost(text.to_owned()));
                }
            }
            _ => {}
        }
    }

    /// Handles a notice that a gateway on the way is being stopped.
    pub(super) fn on_gateway_closing(&mut self, side: usize, text: &str) {
        match (self.part.role(), side) {
            (Role::Relay, 1) => self.notify_owner_of_end(text.to_owned()),
            (Role::Opener, _) => self.retire(),
            _ => {}
        }
    }

    pub(super) fn on_opened(&mut self, side: usize) {
        let (dialled, attempts) = (&self.segments[side].dial, &mut self.segments[side].attempts);
        let Some(session) = self.body.session(side) else {
            return;
        };
        if session.is_dry_run() {
            let agreed = session.agreed().segments.iter();
            let kinds = agreed.map(|segment| kind(segment.proto)).collect();
            if let Some(probe) = self.part.take_probe() {
                // The caller may have stopped waiting.
                let _ = probe.send(Ok(kinds));
            }
            return;
        }
        *attempts = Attempts::new(session, &dialled.offered, dialled.streams, &self.shape);
        if self.part.role() == Role::Opener {
            self.shared.count(|totals| totals.sessions += 1);
        }
        self.shared.log(
            Level::Info,
            format!("{}: session {} is open", dialled.hop, hex(&session.id().0)),
        );
        self.segments[side].dial.wait_ns = 0;
        self.part.settle();
        self.ending.trouble = None;
        self.ask_for_channels(side);
        self.log_metadata();
        self.open_paths();
        for call in self.part.take_calls() {
            self.on_call(call);
        }
        self.drain();
    }

    pub(super) fn on_suspended(&mut self, side: usize) {
        let state = self.body.session(side).map(|session| session.state());
        if !matches!(state, Some(State::Suspended(_))) {
            // Its owner reconnected before the loss was noticed, with a new control connection.
            return;
        }
        if let Some(segment) = &mut self.segments[side].side {
            drop_control(segment, &self.poller, &mut self.segments[side].watched);
        }
        self.end_fabric(side);
        if !self.segments[side].dial.hop.is_empty() {
            self.dial_later(side);
        } else {
            self.note_abandoned();
        }
    }

    pub(super) fn on_resumed(&mut self, side: usize) {
        let peer = self.segments[side]
            .side
            .as_ref()
            .map_or("", |segment| segment.peer.as_str());
        self.shared
            .log(Level::Info, format!("{peer}: the session goes on"));
        self.ending.trouble = None;
        if !self.segments[side].dial.hop.is_empty() {
            self.segments[side].dial.wait_ns = 0;
            self.part.settle();
            self.ask_for_channels(side);
        } else {
            self.part.owner_is_back();
            let stopping = self.part.owner().and_then(|owner| owner.stopping.clone());
            if let Some(text) = stopping {
                self.notify_owner_of_end(text);
            }
        }
        for call in self.part.take_calls() {
            self.on_call(call);
        }
        self.drain();
    }

    pub(super) fn on_closed(&mut self, side: usize, error: &Error) {
        if self.is_opened_elsewhere(error) {
            return;
        }
        let end_reason = self.end_reason(side, error);
        let is_dry_run = self.is_dry_run();
        let peer = self.segments[side]
            .side
            .as_ref()
            .map_or("", |segment| segment.peer.as_str());
        let is_ordinary = matches!(
            error,
            Error::Ended {
                status: NackStatus::Done | NackStatus::Closing,
                ..
            }
        );
        match (error, self.part.role()) {
            (Error::Closed, _) => {}
            _ if is_dry_run => {}
            (Error::NotAuthenticated(_) | Error::Incompatible(_), Role::Pending) => {
                self.shared.count(|totals| totals.sessions_refused += 1);
                self.shared
                    .log(Level::Warning, format!("{peer}: rejected: {error}"));
            }
            // Port scans must not fill the log.
            (_, Role::Pending) => self
                .shared
                .log(Level::Debug, format!("{peer}: rejected: {error}")),
            // The reason was logged when it was lost.
            (Error::Lost, _) => self.shared.log(
                Level::Warning,
                format!("{peer}: the session ended: {error}"),
            ),
            _ => self.shared.log(
                if is_ordinary {
                    Level::Info
                } else {
                    Level::Warning
                },
                format!("the session ended: {end_reason}"),
            ),
        }
        for side in 0..2 {
            // The final messages give the peer the reason.
            self.transmit(side);
        }
        self.count_end(side, error);
        if error.status() == NackStatus::UnknownSession {
            self.start_over();
        }
        self.ending.trouble = Some(self.part.end_reason(&end_reason));
        let status = match error {
            Error::Lost if self.ending.auth_failed => NackStatus::NotAuthenticated,
            error => verdict(error),
        };
        self.refuse_all(status);
        self.ending.is_over = true;
    }

    /// Returns why the session has ended, with the hop that caused it.
    pub(super) fn end_reason(&mut self, side: usize, error: &Error) -> String {
        let hops = self.body.session(side).map(|session| session.hops());
        let named = |index: u16| Some(Shown(&hops?.get(usize::from(index))?.endpoint).to_string());
        let peer = self.segments[side]
            .side
            .as_ref()
            .map_or("", |segment| segment.peer.as_str());
        match (error, &self.ending.trouble) {
            (Error::Lost, Some(trouble)) => trouble.clone(),
            (Error::Gone, Some(trouble)) => format!("{trouble}: {error}"),
            (
                Error::Ended {
                    status,
                    hop_index,
                    text,
                },
                _,
            ) => {
                let status_text = meaning(code(*status)).text;
                let hop = hop_index.and_then(named);
                let hop = hop.as_deref().unwrap_or(peer);
                match text.as_str() {
                    "" => format!("gateway {hop}: {status_text}"),
                    text => format!("gateway {hop}: {status_text}: {text}"),
                }
            }
            _ => format!("gateway {peer}: {error}"),
        }
    }

    /// Counts a session that has ended otherwise than in order.
    fn count_end(&mut self, side: usize, error: &Error) {
        let in_order = matches!(
            error,
            Error::Closed
                | Error::Ended {
                    status: NackStatus::Done,
                    ..
                }
        );
        let session = self.body.session(side);
        let was_open = session.is_some_and(|session| session.agreed().resumable);
        if was_open && !in_order {
            self.shared.count(|totals| totals.sessions_lost += 1);
        }
    }

    pub(super) fn refuse_all(&mut self, status: NackStatus) {
        let why = self.ending.trouble.as_deref();
        self.edges.reset_all(&self.poller, code(status), why);
        let refusal = Refusal::new(code(status), why);
        if let Some(probe) = self.part.take_probe() {
            let _ = probe.send(Err(refusal.clone()));
        }
        for call in self.part.take_calls() {
            self.turn_away(call, status);
        }
        self.notify_waiters(&Err(refusal));
    }

    /// The far end has refused a connection. If its gateway forbids it or has no room, the log line
    /// names that gateway, which is the last hop.
    pub(super) fn on_conn_refused(&mut self, conn: ConnId, status: u16) {
        let meant = meaning(status);
        let last = self
            .body
            .session(0)
            .and_then(|session| session.hops().last());
        let is_of_gateway = matches!(
            meant.cause,
            Cause::Forbidden | Cause::Gateway | Cause::Unresolved
        );
        let last = last.filter(|_| is_of_gateway);
        let why = last.map(|last| format!("gateway {}: {}", Shown(&last.endpoint), meant.text));
        self.edges.refused(&self.poller, conn, status, why);
    }

    pub(super) fn on_conn_request(&mut self, conn: ConnId, to: &Endpoint, early: Vec<u8>) {
        let (rules, client) = (self.shared.config(), self.client_of(conn));
        let of_rdma = of_rdma(to);
        let by_rdma = of_rdma.is_some();
        let to = of_rdma.as_ref().unwrap_or(to);
        let address = socket_addr(to);
        let allowed = address.is_none_or(|address| rules.lets_out(address, by_rdma));
        self.edges.resolve(conn, to, by_rdma, client, early);
        match (address, &to.address) {
            (Some(address), _) if allowed => {
                if let Some((mut tools, edges)) = self.edges_tools() {
                    edges.connect(&mut tools, conn, vec![address]);
                }
            }
            (None, Address::Name(name)) => {
                resolve(&self.shared, conn, name, to.port, &self.handle);
            }
            // Not on the list, or not resolvable here.
            _ => {
                if let Some((tools, edges)) = self.edges_tools() {
                    edges.refused(tools.poller, conn, code(NackStatus::Forbidden), None);
                    let _ = tools.session.refuse_conn(conn, code(NackStatus::Forbidden));
                }
            }
        }
    }
}

/// Returns the status for waiting connections. An authentication failure between other gateways is
/// not this end's.
const fn verdict(error: &Error) -> NackStatus {
    match error {
        Error::Ended {
            status: NackStatus::NotAuthenticated,
            hop_index: Some(1..),
            ..
        } => NackStatus::Error,
        error => error.status(),
    }
}

const fn index(side: Side) -> usize {
    match side {
        Side::Near => 0,
        Side::Far => 1,
    }
}
