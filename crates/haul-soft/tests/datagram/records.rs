//! Write-Record: whole, in part, with holes; and what is not allowed.

use haul_verbs::{
    AccessFlags, DatagramInit, MrInit, Peer, QpState, QpType, RecordMode, RecordStatus, SendOp,
    Sources, WcData, WcOpcode, WcStatus, WriteRecord,
};

use crate::relay::{Relay, Seen};
use crate::support::{End, pattern};

/// Bytes of a message in a few segments: small enough for any socket's buffer.
const LEN: u32 = 30_000;
/// Bytes of a tagged segment's header and checksum.
const OVERHEAD: u32 = 50;

fn write_through(lose: impl Fn(Seen) -> bool + Send + Sync + 'static) -> (End, End, Relay, Peer) {
    let mut init = DatagramInit::default();
    init.tail_repeats = 0;
    let near = End::with(QpType::Ud, init, Sources::Any);
    let far = End::new();
    let relay = Relay::new(far.addr, lose);
    let peer = Peer::new(relay.near_side, far.qp.qp_num());
    near.write(0, &pattern(LEN as usize, 4));
    (near, far, relay, peer)
}

#[test]
fn a_whole_write_is_recorded_once_and_takes_no_receive() {
    let (near, far) = (End::new(), End::new());
    far.receive(1, 0, 64);
    let bytes = pattern(100_000, 5);
    near.write(0, &bytes);
    near.post(
        1,
        SendOp::WriteRecordWithImm(far.mr.remote(4_096), 0xabcd),
        0,
        100_000,
        far.peer(),
    );
    near.success(1, WcOpcode::WriteRecord);
    let wc = far.completion();
    assert_eq!(
        (wc.status, wc.opcode),
        (WcStatus::Success, WcOpcode::RecvWriteRecord)
    );
    assert_eq!((wc.byte_len, wc.src), (100_000, Some(near.peer())));
    assert_eq!(wc.data, WcData::Imm(0xabcd));
    let record = far.qp.take_record(wc.wr_id).unwrap();
    assert_eq!(record.status, RecordStatus::Full);
    assert_eq!((record.len, record.valid), (100_000, 100_000));
    assert_eq!(record.valid_ranges.first(), Some(&(0..100_000)));
    assert_eq!(record.target, far.mr.remote(4_096));
    assert_eq!((record.source, record.imm), (near.peer(), Some(0xabcd)));
    assert!(far.read(4_096, 100_000) == bytes);
    assert_eq!(far.qp.take_record(wc.wr_id), None);
    far.nothing();
}

/// What was lost is missing in the record and in the memory, and nothing else is.
fn holes(lose: impl Fn(u32) -> bool + Send + Sync + 'static, wanted: &[RecordStatus]) {
    let (near, far, relay, peer) =
        write_through(move |seen| seen.forward && seen.is_data && lose(seen.offset));
    far.mr.region().fill(0, LEN as usize, 0xee).unwrap();
    near.post(1, SendOp::WriteRecord(far.mr.remote(0)), 0, LEN, peer);
    near.success(1, WcOpcode::WriteRecord);
    let wc = far.completion();
    let record = far.qp.take_record(wc.wr_id).unwrap();
    assert!(wanted.contains(&record.status), "{record:?}");
    let mut valid = vec![false; LEN as usize];
    for range in &record.valid_ranges {
        valid[range.start as usize..range.end as usize].fill(true);
    }
    let lost = relay.lost();
    assert!(!lost.is_empty());
    let bytes = pattern(LEN as usize, 4);
    let came = far.read(0, LEN as usize);
    for (at, is_valid) in valid.iter().enumerate() {
        let wanted = if *is_valid { bytes[at] } else { 0xee };
        assert_eq!(came[at], wanted, "{at}");
    }
    for seen in &lost {
        assert!(!valid[seen.offset as usize]);
    }
    let sum: u32 = record
        .valid_ranges
        .iter()
        .map(|range| range.end - range.start)
        .sum();
    assert_eq!((record.valid, wc.byte_len), (sum, sum));
    let lost: u32 = lost.iter().map(|seen| seen.octets - OVERHEAD).sum();
    assert_eq!(LEN - sum, lost, "{record:?}");
}

#[test]
fn the_loss_of_the_first_segment_costs_that_segment() {
    holes(|offset| offset == 0, &[RecordStatus::Partial]);
}

