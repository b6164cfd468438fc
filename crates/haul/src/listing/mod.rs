//! Listings of a server's trees, with digests: what `haul ls` and `haul verify` ask for.
//!
//! A service of its own beside the transfers, without a data channel. The server walks a tree and
//! sends its entries in batches; the client grants credit for them, so that neither end holds the
//! whole. docs/protocol/listing.md specifies the wire.
//!
//! Map: `wire` the messages · [`digest`] the digests of files · [`delete`] the removal of entries ·
//! `server` and [`client`] the ends · [`verify`] the comparison of two trees.

pub mod client;
pub mod delete;
pub mod digest;
pub(crate) mod server;
pub mod verify;
pub(crate) mod wire;
