//! A queue pair of a datagram service inside its shard.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use haul_io::poller::{Interest, Poller};
use haul_io::udp::UdpSocket;
use haul_iwarp::datagram::rd::{RdCompletion, RdConfig, RdEvent, Remote as RdPeer};
use haul_iwarp::datagram::wire::{ANY_QPN, NoticeCode};
use haul_iwarp::datagram::{
    DATAGRAM_MIN, Destination, UdCompletion, UdConfig, UdEvent, UdReceived, UdStatus,
};
use haul_iwarp::{CRC_LEN, CompletionKind, Operation, Time};
use haul_slab::Stag;
use haul_verbs::{
    AsyncEvent, Data, DatagramInit, DatagramStatistics, Error, Peer, PostError, QpInit, QpState,
    QpType, RecordMode, RecvWr, Remote, Result, SendFlags, SendWr, WcData, WcOpcode, WcStatus,
    WorkCompletion, WriteRecord,
};

use super::admission::{admit, send_slots, steps};
use super::bucket::Bucket;
use super::core::{Core, CoreEvent, HEADER_MAX};
use super::outbox::Flushed;
use super::records::Records;
use super::request::Request;
use super::routes::{PATH_MTU, Routes, headers};
use super::sealing::Sealing;
use super::service_socket::{AROUND, ServiceSocket, Unsent};
use super::tools::Tools;
use super::validation::Validation;
use super::work;
use crate::rnic::buffers::{Buffers, Outgoing, OutgoingData, Receives};
use crate::rnic::events::AsyncEvents;
use crate::rnic::limits::QP_WR_MAX;
use crate::rnic::operation::{NO_WRITE, Operations};
use crate::rnic::places::{Held, Places};
use crate::rnic::queue::Pushed;
use crate::rnic::shape::{NOT_SHARED, Shape, lower_half, refused};
use crate::udt::trouble::{FAILURES, rest};

/// See the module.
#[derive(Debug)]
pub(in crate::rnic) struct Service {
    shape: Shape,
    buffers: Buffers,
    qp_type: QpType,
    init: DatagramInit,
    link: Option<Box<ServiceSocket>>,
    /// Receives that were posted before there was a core to take them.
    early: VecDeque<haul_iwarp::RecvWr>,
    pub(in crate::rnic) sends: Arc<Places>,
    /// Those of its own receive queue, or of the shared one.
    receives: Arc<Places>,
    /// Send work requests that are complete, but have no completion: the next one frees their
    /// places as well.
    unreported: u32,
    /// Records that are kept without a completion, because the queue was too full of others.
    unannounced: u64,
    records: Records,
    validation: Validation,
    /// Requests to peers that are being greeted, where the service is sealed.
    greeted: HashMap<SocketAddr, Vec<Request>>,
    /// Requests with a datagram that was not sent, by slot.
    unsent: Vec<(u32, Unsent)>,
    /// What went wrong with the first half of work requests, by peer, until the other half reports
    /// it.
    blames: Vec<(Option<Peer>, WcStatus, u32)>,
    async_events: Arc<AsyncEvents>,
    /// What is about to be pushed.
    sent: Vec<Pushed>,
    received: Vec<Pushed>,
}

/// Receive calls, and batches sent, before others have their turn.
const ROUNDS: usize = FAILURES;
const BATCHES: usize = 16;
/// The longest message that no route needs to be asked for: RFC 8899 §5.1.2 has paths carry 1,200
/// bytes.
const UNASKED_MAX: u32 = 1_100;
impl Service {
    pub(in crate::rnic) fn new(
        pd: u32,
        shape: Shape,
        srq: Option<Receives>,
        async_events: Arc<AsyncEvents>,
        init: &QpInit<'_>,
    ) -> Self {
        let capacity = shape.capacity;
        let receives = srq.as_ref().map_or(capacity.max_recv_wr, |_| QP_WR_MAX);
        let buffers = Buffers::new(
            pd,
            srq,
            send_slots(init.qp_type, capacity.max_send_wr),
            receives,
            capacity.max_inline as usize,
        );
        Self {
            sends: Places::new(capacity.max_send_wr),
            receives: buffers.receive_places(&capacity),
            unreported: 0,
            shape,
            buffers,
            qp_type: init.qp_type,
            init: init.datagram.clone(),
            link: None,
            early: VecDeque::new(),
            unannounced: 0,
            records: Records::default(),
            validation: Validation::default(),
            greeted: HashMap::new(),
            unsent: Vec::new(),
            blames: Vec::new(),
            async_events,
            sent: Vec::new(),
            received: Vec::new(),
        }
    }

