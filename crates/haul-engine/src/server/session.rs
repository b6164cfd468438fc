//! One client of the engine: what it has made, and the thread that moves its work.
//!
//! The thread takes requests out of the client's rings and posts them, polls completion queues into
//! their rings, forwards events, and answers the control socket. It sleeps when there is nothing to
//! do; the client rings the doorbell. Whatever the client writes is checked; what cannot be ends
//! this session and no other.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use haul_control::protect::Protection;
use haul_io::wake::SleepWord;
use haul_slab::SharedMemory;
use haul_soft::rnic::{self, ReceiveSource};
use haul_verbs::cm::{CmEvent, ConnectRequest, EventChannel, Listener};
use haul_verbs::{
    CompletionChannel, Context, Cq, Data, Mr, MrAddressing, MrInit, Notify, Pd, PostError, Qp,
    QpInit, RecvWr, SendWr, Srq, SrqInit, WcStatus, WorkCompletion,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};

use super::{Counters, Limits};
use crate::entry;
use crate::message::{
    self, ABI, Async, Attributes, CreateQp, Event, Failed, QP_TYPES, Record, Reply, Request,
    STATES, TRANSPORTS, Why, at, position,
};
use crate::ring::{Broken, Consumer, Place, Producer};
use crate::shared::{
    ANY, ARMED, OVERFLOWED, QpRings, SLEEPERS, SOLICITED, WANTS_ROOM, queue_bytes,
};
use crate::socket::{Packet, Packets, Waker};

/// Requests that are posted together, and completions that are polled together.
const BATCH: usize = 64;
/// Entries that a batch takes at least, if there are as many.
const BATCH_ENTRIES: u32 = 64;
/// Turns with work after which the thread looks for control messages and events.
const LOOK_EVERY: u32 = 16;
/// Events that wait for a client that does not read them.
const EVENTS_MAX: usize = 1_024;
/// Objects of all clients: each takes a mapping, of which a process has 65,530.
const OBJECTS_MAX: u64 = 32_768;
/// The time that a client has for its first message.
const FIRST: Duration = Duration::from_secs(10);

