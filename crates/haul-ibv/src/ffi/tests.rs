//! Structures and constants against what a C compiler makes of the installed headers.

use std::collections::HashMap;
use std::fmt::Write;
use std::process::{Command, Output};

use super::cm::{self, event};
use super::verbs::{
    self, access, event as async_event, gid_type, qp_mask, qp_state, send_flag, wc, wc_flag, wr,
};
use crate::address;

const HEADERS: &str = "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n";

#[test]
fn structures_are_those_of_the_installed_headers() {
    let layouts = || verbs::LAYOUTS.iter().chain(cm::LAYOUTS);
    let mut expressions = Vec::new();
    for layout in layouts() {
        let c_type = layout.c_type;
        if layout.size.is_some() {
            expressions.push(format!("sizeof({c_type})"));
        }
        for (member, ..) in layout.fields {
            expressions.push(format!("offsetof({c_type}, {member})"));
            expressions.push(format!("sizeof((({c_type} *)0)->{member})"));
        }
    }
    let Some(values) = evaluate(&expressions) else {
        return;
    };
    let mut values = values.into_iter();
    let mut next = || usize::try_from(values.next().unwrap()).unwrap();
    for layout in layouts() {
        let c_type = layout.c_type;
        if let Some(size) = layout.size {
            assert_eq!(size, next(), "size of {c_type}");
        }
        for (member, offset, size) in layout.fields {
            assert_eq!(*offset, next(), "offset of {member} in {c_type}");
            assert_eq!(*size, next(), "size of {member} in {c_type}");
        }
    }
}

#[test]
fn constants_are_those_of_the_installed_headers() {
    let constants = constants();
    let names: Vec<_> = constants.keys().map(|name| (*name).to_owned()).collect();
    let Some(values) = evaluate(&names) else {
        return;
    };
    for (name, value) in names.iter().zip(values) {
        assert_eq!(constants[name.as_str()], value, "{name}");
    }
}

