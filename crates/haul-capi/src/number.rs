//! The numbers of include/haul.h, under its names.

pub const HAUL_ABI_VERSION: u32 = 0x0001_0004;

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
pub const HAUL_OPEN_ENGINE: u32 = 1 << 2;

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
pub const HAUL_SEAL_KEY_LEN: u32 = 32;

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
