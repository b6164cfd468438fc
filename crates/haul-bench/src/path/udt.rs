//! UDT: a connection for each stream, each driven by a thread of its own.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use haul::endless::Endless;
use haul::fault::{Code, Fault};
use haul_cc::{Algorithm, Rate, Time};
use haul_io::clock::Clock;
use haul_soft::bulk::Sink;
use haul_soft::udt::{
    Connecting, Identity, Link, LinkError, LinkOptions, Listener, Remote, Request, Seq, Stats,
};
use haul_udt::wire::SocketId;

use super::account::{Sample, Sent};
use super::engine::{StreamRun, StreamSet, Streams, each, open_all};
use super::failure::Failure;
use super::patience::Patience;
use super::plan::{PathLimit, PathPlan};
use super::store::{SinkStore, SourceStore};
use super::tally::Tally;

/// Bits of the ticket in each half of an identity.
const HALF: u64 = (1 << 31) - 1;

/// Connections, one for each stream, in order.
#[derive(Debug)]
pub(crate) struct Udt {
    links: Vec<Mutex<Link>>,
    remotes: Vec<Remote>,
}

impl Udt {
    /// The client's side. Its limits: until the connections are open, and without acknowledgements.
    pub(crate) fn connect(
        plan: &PathPlan,
        server: SocketAddr,
        ticket: u64,
        (timeout, dead_after): (Duration, Duration),
    ) -> Result<Self, Fault> {
        let any: IpAddr = match server {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let mut options = options(plan);
        options.config.connect_timeout_ns = ns(timeout);
        options.config.idle_timeout_ns = ns(dead_after);
        let connect = |index| {
            let own = identity(ticket, index);
            Connecting::begin(SocketAddr::new(any, 0), server, own, &options)?.finish()
        };
        let links = open_all(plan.streams, connect, LinkError::System).map_err(|error| {
            Fault::new(
                Code::Unreachable,
                format!("cannot open a UDT connection to {server}: {error}"),
            )
            .hint("is UDP let through to that port? 'haul bench serve --data-port' sets that port")
        })?;
        Ok(Self::new(links))
    }

    /// The server's side: waits for all streams. Connections without the ticket fail in the
    /// handshake. One whose peer sends nothing for `dead_after` is dead.
    pub(crate) fn accept(
        plan: &PathPlan,
        listener: &mut Listener,
        ticket: u64,
        patience: &Patience<'_>,
        dead_after: Duration,
    ) -> Result<Self, Fault> {
        let clock = Clock::new();
        let mut options = options(plan);
        options.config.idle_timeout_ns = ns(dead_after);
        let expected: Vec<Identity> = (0..plan.streams)
            .map(|index| identity(ticket, index))
            .collect();
        let mut links: Vec<Option<Link>> = expected.iter().map(|_| None).collect();
        while links.iter().any(Option::is_none) {
            let Some(left) = patience.left()? else {
                let text = "the client opened no UDT connection";
                return Err(Fault::new(Code::PeerGone, text));
            };
            let until = Time::from_ns(clock.now_ns().saturating_add(ns(left)));
            let mut wanted = |request: &Request| {
                let is_expected = expected.contains(&request.identity());
                is_expected.then(|| options.clone())
            };
            let accepted = listener.accept(Some(until), &mut wanted);
            let accepted = accepted.map_err(|error| Fault::new(Code::Other, error.to_string()))?;
            let Some((theirs, link)) = accepted else {
                continue;
            };
            let index = expected.iter().position(|one| *one == theirs);
            if let Some(place) = index.and_then(|index| links.get_mut(index)) {
                *place = Some(link);
            }
        }
        Ok(Self::new(links.into_iter().flatten().collect()))
    }

    fn new(links: Vec<Link>) -> Self {
        Self {
            remotes: links.iter().map(Link::remote).collect(),
            links: links.into_iter().map(Mutex::new).collect(),
        }
    }

    fn stats(&self) -> Vec<Stats> {
        self.remotes.iter().filter_map(Remote::stats).collect()
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Listens for the client's connections.
pub(crate) fn listen(plan: &PathPlan, address: SocketAddr) -> Result<Listener, Fault> {
    let secret = haul_io::random::bytes()
        .map_err(|error| Fault::new(Code::Other, format!("no random bytes: {error}")))?;
    Listener::bind(address, &options(plan), secret).map_err(|error| {
        Fault::new(
            Code::Other,
            format!("cannot listen on UDP {address}: {error}"),
        )
    })
}

fn options(plan: &PathPlan) -> LinkOptions {
    let mut options = LinkOptions::default();
    // A name that is unknown has been refused by [`PathPlan::validate`].
    let named = plan.congestion.as_ref().and_then(|name| name.parse().ok());
    options.config.control = match plan.stream_rate_bps() {
        Some(rate) => Algorithm::Fixed(Rate::from_bps(rate)),
        None => named.unwrap_or_default(),
    };
    if let Some(bytes) = plan.buffer {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        (options.recv_buffer_bytes, options.send_buffer_bytes) = (bytes, bytes);
    }
    options
}

/// The handshake data of a stream: the ticket, which contains the number of the stream.
fn identity(ticket: u64, index: u16) -> Identity {
    let half = |value: u64| u32::try_from(value & HALF).unwrap_or(0);
    Identity {
        initial: Seq::new(half(ticket >> 31)),
        // Zero is not a valid identity.
        socket: SocketId(half(((ticket & HALF) + u64::from(index)) % HALF + 1)),
    }
}

impl StreamSet for Udt {
    fn send(&self, run: &StreamRun<'_>, source: &SourceStore) -> Result<Streams<Sent>, Failure> {
        let begun = Instant::now();
        let sent = each(
            &self.links,
            || self.cancel(),
            |index, link| {
                let endless = endless(run.plan, source, index).map_err(Failure::Source)?;
                let mut link = link.lock().unwrap_or_else(PoisonError::into_inner);
                settle(link.send(&endless))?;
                Ok(endless.finished().unwrap_or_else(|| endless.taken()))
            },
        )?;
        Ok(Streams {
            parts: vec![Sent {
                bytes: sent.parts.iter().sum(),
                ns: u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX),
                retransmitted: self.sample().retransmitted,
                ..Sent::default()
            }],
            thread_ns: sent.thread_ns,
        })
    }

    fn receive(&self, run: &StreamRun<'_>, sink: &SinkStore) -> Result<Streams<()>, Failure> {
        each(
            &self.links,
            || self.cancel(),
            |index, link| {
                let counting = Counting {
                    sink,
                    tally: run.tally,
                    stream: index,
                };
                let mut link = link.lock().unwrap_or_else(PoisonError::into_inner);
                match link.receive(&counting) {
                    Err(LinkError::Closed) if run.announced.datagrams().is_some() => Ok(()),
                    result => settle(result),
                }
            },
        )
    }

    fn cancel(&self) {
        for remote in &self.remotes {
            remote.close();
        }
    }

    /// The sender is done when all has arrived here. Its word that a connection is over may be
    /// lost, in the queue that other streams keep full, and is not repeated.
    fn peer_sent(&self) {
        self.remotes.iter().for_each(Remote::finish);
    }

    fn sample(&self) -> Sample {
        let stats = self.stats();
        let us = |ns: u64| u32::try_from(ns / 1000).unwrap_or(u32::MAX);
        Sample {
            at_ms: 0,
            rtt_us: us(stats.iter().map(|stats| stats.rtt_ns).max().unwrap_or(0)),
            rtt_us_min: us(stats
                .iter()
                .map(|stats| stats.rtt_min_ns)
                .min()
                .unwrap_or(0)),
            window: stats.iter().map(|stats| stats.in_flight_bytes).sum(),
            retransmitted: stats.iter().map(|stats| stats.sent.resent_bytes).sum(),
        }
    }
}

fn settle(result: Result<(), LinkError>) -> Result<(), Failure> {
    result.map_err(|error| match error {
        LinkError::Source(error) => Failure::Source(error),
        LinkError::Sink(error) => Failure::Sink(error),
        LinkError::System(error) => Failure::System(error),
        LinkError::Network(error) => Failure::Path(error),
        other => Failure::Path(io::Error::other(other)),
    })
}

/// The payload of a stream.
fn endless(plan: &PathPlan, source: &SourceStore, index: usize) -> io::Result<Endless> {
    let (bytes, time) = match plan.limit {
        PathLimit::TimeMs(ms) => (None, Some(Duration::from_millis(ms))),
        PathLimit::Bytes(bytes) => {
            let streams = u64::from(plan.streams);
            let more = u64::from((index as u64) < bytes % streams);
            (Some(bytes / streams + more), None)
        }
    };
    let endless = match (&source.memory, &source.file) {
        (Some(memory), _) => Endless::of_memory(memory.clone(), bytes, time),
        (None, Some(file)) => Endless::of_file(file.try_clone()?, source.round, bytes, time),
        (None, None) => return Err(io::ErrorKind::InvalidInput.into()),
    };
    Ok(match plan.stream_rate_bps() {
        Some(rate) => endless.paced(rate / 8),
        None => endless,
    })
}

/// Places and counts arriving data.
struct Counting<'a> {
    sink: &'a SinkStore,
    tally: &'a Tally,
    stream: usize,
}

impl Sink for Counting<'_> {
    fn place(&self, offset: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut at = offset;
        for part in parts {
            if self.sink.file.is_some() {
                self.sink.write(self.stream, at, part)?;
            } else {
                self.sink
                    .with_memory(self.stream, |memory| copy(memory, at, part));
            }
            at = at
                .checked_add(part.len() as u64)
                .ok_or(io::ErrorKind::InvalidInput)?;
        }
        self.tally.add(self.stream, at - offset);
        Ok(())
    }

