//! Data channels that are TCP connections. The reading end requests, and the response comes on any
//! stream with room.

use std::os::fd::{AsFd as _, BorrowedFd};

use haul_io::clock::Clock;
use haul_io::poller::{Events, Interest, Poller};
use haul_io::stream::Stream;
use haul_slab::{AccessFlags, Region};
use haul_xsp::bag::{Get, Put};
use haul_xsp::wire::{ChanParams, Key};
use haul_xsp::{ChanId, SlabSeq, Time};

use super::fabric::{CONNECT_NS, DataConnection, Fabric, Guard, Lost, News, Wanted, meeting_point};
use super::flow::{Inlet, Outlet, Sent};
use super::frame::{Frame, PIECE_BYTES};
use super::ledger::Ledger;
use super::tcp;
use crate::config::ChannelKind;

/// Bytes that one stream may bring, and all may send, before others are served.
const TURN_BYTES: usize = 2 << 20;

/// A data channel: a byte stream.
#[derive(Debug)]
struct Lane {
    chan: ChanId,
    number: u64,
    stream: Stream,
    /// The deadline while this end connects.
    connecting: Option<Time>,
    out: Outlet,
    into: Inlet,
    /// The stream was full.
    is_blocked: bool,
    /// Bytes may have arrived.
    is_ready: bool,
    interest: Interest,
    /// Why it could not connect.
    failure: Option<String>,
}

impl Lane {
    fn is_up(&self) -> bool {
        self.connecting.is_none()
    }

    /// Events that the poller waits for.
    fn wants(&self) -> Interest {
        Interest {
            readable: true,
            writable: self.is_blocked,
        }
    }
}

/// Byte streams, and what they share.
#[derive(Debug)]
pub(super) struct Streams {
    // Before what they place into.
    lanes: Vec<Lane>,
    /// There is no memory for more channels.
    wanted: Wanted,
    ledger: Ledger,
    poller: Poller,
    events: Events,
    next: u64,
    /// The stream that sends first.
    turn: usize,
    has_broken: bool,
}

impl Streams {
    /// Creates the fabric without streams; at most as many as `wanted` follow. Reads go to `arena`.
    pub(super) fn new(arena: &Region, wanted: Wanted) -> std::io::Result<Self> {
        let seed = haul_io::random::bytes::<16>()?;
        let (words, _) = seed.as_chunks::<8>();
        let seed = [0, 1].map(|at: usize| words.get(at).copied().map_or(0, u64::from_ne_bytes));
        Ok(Self {
            lanes: Vec::new(),
            wanted,
            ledger: Ledger::new(arena, seed),
            poller: Poller::new()?,
            events: Events::with_capacity(16),
            next: 0,
            turn: 0,
            has_broken: false,
        })
    }

    fn add(&mut self, lane: Lane) -> Result<(), Lost> {
        if self.lanes.len() == usize::from(self.wanted.lanes) {
            return Err(Lost("more channels than were asked for".to_owned()));
        }
        if let Some(limit) = self.wanted.lane_limit() {
            lane.stream.limit_rate(limit.bits_per_second / 8)?;
        }
        self.poller
            .add(lane.stream.as_fd(), lane.number, lane.interest)?;
        self.lanes.push(lane);
        Ok(())
    }

    /// Finds the streams that are readable or writable.
    fn look(&mut self) -> Result<(), Lost> {
        self.poller.wait(&mut self.events, Some(0), Clock::new())?;
        for event in self.events.iter() {
            if let Some(lane) = self
                .lanes
                .iter_mut()
                .find(|lane| lane.number == event.token)
            {
                lane.is_ready = true;
                lane.is_blocked &= !event.writable;
            }
        }
        Ok(())
    }

    /// Completes or gives up connection attempts.
    fn connect_on(&mut self, now: Time, news: &mut Vec<News>) {
        let mut at = 0;
        while let Some(lane) = self.lanes.get_mut(at) {
            if lane.connecting.is_some_and(|until| now >= until) {
                lane.failure
                    .get_or_insert_with(|| "nobody has answered".to_owned());
            } else if !lane.is_up() && lane.is_blocked {
                match tcp::is_connected(&lane.stream) {
                    Ok(is_connected) => lane.is_blocked = !is_connected,
                    Err(error) => lane.failure = Some(error.to_string()),
                }
            }
            match lane.failure.take() {
                Some(why) => self.fail(at, why, news),
                None => at += 1,
            }
        }
    }

    fn fail(&mut self, at: usize, why: String, news: &mut Vec<News>) {
        let lane = self.lanes.remove(at);
        // It is closed by its drop.
        let _ = self.poller.remove(lane.stream.as_fd());
        news.push(News::Failed(lane.chan, why));
    }

    fn receive(&mut self, news: &mut Vec<News>) -> Result<(), Lost> {
        let mut at = 0;
        while let Some(lane) = self.lanes.get_mut(at) {
            let was_up = lane.is_up();
            match lane.receive(&mut self.ledger, news) {
                Ok(()) if lane.is_up() && !was_up => news.push(News::Up),
                Ok(()) => {}
                Err(Lost(why)) if !was_up => {
                    self.fail(at, why, news);
                    continue;
                }
                Err(lost) => return Err(lost),
            }
            at += 1;
        }
        Ok(())
    }

