//! Datagram services at the border.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::time::Duration;

use haul_verbs::{
    DatagramInit, QpType, RateLimit, RecordMode, RecordStatus, SealKey, Sources, WcOpcode,
    WcStatus, WorkCompletion, WriteRecord,
};
use libc::{sockaddr, socklen_t};
use socket2::{Domain, SockAddr, Socket, Type};

use super::*;

fn v4(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn size_of_u32<T>() -> u32 {
    u32::try_from(size_of::<T>()).unwrap()
}

fn peer(address: SocketAddr, qp_num: u32) -> (c_int, haul_peer) {
    let mut out = MaybeUninit::zeroed();
    let address = SockAddr::from(address);
    let at = address.as_ptr().cast::<sockaddr>();
    // SAFETY: the address is as long as it says.
    let result = unsafe { haul_peer_from_address(at, address.len(), qp_num, Some(&mut out)) };
    // SAFETY: zeros are a value of it.
    (result, unsafe { out.assume_init() })
}

fn address_of(peer: &haul_peer) -> SocketAddr {
    // SAFETY: zeros are a value of it.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = socklen_t::try_from(size_of_val(&storage)).unwrap();
    let at = (&raw mut storage).cast::<sockaddr>();
    // SAFETY: there is room for so many bytes.
    let result = unsafe { haul_peer_address(Some(peer), at, Some(&mut len)) };
    assert_eq!(result, HAUL_OK);
    // SAFETY: an address was written.
    unsafe { address::read(at, len) }.unwrap()
}

#[test]
fn a_peer_is_an_address_and_a_number_and_comes_back_as_it_went() {
    let link_local = SocketAddrV6::new(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9), 7, 0, 3);
    for address in [
        v4("192.0.2.1:4791"),
        v4("[2001:db8::1]:65535"),
        link_local.into(),
    ] {
        let (result, peer) = peer(address, 0x0012_3456);
        assert_eq!(result, HAUL_OK);
        assert_eq!((peer.qp_num, peer.port), (0x0012_3456, address.port()));
        assert_eq!(address_of(&peer), address);
    }
    assert_eq!(peer(v4("192.0.2.1:0"), 1).0, HAUL_ERR_INVALID);
    assert_eq!(peer(v4("192.0.2.1:1"), HAUL_PEER_GROUP).0, HAUL_OK);
    assert_eq!(
        peer(v4("192.0.2.1:1"), HAUL_PEER_GROUP + 1).0,
        HAUL_ERR_INVALID
    );
}

#[test]
fn each_request_goes_to_its_peer() {
    let world = World::new();
    let peers: Vec<_> = (1..=40)
        .map(|port| peer(SocketAddr::from(([192, 0, 2, 1], port)), port.into()).1)
        .collect();
    let requests: Vec<_> = (1..=40).map(|number| write(number, &[])).collect();
    let send = |peers: &[haul_peer]| {
        let mut posted = MaybeUninit::new(usize::MAX);
        let (to, start, len) = (peers.as_ptr(), requests.as_ptr(), requests.len());
        // SAFETY: both arrays have so many elements, or NULL is the first.
        let result =
            unsafe { haul_post_send_to(Some(&world.qp), to, start, len, Some(&mut posted)) };
        // SAFETY: it was initialised here.
        (result, unsafe { posted.assume_init() })
    };
    assert_eq!(send(&peers), (HAUL_OK, 40));
    for sent in world.script.sent.lock().unwrap().iter() {
        let to = sent.peer.unwrap();
        assert_eq!(
            (u64::from(to.addr.port()), u64::from(to.qp_num)),
            (sent.wr_id, sent.wr_id)
        );
    }
    let mut spoiled = peers;
    spoiled[20].qp_num = 1 << 24;
    assert_eq!(send(&spoiled), (HAUL_ERR_INVALID, 20));
    spoiled[20].qp_num = 1;
    spoiled[3].port = 0;
    assert_eq!(send(&spoiled), (HAUL_ERR_INVALID, 3));
    spoiled[0].reserved[2] = 1;
    assert_eq!(send(&spoiled), (HAUL_ERR_INVALID, 0));
    // SAFETY: no peers are read before NULL is seen.
    let result = unsafe {
        haul_post_send_to(
            Some(&world.qp),
            std::ptr::null(),
            requests.as_ptr(),
            40,
            None,
        )
    };
    assert_eq!(result, HAUL_ERR_INVALID);
}

