//! A running control connection: framing, heartbeats, and detection of a lost peer.
//!
//! A thread of its own reads the stream and sends heartbeats, so that an end that is busy
//! (reserving storage, for example) does not time out.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use haul_seal::Cipher;

use crate::cancel::Cancel;
use crate::connection::{self, Connection, Exported, decrypt, encrypted, from_peer};
use crate::fault::{Code, Fault, RESUME};
use crate::frame::{FRAME_MAX, Frame, GREETING_MAX, Greeting};
use crate::stream::Stream;
use crate::{lock, tls};

/// An idle end sends a heartbeat this often.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How often the reader checks its timeouts.
const TICK: Duration = Duration::from_millis(250);
/// How long a finished end waits for the peer to close as well.
const LINGER: Duration = Duration::from_secs(2);
/// Maximum bytes of messages that wait for the session. The reader never blocks on the session:
/// two ends that both wait for room to send would deadlock.
const BACKLOG_MAX: usize = 64 << 20;

/// Reads a message of a service; `None` if its kind is unknown, as of a newer peer.
pub type Decode<M> = fn(&[u8]) -> Result<Option<M>, Fault>;

/// The sending half of a connection. Clones send on the same connection.
#[derive(Debug, Clone)]
pub struct Sender(Arc<Shared>);

/// The receiving half of a connection. Dropping it ends this end's direction, and waits up to two
/// seconds for the peer to close as well.
#[derive(Debug)]
pub struct Receiver<M> {
    shared: Arc<Shared>,
    incoming: crossbeam_channel::Receiver<Result<M, Fault>>,
    reader: Option<JoinHandle<()>>,
}

struct Shared {
    stream: Arc<Stream>,
    /// Held while records are written, so that they leave in the order in which they were made.
    output: Mutex<Output>,
    /// Never held while the stream is written: the reader needs it.
    tls: Mutex<rustls::Connection>,
    /// When the session dropped the receiver.
    closed: Mutex<Option<Instant>>,
    is_reported: AtomicBool,
    /// The greeting of the peer, if it had not arrived when this began.
    greeting: OnceLock<Greeting>,
    is_greeted: bool,
    dead_after: Duration,
}

#[derive(Debug)]
struct Output {
    last_sent: Instant,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Starts to exchange messages that `decode` reads. A peer that sends nothing for `dead_after`,
    /// or takes longer for one frame, is lost. If this end has not received the peer's greeting, it
    /// may send before that arrives, until the connection's deadline.
    ///
    /// # Errors
    /// If the system has no thread or descriptor.
    pub fn split<M: Send + 'static>(
        self,
        dead_after: Duration,
        decode: Decode<M>,
    ) -> Result<(Sender, Receiver<M>), Fault> {
        let Self {
            stream,
            tls,
            inbox,
            role,
            is_greeted,
            deadline,
            ..
        } = self;
        if let Some(tcp) = stream.as_tcp() {
            haul_io::tcp::detect_dead_peer(tcp, dead_after)
                .map_err(|error| Fault::connection(&error))?;
        }
        let shared = Arc::new(Shared {
            stream,
            output: Mutex::new(Output {
                last_sent: Instant::now(),
            }),
            tls: Mutex::new(tls),
            closed: Mutex::new(None),
            is_reported: AtomicBool::new(false),
            greeting: OnceLock::new(),
            is_greeted,
            dead_after,
        });
        let (sender, incoming) = unbounded();
        let reading = Arc::clone(&shared);
        let reader = std::thread::Builder::new()
            .name("haul-control".into())
            .spawn(move || {
                let fault = Reader {
                    shared: &reading,
                    sender: &sender,
                    decode,
                    peer: role,
                    greet_by: (!is_greeted).then_some(deadline),
                    waiting: VecDeque::new(),
                    waiting_bytes: 0,
                }
                .run(inbox);
                // The session may have ended.
                let _ = sender.send(Err(fault));
            })
            .map_err(|error| Fault::system(&error))?;
        let receiver = Receiver {
            shared: Arc::clone(&shared),
            incoming,
            reader: Some(reader),
        };
        Ok((Sender(shared), receiver))
    }
}

impl Sender {
    /// Sends one message. Blocks while the peer's buffers are full.
    ///
    /// # Errors
    /// The connection failed, or the message is too long.
    pub fn send(&self, message: Vec<u8>) -> Result<(), Fault> {
        self.0.send(&Frame::Message(message))
    }

    /// Tells the peer, once, why the session ends.
    pub fn report(&self, fault: &Fault) {
        if !self.0.is_reported.swap(true, Ordering::AcqRel) {
            // The peer may have closed; that may be the fault itself.
            let _ = self.0.send(&Frame::Fault(fault.clone()));
        }
    }