#[test]
fn the_loss_of_segments_in_the_middle_costs_these() {
    holes(
        |offset| (4_000..9_000).contains(&offset) || (20_000..21_500).contains(&offset),
        &[RecordStatus::Partial],
    );
}

#[test]
fn the_loss_of_the_last_segment_costs_that_segment() {
    holes(|offset| offset > LEN - 1_422, &[RecordStatus::Aged]);
}

#[test]
fn a_record_ends_with_its_region() {
    let mut init = DatagramInit::default();
    init.tail_repeats = 0;
    let near = End::with(QpType::Ud, init, Sources::Any);
    let far = End::new();
    let own = far
        .pd
        .register(
            MrInit::new(far.pd.map(4_096).unwrap(), AccessFlags::all()).with_sources(Sources::Any),
        )
        .unwrap();
    let relay = Relay::new(far.addr, |seen| seen.is_data && seen.offset > 0);
    let peer = Peer::new(relay.near_side, far.qp.qp_num());
    let (remote, rkey) = (own.remote(0), own.rkey());
    near.post(1, SendOp::WriteRecord(remote), 0, 4_000, peer);
    near.success(1, WcOpcode::WriteRecord);
    // It is open for a moment only; then it has aged.
    far.counts(|_| !far.qp.records(rkey).is_empty());
    drop(own);
    let record = far.qp.take_record(far.completion().wr_id).unwrap();
    let ends = [RecordStatus::Revoked, RecordStatus::Aged];
    assert!(ends.contains(&record.status), "{record:?}");
    // What any path carries: probes were not answered yet.
    assert_eq!(record.valid_ranges.first(), Some(&(0..1_202)));
    assert_eq!(record.valid, 1_202);
}

#[test]
fn chunks_are_reported_one_by_one() {
    let mut init = DatagramInit::default();
    init.records = RecordMode::PerChunk;
    let near = End::new();
    let far = End::with(QpType::Ud, init, Sources::Any);
    near.post(
        1,
        SendOp::WriteRecord(far.mr.remote(64)),
        0,
        10_000,
        far.peer(),
    );
    let mut ranges = Vec::new();
    let mut sum = 0;
    while sum < 10_000 {
        let wc = far.completion();
        let record = far.qp.take_record(wc.wr_id).unwrap();
        assert_eq!(record.status, RecordStatus::Chunk);
        assert_eq!((record.target, record.len), (far.mr.remote(64), 10_000));
        assert_eq!(record.valid, wc.byte_len);
        sum += record.valid;
        ranges.extend(record.valid_ranges);
    }
    ranges.sort_by_key(|range| range.start);
    assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, 10_000));
    assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
}

#[test]
fn records_that_are_not_reported_can_be_asked_for() {
    let mut init = DatagramInit::default();
    init.records = RecordMode::Query;
    let near = End::new();
    let far = End::with(QpType::Ud, init, Sources::Any);
    let remote = far.mr.remote(0);
    near.post(1, SendOp::WriteRecord(remote), 0, 5_000, far.peer());
    near.success(1, WcOpcode::WriteRecord);
    let is_full = |record: &WriteRecord| record.status == RecordStatus::Full;
    far.counts(|_| far.qp.records(remote.rkey).iter().any(is_full));
    let found = far.qp.records(remote.rkey);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (found[0].status, found[0].valid),
        (RecordStatus::Full, 5_000)
    );
    assert!(far.qp.records(remote.rkey ^ 0x100).is_empty());
    far.nothing();
}

#[test]
fn a_plain_write_is_placed_and_nobody_is_told() {
    let (near, far) = (End::new(), End::new());
    let bytes = pattern(5_000, 6);
    near.write(0, &bytes);
    near.post(1, SendOp::RdmaWrite(far.mr.remote(0)), 0, 5_000, far.peer());
    near.success(1, WcOpcode::RdmaWrite);
    far.counts(|_| far.read(0, 5_000) == bytes);
    far.nothing();
}

#[test]
fn what_a_peer_may_not_write_is_refused_and_counted() {
    let (near, far) = (End::new(), End::new());
    let own = far.pd.map(4_096).unwrap();
    let closed = far.pd.reg_mr(&own, AccessFlags::LOCAL_WRITE).unwrap();
    let beyond = far.mr.remote(far.mr.len() as u64 - 4_799);
    let unknown = haul_verbs::Remote {
        rkey: far.mr.rkey() ^ 0x5500,
        addr: 0,
    };
    for (count, remote) in (1..).zip([closed.remote(0), beyond, unknown]) {
        near.post(1, SendOp::WriteRecord(remote), 0, 4_800, far.peer());
        near.success(1, WcOpcode::WriteRecord);
        // Each of its segments is: four, before the path is known and after.
        far.counts(|counts| counts.refused == 4 * count);
    }
    assert_eq!(far.read(far.mr.len() - 4_799, 4_799), vec![0; 4_799]);
    far.nothing();
    assert_eq!(far.qp.state(), QpState::Rts);
}

