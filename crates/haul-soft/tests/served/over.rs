//! Streams that are driven as if for another process.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use haul_soft::udt::LinkError;
use haul_soft::udt::stream::{self, Keeper, Options, Served, Stream};

/// The stream ends with it.
#[derive(Debug)]
struct Held(#[expect(dead_code, reason = "held for its drop")] Served);

impl Keeper for Held {}

fn attach(mut served: Served) -> Stream {
    let (ends, peer) = (served.take_ends().unwrap(), served.peer());
    Stream::attach(ends, peer, Box::new(Held(served))).unwrap()
}

pub(crate) fn connect(peer: SocketAddr, options: &Options) -> Result<Stream, LinkError> {
    Served::connect(peer, options).map(attach)
}

pub(crate) fn rendezvous(
    local: SocketAddr,
    peer: SocketAddr,
    options: &Options,
) -> Result<Stream, LinkError> {
    Served::rendezvous(local, peer, options).map(attach)
}

pub(crate) struct Listener(stream::Listener<Served>);

impl Listener {
    pub(crate) fn bind(local: SocketAddr, options: Options) -> io::Result<Self> {
        stream::Listener::bind(local, options).map(Self)
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }

    pub(crate) fn accept(&mut self) -> io::Result<Option<Stream>> {
        Ok(self.0.accept()?.map(attach))
    }

    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Option<Stream>> {
        Ok(self.0.wait(timeout)?.map(attach))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
