//! A service with a socket: what arrives goes to the core, what the core makes goes to the outbox.

use std::net::SocketAddr;

use haul_io::poller::{Interest, Poller};
use haul_io::udp::{
    Received as Arrival, SUPER_PACKET_BYTES_MAX, UdpSocket, Undelivered, route_mtu,
};
use haul_iwarp::datagram::DATAGRAM_MIN;
use haul_iwarp::datagram::wire::{
    Body, Datagram, Reject, SEALED_AROUND, SEALED_HEAD_LEN, SENDER_LEN, sender,
};
use haul_iwarp::{CRC_LEN, Payload, SECOND_NS, Time};

use super::bucket::Bucket;
use super::core::{Core, HEADER_MAX, OutgoingDatagram};
use super::memory::{Held, Memory};
use super::outbox::Outbox;
use super::routes::{PATH_MTU, Routes, headers};
use super::sealing::{Sealing, sealed_len};
use super::tools::Tools;
use super::validation::Validation;
use crate::rnic::buffers::Buffers;

/// Errors that are looked at together.
const ERRORS: usize = 64;
/// Bytes of UDP payload that any path carries, where the network reports no size (RFC 8899
/// §5.1.2).
const PATH_BASE: u32 = 1_200;

/// Bytes that sealing adds to each datagram.
#[expect(clippy::cast_possible_truncation, reason = "36")]
pub(super) const AROUND: u32 = SEALED_AROUND as u32;

/// Why a datagram did not leave.
#[derive(Debug, Clone, Copy)]
pub(super) enum Unsent {
    /// Its payload is not accessible any more.
    Memory,
    /// The host's error.
    Host(i32),
}

/// A service with a socket.
#[derive(Debug)]
pub(super) struct ServiceSocket {
    pub(super) socket: UdpSocket,
    pub(super) token: u64,
    pub(super) core: Core,
    /// Where the service is sealed.
    pub(super) sealing: Option<Box<Sealing>>,
    pub(super) bucket: Option<Bucket>,
    /// There is more to send than the bucket allows now.
    pub(super) paced: bool,
    pub(super) routes: Routes,
    /// It is bound to no address: answers go out from where they were asked.
    pub(super) anywhere: bool,
    /// Datagrams that the socket has no room for.
    pub(super) stuck: Option<Box<Outbox>>,
    /// Datagrams of any kind.
    pub(super) received: u64,
    /// What a reliable core does not get to see.
    pub(super) bad_checksum: u64,
    pub(super) malformed: u64,
    /// Number and epoch of this end.
    pub(super) own: (u32, u32),
    /// Datagrams that the network reported as undelivered.
    pub(super) undelivered: u64,
    /// There were some since the last report to the application.
    pub(super) complaint: bool,
    pub(super) quiet_until: Time,
    /// The poller is asked for room in the socket.
    pub(super) watched: bool,
    pub(super) more: bool,
}

impl ServiceSocket {
    /// One arrival: the datagrams of one sender.
    pub(super) fn take_in(
        &mut self,
        buffers: &mut Buffers,
        tools: &Tools<'_>,
        arrival: &Arrival<'_>,
    ) {
        let mut ours = false;
        if let Some(tap) = tools.tap {
            let local = self.socket.local_addr();
            let to = arrival
                .to
                .map_or(local, |to| (to.ip(), local.port()).into());
            for octets in arrival.datagrams() {
                tap.datagrams(arrival.from, to, octets, octets.len());
            }
        }
        let held = Held::new(tools.registry);
        let mut memory = Memory {
            held: &held,
            buffers,
            sender: None,
        };
        for octets in arrival.datagrams() {
            self.received += 1;
            ours |= self.take_one(tools.now, &mut memory, arrival.from, octets);
        }
        if let (true, true, Some(to)) = (self.anywhere, ours, arrival.to) {
            self.routes.note(arrival.from, to);
        }
    }

