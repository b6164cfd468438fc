//! Queue pairs and shared receive queues.

use std::ffi::{c_int, c_uint};
use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use haul_verbs::cm::ConnParam;
use haul_verbs::provider::SrqOps;
use haul_verbs::{
    Blame, DeviceCaps, Endpoint, Error, Failure, PostError, QpCapacity, QpInit, QpState, QpType,
    RecvWr, Result, SrqInit, Transport, WcStatus, WorkCompletion,
};

use crate::completion::Cq;
use crate::context::{Context, QpEvents, downcast};
use crate::device::{self, PORT};
use crate::ffi::verbs::{self, AhAttr, Gid, GidEntry, GlobalRoute, QpAttr, QpCap, QpInitAttr};
use crate::ffi::verbs::{access, gid_type, qp_mask, qp_state};
use crate::library::{Raw, check};
use crate::memory::Pd;
use crate::post;

mod ops;

/// The connection of a queue pair, as the connection manager makes it.
pub(crate) trait Connect: Debug + Send {
    /// Resolves the route to the peer: the address is known, and with it the device.
    fn resolve_route(&self) -> Result<()>;
    /// Sends the connection request: the route is known.
    fn request(&self, qp: &Qp) -> Result<()>;
    /// Disconnects, or answers the peer's disconnect.
    fn disconnect(&self) -> Result<()>;
}

/// A reliable connection's queue pair. It is `Init` from the start, so that receives can be posted.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) raw: Raw<verbs::Qp>,
    pub(crate) number: u32,
    /// [`QpState`] as far as this end knows it: the data path asks nobody else.
    state: AtomicU8,
    failure: Mutex<Option<Failure>>,
    pub(crate) connection: Mutex<Option<Box<dyn Connect>>>,
    capacity: QpCapacity,
    post_send:
        unsafe extern "C" fn(*mut verbs::Qp, *mut verbs::SendWr, *mut *mut verbs::SendWr) -> c_int,
    post_recv:
        unsafe extern "C" fn(*mut verbs::Qp, *mut verbs::RecvWr, *mut *mut verbs::RecvWr) -> c_int,
    caps: DeviceCaps,
    /// First packet sequence number without the connection manager.
    psn: u32,
    #[expect(dead_code, reason = "the queue pair keeps them")]
    cqs: [Arc<Cq>; 2],
    pub(crate) srq: Option<Arc<Srq>>,
    pd: Arc<Pd>,
}

impl Qp {
    pub(crate) fn new(pd: Arc<Pd>, init: &QpInit<'_>) -> Result<Arc<Self>> {
        if init.qp_type != QpType::Rc {
            return Err(Error::Unsupported("this type of queue pair"));
        }
        let context = &pd.context;
        let iwarp = context.description.attributes.transport == Transport::Iwarp;
        if init.rate_limit.is_some() {
            return Err(Error::Unsupported("a limit of the rate"));
        }
        if init.remote_placement && iwarp {
            return Err(Error::Unsupported("completion on remote placement"));
        }
        let send_cq = downcast::<Cq>(init.send_cq.ops().clone())?;
        let recv_cq = downcast::<Cq>(init.recv_cq.ops().clone())?;
        let srq = init.srq.map(|srq| downcast::<Srq>(srq.ops().clone()));
        let srq = srq.transpose()?;
        let same = |other: &Arc<Context>| Arc::ptr_eq(other, context);
        let srq_context = srq.as_ref().map_or(context, |srq| &srq.pd.context);
        if !same(&send_cq.context) || !same(&recv_cq.context) || !same(srq_context) {
            return Err(Error::Invalid("a queue is of another context"));
        }
        let srq_raw = srq
            .as_ref()
            .map_or(std::ptr::null_mut(), |srq| srq.raw.ptr());
        // SAFETY: the context is open.
        let ops = unsafe { &(*context.raw.ptr()).ops };
        let (Some(post_send), Some(post_recv)) = (ops.post_send, ops.post_recv) else {
            return Err(Error::Unsupported("posting work requests"));
        };
        let mut attr = init_attr(send_cq.raw.ptr(), recv_cq.raw.ptr(), srq_raw, init.capacity);
        attr.sq_sig_all = init.signal_all.into();
        // SAFETY: domain and queues live as long as the queue pair, which holds them; the
        // attributes are ours.
        let qp = unsafe { (context.library.verbs.ibv_create_qp)(pd.raw.ptr(), &raw mut attr) };
        let raw = Raw::made("queue pair", qp)?;
        // SAFETY: it was just made.
        let number = unsafe { (*raw.ptr()).qp_num };
        let qp = Arc::new(Self {
            raw,
            number,
            state: AtomicU8::new(0),
            failure: Mutex::default(),
            connection: Mutex::default(),
            capacity: capacity(&attr.cap),
            post_send,
            post_recv,
            caps: context.description.attributes.caps,
            psn: first_psn(number),
            cqs: [send_cq, recv_cq],
            srq,
            pd,
        });
        qp.to_init()?;
        let events: Weak<Self> = Arc::downgrade(&qp);
        qp.context().enter_qp(number, events);
        Ok(qp)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.pd.context
    }

