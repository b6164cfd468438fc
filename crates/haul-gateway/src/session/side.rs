//! One side of a session at this gateway: the control connection, the memory and the data channels
//! of one segment, driven by its session.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;

use haul_slab::{AccessFlags, Region};
use haul_xsp::bag::{Memory, Place, Producer};
use haul_xsp::wire::Key;
use haul_xsp::{ChanId, Error, SECOND_NS, Session, SlabSeq, Time};

use crate::channel::{
    Accepted, DataConnection, Fabric, Guard, Lost, Network, News, Wanted, create_fabric,
};
use crate::config::ChannelKind;
use crate::control::Control;
use crate::rates::Meter;
use crate::status::{Limit, Segment};

/// Interval of a check for due slabs while there is no data channel, ns.
const NO_CHANNEL_NS: u64 = SECOND_NS / 10;
/// Bytes read from a control connection at a time.
const INPUT_BYTES: usize = 64 << 10;

/// Memory of one side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SideMemory {
    pub(crate) regions: u16,
    /// Zero at relays, which announce data in place.
    pub(crate) region_bytes: u64,
    pub(crate) arena_bytes: u64,
}

/// One side of a segment.
#[derive(Debug)]
pub(crate) struct SegmentSide {
    pub(crate) control: Option<Control>,
    pub(crate) fabric: Option<Box<dyn Fabric>>,
    /// Cookies of the present channels that are registered.
    pub(crate) cookies: Vec<[u8; 16]>,
    /// The peer, for log lines and the page.
    pub(crate) peer: String,
    /// Receives applications' data.
    ring: Vec<Region>,
    /// Receives data of the segment.
    arena: Region,
    /// Memory of each slab that the peer may read.
    slabs: HashMap<SlabSeq, Vec<Guard>>,
    /// Memory that the peer may write (push), by its place in the arena.
    grants: BTreeMap<u64, Guard>,
    /// Records without a checksum get one.
    verifies: bool,
    /// The rate limit of the class, if any.
    pub(crate) meter: Option<Meter>,
    /// The fabric has changed since slabs were written.
    is_fabric_new: bool,
    /// The producer is held until there is a data channel.
    awaits_channel: bool,
    news: Vec<News>,
    input: Vec<u8>,
    /// Bytes of `input` that the session has not handled.
    left: std::ops::Range<usize>,
    /// The control connection is full.
    pub(crate) waits_to_send: bool,
    /// The peer, or its system, ended the last control connection.
    pub(crate) was_left: bool,
    octets_in: u64,
    octets_out: u64,
}

impl SegmentSide {
    pub(crate) fn new(plan: &SideMemory, verifies: bool) -> io::Result<Self> {
        let map = |bytes: u64| Region::map(usize::try_from(bytes).unwrap_or(usize::MAX));
        let regions = if plan.region_bytes > 0 {
            plan.regions
        } else {
            0
        };
        let mut input = Vec::new();
        let taken = input.try_reserve_exact(INPUT_BYTES);
        taken.map_err(|_| io::ErrorKind::OutOfMemory)?;
        input.resize(INPUT_BYTES, 0);
        Ok(Self {
            control: None,
            fabric: None,
            cookies: Vec::new(),
            peer: String::new(),
            ring: (0..regions)
                .map(|_| map(plan.region_bytes))
                .collect::<io::Result<_>>()?,
            arena: map(plan.arena_bytes)?,
            slabs: HashMap::new(),
            grants: BTreeMap::new(),
            verifies,
            meter: None,
            is_fabric_new: false,
            awaits_channel: false,
            news: Vec::new(),
            input,
            left: 0..0,
            waits_to_send: false,
            was_left: false,
            octets_in: 0,
            octets_out: 0,
        })
    }

    /// Creates a side with a control connection only.
    pub(crate) fn bare(verifies: bool) -> io::Result<Self> {
        let plan = SideMemory {
            regions: 0,
            region_bytes: 0,
            arena_bytes: 1,
        };
        Self::new(&plan, verifies)
    }

    /// Discards unread input of a lost control connection.
    pub(crate) fn forget_input(&mut self) {
        self.left = 0..0;
        self.waits_to_send = false;
    }

