//! A hostile peer: whatever it sends is refused by name, and costs no more than its bytes.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "what is not there where it must be fails the test"
)]

use crate::common;

use haul_xsp::bag::{ConsumerConfig, ProducerConfig};
use haul_xsp::wire::{
    AuthMethod, BODY_MAX, FLAG_CHECK, FLAG_OPTIONAL, HEADER_LEN, Header, Key, Metadata, NackStatus,
    ParseError, Pdu, Record, SlabAck, SlabAnnounce,
};
use haul_xsp::{
    Admission, Allowed, AuthConfig, AuthError, ConnId, Directory, Error, Event, Misbehaviour,
    Session, SessionConfig, SessionId, SharedKey, SlabSeq, State, Time, bag::Breach, crc32c,
};

use common::random::Random;
use common::{endpoint, open, tcp};

const SESSION: SessionId = SessionId([7; 16]);
const NOW: Time = Time::from_ns(1_000_000);

fn config() -> SessionConfig {
    SessionConfig {
        protocols: vec![tcp()],
        auth: AuthConfig {
            methods: vec![AuthMethod::Anonymous],
            ..AuthConfig::default()
        },
        producer: ProducerConfig {
            regions: 3,
            region_bytes: 4096,
            region_bytes_start: 4096,
            ..ProducerConfig::default()
        },
        consumer: ConsumerConfig {
            arena_bytes: 1 << 20,
            records_max: 64,
            ..ConsumerConfig::default()
        },
        conns_max: 4,
        chans_max: 2,
        ..SessionConfig::default()
    }
}

/// A victim, and how many PDUs it has been sent.
struct Victim {
    session: Session,
    seq: u32,
}

impl Victim {
    fn new(config: SessionConfig) -> Self {
        let session = Session::accept(config, NOW, [3; 32]).unwrap();
        Self { session, seq: 0 }
    }

    /// With a session open, and connection 1 accepted.
    fn open() -> Self {
        let mut victim = Self::new(config());
        victim
            .send(&Pdu::AuthType {
                methods: vec![AuthMethod::Anonymous],
            })
            .unwrap();
        victim.send(&Pdu::SessOpen(open(1, true))).unwrap();
        victim
            .session
            .accept_session(NOW, None, Some([1; 56]))
            .unwrap();
        victim
            .send(&Pdu::ConnOpen {
                conn: ConnId(1),
                credit: 100,
                to: endpoint("a", 1),
                metadata: Metadata::default(),
                early: Vec::new(),
            })
            .unwrap();
        victim.session.accept_conn(ConnId(1)).unwrap();
        while victim.session.poll_event().is_some() {}
        victim
    }

    fn send(&mut self, pdu: &Pdu) -> Result<(), Error> {
        self.seq += 1;
        let octets = pdu.emit(SESSION, 0, self.seq);
        let taken = self.session.handle_input(NOW, &octets)?;
        assert_eq!(taken, octets.len());
        Ok(())
    }
}

fn record(offset: u64, len: u32) -> Record {
    Record {
        conn: ConnId(1),
        offset,
        len,
        crc: None,
        fin: false,
        reset: None,
        key: Key { stag: 1, to: 0 },
    }
}

fn slab(seq: u64, records: Vec<Record>) -> Pdu {
    Pdu::SlabAnnounce(SlabAnnounce {
        seq: SlabSeq(seq),
        last: false,
        grant: false,
        t_us: 0,
        records,
        inline: Vec::new(),
    })
}

fn inline(seq: u64, records: Vec<Record>) -> SlabAnnounce {
    let total = records.iter().map(|record| record.len as usize).sum();
    SlabAnnounce {
        seq: SlabSeq(seq),
        last: false,
        grant: false,
        t_us: 0,
        records,
        inline: vec![7; total],
    }
}

fn breach(breach: Breach) -> Error {
    Error::PeerMisbehaved(Misbehaviour::Slab(breach))
}

