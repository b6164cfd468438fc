//! TCP: a thread for each stream at each end, and as little as can be between the socket and
//! memory.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use haul::fault::{Code, Fault};
use haul_io::tcp;
use haul_io::zero_copy::{Pipe, ZeroCopy};
use socket2::SockRef;

use super::account::{Sample, Sent, per_mille};
use super::engine::{StreamRun, StreamSet, Streams, each, open_all};
use super::failure::Failure;
use super::patience::Patience;
use super::plan::{PathPlan, ReceiveBy, STREAMS_MAX, SendBy};
use super::store::{SinkStore, SourceStore};
use super::tally::Budget;

/// Ticket and number of the stream, in front of everything else.
const HEADER: usize = 10;
/// A client sends at once which stream a connection is. Other connections are closed after this.
const INTRODUCTION: Duration = Duration::from_secs(2);
/// Connections that have not sent it; with more, the oldest is closed.
const SILENT_MAX: usize = 2 * STREAMS_MAX as usize;
/// How often they are read.
const TICK: Duration = Duration::from_millis(5);
/// The interval at which an idle receiver checks its deadline.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes per call of a stream that is received by splice.
const SPLICE_BYTES: usize = 1 << 20;

/// Connections, one for each stream, in order.
#[derive(Debug)]
pub(crate) struct Tcp {
    streams: Vec<TcpStream>,
}

impl Tcp {
    /// The client's side. Its limits: until the connections are open, and without acknowledgements.
    pub(crate) fn connect(
        plan: &PathPlan,
        server: SocketAddr,
        ticket: u64,
        (timeout, dead_after): (Duration, Duration),
    ) -> Result<Self, Fault> {
        let connect = |index: u16| -> io::Result<TcpStream> {
            let stream = match plan.buffer {
                // The window is agreed on when the connection is made, so the buffers come first.
                Some(_) => connect_with_buffers(plan, server, timeout)?,
                None => TcpStream::connect_timeout(&server, timeout)?,
            };
            let mut header = [0; HEADER];
            header[..8].copy_from_slice(&ticket.to_be_bytes());
            header[8..].copy_from_slice(&index.to_be_bytes());
            (&stream).write_all(&header)?;
            Ok(stream)
        };
        let streams = open_all(plan.streams, connect, |error| error).map_err(|error| {
            let text = format!("cannot open a data connection to {server}: {error}");
            Fault::new(Code::Unreachable, text)
                .hint("is that port let through? 'haul bench serve --data-port' sets that port")
        })?;
        Self::new(plan, streams, dead_after)
    }

    /// The server's side: waits for all streams. Connections without the ticket are dropped. One
    /// whose peer acknowledges nothing for `dead_after` is dead.
    pub(crate) fn accept(
        plan: &PathPlan,
        listener: &TcpListener,
        ticket: u64,
        patience: &Patience<'_>,
        dead_after: Duration,
    ) -> Result<Self, Fault> {
        let mut streams: Vec<Option<TcpStream>> = (0..plan.streams).map(|_| None).collect();
        let mut silent: VecDeque<Silent> = VecDeque::new();
        while streams.iter().any(Option::is_none) {
            let Some(left) = patience.left()? else {
                let text = "the client opened no data connection";
                return Err(Fault::new(Code::PeerGone, text));
            };
            let left = if silent.is_empty() {
                left
            } else {
                left.min(TICK)
            };
            let ns = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
            let ready = haul_io::notify::wait_readable([listener.as_fd()], Some(ns));
            if ready.map_err(|error| Fault::connection(&error))?
                // A connection that has already closed is no error.
                && let Ok((stream, _)) = listener.accept()
                && let Ok(one) = Silent::new(stream)
            {
                silent.push_back(one);
                if silent.len() > SILENT_MAX {
                    silent.pop_front();
                }
            }
            for mut one in std::mem::take(&mut silent) {
                match one.read() {
                    Ok(false) if one.until > Instant::now() => silent.push_back(one),
                    Ok(true) => {
                        if let Some((index, stream)) = one.introduced(ticket)
                            && let Some(place) = streams.get_mut(index)
                        {
                            *place = Some(stream);
                        }
                    }
                    _ => {}
                }
            }
        }
        let streams = streams.into_iter().flatten().collect();
        Self::new(plan, streams, dead_after)
    }