    /// As [`ServiceSocket::take_in`], where the service is sealed: `datagrams` of `from`, which
    /// were sent to `to`, are opened in place.
    pub(super) fn take_in_sealed<'d>(
        &mut self,
        buffers: &mut Buffers,
        tools: &Tools<'_>,
        (from, to): (SocketAddr, Option<SocketAddr>),
        datagrams: impl Iterator<Item = &'d mut [u8]>,
    ) {
        let mut ours = false;
        let held = Held::new(tools.registry);
        let mut memory = Memory {
            held: &held,
            buffers,
            sender: None,
        };
        for octets in datagrams {
            self.received += 1;
            if let Some(tap) = tools.tap {
                let local = self.socket.local_addr();
                let local = to.map_or(local, |to| (to.ip(), local.port()).into());
                tap.datagrams(from, local, octets, octets.len());
            }
            let Some(sealing) = &mut self.sealing else {
                return;
            };
            let answers = sealing.answers();
            let opened = sealing.handle(tools.now, from, octets);
            // It is answered from where it was asked.
            ours |= opened.is_none() && sealing.answers() > answers;
            if let Some(covered) = opened {
                ours |= self.take_covered(tools.now, &mut memory, from, Ok(covered));
            }
        }
        if let (true, true, Some(to)) = (self.anywhere, ours, to) {
            self.routes.note(from, to);
        }
    }

    /// One datagram; whether the core took it.
    fn take_one(
        &mut self,
        now: Time,
        memory: &mut Memory<'_, '_>,
        from: SocketAddr,
        octets: &[u8],
    ) -> bool {
        self.take_covered(now, memory, from, Datagram::check(octets))
    }

    /// One datagram without its CRC, which is right or was not needed.
    fn take_covered(
        &mut self,
        now: Time,
        memory: &mut Memory<'_, '_>,
        from: SocketAddr,
        checked: Result<&[u8], Reject>,
    ) -> bool {
        if let Ok(covered) = checked
            && let Some((target, payload)) = self.core.handle_alike(memory, from, covered)
        {
            let placed = memory.held.place(memory.buffers, target, payload);
            self.core.handle_placed(now, memory, placed);
            return true;
        }
        let datagram = match checked.and_then(Datagram::parse) {
            Ok(datagram) => datagram,
            Err(reject) => {
                self.reject(now, from, reject);
                return false;
            }
        };
        let (wanted, taken) = self.core.handle_datagram(now, memory, from, &datagram);
        let Some(wanted) = wanted else { return taken };
        let placed = match &datagram.body {
            Body::Data(segment) => {
                let held = memory.held;
                held.place(memory.buffers, wanted.target, segment.payload)
            }
            _ => false,
        };
        self.core.handle_placed(now, memory, placed);
        taken
    }

    /// Something that is no datagram of this protocol, or not whole.
    fn reject(&mut self, now: Time, from: SocketAddr, reject: Reject) {
        match &mut self.core {
            Core::Ud(core) => {
                core.handle_reject(now, from, reject);
            }
            Core::Rd(_) if reject == Reject::Crc => self.bad_checksum += 1,
            Core::Rd(_) => self.malformed += 1,
        }
    }

    /// Makes datagrams, as many as there are, may leave, and fit.
    pub(super) fn fill(
        &mut self,
        buffers: &mut Buffers,
        tools: &Tools<'_>,
        outbox: &mut Outbox,
        unsent: &mut Vec<(u32, Unsent)>,
    ) {
        let mut header = [0; HEADER_MAX];
        let held = Held::new(tools.registry);
        let memory = Memory {
            held: &held,
            buffers,
            sender: None,
        };
        self.paced = false;
        while !outbox.is_full()
            && let Some(room) = outbox.room(SUPER_PACKET_BYTES_MAX)
            && let Some((to, len)) = self.poll_whole(tools.now, room)
        {
            outbox.commit_alone(len, to, self.source(&to));
        }
        let mut last = None;
        while !outbox.is_full() {
            if let Some(bucket) = &mut self.bucket
                && !bucket.is_open(tools.now)
            {
                self.paced = self.core.has_outstanding();
                return;
            }
            let alike = last.take_if(|last| self.core.poll_alike(last, &mut header));
            let next = alike.or_else(|| self.core.poll_transmit(tools.now, &memory, &mut header));
            let Some(transmit) = next else { return };
            if let Some(bucket) = &mut self.bucket {
                bucket.take(transmit.payload_len as usize);
            }
            let is_put = self.put(tools.now, &memory, outbox, &transmit, &header);
            if let (false, Payload::Request { slot, .. }) = (is_put, transmit.payload) {
                unsent.push((slot, Unsent::Memory));
            }
            last = Some(transmit);
        }
    }

    /// The next datagram that leaves alone, whole, in `room`.
    fn poll_whole(&mut self, now: Time, room: &mut [u8]) -> Option<(SocketAddr, usize)> {
        let Some(sealing) = &mut self.sealing else {
            return self.core.poll_control(now, room);
        };
        if let Some(answer) = sealing.poll(now, room) {
            return Some(answer);
        }
        loop {
            let (_, inside) = room.split_at_mut_checked(SEALED_HEAD_LEN)?;
            let (to, len) = self.core.poll_control(now, inside)?;
            let len = sealed_len(len - CRC_LEN);
            let sealed = room.get_mut(..len)?;
            // One for a peer without keys is left out: the core repeats it.
            if sealing.seal(now, to, sealed) {
                return Some((to, len));
            }
        }
    }

    /// As [`ServiceSocket::put`], where the service is sealed.
    fn put_sealed(
        &mut self,
        now: Time,
        memory: &Memory<'_, '_>,
        outbox: &mut Outbox,
        transmit: &OutgoingDatagram,
        header: &[u8],
    ) -> bool {
        let sum_len = if transmit.is_whole { CRC_LEN } else { 0 };
        let header = &header[..transmit.header_len - sum_len];
        let len = sealed_len(header.len() + transmit.payload_len as usize);
        let (Some(sealing), Some(room)) = (&mut self.sealing, outbox.room(len)) else {
            return false;
        };
        let (head, rest) = room[SEALED_HEAD_LEN..].split_at_mut(header.len());
        head.copy_from_slice(header);
        let payload = &mut rest[..transmit.payload_len as usize];
        if !memory.held.fetch(memory.buffers, transmit.payload, payload) {
            return false;
        }
        // What a peer without keys would get is lost, as on the network.
        if sealing.seal(now, transmit.to, room) {
            let from = self.source(&transmit.to);
            outbox.commit(len, transmit.to, from, transmit.slot);
        }
        true
    }

    /// Puts header and payload into the outbox; none of it where the payload's memory is gone.
    fn put(
        &mut self,
        now: Time,
        memory: &Memory<'_, '_>,
        outbox: &mut Outbox,
        transmit: &OutgoingDatagram,
        header: &[u8],
    ) -> bool {
        if self.sealing.is_some() {
            return self.put_sealed(now, memory, outbox, transmit, header);
        }
        let crc_len = if transmit.is_whole { 0 } else { CRC_LEN };
        let len = transmit.header_len + transmit.payload_len as usize + crc_len;
        let Some(room) = outbox.room(len) else {
            return false;
        };
        let (head, rest) = room.split_at_mut(transmit.header_len);
        let payload = &mut rest[..transmit.payload_len as usize];
        head.copy_from_slice(&header[..transmit.header_len]);
        let (held, wanted) = (memory.held, transmit.payload);
        if !held.fetch(memory.buffers, wanted, payload) {
            return false;
        }
        if !transmit.is_whole {
            outbox.sum_later(len);
        }
        let from = self.source(&transmit.to);
        outbox.commit(len, transmit.to, from, transmit.slot);
        true
    }

    /// Takes errors that the network, or this host, reports about datagrams that were sent. One
    /// that quotes none of them is ignored.
    pub(super) fn note_errors(&mut self, now: Time) {
        for _ in 0..ERRORS {
            let Ok(Some(error)) = self.socket.next_error() else {
                return;
            };
            let quoted = error.quoted();
            let is_ours = match &self.sealing {
                Some(sealing) => sealing.has_sent(error.to, quoted),
                None => quoted.first_chunk::<SENDER_LEN>().and_then(sender) == Some(self.own),
            };
            if !error.local && !is_ours {
                continue;
            }
            self.undelivered += 1;
            self.complaint = true;
            if let Undelivered::TooLong { mtu } = error.why {
                self.note_path(now, error.to, mtu);
            }
        }
    }

    /// The route to `to` carries IP packets of `mtu` bytes; zero is not known.
    fn note_path(&mut self, now: Time, to: SocketAddr, mtu: u32) {
        let around = self.around();
        let octets = match mtu.checked_sub(headers(to) + around) {
            Some(octets) if octets >= DATAGRAM_MIN => octets,
            _ if mtu == 0 => PATH_BASE - around,
            _ => DATAGRAM_MIN,
        };
        self.core.handle_path(now, to.ip(), octets);
    }

    /// Bytes that sealing adds to each datagram.
    fn around(&self) -> u32 {
        self.sealing.as_ref().map_or(0, |_| AROUND)
    }

    /// Asks the host how long packets to `to` may be, if that was not asked in the last minutes.
    pub(super) fn ask_route(&mut self, now: Time, to: SocketAddr) {
        if !self.routes.is_asked(now, to.ip())
            && let Ok(mtu) = route_mtu(to)
            && mtu < PATH_MTU.into()
        {
            self.note_path(now, to, mtu);
        }
    }

    /// Whether to report to the application, once a second, that datagrams did not arrive.
    pub(super) fn take_complaint(&mut self, now: Time) -> bool {
        if !self.complaint || now < self.quiet_until {
            return false;
        }
        self.complaint = false;
        self.quiet_until = now.after(SECOND_NS);
        true
    }

    /// Asks the peers that requests wait for, as many at once as the core does.
    pub(super) fn ask(&mut self, validation: &mut Validation, now: Time) {
        let core = &mut self.core;
        validation.ask(|to| core.validate(now, to));
    }

    fn source(&self, to: &SocketAddr) -> Option<SocketAddr> {
        if self.anywhere {
            self.routes.source(to)
        } else {
            None
        }
    }

    pub(super) fn watch(&mut self, poller: &Poller, for_room: bool) {
        if std::mem::replace(&mut self.watched, for_room) == for_room {
            return;
        }
        let interest = if for_room {
            Interest::BOTH
        } else {
            Interest::READ
        };
        // It fails only for a socket that is not watched.
        let _ = poller.modify(&self.socket, self.token, interest);
    }
}
