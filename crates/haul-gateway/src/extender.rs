//! Reliable connections of an RDMA device at the edges: each ends at the gateway that it comes to,
//! and another one, from the last gateway to the application there, takes its messages on. The
//! range extender of wan-profiling-2008.
//!
//! What flows through: an application connects to a door of kind `rdma`; its request goes through
//! the session, the far end connects to its application, and what that answers goes back. From then
//! on what is received by one queue pair is sent by the other. The session has a byte stream for it
//! ([`frame`]), by a pair of sockets within this process.
//!
//! One thread has all bridges of a gateway, for they share the device's completions. It waits in
//! one place.
//!
//! Map: `frame` what the two ends say · `link` a queue pair and its memory · `bridge` one
//! connection.

#![expect(
    clippy::disallowed_types,
    reason = "a caller brings a stream that haul-io has made"
)]

mod bridge;
mod frame;
mod link;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_channel::{Receiver, Sender, unbounded};
use haul_io::poller::{Events, Interest, Poller, Waker};
use haul_io::stream::Stream;
use haul_io::tcp;
use haul_verbs::cm::{CmEvent, ConnectRequest, EventChannel, Listener};
use haul_verbs::{CompletionChannel, Context, Device, DeviceCaps, Error};
use haul_xsp::Time;
use haul_xsp::wire::Endpoint;

use crate::caller::{Call, Caller, Party, Refusal};
use crate::config;
use crate::gateway::dispatch;
use crate::host::{Shown, by_rdma};
use crate::house::{self, House, Share};
use crate::log::Level;
use crate::thread::{Stop, Thread};
use bridge::{Bridge, Tools, Turn};
#[cfg(fuzzing)]
pub(crate) use frame::Head;
pub(crate) use link::Plan;

/// Applications that wait for an answer at a door; further ones are turned away.
const BACKLOG: u32 = 64;
/// Events of the connections at an entrance before others have their turn.
const EVENTS_MAX: usize = 16;
/// Lines about single connections, in so many ns.
const LINES_MAX: u32 = 16;
const LINES_NS: u64 = 10_000_000_000;

/// Token of the device's completions.
const COMPLETIONS: u64 = 1 << 40;
/// Bit of the tokens of event channels, which are numbered. The first is that of connections which
/// this end makes.
const CHANNEL: u64 = 1 << 41;
const OWN_CHANNEL: u64 = CHANNEL;

/// Something for the thread.
enum Letter {
    /// A door is open; its events come by this channel, which has this token.
    Door(u64, Entrance),
    /// It is closed. Connections that came by it go on.
    Closed(u64),
    /// A connection that an application wants is there, or comes to nothing.
    Called(u64, Result<TcpStream, Refusal>),
    /// A session wants to reach an application, at one of these addresses.
    Reach(Vec<SocketAddr>, Stream),
}

struct Entrance {
    door: config::Door,
    to: Endpoint,
    events: EventChannel,
    is_open: bool,
}

/// The device for applications' connections.
#[derive(Debug)]
pub(crate) struct Extender {
    context: Context,
    mailbox: Mailbox,
    next_door: AtomicU64,
}

#[derive(Debug, Clone)]
struct Mailbox {
    sender: Sender<Letter>,
    waker: Waker,
}

impl Mailbox {
    fn post(&self, letter: Letter) {
        // The thread is gone only when the gateway is.
        let _ = self.sender.send(letter);
        self.waker.wake();
    }
}

/// What the thread begins with.
pub(crate) struct Means {
    context: Context,
    plan: Plan,
    connections: usize,
    poller: Poller,
    letters: Receiver<Letter>,
    mailbox: Mailbox,
    completions: CompletionChannel,
    events: EventChannel,
}

/// An open door.
#[derive(Debug)]
pub(crate) struct RdmaDoor {
    listener: Listener,
    token: u64,
    mailbox: Mailbox,
}

impl RdmaDoor {
    /// Where it listens.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }
}

