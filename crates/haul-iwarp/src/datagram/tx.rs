//! Messages to segments.
//!
//! All segments of a message have the same length but its last, so that they leave in batches of
//! segmentation offload. Of a Write-Record with enough segments, a copy of the last one goes ahead
//! of the last few: a burst of losses at the end does not take both, and nothing has to wait for a
//! timer.

use std::collections::VecDeque;
use std::net::IpAddr;

use super::access::{local_entry, place};
use super::config::{DATAGRAM_MIN, UdConfig};
use super::lanes::{Lane, Lanes};
use super::paths::Paths;
use super::read::{Asked, Job, Jobs};
use super::search::{Found, SHORT, Searches};
use super::wire::{ANY_QPN, DATAGRAM_MAX, DataHeader, Flags, Kind, MsgId, Opcode, SHIM_LEN, Shim};
use super::work::{Transmit, UdSendWr};
use crate::address::Destination;
use crate::crc::CRC_LEN;
use crate::error::PostError;
use crate::memory::{Memory, Target};
use crate::operation::Operation;
use crate::qp::Payload;
use crate::stag::Rights;
use crate::time::Time;
use crate::wire::ddp::{self, Model};
use crate::wire::rdmap;

/// Segments of one message or response before the next one's turn: about as many as one call
/// with segmentation offload takes.
const TURN: u32 = 64;
/// Messages of more segments fill batches by themselves.
const EVEN_MAX: u32 = 32;

/// The message that is being sent.
#[derive(Debug, Clone, Copy)]
struct Current {
    wr: UdSendWr,
    id: MsgId,
    opcode: Opcode,
    /// Payload of its segments but the last, from now on.
    max: u32,
    /// Bytes that are sent.
    done: u32,
    copied: bool,
}

/// Requests that are not sent yet.
#[derive(Debug)]
pub(super) struct Sender {
    queue: VecDeque<UdSendWr>,
    current: Option<Current>,
    pub(super) lanes: Lanes,
    pub(super) jobs: Jobs,
    paths: Paths,
    pub(super) searches: Searches,
    datagram_max: u32,
    /// Segments that come next and differ from the last one in their numbers only.
    alike: u32,
    /// Segments in a row of one kind, and whether it is answers.
    turn: u32,
    answering: bool,
}

/// The next segment.
#[derive(Debug, Clone, Copy)]
pub(super) enum Next {
    /// A datagram; with it the request is sent.
    Datagram(Transmit, Option<UdSendWr>),
    /// A Read that is to begin.
    Read(UdSendWr),
}

impl Sender {
    pub(super) fn new(config: &UdConfig) -> Self {
        let mut sender = Self {
            queue: VecDeque::new(),
            current: None,
            lanes: Lanes::new(config.seed, config.key),
            jobs: Jobs::default(),
            paths: Paths::new(config.key),
            searches: Searches::new(config.key, config.around),
            datagram_max: 0,
            alike: 0,
            turn: 0,
            answering: false,
        };
        sender.set_datagram_max(config.datagram_max);
        sender
    }

    pub(super) fn set_datagram_max(&mut self, octets: u32) {
        self.alike = 0;
        let most = u32::try_from(DATAGRAM_MAX).unwrap_or(u32::MAX);
        self.datagram_max = octets.clamp(DATAGRAM_MIN, most);
    }

    pub(super) fn note_path(&mut self, now: Time, host: IpAddr, octets: u32) {
        self.alike = 0;
        self.paths.note(now, host, octets);
    }

    fn note_use(&mut self, now: Time, to: Destination) {
        let octets = self.datagram_max;
        let known = self.paths.datagram_max(now, to.addr.ip(), octets);
        self.searches.handle_use(now, to, octets, known);
    }

    pub(super) fn note_found(&mut self, now: Time, found: Found) {
        self.note_path(now, found.host, found.datagram_max);
    }

    /// Bytes of payload in a segment to `to`: the datagram size less `words` of EXT and a DDP
    /// header.
    fn room(&self, now: Time, to: &Destination, words: usize, ddp_len: usize) -> u32 {
        let host = to.addr.ip();
        let mut path = self.paths.datagram_max(now, host, self.datagram_max);
        if to.qpn != ANY_QPN {
            path = self.searches.datagram_max(host, path);
        }
        let overhead = SHIM_LEN + 4 * words + ddp_len + CRC_LEN;
        path - u32::try_from(overhead).unwrap_or(path)
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len() + usize::from(self.current.is_some())
    }

