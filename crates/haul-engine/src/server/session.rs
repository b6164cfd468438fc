//! One client of the engine: what it has made, and the thread that moves its work.
//!
//! The thread takes requests out of the client's rings and posts them, polls completion queues into
//! their rings, forwards events, and answers the control socket. It sleeps when there is nothing to
//! do; the client rings the doorbell. Whatever the client writes is checked; what cannot be ends
//! this session and no other.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use haul_control::protect::Protection;
use haul_io::notify::Doorbell;
use haul_io::wake::SleepWord;
use haul_slab::SharedMemory;
use haul_soft::rnic;
use haul_soft::udt::stream;
use haul_verbs::cm::CmEvent;
use haul_verbs::{CompletionChannel, Context, Error, Notify};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};

use super::end::{ADOPTING, End, INVALID};
use super::limits::{Counters, Limits};
use super::objects::{BATCH, Object, Outbox, take_sends};
use crate::message::{ABI, Async, Attributes, Event, Failed, Reply, Request, TRANSPORTS, Why, at};
use crate::socket::{Packet, Packets};

/// Entries that a batch takes at least, if there are as many.
const BATCH_ENTRIES: u32 = 64;
const _: () = assert!(BATCH_ENTRIES as usize == BATCH);
/// Turns with work after which the thread looks for control messages and events.
const LOOK_EVERY: u32 = 16;
/// The time that a client has for its first message.
const FIRST: Duration = Duration::from_secs(10);

/// An opened device of a client.
pub(super) struct Session {
    pub(super) objects: BTreeMap<u32, Object>,
    pub(super) next: u32,
    /// Bytes of memory that are mapped, and those of each object.
    pub(super) mapped: u64,
    pub(super) charges: BTreeMap<u32, u64>,
    /// Completion queues, in the order of their numbers.
    pub(super) queues: Vec<u32>,
    /// Queue pairs and shared receive queues.
    pub(super) posters: Vec<u32>,
    pub(super) asynchronous: Outbox,
    pub(super) sleeping: SharedMemory,
    pub(super) doorbell: Doorbell,
    /// Where the completion queues of this session report while the thread sleeps.
    pub(super) bell: CompletionChannel,
    pub(super) context: Context,
    /// What byte streams have of the device.
    pub(super) streams: stream::Options,
    pub(super) control: Packets,
    pub(super) limits: Limits,
    pub(super) counters: Arc<Counters>,
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
        let mut device = options.clone();
        let opened = protection(protect, limits).and_then(|protect| {
            device.protect = protect;
            open(abi, transport, &device, first)
        });
        let (context, bell, sleeping) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                reply(&control, &Reply::Failed(Failed::of(&error)), &[])?;
                return Err(End::Gone);
            }
        };
        let mut streams = stream::Options::default();
        (streams.engine_cpus, streams.protect) = (device.engine_cpus, device.protect);
        let (asynchronous, far) = Outbox::new()?;
        let (doorbell, far_doorbell) = Doorbell::pair()?;
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
            streams,
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
            self.take_streams(*number)?;
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
            let fd = match object {
                Object::EventChannel { channel, .. } => channel.fd(),
                Object::StreamListener(from) if from.has_room() => from.listener.as_fd(),
                _ => continue,
            };
            channels.push(*number);
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        let first_of_room = fds.len();
        for object in self.objects.values() {
            if let Some(to) = object.outbox()
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
            if let Some(to) = object.outbox_mut() {
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

    /// Takes streams that have come to a listener.
    fn take_streams(&mut self, number: u32) -> Result<(), End> {
        loop {
            let Some(Object::StreamListener(from)) = self.objects.get_mut(&number) else {
                return Ok(());
            };
            if !from.has_room() {
                return Ok(());
            }
            // What fails is one connection; the next one may not.
            let Ok(Some(stream)) = from.listener.accept() else {
                return Ok(());
            };
            let bytes = from.bytes;
            // A client without room for it has no room for connections.
            if self.check_memory(bytes).is_err() {
                continue;
            }
            let Ok(stream) = self.add_charged(Object::Stream(Box::new(stream)), bytes) else {
                continue;
            };
            if let Some(Object::StreamListener(from)) = self.objects.get_mut(&number) {
                from.waiting.push_back(stream);
                from.to.push(vec![1])?;
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

/// Tells a client why it is none.
pub(super) fn refuse(control: &Packets, why: &Error) -> End {
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
) -> Result<Option<Arc<dyn rnic::Protect>>, Error> {
    let Some(text) = text else { return Ok(None) };
    if !limits.has_rights {
        return Err(Error::Unsupported(
            "protection for other users by an engine that is not root's",
        ));
    }
    let parsed = Protection::parse(&text).map_err(|fault| Error::Os {
        what: "protect",
        source: io::Error::other(fault.text),
    })?;
    Ok(Some(Arc::new(parsed)))
}

fn open(
    abi: u32,
    transport: u8,
    options: &rnic::Options,
    packet: Packet,
) -> Result<(Context, CompletionChannel, SharedMemory), Error> {
    if abi != ABI {
        return Err(Error::Limit {
            field: "the version of the engine's interface",
            value: abi.into(),
            limit: ABI.into(),
        });
    }
    let transport = at(&TRANSPORTS, transport.into()).ok_or(INVALID)?;
    let memory = packet.descriptors.into_iter().next().ok_or(INVALID)?;
    let memory = SharedMemory::adopt(&memory, rustix::param::page_size()).map_err(ADOPTING)?;
    let devices = rnic::provider(options.clone()).devices()?;
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

fn other(error: Error) -> End {
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
            let error = Error::Exhausted("bytes of a reply");
            let failed = Reply::Failed(Failed::of(&error));
            Ok(control.put(&failed, &[], SendFlags::DONTWAIT)?)
        }
        Err(_) => Err(End::Gone),
    }
}
