//! `infiniband/verbs.h`.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{functions, layouts};

/// `enum ibv_transport_type`: iWARP.
pub(crate) const TRANSPORT_IWARP: c_int = 1;
/// `enum ibv_transport_type`: InfiniBand, and RoCE.
pub(crate) const TRANSPORT_IB: c_int = 0;

/// `IBV_LINK_LAYER_ETHERNET`.
pub(crate) const LINK_LAYER_ETHERNET: u8 = 2;

/// `enum ibv_atomic_cap`.
pub(crate) const ATOMIC_NONE: c_int = 0;

/// `enum ibv_access_flags`.
pub(crate) mod access {
    use std::ffi::c_int;

    pub(crate) const LOCAL_WRITE: c_int = 1;
    pub(crate) const REMOTE_WRITE: c_int = 1 << 1;
    pub(crate) const REMOTE_READ: c_int = 1 << 2;
    pub(crate) const REMOTE_ATOMIC: c_int = 1 << 3;
}

/// `enum ibv_qp_type`: reliable connection.
pub(crate) const QPT_RC: c_int = 2;

/// `enum ibv_qp_state`.
pub(crate) mod qp_state {
    use std::ffi::c_int;

    pub(crate) const INIT: c_int = 1;
    pub(crate) const RTR: c_int = 2;
    pub(crate) const RTS: c_int = 3;
    pub(crate) const ERR: c_int = 6;
}

/// `enum ibv_qp_attr_mask`.
pub(crate) mod qp_mask {
    use std::ffi::c_int;

    pub(crate) const STATE: c_int = 1 << 0;
    pub(crate) const ACCESS_FLAGS: c_int = 1 << 3;
    pub(crate) const PKEY_INDEX: c_int = 1 << 4;
    pub(crate) const PORT: c_int = 1 << 5;
    pub(crate) const AV: c_int = 1 << 7;
    pub(crate) const PATH_MTU: c_int = 1 << 8;
    pub(crate) const TIMEOUT: c_int = 1 << 9;
    pub(crate) const RETRY_CNT: c_int = 1 << 10;
    pub(crate) const RNR_RETRY: c_int = 1 << 11;
    pub(crate) const RQ_PSN: c_int = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    pub(crate) const MIN_RNR_TIMER: c_int = 1 << 15;
    pub(crate) const SQ_PSN: c_int = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub(crate) const DEST_QPN: c_int = 1 << 20;
}

/// `enum ibv_wr_opcode`.
pub(crate) mod wr {
    use std::ffi::c_int;

    pub(crate) const RDMA_WRITE: c_int = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: c_int = 1;
    pub(crate) const SEND: c_int = 2;
    pub(crate) const SEND_WITH_IMM: c_int = 3;
    pub(crate) const RDMA_READ: c_int = 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: c_int = 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: c_int = 6;
    pub(crate) const SEND_WITH_INV: c_int = 9;
}

/// `enum ibv_send_flags`.
pub(crate) mod send_flag {
    use std::ffi::c_uint;

    pub(crate) const FENCE: c_uint = 1 << 0;
    pub(crate) const SIGNALED: c_uint = 1 << 1;
    pub(crate) const SOLICITED: c_uint = 1 << 2;
    pub(crate) const INLINE: c_uint = 1 << 3;
}

/// `enum ibv_wc_opcode`.
pub(crate) mod wc {
    use std::ffi::c_int;

    pub(crate) const RDMA_WRITE: c_int = 1;
    pub(crate) const RDMA_READ: c_int = 2;
    pub(crate) const COMP_SWAP: c_int = 3;
    pub(crate) const FETCH_ADD: c_int = 4;
    pub(crate) const RECV: c_int = 1 << 7;
    pub(crate) const RECV_RDMA_WITH_IMM: c_int = RECV + 1;
}

/// `enum ibv_wc_flags`.
pub(crate) mod wc_flag {
    use std::ffi::c_uint;

    pub(crate) const WITH_IMM: c_uint = 1 << 1;
    pub(crate) const WITH_INV: c_uint = 1 << 3;
}

/// `enum ibv_srq_attr_mask`: the limit below which an event tells.
pub(crate) const SRQ_LIMIT: c_int = 1 << 1;

/// `enum ibv_event_type`, as far as haul-verbs has words for it.
pub(crate) mod event {
    use std::ffi::c_int;

    pub(crate) const CQ_ERR: c_int = 0;
    pub(crate) const QP_FATAL: c_int = 1;
    pub(crate) const QP_REQ_ERR: c_int = 2;
    pub(crate) const QP_ACCESS_ERR: c_int = 3;
    pub(crate) const COMM_EST: c_int = 4;
    pub(crate) const DEVICE_FATAL: c_int = 8;
    pub(crate) const SRQ_LIMIT_REACHED: c_int = 15;
}

