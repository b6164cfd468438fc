//! What a client has made, and its rings.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex};

use haul_io::notify::Doorbell;
use haul_io::wake::SleepWord;
use haul_soft::rnic::ReceiveSource;
use haul_soft::udt::stream::{self, Served};
use haul_verbs::cm::{ConnectRequest, EventChannel, Listener};
use haul_verbs::{
    Cq, Data, Error, Mr, Pd, PostError, Qp, RecvWr, SendWr, Srq, WcStatus, WorkCompletion,
};
use rustix::net::SendFlags;

use super::end::End;
use crate::entry;
use crate::lock::lock;
use crate::ring::{Broken, Consumer, Place, Producer};
use crate::shared::{ANY, ARMED, OVERFLOWED, SLEEPERS, SOLICITED, WANTS_ROOM};
use crate::socket::Packets;

/// Requests that are posted together, and completions that are polled together.
pub(super) const BATCH: usize = 64;
/// Events that wait for a client that does not read them.
const EVENTS_MAX: usize = 1_024;
/// Objects of all clients: each takes a mapping, of which a process has 65,530.
pub(super) const OBJECTS_MAX: usize = 32_768;

pub(super) enum Object {
    Pd(Pd),
    CompletionChannel(Outbox),
    EventChannel { channel: EventChannel, to: Outbox },
    Cq(Box<SharedCq>),
    Qp(Box<SharedQp>),
    Srq(Box<SharedSrq>),
    Mr(#[expect(dead_code, reason = "held for its drop")] Mr),
    Listener { _listener: Listener },
    Request(Box<ConnectRequest>),
    Stream(Box<Served>),
    StreamListener(Box<SharedListener>),
}

impl Object {
    /// Where its events go.
    pub(super) fn outbox(&self) -> Option<&Outbox> {
        match self {
            Self::EventChannel { to, .. } | Self::CompletionChannel(to) => Some(to),
            Self::StreamListener(from) => Some(&from.to),
            _ => None,
        }
    }

    pub(super) fn outbox_mut(&mut self) -> Option<&mut Outbox> {
        match self {
            Self::EventChannel { to, .. } | Self::CompletionChannel(to) => Some(to),
            Self::StreamListener(from) => Some(&mut from.to),
            _ => None,
        }
    }
}

/// A listener for byte streams.
pub(super) struct SharedListener {
    pub(super) listener: stream::Listener<Served>,
    /// Bytes that each of its streams takes.
    pub(super) bytes: usize,
    /// Streams that the client has not taken.
    pub(super) waiting: VecDeque<u32>,
    /// Gets a packet for each.
    pub(super) to: Outbox,
}

/// Streams that wait for a client to take them, of each listener.
const STREAMS_WAITING_MAX: usize = 64;

impl SharedListener {
    /// Whether to look for more.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < STREAMS_WAITING_MAX
    }
}

pub(super) struct SharedCq {
    pub(super) cq: Cq,
    pub(super) ring: Producer,
    pub(super) wake: Doorbell,
    pub(super) channel: Option<u32>,
    pub(super) token: u64,
    /// Of requests that could not be posted.
    pub(super) refused: VecDeque<WorkCompletion>,
    pub(super) has_overflowed: bool,
}

pub(super) struct SharedQp {
    pub(super) qp: Qp,
    pub(super) sends: Consumer,
    pub(super) receives: Option<Receives>,
    pub(super) send_cq: u32,
}

pub(super) struct SharedSrq {
    pub(super) srq: Srq,
    pub(super) receives: Receives,
}

/// A ring of receives, which the device takes from when something arrives: a peer may know of them
/// before this thread would have posted them.
#[derive(Debug)]
pub(super) struct Receives {
    pub(super) source: Arc<Source>,
    /// The end of the ring when this thread looked last.
    pub(super) seen: u32,
}

#[derive(Debug)]
pub(super) struct Source {
    pub(super) ring: Mutex<Consumer>,
    /// The client has written what cannot be.
    pub(super) is_broken: AtomicBool,
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
    pub(super) fn new(place: Place) -> Self {
        let ring = Mutex::new(Consumer::new(place));
        let is_broken = AtomicBool::new(false);
        Self {
            source: Arc::new(Source { ring, is_broken }),
            seen: 0,
        }
    }

    pub(super) fn source(&self) -> Arc<dyn ReceiveSource> {
        Arc::clone(&self.source) as _
    }

    /// How many there are that this thread has not seen.
    pub(super) fn look(&mut self) -> Result<u32, End> {
        if self.source.is_broken.load(Ordering::Relaxed) {
            return Err(entry::Wrong.into());
        }
        let end = lock(&self.source.ring).end()?;
        let new = end.wrapping_sub(self.seen);
        self.seen = end;
        Ok(new)
    }
}

/// A socket that events go to, and those that wait.
pub(super) struct Outbox {
    pub(super) socket: Packets,
    pub(super) waiting: VecDeque<Vec<u8>>,
}

impl Outbox {
    pub(super) fn new() -> io::Result<(Self, OwnedFd)> {
        let (socket, far) = Packets::pair()?;
        let waiting = VecDeque::new();
        Ok((Self { socket, waiting }, far))
    }

    /// Whether there is room for what others can cause.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < EVENTS_MAX
    }

    pub(super) fn push(&mut self, bytes: Vec<u8>) -> Result<(), End> {
        // What the client's own objects can cause is less.
        if self.waiting.len() >= 2 * EVENTS_MAX + OBJECTS_MAX {
            return Err(End::Refused("it does not read its events"));
        }
        self.waiting.push_back(bytes);
        self.flush();
        Ok(())
    }

    /// Sends what there is room for. A client that has closed its end does not want the rest.
    pub(super) fn flush(&mut self) {
        while let Some(bytes) = self.waiting.front() {
            match self.socket.send(bytes, &[], SendFlags::DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                _ => drop(self.waiting.pop_front()),
            }
        }
    }
}

/// Completions that were moved.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Given {
    pub(super) count: usize,
    /// Whether one counts as solicited.
    pub(super) is_solicited: bool,
    /// Whether there is anything to look at, if only that completions were lost.
    pub(super) has_news: bool,
}

impl SharedCq {
    /// Writes completions into the ring.
    pub(super) fn give(&mut self) -> Result<Given, End> {
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
                    self.wake.ring();
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
    pub(super) fn rouse(&self, given: Given) -> Option<u32> {
        if !given.has_news {
            return None;
        }
        let mark = |word| self.ring.place().mark(word);
        if SleepWord(mark(SLEEPERS)).is_set() {
            self.wake.ring();
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
pub(super) fn take_sends(
    qp: &mut SharedQp,
    refused: &mut Vec<(u32, WorkCompletion)>,
) -> Result<u32, End> {
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
            Error::State(_) => WcStatus::WrFlushErr,
            Error::Limit { .. } => WcStatus::LocLenErr,
            _ => WcStatus::LocQpOpErr,
        };
        let completion =
            WorkCompletion::new(wrong.wr_id, status, wrong.op.completes_as(), qp.qp.qp_num());
        refused.push((qp.send_cq, completion));
        rest = &rest[posted + 1..];
    }
    Ok(taken)
}
