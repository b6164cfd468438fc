//! Datagrams on their way to the kernel: gathered into super-packets, as many of one size to one
//! peer as follow each other.
//!
//! Header, payload and checksum go behind each other into one buffer. The checksum reads every
//! byte anyway, and to the kernel gathered pieces cost about as much as that copy. Checksums are
//! computed when all has been gathered: each is a chain of instructions that wait for each other,
//! and the processor overlaps those of neighbours if nothing comes between.

use std::io::{self, IoSlice};
use std::net::SocketAddr;

use haul_io::udp::{Outgoing, SEGMENTS_MAX, SUPER_PACKET_BYTES_MAX, UdpSocket, may_be_late};
use haul_iwarp::{CRC_LEN, Crc32c};

use crate::rnic::tap::Tap;

/// Super-packets of one system call.
const RUNS_MAX: usize = 32;
/// Errors in a row that may be those of earlier datagrams.
const PARDONS: u32 = 4;
/// Bytes of one system call, where there are as many: it ends with the super-packet that reaches
/// them, so that none has to leave before it is whole.
const ENOUGH: usize = SUPER_PACKET_BYTES_MAX + 1;
/// Bytes of all datagrams: whatever is there, one more of the longest fits until the super-packet
/// that reaches [`ENOUGH`] is whole.
const ROOM: usize = 3 * (SUPER_PACKET_BYTES_MAX + 1);

/// Datagrams that were made and not yet taken by the kernel. A shard has one; a queue pair keeps it
/// as long as its socket is full.
#[derive(Debug)]
pub(in crate::rnic) struct Outbox {
    bytes: Box<[u8]>,
    /// len <= ROOM
    len: usize,
    runs: Vec<SuperPacket>,
    /// Where datagrams start whose checksum is not written yet, and where they end.
    unsummed: Vec<(usize, usize)>,
    /// Requests with datagrams in a run, by the run's index and their slots, in order.
    slots: Vec<(usize, u32)>,
    /// Runs, and datagrams of the first run after them, that the kernel has taken.
    done: usize,
    taken: usize,
}

/// Datagrams for one peer, all but the last of one length.
#[derive(Debug, Clone, Copy)]
struct SuperPacket {
    to: SocketAddr,
    source: Option<SocketAddr>,
    /// Where it lies in the outbox.
    start: usize,
    len: usize,
    /// The length of each datagram but the last.
    each: usize,
    count: usize,
    /// A shorter one has come: it was the last.
    closed: bool,
}

/// What became of what was to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flushed {
    /// The kernel has taken all.
    All,
    /// It has no room: go on when the socket is writable.
    Blocked,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            bytes: vec![0; ROOM].into(),
            len: 0,
            runs: Vec::new(),
            unsummed: Vec::new(),
            slots: Vec::new(),
            done: 0,
            taken: 0,
        }
    }
}

impl Outbox {
    /// No more is to be added before some has left.
    pub(super) fn is_full(&self) -> bool {
        let is_whole = self.runs.last().is_none_or(SuperPacket::is_whole);
        ROOM - self.len < SUPER_PACKET_BYTES_MAX
            || self.runs.len() >= RUNS_MAX
            || self.len >= ENOUGH && is_whole
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Room for a datagram; none for one that is longer than any.
    pub(super) fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        self.bytes.get_mut(self.len..self.len.checked_add(len)?)
    }

    /// The next `len` bytes are a datagram for `to`, which belongs to the request in `slot`.
    pub(super) fn commit(
        &mut self,
        len: usize,
        to: SocketAddr,
        source: Option<SocketAddr>,
        slot: Option<u32>,
    ) {
        self.commit_as(len, to, source, slot, false);
    }

    /// As [`Outbox::commit`], in a packet of its own: a network that cannot carry one datagram of a
    /// super-packet may drop all of it, and a probe must fare by its own length.
    pub(super) fn commit_alone(&mut self, len: usize, to: SocketAddr, source: Option<SocketAddr>) {
        self.commit_as(len, to, source, None, true);
    }

    fn commit_as(
        &mut self,
        len: usize,
        to: SocketAddr,
        source: Option<SocketAddr>,
        slot: Option<u32>,
        alone: bool,
    ) {
        let start = self.len;
        self.len += len;
        match self.runs.last_mut().filter(|_| !alone) {
            Some(run) if run.takes(to, source, len) => {
                run.len += len;
                run.count += 1;
                run.closed = len < run.each;
            }
            _ => self.runs.push(SuperPacket {
                to,
                source,
                start,
                len,
                each: len.max(1),
                count: 1,
                closed: alone,
            }),
        }
        let entry = slot.map(|slot| (self.runs.len() - 1, slot));
        if let Some(entry) = entry
            && self.slots.last() != Some(&entry)
        {
            self.slots.push(entry);
        }
    }

