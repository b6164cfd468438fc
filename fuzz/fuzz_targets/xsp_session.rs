//! An acceptor's session with a user and a hostile peer: PDUs in number, reads that succeed and
//! fail, time.

#![no_main]

use arbitrary::Arbitrary;
use haul_xsp::bag::{ConsumerConfig, ProducerConfig};
use haul_xsp::wire::{AuthMethod, HEADER_LEN, Header, Key, Params, Proto, ProtoOffer};
use haul_xsp::{AuthConfig, Event, Session, SessionConfig, SessionId, Time};
use libfuzzer_sys::fuzz_target;

const ARENA: u64 = 1 << 16;

#[derive(Debug, Arbitrary)]
enum Step {
    /// A PDU with a right header.
    Pdu(u8, Vec<u8>),
    Octets(Vec<u8>),
    Got(bool),
    Write(u16),
    Finish,
    Reset,
    Wait(u32),
    Lost,
}

fuzz_target!(|steps: Vec<Step>| {
    let offer = ProtoOffer {
        proto: Proto::Tcp,
        preference: 1,
        params: Params::default(),
    };
    let config = SessionConfig {
        protocols: vec![offer],
        auth: AuthConfig {
            methods: vec![AuthMethod::Anonymous],
            ..AuthConfig::default()
        },
        producer: ProducerConfig {
            regions: 3,
            region_bytes: 1 << 12,
            region_bytes_start: 1 << 12,
            ..ProducerConfig::default()
        },
        consumer: ConsumerConfig {
            arena_bytes: ARENA,
            extent_bytes_min: 256,
            ..ConsumerConfig::default()
        },
        conns_max: 16,
        ..SessionConfig::default()
    };
    let mut now = Time::from_ns(1_000);
    let Ok(mut session) = Session::accept(config, now, [1; 32]) else {
        return;
    };
    let (mut seq, mut conns, mut gets) = (0, Vec::new(), Vec::new());
    for step in steps {
        match step {
            Step::Pdu(kind, body) => {
                seq += 1;
                let len = u32::try_from(body.len()).unwrap_or(0);
                let header = Header {
                    flags: 0,
                    kind: u16::from(kind),
                    len,
                    session: SessionId([0; 16]),
                    chan: 0,
                    seq,
                };
                let octets = [&header.emit()[..], &body].concat();
                let taken = session.handle_input(now, &octets);
                assert!(
                    taken.is_err() || taken.is_ok_and(|taken| taken <= HEADER_LEN + body.len())
                );
            }
            Step::Octets(octets) => {
                let _ = session.handle_input(now, &octets);
            }
            Step::Got(is_placed) => {
                if let Some(id) = gets.pop() {
                    let _ = session.consumer().handle_got(now, id, is_placed);
                }
            }
            Step::Write(len) => {
                for conn in &conns {
                    if let Some(fill) = session.producer().reserve(now, *conn, u64::from(len)) {
                        assert!(fill.at + fill.len <= 1 << 12);
                        session.producer().commit(now, *conn, fill.len, None);
                    }
                }
            }
            Step::Finish => conns.iter().for_each(|conn| session.finish_conn(*conn)),
            Step::Reset => conns.iter().for_each(|conn| session.reset_conn(*conn, 1)),
            Step::Wait(us) => {
                now = now.after(u64::from(us) * 1_000);
                session.handle_timeout(now);
            }
            Step::Lost => session.handle_lost(now),
        }
        drain(&mut session, now, &mut conns, &mut gets);
    }
});

fn drain(
    session: &mut Session,
    now: Time,
    conns: &mut Vec<haul_xsp::ConnId>,
    gets: &mut Vec<haul_xsp::bag::GetId>,
) {
    while let Some(event) = session.poll_event() {
        match event {
            Event::OpenRequest(_) => {
                let _ = session.accept_session(now, None, Some([1; 56]));
            }
            Event::ConnRequest { conn, .. } => {
                if session.accept_conn(conn).is_ok() {
                    conns.push(conn);
                }
            }
            Event::ConnClosed(conn) | Event::ConnLost(conn) => conns.retain(|known| *known != conn),
            _ => {}
        }
    }
    while session.producer().poll_retired().is_some() {}
    while let Some(seq) = session.producer().poll_sealed(now) {
        session.producer().announce(seq, |_| Key { stag: 1, to: 0 });
    }
    while let Some(get) = session.consumer().poll_get(now) {
        assert!(get.len > 0 && get.at + u64::from(get.len) <= ARENA);
        gets.push(get.id);
    }
    while let Some(verify) = session.consumer().poll_verify() {
        let _ = session.consumer().handle_verified(&verify, verify.len);
    }
    for conn in conns.iter() {
        if let Some(haul_xsp::bag::Read::Data(data)) = session.consumer().read(*conn, 1_000) {
            session.consumer().release(*conn, data.offset, data.len);
        }
    }
    while session.poll_transmit(now).is_some() {}
    let (used, all) = session.consumer().occupancy();
    assert!(used <= all && all == ARENA);
}
