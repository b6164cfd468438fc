//! Reliable datagrams of an RDMA device: no connections, but a queue pair at each end of a channel
//! that knows its peer. Reads are RDMA Reads, writes RDMA Writes. The first Send carries the
//! cookie, later ones are marks behind writes.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use haul_slab::{AccessFlags, Region};
use haul_verbs::{
    Context, DatagramInit, Error, Mr, Peer, Qp, QpCapacity, QpInit, QpType, RecvWr, SendOp, SendWr,
    Sge, Sources, WcStatus, WorkCompletion,
};
use haul_xsp::bag::{Get, Put};
use haul_xsp::wire::{ChanParams, Key};
use haul_xsp::{ChanId, SlabSeq, Time};

use super::fabric::{
    CONNECT_NS, DataConnection, Fabric, Guard, Lost, News, READS_MAX, Wanted, meeting_point,
};
use super::work::{Lane, MARK_BYTES, Opens, Work};
use crate::config::ChannelKind;

/// Packets in flight: the protocol's maximum, 96 MB of Ethernet packets.
const WINDOW_PACKETS: u32 = 65_536;
/// Ports tried from the configured one on.
const PORTS: u16 = 64;
/// Length of a Send, bytes: a cookie, or a mark.
const SEND_BYTES: u32 = 16;
const _: () = assert!(SEND_BYTES == MARK_BYTES, "they share receives");
/// Sends of unknown peers that are kept.
const EARLY_MAX: usize = 256;
/// Receives for cookies, for each queue pair.
const RECEIVES: u32 = 8;
/// Marks work requests that are neither read nor write: the Send of a cookie, or a receive with its
/// place in the memory of cookies.
const COOKIE: u64 = 1 << 63;
const RECEIVE: u64 = COOKIE | 1 << 62;

/// Receives of a queue pair.
const fn places_of(work: &Work) -> u32 {
    RECEIVES + work.marks_max()
}

/// Queue pairs with one peer each, and what they share.
#[derive(Debug)]
pub(super) struct Datagram {
    kind: ChannelKind,
    // Before what they use: dropped first, so that nothing is placed after the memory is gone.
    lanes: Vec<Lane>,
    has_broken: bool,
    /// Sends to queue pairs whose peer is unknown; the peer's cookie is among them. At most
    /// [`EARLY_MAX`].
    early: VecDeque<(ChanId, Peer, [u8; SEND_BYTES as usize])>,
    /// Channels whose cookie is in flight, with their deadlines.
    cookies_sent: Vec<(ChanId, Time)>,
    /// Memory for cookies and marks, and the places in use.
    sends: Mr,
    used: u32,
    work: Work,
    listen: Option<SocketAddr>,
    wanted: Wanted,
}

impl Datagram {
    /// Creates the fabric without queue pairs. Reads go to `arena`. Queue pairs that the peer asks
    /// for are bound at `listen`.
    pub(super) fn new(
        kind: ChannelKind,
        context: &Context,
        listen: Option<SocketAddr>,
        arena: &Region,
        wanted: Wanted,
    ) -> Result<Self, Lost> {
        let work = Work::new(context, arena, &wanted, Opens::Parts)?;
        let places = u32::from(wanted.lanes) * places_of(&work);
        let region = Region::map((places * SEND_BYTES) as usize)?;
        Ok(Self {
            kind,
            lanes: Vec::new(),
            has_broken: false,
            early: VecDeque::new(),
            cookies_sent: Vec::new(),
            sends: work.pd.reg_mr(&region, AccessFlags::LOCAL_WRITE)?,
            used: 0,
            work,
            listen,
            wanted,
        })
    }

    fn qp(&self) -> Result<Qp, Error> {
        self.work.pd.create_qp(&QpInit {
            qp_type: QpType::Rd,
            capacity: QpCapacity {
                max_send_wr: u32::from(READS_MAX) * 2,
                max_recv_wr: places_of(&self.work),
                ..QpCapacity::default()
            },
            rate_limit: self.wanted.lane_limit(),
            datagram: {
                let mut datagram = DatagramInit::default();
                datagram.window = WINDOW_PACKETS;
                // Cookies are single packets; a gap that an unknown sender leaves holds nothing
                // back.
                datagram.receives_in_order = true;
                datagram
            },
            ..QpInit::new(&self.work.cq)
        })
    }

    /// Takes places for Sends.
    fn places(&mut self, count: u32) -> Result<std::ops::Range<u32>, Lost> {
        let places = self.used..self.used + count;
        if places.end > u32::from(self.wanted.lanes) * places_of(&self.work) {
            return Err(Lost("more channels than were asked for".to_owned()));
        }
        self.used = places.end;
        Ok(places)
    }

