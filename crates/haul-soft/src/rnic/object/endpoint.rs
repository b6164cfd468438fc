//! Connections without the connection manager: two programs tell each other their endpoints by
//! whatever means, and connect.
//!
//! Each endpoint is a listener of its own. Of two, the one with the smaller numbers connects and
//! the other accepts, if the request's private data shows that it comes from the endpoint that it
//! was told of.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use haul_io::clock::Clock;
use haul_verbs::cm::{CmEvent, ConnParam, ConnectRequest};
use haul_verbs::provider::{EventChannelOps, ListenerOps, QpOps};
use haul_verbs::{Endpoint, Error, Qp as AnyQp, Result};

use super::device::Rnic;
use super::event_channel::EventChannel;
use super::listener::Listener;
use crate::rnic::events::cm_events;
use crate::rnic::time::{deadline, remaining};

/// A queue pair's listener, and its own endpoint.
#[derive(Debug)]
pub(super) struct Rendezvous {
    _listener: Listener,
    channel: Arc<EventChannel>,
    own: Endpoint,
}

/// Requests that wait at an endpoint: one is the peer's, others are unexpected.
const BACKLOG: u32 = 8;
/// Packet sequence numbers have 24 bits; here they tell two endpoints apart.
const PSN_MASK: u32 = 0xff_ffff;

impl Rendezvous {
    pub(super) fn new(rnic: &Arc<Rnic>, qp_num: u32) -> Result<Self> {
        let channel = Arc::new(EventChannel {
            events: Arc::new(cm_events()?),
            _rnic: Arc::clone(rnic),
        });
        let anywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let listener = Listener::new(Arc::clone(rnic), anywhere, &channel.events, BACKLOG)?;
        let random = haul_io::random::bytes::<4>().map_err(Error::os("random bytes"))?;
        let psn = u32::from_ne_bytes(random) & PSN_MASK;
        let gid = Ipv4Addr::UNSPECIFIED.to_ipv6_mapped().octets();
        let own = Endpoint::new(qp_num, psn, 0, gid, listener.local_addr().port());
        Ok(Self {
            _listener: listener,
            channel,
            own,
        })
    }

    pub(super) fn own(&self) -> Endpoint {
        self.own
    }

    /// Connects `qp` to `peer`.
    pub(super) fn meet(
        self,
        qp: Arc<dyn QpOps>,
        peer: &Endpoint,
        param: &ConnParam<'_>,
        timeout: Duration,
    ) -> Result<()> {
        let clock = Clock::new();
        let end = deadline(clock, Some(timeout));
        let rank = |endpoint: &Endpoint| (endpoint.psn, endpoint.qp_num, endpoint.port);
        if rank(&self.own) == rank(peer) {
            return Err(Error::Invalid("its own endpoint"));
        }
        if rank(&self.own) < rank(peer) {
            let address = peer.socket_addr();
            if address.ip() == IpAddr::from(Ipv4Addr::UNSPECIFIED) {
                return Err(Error::Invalid("the peer's endpoint has no address"));
            }
            let private_data = &mark(&self.own)[..];
            let mut param = *param;
            param.private_data = private_data;
            let channel: Arc<dyn EventChannelOps> = self.channel.clone();
            qp.clone().connect(address, &param, &channel)?;
        }
        loop {
            let left = remaining(end, clock.now_ns()).map(Duration::from_nanos);
            match self.channel.wait(left)? {
                Some(CmEvent::ConnectRequest(request)) => answer(request, &qp, peer, param)?,
                Some(CmEvent::Established { .. }) => return Ok(()),
                Some(_) => return Err(timed_out("the peer does not connect")),
                None => return Err(timed_out("the peer does not come")),
            }
        }
    }
}

/// Accepts the peer that was announced, and nobody else.
fn answer(
    request: ConnectRequest,
    qp: &Arc<dyn QpOps>,
    peer: &Endpoint,
    param: &ConnParam<'_>,
) -> Result<()> {
    if request.private_data != mark(peer) {
        return request.reject(&[]);
    }
    let mut param = *param;
    param.private_data = &[];
    request.accept(&AnyQp::from_ops(Arc::clone(qp)), &param)
}

/// What an endpoint shows of itself.
fn mark(endpoint: &Endpoint) -> [u8; 8] {
    let word = u64::from(endpoint.qp_num) << 32 | u64::from(endpoint.psn);
    word.to_be_bytes()
}

fn timed_out(what: &'static str) -> Error {
    Error::Os {
        what,
        source: std::io::ErrorKind::TimedOut.into(),
    }
}
