//! Reliable connections of RDMA devices: reads are RDMA Reads, writes RDMA Writes, keys memory
//! regions.

use std::os::fd::BorrowedFd;

use haul_slab::{AccessFlags, Region};
use haul_verbs::cm::{CmEvent, ConnParam, EventChannel};
use haul_verbs::{Context, DeviceCaps, Error, Qp, QpInit, QpStatistics, RateLimit, WorkCompletion};
use haul_xsp::bag::{Get, Put};
use haul_xsp::wire::{ChanParams, Key};
use haul_xsp::{ChanId, SlabSeq, Time};

use super::fabric::{
    Accepted, CONNECT_NS, DataConnection, Fabric, Guard, Lost, News, READS_MAX, WRITES_MAX, Wanted,
    meeting_point,
};
use super::work::{Lane, Opens, Work};
use crate::config::ChannelKind;

/// Queue pairs of one kind, and what they share.
#[derive(Debug)]
pub(super) struct Connected {
    kind: ChannelKind,
    // Before what they use: dropped first, so that nothing is placed after the memory is gone.
    lanes: Vec<Lane>,
    /// Channels that this end connects, with their deadlines.
    connecting: Vec<(ChanId, Time)>,
    /// When a lane whose request has failed counts as disconnected, unless the device reports it
    /// before.
    failed_until: Option<Time>,
    has_broken: bool,
    work: Work,
    events: EventChannel,
    /// Reads in flight, and responses in flight, that the device allows.
    reads: (u16, u16),
    /// Requests in flight on a queue pair.
    sends_max: u32,
    rate_limit: Option<RateLimit>,
    paces: bool,
}

impl Connected {
    pub(super) fn new(
        kind: ChannelKind,
        context: &Context,
        arena: &Region,
        wanted: Wanted,
    ) -> Result<Self, Error> {
        let attributes = context.attributes()?;
        let can_pace = attributes.caps.contains(DeviceCaps::RATE_LIMIT);
        let opens = match kind {
            ChannelKind::Verbs => Opens::Wholes,
            _ => Opens::Parts,
        };
        let sends_max = if wanted.pushes {
            WRITES_MAX.min(attributes.max_qp_wr)
        } else {
            u32::from(READS_MAX) * 2
        };
        let reads = |most: u32| u16::try_from(most).unwrap_or(u16::MAX).min(READS_MAX);
        Ok(Self {
            kind,
            lanes: Vec::new(),
            connecting: Vec::new(),
            failed_until: None,
            has_broken: false,
            work: Work::new(context, arena, &wanted, sends_max, opens)?,
            sends_max,
            events: context.create_event_channel()?,
            reads: (
                reads(attributes.max_init_rd_atomic),
                reads(attributes.max_rd_atomic),
            ),
            // If the device cannot pace, the reader keeps the rate by small reads:
            // `Shape::session`, `attempts::accept`.
            rate_limit: wanted.lane_limit().filter(|_| can_pace),
            paces: can_pace || wanted.limit.is_none(),
        })
    }

    fn param<'a>(&self, private_data: &'a [u8]) -> ConnParam<'a> {
        let (initiator_depth, responder_resources) = self.reads;
        let mut param = ConnParam::default();
        param.private_data = private_data;
        param.responder_resources = responder_resources;
        param.initiator_depth = initiator_depth;
        param
    }

    fn qp(&mut self) -> Result<Qp, Error> {
        let mut init = QpInit::new(&self.work.cq);
        init.capacity.max_send_wr = self.sends_max;
        init.capacity.max_recv_wr = self.work.marks_max().max(1);
        init.rate_limit = self.rate_limit;
        let qp = self.work.pd.create_qp(&init)?;
        self.work.expect_marks(&qp)?;
        Ok(qp)
    }

    /// Handles the arrival of a mark.
    fn on_other(&mut self, done: &WorkCompletion, news: &mut Vec<News>) -> Result<(), Lost> {
        let of = |lane: &&Lane| lane.qp.qp_num() == done.qp_num;
        match self.lanes.iter().find(of) {
            Some(lane) => self.work.on_mark(done, &lane.qp, news),
            None => Ok(()),
        }
    }

    fn on_event(&mut self, event: CmEvent, news: &mut Vec<News>) {
        match event {
            CmEvent::Established { qp_num, .. } => self.on_accepted(qp_num, Accepted::Up, news),
            CmEvent::Rejected { qp_num, .. } => {
                self.on_accepted(qp_num, Accepted::Down("it was rejected".to_owned()), news);
            }
            CmEvent::Unreachable { qp_num, failure } => {
                self.on_accepted(qp_num, Accepted::Down(failure.to_string()), news);
            }
            CmEvent::Disconnected { qp_num, failure } => {
                let why = failure.map_or_else(|| "it was closed".to_owned(), |why| why.to_string());
                self.on_accepted(qp_num, Accepted::Down(why), news);
            }
            _ => {}
        }
    }
}

