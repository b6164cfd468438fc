//! The structures and numbers of include/haul.h, under its names. What they mean is said there;
//! `tests/header.rs` compares the two word by word, and their layout through a C compiler.
//!
//! Structures that begin with `size` may grow at their end; the others have reserved room and never
//! change.

use std::ffi::{c_char, c_void};

use libc::sockaddr_storage;

use crate::cm::haul_conn_request;
use crate::completion::haul_cq;
use crate::queue::haul_srq;

pub const HAUL_ABI_VERSION: u32 = 0x0001_0003;

pub const HAUL_OK: i32 = 0;
pub const HAUL_ERR_UNSUPPORTED: i32 = -1;
pub const HAUL_ERR_INVALID: i32 = -2;
pub const HAUL_ERR_FULL: i32 = -3;
pub const HAUL_ERR_STATE: i32 = -4;
pub const HAUL_ERR_EXHAUSTED: i32 = -5;
pub const HAUL_ERR_BUSY: i32 = -6;
pub const HAUL_ERR_CQ_OVERFLOW: i32 = -7;
pub const HAUL_ERR_OS: i32 = -8;
pub const HAUL_ERR_TIMED_OUT: i32 = -9;
pub const HAUL_ERR_NO_DEVICE: i32 = -10;
pub const HAUL_ERR_INTERNAL: i32 = -11;
pub const HAUL_ERR_ENDED: i32 = -12;
pub const HAUL_ERR_DISCONNECTED: i32 = -13;

pub const HAUL_TRANSPORT_OTHER: u32 = 0;
pub const HAUL_TRANSPORT_IWARP: u32 = 1;
pub const HAUL_TRANSPORT_IWARP_UDT: u32 = 2;
pub const HAUL_TRANSPORT_ROCE: u32 = 3;
pub const HAUL_TRANSPORT_INFINIBAND: u32 = 4;
pub const HAUL_TRANSPORT_IWARP_UDP: u32 = 5;

pub const HAUL_CAP_ATOMIC: u64 = 1;
pub const HAUL_CAP_SRQ: u64 = 1 << 1;
pub const HAUL_CAP_SEND_WITH_INV: u64 = 1 << 2;
pub const HAUL_CAP_WRITE_WITH_IMM: u64 = 1 << 3;
pub const HAUL_CAP_SEND_WITH_IMM: u64 = 1 << 4;
pub const HAUL_CAP_UD: u64 = 1 << 5;
pub const HAUL_CAP_ZERO_BASED: u64 = 1 << 6;
pub const HAUL_CAP_REMOTE_PLACEMENT: u64 = 1 << 7;
pub const HAUL_CAP_ENDPOINTS: u64 = 1 << 8;
pub const HAUL_CAP_RD: u64 = 1 << 9;
pub const HAUL_CAP_RC: u64 = 1 << 10;
pub const HAUL_CAP_WRITE_RECORD: u64 = 1 << 11;
pub const HAUL_CAP_STREAM: u64 = 1 << 12;
pub const HAUL_CAP_RATE_LIMIT: u64 = 1 << 13;

pub const HAUL_STREAM_OPEN: u32 = 1;
pub const HAUL_STREAM_READABLE: u32 = 1 << 1;
pub const HAUL_STREAM_WRITABLE: u32 = 1 << 2;
pub const HAUL_STREAM_SENT: u32 = 1 << 3;
pub const HAUL_STREAM_OVER: u32 = 1 << 4;

pub const HAUL_STREAM_PLAIN: u32 = 1;
pub const HAUL_STREAM_PEER_ENDED: u32 = 1 << 1;

pub const HAUL_OPEN_NO_CRC: u32 = 1;
pub const HAUL_OPEN_STRICT: u32 = 1 << 1;

pub const HAUL_ACCESS_LOCAL_WRITE: u32 = 1;
pub const HAUL_ACCESS_REMOTE_WRITE: u32 = 1 << 1;
pub const HAUL_ACCESS_REMOTE_READ: u32 = 1 << 2;
pub const HAUL_ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;
pub const HAUL_ACCESS_REMOTE_INVALIDATE: u32 = 1 << 4;
pub const HAUL_ACCESS_ZERO_BASED: u32 = 1 << 31;

