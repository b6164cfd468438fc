//! The software RNIC: verbs over kernel sockets, without privileges, on any host.
//!
//! What flows through: work requests go into a queue pair's core (`haul-iwarp`), which makes
//! segments of them; headers and payload are gathered from registered memory into one system call.
//! What arrives goes through a small buffer that all connections of a shard share, just so far that
//! the headers can be read; payload is received straight into its place.
//!
//! **Whoever waits drives** (docs/adr/0008). A *shard* owns a poller and queue pairs, behind a
//! mutex that is its *baton*. An application's thread that posts, polls or waits takes the baton
//! and moves the shard's connections itself: no other thread stands between it and the socket. The
//! shard's engine thread does so only while nobody else does.
//!
//! **Or the engine alone drives** ([`Drive::Engine`], docs/adr/0057): posts go through a queue to
//! the engine thread, and applications look at completion queues.
//!
//! Rooms, from the top down; each takes names only from those below it (docs/adr/0026):
//! `provider` the devices · `object` what applications hold · `shard` the lock and the engine
//! thread · `pair` a queue pair inside its shard, `datagram` one without a connection · `link` a
//! connection, over TCP or UDT · `queue`, `events`, `shape` what a shard and applications share of
//! completion queues, event channels and queue pairs · `operation` from work requests to the
//! operations of a core · `buffers`, `shared_receives`, `slots`, `places` from work requests to
//! memory · `posts` work requests on their way to an engine · `tap` what was sent and received, as
//! pcap · `options`, `limits`, `time`, `lock`.

mod buffers;
mod datagram;
mod events;
mod limits;
mod link;
mod lock;
mod object;
mod operation;
mod options;
mod pair;
mod places;
mod posts;
mod provider;
mod queue;
mod shape;
mod shard;
mod shared_receives;
mod slots;
mod tap;
mod time;

pub use haul_io::thread::Cpus;
pub use haul_seal::handshake::Protect;
pub use object::{check_receive, check_send, note_receives, receive_from, share_receives_from};
pub use options::{Drive, Options};
pub use provider::{PROVIDER, provider};
pub use shared_receives::ReceiveSource;
