//! The thread of a session: waits for sockets, queue pairs, commands and time, and does what the
//! state machines ask for.
//!
//! Map: `admission` what a control connection that came in wants · `events` what the state machines
//! tell · `commands` what others have for it · `metadata` what applications say · `path` what it
//! asks of the network · `show` what others see of it · `ways` the next way when one cannot be had.

mod admission;
mod commands;
mod events;
mod metadata;
mod path;
mod show;
mod ways;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use crossbeam_channel::{Receiver, Sender};
use haul_io::poller::{Events, Interest, Poller};
use haul_xsp::wire::{Endpoint, FIRSTS_MAX, Metadata, NackStatus, SessOpen};
use haul_xsp::{ConnId, Relay, SECOND_NS, Session, SessionId, Side, State, Time};

use super::attempts::{self, Attempts};
use super::dial::dial;
use super::dispatch::dispatch;
use super::edges::{Edges, Tools};
use super::shape::{self, Shape};
use super::side::SegmentSide;
use crate::caller::Call;
use crate::channel::Lost;
use crate::config::{ChannelKind, Route};
use crate::control::Control;
use crate::log::Level;
use crate::refusal::Refusal;
use crate::shared::{Idle, SessionCommand, SessionHandle, Share, Shared, Standing};
use crate::status::{Role, Status};
use path::Paths;
use ways::Ways;

/// Time for a control connection that came in to say what it wants, ns.
const GREETING_NS: u64 = 10 * SECOND_NS;
/// Time for the last words of a session's owner, which has been told that its control connection is
/// over: a round trip, and its thread's turn, ns.
const FINAL_READ_NS: u64 = 2 * SECOND_NS;

/// Why a session cannot be had here any more.
const BEING_STOPPED: &str = "this gateway is being stopped";

const CONTROL: u64 = 1 << 40;
const FABRIC: u64 = 2 << 40;

/// One end of a segment, or the two at a gateway.
#[derive(Debug)]
enum Body {
    /// There is no control connection yet.
    None,
    One(Box<Session>),
    Two(Box<Relay>),
}

impl Body {
    fn session(&mut self, side: usize) -> Option<&mut Session> {
        match self {
            Self::None => None,
            Self::One(session) => (side == 0).then_some(session),
            Self::Two(relay) => Some(relay.side(if side == 0 { Side::Near } else { Side::Far })),
        }
    }
}

/// A side that this end dials.
#[derive(Debug, Clone, Default)]
struct Dial {
    hop: String,
    offered: Vec<ChannelKind>,
    streams: u16,
    key: Option<String>,
    is_under_way: bool,
    again_at: Option<Time>,
    wait_ns: u64,
}

/// What the segments of a session would be carried by, the nearest first; or why it cannot be had.
pub(crate) type Probed = Result<Vec<Option<ChannelKind>>, Refusal>;

/// A session's thread.
#[derive(Debug)]
pub(crate) struct Worker {
    shared: Arc<Shared>,
    poller: Poller,
    handle: SessionHandle,
    commands: Receiver<SessionCommand>,
    role: Role,
    shape: Shape,
    body: Body,
    segments: [Option<SegmentSide>; 2],
    /// What is watched of each side: control connection, completions and events of the data
    /// channels.
    watched: [Watched; 2],
    attempts: [Attempts; 2],
    dials: [Dial; 2],
    edges: Edges,
    /// Connections that wait for the session to be open.
    calls: VecDeque<Call>,
    /// Who waits until octets can go through.
    waiters: Vec<Sender<Result<(), Refusal>>>,
    /// Who asks only whether the session could be had.
    probe: Option<Sender<Probed>>,
    /// What is wrong with it now, or why it has ended.
    trouble: Option<String>,
    /// That is that one of the ends does not verify_chain the other.
    auth_failed: bool,
    /// What is to be opened: by an opener, or by a gateway at the next hop.
    wanted: Option<(SessionId, SessOpen)>,
    /// Of an opener, those that it may go; of a gateway between, what becomes of its next hop.
    ways: Ways,
    share: Option<Share>,
    /// Where a control connection that came in is from.
    from: Option<IpAddr>,
    /// Of a session whose owner has not shown who it is.
    idle: Option<Idle>,
    /// The class of the session, by name.
    class: Option<String>,
    paths: Paths,
    /// What the application says about the session.
    metadata: Metadata,
    /// A line has said so, or that it was dropped.
    has_logged_metadata: bool,
    status: Arc<Mutex<Status>>,
    status_number: u64,
    status_at: Time,
    /// Something happened that `status` does not show.
    has_news: bool,
    since: Time,
    is_registered: bool,
    is_draining: bool,
    /// Until then a session of others that is to end takes connections: its owner has been told,
    /// and may not know yet.
    open_until: Option<Time>,
    is_over: bool,
    /// Of a session of others, what its owner is to know: which gateway is being stopped.
    stopping: Option<String>,
    /// Of whom waits for the room that this one takes: dropped last.
    room: Option<Sender<()>>,
}

