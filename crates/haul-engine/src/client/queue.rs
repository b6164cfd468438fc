//! Queue pairs and shared receive queues.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use haul_slab::SharedMemory;
use haul_soft::rnic;
use haul_verbs::cm::ConnParam;
use haul_verbs::provider::{EventChannelOps, PdOps, QpOps, SrqOps};
use haul_verbs::{
    Data, DatagramStatistics, Error, Failure, Peer, PostError, QpCapacity, QpInit, QpState,
    QpStatistics, QpType, RecvWr, Result, SendFlags, SendWr, Sge, SrqInit, WcOpcode, WcStatus,
    WorkCompletion, WriteRecord,
};

use super::completion::Cq;
use super::core::{Core, ours};
use super::events::{ENDED, EventChannel};
use super::link::{Link, OpenQp, UNEXPECTED};
use crate::entry;
use crate::lock::lock;
use crate::message::{
    self, Capacity, CreateQp, Datagram, Parameters, QP_TYPES, Record, Reply, Request, STATES, Why,
    at, position,
};
use crate::ring::{Place, Producer};
use crate::shared::QpRings;

#[derive(Debug)]
pub(super) struct Qp {
    core: Arc<Core>,
    pub(super) number: u32,
    qp_num: u32,
    capacity: QpCapacity,
    qp_type: QpType,
    signal_all: bool,
    /// Connected or bound, or has been: sends may be posted.
    has_begun: AtomicBool,
    sends: Mutex<Sends>,
    receives: Option<Mutex<Receives>>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
    _pd: Arc<dyn PdOps>,
}

/// Requests go to the engine under numbers of their own, since applications may use one twice.
#[derive(Debug)]
struct Sends {
    ring: Producer,
    /// Requests that are not complete, by their numbers.
    open: VecDeque<OpenSend>,
    next: u64,
}

#[derive(Debug)]
struct OpenSend {
    number: u64,
    wr_id: u64,
    opcode: WcOpcode,
    peer: Option<Peer>,
    is_read: bool,
    is_signaled: bool,
    /// Where the bytes of a Read or atomic go that the engine does not put there.
    sink: Option<Box<[Sge]>>,
}

#[derive(Debug)]
struct OpenRecv {
    number: u64,
    wr_id: u64,
    /// Where its bytes go, likewise.
    sink: Option<Box<[Sge]>>,
}

#[derive(Debug)]
struct Receives {
    ring: Producer,
    /// Requests that are not complete, by their numbers.
    open: VecDeque<OpenRecv>,
    next: u64,
}

impl Sends {
    fn new(place: Place) -> Self {
        Self {
            ring: Producer::new(place),
            open: VecDeque::new(),
            next: 0,
        }
    }
}

impl Receives {
    fn post(
        &mut self,
        core: &Core,
        requests: &[RecvWr],
        (max_wr, max_sge): (u32, u32),
    ) -> Result<(), PostError> {
        let mut result = Ok(());
        for (posted, wr) in requests.iter().enumerate() {
            let fits = rnic::check_receive(max_sge, wr);
            let room = (self.open.len() < max_wr as usize)
                .then_some(())
                .ok_or(Error::Full("receive queue"));
            if let Err(error) = fits.and(room) {
                result = Err(PostError::new(posted, error));
                break;
            }
            let mut entry = entry::of_recv(wr);
            entry[0] = self.next;
            self.ring.write(&entry);
            self.open.push_back(OpenRecv {
                number: self.next,
                wr_id: wr.wr_id,
                sink: core.bounces.to_copy_out(wr.sges.as_slice()),
            });
            self.next += 1;
        }
        self.ring.publish();
        result
    }

    fn new(place: Place) -> Self {
        Self {
            ring: Producer::new(place),
            open: VecDeque::new(),
            next: 0,
        }
    }

    /// A completion without a request, of a record, stays as it is.
    fn complete(&mut self, core: &Core, completion: &mut WorkCompletion) {
        let number = completion.wr_id;
        let found = self.open.binary_search_by_key(&number, |open| open.number);
        let Some(open) = found.ok().and_then(|at| self.open.remove(at)) else {
            return;
        };
        completion.wr_id = open.wr_id;
        if let Some(sink) = open.sink
            && completion.status == WcStatus::Success
        {
            core.bounces.copy_out(&sink, completion.byte_len);
        }
    }
}

