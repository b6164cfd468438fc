//! The software RNIC in a process of its own: transports off the application's cores and out of
//! its memory (gridftp-offload-2014, section V).
//!
//! The engine ([`Server`]) has the devices of `haul-soft`. An application reaches them through a
//! [`provider`] whose devices are `engine-tcp`, `engine-udt` and `engine-udp`: work requests and
//! completions go through rings in shared memory, everything else through a socket. Payload is not
//! copied: memory that [`Pd::map`](haul_verbs::Pd::map) gives is shared, too. Where there is no
//! engine the devices are those of `haul-soft` in this process.
//!
//! Neither end trusts the other further than it must. The engine reads nothing twice that a client
//! may write, and a client that writes what cannot be loses its session alone. An application whose
//! engine ends sees its requests flushed, its connections end, and
//! [`AsyncEvent::DeviceFatal`](haul_verbs::AsyncEvent).
//!
//! Map: `ring`, `entry` requests and completions in shared memory · `shared` what both ends know of
//! it · `message`, `socket` control · `client` the provider · `server` the engine.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod client;
mod entry;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod lock;
mod message;
mod ring;
mod server;
mod shared;
mod socket;

pub use client::{
    PROVIDER, StreamListener, Streams, answers, default_path, protected, provider, streams,
};
pub use server::{Counters, Options, Server, Stopper, Tell};