    pub(super) fn post(&mut self, config: &UdConfig, wr: UdSendWr) -> Result<(), PostError> {
        let group = wr.to.qpn == ANY_QPN;
        let (most, room) = match wr.op {
            Operation::Send {
                invalidate: Some(_),
                ..
            }
            | Operation::SendImmediate { .. }
            | Operation::Atomic { .. }
            | Operation::Write { placed: true, .. }
            | Operation::LocalInvalidate(_) => return Err(PostError::Unsupported),
            Operation::Send { .. } => (config.send_max, u64::MAX),
            Operation::Immediate { .. } => (u32::MAX, u64::MAX),
            Operation::WriteRecord { to, .. } => (config.record_max, u64::MAX - to),
            _ if group => return Err(PostError::Unsupported),
            Operation::Write { to, .. } => (config.record_max, u64::MAX - to),
            Operation::Read {
                sink_to, source_to, ..
            } => (config.read_max, u64::MAX - sink_to.max(source_to)),
        };
        if wr.to.qpn > ANY_QPN {
            return Err(PostError::Unsupported);
        }
        let limit = u32::try_from(room).unwrap_or(u32::MAX).min(most);
        if wr.len > limit {
            return Err(PostError::TooLong { len: wr.len, limit });
        }
        self.queue.push_back(wr);
        Ok(())
    }

    /// The next datagram or read; its header goes to `out`. `reads`: a read may begin.
    pub(super) fn poll<M: Memory + ?Sized>(
        &mut self,
        now: Time,
        config: &UdConfig,
        memory: &M,
        reads: bool,
        out: &mut [u8],
    ) -> Option<Next> {
        self.alike = 0;
        loop {
            let can_send = self.current.is_some() || self.can_begin(reads);
            let can_answer = !self.jobs.is_empty();
            if !can_send && !can_answer {
                return None;
            }
            let other = if self.answering { can_send } else { can_answer };
            let this = if self.answering { can_answer } else { can_send };
            if !this || self.turn >= TURN {
                self.answering ^= other;
                self.turn = 0;
            }
            self.turn += 1;
            if self.answering {
                if let Some(transmit) = self.answer(now, config, memory, out) {
                    return Some(Next::Datagram(transmit, None));
                }
            } else if let Some(next) = self.send(now, config, out) {
                return Some(next);
            }
        }
    }

    /// Turns the last datagram's header in `header` into the next one's, if only counters differ.
    /// Returns the offset of its payload in the message.
    pub(super) fn poll_alike(&mut self, header: &mut [u8]) -> Option<u32> {
        let current = self.current.as_mut()?;
        if self.alike == 0 || self.turn >= TURN {
            return None;
        }
        self.alike -= 1;
        self.turn += 1;
        let start = current.done;
        current.done += current.max;
        let psn = self.lanes.lane(&current.wr.to).next_psn();
        DataHeader::advance(header, psn, current.max);
        Some(start)
    }

    fn can_begin(&self, reads: bool) -> bool {
        self.queue
            .front()
            .is_some_and(|wr| reads || !matches!(wr.op, Operation::Read { .. }))
    }

    fn send(&mut self, now: Time, config: &UdConfig, out: &mut [u8]) -> Option<Next> {
        let current = match self.current {
            Some(current) => current,
            None => {
                let wr = self.queue.pop_front()?;
                if matches!(wr.op, Operation::Read { .. }) {
                    return Some(Next::Read(wr));
                }
                self.begin(wr)
            }
        };
        let (transmit, after) = self.segment(now, config, current, out);
        self.current = after;
        let sent = after.is_none().then_some(current.wr);
        Some(Next::Datagram(transmit, sent))
    }

    fn begin(&mut self, wr: UdSendWr) -> Current {
        let opcode = match wr.op {
            Operation::Send { solicited, .. } => {
                Opcode::Rdmap(rdmap::Opcode::send(solicited, false))
            }
            Operation::Immediate { solicited, .. } => {
                Opcode::Rdmap(rdmap::Opcode::immediate(solicited))
            }
            Operation::WriteRecord {
                immediate: None, ..
            } => Opcode::WriteRecord,
            Operation::WriteRecord {
                immediate: Some(_), ..
            } => Opcode::WriteRecordImmediate,
            // The others are refused when they are posted.
            _ => Opcode::Rdmap(rdmap::Opcode::Write),
        };
        Current {
            wr,
            id: self.lanes.lane(&wr.to).next_message(),
            opcode,
            max: u32::MAX,
            done: 0,
            copied: false,
        }
    }