impl Qp {
    pub(super) fn create(
        core: Arc<Core>,
        (pd, domain): (u32, Arc<dyn PdOps>),
        init: &QpInit<'_>,
    ) -> Result<Arc<Self>> {
        let (send_cq, recv_cq): (Arc<Cq>, Arc<Cq>) =
            (ours(init.send_cq.ops())?, ours(init.recv_cq.ops())?);
        core.check(&send_cq.core)?;
        core.check(&recv_cq.core)?;
        let srq: Option<Arc<Srq>> = init.srq.map(|srq| ours(srq.ops())).transpose()?;
        let (capacity, limits) = (init.capacity, &core.attributes);
        for (field, value, most) in [
            ("max_send_wr", capacity.max_send_wr, limits.max_qp_wr),
            ("max_recv_wr", capacity.max_recv_wr, limits.max_qp_wr),
            ("max_inline", capacity.max_inline, limits.max_inline),
        ] {
            Error::at_most(field, value.into(), most.into())?;
        }
        let rings = QpRings::of(capacity, srq.is_some());
        let memory = SharedMemory::create(rings.bytes);
        let memory = memory.map_err(Error::os("memory of a queue pair"))?;
        let (sends, receives) = rings.places(&memory).ok_or(UNEXPECTED)?;
        let request = Request::CreateQp(Box::new(CreateQp {
            pd,
            qp_type: position(&QP_TYPES, &init.qp_type),
            send_cq: send_cq.number,
            recv_cq: recv_cq.number,
            srq: srq.as_ref().map(|srq| srq.number),
            capacity: Capacity::of(capacity),
            signal_all: init.signal_all,
            remote_placement: init.remote_placement,
            rate_limit: init
                .rate_limit
                .map(|limit| (limit.bits_per_second, limit.max_burst_bytes)),
            datagram: Datagram::of(&init.datagram),
        }));
        let (Reply::Qp { qp, qp_num }, _) = core
            .link
            .call(&request, &[memory.fd().ok_or(UNEXPECTED)?])?
        else {
            return Err(UNEXPECTED);
        };
        let sends = Mutex::new(Sends::new(sends));
        let receives = receives.map(|place| Mutex::new(Receives::new(place)));
        let qp = Arc::new(Self {
            core,
            number: qp,
            qp_num,
            capacity,
            qp_type: init.qp_type,
            signal_all: init.signal_all,
            has_begun: AtomicBool::new(false),
            sends,
            receives,
            send_cq,
            recv_cq,
            srq,
            _pd: domain,
        });
        let open: Weak<Self> = Arc::downgrade(&qp);
        qp.link().add_qp(qp_num, open);
        Ok(qp)
    }

    fn link(&self) -> &Link {
        &self.core.link
    }

    fn complete_send(&self, completion: &mut WorkCompletion) {
        let mut sends = lock(&self.sends);
        let number = completion.wr_id;
        let found = sends.open.binary_search_by_key(&number, |open| open.number);
        let Some((at, done)) = found
            .ok()
            .and_then(|at| sends.open.remove(at).map(|done| (at, done)))
        else {
            return;
        };
        completion.wr_id = done.wr_id;
        let bounces = &self.core.bounces;
        let copy_out = |open: &OpenSend| {
            if let Some(sink) = &open.sink {
                bounces.copy_out(sink, u32::MAX);
            }
        };
        if completion.status == WcStatus::Success {
            copy_out(&done);
        }
        // Those before it that are not reported are complete, too: of a connection all, of a
        // datagram service those to the same peer, where Reads and the others have orders of
        // their own.
        if self.qp_type == QpType::Rc {
            sends.open.drain(..at).for_each(|open| copy_out(&open));
            return;
        }
        sends.open.retain(|open| {
            let is_before = open.number < number
                && !open.is_signaled
                && open.peer == done.peer
                && open.is_read == done.is_read;
            if is_before {
                copy_out(open);
            }
            !is_before
        });
    }

    /// Refuses what the engine would refuse, while there is a caller to tell.
    fn check(&self, sends: &Sends, wr: &SendWr<'_>) -> Result<entry::Request> {
        rnic::check_send(self.qp_type, &self.capacity, wr)?;
        if !self.has_begun.load(Ordering::Acquire) {
            return Err(Error::State(QpState::Reset));
        }
        if sends.open.len() >= self.capacity.max_send_wr as usize {
            return Err(Error::Full("send queue"));
        }
        entry::of_send(wr).ok_or(Error::Unsupported("this operation"))
    }

    /// Copies the bytes of a request that the engine does not reach; where those go that it brings.
    fn bounce(&self, wr: &SendWr<'_>) -> Option<Box<[Sge]>> {
        let bounces = &self.core.bounces;
        let Data::Sges(list) = wr.data else {
            return None;
        };
        if wr.op.is_read_or_atomic() {
            return bounces.to_copy_out(list.as_slice());
        }
        bounces.copy_in(list.as_slice());
        None
    }

