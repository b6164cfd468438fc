//! The work of both ends once their streams are connected: send or receive, report progress, and
//! account for it.

use std::num::NonZeroU64;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use haul::fault::{Code, Fault};

use super::account::{Account, Acknowledged, Received, Sample, Sent};
use super::engine::{Announced, StreamRun, StreamSet, Streams};
use super::failure::Failure;
use super::meter::Meter;
use super::plan::{Medium, PathLimit, PathPlan};
use super::store::{SinkStore, SourceStore};
use super::tally::{Budget, Tally};
use crate::control::{Control, Message};

/// How often an end looks for messages.
const TICK: Duration = Duration::from_millis(20);

/// The role of an end.
#[derive(Debug)]
pub(crate) enum Role {
    Sender(SourceStore),
    Receiver(SinkStore),
}

impl Role {
    /// The parts of an end of this plan.
    pub(crate) fn of(
        plan: &PathPlan,
        is_client: bool,
        files: &super::store::Files,
    ) -> Result<Self, Fault> {
        if plan.reverse == is_client {
            SinkStore::open(plan, files).map(Self::Receiver)
        } else {
            SourceStore::open(plan, files).map(Self::Sender)
        }
    }
}

/// The progress, by the receiver's count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Since the start.
    pub until: Duration,
    /// Bytes that arrived since the last time.
    pub bytes: u64,
}

/// The outcome of an end's work.
enum Done {
    Sent(Streams<Sent>),
    Received(Streams<()>),
}

/// An end at work.
pub(crate) struct Session<'a> {
    pub(crate) plan: &'a PathPlan,
    pub(crate) control: &'a Control,
    pub(crate) engine: &'a dyn StreamSet,
    pub(crate) role: &'a Role,
    /// Reported every interval, at the receiver; the server also sends its reports to the client.
    pub(crate) progress: &'a dyn Fn(Progress),
    pub(crate) is_client: bool,
}

/// The state of the other end so far.
#[derive(Default)]
struct PeerReports {
    account: Option<Account>,
}

