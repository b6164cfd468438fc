//! The way out: super-packets that the kernel cuts, and the same cut here where it will not.

use std::array;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use super::control::{SegmentSize, SegmentSource, SourceAddress};
use super::message::{self, Ancillary, Destination, MESSAGES_MAX, OutMessage};
use super::{SEGMENTS_MAX, SLICES_MAX, SUPER_PACKET_BYTES_MAX, UdpSocket};

/// One super-packet: the concatenation of `slices`, cut each `segment_bytes` (the last segment may
/// be smaller).
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// The receiver.
    pub to: SocketAddr,
    /// Bytes of payload in each datagram but the last.
    pub segment_bytes: usize,
    /// The payload. At most [`SLICES_MAX`] slices, [`SUPER_PACKET_BYTES_MAX`] bytes,
    /// [`SEGMENTS_MAX`] segments.
    pub slices: &'a [IoSlice<'a>],
    /// The address of this machine that it is to come from (its port does not count); none leaves
    /// that to the route.
    pub source: Option<SocketAddr>,
}

impl UdpSocket {
    /// Sends one super-packet; how many of its segments were taken, counted from the first. Fewer
    /// than all only when the socket's buffer became full on the way, which only happens where the
    /// kernel does not cut for us.
    ///
    /// # Errors
    /// `WouldBlock` when the socket's buffer is full and nothing was taken; `InvalidInput` when it
    /// breaks a limit of [`Outgoing`]; else of `sendmsg(2)`, for example `EMSGSIZE` when a segment
    /// is larger than the interface's MTU allows.
    pub fn send_segments(
        &self,
        to: SocketAddr,
        segment_bytes: usize,
        slices: &[IoSlice<'_>],
    ) -> io::Result<usize> {
        let plan = Plan::new(&Outgoing {
            to,
            segment_bytes,
            slices,
            source: None,
        })?;
        self.send_plan(&plan, slices)
    }

    /// Sends one super-packet; as [`UdpSocket::send_segments`], which has no choice of the source.
    ///
    /// # Errors
    /// As there.
    pub fn send_super_packet(&self, packet: &Outgoing<'_>) -> io::Result<usize> {
        self.send_plan(&Plan::new(packet)?, packet.slices)
    }

    fn send_plan(&self, plan: &Plan, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if plan.segments == 1 {
            let message = OutMessage::new(&plan.to, slices, plan.uncut());
            return message::send_one(self.as_fd(), &message).map(|_| 1);
        }
        if !self.gso.load(Ordering::Relaxed) {
            return self.send_cut(plan, slices);
        }
        let message = OutMessage::new(&plan.to, slices, plan.cut());
        match message::send_one(self.as_fd(), &message) {
            Ok(_) => Ok(plan.segments),
            Err(error) if self.refuses_gso(&error) => self.send_without_gso(plan, slices),
            Err(error) => Err(error),
        }
    }

    /// Sends super-packets in order, with one system call for up to 32; how many segments were
    /// taken, counted over the whole batch from its first. Fewer than all when the socket's buffer
    /// became full on the way, or when one failed (its error then shows when it comes first).
    ///
    /// # Errors
    /// As for [`UdpSocket::send_segments`], of the first super-packet; `InvalidInput` may also be
    /// of a later one, and then nothing of its group of 32 was sent.
    pub fn send_batch(&self, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        let mut taken = 0;
        for group in batch.chunks(MESSAGES_MAX) {
            let mut plans = [Plan::EMPTY; MESSAGES_MAX];
            for (plan, outgoing) in plans.iter_mut().zip(group) {
                *plan = Plan::new(outgoing)?;
            }
            let plans = &plans[..group.len()];
            let sent = if self.gso.load(Ordering::Relaxed) {
                self.send_group(plans, group)
            } else {
                self.send_group_cut(plans, group)
            };
            let wanted: usize = plans.iter().map(|plan| plan.segments).sum();
            match sent {
                Ok(segments) if segments == wanted => taken += segments,
                Ok(segments) => return Ok(taken + segments),
                Err(error) if taken == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(taken)
    }

    /// Sends one datagram that comes from `source`, an address of this machine (its port does not
    /// count): how a socket bound to the wildcard answers from the address that it was asked at.
    ///
    /// # Errors
    /// `WouldBlock` when the socket's buffer is full; else of `sendmsg(2)`.
    pub fn send_from(&self, source: SocketAddr, to: SocketAddr, datagram: &[u8]) -> io::Result<()> {
        let (to, source) = (Destination::new(to), SourceAddress::new(source));
        let slices = [IoSlice::new(datagram)];
        let message = OutMessage::new(&to, &slices, Ancillary::Source(&source));
        message::send_one(self.as_fd(), &message).map(drop)
    }

    fn send_group(&self, plans: &[Plan], group: &[Outgoing<'_>]) -> io::Result<usize> {
        let mut messages: [OutMessage<'_>; MESSAGES_MAX] =
            array::from_fn(|index| match (plans.get(index), group.get(index)) {
                (Some(plan), Some(outgoing)) => {
                    let ancillary = if plan.segments > 1 {
                        plan.cut()
                    } else {
                        plan.uncut()
                    };
                    OutMessage::new(&plan.to, outgoing.slices, ancillary)
                }
                _ => OutMessage::new(&Destination::NONE, &[], Ancillary::Nothing),
            });
        match message::send_many(self.as_fd(), &mut messages[..group.len()]) {
            Ok(sent) => Ok(plans[..sent].iter().map(|plan| plan.segments).sum()),
            Err(error) if self.refuses_gso(&error) && plans[0].segments > 1 => {
                self.send_without_gso(&plans[0], group[0].slices)
            }
            Err(error) => Err(error),
        }
    }

    fn send_group_cut(&self, plans: &[Plan], group: &[Outgoing<'_>]) -> io::Result<usize> {
        let mut taken = 0;
        for (plan, outgoing) in plans.iter().zip(group) {
            match self.send_cut(plan, outgoing.slices) {
                Ok(segments) if segments == plan.segments => taken += segments,
                Ok(segments) => return Ok(taken + segments),
                Err(error) if taken == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(taken)
    }

    /// Linux: `EIO` where a device on the path cannot checksum, `EINVAL` where one cannot cut (also
    /// for a segment larger than the MTU, before 6.14; `EMSGSIZE` since). Segments that need
    /// fragments are not cut, either.
    fn refuses_gso(&self, error: &io::Error) -> bool {
        match error.raw_os_error() {
            Some(libc::EIO | libc::EINVAL) => true,
            Some(libc::EMSGSIZE) => self.fragments.load(Ordering::Relaxed),
            _ => false,
        }
    }

    /// After the kernel has refused to cut. If the same segments can be sent one by one it was
    /// that, and is not tried again on this socket; if not, the error is theirs (too large, no such
    /// destination).
    fn send_without_gso(&self, plan: &Plan, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let taken = self.send_cut(plan, slices)?;
        self.gso.store(false, Ordering::Relaxed);
        Ok(taken)
    }

    /// Cuts here, and sends each segment as a message of its own.
    fn send_cut(&self, plan: &Plan, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut cutter = Cutter::new(slices, plan.segment_bytes);
        let mut taken = 0;
        while taken < plan.segments {
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let mut ranges = [const { 0..0 }; MESSAGES_MAX];
            let mut used = 0;
            let mut count = 0;
            for range in ranges.iter_mut().take(plan.segments - taken) {
                let Some(more) = cutter.next_segment(&mut pieces[used..]) else {
                    break;
                };
                *range = used..used + more;
                used += more;
                count += 1;
            }
            if count == 0 {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let mut messages: [OutMessage<'_>; MESSAGES_MAX] = array::from_fn(|index| {
                let slices = &pieces[ranges[index].clone()];
                OutMessage::new(&plan.to, slices, plan.uncut())
            });
            match message::send_many(self.as_fd(), &mut messages[..count]) {
                Ok(sent) if sent == count => taken += sent,
                Ok(sent) => return Ok(taken + sent),
                Err(error) if taken == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(taken)
    }
}

/// The most slices that a group of segments cut here may have.
const PIECES_MAX: usize = 256;

/// A super-packet within all limits, with its ancillary data.
#[derive(Clone, Copy)]
struct Plan {
    to: Destination,
    control: SegmentSize,
    /// Where it is to come from, alone and behind the size of segments.
    source: Option<(SourceAddress, SegmentSource)>,
    segment_bytes: usize,
    segments: usize,
}

impl Plan {
    const EMPTY: Self = Self {
        to: Destination::NONE,
        control: SegmentSize::new(0),
        source: None,
        segment_bytes: 0,
        segments: 0,
    };

    fn new(outgoing: &Outgoing<'_>) -> io::Result<Self> {
        let Outgoing {
            to,
            segment_bytes,
            slices,
            source,
        } = *outgoing;
        let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        // An empty datagram is one segment too.
        let segments = bytes.div_ceil(segment_bytes.max(1)).max(1);
        let fits = bytes <= SUPER_PACKET_BYTES_MAX
            && segments <= SEGMENTS_MAX
            && slices.len() <= SLICES_MAX
            && segment_bytes > 0;
        let (true, Ok(size)) = (
            fits,
            u16::try_from(segment_bytes.min(SUPER_PACKET_BYTES_MAX)),
        ) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let (to, control) = (Destination::new(to), SegmentSize::new(size));
        let source = source.map(SourceAddress::new);
        Ok(Self {
            to,
            control,
            source: source.map(|source| (source, SegmentSource::new(control, source))),
            segment_bytes,
            segments,
        })
    }

    /// Ancillary data for segmentation by the kernel.
    fn cut(&self) -> Ancillary<'_> {
        match &self.source {
            Some((_, both)) => Ancillary::SegmentSource(both),
            None => Ancillary::Segment(&self.control),
        }
    }

    /// Ancillary data of a single segment.
    fn uncut(&self) -> Ancillary<'_> {
        match &self.source {
            Some((source, _)) => Ancillary::Source(source),
            None => Ancillary::Nothing,
        }
    }
}

/// Walks along slices and cuts them into segments.
struct Cutter<'a> {
    slices: &'a [IoSlice<'a>],
    /// Bytes of the first slice that are cut off already.
    offset: usize,
    segment_bytes: usize,
}

impl<'a> Cutter<'a> {
    fn new(slices: &'a [IoSlice<'a>], segment_bytes: usize) -> Self {
        Self {
            slices,
            offset: 0,
            segment_bytes,
        }
    }

    /// Puts the slices of the next segment into `pieces`; how many there are. None, and nothing is
    /// cut, when they are too many.
    fn next_segment(&mut self, pieces: &mut [IoSlice<'a>]) -> Option<usize> {
        let (mut slices, mut offset) = (self.slices, self.offset);
        let mut wanted = self.segment_bytes;
        let mut used = 0;
        while wanted > 0 {
            let Some((first, rest)) = slices.split_first() else {
                break;
            };
            let left = &first[offset..];
            let piece = &left[..left.len().min(wanted)];
            if !piece.is_empty() {
                *pieces.get_mut(used)? = IoSlice::new(piece);
                used += 1;
            }
            wanted -= piece.len();
            (slices, offset) = if piece.len() == left.len() {
                (rest, 0)
            } else {
                (slices, offset + piece.len())
            };
        }
        (self.slices, self.offset) = (slices, offset);
        Some(used)
    }
}
