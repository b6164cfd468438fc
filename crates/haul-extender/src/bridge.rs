//! A bridge: a reliable connection of the device, and the byte stream that carries its messages.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use haul_io::address::attempt_deadline_ns;
use haul_io::poller::{Interest, Poller};
use haul_io::stream::{self, Stream};
use haul_slab::{Gather, Scatter};
use haul_verbs::cm::{CmEvent, ConnParam, ConnectRequest, EventChannel};
use haul_verbs::{CompletionChannel, Context, Failure};

use crate::frame::{HEAD_BYTES, Head, Kind, PRIVATE_MAX};
use crate::host::MemoryGuard;
use crate::link::{Link, Plan};

/// Bytes that one connection may move before others are served.
const TURN_BYTES: usize = 1 << 20;
/// Bytes discarded at a time, once nobody wants them.
const SINK_BYTES: usize = 16 << 10;
/// What bridges work with.
#[derive(Debug)]
pub(crate) struct Tools<'a> {
    pub(crate) context: &'a Context,
    pub(crate) completions: &'a CompletionChannel,
    /// Events of the connections that this end makes.
    pub(crate) events: &'a EventChannel,
    pub(crate) poller: &'a Poller,
    pub(crate) plan: Plan,
    pub(crate) now: u64,
}

impl Tools<'_> {
    fn link(&self, token: u64) -> Result<Link, String> {
        Link::new(self.context, self.completions, token, self.plan).map_err(text)
    }

    fn connect(&self, token: u64, to: SocketAddr, private_data: &[u8]) -> Result<Link, String> {
        let link = self.link(token)?;
        let connected = link.qp.connect(to, &param(private_data), self.events);
        connected.map_err(|error| format!("{to}: {error}"))?;
        Ok(link)
    }
}

#[derive(Debug)]
enum Phase {
    /// Near end: the host has not connected. The connection is wanted while `_wanted` exists.
    Calling {
        request: ConnectRequest,
        _wanted: Arc<()>,
    },
    /// Near end: the far end has not answered.
    Asking(ConnectRequest),
    /// Near end: the application has not received the answer.
    Answering,
    /// Far end: the near end has not sent the application's request.
    Listening(VecDeque<SocketAddr>),
    /// Far end: the application has not answered. Without a link, the next address is tried.
    Trying {
        left: VecDeque<SocketAddr>,
        private_data: Vec<u8>,
        attempt_until: Option<u64>,
    },
    Open,
    /// The connection failed. The far end reports it to the near one.
    Leaving,
}

/// Input from the stream.
#[derive(Debug, Default)]
struct Input {
    head: [u8; HEAD_BYTES],
    /// Bytes of the head received.
    have: usize,
    body: Body,
}

#[derive(Debug, Default)]
enum Body {
    #[default]
    None,
    Private {
        kind: Kind,
        octets: Vec<u8>,
        have: usize,
    },
    Message {
        slot: u16,
        len: usize,
        immediate: Option<u32>,
        have: usize,
    },
}

/// What a bridge does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It waits for its socket or its device.
    Waits,
    /// It can go on at once.
    More,
    /// It has ended in order.
    Over,
}

#[derive(Debug)]
pub(crate) struct Bridge {
    token: u64,
    /// For log lines.
    pub(crate) name: String,
    /// It is queued to be served.
    pub(crate) is_ready: bool,
    phase: Phase,
    /// Deadline until it is open, and again after one side has ended, ns.
    until: Option<u64>,
    /// Why an address was passed over, to be logged.
    pub(crate) passed_over: Option<String>,
    /// The sum of `moved` and the requests completed, when the deadline was last set.
    moved_before: u64,
    /// Bytes moved to or from the stream.
    moved: u64,
    /// Reset when it is dropped, unless both directions have ended.
    stream: Option<Stream>,
    interest: Option<Interest>,
    link: Option<Link>,
    /// Bytes to send before any message.
    prologue: Vec<u8>,
    /// Bytes of the oldest arrived message, with its head, that are sent.
    written: usize,
    input: Input,
    /// The far end sends no more.
    is_read: bool,
    /// The far end has everything, and the end.
    is_written: bool,
    /// This end has begun to close the application's connection.
    is_ending: bool,
    /// The application's connection has ended.
    is_ended: bool,
    /// Why, unless it ended in order.
    failure: Option<Failure>,
    _memory: MemoryGuard,
}

