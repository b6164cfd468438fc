//! What applications hold: contexts, protection domains, memory regions, queues and queue pairs.
//!
//! Map: `device` what all of them share, `context` and `domain` how they are made · `qp`,
//! `datagram_qp` queue pairs, `qp_shape` what both are made from, `front` what is posted to where
//! an engine drives, `source` receives that nobody posts · `cq`, `srq`, `event_channel` queues ·
//! `listener`, `request`, `endpoint` how connections are made · `spin` whether to look or to sleep.

mod context;
mod cq;
mod datagram_qp;
mod device;
mod domain;
mod endpoint;
mod event_channel;
mod front;
mod listener;
mod qp;
mod qp_shape;
mod request;
mod source;
mod spin;
mod srq;

pub(super) use context::open;
pub use source::{check_receive, check_send, note_receives, receive_from, share_receives_from};
