//! A queue pair inside its shard: turns work requests into the core's, and the core's events into
//! completions.

use std::collections::VecDeque;
use std::sync::Arc;

use haul_io::poller::Poller;
use haul_io::stream::Stream;
use haul_iwarp::{
    Completion, CompletionKind, Event, Operation, Params, QpConfig, Stag, Status, Time,
};
use haul_slab::Registry;
use haul_verbs::cm::{CmEvent, Established};
use haul_verbs::{
    Blame, Data, Error, Failure, PostError, QpCapacity, QpState, RecvWr, Result, SendFlags, SendOp,
    SendWr, WcData, WcOpcode, WcStatus, WorkCompletion,
};

use super::buffers::{Buffers, Outgoing, OutgoingData};
use super::events::CmEvents;
use super::link::{Env, RnicLink, Scratch, UdtTransport, Watched};
use super::operation::{Carrier, Operations, READ_PIECES, STEPS, check_atomic, operations};
use super::places::Places;
use super::queue::Pushed;
use super::shape::{NOT_SHARED, Shape, check_data, lower_half, refused};

/// See the module.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) shape: Shape,
    pub(super) buffers: Buffers,
    pub(super) link: ConnectionState,
    /// Where events of the connection go.
    pub(super) events: Option<Arc<CmEvents>>,
    /// Receives that were posted before there was a core to take them.
    early: VecDeque<haul_iwarp::RecvWr>,
    pub(super) sends: Arc<Places>,
    /// Those of its own receive queue, or of the shared one.
    receives: Arc<Places>,
    /// Send work requests that are complete, but have no completion: the next one frees their
    /// places as well.
    unreported: u32,
    /// Work requests that were admitted and that the connection did not take: they are reported
    /// after those that it has taken.
    refused: Vec<(u64, WcStatus, WcOpcode)>,
    established: bool,
    /// The application has been told that the connection is over.
    disconnected: bool,
    /// A request that no completion is reported for has failed like this; the next one reported
    /// bears it.
    blame: Option<WcStatus>,
    /// The application has let go of it: it ends in order, or at this moment.
    pub(super) orphaned: Option<Time>,
    /// What is about to be pushed; empty between calls.
    sent: Vec<Pushed>,
    received: Vec<Pushed>,
    /// Events for the application, for when it can see the completions before it; empty
    /// between calls.
    news: Vec<CmEvent>,
}

/// The connection of a queue pair.
#[derive(Debug)]
pub(super) enum ConnectionState {
    None,
    /// The socket is being connected.
    Connecting(Box<Attempt>),
    Up(Box<dyn RnicLink>),
    /// The protocol above has ended; the transport still delivers its last bytes.
    Closing(Box<dyn RnicLink>),
    Over,
}

/// A connection that is wanted.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) socket: Opening,
    pub(super) private: Vec<u8>,
    pub(super) qp: QpConfig,
    pub(super) deadline: Time,
}

/// What is being connected.
#[derive(Debug)]
pub(super) enum Opening {
    Tcp(Stream),
    Udt(Box<UdtTransport>),
}

impl Opening {
    /// Stops watching: `setup_poller` watches TCP's attempts, `poller` UDT's.
    pub(super) fn unregister(&self, poller: &Poller, setup_poller: &Poller) {
        match self {
            Self::Tcp(socket) => {
                // It fails only for a socket that is not watched.
                let _ = setup_poller.remove(socket);
            }
            Self::Udt(transport) => transport.unregister(poller),
        }
    }
}

impl Pair {
    pub(super) fn new(shape: Shape, buffers: Buffers) -> Self {
        Self {
            sends: Places::new(shape.capacity.max_send_wr),
            receives: buffers.receive_places(&shape.capacity),
            unreported: 0,
            refused: Vec::new(),
            shape,
            buffers,
            link: ConnectionState::None,
            events: None,
            early: VecDeque::new(),
            established: false,
            disconnected: false,
            blame: None,
            orphaned: None,
            sent: Vec::new(),
            received: Vec::new(),
            news: Vec::new(),
        }
    }

    /// Numbers for the buffers of send work requests of this capacity.
    pub(super) fn send_slots(capacity: &QpCapacity) -> u32 {
        capacity.max_send_wr * STEPS
    }