/// Why a session ends.
#[derive(Debug)]
pub(super) enum End {
    /// The client is gone.
    Gone,
    /// It did what no client does.
    Refused(&'static str),
    /// The system did not do what it was asked for.
    System(io::Error),
}

impl From<Broken> for End {
    fn from(_: Broken) -> Self {
        Self::Refused("it wrote an index that cannot be")
    }
}

impl From<entry::Wrong> for End {
    fn from(_: entry::Wrong) -> Self {
        Self::Refused("it wrote a request that means nothing")
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// What an answer to a request can be.
type Answer = Result<(Reply, Vec<OwnedFd>), haul_verbs::Error>;

/// An opened device of a client.
pub(super) struct Session {
    objects: BTreeMap<u32, Object>,
    next: u32,
    /// Bytes of memory that are mapped, and those of each object.
    mapped: u64,
    charges: BTreeMap<u32, u64>,
    /// Completion queues, in the order of their numbers.
    queues: Vec<u32>,
    /// Queue pairs and shared receive queues.
    posters: Vec<u32>,
    asynchronous: Outbox,
    sleeping: SharedMemory,
    doorbell: Waker,
    /// Where the completion queues of this session report while the thread sleeps.
    bell: CompletionChannel,
    context: Context,
    control: Packets,
    limits: Limits,
    counters: Arc<Counters>,
}

enum Object {
    Pd(Pd),
    CompletionChannel(Outbox),
    EventChannel { channel: EventChannel, to: Outbox },
    Cq(Box<SharedCq>),
    Qp(Box<SharedQp>),
    Srq(Box<SharedSrq>),
    Mr(#[expect(dead_code, reason = "held for its drop")] Mr),
    Listener { _listener: Listener },
    Request(Box<ConnectRequest>),
}

struct SharedCq {
    cq: Cq,
    ring: Producer,
    wake: Waker,
    channel: Option<u32>,
    token: u64,
    /// Of requests that could not be posted.
    refused: VecDeque<WorkCompletion>,
    has_overflowed: bool,
}

struct SharedQp {
    qp: Qp,
    sends: Consumer,
    receives: Option<Receives>,
    send_cq: u32,
}

struct SharedSrq {
    srq: Srq,
    receives: Receives,
}

/// A ring of receives, which the device takes from when something arrives: a peer may know of them
/// before this thread would have posted them.
#[derive(Debug)]
struct Receives {
    source: Arc<Source>,
    /// The end of the ring when this thread looked last.
    seen: u32,
}

#[derive(Debug)]
struct Source {
    ring: Mutex<Consumer>,
    /// The client has written what cannot be.
    is_broken: AtomicBool,
}

impl ReceiveSource for Source {
    fn take(&self) -> Option<RecvWr> {
        let mut ring = lock(&self.ring);
        let wr = match ring.available() {
            Ok(0) => return None,
            Ok(_) => entry::recv(&ring.take()),
            Err(Broken) => Err(entry::Wrong),
        };
        ring.release();
        if wr.is_err() {
            self.is_broken.store(true, Ordering::Relaxed);
        }
        wr.ok()
    }

    fn len(&self) -> usize {
        lock(&self.ring).available().unwrap_or(0) as usize
    }
}

impl Receives {
    fn new(place: Place) -> Self {
        let ring = Mutex::new(Consumer::new(place));
        let is_broken = AtomicBool::new(false);
        Self {
            source: Arc::new(Source { ring, is_broken }),
            seen: 0,
        }
    }

    fn source(&self) -> Arc<dyn ReceiveSource> {
        Arc::clone(&self.source) as _
    }

    /// How many there are that this thread has not seen.
    fn look(&mut self) -> Result<u32, End> {
        if self.source.is_broken.load(Ordering::Relaxed) {
            return Err(entry::Wrong.into());
        }
        let end = lock(&self.source.ring).end()?;
        let new = end.wrapping_sub(self.seen);
        self.seen = end;
        Ok(new)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A socket that events go to, and those that wait.
struct Outbox {
    socket: Packets,
    waiting: VecDeque<Vec<u8>>,
}

impl Outbox {
    fn new() -> io::Result<(Self, OwnedFd)> {
        let (socket, far) = Packets::pair()?;
        let waiting = VecDeque::new();
        Ok((Self { socket, waiting }, far))
    }

    /// Whether there is room for what others can cause.
    fn has_room(&self) -> bool {
        self.waiting.len() < EVENTS_MAX
    }

    fn push(&mut self, bytes: Vec<u8>) -> Result<(), End> {
        // What the client's own objects can cause is less.
        if self.waiting.len() >= 2 * EVENTS_MAX + OBJECTS_MAX as usize {
            return Err(End::Refused("it does not read its events"));
        }
        self.waiting.push_back(bytes);
        self.flush();
        Ok(())
    }

    /// Sends what there is room for. A client that has closed its end does not want the rest.
    fn flush(&mut self) {
        while let Some(bytes) = self.waiting.front() {
            match self.socket.send(bytes, &[], SendFlags::DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                _ => drop(self.waiting.pop_front()),
            }
        }
    }
}

impl Session {
    /// Opens the device that the first message of a client asks for.
    pub(super) fn open(
        control: Packets,
        options: &rnic::Options,
        limits: Limits,
        counters: &Arc<Counters>,
    ) -> Result<Self, End> {
        set_socket_timeout(&control, Timeout::Recv, Some(FIRST)).map_err(io::Error::from)?;
        let first = match control.receive(RecvFlags::empty()) {
            Ok(Some(first)) => first,
            Ok(None) => return Err(End::Gone),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(End::Refused("its first message does not come"));
            }
            Err(error) => return Err(error.into()),
        };
        set_socket_timeout(&control, Timeout::Recv, None).map_err(io::Error::from)?;
        let Ok(Request::Open {
            abi,
            transport,
            protect,
        }) = first.message()
        else {
            return Err(End::Refused("its first message does not open a device"));
        };
        let opened = protection(protect, limits)
            .and_then(|protect| open(abi, transport, protect, options, first));
        let (context, bell, sleeping) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                reply(&control, &Reply::Failed(Failed::of(&error)), &[])?;
                return Err(End::Gone);
            }
        };
        let (asynchronous, far) = Outbox::new()?;
        let (doorbell, far_doorbell) = Waker::pair()?;
        let attributes = context.attributes().map_err(other)?;
        let opened = Reply::Opened(Box::new(Attributes::of(&attributes)));
        reply(&control, &opened, &[far.as_fd(), far_doorbell.as_fd()])?;
        Ok(Self {
            objects: BTreeMap::new(),
            next: 1,
            mapped: 0,
            charges: BTreeMap::new(),
            queues: Vec::new(),
            posters: Vec::new(),
            asynchronous,
            sleeping,
            doorbell,
            bell,
            context,
            control,
            limits,
            counters: Arc::clone(counters),
        })
    }

    /// Works until the client is gone.
    pub(super) fn run(mut self) -> End {
        let mut turns = 0_u32;
        loop {
            turns = turns.wrapping_add(1);
            if let Err(end) = self.turn(turns.is_multiple_of(LOOK_EVERY)) {
                return end;
            }
        }
    }

    fn turn(&mut self, looks: bool) -> Result<(), End> {
        let mut moved = self.take_posts()?;
        moved |= self.give_completions()?;
        if !moved {
            return self.sleep();
        }
        if looks {
            let ready = self.wait(Some(Timespec::default()))?;
            self.handle(&ready)?;
        }
        Ok(())
    }

    fn sleep(&mut self) -> Result<(), End> {
        for number in &self.queues {
            if let Some(Object::Cq(queue)) = self.objects.get(number)
                && !queue.has_overflowed
            {
                queue.cq.arm(Notify::Any).map_err(other)?;
            }
        }
        SleepWord(&self.sleeping.words()[0]).set();
        // What was published before is found here, what is published later rings.
        let found = self.give_completions()? | self.take_posts()?;
        let ready = if found {
            Ok(Ready::default())
        } else {
            self.wait(None)
        };
        SleepWord(&self.sleeping.words()[0]).clear();
        self.doorbell.clear();
        while self.bell.poll_event().map_err(other)?.is_some() {}
        self.handle(&ready?)
    }

    fn handle(&mut self, ready: &Ready) -> Result<(), End> {
        if ready.asynchronous {
            while let Some(event) = self.context.poll_async_event().map_err(other)? {
                // Others can cause them, so those that nobody reads are dropped.
                if let Some(event) = Async::of(event)
                    && self.asynchronous.has_room()
                {
                    self.asynchronous.push(encoded(&event)?)?;
                }
            }
        }
        for number in &ready.channels {
            self.forward_events(*number)?;
        }
        if ready.control {
            self.answer()?;
        }
        if ready.room {
            self.flush();
        }
        Ok(())
    }

    /// Waits for the client or the device.
    fn wait(&self, timeout: Option<Timespec>) -> Result<Ready, End> {
        let mut fds = vec![
            PollFd::new(&self.control, PollFlags::IN),
            PollFd::new(&self.doorbell, PollFlags::IN),
            PollFd::from_borrowed_fd(self.bell.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.context.async_fd().map_err(other)?, PollFlags::IN),
        ];
        let mut channels = Vec::new();
        for (number, object) in &self.objects {
            if let Object::EventChannel { channel, .. } = object {
                channels.push(*number);
                fds.push(PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN));
            }
        }
        let first_of_room = fds.len();
        for object in self.objects.values() {
            if let Object::EventChannel { to, .. } | Object::CompletionChannel(to) = object
                && !to.waiting.is_empty()
            {
                fds.push(PollFd::new(&to.socket, PollFlags::OUT));
            }
        }
        if !self.asynchronous.waiting.is_empty() {
            fds.push(PollFd::new(&self.asynchronous.socket, PollFlags::OUT));
        }
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let events = fds[4..].iter().zip(channels);
        Ok(Ready {
            control: is_ready(&fds[0]),
            asynchronous: is_ready(&fds[3]),
            channels: events
                .filter_map(|(fd, number)| is_ready(fd).then_some(number))
                .collect(),
            room: fds[first_of_room..].iter().any(is_ready),
        })
    }

    fn flush(&mut self) {
        self.asynchronous.flush();
        for object in self.objects.values_mut() {
            if let Object::EventChannel { to, .. } | Object::CompletionChannel(to) = object {
                to.flush();
            }
        }
    }

    /// Posts what the client has written into its rings; whether there was anything.
    fn take_posts(&mut self) -> Result<bool, End> {
        let mut refused = Vec::new();
        let mut count = 0;
        let blocked = self.blocked();
        for number in &self.posters {
            match self.objects.get_mut(number) {
                Some(Object::Qp(qp)) => {
                    if !blocked.contains(&qp.send_cq) {
                        count += take_sends(qp, &mut refused)?;
                    }
                    if let Some(receives) = &mut qp.receives {
                        let new = receives.look()?;
                        if new > 0 {
                            rnic::note_receives(&qp.qp).map_err(other)?;
                        }
                        count += new;
                    }
                }
                Some(Object::Srq(srq)) => count += srq.receives.look()?,
                _ => {}
            }
        }
        self.counters
            .requests
            .fetch_add(count.into(), Ordering::Relaxed);
        for (queue, completion) in refused {
            if let Some(Object::Cq(queue)) = self.objects.get_mut(&queue) {
                queue.refused.push_back(completion);
            }
        }
        Ok(count > 0)
    }

    /// Completion queues whose client has to take completions before its requests are looked at.
    fn blocked(&self) -> Vec<u32> {
        let is_blocked = |number: &u32| {
            let object = self.objects.get(number);
            matches!(object, Some(Object::Cq(queue)) if queue.refused.len() >= BATCH)
        };
        let queues = self.queues.iter().copied();
        queues.filter(is_blocked).collect()
    }

    /// Posts what is in the rings now, and little that comes meanwhile.
    fn take_what_is_there(&mut self) -> Result<(), End> {
        let mut most = 0;
        for number in &self.posters {
            if let Some(Object::Qp(qp)) = self.objects.get(number) {
                most = most.max(qp.sends.available()?);
            }
        }
        for _ in 0..=most / BATCH_ENTRIES {
            self.take_posts()?;
        }
        Ok(())
    }

    /// Moves completions into the client's rings; whether there were any.
    fn give_completions(&mut self) -> Result<bool, End> {
        let mut moved = false;
        let mut tokens = Vec::new();
        for number in &self.queues {
            let Some(Object::Cq(queue)) = self.objects.get_mut(number) else {
                continue;
            };
            let given = queue.give()?;
            self.counters
                .completions
                .fetch_add(given.count as u64, Ordering::Relaxed);
            moved |= given.count > 0;
            if let Some(channel) = queue.rouse(given) {
                tokens.push((channel, queue.token));
            }
        }
        for (channel, token) in tokens {
            if let Some(Object::CompletionChannel(to)) = self.objects.get_mut(&channel) {
                to.push(token.to_ne_bytes().to_vec())?;
            }
        }
        Ok(moved)
    }

    /// Whether an event channel has room for what others can cause.
    fn has_room(&self, channel: u32) -> bool {
        let channel = self.objects.get(&channel);
        matches!(channel, Some(Object::EventChannel { to, .. }) if to.has_room())
    }

    fn forward_events(&mut self, number: u32) -> Result<(), End> {
        loop {
            let Some(Object::EventChannel { channel, .. }) = self.objects.get(&number) else {
                return Ok(());
            };
            let Some(event) = channel.poll().map_err(other)? else {
                return Ok(());
            };
            let event = match event {
                // A client that does not read its events, or has too many objects, has no room for
                // connections.
                CmEvent::ConnectRequest(_) if !self.has_room(number) => continue,
                CmEvent::ConnectRequest(request) => {
                    let event = Event::Request {
                        request: self.next,
                        peer: request.peer,
                        private_data: request.private_data.clone(),
                        resources: (request.responder_resources, request.initiator_depth),
                    };
                    let Ok(_) = self.add(Object::Request(Box::new(request))) else {
                        continue;
                    };
                    event
                }
                CmEvent::Established {
                    qp_num,
                    established,
                } => Event::Established {
                    qp_num,
                    resources: (established.responder_resources, established.initiator_depth),
                    private_data: established.private_data,
                },
                CmEvent::Rejected {
                    qp_num,
                    private_data,
                } => Event::Rejected {
                    qp_num,
                    private_data,
                },
                CmEvent::Unreachable { qp_num, failure } => Event::Unreachable {
                    qp_num,
                    failure: Why::of(&failure),
                },
                CmEvent::Disconnected { qp_num, failure } => Event::Disconnected {
                    qp_num,
                    failure: failure.as_ref().map(Why::of),
                },
                _ => continue,
            };
            let bytes = encoded(&event)?;
            if let Some(Object::EventChannel { to, .. }) = self.objects.get_mut(&number) {
                to.push(bytes)?;
            }
        }
    }

    /// Answers what has come over the control socket.
    fn answer(&mut self) -> Result<(), End> {
        let packet = match self.control.receive(RecvFlags::DONTWAIT) {
            Ok(Some(packet)) => packet,
            Ok(None) => return Err(End::Gone),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(End::Refused("it sent a packet that is too long"));
            }
            Err(error) => return Err(error.into()),
        };
        let Ok(request) = packet.message() else {
            return Err(End::Refused("it sent a message that means nothing"));
        };
        // What was posted before comes first.
        self.take_what_is_there()?;
        let (answer, descriptors) = self
            .execute(request, packet.descriptors)
            .unwrap_or_else(|error| (Reply::Failed(Failed::of(&error)), Vec::new()));
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        reply(&self.control, &answer, &descriptors)
    }

