//! The TCP channel: the space in chunks over one or more streams.
//!
//! Each stream takes the next chunk when it has finished its last, so a slow stream does not delay
//! the others. A chunk is a 16-byte header (offset in the space as u64, length as u32, CRC32C of
//! both, all big-endian) and its payload. The sender hands files to the kernel (`sendfile`); the
//! receiver reads into one buffer per stream and writes at the place (measured on loopback:
//! `splice` through a pipe costs a fifth less processor time than this with 1 MiB reads, not enough
//! to have a second way of placing bytes). Sealed streams carry the same chunks in records
//! ([`super::sealed`]).

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use haul_io::tcp;
use haul_seal::{Opener, Seal, Sealer, Side};
use haul_soft::bulk::{Sink, Source};

use super::chunk::{CHUNK, CHUNK_HEADER, PLACE_AFTER, chunk_header, parse_chunk_header};
use super::sealed::{self, ChunkSender};
use super::setup::{Channel, ChannelError, ChannelStats, Setup, Ticket};
use crate::dial::Server;
use crate::fault::{Code, Fault, plain};
use crate::lock;
use crate::wire::{DATA_PREAMBLE, crc32c};

/// Preamble, ticket, index of the stream, check.
const STREAM_HEADER: usize = 8 + STREAM_HEADER_REST;
/// The part behind the preamble.
pub(crate) const STREAM_HEADER_REST: usize = 14;
/// How often a stream that waits for the space to grow checks whether the channel is closed.
const SPACE_TICK: Duration = Duration::from_millis(200);

/// An open TCP channel.
#[derive(Debug)]
pub(crate) struct TcpChannel {
    streams: Vec<TcpStream>,
    closed: AtomicBool,
    side: Side,
    sealed: bool,
    /// Keys of each stream that no direction has taken yet: one key begins one stream only.
    sealers: Mutex<Vec<Sealer>>,
    openers: Mutex<Vec<Opener>>,
}