    // ---- the socket

    pub(in crate::rnic) fn bind(
        &mut self,
        socket: UdpSocket,
        tools: &mut Tools<'_>,
        token: u64,
    ) -> Result<()> {
        let state = self.shape.view.state();
        if state != QpState::Reset {
            return Err(Error::State(state));
        }
        let local = socket.local_addr();
        let groups = socket.set_group_options(self.init.multicast_ttl, self.init.multicast_loop);
        groups.map_err(Error::os("preparing a socket for groups"))?;
        let sealing = self.init.seal_key.as_ref();
        let sealing = sealing.map(Sealing::new).transpose()?.map(Box::new);
        let config = self.config(local)?;
        let own = (config.qpn, config.epoch);
        let mut core = if self.qp_type == QpType::Rd {
            let mut rest = RdConfig::default();
            rest.fail_whole = self.init.peer_error_is_fatal;
            rest.receives_in_order = self.init.receives_in_order;
            rest.tries = self.init.retries.into();
            rest.window = match self.init.window {
                0 => rest.window,
                packets => packets.clamp(64, 65_536),
            };
            Core::reliable(&config, headers(local), rest)
        } else {
            Core::unreliable(config)
        };
        for wr in self.early.drain(..) {
            // The core has as much room as this queue pair.
            let _ = core.post_receive(tools.now, wr);
        }
        let watched = tools.poller.add(&socket, token, Interest::READ);
        watched.map_err(Error::os("watching a socket"))?;
        let bucket = match self.shape.rate_limit {
            Some(limit) => {
                let around = headers(local) as usize + HEADER_MAX + CRC_LEN;
                Some(Bucket::of_wire(limit, around, tools.now))
            }
            None => {
                let rate = self.init.max_rate;
                rate.map(|rate| Bucket::of_payload(rate, tools.now))
            }
        };
        self.link = Some(Box::new(ServiceSocket {
            socket,
            token,
            core,
            sealing,
            bucket,
            paced: false,
            routes: Routes::default(),
            anywhere: local.ip().is_unspecified(),
            stuck: None,
            received: 0,
            bad_checksum: 0,
            malformed: 0,
            own,
            undelivered: 0,
            complaint: false,
            quiet_until: tools.now,
            watched: false,
            more: false,
        }));
        self.early = VecDeque::new();
        self.shape.view.set_state(QpState::Rts);
        Ok(())
    }

    fn config(&self, local: SocketAddr) -> Result<UdConfig> {
        let random = haul_io::random::bytes::<28>().map_err(Error::os("random bytes"))?;
        let (epoch, rest) = random.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
        let (seed, rest) = rest.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        let key = rest.first_chunk::<16>().copied().unwrap_or_default();
        let path_mtu = match self.init.path_mtu {
            0 => PATH_MTU,
            octets => octets,
        };
        let capacity = &self.shape.capacity;
        let around = self.init.seal_key.as_ref().map_or(0, |_| AROUND);
        let datagram_max = u32::from(path_mtu).saturating_sub(headers(local) + around);
        let mut config = UdConfig::default();
        config.pd = haul_iwarp::Pd(self.buffers.pd);
        config.qp = haul_iwarp::QpNum(self.shape.view.qp_num);
        config.qpn = self.shape.view.qp_num;
        config.epoch = u32::from_ne_bytes(*epoch).max(1);
        config.seed = u64::from_ne_bytes(*seed);
        config.key = key;
        config.send_depth = send_slots(self.qp_type, capacity.max_send_wr);
        config.recv_depth = capacity.max_recv_wr;
        config.shared_receive = self.buffers.srq.is_some();
        config.datagram_max = datagram_max.max(DATAGRAM_MIN);
        config.around = around;
        config.record_mode = work::record_mode(self.init.records);
        config.group_writes = self.init.group_writes;
        config.tail_copy = if self.init.tail_repeats == 0 { 0 } else { 8 };
        config.read_tries = self.init.retries.into();
        config.read_first_ns = match u64::try_from(self.init.read_timeout.as_nanos()) {
            Ok(0) => config.read_first_ns,
            Ok(ns) => ns,
            Err(_) => u64::MAX,
        };
        config.notices = true;
        Ok(config)
    }

