//! The control connection: framing, heartbeats, and detection of a lost peer.
//!
//! A thread of its own reads the socket and sends heartbeats, so that an end that is busy
//! (reserving storage, for example) does not time out.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::cancel::Cancel;
use crate::fault::{Code, Fault, RESUME};
use crate::wire::{
    self, CHECK, Hello, LENGTH, MESSAGE_MAX, Message, TransferId, VERSIONS, WireError, abridged,
};
use crate::{SOFTWARE, lock};

/// An idle end sends a heartbeat this often.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How often the reader checks its timeouts.
const TICK: Duration = Duration::from_millis(250);
/// How long a finished end waits for the peer to close as well.
const LINGER: Duration = Duration::from_secs(2);
/// Maximum message of the handshake, bytes: bounds the memory held for an unknown peer.
const HANDSHAKE_MAX: usize = 64 << 10;
/// Maximum bytes of messages that wait for the session. The reader never blocks on the session:
/// two ends that both wait for room to send would deadlock.
const BACKLOG_MAX: usize = 64 << 20;

/// One end of a control connection after the handshake.
#[derive(Debug)]
pub(crate) struct Link {
    writer: Arc<Writer>,
    incoming: Receiver<Result<Message, Fault>>,
    reader: Option<JoinHandle<()>>,
    reported: AtomicBool,
    cancel: Cancel,
}

#[derive(Debug)]
struct Writer {
    stream: TcpStream,
    last_sent: Mutex<Instant>,
    /// When the session dropped the link.
    closed: Mutex<Option<Instant>>,
}

impl Link {
    /// Takes over a connection after both ends have exchanged `Hello`. `peer` names the other end
    /// in messages to the user.
    pub(crate) fn start(
        stream: TcpStream,
        peer: &str,
        dead_after: Duration,
    ) -> Result<Self, Fault> {
        let failed = |error: io::Error| Fault::connection(&error);
        stream.set_read_timeout(Some(TICK)).map_err(failed)?;
        stream.set_write_timeout(Some(dead_after)).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        haul_io::tcp::detect_dead_peer(&stream, dead_after).map_err(failed)?;
        let (sender, incoming) = unbounded();
        let input = stream.try_clone().map_err(|error| Fault::system(&error))?;
        let writer = Arc::new(Writer {
            stream,
            last_sent: Mutex::new(Instant::now()),
            closed: Mutex::new(None),
        });
        let heart = Arc::clone(&writer);
        let peer = peer.to_owned();
        let reader = std::thread::Builder::new()
            .name("haul-control".into())
            .spawn(move || {
                let fault = Reader {
                    input,
                    heart,
                    sender: &sender,
                    peer: &peer,
                    dead_after,
                }
                .run();
                // The session may have ended.
                let _ = sender.send(Err(fault));
            })
            .map_err(|error| Fault::system(&error))?;
        let shut = Arc::clone(&writer);
        Ok(Self {
            writer,
            incoming,
            cancel: Cancel::by(move || {
                // An error means that the connection is closed already.
                let _ = shut.stream.shutdown(Shutdown::Both);
            }),
            reader: Some(reader),
            reported: AtomicBool::new(false),
        })
    }

    /// Sends one message. Blocks while the peer's buffers are full.
    pub(crate) fn send(&self, message: &Message) -> Result<(), Fault> {
        self.writer.send(message)
    }

    /// Returns the queue of received messages. Nothing follows an error.
    pub(crate) fn incoming(&self) -> &Receiver<Result<Message, Fault>> {
        &self.incoming
    }

    /// Blocks for the next message.
    pub(crate) fn receive(&self) -> Result<Message, Fault> {
        self.incoming
            .recv()
            .unwrap_or_else(|_| Err(gone("the connection is closed")))
    }

    /// Returns the handle that ends this link from another thread.
    pub(crate) fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Ends the connection at once: the peer has sent its last message and expects none.
    pub(crate) fn hang_up(self) {
        self.cancel.cancel();
    }

