//! One end: device, memory, queue pairs, and how they are connected, polled and reported.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use haul::fault::{Code, Fault};
use haul_verbs::cm::{CmEvent, ConnParam, EventChannel, Listener};
use haul_verbs::{
    AccessFlags, Blame, CompletionChannel, Context, Cq, DatagramInit, Device, DeviceAttributes,
    DeviceCaps, Endpoint, Mr, Notify, Pd, Peer, Qp, QpCapacity, QpInit, QpType, RateLimit, RecvWr,
    SendWr, Sge, Transport, WcStatus, WorkCompletion,
};

use crate::control::{Control, Place};
use crate::error::{range, verb};
use crate::memory;
use crate::pattern::{self, Stamp, place};
use crate::plan::{Connect, Layout, Op, Plan, Service, Waiting};
use crate::report::DeviceInfo;
use crate::tag::{Kind, Tag};

/// Most concurrent connection attempts.
const CONNECTING_MAX: usize = 64;
/// Timeout for them without any success.
const CONNECT_TIME: Duration = Duration::from_secs(20);
/// Write-Records of a queue pair that may be announced and not polled yet: they have no flow
/// control.
const RECORDS: u32 = 16_384;
/// The polling interval while waiting.
const TICK: Duration = Duration::from_millis(20);

/// The objects opened for a bench.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) plan: Plan,
    pub(crate) layout: Layout,
    pub(crate) info: DeviceInfo,
    pub(crate) transport: Transport,
    pub(crate) mr: Mr,
    pub(crate) qps: Vec<Qp>,
    /// Where each queue pair of a datagram service is bound.
    bound: Vec<SocketAddr>,
    /// The peer of each queue pair of a datagram service.
    peers: Vec<Peer>,
    pub(crate) cq: Cq,
    /// Memory before there was any queue.
    pub(crate) before: memory::Reading,
    completions: Option<CompletionChannel>,
    events: EventChannel,
    pd: Pd,
    context: Context,
}

impl End {
    /// Opens the device and registers memory; without queue pairs yet.
    pub(crate) fn open(device: &Device, plan: &Plan) -> Result<Self, Fault> {
        let attributes = device.attributes().map_err(verb)?;
        check_limits(plan, &attributes)?;
        let context = device.open().map_err(verb)?;
        let pd = context.alloc_pd().map_err(verb)?;
        let layout = plan.layout()?;
        let len = usize::try_from(layout.len()).unwrap_or(usize::MAX);
        let region = pd.map(len).map_err(verb)?;
        let access =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let mr = pd.reg_mr(&region, access).map_err(verb)?;
        // Faults pages in now and not during the measurement.
        region.fill(0, len, 0).map_err(range)?;
        let before = memory::read();
        let completions = match plan.waiting {
            Waiting::Events => Some(context.create_completion_channel().map_err(verb)?),
            Waiting::Adaptive | Waiting::Poll => None,
        };
        let announced = if plan.op == Op::WriteRecord {
            RECORDS
        } else {
            0
        };
        let entries = plan.qps * (plan.send_queue() + plan.receive_queue() + announced);
        let cq = context
            .create_cq(entries.min(attributes.max_cqe), completions.as_ref(), 0)
            .map_err(verb)?;
        let events = context.create_event_channel().map_err(verb)?;
        Ok(Self {
            plan: plan.clone(),
            layout,
            info: device_info(device, attributes.transport),
            transport: attributes.transport,
            mr,
            qps: Vec::new(),
            bound: Vec::new(),
            peers: Vec::new(),
            cq,
            before,
            completions,
            events,
            pd,
            context,
        })
    }