    fn new(plan: &PathPlan, streams: Vec<TcpStream>, dead_after: Duration) -> Result<Self, Fault> {
        for stream in &streams {
            configure(plan, stream, dead_after).map_err(|error| match &plan.congestion {
                Some(name) if error.kind() == io::ErrorKind::NotFound => {
                    let name = haul::printable(name.as_bytes());
                    let text = format!("the kernel has no congestion control '{name}'");
                    Fault::new(Code::Usage, text)
                        .hint("see /proc/sys/net/ipv4/tcp_available_congestion_control")
                }
                _ => Fault::new(
                    Code::Other,
                    format!("cannot set up a data connection: {error}"),
                ),
            })?;
        }
        Ok(Self { streams })
    }

    fn infos(&self) -> Vec<tcp::Info> {
        let infos = self.streams.iter().map(tcp::info);
        infos.filter_map(Result::ok).collect()
    }
}

/// Prepares the server's listener: its buffers are those of connections that are still to come.
pub(crate) fn prepare(plan: &PathPlan, listener: &TcpListener) -> io::Result<()> {
    // A connection that is gone again by the time it is accepted is not waited for.
    listener.set_nonblocking(true)?;
    plan.buffer
        .map_or(Ok(()), |bytes| set_buffers(&SockRef::from(listener), bytes))
}

fn connect_with_buffers(
    plan: &PathPlan,
    server: SocketAddr,
    timeout: Duration,
) -> io::Result<TcpStream> {
    let domain = socket2::Domain::for_address(server);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    if let Some(bytes) = plan.buffer {
        set_buffers(&SockRef::from(&socket), bytes)?;
    }
    socket.connect_timeout(&server.into(), timeout)?;
    Ok(socket.into())
}

fn set_buffers(socket: &SockRef<'_>, bytes: u32) -> io::Result<()> {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    socket.set_send_buffer_size(bytes)?;
    socket.set_recv_buffer_size(bytes)
}

/// A connection whose header has not arrived whole.
struct Silent {
    stream: TcpStream,
    header: [u8; HEADER],
    filled: usize,
    until: Instant,
}

