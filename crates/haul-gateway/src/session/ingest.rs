//! Ingest-only benchmark: how fast this host can fill slabs (phoebus-rdma-gateway-2012, §V.A, Fig.
//! 5), by a gateway whose data channels move nothing.
//!
//! Both ends of a session are here, in one thread. Connections come in, their bytes go into slabs,
//! slabs are packed, announced, read and acknowledged as ever, but a read completes as soon as it
//! is requested, and the far end discards its data. The remaining cost is common to all channels.

use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use haul_io::clock::process_cpu;
use haul_io::poller::{Events, Poller};
use haul_io::stream::Acceptor;
use haul_slab::{AccessFlags, Region};
use haul_xsp::bag::{End, Get, GetId, Put, Read};
use haul_xsp::wire::{AuthMethod, ChanParams, Endpoint, Key, SessOpen};
use haul_xsp::{
    AuthConfig, ChanId, ConnId, Directory, Event, SECOND_NS, Session, SessionId, SlabSeq, State,
    Time,
};

use super::edges::{Edges, Tools};
use super::shape::{self, Shape};
use super::side::SegmentSide;
use super::worker::Worker;
use crate::answer::Answer;
use crate::caller::{Call, Party};
use crate::channel::{DataConnection, Fabric, Guard, Lost, News};
use crate::config::{ChannelKind, ClientMeans, Config, HostPort, RouteMode};
use crate::error::StartError;
use crate::log::{Level, Log};
use crate::path::Backend;
use crate::resolver::Resolver;
use crate::shared::{Secrets, Shared};
use haul_io::thread::{Stop, Thread};
use haul_io::watch::Watch;

const ACCEPTOR: u64 = u64::MAX - 1;
/// Pause after the system has run out of descriptors or memory, ns.
const EXHAUSTED_NS: u64 = SECOND_NS / 10;
/// Connections accepted before others are served.
const ACCEPT_MAX: usize = 64;

/// Ingest-only benchmark: accepts TCP connections, fills slabs with their data, and discards it. It
/// runs until it is dropped.
#[derive(Debug)]
pub struct Filler {
    thread: Thread,
    local_addr: SocketAddr,
    octets: Arc<AtomicU64>,
}

impl Filler {
    /// Ring sizes allowed, bytes; powers of two.
    pub const RINGS: RangeInclusive<u64> = 8 << 20..=64 << 30;

    /// Listens at `listen` with a ring of `ring_bytes`, a power of two. Failures of the running
    /// benchmark go to `log`.
    ///
    /// # Errors
    /// The address is in use or not this machine's, or the memory is not available.
    pub fn start(listen: SocketAddr, ring_bytes: u64, log: Log) -> Result<Self, StartError> {
        let acceptor = Acceptor::bind(listen)
            .map_err(|error| StartError(format!("cannot listen at {listen}: {error}")))?;
        let text = |error: io::Error| StartError(error.to_string());
        acceptor.reset_on_drop().map_err(text)?;
        let local_addr = acceptor.local_addr().map_err(text)?;
        let octets = Arc::new(AtomicU64::new(0));
        let pair = Pair::new(ring_bytes, log, Arc::clone(&octets)).map_err(StartError)?;
        let poller = Poller::new().map_err(text)?;
        let thread = Thread::spawn("haul-filler", poller, move |poller, stop| {
            pair.run(acceptor, poller, &stop);
        });
        Ok(Self {
            thread: thread.map_err(text)?,
            local_addr,
            octets,
        })
    }

    /// Returns the listening address.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Returns whether it still runs; if not, its log states why.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.thread.is_running()
    }

    /// Returns the totals so far.
    ///
    /// # Errors
    /// Those of `getrusage(2)`; none is known on Linux.
    pub fn taken(&self) -> io::Result<Taken> {
        Ok(Taken {
            octets: self.octets.load(Ordering::Relaxed),
            cpu: Duration::from_nanos(process_cpu()?.total_ns()),
        })
    }
}

/// Totals of a [`Filler`].
#[derive(Debug, Clone, Copy)]
pub struct Taken {
    /// Bytes that have passed through slabs.
    pub octets: u64,
    /// CPU time of the whole process.
    pub cpu: Duration,
}