impl Drop for RdmaDoor {
    fn drop(&mut self) {
        self.mailbox.post(Letter::Closed(self.token));
    }
}

impl Extender {
    /// Opens the device.
    ///
    /// # Errors
    /// Why it cannot serve.
    pub(crate) fn open(device: &Device, rdma: &config::Rdma) -> Result<(Self, Means), String> {
        let plan = rdma.plan();
        let words = |error: Error| error.to_string();
        let context = device.open().map_err(words)?;
        let attributes = context.attributes().map_err(words)?;
        if !attributes.caps.contains(DeviceCaps::RC) {
            return Err(format!("{} has no reliable connections", device.name()));
        }
        if u64::from(attributes.max_qp_wr) < u64::from(plan.depth)
            || attributes.max_message < plan.message as u64
        {
            return Err(format!(
                "{} takes {} messages at a time of {} octets (`depth`, `message`)",
                device.name(),
                attributes.max_qp_wr,
                attributes.max_message
            ));
        }
        let poller = Poller::new().map_err(|error| error.to_string())?;
        let (sender, letters) = unbounded();
        let mailbox = Mailbox {
            sender,
            waker: poller.waker(),
        };
        let means = Means {
            completions: context.create_completion_channel().map_err(words)?,
            events: context.create_event_channel().map_err(words)?,
            context: context.clone(),
            plan,
            connections: rdma.connections.into(),
            poller,
            letters,
            mailbox: mailbox.clone(),
        };
        let extender = Self {
            context,
            mailbox,
            next_door: AtomicU64::new(OWN_CHANNEL + 1),
        };
        Ok((extender, means))
    }

    /// Listens for applications, whose connections go to `to`.
    ///
    /// # Errors
    /// The address is taken, or not the device's.
    pub(crate) fn listen(&self, door: &config::Door, to: Endpoint) -> io::Result<RdmaDoor> {
        by_rdma(&to).ok_or_else(|| io::Error::other("the name that it leads to is too long"))?;
        let events = self.context.create_event_channel().map_err(system)?;
        let listener = self.context.listen(door.listen, &events, BACKLOG);
        let listener = listener.map_err(system)?;
        let token = self.next_door.fetch_add(1, Ordering::Relaxed);
        let entrance = Entrance {
            door: door.clone(),
            to,
            events,
            is_open: true,
        };
        self.mailbox.post(Letter::Door(token, entrance));
        Ok(RdmaDoor {
            listener,
            token,
            mailbox: self.mailbox.clone(),
        })
    }

    /// A connection of a session to the application at the first address of `to` that can be
    /// connected to.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn reach(&self, to: Vec<SocketAddr>) -> io::Result<Stream> {
        let (own, theirs) = tcp::pair()?;
        self.mailbox.post(Letter::Reach(to, Stream::adopt(theirs)?));
        Stream::adopt(own)
    }
}

fn system(error: Error) -> io::Error {
    match error {
        Error::Os { source, .. } => source,
        other => io::Error::other(other.to_string()),
    }
}

/// Starts the thread, which ends when it is dropped.
pub(crate) fn start(house: &Arc<House>, means: Means) -> io::Result<Thread> {
    let house = Arc::clone(house);
    let Means {
        context,
        plan,
        connections,
        poller,
        letters,
        mailbox,
        completions,
        events,
    } = means;
    poller.add(completions.fd(), COMPLETIONS, Interest::READ)?;
    poller.add(events.fd(), OWN_CHANNEL, Interest::READ)?;
    Thread::spawn("haul-extender", poller, move |poller, stop| {
        let worker = Worker {
            house,
            context,
            plan,
            connections,
            poller,
            letters,
            mailbox,
            completions,
            events,
            entrances: BTreeMap::new(),
            bridges: BTreeMap::new(),
            ready: Vec::new(),
            next: 0,
            lines_left: LINES_MAX,
            lines_anew: Time::default(),
            untold: 0,
        };
        worker.run(&stop);
    })
}