    /// What the core is to know of this queue pair.
    pub(super) fn qp_config(&self, ird: u16, ord: u16) -> QpConfig {
        let capacity = &self.shape.capacity;
        let mut config = QpConfig::default();
        config.pd = haul_iwarp::Pd(self.buffers.pd);
        config.qp = haul_iwarp::QpNum(self.shape.view.qp_num);
        config.send_depth = Self::send_slots(capacity);
        config.recv_depth = capacity.max_recv_wr;
        config.shared_receive = self.buffers.srq.is_some();
        (config.ird, config.ord) = (ird, ord);
        config
    }

    /// Takes over a connection; receives that were posted early go with it, before anything may
    /// arrive for them.
    pub(super) fn attach(&mut self, link: Box<dyn RnicLink>) {
        self.attach_for(link, |_| Ok(()));
    }

    /// The same; what `answer` cannot do ends the connection.
    pub(super) fn attach_for(
        &mut self,
        mut link: Box<dyn RnicLink>,
        answer: impl FnOnce(&mut dyn RnicLink) -> Result<(), haul_iwarp::PostError>,
    ) {
        for wr in self.early.drain(..) {
            // The core has as much room as this queue pair.
            let _ = link.core_mut().post_receive(wr);
        }
        self.early = VecDeque::new();
        if let Some(limit) = self.shape.rate_limit {
            link.limit_rate(limit);
        }
        // If the peer has gone meanwhile, the core reports it.
        let _ = answer(&mut *link);
        self.link = ConnectionState::Up(link);
    }

    // ---- posting

    pub(super) fn post_send(&mut self, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        for (posted, wr) in requests.iter().enumerate() {
            self.post_one(wr)
                .map_err(|error| PostError::new(posted, error))?;
        }
        Ok(())
    }

    fn post_one(&mut self, wr: &SendWr<'_>) -> Result<()> {
        let steps = admit(&self.shape, &self.sends, wr)?;
        let posted = self.post_steps(wr, steps);
        posted.inspect_err(|_| self.sends.free(1))
    }

    /// Posts a work request that was admitted without the shard's lock; one that the connection
    /// does not take any more ends with a completion.
    pub(super) fn post_admitted(&mut self, wr: &SendWr<'_>) {
        let steps = steps(&self.shape, wr);
        if let Err(error) = steps.and_then(|steps| self.post_steps(wr, steps)) {
            let end = (wr.wr_id, refused(&error), wr.op.completes_as());
            self.refused.push(end);
        }
    }

    /// Without steps the queue pair is in error.
    fn post_steps(&mut self, wr: &SendWr<'_>, steps: Option<Operations>) -> Result<()> {
        let Some(steps) = steps else {
            self.report_send(wr.wr_id, WcStatus::WrFlushErr, wr.op.completes_as(), 0);
            return Ok(());
        };
        let signalled = self.shape.signal_all || wr.flags.contains(SendFlags::SIGNALED);
        for (number, op) in steps.iter().enumerate() {
            let silent = number + 1 < steps.len();
            self.post_step(wr, number == 0, *op, silent, signalled)?;
        }
        Ok(())
    }

    fn params(&self) -> Option<Params> {
        match &self.link {
            ConnectionState::Up(link) => link.core().params(),
            _ => None,
        }
    }

    fn post_step(
        &mut self,
        wr: &SendWr<'_>,
        with_data: bool,
        op: Operation,
        silent: bool,
        signalled: bool,
    ) -> Result<()> {
        let data = match wr.data {
            Data::Sges(list) if with_data => OutgoingData::Sges(list),
            Data::Inline(bytes) if with_data => OutgoingData::Inline(bytes.len()),
            _ => OutgoingData::Inline(0),
        };
        let len = if with_data { wr.data.total_len() } else { 0 };
        let outgoing = Outgoing {
            data,
            opcode: wr.op.completes_as(),
            silent,
            peer: None,
        };
        let slot = self.buffers.sends.insert(outgoing);
        let slot = slot.map_err(|_| Error::Full("send queue"))?;
        if let (true, Data::Inline(bytes)) = (with_data, wr.data) {
            self.buffers.keep_inline(slot, bytes);
        }
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let mut request = haul_iwarp::SendWr::new(wr.wr_id, slot, op, len);
        request.signalled = signalled;
        request.fence = with_data && wr.flags.contains(SendFlags::FENCE);
        request.continues = !with_data;
        let ConnectionState::Up(link) = &mut self.link else {
            self.buffers.sends.remove(slot);
            return Err(Error::State(self.shape.view.state()));
        };
        let posted = link.core_mut().post_send(request);
        posted.map_err(|error| {
            self.buffers.sends.remove(slot);
            match error {
                haul_iwarp::PostError::Full => Error::Full("send queue"),
                haul_iwarp::PostError::NotOpen => Error::State(QpState::Sqd),
                haul_iwarp::PostError::NoReads => NO_READS,
                _ => Error::Unsupported("this operation with this peer"),
            }
        })
    }

