//! Handles that structures and calls of several files name.

use std::sync::Arc;

use haul_verbs::cm::ConnectRequest;
use haul_verbs::{Cq, Pd, Qp, Srq};

use crate::border::{Last, handles};

/// A protection domain.
#[derive(Debug)]
pub struct haul_pd {
    pub(crate) pd: Pd,
    pub(crate) last: Arc<Last>,
}

/// A completion queue.
#[derive(Debug)]
pub struct haul_cq {
    pub(crate) cq: Cq,
    pub(crate) last: Arc<Last>,
}

/// A queue pair.
#[derive(Debug)]
pub struct haul_qp {
    pub(crate) qp: Qp,
    pub(crate) last: Arc<Last>,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct haul_srq {
    pub(crate) srq: Srq,
    pub(crate) last: Arc<Last>,
}

/// A peer that wants to connect.
#[derive(Debug)]
pub struct haul_conn_request {
    pub(crate) request: ConnectRequest,
    pub(crate) last: Arc<Last>,
}

handles!(haul_pd, haul_cq, haul_qp, haul_srq, haul_conn_request);
