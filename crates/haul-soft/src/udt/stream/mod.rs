//! A UDT byte stream for callers that have no loop to give it: a thread of its own drives the
//! connection, and any thread may send and receive.
//!
//! What flows through: [`Stream::send`] copies into a ring, from which packets are sent where they
//! lie and in which they stay until they have arrived; what arrives is placed into another ring,
//! from which [`Stream::recv`] copies. Between Longhaul ends the receiving ring is the window, and
//! each direction ends by itself ([`Stream::finish`]). Plain UDT peers take slots, and know only
//! the end of both.
//!
//! Waiting: the engine compares what is [`Ready`] with what somebody waits for, and wakes nobody
//! else ([`Readiness`](haul_io::wake::Readiness)).
//!
//! Another process may drive the connection ([`Served`]), for one that uses it
//! ([`Stream::attach`]).
//!
//! Map: `user` the stream · `engine` its thread · `shared` what the two tell each other ·
//! `listener` · `half` what opens both kinds · `served`, `border`, `page` two processes.

mod border;
mod engine;
mod half;
mod listener;
mod options;
mod page;
mod served;
mod shared;
mod user;

pub use border::{Ends, Keeper};
pub use listener::Listener;
pub use options::{Measured, Options, Ready, Received};
pub use served::Served;
pub use user::Stream;