/// `enum ibv_gid_type`.
pub(crate) mod gid_type {
    pub(crate) const ROCE_V2: u32 = 2;
}

/// `enum ibv_device_cap_flags`: local invalidation, Send with Invalidate.
pub(crate) const DEVICE_MEM_MGT_EXTENSIONS: c_uint = 1 << 21;

/// `enum ibv_mtu`: 1024 bytes.
pub(crate) const MTU_1024: c_int = 3;

/// `struct ibv_device`: the library's own, read by functions but for its transport.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Device {
    ops: [*mut c_void; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
}

/// `struct ibv_context_ops`: behind the verbs that are inline functions in C.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ContextOps {
    before_poll_cq: [*mut c_void; 11],
    pub(crate) poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    before_post_srq_recv: [*mut c_void; 7],
    pub(crate) post_srq_recv:
        Option<unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    before_post_send: [*mut c_void; 4],
    pub(crate) post_send:
        Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub(crate) post_recv:
        Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    after_post_recv: [*mut c_void; 5],
}

/// `struct ibv_context`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: *mut Device,
    pub(crate) ops: ContextOps,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
}

/// `struct ibv_pd`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) context: *mut Context,
}

/// `struct ibv_mr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CompChannel {
    context: *mut Context,
    pub(crate) fd: c_int,
}

/// `struct ibv_cq`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) context: *mut Context,
    channel: *mut CompChannel,
    pub(crate) cq_context: *mut c_void,
    handle: u32,
    pub(crate) cqe: c_int,
}

/// `struct ibv_srq`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) context: *mut Context,
    pub(crate) srq_context: *mut c_void,
}

/// `struct ibv_qp`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) context: *mut Context,
    qp_context: *mut c_void,
    pd: *mut Pd,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    srq: *mut Srq,
    handle: u32,
    pub(crate) qp_num: u32,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct DeviceAttr {
    pub(crate) fw_ver: [c_char; 64],
    /// Big-endian.
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_int,
    pub(crate) unused: [c_int; 11],
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct PortAttr {
    pub(crate) state: c_int,
    pub(crate) max_mtu: c_int,
    pub(crate) active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) unused: [u8; 8],
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) port_cap_flags2: u16,
}

/// `union ibv_gid`.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gid {
    pub(crate) raw: [u8; 16],
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct GidEntry {
    pub(crate) gid: Gid,
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

/// `struct ibv_async_event`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct AsyncEvent {
    /// The CQ, QP or SRQ that `event_type` speaks of.
    pub(crate) element: *mut c_void,
    pub(crate) event_type: c_int,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// The member `rdma` of the union in `struct ibv_send_wr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct RdmaWr {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// The member `atomic` of the union in `struct ibv_send_wr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AtomicWr {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// The union in `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union RemoteWr {
    pub(crate) rdma: RdmaWr,
    pub(crate) atomic: AtomicWr,
}

impl std::fmt::Debug for RemoteWr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RemoteWr")
    }
}

/// `struct ibv_send_wr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_int,
    pub(crate) send_flags: c_uint,
    /// Big-endian; or the key to invalidate, as it is.
    pub(crate) imm_data: u32,
    pub(crate) wr: RemoteWr,
    /// Extended reliable connections, memory windows and segmentation offload.
    pub(crate) unused: [u64; 7],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_int,
    pub(crate) opcode: c_int,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// Big-endian; or the key that was invalidated, as it is.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct QpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct QpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}

