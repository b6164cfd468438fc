//! A thousand peers of one queue pair.

use haul_verbs::{Peer, QpInit, QpType, SendOp, SendWr, WcOpcode, WcStatus};

use crate::support::{End, LOOPBACK, context};

#[test]
fn a_thousand_peers_are_served_by_one_queue_pair() {
    let server = End::new();
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(4_096, None, 0).unwrap();
    let mr = crate::support::memory(&pd, haul_verbs::Sources::Any);
    let mut init = QpInit::new(&cq);
    init.qp_type = QpType::Ud;
    let clients: Vec<_> = (0..1_000)
        .map(|_| {
            let qp = pd.create_qp(&init).unwrap();
            qp.bind(LOOPBACK).unwrap();
            qp
        })
        .collect();
    // In turns that any socket's buffer bears.
    let mut seen = std::collections::HashSet::new();
    for (turn, some) in (0..).zip(clients.chunks(50)) {
        for (at, client) in (0..).zip(some) {
            server.receive(at, at * 64, 64);
            let wr = SendWr::new(turn, SendOp::Send, mr.sge(0, 48)).to(server.peer());
            client.post_send(&[wr]).unwrap();
            let sent = crate::support::next(&cq);
            assert_eq!(
                (sent.status, sent.opcode),
                (WcStatus::Success, WcOpcode::Send)
            );
        }
        for _ in some {
            let wc = server.completion();
            assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 48));
            let from: Peer = wc.src.unwrap();
            assert!(seen.insert(from), "{from} came twice");
        }
    }
    assert_eq!(seen.len(), 1_000);
    assert_eq!(server.statistics().received, 1_000);
}
