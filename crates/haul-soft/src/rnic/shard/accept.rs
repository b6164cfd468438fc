//! The passive end of connections.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};

use haul_io::address::source;
use haul_io::poller::Interest;
use haul_io::stream::Stream;
use haul_iwarp::{QpConfig, StreamConnection, Time};
use haul_seal::Side;
use haul_seal::handshake::Protect;
use haul_verbs::cm::{CmEvent, ConnectRequest};
use haul_verbs::{Error, QpState, Result};

use super::pending::{ListeningSocket, PendingConnection};
use super::{Inner, Listening, Subject};
use crate::rnic::buffers::Buffers;
use crate::rnic::events::CmEvents;
use crate::rnic::limits::RD_ATOMIC_MAX;
use crate::rnic::link::{Env, RnicLink, TcpLink, UdtLink, UdtTransport};
use crate::rnic::tap::Tap;
use crate::udt::{Acceptor, LinkOptions};

/// Connections that a listener takes before others have their turn.
const ACCEPT_MAX: usize = 8;

impl Inner {
    pub(in crate::rnic) fn listen(
        &mut self,
        socket: ListeningSocket,
        channel: &Arc<CmEvents>,
        backlog: u32,
    ) -> Result<u32> {
        let listening = Listening {
            socket,
            channel: Arc::clone(channel),
            backlog,
            arrivals: 0,
            pending: 0,
            asked: 0,
        };
        let number = self.listeners.insert(listening);
        let number = number.map_err(|_| Error::Exhausted("listeners"))?;
        if let Some(listening) = self.listeners.get(number) {
            self.setup_poller
                .add(
                    &listening.socket,
                    Subject::Listener(number).token(),
                    Interest::READ,
                )
                .map_err(Error::os("watching a socket"))?;
        }
        Ok(number)
    }

    /// Ends a listener, and the connections that were not accepted.
    pub(in crate::rnic) fn unlisten(&mut self, number: u32) {
        if let Some(listening) = self.listeners.remove(number) {
            let _ = self.setup_poller.remove(&listening.socket);
        }
        for pending in self.pending.numbers() {
            if self
                .pending
                .get(pending)
                .is_some_and(|pending| pending.listener == number)
            {
                self.remove_pending(pending);
            }
        }
    }

    /// Takes some of what waits at a listener, whose socket stays readable as long as something
    /// does.
    pub(super) fn accept(&mut self, number: u32) -> bool {
        (0..ACCEPT_MAX)
            .take_while(|_| self.accept_one(number))
            .count()
            > 0
    }

    fn accept_one(&mut self, number: u32) -> bool {
        let Some(listening) = self.listeners.get_mut(number) else {
            return false;
        };
        let backlog = listening.backlog as usize;
        // Those that have asked wait for the application; the others make room.
        let closed = listening.asked >= backlog;
        let is_full = listening.pending >= backlog;
        let channel = Arc::clone(&listening.channel);
        let now = self.now;
        let accepted = match &mut listening.socket {
            // Out of descriptors, say: the connection waits in the kernel.
            ListeningSocket::Tcp(acceptor) => {
                let accepted = acceptor.accept().ok().flatten();
                accepted.map(|(socket, peer)| (Accepted::Tcp(socket), peer))
            }
            ListeningSocket::Udt(acceptor) => {
                let ways = (self.tap.as_ref(), self.protect.as_ref());
                accept_udt(acceptor, &self.udt, now, closed, ways)
            }
        };
        let Some((accepted, peer)) = accepted else {
            return false;
        };
        listening.arrivals += 1;
        let arrival = listening.arrivals;
        let has_room = !closed && (!is_full || self.make_room(number));
        let link = match accepted {
            Accepted::Tcp(socket) if !has_room => {
                socket.reset_on_drop();
                return true;
            }
            Accepted::Udt(_) if !has_room => return true,
            Accepted::Tcp(socket) => {
                let Ok(sealed) = self.protect_stream(&socket, Side::Responder) else {
                    socket.reset_on_drop();
                    return true;
                };
                let config = self.prepare(&socket, QpConfig::default());
                let core = StreamConnection::listen(now, config);
                let tap = self.tap.as_ref();
                Box::new(TcpLink::new(socket, core, 0, tap, sealed)) as Box<dyn RnicLink>
            }
            Accepted::Udt(transport) => Box::new(UdtLink::respond(*transport, now, &self.config)),
        };
        self.take_in(PendingConnection {
            link,
            channel,
            peer,
            listener: number,
            arrival,
            has_asked: false,
            buffers: Buffers::new(0, None, 0, 0, 0),
        });
        true
    }

    /// Ends a connection that has sent no request: the oldest of the source with most of them.
    /// Honest peers send it as soon as they are connected. Returns whether one was ended.
    fn make_room(&mut self, listener: u32) -> bool {
        loop {
            let silent = || {
                self.pending.numbers().filter_map(|number| {
                    let pending = self.pending.get(number)?;
                    let is_silent = pending.listener == listener && !pending.has_asked;
                    is_silent.then(|| (source(pending.peer.ip()), pending.arrival, number))
                })
            };
            let mut of_source: HashMap<IpAddr, usize> = HashMap::new();
            for (source, ..) in silent() {
                *of_source.entry(source).or_default() += 1;
            }
            let oldest = silent().min_by_key(|(source, arrival, _)| {
                (Reverse(of_source.get(source).copied()), *arrival)
            });
            let Some((.., oldest)) = oldest else {
                return false;
            };
            // What it wants may have come and not been looked at.
            self.turn_pending(oldest);
            if self
                .pending
                .get(oldest)
                .is_none_or(|pending| !pending.has_asked)
            {
                self.remove_pending(oldest);
                return true;
            }
        }
    }

