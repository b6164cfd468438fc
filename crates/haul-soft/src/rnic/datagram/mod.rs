//! Queue pairs with many peers: datagram services over UDP (docs/protocol/datagram.md).
//!
//! What flows through: requests go into the queue pair's core, which makes segments of them. The
//! engine puts header, payload and checksum of each behind each other, and those of one length to
//! one peer leave together for the kernel to cut. A small request is posted, sent and complete in
//! one call, with one system call. What arrives is checked as a whole (CRC, form) where the kernel
//! has put it, then the core names the place of the payload, and it is copied there, once.
//!
//! A service is a member of its shard as connections are (docs/adr/0008): one socket, no thread.
//! Nothing that arrives ends it.
//!
//! Map: `service` a queue pair inside its shard, `admission` what it takes · `service_socket` its
//! socket · `core` both kinds of core as one, `request` what they are asked · `memory` what it may
//! touch · `work` between the verbs' words and the core's · `outbox` datagrams on their way to the
//! kernel · `routes` where answers come from, and what was asked of routes · `bucket` the rate ·
//! `records` what Write-Records have left · `validation` which peers know this end · `sealing`
//! encrypts and authenticates: `association` the keys of two ends, `replay` what came before.

mod admission;
mod association;
mod bucket;
mod core;
mod memory;
mod outbox;
mod records;
mod replay;
mod request;
mod routes;
mod sealing;
mod service;
mod service_socket;
mod tools;
mod validation;
mod work;

pub(super) use admission::{admit, steps};
pub(super) use outbox::Outbox;
pub(super) use service::Service;
pub(super) use tools::Tools;