    fn execute(&mut self, request: Request, descriptors: Vec<OwnedFd>) -> Answer {
        let mut descriptors = descriptors.into_iter();
        let reply = match request {
            Request::Open { .. } => return Err(INVALID),
            Request::AllocPd => {
                let pd = self.context.alloc_pd()?;
                Reply::Object(self.add(Object::Pd(pd))?)
            }
            Request::CreateCompletionChannel => {
                let (to, far) = Outbox::new().map_err(SYSTEM)?;
                let number = self.add(Object::CompletionChannel(to))?;
                return Ok((Reply::Object(number), vec![far]));
            }
            Request::CreateEventChannel => {
                let (to, far) = Outbox::new().map_err(SYSTEM)?;
                let channel = self.context.create_event_channel()?;
                let number = self.add(Object::EventChannel { channel, to })?;
                return Ok((Reply::Object(number), vec![far]));
            }
            Request::CreateCq {
                entries,
                channel,
                token,
            } => {
                let memory = self.map(descriptors.next(), queue_bytes(entries))?;
                return self.create_cq(entries, channel, token, &memory);
            }
            Request::CreateQp(about) => self.create_qp(&about, descriptors.next())?,
            Request::Register {
                pd,
                offset,
                len,
                access,
                addr,
                sources,
            } => {
                let fd = descriptors.next().ok_or(INVALID)?;
                let len = usize::try_from(len).map_err(|_| INVALID)?;
                self.check_memory(len)?;
                let part = SharedMemory::adopt_part(&fd, offset, len).map_err(ADOPTING)?;
                let access = message::access(access).ok_or(INVALID)?;
                let mut init = MrInit::new(part, access).with_sources(sources.get());
                init.addressing = addr.map_or(MrAddressing::ZeroBased, MrAddressing::At);
                let mr = self.pd(pd)?.register(init)?;
                let (lkey, rkey, addr) = (mr.lkey(), mr.rkey(), mr.addr());
                let mr = self.add_charged(Object::Mr(mr), len)?;
                Reply::Mr {
                    mr,
                    lkey,
                    rkey,
                    addr,
                }
            }
            Request::CreateSrq {
                pd,
                max_wr,
                max_sge,
                token,
            } => {
                let memory = self.map(descriptors.next(), Place::bytes(max_wr, entry::REQUEST))?;
                let place = Place::new(&memory, 0, max_wr, entry::REQUEST).ok_or(INVALID)?;
                let mut init = SrqInit::default();
                (init.max_wr, init.max_sge, init.token) = (max_wr, max_sge, token);
                let srq = self.pd(pd)?.create_srq(&init)?;
                let receives = Receives::new(place);
                rnic::share_receives_from(&srq, receives.source())?;
                let srq = Object::Srq(Box::new(SharedSrq { srq, receives }));
                let number = self.add_charged(srq, memory.len())?;
                self.posters.push(number);
                Reply::Object(number)
            }
            Request::ArmSrq { srq, limit } => match self.objects.get(&srq) {
                Some(Object::Srq(srq)) => {
                    srq.srq.arm_limit(limit)?;
                    Reply::Done
                }
                _ => return Err(INVALID),
            },
            Request::Listen {
                address,
                channel,
                backlog,
            } => {
                let listener = self
                    .context
                    .listen(address, self.events(channel)?, backlog)?;
                let address = listener.local_addr();
                let listener = self.add(Object::Listener {
                    _listener: listener,
                })?;
                Reply::Listener { listener, address }
            }
            Request::Connect {
                qp,
                peer,
                param,
                channel,
            } => {
                let events = self.events(channel)?;
                self.qp(qp)?.connect(peer, &param.get(), events)?;
                Reply::Done
            }
            Request::Accept { request, qp, param } => {
                self.qp(qp)?;
                let request = self.take_request(request)?;
                request.accept(self.qp(qp)?, &param.get())?;
                Reply::Done
            }
            Request::Reject {
                request,
                private_data,
            } => {
                self.take_request(request)?.reject(&private_data)?;
                Reply::Done
            }
            Request::Disconnect(qp) => {
                self.qp(qp)?.disconnect()?;
                Reply::Done
            }
            Request::State(qp) => {
                let qp = self.qp(qp)?;
                Reply::State {
                    state: position(&STATES, &qp.state()),
                    failure: qp.failure().as_ref().map(Why::of),
                }
            }
            Request::Statistics(qp) => {
                Reply::Numbers(message::of_statistics(&self.qp(qp)?.statistics()?))
            }
            Request::Bind { qp, address } => Reply::Address(self.qp(qp)?.bind(address)?),
            Request::Adopt(qp) => {
                let socket = descriptors.next().ok_or(INVALID)?;
                Reply::Address(self.qp(qp)?.adopt(socket)?)
            }
            Request::Multicast {
                qp,
                attach,
                group,
                interface,
            } => {
                let qp = self.qp(qp)?;
                if attach {
                    qp.attach_multicast(group, interface)?;
                } else {
                    qp.detach_multicast(group, interface)?;
                }
                Reply::Done
            }
            Request::TakeRecord { qp, wr_id } => {
                let record = self.qp(qp)?.take_record(wr_id);
                Reply::Records(record.iter().map(Record::of).collect())
            }
            Request::Records { qp, rkey } => {
                let records = self.qp(qp)?.records(rkey);
                Reply::Records(records.iter().map(Record::of).collect())
            }
            Request::DatagramStatistics(qp) => {
                let statistics = self.qp(qp)?.datagram_statistics()?;
                Reply::Numbers(message::of_datagram_statistics(&statistics))
            }
            Request::Close(number) => {
                drop(self.remove(number).ok_or(INVALID)?);
                self.queues.retain(|queue| *queue != number);
                self.posters.retain(|poster| *poster != number);
                Reply::Done
            }
        };
        Ok((reply, Vec::new()))
    }

