//! A connection, from the first question to the end.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};

use haul_verbs::cm::{CmEvent, ConnParam, Established};
use haul_verbs::{Blame, Error, Failure, QpState, Result, Transport};

use super::channel::{EventChannel, Id, Notice, Role, network};
use crate::address;
use crate::device;
use crate::ffi::cm::{self, event};
use crate::ffi::verbs::{qp_mask, qp_state};
use crate::library::{Raw, check};
use crate::queue::{Connect, Qp, narrow, no_attr};

/// How long resolving an address or a route may take each, milliseconds.
const RESOLVE_MS: c_int = 5_000;
/// `IB_CM_REJ_CONSUMER_DEFINED`: the application refused, not a stack without listener (IBTA
/// 1.4 table 108).
const REJECTED_BY_APPLICATION: c_int = 28;

/// A queue pair's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) id: Id,
    peer: SocketAddr,
    /// Until the request is sent.
    param: Param,
}

/// [`ConnParam`], owned.
#[derive(Debug)]
pub(super) struct Param {
    private_data: Vec<u8>,
    responder_resources: u8,
    initiator_depth: u8,
    rnr_retry_count: u8,
    retry_count: u8,
}

impl Param {
    /// # Errors
    /// [`Error::Invalid`] for private data that is too long.
    pub(super) fn new(qp: &Qp, param: &ConnParam<'_>, ord_max: u16) -> Result<Self> {
        let device = &qp.context().description.attributes;
        let len = param.private_data.len() as u64;
        Error::at_most(
            "the length of private_data",
            len,
            device.max_private_data.into(),
        )?;
        let bounded =
            |depth: u16, max: u32| narrow(depth.min(u16::try_from(max).unwrap_or(u16::MAX)));
        Ok(Self {
            private_data: param.private_data.to_vec(),
            responder_resources: bounded(param.responder_resources, device.max_rd_atomic),
            initiator_depth: bounded(
                param.initiator_depth.min(ord_max),
                device.max_init_rd_atomic,
            ),
            rnr_retry_count: param.rnr_retry_count,
            retry_count: param.retry_count,
        })
    }

    /// For a call that copies it.
    pub(super) fn to_c(&self, qp: &Qp) -> cm::ConnParam {
        let private_data: *const c_void = if self.private_data.is_empty() {
            std::ptr::null()
        } else {
            self.private_data.as_ptr().cast()
        };
        cm::ConnParam {
            private_data,
            private_data_len: u8::try_from(self.private_data.len()).unwrap_or(0),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: qp.srq.is_some().into(),
            qp_num: qp.number,
        }
    }
}

impl Connection {
    /// Asks for the way to `peer`.
    pub(crate) fn begin(
        qp: &Arc<Qp>,
        peer: SocketAddr,
        param: &ConnParam<'_>,
        channel: &Arc<EventChannel>,
    ) -> Result<()> {
        let param = Param::new(qp, param, u16::MAX)?;
        let context = qp.context();
        let mut source = None;
        if context.description.attributes.transport == Transport::Roce {
            let gids = device::gids(&context.library, context.raw)?;
            source = address::source_for(peer, &gids).map(address::to_c);
        }
        let id = Id::new(channel, Role::Connection(Arc::downgrade(qp)))?;
        let mut destination = address::to_c(peer);
        let source = source
            .as_mut()
            .map_or(std::ptr::null_mut(), std::ptr::from_mut);
        let resolve = id.cm().rdma_resolve_addr;
        // The events of the first answer find the connection in its place.
        let mut connection = qp.connection.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the identifier lives; the addresses are copied.
        let returned = unsafe { resolve(id.raw.ptr(), source, &raw mut destination, RESOLVE_MS) };
        check("rdma_resolve_addr", returned)?;
        *connection = Some(Box::new(Self { id, peer, param }));
        Ok(())
    }

    /// The passive end's.
    pub(super) fn accepted(id: Id, peer: SocketAddr, param: Param) -> Self {
        Self { id, peer, param }
    }
}

impl Connect for Connection {
    fn resolve_route(&self) -> Result<()> {
        let device = self.id.device();
        if device.as_deref() != Some(self.id.channel.context().name.as_str()) {
            let other = device.unwrap_or_else(|| "no RDMA device".to_owned());
            return Err(Error::Os {
                what: "the way to the peer is not through this device",
                source: std::io::Error::other(format!("{} is reached over {other}", self.peer)),
            });
        }
        // SAFETY: the identifier lives.
        let returned = unsafe { (self.id.cm().rdma_resolve_route)(self.id.raw.ptr(), RESOLVE_MS) };
        check("rdma_resolve_route", returned)
    }

    fn request(&self, qp: &Qp) -> Result<()> {
        let mut param = self.param.to_c(qp);
        // SAFETY: the identifier lives; the parameters are copied.
        let returned = unsafe { (self.id.cm().rdma_connect)(self.id.raw.ptr(), &raw mut param) };
        check("rdma_connect", returned)
    }

    fn disconnect(&self) -> Result<()> {
        // SAFETY: the identifier lives.
        let returned = unsafe { (self.id.cm().rdma_disconnect)(self.id.raw.ptr()) };
        check("rdma_disconnect", returned)
    }
}

