//! The thread of a session: waits for sockets, queue pairs, commands and time, and performs the
//! requests of the state machines.
//!
//! Map: `part` the role of this gateway in the session, with `ways` of an opener · `state` state
//! common to all roles · `opener`, `pending`, `owner`, `relay` the work of each role · `outage`
//! connections that wait for a lost hop · `segments` control connections and data channels ·
//! `events` of the state machines · `commands` of other threads · `memory` the session's share ·
//! `metadata` metadata of applications · `paths` and `signalling` requests to the network · `show`
//! the session on the page.

mod commands;
mod events;
mod memory;
mod metadata;
mod opener;
mod outage;
mod owner;
mod part;
mod paths;
mod pending;
mod relay;
mod segments;
mod show;
mod signalling;
mod state;
mod ways;

use std::io;
use std::sync::Arc;

use crossbeam_channel::Receiver;
use haul_io::poller::{Events, Poller};
use haul_xsp::wire::NackStatus;
use haul_xsp::{ConnId, SECOND_NS, Time};

use super::dispatch::dispatch;
use super::edges::{Edges, Tools};
use super::shape::Shape;
use super::side::SegmentSide;
use crate::log::Level;
use crate::shared::{SessionCommand, SessionHandle, Share, Shared};
use crate::status::Role;
use part::Part;
use paths::Paths;
use state::{Body, Described, Ending, Report, Segment};

/// Timeout of the session request on an inbound control connection, ns.
const GREETING_NS: u64 = 10 * SECOND_NS;

/// Why a session is refused while the gateway drains.
const BEING_STOPPED: &str = "this gateway is being stopped";

const CONTROL: u64 = 1 << 40;
const FABRIC: u64 = 2 << 40;

/// A session's thread.
#[derive(Debug)]
pub(crate) struct Worker {
    shared: Arc<Shared>,
    poller: Poller,
    handle: SessionHandle,
    commands: Receiver<SessionCommand>,
    shape: Shape,
    body: Body,
    /// Towards the opener, or the only one; towards the terminus.
    segments: [Segment; 2],
    edges: Edges,
    paths: Paths,
    described: Described,
    report: Report,
    ending: Ending,
    /// The class of the session, by name.
    class: Option<String>,
    /// Other threads find the session by its identifier.
    is_registered: bool,
    share: Option<Share>,
    /// Declared last: waiters for the session's memory are answered after it is returned.
    part: Part,
}

impl Worker {
    fn new(shared: Arc<Shared>, part: Part, shape: Shape) -> io::Result<Self> {
        let poller = Poller::new()?;
        let (handle, commands) = SessionHandle::new(poller.waker());
        Ok(Self {
            // The page does not show a probe.
            report: Report::new(
                Arc::clone(&shared),
                match part.is_probe() {
                    true => Role::Pending,
                    false => part.role(),
                },
            ),
            shared,
            poller,
            handle,
            commands,
            shape,
            body: Body::None,
            segments: Default::default(),
            edges: Edges::default(),
            paths: Paths::default(),
            described: Described::default(),
            ending: Ending::default(),
            class: None,
            is_registered: false,
            share: None,
            part,
        })
    }