#[test]
fn a_datagram_service_is_made_as_the_program_says() {
    let world = World::new();
    let key = [0x5a_u8; 32];
    let datagram = haul_datagram_init {
        size: size_of_u32::<haul_datagram_init>(),
        flags: HAUL_DATAGRAM_GROUP_WRITES
            | HAUL_DATAGRAM_PEER_ERROR_FATAL
            | HAUL_DATAGRAM_RECEIVES_IN_ORDER,
        records: HAUL_RECORDS_QUERY,
        path_mtu: 1400,
        multicast_ttl: 4,
        tail_repeats: 2,
        max_rate: 1_000_000,
        read_timeout_ns: 5_000_000,
        retries: 3,
        reserved: [0; 7],
        seal_key: key.as_ptr().cast(),
    };
    let create = |r#type, datagram: *const haul_datagram_init| {
        let init = haul_qp_init {
            size: size_of_u32::<haul_qp_init>(),
            r#type,
            flags: 0,
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            send_cq: &raw const *world.cq,
            recv_cq: &raw const *world.cq,
            srq: std::ptr::null(),
            datagram,
            max_rate_bps: 8_000_000,
            max_burst: 0,
        };
        let mut out = MaybeUninit::uninit();
        // SAFETY: the structure is whole, its handles live.
        let result = unsafe { haul_qp_create(Some(&world.pd), &init, Some(&mut out)) };
        // SAFETY: every call writes it.
        let qp = unsafe { out.assume_init() };
        if result == HAUL_OK {
            // SAFETY: a function that returns HAUL_OK gives an object away.
            haul_qp_destroy(Some(unsafe { Box::from_raw(qp) }));
        }
        result
    };
    let asked = || world.script.asked.lock().unwrap().take().unwrap();
    assert_eq!(create(HAUL_QPT_UD, &raw const datagram), HAUL_OK);
    let mut wanted = DatagramInit::default();
    wanted.records = RecordMode::Query;
    wanted.path_mtu = 1400;
    wanted.max_rate = Some(1_000_000);
    wanted.multicast_ttl = 4;
    wanted.multicast_loop = false;
    wanted.group_writes = true;
    wanted.tail_repeats = 2;
    wanted.read_timeout = Duration::from_millis(5);
    wanted.retries = 3;
    wanted.peer_error_is_fatal = true;
    wanted.receives_in_order = true;
    wanted.window = 0;
    wanted.seal_key = Some(SealKey::new(key));
    let limit = RateLimit::new(8_000_000);
    assert_eq!(asked(), (QpType::Ud, wanted, Some(limit)));
    assert_eq!(create(HAUL_QPT_RD, std::ptr::null()), HAUL_OK);
    assert_eq!(asked(), (QpType::Rd, DatagramInit::default(), Some(limit)));
    for wrong in [
        haul_datagram_init {
            flags: 1 << 9,
            ..datagram
        },
        haul_datagram_init {
            records: 9,
            ..datagram
        },
        haul_datagram_init {
            reserved: [1; 7],
            ..datagram
        },
        haul_datagram_init {
            size: 8,
            ..datagram
        },
    ] {
        assert_eq!(create(HAUL_QPT_UD, &raw const wrong), HAUL_ERR_INVALID);
    }
}

#[test]
fn a_program_of_the_first_version_makes_queue_pairs_still() {
    let world = World::new();
    let init = haul_qp_init {
        size: 56,
        r#type: HAUL_QPT_RC,
        flags: 0,
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
        send_cq: &raw const *world.cq,
        recv_cq: &raw const *world.cq,
        srq: std::ptr::null(),
        // Behind what such an application has: must not be read.
        datagram: std::ptr::without_provenance(1),
        max_rate_bps: 1,
        max_burst: 1,
    };
    // SAFETY: as long as it says, and its handles live.
    drop(make(|out| unsafe {
        haul_qp_create(Some(&world.pd), &init, out)
    }));
}

#[test]
fn a_service_says_where_it_is_and_a_socket_stays_the_programs() {
    let world = World::new();
    let here = |bind: &dyn Fn(&mut MaybeUninit<haul_peer>) -> c_int| {
        let mut own = MaybeUninit::uninit();
        assert_eq!(bind(&mut own), HAUL_OK);
        // SAFETY: a function that returns HAUL_OK has written it.
        let own = unsafe { own.assume_init() };
        assert_eq!(own.qp_num, 3);
        address_of(&own)
    };
    let address = SockAddr::from(v4("192.0.2.7:0"));
    let at = address.as_ptr().cast::<sockaddr>();
    // SAFETY: the address is as long as it says.
    let bound = here(&|own| unsafe { haul_qp_bind(Some(&world.qp), at, address.len(), Some(own)) });
    assert_eq!(bound, v4("192.0.2.7:777"));
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    socket.bind(&v4("127.0.0.1:0").into()).unwrap();
    let fd = socket.as_raw_fd();
    // SAFETY: an open descriptor.
    let adopted = here(&|own| unsafe { haul_qp_adopt(Some(&world.qp), fd, Some(own)) });
    let local = socket.local_addr().unwrap();
    assert_eq!(Some(adopted), local.as_socket());
    // SAFETY: none is used.
    let result = unsafe { haul_qp_adopt(Some(&world.qp), -1, None) };
    assert_eq!(result, HAUL_ERR_INVALID);
}