    fn may_block(&self) -> bool {
        self.sink.file.is_some()
    }
}

/// Copies to where `offset` lies in memory that is used round.
fn copy(memory: &mut [u8], offset: u64, mut bytes: &[u8]) {
    let round = memory.len();
    if round == 0 {
        return;
    }
    let mut at = usize::try_from(offset % round as u64).unwrap_or(0);
    while !bytes.is_empty() {
        let (now, rest) = bytes.split_at((round - at).min(bytes.len()));
        memory[at..at + now.len()].copy_from_slice(now);
        (bytes, at) = (rest, 0);
    }
}

#[cfg(test)]
mod tests {
    use haul_soft::bulk::Source;

    use super::*;
    use crate::path::plan;
    use crate::path::store::Files;

    #[test]
    fn streams_have_identities_of_their_own() {
        let all: Vec<_> = (0..128)
            .map(|index| identity(u64::MAX >> 2, index))
            .collect();
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one), "{index}");
        }
    }

    #[test]
    fn memory_is_used_round() {
        let mut memory = [0; 5];
        copy(&mut memory, 13, b"abcdefg");
        assert_eq!(&memory, b"cdefg");
    }

    #[test]
    fn bytes_are_shared_out_among_streams() {
        let mut plan = PathPlan::new(plan::Engine::Udt);
        (plan.streams, plan.limit) = (3, PathLimit::Bytes(11));
        let source = SourceStore::open(&plan, &Files::default()).unwrap();
        let ends: Vec<_> = (0..3)
            .map(|index| {
                endless(&plan, &source, index)
                    .unwrap()
                    .wait(0, Duration::ZERO)
                    .end
            })
            .collect();
        assert_eq!(ends, [4, 4, 3]);
    }
}