/// The PDUs to send, the last of which breaks a rule.
fn slab_cases() -> Vec<(Vec<Pdu>, Breach)> {
    let fin = Record {
        fin: true,
        ..record(0, 10)
    };
    let ack = |next: u64| {
        Pdu::SlabAck(SlabAck {
            next: SlabSeq(next),
            window_bytes: 1,
            window_slabs: 1,
            others: Vec::new(),
        })
    };
    let grant = Pdu::SlabAnnounce(SlabAnnounce {
        seq: SlabSeq(0),
        last: false,
        grant: true,
        t_us: 0,
        records: vec![record(0, 1)],
        inline: Vec::new(),
    });
    let asked = |conn| Pdu::ConnOpen {
        conn: ConnId(conn),
        credit: 0,
        to: endpoint("b", 1),
        metadata: Metadata::default(),
        early: Vec::new(),
    };
    let many = (0..65).map(|at| record(at, 1)).collect();
    vec![
        (vec![slab(1, vec![record(0, 1)])], Breach::Order),
        (vec![slab(0, Vec::new())], Breach::Window),
        (vec![slab(0, many)], Breach::Window),
        (
            (0..65).map(|seq| slab(seq, vec![record(seq, 1)])).collect(),
            Breach::Window,
        ),
        (vec![slab(0, vec![record(1, 1)])], Breach::Gap),
        (vec![slab(0, vec![record(0, 5), record(4, 1)])], Breach::Gap),
        (vec![slab(0, vec![record(0, 1 << 30)])], Breach::Credit),
        (vec![slab(0, vec![fin, record(10, 1)])], Breach::PastEnd),
        (
            vec![slab(
                0,
                vec![Record {
                    conn: ConnId(9),
                    ..record(0, 1)
                }],
            )],
            Breach::NoConnection,
        ),
        (
            vec![slab(0, vec![record(0, 5)]), slab(0, vec![record(0, 6)])],
            Breach::Changed,
        ),
        (vec![ack(1)], Breach::NoSlab),
        (
            vec![Pdu::SlabNack {
                seq: SlabSeq(0),
                code: 1,
                records: vec![0],
            }],
            Breach::NoSlab,
        ),
        (vec![Pdu::SlabRevoke { seq: SlabSeq(0) }], Breach::NoSlab),
        (
            vec![Pdu::ConnAcked {
                conn: ConnId(1),
                delivered: 1,
            }],
            Breach::Delivered,
        ),
        (vec![grant], Breach::Push),
        (
            vec![Pdu::SlabPushed(SlabAnnounce {
                seq: SlabSeq(0),
                last: false,
                grant: false,
                t_us: 0,
                records: vec![record(0, 1)],
                inline: Vec::new(),
            })],
            Breach::Push,
        ),
        (
            vec![Pdu::ConnFin {
                conn: ConnId(1),
                end: 5,
            }],
            Breach::Gap,
        ),
        (vec![asked(1)], Breach::Connection),
        (vec![asked(1 << 31)], Breach::Connection),
    ]
}

/// The same of slabs whose bytes come along.
fn inline_cases() -> Vec<(Vec<Pdu>, Breach)> {
    vec![
        (
            vec![Pdu::SlabAnnounce(inline(0, vec![record(1, 1)]))],
            Breach::Gap,
        ),
        (
            vec![
                slab(0, vec![record(0, 5)]),
                Pdu::SlabAnnounce(inline(0, vec![record(0, 5)])),
            ],
            Breach::Changed,
        ),
    ]
}