    fn take_in(&mut self, pending: PendingConnection) {
        let listener = pending.listener;
        let Ok(number) = self.pending.insert(pending) else {
            return;
        };
        if let Some(listening) = self.listeners.get_mut(listener) {
            listening.pending += 1;
        }
        let subject = Subject::Pending(number);
        let registered = self
            .pending
            .get_mut(number)
            .map(|pending| pending.link.register(&self.setup_poller, subject.token()));
        if !matches!(registered, Some(Ok(()))) {
            self.remove_pending(number);
            return;
        }
        self.set_timer();
        self.turn_pending(number);
    }

    pub(in crate::rnic) fn turn_pending(&mut self, number: u32) -> bool {
        let Some(pending) = self.pending.get_mut(number) else {
            return false;
        };
        let had_asked = pending.has_asked;
        let mut env = Env {
            now: self.now,
            registry: &self.registry,
            buffers: &mut pending.buffers,
            scratch: &mut self.scratch,
            poller: &self.setup_poller,
        };
        let moved = pending.link.turn(&mut env);
        let mut over = pending.report();
        if pending.link.has_more() {
            let mut env = Env {
                now: self.now,
                registry: &self.registry,
                buffers: &mut pending.buffers,
                scratch: &mut self.scratch,
                poller: &self.setup_poller,
            };
            pending.link.transmit(&mut env);
            over |= pending.report();
        }
        if pending.has_asked
            && !had_asked
            && let Some(listening) = self.listeners.get_mut(pending.listener)
        {
            listening.asked += 1;
        }
        if pending.has_asked && !had_asked {
            self.ask(number);
        }
        if over {
            self.remove_pending(number);
        }
        moved
    }

    /// Hands a connection's request to the application.
    fn ask(&self, number: u32) {
        let Some(pending) = self.pending.get(number) else {
            return;
        };
        // A peer that names no numbers leaves them to this end.
        let (ird, ord) = pending
            .link
            .core()
            .requested()
            .unwrap_or((RD_ATOMIC_MAX, RD_ATOMIC_MAX));
        let answer = (self.new_request)(Weak::clone(&self.me), number, pending.peer);
        let private = pending.link.core().private_data().to_vec();
        let request = ConnectRequest::new(answer, pending.peer, private, ird, ord);
        pending.channel.push(CmEvent::ConnectRequest(request));
    }

    fn remove_pending(&mut self, number: u32) {
        drop(self.take_pending(number));
    }

    /// Takes an accepted connection out, for a queue pair that may be another shard's.
    pub(in crate::rnic) fn take_pending(&mut self, number: u32) -> Option<PendingConnection> {
        let pending = self.pending.remove(number)?;
        pending.link.unregister(&self.setup_poller);
        if let Some(listening) = self.listeners.get_mut(pending.listener) {
            listening.pending -= 1;
            listening.asked -= usize::from(pending.has_asked);
        }
        Some(pending)
    }

    /// Gives a queue pair its accepted connection.
    pub(in crate::rnic) fn adopt(
        &mut self,
        number: u32,
        pending: PendingConnection,
        private: &[u8],
        (ird, ord): (u16, u16),
    ) -> Result<()> {
        let now = self.now;
        let pair = self.pairs.get_mut(number);
        let pair = pair.ok_or(Error::Invalid("the queue pair is gone"))?;
        let PendingConnection {
            mut link, channel, ..
        } = pending;
        pair.events = Some(channel);
        pair.shape.view.set_state(QpState::Rtr);
        link.core_mut().set_queue_pair(pair.qp_config(ird, ord));
        link.register(&self.poller, Subject::Pair(number).token())
            .map_err(Error::os("watching a socket"))?;
        let clocked = link.is_clocked();
        pair.attach_for(link, |link| {
            link.fit_segments();
            link.core_mut().accept(now, private)
        });
        self.up.push(number);
        self.note_only();
        if clocked {
            self.clocked.push(Subject::Pair(number));
        }
        self.turn(number);
        self.note_due();
        Ok(())
    }
}

/// What has come to a listener.
enum Accepted {
    Tcp(Stream),
    Udt(Box<UdtTransport>),
}

/// Answers datagrams up to a client that is to be connected; none of those where it is closed.
fn accept_udt(
    acceptor: &mut Acceptor,
    options: &LinkOptions,
    now: Time,
    closed: bool,
    (tap, protect): (Option<&Arc<Tap>>, Option<&Arc<dyn Protect>>),
) -> Option<(Accepted, SocketAddr)> {
    let (request, local) = acceptor.next_request()?;
    if closed {
        return None;
    }
    let opened = acceptor.open(&request, local, options, now);
    let (socket, connection) = opened.ok().flatten()?;
    let initial = request.handshake.initial;
    let socket = (socket, request.from);
    let accepted = UdtTransport::accepted(socket, connection, initial, options, tap, protect);
    let transport = accepted.ok()?;
    Some((Accepted::Udt(Box::new(transport)), request.from))
}