fn constants() -> HashMap<&'static str, i64> {
    [
        ("IBV_TRANSPORT_IB", verbs::TRANSPORT_IB),
        ("IBV_TRANSPORT_IWARP", verbs::TRANSPORT_IWARP),
        ("IBV_LINK_LAYER_ETHERNET", verbs::LINK_LAYER_ETHERNET.into()),
        ("IBV_ATOMIC_NONE", verbs::ATOMIC_NONE),
        ("IBV_QPT_RC", verbs::QPT_RC),
        ("IBV_ACCESS_LOCAL_WRITE", access::LOCAL_WRITE),
        ("IBV_ACCESS_REMOTE_WRITE", access::REMOTE_WRITE),
        ("IBV_ACCESS_REMOTE_READ", access::REMOTE_READ),
        ("IBV_ACCESS_REMOTE_ATOMIC", access::REMOTE_ATOMIC),
        ("IBV_QPS_INIT", qp_state::INIT),
        ("IBV_QPS_RTR", qp_state::RTR),
        ("IBV_QPS_RTS", qp_state::RTS),
        ("IBV_QPS_ERR", qp_state::ERR),
        ("IBV_QP_STATE", qp_mask::STATE),
        ("IBV_QP_ACCESS_FLAGS", qp_mask::ACCESS_FLAGS),
        ("IBV_QP_PKEY_INDEX", qp_mask::PKEY_INDEX),
        ("IBV_QP_PORT", qp_mask::PORT),
        ("IBV_QP_AV", qp_mask::AV),
        ("IBV_QP_PATH_MTU", qp_mask::PATH_MTU),
        ("IBV_QP_TIMEOUT", qp_mask::TIMEOUT),
        ("IBV_QP_RETRY_CNT", qp_mask::RETRY_CNT),
        ("IBV_QP_RNR_RETRY", qp_mask::RNR_RETRY),
        ("IBV_QP_RQ_PSN", qp_mask::RQ_PSN),
        ("IBV_QP_MAX_QP_RD_ATOMIC", qp_mask::MAX_QP_RD_ATOMIC),
        ("IBV_QP_MIN_RNR_TIMER", qp_mask::MIN_RNR_TIMER),
        ("IBV_QP_SQ_PSN", qp_mask::SQ_PSN),
        ("IBV_QP_MAX_DEST_RD_ATOMIC", qp_mask::MAX_DEST_RD_ATOMIC),
        ("IBV_QP_DEST_QPN", qp_mask::DEST_QPN),
        ("IBV_WR_RDMA_WRITE", wr::RDMA_WRITE),
        ("IBV_WR_RDMA_WRITE_WITH_IMM", wr::RDMA_WRITE_WITH_IMM),
        ("IBV_WR_SEND", wr::SEND),
        ("IBV_WR_SEND_WITH_IMM", wr::SEND_WITH_IMM),
        ("IBV_WR_RDMA_READ", wr::RDMA_READ),
        ("IBV_WR_ATOMIC_CMP_AND_SWP", wr::ATOMIC_CMP_AND_SWP),
        ("IBV_WR_ATOMIC_FETCH_AND_ADD", wr::ATOMIC_FETCH_AND_ADD),
        ("IBV_WR_SEND_WITH_INV", wr::SEND_WITH_INV),
        ("IBV_WC_RDMA_WRITE", wc::RDMA_WRITE),
        ("IBV_WC_RDMA_READ", wc::RDMA_READ),
        ("IBV_WC_COMP_SWAP", wc::COMP_SWAP),
        ("IBV_WC_FETCH_ADD", wc::FETCH_ADD),
        ("IBV_WC_RECV", wc::RECV),
        ("IBV_WC_RECV_RDMA_WITH_IMM", wc::RECV_RDMA_WITH_IMM),
        ("IBV_SEND_FENCE", send_flag::FENCE.cast_signed()),
        ("IBV_SEND_SIGNALED", send_flag::SIGNALED.cast_signed()),
        ("IBV_SEND_SOLICITED", send_flag::SOLICITED.cast_signed()),
        ("IBV_SEND_INLINE", send_flag::INLINE.cast_signed()),
        ("IBV_WC_WITH_IMM", wc_flag::WITH_IMM.cast_signed()),
        ("IBV_WC_WITH_INV", wc_flag::WITH_INV.cast_signed()),
        ("IBV_SRQ_LIMIT", verbs::SRQ_LIMIT),
        ("IBV_MTU_1024", verbs::MTU_1024),
        ("IBV_GID_TYPE_ROCE_V2", gid_type::ROCE_V2.cast_signed()),
        (
            "IBV_DEVICE_MEM_MGT_EXTENSIONS",
            verbs::DEVICE_MEM_MGT_EXTENSIONS.cast_signed(),
        ),
        ("IBV_EVENT_CQ_ERR", async_event::CQ_ERR),
        ("IBV_EVENT_QP_FATAL", async_event::QP_FATAL),
        ("IBV_EVENT_QP_REQ_ERR", async_event::QP_REQ_ERR),
        ("IBV_EVENT_QP_ACCESS_ERR", async_event::QP_ACCESS_ERR),
        ("IBV_EVENT_COMM_EST", async_event::COMM_EST),
        ("IBV_EVENT_DEVICE_FATAL", async_event::DEVICE_FATAL),
        (
            "IBV_EVENT_SRQ_LIMIT_REACHED",
            async_event::SRQ_LIMIT_REACHED,
        ),
        ("AF_INET", address::AF_INET.into()),
        ("AF_INET6", address::AF_INET6.into()),
        ("RDMA_PS_TCP", cm::PS_TCP),
        ("RDMA_CM_EVENT_ADDR_RESOLVED", event::ADDR_RESOLVED),
        ("RDMA_CM_EVENT_ADDR_ERROR", event::ADDR_ERROR),
        ("RDMA_CM_EVENT_ROUTE_RESOLVED", event::ROUTE_RESOLVED),
        ("RDMA_CM_EVENT_ROUTE_ERROR", event::ROUTE_ERROR),
        ("RDMA_CM_EVENT_CONNECT_REQUEST", event::CONNECT_REQUEST),
        ("RDMA_CM_EVENT_CONNECT_RESPONSE", event::CONNECT_RESPONSE),
        ("RDMA_CM_EVENT_CONNECT_ERROR", event::CONNECT_ERROR),
        ("RDMA_CM_EVENT_UNREACHABLE", event::UNREACHABLE),
        ("RDMA_CM_EVENT_REJECTED", event::REJECTED),
        ("RDMA_CM_EVENT_ESTABLISHED", event::ESTABLISHED),
        ("RDMA_CM_EVENT_DISCONNECTED", event::DISCONNECTED),
        ("RDMA_CM_EVENT_DEVICE_REMOVAL", event::DEVICE_REMOVAL),
    ]
    .into_iter()
    .map(|(name, value)| (name, value.into()))
    .collect()
}

/// What C makes of integer expressions; nothing, and a word why, where it cannot be asked.
fn evaluate(expressions: &[String]) -> Option<Vec<i64>> {
    let dir = tempfile::tempdir().unwrap();
    let compile = |source: &str| -> Option<Output> {
        let path = dir.path().join("layout.c");
        std::fs::write(&path, source).unwrap();
        let mut command = Command::new("cc");
        command.arg("-o").arg(dir.path().join("layout")).arg(path);
        command.output().ok()
    };
    match compile(&format!("{HEADERS}int main(void) {{ return 0; }}\n")) {
        Some(output) if output.status.success() => {}
        tried => {
            let why = tried.map_or_else(
                || "no C compiler".to_owned(),
                |_| "no headers (apt-get install libibverbs-dev librdmacm-dev)".to_owned(),
            );
            println!("SKIPPED: {why}");
            return None;
        }
    }
    let mut source =
        format!("#include <stddef.h>\n#include <stdio.h>\n{HEADERS}int main(void) {{\n");
    for expression in expressions {
        writeln!(source, "printf(\"%lld\\n\", (long long)({expression}));").unwrap();
    }
    source.push_str("return 0; }\n");
    let output = compile(&source).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let output = Command::new(dir.path().join("layout")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let values: Vec<_> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(values.len(), expressions.len());
    Some(values)
}