impl Session<'_> {
    /// Both ends' accounts: this one's, and the peer's.
    pub(crate) fn run(&self) -> Result<(Account, Account), Fault> {
        let budget = match self.plan.limit {
            PathLimit::TimeMs(ms) => Budget::time(Duration::from_millis(ms)),
            PathLimit::Bytes(bytes) => Budget::bytes(bytes),
        };
        let tally = Tally::new(self.plan.streams);
        let (announced, datagrams) = (Announced::default(), Mutex::new(None));
        let run = StreamRun {
            plan: self.plan,
            budget: &budget,
            tally: &tally,
            announced: &announced,
            datagrams: &datagrams,
        };
        let result = self.converse(&run);
        if result.is_err() {
            self.engine.cancel();
        }
        result
    }

    fn converse(&self, run: &StreamRun<'_>) -> Result<(Account, Account), Fault> {
        let meter = Meter::start();
        std::thread::scope(|scope| {
            let (sender, ended) = channel();
            let (role, engine) = (self.role, self.engine);
            let work = move || {
                let done = match role {
                    Role::Sender(source) => engine.send(run, source).map(Done::Sent),
                    Role::Receiver(sink) => engine.receive(run, sink).map(Done::Received),
                };
                // The control connection may be closed.
                let _ = sender.send(done);
            };
            let builder = std::thread::Builder::new().name("haul-bench".into());
            builder.spawn_scoped(scope, work).map_err(|error| {
                Fault::new(Code::Other, format!("cannot start a thread: {error}"))
            })?;
            let mut ticker = Ticker::new(self, run);
            let mut reports = PeerReports::default();
            let done = loop {
                match ended.recv_timeout(TICK) {
                    Ok(done) => break done,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(self.cancelled(Fault::new(Code::Other, "a thread has failed")));
                    }
                }
                let told = ticker
                    .working(run.budget)
                    .and_then(|()| self.take_reports(run, &mut reports));
                told.map_err(|fault| self.cancelled(fault))?;
            };
            let done = done.map_err(|failure| self.control.account_of(self.failed(&failure)))?;
            self.settle(run, &meter, done, reports, ticker)
        })
    }

    /// The ends exchange their counters. The sender goes last: it works until all has arrived.
    fn settle(
        &self,
        run: &StreamRun<'_>,
        meter: &Meter,
        done: Done,
        mut reports: PeerReports,
        mut ticker: Ticker<'_>,
    ) -> Result<(Account, Account), Fault> {
        let own = match done {
            Done::Sent(streams) => {
                let mut sent = sum(streams.parts);
                self.control.send(&Message::Sent {
                    datagrams: sent.datagrams,
                })?;
                while reports.account.is_none() {
                    std::thread::sleep(TICK);
                    ticker.tick()?;
                    self.take_reports(run, &mut reports)?;
                }
                let last = self.engine.sample();
                sent.retransmitted = sent.retransmitted.max(last.retransmitted);
                sent.samples = ticker.samples;
                sent.acknowledged = ticker.marks.acknowledged();
                if let Role::Sender(source) = self.role {
                    sent.source_ns = source.waited_ns();
                }
                Account {
                    spent: meter.spent(streams.thread_ns),
                    sent: Some(sent),
                    received: None,
                }
            }
            Done::Received(streams) => {
                let flush_ns = self.flush()?;
                ticker.last()?;
                Account {
                    spent: meter.spent(streams.thread_ns),
                    sent: None,
                    received: Some(self.received(run, flush_ns)),
                }
            }
        };
        self.control.send(&Message::Account {
            account: Box::new(own.clone()),
        })?;
        while reports.account.is_none() {
            match self.control.receive()? {
                Message::Account { account } => reports.account = Some(*account),
                Message::Sent { .. } | Message::Interval { .. } => {}
                other => return Err(other.misplaced()),
            }
        }
        let peer = reports.account.unwrap_or_default();
        Ok((own, peer))
    }

    /// Fsyncs the sink file, if it is on a disk.
    fn flush(&self) -> Result<u64, Fault> {
        let begun = Instant::now();
        match self.role {
            Role::Receiver(sink) if self.plan.sink == Medium::File => {
                let finished = sink.finish().map_err(Failure::Sink);
                finished.map_err(|failure| self.failed(&failure))?;
                Ok(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
            }
            _ => Ok(0),
        }
    }

    fn received(&self, run: &StreamRun<'_>, flush_ns: u64) -> Received {
        let datagrams = run.datagrams.lock().unwrap_or_else(PoisonError::into_inner);
        Received {
            bytes: run.tally.bytes(),
            ns: run.tally.ns(),
            steps: run.tally.steps(),
            streams: run.tally.streams(),
            datagrams: *datagrams,
            sink_ns: match self.role {
                Role::Receiver(sink) => sink.waited_ns(),
                Role::Sender(_) => 0,
            },
            flush_ns,
        }
    }

    /// Handles the peer's messages.
    fn take_reports(&self, run: &StreamRun<'_>, reports: &mut PeerReports) -> Result<(), Fault> {
        while let Some(message) = self.control.poll()? {
            match message {
                Message::Interval { until_ms, bytes } => (self.progress)(Progress {
                    until: Duration::from_millis(until_ms),
                    bytes,
                }),
                Message::Sent { datagrams } => {
                    run.announced.set(datagrams);
                    self.engine.peer_sent();
                }
                Message::Account { account } => reports.account = Some(*account),
                other => return Err(other.misplaced()),
            }
        }
        Ok(())
    }

    /// Ends the streams, waits for their threads, and returns the failure.
    fn cancelled(&self, fault: Fault) -> Fault {
        self.engine.cancel();
        fault
    }

    fn failed(&self, failure: &Failure) -> Fault {
        let doing = match self.role {
            Role::Sender(_) => "sending",
            Role::Receiver(_) => "receiving",
        };
        match failure {
            Failure::Source(error) => Fault::file("cannot read the source's file", error),
            Failure::Sink(error) => Fault::file("cannot write the sink's file", error),
            Failure::PathPlan(why) => Fault::new(Code::Usage, format!("{doing}: {why}")),
            Failure::System(error) => Fault::new(Code::Other, format!("{doing}: {error}")),
            Failure::Path(error) => Fault::new(Code::PeerGone, format!("{doing} failed: {error}")),
        }
    }
}

