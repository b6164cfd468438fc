//! A reliable connection of the device, and the connection of a session that carries its messages.

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

/// Octets that one connection may bring before others have their turn.
const TURN_BYTES: usize = 1 << 20;
/// Octets that are thrown away at a time, once nobody wants them.
const SINK_BYTES: usize = 16 << 10;
/// What bridges work with.
#[derive(Debug)]
pub(crate) struct Tools<'a> {
    pub(crate) context: &'a Context,
    pub(crate) completions: &'a CompletionChannel,
    /// Of the connections that this end makes.
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
    /// Near end: the session has not connected yet, which is wanted as long as `wanted` is there.
    Calling {
        request: ConnectRequest,
        _wanted: Arc<()>,
    },
    /// Near end: the far one has not answered.
    Asking(ConnectRequest),
    /// Near end: the application has not heard the answer.
    Answering,
    /// Far end: the near one has not said what its application wants.
    Listening(VecDeque<SocketAddr>),
    /// Far end: its application has not answered. Without a link, the next of the addresses that
    /// are left is to be tried.
    Trying {
        left: VecDeque<SocketAddr>,
        private_data: Vec<u8>,
        attempt_until: Option<u64>,
    },
    Open,
    /// Nothing came of it. The far end tells the near one.
    Leaving,
}

/// What comes from the stream.
#[derive(Debug, Default)]
struct Input {
    head: [u8; HEAD_BYTES],
    /// Octets of the head that are there.
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

/// How far a bridge has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Waits for its socket or its device.
    Waits,
    /// Could go on at once.
    More,
    /// Has ended in order.
    Over,
}

#[derive(Debug)]
pub(crate) struct Bridge {
    token: u64,
    /// For people.
    pub(crate) name: String,
    /// Its turn is to come.
    pub(crate) is_ready: bool,
    phase: Phase,
    /// Until it is open, and from the end of one side on.
    until: Option<u64>,
    /// Why an address was passed over, to be said.
    pub(crate) passed_over: Option<String>,
    /// Octets that were moved to or from the stream, and requests that were done, when that was
    /// last set.
    moved_before: u64,
    /// Octets that were moved to or from the stream.
    moved: u64,
    /// Reset when it is dropped, unless both directions have ended.
    stream: Option<Stream>,
    interest: Option<Interest>,
    link: Option<Link>,
    /// What goes to the stream before messages.
    prologue: Vec<u8>,
    /// Octets of the oldest message that has come, and of its head, that are written.
    written: usize,
    input: Input,
    /// The far end sends no more.
    is_read: bool,
    /// The far end has everything, and the end.
    is_written: bool,
    /// The application's connection is being ended here.
    is_ending: bool,
    /// The application's connection has ended.
    is_ended: bool,
    /// Why, where nobody has ended it.
    failure: Option<Failure>,
    _memory: MemoryGuard,
}

impl Bridge {
    /// Of an application that wants to connect here; `wanted` goes when it is given up.
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

    /// Of a connection of a session that wants to reach an application, at the first of these
    /// addresses that can be connected to.
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

    /// Whether the session has not connected yet.
    pub(crate) const fn is_calling(&self) -> bool {
        matches!(self.phase, Phase::Calling { .. })
    }

    /// Completions are announced again.
    pub(crate) fn arm(&self) -> Result<(), String> {
        self.link
            .as_ref()
            .map_or(Ok(()), Link::arm)
            .map_err(|error| error.to_string())
    }

    /// The session has connected.
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

