//! What the checks ask with.

use std::net::SocketAddr;

use anyhow::{Result, anyhow, ensure};
use haul_verbs::cm::{CmEvent, ConnParam, EventChannel};
use haul_verbs::{
    Data, DeviceCaps, Failure, Remote, SendFlags, SendOp, SendWr, WcData, WorkCompletion,
};

use crate::device::{End, MEMORY_BYTES, Opened, PATIENCE};
use crate::message::{MESSAGE_BYTES, Message, ask};
use crate::pattern;

/// Work requests of the checks count from here: receives are below.
pub(crate) const FIRST: u64 = 1 << 32;

/// A connection to the server.
pub(crate) struct Client {
    pub(crate) end: End,
    pub(crate) channel: EventChannel,
    /// The server's memory.
    pub(crate) remote: Remote,
    /// What the server can answer.
    pub(crate) served: DeviceCaps,
    next: u64,
}

impl Client {
    pub(crate) fn connect(device: &Opened, at: SocketAddr, private_data: &[u8]) -> Result<Self> {
        let end = End::new(device, None, false)?;
        Self::connect_with(device, at, private_data, end)
    }

    pub(crate) fn connect_with(
        device: &Opened,
        at: SocketAddr,
        private_data: &[u8],
        end: End,
    ) -> Result<Self> {
        let channel = device.context.create_event_channel()?;
        let mut param = ConnParam::default();
        param.private_data = private_data;
        end.qp.connect(at, &param, &channel)?;
        let established = match channel.wait(Some(PATIENCE))? {
            Some(CmEvent::Established { established, .. }) => established,
            other => return Err(anyhow!("not established: {other:?}")),
        };
        let told = established.private_data.first_chunk::<MESSAGE_BYTES>();
        let told = Message::parse(told.ok_or_else(|| anyhow!("private data: {established:?}"))?);
        ensure!(told.0[2] == MEMORY_BYTES as u64, "private data: {told:?}");
        ensure!(established.initiator_depth > 0, "no reads: {established:?}");
        Ok(Self {
            end,
            channel,
            remote: told.memory(),
            served: told.served(),
            next: FIRST,
        })
    }

    /// One made without the connection manager.
    pub(crate) fn over(device: &Opened, end: End, told: Message) -> Result<Self> {
        Ok(Self {
            end,
            channel: device.context.create_event_channel()?,
            remote: told.memory(),
            served: told.served(),
            next: FIRST,
        })
    }

    pub(crate) fn at(&self, offset: usize) -> Remote {
        Remote {
            addr: self.remote.addr + offset as u64,
            ..self.remote
        }
    }

    fn wr_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Posts a work request over `data`.
    pub(crate) fn post<'b>(&mut self, op: SendOp, data: impl Into<Data<'b>>) -> Result<u64> {
        let wr_id = self.wr_id();
        self.end.qp.post_send(&[SendWr::new(wr_id, op, data)])?;
        Ok(wr_id)
    }

    /// Posts one and waits for it.
    pub(crate) fn perform<'b>(
        &mut self,
        op: SendOp,
        data: impl Into<Data<'b>>,
    ) -> Result<WorkCompletion> {
        let wr_id = self.post(op, data)?;
        self.end.done(wr_id)
    }

    /// Posts one that is to fail; how it did.
    pub(crate) fn fail<'b>(
        &mut self,
        op: SendOp,
        data: impl Into<Data<'b>>,
    ) -> Result<(WorkCompletion, Option<Failure>)> {
        let wr_id = self.post(op, data)?;
        let completion = self
            .end
            .completion(|completion| completion.wr_id == wr_id)?;
        Ok((completion, self.end.qp.failure()))
    }

    /// A question with payload behind it, and the answer.
    pub(crate) fn ask_with(
        &mut self,
        op: SendOp,
        message: Message,
        payload: &[u8],
    ) -> Result<Message> {
        self.say(op, message, payload)?;
        let (answer, completion) = self.end.receive()?;
        ensure!(completion.data == WcData::None, "{completion:?}");
        self.end.post_recv(usize::try_from(completion.wr_id)?)?;
        Ok(answer)
    }

    /// A message that may have no answer.
    pub(crate) fn say(&mut self, op: SendOp, message: Message, payload: &[u8]) -> Result<()> {
        let outgoing = self.end.outgoing.region();
        outgoing.write(0, &message.emit())?;
        outgoing.write(MESSAGE_BYTES, payload)?;
        let len = u32::try_from(MESSAGE_BYTES + payload.len())?;
        self.perform(op, self.end.outgoing.sge(0, len))?;
        Ok(())
    }

    pub(crate) fn ask(&mut self, message: [u64; 4]) -> Result<Message> {
        self.ask_with(SendOp::Send, Message(message), &[])
    }

    /// Writes a pattern into the server's memory by RDMA.
    pub(crate) fn write(&mut self, offset: usize, len: usize, seed: u64) -> Result<()> {
        let bytes = pattern::bytes(seed, len);
        self.end.memory.region().write(offset, &bytes)?;
        let sge = self.end.memory.sge(offset as u64, u32::try_from(len)?);
        let write = SendOp::RdmaWrite(self.at(offset));
        self.perform(write, sge)?;
        Ok(())
    }

    /// Whether the server's memory has a pattern.
    pub(crate) fn must_have(&mut self, offset: usize, len: usize, seed: u64) -> Result<()> {
        let answer = self.ask([ask::SUM, offset as u64, len as u64, 0])?;
        let wanted = pattern::sum(&pattern::bytes(seed, len));
        ensure!(answer.0[0] == wanted, "{len} bytes at {offset} are others");
        Ok(())
    }

    /// The end of the connection, and who is to blame.
    pub(crate) fn disconnected(&self) -> Result<Option<Failure>> {
        match self.channel.wait(Some(PATIENCE))? {
            Some(CmEvent::Disconnected { failure, .. }) => Ok(failure),
            other => Err(anyhow!("not disconnected: {other:?}")),
        }
    }

    /// Ends it in order.
    pub(crate) fn finish(self) -> Result<()> {
        self.end.qp.disconnect()?;
        ensure!(self.disconnected()?.is_none(), "not in order");
        Ok(())
    }
}

/// Work requests that report nothing, the last of which does.
pub(crate) fn quiet(requests: &mut [SendWr<'_>]) {
    if let Some((_, before)) = requests.split_last_mut() {
        for request in before {
            request.flags = SendFlags::empty();
        }
    }
}
