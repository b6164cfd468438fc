//! A provider whose answers a test chooses.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use haul_verbs::cm::ConnParam;
use haul_verbs::provider::{
    CompletionChannelOps, ContextOps, CqOps, DeviceOps, EventChannelOps, ListenerOps, MrOps, PdOps,
    QpOps,
};
use haul_verbs::{
    AsyncEvent, Data, DatagramInit, DatagramStatistics, Device, DeviceAttributes, DeviceCaps,
    Error, Failure, MrInit, Notify, Peer, PostError, QpCapacity, QpInit, QpState, QpType,
    RateLimit, RecvWr, Result, SendFlags, SendOp, SendWr, Sge, Sources, Transport, WorkCompletion,
    WriteRecord,
};

/// What a test says and what it sees.
#[derive(Debug, Default)]
pub(super) struct Script {
    /// The next call of [`Script::may_panic`] does.
    pub(super) panics: AtomicBool,
    /// What polls give.
    pub(super) completions: Mutex<Vec<WorkCompletion>>,
    /// Polls fail when there are no more.
    pub(super) overflowed: AtomicBool,
    /// What was posted.
    pub(super) sent: Mutex<Vec<Sent>>,
    pub(super) received: Mutex<Vec<(u64, Vec<Sge>)>>,
    /// How many requests there is room for.
    pub(super) room: Mutex<Option<usize>>,
    /// What `haul_qp_create` asked for beyond a connection.
    pub(super) asked: Mutex<Option<(QpType, DatagramInit, Option<RateLimit>)>>,
    /// Whom the last region is open to.
    pub(super) sources: Mutex<Option<Sources>>,
    /// Groups that were joined, and left.
    pub(super) groups: Mutex<Vec<(bool, IpAddr, Option<IpAddr>)>>,
    /// Records that wait, by the number of their completion.
    pub(super) records: Mutex<Vec<(u64, WriteRecord)>>,
    /// How often each queue pair and region has ended.
    pub(super) ended: Mutex<Vec<&'static str>>,
}

/// A send work request with its inline data copied.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sent {
    pub(super) wr_id: u64,
    pub(super) op: SendOp,
    pub(super) flags: SendFlags,
    pub(super) pieces: Vec<Sge>,
    pub(super) inline: Vec<u8>,
    pub(super) peer: Option<Peer>,
}

impl Script {
    fn may_panic(&self, words: &str) {
        assert!(!self.panics.swap(false, Ordering::Relaxed), "{words}");
    }

    fn take_room(&self, posted: usize) -> Result<(), PostError> {
        let mut room = self.room.lock().unwrap();
        match &mut *room {
            Some(0) => Err(PostError::new(posted, Error::Full("send queue"))),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// Every object of the provider.
#[derive(Debug, Clone)]
pub(super) struct Mock(pub(super) Arc<Script>);

pub(super) fn device(script: &Arc<Script>) -> Device {
    Device::from_ops(Arc::new(Mock(Arc::clone(script))))
}

impl DeviceOps for Mock {
    fn name(&self) -> &str {
        "mock0"
    }

    fn provider(&self) -> &'static str {
        "mock"
    }

    fn attributes(&self) -> Result<DeviceAttributes> {
        ContextOps::attributes(self)
    }

    fn open(&self) -> Result<Arc<dyn ContextOps>> {
        Ok(Arc::new(self.clone()))
    }
}

impl ContextOps for Mock {
    fn attributes(&self) -> Result<DeviceAttributes> {
        self.0.may_panic("attributes");
        let mut attributes = DeviceAttributes::new(Transport::Roce, DeviceCaps::all());
        attributes.max_qp = 1;
        attributes.max_qp_wr = 2;
        attributes.max_sge = 30;
        attributes.max_inline = 1 << 20;
        attributes.max_cqe = 5;
        attributes.max_mr = 6;
        attributes.max_mr_size = 7;
        attributes.max_message = 8;
        attributes.max_rd_atomic = 9;
        attributes.max_init_rd_atomic = 10;
        attributes.max_private_data = 11;
        Ok(attributes)
    }

    fn alloc_pd(self: Arc<Self>) -> Result<Arc<dyn PdOps>> {
        self.0.may_panic("alloc_pd");
        Ok(self)
    }

    fn create_completion_channel(self: Arc<Self>) -> Result<Arc<dyn CompletionChannelOps>> {
        Err(Error::Unsupported("a completion channel"))
    }

    fn create_cq(
        self: Arc<Self>,
        _entries: u32,
        _channel: Option<&Arc<dyn CompletionChannelOps>>,
        _token: u64,
    ) -> Result<Arc<dyn CqOps>> {
        Ok(self)
    }

    fn create_event_channel(self: Arc<Self>) -> Result<Arc<dyn EventChannelOps>> {
        Err(Error::Exhausted("event channels"))
    }

    fn listen(
        self: Arc<Self>,
        _address: SocketAddr,
        _channel: &Arc<dyn EventChannelOps>,
        _backlog: u32,
    ) -> Result<Arc<dyn ListenerOps>> {
        Err(Error::Busy("address"))
    }

    fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        Err(Error::Unsupported("an asynchronous event"))
    }

    fn poll_async_event(&self) -> Result<Option<AsyncEvent>> {
        Ok(Some(AsyncEvent::QpFatal { qp_num: 7 }))
    }
}

impl PdOps for Mock {
    fn reg_mr(self: Arc<Self>, init: MrInit) -> Result<Arc<dyn MrOps>> {
        *self.0.sources.lock().unwrap() = Some(init.sources.clone());
        Ok(Arc::new(MockMr(self.0.clone(), init)))
    }