    pub(in crate::rnic) fn unregister(&self, poller: &Poller) {
        if let Some(link) = &self.link {
            // It fails only for a socket that is not watched.
            let _ = poller.remove(&link.socket);
        }
    }

    pub(in crate::rnic) fn attach(
        &mut self,
        group: IpAddr,
        interface: Option<IpAddr>,
    ) -> Result<()> {
        let link = self.bound()?;
        let joined = link.socket.join_group(group, interface);
        joined.map_err(Error::os("joining a group"))
    }

    pub(in crate::rnic) fn detach(
        &mut self,
        group: IpAddr,
        interface: Option<IpAddr>,
    ) -> Result<()> {
        let link = self.bound()?;
        let left = link.socket.leave_group(group, interface);
        left.map_err(Error::os("leaving a group"))
    }

    fn bound(&mut self) -> Result<&mut ServiceSocket> {
        let state = self.shape.view.state();
        self.link.as_deref_mut().ok_or(Error::State(state))
    }

    /// Sends close notices to reliable peers; nothing else is sent any more.
    pub(in crate::rnic) fn leave(&mut self, tools: &mut Tools<'_>) {
        if let Some(link) = &mut self.link {
            link.core.close(tools.now);
        }
        self.push_out(tools);
    }

    /// The service ends: what is posted is flushed, and the socket closed.
    pub(in crate::rnic) fn end(&mut self, tools: &mut Tools<'_>) {
        self.shape.view.set_state(QpState::Err);
        self.leave(tools);
        self.unregister(tools.poller);
        if let Some(link) = &mut self.link {
            link.stuck = None;
        }
        let greeted = std::mem::take(&mut self.greeted).into_values().flatten();
        let waiting: Vec<_> = greeted.chain(self.validation.flush()).collect();
        for request in waiting {
            self.give_up(&request, WcStatus::WrFlushErr);
        }
        self.report(tools);
        self.link = None;
        for wr in std::mem::take(&mut self.early) {
            let pushed = self.receipt(wr.id, WcStatus::WrFlushErr, WcOpcode::Recv);
            self.received.push(pushed);
        }
        self.push(tools);
    }

    /// A name was taken away: what is open there is closed.
    pub(in crate::rnic) fn revoke(&mut self, tools: &mut Tools<'_>, stag: Stag) {
        if let Some(link) = &mut self.link {
            link.core.handle_invalidated(haul_iwarp::Stag(stag.0));
        }
        self.report(tools);
        self.push(tools);
    }

    // ---- posting