    /// Returns the handle that ends this connection from another thread.
    #[must_use]
    pub fn closer(&self) -> Cancel {
        let stream = Arc::clone(&self.0.stream);
        Cancel::by(move || stream.close())
    }

    /// Returns the greeting of the peer, if it has arrived since [`Connection::split`].
    #[must_use]
    pub fn greeting(&self) -> Option<&Greeting> {
        self.0.greeting.get()
    }

    /// Returns whether the peer has greeted.
    #[must_use]
    pub fn is_greeted(&self) -> bool {
        self.0.is_greeted || self.greeting().is_some()
    }

    /// Returns a secret of this connection, as [`Connection::export`].
    ///
    /// # Errors
    /// None is known.
    pub fn export(&self, label: &str, context: &[u8]) -> Result<Exported, Fault> {
        connection::export(&lock(&self.0.tls), label, context)
    }

    /// Returns the cipher of sealed channels, as [`Connection::cipher`].
    #[must_use]
    pub fn cipher(&self) -> Cipher {
        tls::cipher(&lock(&self.0.tls))
    }
}

impl<M> Receiver<M> {
    /// Returns the queue of received messages. Nothing follows an error.
    #[must_use]
    pub const fn incoming(&self) -> &crossbeam_channel::Receiver<Result<M, Fault>> {
        &self.incoming
    }

    /// Blocks for the next message.
    ///
    /// # Errors
    /// The peer gave up, or the connection ended.
    pub fn receive(&self) -> Result<M, Fault> {
        self.incoming
            .recv()
            .unwrap_or_else(|_| Err(gone("the connection is closed")))
    }
}

