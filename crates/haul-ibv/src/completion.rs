//! Completion queues and channels.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_verbs::provider::{CompletionChannelOps, CqOps};
use haul_verbs::{Error, Notify, Result, WcData, WcOpcode, WcStatus, WorkCompletion};

use crate::context::Context;
use crate::ffi::verbs::{self, wc, wc_flag};
use crate::library::{Raw, check};
use crate::wait::{Deadline, set_nonblocking, wait_readable};

/// How long [`Cq::wait`] polls before it sleeps: about what falling asleep and waking up costs.
const BUSY: Duration = Duration::from_micros(20);
/// How often a queue is looked at whose events are the application's.
const GLANCE: Duration = Duration::from_millis(1);
/// Completions taken in one call.
const BATCH: usize = 16;

/// A completion channel.
#[derive(Debug)]
pub(crate) struct CompletionChannel {
    context: Arc<Context>,
    raw: Raw<verbs::CompChannel>,
}

impl CompletionChannel {
    pub(crate) fn new(context: Arc<Context>) -> Result<Self> {
        // SAFETY: the context is open.
        let channel = unsafe { (context.library.verbs.ibv_create_comp_channel)(context.raw.ptr()) };
        let raw = Raw::made("completion channel", channel)?;
        let channel = Self { context, raw };
        set_nonblocking(channel.fd())?;
        Ok(channel)
    }

    /// Takes an event, and acknowledges it at once: who destroys the queue then waits for nobody.
    fn take(&self) -> Result<Option<u64>> {
        let verbs = &self.context.library.verbs;
        let mut cq: *mut verbs::Cq = std::ptr::null_mut();
        let mut token: *mut c_void = std::ptr::null_mut();
        // SAFETY: the channel lives, its descriptor does not block, the results are variables of
        // ours.
        let returned =
            unsafe { (verbs.ibv_get_cq_event)(self.raw.ptr(), &raw mut cq, &raw mut token) };
        match check("ibv_get_cq_event", returned) {
            Ok(()) => {}
            Err(Error::Os { source, .. }) if source.kind() == std::io::ErrorKind::WouldBlock => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        // SAFETY: a queue with an event that is not acknowledged exists: destroying it waits.
        unsafe { (verbs.ibv_ack_cq_events)(cq, 1) };
        Ok(Some(token_of(token)))
    }
}

impl CompletionChannelOps for CompletionChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives.
        let fd = unsafe { (*self.raw.ptr()).fd };
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    fn poll_event(&self) -> Result<Option<u64>> {
        self.take()
    }

    fn wait_event(&self, timeout: Option<Duration>) -> Result<Option<u64>> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(token) = self.take()? {
                return Ok(Some(token));
            }
            if !wait_readable(self.fd(), &deadline)? {
                return Ok(None);
            }
        }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: queues hold their channel, so none is left; it is destroyed once.
        unsafe { (self.context.library.verbs.ibv_destroy_comp_channel)(self.raw.ptr()) };
    }
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) raw: Raw<verbs::Cq>,
    poll: unsafe extern "C" fn(*mut verbs::Cq, c_int, *mut verbs::Wc) -> c_int,
    arm: unsafe extern "C" fn(*mut verbs::Cq, c_int) -> c_int,
    events: Events,
    pub(crate) context: Arc<Context>,
}

#[derive(Debug)]
enum Events {
    /// Nobody else's: [`Cq::wait`] sleeps on them.
    Own(CompletionChannel),
    Application(Arc<CompletionChannel>),
}

impl Cq {
    pub(crate) fn new(
        context: Arc<Context>,
        entries: u32,
        channel: Option<Arc<CompletionChannel>>,
        token: u64,
    ) -> Result<Self> {
        let max = context
            .description
            .attributes
            .max_cqe
            .min(c_int::MAX.unsigned_abs());
        Error::at_least("entries", entries.into(), 1)?;
        Error::at_most("entries", entries.into(), max.into())?;
        // SAFETY: the context is open.
        let ops = unsafe { &(*context.raw.ptr()).ops };
        let (Some(poll), Some(arm)) = (ops.poll_cq, ops.req_notify_cq) else {
            return Err(Error::Unsupported("polling a completion queue"));
        };
        let events = match channel {
            Some(channel) if !Arc::ptr_eq(&channel.context, &context) => {
                return Err(Error::Invalid(
                    "the completion channel is of another context",
                ));
            }
            Some(channel) => Events::Application(channel),
            None => Events::Own(CompletionChannel::new(Arc::clone(&context))?),
        };
        let channel = match &events {
            Events::Own(channel) => channel.raw,
            Events::Application(channel) => channel.raw,
        };
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        Error::at_most("token", token, usize::MAX as u64)?;
        let token = usize::try_from(token).unwrap_or(usize::MAX);
        // SAFETY: context and channel live as long as the queue, which holds them; the token is no
        // pointer to anybody.
        let cq = unsafe {
            (context.library.verbs.ibv_create_cq)(
                context.raw.ptr(),
                entries,
                std::ptr::without_provenance_mut(token),
                channel.ptr(),
                0,
            )
        };
        let raw = Raw::made("completion queue", cq)?;
        Ok(Self {
            raw,
            poll,
            arm,
            events,
            context,
        })
    }