#[test]
fn groups_are_joined_where_the_program_says() {
    let world = World::new();
    let group = SockAddr::from(v4("239.1.2.3:9"));
    let at = SockAddr::from(v4("192.0.2.7:0"));
    let (group_at, at_at) = (
        group.as_ptr().cast::<sockaddr>(),
        at.as_ptr().cast::<sockaddr>(),
    );
    // SAFETY: addresses are as long as they say.
    let joined = unsafe {
        haul_qp_attach_multicast(Some(&world.qp), group_at, group.len(), at_at, at.len())
    };
    // SAFETY: as above.
    let left = unsafe {
        haul_qp_detach_multicast(Some(&world.qp), group_at, group.len(), std::ptr::null(), 0)
    };
    assert_eq!((joined, left), (HAUL_OK, HAUL_OK));
    let ip = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
    let wanted = [
        (true, ip("239.1.2.3"), Some(ip("192.0.2.7"))),
        (false, ip("239.1.2.3"), None),
    ];
    assert_eq!(*world.script.groups.lock().unwrap(), wanted);
}

fn record(number: u32) -> WriteRecord {
    let source = Peer::new(v4("192.0.2.9:99"), 0x77);
    let target = Remote {
        addr: 4096,
        rkey: 5,
    };
    let mut record = WriteRecord::new(RecordStatus::Partial, source, number, target, 1000);
    record.valid = 30;
    record.valid_ranges = vec![0..10, 20..30, 900..910];
    record.imm = Some(42);
    record
}

fn empty(ranges: &mut [haul_range]) -> haul_record {
    // SAFETY: zeros are a value of it.
    let zero: haul_record = unsafe { std::mem::zeroed() };
    haul_record {
        ranges: ranges.as_mut_ptr(),
        ranges_room: u32::try_from(ranges.len()).unwrap(),
        ..zero
    }
}

#[test]
fn a_record_is_taken_once_and_says_what_is_valid() {
    let world = World::new();
    *world.script.records.lock().unwrap() = vec![(7, record(1)), (8, record(2))];
    let none = haul_range { start: 0, end: 0 };
    let mut ranges = [none; 4];
    let mut out = empty(&mut ranges);
    let take = |wr_id, out: &mut haul_record| {
        // SAFETY: the record's array lives.
        unsafe { haul_qp_take_record(Some(&world.qp), wr_id, Some(out)) }
    };
    assert_eq!(take(7, &mut out), 1);
    assert_eq!(take(7, &mut out), 0);
    assert_eq!((out.ranges_len, out.len, out.valid), (3, 1000, 30));
    assert_eq!((out.addr, out.rkey, out.message), (4096, 5, 1));
    assert_eq!(
        (out.status, out.flags, out.imm),
        (HAUL_RECORD_PARTIAL, HAUL_RECORD_WITH_IMM, 42)
    );
    assert_eq!(out.source, peer(v4("192.0.2.9:99"), 0x77).1);
    let range = |start, end| haul_range { start, end };
    assert_eq!(ranges, [range(0, 10), range(20, 30), range(900, 910), none]);
    // Nothing is taken where there is nowhere to put it.
    let mut wrong = haul_record {
        ranges: std::ptr::null_mut(),
        ..out
    };
    assert_eq!(take(8, &mut wrong), HAUL_ERR_INVALID);
    let mut short = [none; 2];
    let mut out = empty(&mut short[..1]);
    assert_eq!(take(8, &mut out), 1);
    assert_eq!((out.ranges_room, out.ranges_len), (1, 3));
    assert_eq!(short, [range(0, 10), none]);
}

#[test]
fn the_records_of_a_region_are_counted_and_filled_in_as_far_as_there_is_room() {
    let world = World::new();
    *world.script.records.lock().unwrap() = (0..5).map(|n| (n.into(), record(n))).collect();
    let none = haul_range { start: 0, end: 0 };
    let mut ranges = [[none; 3]; 2];
    let mut out: Vec<_> = ranges.iter_mut().map(|ranges| empty(ranges)).collect();
    let ask = |rkey, out: &mut [haul_record]| {
        let len = u32::try_from(out.len()).unwrap();
        // SAFETY: so many records, and their arrays live.
        unsafe { haul_qp_records(Some(&world.qp), rkey, out.as_mut_ptr(), len) }
    };
    assert_eq!(ask(5, &mut out), 5);
    assert_eq!((out[0].message, out[1].message), (0, 1));
    assert_eq!(
        ranges[1][2],
        haul_range {
            start: 900,
            end: 910
        }
    );
    assert_eq!(ask(6, &mut []), 0);
    assert_eq!(ask(5, &mut []), 5);
}

