//! The work of both ends of a session: connect, then measure the sizes one after another.

use std::time::{Duration, Instant};

use haul::fault::{Code, Fault};
use haul_verbs::{SendOp, SendWr, WorkCompletion};

use crate::control::{Control, Message, Place};
use crate::disk::Disk;
use crate::end::End;
use crate::error::verb;
use crate::flow::{Flow, FlowAccount, Ways};
use crate::memory;
use crate::pingpong::{PingPong, Trips};
use crate::plan::{Limit, Op, Plan, Service, Test};
use crate::report::{Memory, Spent};
use crate::tag::{Kind, Tag};
use crate::volley::Volley;

/// Bytes that warm up, at most.
const WARM_UP_BYTES: u64 = 32 << 20;
/// Messages that warm up a latency.
const WARM_UP_TRIPS: u64 = 100;

/// Time limit for a peer to connect a queue pair.
const QUEUE_PAIR_TIME: Duration = Duration::from_millis(20);
/// Bytes per second of a slow disk.
const FILE_BYTES_A_SECOND: u64 = 20 << 20;

/// An end whose queue pairs are connected.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    pub(crate) end: &'a End,
    pub(crate) peer: &'a Place,
    pub(crate) control: &'a Control,
    pub(crate) disk: &'a Disk,
    pub(crate) dead_after: Duration,
    accounts: Vec<FlowAccount>,
    /// Retransmissions of its queue pairs before the present size.
    resent_before: u64,
}

/// The client's result of one size.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) client: Spent,
    pub(crate) server: Spent,
    /// Round trips, nanoseconds, of a latency.
    pub(crate) samples: Vec<u64>,
    /// Bytes that were complete at the client in each step, of a bandwidth.
    pub(crate) steps: Vec<u64>,
}