#[test]
fn slabs_that_break_a_rule_are_refused_by_name() {
    for (pdus, wanted) in slab_cases().into_iter().chain(inline_cases()) {
        let mut victim = Victim::open();
        let (last, before) = pdus.split_last().unwrap();
        before.iter().for_each(|pdu| victim.send(pdu).unwrap());
        assert_eq!(victim.send(last), Err(breach(wanted)), "{last:?}");
        assert_eq!(victim.session.state(), State::Closed);
        let told: Vec<Vec<u8>> = std::iter::from_fn(|| victim.session.poll_transmit(NOW)).collect();
        let kinds: Vec<u8> = told.iter().map(|pdu| pdu[3]).collect();
        assert_eq!(kinds.last(), Some(&48), "the peer learns why");
    }
}

#[test]
fn inline_bytes_are_placed_once_and_only_as_many_as_are_announced() {
    let mut victim = Victim::open();
    let announce = inline(0, vec![record(0, 5), record(5, 3)]);
    victim.send(&Pdu::SlabAnnounce(announce.clone())).unwrap();
    let consumer = victim.session.consumer();
    let placed: Vec<_> = std::iter::from_fn(|| consumer.poll_inline()).collect();
    assert_eq!(placed.iter().map(|one| one.octets.len()).sum::<usize>(), 8);
    assert_eq!(consumer.poll_get(NOW), None);
    assert_eq!(consumer.poll_readable(), Some(ConnId(1)));
    victim.send(&Pdu::SlabAnnounce(announce.clone())).unwrap();
    assert_eq!(victim.session.consumer().poll_inline(), None);

    let mut octets =
        Pdu::SlabAnnounce(inline(1, vec![record(8, 4)])).emit(SESSION, 0, victim.seq + 1);
    octets.extend([0xff; HEADER_LEN]);
    assert!(victim.session.handle_input(NOW, &octets).is_err());
    let placed = victim.session.consumer().poll_inline();
    assert!(placed.is_some(), "though what came behind it was refused");

    let parse = |slab: SlabAnnounce, spare: usize| {
        let pdu = Pdu::SlabAnnounce(slab);
        let octets = pdu.emit(SESSION, 0, 1);
        Pdu::parse(pdu.kind(), &octets[HEADER_LEN..octets.len() - spare])
    };
    let long = SlabAnnounce {
        inline: vec![7; 14_337],
        ..inline(1, vec![record(8, 14_337)])
    };
    for (slab, spare) in [(announce.clone(), 1), (long, 0)] {
        assert!(matches!(parse(slab, spare), Err(ParseError::Value(_))));
    }
    let grant = SlabAnnounce {
        grant: true,
        ..announce.clone()
    };
    assert!(matches!(parse(grant, 0), Err(ParseError::Value(_))));
    assert_eq!(parse(announce.clone(), 0), Ok(Pdu::SlabAnnounce(announce)));
}

#[test]
fn pdus_out_of_turn_or_out_of_order_end_the_session() {
    let mut victim = Victim::new(config());
    let early = victim.send(&Pdu::SessOpen(open(1, false)));
    assert_eq!(early, Err(Error::NotAuthenticated(AuthError::Step)));
    for pdu in [
        Pdu::SessOpen(open(1, false)),
        Pdu::SessAck(Default::default()),
        Pdu::AuthToken {
            step: 1,
            token: vec![0; 40],
        },
    ] {
        let mut victim = Victim::open();
        assert_eq!(
            victim.send(&pdu),
            Err(Error::PeerMisbehaved(Misbehaviour::OutOfTurn(pdu.kind())))
        );
    }
    let mut victim = Victim::open();
    victim.seq += 1;
    let (expected, found) = (victim.seq, victim.seq + 1);
    let skipped = victim.send(&Pdu::Ping {
        t_us: 1,
        echo_us: 0,
    });
    assert_eq!(
        skipped,
        Err(Error::PeerMisbehaved(Misbehaviour::Sequence {
            expected,
            found
        }))
    );
    let mut victim = Victim::open();
    let foreign = Pdu::Ping {
        t_us: 1,
        echo_us: 0,
    }
    .emit(SessionId([8; 16]), 0, victim.seq + 1);
    assert_eq!(
        victim.session.handle_input(NOW, &foreign),
        Err(Error::PeerMisbehaved(Misbehaviour::Session))
    );
}

