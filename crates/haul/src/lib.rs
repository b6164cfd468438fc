//! Files across long fat networks: sessions over a control connection, data channels beside it,
//! whole-file integrity, and resumption after either end is killed.
//!
//! Both ends are the same machine in two roles: whoever has the file offers it, whoever wants it
//! asks for the blocks that are missing; the asked-for runs, one after another, are the *transfer
//! space* that a channel moves without any framing of files. docs/protocol/session.md has the wire.
//!
//! Map: [`client`] and [`server`] are the doors · `session` the two roles and the memory-to-memory
//! bench · [`dial`] how servers are reached · `link` and `wire` the control connection ·
//! [`channel`] the data connections · `space`, `source`, `sink` the transfer space and its two ends
//! · `tree` blocks and their hashes · `target` and `journal` the part file and what is known of it
//! · `name` what peers may call files · [`endless`] bytes for benches · [`fault`] failures ·
//! [`report`] what a finished session says.
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

pub use haul_io::file::raise_open_file_limit;
pub use haul_io::process::is_ignored as is_signal_ignored;
pub use text::printable;
pub use wire::crc32c;

/// The port that `haul serve` listens on, TCP and UDP, unless told otherwise.
pub const DEFAULT_PORT: u16 = 4725;

/// Software and version, as peers are told.
pub const SOFTWARE: &str = concat!("haul ", env!("CARGO_PKG_VERSION"));

/// Locks, also after another thread has panicked: everything kept under these locks is whole at
/// every moment.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