    fn create_cq(
        &mut self,
        entries: u32,
        channel: Option<u32>,
        token: u64,
        memory: &SharedMemory,
    ) -> Answer {
        if let Some(channel) = channel
            && !matches!(
                self.objects.get(&channel),
                Some(Object::CompletionChannel(_))
            )
        {
            return Err(INVALID);
        }
        let place = Place::new(memory, 0, entries, entry::COMPLETION).ok_or(INVALID)?;
        let (wake, far) = Waker::pair().map_err(SYSTEM)?;
        let cq = self.context.create_cq(entries, Some(&self.bell), token)?;
        let cq = Object::Cq(Box::new(SharedCq {
            cq,
            ring: Producer::new(place),
            wake,
            channel,
            token,
            refused: VecDeque::new(),
            has_overflowed: false,
        }));
        let number = self.add_charged(cq, memory.len())?;
        self.queues.push(number);
        Ok((Reply::Object(number), vec![far]))
    }

    fn create_qp(
        &mut self,
        about: &CreateQp,
        memory: Option<OwnedFd>,
    ) -> Result<Reply, haul_verbs::Error> {
        let capacity = about.capacity.get();
        let rings = QpRings::of(capacity, about.srq.is_some());
        let memory = self.map(memory, rings.bytes)?;
        let (sends, receives) = rings.places(&memory).ok_or(INVALID)?;
        let (Some(Object::Cq(send)), Some(Object::Cq(recv))) = (
            self.objects.get(&about.send_cq),
            self.objects.get(&about.recv_cq),
        ) else {
            return Err(INVALID);
        };
        let mut init = QpInit::new(&send.cq);
        init.recv_cq = &recv.cq;
        init.qp_type = at(&QP_TYPES, about.qp_type.into()).ok_or(INVALID)?;
        init.srq = match about.srq {
            None => None,
            Some(number) => match self.objects.get(&number) {
                Some(Object::Srq(srq)) => Some(&srq.srq),
                _ => return Err(INVALID),
            },
        };
        init.capacity = capacity;
        init.signal_all = about.signal_all;
        init.remote_placement = about.remote_placement;
        init.rate_limit = about.rate_limit.map(message::rate_limit);
        init.datagram = about.datagram.get().ok_or(INVALID)?;
        let qp = self.pd(about.pd)?.create_qp(&init)?;
        let qp_num = qp.qp_num();
        let receives = receives.map(Receives::new);
        if let Some(receives) = &receives {
            rnic::receive_from(&qp, receives.source())?;
        }
        let qp = Object::Qp(Box::new(SharedQp {
            qp,
            sends: Consumer::new(sends),
            receives,
            send_cq: about.send_cq,
        }));
        let qp = self.add_charged(qp, memory.len())?;
        self.posters.push(qp);
        Ok(Reply::Qp { qp, qp_num })
    }

