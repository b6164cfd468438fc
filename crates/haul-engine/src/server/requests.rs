//! What a client asks for over its control socket.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use haul_io::notify::Doorbell;
use haul_slab::{AccessFlags, Region, SharedMemory};
use haul_soft::rnic;
use haul_verbs::cm::{ConnectRequest, EventChannel};
use haul_verbs::{Error, MrAddressing, MrInit, Pd, Qp, QpInit, SrqInit};

use super::end::{ADOPTING, INVALID, SYSTEM};
use super::objects::{OBJECTS_MAX, Object, Outbox, Receives, SharedCq, SharedQp, SharedSrq};
use super::session::Session;
use crate::entry;
use crate::message::{self, CreateQp, QP_TYPES, Record, Reply, Request, STATES, Why, at, position};
use crate::ring::{Consumer, Place, Producer};
use crate::shared::{QpRings, queue_bytes};

/// What an answer to a request can be.
pub(super) type Answer = Result<(Reply, Vec<OwnedFd>), Error>;

impl Session {
    pub(super) fn execute(&mut self, request: Request, descriptors: Vec<OwnedFd>) -> Answer {
        match request {
            Request::Open { .. } => Err(INVALID),
            Request::AllocPd
            | Request::CreateCompletionChannel
            | Request::CreateEventChannel
            | Request::CreateCq { .. }
            | Request::CreateQp(_)
            | Request::Register { .. }
            | Request::CreateSrq { .. }
            | Request::Listen { .. } => self.make(request, descriptors),
            Request::ConnectStream {
                local,
                peer,
                options,
            } => self.connect_stream(local, peer, &options),
            Request::ListenForStreams { address, options } => {
                self.listen_for_streams(address, &options)
            }
            Request::AcceptStream(listener) => self.accept_stream(listener),
            other => Ok((self.use_object(other, descriptors)?, Vec::new())),
        }
    }

    /// Makes an object.
    fn make(&mut self, request: Request, descriptors: Vec<OwnedFd>) -> Answer {
        let mut descriptors = descriptors.into_iter();
        let reply = match request {
            Request::AllocPd => {
                let pd = self.context.alloc_pd()?;
                Reply::Object(self.add(Object::Pd(pd))?)
            }
            Request::CreateCompletionChannel => {
                let (to, far) = Outbox::new().map_err(SYSTEM)?;
                let number = self.add(Object::CompletionChannel(to))?;
                return Ok((Reply::Object(number), vec![far]));
            }
            Request::CreateEventChannel => {
                let (to, far) = Outbox::new().map_err(SYSTEM)?;
                let channel = self.context.create_event_channel()?;
                let number = self.add(Object::EventChannel { channel, to })?;
                return Ok((Reply::Object(number), vec![far]));
            }
            Request::CreateCq {
                entries,
                channel,
                token,
            } => {
                let memory = self.map(descriptors.next(), queue_bytes(entries))?;
                return self.create_cq(entries, channel, token, &memory);
            }
            Request::CreateQp(about) => self.create_qp(&about, descriptors.next())?,
            Request::Register {
                pd,
                offset,
                len,
                access,
                addr,
                sources,
            } => {
                let fd = descriptors.next().ok_or(INVALID)?;
                let len = usize::try_from(len).map_err(|_| INVALID)?;
                self.check_memory(len)?;
                let (memory, skip) =
                    SharedMemory::adopt_part(&fd, offset, len).map_err(ADOPTING)?;
                let part = Region::of_shared(&memory).cut(skip, len);
                let part = part.map_err(|_| INVALID)?;
                let access = AccessFlags::from_bits(access).ok_or(INVALID)?;
                let mut init = MrInit::new(part, access).with_sources(sources.get());
                init.addressing = addr.map_or(MrAddressing::ZeroBased, MrAddressing::At);
                let mr = self.pd(pd)?.register(init)?;
                let (lkey, rkey, addr) = (mr.lkey(), mr.rkey(), mr.addr());
                let mr = self.add_charged(Object::Mr(mr), memory.len())?;
                Reply::Mr {
                    mr,
                    lkey,
                    rkey,
                    addr,
                }
            }
            Request::CreateSrq {
                pd,
                max_wr,
                max_sge,
                token,
            } => {
                let memory = self.map(descriptors.next(), Place::bytes(max_wr, entry::REQUEST))?;
                let place = Place::new(&memory, 0, max_wr, entry::REQUEST).ok_or(INVALID)?;
                let mut init = SrqInit::default();
                (init.max_wr, init.max_sge, init.token) = (max_wr, max_sge, token);
                let srq = self.pd(pd)?.create_srq(&init)?;
                let receives = Receives::new(place);
                rnic::share_receives_from(&srq, receives.source())?;
                let srq = Object::Srq(Box::new(SharedSrq { srq, receives }));
                let number = self.add_charged(srq, memory.len())?;
                self.posters.push(number);
                Reply::Object(number)
            }
            Request::Listen {
                address,
                channel,
                backlog,
            } => {
                let listener = self
                    .context
                    .listen(address, self.events(channel)?, backlog)?;
                let address = listener.local_addr();
                let listener = self.add(Object::Listener {
                    _listener: listener,
                })?;
                Reply::Listener { listener, address }
            }
            _ => return Err(INVALID),
        };
        Ok((reply, Vec::new()))
    }

