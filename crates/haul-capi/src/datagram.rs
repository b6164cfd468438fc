//! Datagram services: peers, sockets, groups, and the records of Write-Record.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use haul_verbs::{DatagramInit, Peer, Qp, RecordMode, RecordStatus, SealKey, WriteRecord};
use libc::{sockaddr, socklen_t};

use crate::abi::*;
use crate::address;
use crate::border::{NOWHERE, NULL_OUT, count, on, places, read_growing, run, write_growing};
use crate::handle::haul_qp;
use crate::status::{Error, Result};

const _: () = assert!(Peer::GROUP_QP == HAUL_PEER_GROUP);
const _: () = assert!(SealKey::LEN == HAUL_SEAL_KEY_LEN as usize);

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_peer_from_address(
    address: *const sockaddr,
    address_len: socklen_t,
    qp_num: u32,
    out: Option<&mut MaybeUninit<haul_peer>>,
) -> c_int {
    run(&NOWHERE, "haul_peer_from_address", || {
        let out = out.ok_or(NULL_OUT)?;
        // SAFETY: the caller's address.
        let address = unsafe { address::read(address, address_len)? };
        let peer = peer_of(Peer::new(address, qp_num));
        destination(&peer)?;
        out.write(peer);
        Ok(HAUL_OK)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_peer_address(
    peer: Option<&haul_peer>,
    out: *mut sockaddr,
    len: Option<&mut socklen_t>,
) -> c_int {
    run(&NOWHERE, "haul_peer_address", || {
        let peer = peer.ok_or(Error::Argument("the peer is NULL"))?;
        // SAFETY: the caller's place.
        unsafe { address::write(socket_addr(peer), out, len)? };
        Ok(HAUL_OK)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_wc_peer(
    wc: Option<&haul_wc>,
    out: Option<&mut MaybeUninit<haul_peer>>,
) -> c_int {
    run(&NOWHERE, "haul_wc_peer", || {
        let wc = wc.ok_or(Error::Argument("the completion is NULL"))?;
        let out = out.ok_or(NULL_OUT)?;
        if wc.flags & HAUL_WC_WITH_SRC == 0 {
            return Ok(0);
        }
        out.write(haul_peer {
            addr: wc.src_addr,
            scope_id: wc.src_scope_id,
            qp_num: wc.src_qp,
            port: wc.src_port,
            reserved: [0; 3],
        });
        Ok(1)
    })
}

/// As C has it.
pub(crate) fn peer_of(peer: Peer) -> haul_peer {
    let (addr, scope_id) = match peer.addr {
        SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped().octets(), 0),
        SocketAddr::V6(v6) => (v6.ip().octets(), v6.scope_id()),
    };
    haul_peer {
        addr,
        scope_id,
        qp_num: peer.qp_num,
        port: peer.addr.port(),
        reserved: [0; 3],
    }
}

fn socket_addr(peer: &haul_peer) -> SocketAddr {
    match IpAddr::from(peer.addr).to_canonical() {
        IpAddr::V4(v4) => SocketAddr::from((v4, peer.port)),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, peer.port, 0, peer.scope_id).into(),
    }
}

/// Where a work request goes to.
///
/// # Errors
/// No port, or a number that no queue pair has.
pub(crate) fn destination(peer: &haul_peer) -> Result<Peer> {
    haul_verbs::Error::at_least("port of the peer", peer.port.into(), 1)?;
    let (number, most) = (peer.qp_num.into(), HAUL_PEER_GROUP.into());
    haul_verbs::Error::at_most("qp_num of the peer", number, most)?;
    Error::reserved("haul_peer", peer.reserved == [0; 3])?;
    Ok(Peer::new(socket_addr(peer), peer.qp_num))
}

/// Who may reach a region.
pub(crate) fn source_of(peer: &haul_peer) -> (IpAddr, Option<u32>) {
    let any = peer.qp_num == HAUL_PEER_ANY_QP;
    (socket_addr(peer).ip(), (!any).then_some(peer.qp_num))
}

/// The defaults for NULL.
///
/// # Errors
/// Flags or a mode that there are not.
///
/// # Safety
/// As [`read_growing`].
pub(crate) unsafe fn datagram_init(init: *const haul_datagram_init) -> Result<DatagramInit> {
    let default = DatagramInit::default();
    let defaults = haul_datagram_init {
        size: 0,
        flags: 0,
        records: HAUL_RECORDS_AGGREGATE,
        path_mtu: default.path_mtu,
        multicast_ttl: default.multicast_ttl,
        tail_repeats: default.tail_repeats,
        max_rate: 0,
        read_timeout_ns: 0,
        retries: default.retries,
        reserved: [0; 7],
        seal_key: std::ptr::null(),
    };
    // SAFETY: the caller's contract.
    let Some(init) = (unsafe { read_growing(init, defaults)? }) else {
        return Ok(default);
    };
    let known = HAUL_DATAGRAM_MULTICAST_LOOP
        | HAUL_DATAGRAM_GROUP_WRITES
        | HAUL_DATAGRAM_PEER_ERROR_FATAL
        | HAUL_DATAGRAM_RECEIVES_IN_ORDER;
    if init.flags & !known != 0 {
        return Err(Error::unknown("flags", init.flags, "of HAUL_DATAGRAM_…"));
    }
    Error::reserved("haul_datagram_init", init.reserved == [0; 7])?;
    Ok({
        let mut datagram = DatagramInit::default();
        datagram.records = match init.records {
            HAUL_RECORDS_AGGREGATE => RecordMode::Aggregate,
            HAUL_RECORDS_PER_CHUNK => RecordMode::PerChunk,
            HAUL_RECORDS_QUERY => RecordMode::Query,
            other => {
                return Err(Error::unknown("records", other, "one of HAUL_RECORDS_…"));
            }
        };
        datagram.path_mtu = init.path_mtu;
        datagram.max_rate = (init.max_rate != 0).then_some(init.max_rate);
        datagram.multicast_ttl = init.multicast_ttl;
        datagram.multicast_loop = init.flags & HAUL_DATAGRAM_MULTICAST_LOOP != 0;
        datagram.group_writes = init.flags & HAUL_DATAGRAM_GROUP_WRITES != 0;
        datagram.tail_repeats = init.tail_repeats;
        datagram.read_timeout = Duration::from_nanos(init.read_timeout_ns);
        datagram.retries = init.retries;
        datagram.peer_error_is_fatal = init.flags & HAUL_DATAGRAM_PEER_ERROR_FATAL != 0;
        datagram.receives_in_order = init.flags & HAUL_DATAGRAM_RECEIVES_IN_ORDER != 0;
        let key = init.seal_key.cast::<[u8; SealKey::LEN]>();
        // SAFETY: the caller's key, of which the bytes are there during the call; it has no
        // alignment.
        datagram.seal_key = unsafe { key.as_ref() }.map(|key| SealKey::new(*key));
        datagram
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_qp_bind(
    qp: Option<&haul_qp>,
    address: *const sockaddr,
    address_len: socklen_t,
    own: Option<&mut MaybeUninit<haul_peer>>,
) -> c_int {
    on(qp, "haul_qp_bind", |qp| {
        // SAFETY: the caller's address.
        let address = unsafe { address::read(address, address_len)? };
        tell(&qp.qp, qp.qp.bind(address)?, own);
        Ok(HAUL_OK)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_qp_adopt(
    qp: Option<&haul_qp>,
    fd: c_int,
    own: Option<&mut MaybeUninit<haul_peer>>,
) -> c_int {
    on(qp, "haul_qp_adopt", |qp| {
        if fd < 0 {
            return Err(Error::Text(format!("fd is {fd}, and must be at least 0")));
        }
        // SAFETY: the caller's descriptor, open during the call; one that is not is refused by the
        // system.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        let socket = socket.try_clone_to_owned();
        let socket = socket.map_err(Error::os("duplicating a socket"))?;
        tell(&qp.qp, qp.qp.adopt(socket)?, own);
        Ok(HAUL_OK)
    })
}

fn tell(qp: &Qp, address: SocketAddr, out: Option<&mut MaybeUninit<haul_peer>>) {
    if let Some(out) = out {
        out.write(peer_of(Peer::new(address, qp.qp_num())));
    }
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_qp_attach_multicast(
    qp: Option<&haul_qp>,
    group: *const sockaddr,
    group_len: socklen_t,
    at: *const sockaddr,
    at_len: socklen_t,
) -> c_int {
    on(qp, "haul_qp_attach_multicast", |qp| {
        // SAFETY: the caller's addresses.
        let (group, at) = unsafe { membership((group, group_len), (at, at_len))? };
        qp.qp.attach_multicast(group, at)?;
        Ok(HAUL_OK)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_qp_detach_multicast(
    qp: Option<&haul_qp>,
    group: *const sockaddr,
    group_len: socklen_t,
    at: *const sockaddr,
    at_len: socklen_t,
) -> c_int {
    on(qp, "haul_qp_detach_multicast", |qp| {
        // SAFETY: the caller's addresses.
        let (group, at) = unsafe { membership((group, group_len), (at, at_len))? };
        qp.qp.detach_multicast(group, at)?;
        Ok(HAUL_OK)
    })
}

/// # Safety
/// As [`address::read`]; the second one may be NULL.
unsafe fn membership(
    group: (*const sockaddr, socklen_t),
    at: (*const sockaddr, socklen_t),
) -> Result<(IpAddr, Option<IpAddr>)> {
    // SAFETY: the caller's contract.
    let group = unsafe { address::read(group.0, group.1)? };
    if at.0.is_null() {
        return Ok((group.ip(), None));
    }
    // SAFETY: as above.
    let at = unsafe { address::read(at.0, at.1)? };
    Ok((group.ip(), Some(at.ip())))
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_qp_take_record(
    qp: Option<&haul_qp>,
    wr_id: u64,
    out: Option<&mut haul_record>,
) -> c_int {
    on(qp, "haul_qp_take_record", |qp| {
        let out = out.ok_or(NULL_OUT)?;
        check(out)?;
        let Some(record) = qp.qp.take_record(wr_id) else {
            return Ok(0);
        };
        // SAFETY: the caller's arrays.
        unsafe { fill(out, &record)? };
        Ok(1)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_qp_records(
    qp: Option<&haul_qp>,
    rkey: u32,
    out: *mut haul_record,
    len: u32,
) -> c_int {
    on(qp, "haul_qp_records", |qp| {
        // SAFETY: the caller's array.
        let out = unsafe { places(out, len as usize)? };
        let records = qp.qp.records(rkey);
        for (place, record) in out.iter_mut().zip(&records) {
            // SAFETY: the caller has set what is read of it.
            let place = unsafe { place.assume_init_mut() };
            // SAFETY: the caller's arrays.
            unsafe { fill(place, record)? };
        }
        Ok(count(records.len()))
    })
}

/// Nothing is taken where there is nowhere to put it.
fn check(out: &haul_record) -> Result<()> {
    if out.ranges.is_null() && out.ranges_room > 0 {
        let room = out.ranges_room;
        return Err(Error::Text(format!(
            "ranges is NULL, and ranges_room is {room}"
        )));
    }
    Ok(())
}

/// # Errors
/// An array that is NULL.
///
/// # Safety
/// `ranges_room` writable places at `ranges`.
unsafe fn fill(out: &mut haul_record, record: &WriteRecord) -> Result<()> {
    let (ranges, room) = (out.ranges, out.ranges_room);
    // SAFETY: the caller's contract.
    let into = unsafe { places(ranges, room as usize)? };
    for (place, range) in into.iter_mut().zip(&record.valid_ranges) {
        place.write(haul_range {
            start: range.start,
            end: range.end,
        });
    }
    *out = haul_record {
        ranges,
        ranges_room: room,
        ranges_len: u32::try_from(record.valid_ranges.len()).unwrap_or(u32::MAX),
        source: peer_of(record.source),
        addr: record.target.addr,
        rkey: record.target.rkey,
        message: record.message,
        len: record.len,
        valid: record.valid,
        status: status(record.status),
        flags: record.imm.map_or(0, |_| HAUL_RECORD_WITH_IMM),
        imm: record.imm.unwrap_or(0),
        reserved: [0; 5],
    };
    Ok(())
}

fn status(status: RecordStatus) -> u32 {
    match status {
        RecordStatus::Open => HAUL_RECORD_OPEN,
        RecordStatus::Full => HAUL_RECORD_FULL,
        RecordStatus::Partial => HAUL_RECORD_PARTIAL,
        RecordStatus::Aged => HAUL_RECORD_AGED,
        RecordStatus::Superseded => HAUL_RECORD_SUPERSEDED,
        RecordStatus::Evicted => HAUL_RECORD_EVICTED,
        RecordStatus::Revoked => HAUL_RECORD_REVOKED,
        RecordStatus::Chunk => HAUL_RECORD_CHUNK,
        _ => HAUL_RECORD_OTHER,
    }
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_qp_datagram_statistics(
    qp: Option<&haul_qp>,
    out: *mut haul_datagram_statistics,
) -> c_int {
    on(qp, "haul_qp_datagram_statistics", |qp| {
        let counted = qp.qp.datagram_statistics()?;
        let statistics = haul_datagram_statistics {
            size: 0,
            reserved: 0,
            sent: counted.sent,
            received: counted.received,
            bad_checksum: counted.bad_checksum,
            malformed: counted.malformed,
            unknown_qp: counted.unknown_qp,
            no_receive: counted.no_receive,
            too_long: counted.too_long,
            duplicates: counted.duplicates,
            incomplete: counted.incomplete,
            refused: counted.refused,
            late: counted.late,
            evicted: counted.evicted,
            resent: counted.resent,
            peers: counted.peers,
            peer_bytes: counted.peer_bytes,
            kernel_drops: counted.kernel_drops,
            undelivered: counted.undelivered,
            unsealed: counted.unsealed,
            forged: counted.forged,
            replayed: counted.replayed,
        };
        // SAFETY: the caller's structure.
        unsafe { write_growing(out, &statistics)? };
        Ok(HAUL_OK)
    })
}
