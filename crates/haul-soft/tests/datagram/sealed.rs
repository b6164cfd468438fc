//! Sealed services, and an attacker on the path between their ends, who sees, changes, repeats and
//! makes up datagrams.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use haul_verbs::{
    DatagramInit, Error, Peer, QpInit, QpType, SealKey, SendOp, SendWr, Sources, WcOpcode, WcStatus,
};

use crate::relay::Tap;
use crate::support::{End, LOOPBACK, PATIENCE, capacity, pattern};

const LEN: u32 = 60_000;
/// Bytes of a message that are looked for in what is on the wire.
const GLIMPSE: usize = 16;

fn sealed(qp_type: QpType, key: u8) -> End {
    let mut init = DatagramInit::default();
    init.seal_key = Some(SealKey::new([key; SealKey::LEN]));
    End::with(qp_type, init, Sources::Validated)
}

fn plain(qp_type: QpType) -> End {
    End::with(qp_type, DatagramInit::default(), Sources::Any)
}

/// Datagrams, each with whether it goes from near to far.
type Seen = Vec<(bool, Vec<u8>)>;

/// Sees all that two ends send to each other.
struct Attacker {
    /// Where the near end sends to.
    near_side: SocketAddr,
    far: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    /// Changes a bit of every datagram.
    spoils: Arc<AtomicBool>,
    tap: Tap,
}

impl Attacker {
    fn before(far: SocketAddr) -> Self {
        let (seen, spoils) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default());
        let (all_seen, is_spoiling) = (Arc::clone(&seen), Arc::clone(&spoils));
        let tap = Tap::new(far, move |datagram, forward, _| {
            let mut seen = all_seen.lock().unwrap();
            seen.push((forward, datagram.to_vec()));
            if is_spoiling.load(Ordering::Relaxed) {
                let bit = seen.len() * 7 % (datagram.len() * 8);
                datagram[bit / 8] ^= 1 << (bit % 8);
            }
            true
        });
        Self {
            near_side: tap.near_side,
            far,
            seen,
            spoils,
            tap,
        }
    }

    /// What has passed so far.
    fn seen(&self) -> Seen {
        self.seen.lock().unwrap().clone()
    }

    /// Sends to the far end as if it came from the near one, a few at a time.
    fn inject<'a>(&self, far: &End, datagrams: impl Iterator<Item = &'a [u8]>) -> u64 {
        let before = far.statistics().received;
        let mut count = 0;
        for datagram in datagrams {
            self.tap.far_side.send_to(datagram, self.far).unwrap();
            count += 1;
            far.counts(|counts| counts.received >= before + count);
        }
        count
    }
}

/// Write-Record and Read of [`LEN`] bytes, and a Send.
fn everything_arrives(near: &End, far: &End, to: Peer) {
    near.write(0, &pattern(LEN as usize, 1));
    let remote = far.mr.remote(0);
    // Unreliable datagrams may get lost where sockets are full.
    let mut is_whole = false;
    while !is_whole {
        near.post(1, SendOp::WriteRecord(remote), 0, LEN, to);
        near.success(1, WcOpcode::WriteRecord);
        while let Some(record) = far.completion_within(Duration::from_secs(2)) {
            is_whole |= record.byte_len == LEN;
            if is_whole {
                break;
            }
        }
    }
    assert!(far.read(0, LEN as usize) == pattern(LEN as usize, 1));
    near.post(2, SendOp::RdmaRead(remote), LEN.into(), LEN, to);
    near.success(2, WcOpcode::RdmaRead);
    assert!(near.read(LEN as usize, LEN as usize) == pattern(LEN as usize, 1));
    far.receive(3, u64::from(LEN), 5_000);
    near.post(3, SendOp::Send, 0, 5_000, to);
    near.success(3, WcOpcode::Send);
    let received = far.success(3, WcOpcode::Recv);
    assert_eq!(received.byte_len, 5_000);
}