    /// Does something with an object.
    fn use_object(&mut self, request: Request, descriptors: Vec<OwnedFd>) -> Result<Reply, Error> {
        let mut descriptors = descriptors.into_iter();
        Ok(match request {
            Request::ArmSrq { srq, limit } => match self.objects.get(&srq) {
                Some(Object::Srq(srq)) => {
                    srq.srq.arm_limit(limit)?;
                    Reply::Done
                }
                _ => return Err(INVALID),
            },
            Request::Connect {
                qp,
                peer,
                param,
                channel,
            } => {
                let events = self.events(channel)?;
                self.qp(qp)?.connect(peer, &param.get(), events)?;
                Reply::Done
            }
            Request::Accept { request, qp, param } => {
                self.qp(qp)?;
                let request = self.take_request(request)?;
                request.accept(self.qp(qp)?, &param.get())?;
                Reply::Done
            }
            Request::Reject {
                request,
                private_data,
            } => {
                self.take_request(request)?.reject(&private_data)?;
                Reply::Done
            }
            Request::Disconnect(qp) => {
                self.qp(qp)?.disconnect()?;
                Reply::Done
            }
            Request::State(qp) => {
                let qp = self.qp(qp)?;
                Reply::State {
                    state: position(&STATES, &qp.state()),
                    failure: qp.failure().as_ref().map(Why::of),
                }
            }
            Request::Statistics(qp) => {
                Reply::Numbers(message::of_statistics(&self.qp(qp)?.statistics()?))
            }
            Request::Bind { qp, address } => Reply::Address(self.qp(qp)?.bind(address)?),
            Request::Adopt(qp) => {
                let socket = descriptors.next().ok_or(INVALID)?;
                Reply::Address(self.qp(qp)?.adopt(socket)?)
            }
            Request::Multicast {
                qp,
                attach,
                group,
                interface,
            } => {
                let qp = self.qp(qp)?;
                if attach {
                    qp.attach_multicast(group, interface)?;
                } else {
                    qp.detach_multicast(group, interface)?;
                }
                Reply::Done
            }
            Request::TakeRecord { qp, wr_id } => {
                let record = self.qp(qp)?.take_record(wr_id);
                Reply::Records(record.iter().map(Record::of).collect())
            }
            Request::Records { qp, rkey } => {
                let records = self.qp(qp)?.records(rkey);
                Reply::Records(records.iter().map(Record::of).collect())
            }
            Request::DatagramStatistics(qp) => {
                let statistics = self.qp(qp)?.datagram_statistics()?;
                Reply::Numbers(message::of_datagram_statistics(&statistics))
            }
            Request::Close(number) => {
                let object = self.remove(number).ok_or(INVALID)?;
                if let Object::StreamListener(from) = &object {
                    for stream in &from.waiting {
                        drop(self.remove(*stream));
                    }
                }
                drop(object);
                self.queues.retain(|queue| *queue != number);
                self.posters.retain(|poster| *poster != number);
                Reply::Done
            }
            _ => return Err(INVALID),
        })
    }

    fn create_cq(
        &mut self,
        entries: u32,
        channel: Option<u32>,
        token: u64,
        memory: &SharedMemory,
    ) -> Answer {
        if let Some(channel) = channel
            && !matches!(
                self.objects.get(&channel),
                Some(Object::CompletionChannel(_))
            )
        {
            return Err(INVALID);
        }
        let place = Place::new(memory, 0, entries, entry::COMPLETION).ok_or(INVALID)?;
        let (wake, far) = Doorbell::pair().map_err(SYSTEM)?;
        let cq = self.context.create_cq(entries, Some(&self.bell), token)?;
        let cq = Object::Cq(Box::new(SharedCq {
            cq,
            ring: Producer::new(place),
            wake,
            channel,
            token,
            refused: VecDeque::new(),
            has_overflowed: false,
        }));
        let number = self.add_charged(cq, memory.len())?;
        self.queues.push(number);
        Ok((Reply::Object(number), vec![far]))
    }