fn sum(parts: Vec<Sent>) -> Sent {
    parts.into_iter().fold(Sent::default(), |sum, part| Sent {
        bytes: sum.bytes + part.bytes,
        datagrams: sum.datagrams + part.datagrams,
        ns: sum.ns.max(part.ns),
        retransmitted: sum.retransmitted + part.retransmitted,
        ..part
    })
}

/// Reports progress, and samples the path, once an interval.
struct Ticker<'a> {
    session: &'a Session<'a>,
    tally: &'a Tally,
    begun: Instant,
    due: Duration,
    told: u64,
    samples: Vec<Sample>,
    marks: Marks,
}

impl<'a> Ticker<'a> {
    fn new(session: &'a Session<'a>, run: &'a StreamRun<'_>) -> Self {
        Self {
            session,
            tally: run.tally,
            begun: Instant::now(),
            due: Duration::from_millis(session.plan.interval_ms),
            told: 0,
            samples: Vec::new(),
            marks: Marks::default(),
        }
    }

    /// While the sender sends, or the receiver receives.
    fn working(&mut self, budget: &Budget) -> Result<(), Fault> {
        let omit = Duration::from_millis(self.session.plan.omit_ms);
        let counts = !omit.is_zero() && self.begun.elapsed() >= omit && !budget.is_over();
        if let Role::Sender(_) = self.session.role
            && counts
            && let Some(bytes) = self.session.engine.acknowledged()
        {
            self.marks.add(self.begun.elapsed(), bytes);
        }
        self.tick()
    }

    fn tick(&mut self) -> Result<(), Fault> {
        let elapsed = self.begun.elapsed();
        if elapsed < self.due {
            return Ok(());
        }
        self.due += Duration::from_millis(self.session.plan.interval_ms);
        match self.session.role {
            Role::Sender(_) => {
                self.samples.push(Sample {
                    at_ms: milliseconds(elapsed),
                    ..self.session.engine.sample()
                });
                Ok(())
            }
            Role::Receiver(_) => self.tell(elapsed),
        }
    }

    /// Returns the arrivals since the last call.
    fn last(&mut self) -> Result<(), Fault> {
        if self.tally.bytes() > self.told {
            self.tell(self.begun.elapsed())?;
        }
        Ok(())
    }

    fn tell(&mut self, elapsed: Duration) -> Result<(), Fault> {
        let all = self.tally.bytes();
        let bytes = all.saturating_sub(self.told);
        self.told = all;
        if self.session.is_client {
            (self.session.progress)(Progress {
                until: elapsed,
                bytes,
            });
            return Ok(());
        }
        self.session.control.send(&Message::Interval {
            until_ms: milliseconds(elapsed),
            bytes,
        })
    }
}

/// Acknowledged bytes when counting began, and most recently.
#[derive(Debug, Default)]
struct Marks {
    first: Option<(Duration, u64)>,
    last: Option<(Duration, u64)>,
}

impl Marks {
    fn add(&mut self, at: Duration, bytes: u64) {
        self.last = Some((at, bytes));
        self.first = self.first.or(self.last);
    }

