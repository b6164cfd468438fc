//! `rdma/rdma_cma.h`.

use std::ffi::{c_int, c_void};

use super::verbs::{Context, QpAttr};
use super::{functions, layouts};

/// `enum rdma_port_space`.
pub(crate) const PS_TCP: c_int = 0x0106;

/// `enum rdma_cm_event_type`.
pub(crate) mod event {
    use std::ffi::c_int;

    pub(crate) const ADDR_RESOLVED: c_int = 0;
    pub(crate) const ADDR_ERROR: c_int = 1;
    pub(crate) const ROUTE_RESOLVED: c_int = 2;
    pub(crate) const ROUTE_ERROR: c_int = 3;
    pub(crate) const CONNECT_REQUEST: c_int = 4;
    pub(crate) const CONNECT_RESPONSE: c_int = 5;
    pub(crate) const CONNECT_ERROR: c_int = 6;
    pub(crate) const UNREACHABLE: c_int = 7;
    pub(crate) const REJECTED: c_int = 8;
    pub(crate) const ESTABLISHED: c_int = 9;
    pub(crate) const DISCONNECTED: c_int = 10;
    pub(crate) const DEVICE_REMOVAL: c_int = 11;
}

/// `struct rdma_event_channel`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct EventChannel {
    pub(crate) fd: c_int,
}

/// `struct sockaddr_storage`, holding a `sockaddr_in` or a `sockaddr_in6`.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct SockAddr {
    pub(crate) family: u16,
    /// Big-endian.
    pub(crate) port: [u8; 2],
    /// IPv4: the address; IPv6: flow information.
    pub(crate) v4: [u8; 4],
    pub(crate) v6: [u8; 16],
    pub(crate) scope_id: u32,
    pub(crate) rest: [u8; 100],
}

/// `struct rdma_cm_id`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Id {
    pub(crate) verbs: *mut Context,
    channel: *mut EventChannel,
    pub(crate) context: *mut c_void,
    qp: *mut c_void,
    pub(crate) src: SockAddr,
    pub(crate) dst: SockAddr,
}

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnParam {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

/// `struct rdma_cm_event`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) id: *mut Id,
    pub(crate) listen_id: *mut Id,
    pub(crate) event: c_int,
    pub(crate) status: c_int,
    pub(crate) conn: ConnParam,
}

layouts! {
    SockAddr = "struct sockaddr_storage" 128 { family "ss_family" 0 }
    SockAddr = "struct sockaddr_in" prefix { family "sin_family" 0, port "sin_port" 2, v4 "sin_addr" 4 }
    SockAddr = "struct sockaddr_in6" prefix {
        family "sin6_family" 0, port "sin6_port" 2, v4 "sin6_flowinfo" 4, v6 "sin6_addr" 8, scope_id "sin6_scope_id" 24,
    }
    EventChannel = "struct rdma_event_channel" 4 { fd "fd" 0 }
    Id = "struct rdma_cm_id" prefix {
        verbs "verbs" 0, channel "channel" 8, context "context" 16, qp "qp" 24, src "route.addr.src_storage" 32,
        dst "route.addr.dst_storage" 160,
    }
    ConnParam = "struct rdma_conn_param" 24 {
        private_data "private_data" 0, private_data_len "private_data_len" 8,
        responder_resources "responder_resources" 9, initiator_depth "initiator_depth" 10,
        flow_control "flow_control" 11, retry_count "retry_count" 12, rnr_retry_count "rnr_retry_count" 13,
        srq "srq" 14, qp_num "qp_num" 16,
    }
    Event = "struct rdma_cm_event" prefix {
        id "id" 0, listen_id "listen_id" 8, event "event" 16, status "status" 20, conn "param.conn" 24,
    }
}

functions! {
    /// The functions of librdmacm.
    Cm from "librdmacm.so.1" {
        fn rdma_create_event_channel() -> *mut EventChannel;
        fn rdma_destroy_event_channel(channel: *mut EventChannel);
        fn rdma_create_id(channel: *mut EventChannel, id: *mut *mut Id, context: *mut c_void, space: c_int) -> c_int;
        fn rdma_destroy_id(id: *mut Id) -> c_int;
        fn rdma_bind_addr(id: *mut Id, address: *mut SockAddr) -> c_int;
        fn rdma_resolve_addr(id: *mut Id, from: *mut SockAddr, to: *mut SockAddr, timeout_ms: c_int) -> c_int;
        fn rdma_resolve_route(id: *mut Id, timeout_ms: c_int) -> c_int;
        fn rdma_init_qp_attr(id: *mut Id, attr: *mut QpAttr, mask: *mut c_int) -> c_int;
        fn rdma_connect(id: *mut Id, param: *mut ConnParam) -> c_int;
        fn rdma_establish(id: *mut Id) -> c_int;
        fn rdma_listen(id: *mut Id, backlog: c_int) -> c_int;
        fn rdma_accept(id: *mut Id, param: *mut ConnParam) -> c_int;
        fn rdma_reject(id: *mut Id, private_data: *const c_void, length: u8) -> c_int;
        fn rdma_disconnect(id: *mut Id) -> c_int;
        fn rdma_get_cm_event(channel: *mut EventChannel, event: *mut *mut Event) -> c_int;
        fn rdma_ack_cm_event(event: *mut Event) -> c_int;
    }
}
