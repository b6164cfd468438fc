//! Byte streams that an engine drives.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use haul_soft::udt::stream::{Ends, Keeper, Options, Stream};
use haul_verbs::{Error, Result};

use super::context::Context;
use super::core::ours;
use super::inbox::{Came, Inbox};
use super::link::{Answer, Link, UNEXPECTED, gone};
use crate::message::{Reply, Request, StreamOptions};

/// Opens byte streams with the device of an engine. Its processors and its protection are the
/// device's; those of [`Options`] have no effect.
#[derive(Debug, Clone)]
pub struct Streams(Arc<Link>);

/// Returns what opens byte streams, if an engine drives this device.
#[must_use]
pub fn streams(context: &haul_verbs::Context) -> Option<Streams> {
    let context: Arc<Context> = ours(context.ops()).ok()?;
    Some(Streams(Arc::clone(&context.core.link)))
}

impl Streams {
    /// As [`Stream::connect`].
    ///
    /// # Errors
    /// Those of [`Stream::connect`], and of the engine: options and memory beyond its limits, and
    /// that it has ended.
    pub fn connect(&self, peer: SocketAddr, options: &Options) -> Result<Stream> {
        self.open(None, peer, options)
    }

    /// As [`Stream::rendezvous`].
    ///
    /// # Errors
    /// As [`Streams::connect`].
    pub fn rendezvous(
        &self,
        local: SocketAddr,
        peer: SocketAddr,
        options: &Options,
    ) -> Result<Stream> {
        self.open(Some(local), peer, options)
    }

    fn open(
        &self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        options: &Options,
    ) -> Result<Stream> {
        let options = StreamOptions::of(options);
        let request = Request::ConnectStream {
            local,
            peer,
            options,
        };
        attach(&self.0, self.0.call(&request, &[])?)
    }

    /// Listens for streams, as [`Listener::bind`](haul_soft::udt::stream::Listener::bind).
    ///
    /// # Errors
    /// Of `bind(2)`, and as [`Streams::connect`].
    pub fn listen(&self, address: SocketAddr, options: &Options) -> Result<StreamListener> {
        let options = StreamOptions::of(options);
        let request = Request::ListenForStreams { address, options };
        let (reply, descriptors) = self.0.call(&request, &[])?;
        let (Reply::Listener { listener, address }, Some(socket)) =
            (reply, descriptors.into_iter().next())
        else {
            return Err(UNEXPECTED);
        };
        Ok(StreamListener {
            inbox: Inbox::new(&self.0, listener, socket),
            link: Arc::clone(&self.0),
            address,
        })
    }
}

/// What an answer with a stream gives.
fn attach(link: &Arc<Link>, (reply, descriptors): Answer) -> Result<Stream> {
    let Reply::Stream {
        stream,
        peer,
        ring_bytes,
    } = reply
    else {
        return Err(UNEXPECTED);
    };
    let held = Held {
        link: Arc::clone(link),
        number: stream,
    };
    let bytes = |bytes: u64| usize::try_from(bytes).map_err(|_| UNEXPECTED);
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or(UNEXPECTED);
    let ends = Ends {
        memory: next()?,
        watch: next()?,
        waiters: next()?,
        send_bytes: bytes(ring_bytes.0)?,
        receive_bytes: bytes(ring_bytes.1)?,
    };
    let stream = Stream::attach(ends, peer, Box::new(held));
    stream.map_err(Error::os("memory of a stream"))
}

/// Ends a stream at the engine.
#[derive(Debug)]
struct Held {
    link: Arc<Link>,
    number: u32,
}

impl Keeper for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        self.link.close(self.number);
    }
}

/// Takes connections of UDT peers as streams that an engine drives.
#[derive(Debug)]
pub struct StreamListener {
    link: Arc<Link>,
    inbox: Inbox,
    address: SocketAddr,
}

impl StreamListener {
    /// Returns where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The next stream, if one is there.
    ///
    /// # Errors
    /// Those of memory, and that the engine has ended.
    pub fn accept(&self) -> Result<Option<Stream>> {
        match self.inbox.receive()? {
            Came::Nothing => Ok(None),
            Came::End => Err(gone()),
            Came::Packet(_) => {
                let request = Request::AcceptStream(self.inbox.number());
                attach(&self.link, self.link.call(&request, &[])?).map(Some)
            }
        }
    }

    /// The next stream; none if none comes before the time is over.
    ///
    /// # Errors
    /// As [`StreamListener::accept`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<Stream>> {
        self.inbox.wait(timeout, || self.accept())
    }
}

/// Readable while streams wait to be accepted.
impl AsFd for StreamListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inbox.fd()
    }
}