    /// Sends one frame on each stream with room, while there are any.
    fn send(&mut self) -> Result<(), Lost> {
        let count = self.lanes.len();
        let mut left = TURN_BYTES;
        let mut idle = 0;
        while idle < count && left > 0 {
            self.turn = (self.turn + 1) % count;
            let lane = &mut self.lanes[self.turn];
            match lane.send(&mut self.ledger)? {
                0 => idle += 1,
                sent => {
                    left = left.saturating_sub(sent);
                    idle = 0;
                }
            }
        }
        for lane in &mut self.lanes {
            // More to send than fits into one turn: the socket has room and reports it.
            let wants = Interest {
                writable: lane.is_blocked || left == 0,
                ..lane.wants()
            };
            if wants != lane.interest {
                self.poller
                    .modify(lane.stream.as_fd(), lane.number, wants)?;
                lane.interest = wants;
            }
        }
        Ok(())
    }
}

impl Lane {
    /// Receives as much as one turn allows.
    fn receive(&mut self, ledger: &mut Ledger, news: &mut Vec<News>) -> Result<(), Lost> {
        let mut left = TURN_BYTES;
        while self.is_ready && left > 0 {
            let stream = &self.stream;
            let count = self
                .into
                .turn(ledger, news, |part, rest| tcp::receive(stream, part, rest))?;
            self.is_ready = count.is_some();
            left = left.saturating_sub(count.unwrap_or(0));
        }
        if !self.into.awaits_ready() {
            self.connecting = None;
        }
        Ok(())
    }

    /// Sends until a frame has left or the stream is full. Returns the number of bytes.
    fn send(&mut self, ledger: &mut Ledger) -> Result<usize, Lost> {
        let mut sent = 0;
        // Nothing follows the cookie before the peer has confirmed it.
        while !self.is_blocked && (self.is_up() || self.out.is_amid()) {
            let stream = &self.stream;
            match self
                .out
                .turn(ledger, |head, part| tcp::send(stream, head, part))
            {
                Ok(Sent::Some(count)) => sent += count,
                Ok(Sent::Blocked) => self.is_blocked = true,
                Ok(Sent::Nothing) => break,
                Err(Lost(why)) if !self.is_up() => {
                    self.failure = Some(why);
                    break;
                }
                Err(lost) => return Err(lost),
            }
            if !self.out.is_amid() {
                break;
            }
        }
        Ok(sent)
    }
}

impl Fabric for Streams {
    fn kind(&self) -> ChannelKind {
        ChannelKind::Tcp
    }

    fn connect(&mut self, now: Time, params: &ChanParams) -> Result<(), Lost> {
        let (peer, cookie) = meeting_point(params)?;
        let stream = tcp::start(peer)?;
        self.next += 1;
        self.add(Lane {
            chan: params.chan,
            number: self.next,
            stream,
            connecting: Some(now.after(CONNECT_NS)),
            out: Outlet::new(&cookie),
            into: Inlet::new(true),
            is_blocked: true,
            is_ready: false,
            interest: Interest::BOTH,
            failure: None,
        })
    }

    fn accept(
        &mut self,
        chan: ChanId,
        connection: DataConnection,
        news: &mut Vec<News>,
    ) -> Result<Option<u32>, Lost> {
        let DataConnection::Tcp(stream) = connection else {
            return Err(Lost("a connection of another kind".to_owned()));
        };
        self.next += 1;
        self.add(Lane {
            chan,
            number: self.next,
            stream,
            connecting: None,
            out: Outlet::new(&Frame::Ready.emit()),
            into: Inlet::new(false),
            is_blocked: false,
            is_ready: true,
            interest: Interest::READ,
            failure: None,
        })?;
        news.push(News::Up);
        self.send()?;
        Ok(None)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.poller.as_fd()]
    }

    fn poll_timeout(&self) -> Option<Time> {
        let due = |lane: &Lane| match lane.is_ready || lane.failure.is_some() {
            true => Some(Time::default()),
            false => lane.connecting,
        };
        self.lanes.iter().filter_map(due).min()
    }

    fn poll(&mut self, now: Time, news: &mut Vec<News>) -> Result<(), Lost> {
        self.look()?;
        self.connect_on(now, news);
        let moved = self.receive(news).and_then(|()| self.send());
        self.has_broken |= moved.is_err();
        moved
    }

    fn has_broken(&self) -> bool {
        self.has_broken
    }

    fn lanes_up(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.is_up()).count()
    }

    fn posts(&self) -> usize {
        self.ledger.posts()
    }

    fn resent(&self) -> u64 {
        self.lanes
            .iter()
            .map(|lane| tcp::resent(&lane.stream))
            .sum()
    }

    fn out_of_order(&self) -> u64 {
        let lanes = self.lanes.iter();
        lanes
            .filter_map(|lane| lane.stream.out_of_order().ok())
            .sum()
    }

    fn open(
        &mut self,
        region: &Region,
        at: u64,
        len: u64,
        access: AccessFlags,
    ) -> Result<(Guard, Key), Lost> {
        let (_registration, key) = self.ledger.open(region, at, len, access)?;
        Ok((Guard::Named { _registration }, key))
    }

    fn get(&mut self, get: Get) {
        self.ledger.get(get);
    }

    fn put(&mut self, put: &Put, region: &Region) -> Result<(), Lost> {
        self.ledger.put(put, region);
        Ok(())
    }

    fn put_bytes_max(&self) -> u32 {
        PIECE_BYTES
    }

    fn mark(&mut self, seq: SlabSeq) {
        self.ledger.mark(seq);
    }

    fn post(&mut self) -> Result<(), Lost> {
        let sent = self.send();
        self.has_broken |= sent.is_err();
        sent
    }

    fn end(self: Box<Self>, news: &mut Vec<News>) {
        drop(self.lanes);
        self.ledger.end(news);
    }
}