    fn place(&self, place: u32) -> Sge {
        self.sends.sge(u64::from(place * SEND_BYTES), SEND_BYTES)
    }

    fn receive(&self, qp: &Qp, place: u32) -> Result<(), Lost> {
        let request = RecvWr::new(RECEIVE | u64::from(place), self.place(place));
        qp.post_recv(&[request])
            .map_err(|refused| refused.error.into())
    }

    fn bind(&self, qp: &Qp) -> Result<SocketAddr, Lost> {
        let listen = self.listen.ok_or_else(|| Lost("no address".to_owned()))?;
        if listen.port() == 0 {
            return Ok(qp.bind(listen)?);
        }
        let ports = (0..PORTS).filter_map(|further| listen.port().checked_add(further));
        let mut result = Err(Lost("there are not so many ports".to_owned()));
        for port in ports {
            result = qp
                .bind(SocketAddr::new(listen.ip(), port))
                .map_err(Lost::from);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// Handles a Send that has arrived, or the completion of this end's cookie.
    fn on_other(&mut self, done: &WorkCompletion, news: &mut Vec<News>) -> Result<(), Lost> {
        let is_done = done.status == WcStatus::Success;
        let of = |lane: &&mut Lane| lane.qp.qp_num() == done.qp_num;
        let Some(lane) = self.lanes.iter_mut().find(of) else {
            return Ok(());
        };
        let chan = lane.chan;
        if done.wr_id & RECEIVE == RECEIVE {
            if !is_done {
                return Ok(());
            }
            let place = u32::try_from(done.wr_id & !RECEIVE).unwrap_or(u32::MAX);
            let mut octets = [0; SEND_BYTES as usize];
            let at = place.saturating_mul(SEND_BYTES) as usize;
            let read = self.sends.region().read(at, &mut octets).is_ok();
            let (qp, peer, is_up) = (lane.qp.clone(), lane.peer, lane.is_up);
            match done.src.filter(|_| read && done.byte_len == SEND_BYTES) {
                // The peer is admitted already; only the acknowledgement of this end's cookie is
                // missing.
                Some(source) if Some(source) == peer => self.work.marked(octets, news)?,
                Some(source) if !is_up => {
                    if self.early.len() == EARLY_MAX {
                        self.early.pop_front();
                    }
                    self.early.push_back((chan, source, octets));
                    news.push(News::Shown(chan, source, octets));
                }
                // An unknown sender is too late.
                _ => {}
            }
            // Whoever sent it, the next Send is received as well.
            return self.receive(&qp, place);
        }
        if is_done {
            lane.is_up = true;
            news.push(News::Up);
        } else if self.cookies_sent.iter().any(|(known, _)| *known == chan) {
            let why = format!("the peer did not take the cookie ({:?})", done.status);
            news.push(News::Failed(chan, why));
        }
        self.cookies_sent.retain(|(known, _)| *known != chan);
        Ok(())
    }

    /// Without connections, a failed request tells that the peer is gone.
    fn judge(&mut self, news: &mut Vec<News>) {
        for lane in self.lanes.iter_mut().filter(|lane| lane.is_up) {
            if let Some(status) = lane.failure {
                lane.is_up = false;
                self.has_broken = true;
                news.push(News::Down(format!("a read or write failed ({status:?})")));
            }
        }
    }

    /// Returns the addresses of the peers that may use memory: their further queue pairs are at the
    /// same address.
    fn sources(&self) -> Sources {
        let peers = self.lanes.iter().filter_map(|lane| lane.peer);
        Sources::Of(peers.map(|peer| (peer.addr.ip(), None)).collect())
    }
}

impl Fabric for Datagram {
    fn kind(&self) -> ChannelKind {
        self.kind
    }

    fn prepare(&mut self, params: &mut ChanParams) -> Result<Option<u16>, Lost> {
        let qp = self.qp()?;
        let address = self.bind(&qp)?;
        for place in self.places(places_of(&self.work))? {
            self.receive(&qp, place)?;
        }
        params.params.qpn = Some(qp.qp_num());
        self.lanes.push(Lane::new(params.chan, qp));
        Ok(Some(address.port()))
    }

    fn connect(&mut self, now: Time, params: &ChanParams) -> Result<(), Lost> {
        let (address, cookie) = meeting_point(params)?;
        let qp_num = params.params.qpn;
        let qp_num = qp_num.ok_or_else(|| Lost("the peer names no queue pair".to_owned()))?;
        let own: IpAddr = match address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let qp = self.qp()?;
        qp.bind(SocketAddr::new(own, 0))?;
        // The first is for the cookie.
        let places = self.places(1 + self.work.marks_max())?;
        let place = places.start;
        for place in places.skip(1) {
            self.receive(&qp, place)?;
        }
        let at = (place * SEND_BYTES) as usize;
        let written = self.sends.region().write(at, &cookie);
        written.map_err(|error| Lost(error.to_string()))?;
        let peer = Peer::new(address, qp_num);
        let connection = SendWr::new(COOKIE, SendOp::Send, self.place(place)).to(peer);
        qp.post_send(&[connection])
            .map_err(|refused| Lost::from(refused.error))?;
        self.cookies_sent.push((params.chan, now.after(CONNECT_NS)));
        let mut lane = Lane::new(params.chan, qp);
        lane.peer = Some(peer);
        self.lanes.push(lane);
        Ok(())
    }

    fn accept(
        &mut self,
        _: ChanId,
        _: DataConnection,
        _: &mut Vec<News>,
    ) -> Result<Option<u32>, Lost> {
        Err(Lost("a connection where there are none".to_owned()))
    }

    fn admit(&mut self, chan: ChanId, peer: Peer, news: &mut Vec<News>) {
        let of = |lane: &&mut Lane| lane.chan == chan && !lane.is_up;
        let Some(lane) = self.lanes.iter_mut().find(of) else {
            return;
        };
        (lane.peer, lane.is_up) = (Some(peer), true);
        news.push(News::Up);
        // Marks may have followed its cookie.
        let early = std::mem::take(&mut self.early).into_iter();
        let (own, others): (VecDeque<_>, _) =
            early.partition(|(of, source, _)| (*of, *source) == (chan, peer));
        self.early = others;
        for (_, _, octets) in own.into_iter().skip(1) {
            if let Err(Lost(why)) = self.work.marked(octets, news) {
                self.has_broken = true;
                news.push(News::Down(why));
                return;
            }
        }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.work.descriptor()]
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.cookies_sent.iter().map(|(_, until)| *until).min()
    }

    fn poll(&mut self, now: Time, news: &mut Vec<News>) -> Result<(), Lost> {
        let mut others = Vec::new();
        self.work
            .poll(&mut self.lanes, news, |done| others.push(*done))?;
        for done in others {
            self.on_other(&done, news)?;
        }
        self.judge(news);
        let late = |(_, until): &mut (ChanId, Time)| *until <= now;
        for (chan, _) in self.cookies_sent.extract_if(.., late) {
            news.push(News::Failed(chan, "nobody has answered".to_owned()));
        }
        Ok(())
    }

    fn has_broken(&self) -> bool {
        self.has_broken
    }

    fn lanes_up(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.is_up).count()
    }

