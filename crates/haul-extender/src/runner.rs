//! The thread that bridges all connections of an extender.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use crossbeam_channel::Receiver;
use haul_io::clock::Clock;
use haul_io::poller::{Events, Interest, Poller, Waker};
use haul_io::stream::Stream;
use haul_verbs::cm::{CmEvent, ConnectRequest, EventChannel};
use haul_verbs::{CompletionChannel, Context, Error};

use crate::bridge::{Bridge, Tools, Turn};
use crate::command::{CHANNEL, Command, CommandQueue, Entrance, OWN_CHANNEL, PendingConnect};
use crate::host::{Host, MemoryGuard, Severity};
use crate::link::Plan;

/// Events of a listener's connections before other connections are served.
const EVENTS_MAX: usize = 16;
/// Log lines about single connections within `LINES_NS`.
const LINES_MAX: u32 = 16;
const LINES_NS: u64 = 10_000_000_000;

/// Token of the device's completions.
const COMPLETIONS: u64 = 1 << 40;

/// Bridges all connections of an extender, on the thread that calls [`Runner::run`].
pub struct Runner {
    context: Context,
    plan: Plan,
    connections: usize,
    clock: Clock,
    poller: Poller,
    commands: Receiver<Command>,
    queue: CommandQueue,
    completions: CompletionChannel,
    events: EventChannel,
    /// Listeners, by the token of their events; closed ones stay while a connection of theirs is
    /// open.
    entrances: BTreeMap<u64, Entrance>,
    /// By token, with the token of the listener; connections that this end makes have none.
    bridges: BTreeMap<u64, (Bridge, u64)>,
    /// Bridges with something to do.
    ready: Vec<u64>,
    next: u64,
    /// Log lines about single connections that are left until `lines_anew_ns`, and the number
    /// omitted.
    lines_left: u32,
    lines_anew_ns: u64,
    omitted: u64,
}

impl Runner {
    pub(crate) fn new(
        (context, plan, connections): (Context, Plan, usize),
        poller: Poller,
        (queue, commands): (CommandQueue, Receiver<Command>),
        (completions, events): (CompletionChannel, EventChannel),
    ) -> io::Result<Self> {
        poller.add(completions.fd(), COMPLETIONS, Interest::READ)?;
        poller.add(events.fd(), OWN_CHANNEL, Interest::READ)?;
        Ok(Self {
            context,
            plan,
            connections,
            clock: Clock::new(),
            poller,
            commands,
            queue,
            completions,
            events,
            entrances: BTreeMap::new(),
            bridges: BTreeMap::new(),
            ready: Vec::new(),
            next: 0,
            lines_left: LINES_MAX,
            lines_anew_ns: 0,
            omitted: 0,
        })
    }

