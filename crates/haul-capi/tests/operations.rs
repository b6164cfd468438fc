//! The table of operations in include/haul.h is what the software devices do.
#![expect(clippy::unwrap_used, reason = "helpers of tests are not seen as tests")]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use haul_soft::rnic::{Options, provider};
use haul_verbs::cm::{CmEvent, ConnParam};
use haul_verbs::{
    AccessFlags, Context, Cq, Error, Mr, MrInit, Peer, Qp, QpInit, QpType, RecvWr, Region, SendOp,
    SendWr, SgeList, Sources, WcOpcode, WorkCompletion,
};

const PATIENCE: Duration = Duration::from_secs(60);
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Payload of each operation that may have some.
const PAYLOAD: u32 = 8;

/// A row of the table: an operation, whether RC, UD and RD take it, and what completes.
struct Row {
    operation: String,
    taken: [String; 3],
    at_requester: String,
    at_target: String,
    byte_len: String,
}

fn header() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include/haul.h");
    std::fs::read_to_string(path).unwrap()
}

fn table(header: &str) -> Vec<Row> {
    let begin = header
        .lines()
        .skip_while(|line| !line.starts_with(" *   operation "));
    let rows = begin.skip(1).take_while(|line| line.trim() != "*");
    let rows = rows.map(|line| {
        let mut columns = line
            .trim_start_matches(" *")
            .split_whitespace()
            .map(str::to_owned);
        let mut column = || columns.next().unwrap();
        Row {
            operation: column(),
            taken: [column(), column(), column()],
            at_requester: column(),
            at_target: column(),
            byte_len: column(),
        }
    });
    rows.collect()
}

struct End {
    context: Context,
    cq: Cq,
    mr: Mr,
    qp: Qp,
}

impl End {
    fn new(device: &str, qp_type: QpType) -> Self {
        let devices = provider(Options::default()).devices().unwrap();
        let device = devices.iter().find(|other| other.name() == device).unwrap();
        let context = device.open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(256, None, 0).unwrap();
        let init =
            MrInit::new(Region::map(4096).unwrap(), AccessFlags::all()).with_sources(Sources::Any);
        let mr = pd.register(init).unwrap();
        let mut init = QpInit::new(&cq);
        init.qp_type = qp_type;
        let qp = pd.create_qp(&init).unwrap();
        Self {
            context,
            cq,
            mr,
            qp,
        }
    }

    /// The next completion of one of these kinds; others are passed over.
    fn completion(&self, wanted: &str, what: &str) -> WorkCompletion {
        let mut out = [WorkCompletion::default()];
        loop {
            let count = self.cq.wait(&mut out, Some(PATIENCE)).unwrap();
            assert_eq!(count, 1, "{what}: no {wanted}: {:?}", self.qp.failure());
            out[0].result().unwrap();
            if name(out[0].opcode) == wanted {
                return out[0];
            }
        }
    }
}

/// Two ends, and where the first sends to.
fn pair(device: &str, qp_type: QpType) -> (End, End, Option<Peer>) {
    let (near, far) = (End::new(device, qp_type), End::new(device, qp_type));
    if qp_type != QpType::Rc {
        near.qp.bind(LOOPBACK).unwrap();
        let peer = Peer::new(far.qp.bind(LOOPBACK).unwrap(), far.qp.qp_num());
        return (near, far, Some(peer));
    }
    let near_events = near.context.create_event_channel().unwrap();
    let far_events = far.context.create_event_channel().unwrap();
    let listener = far.context.listen(LOOPBACK, &far_events, 1).unwrap();
    let param = ConnParam::default();
    near.qp
        .connect(listener.local_addr(), &param, &near_events)
        .unwrap();
    let event = far_events.wait(Some(PATIENCE)).unwrap();
    let Some(CmEvent::ConnectRequest(request)) = event else {
        panic!("no request: {event:?}");
    };
    request.accept(&far.qp, &param).unwrap();
    for events in [near_events, far_events] {
        let event = events.wait(Some(PATIENCE)).unwrap();
        assert!(
            matches!(event, Some(CmEvent::Established { .. })),
            "{event:?}"
        );
    }
    (near, far, None)
}