impl Bridge {
    /// Creates a bridge for an application that connects here. Dropping `wanted` withdraws the
    /// request.
    pub(crate) fn near(
        token: u64,
        name: String,
        (request, wanted): (ConnectRequest, Arc<()>),
        until: u64,
        memory: MemoryGuard,
    ) -> Self {
        let phase = Phase::Calling {
            request,
            _wanted: wanted,
        };
        Self::new(token, name, phase, None, until, memory)
    }

    /// Creates a bridge for a stream to an application at the first of these addresses that
    /// accepts.
    pub(crate) fn far(
        token: u64,
        name: String,
        to: VecDeque<SocketAddr>,
        stream: Stream,
        until: u64,
        memory: MemoryGuard,
    ) -> Self {
        stream.reset_on_drop();
        let phase = Phase::Listening(to);
        Self::new(token, name, phase, Some(stream), until, memory)
    }

    fn new(
        token: u64,
        name: String,
        phase: Phase,
        stream: Option<Stream>,
        until: u64,
        memory: MemoryGuard,
    ) -> Self {
        Self {
            token,
            name,
            is_ready: false,
            phase,
            until: Some(until),
            passed_over: None,
            moved_before: 0,
            moved: 0,
            stream,
            interest: None,
            link: None,
            prologue: Vec::new(),
            written: 0,
            input: Input::default(),
            is_read: false,
            is_written: false,
            is_ending: false,
            is_ended: false,
            failure: None,
            _memory: memory,
        }
    }

    pub(crate) const fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn qp_num(&self) -> Option<u32> {
        self.link.as_ref().map(|link| link.qp.qp_num())
    }

    /// Whether the host has not connected yet.
    pub(crate) const fn is_calling(&self) -> bool {
        matches!(self.phase, Phase::Calling { .. })
    }

    /// Requests the next completion event.
    pub(crate) fn arm(&self) -> Result<(), String> {
        self.link
            .as_ref()
            .map_or(Ok(()), Link::arm)
            .map_err(|error| error.to_string())
    }

    /// Takes the stream that the host has connected.
    pub(crate) fn called(&mut self, stream: Stream) {
        stream.reset_on_drop();
        self.stream = Some(stream);
        match std::mem::replace(&mut self.phase, Phase::Leaving) {
            Phase::Calling { request, .. } => {
                self.queue_frame(Kind::Connect, &request.private_data);
                self.phase = Phase::Asking(request);
            }
            other => self.phase = other,
        }
    }

    /// Handles an event of the device's connection. Returns why it failed.
    pub(crate) fn on_event(&mut self, event: CmEvent) -> Option<Failure> {
        match (&self.phase, event) {
            (Phase::Answering | Phase::Trying { .. }, CmEvent::Established { established, .. }) => {
                if matches!(self.phase, Phase::Trying { .. }) {
                    self.queue_frame(Kind::Accept, &established.private_data);
                }
                (self.phase, self.until) = (Phase::Open, None);
            }
            (Phase::Answering, event) => {
                // The application has given up. The far end's connection may be open already.
                (self.phase, self.until, self.is_ended) = (Phase::Open, None, true);
                if let CmEvent::Unreachable { failure, .. } = event {
                    return Some(failure);
                }
            }
            (Phase::Trying { .. }, CmEvent::Rejected { private_data, .. }) => {
                self.leave(&private_data);
            }
            (Phase::Trying { .. }, event) => {
                self.link = None;
                if let CmEvent::Unreachable { failure, .. } = event {
                    return Some(failure);
                }
            }
            (_, CmEvent::Disconnected { failure, .. }) => {
                self.is_ended = true;
                self.failure = failure;
            }
            _ => {}
        }
        None
    }

    /// Near end: the host could not connect.
    pub(crate) fn refused(&mut self) {
        self.phase = Phase::Leaving;
    }

    /// Returns the deadline of the bridge, or of its present attempt, ns.
    pub(crate) fn deadline(&self) -> Option<u64> {
        match self.phase {
            Phase::Trying {
                attempt_until: Some(attempt),
                ..
            } => Some(self.until.map_or(attempt, |until| until.min(attempt))),
            _ => self.until,
        }
    }

    /// Far end: gives up an address that does not answer. Returns whether the next may be tried.
    pub(crate) fn pass_over(&mut self, now: u64) -> bool {
        let has_time = self.until.is_some_and(|until| until > now);
        let is_trying = matches!(self.phase, Phase::Trying { .. });
        if has_time && is_trying {
            self.link = None;
            self.passed_over = Some("an address does not answer; trying the next".into());
        }
        has_time && is_trying
    }