    pub(crate) fn is_iwarp(&self) -> bool {
        self.context().description.attributes.transport == Transport::Iwarp
    }

    /// Returns what peers may do through this queue pair: as much as the memory regions allow.
    pub(crate) fn access(&self) -> c_uint {
        let atomic = if self.caps.contains(DeviceCaps::ATOMIC) {
            access::REMOTE_ATOMIC
        } else {
            0
        };
        (access::REMOTE_WRITE | access::REMOTE_READ | atomic).cast_unsigned()
    }

    fn to_init(&self) -> Result<()> {
        let mut attr = no_attr();
        attr.qp_state = qp_state::INIT;
        attr.port_num = PORT;
        attr.qp_access_flags = self.access();
        let mut mask = qp_mask::STATE | qp_mask::ACCESS_FLAGS;
        if !self.is_iwarp() {
            mask |= qp_mask::PORT | qp_mask::PKEY_INDEX;
        }
        self.modify(&mut attr, mask)?;
        self.set_state(QpState::Init);
        Ok(())
    }

    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn modify(&self, attr: &mut QpAttr, mask: c_int) -> Result<()> {
        let modify = self.context().library.verbs.ibv_modify_qp;
        // SAFETY: the queue pair lives, the attributes are ours.
        let returned = unsafe { modify(self.raw.ptr(), attr, mask) };
        check("ibv_modify_qp", returned)
    }

    pub(crate) fn known_state(&self) -> QpState {
        STATES[usize::from(self.state.load(Ordering::Acquire))]
    }

    pub(crate) fn set_state(&self, state: QpState) {
        let index = STATES.iter().position(|other| *other == state);
        let index = index.and_then(|index| u8::try_from(index).ok());
        self.state.store(index.unwrap_or(0), Ordering::Release);
    }

    /// Whether what is posted would stay: siw flushes what it has when a connection ends, and then
    /// looks no more.
    fn is_not_flushed(&self, state: QpState) -> bool {
        state == QpState::Err && self.is_iwarp()
    }

    /// Whether the device has put it into error: a responder has no completion that reports it.
    /// Not all drivers of iWARP devices report it.
    fn is_in_error(&self) -> bool {
        let mut attr = no_attr();
        let null = std::ptr::null_mut();
        let mut init = init_attr(null, null, null.cast(), QpCapacity::default());
        let query = self.context().library.verbs.ibv_query_qp;
        let state = qp_mask::STATE;
        // SAFETY: the queue pair lives, the attributes are ours.
        let returned = unsafe { query(self.raw.ptr(), &raw mut attr, state, &raw mut init) };
        returned == 0 && attr.qp_state == qp_state::ERR
    }

    /// Everything posted is flushed.
    pub(crate) fn to_error(&self) {
        self.set_state(QpState::Err);
        let mut attr = no_attr();
        attr.qp_state = qp_state::ERR;
        // A device that has put it there already may refuse.
        let _ = self.modify(&mut attr, qp_mask::STATE);
    }