#[test]
fn lengths_are_accepted_only_within_the_limit() {
    let limited = SessionConfig {
        max_ctrl: 1_000,
        ..config()
    };
    let mut victim = Victim::new(limited);
    let header = Header {
        flags: 0,
        kind: 12,
        len: 1_001,
        session: SESSION,
        chan: 0,
        seq: 1,
    };
    let refused = victim.session.handle_input(NOW, &header.emit());
    assert_eq!(
        refused,
        Err(Error::PeerMisbehaved(Misbehaviour::TooLarge(1_001)))
    );
    let mut octets = header.emit();
    octets[4..8].copy_from_slice(&(BODY_MAX as u32 + 1).to_be_bytes());
    assert_eq!(
        Header::parse(&octets),
        Err(ParseError::Body(BODY_MAX as u32 + 1))
    );
    octets[0] = 1;
    assert_eq!(Header::parse(&octets), Err(ParseError::Version(1)));
}

#[test]
fn an_unknown_pdu_is_ignored_only_if_it_may_be_and_after_the_proofs() {
    let unknown = |flags, seq| {
        let header = Header {
            flags,
            kind: 0x3fff,
            len: 4,
            session: SESSION,
            chan: 0,
            seq,
        };
        [&header.emit()[..], &[1, 2, 3, 4]].concat()
    };
    let is_refused = |result| {
        matches!(
            result,
            Err(Error::PeerMisbehaved(Misbehaviour::Parse(
                ParseError::Unknown { .. }
            )))
        )
    };
    let mut victim = Victim::open();
    victim.seq += 1;
    let octets = unknown(FLAG_OPTIONAL, victim.seq);
    let taken = victim.session.handle_input(NOW, &octets);
    assert_eq!(taken, Ok(octets.len()));
    let ping = Pdu::Ping {
        t_us: 1,
        echo_us: 0,
    };
    victim.send(&ping).unwrap();
    let octets = unknown(0, victim.seq + 1);
    assert!(is_refused(victim.session.handle_input(NOW, &octets)));
    let mut victim = Victim::new(config());
    let octets = unknown(FLAG_OPTIONAL, 1);
    assert!(is_refused(victim.session.handle_input(NOW, &octets)));
}

#[test]
fn an_intact_first_pdu_of_another_version_is_told_from_damage_and_from_other_protocols() {
    let mut octets = Pdu::AuthType {
        methods: vec![AuthMethod::Anonymous],
    }
    .emit(SESSION, 0, 1);
    (octets[0], octets[1]) = (3, FLAG_CHECK);
    let check = crc32c(&octets);
    octets[24..28].copy_from_slice(&check.to_be_bytes());
    let take = |octets: &[u8]| Victim::new(config()).session.handle_input(NOW, octets);
    assert_eq!(take(&octets), Err(Error::Incompatible(3)));
    octets[33] ^= 1;
    assert_eq!(take(&octets), Err(Error::Damaged));
    octets[1] = 0;
    let other = Misbehaviour::Parse(ParseError::Version(3));
    assert_eq!(take(&octets), Err(Error::PeerMisbehaved(other)));
}

#[test]
fn a_flood_is_not_taken_until_it_is_answered() {
    let mut victim = Victim::open();
    let flood: Vec<u8> = (1..=10_000)
        .flat_map(|at| {
            Pdu::AppData {
                option: 1,
                octets: vec![0],
            }
            .emit(SESSION, 0, victim.seq + at)
        })
        .collect();
    let taken = victim.session.handle_input(NOW, &flood).unwrap();
    assert!(
        taken < flood.len() / 10,
        "{taken} octets taken with nobody there"
    );
    assert!(!victim.session.wants_input());
    while victim.session.poll_event().is_some() {}
    assert!(victim.session.handle_input(NOW, &flood[taken..]).unwrap() > 0);
}