    /// Returns what the bridge has waited for in vain.
    pub(crate) const fn lateness(&self) -> &'static str {
        match self.phase {
            Phase::Open | Phase::Leaving => "one side has ended, and the other makes no progress",
            _ => "no answer came in time",
        }
    }

    /// Reports a failure to the near end.
    fn leave(&mut self, private_data: &[u8]) {
        self.queue_frame(Kind::Reject, private_data);
        self.phase = Phase::Leaving;
    }

    /// Does everything that is possible now.
    ///
    /// # Errors
    /// Why the bridge cannot go on.
    pub(crate) fn turn(&mut self, tools: &Tools<'_>) -> Result<Turn, String> {
        self.try_next(tools);
        if let Some(link) = &mut self.link {
            link.poll()?;
        }
        let is_cut = self.write().map_err(text)?;
        // What arrived earlier is delivered first.
        if let Some(failure) = self.failure.as_ref().filter(|_| !self.has_rest()) {
            return Err(failure.to_string());
        }
        let has_more = self.read(tools)?;
        self.end();
        self.watch_end(tools);
        if self.is_written && self.is_read {
            return Ok(Turn::Over);
        }
        self.watch(tools.poller, is_cut).map_err(text)?;
        Ok(if has_more { Turn::More } else { Turn::Waits })
    }

    /// Closes it. Unless it has ended in order, the far end sees a reset, and a waiting application
    /// a rejection.
    pub(crate) fn close(self, poller: &Poller) {
        if let Some(stream) = self.stream {
            if self.interest.is_some() {
                // The stream may not be watched.
                let _ = poller.remove(&stream);
            }
            if self.is_written && self.is_read {
                stream.finish_on_drop();
            }
        }
    }

    /// Whether arrived messages wait for the stream.
    fn has_rest(&self) -> bool {
        let link = self.link.as_ref();
        matches!(self.phase, Phase::Open) && link.is_some_and(|link| !link.arrived.is_empty())
    }

    /// After one side has ended, the other has a limited time without progress.
    fn watch_end(&mut self, tools: &Tools<'_>) {
        let has_ended = match self.phase {
            Phase::Open => self.is_ended || self.is_read,
            Phase::Leaving => true,
            _ => false,
        };
        let moved = self.moved + self.link.as_ref().map_or(0, |link| link.done);
        if has_ended && (self.until.is_none() || moved != self.moved_before) {
            self.moved_before = moved;
            self.until = Some(tools.now + tools.plan.answer_ns);
        }
    }

    /// Passes on that one side has ended.
    fn end(&mut self) {
        let is_over = match self.phase {
            Phase::Open => self.is_ended && self.failure.is_none(),
            Phase::Leaving => true,
            _ => false,
        };
        if is_over && !self.is_written && self.prologue.is_empty() && !self.has_rest() {
            self.stream.iter().for_each(Stream::shutdown_send);
            self.is_written = true;
        }
        let is_ending =
            matches!(self.phase, Phase::Open) && self.is_read && !self.is_ended && !self.is_ending;
        if let Some(link) = self
            .link
            .as_mut()
            .filter(|link| is_ending && link.is_idle())
        {
            self.is_ending = true;
            // The application may have disconnected first.
            if link.qp.disconnect().is_err() {
                self.is_ended = true;
            }
        }
    }

    fn queue_frame(&mut self, kind: Kind, private_data: &[u8]) {
        let private_data = &private_data[..private_data.len().min(PRIVATE_MAX)];
        let len = u32::try_from(private_data.len()).unwrap_or(0);
        self.prologue.extend(Head { kind, len }.encode());
        self.prologue.extend(private_data);
    }

    /// Moves messages from the device to the stream. Returns whether the stream is full.
    fn write(&mut self) -> io::Result<bool> {
        let Some(stream) = &self.stream else {
            return Ok(false);
        };
        while !self.prologue.is_empty() {
            match stream.write(&self.prologue) {
                Ok(count) => {
                    self.prologue.drain(..count);
                    self.moved += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        let Some(link) = self
            .link
            .as_mut()
            .filter(|_| matches!(self.phase, Phase::Open) && !self.is_written)
        else {
            return Ok(false);
        };
        while let Some(message) = link.arrived.front().copied() {
            let kind = Kind::Message(message.immediate);
            let head = Head {
                kind,
                len: message.len,
            }
            .encode();
            let whole = HEAD_BYTES + message.len as usize;
            let begun = self.written.saturating_sub(HEAD_BYTES);
            let payload = link.region().gather(
                link.at_arrived(message.slot) + begun,
                message.len as usize - begun,
            );
            let payload = payload.map_err(io::Error::other)?;
            let sent = match head.get(self.written..).filter(|rest| !rest.is_empty()) {
                Some(rest) => stream::send(stream, &[Gather::from(rest), payload], false),
                None => stream::send(stream, &[payload], false),
            };
            match sent {
                Ok(count) => {
                    self.written += count;
                    self.moved += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
            if self.written == whole {
                self.written = 0;
                link.arrived.pop_front();
                if !self.is_ended {
                    link.receive(message.slot).map_err(io::Error::other)?;
                }
            }
        }
        Ok(false)
    }

    /// Whether input from the stream can be taken now.
    fn has_room(&self) -> bool {
        if self.is_read {
            return false;
        }
        let awaits_slot = self.input.have == HEAD_BYTES && matches!(self.input.body, Body::None);
        match self.phase {
            Phase::Calling { .. } | Phase::Answering | Phase::Trying { .. } => false,
            Phase::Asking(_) | Phase::Listening(_) | Phase::Leaving => true,
            Phase::Open => {
                self.is_ended || !awaits_slot || self.link.as_ref().is_some_and(Link::has_slot)
            }
        }
    }

    /// Moves messages from the stream to the device. Returns whether there may be more.
    fn read(&mut self, tools: &Tools<'_>) -> Result<bool, String> {
        let mut taken = 0;
        while self.has_room() {
            if taken >= TURN_BYTES {
                return Ok(true);
            }
            let is_over = self.is_ended || matches!(self.phase, Phase::Leaving);
            if is_over {
                self.input = Input::default();
            } else if self.input.have == HEAD_BYTES && matches!(self.input.body, Body::None) {
                self.begin()?;
                self.finish(tools)?;
                continue;
            }
            let Some(stream) = &self.stream else {
                return Ok(false);
            };
            let received = match (&mut self.input.body, &self.link) {
                _ if is_over => stream.read(&mut [0; SINK_BYTES]),
                (Body::None, _) => stream.read(&mut self.input.head[self.input.have..]),
                (Body::Private { octets, have, .. }, _) => stream.read(&mut octets[*have..]),
                (
                    Body::Message {
                        slot, len, have, ..
                    },
                    Some(link),
                ) => {
                    let place = link
                        .region()
                        .scatter(link.at_send(*slot) + *have, *len - *have);
                    let place = place.map_err(text)?;
                    // Together with the head of the next one, if it has arrived.
                    let next = Scatter::from(&mut self.input.head[..]);
                    stream::receive(stream, &mut [place, next])
                }
                (Body::Message { .. }, None) => return Err("there is no connection".to_owned()),
            };
            let count = match received {
                Ok(0) => return self.on_end().map(|()| false),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(text(error)),
            };
            taken += count;
            self.moved += count as u64;
            if !is_over {
                self.input.advance(count);
                self.finish(tools)?;
            }
        }
        Ok(false)
    }

    /// Handles the end of the stream.
    fn on_end(&mut self) -> Result<(), String> {
        let is_between = self.input.have == 0 && matches!(self.input.body, Body::None);
        match self.phase {
            Phase::Open | Phase::Leaving if is_between || self.is_ended => {
                self.is_read = true;
                Ok(())
            }
            _ => Err("the far gateway ended it too early".to_owned()),
        }
    }

    /// Begins what a head announces. Does nothing while no slot for a message is free.
    fn begin(&mut self) -> Result<(), String> {
        let head = Head::decode(self.input.head);
        let head = head.ok_or("the far end is not an RDMA extender of this version")?;
        let len = head.len as usize;
        match (head.kind, &mut self.link) {
            (Kind::Message(immediate), Some(link)) => {
                if len > link.message_max() {
                    let most = link.message_max();
                    return Err(format!(
                        "a message of {len} bytes is longer than {most} (`message`)"
                    ));
                }
                let Some(slot) = link.take_slot() else {
                    return Ok(());
                };
                self.input.body = Body::Message {
                    slot,
                    len,
                    immediate,
                    have: 0,
                };
            }
            (kind @ (Kind::Connect | Kind::Accept | Kind::Reject), None) => {
                self.input.body = Body::Private {
                    kind,
                    octets: vec![0; len],
                    have: 0,
                };
            }
            (kind, _) => return Err(format!("the far end sent {kind:?} out of order")),
        }
        self.input.have = 0;
        Ok(())
    }

    /// Handles what was received, once it is complete.
    fn finish(&mut self, tools: &Tools<'_>) -> Result<(), String> {
        match std::mem::take(&mut self.input.body) {
            Body::Message {
                slot,
                len,
                immediate,
                have,
            } if have == len => {
                let link = self.link.as_mut().ok_or("there is no connection")?;
                let len = u32::try_from(len).map_err(text)?;
                link.send(slot, len, immediate).map_err(text)
            }
            Body::Private { kind, octets, have } if have == octets.len() => {
                self.on_private(kind, &octets, tools)
            }
            body => {
                self.input.body = body;
                Ok(())
            }
        }
    }

    fn on_private(&mut self, kind: Kind, octets: &[u8], tools: &Tools<'_>) -> Result<(), String> {
        let phase = std::mem::replace(&mut self.phase, Phase::Leaving);
        match (phase, kind) {
            (Phase::Listening(left), Kind::Connect) => {
                let private_data = fitting(octets, tools)?.to_vec();
                self.phase = Phase::Trying {
                    left,
                    private_data,
                    attempt_until: None,
                };
                self.try_next(tools);
            }
            (Phase::Asking(request), Kind::Accept) => {
                let link = self.link.insert(tools.link(self.token)?);
                let private_data = fitting(octets, tools)?;
                request
                    .accept(&link.qp, &param(private_data))
                    .map_err(text)?;
                self.phase = Phase::Answering;
            }
            (Phase::Asking(request), Kind::Reject) => {
                // The transport decides whether the application sees the reason.
                let _ = request.reject(fitting(octets, tools)?);
            }
            (_, kind) => return Err(format!("the far end sent {kind:?} out of order")),
        }
        Ok(())
    }

    /// Far end: connects to the next address, or reports that none is left.
    fn try_next(&mut self, tools: &Tools<'_>) {
        while let (
            Phase::Trying {
                left,
                private_data,
                attempt_until,
            },
            None,
        ) = (&mut self.phase, &self.link)
        {
            let Some(to) = left.pop_front() else {
                return self.leave(&[]);
            };
            let attempt = |until| attempt_deadline_ns(tools.now, until, left.len());
            *attempt_until = self.until.map(attempt);
            match tools.connect(self.token, to, private_data) {
                Ok(link) => self.link = Some(link),
                Err(why) => self.passed_over = Some(why),
            }
        }
    }

    fn watch(&mut self, poller: &Poller, is_cut: bool) -> io::Result<()> {
        let Some(stream) = &self.stream else {
            return Ok(());
        };
        let wanted = Interest {
            readable: self.has_room(),
            writable: is_cut,
        };
        if !wanted.readable && !wanted.writable {
            // A poller reports a lost connection again and again, and nobody reads or writes here.
            stream.connected()?;
        }
        if self.interest == Some(wanted) {
            return Ok(());
        }
        match self.interest {
            None => poller.add(stream, self.token, wanted)?,
            Some(_) => poller.modify(stream, self.token, wanted)?,
        }
        self.interest = Some(wanted);
        Ok(())
    }
}

impl Input {
    /// Counts received bytes.
    fn advance(&mut self, count: usize) {
        match &mut self.body {
            Body::None => self.have += count,
            Body::Private { have, .. } => *have += count,
            Body::Message { len, have, .. } => {
                let own = count.min(*len - *have);
                *have += own;
                self.have = count - own;
            }
        }
    }
}

fn param(private_data: &[u8]) -> ConnParam<'_> {
    let mut param = ConnParam::default();
    param.private_data = private_data;
    param
}

/// A transport with private data of fixed length pads it with zeros, and another may have room for
/// fewer.
fn fitting<'a>(octets: &'a [u8], tools: &Tools<'_>) -> Result<&'a [u8], String> {
    let most = tools.context.attributes().map_err(text)?.max_private_data as usize;
    match octets.split_at_checked(most) {
        None => Ok(octets),
        Some((kept, rest)) if rest.iter().all(|octet| *octet == 0) => Ok(kept),
        Some(_) => Err(format!(
            "{} bytes of private data do not fit into {most}",
            octets.len()
        )),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