#[derive(Debug, Default)]
struct Watched {
    control: Option<Interest>,
    has_fabric: bool,
}

impl Worker {
    fn new(shared: Arc<Shared>, role: Role, shape: Shape) -> io::Result<Self> {
        let poller = Poller::new()?;
        let (handle, commands) = SessionHandle::new(poller.waker());
        let now = shared.now();
        let status = Arc::new(Mutex::new(Status {
            role,
            since_ns: now.as_ns(),
            ..Status::default()
        }));
        let status_number = {
            let mut registers = shared.registers();
            registers.next_status += 1;
            let number = registers.next_status;
            registers.statuses.insert(number, Arc::clone(&status));
            number
        };
        Ok(Self {
            poller,
            handle,
            commands,
            role,
            shape,
            body: Body::None,
            segments: [None, None],
            watched: Default::default(),
            attempts: Default::default(),
            dials: Default::default(),
            edges: Edges::default(),
            calls: VecDeque::new(),
            waiters: Vec::new(),
            probe: None,
            trouble: None,
            auth_failed: false,
            wanted: None,
            ways: Ways::default(),
            share: None,
            from: None,
            idle: None,
            class: None,
            paths: Paths::default(),
            metadata: Metadata::default(),
            has_logged_metadata: false,
            status,
            status_number,
            status_at: now,
            has_news: false,
            since: now,
            is_registered: false,
            is_draining: false,
            open_until: None,
            is_over: false,
            stopping: None,
            room: None,
            shared,
        })
    }

    /// A thread that opens a session for a route.
    pub(crate) fn open(shared: &Arc<Shared>, route: &Route) -> Result<SessionHandle, String> {
        Self::open_route(shared, route, None)
    }

    /// A thread that asks whether a session for a route could be had, and tells `probe`.
    pub(crate) fn probe(
        shared: &Arc<Shared>,
        route: &Route,
        probe: Sender<Probed>,
    ) -> Result<(), String> {
        Self::open_route(shared, route, Some(probe)).map(drop)
    }

    fn open_route(
        shared: &Arc<Shared>,
        route: &Route,
        probe: Option<Sender<Probed>>,
    ) -> Result<SessionHandle, String> {
        let text = |error: io::Error| error.to_string();
        let shape = Shape::of_route(&shared.config(), route);
        let mut worker = Self::new(Arc::clone(shared), Role::Opener, shape).map_err(text)?;
        worker.class.clone_from(&route.class);
        worker.take_memory(true)?;
        worker.probe = probe;
        worker.ways = Ways::of_route(route).ok_or("a route without gateways")?;
        worker.plan_way()?;
        worker.paths.rules.clone_from(&route.path);
        worker.metadata = route.metadata.0.clone();
        worker.dial(0);
        let handle = worker.handle.clone();
        worker.spawn("haul-opener").map_err(text)?;
        Ok(handle)
    }