#[test]
fn everything_arrives_and_nothing_of_it_is_in_the_clear() {
    for qp_type in [QpType::Ud, QpType::Rd] {
        let (near, far) = (sealed(qp_type, 1), sealed(qp_type, 1));
        let attacker = Attacker::before(far.addr);
        let to = Peer::new(attacker.near_side, far.qp.qp_num());
        everything_arrives(&near, &far, to);
        let message = pattern(LEN as usize, 1);
        let glimpses: std::collections::HashSet<&[u8]> = message.chunks(GLIMPSE).collect();
        let seen = attacker.seen();
        assert!(seen.len() > 80, "{}", seen.len());
        for (_, datagram) in &seen {
            let clear = datagram.windows(GLIMPSE).any(|at| glimpses.contains(at));
            assert!(!clear, "{qp_type:?}");
            assert_eq!(datagram[2..4], [2, 0], "SEC, and nothing else is told");
        }
        let counts = far.statistics();
        assert_eq!((counts.unsealed, counts.forged, counts.replayed), (0, 0, 0));
    }
}

#[test]
fn what_is_sent_again_is_counted_and_not_placed() {
    for qp_type in [QpType::Ud, QpType::Rd] {
        let (near, far) = (sealed(qp_type, 1), sealed(qp_type, 1));
        let attacker = Attacker::before(far.addr);
        let to = Peer::new(attacker.near_side, far.qp.qp_num());
        everything_arrives(&near, &far, to);
        let seen = attacker.seen();
        let forward = || seen.iter().filter(|(forward, _)| *forward);
        let is_data = |datagram: &[u8]| datagram[1] == 19;
        let data = forward().filter(|(_, datagram)| is_data(datagram)).count() as u64;
        // What was lost on the way arrives now.
        attacker.inject(&far, forward().map(|(_, datagram)| &datagram[..]));
        while far.completion_within(Duration::from_secs(1)).is_some() {}
        far.write(0, &vec![0; LEN as usize]);
        let before = far.statistics().replayed;
        attacker.inject(&far, forward().map(|(_, datagram)| &datagram[..]));
        assert_eq!(far.statistics().replayed - before, data, "{qp_type:?}");
        assert!(far.read(0, LEN as usize).iter().all(|byte| *byte == 0));
        far.nothing();
        // Nor does it arrive at an end that has just begun, under the number of the first one.
        let other = sealed(qp_type, 1);
        let socket = UdpSocket::bind(LOOPBACK).unwrap();
        for (sent, (_, datagram)) in (1..).zip(forward()) {
            socket.send_to(datagram, other.addr).unwrap();
            other.counts(|counts| counts.received >= sent);
        }
        assert_eq!(other.statistics().forged, data);
        // The ends go on.
        everything_arrives(&near, &far, to);
    }
}

#[test]
fn what_is_changed_or_made_up_is_counted_and_not_placed() {
    for qp_type in [QpType::Ud, QpType::Rd] {
        let (near, far) = (sealed(qp_type, 1), sealed(qp_type, 1));
        let attacker = Attacker::before(far.addr);
        let to = Peer::new(attacker.near_side, far.qp.qp_num());
        everything_arrives(&near, &far, to);
        let seen = attacker.seen();
        let longest = seen
            .iter()
            .filter(|(forward, datagram)| *forward && datagram[1] == 19);
        let longest = longest.max_by_key(|(_, datagram)| datagram.len()).unwrap();
        far.write(0, &vec![0; LEN as usize]);
        let before = far.statistics();
        let changed: Vec<Vec<u8>> = (0..longest.1.len() * 8)
            .step_by(3)
            .map(|bit| {
                let mut changed = longest.1.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                changed
            })
            .chain((0..longest.1.len()).map(|len| longest.1[..len].to_vec()))
            .filter(|datagram| !datagram.is_empty())
            .collect();
        let sent = attacker.inject(&far, changed.iter().map(|datagram| &datagram[..]));
        let counts = far.statistics();
        let refused = counts.forged + counts.unsealed + counts.replayed
            - (before.forged + before.unsealed + before.replayed);
        // A changed type may make a greeting of it, which says nothing; no length is right for it.
        assert_eq!(refused, sent, "{qp_type:?}: {counts:?}");
        assert!(far.read(0, LEN as usize).iter().all(|byte| *byte == 0));
        far.nothing();
        everything_arrives(&near, &far, to);
    }
}