    fn report_send(&mut self, wr_id: u64, status: WcStatus, opcode: WcOpcode, byte_len: u32) {
        let places = 1 + std::mem::take(&mut self.unreported);
        let mut wc = WorkCompletion::new(wr_id, status, opcode, self.shape.view.qp_num);
        wc.byte_len = byte_len;
        self.sent.push(Pushed {
            wc,
            held: Some(self.sends.held(places)),
        });
    }

    pub(super) fn post_recv(&mut self, requests: &[RecvWr]) -> Result<(), PostError> {
        for (posted, wr) in requests.iter().enumerate() {
            self.receive_one(wr)
                .map_err(|error| PostError::new(posted, error))?;
        }
        Ok(())
    }

    fn receive_one(&mut self, wr: &RecvWr) -> Result<()> {
        if self.buffers.srq.is_some() {
            return Err(NOT_SHARED);
        }
        let len = self.shape.check_receive(wr)?;
        if self.receives.are_taken() {
            return Err(Error::Full("receive queue"));
        }
        if self.shape.view.state() == QpState::Err {
            self.receives.take();
            let pushed = self.receive_completion(wr.wr_id, WcStatus::WrFlushErr);
            self.received.push(pushed);
            return Ok(());
        }
        let slot = self.buffers.receives.insert(wr.sges);
        let slot = slot.map_err(|_| Error::Full("receive queue"))?;
        let request = haul_iwarp::RecvWr::new(wr.wr_id, slot, len);
        if let ConnectionState::Up(link) = &mut self.link {
            link.core_mut().post_receive(request).map_err(|error| {
                self.buffers.receives.remove(slot);
                match error {
                    haul_iwarp::PostError::Full => Error::Full("receive queue"),
                    _ => Error::State(QpState::Sqd),
                }
            })?;
        } else {
            self.early.push_back(request);
        }
        self.receives.take();
        Ok(())
    }

    // ---- events of the core

    /// Receives, sends, and reports; whether anything moved.
    pub(super) fn turn(&mut self, tools: &mut Tools<'_>) -> bool {
        let moved = self.work(tools, |link, env| link.turn(env));
        self.settle(tools);
        moved
    }

    /// Sends, and reports.
    pub(super) fn transmit(&mut self, tools: &mut Tools<'_>) -> bool {
        let moved = self.work(tools, |link, env| link.transmit(env));
        self.settle(tools);
        moved
    }

    /// What was reported may have led to more that is to be sent.
    fn settle(&mut self, tools: &mut Tools<'_>) {
        self.report(tools);
        if self.has_more() {
            self.work(tools, |link, env| link.transmit(env));
            self.report(tools);
        }
    }

    /// There is more to send than there was time for.
    pub(super) fn has_more(&self) -> bool {
        matches!(&self.link, ConnectionState::Up(link) if link.has_more())
    }

    /// Its socket, while arrivals there are all that it waits for.
    pub(super) fn watched(&self) -> Option<&Arc<Watched>> {
        match &self.link {
            ConnectionState::Up(link) => link.watched(),
            _ => None,
        }
    }

    /// When packets want to leave, or to be asked for.
    pub(super) fn due(&self, now: Time) -> Option<Time> {
        match &self.link {
            ConnectionState::Connecting(attempt) => match &attempt.socket {
                Opening::Tcp(_) => None,
                Opening::Udt(transport) => transport.due(now),
            },
            ConnectionState::Up(link) => link.due(now),
            ConnectionState::Closing(link) => link.due(now),
            ConnectionState::None | ConnectionState::Over => None,
        }
    }

    /// Whether [`Pair::due`] may return a time.
    pub(super) fn is_clocked(&self) -> bool {
        match &self.link {
            ConnectionState::Connecting(attempt) => matches!(attempt.socket, Opening::Udt(_)),
            ConnectionState::Up(link) => link.is_clocked(),
            ConnectionState::Closing(_) => true,
            ConnectionState::None | ConnectionState::Over => false,
        }
    }