    fn add(&mut self, object: Object) -> Result<u32, haul_verbs::Error> {
        if self.objects.len() >= self.limits.objects {
            return Err(haul_verbs::Error::Exhausted("objects of a client"));
        }
        if self.counters.objects.load(Ordering::Relaxed) >= OBJECTS_MAX {
            return Err(haul_verbs::Error::Exhausted("objects of the engine"));
        }
        let number = self.next;
        self.next = self.next.checked_add(1).ok_or(INVALID)?;
        self.objects.insert(number, object);
        self.counters.objects.fetch_add(1, Ordering::Relaxed);
        Ok(number)
    }

    /// Takes an object out, and what it was charged for.
    fn remove(&mut self, number: u32) -> Option<Object> {
        let object = self.objects.remove(&number)?;
        self.counters.objects.fetch_sub(1, Ordering::Relaxed);
        self.mapped -= self.charges.remove(&number).unwrap_or(0);
        Some(object)
    }

    /// Adds an object that keeps memory mapped.
    fn add_charged(&mut self, object: Object, bytes: usize) -> Result<u32, haul_verbs::Error> {
        let number = self.add(object)?;
        self.charges.insert(number, bytes as u64);
        self.mapped += bytes as u64;
        Ok(number)
    }

    /// Maps the memory of rings.
    fn map(&self, fd: Option<OwnedFd>, bytes: usize) -> Result<SharedMemory, haul_verbs::Error> {
        // Whole pages.
        let most = bytes.saturating_add(rustix::param::page_size());
        self.check_memory(bytes)?;
        SharedMemory::adopt(&fd.ok_or(INVALID)?, most).map_err(ADOPTING)
    }