    /// Returns a waker that ends the wait of [`Self::run`], which then asks whether to stop.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.poller.waker()
    }

    /// Bridges connections until `is_stopped`, called after each wait, returns true. Blocks.
    pub fn run(mut self, host: &dyn Host, is_stopped: impl Fn() -> bool) {
        if let Err(error) = self.serve(host, &is_stopped) {
            let text = format!("RDMA connections are no longer bridged: {error}");
            host.log(Severity::Error, &text);
        }
        for (bridge, _) in std::mem::take(&mut self.bridges).into_values() {
            bridge.close(&self.poller);
        }
    }

    fn serve(&mut self, host: &dyn Host, is_stopped: &dyn Fn() -> bool) -> Result<(), String> {
        let mut events = Events::with_capacity(256);
        while !is_stopped() {
            let until = match self.ready.is_empty() {
                true => self
                    .bridges
                    .values()
                    .filter_map(|(bridge, _)| bridge.deadline())
                    .min(),
                false => Some(self.clock.now_ns()),
            };
            let waited = self.poller.wait(&mut events, until, self.clock);
            waited.map_err(|error| error.to_string())?;
            self.take_events(host, &events)
                .map_err(|error| error.to_string())?;
            while let Ok(command) = self.commands.try_recv() {
                self.on_command(host, command);
            }
            self.give_up_late(host);
            let count = self.ready.len();
            for at in 0..count {
                self.turn(host, self.ready[at]);
            }
            self.ready.drain(..count);
        }
        Ok(())
    }

    /// Queues a bridge to be served.
    fn make_ready(&mut self, token: u64) {
        if let Some((bridge, _)) = self.bridges.get_mut(&token)
            && !std::mem::replace(&mut bridge.is_ready, true)
        {
            self.ready.push(token);
        }
    }

    /// Finds the bridges that events are for.
    fn take_events(&mut self, host: &dyn Host, events: &Events) -> Result<(), Error> {
        for event in events.iter() {
            match event.token {
                COMPLETIONS => {
                    while let Some(token) = self.completions.poll_event()? {
                        self.make_ready(token);
                        let armed = self.bridges.get(&token).map(|(bridge, _)| bridge.arm());
                        if let Some(Err(why)) = armed {
                            self.abandon(host, token, &why);
                        }
                    }
                }
                OWN_CHANNEL => {
                    while let Some(event) = self.events.poll()? {
                        self.on_cm(host, OWN_CHANNEL, event);
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
                        self.on_cm(host, channel, event);
                    }
                }
                token => self.make_ready(token),
            }
        }
        Ok(())
    }

    fn on_cm(&mut self, host: &dyn Host, channel: u64, event: CmEvent) {
        let qp_num = match &event {
            CmEvent::Established { qp_num, .. }
            | CmEvent::Rejected { qp_num, .. }
            | CmEvent::Unreachable { qp_num, .. }
            | CmEvent::Disconnected { qp_num, .. } => *qp_num,
            CmEvent::ConnectRequest(_) => {
                if let CmEvent::ConnectRequest(request) = event {
                    self.on_request(host, channel, request);
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
                self.warn(host, &text);
            }
        }
    }

    /// Handles an application's request. Dropping the request rejects it.
    fn on_request(&mut self, host: &dyn Host, channel: u64, request: ConnectRequest) {
        let Some(entrance) = self.entrances.get(&channel) else {
            return;
        };
        let peer = request.peer;
        if !entrance.is_open || !(entrance.listen.admits)(peer) {
            return;
        }
        let to = &entrance.listen.destination;
        let name = format!("RDMA connection of {peer} to {to}");
        let Some(memory) = self.admit(host, &name) else {
            return;
        };
        let token = self.token();
        let until = self.clock.now_ns() + self.plan.answer_ns;
        let wanted = Arc::new(());
        let pending = PendingConnect::new(token, Arc::downgrade(&wanted), self.queue.clone());
        let bridge = Bridge::near(token, name, (request, wanted), until, memory);
        self.bridges.insert(token, (bridge, channel));
        if let Some(entrance) = self.entrances.get(&channel) {
            (entrance.listen.connect)(format!("rdma {peer}"), pending);
        }
    }

    fn on_command(&mut self, host: &dyn Host, command: Command) {
        match command {
            Command::Open(token, entrance) => {
                let watched = self.poller.add(entrance.events.fd(), token, Interest::READ);
                if let Err(error) = watched {
                    let text = format!(
                        "the listener for RDMA at {} does not answer: {error}",
                        entrance.listen.address
                    );
                    host.log(Severity::Error, &text);
                }
                self.entrances.insert(token, entrance);
            }
            Command::Closed(token) => {
                if let Some(entrance) = self.entrances.get_mut(&token) {
                    entrance.is_open = false;
                }
                self.forget_entrance(token);
            }
            Command::Connected(token, result) => {
                let stream = result
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
                        self.abandon(host, token, &why);
                    }
                }
            }
            Command::Reach(to, stream) => {
                let names: Vec<String> = to.iter().map(SocketAddr::to_string).collect();
                let name = format!("RDMA connection to {}", names.join(" or "));
                let Some(memory) = self.admit(host, &name) else {
                    return stream.reset_on_drop();
                };
                let token = self.token();
                let until = self.clock.now_ns() + self.plan.answer_ns;
                let bridge = Bridge::far(token, name, to.into(), stream, until, memory);
                self.bridges.insert(token, (bridge, OWN_CHANNEL));
                self.make_ready(token);
            }
        }
    }

    /// Takes the memory of one more connection, if it fits.
    fn admit(&self, host: &dyn Host, name: &str) -> Option<MemoryGuard> {
        if self.bridges.len() >= self.connections {
            let text = format!(
                "{name}: {} connections is the limit (`connections`); refused",
                self.connections
            );
            host.log_shortage(&text);
            return None;
        }
        let memory = host.take_memory(self.plan.bytes() as u64);
        if memory.is_none() {
            let (takes, left) = (self.plan.bytes() >> 10, host.memory_left() >> 10);
            let text = format!("{name}: it takes {takes} KiB and {left} KiB are left; refused");
            host.log_shortage(&text);
        }
        memory
    }

    const fn token(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn turn(&mut self, host: &dyn Host, token: u64) {
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
            now: self.clock.now_ns(),
        };
        let turn = bridge.turn(&tools);
        if let Some(why) = bridge.passed_over.take() {
            let text = format!("{}: {why}", bridge.name);
            self.warn(host, &text);
        }
        match turn {
            Ok(Turn::Waits) => {}
            Ok(Turn::More) => self.make_ready(token),
            Ok(Turn::Over) => self.remove(host, token),
            Err(why) => self.abandon(host, token, &why),
        }
    }

    /// Logs what peers can cause as often as they like, at a limited rate.
    fn warn(&mut self, host: &dyn Host, text: &str) {
        let now = self.clock.now_ns();
        if now >= self.lines_anew_ns {
            (self.lines_anew_ns, self.lines_left) = (now + LINES_NS, LINES_MAX);
        }
        match (self.lines_left, self.omitted) {
            (0, _) => self.omitted += 1,
            (_, 0) => host.log(Severity::Warning, text),
            (_, omitted) => {
                self.omitted = 0;
                let text = format!("{text}; {omitted} similar lines were omitted");
                host.log(Severity::Warning, &text);
            }
        }
        self.lines_left = self.lines_left.saturating_sub(1);
    }

    fn give_up_late(&mut self, host: &dyn Host) {
        let now = self.clock.now_ns();
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
                self.abandon(host, token, why);
            }
        }
    }

    fn abandon(&mut self, host: &dyn Host, token: u64, why: &str) {
        if let Some((bridge, _)) = self.bridges.get(&token) {
            let text = format!("{}: {why}", bridge.name);
            self.warn(host, &text);
        }
        self.remove(host, token);
    }

    fn remove(&mut self, host: &dyn Host, token: u64) {
        if let Some((bridge, channel)) = self.bridges.remove(&token) {
            let is_calling = bridge.is_calling();
            bridge.close(&self.poller);
            if is_calling {
                host.withdrawn();
            }
            self.forget_entrance(channel);
        }
    }

    /// Forgets a closed listener once no connection needs its events.
    fn forget_entrance(&mut self, channel: u64) {
        let is_used = self.bridges.values().any(|(_, of)| *of == channel);
        if let Some(entrance) = self.entrances.get(&channel)
            && !entrance.is_open
            && !is_used
        {
            // It may not be watched.
            let _ = self.poller.remove(entrance.events.fd());
            self.entrances.remove(&channel);
        }
    }
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runner({} bridges)", self.bridges.len())
    }
}
