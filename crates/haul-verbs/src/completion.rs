//! Completion queues and channels.

use std::any::Any;
use std::fmt::{self, Debug};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use crate::address::Peer;
use crate::error::Result;

/// A completion queue. Clones are the same queue.
#[derive(Debug, Clone)]
pub struct Cq(Arc<dyn CqOps>);

/// Which completions put an event on the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notify {
    /// The next one.
    Any,
    /// The next receive that the peer marked as solicited, or the next error.
    Solicited,
}

impl Cq {
    pub(crate) fn from_ops(ops: Arc<dyn CqOps>) -> Self {
        Self(ops)
    }

    /// Returns the provider's object.
    #[must_use]
    pub fn ops(&self) -> &Arc<dyn CqOps> {
        &self.0
    }

    /// Takes completions without waiting, and returns how many. A software provider makes progress
    /// in this call.
    ///
    /// # Errors
    /// [`Error::CqOverflow`](crate::Error::CqOverflow) once completions were lost.
    pub fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize> {
        self.0.poll(out)
    }

    /// Waits for completions and takes them: it polls for a moment, then sleeps. Returns how many;
    /// zero when `timeout` has passed. `None` waits for ever.
    ///
    /// # Errors
    /// As [`Cq::poll`].
    pub fn wait(&self, out: &mut [WorkCompletion], timeout: Option<Duration>) -> Result<usize> {
        self.0.wait(out, timeout)
    }

    /// Requests one event on the channel. A completion that is already there causes none: arm, poll
    /// until empty, then wait.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a queue without a channel.
    pub fn arm(&self, notify: Notify) -> Result<()> {
        self.0.arm(notify)
    }
}

/// A channel on which armed completion queues leave events.
///
/// It is [`AsFd`], so an event loop can wait for it. With tokio, which only watches the descriptor:
///
/// ```
/// use haul_verbs::{CompletionChannel, Cq, Notify, Result, WorkCompletion};
/// use tokio::io::unix::AsyncFd;
///
/// /// Polls completions of `cq`, whose channel this is, and waits for the first one.
/// async fn completions(
///     channel: &AsyncFd<CompletionChannel>,
///     cq: &Cq,
///     out: &mut [WorkCompletion],
/// ) -> std::io::Result<Result<usize>> {
///     loop {
///         if let Err(error) = cq.arm(Notify::Any) {
///             return Ok(Err(error));
///         }
///         // A completion that was there before the arming causes no event.
///         match cq.poll(out) {
///             Ok(0) => {}
///             done => return Ok(done),
///         }
///         let mut readable = channel.readable().await?;
///         while let Ok(Some(_token)) = channel.get_ref().poll_event() {}
///         readable.clear_ready();
///     }
/// }
/// ```
#[derive(Debug, Clone)]
pub struct CompletionChannel(Arc<dyn CompletionChannelOps>);

impl CompletionChannel {
    pub(crate) fn from_ops(ops: Arc<dyn CompletionChannelOps>) -> Self {
        Self(ops)
    }

    /// Returns the provider's object.
    #[must_use]
    pub fn ops(&self) -> &Arc<dyn CompletionChannelOps> {
        &self.0
    }

    /// Returns a descriptor that is readable while there are events.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    /// Takes an event without waiting: the token of its completion queue.
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os).
    pub fn poll_event(&self) -> Result<Option<u64>> {
        self.0.poll_event()
    }

    /// Waits for an event and takes it; none when `timeout` has passed, `None` waits for ever.
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os).
    pub fn wait_event(&self, timeout: Option<Duration>) -> Result<Option<u64>> {
        self.0.wait_event(timeout)
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.fd().as_raw_fd()
    }
}

/// How a work request ended (`ibv_wc_status`; IBTA 1.4 §11.6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum WcStatus {
    /// The operation succeeded.
    #[default]
    Success,
    /// RDMA devices: a receive buffer is too short for the message, or a length does not fit the
    /// operation. RC of the software provider flushes such a receive.
    LocLenErr,
    /// The queue pair cannot do this.
    LocQpOpErr,
    /// A local key is not valid, or does not have the right or the range.
    LocProtErr,
    /// The queue pair was in error when its turn came.
    WrFlushErr,
    /// Binding a memory window failed.
    MwBindErr,
    /// The peer's response is invalid.
    BadRespErr,
    /// The peer accessed this end's memory without the right to.
    LocAccessErr,
    /// The peer refused the request as invalid: too long, or more reads than agreed.
    RemInvReqErr,
    /// The peer refused the key: not the right, or not the range.
    RemAccessErr,
    /// The peer could not do it.
    RemOpErr,
    /// The peer did not answer.
    RetryExcErr,
    /// The peer had no receive work request for too long.
    RnrRetryExcErr,
    /// The peer has aborted the operation.
    RemAbortErr,
    /// The device is broken.
    FatalErr,
    /// No answer in time. The record of a Read by unreliable datagrams lists the ranges that
    /// arrived ([`Qp::take_record`](crate::Qp::take_record)).
    RespTimeoutErr,
    /// None of these.
    GeneralErr,
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocLenErr => "a length does not fit the operation or its receive buffer",
            Self::LocQpOpErr => "the queue pair cannot do this operation",
            Self::LocProtErr => "a local key, right or range is not valid",
            Self::WrFlushErr => "flushed: the queue pair was in error",
            Self::MwBindErr => "binding a memory window failed",
            Self::BadRespErr => "the peer's response is invalid",
            Self::LocAccessErr => "the peer violated the rights of local memory",
            Self::RemInvReqErr => "the peer refuses the request as invalid",
            Self::RemAccessErr => "the peer's key does not allow this, or not in this range",
            Self::RemOpErr => "the peer could not do the operation",
            Self::RetryExcErr => "the peer did not answer",
            Self::RnrRetryExcErr => "the peer had no receive posted for too long",
            Self::RemAbortErr => "the peer aborted the operation",
            Self::FatalErr => "the device is broken",
            Self::RespTimeoutErr => "no whole answer came in time",
            Self::GeneralErr => "an error that the provider's number describes",
        })
    }
}

