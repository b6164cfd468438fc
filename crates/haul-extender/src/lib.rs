//! The RDMA range extender of wan-profiling-2008: reliable connections of an RDMA device end at the
//! edge, and their messages cross the wide area as a byte stream.
//!
//! An application connects to a listener of the near extender. The near extender asks its [`Host`]
//! for a byte stream to the far one, which connects to the far application; the answer of that
//! application comes back over the stream. From then on each extender sends what its queue pair has
//! received to the other, and the other posts it on its own queue pair.
//!
//! The host, a gateway, provides the byte streams, the memory budget and the log. This crate knows
//! no session and no configuration.
//!
//! Contract: [`Extender::open`] with a device and a [`Plan`]. [`Runner::run`] bridges all
//! connections on the calling thread, which waits in one place, because they share the device's
//! completion channel.
//!
//! Map: `extender` opens listeners and reaches applications · `command` what the thread is asked ·
//! `host` what the host provides · `runner` the thread · `bridge` one connection · `link` its queue
//! pair and memory · `frame` what two extenders send each other.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod bridge;
mod command;
mod extender;
mod frame;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod host;
mod link;
mod runner;
#[cfg(test)]
mod tests;

pub use command::{Listen, PendingConnect};
pub use extender::{Extender, RdmaListener};
pub use host::{Host, MemoryGuard, Severity};
pub use link::Plan;
pub use runner::Runner;