    fn numbers(&self, request: &Request) -> Result<Vec<u64>> {
        match self.link().call(request, &[])? {
            (Reply::Numbers(numbers), _) => Ok(numbers),
            _ => Err(UNEXPECTED),
        }
    }

    fn address(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<SocketAddr> {
        match self.link().call(request, descriptors)? {
            (Reply::Address(address), _) => {
                self.begin();
                Ok(address)
            }
            _ => Err(UNEXPECTED),
        }
    }

    fn recorded(&self, request: &Request) -> Vec<WriteRecord> {
        match self.link().call(request, &[]) {
            Ok((Reply::Records(records), _)) => {
                records.into_iter().filter_map(Record::get).collect()
            }
            _ => Vec::new(),
        }
    }

    fn about(&self) -> (QpState, Option<Failure>) {
        match self.link().call(&Request::State(self.number), &[]) {
            Ok((Reply::State { state, failure }, _)) => {
                let state = at(&STATES, state.into()).unwrap_or(QpState::Err);
                if state == QpState::Rts {
                    self.begin();
                }
                (state, failure.map(Why::get))
            }
            _ => (QpState::Err, Some(ENDED())),
        }
    }
}

impl OpenQp for Qp {
    fn qp_num(&self) -> u32 {
        self.qp_num
    }

    fn number(&self) -> u32 {
        self.number
    }

    fn begin(&self) {
        self.has_begun.store(true, Ordering::Release);
    }

    fn complete(&self, completion: &mut WorkCompletion) {
        match completion.opcode {
            WcOpcode::Recv | WcOpcode::RecvRdmaWithImm | WcOpcode::RecvWriteRecord => {
                if completion.status == WcStatus::Success {
                    self.begin();
                }
                match (&self.receives, &self.srq) {
                    (Some(receives), _) => lock(receives).complete(&self.core, completion),
                    (None, Some(srq)) => lock(&srq.receives).complete(&self.core, completion),
                    (None, None) => {}
                }
            }
            _ => self.complete_send(completion),
        }
    }

    fn flush(&self, queue: u32, to: &mut VecDeque<WorkCompletion>) {
        let flushed =
            |wr_id, opcode| WorkCompletion::new(wr_id, WcStatus::WrFlushErr, opcode, self.qp_num);
        if self.send_cq.number == queue {
            let sends = std::mem::take(&mut lock(&self.sends).open);
            to.extend(sends.iter().map(|open| flushed(open.wr_id, open.opcode)));
        }
        if let Some(receives) = &self.receives
            && self.recv_cq.number == queue
        {
            let receives = std::mem::take(&mut lock(receives).open);
            to.extend(
                receives
                    .iter()
                    .map(|open| flushed(open.wr_id, WcOpcode::Recv)),
            );
        }
    }
}

impl QpOps for Qp {
    fn qp_num(&self) -> u32 {
        self.qp_num
    }

    fn state(&self) -> QpState {
        self.about().0
    }

    fn failure(&self) -> Option<Failure> {
        self.about().1
    }

    fn capacity(&self) -> QpCapacity {
        self.capacity
    }

    fn statistics(&self) -> Result<QpStatistics> {
        let numbers = self.numbers(&Request::Statistics(self.number))?;
        Ok(message::statistics(&numbers))
    }

    fn post_send(&self, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        let mut sends = lock(&self.sends);
        if self.link().is_dead() {
            return Err(PostError::new(0, Error::State(QpState::Err)));
        }
        let mut result = Ok(());
        for (posted, wr) in requests.iter().enumerate() {
            match self.check(&sends, wr) {
                Ok(mut entry) => {
                    let sink = self.bounce(wr);
                    let number = sends.next;
                    sends.next += 1;
                    entry[0] = number;
                    sends.ring.write(&entry);
                    if let Data::Inline(bytes) = wr.data {
                        for entry in entry::of_inline(bytes) {
                            sends.ring.write(&entry);
                        }
                    }
                    sends.open.push_back(OpenSend {
                        number,
                        wr_id: wr.wr_id,
                        opcode: wr.op.completes_as(),
                        peer: wr.peer,
                        is_read: wr.op.is_read_or_atomic(),
                        is_signaled: self.signal_all || wr.flags.contains(SendFlags::SIGNALED),
                        sink,
                    });
                }
                Err(error) => {
                    result = Err(PostError::new(posted, error));
                    break;
                }
            }
        }
        sends.ring.publish();
        drop(sends);
        self.link().ring();
        result
    }