    fn check_memory(&self, bytes: usize) -> Result<(), haul_verbs::Error> {
        let left = self.limits.memory.saturating_sub(self.mapped);
        if bytes as u64 > left {
            return Err(haul_verbs::Error::Exhausted("memory of a client"));
        }
        Ok(())
    }

    fn pd(&self, number: u32) -> Result<&Pd, haul_verbs::Error> {
        match self.objects.get(&number) {
            Some(Object::Pd(pd)) => Ok(pd),
            _ => Err(INVALID),
        }
    }

    fn qp(&self, number: u32) -> Result<&Qp, haul_verbs::Error> {
        match self.objects.get(&number) {
            Some(Object::Qp(qp)) => Ok(&qp.qp),
            _ => Err(INVALID),
        }
    }

    fn events(&self, number: u32) -> Result<&EventChannel, haul_verbs::Error> {
        match self.objects.get(&number) {
            Some(Object::EventChannel { channel, .. }) => Ok(channel),
            _ => Err(INVALID),
        }
    }

    fn take_request(&mut self, number: u32) -> Result<ConnectRequest, haul_verbs::Error> {
        if !matches!(self.objects.get(&number), Some(Object::Request(_))) {
            return Err(INVALID);
        }
        match self.remove(number) {
            Some(Object::Request(request)) => Ok(*request),
            _ => Err(INVALID),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let count = self.objects.len() as u64;
        self.counters.objects.fetch_sub(count, Ordering::Relaxed);
    }
}

/// What woke a session's thread.
#[derive(Debug, Default)]
struct Ready {
    control: bool,
    asynchronous: bool,
    channels: Vec<u32>,
    room: bool,
}

/// Completions that were moved.
#[derive(Debug, Clone, Copy, Default)]
struct Given {
    count: usize,
    /// Whether one counts as solicited.
    is_solicited: bool,
    /// Whether there is anything to look at, if only that completions were lost.
    has_news: bool,
}

impl SharedCq {
    /// Writes completions into the ring.
    fn give(&mut self) -> Result<Given, End> {
        let mut room = self.ring.room()? as usize;
        if room == 0 {
            self.ring
                .place()
                .mark(WANTS_ROOM)
                .store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            room = self.ring.room()? as usize;
            if room == 0 {
                return Ok(Given::default());
            }
        }
        let mut list = [WorkCompletion::default(); BATCH];
        let list = &mut list[..room.min(BATCH)];
        let mut count = 0;
        while let Some(place) = list.get_mut(count)
            && let Some(refused) = self.refused.pop_front()
        {
            *place = refused;
            count += 1;
        }
        let mut has_news = false;
        if !self.has_overflowed {
            match self.cq.poll(&mut list[count..]) {
                Ok(more) => count += more,
                Err(_) => {
                    has_news = true;
                    self.has_overflowed = true;
                    self.ring
                        .place()
                        .mark(OVERFLOWED)
                        .store(1, Ordering::Release);
                    self.wake.wake();
                }
            }
        }
        for completion in &list[..count] {
            self.ring.write(&entry::of_completion(completion));
        }
        if count > 0 {
            self.ring.publish();
        }
        let counts = |wc: &WorkCompletion| wc.solicited || wc.status != WcStatus::Success;
        Ok(Given {
            count,
            is_solicited: has_news || list[..count].iter().any(counts),
            has_news: has_news || count > 0,
        })
    }

