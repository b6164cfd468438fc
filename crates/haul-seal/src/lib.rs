//! Keys of a sealed data channel, and datagrams and records under them.
//!
//! No I/O, no clock, no threads. Both ends hold the same [`Secret`], which they derived from their
//! control connection. [`Keys::new`] splits it by direction into a [`Sealer`] and an [`Opener`].
//! Datagrams carry numbers that their transport assigns (docs/protocol/udt.md); byte streams carry
//! [`record`]s in the format of TLS 1.3 (docs/protocol/session.md).
//!
//! Map: [`Secret`], [`Cipher`] and key derivation · [`Keys`] keys of both directions and their
//! generations · [`record`] what a byte stream carries · [`handshake`] where keys come from without
//! a control connection.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod handshake;
mod keys;
pub mod record;
mod secret;

pub use keys::{Keys, Opener, SealError, Sealer, Side, TAG_LEN};
pub use secret::{Cipher, Seal, Secret};
