//! The control connection of files, benches and gateways: TLS 1.3, the identities at its ends, and
//! framed messages inside.
//!
//! A byte stream (TCP, or the standard input and output of an ssh child) carries TLS. The first
//! message of each end inside TLS is its greeting; messages of a service, heartbeats and at most
//! one fault follow. docs/protocol/control.md specifies the wire.
//!
//! Map: [`identity`] keys, and who the peer is · [`trust`] whom an end accepts, and what an
//! admitted client may do · `tls` both as configurations of rustls, and failures in words ·
//! [`connection`] the handshake and the exporter · [`duplex`] sender and receiver of a running
//! connection · [`frame`] messages on the wire · [`stream`] the byte stream below · [`server`] the
//! port that all services share · `older` the answer to a client without TLS · [`pending`] clients
//! without a greeting · [`protect`] connections without a control connection · [`authorized`] a
//! server's clients and [`known`] a client's servers, as files · [`pairing`] two keys by a short
//! code · [`penalty`] of sources whose logins fail · [`audit`] entries of sessions · [`cancel`]
//! ending an operation from another thread · [`fault`] failures · `text` texts of peers
//! · `next` the next version, in builds for tests.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this crate opens connections and files and runs on the clock; the cores do not"
)]

use std::sync::{Mutex, MutexGuard, PoisonError};

pub mod audit;
pub mod authorized;
pub mod cancel;
pub mod connection;
pub mod duplex;
pub mod fault;
pub mod frame;
pub mod identity;
pub mod known;
#[doc(hidden)]
pub mod next;
mod older;
pub mod pairing;
pub mod penalty;
pub mod pending;
pub mod protect;
pub mod server;
pub mod stream;
mod text;
mod tls;
pub mod trust;

#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod spec;
#[cfg(test)]
mod tests;

pub use text::{abridged, printable};

/// Software and version in this end's greeting.
pub const SOFTWARE: &str = concat!("haul ", env!("CARGO_PKG_VERSION"));

/// The protocol version of this build, as the ALPN name of TLS.
pub const PROTOCOL: &str = "haul/1";

/// Locks, also after another thread has panicked: no holder leaves partial state behind.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