    /// Makes the queue pairs and posts their receives.
    pub(crate) fn create_qps(&mut self) -> Result<(), Fault> {
        let mut capacity = QpCapacity::default();
        capacity.max_send_wr = self.plan.send_queue();
        capacity.max_recv_wr = self.plan.receive_queue();
        capacity.max_inline = self.plan.inline;
        let (service, max_rate) = (self.plan.service, self.plan.max_rate);
        for index in 0..u64::from(self.plan.qps) {
            let mut init = QpInit::new(&self.cq);
            init.capacity = capacity;
            init.remote_placement = self.plan.remote_placement;
            init.qp_type = match service {
                Service::Rc => QpType::Rc,
                Service::Ud => QpType::Ud,
                Service::Rd => QpType::Rd,
            };
            init.rate_limit = max_rate
                .filter(|_| service == Service::Rc)
                .map(|bytes| RateLimit::new(bytes.saturating_mul(8)));
            init.datagram = {
                let mut datagram = DatagramInit::default();
                datagram.path_mtu = self.plan.path_mtu.unwrap_or(0);
                datagram.max_rate = max_rate.filter(|_| service == Service::Ud);
                datagram
            };
            let qp = self.pd.create_qp(&init).map_err(verb)?;
            for slot in 0..u64::from(self.plan.receive_queue()) {
                self.post_recv(&qp, index, slot)?;
            }
            self.qps.push(qp);
        }
        Ok(())
    }

    /// Begins the datagram service of each queue pair at this address, from this port on; at any
    /// where it is zero.
    pub(crate) fn bind_all(&mut self, ip: IpAddr, port: u16) -> Result<(), Fault> {
        for (qp, index) in self.qps.iter().zip(0_u16..) {
            let port = match port {
                0 => 0,
                port => port.checked_add(index).ok_or_else(|| {
                    Fault::new(
                        Code::Usage,
                        "there are not so many ports behind --data-port",
                    )
                })?,
            };
            let address = SocketAddr::new(ip, port);
            let bound = qp.bind(address);
            self.bound
                .push(bound.map_err(|error| cannot_listen(address, error))?);
        }
        Ok(())
    }

    /// Records the peers of the queue pairs: those of the other end, at the address of the control
    /// connection.
    pub(crate) fn meet_peers(&mut self, peer: &Place, address: IpAddr) -> Result<(), Fault> {
        if peer.bound.len() != self.qps.len() {
            return Err(Fault::protocol("the peer has described other queue pairs"));
        }
        let peers = peer.bound.iter();
        self.peers = peers
            .map(|(port, qp_num)| Peer::new(SocketAddr::new(address, *port), *qp_num))
            .collect();
        Ok(())
    }