impl TcpChannel {
    /// Connects all streams in parallel.
    pub(crate) fn connect(
        setup: &Setup,
        server: &Server,
        timeout: Duration,
    ) -> Result<Self, Fault> {
        let connect = |index: u16| -> Result<TcpStream, Fault> {
            let stream = server.connect(timeout)?;
            let header = stream_header(setup.ticket, index);
            let written = (&stream).write_all(&header);
            written.map_err(|error| Fault::connection(&error))?;
            Ok(stream)
        };
        let streams = std::thread::scope(|scope| {
            let start = |index| {
                let builder = std::thread::Builder::new().name("haul-connect".into());
                builder.spawn_scoped(scope, move || connect(index))
            };
            let threads: Vec<_> = (0..setup.streams).map(start).collect();
            let join = |thread: io::Result<ScopedJoinHandle<'_, _>>| {
                let joined = thread.map_err(|error| Fault::system(&error))?.join();
                let panicked = |_| Err(Fault::new(Code::Other, "opening a connection failed"));
                joined.unwrap_or_else(panicked)
            };
            let streams: Vec<_> = threads.into_iter().map(join).collect();
            streams.into_iter().collect::<Result<Vec<_>, Fault>>()
        })?;
        Self::new(setup, Side::Initiator, streams)
    }

    /// Blocks until the client has connected all streams.
    pub(crate) fn accept(setup: &Setup, claim: &Claim, deadline: Instant) -> Result<Self, Fault> {
        let streams = claim
            .wait(deadline)
            .ok_or_else(|| Fault::new(Code::PeerGone, "the client opened no data connection"))?;
        Self::new(setup, Side::Responder, streams)
    }

    fn new(setup: &Setup, side: Side, streams: Vec<TcpStream>) -> Result<Self, Fault> {
        for stream in &streams {
            configure(setup, stream).map_err(|error| match &setup.congestion {
                Some(name) if error.kind() == io::ErrorKind::NotFound => Fault::new(
                    Code::Usage,
                    format!("the kernel has no congestion control '{name}'"),
                )
                .hint("see /proc/sys/net/ipv4/tcp_available_congestion_control"),
                _ => Fault::new(
                    Code::Other,
                    format!("cannot set up a data connection: {}", plain(&error)),
                ),
            })?;
        }
        Ok(Self {
            streams,
            closed: AtomicBool::new(false),
            side,
            sealed: setup.sealed.is_some(),
            sealers: Mutex::default(),
            openers: Mutex::default(),
        })
    }

    /// Runs `work` for each stream on its own thread; the first error ends them all.
    fn on_each<K: Send>(
        &self,
        keys: &Mutex<Vec<K>>,
        work: impl Fn(&TcpStream, Option<K>) -> Result<(), ChannelError> + Sync,
    ) -> Result<(), ChannelError> {
        let keys = std::mem::take(&mut *lock(keys));
        let wanted = if self.sealed { self.streams.len() } else { 0 };
        if keys.len() != wanted {
            let text = format!("a channel has {} keys instead of {wanted}", keys.len());
            return Err(ChannelError::System(io::Error::other(text)));
        }
        let keys = keys.into_iter().map(Some);
        let keys = keys.chain(std::iter::repeat_with(|| None));
        let first_error = Mutex::new(None);
        std::thread::scope(|scope| {
            for (stream, key) in self.streams.iter().zip(keys) {
                let (work, first_error) = (&work, &first_error);
                let run = move || {
                    if let Err(error) = work(stream, key) {
                        lock(first_error).get_or_insert(error);
                        self.shut();
                    }
                };
                let builder = std::thread::Builder::new().name("haul-tcp".into());
                if let Err(error) = builder.spawn_scoped(scope, run) {
                    lock(first_error).get_or_insert(ChannelError::System(error));
                    self.shut();
                }
            }
        });
        match first_error
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
        {
            Some(_) if self.closed.load(Ordering::Acquire) => Ok(()),
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn shut(&self) {
        for stream in &self.streams {
            // An error means that it is down already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Channel for TcpChannel {
    fn send(&self, source: &dyn Source) -> Result<(), ChannelError> {
        let next = Mutex::new(0);
        self.on_each(&self.sealers, |stream, key| {
            if let Some(sealer) = key {
                let mut sender = ChunkSender::new(stream, sealer);
                while let Some((offset, len)) = self.next_chunk(source, &next) {
                    sender.send(source, offset, len)?;
                }
                sender.finish()?;
            } else {
                let mut buffer = Vec::new();
                while let Some((offset, len)) = self.next_chunk(source, &next) {
                    send_chunk(stream, source, offset, len, &mut buffer)?;
                }
            }
            let shut = stream.shutdown(Shutdown::Write);
            shut.map_err(|error| ChannelError::lost(&error))
        })
    }

    fn receive(&self, sink: &dyn Sink) -> Result<(), ChannelError> {
        self.on_each(&self.openers, |stream, key| match key {
            Some(opener) => {
                let receive = |room: &mut [u8], least, patience| {
                    tcp::receive_at_least(stream, room, least, patience)
                };
                sealed::receive_chunks(receive, opener, sink)
            }
            None => receive_chunks(stream, sink),
        })
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.shut();
    }

    fn set_seal(&self, seal: Seal) {
        let indexes = 0..u16::try_from(self.streams.len()).unwrap_or(0);
        // Without a key for each stream nothing is sent.
        let keys = indexes.map_while(|index| sealed::keys(&seal, self.side, index));
        let (sealers, openers) = keys.unzip();
        (*lock(&self.sealers), *lock(&self.openers)) = (sealers, openers);
    }

    fn stats(&self) -> ChannelStats {
        let infos: Vec<_> = self
            .streams
            .iter()
            .filter_map(|s| tcp::info(s).ok())
            .collect();
        let sent = |info: &tcp::Info| info.bytes_sent.saturating_sub(info.bytes_retransmitted);
        ChannelStats {
            // Includes the headers of chunks.
            sent: (!infos.is_empty()).then(|| infos.iter().map(sent).sum()),
            causes: None,
            retransmitted: infos.iter().map(|info| info.bytes_retransmitted).sum(),
            rtt_us: infos.iter().map(|info| info.rtt_us).min(),
            // The kernel keeps its own (tcp_metrics).
            shown: None,
        }
    }
}

impl TcpChannel {
    /// Takes the next chunk of the space, waiting for it to grow; `None` at its end.
    fn next_chunk(&self, source: &dyn Source, next: &Mutex<u64>) -> Option<(u64, u64)> {
        loop {
            let mut next = lock(next);
            let extent = source.wait(*next, SPACE_TICK);
            if extent.end > *next {
                let (offset, len) = (*next, CHUNK.min(extent.end - *next));
                *next += len;
                return Some((offset, len));
            }
            if extent.complete || self.closed.load(Ordering::Acquire) {
                return None;
            }
        }
    }
}

fn configure(setup: &Setup, stream: &TcpStream) -> io::Result<()> {
    tcp::send_at_once(stream)?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    tcp::detect_dead_peer(stream, setup.dead_after)?;
    if let Some(name) = &setup.congestion {
        tcp::set_congestion(stream, name)?;
    }
    if let Some(rate_bps) = setup.rate_bps {
        tcp::set_max_pacing_rate(stream, (rate_bps / 8 / u64::from(setup.streams)).max(1))?;
    }
    Ok(())
}

/// Builds the header of a stream.
pub(crate) fn stream_header(ticket: Ticket, index: u16) -> [u8; STREAM_HEADER] {
    let mut header = [0; STREAM_HEADER];
    header[..8].copy_from_slice(DATA_PREAMBLE);
    header[8..16].copy_from_slice(&ticket.to_wire().to_be_bytes());
    header[16..18].copy_from_slice(&index.to_be_bytes());
    let check = crc32c(&header[8..18]);
    header[18..].copy_from_slice(&check);
    header
}

/// Parses the ticket and the index behind a stream's preamble; `None` if they are damaged.
pub(crate) fn parse_stream_header(rest: [u8; STREAM_HEADER_REST]) -> Option<(Ticket, u16)> {
    let (covered, check) = rest.split_last_chunk::<4>()?;
    let (ticket, index) = covered.split_first_chunk()?;
    let index = index.try_into().map(u16::from_be_bytes).ok()?;
    (crc32c(covered) == *check).then(|| (Ticket::from_wire(u64::from_be_bytes(*ticket)), index))
}

fn send_chunk(
    stream: &TcpStream,
    source: &dyn Source,
    offset: u64,
    len: u64,
    buffer: &mut Vec<u8>,
) -> Result<(), ChannelError> {
    let lost = |error: io::Error| ChannelError::lost(&error);
    // A chunk is no longer than CHUNK.
    let header = chunk_header(offset, u32::try_from(len).unwrap_or(u32::MAX));
    tcp::send_all_more(stream, &header).map_err(lost)?;
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let file = source.file_at(at);
        let piece = file
            .as_ref()
            .map_or(end - at, |file| file.len.min(end - at));
        buffer.resize(usize::try_from(piece).unwrap_or(0), 0);
        match file {
            Some(file) => {
                let sent = tcp::send_file(stream, file.fd, file.position, piece);
                // sendfile(2) does not tell which side failed: reading the file again does.
                sent.map_err(|error| match source.read_at(at, buffer) {
                    Err(error) => ChannelError::store(error),
                    Ok(()) => lost(error),
                })?;
            }
            None => {
                source.read_at(at, buffer).map_err(ChannelError::store)?;
                let mut stream = stream;
                stream.write_all(buffer).map_err(lost)?;
            }
        }
        at += piece;
    }
    Ok(())
}

fn receive_chunks(mut stream: &TcpStream, sink: &dyn Sink) -> Result<(), ChannelError> {
    let lost = |error: io::Error| ChannelError::lost(&error);
    let mut buffer = vec![0; usize::try_from(CHUNK).unwrap_or(0)];
    loop {
        let mut header = [0; CHUNK_HEADER];
        if !read_header(stream, &mut header).map_err(lost)? {
            return Ok(());
        }
        let Some((offset, len)) = parse_chunk_header(header) else {
            return Err(ChannelError::Lost("a header arrived damaged".into()));
        };
        let len = len as usize;
        if len == 0 || len > buffer.len() || offset.checked_add(len as u64).is_none() {
            return Err(ChannelError::Peer("a chunk of an impossible length".into()));
        }
        let (mut placed, mut filled, mut since) = (0, 0, Instant::now());
        while filled < len {
            match stream.read(&mut buffer[filled..len]) {
                Ok(0) => return Err(lost(io::ErrorKind::ConnectionAborted.into())),
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(lost(error)),
            }
            if filled == len || since.elapsed() > PLACE_AFTER {
                sink.place(
                    offset + placed as u64,
                    &[IoSlice::new(&buffer[placed..filled])],
                )
                .map_err(ChannelError::store)?;
                (placed, since) = (filled, Instant::now());
            }
        }
    }
}

/// Reads a chunk header; returns false if the stream ends before it.
fn read_header(mut stream: &TcpStream, header: &mut [u8]) -> io::Result<bool> {
    let mut filled = 0;
    while filled < header.len() {
        match stream.read(&mut header[filled..]) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::ConnectionAborted.into()),
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Matches a server's TCP data connections with the sessions that claim them; either may come
/// first.
#[derive(Debug, Default)]
pub(crate) struct Acceptor {
    arrivals: Arc<Arrivals>,
}

#[derive(Debug, Default)]
struct Arrivals {
    pending: Mutex<Pending>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Pending {
    sessions: HashMap<Ticket, Streams>,
    /// Connections without a session, by number, oldest first, and their sources.
    unclaimed: VecDeque<(u64, Option<IpAddr>)>,
    arrived: u64,
}

/// The connections of a session that have arrived.
#[derive(Debug)]
struct Streams {
    /// How many the session has: the indexes below it.
    count: u16,
    arrived: HashMap<u16, TcpStream>,
}

/// Maximum number of connections without a session, each of which takes a thread. Beyond it the
/// oldest of the source that has most of them is closed, so that one source (an IPv4 address, an
/// IPv6 /64) cannot displace those of others.
const UNCLAIMED_MAX: usize = 256;

impl Pending {
    /// Adds a connection and returns its number.
    fn enter(&mut self, from: Option<IpAddr>) -> u64 {
        self.arrived += 1;
        self.unclaimed.push_back((self.arrived, from));
        if self.unclaimed.len() > UNCLAIMED_MAX {
            let mut counts = HashMap::new();
            for (_, from) in &self.unclaimed {
                *counts.entry(*from).or_insert(0) += 1;
            }
            let most = counts.values().max();
            let mut sources = self.unclaimed.iter().map(|(_, from)| from);
            if let Some(oldest) = sources.position(|from| counts.get(from) == most) {
                self.unclaimed.remove(oldest);
            }
        }
        self.arrived
    }
}

/// A session's claim on the connections that carry its ticket.
#[derive(Debug)]
pub(crate) struct Claim {
    ticket: Ticket,
    count: u16,
    arrivals: Arc<Arrivals>,
}

impl Acceptor {
    /// Claims the connections with this ticket and an index below `count` for the caller.
    pub(crate) fn claim(&self, ticket: Ticket, count: u16) -> Claim {
        let streams = || Streams {
            count,
            arrived: HashMap::new(),
        };
        lock(&self.arrivals.pending)
            .sessions
            .entry(ticket)
            .or_insert_with(streams);
        self.arrivals.changed.notify_all();
        Claim {
            ticket,
            count,
            arrivals: Arc::clone(&self.arrivals),
        }
    }

    /// Hands a connection to the session that claims its ticket. Blocks for the claim until
    /// `deadline`; then, or if too many connections wait, closes it.
    pub(crate) fn deliver(&self, ticket: Ticket, index: u16, stream: TcpStream, deadline: Instant) {
        let from = stream
            .peer_addr()
            .ok()
            .map(|from| haul_io::address::source(from.ip()));
        let mut pending = lock(&self.arrivals.pending);
        let number = pending.enter(from);
        self.arrivals.changed.notify_all();
        let patience = deadline.saturating_duration_since(Instant::now());
        let unclaimed = |pending: &mut Pending| {
            let mut waiting = pending.unclaimed.iter();
            !pending.sessions.contains_key(&ticket)
                && waiting.any(|(waiting, _)| *waiting == number)
        };
        let waited = self
            .arrivals
            .changed
            .wait_timeout_while(pending, patience, unclaimed);
        let (mut pending, _) = waited.unwrap_or_else(PoisonError::into_inner);
        pending.unclaimed.retain(|(waiting, _)| *waiting != number);
        if let Some(streams) = pending.sessions.get_mut(&ticket)
            && index < streams.count
        {
            streams.arrived.entry(index).or_insert(stream);
            self.arrivals.changed.notify_all();
        }
    }
}

impl Claim {
    /// Blocks until all connections of the session have arrived.
    fn wait(&self, deadline: Instant) -> Option<Vec<TcpStream>> {
        let pending = lock(&self.arrivals.pending);
        let patience = deadline.saturating_duration_since(Instant::now());
        let waited = self
            .arrivals
            .changed
            .wait_timeout_while(pending, patience, |pending| {
                pending
                    .sessions
                    .get(&self.ticket)
                    .is_some_and(|streams| streams.arrived.len() < usize::from(streams.count))
            });
        let (mut pending, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let mut arrived = pending.sessions.remove(&self.ticket)?.arrived;
        (0..self.count)
            .map(|index| arrived.remove(&index))
            .collect()
    }
}

impl Claim {
    /// Ends the claim and closes the connections that arrived for it.
    pub(crate) fn give_up(&self) {
        lock(&self.arrivals.pending).sessions.remove(&self.ticket);
        self.arrivals.changed.notify_all();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Accepts a connection of a test, which is made soon or never.
#[cfg(test)]
pub(super) fn accept_soon(listener: &std::net::TcpListener) -> TcpStream {
    let limit = Instant::now() + Duration::from_secs(60);
    listener.set_nonblocking(true).unwrap();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                return stream;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                assert!(Instant::now() < limit, "nobody connects");
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_with_an_index_beyond_the_streams_is_none_of_them() {
        let acceptor = Acceptor::default();
        let claim = acceptor.claim(Ticket::from_wire(5), 2);
        let deadline = Instant::now() + Duration::from_secs(60);
        for index in [7, 1, 2, 0] {
            let (stream, _) = tcp::pair().unwrap();
            acceptor.deliver(Ticket::from_wire(5), index, stream, deadline);
        }
        assert_eq!(claim.wait(deadline).unwrap().len(), 2);
    }

    #[test]
    fn an_address_displaces_its_own_unclaimed_connections_and_no_others() {
        let [greedy, modest] = [1, 2].map(|host| Some(IpAddr::from([10, 0, 0, host])));
        let mut pending = Pending::default();
        let first = pending.enter(modest);
        let oldest = pending.enter(greedy);
        for _ in 0..3 * UNCLAIMED_MAX {
            pending.enter(greedy);
        }
        let second = pending.enter(modest);
        let has = |wanted| {
            pending
                .unclaimed
                .iter()
                .any(|(number, _)| *number == wanted)
        };
        assert!(has(first) && has(second) && !has(oldest));
        assert_eq!(pending.unclaimed.len(), UNCLAIMED_MAX);
    }

    #[test]
    fn no_stream_of_a_sealed_channel_goes_without_a_key() {
        let (streams, _far): (Vec<_>, Vec<_>) = (0..2).map(|_| tcp::pair().unwrap()).unzip();
        let channel = TcpChannel {
            streams,
            closed: AtomicBool::new(false),
            side: Side::Initiator,
            sealed: true,
            sealers: Mutex::default(),
            openers: Mutex::default(),
        };
        let keys = Mutex::new(vec![()]);
        let error = channel.on_each(&keys, |_, key| {
            assert!(key.is_some());
            Ok(())
        });
        assert!(matches!(error, Err(ChannelError::System(_))), "{error:?}");
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let header = chunk_header(7 << 40, 1 << 20);
        assert_eq!(parse_chunk_header(header), Some((7 << 40, 1 << 20)));
        for bit in 0..header.len() * 8 {
            let mut header = header;
            header[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse_chunk_header(header), None, "bit {bit}");
        }
        let stream = stream_header(Ticket::from_wire(u64::MAX), 3);
        let (preamble, rest) = stream.split_first_chunk().unwrap();
        let rest: [u8; STREAM_HEADER_REST] = rest.try_into().unwrap();
        assert_eq!(preamble, DATA_PREAMBLE);
        let parsed = parse_stream_header(rest);
        assert_eq!(parsed, Some((Ticket::from_wire(u64::MAX), 3)));
        for bit in 0..rest.len() * 8 {
            let mut rest = rest;
            rest[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse_stream_header(rest), None, "bit {bit}");
        }
    }
}
