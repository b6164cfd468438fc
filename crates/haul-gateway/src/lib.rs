//! Gateways (phoebus-rdma-gateway-2012): TCP connections of programs that cannot change come in at
//! the edge, are packed into slabs, cross the wide area over a transport that was made for it, and
//! go out as TCP at the far edge.
//!
//! Contract: [`Gateway::start`] with a [`Config`] and the RDMA devices that there are; it runs
//! until it is dropped or drained.
//!
//! Map: [`config`] what the operator wrote · `listener` how connections come in: transparently, by
//! SOCKS5, by HTTP CONNECT, forwarded · `control` control connections, plain or within TLS ·
//! `engine` sessions on threads of their own: sockets, memory, data channels · `shared` what all
//! sessions of a gateway share · `extender` RDMA connections of applications · `attempt` how long
//! one address is tried · `ready` sessions that are there before anybody asks · `budget` what
//! memory it may take · `admin` what operators see of it · `path` what sessions ask of the network.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod admin;
mod answer;
mod budget;
mod caller;
mod channel;
mod check;
pub mod config;
mod control;
mod error;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod gateway;
mod host;
mod inbound;
mod listener;
mod log;
mod path;
mod rates;
mod rdma;
mod ready;
mod refusal;
mod resolver;
mod session;
mod shared;
mod status;
mod sync;
mod thread;
mod tls;
mod watch;

pub use budget::{Budget, MemoryPlan, RdmaBudget};
pub use caller::Caller;
pub use config::Config;
pub use error::StartError;
pub use gateway::{Gateway, Reach, raise_open_files};
pub use log::{Level, Log};
pub use refusal::{Cause, Refusal};
pub use session::{Filler, Taken};
pub use status::{Connection, Limit, Path, Role, Segment, Status, Totals};