    /// Returns the next segment of a message, and the rest.
    fn segment(
        &mut self,
        now: Time,
        config: &UdConfig,
        mut current: Current,
        out: &mut [u8],
    ) -> (Transmit, Option<Current>) {
        let wr = current.wr;
        let has_words = current.opcode == Opcode::WriteRecordImmediate;
        let words_len = if has_words { 2 } else { 0 };
        let ddp_len = match current.opcode.queue() {
            Some(_) => ddp::UNTAGGED_LEN,
            None => ddp::TAGGED_LEN,
        };
        let immediate = match wr.op {
            Operation::Immediate { data, .. } => Some(data),
            _ => None,
        };
        let len = if immediate.is_some() { 8 } else { wr.len };
        let room = self.room(now, &wr.to, words_len, ddp_len);
        if current.done == 0 && !self.queue.is_empty() {
            current.max = current.max.min(even(len, room));
        }
        // It may become less in the middle of a message, and then stays so.
        current.max = current.max.min(room);
        let left = (len - current.done).div_ceil(current.max);
        let copy = copy_ahead(config, &current) == Some(left);
        let (start, part) = if copy {
            let left = len - current.done;
            let start = current.done + (left - 1) / current.max * current.max;
            (start, len - start)
        } else {
            (current.done, (len - current.done).min(current.max))
        };
        let flags = Flags::NONE
            .with_if(Flags::LAST, start + part == len)
            .with_if(Flags::TAILDUP, copy)
            .with_if(Flags::MCAST, wr.to.qpn == ANY_QPN);
        let extent = (len, start);
        let shim = shim(
            config,
            self.lanes.lane(&wr.to),
            &wr.to,
            current.id,
            extent,
            flags,
        );
        let words = match wr.op {
            Operation::WriteRecord {
                immediate: Some(data),
                ..
            } => halves(data),
            _ => [0; 2],
        };
        let mut header_len = DataHeader {
            shim,
            ext: if has_words { &words } else { &[] },
            opcode: current.opcode,
            model: model(&wr, current.opcode, current.id, start),
        }
        .emit(out);
        let full_len = header_len + len.min(current.max) as usize + CRC_LEN;
        if current.done == 0 && full_len > SHORT as usize {
            self.note_use(now, wr.to);
        }
        let mut payload_len = part;
        if let Some(data) = immediate {
            out[header_len..header_len + 8].copy_from_slice(&data.to_be_bytes());
            header_len += 8;
            payload_len = 0;
        }
        let payload = Payload::Request {
            slot: wr.slot,
            offset: start,
        };
        let transmit = Transmit {
            to: wr.to.addr,
            header_len,
            payload: if payload_len == 0 {
                Payload::None
            } else {
                payload
            },
            payload_len,
            full_len,
            slot: Some(wr.slot),
        };
        if copy {
            current.copied = true;
        } else {
            current.done += part;
            let others = copy_ahead(config, &current).unwrap_or(1);
            let left = (len - current.done).div_ceil(current.max);
            self.alike = left.saturating_sub(others);
        }
        let is_done = !copy && current.done == len;
        (transmit, (!is_done).then_some(current))
    }

    /// Returns the next segment of a response; `None` if its memory was withdrawn.
    fn answer<M: Memory + ?Sized>(
        &mut self,
        now: Time,
        config: &UdConfig,
        memory: &M,
        out: &mut [u8],
    ) -> Option<Transmit> {
        let to = self.jobs.front()?.to.destination();
        let max = self.room(now, &to, 0, ddp::TAGGED_LEN);
        let job = self.jobs.front()?;
        let (start, len, is_last) = job.next(max);
        let job = *job;
        let payload = readable(config, memory, &job, start, len);
        if is_last || payload.is_none() {
            self.jobs.pop();
        } else if self.turn >= TURN {
            self.jobs.rotate();
        }
        let to = job.to.destination();
        if start == 0 && job.request.len > max / 2 {
            self.note_use(now, to);
        }
        let flags = Flags::RESP.with_if(Flags::LAST, start + len == job.request.len);
        let extent = (job.request.len, start);
        let payload = payload?;
        let header_len = DataHeader {
            shim: shim(config, self.lanes.lane(&to), &to, job.id, extent, flags),
            ext: &[],
            opcode: Opcode::Rdmap(rdmap::Opcode::ReadResponse),
            model: Model::Tagged {
                stag: job.request.sink,
                to: job.request.sink_to + u64::from(start),
            },
        }
        .emit(out);
        Some(Transmit {
            to: to.addr,
            header_len,
            payload,
            payload_len: len,
            full_len: header_len + job.request.len.min(max) as usize + CRC_LEN,
            slot: None,
        })
    }