    pub(in crate::rnic) fn post_send(
        &mut self,
        tools: &mut Tools<'_>,
        requests: &[SendWr<'_>],
    ) -> Result<(), PostError> {
        let posted = requests.iter().enumerate().try_for_each(|(posted, wr)| {
            self.post_one(tools, wr)
                .map_err(|error| PostError::new(posted, error))
        });
        self.transmit(tools);
        posted
    }

    fn post_one(&mut self, tools: &Tools<'_>, wr: &SendWr<'_>) -> Result<()> {
        let admitted = admit(&self.shape, self.qp_type, &self.sends, wr)?;
        let posted = self.post_steps(tools, wr, admitted);
        posted.inspect_err(|_| self.sends.free(1))
    }

    /// Posts a work request that was admitted without the shard's lock; one that the service does
    /// not take ends with a completion.
    pub(in crate::rnic) fn post_admitted(&mut self, tools: &Tools<'_>, wr: &SendWr<'_>) {
        let steps = steps(self.qp_type, wr);
        if let Err(error) = steps.and_then(|steps| self.post_steps(tools, wr, steps)) {
            self.report_send(wr.wr_id, (refused(&error), 0), wr.op.completes_as(), 0);
        }
    }

    fn post_steps(
        &mut self,
        tools: &Tools<'_>,
        wr: &SendWr<'_>,
        (peer, steps): (Peer, Operations),
    ) -> Result<()> {
        if self.shape.view.state() == QpState::Err {
            let status = (WcStatus::WrFlushErr, 0);
            self.report_send(wr.wr_id, status, wr.op.completes_as(), 0);
            return Ok(());
        }
        let mut rest = *wr;
        rest.data = Data::Inline(&[]);
        rest.flags -= SendFlags::FENCE;
        for (number, op) in steps.iter().enumerate() {
            let silent = number + 1 < steps.len();
            let step = if number == 0 { wr } else { &rest };
            self.post_step(tools, step, peer, *op, silent)?;
        }
        Ok(())
    }

    /// Posts a work request's only request to the core, or one of two; a silent one leaves the
    /// completion to the next.
    fn post_step(
        &mut self,
        tools: &Tools<'_>,
        wr: &SendWr<'_>,
        peer: Peer,
        op: Operation,
        silent: bool,
    ) -> Result<()> {
        let data = match wr.data {
            Data::Sges(list) => OutgoingData::Sges(list),
            Data::Inline(bytes) => OutgoingData::Inline(bytes.len()),
        };
        let outgoing = Outgoing {
            data,
            opcode: wr.op.completes_as(),
            silent,
            peer: Some(peer),
        };
        let slot = self.buffers.sends.insert(outgoing);
        let slot = slot.map_err(|_| Error::Full("send queue"))?;
        if let Data::Inline(bytes) = wr.data {
            self.buffers.keep_inline(slot, bytes);
        }
        let len = u32::try_from(wr.data.total_len()).unwrap_or(u32::MAX);
        let mut request = Request {
            to: work::destination(peer),
            wr: haul_iwarp::SendWr::new(wr.wr_id, slot, op, len),
        };
        request.wr.signalled = self.shape.signal_all || wr.flags.contains(SendFlags::SIGNALED);
        request.wr.fence = wr.flags.contains(SendFlags::FENCE);
        let state = self.shape.view.state();
        let link = self.link.as_deref_mut().ok_or(Error::State(state))?;
        if request.wr.len > UNASKED_MAX {
            link.ask_route(tools.now, request.to.addr);
        }
        let posted = match &mut link.sealing {
            Some(_) if request.to.qpn == ANY_QPN => {
                Err(Error::Unsupported("sealed datagrams to a group"))
            }
            Some(sealing) if !sealing.is_met(&request.to.addr) => {
                if sealing.greet(tools.now, request.to.addr) {
                    self.greeted
                        .entry(request.to.addr)
                        .or_default()
                        .push(request);
                    Ok(())
                } else {
                    Err(Error::Exhausted("keys of peers"))
                }
            }
            _ => self.pass_on(tools.now, request),
        };
        posted.inspect_err(|_| {
            self.buffers.sends.remove(slot);
        })
    }

    /// Hands a request to the core, once the core may send to its peer.
    fn pass_on(&mut self, now: Time, request: Request) -> Result<()> {
        let state = self.shape.view.state();
        let link = self.link.as_deref_mut().ok_or(Error::State(state))?;
        let op = request.wr.op;
        let writes = matches!(op, Operation::Write { .. } | Operation::WriteRecord { .. });
        let is_group = request.to.qpn == ANY_QPN;
        if self.qp_type == QpType::Ud
            && writes
            && !is_group
            && !self.validation.is_known(&request.to)
        {
            self.validation.wait(request);
            link.ask(&mut self.validation, now);
            return Ok(());
        }
        link.core.post_send(now, &request).map_err(post_error)
    }

    /// A request ends that never reached the core.
    fn give_up(&mut self, request: &Request, status: WcStatus) {
        if let Some(outgoing) = self.buffers.sends.remove(request.wr.slot)
            && !outgoing.silent
        {
            self.report_send(request.wr.id, (status, 0), outgoing.opcode, 0);
        }
    }

    /// Peers that were greeted have answered, or do not answer.
    fn note_greeted(&mut self, now: Time) {
        while let Some(link) = &mut self.link
            && let Some(sealing) = &mut link.sealing
            && let Some((addr, is_met)) = sealing.poll_settled()
        {
            link.more = true;
            for request in self.greeted.remove(&addr).unwrap_or_default() {
                if !is_met {
                    self.give_up(&request, WcStatus::RetryExcErr);
                } else if self.pass_on(now, request).is_err() {
                    self.give_up(&request, WcStatus::LocQpOpErr);
                }
            }
        }
    }

    pub(in crate::rnic) fn post_recv(
        &mut self,
        tools: &mut Tools<'_>,
        requests: &[RecvWr],
    ) -> Result<(), PostError> {
        let posted = requests.iter().enumerate().try_for_each(|(posted, wr)| {
            self.receive_one(tools.now, wr)
                .map_err(|error| PostError::new(posted, error))
        });
        // A reliable peer may wait for it; else only, in error, the application.
        if self.qp_type == QpType::Rd || self.shape.view.state() == QpState::Err {
            self.transmit(tools);
        }
        posted
    }

    fn receive_one(&mut self, now: Time, wr: &RecvWr) -> Result<()> {
        if self.buffers.srq.is_some() {
            return Err(NOT_SHARED);
        }
        let len = self.shape.check_receive(wr)?;
        if self.receives.are_taken() {
            return Err(Error::Full("receive queue"));
        }
        if self.shape.view.state() == QpState::Err {
            self.receives.take();
            let pushed = self.receipt(wr.wr_id, WcStatus::WrFlushErr, WcOpcode::Recv);
            self.received.push(pushed);
            return Ok(());
        }
        let slot = self.buffers.receives.insert(wr.sges);
        let slot = slot.map_err(|_| Error::Full("receive queue"))?;
        let request = haul_iwarp::RecvWr::new(wr.wr_id, slot, len);
        if let Some(link) = &mut self.link {
            link.core.post_receive(now, request).map_err(|error| {
                self.buffers.receives.remove(slot);
                post_error(error)
            })?;
        } else {
            self.early.push_back(request);
        }
        self.receives.take();
        Ok(())
    }

    // ---- driving

    /// Receives, sends, and reports; whether anything moved.
    pub(in crate::rnic) fn turn(&mut self, tools: &mut Tools<'_>) -> bool {
        let received = self.receive(tools);
        self.note_greeted(tools.now);
        if let Some(link) = &mut self.link
            && link.core.poll_timeout().is_some_and(|due| tools.now >= due)
        {
            link.core.handle_timeout(tools.now);
        }
        if let (Some(link), Some(srq)) = (&mut self.link, &self.buffers.srq)
            && !srq.is_empty()
        {
            link.core.handle_receives(tools.now);
        }
        self.transmit(tools) | received
    }

    /// There is more to receive or to send than there was time for.
    pub(in crate::rnic) fn has_more(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.more)
    }