    fn poll_some(&self, out: &mut [WorkCompletion]) -> Result<usize> {
        // SAFETY: all zeros is a value of a structure of numbers.
        let mut taken: [verbs::Wc; BATCH] = unsafe { std::mem::zeroed() };
        let wanted = c_int::try_from(out.len().min(BATCH)).unwrap_or(0);
        // SAFETY: the queue lives; there is room for so many completions.
        let count = unsafe { (self.poll)(self.raw.ptr(), wanted, taken.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| Error::CqOverflow)?;
        for (out, wc) in out.iter_mut().zip(&taken[..count]) {
            *out = convert(wc);
            if out.status != WcStatus::Success
                && let Some(qp) = self.context.find_qp(out.qp_num)
            {
                qp.on_failed(out);
            }
        }
        Ok(count)
    }

    fn arm_for(&self, notify: Notify) -> Result<()> {
        let solicited_only = c_int::from(notify == Notify::Solicited);
        // SAFETY: the queue lives.
        check("ibv_req_notify_cq", unsafe {
            (self.arm)(self.raw.ptr(), solicited_only)
        })
    }

    /// Sleeps until there may be a completion; whether there is still time. The event stays, for
    /// whoever else waits.
    fn sleep(&self, deadline: &Deadline) -> Result<bool> {
        match &self.events {
            Events::Own(channel) => wait_readable(channel.fd(), deadline),
            Events::Application(_) => {
                std::thread::sleep(deadline.left().map_or(GLANCE, |left| left.min(GLANCE)));
                Ok(!deadline.is_over())
            }
        }
    }
}

impl CqOps for Cq {
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize> {
        let mut count = 0;
        while count < out.len() {
            let more = self.poll_some(&mut out[count..])?;
            count += more;
            if more < BATCH {
                break;
            }
        }
        Ok(count)
    }

    fn wait(&self, out: &mut [WorkCompletion], timeout: Option<Duration>) -> Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        let begun = Instant::now();
        let deadline = Deadline::after(timeout);
        loop {
            let count = self.poll(out)?;
            if count > 0 {
                return Ok(count);
            }
            if begun.elapsed() < BUSY {
                std::hint::spin_loop();
                continue;
            }
            if let Events::Own(channel) = &self.events {
                while channel.take()?.is_some() {}
                self.arm_for(Notify::Any)?;
                // What came before the arming makes no event.
                let count = self.poll(out)?;
                if count > 0 {
                    return Ok(count);
                }
            }
            if !self.sleep(&deadline)? {
                return self.poll(out);
            }
        }
    }

    fn arm(&self, notify: Notify) -> Result<()> {
        match self.events {
            Events::Application(_) => self.arm_for(notify),
            Events::Own(_) => Err(Error::Invalid("the completion queue has no channel")),
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold their completion queues, so none is left; it is destroyed once.
        unsafe { (self.context.library.verbs.ibv_destroy_cq)(self.raw.ptr()) };
    }
}

/// The number that an object of the library was given as its context.
pub(crate) fn token_of(context: *mut c_void) -> u64 {
    context.addr() as u64
}

fn convert(from: &verbs::Wc) -> WorkCompletion {
    let data = if from.wc_flags & wc_flag::WITH_IMM != 0 {
        WcData::Imm(u32::from_be(from.imm_data))
    } else if from.wc_flags & wc_flag::WITH_INV != 0 {
        WcData::InvalidatedRkey(from.imm_data)
    } else {
        WcData::None
    };
    let (status, opcode) = (status(from.status), opcode(from.opcode));
    let mut wc = WorkCompletion::new(from.wr_id, status, opcode, from.qp_num);
    (wc.byte_len, wc.vendor_err, wc.data) = (from.byte_len, from.vendor_err, data);
    wc
}

/// `enum ibv_wc_status`, in its order. What reliable connections never report is a general error.
fn status(number: c_int) -> WcStatus {
    match number {
        0 => WcStatus::Success,
        1 => WcStatus::LocLenErr,
        2 => WcStatus::LocQpOpErr,
        4 => WcStatus::LocProtErr,
        5 => WcStatus::WrFlushErr,
        6 => WcStatus::MwBindErr,
        7 => WcStatus::BadRespErr,
        8 => WcStatus::LocAccessErr,
        9 => WcStatus::RemInvReqErr,
        10 => WcStatus::RemAccessErr,
        11 => WcStatus::RemOpErr,
        12 => WcStatus::RetryExcErr,
        13 => WcStatus::RnrRetryExcErr,
        16 => WcStatus::RemAbortErr,
        19 => WcStatus::FatalErr,
        20 => WcStatus::RespTimeoutErr,
        _ => WcStatus::GeneralErr,
    }
}

fn opcode(number: c_int) -> WcOpcode {
    match number {
        wc::RDMA_WRITE => WcOpcode::RdmaWrite,
        wc::RDMA_READ => WcOpcode::RdmaRead,
        wc::COMP_SWAP => WcOpcode::CompSwap,
        wc::FETCH_ADD => WcOpcode::FetchAdd,
        wc::RECV => WcOpcode::Recv,
        wc::RECV_RDMA_WITH_IMM => WcOpcode::RecvRdmaWithImm,
        _ => WcOpcode::Send,
    }
}
