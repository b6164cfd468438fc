//! Using a stream.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use haul_io::notify::Doorbell;
use haul_io::ring::{Consumer, Producer, mirror_ring};
use haul_slab::SharedMemory;

use super::border::{self, Ends, Far, Keeper};
use super::engine::{Driver, Rings, Securing};
use super::half::{self, Half};
use super::options::{Measured, Options, Ready, Received};
use super::page::Page;
use super::shared::{Shared, lock};
use crate::udt::{Link, LinkError};

/// A UDT byte stream.
#[derive(Debug)]
pub struct Stream {
    shared: Arc<Shared>,
    outgoing: Mutex<Producer>,
    incoming: Mutex<Consumer>,
    engine: Engine,
    peer: SocketAddr,
}

/// Where the thread is that drives the connection.
#[derive(Debug)]
enum Engine {
    Here(Driver),
    /// In another process.
    Elsewhere(Far),
}

impl Stream {
    /// Begins to connect.
    ///
    /// # Errors
    /// [`LinkError::Network`] where the address cannot be reached, [`LinkError::System`] where
    /// memory is short, [`LinkError::Handshake`] where keys cannot be made for this peer.
    pub fn connect(peer: SocketAddr, options: &Options) -> Result<Self, LinkError> {
        half::connect(peer, options)
    }

    /// Begins to connect to a peer that does the same from `peer` to `local` (UDT's rendezvous).
    /// Such streams cannot be protected: neither end begins.
    ///
    /// # Errors
    /// [`LinkError::Network`] where `local` is in use or `peer` cannot be reached,
    /// [`LinkError::System`] where memory is short.
    pub fn rendezvous(
        local: SocketAddr,
        peer: SocketAddr,
        options: &Options,
    ) -> Result<Self, LinkError> {
        half::rendezvous(local, peer, options)
    }

    /// Uses a stream that another process drives, whose peer is at `peer`. It ends with `keeper`.
    ///
    /// # Errors
    /// Where the memory cannot be mapped, or is not what the ends tell.
    pub fn attach(ends: Ends, peer: SocketAddr, keeper: Box<dyn Keeper>) -> io::Result<Self> {
        let bytes = border::memory_bytes(ends.send_bytes, ends.receive_bytes)
            .ok_or(io::ErrorKind::InvalidData)?;
        let (memory, _) = SharedMemory::adopt_part(&ends.memory, 0, bytes)?;
        let [(outgoing, to_send), (arriving, incoming)] =
            border::map_rings(ends.memory.as_fd(), ends.send_bytes, ends.receive_bytes)?;
        let watch = Arc::new(Doorbell::new(ends.watch));
        let page = Page::new(memory, watch, Doorbell::new(ends.waiters));
        let shared = Shared::new(ends.send_bytes, ends.receive_bytes, Some(page))?;
        Ok(Self {
            shared: Arc::new(shared),
            outgoing: Mutex::new(outgoing),
            incoming: Mutex::new(incoming),
            engine: Engine::Elsewhere(Far::new(to_send, arriving, keeper)),
            peer,
        })
    }

    /// Copies as much of `bytes` as there is room for; how much.
    ///
    /// # Errors
    /// Why the connection is over; [`LinkError::Closed`] after [`Stream::finish`].
    pub fn send(&self, bytes: &[u8]) -> Result<usize, &LinkError> {
        let mut ring = lock(&self.outgoing);
        self.pull();
        if let Some(over) = self.shared.over.get() {
            return Err(over);
        }
        if self.shared.finishing.load(Ordering::Relaxed) {
            return Err(&LinkError::Closed);
        }
        let room = ring.writable(bytes.len());
        let len = room.len().min(bytes.len());
        room[..len].copy_from_slice(&bytes[..len]);
        ring.commit(len);
        self.shared.note_given(ring.committed());
        self.wake_if(len > 0);
        Ok(len)
    }

    /// Copies what has come, as much as fits.
    ///
    /// # Errors
    /// Why the connection is over, once all that came before was received.
    pub fn recv(&self, to: &mut [u8]) -> Result<Received, &LinkError> {
        self.recv_with(to.len(), |bytes| to[..bytes.len()].copy_from_slice(bytes))
    }