    /// When it wants to be moved though nothing arrives.
    pub(in crate::rnic) fn due(&self) -> Option<Time> {
        let link = self.link.as_deref()?;
        let paced = match &link.bucket {
            Some(bucket) if link.paced && link.stuck.is_none() => bucket.due(),
            _ => None,
        };
        let greeting = link.sealing.as_ref().and_then(|sealing| sealing.due());
        let due = [link.core.poll_timeout(), paced, greeting];
        due.into_iter().flatten().min()
    }

    fn receive(&mut self, tools: &mut Tools<'_>) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        let Some(mut batch) = tools.scratch.take_batch() else {
            return false;
        };
        let mut moved = false;
        link.more = false;
        for round in 1.. {
            match link.socket.recv_batch(&mut batch) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // An error of an earlier datagram does not end the service.
                Err(_) => {
                    link.note_errors(tools.now);
                    if round < ROUNDS {
                        continue;
                    }
                    if !moved {
                        rest();
                    }
                    break;
                }
            }
            moved = true;
            if link.sealing.is_some() {
                for at in 0..batch.len() {
                    let addrs = batch.message(at).map(|arrival| (arrival.from, arrival.to));
                    let Some(addrs) = addrs else { break };
                    let datagrams = batch.datagrams_mut(at);
                    link.take_in_sealed(&mut self.buffers, tools, addrs, datagrams);
                }
            } else {
                for arrival in batch.iter() {
                    link.take_in(&mut self.buffers, tools, &arrival);
                }
            }
            if !batch.is_full() {
                break;
            }
            if round >= ROUNDS {
                link.more = true;
                break;
            }
        }
        tools.scratch.give_batch(batch);
        moved
    }

    /// Sends what there is to send and can be sent, then reports.
    fn transmit(&mut self, tools: &mut Tools<'_>) -> bool {
        let moved = self.push_out(tools);
        self.report(tools);
        self.push(tools);
        moved
    }

    fn push_out(&mut self, tools: &mut Tools<'_>) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        let mut outbox = match link.stuck.take() {
            Some(outbox) => outbox,
            None => tools.outbox.take().unwrap_or_default(),
        };
        let mut moved = false;
        for round in 1.. {
            link.fill(&mut self.buffers, tools, &mut outbox, &mut self.unsent);
            if outbox.is_empty() {
                break;
            }
            moved = true;
            let unsent = &mut self.unsent;
            let mut failed = false;
            let flushed = outbox.flush(&link.socket, tools.tap, |slot, error| {
                failed = true;
                if let Some(slot) = slot {
                    unsent.push((slot, Unsent::Host(error.raw_os_error().unwrap_or(0))));
                }
            });
            if failed {
                link.note_errors(tools.now);
            }
            if flushed == Flushed::Blocked {
                link.watch(tools.poller, true);
                link.stuck = Some(outbox);
                return moved;
            }
            if round == BATCHES {
                link.more = true;
                break;
            }
        }
        link.watch(tools.poller, false);
        *tools.outbox = Some(outbox);
        moved
    }

    // ---- events of the core

    fn report(&mut self, tools: &Tools<'_>) {
        if let Some(link) = &mut self.link
            && link.take_complaint(tools.now)
        {
            let qp_num = self.shape.view.qp_num;
            self.async_events
                .push(AsyncEvent::DatagramUndelivered { qp_num });
        }
        while let Some(link) = &mut self.link
            && let Some(event) = link.core.poll_event()
        {
            match event {
                CoreEvent::Ud(event) => self.note(tools, event),
                CoreEvent::Rd(event) => self.note_reliable(tools, event),
            }
        }
    }

    fn note(&mut self, tools: &Tools<'_>, event: UdEvent) {
        match event {
            UdEvent::Received(received) => self.note_received(&received),
            UdEvent::Completion(completion) => self.note_completion(&completion),
            UdEvent::Record(record) => self.note_record(work::record(&record)),
            UdEvent::Chunk(chunk) => self.note_record(work::chunk(&chunk)),
            UdEvent::Dropped { .. } => {
                let qp_num = self.shape.view.qp_num;
                self.async_events
                    .push(AsyncEvent::DatagramRefused { qp_num });
            }
            UdEvent::Validated { to, known } => self.release(tools.now, to, known),
            UdEvent::Notice { from, code, .. } => {
                // The peer has forgotten this end, or somebody forged that: greets it once more,
                // and nothing waits for that.
                let to = from.destination();
                if code == NoticeCode::UnknownPeer
                    && self.validation.is_known(&to)
                    && let Some(link) = &mut self.link
                {
                    // Where too many are asked at once, the next such notice does it.
                    link.core.validate(tools.now, to);
                }
            }
            UdEvent::Rate { .. } | UdEvent::Probed { .. } => {}
        }
    }

    fn note_reliable(&mut self, tools: &Tools<'_>, event: RdEvent) {
        let peer = |peer: RdPeer| Peer::new(peer.addr, peer.qpn);
        match event {
            RdEvent::Completion(completion) => self.complete_reliable(tools, &completion),
            RdEvent::Record {
                peer: from,
                stag,
                to,
                len,
                immediate,
                msg_id,
            } => {
                let target = Remote {
                    addr: to,
                    rkey: stag.0,
                };
                let record = work::whole_record(peer(from), msg_id.0, target, len, immediate);
                if self.init.records == RecordMode::Query {
                    self.records.keep(record);
                } else {
                    self.note_record(record);
                }
            }
            RdEvent::Error => self.shape.view.set_state(QpState::Err),
            RdEvent::Up(_) | RdEvent::Down(..) => {}
        }
    }

    fn complete_reliable(&mut self, tools: &Tools<'_>, completion: &RdCompletion) {
        let status = work::reliable_status(completion.status);
        let mut opcode = WcOpcode::Recv;
        let received = match completion.kind {
            CompletionKind::Receive {
                solicited,
                invalidated,
            } => {
                let data = invalidated.map(|stag| WcData::InvalidatedRkey(stag.0));
                Some((solicited, data.unwrap_or_default(), completion.len))
            }
            CompletionKind::ReceiveImmediate { data, solicited } => {
                let imm = WcData::Imm(lower_half(data));
                if data >> 32 == NO_WRITE {
                    Some((solicited, imm, 0))
                } else {
                    opcode = WcOpcode::RecvRdmaWithImm;
                    Some((solicited, imm, lower_half(data >> 32)))
                }
            }
            _ => None,
        };
        let Some((solicited, data, len)) = received else {
            let mut status = status;
            if let CompletionKind::Atomic { original } = completion.kind
                && status == WcStatus::Success
                && !self.store(tools, completion.slot, original)
            {
                status = WcStatus::LocProtErr;
            }
            let (id, slot, len) = (completion.id, completion.slot, completion.len);
            return self.finish(id, slot, status, len, completion.signalled);
        };
        self.buffers.receives.remove(completion.slot);
        let mut pushed = self.receipt(completion.id, status, opcode);
        pushed.wc.solicited = solicited;
        pushed.wc.data = data;
        pushed.wc.byte_len = len;
        pushed.wc.src = completion.peer.map(|peer| Peer::new(peer.addr, peer.qpn));
        self.received.push(pushed);
    }

    /// A peer knows this end, or does not answer: what waits for it goes out.
    fn release(&mut self, now: Time, to: Destination, known: bool) {
        let Some(link) = &mut self.link else { return };
        let mut refused = Vec::new();
        for request in self.validation.settle(to, known) {
            link.more = true;
            if link.core.post_send(now, &request).is_err()
                && let Some(outgoing) = self.buffers.sends.remove(request.wr.slot)
            {
                refused.push((request.wr.id, outgoing.opcode));
            }
        }
        link.ask(&mut self.validation, now);
        for (wr_id, opcode) in refused {
            self.report_send(wr_id, (WcStatus::LocQpOpErr, 0), opcode, 0);
        }
    }

    fn note_received(&mut self, received: &UdReceived) {
        self.buffers.receives.remove(received.slot);
        let status = work::status(received.status);
        let mut pushed = self.receipt(received.id, status, WcOpcode::Recv);
        if received.status == UdStatus::Flushed {
            self.received.push(pushed);
            return;
        }
        pushed.wc.solicited = received.solicited;
        pushed.wc.src = Some(work::peer(&received.from));
        match received.immediate {
            Some(data) => pushed.wc.data = WcData::Imm(lower_half(data)),
            None => pushed.wc.byte_len = received.len,
        }
        self.received.push(pushed);
    }

    fn note_completion(&mut self, completion: &UdCompletion) {
        if completion.status == UdStatus::Partial {
            self.keep_read(completion);
        }
        let status = work::status(completion.status);
        let (id, slot, len) = (completion.id, completion.slot, completion.len);
        self.finish(id, slot, status, len, completion.signalled);
    }

    /// What a Read has brought that did not come whole.
    fn keep_read(&mut self, completion: &UdCompletion) {
        let (Operation::Read { sink, sink_to, .. }, Some(outgoing)) =
            (completion.op, self.buffers.sends.get(completion.slot))
        else {
            return;
        };
        let Some(source) = outgoing.peer else { return };
        let (len, valid) = (outgoing.data.len(), completion.len);
        let record = work::read_record(sink, sink_to, len, valid, &completion.map, source);
        self.records.keep_as(completion.id, record);
    }

    /// Puts an atomic's result into its buffer.
    fn store(&self, tools: &Tools<'_>, slot: u32, original: u64) -> bool {
        let outgoing = self.buffers.sends.get(slot);
        let bytes = original.to_ne_bytes();
        outgoing.is_some_and(|outgoing| self.buffers.store(tools.registry, outgoing, &bytes))
    }

    /// The end of a send work request.
    fn finish(&mut self, id: u64, slot: u32, mut status: WcStatus, len: u32, signalled: bool) {
        let Some(outgoing) = self.buffers.sends.remove(slot) else {
            return;
        };
        let mut vendor_err = 0;
        if !self.unsent.is_empty()
            && let Some(unsent) = self.take_unsent(slot)
            && status != WcStatus::WrFlushErr
        {
            (status, vendor_err) = match unsent {
                Unsent::Memory => (WcStatus::LocProtErr, 0),
                Unsent::Host(errno) => (WcStatus::GeneralErr, errno.cast_unsigned()),
            };
        }
        if outgoing.silent {
            // Requests to a peer end in their order: the next one to it reports.
            if !matches!(status, WcStatus::Success | WcStatus::WrFlushErr) {
                self.blames.push((outgoing.peer, status, vendor_err));
            }
            return;
        }
        let blamed = |blame: &(Option<Peer>, WcStatus, u32)| blame.0 == outgoing.peer;
        if let Some(at) = self.blames.iter().position(blamed) {
            (_, status, vendor_err) = self.blames.swap_remove(at);
        }
        if status == WcStatus::Success && !signalled {
            self.unreported += 1;
            return;
        }
        self.report_send(id, (status, vendor_err), outgoing.opcode, len);
    }

    /// Why a datagram of a request did not leave.
    fn take_unsent(&mut self, slot: u32) -> Option<Unsent> {
        let found = self.unsent.iter().find(|(unsent, _)| *unsent == slot);
        let found = found.map(|(_, why)| *why);
        self.unsent.retain(|(unsent, _)| *unsent != slot);
        found
    }

    fn note_record(&mut self, record: WriteRecord) {
        let (valid, source, imm) = (record.valid, record.source, record.imm);
        let wr_id = self.records.keep(record);
        if !self.shape.recv_cq.has_half_free(self.received.len() + 1) {
            self.unannounced += 1;
            return;
        }
        let mut pushed = self.completion(wr_id, WcStatus::Success, WcOpcode::RecvWriteRecord, None);
        pushed.wc.byte_len = valid;
        pushed.wc.src = Some(source);
        pushed.wc.data = imm.map_or(WcData::None, WcData::Imm);
        self.received.push(pushed);
    }

    fn completion(
        &self,
        wr_id: u64,
        status: WcStatus,
        opcode: WcOpcode,
        held: Option<Held>,
    ) -> Pushed {
        Pushed {
            wc: WorkCompletion::new(wr_id, status, opcode, self.shape.view.qp_num),
            held,
        }
    }

    /// The end of a receive work request.
    fn receipt(&self, wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Pushed {
        self.completion(wr_id, status, opcode, Some(self.receives.held(1)))
    }

    /// Reports the end of a send work request: its status and the provider's number for it.
    fn report_send(&mut self, wr_id: u64, status: (WcStatus, u32), opcode: WcOpcode, len: u32) {
        let places = 1 + std::mem::take(&mut self.unreported);
        let held = Some(self.sends.held(places));
        let mut pushed = self.completion(wr_id, status.0, opcode, held);
        (pushed.wc.vendor_err, pushed.wc.byte_len) = (status.1, len);
        self.sent.push(pushed);
    }

    /// Moves completions to their queues; those of sends when the kernel has the datagrams. Where
    /// they do not fit, the queue pair ends: nothing may look complete that is not.
    fn push(&mut self, tools: &mut Tools<'_>) {
        if self.shape.view.state() == QpState::Err {
            while let Some(wr_id) = self.buffers.take_own() {
                let pushed = self.receipt(wr_id, WcStatus::WrFlushErr, WcOpcode::Recv);
                self.received.push(pushed);
            }
        }
        let stuck = self.link.as_ref().is_some_and(|link| link.stuck.is_some());
        let mut fit = true;
        if !self.sent.is_empty() && !stuck {
            fit &= self.shape.send_cq.push(&mut self.sent);
        }
        if !self.received.is_empty() {
            fit &= self.shape.recv_cq.push(&mut self.received);
        }
        if !fit && self.link.is_some() {
            self.shape.view.note_overflow();
            self.end(tools);
            self.sent.clear();
            self.received.clear();
        }
    }

    // ---- records and counts

    pub(in crate::rnic) fn take_record(&mut self, wr_id: u64) -> Option<WriteRecord> {
        self.records.take(wr_id)
    }

    pub(in crate::rnic) fn records(&mut self, rkey: u32) -> Vec<WriteRecord> {
        let mut open = Vec::new();
        if let Some(link) = &mut self.link
            && let Core::Ud(core) = &mut link.core
        {
            while let Some(record) = core.take_record() {
                self.records.keep(work::record(&record));
            }
            let records = core.records().filter(|record| record.stag.0 == rkey);
            open.extend(records.map(|record| work::record(&record)));
        }
        let closed = self.records.of(rkey).cloned();
        closed.chain(open).collect()
    }

    pub(in crate::rnic) fn statistics(&self) -> DatagramStatistics {
        let Some(link) = &self.link else {
            return DatagramStatistics::default();
        };
        let mut statistics = link.core.statistics();
        statistics.received = link.received;
        statistics.bad_checksum += link.bad_checksum;
        statistics.malformed += link.malformed;
        statistics.evicted += self.unannounced;
        let drops = link.socket.receive_buffer_drops().unwrap_or(0);
        statistics.kernel_drops = drops.into();
        statistics.undelivered = link.undelivered;
        if let Some(sealing) = &link.sealing {
            statistics.unsealed = sealing.refused.unsealed;
            statistics.forged = sealing.refused.forged;
            statistics.replayed = sealing.refused.replayed;
        }
        statistics
    }
}

fn post_error(error: haul_iwarp::PostError) -> Error {
    match error {
        haul_iwarp::PostError::Full => Error::Full("queue"),
        haul_iwarp::PostError::TooLong { len, limit } => Error::Limit {
            field: "the length of the message",
            value: len.into(),
            limit: limit.into(),
        },
        haul_iwarp::PostError::NotOpen => Error::State(QpState::Err),
        _ => Error::Unsupported("this operation with this peer"),
    }
}
