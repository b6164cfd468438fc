//! Byte streams through one pipe: the last resort, if ssh is all that reaches the other host.
//!
//! A frame is a kind (u8), a zero byte, a stream (u16), a length (u32), all big-endian, then that
//! many bytes. The client opens streams; each direction of each has a window, so that a slow stream
//! delays no other and no end holds more than a window for each.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::lock;

/// Bytes of the header of a frame.
pub(crate) const HEADER: usize = 8;
/// Maximum length of a frame behind its header, bytes.
const FRAME_MAX: usize = 64 << 10;
/// How much of a stream may be in flight in one direction, bytes.
const WINDOW: u32 = 4 << 20;
/// A receiver grants what it has passed on in pieces of this size, bytes.
const GRANT: usize = WINDOW as usize / 4;
/// Maximum number of streams: a control connection, the data connections of the `tcp` channel, and
/// those of an attempt before that has not ended.
const STREAMS_MAX: usize = 160;

/// Kinds of frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A message of the greeting, once in each direction.
    Greeting = 0,
    /// The client opens the stream.
    Open = 1,
    /// Bytes of the stream.
    Data = 2,
    /// The receiver grants as many more bytes (u32).
    Credit = 3,
    /// The sender has no more bytes.
    Fin = 4,
    /// The stream is gone in both directions.
    Reset = 5,
    /// The client needs the agent no more.
    Done = 6,
}

/// The checked header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) stream: u16,
    pub(crate) len: usize,
}

/// Parses the header of a frame; `None` if it is none.
pub(crate) fn header(bytes: [u8; HEADER]) -> Option<Header> {
    let [kind, zero, s0, s1, length @ ..] = bytes;
    let kind = [
        Kind::Greeting,
        Kind::Open,
        Kind::Data,
        Kind::Credit,
        Kind::Fin,
        Kind::Reset,
        Kind::Done,
    ]
    .into_iter()
    .find(|known| *known as u8 == kind)?;
    let len = usize::try_from(u32::from_be_bytes(length)).ok()?;
    let fits = match kind {
        Kind::Greeting | Kind::Data => (1..=FRAME_MAX).contains(&len),
        Kind::Credit => len == 4,
        Kind::Open | Kind::Fin | Kind::Reset | Kind::Done => len == 0,
    };
    (fits && zero == 0).then_some(Header {
        kind,
        stream: u16::from_be_bytes([s0, s1]),
        len,
    })
}

/// Reads a frame.
///
/// # Errors
/// Those of reading; `InvalidData` for what is no frame.
pub(super) fn read_frame(input: &mut impl Read) -> io::Result<(Header, Vec<u8>)> {
    let mut bytes = [0; HEADER];
    input.read_exact(&mut bytes)?;
    let header = header(bytes).ok_or(io::ErrorKind::InvalidData)?;
    let mut body = vec![0; header.len];
    input.read_exact(&mut body)?;
    Ok((header, body))
}

/// Writes a frame.
///
/// # Errors
/// Those of writing; `InvalidInput` for a body that is too long.
pub(super) fn write_frame(
    output: &mut impl Write,
    kind: Kind,
    stream: u16,
    body: &[u8],
) -> io::Result<()> {
    let len = u32::try_from(body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut frame = Vec::with_capacity(HEADER + body.len());
    frame.extend([kind as u8, 0]);
    frame.extend(stream.to_be_bytes());
    frame.extend(len.to_be_bytes());
    frame.extend_from_slice(body);
    output.write_all(&frame)?;
    output.flush()
}

/// How the pipe ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The client reported that it is done.
    Done,
    /// The pipe was closed or broke.
    Lost,
}

/// Streams over one pipe. Clones share it.
#[derive(Clone)]
pub(super) struct Mux(Arc<Shared>);

struct Shared {
    output: Mutex<Box<dyn Write + Send>>,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    streams: HashMap<u16, Stream>,
    opened: u16,
    end: Option<End>,
}

/// One stream: between a local socket and the pipe.
#[derive(Clone)]
struct Stream {
    socket: Arc<TcpStream>,
    arrived: Arc<Arrived>,
    credit: Arc<Credit>,
}