#[cfg(test)]
mod tests {
    use haul_io::notify;
    use haul_io::stream::Acceptor;
    use haul_xsp::SECOND_NS;
    use haul_xsp::wire::{Address, Endpoint, Params, Proto};

    use super::*;

    const NOW: Time = Time::from_ns(7);

    fn fabric() -> Streams {
        let wanted = Wanted {
            lanes: 2,
            limit: None,
            pushes: false,
        };
        Streams::new(&Region::map(4096).unwrap(), wanted).unwrap()
    }

    fn params(acceptor: &Acceptor) -> ChanParams {
        let endpoint = Endpoint {
            port: acceptor.local_addr().unwrap().port(),
            address: Address::V4([127, 0, 0, 1]),
        };
        ChanParams {
            chan: ChanId(5),
            proto: Proto::Tcp,
            role: 0,
            params: Params::default(),
            endpoints: vec![endpoint],
            cookie: Some([3; 16]),
        }
    }

    fn acceptor() -> Acceptor {
        Acceptor::bind((std::net::Ipv4Addr::LOCALHOST, 0).into()).unwrap()
    }

    /// Polls until there is news, or nothing happens for a second.
    fn news(fabric: &mut Streams, now: Time) -> Vec<News> {
        let mut news = Vec::new();
        loop {
            fabric.poll(now, &mut news).unwrap();
            let is_over =
                || !notify::wait_readable([fabric.poller.as_fd()], Some(SECOND_NS)).unwrap();
            if !news.is_empty() || is_over() {
                return news;
            }
        }
    }

    fn assert_failed(news: &[News], text: &str) {
        let [News::Failed(ChanId(5), why)] = news else {
            panic!("{news:?}");
        };
        assert!(why.contains(text), "{why}");
    }

    #[test]
    fn without_a_listener_the_channel_fails() {
        let mut fabric = fabric();
        let acceptor = acceptor();
        let params = params(&acceptor);
        drop(acceptor);
        fabric.connect(NOW, &params).unwrap();
        assert_failed(&news(&mut fabric, NOW), "refused");
        assert!(fabric.lanes.is_empty());
    }

    #[test]
    fn a_refused_cookie_ends_the_attempt() {
        let mut fabric = fabric();
        let acceptor = acceptor();
        fabric.connect(NOW, &params(&acceptor)).unwrap();
        notify::wait_readable([acceptor.as_fd()], None).unwrap();
        drop(acceptor.accept().unwrap());
        assert_failed(&news(&mut fabric, NOW), "");
    }

    #[test]
    fn an_unexpected_answer_ends_the_attempt() {
        let mut fabric = fabric();
        let acceptor = acceptor();
        fabric.connect(NOW, &params(&acceptor)).unwrap();
        notify::wait_readable([acceptor.as_fd()], None).unwrap();
        let (far, _) = acceptor.accept().unwrap().unwrap();
        far.write(b"220 mail.example ESMTP ready\r\n").unwrap();
        assert_failed(&news(&mut fabric, NOW), "broke the protocol");
    }

    #[test]
    fn the_wait_for_a_silent_peer_is_bounded() {
        let mut fabric = fabric();
        let acceptor = acceptor();
        fabric.connect(NOW, &params(&acceptor)).unwrap();
        notify::wait_readable([acceptor.as_fd()], None).unwrap();
        let (far, _) = acceptor.accept().unwrap().unwrap();
        let until = fabric.poll_timeout().unwrap();
        assert_eq!(until, NOW.after(CONNECT_NS));
        let mut before = Vec::new();
        while notify::wait_readable([fabric.poller.as_fd()], Some(0)).unwrap() {
            fabric.poll(NOW, &mut before).unwrap();
        }
        assert!(before.is_empty());
        assert_failed(&news(&mut fabric, until), "nobody");
        // It had received the cookie, and nothing else.
        let mut said = [0; 32];
        assert_eq!(far.read(&mut said).unwrap(), 16);
        assert_eq!(said[..16], [3; 16]);
    }
}