pub const HAUL_PEER_GROUP: u32 = 0x00ff_ffff;
pub const HAUL_PEER_ANY_QP: u32 = 0xffff_ffff;

pub const HAUL_SOURCES_VALIDATED: u32 = 0;
pub const HAUL_SOURCES_ANY: u32 = 1;
pub const HAUL_SOURCES_PEERS: u32 = 2;

pub const HAUL_QPT_RC: u32 = 0;
pub const HAUL_QPT_UD: u32 = 1;
pub const HAUL_QPT_RD: u32 = 2;

pub const HAUL_QP_SIGNAL_ALL: u32 = 1;
pub const HAUL_QP_REMOTE_PLACEMENT: u32 = 1 << 1;

pub const HAUL_RECORDS_AGGREGATE: u32 = 0;
pub const HAUL_RECORDS_PER_CHUNK: u32 = 1;
pub const HAUL_RECORDS_QUERY: u32 = 2;

pub const HAUL_DATAGRAM_MULTICAST_LOOP: u32 = 1;
pub const HAUL_DATAGRAM_GROUP_WRITES: u32 = 1 << 1;
pub const HAUL_DATAGRAM_PEER_ERROR_FATAL: u32 = 1 << 2;
pub const HAUL_DATAGRAM_RECEIVES_IN_ORDER: u32 = 1 << 3;

pub const HAUL_RECORD_OPEN: u32 = 0;
pub const HAUL_RECORD_FULL: u32 = 1;
pub const HAUL_RECORD_PARTIAL: u32 = 2;
pub const HAUL_RECORD_AGED: u32 = 3;
pub const HAUL_RECORD_SUPERSEDED: u32 = 4;
pub const HAUL_RECORD_EVICTED: u32 = 5;
pub const HAUL_RECORD_REVOKED: u32 = 6;
pub const HAUL_RECORD_CHUNK: u32 = 7;
pub const HAUL_RECORD_OTHER: u32 = 255;

pub const HAUL_RECORD_WITH_IMM: u32 = 1;
pub const HAUL_RECORD_RANGES_MAX: u32 = 64;

pub const HAUL_QPS_RESET: u32 = 0;
pub const HAUL_QPS_INIT: u32 = 1;
pub const HAUL_QPS_RTR: u32 = 2;
pub const HAUL_QPS_RTS: u32 = 3;
pub const HAUL_QPS_SQD: u32 = 4;
pub const HAUL_QPS_SQE: u32 = 5;
pub const HAUL_QPS_ERR: u32 = 6;

pub const HAUL_BLAME_NONE: u32 = 0;
pub const HAUL_BLAME_LOCAL: u32 = 1;
pub const HAUL_BLAME_PEER: u32 = 2;
pub const HAUL_BLAME_PEER_COMPLAINS: u32 = 3;
pub const HAUL_BLAME_NETWORK: u32 = 4;

pub const HAUL_SGE_MAX: u32 = 4;
pub const HAUL_INLINE_MAX: u32 = 4096;

pub const HAUL_WR_SEND: u32 = 0;
pub const HAUL_WR_SEND_WITH_IMM: u32 = 1;
pub const HAUL_WR_SEND_WITH_INV: u32 = 2;
pub const HAUL_WR_RDMA_WRITE: u32 = 3;
pub const HAUL_WR_RDMA_WRITE_WITH_IMM: u32 = 4;
pub const HAUL_WR_RDMA_READ: u32 = 5;
pub const HAUL_WR_COMPARE_SWAP: u32 = 6;
pub const HAUL_WR_FETCH_ADD: u32 = 7;
pub const HAUL_WR_LOCAL_INV: u32 = 8;
pub const HAUL_WR_WRITE_RECORD: u32 = 9;
pub const HAUL_WR_WRITE_RECORD_WITH_IMM: u32 = 10;

pub const HAUL_SEND_SIGNALED: u32 = 1;
pub const HAUL_SEND_FENCE: u32 = 1 << 1;
pub const HAUL_SEND_SOLICITED: u32 = 1 << 2;
pub const HAUL_SEND_INLINE: u32 = 1 << 3;