/// What arrived for the socket. All frames share one buffer: a frame costs its bytes and no more.
#[derive(Default)]
struct Arrived {
    queue: Mutex<Queue>,
    more: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Bytes that wait for the socket.
    bytes: Vec<u8>,
    /// Bytes that arrived and were not granted again, at most a window.
    outstanding: usize,
    /// The peer has no more bytes.
    is_finished: bool,
    /// The stream is gone here; what still arrives is dropped.
    is_closed: bool,
}

impl Arrived {
    /// Returns whether the peer kept to its window and had not finished.
    fn add(&self, bytes: &[u8]) -> bool {
        let mut queue = lock(&self.queue);
        if queue.is_finished || queue.outstanding + bytes.len() > WINDOW as usize {
            return false;
        }
        queue.outstanding += bytes.len();
        if !queue.is_closed {
            queue.bytes.extend_from_slice(bytes);
        }
        drop(queue);
        self.more.notify_all();
        true
    }

    /// Takes the peer's last byte; returns false if it had finished before.
    fn finish(&self) -> bool {
        let was_finished = std::mem::replace(&mut lock(&self.queue).is_finished, true);
        self.more.notify_all();
        !was_finished
    }

    fn close(&self) {
        let mut queue = lock(&self.queue);
        (queue.is_closed, queue.bytes) = (true, Vec::new());
        drop(queue);
        self.more.notify_all();
    }

    /// Blocks until bytes wait; `None` after the last byte, or if the stream is gone.
    fn take(&self) -> Option<Vec<u8>> {
        let waiting =
            |queue: &mut Queue| queue.bytes.is_empty() && !queue.is_finished && !queue.is_closed;
        let waited = self.more.wait_while(lock(&self.queue), waiting);
        let mut queue = waited.unwrap_or_else(PoisonError::into_inner);
        (!queue.bytes.is_empty()).then(|| std::mem::take(&mut queue.bytes))
    }

    /// From now on the peer may send as much again.
    fn grant(&self, bytes: usize) {
        lock(&self.queue).outstanding -= bytes;
    }
}

/// How much may be sent.
#[derive(Default)]
struct Credit {
    /// `None` once the stream is gone.
    left: Mutex<Option<u32>>,
    more: Condvar,
}

impl Credit {
    /// Blocks until something may be sent; `None` if the stream is gone.
    fn wait(&self) -> Option<usize> {
        let mut left = lock(&self.left);
        loop {
            match *left {
                None => return None,
                Some(0) => left = self.more.wait(left).unwrap_or_else(PoisonError::into_inner),
                Some(some) => return usize::try_from(some).ok(),
            }
        }
    }

    fn take(&self, bytes: usize) {
        if let Some(left) = lock(&self.left).as_mut() {
            *left = left.saturating_sub(u32::try_from(bytes).unwrap_or(u32::MAX));
        }
    }

    /// Returns whether the peer may grant as much.
    fn grant(&self, bytes: u32) -> bool {
        let mut state = lock(&self.left);
        if let Some(left) = state.as_mut() {
            match left.checked_add(bytes).filter(|sum| *sum <= WINDOW) {
                Some(sum) => *left = sum,
                None => return false,
            }
        }
        drop(state);
        self.more.notify_all();
        true
    }

    fn close(&self) {
        *lock(&self.left) = None;
        self.more.notify_all();
    }
}

/// Makes the local end of a stream that the peer opens.
pub(super) type Accept = Box<dyn Fn() -> io::Result<TcpStream> + Send>;

impl Mux {
    /// Starts to carry streams; `accept` connects those that the peer opens, if it may open any.
    pub(super) fn start(
        input: impl Read + Send + 'static,
        output: impl Write + Send + 'static,
        accept: Option<Accept>,
    ) -> io::Result<Self> {
        let mux = Self(Arc::new(Shared {
            output: Mutex::new(Box::new(output)),
            state: Mutex::default(),
            ended: Condvar::new(),
        }));
        let own = mux.clone();
        let builder = std::thread::Builder::new().name("haul-ssh".into());
        builder.spawn(move || {
            let end = own.carry(input, accept.as_ref());
            own.finish(end);
        })?;
        Ok(mux)
    }

