//! The loop of one direction: deliver packets that are due, take packets that have arrived, sleep
//! until either happens.

use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, PoisonError};

use haul_io::clock::{Clock, CpuTime, thread_cpu};
use haul_io::netns::priority;
use haul_io::poller::set_timer_slack_ns;
use haul_io::tun::{TUN_PACKET_MAX, Tun};
use haul_netem::{Link, Rng};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;

use super::plan::plan;
use super::pool::Pool;
use super::schedule::{Run, Schedule};
use super::stats::DirectionStats;
use crate::packet::{HEAD_MAX, Packet};
use crate::scenario::Direction;

/// Counters are published at most this often.
const PUBLISH_NS: u64 = 20_000_000;

/// A run may be delivered this much early, because another wait would take longer.
const EARLY_NS: u64 = 20_000;

/// Most wake-up latency of the kernel that is compensated by waking early.
const WAKE_NS_MAX: u64 = 100_000;

/// The parameters of a direction.
pub(super) struct Setup {
    pub(super) direction: Direction,
    pub(super) seed: u64,
    pub(super) run_ns_max: u64,
    /// The wake-up interval while packets are frequent.
    pub(super) rest_ns: u64,
    pub(super) pool_bytes: usize,
    pub(super) from: Arc<Tun>,
    pub(super) to: Arc<Tun>,
    /// Becomes readable when the direction is to end.
    pub(super) stop: Arc<OwnedFd>,
    pub(super) stats: Arc<Mutex<DirectionStats>>,
}

/// One direction at work. All its memory is here, and all of it was allocated at the start.
pub(super) struct Loop {
    setup: Setup,
    link: Link,
    damage: Rng,
    clock: Clock,
    pool: Pool,
    schedule: Schedule,
    /// Buffer for packets that are damaged or marked.
    scratch: Vec<u8>,
    head: [u8; HEAD_MAX],
    stats: DirectionStats,
    /// The smallest wake-up latency of this thread of late, ns.
    wake_ns: u64,
    /// When the last wait ended.
    rested_ns: u64,
    /// A packet has just woken this thread, so it has been waiting for that long.
    woken: bool,
    published_ns: u64,
    published_packets: u64,
}

impl Loop {
    pub(super) fn new(setup: Setup) -> Self {
        Self {
            link: Link::new(setup.direction.link.clone(), setup.seed),
            damage: Rng::new(setup.seed ^ 0xdead),
            clock: Clock::new(),
            pool: Pool::new(setup.pool_bytes),
            schedule: Schedule::new(),
            scratch: vec![0; TUN_PACKET_MAX + HEAD_MAX],
            head: [0; HEAD_MAX],
            stats: DirectionStats::default(),
            wake_ns: 0,
            rested_ns: 0,
            woken: false,
            published_ns: 0,
            published_packets: 0,
            setup,
        }
    }

    pub(super) fn run(mut self) {
        // Both are refused to some users; calibration shows the effect.
        let _ = set_timer_slack_ns(1);
        let _ = priority::take_precedence();
        loop {
            let now_ns = self.clock.now_ns();
            while let Some(run) = self.schedule.pop_due(now_ns + EARLY_NS) {
                self.deliver(run, now_ns);
            }
            if now_ns - self.published_ns >= PUBLISH_NS {
                self.publish(now_ns);
            }
            if !self.take_one() && self.sleep() {
                break;
            }
        }
        self.publish(self.clock.now_ns());
    }