/// One end of the session.
#[derive(Debug)]
pub(super) struct SessionEnd {
    pub(super) session: Session,
    pub(super) segment: SegmentSide,
}

impl SessionEnd {
    /// Settles the end as a session's thread does. Returns whether there was anything to do.
    fn settle(&mut self, now: Time) -> Result<bool, Lost> {
        self.segment.poll_fabric(now)?;
        let progress = self.segment.settle(&mut self.session, None, now)?;
        Ok(progress | !self.segment.take_news().is_empty())
    }

    /// Passes control messages to the other end.
    pub(super) fn talk(&mut self, to: &mut Self, now: Time) -> Result<bool, Lost> {
        let mut progress = false;
        while let Some(octets) = self.session.poll_transmit(now) {
            let heard = to.session.handle_input(now, &octets);
            heard.map_err(|error| Lost(error.to_string()))?;
            // The far end discards its data.
            while to.session.consumer().poll_inline().is_some() {}
            progress = true;
        }
        Ok(progress)
    }
}

/// The two ends of a session.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) shared: Shared,
    /// The end that accepts connections.
    pub(super) near: SessionEnd,
    pub(super) far: SessionEnd,
    edges: Edges,
    to: Endpoint,
    octets: Arc<AtomicU64>,
}

impl Pair {
    pub(super) fn new(ring_bytes: u64, log: Log, octets: Arc<AtomicU64>) -> Result<Self, String> {
        let text = |error: io::Error| error.to_string();
        let nowhere: HostPort = "127.0.0.1:9".parse().map_err(|_| "an address")?;
        let mut config = Config::of_client(vec![nowhere], ClientMeans::default());
        let mut route = config.routes.swap_remove(0);
        route.ring.0 = ring_bytes;
        route.checksum = false;
        // Reads complete at once.
        route.mode = RouteMode::Pull;
        let shape = Shape::of_route(&config, &route);
        let hops = shape::hops(&route, &route.via).ok_or("a route without gateways")?;
        let to = hops[0].endpoint.clone();
        let shared = Shared::new(
            config.clone(),
            Secrets::load(&config)?,
            Resolver::start().map_err(text)?,
            Directory::new(config.sessions, config.allowed(), [0; 32]),
            (Vec::new(), None),
            Backend::new(&config.path)?,
            (Worker::open, log),
        );
        let side = |session: Session| {
            let mut segment = SegmentSide::new(&shape.memory(true), shape.verifies).map_err(|error| {
                format!("no memory for slabs: {error}; a ring takes four times its size, give a smaller one")
            })?;
            segment.fabric = Some(Box::<Nowhere>::default());
            Ok::<_, String>(SessionEnd { session, segment })
        };
        let auth = AuthConfig {
            methods: vec![AuthMethod::Anonymous],
            ..AuthConfig::default()
        };
        let config = shape.session(true, hops[0].offers.clone(), auth);
        let open = SessOpen {
            hops,
            ..SessOpen::default()
        };
        let now = shared.now();
        let seed = || haul_io::random::bytes().map_err(text);
        let near = Session::open(
            config.clone(),
            now,
            SessionId(haul_io::random::bytes().map_err(text)?),
            open,
            seed()?,
        );
        let far = Session::accept(config, now, seed()?);
        Ok(Self {
            near: side(near.map_err(|error| error.to_string())?)?,
            far: side(far.map_err(|error| error.to_string())?)?,
            edges: Edges::default(),
            shared,
            to,
            octets,
        })
    }