/// `struct ibv_global_route`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct GlobalRoute {
    pub(crate) dgid: Gid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AhAttr {
    pub(crate) grh: GlobalRoute,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct QpAttr {
    pub(crate) qp_state: c_int,
    pub(crate) cur_qp_state: c_int,
    pub(crate) path_mtu: c_int,
    pub(crate) path_mig_state: c_int,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: QpCap,
    pub(crate) ah_attr: AhAttr,
    pub(crate) alt_ah_attr: AhAttr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

/// `struct ibv_srq_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct SrqAttr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct SrqInitAttr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: SrqAttr,
}

layouts! {
    Device = "struct ibv_device" prefix { node_type "node_type" 16, transport_type "transport_type" 20 }
    ContextOps = "struct ibv_context_ops" 256 {
        poll_cq "poll_cq" 88, req_notify_cq "req_notify_cq" 96, post_srq_recv "post_srq_recv" 160,
        post_send "post_send" 200, post_recv "post_recv" 208,
    }
    Context = "struct ibv_context" prefix {
        device "device" 0, ops "ops" 8, cmd_fd "cmd_fd" 264, async_fd "async_fd" 268,
        num_comp_vectors "num_comp_vectors" 272,
    }
    Pd = "struct ibv_pd" prefix { context "context" 0 }
    Mr = "struct ibv_mr" 48 {
        context "context" 0, pd "pd" 8, addr "addr" 16, length "length" 24, handle "handle" 32, lkey "lkey" 36,
        rkey "rkey" 40,
    }
    CompChannel = "struct ibv_comp_channel" 16 { context "context" 0, fd "fd" 8 }
    Cq = "struct ibv_cq" prefix {
        context "context" 0, channel "channel" 8, cq_context "cq_context" 16, handle "handle" 24, cqe "cqe" 28,
    }
    Srq = "struct ibv_srq" prefix { context "context" 0, srq_context "srq_context" 8 }
    Qp = "struct ibv_qp" prefix {
        context "context" 0, qp_context "qp_context" 8, pd "pd" 16, send_cq "send_cq" 24, recv_cq "recv_cq" 32,
        srq "srq" 40, handle "handle" 48, qp_num "qp_num" 52,
    }
    DeviceAttr = "struct ibv_device_attr" 232 {
        fw_ver "fw_ver" 0, node_guid "node_guid" 64, max_mr_size "max_mr_size" 80, vendor_id "vendor_id" 96,
        max_qp "max_qp" 108, max_qp_wr "max_qp_wr" 112, max_sge "max_sge" 120, max_sge_rd "max_sge_rd" 124,
        max_cq "max_cq" 128, max_cqe "max_cqe" 132, max_mr "max_mr" 136, max_pd "max_pd" 140,
        max_qp_rd_atom "max_qp_rd_atom" 144, max_qp_init_rd_atom "max_qp_init_rd_atom" 156,
        atomic_cap "atomic_cap" 164, max_srq "max_srq" 212, max_srq_wr "max_srq_wr" 216,
        max_srq_sge "max_srq_sge" 220, max_pkeys "max_pkeys" 224, phys_port_cnt "phys_port_cnt" 227,
    }
    PortAttr = "struct ibv_port_attr" 52 {
        state "state" 0, active_mtu "active_mtu" 8, gid_tbl_len "gid_tbl_len" 12, max_msg_sz "max_msg_sz" 20,
        lid "lid" 34, sm_lid "sm_lid" 36, link_layer "link_layer" 46, flags "flags" 47,
        port_cap_flags2 "port_cap_flags2" 48,
    }
    Gid = "union ibv_gid" 16 { raw "raw" 0 }
    GidEntry = "struct ibv_gid_entry" 32 {
        gid "gid" 0, gid_index "gid_index" 16, port_num "port_num" 20, gid_type "gid_type" 24,
        ndev_ifindex "ndev_ifindex" 28,
    }
    AsyncEvent = "struct ibv_async_event" 16 { element "element" 0, event_type "event_type" 8 }
    Sge = "struct ibv_sge" 16 { addr "addr" 0, length "length" 8, lkey "lkey" 12 }
    RdmaWr = "__typeof__(((struct ibv_send_wr *)0)->wr.rdma)" 16 { remote_addr "remote_addr" 0, rkey "rkey" 8 }
    AtomicWr = "__typeof__(((struct ibv_send_wr *)0)->wr.atomic)" 32 {
        remote_addr "remote_addr" 0, compare_add "compare_add" 8, swap "swap" 16, rkey "rkey" 24,
    }
    SendWr = "struct ibv_send_wr" 128 {
        wr_id "wr_id" 0, next "next" 8, sg_list "sg_list" 16, num_sge "num_sge" 24, opcode "opcode" 28,
        send_flags "send_flags" 32, imm_data "imm_data" 36, wr "wr" 40,
    }
    RecvWr = "struct ibv_recv_wr" 32 { wr_id "wr_id" 0, next "next" 8, sg_list "sg_list" 16, num_sge "num_sge" 24 }
    Wc = "struct ibv_wc" 48 {
        wr_id "wr_id" 0, status "status" 8, opcode "opcode" 12, vendor_err "vendor_err" 16, byte_len "byte_len" 20,
        imm_data "imm_data" 24, qp_num "qp_num" 28, src_qp "src_qp" 32, wc_flags "wc_flags" 36,
        pkey_index "pkey_index" 40, slid "slid" 42, sl "sl" 44, dlid_path_bits "dlid_path_bits" 45,
    }
    QpCap = "struct ibv_qp_cap" 20 {
        max_send_wr "max_send_wr" 0, max_recv_wr "max_recv_wr" 4, max_send_sge "max_send_sge" 8,
        max_recv_sge "max_recv_sge" 12, max_inline_data "max_inline_data" 16,
    }
    QpInitAttr = "struct ibv_qp_init_attr" 64 {
        qp_context "qp_context" 0, send_cq "send_cq" 8, recv_cq "recv_cq" 16, srq "srq" 24, cap "cap" 32,
        qp_type "qp_type" 52, sq_sig_all "sq_sig_all" 56,
    }
    GlobalRoute = "struct ibv_global_route" 24 {
        dgid "dgid" 0, flow_label "flow_label" 16, sgid_index "sgid_index" 20, hop_limit "hop_limit" 21,
        traffic_class "traffic_class" 22,
    }
    AhAttr = "struct ibv_ah_attr" 32 {
        grh "grh" 0, dlid "dlid" 24, sl "sl" 26, src_path_bits "src_path_bits" 27, static_rate "static_rate" 28,
        is_global "is_global" 29, port_num "port_num" 30,
    }
    QpAttr = "struct ibv_qp_attr" 144 {
        qp_state "qp_state" 0, cur_qp_state "cur_qp_state" 4, path_mtu "path_mtu" 8, rq_psn "rq_psn" 20,
        sq_psn "sq_psn" 24, dest_qp_num "dest_qp_num" 28, qp_access_flags "qp_access_flags" 32, cap "cap" 36,
        ah_attr "ah_attr" 56, alt_ah_attr "alt_ah_attr" 88, pkey_index "pkey_index" 120,
        max_rd_atomic "max_rd_atomic" 126, max_dest_rd_atomic "max_dest_rd_atomic" 127,
        min_rnr_timer "min_rnr_timer" 128, port_num "port_num" 129, timeout "timeout" 130, retry_cnt "retry_cnt" 131,
        rnr_retry "rnr_retry" 132, rate_limit "rate_limit" 136,
    }
    SrqAttr = "struct ibv_srq_attr" 12 { max_wr "max_wr" 0, max_sge "max_sge" 4, srq_limit "srq_limit" 8 }
    SrqInitAttr = "struct ibv_srq_init_attr" 24 { srq_context "srq_context" 0, attr "attr" 8 }
}

functions! {
    /// The functions of libibverbs, as `man 3` describes them.
    Verbs from "libibverbs.so.1" {
        fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Device;
        fn ibv_free_device_list(list: *mut *mut Device);
        fn ibv_get_device_name(device: *mut Device) -> *const c_char;
        fn ibv_query_device(context: *mut Context, attr: *mut DeviceAttr) -> c_int;
        fn ibv_query_port(context: *mut Context, port: u8, attr: *mut PortAttr) -> c_int;
        fn _ibv_query_gid_table(
            context: *mut Context, entries: *mut GidEntry, max: usize, flags: u32, entry_size: usize,
        ) -> isize;
        fn ibv_open_device(device: *mut Device) -> *mut Context;
        fn ibv_close_device(context: *mut Context) -> c_int;
        fn ibv_get_async_event(context: *mut Context, event: *mut AsyncEvent) -> c_int;
        fn ibv_ack_async_event(event: *mut AsyncEvent);
        fn ibv_alloc_pd(context: *mut Context) -> *mut Pd;
        fn ibv_dealloc_pd(pd: *mut Pd) -> c_int;
        fn ibv_reg_mr(pd: *mut Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr;
        fn ibv_reg_mr_iova2(
            pd: *mut Pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint,
        ) -> *mut Mr;
        fn ibv_dereg_mr(mr: *mut Mr) -> c_int;
        fn ibv_create_comp_channel(context: *mut Context) -> *mut CompChannel;
        fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int;
        fn ibv_create_cq(
            context: *mut Context, cqe: c_int, cq_context: *mut c_void, channel: *mut CompChannel, vector: c_int,
        ) -> *mut Cq;
        fn ibv_destroy_cq(cq: *mut Cq) -> c_int;
        fn ibv_get_cq_event(channel: *mut CompChannel, cq: *mut *mut Cq, cq_context: *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(cq: *mut Cq, count: c_uint);
        fn ibv_create_srq(pd: *mut Pd, attr: *mut SrqInitAttr) -> *mut Srq;
        fn ibv_modify_srq(srq: *mut Srq, attr: *mut SrqAttr, mask: c_int) -> c_int;
        fn ibv_destroy_srq(srq: *mut Srq) -> c_int;
        fn ibv_create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp;
        fn ibv_modify_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int;
        fn ibv_query_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int, init: *mut QpInitAttr) -> c_int;
        fn ibv_destroy_qp(qp: *mut Qp) -> c_int;
    }
}
