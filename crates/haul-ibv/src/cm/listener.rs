//! Listeners and the requests that come to them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};

use haul_verbs::cm::{CmEvent, ConnParam, ConnectRequest};
use haul_verbs::provider::{ListenerOps, QpOps, RequestOps};
use haul_verbs::{Error, Result};

use super::channel::{EventChannel, Id, Notice, Pending, Role};
use super::connection::{self, Connection, Param};

use crate::address;
use crate::context::downcast;
use crate::library::check;
use crate::queue::Qp;

/// A listener.
#[derive(Debug)]
pub(crate) struct Listener {
    address: SocketAddr,
    #[expect(dead_code, reason = "held for its drop, which ends listening")]
    id: Id,
}

impl Listener {
    pub(crate) fn new(
        channel: &Arc<EventChannel>,
        address: SocketAddr,
        backlog: u32,
    ) -> Result<Self> {
        let backlog = backlog.max(1);
        let pending = Arc::new(Pending {
            waiting: AtomicU32::new(0),
            backlog,
        });
        let id = Id::new(channel, Role::Listener(pending))?;
        let mut bound = address::to_c(address);
        // SAFETY: the identifier lives; the address is copied.
        let returned = unsafe { (id.cm().rdma_bind_addr)(id.raw.ptr(), &raw mut bound) };
        check("rdma_bind_addr", returned)?;
        if id
            .device()
            .is_some_and(|device| device != channel.context().name)
        {
            return Err(Error::Invalid("the address is another device's"));
        }
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        // SAFETY: the identifier lives.
        let returned = unsafe { (id.cm().rdma_listen)(id.raw.ptr(), backlog) };
        check("rdma_listen", returned)?;
        // SAFETY: the identifier lives; the address in it is fixed now.
        let address = address::from_c(unsafe { &(*id.raw.ptr()).src })
            .ok_or(Error::Invalid("the address is of no internet family"))?;
        Ok(Self { address, id })
    }
}

impl ListenerOps for Listener {
    fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

/// A peer wants to connect; none where too many wait already.
pub(super) fn request(id: Id, pending: &Arc<Pending>, notice: Notice) -> Option<CmEvent> {
    // SAFETY: the identifier lives; the address in it is fixed.
    let peer = address::from_c(unsafe { &(*id.raw.ptr()).dst })?;
    let place = Place::take(pending)?;
    // What the library calls by this end's role, haul calls by the peer's.
    let (responder_resources, initiator_depth) =
        (notice.initiator_depth, notice.responder_resources);
    let request = Request {
        id: Some(id),
        peer,
        responder_resources,
        _place: place,
    };
    Some(CmEvent::ConnectRequest(ConnectRequest::new(
        Box::new(request),
        peer,
        notice.private_data,
        responder_resources,
        initiator_depth,
    )))
}

/// A place in the backlog, until the request is answered.
#[derive(Debug)]
struct Place(Arc<Pending>);

impl Place {
    fn take(pending: &Arc<Pending>) -> Option<Self> {
        let taken = pending
            .waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| {
                (waiting < pending.backlog).then_some(waiting + 1)
            });
        taken.is_ok().then(|| Self(Arc::clone(pending)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that waits for an answer.
#[derive(Debug)]
struct Request {
    /// Until it is answered.
    id: Option<Id>,
    peer: SocketAddr,
    responder_resources: u16,
    _place: Place,
}

impl Request {
    fn take(&mut self) -> Result<Id> {
        self.id
            .take()
            .ok_or(Error::Invalid("the request is answered already"))
    }
}

impl RequestOps for Request {
    fn accept(mut self: Box<Self>, qp: &Arc<dyn QpOps>, param: &ConnParam<'_>) -> Result<()> {
        let qp = downcast::<Qp>(qp.clone())?;
        qp.must_be_new()?;
        let param = Param::new(&qp, param, self.responder_resources)?;
        let mut c_param = param.to_c(&qp);
        let id = self.take()?;
        let raw = id.raw;
        let channel = Arc::clone(&id.channel);
        channel.set_role(raw, Role::Connection(Arc::downgrade(&qp)));
        let mut connection = qp.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if !qp.is_iwarp() {
            let depths = (c_param.responder_resources, c_param.initiator_depth);
            connection::to_connected(channel.cm(), &qp, raw, Some(depths))?;
        }
        // SAFETY: the identifier lives; the parameters are copied.
        let returned = unsafe { (channel.cm().rdma_accept)(raw.ptr(), &raw mut c_param) };
        check("rdma_accept", returned)?;
        *connection = Some(Box::new(Connection::accepted(id, self.peer, param)));
        Ok(())
    }

    fn reject(mut self: Box<Self>, private_data: &[u8]) -> Result<()> {
        let id = self.take()?;
        let len = private_data.len() as u64;
        Error::at_most("the length of private_data", len, u8::MAX.into())?;
        let length = u8::try_from(len).unwrap_or(u8::MAX);
        // SAFETY: the identifier lives; the data are copied.
        let returned =
            unsafe { (id.cm().rdma_reject)(id.raw.ptr(), private_data.as_ptr().cast(), length) };
        check("rdma_reject", returned)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            // Destroying the identifier does the same, with less information for the peer.
            // SAFETY: the identifier lives.
            unsafe { (id.cm().rdma_reject)(id.raw.ptr(), std::ptr::null(), 0) };
        }
    }
}
