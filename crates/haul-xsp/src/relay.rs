//! A gateway between two segments of a session: data of one goes out on the other, from the same
//! memory.
//!
//! Only data that the next segment does not take is kept here: a byte that was read from one
//! segment is already announced on the other, and its memory is released when the next hop has it.

use crate::bag::{End, Read};
use crate::error::Error;
use crate::session::{Event, Session, State};
use crate::time::Time;
use crate::wire::{Metadata, NackStatus, PathAction};
use crate::{ConnId, SessionId};

/// Towards the session's opener, or towards its terminus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The opener's.
    Near,
    /// The terminus's.
    Far,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }
}

/// Work that the relay leaves to its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayEvent {
    /// The next hop refused or failed while the session was opened: try another
    /// ([`crate::Directory::next_hop`]), or [`Relay::give_up`].
    HopFailed(Error),
    /// The session is open through this gateway.
    Opened,
    /// A segment lost its control connection.
    Suspended(Side),
    /// It has one again.
    Resumed(Side),
    /// A request about the path of the segment beyond this gateway; it is also passed on.
    PathRequest {
        /// The action.
        action: PathAction,
        /// For the answer, with `path_status` of the segment that it came from.
        request: u32,
        /// Rules.
        rules: Vec<String>,
        /// Whence.
        from: Side,
    },
    /// Metadata of the application, for the operators of this gateway; it is also passed on, unless
    /// it was dropped.
    Metadata {
        /// About which connection; none for the session.
        conn: Option<ConnId>,
        /// The pairs.
        metadata: Metadata,
    },
    /// Something about the segment's channels, which are each segment's own.
    Segment(Side, Event),
    /// Over: close the control connections of both sides after their final messages in
    /// `poll_transmit`. The side is the one at which the end began.
    Closed(Side, Error),
}

/// Two segments of a session at a gateway.
#[derive(Debug)]
pub struct Relay {
    near: Session,
    far: Session,
    opened: bool,
    closed: bool,
}

impl Relay {
    /// `near` has been asked for a session; `far` opens it at the next hop, under the same name.
    #[must_use]
    pub const fn new(near: Session, far: Session) -> Self {
        Self {
            near,
            far,
            opened: false,
            closed: false,
        }
    }

    /// Returns one of the segments.
    pub const fn side(&mut self, side: Side) -> &mut Session {
        match side {
            Side::Near => &mut self.near,
            Side::Far => &mut self.far,
        }
    }