impl Connected {
    /// Ends a lane whose request has failed and whose disconnection the device does not report in
    /// time.
    fn give_up_failed(&mut self, now: Time, news: &mut Vec<News>) {
        let mut failed = self
            .lanes
            .iter()
            .filter(|lane| lane.is_up && lane.has_failed);
        let qp_num = failed.next().map(|lane| lane.qp.qp_num());
        self.failed_until = match (qp_num, self.failed_until) {
            (Some(qp_num), Some(until)) if until <= now => {
                let why = "a request has failed".to_owned();
                self.on_accepted(qp_num, Accepted::Down(why), news);
                None
            }
            (Some(_), until) => until.or_else(|| Some(now.after(CONNECT_NS))),
            (None, _) => None,
        };
    }

    /// Adds up a counter of all lanes.
    fn sum(&self, counter: impl Fn(QpStatistics) -> u64) -> u64 {
        let lanes = self.lanes.iter();
        lanes
            .filter_map(|lane| lane.qp.statistics().ok())
            .map(counter)
            .sum()
    }
}

impl Fabric for Connected {
    fn kind(&self) -> ChannelKind {
        self.kind
    }

    fn paces(&self) -> bool {
        self.paces
    }

    fn connect(&mut self, now: Time, params: &ChanParams) -> Result<(), Lost> {
        let (peer, cookie) = meeting_point(params)?;
        let qp = self.qp()?;
        qp.connect(peer, &self.param(&cookie), &self.events)?;
        self.connecting.push((params.chan, now.after(CONNECT_NS)));
        self.lanes.push(Lane::new(params.chan, qp));
        Ok(())
    }

    fn accept(
        &mut self,
        chan: ChanId,
        connection: DataConnection,
        _news: &mut Vec<News>,
    ) -> Result<Option<u32>, Lost> {
        let DataConnection::Request(request) = connection else {
            return Err(Lost("a connection of another kind".to_owned()));
        };
        let qp = self.qp()?;
        let qp_num = qp.qp_num();
        request.accept(&qp, &self.param(&[]))?;
        self.lanes.push(Lane::new(chan, qp));
        Ok(Some(qp_num))
    }

    fn qp_nums(&self) -> Vec<u32> {
        self.lanes.iter().map(|lane| lane.qp.qp_num()).collect()
    }

    fn on_accepted(&mut self, qp_num: u32, what: Accepted, news: &mut Vec<News>) {
        let Some(lane) = self
            .lanes
            .iter_mut()
            .find(|lane| lane.qp.qp_num() == qp_num)
        else {
            return;
        };
        self.connecting.retain(|(chan, _)| *chan != lane.chan);
        match what {
            Accepted::Up => {
                lane.is_up = true;
                news.push(News::Up);
            }
            Accepted::Down(why) if lane.is_up => {
                (lane.is_up, lane.has_failed) = (false, true);
                self.has_broken = true;
                news.push(News::Down(why));
            }
            Accepted::Down(why) => news.push(News::Failed(lane.chan, why)),
        }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.work.descriptor(), self.events.fd()]
    }

    fn poll_timeout(&self) -> Option<Time> {
        let connecting = self.connecting.iter().map(|(_, until)| *until);
        connecting.chain(self.failed_until).min()
    }

    fn poll(&mut self, now: Time, news: &mut Vec<News>) -> Result<(), Lost> {
        let mut others = Vec::new();
        self.work
            .poll(&mut self.lanes, news, |done| others.push(*done))?;
        for done in others {
            self.on_other(&done, news)?;
        }
        while let Some(event) = self.events.poll()? {
            self.on_event(event, news);
        }
        self.give_up_failed(now, news);
        // Devices wait longer.
        let late = |(_, until): &mut (ChanId, Time)| *until <= now;
        for (chan, _) in self.connecting.extract_if(.., late) {
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
        self.sum(|statistics| statistics.resent_segments)
    }

    fn out_of_order(&self) -> u64 {
        self.sum(|statistics| statistics.early_segments)
    }

    fn open(
        &mut self,
        region: &Region,
        at: u64,
        len: u64,
        access: AccessFlags,
    ) -> Result<(Guard, Key), Lost> {
        Ok(self.work.open(region, at, len, access)?)
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