    /// Returns all memory to the system until it is used again. It must be empty.
    pub(crate) fn discard(&self) {
        self.ring.iter().for_each(Region::discard);
        self.arena.discard();
    }

    pub(crate) const fn arena(&self) -> &Region {
        &self.arena
    }

    /// Returns a region of the ring.
    pub(crate) fn region(&self, index: u16) -> Option<&Region> {
        self.ring.get(usize::from(index))
    }

    // The control connection.

    /// Reads and handles input of the control connection. Returns whether there was any.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn receive(&mut self, session: &mut Session, now: Time) -> Result<bool, Lost> {
        let mut progress = false;
        loop {
            while !self.left.is_empty() {
                let result = session.handle_input(now, &self.input[self.left.clone()]);
                // Inline data counts as placed.
                self.place_inline(session)?;
                let taken = match result {
                    Ok(taken) => taken,
                    Err(error @ Error::Damaged) => {
                        self.left = 0..0;
                        return Err(Lost(error.to_string()));
                    }
                    // The final messages name the peer's violation.
                    Err(_) => {
                        self.left = 0..0;
                        return Ok(true);
                    }
                };
                self.left.start += taken;
                if taken == 0 {
                    return Ok(progress);
                }
                progress = true;
            }
            let Some(control) = &mut self.control else {
                return Ok(progress);
            };
            match control.read(&mut self.input) {
                Ok(0) => {
                    self.was_left = true;
                    return Err(Lost("the peer closed its control connection".to_owned()));
                }
                Ok(count) => self.left = 0..count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(progress),
                Err(error) => {
                    self.was_left = matches!(
                        error.kind(),
                        io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof
                    );
                    return Err(Lost(error.to_string()));
                }
            }
        }
    }

    /// Copies inline data of announcements into the arena.
    fn place_inline(&mut self, session: &mut Session) -> Result<(), Lost> {
        while let Some(inline) = session.consumer().poll_inline() {
            self.octets_in += inline.octets.len() as u64;
            let at = usize::try_from(inline.at).unwrap_or(usize::MAX);
            let written = self.arena.write(at, &inline.octets);
            written.map_err(|error| Lost(error.to_string()))?;
        }
        Ok(())
    }

    /// Sends the session's messages. Returns whether some wait for room.
    pub(crate) fn transmit(&mut self, session: &mut Session, now: Time) -> Result<bool, Lost> {
        let Some(control) = &mut self.control else {
            return Ok(false);
        };
        while control.has_room() {
            let Some(octets) = session.poll_transmit(now) else {
                break;
            };
            control.push(octets);
        }
        control
            .flush()
            .map(|is_sent| !is_sent)
            .map_err(|error| Lost(error.to_string()))
    }

    // Slabs.

    /// Performs the session's requests. `foreign` is the other side's memory, from which a relay
    /// announces. Returns whether there was anything to do.
    pub(crate) fn settle(
        &mut self,
        session: &mut Session,
        foreign: Option<&Region>,
        now: Time,
    ) -> Result<bool, Lost> {
        if std::mem::take(&mut self.is_fabric_new) {
            session.consumer().forget_writes();
            session.producer().write_again();
        }
        let mut progress = self.handle_news(session, now);
        while let Some(seq) = session.producer().poll_retired() {
            self.slabs.remove(&seq);
            progress = true;
        }
        while let Some((at, len)) = session.consumer().poll_closed() {
            let closed: Vec<u64> = self.grants.range(at..at + len).map(|(at, _)| *at).collect();
            closed.iter().for_each(|at| drop(self.grants.remove(at)));
            progress = true;
        }
        if std::mem::take(&mut self.awaits_channel) {
            // There may be a channel now, or room in the announcements.
            session.producer().release();
        }
        let fabric = self.fabric.as_ref();
        let has_channel = fabric.is_some_and(|fabric| fabric.lanes_up() > 0);
        session.set_channel(has_channel);
        if has_channel {
            progress |= self.move_octets(session, foreign, now)?;
        } else {
            progress |= self.announce_little(session, foreign, now)?;
        }
        while let Some(verify) = session.consumer().poll_verify() {
            let mut crc = 0;
            for (at, len) in
                session
                    .consumer()
                    .places(verify.conn, verify.offset, u64::from(verify.len))
            {
                crc = continued(crc, &self.arena, at, len);
            }
            if let Err(breach) = session.consumer().handle_verified(&verify, crc) {
                session.fail_slab(breach);
            }
            progress = true;
        }
        Ok(progress)
    }

    /// Announces slabs that need no data channel inline, so that a first request does not wait for
    /// one.
    fn announce_little(
        &mut self,
        session: &mut Session,
        foreign: Option<&Region>,
        now: Time,
    ) -> Result<bool, Lost> {
        let mut progress = false;
        if let Some(meter) = &self.meter {
            meter.pack(session, now, Producer::inline_room);
        }
        while let Some(seq) = session.producer().poll_keyless(now) {
            self.announce(session, foreign, seq)?;
            progress = true;
        }
        let producer = session.producer();
        if producer.is_due(now) && !producer.is_held() {
            producer.hold(now.after(NO_CHANNEL_NS));
            self.awaits_channel = true;
        }
        Ok(progress)
    }

    /// Announces a slab: opens its memory to the peer, or takes its data inline.
    fn announce(
        &mut self,
        session: &mut Session,
        foreign: Option<&Region>,
        seq: SlabSeq,
    ) -> Result<(), Lost> {
        // If it was announced before, its old keys are invalid.
        self.slabs.remove(&seq);
        let records = session.producer().records(seq).enumerate();
        let records: Vec<_> = records
            .map(|(index, (record, place))| (index, record.crc.is_none() && record.len > 0, place))
            .collect();
        let mut inline = session.producer().is_inline(seq).then(Vec::new);
        let mut keys: Vec<(Place, Key)> = Vec::with_capacity(records.len());
        let mut opened = Vec::with_capacity(records.len());
        for (index, is_bare, place) in &records {
            let region = local(&self.ring, foreign, place);
            let Some(region) = region.filter(|_| place.len > 0) else {
                continue;
            };
            if *is_bare && self.verifies {
                session
                    .producer()
                    .set_crc(seq, *index, checksum(region, place.at, place.len));
            }
            self.octets_out += place.len;
            if let Some(inline) = &mut inline {
                append(inline, region, place)?;
                continue;
            }
            let fabric = self.fabric.as_mut();
            let fabric = fabric.ok_or_else(|| Lost("there is no data channel".to_owned()))?;
            let (guard, key) =
                fabric.open(region, place.at, place.len, AccessFlags::REMOTE_READ)?;
            opened.push(guard);
            keys.push((*place, key));
        }
        if let Some(octets) = inline {
            session.producer().announce_inline(seq, octets);
            return Ok(());
        }
        let key = |wanted| {
            let found = keys.iter().find(|(place, _)| *place == wanted);
            found.map_or_else(Key::default, |(_, key)| *key)
        };
        session.producer().announce(seq, key);
        self.slabs.insert(seq, opened);
        Ok(())
    }

    fn move_octets(
        &mut self,
        session: &mut Session,
        foreign: Option<&Region>,
        now: Time,
    ) -> Result<bool, Lost> {
        let mut progress = false;
        if let Some(meter) = &self.meter {
            meter.pack(session, now, |_| u64::MAX);
        }
        while let Some(seq) = session.producer().poll_sealed(now) {
            self.announce(session, foreign, seq)?;
            progress = true;
        }
        let Some(fabric) = &mut self.fabric else {
            return Ok(progress);
        };
        let memory = |place: &Place| local(&self.ring, foreign, place);
        while let Some(grant) = session.consumer().poll_grant() {
            let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
            let (guard, key) = fabric.open(&self.arena, grant.at, grant.len, access)?;
            self.grants.insert(grant.at, guard);
            session.consumer().granted(&grant, key);
            progress = true;
        }
        let put_bytes = fabric.put_bytes_max();
        loop {
            let put = session.producer().poll_put(now, put_bytes);
            while let Some(seq) = session.producer().poll_mark() {
                fabric.mark(seq);
                progress = true;
            }
            let Some(put) = put else {
                break;
            };
            let region = memory(&put.place);
            let region = region.ok_or_else(|| Lost("a range outside its region".to_owned()))?;
            fabric.put(&put, region)?;
            self.octets_out += put.place.len;
            progress = true;
        }
        while let Some(get) = session.consumer().poll_get(now) {
            self.octets_in += u64::from(get.len);
            fabric.get(get);
            progress = true;
        }
        fabric.post()?;
        Ok(progress)
    }

    /// Passes outcomes of reads and writes to the session; other events stay for the caller.
    fn handle_news(&mut self, session: &mut Session, now: Time) -> bool {
        let mut progress = false;
        let mut others = Vec::new();
        for news in std::mem::take(&mut self.news) {
            let result = match news {
                News::Got(id, is_placed) => session.consumer().handle_got(now, id, is_placed),
                News::Put(id, is_done) => session.producer().handle_put(id, is_done),
                News::Written(seq) => session.consumer().handle_written(now, seq),
                other => {
                    others.push(other);
                    continue;
                }
            };
            progress = true;
            if let Err(breach) = result {
                session.fail_slab(breach);
            }
        }
        self.news = others;
        progress
    }

    // Data channels.

    /// Polls reads, writes and queue pairs.
    pub(crate) fn poll_fabric(&mut self, now: Time) -> Result<(), Lost> {
        match &mut self.fabric {
            Some(fabric) => fabric.poll(now, &mut self.news),
            None => Ok(()),
        }
    }

    /// Whether the data channels have broken: the end of the control connection may only follow
    /// from that at the peer.
    pub(crate) fn has_broken(&mut self, now: Time) -> bool {
        match self.poll_fabric(now) {
            Ok(()) => self.fabric.as_deref().is_some_and(Fabric::has_broken),
            Err(_) => true,
        }
    }

    /// Closes the sending direction of the control connection. What the peer has sent is still
    /// read.
    pub(crate) fn finish_control(&mut self) {
        if let Some(control) = &mut self.control {
            control.finish();
        }
    }

    /// Returns when the data channels must be polled even if nothing has happened.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.fabric.as_ref()?.poll_timeout()
    }

    /// Accepts a data connection of this segment. Returns the number of its queue pair, if its
    /// events are wanted.
    pub(crate) fn accept(
        &mut self,
        chan: ChanId,
        connection: DataConnection,
    ) -> Result<Option<u32>, Lost> {
        match &mut self.fabric {
            Some(fabric) => fabric.accept(chan, connection, &mut self.news),
            None => Ok(None),
        }
    }

    /// Handles the outcome of an accepted queue pair.
    pub(crate) fn on_accepted(&mut self, kind: ChannelKind, qp_num: u32, what: Accepted) {
        if let Some(fabric) = self.fabric.as_mut().filter(|fabric| fabric.kind() == kind) {
            fabric.on_accepted(qp_num, what, &mut self.news);
        }
    }

    /// Takes events of channels since the last call.
    pub(crate) fn take_news(&mut self) -> Vec<News> {
        let is_other =
            |news: &News| !matches!(news, News::Got(..) | News::Put(..) | News::Written(..));
        let (others, rest) = std::mem::take(&mut self.news)
            .into_iter()
            .partition(is_other);
        self.news = rest;
        others
    }

    /// Replaces the data channels.
    pub(crate) fn replace_fabric(&mut self, network: &Network, wanted: Wanted) -> Result<(), Lost> {
        self.end_fabric();
        self.fabric = Some(create_fabric(network, &self.arena, wanted)?);
        self.is_fabric_new = true;
        Ok(())
    }

    /// Ends all data channels: nothing is placed afterwards, and everything in flight fails.
    pub(crate) fn end_fabric(&mut self) {
        if let Some(fabric) = self.fabric.take() {
            fabric.end(&mut self.news);
        }
        // Those slabs will be written again.
        self.news.retain(|news| !matches!(news, News::Written(..)));
    }

    /// Returns where peers reach `network`: by default at the address that the control connection
    /// has reached.
    pub(crate) fn reachable(&self, network: &Network) -> Option<SocketAddr> {
        let mut address = network.public.or(network.listen)?;
        if address.ip().is_unspecified() {
            address.set_ip(self.control.as_ref()?.stream().local_addr()?.ip());
        }
        Some(address)
    }

    /// Returns the status for the page.
    pub(crate) fn status(&self, session: &mut Session) -> Segment {
        let identity = session.peer().map(str::to_owned);
        let (ring_used, ring_size) = match self.ring.is_empty() {
            // A relay has no ring.
            true => (0, 0),
            false => session.producer().occupancy(),
        };
        let (arena_used, arena_size) = session.consumer().occupancy();
        let (window_used, window_size) = session.producer().window();
        let fabric = self.fabric.as_deref();
        let lanes = fabric.map_or(0, Fabric::lanes_up);
        Segment {
            peer: self.peer.clone(),
            state: String::new(),
            identity,
            channel: fabric.filter(|_| lanes > 0).map(Fabric::kind),
            lanes,
            rtt_ns: session.consumer().estimate().rtt_ns().unwrap_or(0),
            octets_out: self.octets_out,
            octets_in: self.octets_in + session.consumer().pushed_bytes(),
            rate_out: 0.0,
            rate_in: 0.0,
            ring_used,
            ring_size,
            arena_used,
            arena_size,
            window_used,
            window_size,
            slabs_unacked: session.producer().unacked(),
            posts: fabric.map_or(0, Fabric::posts),
            resent: fabric.map_or(0, Fabric::resent),
            out_of_order: fabric.map_or(0, Fabric::out_of_order),
            limit: Limit::Idle,
        }
    }
}