    /// Tells the peer, once, why the session ends.
    pub(crate) fn report(&self, fault: &Fault) {
        if !self.reported.swap(true, Ordering::AcqRel) {
            // The peer may have closed; that may be the fault itself.
            let _ = self.send(&Message::Error(WireError::from(fault)));
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Closing with unread data would reset the connection and could discard the last message to
        // the peer. So only this direction ends now, and the reader discards what still arrives.
        *lock(&self.writer.closed) = Some(Instant::now());
        let _ = self.writer.stream.shutdown(Shutdown::Write);
        drop(std::mem::replace(
            &mut self.incoming,
            crossbeam_channel::never(),
        ));
        if let Some(reader) = self.reader.take() {
            // A panic in the reader has been printed by its own thread.
            let _ = reader.join();
        }
    }
}

impl Writer {
    fn send(&self, message: &Message) -> Result<(), Fault> {
        let frame = wire::encode(message)?;
        let mut last_sent = lock(&self.last_sent);
        (&self.stream)
            .write_all(&frame)
            .map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    gone("the peer has stopped reading")
                }
                _ => Fault::connection(&error),
            })?;
        *last_sent = Instant::now();
        Ok(())
    }

    /// Returns how long ago the session dropped the link, if it has.
    fn lingered(&self) -> Option<Duration> {
        lock(&self.closed).map(|since| since.elapsed())
    }

    fn beat(&self) -> Result<(), Fault> {
        let idle = lock(&self.last_sent).elapsed();
        if idle >= HEARTBEAT {
            self.send(&Message::Ping)
        } else {
            Ok(())
        }
    }
}

struct Reader<'a> {
    input: TcpStream,
    heart: Arc<Writer>,
    sender: &'a Sender<Result<Message, Fault>>,
    peer: &'a str,
    dead_after: Duration,
}

impl Reader<'_> {
    /// Reads until the connection ends and returns why.
    fn run(mut self) -> Fault {
        let mut buffer = Vec::new();
        let mut scratch = vec![0; 64 << 10];
        let mut last_received = Instant::now();
        // Since when a message has been incomplete.
        let mut partial: Option<Instant> = None;
        let mut backlog = 0;
        loop {
            match self.input.read(&mut scratch) {
                Ok(0) => return gone(format!("{} closed the connection", self.peer)),
                Ok(n) => {
                    last_received = Instant::now();
                    backlog = if self.sender.is_empty() {
                        n
                    } else {
                        backlog + n
                    };
                    if backlog > BACKLOG_MAX {
                        return Fault::protocol("the peer sends more than can be handled");
                    }
                    if self.heart.lingered().is_none() {
                        buffer.extend_from_slice(&scratch[..n]);
                        let whole = match self.deliver(&mut buffer) {
                            Ok(whole) => whole,
                            Err(fault) => return fault,
                        };
                        partial = match partial {
                            _ if buffer.is_empty() => None,
                            Some(since) if whole == 0 => Some(since),
                            _ => Some(last_received),
                        };
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock
                    | io::ErrorKind::TimedOut
                    | io::ErrorKind::Interrupted => {}
                    _ => return Fault::connection(&error),
                },
            }
            if last_received.elapsed() > self.dead_after {
                let seconds = self.dead_after.as_secs();
                return gone(format!("{} has sent nothing for {seconds} s", self.peer));
            }
            // A damaged length may demand more than heartbeats fill in days.
            if partial.is_some_and(|since| since.elapsed() > self.dead_after) {
                let seconds = self.dead_after.as_secs();
                return gone(format!(
                    "a message of {} did not arrive within {seconds} s",
                    self.peer
                ));
            }
            match self.heart.lingered() {
                Some(lingered) if lingered > LINGER => return gone("the session is over"),
                Some(_) => {}
                None => {
                    if let Err(fault) = self.heart.beat() {
                        return fault;
                    }
                }
            }
        }
    }

    /// Hands over the complete messages at the front of `buffer`; returns their length in bytes.
    fn deliver(&self, buffer: &mut Vec<u8>) -> Result<usize, Fault> {
        let mut at = 0;
        while let Some(frame) = frame(&buffer[at..])? {
            let message = wire::decode(wire::checked(frame).ok_or_else(wire::damaged)?)?;
            at += frame.len();
            let message = match message {
                None | Some(Message::Ping) => continue,
                Some(Message::Error(error)) => return Err(error.into_fault(self.peer)),
                Some(message) => message,
            };
            if self.sender.send(Ok(message)).is_err() {
                break;
            }
        }
        buffer.drain(..at);
        Ok(at)
    }
}