    fn create_qp(&mut self, about: &CreateQp, memory: Option<OwnedFd>) -> Result<Reply, Error> {
        let capacity = about.capacity.get();
        let rings = QpRings::of(capacity, about.srq.is_some());
        let memory = self.map(memory, rings.bytes)?;
        let (sends, receives) = rings.places(&memory).ok_or(INVALID)?;
        let (Some(Object::Cq(send)), Some(Object::Cq(recv))) = (
            self.objects.get(&about.send_cq),
            self.objects.get(&about.recv_cq),
        ) else {
            return Err(INVALID);
        };
        let mut init = QpInit::new(&send.cq);
        init.recv_cq = &recv.cq;
        init.qp_type = at(&QP_TYPES, about.qp_type.into()).ok_or(INVALID)?;
        init.srq = match about.srq {
            None => None,
            Some(number) => match self.objects.get(&number) {
                Some(Object::Srq(srq)) => Some(&srq.srq),
                _ => return Err(INVALID),
            },
        };
        init.capacity = capacity;
        init.signal_all = about.signal_all;
        init.remote_placement = about.remote_placement;
        init.rate_limit = about.rate_limit.map(message::rate_limit);
        init.datagram = about.datagram.get().ok_or(INVALID)?;
        let qp = self.pd(about.pd)?.create_qp(&init)?;
        let qp_num = qp.qp_num();
        let receives = receives.map(Receives::new);
        if let Some(receives) = &receives {
            rnic::receive_from(&qp, receives.source())?;
        }
        let qp = Object::Qp(Box::new(SharedQp {
            qp,
            sends: Consumer::new(sends),
            receives,
            send_cq: about.send_cq,
        }));
        let qp = self.add_charged(qp, memory.len())?;
        self.posters.push(qp);
        Ok(Reply::Qp { qp, qp_num })
    }

    pub(super) fn add(&mut self, object: Object) -> Result<u32, Error> {
        if self.objects.len() >= self.limits.objects {
            return Err(Error::Exhausted("objects of a client"));
        }
        if self.counters.objects.load(Ordering::Relaxed) >= OBJECTS_MAX as u64 {
            return Err(Error::Exhausted("objects of the engine"));
        }
        let number = self.next;
        self.next = self.next.checked_add(1).ok_or(INVALID)?;
        self.objects.insert(number, object);
        self.counters.objects.fetch_add(1, Ordering::Relaxed);
        Ok(number)
    }

    /// Takes an object out, and what it was charged for.
    fn remove(&mut self, number: u32) -> Option<Object> {
        let object = self.objects.remove(&number)?;
        self.counters.objects.fetch_sub(1, Ordering::Relaxed);
        self.mapped -= self.charges.remove(&number).unwrap_or(0);
        Some(object)
    }

    /// Adds an object that keeps memory mapped.
    pub(super) fn add_charged(&mut self, object: Object, bytes: usize) -> Result<u32, Error> {
        let number = self.add(object)?;
        self.charges.insert(number, bytes as u64);
        self.mapped += bytes as u64;
        Ok(number)
    }

    /// Maps the memory of rings.
    fn map(&self, fd: Option<OwnedFd>, bytes: usize) -> Result<SharedMemory, Error> {
        // Whole pages.
        let most = bytes.saturating_add(rustix::param::page_size());
        self.check_memory(bytes)?;
        SharedMemory::adopt(&fd.ok_or(INVALID)?, most).map_err(ADOPTING)
    }

    pub(super) fn check_memory(&self, bytes: usize) -> Result<(), Error> {
        let left = self.limits.memory.saturating_sub(self.mapped);
        if bytes as u64 > left {
            return Err(Error::Exhausted("memory of a client"));
        }
        Ok(())
    }

    fn pd(&self, number: u32) -> Result<&Pd, Error> {
        match self.objects.get(&number) {
            Some(Object::Pd(pd)) => Ok(pd),
            _ => Err(INVALID),
        }
    }

    fn qp(&self, number: u32) -> Result<&Qp, Error> {
        match self.objects.get(&number) {
            Some(Object::Qp(qp)) => Ok(&qp.qp),
            _ => Err(INVALID),
        }
    }

    fn events(&self, number: u32) -> Result<&EventChannel, Error> {
        match self.objects.get(&number) {
            Some(Object::EventChannel { channel, .. }) => Ok(channel),
            _ => Err(INVALID),
        }
    }

    fn take_request(&mut self, number: u32) -> Result<ConnectRequest, Error> {
        if !matches!(self.objects.get(&number), Some(Object::Request(_))) {
            return Err(INVALID);
        }
        match self.remove(number) {
            Some(Object::Request(request)) => Ok(*request),
            _ => Err(INVALID),
        }
    }
}