    /// A work request of a queue pair, addressed where that takes an address.
    pub(crate) fn to<'a>(&self, index: usize, request: SendWr<'a>) -> SendWr<'a> {
        match self.peers.get(index) {
            Some(peer) => request.to(*peer),
            None => request,
        }
    }

    /// Prevents data of an earlier measurement of messages of `size` bytes from passing as this
    /// one's: clears memory to be written, and fills memory to be sent with the `stamp` of its
    /// queue pair and slot.
    pub(crate) fn prepare(
        &self,
        size: u32,
        stamp: impl Fn(u64, u64) -> Stamp,
    ) -> Result<(), Fault> {
        let (region, len) = (self.mr.region(), size as usize);
        for qp in 0..self.qps.len() as u64 {
            for slot in 0..self.layout.slots {
                let (to, from) = (self.layout.to(qp, slot), self.layout.from(qp, slot));
                region.fill(place(to), len, 0).map_err(range)?;
                pattern::write(region, place(from), len, stamp(qp, slot)).map_err(range)?;
            }
        }
        Ok(())
    }

    /// Posts receive `number` of a queue pair.
    pub(crate) fn post_recv(&self, qp: &Qp, index: u64, number: u64) -> Result<(), Fault> {
        let sge = self
            .mr
            .sge(self.layout.to(index, number), self.plan.size_max());
        let tag = Tag::new(Kind::Recv, index, number);
        qp.post_recv(&[RecvWr::new(tag.into(), sge)])
            .map_err(|error| verb(error.error))
    }

    /// How this end is reached.
    pub(crate) fn place(&self) -> Result<Place, Fault> {
        let endpoints = match self.plan.connect {
            _ if self.plan.service != Service::Rc => Vec::new(),
            Connect::Cm => Vec::new(),
            Connect::Exchange => self
                .qps
                .iter()
                .map(|qp| qp.endpoint().map(Into::into))
                .collect::<haul_verbs::Result<_>>()
                .map_err(verb)?,
        };
        Ok(Place {
            device: self.info.clone(),
            addr: self.mr.addr(),
            rkey: self.mr.rkey(),
            endpoints,
            bound: self
                .bound
                .iter()
                .zip(&self.qps)
                .map(|(address, qp)| (address.port(), qp.qp_num()))
                .collect(),
        })
    }

    /// Listens for the queue pairs of the peer.
    pub(crate) fn listen(&self, address: SocketAddr) -> Result<Listener, Fault> {
        let backlog = self.plan.qps.clamp(16, 1024);
        self.context
            .listen(address, &self.events, backlog)
            .map_err(|error| cannot_listen(address, error))
    }

    /// Accepts a connection for each queue pair; connections without the ticket are refused.
    pub(crate) fn accept_all(&self, control: &Control, ticket: u64) -> Result<(), Fault> {
        let mut up = vec![false; self.qps.len()];
        let mut taken = vec![false; self.qps.len()];
        let mut deadline = Instant::now() + CONNECT_TIME;
        while up.contains(&false) {
            let Some(event) = self.next_event(control, deadline)? else {
                continue;
            };
            deadline = Instant::now() + CONNECT_TIME;
            match event {
                CmEvent::ConnectRequest(request) => {
                    let Some(index) = invited(&request.private_data, ticket)
                        .filter(|index| taken.get(*index) == Some(&false))
                    else {
                        request.reject(&[]).map_err(verb)?;
                        continue;
                    };
                    taken[index] = true;
                    request
                        .accept(&self.qps[index], &self.param(&[]))
                        .map_err(verb)?;
                }
                other => self.mark(other, &mut up)?,
            }
        }
        Ok(())
    }

    /// Connects each queue pair to the listener at `peer`.
    pub(crate) fn connect_all(
        &self,
        control: &Control,
        peer: SocketAddr,
        ticket: u64,
    ) -> Result<(), Fault> {
        let mut up = vec![false; self.qps.len()];
        let (mut begun, mut done) = (0, 0);
        let mut deadline = Instant::now() + CONNECT_TIME;
        while done < self.qps.len() {
            while begun < self.qps.len() && begun - done < CONNECTING_MAX {
                let invitation = invitation(ticket, begun);
                self.qps[begun]
                    .connect(peer, &self.param(&invitation), &self.events)
                    .map_err(verb)?;
                begun += 1;
            }
            if let Some(event) = self.next_event(control, deadline)? {
                self.mark(event, &mut up)?;
                done = up.iter().filter(|up| **up).count();
                deadline = Instant::now() + CONNECT_TIME;
            }
        }
        Ok(())
    }

    /// Connects each queue pair to the one that the peer has described. A peer that listens at any
    /// address does not know its own: the address of the control connection is used.
    pub(crate) fn connect_endpoints(&self, peer: &Place, address: IpAddr) -> Result<(), Fault> {
        if peer.endpoints.len() != self.qps.len() {
            return Err(Fault::protocol("the peer has described other queue pairs"));
        }
        for (qp, endpoint) in self.qps.iter().zip(&peer.endpoints) {
            let mut endpoint = Endpoint::from(*endpoint);
            if endpoint.socket_addr().ip().is_unspecified() {
                endpoint.gid = match address {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                    IpAddr::V6(v6) => v6.octets(),
                };
            }
            qp.connect_endpoint(&endpoint, &self.param(&[]), CONNECT_TIME)
                .map_err(verb)?;
        }
        Ok(())
    }

    /// Takes completions, waiting for the first; none after a moment without any.
    pub(crate) fn wait(&self, out: &mut [WorkCompletion]) -> Result<usize, Fault> {
        match self.plan.waiting {
            Waiting::Adaptive => self.cq.wait(out, Some(TICK)).map_err(verb),
            Waiting::Poll => {
                let end = Instant::now() + TICK;
                loop {
                    let count = self.cq.poll(out).map_err(verb)?;
                    if count > 0 || Instant::now() >= end {
                        return Ok(count);
                    }
                }
            }
            Waiting::Events => self.wait_for_event(out).map_err(verb),
        }
    }

    fn wait_for_event(&self, out: &mut [WorkCompletion]) -> haul_verbs::Result<usize> {
        let count = self.cq.poll(out)?;
        let Some(channel) = &self.completions else {
            return Ok(count);
        };
        if count > 0 {
            return Ok(count);
        }
        self.cq.arm(Notify::Any)?;
        let count = self.cq.poll(out)?;
        if count > 0 {
            return Ok(count);
        }
        channel.wait_event(Some(TICK))?;
        self.cq.poll(out)
    }

    /// A completion that is not a success, as a failure.
    pub(crate) fn check(&self, completion: &WorkCompletion) -> Result<(), Fault> {
        if completion.status == WcStatus::Success {
            return Ok(());
        }
        let tag = Tag::from(completion.wr_id);
        let qp = usize::try_from(tag.qp())
            .ok()
            .and_then(|index| self.qps.get(index));
        let failure = qp.and_then(Qp::failure);
        let code = match failure.as_ref().map(|failure| failure.blame) {
            Some(Blame::Network) => Code::PeerGone,
            Some(Blame::Peer) => Code::Protocol,
            Some(Blame::PeerComplains) => Code::Refused,
            Some(Blame::Local) | None => Code::Other,
        };
        let why = failure.map_or_else(String::new, |failure| format!(": {failure}"));
        Err(Fault::new(
            code,
            format!(
                "queue pair {} failed ({:?}){why}",
                tag.qp(),
                completion.status
            ),
        ))
    }

    fn param<'a>(&self, private_data: &'a [u8]) -> ConnParam<'a> {
        let mut param = ConnParam::default();
        param.private_data = private_data;
        param.responder_resources = self.plan.outs;
        param.initiator_depth = self.plan.outs;
        param
    }

    /// Waits for the next event; checks the control connection meanwhile.
    fn next_event(&self, control: &Control, deadline: Instant) -> Result<Option<CmEvent>, Fault> {
        let event = self.events.wait(Some(TICK)).map_err(verb)?;
        if event.is_none() {
            match control.peek_failure()? {
                Some(fault) => return Err(fault),
                None if Instant::now() > deadline => {
                    return Err(Fault::new(
                        Code::Unreachable,
                        "the queue pairs do not come to be connected",
                    )
                    .hint("does a firewall let the data connections through?"));
                }
                None => {}
            }
        }
        Ok(event)
    }

    /// Notes that a queue pair is connected, or returns why not.
    fn mark(&self, event: CmEvent, up: &mut [bool]) -> Result<(), Fault> {
        match event {
            CmEvent::Established { qp_num, .. } => {
                let index = self.qps.iter().position(|qp| qp.qp_num() == qp_num);
                if let Some(up) = index.and_then(|index| up.get_mut(index)) {
                    *up = true;
                }
                Ok(())
            }
            CmEvent::Rejected { .. } => Err(Fault::new(
                Code::Refused,
                "the peer rejected a queue pair's connection",
            )),
            CmEvent::Unreachable { failure, .. } => {
                Err(Fault::new(Code::Unreachable, failure.to_string()))
            }
            CmEvent::Disconnected { failure, .. } => {
                let why = failure.map_or_else(String::new, |failure| format!(": {failure}"));
                Err(Fault::new(
                    Code::PeerGone,
                    format!("a queue pair was disconnected{why}"),
                ))
            }
            // Requests after all queue pairs have been dealt with are dropped, which rejects them.
            _ => Ok(()),
        }
    }

    /// A piece of this end's memory.
    pub(crate) fn sge(&self, offset: u64, len: u32) -> Sge {
        self.mr.sge(offset, len)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        for qp in &self.qps {
            // An error means that it was not connected, which is fine.
            let _ = qp.disconnect();
        }
    }
}