#[test]
fn more_connections_and_channels_than_agreed_are_refused_and_harmless() {
    let mut victim = Victim::open();
    for conn in 2..=20 {
        victim
            .send(&Pdu::ConnOpen {
                conn: ConnId(conn),
                credit: 0,
                to: endpoint("b", 1),
                metadata: Metadata::default(),
                early: Vec::new(),
            })
            .unwrap();
    }
    assert_eq!(victim.session.conns(), 4);
    let refusals = std::iter::from_fn(|| victim.session.poll_transmit(NOW))
        .filter(|pdu| pdu[3] == 21 && pdu[36..38] != [0, 0]);
    assert_eq!(refusals.count(), 16);
    assert_eq!(victim.session.state(), State::Open);
}

/// Joins two ends until neither has a message left.
fn join(near: &mut Session, far: &mut Session) -> Result<(), Error> {
    loop {
        let (out, back) = (near.poll_transmit(NOW), far.poll_transmit(NOW));
        if out.is_none() && back.is_none() {
            return Ok(());
        }
        if let Some(octets) = out {
            far.handle_input(NOW, &octets)?;
        }
        if let Some(octets) = back {
            near.handle_input(NOW, &octets)?;
        }
    }
}

fn keyed(name: &str, secret: &[u8], binding: u8) -> SessionConfig {
    let keys = vec![SharedKey::new(name, secret)];
    SessionConfig {
        auth: AuthConfig {
            methods: vec![AuthMethod::SharedKey],
            keys,
            binding: [binding; 32],
            peer_below: None,
        },
        ..config()
    }
}

#[test]
fn a_key_is_proved_and_nothing_else_will_do() {
    let meet = |near: SessionConfig, far: SessionConfig| {
        let mut near = Session::open(near, NOW, SESSION, open(1, false), [1; 32]).unwrap();
        let mut far = Session::accept(far, NOW, [2; 32]).unwrap();
        let result = join(&mut near, &mut far);
        let opened = matches!(far.poll_event(), Some(Event::OpenRequest(_)));
        (result.is_ok() && opened, far.peer().map(str::to_owned))
    };
    assert_eq!(
        meet(keyed("a", b"k", 0), keyed("a", b"k", 0)),
        (true, Some("a".to_owned()))
    );
    for (why, near, far) in [
        ("wrong key", keyed("a", b"k", 0), keyed("a", b"l", 0)),
        ("unknown name", keyed("b", b"k", 0), keyed("a", b"k", 0)),
        (
            "another connection below",
            keyed("a", b"k", 1),
            keyed("a", b"k", 2),
        ),
        ("nobody", config(), keyed("a", b"k", 0)),
        ("this end wants proof", keyed("a", b"k", 0), config()),
    ] {
        assert_eq!(meet(near, far), (false, None), "{why}");
    }
}

#[test]
fn a_proof_is_good_for_one_conversation_only() {
    // The opener's bytes, recorded and replayed to a fresh acceptor, whose nonce differs.
    let mut near =
        Session::open(keyed("a", b"k", 0), NOW, SESSION, open(1, false), [1; 32]).unwrap();
    let mut far = Session::accept(keyed("a", b"k", 0), NOW, [2; 32]).unwrap();
    let mut heard = Vec::new();
    for _ in 0..4 {
        while let Some(octets) = near.poll_transmit(NOW) {
            far.handle_input(NOW, &octets).unwrap();
            heard.push(octets);
        }
        while let Some(octets) = far.poll_transmit(NOW) {
            near.handle_input(NOW, &octets).unwrap();
        }
    }
    assert_eq!(far.peer(), Some("a"));
    let mut other = Session::accept(keyed("a", b"k", 0), NOW, [3; 32]).unwrap();
    let played = heard
        .iter()
        .try_for_each(|octets| other.handle_input(NOW, octets).map(|_| ()));
    assert_eq!(played, Err(Error::NotAuthenticated(AuthError::Proof)));
}