    fn work(
        &mut self,
        tools: &mut Tools<'_>,
        step: impl FnOnce(&mut dyn RnicLink, &mut Env<'_>) -> bool,
    ) -> bool {
        let mut env = Env {
            now: tools.now,
            registry: tools.registry,
            buffers: &mut self.buffers,
            scratch: tools.scratch,
            poller: tools.poller,
        };
        match &mut self.link {
            ConnectionState::Up(link) => step(&mut **link, &mut env),
            ConnectionState::Closing(link) => {
                let moved = link.turn(&mut env);
                if link.is_closed() {
                    link.unregister(tools.poller);
                    self.link = ConnectionState::Over;
                }
                moved
            }
            _ => false,
        }
    }

    /// Passes on the core's events and completions.
    pub(super) fn report(&mut self, tools: &Tools<'_>) {
        let (mut over, mut failed) = (false, false);
        while let ConnectionState::Up(link) = &mut self.link
            && let Some(event) = link.core_mut().poll_event()
        {
            match event {
                Event::Request => {}
                Event::Established => self.note_established(),
                Event::Completion(completion) => self.complete(tools.registry, &completion),
                Event::Error(error) => {
                    self.shape.view.set_state(QpState::Err);
                    let failure = protection_failure(&**link).unwrap_or_else(|| failure(error));
                    self.shape.view.set_failure(failure);
                    failed = true;
                }
                Event::ShutdownSend => link.end(),
                Event::Disconnect => over = true,
            }
        }
        if over {
            self.end(tools);
        }
        // Everything is flushed. The last messages to the peer have no time limit here.
        if failed && self.established {
            self.tell_disconnected();
        }
        self.push(tools);
    }

    fn tell_disconnected(&mut self) {
        if !std::mem::replace(&mut self.disconnected, true) {
            let failure = self.shape.view.failure();
            self.tell(|qp_num| CmEvent::Disconnected { qp_num, failure });
        }
    }

    fn note_established(&mut self) {
        self.established = true;
        if let Some(params) = self.params() {
            // A connection is established once.
            let _ = self.shape.view.params.set(params);
        }
        self.shape.view.set_state(QpState::Rts);
        let ConnectionState::Up(link) = &self.link else {
            return;
        };
        let params = link.core().params();
        let mut established = Established::default();
        established.private_data = link.core().private_data().to_vec();
        established.responder_resources = params.map_or(0, |params| params.ird);
        established.initiator_depth = params.map_or(0, |params| params.ord);
        self.tell(|qp_num| CmEvent::Established {
            qp_num,
            established,
        });
    }

    fn tell(&mut self, event: impl FnOnce(u32) -> CmEvent) {
        self.news.push(event(self.shape.view.qp_num));
    }

    /// Reports the end of the connection, and its reason, to the application.
    fn end(&mut self, tools: &Tools<'_>) {
        let ConnectionState::Up(link) = std::mem::replace(&mut self.link, ConnectionState::Over)
        else {
            return;
        };
        self.shape.view.set_state(QpState::Err);
        let private_data = link.core().private_data().to_vec();
        let error = link.core().error();
        if self.established {
            self.tell_disconnected();
        } else if error == Some(haul_iwarp::Error::Rejected) {
            self.tell(|qp_num| CmEvent::Rejected {
                qp_num,
                private_data,
            });
        } else {
            let failure = protection_failure(&*link).or_else(|| error.map(failure));
            self.unreachable(failure);
        }
        if let Some(link) = link.close(tools.now, tools.poller) {
            self.link = ConnectionState::Closing(link);
        }
    }

    /// The connection never was: whatever is posted is flushed.
    pub(super) fn unreachable(&mut self, why: Option<Failure>) {
        let failure = why.unwrap_or_else(|| Failure::new(Blame::Network, "the peer closed"));
        self.link = ConnectionState::Over;
        self.shape.view.set_failure(failure.clone());
        self.shape.view.set_state(QpState::Err);
        for wr in std::mem::take(&mut self.early) {
            let pushed = self.receive_completion(wr.id, WcStatus::WrFlushErr);
            self.received.push(pushed);
        }
        self.tell(|qp_num| CmEvent::Unreachable { qp_num, failure });
    }

    fn complete(&mut self, registry: &Registry, completion: &Completion) {
        let status = match completion.status {
            Status::Success => WcStatus::Success,
            Status::Flushed => WcStatus::WrFlushErr,
            Status::RemoteAccess => WcStatus::RemAccessErr,
            Status::RemoteOperation => WcStatus::RemOpErr,
            Status::LocalProtection => WcStatus::LocProtErr,
        };
        let (solicited, data, opcode) = match completion.kind {
            CompletionKind::Receive {
                solicited,
                invalidated,
            } => {
                let data = invalidated.map(|stag| WcData::InvalidatedRkey(stag.0));
                (solicited, data.unwrap_or_default(), WcOpcode::Recv)
            }
            CompletionKind::ReceiveSendImmediate { data, solicited } => {
                (solicited, WcData::Imm(data), WcOpcode::Recv)
            }
            CompletionKind::ReceiveImmediate { data, solicited } => {
                let imm = WcData::Imm(lower_half(data));
                (solicited, imm, WcOpcode::RecvRdmaWithImm)
            }
            _ => return self.complete_send(registry, completion, status),
        };
        self.buffers.receives.remove(completion.slot);
        let mut pushed = self.receive_completion(completion.id, status);
        pushed.wc.solicited = solicited;
        (pushed.wc.data, pushed.wc.opcode) = (data, opcode);
        pushed.wc.byte_len = match completion.kind {
            // Other peers may have anything there.
            CompletionKind::ReceiveImmediate { data, .. } => {
                let is_told = self.params().is_some_and(|params| params.extended);
                if is_told { lower_half(data >> 32) } else { 0 }
            }
            _ => completion.len,
        };
        self.received.push(pushed);
    }

    fn complete_send(&mut self, registry: &Registry, completion: &Completion, status: WcStatus) {
        let Some(outgoing) = self.buffers.sends.remove(completion.slot) else {
            return;
        };
        let mut status = status;
        if outgoing.silent {
            if status != WcStatus::Success && status != WcStatus::WrFlushErr {
                self.blame = Some(status);
            }
            return;
        }
        if let CompletionKind::Atomic { original } = completion.kind
            && status == WcStatus::Success
            && !self
                .buffers
                .store(registry, &outgoing, &original.to_ne_bytes())
        {
            status = WcStatus::LocProtErr;
        }
        if status != WcStatus::Success {
            status = self.blame.take().unwrap_or(status);
        }
        if completion.signalled || status != WcStatus::Success {
            self.report_send(completion.id, status, outgoing.opcode, completion.len);
        } else {
            self.unreported += 1;
        }
    }

    fn receive_completion(&self, wr_id: u64, status: WcStatus) -> Pushed {
        Pushed {
            wc: WorkCompletion::new(wr_id, status, WcOpcode::Recv, self.shape.view.qp_num),
            held: Some(self.receives.held(1)),
        }
    }

    /// Moves completions to their queues, then events to their channel. Where completions do not
    /// fit, the queue pair ends: nothing may look complete that is not.
    pub(super) fn push(&mut self, tools: &Tools<'_>) {
        let is_over = self.shape.view.state() == QpState::Err;
        if is_over {
            while let Some(wr_id) = self.buffers.take_own() {
                let pushed = self.receive_completion(wr_id, WcStatus::WrFlushErr);
                self.received.push(pushed);
            }
        }
        if is_over || self.buffers.sends.len() == 0 {
            for (wr_id, status, opcode) in std::mem::take(&mut self.refused) {
                self.report_send(wr_id, status, opcode, 0);
            }
        }
        self.push_completions(tools);
        for event in self.news.drain(..) {
            if let (Some(events), None) = (&self.events, self.orphaned) {
                events.push(event);
            }
        }
    }

    fn push_completions(&mut self, tools: &Tools<'_>) {
        if self.sent.is_empty() && self.received.is_empty() {
            return;
        }
        let fit = self.orphaned.is_some()
            || self.shape.send_cq.push(&mut self.sent)
                & self.shape.recv_cq.push(&mut self.received);
        self.sent.clear();
        self.received.clear();
        if !fit && let ConnectionState::Up(link) = &mut self.link {
            self.shape.view.note_overflow();
            link.core_mut().abort(tools.now);
            self.report(tools);
        }
    }

    /// Whether nothing is left to do for a queue pair that nobody holds.
    pub(super) fn is_finished(&self, now: Time) -> bool {
        let over = match &self.link {
            ConnectionState::Up(_) => false,
            // It would only tell the peer once more.
            ConnectionState::Closing(link) => link.is_closed(),
            _ => true,
        };
        self.orphaned.is_some_and(|until| over || now >= until)
    }
}

/// Checks a work request and takes its place among `sends`, for a caller that holds the lock of the
/// send queue. Returns the core's requests; none if the queue pair is in error.
pub(super) fn admit(shape: &Shape, sends: &Places, wr: &SendWr<'_>) -> Result<Option<Operations>> {
    check(&shape.capacity, wr)?;
    let state = shape.view.state();
    if !matches!(state, QpState::Rts | QpState::Err) {
        return Err(Error::State(state));
    }
    if sends.are_taken() {
        return Err(Error::Full("send queue"));
    }
    let steps = steps(shape, wr)?;
    sends.take();
    Ok(steps)
}

/// Checks what does not depend on the state of the queue pair or on its peer.
pub(super) fn check(capacity: &QpCapacity, wr: &SendWr<'_>) -> Result<()> {
    check_data(capacity, wr)?;
    match (wr.op, &wr.data) {
        (op, Data::Inline(_)) if op.is_read_or_atomic() => {
            Err(Error::Invalid("a Read or atomic has inline data"))
        }
        (SendOp::RdmaRead(_), Data::Sges(list)) if list.as_slice().len() > 1 => Err(READ_PIECES),
        (SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }, data) => check_atomic(data),
        (SendOp::LocalInv(_), data) => {
            Error::at_most("the length of a LocalInv's data", data.total_len(), 0)
        }
        _ => Ok(()),
    }
}

