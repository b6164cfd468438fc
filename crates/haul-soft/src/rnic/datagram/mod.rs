//! Queue pairs that talk to many: datagram services over UDP (docs/protocol/datagram.md).
//!
//! What flows through: requests go into the queue pair's core, which makes segments of them. The
//! engine puts header, payload and checksum of each behind each other, and those of one length to
//! one peer leave together for the kernel to cut. A small request is posted, sent and complete in
//! one call, with one system call. What arrives is checked as a whole (CRC, form) where the kernel
//! has put it, then the core says where the payload belongs, and it is copied there, once.
//!
//! A service is a member of its shard as connections are (docs/adr/0008): one socket, no thread.
//! Nothing that arrives ends it.
//!
//! Map: `service` a queue pair inside its shard · `link` its socket · `qp` what applications hold ·
//! `core` both kinds of core as one · `memory` what it may touch · `work` between the verbs' words
//! and the core's · `outbox` datagrams on their way to the kernel · `routes` where answers come
//! from, and what was asked of routes · `bucket` the rate · `records` what Write-Records have left
//! · `standing` who knows this end.

mod bucket;
mod core;
mod link;
mod memory;
mod outbox;
mod qp;
mod records;
mod routes;
mod service;
mod standing;
mod work;

pub(super) use outbox::Outbox;
pub(super) use qp::DatagramQp;
pub(super) use service::{Service, Tools};

use haul_io::udp::UdpOptions;

/// Octets of the sockets' buffers where the user does not say: twenty milliseconds of a gigabit per
/// second, which takes memory only while datagrams wait.
const SOCKET_BUFFER: usize = 4 << 20;

fn socket_options(buffer: Option<usize>) -> UdpOptions {
    UdpOptions {
        recv_buffer_bytes: buffer.unwrap_or(SOCKET_BUFFER),
        send_buffer_bytes: buffer.unwrap_or(SOCKET_BUFFER),
        report_destination: true,
        report_errors: true,
        timestamps: false,
        ..UdpOptions::default()
    }
}