    fn post_recv(&self, requests: &[RecvWr]) -> Result<(), PostError> {
        let Some(receives) = &self.receives else {
            let error = Error::Invalid("the queue pair has a shared receive queue");
            return Err(PostError::new(0, error));
        };
        let mut receives = lock(receives);
        if self.link().is_dead() {
            return Err(PostError::new(0, Error::State(QpState::Err)));
        }
        let capacity = &self.capacity;
        let limits = (capacity.max_recv_wr, capacity.max_recv_sge);
        let result = receives.post(&self.core, requests, limits);
        drop(receives);
        self.link().ring();
        result
    }

    fn connect(
        self: Arc<Self>,
        peer: SocketAddr,
        param: &ConnParam<'_>,
        channel: &Arc<dyn EventChannelOps>,
    ) -> Result<()> {
        let channel: Arc<EventChannel> = ours(channel)?;
        self.core.check(&channel.core)?;
        channel.begin(self.qp_num);
        let connected = self.link().order(&Request::Connect {
            qp: self.number,
            peer,
            param: Parameters::of(param),
            channel: channel.number(),
        });
        if connected.is_err() {
            channel.end(self.qp_num);
        }
        connected
    }

    fn disconnect(&self) -> Result<()> {
        self.link().order(&Request::Disconnect(self.number))
    }

    fn bind(self: Arc<Self>, address: SocketAddr) -> Result<SocketAddr> {
        let qp = self.number;
        self.address(&Request::Bind { qp, address }, &[])
    }

    fn adopt(self: Arc<Self>, socket: OwnedFd) -> Result<SocketAddr> {
        self.address(&Request::Adopt(self.number), &[socket.as_fd()])
    }

    fn attach_multicast(&self, group: IpAddr, interface: Option<IpAddr>) -> Result<()> {
        self.multicast(true, group, interface)
    }

    fn detach_multicast(&self, group: IpAddr, interface: Option<IpAddr>) -> Result<()> {
        self.multicast(false, group, interface)
    }

    fn take_record(&self, wr_id: u64) -> Option<WriteRecord> {
        let qp = self.number;
        self.recorded(&Request::TakeRecord { qp, wr_id }).pop()
    }

    fn records(&self, rkey: u32) -> Vec<WriteRecord> {
        let qp = self.number;
        self.recorded(&Request::Records { qp, rkey })
    }

    fn datagram_statistics(&self) -> Result<DatagramStatistics> {
        let numbers = self.numbers(&Request::DatagramStatistics(self.number))?;
        Ok(message::datagram_statistics(&numbers))
    }
}

impl Qp {
    fn multicast(&self, attach: bool, group: IpAddr, interface: Option<IpAddr>) -> Result<()> {
        self.link().order(&Request::Multicast {
            qp: self.number,
            attach,
            group,
            interface,
        })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.link().remove_qp(self.qp_num);
        self.link().close(self.number);
    }
}

#[derive(Debug)]
pub(super) struct Srq {
    core: Arc<Core>,
    _pd: Arc<dyn PdOps>,
    number: u32,
    init: SrqInit,
    receives: Mutex<Receives>,
}

impl Srq {
    pub(super) fn create(
        core: Arc<Core>,
        (pd, domain): (u32, Arc<dyn PdOps>),
        init: &SrqInit,
    ) -> Result<Arc<Self>> {
        let most = core.attributes.max_qp_wr;
        Error::at_most("max_wr", init.max_wr.into(), most.into())?;
        let memory = SharedMemory::create(Place::bytes(init.max_wr, entry::REQUEST));
        let memory = memory.map_err(Error::os("memory of a shared receive queue"))?;
        let place = Place::new(&memory, 0, init.max_wr, entry::REQUEST).ok_or(UNEXPECTED)?;
        let request = Request::CreateSrq {
            pd,
            max_wr: init.max_wr,
            max_sge: init.max_sge,
            token: init.token,
        };
        let number = core
            .link
            .create(&request, &[memory.fd().ok_or(UNEXPECTED)?])?;
        Ok(Arc::new(Self {
            core,
            _pd: domain,
            number,
            init: *init,
            receives: Mutex::new(Receives::new(place)),
        }))
    }

    fn link(&self) -> &Link {
        &self.core.link
    }
}

impl SrqOps for Srq {
    fn post_recv(&self, requests: &[RecvWr]) -> Result<(), PostError> {
        let mut receives = lock(&self.receives);
        let limits = (self.init.max_wr, self.init.max_sge);
        let result = receives.post(&self.core, requests, limits);
        drop(receives);
        self.link().ring();
        result
    }

    fn arm_limit(&self, limit: u32) -> Result<()> {
        let srq = self.number;
        self.link().order(&Request::ArmSrq { srq, limit })
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        self.link().close(self.number);
    }
}