#[test]
fn memory_for_validated_sources_takes_writes_of_peers_that_answer() {
    let near = End::new();
    let far = End::with(QpType::Ud, DatagramInit::default(), Sources::Validated);
    let bytes = pattern(5_000, 7);
    near.write(0, &bytes);
    near.post(
        1,
        SendOp::WriteRecord(far.mr.remote(0)),
        0,
        5_000,
        far.peer(),
    );
    // Whether the peer knows this end is found out first; the engines do that.
    let wc = far.completion();
    near.success(1, WcOpcode::WriteRecord);
    assert_eq!(wc.opcode, WcOpcode::RecvWriteRecord);
    assert!(far.read(0, 5_000) == bytes);
}

#[test]
fn memory_for_one_source_is_closed_to_another() {
    let near = End::new();
    let for_number = |number| {
        let only = Sources::Of(vec![(near.addr.ip(), Some(number))]);
        End::with(QpType::Ud, DatagramInit::default(), only)
    };
    let (far, closed) = (
        for_number(near.qp.qp_num()),
        for_number(near.qp.qp_num() + 1),
    );
    near.write(0, b"near");
    near.post(1, SendOp::WriteRecord(far.mr.remote(0)), 0, 4, far.peer());
    far.completion();
    assert_eq!(far.read(0, 4), b"near");
    closed.write(0, b"mine");
    let record = SendOp::WriteRecord(closed.mr.remote(0));
    near.post(2, record, 0, 4, closed.peer());
    closed.counts(|counts| counts.refused > 0);
    assert_eq!(closed.read(0, 4), b"mine");
}

#[test]
fn a_read_brings_what_the_peer_has() {
    let near = End::new();
    let far = End::with(QpType::Ud, DatagramInit::default(), Sources::Validated);
    let bytes = pattern(60_000, 8);
    far.write(1_000, &bytes);
    near.post(
        1,
        SendOp::RdmaRead(far.mr.remote(1_000)),
        0,
        60_000,
        far.peer(),
    );
    let wc = near.success(1, WcOpcode::RdmaRead);
    assert_eq!(wc.byte_len, 60_000);
    assert!(near.read(0, 60_000) == bytes);
}

#[test]
fn a_read_repairs_what_is_lost_on_the_way() {
    let near = End::new();
    let far = End::with(QpType::Ud, DatagramInit::default(), Sources::Validated);
    let bytes = pattern(30_000, 9);
    far.write(0, &bytes);
    let relay = Relay::new(far.addr, |seen| {
        !seen.forward && seen.is_data && seen.index % 3 == 1 && seen.index < 40
    });
    let peer = Peer::new(relay.near_side, far.qp.qp_num());
    near.post(1, SendOp::RdmaRead(far.mr.remote(0)), 0, 30_000, peer);
    let wc = near.success(1, WcOpcode::RdmaRead);
    assert_eq!(wc.byte_len, 30_000);
    assert!(near.read(0, 30_000) == bytes);
    assert!(!relay.lost().is_empty());
}

#[test]
fn a_flood_of_records_does_not_overflow_the_completion_queue() {
    if !crate::over::IS_DIRECT {
        return println!("SKIPPED: this device has threads and queues between");
    }
    let (near, far) = (End::new(), End::new());
    let half = 4_096 / 2;
    for nth in 1..=half + 100 {
        near.post(nth, SendOp::WriteRecord(far.mr.remote(0)), 0, 1, far.peer());
        near.success(nth, WcOpcode::WriteRecord);
        // No more than the socket holds.
        if nth % 50 == 0 {
            far.counts(|counted| counted.received >= nth);
        }
    }
    let counted = far.counts(|counted| counted.evicted >= 100);
    assert_eq!(counted.evicted, 100);
    assert_eq!(far.qp.state(), QpState::Rts);
    for _ in 0..half {
        let wc = far.completion();
        assert_eq!(wc.status, WcStatus::Success);
    }
    far.nothing();
}