/// An application, while the session connects.
struct Asker {
    number: u64,
    /// There as long as the bridge wants the connection.
    wanted: Weak<()>,
    mailbox: Mailbox,
}

impl Caller for Asker {
    fn accepted(self: Box<Self>) -> io::Result<TcpStream> {
        let (own, theirs) = tcp::pair()?;
        self.mailbox.post(Letter::Called(self.number, Ok(theirs)));
        Ok(own)
    }

    fn is_wanted(&self) -> bool {
        self.wanted.strong_count() > 0
    }

    fn refused(self: Box<Self>, why: &Refusal) {
        let refused = Letter::Called(self.number, Err(why.clone()));
        self.mailbox.post(refused);
    }
}

struct Worker {
    house: Arc<House>,
    context: Context,
    plan: Plan,
    connections: usize,
    poller: Poller,
    letters: Receiver<Letter>,
    mailbox: Mailbox,
    completions: CompletionChannel,
    events: EventChannel,
    /// Doors, by the token of their events; those that are closed while a connection of theirs is
    /// there.
    entrances: BTreeMap<u64, Entrance>,
    /// By token. Those that this end makes have no door.
    bridges: BTreeMap<u64, (Bridge, u64)>,
    /// Bridges with something to do.
    ready: Vec<u64>,
    next: u64,
    /// Lines about single connections that may be said until then, and those that were not.
    lines_left: u32,
    lines_anew: Time,
    untold: u64,
}

impl Worker {
    fn run(mut self, stop: &Stop) {
        if let Err(error) = self.serve(stop) {
            let text = format!("RDMA connections are not bridged any more: {error}");
            self.house.say(Level::Error, text);
        }
        for (bridge, _) in std::mem::take(&mut self.bridges).into_values() {
            bridge.close(&self.poller);
        }
    }

    fn serve(&mut self, stop: &Stop) -> Result<(), String> {
        let mut events = Events::with_capacity(256);
        while !stop.is_set() {
            let until = match self.ready.is_empty() {
                true => self
                    .bridges
                    .values()
                    .filter_map(|(bridge, _)| bridge.deadline())
                    .min(),
                false => Some(self.house.now()),
            };
            let waited = self
                .poller
                .wait(&mut events, until.map(Time::as_ns), self.house.clock);
            waited.map_err(|error| error.to_string())?;
            self.heed(&events).map_err(|error| error.to_string())?;
            while let Ok(letter) = self.letters.try_recv() {
                self.on_letter(letter);
            }
            self.give_up_late();
            let count = self.ready.len();
            for at in 0..count {
                self.turn(self.ready[at]);
            }
            self.ready.drain(..count);
        }
        Ok(())
    }

    /// A bridge is to have its turn.
    fn make_ready(&mut self, token: u64) {
        if let Some((bridge, _)) = self.bridges.get_mut(&token)
            && !std::mem::replace(&mut bridge.is_ready, true)
        {
            self.ready.push(token);
        }
    }

    /// Finds out whom events are for.
    fn heed(&mut self, events: &Events) -> Result<(), Error> {
        for event in events.iter() {
            match event.token {
                COMPLETIONS => {
                    while let Some(token) = self.completions.poll_event()? {
                        self.make_ready(token);
                        let armed = self.bridges.get(&token).map(|(bridge, _)| bridge.arm());
                        if let Some(Err(why)) = armed {
                            self.abandon(token, &why);
                        }
                    }
                }
                OWN_CHANNEL => {
                    while let Some(event) = self.events.poll()? {
                        self.on_cm(OWN_CHANNEL, event);
                    }
                }
                channel if channel & CHANNEL != 0 => {
                    for _ in 0..EVENTS_MAX {
                        let Some(entrance) = self.entrances.get(&channel) else {
                            break;
                        };
                        let Some(event) = entrance.events.poll()? else {
                            break;
                        };
                        self.on_cm(channel, event);
                    }
                }
                token => self.make_ready(token),
            }
        }
        Ok(())
    }

