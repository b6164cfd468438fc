//! Sizes and offsets as the Rust compiler has them.

use std::mem::offset_of;

use haul_capi::abi::*;
use haul_verbs::cm::ConnParam;
use haul_verbs::{DatagramInit, QpCapacity, SrqInit};

/// A structure with its size, and the offsets of its fields.
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    size: usize,
    fields: Vec<(&'static str, usize)>,
}

impl Layout {
    /// The same in C.
    pub(crate) fn assertions(&self) -> String {
        let name = self.name;
        let mut text = format!(
            "static_assert(sizeof({name}) == {}, \"{name}\");\n",
            self.size
        );
        for (field, offset) in &self.fields {
            let field = field.trim_start_matches("r#");
            text += &format!(
                "static_assert(offsetof({name}, {field}) == {offset}, \"{name}.{field}\");\n"
            );
        }
        text
    }
}

macro_rules! layouts {
    ($($name:ident { $($field:ident),* $(,)? })*) => {
        vec![$({
            // Fails to compile when a field is missing here.
            let _ = |value: $name| {
                let $name { $($field: _),* } = value;
            };
            Layout {
                name: stringify!($name),
                size: size_of::<$name>(),
                fields: vec![$((stringify!($field), offset_of!($name, $field))),*],
            }
        }),*]
    };
}

