//! Instructions to the engine for the bytes of a stream.

use crate::memory::Placement;

/// The instruction for the stream's next bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Feed them to [`crate::StreamConnection::handle_bytes`]; fewer than `at_least` will not lead
    /// to a placement.
    More {
        /// Bytes.
        at_least: usize,
    },
    /// They are payload. Place them there, from a buffer or straight from the stream, run
    /// [`crate::StreamConnection::digest`] over them if CRCs are in use, and call
    /// [`crate::StreamConnection::handle_placed`]. This may be done in parts.
    Place(Placement),
    /// Strict: they are payload that is not verified. The same, into a stage of 64 KiB, `offset`
    /// bytes into it.
    Stage {
        /// Bytes from the start of the stage.
        offset: u32,
        /// Bytes.
        len: u32,
    },
    /// Strict: not the next bytes, but the first of the stage, are verified payload. Copy them
    /// there, and call [`crate::StreamConnection::handle_unstaged`].
    Unstage(Placement),
}

/// The answer to bytes of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// How many were taken.
    pub consumed: usize,
    /// The instruction for the rest, and for the bytes that have not arrived yet.
    pub next: Next,
}