    /// Reads one packet and decides its fate. False if there is none.
    fn take_one(&mut self) -> bool {
        let len = match self.setup.from.recv(self.pool.landing()) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(_) => {
                // A device that is down or going away has no packets.
                self.stats.refused += 1;
                return false;
            }
        };
        self.stats.packets_read += 1;
        let Ok(packet) = Packet::parse(self.pool.landed(len)) else {
            self.stats.refused += 1;
            return true;
        };
        let Some(ticket) = self.pool.reserve(len) else {
            self.stats.overruns += u64::from(packet.segments());
            return true;
        };
        let Setup {
            direction,
            run_ns_max,
            ..
        } = &self.setup;
        let overhead = direction.overhead_bytes;
        let waited_ns = if std::mem::take(&mut self.woken) {
            self.wake_ns
        } else {
            0
        };
        let arrived_ns = self.clock.now_ns().saturating_sub(waited_ns);
        let runs = plan(
            &mut self.link,
            overhead,
            *run_ns_max,
            arrived_ns,
            &packet,
            ticket,
            &mut self.schedule,
        );
        self.pool.keep(ticket, packet, len, runs);
        true
    }

    fn deliver(&mut self, run: Run, now_ns: u64) {
        self.stats.lateness.record(now_ns.saturating_sub(run.at_ns));
        let Some((packet, bytes)) = self.pool.packet(run.ticket) else {
            return;
        };
        let changed = run.damaged || run.marked;
        let whole = run.first == 0 && run.end == packet.segments() && !changed;
        let sent = if whole {
            self.setup.to.send(&[IoSlice::new(bytes)])
        } else {
            let cut = packet.cut(bytes, run.first, run.end, &mut self.head);
            let (head, payload) = (&self.head[..cut.head_len], &bytes[cut.payload]);
            if changed {
                let (copy, _) = self.scratch.split_at_mut(head.len() + payload.len());
                copy[..head.len()].copy_from_slice(head);
                copy[head.len()..].copy_from_slice(payload);
                if run.marked {
                    Packet::mark_congestion(copy);
                }
                if run.damaged {
                    Packet::damage(
                        copy,
                        self.damage.next_u64(),
                        self.setup.direction.corrupt_undetected,
                    );
                }
                self.setup.to.send(&[IoSlice::new(copy)])
            } else {
                self.setup
                    .to
                    .send(&[IoSlice::new(head), IoSlice::new(payload)])
            }
        };
        match sent {
            Ok(()) => self.stats.packets_written += 1,
            Err(_) => self.stats.refused += 1,
        }
        self.pool.release(run.ticket);
    }

    /// Waits for a packet, or until a run is due. True if the direction is to end.
    fn sleep(&mut self) -> bool {
        let mut polled = [
            PollFd::new(&*self.setup.stop, PollFlags::IN),
            PollFd::new(&*self.setup.from, PollFlags::IN),
        ];
        let asleep_ns = self.clock.now_ns();
        let rest_ns = self.rested_ns + self.setup.rest_ns;
        let rest_ns = rest_ns.saturating_sub(asleep_ns + self.wake_ns);
        let (watched, wait_ns) = if rest_ns > 0 {
            // Packets are frequent: collects some of them, as a network card with interrupt
            // moderation does.
            (&mut polled[..1], Some(rest_ns))
        } else {
            (&mut polled[..], self.wait_ns(asleep_ns))
        };
        let wait = wait_ns.map(timespec);
        // An interrupted wait is like one that ended early.
        let ready = rustix::event::poll(watched, wait.as_ref());
        let [stop, from] = polled.map(|fd| fd.revents());
        self.rested_ns = self.clock.now_ns();
        if ready == Ok(0)
            && let Some(wait_ns) = wait_ns.filter(|&wait_ns| wait_ns > 0)
        {
            self.learn_wake(self.rested_ns.saturating_sub(asleep_ns + wait_ns));
        }
        self.woken = from.contains(PollFlags::IN);
        !stop.is_empty() || from.contains(PollFlags::ERR)
    }

    /// Returns the time until the next due run, if there is one.
    fn wait_ns(&self, now_ns: u64) -> Option<u64> {
        match self.schedule.due_ns() {
            Some(due_ns) => Some(due_ns.saturating_sub(now_ns + self.wake_ns)),
            None if self.published_packets != self.packets() => Some(PUBLISH_NS),
            None => None,
        }
    }

    /// Falls fast and rises slowly, so that hardly a packet is early.
    fn learn_wake(&mut self, late_ns: u64) {
        if late_ns < self.wake_ns {
            self.wake_ns -= (self.wake_ns - late_ns).div_ceil(8);
        } else {
            self.wake_ns += (late_ns - self.wake_ns) / 64;
        }
        self.wake_ns = self.wake_ns.min(WAKE_NS_MAX);
    }

    fn packets(&self) -> u64 {
        self.stats.packets_read + self.stats.packets_written
    }

    fn publish(&mut self, now_ns: u64) {
        self.stats.link = *self.link.stats();
        self.stats.cpu_ns = thread_cpu().map_or(0, CpuTime::total_ns);
        *self
            .setup
            .stats
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = self.stats;
        (self.published_ns, self.published_packets) = (now_ns, self.packets());
    }
}

fn timespec(ns: u64) -> Timespec {
    let seconds = i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX);
    Timespec {
        tv_sec: seconds,
        tv_nsec: (ns % 1_000_000_000).try_into().unwrap_or(0),
    }
}
