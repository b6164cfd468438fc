//! The lower layers: [`stream`] TCP through MPA, [`message`] one segment per message.

mod agree;
mod connection;
pub(crate) mod message;
mod segment;
pub(crate) mod stream;

pub use agree::Params;
pub use connection::ReliableConnection;
pub use segment::{HEADER_MAX, Segment, TRAILER_MAX};