#[test]
fn a_reliable_service_goes_on_after_a_time_in_which_everything_was_changed() {
    let (near, far) = (sealed(QpType::Rd, 1), sealed(QpType::Rd, 1));
    let attacker = Attacker::before(far.addr);
    let to = Peer::new(attacker.near_side, far.qp.qp_num());
    everything_arrives(&near, &far, to);
    attacker.spoils.store(true, Ordering::Relaxed);
    near.write(0, &pattern(LEN as usize, 5));
    near.post(9, SendOp::RdmaWrite(far.mr.remote(0)), 0, LEN, to);
    far.counts(|counts| counts.forged > 20);
    attacker.spoils.store(false, Ordering::Relaxed);
    near.success(9, WcOpcode::RdmaWrite);
    assert!(far.read(0, LEN as usize) == pattern(LEN as usize, 5));
}

/// Whoever has another key, or none, is not served and serves nobody, and both sides see it.
#[test]
fn ends_with_different_keys_and_without_do_not_meet() {
    for (near, far) in [
        (sealed(QpType::Ud, 1), sealed(QpType::Ud, 2)),
        (sealed(QpType::Rd, 1), sealed(QpType::Rd, 2)),
        (sealed(QpType::Ud, 1), plain(QpType::Ud)),
    ] {
        far.receive(1, 0, 100);
        near.write(0, &pattern(100, 1));
        near.post(1, SendOp::Send, 0, 100, far.peer());
        near.post(2, SendOp::Send, 0, 100, far.peer());
        for wr_id in [1, 2] {
            let wc = near.completion();
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::RetryExcErr));
        }
        far.nothing();
        assert!(far.read(0, 100).iter().all(|byte| *byte == 0));
        let (own, peers) = (near.statistics(), far.statistics());
        assert!(
            own.forged > 0 || peers.bad_checksum > 0,
            "{own:?} {peers:?}"
        );
    }
    // Without a key nothing is asked for.
    let (near, far) = (plain(QpType::Ud), sealed(QpType::Ud, 1));
    far.receive(1, 0, 100);
    near.post(1, SendOp::Send, 0, 100, far.peer());
    near.success(1, WcOpcode::Send);
    far.counts(|counts| counts.unsealed == 1);
    far.nothing();
}

#[test]
fn a_peer_that_begins_anew_is_greeted_again() {
    let near = sealed(QpType::Ud, 1);
    let far = sealed(QpType::Ud, 1);
    let at = far.addr;
    everything_arrives(&near, &far, far.peer());
    drop(far);
    let mut init = DatagramInit::default();
    init.seal_key = Some(SealKey::new([1; SealKey::LEN]));
    let far = End::at(at, QpType::Ud, init, Sources::Validated);
    let to = far.peer();
    let begun = std::time::Instant::now();
    for wr_id in 10.. {
        assert!(begun.elapsed() < PATIENCE);
        far.receive(wr_id, 0, 100);
        near.post(wr_id, SendOp::Send, 0, 100, to);
        near.success(wr_id, WcOpcode::Send);
        if far.completion_within(Duration::from_millis(300)).is_some() {
            break;
        }
    }
    assert!(
        far.statistics().forged > 0,
        "what was sent under the lost keys"
    );
}

#[test]
fn nothing_sealed_goes_to_groups_or_over_connections() {
    let end = sealed(QpType::Ud, 1);
    let group = Peer::group(([239, 1, 2, 3], 4_791).into());
    let wr = SendWr::new(1, SendOp::Send, end.mr.sge(0, 8)).to(group);
    let refused = end.qp.post_send(&[wr]).unwrap_err();
    assert!(matches!(refused.error, Error::Unsupported(_)));
    let mut init = QpInit::new(&end.cq);
    init.capacity = capacity();
    init.datagram.seal_key = Some(SealKey::new([1; SealKey::LEN]));
    let refused = end.pd.create_qp(&init).unwrap_err();
    assert!(matches!(refused, Error::Unsupported(_)));
}
