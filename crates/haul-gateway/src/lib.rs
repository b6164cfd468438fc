//! Gateways (phoebus-rdma-gateway-2012): TCP connections of programs that cannot change come in at
//! the edge, are packed into slabs, cross the wide area over a transport that was made for it, and
//! go out as TCP at the far edge.
//!
//! Contract: [`Gateway::start`] with a [`Config`] and the RDMA devices that there are; it runs
//! until it is dropped or drained.
//!
//! Map: [`config`] what the operator wrote · `door` how connections come in: transparently, by
//! SOCKS5, by HTTP CONNECT, forwarded · `control` control connections, plain or within TLS ·
//! `engine` sessions on threads of their own: sockets, memory, data channels · `house` what all
//! sessions of a gateway share · `extender` RDMA connections of applications · `attempt` how long
//! one address is tried · `keeper` sessions that are there before anybody asks · `budget` what
//! memory it may take · `admin` what operators see of it · `path` what sessions ask of the network.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod config;

mod abandoned;
mod admin;
mod attempt;
mod budget;
mod caller;
mod control;
mod door;
mod engine;
mod extender;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod gateway;
mod host;
mod house;
mod keeper;
mod log;
mod path;
mod rates;
mod reception;
mod resolver;
mod status;
mod thread;
mod tls;
mod unproven;
mod watch;

pub use budget::{Budget, MemoryPlan, RdmaBudget};
pub use caller::{Caller, Cause, Refusal};
pub use config::Config;
pub use engine::{Filler, Taken};
pub use gateway::{Gateway, Reach, StartError, raise_open_files};
pub use log::{Level, Log};
pub use status::{Connection, Limit, Path, Role, Segment, Status, Totals};