/// The private data of a connection: the ticket, then the number of the queue pair.
fn invitation(ticket: u64, index: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&ticket.to_be_bytes());
    bytes[8..].copy_from_slice(&(index as u64).to_be_bytes());
    bytes
}

/// The number of the queue pair that may come in. Device transports pad private data with zeros.
fn invited(private_data: &[u8], ticket: u64) -> Option<usize> {
    let (head, rest) = private_data.split_first_chunk::<8>()?;
    let (index, _) = rest.split_first_chunk::<8>()?;
    (u64::from_be_bytes(*head) == ticket)
        .then(|| usize::try_from(u64::from_be_bytes(*index)).ok())
        .flatten()
}

fn device_info(device: &Device, transport: Transport) -> DeviceInfo {
    DeviceInfo {
        provider: device.provider().to_owned(),
        name: device.name().to_owned(),
        transport: match transport {
            Transport::Iwarp => "iwarp",
            Transport::IwarpUdt => "iwarp_udt",
            Transport::IwarpUdp => "iwarp_udp",
            Transport::Roce => "roce",
            Transport::InfiniBand => "infiniband",
            _ => "other",
        }
        .to_owned(),
    }
}

fn check_limits(plan: &Plan, device: &DeviceAttributes) -> Result<(), Fault> {
    let limits = [
        ("queue pairs", plan.qps, device.max_qp),
        (
            "work requests in a queue",
            plan.send_queue(),
            device.max_qp_wr,
        ),
        (
            "work requests in a queue",
            plan.receive_queue(),
            device.max_qp_wr,
        ),
        ("inline bytes", plan.inline, device.max_inline),
        ("outstanding reads", plan.outs.into(), device.max_rd_atomic),
    ];
    for (what, wanted, max) in limits {
        if wanted > max {
            let text = format!("{wanted} {what} are more than the device's {max}");
            return Err(Fault::new(Code::Usage, text));
        }
    }
    let (caps, service) = match plan.service {
        // Older versions do not report whether a provider has connections.
        Service::Rc => (DeviceCaps::empty(), ""),
        Service::Ud => (DeviceCaps::UD, "unreliable datagrams"),
        Service::Rd => (DeviceCaps::RD, "reliable datagrams"),
    };
    if !device.caps.contains(caps) {
        return Err(Fault::new(
            Code::Usage,
            format!("the device has no {service}"),
        ));
    }
    if plan.op == Op::WriteRecord && !device.caps.contains(DeviceCaps::WRITE_RECORD) {
        return Err(Fault::new(Code::Usage, "the device has no Write-Record"));
    }
    if plan.service == Service::Rc
        && plan.max_rate.is_some()
        && !device.caps.contains(DeviceCaps::RATE_LIMIT)
    {
        return Err(Fault::new(
            Code::Usage,
            "the device cannot limit the rate of a connection",
        ));
    }
    if plan.connect == Connect::Exchange && !device.caps.contains(DeviceCaps::ENDPOINTS) {
        return Err(Fault::new(
            Code::Usage,
            "the device has no connections without the connection manager",
        )
        .hint("leave --exchange out"));
    }
    if plan.remote_placement && !device.caps.contains(DeviceCaps::REMOTE_PLACEMENT) {
        let always = matches!(device.transport, Transport::Roce | Transport::InfiniBand);
        if !always {
            return Err(Fault::new(
                Code::Usage,
                "the device cannot tell when bytes are placed at the peer",
            ));
        }
    }
    Ok(())
}

fn cannot_listen(address: SocketAddr, error: haul_verbs::Error) -> Fault {
    let fault = verb(error);
    Fault {
        text: format!("cannot listen on {address}: {}", fault.text),
        ..fault
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_connections_with_the_ticket_are_accepted() {
        let invitation = invitation(77, 5);
        assert_eq!(invited(&invitation, 77), Some(5));
        assert_eq!(invited(&[&invitation[..], &[0; 40]].concat(), 77), Some(5));
        assert_eq!(invited(&invitation, 78), None);
        assert_eq!(invited(&invitation[..15], 77), None);
        assert_eq!(invited(&[], 0), None);
    }
}
