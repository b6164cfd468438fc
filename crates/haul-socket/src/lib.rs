//! The socket interface (paper datagram-iwarp-2011 §V.A): an unmodified application's UDP sockets
//! on UD, its TCP connections on RC, wherever the peer speaks it too.
//!
//! Two users, one table. The shim that is preloaded into applications calls the functions of
//! c/preload/haul_socket.h, which are here: they make the application's system calls with headers
//! and checksums around its bytes, on the application's own descriptors, and start no thread. `haul
//! run` is the agent: it asks other hosts' agents and answers them. Between the two is the table,
//! in shared memory, and no call. See docs/adr/0014-socket-interface.md.
//!
//! Map: `border` the C functions · `process` descriptors to records · `connect` what becomes of a
//! socket · `datagram`, `frame` UDP · `stream`, `buffer` TCP · `gateway` TCP through gateways ·
//! `supervisor` applications without the library · [`table`] shared memory · [`agent`], `wire`
//! discovery · `live` which sockets still exist · [`run`] for `haul run` · `sys` system calls and
//! the application's memory · `map`, `lock`.
#![warn(missing_docs)]

pub mod agent;
mod border;
mod buffer;
mod connect;
mod datagram;
mod frame;
pub mod fuzzing;
mod gateway;
mod live;
mod lock;
mod map;
mod process;
pub mod run;
mod stream;
mod supervisor;
mod sys;
pub mod table;
mod wire;

pub use border::*;

/// Makes the agent of this process speak the next minor version.
#[cfg(debug_assertions)]
#[doc(hidden)]
pub fn pretend_next() {
    wire::pretend_next();
}