/// For `?` and `anyhow`; [`WcStatus::Success`] is no error.
impl std::error::Error for WcStatus {}

/// The completed operation (`ibv_wc_opcode`). Meaningful with [`WcStatus::Success`] only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum WcOpcode {
    /// A Send of any kind.
    #[default]
    Send,
    /// An RDMA Write of any kind.
    RdmaWrite,
    /// An RDMA Read.
    RdmaRead,
    /// A compare-and-swap.
    CompSwap,
    /// A fetch-and-add.
    FetchAdd,
    /// A local invalidation.
    LocalInv,
    /// A receive, by a Send.
    Recv,
    /// A receive, by an RDMA Write with immediate data.
    RecvRdmaWithImm,
    /// A Write-Record, at its source.
    WriteRecord,
    /// A Write-Record, at its target: [`Qp::take_record`](crate::Qp::take_record) with the
    /// completion's `wr_id` lists what was placed. Takes no receive work request, so it may fill no
    /// more than half of the completion queue: a record beyond that is kept, but has no completion.
    RecvWriteRecord,
}

/// Data that arrived with a message beside its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum WcData {
    /// Nothing.
    #[default]
    None,
    /// Immediate data.
    Imm(u32),
    /// The peer invalidated the memory region with this rkey.
    InvalidatedRkey(u32),
}

/// The end of a work request (`ibv_wc`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WorkCompletion {
    /// The work request's.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes received, read, or (for an atomic) 8. Of a receive by a Write with immediate data:
    /// the length of that Write, or 0 where the peer is an iWARP end other than Longhaul's, which
    /// does not tell it. Of sends and writes: not defined.
    pub byte_len: u32,
    /// The queue pair's number.
    pub qp_num: u32,
    /// What came beside the bytes.
    pub data: WcData,
    /// The provider's own number for the error.
    pub vendor_err: u32,
    /// The sender, for datagram services.
    pub src: Option<Peer>,
    /// Whether the sender asked for an event at this end ([`SendFlags::SOLICITED`]).
    ///
    /// [`SendFlags::SOLICITED`]: crate::SendFlags::SOLICITED
    pub solicited: bool,
}

impl WorkCompletion {
    /// Describes the end of a work request that brought no bytes.
    #[must_use]
    pub fn new(wr_id: u64, status: WcStatus, opcode: WcOpcode, qp_num: u32) -> Self {
        Self {
            wr_id,
            status,
            opcode,
            qp_num,
            ..Self::default()
        }
    }

    /// Returns its status as an error unless it is [`WcStatus::Success`].
    ///
    /// # Errors
    /// The status.
    pub fn result(&self) -> Result<(), WcStatus> {
        match self.status {
            WcStatus::Success => Ok(()),
            status => Err(status),
        }
    }
}

/// A provider's part of [`Cq`].
pub trait CqOps: Any + Debug + Send + Sync {
    /// See [`Cq::poll`](crate::Cq::poll).
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize>;
    /// See [`Cq::wait`](crate::Cq::wait).
    fn wait(&self, out: &mut [WorkCompletion], timeout: Option<Duration>) -> Result<usize>;
    /// See [`Cq::arm`](crate::Cq::arm).
    fn arm(&self, notify: Notify) -> Result<()>;
}

/// A provider's part of [`CompletionChannel`].
pub trait CompletionChannelOps: Any + Debug + Send + Sync {
    /// See [`CompletionChannel::fd`](crate::CompletionChannel::fd).
    fn fd(&self) -> BorrowedFd<'_>;
    /// See [`CompletionChannel::poll_event`](crate::CompletionChannel::poll_event).
    fn poll_event(&self) -> Result<Option<u64>>;
    /// See [`CompletionChannel::wait_event`](crate::CompletionChannel::wait_event).
    fn wait_event(&self, timeout: Option<Duration>) -> Result<Option<u64>>;
}