    fn spawn(self, name: &str) -> io::Result<()> {
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || self.run())?;
        Ok(())
    }

    /// Takes the memory of the session. If there is none, none is counted for its source.
    fn take_memory(&mut self, is_end: bool) -> Result<(), String> {
        let taken = self.try_memory(is_end);
        let owner = self.part.owner_mut();
        if taken.is_err() && owner.is_some_and(|owner| owner.idle.take().is_some()) {
            self.shared.registers().unauthenticated.remove(&self.handle);
        }
        taken
    }

    fn try_memory(&mut self, is_end: bool) -> Result<(), String> {
        let plan = self.shape.memory(is_end);
        let sides = if is_end { 1 } else { 2 };
        let (bytes, granted) = (self.shape.first_bytes(is_end), self.shape.first(is_end));
        let may_ask_for_room = self.part.role() == Role::Pending && !self.is_dry_run();
        let is_unauthenticated = may_ask_for_room
            && self
                .body
                .session(0)
                .is_some_and(|session| session.peer().is_none());
        let from = self.part.owner().and_then(|owner| owner.from);
        let from = from.filter(|_| may_ask_for_room);
        if let Some(from) = from.filter(|_| is_unauthenticated) {
            let idle = self.shared.reserve(&self.handle, bytes, from).ok_or_else(|| {
                format!(
                    "sessions from {from} have three quarters of memory, the limit of an unauthenticated source (see `memory`)"
                )
            })?;
            if let Some(owner) = self.part.owner_mut() {
                owner.idle = Some(idle);
            }
        }
        let take = || self.shared.take_memory(bytes);
        let share = match may_ask_for_room {
            true => self.shared.with_room(bytes, from, take),
            false => take(),
        };
        let left = self.shared.memory_left();
        self.share = Some(share.ok_or_else(|| {
            format!("a session takes {bytes} bytes of memory and {left} are left (see `memory` and `ring`)")
        })?);
        let meter = self.shared.meter(self.class.as_deref());
        for segment in &mut self.segments[..sides] {
            let mut fresh = SegmentSide::new(&plan, self.shape.verifies)
                .map_err(|error| format!("no memory: {error}"))?;
            fresh.meter = Some(meter.clone());
            segment.granted = granted;
            let old = segment.side.replace(fresh);
            if let (Some(segment), Some(old)) = (&mut segment.side, old) {
                (segment.control, segment.peer) = (old.control, old.peer);
            }
        }
        Ok(())
    }

    /// Whether the session is a dry run, whose end is not logged.
    fn is_dry_run(&mut self) -> bool {
        let session = self.body.session(0);
        self.part.is_probe() || session.is_some_and(|session| session.is_dry_run())
    }

    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        while !self.ending.is_over {
            self.turn();
            if self.ending.is_over {
                break;
            }
            let deadline = self.deadline().map(Time::as_ns);
            if let Err(error) = self.poller.wait(&mut events, deadline, self.shared.clock) {
                self.shared.log(
                    Level::Error,
                    format!("a session ends: cannot poll: {error}"),
                );
                break;
            }
            self.report.has_news |= events.woken() || !events.is_empty();
            let tokens: Vec<u64> = events.iter().map(|event| event.token).collect();
            self.on_ready(&tokens);
            self.read_commands();
            self.on_time();
        }
        self.leave();
    }

    fn now(&self) -> Time {
        self.shared.now()
    }

    fn deadline(&mut self) -> Option<Time> {
        let mut until = self.edges.poll_timeout();
        for side in 0..2 {
            let session = self
                .body
                .session(side)
                .and_then(|session| session.poll_timeout());
            let segment = self.segments[side].side.as_ref();
            let fabric = segment.and_then(SegmentSide::poll_timeout);
            until = [until, session, fabric, self.segments[side].dial.again_at]
                .into_iter()
                .flatten()
                .min();
        }
        if self.part.role() == Role::Pending {
            let greeting = self.report.since.after(GREETING_NS);
            until = Some(until.map_or(greeting, |until| until.min(greeting)));
        }
        let open_until = self.part.owner().and_then(|owner| owner.open_until);
        [until, open_until, self.calls_due(), self.status_due()]
            .into_iter()
            .flatten()
            .min()
    }

    fn on_ready(&mut self, tokens: &[u64]) {
        for token in tokens {
            match token & (0xff << 40) {
                0 => {
                    if let (Ok(number), Some(mut tools)) =
                        (u32::try_from(*token), self.edges_tools())
                    {
                        tools.1.serve(&mut tools.0, ConnId(number));
                    }
                }
                CONTROL => self.receive((token & 1) as usize),
                FABRIC => self.poll_fabric((token & 1) as usize),
                _ => {}
            }
        }
    }

    fn edges_tools(&mut self) -> Option<(Tools<'_>, &mut Edges)> {
        let now = self.shared.now();
        let session = self.body.session(0)?;
        let segment = self.segments[0].side.as_mut()?;
        let tools = Tools {
            session,
            segment,
            poller: &self.poller,
            now,
            verifies: self.shape.verifies,
            shared: &self.shared,
        };
        Some((tools, &mut self.edges))
    }

    fn on_time(&mut self) {
        let now = self.now();
        let idle = self.part.owner().and_then(|owner| owner.idle.as_ref());
        if let (Some(idle), Some(session)) = (idle, self.body.session(0)) {
            idle.note(session.conns() > 0, now.as_ns());
        }
        for side in 0..2 {
            if let Some(session) = self.body.session(side)
                && session.poll_timeout().is_some_and(|at| at <= now)
            {
                session.handle_timeout(now);
                self.report.has_news = true;
            }
            let fabric = self.segments[side]
                .side
                .as_ref()
                .and_then(SegmentSide::poll_timeout);
            if fabric.is_some_and(|at| at <= now) {
                self.poll_fabric(side);
            }
            if self.segments[side]
                .dial
                .again_at
                .is_some_and(|at| at <= now)
            {
                self.dial(side);
            }
        }
        self.give_up_calls(now);
        if self.edges.poll_timeout().is_some_and(|at| at <= now)
            && let Some((mut tools, edges)) = self.edges_tools()
        {
            edges.handle_timeout(&mut tools);
        }
        if self.part.role() == Role::Pending && now >= self.report.since.after(GREETING_NS) {
            self.ending.is_over = true;
        }
        if let Some(owner) = self.part.owner_mut()
            && owner.open_until.is_some_and(|at| at <= now)
        {
            owner.open_until = None;
            self.drain();
        }
        if self.status_due().is_some_and(|due| due <= now) {
            self.show_status(now);
        }
    }

    /// Does everything that is possible now.
    fn turn(&mut self) {
        loop {
            let now = self.now();
            let mut progress = self.take_events(now);
            for side in 0..2 {
                progress |= self.settle(side, now);
            }
            if self.edges.is_starved()
                && let Some((mut tools, edges)) = self.edges_tools()
            {
                progress |= edges.retry(&mut tools);
            }
            if !progress {
                break;
            }
        }
        self.fit_memory();
        for side in 0..2 {
            self.transmit(side);
            self.watch(side);
        }
    }

    /// Removes the session from the registers.
    fn leave(&mut self) {
        self.refuse_all(NackStatus::Closing);
        self.count_connections();
        let id = self.body.session(0).map(|session| session.id());
        for side in 0..2 {
            self.end_fabric(side);
        }
        let mut registers = self.shared.registers();
        registers.forget(&self.handle);
        let id = id.filter(|_| self.is_registered);
        if let Some(id) = id {
            registers.sessions.remove(&id);
        }
        drop(registers);
        if let Some(id) = id {
            self.shared.directory().remove(id);
        }
        // Connections that came too late go to the next session.
        while let Ok(command) = self.commands.try_recv() {
            if let SessionCommand::Call(call) = command {
                dispatch(&self.shared, call);
            }
        }
    }
}