    fn run(mut self, acceptor: Acceptor, mut poller: Poller, stop: &Stop) {
        let mut acceptor = Watch::new(acceptor, ACCEPTOR);
        let mut again_at = None;
        let mut events = Events::with_capacity(256);
        let clock = self.shared.clock;
        let ended = loop {
            if stop.is_set() {
                break Ok(());
            }
            let now = self.shared.now();
            let is_open = self.near.session.state() == State::Open;
            if is_open && again_at.is_none_or(|at| at <= now) {
                again_at = None;
                if let Err(error) = acceptor.set(&poller, true) {
                    break Err(Lost(error.to_string()));
                }
            }
            // Other connections are served before the same ones again.
            let at_once = match self.turn(&poller) {
                Ok(progress) => progress.then_some(now),
                Err(lost) => break Err(lost),
            };
            let due = [&self.near, &self.far].map(|side| side.session.poll_timeout());
            let due = due.into_iter().flatten();
            let until = due.chain(again_at).chain(at_once).min();
            if let Err(error) = poller.wait(&mut events, until.map(Time::as_ns), clock) {
                break Err(Lost(error.to_string()));
            }
            let tokens: Vec<u64> = events.iter().map(|event| event.token).collect();
            for token in tokens {
                if token == ACCEPTOR {
                    if self.accept(&acceptor.listener).is_err() {
                        again_at = Some(now.after(EXHAUSTED_NS));
                        // At worst the poller reports it again.
                        let _ = acceptor.set(&poller, false);
                    }
                } else if let Ok(number) = u32::try_from(token) {
                    self.with_edges(&poller, |edges, tools| edges.serve(tools, ConnId(number)));
                }
            }
            let now = self.shared.now();
            for side in [&mut self.near, &mut self.far] {
                if side.session.poll_timeout().is_some_and(|at| at <= now) {
                    side.session.handle_timeout(now);
                }
            }
        };
        if let Err(Lost(why)) = ended {
            self.shared.log(Level::Error, why);
        }
    }

    /// Does everything that is possible now. Returns whether there may be more.
    fn turn(&mut self, poller: &Poller) -> Result<bool, Lost> {
        let now = self.shared.now();
        let mut progress = false;
        while let Some(event) = self.near.session.poll_event() {
            self.on_near(event, poller)?;
            progress = true;
        }
        while let Some(event) = self.far.session.poll_event() {
            self.on_far(event, now)?;
            progress = true;
        }
        progress |= self.near.settle(now)?;
        progress |= self.near.talk(&mut self.far, now)?;
        progress |= self.far.settle(now)?;
        progress |= self.far.talk(&mut self.near, now)?;
        // Ends of connections are not reported.
        drop(self.edges.take_counts());
        if self.edges.is_starved() {
            progress |= self.with_edges(poller, Edges::retry);
        }
        Ok(progress)
    }

    fn with_edges<T>(
        &mut self,
        poller: &Poller,
        act: impl FnOnce(&mut Edges, &mut Tools<'_>) -> T,
    ) -> T {
        let now = self.shared.now();
        let mut tools = Tools {
            session: &mut self.near.session,
            segment: &mut self.near.segment,
            poller,
            now,
            verifies: false,
            shared: &self.shared,
        };
        act(&mut self.edges, &mut tools)
    }

    /// Accepts some waiting connections, and asks the far end for each.
    fn accept(&mut self, acceptor: &Acceptor) -> io::Result<()> {
        for _ in 0..ACCEPT_MAX {
            let Some((stream, from)) = acceptor.accept()? else {
                break;
            };
            // The session is at its limit: the client is reset.
            let Ok(conn) = self.near.session.open_conn(self.to.clone()) else {
                continue;
            };
            let call = Call {
                party: Party::Client(stream, Answer::None),
                from: from.to_string(),
                to: self.to.clone(),
                named: None,
                metadata: haul_xsp::wire::Metadata::default(),
                began: self.shared.now(),
                is_again: false,
            };
            self.edges.ask(conn, call, 0);
        }
        Ok(())
    }

    fn on_near(&mut self, event: Event, poller: &Poller) -> Result<(), Lost> {
        match event {
            Event::ConnAccepted(conn) => {
                self.with_edges(poller, |edges, tools| edges.accepted(tools, conn));
            }
            Event::ConnRefused { conn, status } => self.edges.refused(poller, conn, status, None),
            Event::ConnClosed(conn) | Event::ConnLost(conn) => self.edges.closed(poller, conn),
            Event::Readable(conn) => {
                self.with_edges(poller, |edges, tools| edges.serve(tools, conn));
            }
            Event::Closed(error) => return Err(Lost(error.to_string())),
            _ => {}
        }
        Ok(())
    }

    fn on_far(&mut self, event: Event, now: Time) -> Result<(), Lost> {
        let session = &mut self.far.session;
        let misuse = |error: haul_xsp::Misuse| Lost(error.to_string());
        match event {
            Event::OpenRequest(_) => session.accept_session(now, None, None).map_err(misuse)?,
            Event::ConnRequest { conn, .. } => session.accept_conn(conn).map_err(misuse)?,
            Event::Readable(conn) => {
                while let Some(read) = session.consumer().read(conn, u64::MAX) {
                    match read {
                        Read::Data(data) => {
                            session.consumer().release(conn, data.offset, data.len);
                            self.octets.fetch_add(data.len, Ordering::Relaxed);
                        }
                        Read::End(End::Fin) => session.finish_conn(conn),
                        Read::End(End::Reset(code)) => session.reset_conn(conn, code),
                    }
                }
            }
            Event::Closed(error) => return Err(Lost(error.to_string())),
            _ => {}
        }
        Ok(())
    }
}

/// Data channels that move nothing, like a perfect RNIC without CPU cost.
#[derive(Debug, Default)]
struct Nowhere {
    over: Vec<GetId>,
}

impl Fabric for Nowhere {
    fn kind(&self) -> ChannelKind {
        ChannelKind::Verbs
    }

