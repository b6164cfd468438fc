//! Gateways (phoebus-rdma-gateway-2012): unmodified applications' TCP connections enter at the
//! edge, are packed into slabs, cross the wide area over a transport made for it, and leave as TCP
//! at the far edge.
//!
//! Contract: [`Gateway::start`] with a [`Config`] and the RDMA devices of the machine. The gateway
//! runs until it is drained or dropped.
//!
//! Modules: [`config`] the configuration, with `check` its semantic checks · `listener` connections
//! of applications · `session` sessions, each on a thread of its own · `channel` data channels ·
//! `admin` the live page and the metrics. Under them: `shared` state of all sessions · `path` path
//! requests to the network · `control` control connections, plain or within TLS · `access` the
//! access log · `proxy` the header with the client's address for servers. Around them: `gateway`
//! start, reload, drain · `inbound` peers' connections · `ready` routes whose sessions are kept
//! open · `health` checks of ways, with `probe` · `rdma` the range extender of `haul-extender` ·
//! `budget` the memory plan.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod access;
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
mod health;
mod host;
mod inbound;
mod listener;
mod log;
mod path;
mod probe;
mod proxy;
mod rates;
mod rdma;
mod ready;
mod refusal;
mod resolver;
mod session;
mod shared;
mod status;
mod sync;
mod tls;

pub use budget::{Budget, MemoryPlan, RdmaBudget};
pub use caller::Caller;
pub use config::Config;
pub use error::StartError;
pub use gateway::{Gateway, Reach, raise_open_files};
#[cfg(debug_assertions)]
#[doc(hidden)]
pub use haul_xsp::next::pretend as pretend_next;
pub use log::{Level, Log};
pub use refusal::{Cause, Refusal};
pub use session::{Filler, Taken};
pub use status::{Connection, Limit, Path, Role, Segment, Status, Totals};