impl Silent {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            header: [0; HEADER],
            filled: 0,
            until: Instant::now() + INTRODUCTION,
        })
    }

    /// Reads what has arrived, and returns whether that is all of the header.
    fn read(&mut self) -> io::Result<bool> {
        while self.filled < HEADER {
            match self.stream.read(&mut self.header[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.filled += count,
                Err(error) if is_nothing(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Returns the number of the stream that the connection is, if its client knows the ticket.
    fn introduced(self, ticket: u64) -> Option<(usize, TcpStream)> {
        self.stream.set_nonblocking(false).ok()?;
        let (theirs, index) = self.header.split_first_chunk::<8>()?;
        let index = u16::from_be_bytes(index.try_into().ok()?);
        (u64::from_be_bytes(*theirs) == ticket).then_some((usize::from(index), self.stream))
    }
}

fn configure(plan: &PathPlan, stream: &TcpStream, dead_after: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    tcp::detect_dead_peer(stream, dead_after)?;
    if let Some(name) = &plan.congestion {
        tcp::set_congestion(stream, name)?;
    }
    if let Some(rate) = plan.stream_rate_bps() {
        tcp::set_max_pacing_rate(stream, (rate / 8).max(1))?;
    }
    Ok(())
}

impl StreamSet for Tcp {
    fn send(&self, run: &StreamRun<'_>, source: &SourceStore) -> Result<Streams<Sent>, Failure> {
        let begun = Instant::now();
        let sent = each(
            &self.streams,
            || self.cancel(),
            |index, stream| {
                let offset = index as u64 * run.plan.round();
                let sent = send(stream, run, source, offset);
                // Also after a failure: the receiver is not to wait for more. It may have gone
                // already.
                let shut = forgive(run.budget, stream.shutdown(Shutdown::Write));
                let (bytes, copied) = sent?;
                shut?;
                Ok((bytes, copied))
            },
        )?;
        let infos = self.infos();
        let sum = |of: fn(&tcp::Info) -> u64| infos.iter().map(of).sum::<u64>();
        let busy = sum(|info| info.busy_us);
        let calls: u64 = sent
            .parts
            .iter()
            .filter_map(|(_, copied)| *copied)
            .map(|(_, calls)| calls)
            .sum();
        let copied: u64 = sent
            .parts
            .iter()
            .filter_map(|(_, copied)| *copied)
            .map(|(copied, _)| copied)
            .sum();
        Ok(Streams {
            parts: vec![Sent {
                bytes: sent.parts.iter().map(|(bytes, _)| bytes).sum(),
                ns: u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX),
                retransmitted: sum(|info| info.bytes_retransmitted),
                copied_per_mille: per_mille(copied, calls),
                receiver_limited_per_mille: per_mille(sum(|info| info.receiver_limited_us), busy),
                buffer_limited_per_mille: per_mille(sum(|info| info.buffer_limited_us), busy),
                ..Sent::default()
            }],
            thread_ns: sent.thread_ns,
        })
    }

    fn receive(&self, run: &StreamRun<'_>, sink: &SinkStore) -> Result<Streams<()>, Failure> {
        each(
            &self.streams,
            || self.cancel(),
            |index, stream| {
                if run.plan.time_ms().is_some() {
                    stream.set_read_timeout(Some(LOOK))?;
                }
                let received = match run.plan.receive_by {
                    ReceiveBy::Read => {
                        let chunk = usize::try_from(run.plan.message).unwrap_or(usize::MAX);
                        sink.with_memory(index, |memory| {
                            read(stream, run, sink, index, chunk, memory)
                        })
                    }
                    ReceiveBy::Splice => splice(stream, run, sink, index),
                };
                if is_over(run) {
                    // Does not wait for data that the sender has queued. An error means that the
                    // connection is already down.
                    let _ = stream.shutdown(Shutdown::Both);
                }
                received
            },
        )
    }

    fn cancel(&self) {
        for stream in &self.streams {
            // An error means that it is down already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn acknowledged(&self) -> Option<u64> {
        let infos = self.streams.iter().map(tcp::info);
        let bytes = infos.map(|info| info.map(|info| info.bytes_acknowledged));
        bytes.sum::<io::Result<u64>>().ok()
    }

    fn sample(&self) -> Sample {
        let infos = self.infos();
        Sample {
            at_ms: 0,
            rtt_us: infos.iter().map(|info| info.rtt_us).max().unwrap_or(0),
            rtt_us_min: infos.iter().map(|info| info.rtt_us_min).min().unwrap_or(0),
            window: infos.iter().map(|info| info.window_bytes).sum(),
            retransmitted: infos.iter().map(|info| info.bytes_retransmitted).sum(),
        }
    }
}

/// Later arrivals do not count.
fn is_over(run: &StreamRun<'_>) -> bool {
    run.plan
        .time_ms()
        .map(Duration::from_millis)
        .zip(run.tally.elapsed())
        .is_some_and(|(time, elapsed)| elapsed >= time)
}

/// A receiver whose time is over has gone, and that is no failure.
fn forgive(budget: &Budget, result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error)
            if budget.is_over()
                && matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe
                        | io::ErrorKind::ConnectionReset
                        | io::ErrorKind::NotConnected
                ) =>
        {
            Ok(())
        }
        result => result,
    }
}

/// Sends until the budget is spent: bytes, and for zero-copy sends how many were copied and how
/// many there were.
fn send(
    stream: &TcpStream,
    run: &StreamRun<'_>,
    source: &SourceStore,
    from: u64,
) -> Result<(u64, Option<(u64, u64)>), Failure> {
    let (budget, message) = (run.budget, run.plan.message);
    // Streams begin at different places of a file.
    let mut at = from % source.round;
    let mut sent = 0;
    let mut buffer = Vec::new();
    let pipe = match run.plan.send_by {
        SendBy::Splice => Some(Pipe::new().map_err(Failure::System)?),
        _ => None,
    };
    let mut zero_copy = match run.plan.send_by {
        SendBy::Zerocopy => Some(ZeroCopy::new(stream)?),
        _ => None,
    };
    while let Some(len) = budget.take(message) {
        // A message does not go over the end of the source, so the last one of a round may be
        // shorter.
        let len = u64::from(len).min(source.round - at);
        let piece = usize::try_from(len).unwrap_or(0);
        let done = match (&source.memory, &source.file) {
            (Some(memory), _) => {
                let begin = usize::try_from(at).unwrap_or(0);
                let bytes = &memory[begin..begin + piece];
                match (&mut zero_copy, &pipe) {
                    (Some(sender), _) => sender.send_all(bytes, run.plan.depth),
                    (None, Some(pipe)) => pipe.send_memory(stream, bytes),
                    (None, None) => write(stream, bytes),
                }
            }
            (None, Some(file)) => match (run.plan.send_by, &pipe) {
                (SendBy::Sendfile, _) => tcp::send_file(stream, file.as_fd(), at, len),
                (_, Some(pipe)) => pipe.send_file(stream, file.as_fd(), at, len),
                _ => {
                    buffer.resize(piece, 0);
                    source.read(file, &mut buffer, at)?;
                    write(stream, &buffer)
                }
            },
            (None, None) => return Err(Failure::Source(io::ErrorKind::NotFound.into())),
        };
        let is_sent = done.is_ok();
        forgive(budget, done)?;
        if !is_sent {
            break;
        }
        sent += len;
        at = (at + len) % source.round;
    }
    let copied = zero_copy.map(|sender| (sender.copied(), u64::from(sender.calls())));
    Ok((sent, copied))
}

fn write(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)
}

