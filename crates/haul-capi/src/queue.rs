//! Queue pairs and shared receive queues.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::Arc;

use haul_verbs::{Endpoint, QpInit, QpState, QpType, RateLimit, SrqInit};

use crate::abi::*;
use crate::border::{NULL_OUT, c_text, create, destroy, on, read_growing, timeout, write_growing};
use crate::cm::with_param;
use crate::datagram::datagram_init;
use crate::handle::{haul_pd, haul_qp, haul_srq};
use crate::status::{Error, Result, blame};

const QP_DEFAULTS: haul_qp_init = haul_qp_init {
    size: 0,
    r#type: HAUL_QPT_RC,
    flags: 0,
    max_send_wr: 128,
    max_recv_wr: 128,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline: 0,
    send_cq: std::ptr::null(),
    recv_cq: std::ptr::null(),
    srq: std::ptr::null(),
    datagram: std::ptr::null(),
    max_rate_bps: 0,
    max_burst: 0,
};

const SRQ_DEFAULTS: haul_srq_init = haul_srq_init {
    size: 0,
    max_wr: 1024,
    max_sge: 1,
    reserved: 0,
    token: 0,
};

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_qp_create(
    pd: Option<&haul_pd>,
    init: *const haul_qp_init,
    out: Option<&mut MaybeUninit<*mut haul_qp>>,
) -> c_int {
    create(pd, "haul_qp_create", out, |pd| {
        // SAFETY: the caller's structure.
        let init = unsafe { read_growing(init, QP_DEFAULTS)? };
        let init = init.ok_or(Error::Argument(
            "init is NULL: begin with HAUL_QP_INIT, and set send_cq and recv_cq",
        ))?;
        // SAFETY: handles of the caller's, or NULL.
        let send_cq = unsafe { init.send_cq.as_ref() };
        // SAFETY: as above.
        let recv_cq = unsafe { init.recv_cq.as_ref() };
        let (Some(send_cq), Some(recv_cq)) = (send_cq, recv_cq) else {
            return Err(Error::Argument("send_cq or recv_cq is NULL"));
        };
        // SAFETY: as above.
        let srq = unsafe { init.srq.as_ref() };
        // SAFETY: the caller's structure, or NULL.
        let datagram = unsafe { datagram_init(init.datagram)? };
        if init.max_rate_bps == 0 && init.max_burst != 0 {
            let burst = init.max_burst;
            return Err(Error::Text(format!(
                "max_burst is {burst}, and max_rate_bps is 0: set both"
            )));
        }
        let mut wanted = QpInit::new(&send_cq.cq);
        wanted.qp_type = qp_type(init.r#type)?;
        wanted.recv_cq = &recv_cq.cq;
        wanted.srq = srq.map(|srq| &srq.srq);
        wanted.capacity.max_send_wr = init.max_send_wr;
        wanted.capacity.max_recv_wr = init.max_recv_wr;
        wanted.capacity.max_send_sge = init.max_send_sge;
        wanted.capacity.max_recv_sge = init.max_recv_sge;
        wanted.capacity.max_inline = init.max_inline;
        wanted.signal_all = init.flags & HAUL_QP_SIGNAL_ALL != 0;
        wanted.remote_placement = init.flags & HAUL_QP_REMOTE_PLACEMENT != 0;
        wanted.rate_limit = (init.max_rate_bps != 0).then_some(
            RateLimit::new(init.max_rate_bps)
                .with_burst((init.max_burst != 0).then_some(init.max_burst)),
        );
        wanted.datagram = datagram;
        Ok(haul_qp {
            qp: pd.pd.create_qp(&wanted)?,
            last: Arc::clone(&pd.last),
        })
    })
}

fn qp_type(number: u32) -> Result<QpType> {
    match number {
        HAUL_QPT_RC => Ok(QpType::Rc),
        HAUL_QPT_UD => Ok(QpType::Ud),
        HAUL_QPT_RD => Ok(QpType::Rd),
        other => Err(Error::unknown("type", other, "one of HAUL_QPT_…")),
    }
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_qp_destroy(qp: Option<Box<haul_qp>>) {
    destroy(qp, "haul_qp_destroy");
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_qp_query(qp: Option<&haul_qp>, out: *mut haul_qp_info) -> c_int {
    on(qp, "haul_qp_query", |qp| {
        let (capacity, failure) = (qp.qp.capacity(), qp.qp.failure());
        let info = haul_qp_info {
            size: 0,
            qp_num: qp.qp.qp_num(),
            state: state(qp.qp.state()),
            blame: blame(failure.as_ref()),
            max_send_wr: capacity.max_send_wr,
            max_recv_wr: capacity.max_recv_wr,
            max_send_sge: capacity.max_send_sge,
            max_recv_sge: capacity.max_recv_sge,
            max_inline: capacity.max_inline.min(HAUL_INLINE_MAX),
            reserved: 0,
            reason: c_text(failure.as_ref().map_or("", |failure| &failure.reason)),
        };
        // SAFETY: the caller's structure.
        unsafe { write_growing(out, &info)? };
        Ok(HAUL_OK)
    })
}

fn state(state: QpState) -> u32 {
    match state {
        QpState::Reset => HAUL_QPS_RESET,
        QpState::Init => HAUL_QPS_INIT,
        QpState::Rtr => HAUL_QPS_RTR,
        QpState::Rts => HAUL_QPS_RTS,
        QpState::Sqd => HAUL_QPS_SQD,
        QpState::Sqe => HAUL_QPS_SQE,
        QpState::Err => HAUL_QPS_ERR,
    }
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_qp_endpoint(
    qp: Option<&haul_qp>,
    out: Option<&mut MaybeUninit<haul_endpoint>>,
) -> c_int {
    on(qp, "haul_qp_endpoint", |qp| {
        let out = out.ok_or(NULL_OUT)?;
        let endpoint = qp.qp.endpoint()?;
        out.write(haul_endpoint {
            qp_num: endpoint.qp_num,
            psn: endpoint.psn,
            lid: endpoint.lid,
            port: endpoint.port,
            reserved: 0,
            gid: endpoint.gid,
        });
        Ok(HAUL_OK)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_qp_connect_endpoint(
    qp: Option<&haul_qp>,
    peer: Option<&haul_endpoint>,
    param: *const haul_conn_param,
    timeout_ns: i64,
) -> c_int {
    on(qp, "haul_qp_connect_endpoint", |qp| {
        let peer = peer.ok_or(Error::Argument("the peer is NULL"))?;
        let timeout = timeout(timeout_ns).ok_or(Error::Argument("the time-out is negative"))?;
        let peer = Endpoint::new(peer.qp_num, peer.psn, peer.lid, peer.gid, peer.port);
        // SAFETY: the caller's structure.
        unsafe { with_param(param, |param| qp.qp.connect_endpoint(&peer, param, timeout))? };
        Ok(HAUL_OK)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_srq_create(
    pd: Option<&haul_pd>,
    init: *const haul_srq_init,
    out: Option<&mut MaybeUninit<*mut haul_srq>>,
) -> c_int {
    create(pd, "haul_srq_create", out, |pd| {
        // SAFETY: the caller's structure.
        let init = unsafe { read_growing(init, SRQ_DEFAULTS)? };
        let wanted = init.unwrap_or(SRQ_DEFAULTS);
        let mut init = SrqInit::default();
        init.max_wr = wanted.max_wr;
        init.max_sge = wanted.max_sge;
        init.token = wanted.token;
        Ok(haul_srq {
            srq: pd.pd.create_srq(&init)?,
            last: Arc::clone(&pd.last),
        })
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_srq_destroy(srq: Option<Box<haul_srq>>) {
    destroy(srq, "haul_srq_destroy");
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_srq_arm_limit(srq: Option<&haul_srq>, limit: u32) -> c_int {
    on(srq, "haul_srq_arm_limit", |srq| {
        srq.srq.arm_limit(limit)?;
        Ok(HAUL_OK)
    })
}