/// The core's requests for a work request: the first has its payload, the last reports. None if the
/// queue pair is in error.
fn steps(shape: &Shape, wr: &SendWr<'_>) -> Result<Option<Operations>> {
    if shape.view.state() == QpState::Err {
        return Ok(None);
    }
    let params = shape.view.params.get().copied();
    let mut steps = operations(wr, Carrier::Connection(params))?;
    let signalled = shape.signal_all || wr.flags.contains(SendFlags::SIGNALED);
    let moves_data = !wr.op.is_read_or_atomic() && !matches!(wr.op, SendOp::LocalInv(_));
    if shape.remote_placement && signalled && moves_data {
        steps.push(PROOF);
    }
    if let Some(params) = params {
        check_steps(&steps, params)?;
    }
    Ok(Some(steps))
}

/// Whether the connection has what the requests need.
fn check_steps(steps: &Operations, params: Params) -> Result<()> {
    for op in steps {
        use Operation::{Atomic, Immediate, Read};
        match op {
            Atomic { .. } if !params.features.atomics => {
                return Err(Error::Unsupported("an atomic with this peer"));
            }
            Immediate { .. } if !params.features.immediate => {
                return Err(Error::Unsupported("immediate data with this peer"));
            }
            Atomic { .. } | Read { .. } if params.ord == 0 => {
                return Err(NO_READS);
            }
            _ => {}
        }
    }
    Ok(())
}

