//! A PDU of each type, with all its elements.

use haul_xsp::wire::{
    Address, AuthMethod, ChanParams, Claim, ConnState, Endpoint, First, Hop, HopFlags, Key,
    Metadata, NackStatus, Params, PathAction, PathState, Pdu, Proto, ProtoOffer, Record, SessAck,
    SessOpen, SlabAck, SlabAnnounce, SlabStatus, TICKET_LEN,
};
use haul_xsp::{ChanId, ConnId, SlabSeq};

const CONN: ConnId = ConnId(3);
const CHAN: ChanId = ChanId(4);
const SEQ: SlabSeq = SlabSeq(5);
const STATUS: NackStatus = NackStatus::Protocol;

/// The name of each as docs/protocol/xsp.md has it.
pub(crate) fn all() -> Vec<(&'static str, Pdu)> {
    let mut pdus = sessions();
    pdus.extend(channels());
    pdus.extend(connections());
    pdus.extend(slabs());
    pdus
}

fn endpoint() -> Endpoint {
    Endpoint {
        address: Address::Name("example.org".into()),
        port: 443,
    }
}

fn metadata() -> Metadata {
    let mut metadata = Metadata::default();
    metadata.insert("owner", "alice").unwrap();
    metadata
}

fn offer() -> ProtoOffer {
    ProtoOffer {
        proto: Proto::IwarpUdt,
        preference: 10,
        params: Params {
            max_msg: Some(1 << 20),
            rate_bps: Some(1 << 30),
            cc: Some("model".into()),
            ..Params::default()
        },
    }
}

fn states() -> Vec<ConnState> {
    vec![ConnState {
        conn: CONN,
        delivered: 1 << 33,
        finished: true,
    }]
}

const fn claim() -> Claim {
    Claim { way: 1, turn: 2 }
}

fn hop() -> Hop {
    Hop {
        depth: 0,
        flags: HopFlags {
            gateway: true,
            optional: true,
            last: true,
        },
        endpoint: endpoint(),
        offers: vec![offer()],
    }
}

#[expect(clippy::too_many_lines, reason = "one PDU after another")]
fn sessions() -> Vec<(&'static str, Pdu)> {
    let open = SessOpen {
        resumable: true,
        end_to_end: true,
        dry_run: true,
        takes_early: false,
        hop_index: 0,
        max_ctrl: 1 << 20,
        keepalive_ms: 10_000,
        hops: vec![hop()],
        ..SessOpen::default()
    };
    let again = SessOpen {
        ticket: Some([6; TICKET_LEN]),
        conns: states(),
        claim: claim(),
        ..open.clone()
    };
    let first = First {
        conn: CONN,
        credit: 65_536,
        to: endpoint(),
        metadata: metadata(),
    };
    let ack = SessAck {
        resumable: true,
        end_to_end: true,
        resumed: true,
        firsts: true,
        takes_early: false,
        keepalive_ms: 10_000,
        lifetime_s: 300,
        segments: vec![offer()],
        ticket: Some([6; TICKET_LEN]),
        conns: states(),
    };
    let text = || "no".to_owned();
    vec![
        (
            "SESS_OPEN",
            Pdu::SessOpen(SessOpen {
                firsts: vec![first],
                ..open
            }),
        ),
        (
            "SESS_OPEN-early",
            Pdu::SessOpen(SessOpen {
                takes_early: true,
                ..again.clone()
            }),
        ),
        ("SESS_OPEN-again", Pdu::SessOpen(again)),
        (
            "SESS_ACK-early",
            Pdu::SessAck(SessAck {
                takes_early: true,
                ..ack.clone()
            }),
        ),
        ("SESS_ACK", Pdu::SessAck(ack)),
        (
            "SESS_NACK",
            Pdu::SessNack {
                status: STATUS,
                hop_index: 1,
                text: text(),
            },
        ),
        (
            "SESS_CLOSE",
            Pdu::SessClose {
                reason: NackStatus::Closing,
                abort: true,
            },
        ),
        (
            "AUTH_TYPE",
            Pdu::AuthType {
                methods: vec![AuthMethod::SharedKey, AuthMethod::Anonymous],
            },
        ),
        (
            "AUTH_TOKEN",
            Pdu::AuthToken {
                step: 1,
                token: vec![9; 32],
            },
        ),
        (
            "RESUME",
            Pdu::Resume {
                next: SEQ,
                ticket: [6; TICKET_LEN],
                conns: states(),
                claim: claim(),
            },
        ),
        (
            "RESUME_ACK",
            Pdu::ResumeAck {
                next: SEQ,
                conns: states(),
            },
        ),
        (
            "ERROR",
            Pdu::Error {
                status: STATUS,
                severity: 1,
                ref_seq: 2,
                hop_index: Some(1),
                text: text(),
            },
        ),
        (
            "NOTICE",
            Pdu::Notice {
                code: 1,
                severity: 2,
                ref_seq: 3,
                text: text(),
            },
        ),
        (
            "STATS",
            Pdu::Stats {
                counters: vec![1, 1 << 40],
            },
        ),
    ]
}