pub const HAUL_WC_SUCCESS: u32 = 0;
pub const HAUL_WC_LOC_LEN_ERR: u32 = 1;
pub const HAUL_WC_LOC_QP_OP_ERR: u32 = 2;
pub const HAUL_WC_LOC_PROT_ERR: u32 = 4;
pub const HAUL_WC_WR_FLUSH_ERR: u32 = 5;
pub const HAUL_WC_MW_BIND_ERR: u32 = 6;
pub const HAUL_WC_BAD_RESP_ERR: u32 = 7;
pub const HAUL_WC_LOC_ACCESS_ERR: u32 = 8;
pub const HAUL_WC_REM_INV_REQ_ERR: u32 = 9;
pub const HAUL_WC_REM_ACCESS_ERR: u32 = 10;
pub const HAUL_WC_REM_OP_ERR: u32 = 11;
pub const HAUL_WC_RETRY_EXC_ERR: u32 = 12;
pub const HAUL_WC_RNR_RETRY_EXC_ERR: u32 = 13;
pub const HAUL_WC_REM_ABORT_ERR: u32 = 16;
pub const HAUL_WC_FATAL_ERR: u32 = 19;
pub const HAUL_WC_RESP_TIMEOUT_ERR: u32 = 20;
pub const HAUL_WC_GENERAL_ERR: u32 = 21;

pub const HAUL_WC_SEND: u32 = 0;
pub const HAUL_WC_RDMA_WRITE: u32 = 1;
pub const HAUL_WC_RDMA_READ: u32 = 2;
pub const HAUL_WC_COMPARE_SWAP: u32 = 3;
pub const HAUL_WC_FETCH_ADD: u32 = 4;
pub const HAUL_WC_LOCAL_INV: u32 = 6;
pub const HAUL_WC_WRITE_RECORD: u32 = 64;
pub const HAUL_WC_RECV: u32 = 128;
pub const HAUL_WC_RECV_RDMA_WITH_IMM: u32 = 129;
pub const HAUL_WC_RECV_WRITE_RECORD: u32 = 192;
pub const HAUL_WC_OTHER: u32 = 255;

pub const HAUL_WC_WITH_IMM: u32 = 1;
pub const HAUL_WC_WITH_INV: u32 = 1 << 1;
pub const HAUL_WC_WITH_SRC: u32 = 1 << 2;

pub const HAUL_CM_CONNECT_REQUEST: u32 = 1;
pub const HAUL_CM_ESTABLISHED: u32 = 2;
pub const HAUL_CM_REJECTED: u32 = 3;
pub const HAUL_CM_UNREACHABLE: u32 = 4;
pub const HAUL_CM_DISCONNECTED: u32 = 5;
pub const HAUL_CM_OTHER: u32 = 255;

pub const HAUL_PRIVATE_DATA_MAX: u32 = 512;

pub const HAUL_ASYNC_CQ_ERROR: u32 = 1;
pub const HAUL_ASYNC_QP_FATAL: u32 = 2;
pub const HAUL_ASYNC_QP_ACCESS_ERROR: u32 = 3;
pub const HAUL_ASYNC_COMM_ESTABLISHED: u32 = 4;
pub const HAUL_ASYNC_SRQ_LIMIT_REACHED: u32 = 5;
pub const HAUL_ASYNC_DEVICE_FATAL: u32 = 6;
pub const HAUL_ASYNC_DATAGRAM_REFUSED: u32 = 7;
pub const HAUL_ASYNC_DATAGRAM_UNDELIVERED: u32 = 8;
pub const HAUL_ASYNC_OTHER: u32 = 255;

/// A structure that begins with its `size` and may grow at its end.
///
/// # Safety
/// `repr(C)`, its first field is `size: u32`, every pattern of bits is a value of it, and
/// [`Growing::ROOM_MIN`] is at least 4.
pub unsafe trait Growing: Copy {
    /// What it was in the first version of the interface, bytes. No program has a shorter one.
    const ROOM_MIN: usize;
}

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
