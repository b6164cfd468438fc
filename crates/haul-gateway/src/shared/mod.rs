//! State shared by all sessions of a gateway.
//!
//! Map: `state` configuration, memory, devices, log · `handle` a session's handle and commands ·
//! `registers` sessions by name, route, cookie and queue pair · `health` ways and whether they are
//! up · `secrets` keys and certificates · `peers` control connections that have not asked for a
//! session · `abandoned` and `unauthenticated` sessions that are evicted for others.

mod abandoned;
mod handle;
mod health;
mod peers;
mod registers;
mod secrets;
mod state;
mod unauthenticated;

pub(crate) use handle::{SessionCommand, SessionHandle};
pub(crate) use health::WayHealth;
pub(crate) use peers::{PENDING_PEERS_MAX, Standing};
pub(crate) use secrets::Secrets;
pub(crate) use state::{Share, Shared};
pub(crate) use unauthenticated::Idle;
