//! Queue pairs of datagram services, as applications hold them.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use haul_io::udp::{UdpOptions, UdpSocket};
use haul_verbs::cm::ConnParam;
use haul_verbs::provider::{EventChannelOps, QpOps};
use haul_verbs::{
    DatagramStatistics, Error, Failure, PostError, QpCapacity, QpInit, QpState, QpType, RecvWr,
    Result, SendWr, WriteRecord,
};

use super::device::Pd;
use super::front::Front;
use super::qp_shape::shape;
use crate::rnic::buffers::Receives;
use crate::rnic::datagram::{Service, Tools, admit};
use crate::rnic::posts::Member;
use crate::rnic::shape::View;
use crate::rnic::shard::Shard;
use crate::rnic::shared_receives::SharedReceives;

/// A queue pair: its place in a shard.
#[derive(Debug)]
pub(super) struct DatagramQp {
    view: Arc<View>,
    capacity: QpCapacity,
    qp_type: QpType,
    /// None: applications drive.
    front: Option<Front>,
    shard: Arc<Shard>,
    number: u32,
    socket_options: UdpOptions,
    /// What it was made from, the context before all.
    _pd: Arc<Pd>,
}

const GONE: Error = Error::Invalid("the queue pair is gone");

/// Default bytes of the sockets' buffers: 32 ms of a gigabit per second, which take memory only
/// while datagrams wait.
const SOCKET_BUFFER: usize = 4 << 20;

fn socket_options(buffer: Option<usize>) -> UdpOptions {
    let mut options = UdpOptions::default();
    options.recv_buffer_bytes = buffer.unwrap_or(SOCKET_BUFFER);
    options.send_buffer_bytes = buffer.unwrap_or(SOCKET_BUFFER);
    options.report_destination = true;
    options.report_errors = true;
    options.timestamps = false;
    options
}

impl DatagramQp {
    pub(super) fn new(pd: Arc<Pd>, init: &QpInit<'_>) -> Result<Self> {
        let (shape, srq) = shape(&pd, init)?;
        let (view, capacity) = (Arc::clone(&shape.view), shape.capacity);
        let async_events = Arc::clone(&pd.rnic.async_events);
        let own = srq.as_ref().and_then(Receives::own_queue);
        let service = Service::new(pd.number, shape.clone(), srq, async_events, init);
        let front = Front::new(&pd, &shape, &service.sends, own);
        let shard = pd.rnic.next_shard();
        let number = shard.with(|inner| inner.insert_service(service))?;
        Ok(Self {
            view,
            capacity,
            qp_type: init.qp_type,
            front,
            shard,
            number,
            socket_options: socket_options(pd.rnic.socket_buffer),
            _pd: pd,
        })
    }

    fn begin(&self, socket: UdpSocket) -> Result<SocketAddr> {
        let address = socket.local_addr();
        self.shard.with(|inner| {
            inner.bind_service(self.number, |service, tools, token| {
                service.bind(socket, tools, token)
            })
        })?;
        Ok(address)
    }

    fn member(&self) -> Member {
        Member::Service(self.number)
    }

    /// The queue that it alone takes receives from, where an engine drives.
    pub(super) fn own_receives(&self) -> Option<&SharedReceives> {
        self.front.as_ref()?.own()
    }

    /// There are more receives in that queue.
    pub(super) fn note_receives(&self) {
        if let Some(front) = &self.front {
            front.note_receives(&self.shard, self.member(), self.is_awaited());
        }
    }

    /// Whether a reliable peer may wait for receives.
    fn is_awaited(&self) -> bool {
        self.qp_type == QpType::Rd
    }

    fn check_new(&self) -> Result<()> {
        match self.view.state() {
            QpState::Reset => Ok(()),
            state => Err(Error::State(state)),
        }
    }

    fn with<R>(&self, work: impl FnOnce(&mut Service, &mut Tools<'_>) -> R) -> Option<R> {
        self.shard
            .with(|inner| inner.with_service(self.number, work))
    }
}

impl QpOps for DatagramQp {
    fn qp_num(&self) -> u32 {
        self.view.qp_num
    }

    fn state(&self) -> QpState {
        self.view.state()
    }

    fn failure(&self) -> Option<Failure> {
        self.view.failure()
    }

    fn capacity(&self) -> QpCapacity {
        self.capacity
    }

    fn post_send(&self, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        if let Some(front) = &self.front {
            return front.post_send(&self.shard, self.member(), requests, |wr| {
                admit(&front.shape, self.qp_type, &front.sends, wr).map(|_| ())
            });
        }
        self.with(|service, tools| service.post_send(tools, requests))
            .unwrap_or(Ok(()))
    }

    fn post_recv(&self, requests: &[RecvWr]) -> Result<(), PostError> {
        if let Some(front) = &self.front {
            return front.post_recv(&self.shard, self.member(), requests, self.is_awaited());
        }
        self.with(|service, tools| service.post_recv(tools, requests))
            .unwrap_or(Ok(()))
    }

    fn connect(
        self: Arc<Self>,
        _peer: SocketAddr,
        _param: &ConnParam<'_>,
        _channel: &Arc<dyn EventChannelOps>,
    ) -> Result<()> {
        Err(Error::Unsupported("a connection of a datagram service"))
    }

    fn disconnect(&self) -> Result<()> {
        if self.view.state() != QpState::Rts {
            return Err(Error::State(self.view.state()));
        }
        self.shard.with(|inner| inner.end_service(self.number));
        Ok(())
    }

    fn bind(self: Arc<Self>, address: SocketAddr) -> Result<SocketAddr> {
        self.check_new()?;
        let socket = UdpSocket::bind(address, &self.socket_options);
        self.begin(socket.map_err(Error::os("binding a datagram service"))?)
    }

    fn adopt(self: Arc<Self>, socket: OwnedFd) -> Result<SocketAddr> {
        self.check_new()?;
        let socket = UdpSocket::adopt(socket, &self.socket_options).map_err(|error| {
            if error.kind() == std::io::ErrorKind::InvalidInput {
                Error::Invalid("no bound UDP socket")
            } else {
                Error::os("adopting a socket")(error)
            }
        })?;
        self.begin(socket)
    }

    fn attach_multicast(&self, group: IpAddr, interface: Option<IpAddr>) -> Result<()> {
        self.with(|service, _| service.attach(group, interface))
            .unwrap_or(Err(GONE))
    }

    fn detach_multicast(&self, group: IpAddr, interface: Option<IpAddr>) -> Result<()> {
        self.with(|service, _| service.detach(group, interface))
            .unwrap_or(Err(GONE))
    }

    fn take_record(&self, wr_id: u64) -> Option<WriteRecord> {
        self.with(|service, _| service.take_record(wr_id)).flatten()
    }

    fn records(&self, rkey: u32) -> Vec<WriteRecord> {
        self.with(|service, _| service.records(rkey))
            .unwrap_or_default()
    }

    fn datagram_statistics(&self) -> Result<DatagramStatistics> {
        self.with(|service, _| service.statistics()).ok_or(GONE)
    }
}

impl Drop for DatagramQp {
    fn drop(&mut self) {
        self.shard.with(|inner| inner.remove_service(self.number));
    }
}