    fn connect(&mut self, _now: Time, _params: &ChanParams) -> Result<(), Lost> {
        Ok(())
    }

    fn accept(
        &mut self,
        _chan: ChanId,
        _knock: DataConnection,
        _news: &mut Vec<News>,
    ) -> Result<Option<u32>, Lost> {
        Ok(None)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn poll(&mut self, _now: Time, news: &mut Vec<News>) -> Result<(), Lost> {
        news.extend(self.over.drain(..).map(|get| News::Got(get, true)));
        Ok(())
    }

    fn has_broken(&self) -> bool {
        false
    }

    fn lanes_up(&self) -> usize {
        1
    }

    fn posts(&self) -> usize {
        self.over.len()
    }

    fn resent(&self) -> u64 {
        0
    }

    fn out_of_order(&self) -> u64 {
        0
    }

    fn open(
        &mut self,
        _region: &Region,
        at: u64,
        _len: u64,
        _access: AccessFlags,
    ) -> Result<(Guard, Key), Lost> {
        Ok((Guard::Whole, Key { stag: 1, to: at }))
    }

    fn get(&mut self, get: Get) {
        self.over.push(get.id);
    }

    fn put(&mut self, _put: &Put, _region: &Region) -> Result<(), Lost> {
        Err(Lost("nothing is written where it is read".to_owned()))
    }

    fn mark(&mut self, _seq: SlabSeq) {}

    fn post(&mut self) -> Result<(), Lost> {
        Ok(())
    }

    fn end(self: Box<Self>, _news: &mut Vec<News>) {}
}

#[cfg(test)]
#[expect(clippy::disallowed_types, reason = "clients as programs have them")]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    #[test]
    fn all_that_comes_goes_through_slabs_and_ends_as_it_began() {
        let log = Log::new(|_, line| panic!("{line}"));
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let filler = Filler::start(listen, 8 << 20, log).unwrap();
        let sent: u64 = std::thread::scope(|scope| {
            let clients: Vec<_> = (1..=12)
                .map(|client| {
                    let to = filler.local_addr();
                    scope.spawn(move || {
                        let mut stream = TcpStream::connect(to).unwrap();
                        let octets = vec![client; usize::from(client) << 20];
                        stream.write_all(&octets).unwrap();
                        stream.shutdown(std::net::Shutdown::Write).unwrap();
                        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
                        octets.len() as u64
                    })
                })
                .collect();
            clients
                .into_iter()
                .map(|client| client.join().unwrap())
                .sum()
        });
        assert_eq!(filler.taken().unwrap().octets, sent);
        assert!(filler.is_running());
    }

    #[test]
    fn an_address_of_others_is_refused_in_one_line() {
        let listen = (Ipv4Addr::new(192, 0, 2, 1), 1).into();
        let error = Filler::start(listen, 8 << 20, Log::new(|_, _| {})).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("cannot listen at 192.0.2.1:1: ")
        );
    }
}
