//! Listening and accepting.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use haul_io::stream::Acceptor;
use haul_iwarp::Event;
use haul_verbs::cm::{CmEvent, ConnParam, ConnectRequest};
use haul_verbs::provider::{ListenerOps, QpOps, RequestOps};
use haul_verbs::{Error, QpState, Result, Transport};

use super::buffers::Buffers;
use super::context::{Rnic, ours};
use super::events::CmEvents;
use super::qp::{Qp, limits};
use super::shard::Shard;
use super::wire::Wire;
use super::{PRIVATE_DATA_MAX, RD_ATOMIC_MAX};

/// A connection that came to a listener and has no queue pair yet.
#[derive(Debug)]
pub(super) struct Embryo {
    pub(super) link: Wire,
    pub(super) channel: Arc<CmEvents>,
    pub(super) peer: SocketAddr,
    pub(super) listener: u32,
    /// How many came to its listener before it.
    pub(super) arrival: u64,
    /// It has said what it wants, and waits for an answer.
    pub(super) has_asked: bool,
    /// None of it is used: nothing can be placed before there is a queue pair.
    pub(super) buffers: Buffers,
}

impl Embryo {
    /// Hands on what the core says; true when the connection is over.
    pub(super) fn report(&mut self, shard: &Weak<Shard>, number: u32) -> bool {
        let mut over = false;
        while let Some(event) = self.link.poll_event() {
            match event {
                Event::Request => {
                    self.has_asked = true;
                    self.ask(shard, number);
                }
                Event::ShutdownSend => self.link.end(),
                Event::Disconnect => over = true,
                Event::Established | Event::Completion(_) | Event::Error(_) => {}
            }
        }
        over
    }

    fn ask(&self, shard: &Weak<Shard>, number: u32) {
        // A peer that names no numbers leaves them to this end.
        let (ird, ord) = self
            .link
            .requested()
            .unwrap_or((RD_ATOMIC_MAX, RD_ATOMIC_MAX));
        let request = Request {
            shard: Weak::clone(shard),
            number,
            peer: self.peer,
            answered: false,
        };
        let private = self.link.private_data().to_vec();
        let request = ConnectRequest::new(Box::new(request), self.peer, private, ird, ord);
        self.channel.push(CmEvent::ConnectRequest(request));
    }
}

/// A socket that listens.
#[derive(Debug)]
pub(super) enum Door {
    Tcp(Acceptor),
    Udt(Box<crate::udt::Acceptor>),
}

impl Door {
    fn open(rnic: &Rnic, address: SocketAddr) -> io::Result<Self> {
        Ok(match rnic.transport {
            Transport::IwarpUdt => {
                let secret = haul_io::random::bytes()?;
                let acceptor = crate::udt::Acceptor::bind(address, &rnic.udt, secret)?;
                Self::Udt(Box::new(acceptor.with_budget()))
            }
            _ => Self::Tcp(Acceptor::bind(address)?),
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(acceptor) => acceptor.local_addr(),
            Self::Udt(acceptor) => Ok(acceptor.local_addr()),
        }
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(acceptor) => acceptor.as_fd(),
            Self::Udt(acceptor) => acceptor.as_fd(),
        }
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
        let acceptor = Door::open(&rnic, address).map_err(Error::os("listening"))?;
        let address = acceptor.local_addr().map_err(Error::os("listening"))?;
        let shard = rnic.first_shard();
        let number = shard.with(|inner| inner.listen(acceptor, channel, backlog))?;
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
        let shard = self.rnic.first_shard();
        shard.with(|inner| inner.unlisten(self.number));
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
        let embryo = shard.with(|inner| {
            let embryo = inner.embryos.get(self.number);
            let ours = embryo.is_some_and(|embryo| embryo.peer == self.peer);
            ours.then(|| inner.take_embryo(self.number)).flatten()
        });
        let embryo = embryo.ok_or(GONE)?;
        self.answered = true;
        let (private, limits) = (param.private_data, limits(param));
        qp.shard()
            .with(|inner| inner.adopt(qp.number(), embryo, private, limits))
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
        shard.with(|inner| {
            let now = inner.now;
            if let Some(embryo) = inner.embryos.get_mut(self.number)
                && embryo.peer == self.peer
            {
                // It fails where the peer has gone, and then it knows.
                let _ = embryo.link.reject(now, private_data);
                inner.embryo_turn(self.number);
            }
        });
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.turn_away(&[]);
    }
}