    /// The first failure is the cause, what follows its consequences.
    pub(crate) fn set_failure(&self, blame: Blame, reason: impl FnOnce() -> String) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| Failure::new(blame, reason()));
    }

    /// # Errors
    /// [`Error::State`] unless it is new.
    pub(crate) fn must_be_new(&self) -> Result<()> {
        let connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match self.known_state() {
            QpState::Init if connection.is_none() => Ok(()),
            state => Err(Error::State(state)),
        }
    }

    /// From `Init` through `Rtr` to `Rts`, towards an endpoint.
    fn to_connected(&self, peer: &Endpoint, param: &ConnParam<'_>, gid: &GidEntry) -> Result<()> {
        let mut attr = no_attr();
        attr.qp_state = qp_state::RTR;
        attr.path_mtu = self.context().description.mtu.min(verbs::MTU_1024);
        attr.dest_qp_num = peer.qp_num;
        attr.rq_psn = peer.psn;
        attr.max_dest_rd_atomic = narrow(param.responder_resources);
        attr.min_rnr_timer = MIN_RNR_TIMER;
        attr.ah_attr = route(peer, gid);
        let rtr = qp_mask::STATE | qp_mask::AV | qp_mask::PATH_MTU | qp_mask::DEST_QPN;
        let rtr = rtr | qp_mask::RQ_PSN | qp_mask::MAX_DEST_RD_ATOMIC | qp_mask::MIN_RNR_TIMER;
        self.modify(&mut attr, rtr)?;
        attr.qp_state = qp_state::RTS;
        attr.sq_psn = self.psn;
        attr.timeout = TIMEOUT;
        attr.retry_cnt = param.retry_count;
        attr.rnr_retry = param.rnr_retry_count;
        attr.max_rd_atomic = narrow(param.initiator_depth);
        let rts = qp_mask::STATE | qp_mask::SQ_PSN | qp_mask::TIMEOUT | qp_mask::RETRY_CNT;
        self.modify(
            &mut attr,
            rts | qp_mask::RNR_RETRY | qp_mask::MAX_QP_RD_ATOMIC,
        )?;
        self.set_state(QpState::Rts);
        Ok(())
    }

    /// The port's address that peers use: RoCE v2 over IPv4 where there is one, else over IPv6,
    /// else the port's first.
    fn gid(&self) -> Result<GidEntry> {
        let context = self.context();
        let gids = device::gids(&context.library, context.raw)?;
        let rank = |entry: &GidEntry| {
            let address = std::net::Ipv6Addr::from(entry.gid.raw);
            let routable = entry.gid_type == gid_type::ROCE_V2;
            (
                routable,
                address.to_ipv4_mapped().is_some(),
                !address.is_unicast_link_local(),
                std::cmp::Reverse(entry.gid_index),
            )
        };
        let best = gids.into_iter().max_by_key(rank);
        best.ok_or_else(|| Error::Os {
            what: "the port has no address",
            source: std::io::ErrorKind::AddrNotAvailable.into(),
        })
    }
}

/// `RNR NAK timer field`, IBTA 1.4 table 45: 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;
/// Local ACK timeout, IBTA 1.4 §9.7.6.1.3: 4.096 µs × 2^14, 67 ms.
const TIMEOUT: u8 = 14;

const STATES: [QpState; 7] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Sqe,
    QpState::Err,
];

fn route(peer: &Endpoint, gid: &GidEntry) -> AhAttr {
    AhAttr {
        grh: GlobalRoute {
            dgid: Gid { raw: peer.gid },
            flow_label: 0,
            sgid_index: u8::try_from(gid.gid_index).unwrap_or(0),
            hop_limit: 64,
            traffic_class: 0,
        },
        dlid: peer.lid,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: u8::from(peer.lid == 0),
        port_num: PORT,
    }
}

/// The verbs of libibverbs count reads in 8 bits.
pub(crate) fn narrow(depth: u16) -> u8 {
    u8::try_from(depth).unwrap_or(u8::MAX)
}

