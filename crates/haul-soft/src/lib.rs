//! The engine: threads that own transports and join the protocol cores to sockets.
//!
//! Map: [`bulk`] what a channel moves.

pub mod bulk;