#[test]
fn completions_name_who_sent() {
    let world = World::new();
    let completion = |src| {
        let mut wc = WorkCompletion::new(0, WcStatus::Success, WcOpcode::RecvWriteRecord, 0);
        wc.src = src;
        wc
    };
    let who = Peer::new(v4("[2001:db8::5]:55"), 9);
    *world.script.completions.lock().unwrap() = vec![completion(Some(who)), completion(None)];
    let (found, all) = world.poll(2);
    assert_eq!((found, all[0].opcode), (2, HAUL_WC_RECV_WRITE_RECORD));
    let ask = |wc: &haul_wc| {
        let mut out = MaybeUninit::zeroed();
        let result = haul_wc_peer(Some(wc), Some(&mut out));
        // SAFETY: zeros are a value of it.
        (result, unsafe { out.assume_init() })
    };
    assert_eq!(ask(&all[0]), (1, peer(who.addr, 9).1));
    assert_eq!(ask(&all[1]).0, 0);
}

#[test]
fn regions_are_open_to_those_that_the_program_names() {
    let world = World::new();
    let peers = [
        peer(v4("192.0.2.1:1"), 5).1,
        haul_peer {
            qp_num: HAUL_PEER_ANY_QP,
            ..peer(v4("[2001:db8::1]:1"), 0).1
        },
    ];
    let mut bytes = [0_u8; 64];
    let init = haul_mr_init {
        size: size_of_u32::<haul_mr_init>(),
        access: HAUL_ACCESS_LOCAL_WRITE | HAUL_ACCESS_REMOTE_WRITE,
        start: bytes.as_mut_ptr().cast(),
        len: bytes.len(),
        iova: 0,
        peers: peers.as_ptr(),
        peer_count: 2,
        sources: HAUL_SOURCES_PEERS,
    };
    let create = |init: &haul_mr_init| {
        let mut out = MaybeUninit::uninit();
        // SAFETY: the structure is whole, its memory and array live.
        let result = unsafe { haul_mr_create(Some(&world.pd), init, Some(&mut out)) };
        // SAFETY: every call writes it.
        let mr = unsafe { out.assume_init() };
        if result == HAUL_OK {
            // SAFETY: a function that returns HAUL_OK gives an object away.
            assert_eq!(haul_mr_dereg(Some(unsafe { Box::from_raw(mr) })), HAUL_OK);
        }
        let sources = world.script.sources.lock().unwrap().take();
        (result, sources)
    };
    let of = Sources::Of(vec![
        (v4("192.0.2.1:1").ip(), Some(5)),
        (v4("[2001:db8::1]:1").ip(), None),
    ]);
    assert_eq!(create(&init), (HAUL_OK, Some(of)));
    let any = haul_mr_init {
        start: std::ptr::null_mut(),
        peers: std::ptr::null(),
        peer_count: 0,
        sources: HAUL_SOURCES_ANY,
        ..init
    };
    assert_eq!(create(&any), (HAUL_OK, Some(Sources::Any)));
    let validated = haul_mr_init {
        sources: HAUL_SOURCES_VALIDATED,
        ..any
    };
    assert_eq!(create(&validated), (HAUL_OK, Some(Sources::Validated)));
    for wrong in [
        haul_mr_init {
            sources: HAUL_SOURCES_ANY,
            ..init
        },
        haul_mr_init { sources: 3, ..any },
        haul_mr_init {
            peers: std::ptr::null(),
            ..init
        },
        haul_mr_init { len: 0, ..init },
    ] {
        assert_eq!(create(&wrong), (HAUL_ERR_INVALID, None));
    }
}

#[test]
fn every_counter_has_its_place() {
    let world = World::new();
    // SAFETY: zeros are a value of it.
    let mut out: haul_datagram_statistics = unsafe { std::mem::zeroed() };
    out.size = size_of_u32::<haul_datagram_statistics>();
    // SAFETY: the structure says its size.
    let result = unsafe { haul_qp_datagram_statistics(Some(&world.qp), &raw mut out) };
    assert_eq!(result, HAUL_OK);
    let counters = [
        out.sent,
        out.received,
        out.bad_checksum,
        out.malformed,
        out.unknown_qp,
        out.no_receive,
        out.too_long,
        out.duplicates,
        out.incomplete,
        out.refused,
        out.late,
        out.evicted,
        out.resent,
        out.peers,
        out.peer_bytes,
        out.kernel_drops,
        out.undelivered,
        out.unsealed,
        out.forged,
        out.replayed,
    ];
    assert!(counters.into_iter().eq(1..=20));
}