pub(crate) fn no_attr() -> QpAttr {
    // SAFETY: all zeros is a value of a structure of numbers.
    unsafe { std::mem::zeroed() }
}

fn init_attr(
    send_cq: *mut verbs::Cq,
    recv_cq: *mut verbs::Cq,
    srq: *mut verbs::Srq,
    capacity: QpCapacity,
) -> QpInitAttr {
    QpInitAttr {
        qp_context: std::ptr::null_mut(),
        send_cq,
        recv_cq,
        srq,
        cap: QpCap {
            max_send_wr: capacity.max_send_wr,
            max_recv_wr: if srq.is_null() {
                capacity.max_recv_wr
            } else {
                0
            },
            max_send_sge: capacity.max_send_sge,
            max_recv_sge: if srq.is_null() {
                capacity.max_recv_sge
            } else {
                0
            },
            max_inline_data: capacity.max_inline,
        },
        qp_type: verbs::QPT_RC,
        sq_sig_all: 0,
    }
}

fn capacity(cap: &QpCap) -> QpCapacity {
    let mut capacity = QpCapacity::default();
    capacity.max_send_wr = cap.max_send_wr;
    capacity.max_recv_wr = cap.max_recv_wr;
    capacity.max_send_sge = cap.max_send_sge;
    capacity.max_recv_sge = cap.max_recv_sge;
    capacity.max_inline = cap.max_inline_data;
    capacity
}

/// 24 bits that the previous queue pair of this number did not use: what is still in flight from it
/// must not fit.
fn first_psn(number: u32) -> u32 {
    let random = RandomState::new().hash_one(number);
    u32::try_from(random & 0xff_ffff).unwrap_or(0)
}

/// None for a consequence of something else.
fn blame(status: WcStatus) -> Option<Blame> {
    match status {
        WcStatus::Success | WcStatus::WrFlushErr => None,
        WcStatus::LocLenErr
        | WcStatus::LocQpOpErr
        | WcStatus::LocProtErr
        | WcStatus::MwBindErr
        | WcStatus::FatalErr => Some(Blame::Local),
        WcStatus::BadRespErr | WcStatus::LocAccessErr => Some(Blame::Peer),
        WcStatus::RemInvReqErr
        | WcStatus::RemAccessErr
        | WcStatus::RemOpErr
        | WcStatus::RemAbortErr => Some(Blame::PeerComplains),
        _ => Some(Blame::Network),
    }
}

/// Finds the most inline data, bytes, of a queue pair of this device: it is no attribute.
pub(crate) fn probe_inline(context: &Context) -> u32 {
    let verbs = &context.library.verbs;
    // SAFETY: the context is open.
    let pd = unsafe { (verbs.ibv_alloc_pd)(context.raw.ptr()) };
    let null = std::ptr::null_mut();
    // SAFETY: as above; neither a context of ours nor a channel is asked for.
    let cq = unsafe { (verbs.ibv_create_cq)(context.raw.ptr(), 1, null, null.cast(), 0) };
    let mut most = 0;
    if let (Ok(pd), Ok(cq)) = (Raw::made("", pd), Raw::made("", cq)) {
        most = [1024, 512, 256, 128, 64]
            .into_iter()
            .find_map(|max_inline| {
                let mut capacity = QpCapacity::default();
                capacity.max_inline = max_inline;
                let mut attr = init_attr(cq.ptr(), cq.ptr(), null.cast(), capacity);
                // SAFETY: domain and queue live.
                let qp = unsafe { (verbs.ibv_create_qp)(pd.ptr(), &raw mut attr) };
                let qp = Raw::made("", qp).ok()?;
                // SAFETY: it was just made, and nobody else knows it.
                unsafe { (verbs.ibv_destroy_qp)(qp.ptr()) };
                Some(attr.cap.max_inline_data)
            })
            .unwrap_or(0);
    }
    if !cq.is_null() {
        // SAFETY: it was made above; no queue pair is left on it.
        unsafe { (verbs.ibv_destroy_cq)(cq) };
    }
    if !pd.is_null() {
        // SAFETY: it was made above; nothing is left in it.
        unsafe { (verbs.ibv_dealloc_pd)(pd) };
    }
    most
}