fn operation(name: &str, near: &End, far: &End) -> SendOp {
    let remote = far.mr.remote(0);
    match name {
        "SEND" => SendOp::Send,
        "SEND_WITH_IMM" => SendOp::SendWithImm(5),
        "SEND_WITH_INV" => SendOp::SendWithInv(far.mr.rkey()),
        "RDMA_WRITE" => SendOp::RdmaWrite(remote),
        "RDMA_WRITE_WITH_IMM" => SendOp::RdmaWriteWithImm(remote, 5),
        "RDMA_READ" => SendOp::RdmaRead(remote),
        "COMPARE_SWAP" => SendOp::CompareSwap {
            remote,
            compare: 0,
            swap: 0,
        },
        "FETCH_ADD" => SendOp::FetchAdd { remote, add: 0 },
        "LOCAL_INV" => SendOp::LocalInv(near.mr.lkey()),
        "WRITE_RECORD" => SendOp::WriteRecord(remote),
        "WRITE_RECORD_WITH_IMM" => SendOp::WriteRecordWithImm(remote, 5),
        other => panic!("{other} is no operation"),
    }
}

/// The opcode as `enum haul_wc_opcode` names it.
fn name(opcode: WcOpcode) -> &'static str {
    match opcode {
        WcOpcode::Send => "SEND",
        WcOpcode::RdmaWrite => "RDMA_WRITE",
        WcOpcode::RdmaRead => "RDMA_READ",
        WcOpcode::CompSwap => "COMPARE_SWAP",
        WcOpcode::FetchAdd => "FETCH_ADD",
        WcOpcode::LocalInv => "LOCAL_INV",
        WcOpcode::WriteRecord => "WRITE_RECORD",
        WcOpcode::Recv => "RECV",
        WcOpcode::RecvRdmaWithImm => "RECV_RDMA_WITH_IMM",
        WcOpcode::RecvWriteRecord => "RECV_WRITE_RECORD",
        _ => "OTHER",
    }
}

fn check(row: &Row, taken: &str, device: &str, qp_type: QpType) {
    let what = format!("{} on {device}, {qp_type:?}", row.operation);
    let (near, far, peer) = pair(device, qp_type);
    let recv = RecvWr::new(1, far.mr.sge(1024, 64));
    far.qp.post_recv(&[recv]).unwrap();
    let op = operation(&row.operation, &near, &far);
    let post = |len| {
        let data = match len {
            0 => SgeList::EMPTY,
            _ => near.mr.sge(0, len).into(),
        };
        let wr = SendWr::new(2, op, data);
        let wr = match peer {
            Some(peer) => wr.to(peer),
            None => wr,
        };
        near.qp.post_send(&[wr]).map_err(|error| error.error)
    };
    let full = if row.operation == "LOCAL_INV" {
        0
    } else {
        PAYLOAD
    };
    let refused = |len| matches!(post(len), Err(Error::Unsupported(_)));
    let len = match taken {
        "." => return,
        "-" => return assert!(refused(full), "{what}"),
        "empty" => {
            assert!(refused(full), "{what}");
            0
        }
        "yes" => full,
        other => panic!("{what}: {other}"),
    };
    post(len).unwrap_or_else(|error| panic!("{what}: {error}"));
    let done = near.completion(&row.at_requester, &what);
    match row.operation.as_str() {
        "RDMA_READ" => assert_eq!(done.byte_len, len, "{what}"),
        "COMPARE_SWAP" | "FETCH_ADD" => assert_eq!(done.byte_len, 8, "{what}"),
        _ => {}
    }
    if row.at_target != "-" {
        let arrived = far.completion(&row.at_target, &what);
        assert_eq!(row.byte_len, "payload", "{what}");
        assert_eq!(arrived.byte_len, len, "{what}");
    }
}

#[test]
fn each_operation_is_taken_and_completes_as_the_header_says() {
    for row in table(&header()) {
        let [rc, ud, rd] = &row.taken;
        check(&row, rc, "soft-tcp", QpType::Rc);
        check(&row, rc, "soft-udt", QpType::Rc);
        check(&row, ud, "soft-udp", QpType::Ud);
        check(&row, rd, "soft-udp", QpType::Rd);
    }
}

#[test]
fn the_table_has_every_operation_once_for_each_type() {
    let header = header();
    let rows: Vec<_> = table(&header);
    let named: BTreeSet<_> = rows.iter().map(|row| row.operation.as_str()).collect();
    let defined: BTreeSet<_> = header
        .lines()
        .filter_map(|line| line.strip_prefix("  HAUL_WR_")?.split_whitespace().next())
        .collect();
    assert_eq!(named, defined);
    for column in 0..3 {
        let taken = rows.iter().filter(|row| row.taken[column] != ".");
        assert_eq!(taken.count(), defined.len(), "type {column}");
    }
}
