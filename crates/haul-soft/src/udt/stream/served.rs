//! Driving a stream for another process.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use haul_io::notify::Doorbell;
use haul_io::ring::page_bytes;
use haul_slab::SharedMemory;

use super::border::{self, Border, Ends};
use super::engine::{Driver, Rings, Securing};
use super::half::{self, Half};
use super::options::{Options, Ready};
use super::page::Page;
use super::shared::Shared;
use crate::udt::{Link, LinkError};

/// A stream that another process uses, by its [`Ends`]. Dropping it ends the stream.
#[derive(Debug)]
pub struct Served {
    driver: Driver,
    ends: Option<Ends>,
}

impl Served {
    /// As [`Stream::connect`](super::Stream::connect).
    ///
    /// # Errors
    /// Those of [`Stream::connect`](super::Stream::connect).
    pub fn connect(peer: SocketAddr, options: &Options) -> Result<Self, LinkError> {
        half::connect(peer, options)
    }

    /// As [`Stream::rendezvous`](super::Stream::rendezvous).
    ///
    /// # Errors
    /// Those of [`Stream::rendezvous`](super::Stream::rendezvous).
    pub fn rendezvous(
        local: SocketAddr,
        peer: SocketAddr,
        options: &Options,
    ) -> Result<Self, LinkError> {
        half::rendezvous(local, peer, options)
    }

    /// Returns the peer's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.driver.peer()
    }

    /// What the other process gets; once.
    pub fn take_ends(&mut self) -> Option<Ends> {
        self.ends.take()
    }

    /// Bytes of memory that a stream of these options takes in both processes.
    #[must_use]
    pub fn memory_bytes(options: &Options) -> usize {
        let rings = whole_pages(options);
        let bytes = rings.and_then(|[send, receive]| border::memory_bytes(send, receive));
        bytes.unwrap_or(usize::MAX)
    }
}

/// The lengths of the rings.
fn whole_pages(options: &Options) -> Option<[usize; 2]> {
    let page = page_bytes();
    let whole = |bytes: usize| bytes.max(1).checked_next_multiple_of(page);
    Some([whole(options.send_bytes)?, whole(options.ring_bytes())?])
}

impl AsFd for Served {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.driver.as_fd()
    }
}

impl Half for Served {
    fn start(
        link: Link,
        options: &Options,
        patient: bool,
        securing: Option<Securing>,
    ) -> io::Result<Self> {
        let [send_bytes, receive_bytes] =
            whole_pages(options).ok_or(io::ErrorKind::InvalidInput)?;
        let memory = SharedMemory::create(Self::memory_bytes(options))?;
        let object = memory.fd().ok_or(io::ErrorKind::InvalidInput)?;
        let [(given, to_send), (arriving, come)] =
            border::map_rings(object, send_bytes, receive_bytes)?;
        let (watch, far_watch) = Doorbell::pair()?;
        let (waiters, far_waiters) = Doorbell::pair()?;
        let ends = Ends {
            memory: object.try_clone_to_owned()?,
            watch: far_watch,
            waiters: far_waiters,
            send_bytes,
            receive_bytes,
        };
        let page = Page::new(memory, Arc::new(watch), waiters);
        let shared = Shared::new(send_bytes, receive_bytes, Some(page))?;
        let rings = Rings {
            to_send,
            arriving,
            border: Some(Border { given, come }),
        };
        Ok(Self {
            driver: Driver::start(link, options, patient, securing, rings, shared)?,
            ends: Some(ends),
        })
    }

    fn poll(&self, wanted: Ready) -> Ready {
        self.driver.poll(wanted)
    }
}