    /// Opens a stream; returns this end of it.
    pub(super) fn open(&self) -> io::Result<TcpStream> {
        let (near, far) = haul_io::tcp::local_pair()?;
        let id = {
            let mut state = lock(&self.0.state);
            let mut id = state.opened;
            while state.streams.contains_key(&id) {
                id = id.wrapping_add(1);
            }
            state.opened = id.wrapping_add(1);
            id
        };
        // What the peer answers, at once if it refuses, finds the stream.
        let stream = self.insert(id, far)?;
        // The peer must know the stream before its first byte.
        let opened = self.send(Kind::Open, id, &[]);
        if let Err(error) = opened.and_then(|()| self.attach(id, stream)) {
            self.remove(id);
            // The peer may have opened its end. If the pipe is gone, reading it ends as well.
            let _ = self.send(Kind::Reset, id, &[]);
            return Err(error);
        }
        Ok(near)
    }

    /// Tells the peer that it is needed no more.
    pub(super) fn done(&self) {
        // Without a pipe there is nobody to notify.
        let _ = self.send(Kind::Done, 0, &[]);
    }

    /// Returns how the pipe ended, if it has.
    pub(super) fn end(&self) -> Option<End> {
        lock(&self.0.state).end
    }

    /// Blocks until the pipe has ended or the time is over.
    pub(super) fn wait(&self, time: Duration) -> Option<End> {
        let state = lock(&self.0.state);
        let waited = self
            .0
            .ended
            .wait_timeout_while(state, time, |state| state.end.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.end
    }

    fn send(&self, kind: Kind, stream: u16, body: &[u8]) -> io::Result<()> {
        write_frame(&mut *lock(&self.0.output), kind, stream, body)
    }

    /// Reads frames until the pipe ends.
    fn carry(&self, mut input: impl Read, accept: Option<&Accept>) -> End {
        while let Ok((header, body)) = read_frame(&mut input) {
            let id = header.stream;
            let stream = lock(&self.0.state).streams.get(&id).cloned();
            let goes_on = match (header.kind, stream) {
                (Kind::Done, _) => return End::Done,
                (Kind::Greeting, _) | (Kind::Open, Some(_)) => false,
                (Kind::Open, None) => accept.is_some_and(|accept| self.accept(id, accept)),
                // A stream that has just ended here may still be on its way there.
                (_, None) => true,
                (Kind::Data, Some(stream)) => stream.arrived.add(&body),
                (Kind::Credit, Some(stream)) => <[u8; 4]>::try_from(body.as_slice())
                    .is_ok_and(|bytes| stream.credit.grant(u32::from_be_bytes(bytes))),
                (Kind::Fin, Some(stream)) => stream.arrived.finish(),
                (Kind::Reset, Some(stream)) => {
                    stream.abort();
                    true
                }
            };
            if !goes_on {
                break;
            }
        }
        End::Lost
    }

    /// Returns whether the peer may open one more.
    fn accept(&self, id: u16, accept: &Accept) -> bool {
        if lock(&self.0.state).streams.len() >= STREAMS_MAX {
            return false;
        }
        let stream = accept().and_then(|socket| self.insert(id, socket));
        if stream.and_then(|stream| self.attach(id, stream)).is_err() {
            self.remove(id);
            // If the pipe is gone, reading it ends as well.
            let _ = self.send(Kind::Reset, id, &[]);
        }
        true
    }

    /// From now on frames of this stream are its own.
    fn insert(&self, id: u16, socket: TcpStream) -> io::Result<Stream> {
        let stream = Stream {
            socket: Arc::new(socket),
            arrived: Arc::default(),
            credit: Arc::new(Credit {
                left: Mutex::new(Some(WINDOW)),
                more: Condvar::new(),
            }),
        };
        let mut state = lock(&self.0.state);
        if state.end.is_some() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        state.streams.insert(id, stream.clone());
        Ok(stream)
    }

    fn remove(&self, id: u16) {
        if let Some(stream) = lock(&self.0.state).streams.remove(&id) {
            stream.abort();
        }
    }

    /// Carries a stream on two threads.
    fn attach(&self, id: u16, stream: Stream) -> io::Result<()> {
        let (up, down) = (self.clone(), self.clone());
        let (ours, theirs) = (stream.clone(), stream);
        let builder = || std::thread::Builder::new().name("haul-ssh-stream".into());
        let sending = builder().spawn(move || up.pull(id, &ours));
        let sending = sending.and_then(|sending| {
            builder().spawn(move || {
                down.push(id, &theirs);
                // The stream is over when both directions are.
                let _ = sending.join();
                lock(&down.0.state).streams.remove(&id);
            })
        });
        sending.map(drop)
    }

    /// From the socket to the pipe.
    fn pull(&self, id: u16, stream: &Stream) {
        let mut buffer = vec![0; FRAME_MAX];
        while let Some(room) = stream.credit.wait() {
            let room = room.min(FRAME_MAX);
            match (&*stream.socket).read(&mut buffer[..room]) {
                Ok(0) => {
                    // If the pipe is gone, reading it ends as well.
                    let _ = self.send(Kind::Fin, id, &[]);
                    return;
                }
                Ok(got) => {
                    stream.credit.take(got);
                    if self.send(Kind::Data, id, &buffer[..got]).is_err() {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        // Without it the peer's end would stay open as long as the pipe.
        let _ = self.send(Kind::Reset, id, &[]);
        stream.abort();
    }

    /// From the pipe to the socket.
    fn push(&self, id: u16, stream: &Stream) {
        let mut passed = 0;
        while let Some(bytes) = stream.arrived.take() {
            for piece in bytes.chunks(FRAME_MAX) {
                if (&*stream.socket).write_all(piece).is_err() {
                    let _ = self.send(Kind::Reset, id, &[]);
                    stream.abort();
                    return;
                }
                passed += piece.len();
                if passed >= GRANT {
                    stream.arrived.grant(passed);
                    let credit = u32::try_from(passed).unwrap_or(u32::MAX).to_be_bytes();
                    if self.send(Kind::Credit, id, &credit).is_err() {
                        stream.abort();
                        return;
                    }
                    passed = 0;
                }
            }
        }
        // An error means that it is down already.
        let _ = stream.socket.shutdown(Shutdown::Write);
    }

    fn finish(&self, end: End) {
        let mut state = lock(&self.0.state);
        state.end = Some(end);
        for stream in state.streams.values() {
            stream.abort();
        }
        drop(state);
        self.0.ended.notify_all();
    }
}

impl Stream {
    fn abort(&self) {
        self.credit.close();
        self.arrived.close();
        // An error means that it is down already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Two ends of a pipe; the agent's connects to an echo.
    fn pipe(accept: Option<Accept>) -> (Mux, Mux) {
        let (near, far) = haul_io::tcp::pair().unwrap();
        let of = |stream: &TcpStream| (stream.try_clone().unwrap(), stream.try_clone().unwrap());
        let ((ni, no), (fi, fo)) = (of(&near), of(&far));
        (
            Mux::start(ni, no, None).unwrap(),
            Mux::start(fi, fo, accept).unwrap(),
        )
    }

    /// What an end does not see within this time it never sees.
    const LIMIT: Duration = Duration::from_secs(60);

    /// Whether a stream ends.
    fn ends(mut stream: &TcpStream) -> bool {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        loop {
            match stream.read(&mut [0]) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
        }
    }

    fn echo() -> Accept {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                std::thread::spawn(move || {
                    let stream = stream.unwrap();
                    let _ = io::copy(&mut &stream, &mut &stream);
                    let _ = stream.shutdown(Shutdown::Write);
                });
            }
        });
        Box::new(move || TcpStream::connect(at))
    }

    #[test]
    fn streams_carry_more_than_a_window_and_a_full_one_delays_no_other() {
        let (client, _agent) = pipe(Some(echo()));
        // Nobody reads what this one gets back.
        let stuck = client.open().unwrap();
        let filler = stuck.try_clone().unwrap();
        std::thread::spawn(move || {
            let _ = (&filler).write_all(&vec![1; 64 << 20]);
        });
        let stream = client.open().unwrap();
        let content: Vec<u8> = (0..3 * WINDOW).map(|at| (at % 251) as u8).collect();
        let sent = content.clone();
        let up = stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            (&up).write_all(&sent).unwrap();
            up.shutdown(Shutdown::Write).unwrap();
        });
        let mut got = Vec::new();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        (&stream).read_to_end(&mut got).unwrap();
        sender.join().unwrap();
        assert!(got == content);
        drop(stuck);
    }

    #[test]
    fn the_end_of_the_pipe_ends_streams_and_is_told() {
        // The agent's thread may be anywhere between the byte and the end.
        for _ in 0..100 {
            let (client, agent) = pipe(Some(echo()));
            let mut stream = client.open().unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream.write_all(b"x").unwrap();
            stream.read_exact(&mut [0]).unwrap();
            client.done();
            assert_eq!(agent.wait(LIMIT), Some(End::Done));
            // The agent's end closes its sockets.
            assert!(ends(&stream));
        }
    }

    #[test]
    fn a_stream_that_is_refused_at_once_ends() {
        let refuse: Accept = Box::new(|| Err(io::ErrorKind::ConnectionRefused.into()));
        let (client, _agent) = pipe(Some(refuse));
        for _ in 0..300 {
            let stream = client.open().unwrap();
            assert!(ends(&stream));
        }
    }

    #[test]
    fn a_stream_that_ends_at_one_end_of_the_pipe_ends_at_the_other() {
        let (client, agent) = pipe(Some(echo()));
        let mut stream = client.open().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        let there = lock(&agent.0.state).streams[&0].clone();
        // Its thread reads one byte more at most, then waits for credit.
        there.credit.take(WINDOW as usize);
        stream.write_all(b"x").unwrap();
        std::thread::sleep(Duration::from_millis(50));
        there.abort();
        assert!(ends(&stream));
    }

    #[test]
    fn who_breaks_the_rules_loses_the_pipe() {
        for (kind, body) in [(Kind::Open, &[][..]), (Kind::Greeting, b"x")] {
            let (client, agent) = pipe(None);
            agent.send(kind, 9, body).unwrap();
            assert_eq!(client.wait(LIMIT), Some(End::Lost), "{kind:?}");
        }
        // More credit than a window.
        let (client, agent) = pipe(Some(echo()));
        let _stream = client.open().unwrap();
        agent.send(Kind::Credit, 0, &1u32.to_be_bytes()).unwrap();
        assert_eq!(client.wait(LIMIT), Some(End::Lost));
    }

    #[test]
    fn a_stream_finishes_once_and_sends_nothing_behind_that() {
        for (kind, body) in [(Kind::Fin, &[][..]), (Kind::Data, b"x")] {
            let (client, agent) = pipe(Some(echo()));
            let _stream = client.open().unwrap();
            agent.send(Kind::Fin, 0, &[]).unwrap();
            agent.send(kind, 0, body).unwrap();
            let end = client.wait(LIMIT);
            assert_eq!(end, Some(End::Lost), "{kind:?}");
        }
    }

    #[test]
    fn what_waits_takes_no_more_memory_in_small_frames_than_in_large_ones() {
        let arrived = Arrived::default();
        for _ in 0..WINDOW {
            assert!(arrived.add(b"x"));
        }
        assert!(lock(&arrived.queue).bytes.capacity() <= 2 * WINDOW as usize);
        assert!(!arrived.add(b"x"), "more than a window");
        let waiting = arrived.take().map(|bytes| bytes.len());
        assert_eq!(waiting, Some(WINDOW as usize));
        arrived.grant(1);
        arrived.close();
        // It counts and is dropped.
        assert!(arrived.add(b"x"));
        assert!(!arrived.add(b"x"));
        assert_eq!(arrived.take(), None);
    }

    #[test]
    fn only_whole_headers_are_taken() {
        assert!(header([2, 0, 0, 1, 0, 0, 0, 5]).is_some());
        for bad in [
            [7, 0, 0, 1, 0, 0, 0, 0],
            [2, 1, 0, 1, 0, 0, 0, 5],
            [2, 0, 0, 1, 0, 0, 0, 0],
            [2, 0, 0, 1, 0, 1, 0, 1],
            [2, 0, 0, 1, 0xff, 0xff, 0xff, 0xff],
            [3, 0, 0, 1, 0, 0, 0, 3],
            [1, 0, 0, 1, 0, 0, 0, 1],
        ] {
            assert_eq!(header(bad), None, "{bad:?}");
        }
    }
}