pub(crate) fn all() -> Vec<Layout> {
    layouts! {
        haul_device_info {
            size, transport, caps, name, provider, max_qp, max_qp_wr, max_sge, max_inline, max_cqe, max_mr, max_mr_size,
            max_message, max_rd_atomic, max_init_rd_atomic, max_private_data, reserved,
        }
        haul_provider_info { size, devices, name, reason }
        haul_open_options { size, flags, shards, fpdu_max, socket_buffer, pcap, rate_bps, connect_timeout_ns, close_timeout_ns, peer_timeout_ns, protect, engine_cpus }
        haul_peer { addr, scope_id, qp_num, port, reserved }
        haul_mr_info { size, access, lkey, rkey, addr, len, ptr }
        haul_mr_init { size, access, start, len, iova, peers, peer_count, sources }
        haul_datagram_init {
            size, flags, records, path_mtu, multicast_ttl, tail_repeats, max_rate, read_timeout_ns, retries, reserved,
            seal_key,
        }
        haul_range { start, end }
        haul_record {
            ranges, ranges_room, ranges_len, source, addr, rkey, message, len, valid, status, flags, imm, reserved,
        }
        haul_datagram_statistics {
            size, reserved, sent, received, bad_checksum, malformed, unknown_qp, no_receive, too_long, duplicates, incomplete,
            refused, late, evicted, resent, peers, peer_bytes, kernel_drops,
            undelivered, unsealed, forged, replayed,
        }
        haul_qp_init {
            size, r#type, flags, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline, send_cq, recv_cq, srq,
            datagram, max_rate_bps, max_burst,
        }
        haul_qp_info {
            size, qp_num, state, blame, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline, reserved, reason,
        }
        haul_srq_init { size, max_wr, max_sge, reserved, token }
        haul_sge { addr, len, lkey }
        haul_send_wr {
            wr_id, opcode, flags, sges, num_sge, data, remote_addr, compare_add, swap, rkey, reserved,
        }
        haul_recv_wr { wr_id, sges, num_sge, reserved }
        haul_wc {
            wr_id, status, opcode, byte_len, qp_num, flags, data, src_qp, vendor_err, src_addr, src_scope_id,
            src_port, reserved,
        }
        haul_stream_options {
            size, reserved, send_bytes, receive_bytes, connect_timeout_ns, silence_timeout_ns,
        }
        haul_stream_info {
            size, flags, peer, given_bytes, arrived_bytes, come_bytes, received_bytes, resent_bytes, rtt_ns, rate_bps, reason,
        }
        haul_endpoint { qp_num, psn, lid, port, reserved, gid }
        haul_conn_param {
            size, private_data_len, private_data, responder_resources, initiator_depth, rnr_retry_count, retry_count,
            reserved,
        }
        haul_cm_event {
            size, r#type, qp_num, blame, request, responder_resources, initiator_depth, private_data_len, peer,
            private_data, reason,
        }
        haul_async_event { size, r#type, qp_num, reserved, token }
    }
}

/// Every initialiser in use.
pub(crate) const INITIALISERS: &str = "
CONSTANT haul_device_info device_info = HAUL_DEVICE_INFO_INIT;
CONSTANT haul_provider_info provider_info = HAUL_PROVIDER_INFO_INIT;
CONSTANT haul_open_options open_options = HAUL_OPEN_OPTIONS_INIT;
CONSTANT haul_mr_info mr_info = HAUL_MR_INFO_INIT;
CONSTANT haul_mr_init mr_init = HAUL_MR_INIT;
CONSTANT haul_datagram_init datagram_init = HAUL_DATAGRAM_INIT;
CONSTANT haul_datagram_statistics datagram_statistics = HAUL_DATAGRAM_STATISTICS_INIT;
CONSTANT haul_qp_init qp_init = HAUL_QP_INIT;
CONSTANT haul_qp_info qp_info = HAUL_QP_INFO_INIT;
CONSTANT haul_srq_init srq_init = HAUL_SRQ_INIT;
CONSTANT haul_conn_param conn_param = HAUL_CONN_PARAM_INIT;
CONSTANT haul_cm_event cm_event = HAUL_CM_EVENT_INIT;
CONSTANT haul_stream_options stream_options = HAUL_STREAM_OPTIONS_INIT;
CONSTANT haul_stream_info stream_info = HAUL_STREAM_INFO_INIT;
CONSTANT haul_async_event async_event = HAUL_ASYNC_EVENT_INIT;
";

/// What they set, for C++, which can look into constants: the defaults of `haul-verbs`.
pub(crate) fn defaults() -> String {
    let sizes = all()
        .into_iter()
        .filter(|layout| layout.fields[0].0 == "size");
    let sizes = sizes.map(|layout| {
        let value = layout.name.trim_start_matches("haul_");
        format!("{value}.size == sizeof(haul_{value})")
    });
    let datagram = DatagramInit::default();
    let (qp, srq, param) = (
        QpCapacity::default(),
        SrqInit::default(),
        ConnParam::default(),
    );
    let defaults = [
        "qp_init.type == HAUL_QPT_RC && qp_init.flags == 0".to_owned(),
        format!("qp_init.max_send_wr == {}", qp.max_send_wr),
        format!("qp_init.max_recv_wr == {}", qp.max_recv_wr),
        format!("qp_init.max_send_sge == {}", qp.max_send_sge),
        format!("qp_init.max_recv_sge == {}", qp.max_recv_sge),
        format!("qp_init.max_inline == {}", qp.max_inline),
        format!(
            "srq_init.max_wr == {} && srq_init.max_sge == {}",
            srq.max_wr, srq.max_sge
        ),
        format!(
            "conn_param.responder_resources == {}",
            param.responder_resources
        ),
        format!("conn_param.initiator_depth == {}", param.initiator_depth),
        format!("conn_param.rnr_retry_count == {}", param.rnr_retry_count),
        format!("conn_param.retry_count == {}", param.retry_count),
        "mr_init.sources == HAUL_SOURCES_VALIDATED".to_owned(),
        "datagram_init.records == HAUL_RECORDS_AGGREGATE && datagram_init.flags == 0".to_owned(),
        format!("datagram_init.path_mtu == {}", datagram.path_mtu),
        format!("datagram_init.multicast_ttl == {}", datagram.multicast_ttl),
        format!("datagram_init.tail_repeats == {}", datagram.tail_repeats),
        format!(
            "datagram_init.max_rate == {}",
            datagram.max_rate.unwrap_or(0)
        ),
        format!(
            "datagram_init.read_timeout_ns == {}",
            datagram.read_timeout.as_nanos()
        ),
        format!("datagram_init.retries == {}", datagram.retries),
    ];
    let checks = sizes.chain(defaults);
    checks
        .map(|check| format!("static_assert({check}, \"{check}\");\n"))
        .collect()
}
