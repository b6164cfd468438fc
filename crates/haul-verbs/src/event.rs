//! Asynchronous events.

/// An asynchronous event of an object of a context (`ibv_async_event`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The completion queue made with this token has overflowed.
    CqError {
        /// [`Context::create_cq`](crate::Context::create_cq)'s.
        token: u64,
    },
    /// The queue pair went into error without a work request to report it.
    QpFatal {
        /// Its number.
        qp_num: u32,
    },
    /// The peer violated a region's rights.
    QpAccessError {
        /// Its number.
        qp_num: u32,
    },
    /// A datagram service dropped an unexpected datagram; its statistics count the causes. At most
    /// ten events a second.
    DatagramRefused {
        /// Its number.
        qp_num: u32,
    },
    /// The network reported that datagrams of a service did not arrive (nobody receives there, no
    /// route, too long for the path); its statistics count them. At most one a second.
    DatagramUndelivered {
        /// Its number.
        qp_num: u32,
    },
    /// The first message has arrived on a connection that is not established yet.
    CommunicationEstablished {
        /// Its number.
        qp_num: u32,
    },
    /// A shared receive queue has fallen below its limit; the limit is off now
    /// ([`Srq::arm_limit`](crate::Srq::arm_limit)).
    SrqLimitReached {
        /// [`SrqInit::token`](crate::SrqInit::token).
        token: u64,
    },
    /// The device is gone.
    DeviceFatal,
}