    fn posts(&self) -> usize {
        self.work.posts()
    }

    fn resent(&self) -> u64 {
        let of = |lane: &Lane| {
            let statistics = lane.qp.datagram_statistics();
            statistics.map_or(0, |statistics| statistics.resent)
        };
        self.lanes.iter().map(of).sum()
    }

    fn open(
        &mut self,
        region: &Region,
        at: u64,
        len: u64,
        access: AccessFlags,
    ) -> Result<(Guard, Key), Lost> {
        let sources = self.sources();
        Ok(self.work.open(region, at, len, access, sources)?)
    }

    fn get(&mut self, get: Get) {
        self.work.get(get);
    }

    fn put(&mut self, put: &Put, region: &Region) -> Result<(), Lost> {
        Ok(self.work.put(put, region)?)
    }

    fn mark(&mut self, seq: SlabSeq) {
        self.work.mark(seq);
    }

    fn post(&mut self) -> Result<(), Lost> {
        self.work.post(&mut self.lanes)
    }

    fn end(self: Box<Self>, news: &mut Vec<News>) {
        drop(self.lanes);
        self.work.end(news);
    }
}

#[cfg(test)]
mod tests {
    use haul_io::notify;
    use haul_xsp::SECOND_NS;
    use haul_xsp::wire::{Address, Endpoint, Params, Proto};

    use super::*;

    const NOW: Time = Time::from_ns(7);
    const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    fn fabric(listen: Option<SocketAddr>) -> Datagram {
        let provider = haul_soft::rnic::provider(haul_soft::rnic::Options::default());
        let devices = provider.devices().unwrap();
        let device = devices.iter().find(|device| device.name() == "soft-udp");
        let context = device.unwrap().open().unwrap();
        let wanted = Wanted {
            lanes: 2,
            limit: None,
            pushes: false,
        };
        let arena = Region::map(4096).unwrap();
        Datagram::new(ChannelKind::Udp, &context, listen, &arena, wanted).unwrap()
    }

