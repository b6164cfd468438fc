//! A queue pair of the device, with memory for messages of both directions.

use std::collections::VecDeque;

use haul_slab::{AccessFlags, Region};
use haul_verbs::{
    CompletionChannel, Context, Cq, Error, Mr, Notify, Pd, Qp, QpInit, RecvWr, SendFlags, SendOp,
    SendWr, SgeList, WcData, WcOpcode, WcStatus, WorkCompletion,
};

/// Completions taken at a time.
const BATCH: usize = 64;
const PAGE: usize = 4096;
/// Marks work requests that are Sends.
const IS_SEND: u64 = 1 << 32;

/// Limits of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Longest message, bytes.
    pub message: usize,
    /// Messages in flight in each direction.
    pub depth: u16,
    /// Timeout, ns: for the far end and its application to answer; and, after one side has ended,
    /// for the other to make progress.
    pub answer_ns: u64,
}

impl Plan {
    const fn slot(&self) -> usize {
        match self.message.checked_next_multiple_of(PAGE) {
            Some(octets) => octets,
            None => usize::MAX,
        }
    }

    /// Returns the memory that a connection takes, bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.slot().saturating_mul(self.depth as usize * 2)
    }
}

/// A message that has arrived, and its slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrived {
    pub(crate) slot: u16,
    pub(crate) len: u32,
    pub(crate) immediate: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct Link {
    // Before the memory: dropped first, so that nothing is placed afterwards.
    pub(crate) qp: Qp,
    cq: Cq,
    plan: Plan,
    memory: Mr,
    /// In order.
    pub(crate) arrived: VecDeque<Arrived>,
    /// Free slots for messages to send.
    free: Vec<u16>,
    /// Requests completed so far.
    pub(crate) done: u64,
    _pd: Pd,
}

impl Link {
    /// Creates a queue pair with its receives posted. Its completion events appear on `completions`
    /// as `token`.
    pub(crate) fn new(
        context: &Context,
        completions: &CompletionChannel,
        token: u64,
        plan: Plan,
    ) -> Result<Self, Error> {
        let exhausted = |_| Error::Exhausted("memory");
        let pd = context.alloc_pd()?;
        let depth = u32::from(plan.depth);
        let cq = context.create_cq(depth * 2, Some(completions), token)?;
        cq.arm(Notify::Any)?;
        let memory = Region::map(plan.bytes()).map_err(exhausted)?;
        let memory = pd.reg_mr(&memory, AccessFlags::LOCAL_WRITE)?;
        let mut init = QpInit::new(&cq);
        init.capacity.max_send_wr = depth;
        init.capacity.max_recv_wr = depth;
        let qp = pd.create_qp(&init)?;
        let mut link = Self {
            qp,
            cq,
            plan,
            memory,
            arrived: VecDeque::new(),
            free: (0..plan.depth).collect(),
            done: 0,
            _pd: pd,
        };
        for slot in 0..plan.depth {
            link.receive(slot)?;
        }
        Ok(link)
    }

    /// Arrived messages are in its first part, messages to send in the second.
    pub(crate) fn region(&self) -> &Region {
        self.memory.region()
    }

    /// Returns the place of an arrived message.
    pub(crate) const fn at_arrived(&self, slot: u16) -> usize {
        slot as usize * self.plan.slot()
    }

    /// Returns the place of a message to send.
    pub(crate) const fn at_send(&self, slot: u16) -> usize {
        (self.plan.depth as usize + slot as usize) * self.plan.slot()
    }

    pub(crate) const fn message_max(&self) -> usize {
        self.plan.message
    }

    /// Takes a slot for a message to send.
    pub(crate) fn take_slot(&mut self) -> Option<u16> {
        self.free.pop()
    }

    pub(crate) const fn has_slot(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether all Sends are complete.
    pub(crate) const fn is_idle(&self) -> bool {
        self.free.len() == self.plan.depth as usize
    }

    /// Posts the slot of a delivered message to the device again.
    pub(crate) fn receive(&mut self, slot: u16) -> Result<(), Error> {
        let len = u32::try_from(self.plan.message).unwrap_or(u32::MAX);
        let place = self.memory.sge(self.at_arrived(slot) as u64, len);
        let posted = self.qp.post_recv(&[RecvWr::new(slot.into(), place)]);
        match posted.map_err(|failed| failed.error) {
            // The connection has ended; its event may come later.
            Err(Error::State(_)) => Ok(()),
            posted => posted,
        }
    }

    /// Sends the message in `slot`. A receiver cannot see which of the application's messages were
    /// solicited, so all are.
    pub(crate) fn send(
        &mut self,
        slot: u16,
        len: u32,
        immediate: Option<u32>,
    ) -> Result<(), Error> {
        let op = immediate.map_or(SendOp::Send, SendOp::SendWithImm);
        let place = match len {
            0 => SgeList::EMPTY,
            len => self.memory.sge(self.at_send(slot) as u64, len).into(),
        };
        let request = SendWr::new(u64::from(slot) | IS_SEND, op, place)
            .with_flags(SendFlags::SIGNALED | SendFlags::SOLICITED);
        let posted = self.qp.post_send(&[request]);
        match posted.map_err(|failed| failed.error) {
            // As in `receive`.
            Err(Error::State(_)) => {
                self.free.push(slot);
                Ok(())
            }
            posted => posted,
        }
    }

    /// Requests the next completion event. Poll afterwards: earlier completions raise none.
    pub(crate) fn arm(&self) -> Result<(), Error> {
        self.cq.arm(Notify::Any)
    }

    /// Takes completions.
    ///
    /// # Errors
    /// What the application or the device did that cannot be bridged.
    pub(crate) fn poll(&mut self) -> Result<(), String> {
        let mut batch = [WorkCompletion::default(); BATCH];
        loop {
            let count = self
                .cq
                .poll(&mut batch)
                .map_err(|error| error.to_string())?;
            for done in &batch[..count] {
                self.on_done(done)?;
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    fn on_done(&mut self, done: &WorkCompletion) -> Result<(), String> {
        let slot = u16::try_from(done.wr_id & 0xffff).unwrap_or_default();
        self.done += 1;
        match done.status {
            WcStatus::Success => {}
            // The connection has ended, which its event reports.
            WcStatus::WrFlushErr => {
                if done.wr_id & IS_SEND != 0 {
                    self.free.push(slot);
                }
                return Ok(());
            }
            WcStatus::LocLenErr => {
                let most = self.plan.message;
                return Err(format!("a message is longer than {most} bytes (`message`)"));
            }
            status => return Err(format!("{status:?}")),
        }
        if done.wr_id & IS_SEND != 0 {
            self.free.push(slot);
            return Ok(());
        }
        let immediate = match done.data {
            WcData::None => None,
            WcData::Imm(immediate) => Some(immediate),
            _ => return Err("messages that invalidate memory cannot be bridged".to_owned()),
        };
        if done.opcode != WcOpcode::Recv {
            return Err("writes with immediate data cannot be bridged".to_owned());
        }
        self.arrived.push_back(Arrived {
            slot,
            len: done.byte_len,
            immediate,
        });
        Ok(())
    }
}
