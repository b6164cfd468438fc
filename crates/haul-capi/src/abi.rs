//! The structures and numbers of include/haul.h, under its names. That header documents them;
//! `tests/header` compares the two word by word, and their layout through a C compiler.
//!
//! Structures that begin with `size` may grow at their end; the others have reserved room and never
//! change.

use std::ffi::{c_char, c_void};

use libc::sockaddr_storage;

pub use crate::border::Growing;
use crate::handle::{haul_conn_request, haul_cq, haul_srq};
pub use crate::number::*;

macro_rules! growing {
    ($($name:ident: $min:literal),* $(,)?) => {
        $(
            // SAFETY: plain numbers, arrays of them and raw pointers in C's layout; `size` comes
            // first.
            unsafe impl Growing for $name {
                const ROOM_MIN: usize = $min;
            }
            const _: () = assert!(std::mem::offset_of!($name, size) == 0 && size_of::<$name>() >= $min);
        )*
    };
}

growing!(
    haul_stream_options: 40,
    haul_stream_info: 448,
    haul_device_info: 152,
    haul_provider_info: 280,
    haul_open_options: 32,
    haul_mr_info: 40,
    haul_mr_init: 48,
    haul_datagram_init: 40,
    haul_datagram_statistics: 136,
    haul_qp_init: 56,
    haul_qp_info: 296,
    haul_srq_init: 24,
    haul_conn_param: 24,
    haul_cm_event: 928,
    haul_async_event: 24,
);

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_device_info {
    pub size: u32,
    pub transport: u32,
    pub caps: u64,
    pub name: [c_char; 64],
    pub provider: [c_char; 16],
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_sge: u32,
    pub max_inline: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_mr_size: u64,
    pub max_message: u64,
    pub max_rd_atomic: u32,
    pub max_init_rd_atomic: u32,
    pub max_private_data: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_provider_info {
    pub size: u32,
    pub devices: u32,
    pub name: [c_char; 16],
    pub reason: [c_char; 256],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_open_options {
    pub size: u32,
    pub flags: u32,
    pub shards: u32,
    pub fpdu_max: u32,
    pub socket_buffer: u64,
    pub pcap: *const c_char,
    pub rate_bps: u64,
    pub connect_timeout_ns: u64,
    pub close_timeout_ns: u64,
    pub peer_timeout_ns: u64,
    pub protect: *const c_char,
    pub engine_cpus: *const c_char,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_mr_info {
    pub size: u32,
    pub access: u32,
    pub lkey: u32,
    pub rkey: u32,
    pub addr: u64,
    pub len: u64,
    pub ptr: *mut c_void,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_mr_init {
    pub size: u32,
    pub access: u32,
    pub start: *mut c_void,
    pub len: usize,
    pub iova: u64,
    pub peers: *const haul_peer,
    pub peer_count: u32,
    pub sources: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct haul_peer {
    pub addr: [u8; 16],
    pub scope_id: u32,
    pub qp_num: u32,
    pub port: u16,
    pub reserved: [u16; 3],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_datagram_init {
    pub size: u32,
    pub flags: u32,
    pub records: u32,
    pub path_mtu: u16,
    pub multicast_ttl: u8,
    pub tail_repeats: u8,
    pub max_rate: u64,
    pub read_timeout_ns: u64,
    pub retries: u8,
    pub reserved: [u8; 7],
    pub seal_key: *const c_void,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct haul_range {
    pub start: u32,
    pub end: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_record {
    pub ranges: *mut haul_range,
    pub ranges_room: u32,
    pub ranges_len: u32,
    pub source: haul_peer,
    pub addr: u64,
    pub rkey: u32,
    pub message: u32,
    pub len: u32,
    pub valid: u32,
    pub status: u32,
    pub flags: u32,
    pub imm: u32,
    pub reserved: [u32; 5],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_datagram_statistics {
    pub size: u32,
    pub reserved: u32,
    pub sent: u64,
    pub received: u64,
    pub bad_checksum: u64,
    pub malformed: u64,
    pub unknown_qp: u64,
    pub no_receive: u64,
    pub too_long: u64,
    pub duplicates: u64,
    pub incomplete: u64,
    pub refused: u64,
    pub late: u64,
    pub evicted: u64,
    pub resent: u64,
    pub peers: u64,
    pub peer_bytes: u64,
    pub kernel_drops: u64,
    pub undelivered: u64,
    pub unsealed: u64,
    pub forged: u64,
    pub replayed: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_qp_init {
    pub size: u32,
    pub r#type: u32,
    pub flags: u32,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline: u32,
    pub send_cq: *const haul_cq,
    pub recv_cq: *const haul_cq,
    pub srq: *const haul_srq,
    pub datagram: *const haul_datagram_init,
    pub max_rate_bps: u64,
    pub max_burst: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_qp_info {
    pub size: u32,
    pub qp_num: u32,
    pub state: u32,
    pub blame: u32,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline: u32,
    pub reserved: u32,
    pub reason: [c_char; 256],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_srq_init {
    pub size: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    pub reserved: u32,
    pub token: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_sge {
    pub addr: u64,
    pub len: u32,
    pub lkey: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_send_wr {
    pub wr_id: u64,
    pub opcode: u32,
    pub flags: u32,
    pub sges: *const haul_sge,
    pub num_sge: u32,
    pub data: u32,
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_recv_wr {
    pub wr_id: u64,
    pub sges: *const haul_sge,
    pub num_sge: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub byte_len: u32,
    pub qp_num: u32,
    pub flags: u32,
    pub data: u32,
    pub src_qp: u32,
    pub vendor_err: u32,
    pub src_addr: [u8; 16],
    pub src_scope_id: u32,
    pub src_port: u16,
    pub reserved: u16,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_endpoint {
    pub qp_num: u32,
    pub psn: u32,
    pub lid: u16,
    pub port: u16,
    pub reserved: u32,
    pub gid: [u8; 16],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_conn_param {
    pub size: u32,
    pub private_data_len: u32,
    pub private_data: *const c_void,
    pub responder_resources: u16,
    pub initiator_depth: u16,
    pub rnr_retry_count: u8,
    pub retry_count: u8,
    pub reserved: [u8; 2],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_cm_event {
    pub size: u32,
    pub r#type: u32,
    pub qp_num: u32,
    pub blame: u32,
    pub request: *mut haul_conn_request,
    pub responder_resources: u16,
    pub initiator_depth: u16,
    pub private_data_len: u32,
    pub peer: sockaddr_storage,
    pub private_data: [u8; 512],
    pub reason: [c_char; 256],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_stream_options {
    pub size: u32,
    pub reserved: u32,
    pub send_bytes: u64,
    pub receive_bytes: u64,
    pub connect_timeout_ns: u64,
    pub silence_timeout_ns: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_stream_info {
    pub size: u32,
    pub flags: u32,
    pub peer: sockaddr_storage,
    pub given_bytes: u64,
    pub arrived_bytes: u64,
    pub come_bytes: u64,
    pub received_bytes: u64,
    pub resent_bytes: u64,
    pub rtt_ns: u64,
    pub rate_bps: u64,
    pub reason: [c_char; 256],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct haul_async_event {
    pub size: u32,
    pub r#type: u32,
    pub qp_num: u32,
    pub reserved: u32,
    pub token: u64,
}