impl QpEvents for Qp {
    /// A work request of this queue pair has failed. Over RoCE only this end knows: it has the
    /// connection manager end the connection, which notifies both ends.
    fn on_failed(&self, completion: &WorkCompletion) {
        let before = self.known_state();
        self.set_state(QpState::Err);
        let connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = &*connection
            && before == QpState::Rts
        {
            // It fails where the peer was faster.
            let _ = connection.disconnect();
        }
        drop(connection);
        if let Some(blame) = blame(completion.status) {
            self.set_failure(blame, || {
                format!(
                    "a work request ended with {:?} (the device's own number {:#x})",
                    completion.status, completion.vendor_err
                )
            });
        }
    }

    fn on_async_error(&self) {
        self.set_state(QpState::Err);
        self.set_failure(Blame::Peer, || {
            "the device put the queue pair into error for what the peer sent".to_owned()
        });
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.context().forget_qp(self.number);
        let connection = self
            .connection
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(connection) = &connection {
            // Notifies the peer; whether that succeeds changes nothing here.
            let _ = connection.disconnect();
        }
        // SAFETY: nobody else holds the queue pair; it is destroyed once.
        unsafe { (self.context().library.verbs.ibv_destroy_qp)(self.raw.ptr()) };
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    raw: Raw<verbs::Srq>,
    post:
        unsafe extern "C" fn(*mut verbs::Srq, *mut verbs::RecvWr, *mut *mut verbs::RecvWr) -> c_int,
    pd: Arc<Pd>,
}

impl Srq {
    pub(crate) fn new(pd: Arc<Pd>, init: &SrqInit) -> Result<Self> {
        let context = &pd.context;
        // SAFETY: the context is open.
        let ops = unsafe { &(*context.raw.ptr()).ops };
        let post = ops
            .post_srq_recv
            .ok_or(Error::Unsupported("a shared receive queue"))?;
        Error::at_most("token", init.token, usize::MAX as u64)?;
        let token = usize::try_from(init.token).unwrap_or(usize::MAX);
        let mut attr = verbs::SrqInitAttr {
            srq_context: std::ptr::without_provenance_mut(token),
            attr: verbs::SrqAttr {
                max_wr: init.max_wr,
                max_sge: init.max_sge,
                srq_limit: 0,
            },
        };
        // SAFETY: the domain lives as long as the queue, which holds it; the attributes are ours.
        let srq = unsafe { (context.library.verbs.ibv_create_srq)(pd.raw.ptr(), &raw mut attr) };
        let raw = Raw::made("shared receive queue", srq)?;
        Ok(Self { raw, post, pd })
    }
}

impl SrqOps for Srq {
    fn post_recv(&self, requests: &[RecvWr]) -> Result<(), PostError> {
        post::recvs(requests, |first| {
            let mut bad = std::ptr::null_mut();
            // SAFETY: the queue lives; the chain is whole, and its memory belongs to it by the
            // contract of `RecvWr`.
            let number = unsafe { (self.post)(self.raw.ptr(), first, &raw mut bad) };
            (number, bad)
        })
    }

    fn arm_limit(&self, limit: u32) -> Result<()> {
        let mut attr = verbs::SrqAttr {
            max_wr: 0,
            max_sge: 0,
            srq_limit: limit,
        };
        let modify = self.pd.context.library.verbs.ibv_modify_srq;
        // SAFETY: the queue lives; the attributes are ours.
        let returned = unsafe { modify(self.raw.ptr(), &raw mut attr, verbs::SRQ_LIMIT) };
        check("ibv_modify_srq", returned)
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold their shared receive queue, so none is left; it is destroyed
        // once.
        unsafe { (self.pd.context.library.verbs.ibv_destroy_srq)(self.raw.ptr()) };
    }
}