    /// The last [`CRC_LEN`] bytes of the datagram that comes next, of `len`, are to be its
    /// checksum.
    pub(super) fn sum_later(&mut self, len: usize) {
        self.unsummed.push((self.len, self.len + len));
    }

    fn write_sums(&mut self) {
        for (start, end) in self.unsummed.drain(..) {
            if let Some((covered, sum)) = self.bytes[start..end].split_last_chunk_mut::<CRC_LEN>() {
                let mut crc = Crc32c::new();
                crc.update(covered);
                *sum = crc.to_wire();
            }
        }
    }

    /// Hands datagrams to the kernel. What cannot be sent is dropped, as if the network had lost
    /// it; `failed` receives each error, with the requests that caused it, if any did.
    pub(super) fn flush(
        &mut self,
        socket: &UdpSocket,
        tap: Option<&Tap>,
        mut failed: impl FnMut(Option<u32>, &io::Error),
    ) -> Flushed {
        self.write_sums();
        let mut pardons = PARDONS;
        while self.done < self.runs.len() {
            match self.send(socket) {
                Ok(taken) => {
                    if let Some(tap) = tap {
                        self.show(taken, tap, socket.local_addr());
                    }
                    self.note_taken(taken);
                    pardons = PARDONS;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Flushed::Blocked,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if may_be_late(&error) && pardons > 0 => {
                    failed(None, &error);
                    pardons -= 1;
                }
                Err(error) => {
                    for (run, slot) in &self.slots {
                        if *run == self.done {
                            failed(Some(*slot), &error);
                        }
                    }
                    self.done += 1;
                    self.taken = 0;
                }
            }
        }
        self.len = 0;
        self.runs.clear();
        self.slots.clear();
        self.done = 0;
        Flushed::All
    }

    /// Datagrams taken of those that are next.
    fn send(&self, socket: &UdpSocket) -> io::Result<usize> {
        let left = &self.runs[self.done..];
        let slice = |at: usize, run: &SuperPacket| {
            let skip = if at == 0 { self.taken * run.each } else { 0 };
            IoSlice::new(&self.bytes[run.start + skip..run.start + run.len])
        };
        if let [run] = left {
            let slices = [slice(0, run)];
            return socket.send_super_packet(&run.outgoing(&slices));
        }
        let slices: arrayvec::ArrayVec<[IoSlice<'_>; 1], RUNS_MAX> = left
            .iter()
            .take(RUNS_MAX)
            .enumerate()
            .map(|(at, run)| [slice(at, run)])
            .collect();
        let packets: arrayvec::ArrayVec<Outgoing<'_>, RUNS_MAX> = left
            .iter()
            .zip(&slices)
            .map(|(run, slices)| run.outgoing(slices))
            .collect();
        socket.send_batch(&packets)
    }

    /// Shows the datagrams that the kernel has just taken.
    fn show(&self, mut taken: usize, tap: &Tap, local: SocketAddr) {
        let mut skip = self.taken;
        for run in &self.runs[self.done..] {
            let count = taken.min(run.count - skip);
            let start = run.start + skip * run.each;
            let end = (start + count * run.each).min(run.start + run.len);
            let source = run
                .source
                .map_or(local, |source| (source.ip(), local.port()).into());
            tap.datagrams(source, run.to, &self.bytes[start..end], run.each);
            taken -= count;
            skip = 0;
        }
    }

    fn note_taken(&mut self, mut taken: usize) {
        while let Some(run) = self.runs.get(self.done) {
            let left = run.count - self.taken;
            if taken < left {
                self.taken += taken;
                return;
            }
            taken -= left;
            self.taken = 0;
            self.done += 1;
        }
    }
}

impl SuperPacket {
    fn takes(&self, to: SocketAddr, source: Option<SocketAddr>, len: usize) -> bool {
        !self.closed
            && len <= self.each
            && len > 0
            && self.to == to
            && self.source == source
            && self.count < SEGMENTS_MAX
            && self.len + len <= SUPER_PACKET_BYTES_MAX
    }

    /// It takes no more datagrams of its length.
    fn is_whole(&self) -> bool {
        self.closed || self.count >= SEGMENTS_MAX || self.len + self.each > SUPER_PACKET_BYTES_MAX
    }

    fn outgoing<'a>(&self, slices: &'a [IoSlice<'a>]) -> Outgoing<'a> {
        Outgoing {
            to: self.to,
            segment_bytes: self.each,
            slices,
            source: self.source,
        }
    }
}

#[cfg(test)]
mod tests {
    use haul_io::udp::UdpOptions;

    use super::*;

    fn put(outbox: &mut Outbox, to: SocketAddr, len: usize) {
        outbox.room(len).unwrap().fill(7);
        outbox.commit(len, to, None, Some(u32::from(to.port())));
    }

    fn shape(outbox: &Outbox) -> Vec<(usize, usize)> {
        outbox.runs.iter().map(|run| (run.count, run.len)).collect()
    }

    #[test]
    fn equal_lengths_to_one_peer_make_one_run_which_a_shorter_one_ends() {
        let (a, b) = (([127, 0, 0, 1], 1).into(), ([127, 0, 0, 1], 2).into());
        let mut outbox = Outbox::default();
        for (to, len) in [(a, 10), (a, 10), (a, 4), (a, 4), (b, 4), (b, 5), (a, 5)] {
            put(&mut outbox, to, len);
        }
        assert_eq!(shape(&outbox), [(3, 24), (1, 4), (1, 4), (1, 5), (1, 5)]);
        for _ in 0..SEGMENTS_MAX {
            put(&mut outbox, a, 5);
        }
        assert_eq!(shape(&outbox)[4..], [(SEGMENTS_MAX, 320), (1, 5)]);
    }

    #[test]
    fn a_datagram_that_is_to_leave_alone_shares_no_super_packet() {
        let to = ([127, 0, 0, 1], 1).into();
        let mut outbox = Outbox::default();
        put(&mut outbox, to, 10);
        outbox.room(10).unwrap().fill(7);
        outbox.commit_alone(10, to, None);
        put(&mut outbox, to, 10);
        assert_eq!(shape(&outbox), [(1, 10); 3]);
    }

    #[test]
    fn no_super_packet_leaves_before_it_is_whole_while_there_is_more() {
        let to = ([127, 0, 0, 1], 1).into();
        for (len, runs) in [(1_472, 2), (8_972, 2), (30_000, 2), (65_507, 2), (100, 11)] {
            let mut outbox = Outbox::default();
            while !outbox.is_full() {
                put(&mut outbox, to, len);
            }
            let most = (SUPER_PACKET_BYTES_MAX / len).min(SEGMENTS_MAX);
            assert_eq!(shape(&outbox), vec![(most, most * len); runs], "{len}");
        }
    }

    #[test]
    fn the_longest_datagram_fits_until_it_is_full() {
        let to = ([127, 0, 0, 1], 1).into();
        let mut state = 5_usize;
        for _ in 0..200 {
            let mut outbox = Outbox::default();
            while !outbox.is_full() {
                assert!(outbox.room(SUPER_PACKET_BYTES_MAX).is_some());
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let is_long = state >> 60 < 3;
                let most = if is_long {
                    SUPER_PACKET_BYTES_MAX
                } else {
                    2_000
                };
                put(&mut outbox, to, 1 + (state >> 33) % most);
            }
        }
    }

    #[test]
    fn what_the_kernel_has_taken_is_not_sent_again() {
        let to = ([127, 0, 0, 1], 1).into();
        let mut outbox = Outbox::default();
        for len in [10, 10, 10, 20, 20] {
            put(&mut outbox, to, len);
        }
        outbox.note_taken(2);
        assert_eq!((outbox.done, outbox.taken), (0, 2));
        outbox.note_taken(2);
        assert_eq!((outbox.done, outbox.taken), (1, 1));
        outbox.note_taken(1);
        assert_eq!((outbox.done, outbox.taken), (2, 0));
    }

    #[test]
    fn a_capture_has_each_datagram_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("datagrams.pcap");
        let any = ([127, 0, 0, 1], 0).into();
        let socket = UdpSocket::bind(any, &UdpOptions::default()).unwrap();
        let to = socket.local_addr();
        let mut outbox = Outbox::default();
        for len in [10, 10, 4, 20] {
            put(&mut outbox, to, len);
        }
        let tap = Tap::create(&path).unwrap();
        // Two calls of the kernel's have taken one and three.
        outbox.show(1, &tap, to);
        outbox.note_taken(1);
        outbox.show(3, &tap, to);
        let around = 16 + 20 + 8;
        let len = std::fs::metadata(&path).unwrap().len();
        assert_eq!(len, 24 + 4 * around + 10 + 10 + 4 + 20);
    }

    #[test]
    fn a_run_that_cannot_be_sent_is_told_of_and_the_rest_leaves() {
        let any = ([127, 0, 0, 1], 0).into();
        let socket = UdpSocket::bind(any, &UdpOptions::default()).unwrap();
        let mut outbox = Outbox::default();
        // The broadcast address without the option is refused with EACCES.
        let bad: SocketAddr = ([255, 255, 255, 255], 9).into();
        put(&mut outbox, bad, 10);
        put(&mut outbox, socket.local_addr(), 10);
        let mut lost = Vec::new();
        let flushed = outbox.flush(&socket, None, |slot, _| lost.push(slot));
        assert_eq!((flushed, lost.last()), (Flushed::All, Some(&Some(9))));
        assert!(outbox.is_empty());
    }
}
