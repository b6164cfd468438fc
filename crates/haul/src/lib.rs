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
//! connection · [`channel`] the data connections · `entry` what is offered, in batches · `sources`
//! and `scan` where that comes from · `space`, `outbound`, `sink` the transfer space and its two
//! ends, `early` what is in it before requests · `source`, `layout`, `tree` a file, its holes, its
//! blocks and their hashes · `target` and `journal` the part file and its verified blocks · [`fs`]
//! trees of the local file system · `name` which names a peer may choose · [`choice`] which entries
//! a request is about · [`limit`] a rate that may change · [`listing`] what a server has, with
//! digests · [`sync`] trees that are kept the same · [`paths`] what earlier transfers found on
//! their paths · [`endless`] payload for benches · [`fault`] failures · [`report`] events and
//! summaries.
#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this crate opens connections and files and runs on the clock; the cores do not"
)]

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub mod channel;
pub mod choice;
pub mod client;
pub mod dial;
mod early;
pub mod endless;
mod entry;
pub mod fs;
mod journal;
mod layout;
pub mod limit;
mod link;
pub mod listing;
mod name;
mod outbound;
pub mod paths;
pub mod ports;
pub mod report;
mod room;
mod scan;
pub mod server;
mod session;
mod sink;
mod source;
mod sources;
mod space;
pub mod ssh;
pub mod sync;
mod target;
mod tree;
mod wire;

#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod spec;

use haul_control::cancel;
pub use haul_control::{SOFTWARE, fault, printable};
pub use haul_io::clock::local_second_of_day;
pub use haul_io::file::{FileTime, create_output, raise_open_file_limit};
pub use haul_io::notify::{PIPE_BUF, write_now};
pub use haul_io::process::{forbid_core_dumps, is_ignored as is_signal_ignored, is_root};

/// Default port of `haul serve`, TCP and UDP.
pub const DEFAULT_PORT: u16 = 4725;

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
