//! Accepts peers' control connections and data connections.

mod data;

use std::io;
use std::sync::Arc;

use haul_io::clock::Clock;
use haul_io::poller::{Events, Interest, Poller};
use haul_io::stream::Acceptor;
use haul_verbs::cm::{CmEvent, EventChannel};
use haul_xsp::SECOND_NS;

use crate::channel::{Accepted, DataConnection, Means, prepare};
use crate::config::{ChannelKind, Config};
use crate::control::Control;
use crate::log::Level;
use crate::session::Worker;
use crate::shared::{PENDING_PEERS_MAX, SessionCommand, Shared};
use haul_io::thread::{Stop, Thread};
use haul_io::watch::Watch;

use data::{Identified, PendingData};

/// Bytes that a pending peer can take: a read, a message, and the send queue.
const PENDING_PEER_BYTES: u64 = (64 << 10) + (1 << 20) + (256 << 10);
/// Pause after the system has run out of descriptors or threads, ns.
const PAUSE_NS: u64 = SECOND_NS / 5;
/// Data connections accepted, or connection events handled, before others are served.
const ACCEPT_MAX: usize = 16;
/// Pause while all places are taken by peers that have just connected or are about to leave, ns.
const SOON_NS: u64 = SECOND_NS / 100;

/// Returns the bytes that unauthenticated peers can take: a partial message on each control
/// connection.
pub(crate) const fn pending_bytes(config: &Config) -> u64 {
    match config.listen {
        Some(_) => PENDING_PEERS_MAX as u64 * PENDING_PEER_BYTES,
        None => 0,
    }
}

/// Token families.
const FAMILY: u64 = 3 << 60;
const NETWORK: u64 = 0;
const CONTROL: u64 = 1 << 60;
const DATA_LISTENER: u64 = 2 << 60;
const PENDING: u64 = 3 << 60;

/// Starts the thread that accepts control connections at `control`, and data connections at
/// listeners and RDMA networks. It ends when it is dropped.
pub(crate) fn open(
    shared: &Arc<Shared>,
    control: Option<Acceptor>,
    listeners: Vec<Acceptor>,
) -> io::Result<Thread> {
    let poller = Poller::new()?;
    for (token, network) in (NETWORK..).zip(&shared.networks) {
        if let Means::Connected { events, .. } = &network.means {
            poller.add(events.fd(), token, Interest::READ)?;
        }
    }
    let shared = Arc::clone(shared);
    Thread::spawn("haul-inbound", poller, |poller, stop| {
        let inbound = InboundThread {
            shared,
            control: control.map(|control| Watch::new(control, CONTROL)),
            listeners: (DATA_LISTENER..)
                .zip(listeners)
                .map(|(token, listener)| Watch::new(listener, token))
                .collect(),
            pending: PendingData::new(PENDING),
            poller,
            stop,
            paused_until_ns: 0,
        };
        inbound.run();
    })
}

struct InboundThread {
    shared: Arc<Shared>,
    control: Option<Watch<Acceptor>>,
    listeners: Vec<Watch<Acceptor>>,
    pending: PendingData,
    poller: Poller,
    stop: Stop,
    /// Nothing is accepted before, ns: descriptors or threads ran out.
    paused_until_ns: u64,
}

impl InboundThread {
    fn run(mut self) {
        let clock = Clock::new();
        let mut events = Events::with_capacity(16);
        while !self.stop.is_set() {
            let now_ns = clock.now_ns();
            self.pending.handle_timeout(&self.poller, now_ns);
            let again = self.listen(now_ns);
            let until = [again, self.pending.poll_timeout()];
            let until = until.into_iter().flatten().min();
            if let Err(error) = self.poller.wait(&mut events, until, clock) {
                self.shared.log(
                    Level::Error,
                    format!("inbound connections are no longer accepted: {error}"),
                );
                return;
            }
            let tokens: Vec<u64> = events.iter().map(|event| event.token).collect();
            for token in tokens {
                self.on_ready(token, clock.now_ns());
            }
        }
    }

    fn on_ready(&mut self, token: u64, now_ns: u64) {
        let index = usize::try_from(token & !FAMILY).unwrap_or(usize::MAX);
        match token & FAMILY {
            CONTROL => self.accept(now_ns),
            DATA_LISTENER => self.accept_data(index, now_ns),
            PENDING => self.receive(token),
            _ => {
                let network = self.shared.networks.get(index);
                if let Some((Means::Connected { events, .. }, kind)) =
                    network.map(|network| (&network.means, network.kind))
                {
                    self.take_events(kind, events);
                }
            }
        }
    }

    fn receive(&mut self, token: u64) {
        if let Some(identified) = self.pending.receive(&self.poller, token) {
            deliver_stream(&self.shared, identified);
        }
    }

