//! Moves files across long fat networks: sessions over a control connection, data channels beside
//! it, whole-file integrity, and resumption after either end is killed.
//!
//! Both ends run the same state machine in two roles. The data sender offers its files; the data
//! receiver requests the blocks that it lacks. The requested runs, one after another, form the
//! *transfer space*, which a channel moves without any framing of files.
//! docs/protocol/session.md specifies the wire.
//!
//! Map: [`client`] and [`server`] the entry points · `session` the two roles and the
//! memory-to-memory bench · [`dial`] connecting to servers · `link` and `wire` the control
//! connection · [`channel`] the data connections · `cancel` ending an operation from another thread
//! · `space`, `source`, `sink` the transfer space and its two ends · `tree` blocks and their hashes
//! · `target` and `journal` the part file and its verified blocks · `name` which names a peer may
//! choose, `text` how they are printed · [`endless`] payload for benches · [`fault`] failures ·
//! [`report`] events and summaries.
#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this crate opens connections and files and runs on the clock; the cores do not"
)]

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

mod cancel;
pub mod channel;
pub mod client;
pub mod dial;
pub mod endless;
pub mod fault;
mod journal;
mod link;
mod name;
pub mod pending;
pub mod report;
pub mod server;
mod session;
mod sink;
mod source;
mod space;
mod target;
mod text;
mod tree;
mod wire;

#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod spec;

pub use haul_io::file::raise_open_file_limit;
pub use haul_io::process::is_ignored as is_signal_ignored;
pub use text::printable;
pub use wire::crc32c;

/// Default port of `haul serve`, TCP and UDP.
pub const DEFAULT_PORT: u16 = 4725;

/// Software and version in this end's `Hello`.
pub const SOFTWARE: &str = concat!("haul ", env!("CARGO_PKG_VERSION"));

/// Locks, also after another thread has panicked: no holder leaves partial state behind.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