/// What an event asks for.
#[derive(Debug)]
pub(super) enum Step {
    None,
    Route,
    Request,
    Respond,
    Established,
    Rejected,
    Unreachable(Blame, String),
    Disconnected(Option<Failure>),
}

impl Step {
    pub(super) fn of(notice: &Notice) -> Self {
        let status = notice.status;
        match notice.event {
            event::ADDR_RESOLVED => Self::Route,
            event::ROUTE_RESOLVED => Self::Request,
            event::CONNECT_RESPONSE => Self::Respond,
            event::ESTABLISHED => Self::Established,
            event::REJECTED if status < 0 || status == REJECTED_BY_APPLICATION => Self::Rejected,
            event::REJECTED => Self::unreachable("nobody listens there", status),
            event::ADDR_ERROR => Self::unreachable("the address cannot be resolved", status),
            event::ROUTE_ERROR => Self::unreachable("there is no route", status),
            event::UNREACHABLE => Self::unreachable("the peer does not answer", status),
            event::CONNECT_ERROR => Self::unreachable("the peer's answer makes no sense", status),
            event::DISCONNECTED if status == 0 => Self::Disconnected(None),
            event::DISCONNECTED => {
                Self::Disconnected(Some(network(explain("the connection broke", status))))
            }
            event::DEVICE_REMOVAL => {
                Self::Disconnected(Some(network("the device was removed".to_owned())))
            }
            _ => Self::None,
        }
    }

    fn unreachable(what: &str, status: c_int) -> Self {
        Self::Unreachable(Blame::Network, explain(what, status))
    }
}

/// A negative status is an error number, a positive one a reason of IBTA 1.4 table 108.
fn explain(what: &str, status: c_int) -> String {
    if status < 0 {
        let error = std::io::Error::from_raw_os_error(status.saturating_neg());
        format!("{what} ({error})")
    } else {
        format!("{what} (reason {status})")
    }
}

/// InfiniBand and RoCE: the peer agrees; tells this end's queue pair, then the peer.
pub(super) fn respond(cm: &cm::Cm, qp: &Qp, id: Raw<cm::Id>) -> Result<()> {
    to_connected(cm, qp, id, None)?;
    // SAFETY: the identifier lives: its connection holds it.
    check("rdma_establish", unsafe { (cm.rdma_establish)(id.ptr()) })
}

/// Takes a queue pair to `Rts` with what the connection manager knows of the peer; `depths` are IRD
/// and ORD where the connection manager does not know them yet. Over iWARP the kernel does this.
pub(super) fn to_connected(
    cm: &cm::Cm,
    qp: &Qp,
    id: Raw<cm::Id>,
    depths: Option<(u8, u8)>,
) -> Result<()> {
    for state in [qp_state::INIT, qp_state::RTR, qp_state::RTS] {
        let mut attr = no_attr();
        attr.qp_state = state;
        let mut mask: c_int = 0;
        // SAFETY: the identifier lives; attributes and mask are ours.
        let returned = unsafe { (cm.rdma_init_qp_attr)(id.ptr(), &raw mut attr, &raw mut mask) };
        check("rdma_init_qp_attr", returned)?;
        if mask & qp_mask::ACCESS_FLAGS != 0 {
            attr.qp_access_flags = qp.access();
        }
        if let Some((ird, ord)) = depths {
            attr.max_dest_rd_atomic = ird;
            attr.max_rd_atomic = ord;
        }
        qp.modify(&mut attr, mask)?;
    }
    qp.set_state(QpState::Rts);
    Ok(())
}

pub(super) fn established(qp: &Qp, notice: Notice) -> CmEvent {
    qp.set_state(QpState::Rts);
    let mut established = Established::default();
    established.private_data = notice.private_data;
    established.responder_resources = notice.responder_resources;
    established.initiator_depth = notice.initiator_depth;
    CmEvent::Established {
        qp_num: qp.number,
        established,
    }
}

/// The queue pair is as it was before.
pub(super) fn rejected(qp: &Qp, private_data: Vec<u8>) -> CmEvent {
    forget(qp);
    CmEvent::Rejected {
        qp_num: qp.number,
        private_data,
    }
}

pub(super) fn unreachable(qp: &Qp, blame: Blame, reason: String) -> CmEvent {
    forget(qp);
    CmEvent::Unreachable {
        qp_num: qp.number,
        failure: Failure::new(blame, reason),
    }
}

/// The peer's close notice is answered, and what is posted is flushed.
pub(super) fn disconnected(qp: &Qp, failure: Option<Failure>) -> CmEvent {
    let connection = qp.connection.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(connection) = &*connection {
        // Over iWARP, and after this end's own close notice, there is nothing to answer.
        let _ = connection.disconnect();
    }
    drop(connection);
    if let Some(failure) = &failure {
        qp.set_failure(failure.blame, || failure.reason.clone());
    }
    qp.to_error();
    CmEvent::Disconnected {
        qp_num: qp.number,
        failure: haul_verbs::provider::QpOps::failure(qp),
    }
}

fn forget(qp: &Qp) {
    let connection = qp
        .connection
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    drop(connection);
}