fn channels() -> Vec<(&'static str, Pdu)> {
    let params = || ChanParams {
        chan: CHAN,
        proto: Proto::IwarpUdt,
        role: 1,
        params: offer().params,
        endpoints: vec![endpoint()],
        cookie: Some([8; 16]),
    };
    vec![
        (
            "PING",
            Pdu::Ping {
                t_us: 1,
                echo_us: 2,
            },
        ),
        (
            "PONG",
            Pdu::Pong {
                t_us: 1,
                echo_us: 2,
            },
        ),
        ("CHAN_OPEN", Pdu::ChanOpen(params())),
        ("CHAN_ACK", Pdu::ChanAck(params())),
        (
            "CHAN_NACK",
            Pdu::ChanNack {
                chan: CHAN,
                status: STATUS,
                text: "no".into(),
            },
        ),
        (
            "CHAN_CLOSE",
            Pdu::ChanClose {
                chan: CHAN,
                reason: STATUS,
            },
        ),
        (
            "NET_PATH",
            Pdu::NetPath {
                action: PathAction::Create,
                request: 1,
                rules: vec!["rate=1Gbit".into()],
            },
        ),
        (
            "PATH_STATUS",
            Pdu::PathStatus {
                request: 1,
                state: PathState::Up,
                text: "up".into(),
            },
        ),
        (
            "APP_DATA",
            Pdu::AppData {
                option: 1,
                octets: vec![2, 3],
            },
        ),
    ]
}

fn connections() -> Vec<(&'static str, Pdu)> {
    vec![
        (
            "CONN_OPEN",
            Pdu::ConnOpen {
                conn: CONN,
                credit: 65_536,
                to: endpoint(),
                metadata: metadata(),
                early: Vec::new(),
            },
        ),
        (
            "CONN_OPEN-early",
            Pdu::ConnOpen {
                conn: CONN,
                credit: 65_536,
                to: endpoint(),
                metadata: metadata(),
                early: b"GET / HTTP/1.1".to_vec(),
            },
        ),
        (
            "CONN_ACK",
            Pdu::ConnAck {
                conn: CONN,
                status: 0,
                credit: 65_536,
            },
        ),
        (
            "CONN_FIN",
            Pdu::ConnFin {
                conn: CONN,
                end: 1 << 33,
            },
        ),
        (
            "CONN_RESET",
            Pdu::ConnReset {
                conn: CONN,
                code: 1,
            },
        ),
        (
            "CONN_CREDIT",
            Pdu::ConnCredit {
                conn: CONN,
                credit: 1 << 33,
            },
        ),
        (
            "CONN_ACKED",
            Pdu::ConnAcked {
                conn: CONN,
                delivered: 1 << 33,
            },
        ),
    ]
}

fn slabs() -> Vec<(&'static str, Pdu)> {
    let record = |fin| Record {
        conn: CONN,
        offset: 1 << 33,
        len: 5,
        crc: Some(7),
        fin,
        reset: None,
        key: Key { stag: 1, to: 2 },
    };
    let announce = |inline: &[u8]| SlabAnnounce {
        seq: SEQ,
        last: true,
        grant: false,
        t_us: 6,
        records: vec![record(true)],
        inline: inline.to_vec(),
    };
    let grant = SlabAnnounce {
        grant: true,
        records: vec![record(false)],
        ..announce(b"")
    };
    let ack = || SlabAck {
        next: SEQ,
        window_bytes: 1 << 24,
        window_slabs: 64,
        others: vec![
            (SlabSeq(7), SlabStatus::Placed),
            (SlabSeq(8), SlabStatus::Revoked),
        ],
    };
    vec![
        ("SLAB_ANNOUNCE", Pdu::SlabAnnounce(announce(b""))),
        (
            "SLAB_ANNOUNCE-inline",
            Pdu::SlabAnnounce(announce(b"hello")),
        ),
        ("SLAB_ANNOUNCE-grant", Pdu::SlabAnnounce(grant)),
        ("SLAB_PUSHED", Pdu::SlabPushed(announce(b""))),
        ("SLAB_CREDIT", Pdu::SlabCredit(ack())),
        ("SLAB_ACK", Pdu::SlabAck(ack())),
        (
            "SLAB_NACK",
            Pdu::SlabNack {
                seq: SEQ,
                code: 1,
                records: vec![0, 2],
            },
        ),
        ("SLAB_REVOKE", Pdu::SlabRevoke { seq: SEQ }),
    ]
}