    fn on_cm(&mut self, channel: u64, event: CmEvent) {
        let qp_num = match &event {
            CmEvent::Established { qp_num, .. }
            | CmEvent::Rejected { qp_num, .. }
            | CmEvent::Unreachable { qp_num, .. }
            | CmEvent::Disconnected { qp_num, .. } => *qp_num,
            CmEvent::ConnectRequest(_) => {
                if let CmEvent::ConnectRequest(request) = event {
                    self.on_request(channel, request);
                }
                return;
            }
            _ => return,
        };
        let is_meant =
            |(bridge, of): &&mut (Bridge, u64)| *of == channel && bridge.qp_num() == Some(qp_num);
        if let Some((bridge, _)) = self.bridges.values_mut().find(is_meant) {
            let failure = bridge.on_event(event);
            let text = failure.map(|failure| format!("{}: {failure}", bridge.name));
            let token = bridge.token();
            self.make_ready(token);
            if let Some(text) = text {
                self.warn(&text);
            }
        }
    }

    /// An application wants to connect. Who is not let in is turned away by the request's being
    /// dropped.
    fn on_request(&mut self, channel: u64, request: ConnectRequest) {
        let Some(entrance) = self.entrances.get(&channel) else {
            return;
        };
        if !entrance.is_open || !entrance.door.admits(request.peer) {
            return;
        }
        let (to, named) = (entrance.to.clone(), by_rdma(&entrance.to));
        let (from, name) = (
            format!("rdma {}", request.peer),
            format!("RDMA connection of {} to {}", request.peer, Shown(&to)),
        );
        let Some(share) = self.admit(&name) else {
            return;
        };
        let token = self.token();
        let until = self.house.now().after(self.plan.answer_ns);
        let wanted = Arc::new(());
        let asker = Asker {
            number: token,
            wanted: Arc::downgrade(&wanted),
            mailbox: self.mailbox.clone(),
        };
        let bridge = Bridge::near(token, name, (request, wanted), until, share);
        self.bridges.insert(token, (bridge, channel));
        let call = Call {
            party: Party::Own(Box::new(asker)),
            from,
            to,
            named,
            metadata: haul_xsp::wire::Metadata::default(),
            is_again: false,
        };
        dispatch(&self.house, call);
    }

    fn on_letter(&mut self, letter: Letter) {
        match letter {
            Letter::Door(token, entrance) => {
                let watched = self.poller.add(entrance.events.fd(), token, Interest::READ);
                if let Err(error) = watched {
                    let text = format!(
                        "the door for RDMA at {} does not answer: {error}",
                        entrance.door.listen
                    );
                    self.house.say(Level::Error, text);
                }
                self.entrances.insert(token, entrance);
            }
            Letter::Closed(token) => {
                if let Some(entrance) = self.entrances.get_mut(&token) {
                    entrance.is_open = false;
                }
                self.forget_entrance(token);
            }
            Letter::Called(token, result) => {
                let stream = result
                    .map_err(|refusal| refusal.text)
                    .and_then(|stream| Stream::adopt(stream).map_err(|error| error.to_string()));
                let Some((bridge, _)) = self.bridges.get_mut(&token) else {
                    stream.iter().for_each(Stream::reset_on_drop);
                    return;
                };
                match stream {
                    Ok(stream) => {
                        bridge.called(stream);
                        self.make_ready(token);
                    }
                    Err(why) => {
                        bridge.refused();
                        self.abandon(token, &why);
                    }
                }
            }
            Letter::Reach(to, stream) => {
                let names: Vec<String> = to.iter().map(SocketAddr::to_string).collect();
                let name = format!("RDMA connection to {}", names.join(" or "));
                let Some(share) = self.admit(&name) else {
                    return stream.reset_on_drop();
                };
                let token = self.token();
                let until = self.house.now().after(self.plan.answer_ns);
                let bridge = Bridge::far(token, name, to.into(), stream, until, share);
                self.bridges.insert(token, (bridge, OWN_CHANNEL));
                self.make_ready(token);
            }
        }
    }