    /// What has become of the device's connection. Returns why it could not be made.
    pub(crate) fn on_event(&mut self, event: CmEvent) -> Option<Failure> {
        match (&self.phase, event) {
            (Phase::Answering | Phase::Trying { .. }, CmEvent::Established { established, .. }) => {
                if matches!(self.phase, Phase::Trying { .. }) {
                    self.queue_frame(Kind::Accept, &established.private_data);
                }
                (self.phase, self.until) = (Phase::Open, None);
            }
            (Phase::Answering, event) => {
                // The application has not waited. The far end's may be there already.
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

    /// Near end: the session does not connect.
    pub(crate) fn refused(&mut self) {
        self.phase = Phase::Leaving;
    }

    /// When it, or an attempt, has had its time.
    pub(crate) fn deadline(&self) -> Option<u64> {
        match self.phase {
            Phase::Trying {
                attempt_until: Some(attempt),
                ..
            } => Some(self.until.map_or(attempt, |until| until.min(attempt))),
            _ => self.until,
        }
    }

    /// Far end: whether the address that does not answer is given up for the next.
    pub(crate) fn pass_over(&mut self, now: u64) -> bool {
        let has_time = self.until.is_some_and(|until| until > now);
        let is_trying = matches!(self.phase, Phase::Trying { .. });
        if has_time && is_trying {
            self.link = None;
            self.passed_over = Some("an address does not answer; the next is tried".into());
        }
        has_time && is_trying
    }

    /// What it waits for in vain once its time has passed.
    pub(crate) const fn lateness(&self) -> &'static str {
        match self.phase {
            Phase::Open | Phase::Leaving => {
                "one side has ended, and the other one neither takes what is left nor ends"
            }
            _ => "no answer came in time",
        }
    }

    /// Tells the near end that nothing comes of it.
    fn leave(&mut self, private_data: &[u8]) {
        self.queue_frame(Kind::Reject, private_data);
        self.phase = Phase::Leaving;
    }

    /// Everything that can be done at this moment.
    ///
    /// # Errors
    /// Why it cannot go on.
    pub(crate) fn turn(&mut self, tools: &Tools<'_>) -> Result<Turn, String> {
        self.try_next(tools);
        if let Some(link) = &mut self.link {
            link.poll()?;
        }
        let is_cut = self.write().map_err(text)?;
        // What had come before is handed on first.
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

    /// It ends. Where it did not in order, the far end sees a reset, and an application that waits
    /// a rejection.
    pub(crate) fn close(self, poller: &Poller) {
        if let Some(stream) = self.stream {
            if self.interest.is_some() {
                // It fails for one that is not watched.
                let _ = poller.remove(&stream);
            }
            if self.is_written && self.is_read {
                stream.finish_on_drop();
            }
        }
    }

    /// Whether messages have come that the stream does not have yet.
    fn has_rest(&self) -> bool {
        let link = self.link.as_ref();
        matches!(self.phase, Phase::Open) && link.is_some_and(|link| !link.arrived.is_empty())
    }

    /// Once one side has ended, the other one has only so long without taking anything.
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

    /// Hands on that one side has ended.
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
            // It fails where the application was faster.
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

    /// From the device to the stream. Whether there is more than the stream has room for.
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

    /// Whether what comes from the stream can be taken now.
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

    /// From the stream to the device. Whether others are to have their turn before it goes on.
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
                    // And the head of the next one, where it is there.
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

    /// The far end sends no more.
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

    /// What a head says is to follow it. Does nothing while there is no place for a message.
    fn begin(&mut self) -> Result<(), String> {
        let head = Head::decode(self.input.head);
        let head = head.ok_or("the other end does not bridge RDMA connections")?;
        let len = head.len as usize;
        match (head.kind, &mut self.link) {
            (Kind::Message(immediate), Some(link)) => {
                if len > link.message_max() {
                    let most = link.message_max();
                    return Err(format!(
                        "a message of {len} octets is longer than {most} (`message`)"
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
            (kind, _) => return Err(format!("the other end sent {kind:?} out of turn")),
        }
        self.input.have = 0;
        Ok(())
    }

    /// Does what was received, where it is whole.
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
                // Whether the application reads_until why is not for this end to say.
                let _ = request.reject(fitting(octets, tools)?);
            }
            (_, kind) => return Err(format!("the other end sent {kind:?} out of turn")),
        }
        Ok(())
    }

    /// Far end: connects to the next address, or tells the near end that none is left.
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
            // A poller tells of a connection that is gone again and again, and nobody reads or
            // writes who would learn it.
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
    /// So many octets have come.
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
    ConnParam {
        private_data,
        ..ConnParam::default()
    }
}

/// Where a transport always carries a fixed number of octets, those behind what the application
/// said are zeros; another one may have room for fewer.
fn fitting<'a>(octets: &'a [u8], tools: &Tools<'_>) -> Result<&'a [u8], String> {
    let most = tools.context.attributes().map_err(text)?.max_private_data as usize;
    match octets.split_at_checked(most) {
        None => Ok(octets),
        Some((kept, rest)) if rest.iter().all(|octet| *octet == 0) => Ok(kept),
        Some(_) => Err(format!(
            "{} octets of private data do not fit into {most}",
            octets.len()
        )),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