    /// The datagram of a Read Request.
    pub(super) fn request(&mut self, config: &UdConfig, asked: &Asked, out: &mut [u8]) -> Transmit {
        self.alike = 0;
        let parts = asked.parts.as_slice();
        let mut words = [0; 2 * super::read::RANGES_MAX];
        for (pair, part) in words.chunks_exact_mut(2).zip(parts) {
            pair[0] = part.0;
            pair[1] = part.1 - part.0;
        }
        let request = asked.request.emit();
        let lane = self.lanes.lane(&asked.to);
        let len = u32::try_from(request.len()).unwrap_or(0);
        let mut header_len = DataHeader {
            shim: shim(config, lane, &asked.to, asked.id, (len, 0), Flags::LAST),
            ext: &words[..2 * parts.len()],
            opcode: Opcode::Rdmap(rdmap::Opcode::ReadRequest),
            model: Model::Untagged {
                ulp: 0,
                qn: ddp::QN_READ,
                msn: asked.id.0,
                mo: 0,
            },
        }
        .emit(out);
        out[header_len..header_len + request.len()].copy_from_slice(&request);
        header_len += request.len();
        Transmit {
            to: asked.to.addr,
            header_len,
            payload: Payload::None,
            payload_len: 0,
            full_len: header_len + CRC_LEN,
            slot: Some(asked.slot),
        }
    }

    /// Removes and returns a request that has not been sent completely; call until it returns
    /// `None`.
    pub(super) fn flush(&mut self) -> Option<UdSendWr> {
        self.jobs.clear();
        let current = self.current.take().map(|current| current.wr);
        current.or_else(|| self.queue.pop_front())
    }
}

/// Payload of a segment, where `room` bytes fit and more messages follow: a length that divides
/// this one evenly, with at most a third more segments. A shorter segment would end its batch.
fn even(len: u32, room: u32) -> u32 {
    let least = len.div_ceil(room);
    if !(2..=EVEN_MAX).contains(&least) {
        return room;
    }
    let count = (least..=least + least / 3).find(|count| len.is_multiple_of(*count));
    count.map_or(room, |count| len / count)
}

/// Before how many segments at the end the copy of the last one goes, if it is still to go.
fn copy_ahead(config: &UdConfig, current: &Current) -> Option<u32> {
    let is_record = matches!(current.wr.op, Operation::WriteRecord { .. });
    if !is_record || current.copied || config.tail_copy == 0 {
        return None;
    }
    let wanted = config.tail_copy.saturating_add(1);
    (current.wr.len.div_ceil(current.max) >= wanted).then_some(wanted)
}

fn shim(
    config: &UdConfig,
    lane: &mut Lane,
    to: &Destination,
    id: MsgId,
    (msg_len, seg_off): (u32, u32),
    flags: Flags,
) -> Shim {
    Shim {
        kind: Kind::Data,
        flags,
        dst_qpn: to.qpn,
        src_qpn: config.qpn,
        epoch: config.epoch,
        psn: lane.next_psn(),
        msg_id: id,
        msg_len,
        seg_off,
    }
}

fn model(wr: &UdSendWr, opcode: Opcode, id: MsgId, start: u32) -> Model {
    match wr.op {
        Operation::Write { stag, to, .. } | Operation::WriteRecord { stag, to, .. } => {
            Model::Tagged {
                stag,
                to: to + u64::from(start),
            }
        }
        _ => Model::Untagged {
            ulp: 0,
            qn: opcode.queue().unwrap_or(ddp::QN_SEND),
            msn: id.0,
            mo: start,
        },
    }
}

/// Where a part of an answer lies, if it may still be read.
fn readable<M: Memory + ?Sized>(
    config: &UdConfig,
    memory: &M,
    job: &Job,
    start: u32,
    len: u32,
) -> Option<Payload> {
    if len == 0 {
        return Some(Payload::None);
    }
    let entry = local_entry(config, memory, job.request.source).ok()?;
    if !entry.rights.contains(Rights::REMOTE_READ)
        || !memory.admits(job.request.source, &job.to, true)
    {
        return None;
    }
    let to = job.request.source_to + u64::from(start);
    match place(&entry, to, len) {
        Ok(Target::Region { region, offset }) => Some(Payload::Region { region, offset }),
        _ => None,
    }
}

const fn halves(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_be_bytes();
    [
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    ]
}