    /// What one more connection takes, where there is room.
    fn admit(&self, name: &str) -> Option<Share> {
        if self.bridges.len() >= self.connections {
            let text = format!(
                "{name}: there are {} already (`connections`); it is refused",
                self.connections
            );
            self.house.say_short(text);
            return None;
        }
        let share = self.house.take_memory(self.plan.bytes() as u64);
        if share.is_none() {
            let (takes, left) = (self.plan.bytes() >> 10, self.house.memory_left() >> 10);
            let text =
                format!("{name}: it takes {takes} KiB and {left} KiB are left; it is refused");
            self.house.say_short(text);
        }
        share
    }

    const fn token(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn turn(&mut self, token: u64) {
        let Some((bridge, _)) = self.bridges.get_mut(&token) else {
            return;
        };
        bridge.is_ready = false;
        let tools = Tools {
            context: &self.context,
            completions: &self.completions,
            events: &self.events,
            poller: &self.poller,
            plan: self.plan,
            now: self.house.now(),
        };
        let turn = bridge.turn(&tools);
        if let Some(why) = bridge.passed_over.take() {
            let text = format!("{}: {why}", bridge.name);
            self.warn(&text);
        }
        match turn {
            Ok(Turn::Waits) => {}
            Ok(Turn::More) => self.make_ready(token),
            Ok(Turn::Over) => self.remove(token),
            Err(why) => self.abandon(token, &why),
        }
    }

    /// Says what strangers can bring about as often as they like.
    fn warn(&mut self, text: &str) {
        let now = self.house.now();
        if now >= self.lines_anew {
            (self.lines_anew, self.lines_left) = (now.after(LINES_NS), LINES_MAX);
        }
        match (self.lines_left, self.untold) {
            (0, _) => self.untold += 1,
            (_, 0) => self.house.say(Level::Warning, text),
            (_, untold) => {
                self.untold = 0;
                let text = format!("{text}; {untold} lines like this were left out before it");
                self.house.say(Level::Warning, text);
            }
        }
        self.lines_left = self.lines_left.saturating_sub(1);
    }

    fn give_up_late(&mut self) {
        let now = self.house.now();
        let is_late = |bridge: &Bridge| bridge.deadline().is_some_and(|until| until <= now);
        let late: Vec<u64> = self
            .bridges
            .iter()
            .filter(|(_, (bridge, _))| is_late(bridge))
            .map(|(token, _)| *token)
            .collect();
        for token in late {
            let Some((bridge, _)) = self.bridges.get_mut(&token) else {
                continue;
            };
            if bridge.pass_over(now) {
                self.make_ready(token);
            } else {
                let why = bridge.lateness();
                self.abandon(token, why);
            }
        }
    }

    fn abandon(&mut self, token: u64, why: &str) {
        if let Some((bridge, _)) = self.bridges.get(&token) {
            let text = format!("{}: {why}", bridge.name);
            self.warn(&text);
        }
        self.remove(token);
    }

    fn remove(&mut self, token: u64) {
        if let Some((bridge, channel)) = self.bridges.remove(&token) {
            let is_calling = bridge.is_calling();
            bridge.close(&self.poller);
            if is_calling {
                self.house.tell_all(|| house::Letter::Withdrawn);
            }
            self.forget_entrance(channel);
        }
    }

    /// A closed door has nobody left who needs its events.
    fn forget_entrance(&mut self, channel: u64) {
        let is_used = self.bridges.values().any(|(_, of)| *of == channel);
        if let Some(entrance) = self.entrances.get(&channel)
            && !entrance.is_open
            && !is_used
        {
            // It fails for one that is not watched.
            let _ = self.poller.remove(entrance.events.fd());
            self.entrances.remove(&channel);
        }
    }
}
