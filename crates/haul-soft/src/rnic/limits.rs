//! Limits of a device, and what it tells of itself.

use haul_verbs::{DeviceAttributes, DeviceCaps, Error, Result, Transport};

/// Queue pairs of a shard.
pub(super) const PAIRS_MAX: u32 = 1 << 20;
/// Work requests of a queue: what memory is spent on is taken as it is used.
pub(super) const QP_WR_MAX: u32 = 1 << 16;
/// Pieces of a work request.
pub(super) const SGES_MAX: u32 = 4;
const _: () = assert!(SGES_MAX as usize == haul_verbs::SGE_MAX);
/// Bytes of inline data.
pub(super) const INLINE_MAX: u32 = 1_024;
/// Entries of a completion queue.
pub(super) const CQE_MAX: u32 = 1 << 22;
/// Reads at once, by 14 bits of RFC 6581 less the value that means "not negotiated".
pub(super) const RD_ATOMIC_MAX: u16 = 0x3ffe;
/// Private data: 512 bytes of MPA less IRD and ORD (RFC 6581 §4) and less what Longhaul ends tell
/// each other.
pub(super) const PRIVATE_DATA_MAX: usize = 512 - 4 - 8;

pub(super) fn check_private_data(data: &[u8]) -> Result<()> {
    let len = data.len() as u64;
    Error::at_most("the length of private_data", len, PRIVATE_DATA_MAX as u64)
}

pub(super) fn attributes(transport: Transport) -> DeviceAttributes {
    let both = DeviceCaps::SRQ | DeviceCaps::ZERO_BASED | DeviceCaps::RATE_LIMIT;
    let connections = DeviceCaps::RC
        | DeviceCaps::ATOMIC
        | DeviceCaps::SEND_WITH_INVALIDATE
        | DeviceCaps::WRITE_WITH_IMM
        | DeviceCaps::SEND_WITH_IMM
        | DeviceCaps::REMOTE_PLACEMENT
        | DeviceCaps::ENDPOINTS;
    let datagrams = DeviceCaps::UD
        | DeviceCaps::RD
        | DeviceCaps::WRITE_RECORD
        | DeviceCaps::WRITE_WITH_IMM
        | DeviceCaps::ATOMIC
        | DeviceCaps::SEND_WITH_INVALIDATE;
    let caps = match transport {
        Transport::IwarpUdp => both | datagrams,
        _ => both | connections,
    };
    let mut attributes = DeviceAttributes::new(transport, caps);
    attributes.max_qp = PAIRS_MAX;
    attributes.max_qp_wr = QP_WR_MAX;
    attributes.max_sge = SGES_MAX;
    attributes.max_inline = INLINE_MAX;
    attributes.max_cqe = CQE_MAX;
    attributes.max_mr = haul_slab::REGIONS_MAX;
    attributes.max_mr_size = u64::try_from(isize::MAX).unwrap_or(u64::MAX);
    attributes.max_message = u64::from(u32::MAX);
    attributes.max_rd_atomic = RD_ATOMIC_MAX.into();
    attributes.max_init_rd_atomic = RD_ATOMIC_MAX.into();
    attributes.max_private_data = u32::try_from(PRIVATE_DATA_MAX).unwrap_or(u32::MAX);
    attributes
}
