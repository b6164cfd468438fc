//! Listening and accepting.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use haul_io::stream::Acceptor;
use haul_iwarp::Event;
use haul_verbs::cm::{CmEvent, ConnParam, ConnectRequest};
use haul_verbs::provider::{ListenerOps, QpOps, RequestOps};
use haul_verbs::{Error, QpState, Result};

use super::buffers::Buffers;
use super::context::{Rnic, ours};
use super::events::CmEvents;
use super::qp::{Qp, limits};
use super::shard::Shard;
use super::tcp::TcpLink;
use super::{PRIVATE_DATA_MAX, RD_ATOMIC_MAX};

/// A connection that came to a listener and has no queue pair yet.
#[derive(Debug)]
pub(super) struct Embryo {
    pub(super) link: Box<TcpLink>,
    pub(super) channel: Arc<CmEvents>,
    pub(super) peer: SocketAddr,
    pub(super) listener: u32,
    /// None of it is used: nothing can be placed before there is a queue pair.
    pub(super) buffers: Buffers,
}

impl Embryo {
    /// Hands on what the core says; true when the connection is over.
    pub(super) fn report(&mut self, shard: &Weak<Shard>, number: u32) -> bool {
        let mut over = false;
        while let Some(event) = self.link.core.poll_event() {
            match event {
                Event::Request => self.ask(shard, number),
                Event::ShutdownSend => self.link.end(),
                Event::Disconnect => over = true,
                Event::Established | Event::Completion(_) | Event::Error(_) => {}
            }
        }
        over
    }

    fn ask(&self, shard: &Weak<Shard>, number: u32) {
        let core = &self.link.core;
        // A peer that names no numbers leaves them to this end.
        let (ird, ord) = core.requested().unwrap_or((RD_ATOMIC_MAX, RD_ATOMIC_MAX));
        let request = Request {
            shard: Weak::clone(shard),
            number,
            peer: self.peer,
            answered: false,
        };
        let private = core.private_data().to_vec();
        let request = ConnectRequest::new(Box::new(request), self.peer, private, ird, ord);
        self.channel.push(CmEvent::ConnectRequest(request));
    }
}

#[derive(Debug)]
pub(super) struct Listener {
    rnic: Arc<Rnic>,
    address: SocketAddr,
    number: u32,
}

impl Listener {
    pub(super) fn new(
        rnic: Arc<Rnic>,
        address: SocketAddr,
        channel: &Arc<CmEvents>,
        backlog: u32,
    ) -> Result<Self> {
        let acceptor = Acceptor::bind(address).map_err(Error::os("listening"))?;
        let address = acceptor.local_addr().map_err(Error::os("listening"))?;
        let number = rnic
            .first_shard()
            .lock()
            .listen(acceptor, channel, backlog)?;
        Ok(Self {
            rnic,
            address,
            number,
        })
    }
}

impl ListenerOps for Listener {
    fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.rnic.first_shard().lock().unlisten(self.number);
    }
}

/// A request that waits for an answer; dropped without one, it is rejected.
#[derive(Debug)]
struct Request {
    shard: Weak<Shard>,
    number: u32,
    /// Tells the connection from a later one of the same number.
    peer: SocketAddr,
    answered: bool,
}

const GONE: Error = Error::Invalid("the connection, or its listener, is gone");

impl RequestOps for Request {
    fn accept(mut self: Box<Self>, qp: &Arc<dyn QpOps>, param: &ConnParam<'_>) -> Result<()> {
        let qp: &Qp = ours(qp)?;
        if param.private_data.len() > PRIVATE_DATA_MAX {
            return Err(Error::Invalid("the private data is too long"));
        }
        let state = qp.state();
        if state != QpState::Reset {
            return Err(Error::State(state));
        }
        let shard = self.shard.upgrade().ok_or(GONE)?;
        let mut inner = shard.lock();
        let ours = inner.embryos.get(self.number).map(|embryo| embryo.peer) == Some(self.peer);
        let embryo = inner
            .take_embryo(self.number)
            .filter(|_| ours)
            .ok_or(GONE)?;
        self.answered = true;
        if !Arc::ptr_eq(&shard, qp.shard()) {
            drop(inner);
            inner = qp.shard().lock();
        }
        inner.adopt(qp.number(), embryo, param.private_data, limits(param))
    }

    fn reject(mut self: Box<Self>, private_data: &[u8]) -> Result<()> {
        let fits = private_data.len() <= PRIVATE_DATA_MAX;
        self.turn_away(if fits { private_data } else { &[] });
        if fits {
            Ok(())
        } else {
            Err(Error::Invalid("the private data is too long"))
        }
    }
}

impl Request {
    fn turn_away(&mut self, private_data: &[u8]) {
        if std::mem::replace(&mut self.answered, true) {
            return;
        }
        let Some(shard) = self.shard.upgrade() else {
            return;
        };
        let mut inner = shard.lock();
        let now = inner.now;
        if let Some(embryo) = inner.embryos.get_mut(self.number)
            && embryo.peer == self.peer
        {
            // It fails where the peer has gone, and then it knows.
            let _ = embryo.link.core.reject(now, private_data);
            inner.embryo_turn(self.number);
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.turn_away(&[]);
    }
}