/// How a bandwidth is measured.
#[derive(Debug)]
enum Bandwidth<'a> {
    /// Every message arrives.
    Flow(Flow<'a>),
    /// Messages are counted where they arrive.
    Volley(Volley<'a>),
}

impl Bandwidth<'_> {
    /// The duration, and the completed bytes by time; there is no such series for messages counted
    /// at the receiver.
    fn run(self, time: Option<Duration>, dead_after: Duration) -> Result<(Spent, Vec<u64>), Fault> {
        match self {
            Self::Flow(flow) => flow.run(time, dead_after),
            Self::Volley(volley) => Ok((volley.run(time, dead_after)?, Vec::new())),
        }
    }
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        end: &'a End,
        peer: &'a Place,
        control: &'a Control,
        disk: &'a Disk,
        dead_after: Duration,
    ) -> Self {
        Self {
            accounts: vec![FlowAccount::new(end.plan.rx_depth); end.qps.len()],
            end,
            peer,
            control,
            disk,
            dead_after,
            resent_before: 0,
        }
    }

    /// Both ends have reported that their queue pairs are connected.
    pub(crate) fn meet(&self) -> Result<(), Fault> {
        self.control.send(&Message::Connected)?;
        match self.control.receive_within(self.patience())? {
            Message::Connected => Ok(()),
            other => Err(other.misplaced()),
        }
    }

    /// How long the peer may take for a message between measurements: it connects its queue pairs
    /// meanwhile, or reads a file again.
    pub(crate) fn patience(&self) -> Duration {
        let plan = &self.end.plan;
        let read_again = plan.file.filter(|_| plan.verify).unwrap_or(0) / FILE_BYTES_A_SECOND;
        self.dead_after + QUEUE_PAIR_TIME * plan.qps + Duration::from_secs(read_again)
    }

    /// Client: measures one size, after warming up.
    pub(crate) fn measure(&mut self, size: u32) -> Result<Measured, Fault> {
        if self.end.plan.file.is_none() {
            self.begin(size, Some(self.warm_up(size)))?;
        }
        let iterations = match self.end.plan.limit {
            Limit::Iterations(iterations) => Some(iterations),
            Limit::TimeMs(_) => None,
        };
        self.begin(size, iterations)
    }

    /// Server: takes part in the client's measurements, until it ends.
    pub(crate) fn take_part(&mut self, bytes: &mut u64) -> Result<(), Fault> {
        loop {
            match self.control.receive_within(self.patience())? {
                Message::Begin { size, iterations } => {
                    let (own, peer) = self.follow(size, iterations)?;
                    // The peer's count is not to be trusted, but nothing depends on it.
                    *bytes = bytes.saturating_add(own.bytes).saturating_add(peer.bytes);
                }
                Message::End => return Ok(()),
                other => return Err(other.misplaced()),
            }
        }
    }

    fn begin(&mut self, size: u32, iterations: Option<u64>) -> Result<Measured, Fault> {
        let begin = Message::Begin { size, iterations };
        self.resent_before = self.path_seen().1;
        let (client, samples, steps) = if self.end.plan.test == Test::Lat {
            let pingpong = self.pingpong(size)?;
            self.control.send(&begin)?;
            self.expect_ready()?;
            let Trips { spent, samples } = pingpong.ask(iterations, self.time())?;
            (spent, samples, Vec::new())
        } else {
            let time = iterations.is_none().then(|| self.time());
            let dead_after = self.dead_after;
            let control = self.control;
            let ways = Ways {
                out: true,
                back: self.end.plan.bidirectional,
            };
            let flow = self.bandwidth(ways, size, iterations)?;
            control.send(&begin)?;
            expect_ready(control)?;
            let (spent, steps) = flow.run(time, dead_after)?;
            (spent, Vec::new(), steps)
        };
        let (client, server) = self.settle(client)?;
        Ok(Measured {
            client,
            server,
            samples,
            steps,
        })
    }

    fn follow(&mut self, size: u32, iterations: Option<u64>) -> Result<(Spent, Spent), Fault> {
        if !self.end.plan.sizes.contains(&size) {
            return Err(Fault::protocol("the client begins what was not planned"));
        }
        self.resent_before = self.path_seen().1;
        let spent = if self.end.plan.test == Test::Lat {
            let pingpong = self.pingpong(size)?;
            self.control.send(&Message::Ready)?;
            // Only the reader of the answers knows how many there are.
            let spent = pingpong.answer()?;
            Spent {
                messages: 0,
                ..spent
            }
        } else {
            let time = iterations.is_none().then(|| self.time());
            let dead_after = self.dead_after;
            let control = self.control;
            let ways = Ways {
                out: self.end.plan.bidirectional,
                back: true,
            };
            let flow = self.bandwidth(ways, size, iterations)?;
            control.send(&Message::Ready)?;
            flow.run(time, dead_after)?.0
        };
        self.settle(spent)
    }

    fn bandwidth(
        &mut self,
        ways: Ways,
        size: u32,
        iterations: Option<u64>,
    ) -> Result<Bandwidth<'_>, Fault> {
        let plan = &self.end.plan;
        if plan.service == Service::Ud || plan.op == Op::WriteRecord {
            let parties = (self.end, self.peer, self.control);
            return Volley::new(parties, ways, size, iterations).map(Bandwidth::Volley);
        }
        let parties = (self.end, self.peer, self.control, self.disk);
        Flow::new(parties, &mut self.accounts, ways, size, iterations).map(Bandwidth::Flow)
    }

    fn pingpong(&self, size: u32) -> Result<PingPong<'a>, Fault> {
        PingPong::new((self.end, self.peer, self.control), size, self.dead_after)
    }

    fn expect_ready(&self) -> Result<(), Fault> {
        expect_ready(self.control)
    }

    /// The ends exchange the resources that they used.
    fn settle(&self, mut own: Spent) -> Result<(Spent, Spent), Fault> {
        if self.end.plan.file.is_some() && self.end.plan.verify {
            own.file_hash = self.disk.hash()?;
        }
        let (round_trip_ns, resent_bytes) = self.path_seen();
        own.round_trip_ns = round_trip_ns;
        own.resent_bytes = resent_bytes.saturating_sub(self.resent_before);
        self.control.send(&Message::Spent { spent: own })?;
        match self.control.receive_within(self.patience())? {
            Message::Spent { spent } => Ok((own, spent)),
            other => Err(other.misplaced()),
        }
    }

    /// The longest round trip of its connections, nanoseconds, and the bytes that they have sent
    /// more than once.
    fn path_seen(&self) -> (u64, u64) {
        let seen = self.end.qps.iter().filter_map(|qp| qp.statistics().ok());
        seen.fold((0, 0), |(longest, resent), one| {
            (longest.max(one.round_trip_ns), resent + one.resent_bytes)
        })
    }

    fn time(&self) -> Duration {
        match self.end.plan.limit {
            Limit::TimeMs(ms) => Duration::from_millis(ms),
            Limit::Iterations(_) => Duration::MAX,
        }
    }

    fn warm_up(&self, size: u32) -> u64 {
        warm_up(&self.end.plan, size)
    }

    /// Uses each queue pair once, and returns the growth of memory since the measurement before.
    pub(crate) fn idle(&self) -> Result<Memory, Fault> {
        for index in 0..self.end.qps.len() {
            self.touch(index)?;
        }
        // Both ends are done with it before either looks.
        self.meet()?;
        let memory = self.end.before.until(memory::read());
        self.control.send(&Message::Memory { memory })?;
        Ok(memory)
    }

    /// Writes a few bytes over a queue pair and reads them again.
    fn touch(&self, index: usize) -> Result<(), Fault> {
        let (end, qp) = (self.end, index as u64);
        let remote = self.peer.remote(end.layout.line(qp));
        let sge = end.sge(end.layout.line(qp), 8);
        let tag = Tag::new(Kind::Flush, qp, 0).into();
        let requests = [
            SendWr::new(tag, SendOp::RdmaWrite(remote), sge),
            SendWr::new(tag, SendOp::RdmaRead(remote), sge),
        ];
        end.qps[index]
            .post_send(&requests)
            .map_err(|error| verb(error.error))?;
        let mut completions = [WorkCompletion::default(); 2];
        let (mut done, start) = (0, Instant::now());
        while done < requests.len() {
            let count = end.wait(&mut completions)?;
            for completion in &completions[..count] {
                end.check(completion)
                    .map_err(|fault| self.control.account_of(fault))?;
            }
            done += count;
            if count == 0 && start.elapsed() > self.dead_after {
                return Err(Fault::new(
                    Code::PeerGone,
                    format!("queue pair {index} does not answer"),
                ));
            }
        }
        Ok(())
    }
}

fn expect_ready(control: &Control) -> Result<(), Fault> {
    match control.receive()? {
        Message::Ready => Ok(()),
        other => Err(other.misplaced()),
    }
}

/// So many messages on each queue pair come before those that are measured.
fn warm_up(plan: &Plan, size: u32) -> u64 {
    let by_bytes = WARM_UP_BYTES / (u64::from(size) * u64::from(plan.qps));
    match plan.test {
        Test::Lat => WARM_UP_TRIPS.min(by_bytes).max(2),
        Test::Bw | Test::Idle if plan.op == Op::Read => u64::from(plan.outs).min(by_bytes).max(2),
        Test::Bw | Test::Idle => u64::from(plan.depth).min(by_bytes).max(2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::plan;

    #[test]
    fn warming_up_is_short_whatever_the_size() {
        let mut plan = plan();
        assert_eq!(warm_up(&plan, 1), 128);
        assert_eq!(warm_up(&plan, 1 << 23), 4);
        plan.qps = 1000;
        assert_eq!(warm_up(&plan, 1 << 23), 2);
        plan.test = Test::Lat;
        assert_eq!(warm_up(&plan, 64), WARM_UP_TRIPS);
    }
}