impl<M> Drop for Receiver<M> {
    fn drop(&mut self) {
        // Closing with unread data would reset the connection and could discard the last message to
        // the peer. So only this direction ends now, and the reader discards what still arrives.
        *lock(&self.shared.closed) = Some(Instant::now());
        self.shared.finish();
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

impl Shared {
    fn send(&self, frame: &Frame) -> Result<(), Fault> {
        self.send_by(&mut lock(&self.output), frame)
    }

    fn send_by(&self, output: &mut Output, frame: &Frame) -> Result<(), Fault> {
        let mut plain = Vec::new();
        frame.write(&mut plain)?;
        let records = {
            let mut tls = lock(&self.tls);
            tls.writer()
                .write_all(&plain)
                .and_then(|()| encrypted(&mut tls))
                .map_err(|error| Fault::connection(&error))?
        };
        self.write(output, &records)
    }

    fn write(&self, output: &mut Output, records: &[u8]) -> Result<(), Fault> {
        let deadline = Instant::now() + self.dead_after;
        self.stream
            .write(records, deadline)
            .map_err(|error| match error.kind() {
                io::ErrorKind::TimedOut => gone("the peer has stopped reading"),
                _ => Fault::connection(&error),
            })?;
        output.last_sent = Instant::now();
        Ok(())
    }

    /// Ends this end's direction in TLS and below.
    fn finish(&self) {
        // Whoever writes now may wait for a peer that is gone: then its end needs no announcement.
        match self.output.try_lock() {
            Ok(mut output) => {
                let records = {
                    let mut tls = lock(&self.tls);
                    tls.send_close_notify();
                    encrypted(&mut tls).unwrap_or_default()
                };
                let _ = self.write(&mut output, &records);
            }
            Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => {}
        }
        self.stream.finish();
    }

    /// Returns how long ago the session dropped the connection, if it has.
    fn lingered(&self) -> Option<Duration> {
        lock(&self.closed).map(|since| since.elapsed())
    }

    fn beat(&self) -> Result<(), Fault> {
        match self.output.try_lock() {
            Ok(mut output) if output.last_sent.elapsed() >= HEARTBEAT => {
                self.send_by(&mut output, &Frame::Ping)
            }
            // Whoever writes now is the heartbeat. If the reader waited for it, two ends that write
            // at once would wait for each other.
            Ok(_) | Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => Ok(()),
        }
    }
}

struct Reader<'a, M> {
    shared: &'a Shared,
    sender: &'a crossbeam_channel::Sender<Result<M, Fault>>,
    decode: Decode<M>,
    peer: &'static str,
    /// Until when the peer's greeting must arrive, while it has not.
    greet_by: Option<Instant>,
    /// Sizes of the delivered messages that the session had not handled at the last call of
    /// [`Self::backlog`], oldest first.
    waiting: VecDeque<usize>,
    /// Their sum.
    waiting_bytes: usize,
}

impl<M> Reader<'_, M> {
    /// Reads until the connection ends and returns why.
    fn run(mut self, mut inbox: Vec<u8>) -> Fault {
        let dead_after = self.shared.dead_after;
        let mut scratch = vec![0; 64 << 10];
        let mut last_received = Instant::now();
        if let Err(fault) = self.deliver(&mut inbox) {
            return fault;
        }
        // Since when a frame has been incomplete.
        let mut partial = (!inbox.is_empty()).then_some(last_received);
        loop {
            match self.shared.stream.read(&mut scratch, Instant::now() + TICK) {
                Ok(0) => return gone(format!("{} closed the connection", self.peer)),
                Ok(n) => {
                    last_received = Instant::now();
                    if self.shared.lingered().is_none() {
                        let decrypted =
                            decrypt(&mut lock(&self.shared.tls), &scratch[..n], &mut inbox);
                        let delivered = self.deliver(&mut inbox);
                        let whole = match (delivered, decrypted) {
                            (Err(fault), _) => return fault,
                            (_, Err(error)) => {
                                self.shared.alert();
                                return tls::record_fault(&error, self.peer);
                            }
                            (Ok(whole), Ok(())) => whole,
                        };
                        if self.backlog() > BACKLOG_MAX {
                            return Fault::protocol("the peer sends more than can be handled");
                        }
                        // Bytes that complete no frame belong to a record or a frame that is
                        // incomplete.
                        partial = match whole {
                            0 => partial.or(Some(last_received)),
                            _ => (!inbox.is_empty()).then_some(last_received),
                        };
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                Err(error) => return Fault::connection(&error),
            }
            if last_received.elapsed() > dead_after {
                let seconds = dead_after.as_secs();
                return gone(format!("{} has sent nothing for {seconds} s", self.peer));
            }
            if self.greet_by.is_some_and(|by| Instant::now() > by) {
                return gone(format!("{} has sent no greeting in time", self.peer));
            }
            // A damaged length may demand more than heartbeats fill in minutes.
            if partial.is_some_and(|since| since.elapsed() > dead_after) {
                let seconds = dead_after.as_secs();
                return gone(format!(
                    "a message of {} did not arrive within {seconds} s",
                    self.peer
                ));
            }
            match self.shared.lingered() {
                Some(lingered) if lingered > LINGER => return gone("the session is over"),
                Some(_) => {}
                None => {
                    if let Err(fault) = self.shared.beat() {
                        return fault;
                    }
                }
            }
        }
    }

    /// A peer that has not greeted gets little memory.
    const fn frame_max(&self) -> usize {
        match self.greet_by {
            Some(_) => GREETING_MAX,
            None => FRAME_MAX,
        }
    }

    /// Delivers the complete messages at the front of `inbox`; returns their length in bytes.
    fn deliver(&mut self, inbox: &mut Vec<u8>) -> Result<usize, Fault> {
        let mut at = 0;
        while let Some((frame, length)) = Frame::read(&inbox[at..], self.frame_max())? {
            at += length;
            let message = match frame {
                None | Some(Frame::Ping) => continue,
                Some(Frame::Fault(fault)) => return Err(from_peer(fault, self.peer)),
                Some(Frame::Greeting(greeting)) if self.greet_by.take().is_some() => {
                    // Set here only, once.
                    let _ = self.shared.greeting.set(greeting);
                    continue;
                }
                Some(Frame::Message(_)) if self.greet_by.is_some() => {
                    return Err(Fault::protocol("the peer did not begin with its greeting"));
                }
                Some(Frame::Greeting(_)) => {
                    return Err(Fault::protocol("the peer sent a second greeting"));
                }
                Some(Frame::Message(message)) => (self.decode)(&message)?,
            };
            let Some(message) = message else { continue };
            if self.sender.send(Ok(message)).is_err() {
                break;
            }
            let memory = length.max(size_of::<Result<M, Fault>>());
            self.waiting.push_back(memory);
            self.waiting_bytes += memory;
        }
        inbox.drain(..at);
        Ok(at)
    }

    /// Returns the bytes of delivered messages that the session has not handled.
    fn backlog(&mut self) -> usize {
        while self.waiting.len() > self.sender.len()
            && let Some(handled) = self.waiting.pop_front()
        {
            self.waiting_bytes -= handled;
        }
        self.waiting_bytes
    }
}

impl Shared {
    /// Sends the alert that TLS has prepared, unless a writer waits for the peer.
    fn alert(&self) {
        if let Ok(mut output) = self.output.try_lock() {
            let records = encrypted(&mut lock(&self.tls)).unwrap_or_default();
            let _ = self.write(&mut output, &records);
        }
    }
}

fn gone(text: impl Into<String>) -> Fault {
    Fault::new(Code::PeerGone, text).hint(RESUME)
}
