//! The operations of a queue pair, as applications call them.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use haul_verbs::cm::ConnParam;
use haul_verbs::provider::{EventChannelOps, QpOps};
use haul_verbs::{
    DeviceCaps, Endpoint, Error, Failure, PostError, QpCapacity, QpState, RecvWr, Result, SendWr,
};

use super::Qp;
use crate::cm::{Connection, Handle};
use crate::context::downcast;
use crate::post;

impl QpOps for Qp {
    fn qp_num(&self) -> u32 {
        self.number
    }

    fn state(&self) -> QpState {
        if self.known_state() == QpState::Rts && self.is_in_error() {
            self.set_state(QpState::Err);
        }
        self.known_state()
    }

    fn failure(&self) -> Option<Failure> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.clone()
    }

    fn capacity(&self) -> QpCapacity {
        self.capacity
    }

    fn post_send(&self, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        let state = self.known_state();
        if !matches!(state, QpState::Rts | QpState::Err) || self.is_not_flushed(state) {
            let error = Error::State(state);
            return Err(PostError::new(0, error));
        }
        post::sends(requests, self.caps, |first| {
            let mut bad = std::ptr::null_mut();
            // SAFETY: the queue pair lives; the chain is whole, and its memory belongs to it by the
            // contract of `SendWr`.
            let number = unsafe { (self.post_send)(self.raw.ptr(), first, &raw mut bad) };
            (number, bad)
        })
    }

    fn post_recv(&self, requests: &[RecvWr]) -> Result<(), PostError> {
        if self.srq.is_some() {
            let error = Error::Invalid("the queue pair has a shared receive queue");
            return Err(PostError::new(0, error));
        }
        let state = self.known_state();
        if self.is_not_flushed(state) {
            let error = Error::State(state);
            return Err(PostError::new(0, error));
        }
        post::recvs(requests, |first| {
            let mut bad = std::ptr::null_mut();
            // SAFETY: as in `post_send`.
            let number = unsafe { (self.post_recv)(self.raw.ptr(), first, &raw mut bad) };
            (number, bad)
        })
    }

    fn connect(
        self: Arc<Self>,
        peer: SocketAddr,
        param: &ConnParam<'_>,
        channel: &Arc<dyn EventChannelOps>,
    ) -> Result<()> {
        let channel = &downcast::<Handle>(channel.clone())?.0;
        if !std::ptr::eq(channel.context(), Arc::as_ptr(self.context())) {
            return Err(Error::Invalid("the event channel is of another context"));
        }
        self.must_be_new()?;
        Connection::begin(&self, peer, param, channel)
    }

    fn disconnect(&self) -> Result<()> {
        let connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(connection) = &*connection else {
            return Err(Error::State(self.known_state()));
        };
        let disconnected = connection.disconnect();
        if !self.is_iwarp() {
            self.to_error();
        }
        disconnected
    }

    fn endpoint(&self) -> Result<Endpoint> {
        if !self.caps.contains(DeviceCaps::ENDPOINTS) {
            return Err(Error::Unsupported(
                "a connection without the connection manager",
            ));
        }
        let (lid, gid) = (self.context().description.lid, self.gid()?.gid.raw);
        Ok(Endpoint::new(self.number, self.psn, lid, gid, 0))
    }

    fn connect_endpoint(
        self: Arc<Self>,
        peer: &Endpoint,
        param: &ConnParam<'_>,
        _timeout: Duration,
    ) -> Result<()> {
        if !self.caps.contains(DeviceCaps::ENDPOINTS) {
            return Err(Error::Unsupported(
                "a connection without the connection manager",
            ));
        }
        self.must_be_new()?;
        self.to_connected(peer, param, &self.gid()?)
    }
}