    /// Watches the listeners while there is room. Returns when to check again, ns, if any is
    /// unwatched.
    fn listen(&mut self, now_ns: u64) -> Option<u64> {
        let is_accepting = now_ns >= self.paused_until_ns;
        let has_room = is_accepting && self.shared.registers().pending_peers.has_room(now_ns);
        let mut watches_all = true;
        if let Some(control) = &mut self.control {
            watches_all &= control.set(&self.poller, has_room).is_ok() && control.is_on();
        }
        for listener in &mut self.listeners {
            watches_all &= listener.set(&self.poller, is_accepting).is_ok() && listener.is_on();
        }
        let wait_ns = if has_room || !is_accepting {
            PAUSE_NS
        } else {
            SOON_NS
        };
        (!watches_all).then_some(now_ns + wait_ns)
    }

    /// Stops accepting for a moment: connections wait in the kernel.
    fn pause(&mut self, now_ns: u64, why: &str) {
        self.shared.log_shortage(why);
        self.paused_until_ns = now_ns + PAUSE_NS;
    }

    fn accept(&mut self, now_ns: u64) {
        let Some(control) = &self.control else {
            return;
        };
        match control.listener.accept() {
            Ok(Some((stream, peer))) => {
                self.make_room(now_ns);
                let control = match self.shared.tls() {
                    Some(context) => Control::tls_server(stream, &context),
                    None => Ok(Control::new(stream)),
                };
                let greeted = control
                    .map_err(|error| error.to_string())
                    .and_then(|control| Worker::accept(&self.shared, control, peer));
                if let Err(why) = greeted {
                    self.pause(now_ns, &format!("{peer}: rejected: {why}"));
                }
            }
            Ok(None) => {}
            Err(error) => self.pause(
                now_ns,
                &format!("cannot accept control connections: {error}; they wait in the kernel"),
            ),
        }
    }

    /// Evicts an unauthenticated control connection if a new one would exceed the limit.
    fn make_room(&self, now_ns: u64) {
        let leaver = self.shared.registers().pending_peers.make_room(now_ns);
        if let Some(leaver) = leaver {
            // A peer that has left has made room as well.
            let _ = leaver.send(SessionCommand::MakeRoom(None));
            self.shared
                .log_shortage("too many pending control connections: silent ones are closed");
        }
    }

    fn accept_data(&mut self, index: usize, now_ns: u64) {
        let Some(watch) = self.listeners.get(index) else {
            return;
        };
        for _ in 0..ACCEPT_MAX {
            let admitted = watch.listener.accept().and_then(|accepted| {
                let Some((stream, from)) = accepted else {
                    return Ok(None);
                };
                prepare(&stream)?;
                self.pending
                    .admit(&self.poller, now_ns, stream, from.ip())
                    .map(Some)
            });
            match admitted {
                Ok(Some(identified)) => {
                    if let Some(identified) = identified {
                        deliver_stream(&self.shared, identified);
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    let text = format!(
                        "cannot accept tcp data connections: {error}; they wait in the kernel"
                    );
                    return self.pause(now_ns, &text);
                }
            }
        }
    }

    fn take_events(&self, kind: ChannelKind, events: &EventChannel) {
        for _ in 0..ACCEPT_MAX {
            match events.poll() {
                Ok(Some(event)) => self.on_event(kind, event),
                Ok(None) => return,
                Err(error) => {
                    self.shared.log(Level::Error, format!("{kind}: {error}"));
                    return;
                }
            }
        }
    }

    fn on_event(&self, kind: ChannelKind, event: CmEvent) {
        let (qp_num, news) = match event {
            CmEvent::ConnectRequest(request) => {
                let Some(cookie) = request.private_data.first_chunk::<16>().copied() else {
                    return;
                };
                deliver(&self.shared, kind, cookie, DataConnection::Request(request));
                return;
            }
            CmEvent::Established { qp_num, .. } => (qp_num, Accepted::Up),
            CmEvent::Rejected { qp_num, .. } => {
                (qp_num, Accepted::Down("it was rejected".to_owned()))
            }
            CmEvent::Unreachable { qp_num, failure } => {
                (qp_num, Accepted::Down(failure.to_string()))
            }
            CmEvent::Disconnected { qp_num, failure } => {
                let why =
                    failure.map_or_else(|| "the peer closed it".to_owned(), |why| why.to_string());
                (qp_num, Accepted::Down(why))
            }
            _ => return,
        };
        self.shared.registers().notify_qp(kind, qp_num, news);
    }
}

fn deliver_stream(shared: &Shared, Identified { stream, cookie }: Identified) {
    let connection = DataConnection::Tcp(stream);
    deliver(shared, ChannelKind::Tcp, cookie, connection);
}

/// Hands a data connection to the session that expects its cookie. Any other connection is closed
/// by its drop.
fn deliver(shared: &Shared, kind: ChannelKind, cookie: [u8; 16], connection: DataConnection) {
    // A cookie is valid once.
    let owner = shared.registers().cookies.remove(&cookie);
    if let Some(owner) = owner {
        let command = SessionCommand::DataConnection {
            kind,
            cookie,
            connection,
        };
        let _ = owner.send(command);
    }
}