/// What a queue pair works with: its shard's.
pub(super) struct Tools<'a> {
    pub(super) now: Time,
    pub(super) registry: &'a Registry,
    pub(super) scratch: &'a mut Scratch,
    pub(super) poller: &'a Poller,
}

const NO_READS: Error =
    Error::Invalid("initiator_depth of the connection is 0: it was made without Reads and atomics");

/// The zero-length read whose response proves that all before it is placed (RFC 5040 §5.5
/// rule 12).
const PROOF: Operation = Operation::Read {
    sink: Stag(0),
    sink_to: 0,
    source: Stag(0),
    source_to: 0,
};

/// Why a connection failed that is protected.
fn protection_failure(link: &dyn RnicLink) -> Option<Failure> {
    link.failure()
        .map(|reason| Failure::new(Blame::Peer, reason))
}

/// Who is to blame for the end of a connection.
pub(super) fn failure(error: haul_iwarp::Error) -> Failure {
    use haul_iwarp::Error as E;
    let blame = match error {
        E::Startup(_) | E::PeerIncompatible(_) | E::Rejected | E::PeerMisbehaved(_) => Blame::Peer,
        E::Terminated(_) => Blame::PeerComplains,
        E::LocalMemory(_) | E::Aborted => Blame::Local,
        E::Lost | E::TimedOut => Blame::Network,
    };
    Failure::new(blame, error.to_string())
}