    /// Returns the session's name.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.near.id()
    }

    /// Sets another next hop, after [`RelayEvent::HopFailed`].
    pub fn replace_far(&mut self, far: Session) {
        self.far = far;
    }

    /// The session's owner opens it on a newer way: both segments end silently, and the far end
    /// keeps the session.
    pub fn supersede(&mut self) {
        self.near.drop_silently();
        self.far.drop_silently();
    }

    /// No next hop is left, because of the error of [`RelayEvent::HopFailed`]: the opener receives
    /// the index of the failed hop.
    pub fn give_up(&mut self, error: &Error) {
        let (status, hop_index, text) = self.blame(Side::Far, error);
        let hop_index = hop_index.unwrap_or_else(|| self.near.hop_index());
        // Fails only if the opener is gone, and then the result does not matter.
        let _ = self.near.refuse_session(status, hop_index, &text);
    }

    /// Translates an error at one side for the other: the hop at fault, if any, is that side's hop
    /// or the one that it named.
    fn blame(&self, side: Side, error: &Error) -> (NackStatus, Option<u16>, String) {
        let there = match side {
            Side::Near => self.near.hop_index().checked_sub(1),
            Side::Far => Some(self.far.hop_index()),
        };
        match error {
            Error::Ended {
                status,
                hop_index,
                text,
            } => (*status, hop_index.or(there), text.clone()),
            error => (error.status(), there, error.to_string()),
        }
    }

    /// Moves available data: call until `None`, after every call on either side.
    pub fn poll(&mut self, now: Time) -> Option<RelayEvent> {
        for side in [Side::Near, Side::Far] {
            while let Some(event) = self.side(side).poll_event() {
                if let Some(event) = self.on_event(now, side, event) {
                    return Some(event);
                }
            }
            self.release(side);
        }
        for side in [Side::Near, Side::Far] {
            self.pump_waiting(now, side);
        }
        None
    }

    fn on_event(&mut self, now: Time, side: Side, event: Event) -> Option<RelayEvent> {
        let to = side.other();
        match event {
            Event::Opened(ack) => {
                if self.near.accept_session(now, Some(&ack), None).is_err() {
                    self.far.close(NackStatus::Closing, true);
                    return None;
                }
                self.opened = true;
                return Some(RelayEvent::Opened);
            }
            Event::Closed(error) => return self.on_closed(side, error),
            Event::Suspended => return Some(RelayEvent::Suspended(side)),
            Event::Resumed { .. } => return Some(RelayEvent::Resumed(side)),
            Event::ConnRequest {
                conn,
                to: endpoint,
                metadata,
                early,
            } => {
                let said = metadata.clone();
                let opened = self.side(to).open_conn_as(conn, endpoint, said, early);
                if opened.is_err() {
                    let status = match self.side(to).state() {
                        State::Open => NackStatus::Busy,
                        State::Draining | State::Closed => NackStatus::Closing,
                        _ => NackStatus::CannotConnect,
                    };
                    let _ = self.side(side).refuse_conn(conn, status.code());
                    return None;
                }
                return shown(Some(conn), metadata);
            }
            Event::ConnAccepted(conn) => {
                let _ = self.side(to).accept_conn(conn);
            }
            Event::ConnRefused { conn, status } => {
                let _ = self.side(to).refuse_conn(conn, status);
            }
            Event::Stopped { conn, code } => self.side(to).stop_conn(conn, code),
            Event::ConnLost(conn) => self.side(to).reset_conn(conn, NackStatus::Error.code()),
            Event::Readable(conn) => self.pump(now, side, conn),
            Event::Delivered { conn, delivered } => self.side(to).pass_delivered(conn, delivered),
            Event::PathRequest {
                action,
                request,
                rules,
            } => {
                let _ = self.side(to).request_path(action, request, rules.clone());
                return Some(RelayEvent::PathRequest {
                    action,
                    request,
                    rules,
                    from: side,
                });
            }
            Event::PathStatus {
                request,
                state,
                text,
            } => {
                let _ = self.side(to).path_status(request, state, &text);
            }
            Event::Metadata(metadata) => {
                self.far.set_metadata(metadata.clone());
                return shown(None, metadata);
            }
            Event::App { option, octets } => {
                let _ = self.side(to).send_app(option, octets);
            }
            Event::ConnClosed(_) => {}
            event => return Some(RelayEvent::Segment(side, event)),
        }
        None
    }

    fn on_closed(&mut self, side: Side, error: Error) -> Option<RelayEvent> {
        if side == Side::Far && !self.opened {
            return Some(RelayEvent::HopFailed(error));
        }
        let (status, hop_index, text) = self.blame(side, &error);
        let other = self.side(side.other());
        if other.state() != State::Closed {
            match &error {
                Error::Closed => other.close(NackStatus::Done, false),
                // The terminus is gone, and its owner, which is here, has no other way.
                Error::Gone if side == Side::Far && other.is_up() => {
                    other.fail_hop(status, hop_index, &text);
                }
                // The far end keeps the session, and its owner may come over another way.
                Error::Lost | Error::TimedOut | Error::Gone if other.is_end_to_end() => {
                    other.drop_silently()
                }
                // The next hop has lost it: if more than that is lost, its owner receives an error
                // when it resumes.
                Error::Ended {
                    status: NackStatus::UnknownSession,
                    ..
                } if side == Side::Far && other.is_end_to_end() => other.drop_silently(),
                Error::Ended {
                    status: NackStatus::Done,
                    ..
                } => other.close(NackStatus::Done, false),
                _ => other.fail_hop(status, hop_index, &text),
            }
        }
        if std::mem::replace(&mut self.closed, true) {
            return None;
        }
        Some(RelayEvent::Closed(side, error))
    }

    /// Passes a connection's bytes and end on, as far as the other segment takes them.
    fn pump(&mut self, now: Time, from: Side, conn: ConnId) {
        let (source, sink) = match from {
            Side::Near => (&mut self.near, &mut self.far),
            Side::Far => (&mut self.far, &mut self.near),
        };
        loop {
            let credit = sink.producer().credit(conn);
            match source.consumer().read(conn, credit) {
                Some(Read::Data(data)) => {
                    if !sink
                        .producer()
                        .forward(now, conn, data.at, data.len, data.crc)
                    {
                        // The other direction was reset meanwhile: drops them.
                        source.consumer().release(conn, data.offset, data.len);
                    }
                }
                Some(Read::End(end)) => {
                    sink.end_conn(conn, end);
                    if matches!(end, End::Reset(_)) {
                        source.end_conn(conn, end);
                    }
                }
                None => return,
            }
        }
    }

    /// Connections that had to wait for credit on the other segment.
    fn pump_waiting(&mut self, now: Time, from: Side) {
        for conn in self.side(from).consumer().waiting() {
            self.pump(now, from, conn);
        }
    }

    /// Data that the next hop has is released at the segment that it came from.
    fn release(&mut self, side: Side) {
        let (sink, source) = match side {
            Side::Near => (&mut self.near, &mut self.far),
            Side::Far => (&mut self.far, &mut self.near),
        };
        while let Some((conn, offset, place)) = sink.producer().poll_released() {
            source.consumer().release(conn, offset, place.len);
        }
    }
}

/// There is something to show.
fn shown(conn: Option<ConnId>, metadata: Metadata) -> Option<RelayEvent> {
    let is_said = !metadata.is_empty() || metadata.is_dropped();
    is_said.then_some(RelayEvent::Metadata { conn, metadata })
}