fn read(
    mut stream: &TcpStream,
    run: &StreamRun<'_>,
    sink: &SinkStore,
    index: usize,
    chunk: usize,
    memory: &mut [u8],
) -> Result<(), Failure> {
    let (mut at, mut offset) = (0, 0);
    while !is_over(run) {
        let end = (at + chunk).min(memory.len());
        match stream.read(&mut memory[at..end]) {
            Ok(0) => return Ok(()),
            Ok(got) => {
                run.tally.add(index, got as u64);
                let written = sink.write(index, offset, &memory[at..at + got]);
                written.map_err(Failure::Sink)?;
                offset += got as u64;
                at = if at + got == memory.len() {
                    0
                } else {
                    at + got
                };
            }
            Err(error) if is_nothing(&error) => {}
            Err(error) => return Err(Failure::Path(error)),
        }
    }
    Ok(())
}

/// Nothing has come for a while.
fn is_nothing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
    )
}

fn splice(
    stream: &TcpStream,
    run: &StreamRun<'_>,
    sink: &SinkStore,
    index: usize,
) -> Result<(), Failure> {
    let nowhere = std::fs::OpenOptions::new().write(true).open("/dev/null");
    let nowhere = nowhere.map_err(Failure::System)?;
    let pipe = Pipe::new().map_err(Failure::System)?;
    let mut offset = 0;
    while !is_over(run) {
        let (place, room) = sink.place(index, offset);
        let room = usize::try_from(room)
            .unwrap_or(usize::MAX)
            .min(SPLICE_BYTES);
        let got = match &sink.file {
            Some(file) => pipe.receive(stream, file.as_fd(), Some(place), room),
            None => pipe.receive(stream, nowhere.as_fd(), None, SPLICE_BYTES),
        };
        match got {
            Ok(0) => return Ok(()),
            Ok(got) => {
                run.tally.add(index, got as u64);
                offset += got as u64;
            }
            Err(error) if is_nothing(&error) => {}
            Err(error) => return Err(of_splice(error)),
        }
    }
    Ok(())
}

/// splice(2) works on the socket and the file at once; these are errors that no socket has.
fn of_splice(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Failure::Sink(error)
        }
        _ => Failure::Path(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control;
    use crate::path::plan;

    #[test]
    fn silent_connections_delay_no_stream() {
        let (_near, far) = control::pair(Duration::from_secs(60));
        let plan = PathPlan::new(plan::Engine::Tcp);
        let listener = tcp::listen(([127, 0, 0, 1], 0).into()).unwrap();
        prepare(&plan, &listener).unwrap();
        let address = listener.local_addr().unwrap();
        let begun = Instant::now();
        let silent: Vec<_> = (0..8)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let timeout = Duration::from_secs(60);
        std::thread::scope(|scope| {
            let client = scope.spawn(|| Tcp::connect(&plan, address, 7, (timeout, timeout)));
            let patience = Patience::new(&far, timeout);
            Tcp::accept(&plan, &listener, 7, &patience, timeout).unwrap();
            client.join().unwrap().unwrap();
        });
        assert!(begun.elapsed() < INTRODUCTION, "{:?}", begun.elapsed());
        drop(silent);
    }
}