/// Returns the memory that contains a place.
fn local<'a>(ring: &'a [Region], foreign: Option<&'a Region>, place: &Place) -> Option<&'a Region> {
    match place.memory {
        Memory::Region(region) => ring.get(usize::from(region.0)),
        Memory::Foreign => foreign,
    }
}

/// Returns the CRC32C of a range of a region; 0 outside of it.
pub(crate) fn checksum(region: &Region, at: u64, len: u64) -> u32 {
    continued(0, region, at, len)
}

/// Appends bytes of a region.
fn append(to: &mut Vec<u8>, region: &Region, place: &Place) -> Result<(), Lost> {
    let outside = || Lost("a range outside its region".to_owned());
    let (Ok(at), Ok(len)) = (usize::try_from(place.at), usize::try_from(place.len)) else {
        return Err(outside());
    };
    let before = to.len();
    to.resize(before + len, 0);
    region.read(at, &mut to[before..]).map_err(|_| outside())
}

/// Continues a CRC32C over a range of a region.
fn continued(before: u32, region: &Region, at: u64, len: u64) -> u32 {
    let (Ok(at), Ok(len)) = (usize::try_from(at), usize::try_from(len)) else {
        return before;
    };
    let mut crc = before;
    // Outside of the region nothing is checked, and the peer's checksum will not match.
    let _ = region.visit(at, len, |octets| {
        crc = haul_xsp::crc32c_continued(crc, octets)
    });
    crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Means;

    fn reachable(listen: Option<&str>, public: Option<&str>) -> Option<String> {
        let network = Network {
            kind: ChannelKind::Tcp,
            means: Means::Tcp,
            listen: listen.map(|listen| listen.parse().unwrap()),
            public: public.map(|public| public.parse().unwrap()),
        };
        let segment = SegmentSide::bare(false).unwrap();
        let address = segment.reachable(&network)?;
        Some(address.to_string())
    }

    #[test]
    fn the_public_address_is_announced_to_peers_if_there_is_one() {
        let (own, public) = (Some("192.0.2.1:7403"), Some("198.51.100.1:9000"));
        assert_eq!(reachable(own, None).as_deref(), own);
        assert_eq!(reachable(own, public).as_deref(), public);
        // Without a control connection, the address that peers have reached is unknown.
        assert_eq!(reachable(Some("0.0.0.0:7403"), None), None);
        assert_eq!(reachable(None, None), None);
    }
}