    /// Wakes who sleeps until there is something; the channel that a token goes to.
    fn rouse(&self, given: Given) -> Option<u32> {
        if !given.has_news {
            return None;
        }
        let mark = |word| self.ring.place().mark(word);
        if SleepWord(mark(SLEEPERS)).is_set() {
            self.wake.wake();
        }
        let is_wanted = match mark(ARMED).load(Ordering::Relaxed) {
            ANY => true,
            SOLICITED => given.is_solicited,
            _ => false,
        };
        let is_armed = is_wanted && mark(ARMED).swap(0, Ordering::AcqRel) != 0;
        self.channel.filter(|_| is_armed)
    }
}

/// Posts the sends of a queue pair; how many entries there were.
fn take_sends(qp: &mut SharedQp, refused: &mut Vec<(u32, WorkCompletion)>) -> Result<u32, End> {
    let available = qp.sends.available()?;
    if available == 0 {
        return Ok(0);
    }
    let mut taken = 0;
    let mut inline = Vec::new();
    let mut list: Vec<(SendWr<'static>, Option<Range<usize>>)> = Vec::new();
    while taken < available && list.len() < BATCH {
        let (wr, bytes) = entry::send(&qp.sends.take())?;
        taken += 1;
        let range = match bytes {
            None => None,
            Some(bytes) => {
                let more = entry::entries(bytes) - 1;
                if bytes > qp.qp.capacity().max_inline || more > available - taken {
                    return Err(End::Refused("inline data is missing or too long"));
                }
                let start = inline.len();
                for _ in 0..more {
                    entry::put_inline(&qp.sends.take(), &mut inline);
                }
                taken += more;
                Some(start..start + bytes as usize)
            }
        };
        list.push((wr, range));
    }
    qp.sends.release();
    let requests: Vec<_> = list
        .into_iter()
        .map(|(mut wr, range): (SendWr<'_>, _)| {
            if let Some(range) = range {
                wr.data = Data::Inline(&inline[range]);
            }
            wr
        })
        .collect();
    let mut rest = &requests[..];
    while let Err(PostError { posted, error, .. }) = qp.qp.post_send(rest) {
        let Some(wrong) = rest.get(posted) else { break };
        let status = match error {
            haul_verbs::Error::State(_) => WcStatus::WrFlushErr,
            haul_verbs::Error::Limit { .. } => WcStatus::LocLenErr,
            _ => WcStatus::LocQpOpErr,
        };
        let completion =
            WorkCompletion::new(wrong.wr_id, status, wrong.op.completes_as(), qp.qp.qp_num());
        refused.push((qp.send_cq, completion));
        rest = &rest[posted + 1..];
    }
    Ok(taken)
}

/// Tells a client why it is none.
pub(super) fn refuse(control: &Packets, why: &haul_verbs::Error) -> End {
    let patience = Some(Duration::from_secs(1));
    let timed = set_socket_timeout(control, Timeout::Recv, patience);
    // Its question is read first: to close before that would take the answer away.
    if timed.is_ok() && matches!(control.receive(RecvFlags::empty()), Ok(Some(_))) {
        // It may be gone.
        let _ = reply(control, &Reply::Failed(Failed::of(why)), &[]);
    }
    End::Gone
}

/// Reads the keys that a client names, with its rights.
fn protection(
    text: Option<String>,
    limits: Limits,
) -> Result<Option<Protection>, haul_verbs::Error> {
    let Some(text) = text else { return Ok(None) };
    if !limits.has_rights {
        return Err(haul_verbs::Error::Unsupported(
            "protection for other users by an engine that is not root's",
        ));
    }
    let parsed = Protection::parse(&text).map_err(|fault| haul_verbs::Error::Os {
        what: "protect",
        source: io::Error::other(fault.text),
    })?;
    Ok(Some(parsed))
}

fn open(
    abi: u32,
    transport: u8,
    protect: Option<Protection>,
    options: &rnic::Options,
    packet: Packet,
) -> Result<(Context, CompletionChannel, SharedMemory), haul_verbs::Error> {
    if abi != ABI {
        return Err(haul_verbs::Error::Limit {
            field: "the version of the engine's interface",
            value: abi.into(),
            limit: ABI.into(),
        });
    }
    let transport = at(&TRANSPORTS, transport.into()).ok_or(INVALID)?;
    let memory = packet.descriptors.into_iter().next().ok_or(INVALID)?;
    let memory = SharedMemory::adopt(&memory, rustix::param::page_size()).map_err(ADOPTING)?;
    let mut options = options.clone();
    options.protect = protect.map(|protect| Arc::new(protect) as _);
    let devices = rnic::provider(options).devices()?;
    let device = devices
        .iter()
        .find(|device| {
            device
                .attributes()
                .is_ok_and(|attributes| attributes.transport == transport)
        })
        .ok_or(INVALID)?;
    let context = device.open()?;
    let bell = context.create_completion_channel()?;
    Ok((context, bell, memory))
}

/// Why memory of a client is not mapped.
const ADOPTING: fn(io::Error) -> haul_verbs::Error = |error| match error.kind() {
    io::ErrorKind::InvalidData => haul_verbs::Error::Invalid(
        "memory of an engine must be a sealed memfd within the limits of the client",
    ),
    _ => SYSTEM(error),
};

const INVALID: haul_verbs::Error =
    haul_verbs::Error::Invalid("the engine does not know this object or value");

const SYSTEM: fn(io::Error) -> haul_verbs::Error = |source| haul_verbs::Error::Os {
    what: "the engine",
    source,
};

fn other(error: haul_verbs::Error) -> End {
    End::System(io::Error::other(error))
}

fn encoded(message: &impl minicbor::Encode<()>) -> Result<Vec<u8>, End> {
    minicbor::to_vec(message).map_err(|error| End::System(io::Error::other(error)))
}

/// A client waits for its reply, so there is room for it.
fn reply(control: &Packets, message: &Reply, descriptors: &[BorrowedFd<'_>]) -> Result<(), End> {
    match control.put(message, descriptors, SendFlags::DONTWAIT) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(End::Refused("it does not read its replies"))
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            let error = haul_verbs::Error::Exhausted("bytes of a reply");
            let failed = Reply::Failed(Failed::of(&error));
            Ok(control.put(&failed, &[], SendFlags::DONTWAIT)?)
        }
        Err(_) => Err(End::Gone),
    }
}
