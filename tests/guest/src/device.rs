//! What both ends make from a device.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use haul_slab::Region;
use haul_verbs::provider::Provider;
use haul_verbs::{
    AccessFlags, Context, Cq, DeviceAttributes, DeviceCaps, Mr, Pd, Qp, QpInit, QpState, RecvWr,
    Srq, WcStatus, WorkCompletion,
};

use crate::message::{MESSAGE_BYTES, Message};

/// How long anything may take. The guest is an emulation, and the host may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// How often an end looks whether its connection is over.
const GLANCE: Duration = Duration::from_millis(500);
/// Bytes that the peer may reach, and bytes that a send may have.
pub(crate) const MEMORY_BYTES: usize = 2 << 20;
/// Receives posted.
pub(crate) const RECEIVES: usize = 4;
/// Bytes of each.
pub(crate) const RECEIVE_BYTES: usize = 1 << 20;

/// An open device.
pub(crate) struct Opened {
    pub(crate) context: Context,
    pub(crate) attributes: DeviceAttributes,
    /// What it can answer: a region that a peer may end is not everybody's.
    pub(crate) served: DeviceCaps,
    pub(crate) pd: Pd,
}

impl Opened {
    pub(crate) fn open(provider: &dyn Provider, name: &str) -> Result<Self> {
        let devices = provider.devices()?;
        let device = devices.iter().find(|device| device.name() == name);
        let context = device
            .with_context(|| format!("there is no device {name}"))?
            .open()?;
        let attributes = context.attributes()?;
        let pd = context.alloc_pd()?;
        let invalidable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_INVALIDATE;
        let mut served = attributes.caps;
        let can = pd.reg_mr(&Region::map(8)?, invalidable).is_ok();
        served.set(DeviceCaps::SEND_WITH_INVALIDATE, can);
        Ok(Self {
            context,
            attributes,
            served,
            pd,
        })
    }

    /// Memory that the peer may do everything to that this device can.
    pub(crate) fn memory(&self, len: usize) -> Result<Mr> {
        let mut access =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        if self.attributes.caps.contains(DeviceCaps::ATOMIC) {
            access |= AccessFlags::REMOTE_ATOMIC;
        }
        if self.served.contains(DeviceCaps::SEND_WITH_INVALIDATE) {
            access |= AccessFlags::REMOTE_INVALIDATE;
        }
        Ok(self.pd.reg_mr(&Region::map(len)?, access)?)
    }
}

/// A queue pair with its queue and its memory.
pub(crate) struct End {
    pub(crate) qp: Qp,
    pub(crate) cq: Cq,
    /// What the peer may reach, and where reads and atomics end.
    pub(crate) memory: Mr,
    /// Where sends come from.
    pub(crate) outgoing: Mr,
    /// Where sends go to, [`RECEIVE_BYTES`] for each receive.
    pub(crate) incoming: Mr,
    pub(crate) srq: Option<Srq>,
    /// Completions that came while another was waited for.
    early: Vec<WorkCompletion>,
}

impl End {
    /// With receives posted.
    pub(crate) fn new(device: &Opened, srq: Option<Srq>, remote_placement: bool) -> Result<Self> {
        let cq = device.context.create_cq(256, None, 0)?;
        Self::on(device, cq, srq, remote_placement)
    }

    pub(crate) fn on(
        device: &Opened,
        cq: Cq,
        srq: Option<Srq>,
        remote_placement: bool,
    ) -> Result<Self> {
        let mut init = QpInit::new(&cq);
        init.srq = srq.as_ref();
        init.capacity.max_send_sge = 2;
        init.capacity.max_recv_sge = 2;
        init.capacity.max_inline = device.attributes.max_inline.min(64);
        init.remote_placement = remote_placement;
        let qp = device.pd.create_qp(&init)?;
        let end = Self {
            qp,
            cq,
            memory: device.memory(MEMORY_BYTES)?,
            outgoing: device.memory(MEMORY_BYTES)?,
            incoming: device.memory(RECEIVES * RECEIVE_BYTES)?,
            srq,
            early: Vec::new(),
        };
        for slot in 0..RECEIVES {
            end.post_recv(slot)?;
        }
        Ok(end)
    }

    pub(crate) fn post_recv(&self, slot: usize) -> Result<()> {
        let sge = self
            .incoming
            .sge((slot * RECEIVE_BYTES) as u64, u32::try_from(RECEIVE_BYTES)?);
        let request = RecvWr::new(slot as u64, sge);
        match &self.srq {
            Some(srq) => srq.post_recv(&[request])?,
            None => self.qp.post_recv(&[request])?,
        }
        Ok(())
    }

    /// The completion that `wanted` describes.
    pub(crate) fn completion(
        &mut self,
        wanted: impl Fn(&WorkCompletion) -> bool,
    ) -> Result<WorkCompletion> {
        if let Some(index) = self.early.iter().position(&wanted) {
            return Ok(self.early.remove(index));
        }
        let begun = Instant::now();
        let mut taken = [WorkCompletion::default(); 8];
        loop {
            let count = self.cq.wait(&mut taken, Some(GLANCE))?;
            if count == 0 {
                ensure!(begun.elapsed() < PATIENCE, "no completion in {PATIENCE:?}");
                // Shared receives are not flushed with a queue pair.
                let over = self.srq.is_some() && self.qp.state() == QpState::Err;
                ensure!(!over, "the connection is over");
            }
            let mut found = None;
            for completion in &taken[..count] {
                if found.is_none() && wanted(completion) {
                    found = Some(*completion);
                } else {
                    self.early.push(*completion);
                }
            }
            if let Some(found) = found {
                return Ok(found);
            }
        }
    }

    /// The completion of one's own work request.
    pub(crate) fn done(&mut self, wr_id: u64) -> Result<WorkCompletion> {
        let completion = self.completion(|completion| completion.wr_id == wr_id)?;
        ensure!(
            completion.status == WcStatus::Success,
            "work request {wr_id:#x}: {completion:?}, {:?}",
            self.qp.failure()
        );
        Ok(completion)
    }

    /// The next message, and the completion that it came with.
    pub(crate) fn receive(&mut self) -> Result<(Message, WorkCompletion)> {
        let completion = self.completion(|completion| completion.wr_id < RECEIVES as u64)?;
        ensure!(
            completion.status == WcStatus::Success,
            "receive: {completion:?}"
        );
        let mut bytes = [0; MESSAGE_BYTES];
        self.incoming.region().read(
            usize::try_from(completion.wr_id)? * RECEIVE_BYTES,
            &mut bytes,
        )?;
        Ok((Message::parse(&bytes), completion))
    }
}