    /// A thread for a control connection that came in.
    pub(crate) fn greet(
        shared: &Arc<Shared>,
        control: Control,
        peer: SocketAddr,
    ) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        let shape = Shape::of_incoming(&shared.config());
        let mut worker = Self::new(Arc::clone(shared), Role::Pending, shape).map_err(text)?;
        let mut segment = SegmentSide::bare(worker.shape.verifies).map_err(text)?;
        segment.control = Some(control);
        segment.peer = peer.to_string();
        worker.from = Some(peer.ip());
        worker.segments[0] = Some(segment);
        let (number, now_ns) = (worker.status_number, worker.since.as_ns());
        let handle = worker.handle.clone();
        let mut registers = shared.registers();
        registers
            .pending_peers
            .admit(number, handle, peer.ip(), now_ns);
        drop(registers);
        worker.spawn("haul-session").map_err(|error| {
            let mut registers = shared.registers();
            registers.pending_peers.remove(number);
            registers.statuses.remove(&number);
            text(error)
        })
    }

    /// A control connection that came in shows who its peer is; then it may say what it wants.
    fn handshake(&mut self) -> Result<(), Lost> {
        let lost = |error: io::Error| Lost(error.to_string());
        let Some(segment) = &mut self.segments[0] else {
            return Ok(());
        };
        let Some(control) = &mut segment.control else {
            return Ok(());
        };
        let is_ready = control.handshake().map_err(lost)?;
        segment.waits_to_send = control.wants_write();
        if !is_ready {
            return Ok(());
        }
        let (binding, name) = (control.binding(), control.peer_name());
        let auth = shape::auth(&self.shared, None, false, binding, name);
        // Nothing comes before the session is accepted, so no memory is needed yet.
        let config = self
            .shape
            .session(true, shape::protocols(&self.shared), auth);
        let seed = haul_io::random::bytes().map_err(lost)?;
        let session = Session::accept(config, self.since, seed);
        self.body = Body::One(Box::new(session.map_err(|error| Lost(error.to_string()))?));
        Ok(())
    }

    fn spawn(self, name: &str) -> io::Result<()> {
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || self.run())?;
        Ok(())
    }

    /// Memory for the sides of this session. Where there is none, none is counted for its source.
    fn take_memory(&mut self, is_end: bool) -> Result<(), String> {
        let taken = self.try_memory(is_end);
        if taken.is_err() && self.idle.take().is_some() {
            self.shared.registers().unauthenticated.remove(&self.handle);
        }
        taken
    }

    fn try_memory(&mut self, is_end: bool) -> Result<(), String> {
        let plan = self.shape.memory(is_end);
        let sides = if is_end { 1 } else { 2 };
        let bytes = self.shape.bytes(is_end);
        let may_ask_for_room = self.role == Role::Pending && !self.is_dry_run();
        let is_unauthenticated = may_ask_for_room
            && self
                .body
                .session(0)
                .is_some_and(|session| session.peer().is_none());
        let from = self.from.filter(|_| may_ask_for_room);
        if let Some(from) = from.filter(|_| is_unauthenticated) {
            let idle = self.shared.reserve(&self.handle, bytes, from).ok_or_else(|| {
                format!(
                    "sessions from {from} have all that one source without a key may have of memory, three quarters (see `memory`)"
                )
            })?;
            self.idle = Some(idle);
        }
        let take = || self.shared.take_memory(bytes);
        let share = match may_ask_for_room {
            true => self.shared.with_room(bytes, from, take),
            false => take(),
        };
        let left = self.shared.memory_left();
        self.share = Some(share.ok_or_else(|| {
            format!("a session takes {bytes} octets of memory and {left} are left (see `memory` and `ring`)")
        })?);
        let meter = self.shared.meter(self.class.as_deref());
        for segment in &mut self.segments[..sides] {
            let mut fresh = SegmentSide::new(&plan, self.shape.verifies)
                .map_err(|error| format!("no memory: {error}"))?;
            fresh.meter = Some(meter.clone());
            let old = segment.replace(fresh);
            if let (Some(segment), Some(old)) = (segment, old) {
                (segment.control, segment.peer) = (old.control, old.peer);
            }
        }
        Ok(())
    }

    fn is_dry_run(&mut self) -> bool {
        let session = self.body.session(0);
        session.is_some_and(|session| session.is_dry_run())
    }

    // The loop.

    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        while !self.is_over {
            self.turn();
            if self.is_over {
                break;
            }
            let deadline = self.deadline().map(Time::as_ns);
            if let Err(error) = self.poller.wait(&mut events, deadline, self.shared.clock) {
                self.shared.log(
                    Level::Error,
                    format!("a session ends: waiting failed: {error}"),
                );
                break;
            }
            self.has_news |= events.woken() || !events.is_empty();
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
            let segment = self.segments[side].as_ref();
            let fabric = segment.and_then(SegmentSide::poll_timeout);
            let reads_until = segment.and_then(|segment| segment.reads_until);
            until = [
                until,
                session,
                fabric,
                reads_until,
                self.dials[side].again_at,
            ]
            .into_iter()
            .flatten()
            .min();
        }
        if self.role == Role::Pending {
            let greeting = self.since.after(GREETING_NS);
            until = Some(until.map_or(greeting, |until| until.min(greeting)));
        }
        [until, self.open_until, self.status_due()]
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
        let segment = self.segments[0].as_mut()?;
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

    fn receive(&mut self, side: usize) {
        if matches!((&self.body, self.role), (Body::None, Role::Pending))
            && let Err(lost) = self.handshake()
        {
            let peer = self.segments[0]
                .as_ref()
                .map_or("", |segment| segment.peer.as_str());
            self.shared
                .log(Level::Warning, format!("{peer}: {}", lost.0));
            self.is_over = true;
            return;
        }
        let now = self.now();
        let (Some(session), Some(segment)) =
            (self.body.session(side), self.segments[side].as_mut())
        else {
            // TLS has begun and is not agreed on yet.
            return self.show_standing();
        };
        match segment.receive(session, now) {
            Err(lost) => self.lose(side, &lost),
            Ok(_) if self.role == Role::Pending => self.show_standing(),
            Ok(_) => {}
        }
    }

    /// Who has said something is not the first to make room for others, and who has shown who it is
    /// never does.
    fn show_standing(&mut self) {
        let standing = self.standing();
        let mut registers = self.shared.registers();
        registers.pending_peers.raise(self.status_number, standing);
    }

    fn standing(&mut self) -> Standing {
        let control = self.segments[0]
            .as_ref()
            .and_then(|segment| segment.control.as_ref());
        let by_certificate = control.is_some_and(Control::is_authenticated);
        let by_key = self
            .body
            .session(0)
            .is_some_and(|session| session.peer().is_some());
        if by_certificate || by_key {
            Standing::Authenticated
        } else {
            Standing::Greeted
        }
    }

    fn poll_fabric(&mut self, side: usize) {
        let now = self.now();
        let Some(segment) = &mut self.segments[side] else {
            return;
        };
        if let Err(lost) = segment.poll_fabric(now) {
            self.lose_channels(side, &lost);
        }
    }

    fn on_time(&mut self) {
        let now = self.now();
        if let (Some(idle), Some(session)) = (&self.idle, self.body.session(0)) {
            idle.note(session.conns() > 0, now.as_ns());
        }
        for side in 0..2 {
            if let Some(session) = self.body.session(side)
                && session.poll_timeout().is_some_and(|at| at <= now)
            {
                session.handle_timeout(now);
                self.has_news = true;
            }
            let fabric = self.segments[side]
                .as_ref()
                .and_then(SegmentSide::poll_timeout);
            if fabric.is_some_and(|at| at <= now) {
                self.poll_fabric(side);
            }
            let reads_until = self.segments[side]
                .as_ref()
                .and_then(|segment| segment.reads_until);
            if reads_until.is_some_and(|at| at <= now) {
                self.lose(side, &Lost("its owner says nothing more".to_owned()));
            }
            if self.dials[side].again_at.is_some_and(|at| at <= now) {
                self.dial(side);
            }
        }
        if self.edges.poll_timeout().is_some_and(|at| at <= now)
            && let Some((mut tools, edges)) = self.edges_tools()
        {
            edges.handle_timeout(&mut tools);
        }
        if self.role == Role::Pending && now >= self.since.after(GREETING_NS) {
            self.is_over = true;
        }
        if self.open_until.is_some_and(|at| at <= now) {
            self.open_until = None;
            self.drain();
        }
        if self.status_due().is_some_and(|due| due <= now) {
            self.show_status(now);
        }
    }

    /// Everything that can be done at this moment.
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
        for side in 0..2 {
            self.transmit(side);
            self.watch(side);
        }
    }

    fn settle(&mut self, side: usize, now: Time) -> bool {
        let [near, far] = &mut self.segments;
        let (segment, other) = if side == 0 { (near, far) } else { (far, near) };
        let (Some(session), Some(segment)) = (self.body.session(side), segment.as_mut()) else {
            return false;
        };
        let result = segment.settle(session, other.as_ref().map(SegmentSide::arena), now);
        let news = segment.take_news();
        let progress = !news.is_empty();
        for news in news {
            self.on_channel_news(side, news);
        }
        match result {
            Ok(settled) => progress | settled,
            Err(lost) => {
                self.lose_channels(side, &lost);
                true
            }
        }
    }

    fn transmit(&mut self, side: usize) {
        let now = self.now();
        let (Some(session), Some(segment)) =
            (self.body.session(side), self.segments[side].as_mut())
        else {
            return;
        };
        match segment.transmit(session, now) {
            Ok(waits) => segment.waits_to_send = waits,
            Err(lost) => self.lose(side, &lost),
        }
    }

    /// Has the poller watch what there is of a side.
    fn watch(&mut self, side: usize) {
        let (watched, token) = (&mut self.watched[side], side as u64);
        let Some(segment) = &self.segments[side] else {
            return;
        };
        let wanted = segment.control.as_ref().map(|_| Interest {
            readable: true,
            writable: segment.waits_to_send,
        });
        if let Some(control) = &segment.control
            && wanted != watched.control
        {
            let result = match (watched.control, wanted) {
                (None, Some(wanted)) => self.poller.add(control.stream(), CONTROL | token, wanted),
                (_, Some(wanted)) => self
                    .poller
                    .modify(control.stream(), CONTROL | token, wanted),
                (_, None) => Ok(()),
            };
            watched.control = wanted.filter(|_| result.is_ok());
        }
        if let Some(fabric) = segment.fabric.as_ref().filter(|_| !watched.has_fabric) {
            let mut descriptors = fabric.descriptors().into_iter();
            watched.has_fabric = descriptors
                .try_for_each(|fd| self.poller.add(fd, FABRIC | token, Interest::READ))
                .is_ok();
        }
    }

    // Control connections.

    /// The control connection of a side is gone, or must go because its data channels are.
    fn lose(&mut self, side: usize, lost: &Lost) {
        let now = self.now();
        if let Some(segment) = &mut self.segments[side] {
            if segment.control.is_none() {
                return;
            }
            if let Some(session) = self.body.session(side)
                && segment.has_broken(now)
            {
                self.attempts[side].note_lost(now, &self.shared, session, segment);
            }
            // Where its last words were listened to, why has been told.
            if self.role != Role::Pending && segment.reads_until.is_none() {
                self.shared
                    .log(Level::Warning, format!("{}: {}", segment.peer, lost.0));
                self.trouble = Some(format!("gateway {}: {}", segment.peer, lost.0));
                let control = segment.control.as_ref();
                self.auth_failed = control.is_some_and(Control::auth_failed);
            }
            if !self.dials[side].hop.is_empty() {
                self.ways.note(&lost.0);
            }
            drop_control(segment, &self.poller, &mut self.watched[side]);
        }
        self.end_fabric(side);
        if let Some(session) = self.body.session(side) {
            session.handle_lost(now);
        }
    }

    /// The data channels of a side are gone: with the session, perhaps, of which the peer has told
    /// before. An owner may have done so in octets that are still on their way; it learns that its
    /// control connection is over, and its last words are heard.
    fn lose_channels(&mut self, side: usize, lost: &Lost) {
        self.receive(side);
        let until = self.now().after(FINAL_READ_NS);
        let session = self.body.session(side).map(|session| session.state());
        let (Some(segment), false) = (&mut self.segments[side], session == Some(State::Closed))
        else {
            return;
        };
        if !self.dials[side].hop.is_empty() {
            return self.lose(side, lost);
        }
        if segment.control.is_none() || segment.reads_until.is_some() {
            return;
        }
        let text = format!("{}: {}", segment.peer, lost.0);
        self.shared.log(Level::Warning, &text);
        self.trouble = Some(format!("gateway {text}"));
        segment.finish_control(until);
        self.end_fabric(side);
    }

    fn end_fabric(&mut self, side: usize) {
        if let Some(segment) = &mut self.segments[side] {
            attempts::forget(&self.shared, segment);
            if let Some(fabric) = segment
                .fabric
                .as_ref()
                .filter(|_| self.watched[side].has_fabric)
            {
                // They are gone with their descriptors; before that they must not be asked about.
                for fd in fabric.descriptors() {
                    let _ = self.poller.remove(fd);
                }
            }
            segment.end_fabric();
        }
        self.watched[side].has_fabric = false;
    }

    fn dial(&mut self, side: usize) {
        let dialled = &mut self.dials[side];
        if dialled.hop.is_empty() || dialled.is_under_way {
            return;
        }
        (dialled.is_under_way, dialled.again_at) = (true, None);
        dial(&self.shared, dialled.hop.clone(), &self.handle);
    }

    /// The side that this end dials.
    const fn dialled_side(&self) -> usize {
        match self.role {
            Role::Relay => 1,
            _ => 0,
        }
    }

    fn on_dialled(&mut self, result: Result<Box<Control>, (NackStatus, String)>) {
        let side = self.dialled_side();
        self.dials[side].is_under_way = false;
        let control = match result {
            Ok(control) => control,
            Err((status, why)) => return self.on_dial_failed(side, status, &why),
        };
        let now = self.now();
        let (binding, name) = (control.binding(), control.peer_name());
        let key = self.dials[side].key.as_deref();
        let auth = shape::auth(&self.shared, key, true, binding, name);
        let peer = self.dials[side].hop.clone();
        if let Some((id, open)) = self.wanted.take() {
            if let Err(why) = self.begin(side, id, open, auth) {
                self.shared.log(Level::Error, format!("{peer}: {why}"));
                self.is_over = true;
                return;
            }
        } else if let Some(session) = self.body.session(side) {
            session.set_auth(auth);
            if self.ways.go_on(now, session).is_err() {
                return;
            }
        }
        if let Some(segment) = &mut self.segments[side] {
            drop_control(segment, &self.poller, &mut self.watched[side]);
            segment.control = Some(*control);
            segment.peer = peer;
        }
    }

    /// Opens the session at the next hop.
    fn begin(
        &mut self,
        side: usize,
        id: SessionId,
        open: SessOpen,
        auth: haul_xsp::AuthConfig,
    ) -> Result<(), String> {
        let seed = haul_io::random::bytes().map_err(|error| error.to_string())?;
        let config = self.shape.session(side == 0, Vec::new(), auth);
        // Of an opener what waits for the session is asked for along with it; gateways have nothing
        // that waits.
        let firsts: Vec<(Endpoint, Metadata)> = self
            .calls
            .iter()
            .take(FIRSTS_MAX)
            .map(|call| (call.meant().clone(), call.metadata.clone()))
            .collect();
        let opened = Session::open_with(config, self.now(), id, open, &firsts, seed);
        let (mut session, conns) = opened.map_err(|error| error.to_string())?;
        if side == 0 {
            session.set_metadata(self.metadata.clone());
        }
        let calls: Vec<Call> = self.calls.drain(..conns.len()).collect();
        for (conn, call) in conns.iter().zip(calls) {
            self.note_conn(*conn, &call.metadata);
            self.ways.ask_along(*conn, &call);
            self.edges.ask(*conn, call);
        }
        self.body = match std::mem::replace(&mut self.body, Body::None) {
            Body::One(near) if side == 1 => Body::Two(Box::new(Relay::new(*near, session))),
            Body::Two(mut relay) => {
                relay.replace_far(session);
                Body::Two(relay)
            }
            _ => Body::One(Box::new(session)),
        };
        if side == 0 && self.probe.is_none() {
            self.register(id);
        }
        Ok(())
    }

    fn register(&mut self, id: SessionId) {
        self.shared
            .registers()
            .sessions
            .insert(id, self.handle.clone());
        self.is_registered = true;
    }

    fn on_dial_failed(&mut self, side: usize, status: NackStatus, why: &str) {
        let text = format!("the next hop cannot be reached: {why}");
        self.ways.note(why);
        let Some((_, open)) = self.wanted.take() else {
            self.shared.log(Level::Warning, text);
            return self.dial_later(side);
        };
        let is_opener = self.role == Role::Opener;
        let why_opener = format!("gateway {why}");
        if (is_opener && self.open_by_next_way(status, &why_opener))
            || (!is_opener && self.leave_out(why))
        {
            return;
        }
        self.shared.log(Level::Error, text);
        if is_opener {
            self.trouble = Some(self.ways.end_reason(&why_opener));
            self.refuse_all(status);
            self.is_over = true;
        } else if let Some(near) = self.body.session(0) {
            // Fails only where the opener is gone.
            let _ = near.refuse_session(status, open.hop_index, why);
        }
    }

    /// Nobody is to find this thread any more.
    fn leave(&mut self) {
        self.refuse_all(NackStatus::Closing);
        self.count_connections();
        let id = self.body.session(0).map(|session| session.id());
        for side in 0..2 {
            self.end_fabric(side);
        }
        let mut registers = self.shared.registers();
        registers.statuses.remove(&self.status_number);
        registers.pending_peers.remove(self.status_number);
        registers.forget(&self.handle);
        let id = id.filter(|_| self.is_registered);
        if let Some(id) = id {
            registers.sessions.remove(&id);
        }
        drop(registers);
        if let Some(id) = id {
            self.shared.directory().remove(id);
        }
        // What came too late for this session is for the next one.
        while let Ok(command) = self.commands.try_recv() {
            if let SessionCommand::Call(call) = command {
                dispatch(&self.shared, call);
            }
        }
    }
}

fn drop_control(segment: &mut SegmentSide, poller: &Poller, watched: &mut Watched) {
    if let (Some(control), Some(_)) = (segment.control.take(), watched.control.take()) {
        // It fails where the descriptor is not watched.
        let _ = poller.remove(control.stream());
    }
    segment.forget_input();
}