/// Returns the first message in `bytes` with its length and its check, once it is complete.
pub(crate) fn frame(bytes: &[u8]) -> Result<Option<&[u8]>, Fault> {
    let Some(length) = bytes.first_chunk::<LENGTH>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length) as usize;
    if !(CHECK..=MESSAGE_MAX).contains(&length) {
        return Err(wire::damaged());
    }
    Ok(bytes.get(..LENGTH + length))
}

/// Reads and writes the handshake under one deadline.
pub(crate) struct Handshake<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl<'a> Handshake<'a> {
    pub(crate) fn new(stream: &'a TcpStream, deadline: Instant) -> Self {
        Self { stream, deadline }
    }

    /// Fills all of `bytes`; returns how many arrived before the peer closed.
    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < bytes.len() {
            self.stream.set_read_timeout(Some(self.left()?))?;
            match (&mut &*self.stream).read(&mut bytes[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        (&mut &*self.stream).write_all(bytes)
    }

    /// Reads one message.
    pub(crate) fn message(&mut self) -> Result<Option<Message>, Fault> {
        let cut = |error: io::Error| Fault::connection(&error);
        let closed = || gone("the peer closed the connection during the handshake");
        let mut length = [0; LENGTH];
        if self.read(&mut length).map_err(cut)? < LENGTH {
            return Err(closed());
        }
        let mut frame = length.to_vec();
        let length = u32::from_be_bytes(length) as usize;
        if length > HANDSHAKE_MAX {
            return Err(wire::damaged());
        }
        frame.resize(LENGTH + length, 0);
        if self.read(&mut frame[LENGTH..]).map_err(cut)? < length {
            return Err(closed());
        }
        match wire::checked(&frame) {
            Some(body) => wire::decode(body),
            None => wire::unchecked_hello(&frame)
                .map(|hello| Some(Message::Hello(hello)))
                .ok_or_else(wire::damaged),
        }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            Ok(left)
        }
    }
}

/// Makes this end's `Hello`.
pub(crate) fn hello(transfer: TransferId, dead_after: Duration) -> Hello {
    Hello {
        version_min: *VERSIONS.start(),
        version_max: *VERSIONS.end(),
        software: SOFTWARE.to_owned(),
        transfer,
        dead_after_ms: u32::try_from(dead_after.as_millis()).unwrap_or(u32::MAX),
    }
}

/// Returns the newest version that both ends speak.
pub(crate) fn agree(ours: &str, hello: &Hello, peer: &str) -> Result<u16, Fault> {
    let newest = hello.version_max.min(*VERSIONS.end());
    if newest >= hello.version_min.max(*VERSIONS.start()) {
        return Ok(newest);
    }
    let older = if hello.version_max < *VERSIONS.start() {
        peer
    } else {
        "this end"
    };
    Err(Fault::new(
        Code::Version,
        format!(
            "{peer} runs {} and speaks protocol versions {} to {}; {ours} here speaks {} to {}",
            abridged(&hello.software),
            hello.version_min,
            hello.version_max,
            VERSIONS.start(),
            VERSIONS.end(),
        ),
    )
    .hint(format!("update haul at {older}")))
}

fn gone(text: impl Into<String>) -> Fault {
    Fault::new(Code::PeerGone, text).hint(RESUME)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(min: u16, max: u16) -> Hello {
        Hello {
            version_min: min,
            version_max: max,
            software: "haul 9".into(),
            transfer: [0; 16],
            dead_after_ms: 1000,
        }
    }

    #[test]
    fn the_newest_common_version_is_agreed_on() {
        assert_eq!(
            agree("haul", &hello(1, 9), "peer").unwrap(),
            *VERSIONS.end()
        );
        let fault = agree("haul", &hello(98, 99), "peer").unwrap_err();
        assert_eq!(fault.code, Code::Version);
        assert_eq!(fault.hint.as_deref(), Some("update haul at this end"));
    }

    #[test]
    fn a_frame_is_taken_only_when_whole() {
        assert_eq!(frame(&[0, 0, 0]).unwrap(), None);
        assert_eq!(frame(&[0, 0, 0, 5, 7, 1, 2, 3]).unwrap(), None);
        let bytes = [0, 0, 0, 5, 7, 1, 2, 3, 4, 9];
        assert_eq!(frame(&bytes).unwrap(), Some(&bytes[..9]));
        for length in [[0xff, 0, 0, 0], [0, 0, 0, 3]] {
            assert_eq!(frame(&length).unwrap_err().code, Code::PeerGone);
        }
    }
}