    fn params(chan: u32) -> ChanParams {
        ChanParams {
            chan: ChanId(chan),
            proto: Proto::IwarpRd,
            role: 0,
            params: Params::default(),
            endpoints: Vec::new(),
            cookie: Some([9; 16]),
        }
    }

    /// Prepares a channel of `far`, as its peer learns of it.
    fn prepared(far: &mut Datagram, chan: u32) -> ChanParams {
        let mut params = params(chan);
        let port = far.prepare(&mut params).unwrap().unwrap();
        params.endpoints.push(Endpoint {
            port,
            address: Address::V4([127, 0, 0, 1]),
        });
        params
    }

    /// Polls until there is news, for at most five seconds.
    fn news(fabric: &mut Datagram) -> Vec<News> {
        let mut news = Vec::new();
        for _ in 0..500 {
            fabric.poll(NOW, &mut news).unwrap();
            if !news.is_empty() {
                break;
            }
            notify::wait_readable([fabric.work.descriptor()], Some(SECOND_NS / 100)).unwrap();
        }
        news
    }

    fn shown(fabric: &mut Datagram) -> (ChanId, Peer, [u8; 16]) {
        let news = news(fabric);
        let [News::Shown(chan, peer, cookie)] = news[..] else {
            panic!("{news:?}");
        };
        (chan, peer, cookie)
    }

    #[test]
    fn a_cookie_is_shown_and_what_is_read_arrives() {
        let (mut near, mut far) = (fabric(None), fabric(Some(LOCAL)));
        let params = prepared(&mut far, 1);
        near.connect(NOW, &params).unwrap();
        let (chan, peer, cookie) = shown(&mut far);
        assert_eq!((chan, cookie), (ChanId(1), [9; 16]));
        let mut up = Vec::new();
        far.admit(chan, peer, &mut up);
        assert!(matches!(up[..], [News::Up]));
        assert!(matches!(news(&mut near)[..], [News::Up]));
        let source = Region::map(4096).unwrap();
        source.fill(0, 4096, 5).unwrap();
        let opened = far.open(&source, 96, 4000, AccessFlags::REMOTE_READ);
        let (_guard, key) = opened.unwrap();
        let id = haul_xsp::bag::GetId(3);
        let (at, len) = (0, 4000);
        near.get(Get { id, key, at, len });
        near.post().unwrap();
        assert!(matches!(news(&mut near)[..], [News::Got(got, true)] if got == id));
    }

    #[test]
    fn unknown_senders_keep_nobody_out() {
        let mut far = fabric(Some(LOCAL));
        let params = prepared(&mut far, 1);
        for guess in 0..3 * RECEIVES {
            let mut other = fabric(None);
            let wrong = ChanParams {
                cookie: Some([100 + guess.to_le_bytes()[0]; 16]),
                ..params.clone()
            };
            other.connect(NOW, &wrong).unwrap();
            let (_, _, cookie) = shown(&mut far);
            assert_ne!(cookie, [9; 16]);
        }
        assert_eq!(far.lanes_up(), 0);
        let mut near = fabric(None);
        near.connect(NOW, &params).unwrap();
        let (_, _, cookie) = shown(&mut far);
        assert_eq!(cookie, [9; 16]);
    }

    #[test]
    fn a_port_that_is_named_is_the_first_of_those_that_are_used() {
        let mut far = fabric(Some(LOCAL));
        let first = far.prepare(&mut params(1)).unwrap().unwrap();
        let mut other = fabric(Some(SocketAddr::new(LOCAL.ip(), first)));
        let second = other.prepare(&mut params(1)).unwrap().unwrap();
        assert!((first + 1..first + PORTS).contains(&second), "{second}");
        // As many queue pairs as were asked for, and no more.
        assert!(other.prepare(&mut params(2)).is_ok());
        assert!(other.prepare(&mut params(3)).is_err());
    }

    #[test]
    fn one_who_does_not_answer_is_not_waited_for_for_ever() {
        let (mut near, mut far) = (fabric(None), fabric(Some(LOCAL)));
        let params = prepared(&mut far, 1);
        drop(far);
        near.connect(NOW, &params).unwrap();
        let until = near.poll_timeout().unwrap();
        let mut news = Vec::new();
        near.poll(until, &mut news).unwrap();
        let [News::Failed(ChanId(1), why)] = &news[..] else {
            panic!("{news:?}");
        };
        assert!(why.contains("nobody"), "{why}");
        assert_eq!(near.poll_timeout(), None);
    }
}