    /// The same, `most` bytes at most, by whoever has another kind of room. It is called where
    /// there are bytes, once.
    ///
    /// # Errors
    /// As [`Stream::recv`].
    pub fn recv_with(&self, most: usize, copy: impl FnOnce(&[u8])) -> Result<Received, &LinkError> {
        let mut ring = lock(&self.incoming);
        self.pull();
        // Before what has come: that is written first.
        let over = self.shared.over.get();
        let finished = self.shared.peer_finished.load(Ordering::Acquire);
        let (from, end) = (ring.released(), ring.committed());
        let here = usize::try_from(end - from).unwrap_or(usize::MAX);
        let len = here.min(most);
        match (ring.slice(from, len), over) {
            (Some(bytes), _) if len > 0 => copy(bytes),
            _ if here > 0 => return Ok(Received::Nothing),
            _ if finished => return Ok(Received::End),
            (_, Some(over)) => return Err(over),
            _ => return Ok(Received::Nothing),
        }
        ring.release(from + len as u64);
        self.shared.note_taken(ring.released());
        let unknown = ring.released() - self.shared.noted.load(Ordering::Relaxed);
        self.wake_if(unknown >= self.shared.receive_bytes / 8);
        Ok(Received::Bytes(len))
    }

    /// Ends this direction behind what was sent; the other one goes on. Towards a plain UDT peer it
    /// ends both, when all that was sent has arrived.
    pub fn finish(&self) {
        // With the ring, so that nothing is sent behind it.
        let ring = lock(&self.outgoing);
        self.shared.finish();
        drop(ring);
        self.wake_if(true);
    }

    fn wake_if(&self, news: bool) {
        if news && self.shared.asleep().is_set() {
            match (&self.engine, &self.shared.page) {
                (Engine::Here(driver), _) => driver.wake(),
                (_, Some(page)) => page.watch.ring(),
                _ => {}
            }
        }
    }

    /// Takes over what an engine in another process has done.
    fn pull(&self) {
        if let Engine::Elsewhere(far) = &self.engine {
            far.pull(&self.shared);
        }
    }

    /// Returns what of `wanted` is so now. If nothing is, the descriptor becomes readable when that
    /// changes, and now and then for nothing; it is one for one watcher.
    #[must_use]
    pub fn poll(&self, wanted: Ready) -> Ready {
        match &self.engine {
            Engine::Here(driver) => driver.poll(wanted),
            Engine::Elsewhere(far) => far.poll(&self.shared, wanted),
        }
    }

    /// Waits until something of `wanted` is so, or the time is over; what is.
    #[must_use]
    pub fn wait(&self, wanted: Ready, timeout: Option<Duration>) -> Ready {
        match &self.engine {
            Engine::Here(driver) => driver.wait(wanted, timeout),
            Engine::Elsewhere(far) => far.wait(&self.shared, wanted, timeout),
        }
    }

    /// Returns why the connection is over, if it is.
    #[must_use]
    pub fn over(&self) -> Option<&LinkError> {
        self.pull();
        self.shared.over.get()
    }

    /// Returns the peer's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns whether the peer is plain UDT, which knows only the end of both directions; known
    /// when the stream is open.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.pull();
        self.shared.plain.load(Ordering::Acquire)
    }

    /// Returns whether the peer has ended its half: what has come is all of it.
    #[must_use]
    pub fn has_peer_ended(&self) -> bool {
        self.pull();
        self.shared.peer_finished.load(Ordering::Acquire)
    }

    /// Bytes given to be sent; of those, arrived; bytes that have come, and of those, received.
    #[must_use]
    pub fn counts(&self) -> [u64; 4] {
        self.pull();
        let shared = &self.shared;
        [&shared.given, &shared.arrived, &shared.come, &shared.taken]
            .map(|count| count.load(Ordering::Acquire))
    }

    /// Returns what the connection has measured of late (updated every 50 ms and at the end).
    #[must_use]
    pub fn measured(&self) -> Option<Measured> {
        match &self.engine {
            Engine::Here(driver) => driver.measured(),
            Engine::Elsewhere(_) => self.shared.page.as_ref()?.measured(),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match (&self.engine, &self.shared.page) {
            (Engine::Elsewhere(_), Some(page)) => page.watch.as_fd(),
            _ => self.shared.readiness.signal().as_fd(),
        }
    }
}

impl Half for Stream {
    fn start(
        link: Link,
        options: &Options,
        patient: bool,
        securing: Option<Securing>,
    ) -> io::Result<Self> {
        let (outgoing, to_send) = mirror_ring(options.send_bytes)?;
        let (arriving, incoming) = mirror_ring(options.ring_bytes())?;
        let shared = Shared::new(outgoing.capacity(), incoming.capacity(), None)?;
        let rings = Rings {
            to_send,
            arriving,
            border: None,
        };
        let driver = Driver::start(link, options, patient, securing, rings, shared)?;
        Ok(Self {
            shared: Arc::clone(&driver.shared),
            outgoing: Mutex::new(outgoing),
            incoming: Mutex::new(incoming),
            peer: driver.peer(),
            engine: Engine::Here(driver),
        })
    }

    fn poll(&self, wanted: Ready) -> Ready {
        Self::poll(self, wanted)
    }
}