    /// Bytes acknowledged between both.
    fn acknowledged(&self) -> Option<Acknowledged> {
        let ((from, before), (until, after)) = self.first.zip(self.last)?;
        let ns = u64::try_from(until.saturating_sub(from).as_nanos()).ok()?;
        Some(Acknowledged {
            bytes: after.saturating_sub(before),
            ns: NonZeroU64::new(ns)?,
        })
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::plan;
    use super::super::record;
    use super::super::store::Files;
    use super::*;

    /// Bytes of a millisecond.
    const RATE: u64 = 10_000;
    /// Earlier arrivals wait behind a lost packet.
    const REPAIRED: Duration = Duration::from_millis(300);

    /// A stream on which bytes arrive evenly, and of which the receiver gets none until a lost
    /// packet is repaired.
    struct Held {
        begun: Instant,
    }

    impl Held {
        fn arrived(&self) -> u64 {
            RATE * milliseconds(self.begun.elapsed())
        }
    }

    fn all<T>(part: T) -> Result<Streams<T>, Failure> {
        Ok(Streams {
            parts: vec![part],
            thread_ns: 0,
        })
    }

    impl StreamSet for Held {
        fn send(&self, run: &StreamRun<'_>, _: &SourceStore) -> Result<Streams<Sent>, Failure> {
            while !run.budget.is_over() {
                std::thread::sleep(Duration::from_millis(1));
            }
            all(Sent {
                bytes: self.arrived(),
                ..Sent::default()
            })
        }

        fn receive(&self, run: &StreamRun<'_>, _: &SinkStore) -> Result<Streams<()>, Failure> {
            // The first byte is in order.
            run.tally.add(0, 1);
            std::thread::sleep(REPAIRED);
            while run.announced.datagrams().is_none() {
                run.tally.add(0, self.arrived() - run.tally.bytes());
                std::thread::sleep(Duration::from_millis(1));
            }
            all(())
        }

        fn cancel(&self) {}

        fn acknowledged(&self) -> Option<u64> {
            Some(self.arrived())
        }

        fn sample(&self) -> Sample {
            Sample::default()
        }
    }

    /// The goodput of a stream by both ends' reports, bits per second.
    fn goodput_bps(omit_ms: u64) -> f64 {
        let plan = PathPlan {
            limit: PathLimit::TimeMs(700),
            omit_ms,
            ..PathPlan::new(plan::Engine::Tcp)
        };
        let (one, other) = crate::control::pair(Duration::from_secs(5));
        let engine = Held {
            begun: Instant::now(),
        };
        let end = |control: Control, is_client| {
            let role = Role::of(&plan, is_client, &Files::default()).unwrap();
            let session = Session {
                plan: &plan,
                control: &control,
                engine: &engine,
                role: &role,
                progress: &|_| {},
                is_client,
            };
            session.run().unwrap()
        };
        let (sender, receiver) = std::thread::scope(|scope| {
            let server = scope.spawn(|| end(other, false));
            let accounts = end(one, true);
            server.join().unwrap();
            accounts
        });
        let run = record::Run::of(&plan, &sender, &receiver).unwrap();
        run.goodput_bps
    }

    #[test]
    fn what_waited_behind_a_lost_packet_counts_when_it_arrived() {
        let even = record::to_f64(RATE) * 8e3;
        // The receiver alone would count 700 ms in 500.
        let share = goodput_bps(200) / even;
        assert!((0.8..1.2).contains(&share), "{share}");
    }

    #[test]
    fn what_is_acknowledged_is_counted_between_two_moments() {
        let ms = Duration::from_millis;
        let mut marks = Marks::default();
        assert_eq!(marks.acknowledged(), None);
        marks.add(ms(200), 1_000);
        assert_eq!(marks.acknowledged(), None);
        marks.add(ms(220), 1_500);
        marks.add(ms(240), 3_000);
        let acknowledged = marks.acknowledged().unwrap();
        assert_eq!(
            (acknowledged.bytes, acknowledged.ns.get()),
            (2_000, 40_000_000)
        );
    }
}