    fn create_qp(self: Arc<Self>, init: &QpInit<'_>) -> Result<Arc<dyn QpOps>> {
        *self.0.asked.lock().unwrap() =
            Some((init.qp_type, init.datagram.clone(), init.rate_limit));
        Ok(Arc::new(MockQp(self.0.clone())))
    }
}

impl CqOps for Mock {
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize> {
        let mut left = self.0.completions.lock().unwrap();
        if left.is_empty() && self.0.overflowed.load(Ordering::Relaxed) {
            return Err(Error::CqOverflow);
        }
        let count = out.len().min(left.len());
        for (place, wc) in out.iter_mut().zip(left.drain(..count)) {
            *place = wc;
        }
        Ok(count)
    }

    fn wait(&self, out: &mut [WorkCompletion], _timeout: Option<Duration>) -> Result<usize> {
        self.poll(out)
    }

    fn arm(&self, _notify: Notify) -> Result<()> {
        Err(Error::State(QpState::Sqd))
    }
}

#[derive(Debug)]
struct MockMr(Arc<Script>, MrInit);

impl MrOps for MockMr {
    fn lkey(&self) -> u32 {
        1
    }

    fn rkey(&self) -> u32 {
        2
    }

    fn addr(&self) -> u64 {
        self.1.region.addr()
    }

    fn dereg(&self) -> Result<()> {
        self.0.ended.lock().unwrap().push("mr");
        Ok(())
    }
}

#[derive(Debug)]
struct MockQp(Arc<Script>);

impl QpOps for MockQp {
    fn qp_num(&self) -> u32 {
        3
    }

    fn state(&self) -> QpState {
        QpState::Sqe
    }

    fn failure(&self) -> Option<Failure> {
        None
    }

    fn capacity(&self) -> QpCapacity {
        QpCapacity::default()
    }

    fn post_send(&self, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        for (posted, wr) in requests.iter().enumerate() {
            self.0.take_room(posted)?;
            let (pieces, inline) = match wr.data {
                Data::Sges(list) => (list.as_slice().to_vec(), Vec::new()),
                Data::Inline(bytes) => (Vec::new(), bytes.to_vec()),
            };
            self.0.sent.lock().unwrap().push(Sent {
                wr_id: wr.wr_id,
                op: wr.op,
                flags: wr.flags,
                pieces,
                inline,
                peer: wr.peer,
            });
        }
        Ok(())
    }

    fn post_recv(&self, requests: &[RecvWr]) -> Result<(), PostError> {
        for (posted, wr) in requests.iter().enumerate() {
            self.0.take_room(posted)?;
            let pieces = wr.sges.as_slice().to_vec();
            self.0.received.lock().unwrap().push((wr.wr_id, pieces));
        }
        Ok(())
    }

    fn connect(
        self: Arc<Self>,
        _peer: SocketAddr,
        _param: &ConnParam<'_>,
        _channel: &Arc<dyn EventChannelOps>,
    ) -> Result<()> {
        Err(Error::State(QpState::Sqe))
    }

    fn disconnect(&self) -> Result<()> {
        Err(Error::Os {
            what: "waiting",
            source: std::io::ErrorKind::TimedOut.into(),
        })
    }

    fn bind(self: Arc<Self>, address: SocketAddr) -> Result<SocketAddr> {
        Ok(SocketAddr::new(address.ip(), 777))
    }

    fn adopt(self: Arc<Self>, socket: OwnedFd) -> Result<SocketAddr> {
        let address = socket2::Socket::from(socket).local_addr();
        let address = address.map_err(|source| Error::Os {
            what: "asking a socket",
            source,
        })?;
        address.as_socket().ok_or(Error::Invalid("a socket"))
    }

    fn attach_multicast(&self, group: IpAddr, interface: Option<IpAddr>) -> Result<()> {
        self.0.groups.lock().unwrap().push((true, group, interface));
        Ok(())
    }

    fn detach_multicast(&self, group: IpAddr, interface: Option<IpAddr>) -> Result<()> {
        let mut groups = self.0.groups.lock().unwrap();
        groups.push((false, group, interface));
        Ok(())
    }

    fn take_record(&self, wr_id: u64) -> Option<WriteRecord> {
        let mut records = self.0.records.lock().unwrap();
        let index = records.iter().position(|(id, _)| *id == wr_id)?;
        Some(records.remove(index).1)
    }

    fn records(&self, rkey: u32) -> Vec<WriteRecord> {
        let records = self.0.records.lock().unwrap();
        let all = records.iter().map(|(_, record)| record);
        all.filter(|record| record.target.rkey == rkey)
            .cloned()
            .collect()
    }

    fn datagram_statistics(&self) -> Result<DatagramStatistics> {
        let mut counted = DatagramStatistics::default();
        let counters = [
            &mut counted.sent,
            &mut counted.received,
            &mut counted.bad_checksum,
            &mut counted.malformed,
            &mut counted.unknown_qp,
            &mut counted.no_receive,
            &mut counted.too_long,
            &mut counted.duplicates,
            &mut counted.incomplete,
            &mut counted.refused,
            &mut counted.late,
            &mut counted.evicted,
            &mut counted.resent,
            &mut counted.peers,
            &mut counted.peer_bytes,
            &mut counted.kernel_drops,
            &mut counted.undelivered,
            &mut counted.unsealed,
            &mut counted.forged,
            &mut counted.replayed,
        ];
        for (counter, number) in counters.into_iter().zip(1..) {
            *counter = number;
        }
        Ok(counted)
    }
}

impl Drop for MockQp {
    fn drop(&mut self) {
        self.0.ended.lock().unwrap().push("qp");
        self.0.may_panic("drop");
    }
}