#[test]
fn a_directory_goes_only_where_it_may_and_never_in_circles() {
    let allowed = Allowed {
        address: endpoint("hop1", 0).address,
        prefix: 0,
        port: Some(5006),
    };
    let mut directory = Directory::new(2, vec![allowed], [4; 32]);
    let asked = open(3, true);
    assert_eq!(directory.admit(NOW, SESSION, &asked), Admission::Next(1));
    assert_eq!(
        directory.admit(NOW, SESSION, &asked),
        Admission::Refused(NackStatus::Loop, 0)
    );
    let again = haul_xsp::wire::SessOpen {
        ticket: Some([1; 56]),
        ..asked.clone()
    };
    // Whether that is its owner, the session itself is asked.
    assert_eq!(
        directory.admit(NOW, SESSION, &again),
        Admission::Back(SESSION)
    );
    let beyond = haul_xsp::wire::SessOpen {
        hop_index: 1,
        ..open(3, true)
    };
    assert_eq!(
        directory.admit(NOW, SessionId([9; 16]), &beyond),
        Admission::Refused(NackStatus::Forbidden, 2)
    );
    let last = haul_xsp::wire::SessOpen {
        hop_index: 2,
        ..open(3, true)
    };
    let other = SessionId([10; 16]);
    assert_eq!(directory.admit(NOW, other, &last), Admission::Terminus);
    assert_eq!(
        directory.admit(NOW, SessionId([11; 16]), &last),
        Admission::Refused(NackStatus::Busy, 2)
    );
    let ticket = directory.ticket(other, Time::from_ns(u64::MAX));
    let back = haul_xsp::wire::SessOpen {
        ticket: Some(ticket),
        ..last.clone()
    };
    assert_eq!(directory.admit(NOW, other, &back), Admission::Back(other));
    let stolen = directory.admit(NOW, SESSION, &back);
    assert_eq!(
        stolen,
        Admission::Refused(NackStatus::Loop, 2),
        "another session's ticket"
    );
}

#[test]
fn new_rules_of_a_directory_are_for_what_comes_and_leave_what_is_there() {
    let mut directory = Directory::new(1, Vec::new(), [4; 32]);
    let asked = open(3, true);
    let refused = Admission::Refused(NackStatus::Forbidden, 1);
    assert_eq!(directory.admit(NOW, SESSION, &asked), refused);
    let allowed = Allowed {
        address: endpoint("hop1", 0).address,
        prefix: 0,
        port: None,
    };
    directory.set_rules(1, vec![allowed]);
    assert_eq!(directory.admit(NOW, SESSION, &asked), Admission::Next(1));
    directory.set_rules(2, Vec::new());
    assert_eq!(directory.len(), 1);
    let other = SessionId([9; 16]);
    assert_eq!(directory.admit(NOW, other, &asked), refused);
}

#[test]
fn random_bytes_never_panic_and_parsed_ones_round_trip() {
    let mut random = Random::new(11);
    let mut parsed = 0;
    for _ in 0..60_000 {
        let kind = u16::try_from(random.below(52)).unwrap();
        let len = usize::try_from(random.below(90)).unwrap();
        // Small numbers make counts and lengths that fit.
        let body: Vec<u8> = (0..len)
            .map(|_| u8::try_from(random.next() & if random.chance(700) { 0 } else { 7 }).unwrap())
            .collect();
        if let Ok(pdu) = Pdu::parse(kind, &body) {
            parsed += 1;
            let again = pdu.emit(SESSION, 0, 1);
            assert_eq!(Pdu::parse(kind, &again[HEADER_LEN..]), Ok(pdu));
        }
    }
    assert!(parsed > 500, "only {parsed} PDUs");
}
