//! Attributes of devices.

use std::ffi::{CStr, c_int};

use haul_verbs::{DeviceAttributes, DeviceCaps, Error, Result, SGE_MAX, Transport};

use crate::ffi::verbs::{self, DeviceAttr, GidEntry, PortAttr};
use crate::library::{Library, Raw, check};

/// `IB_CM_REQ_PRIVATE_DATA_SIZE` (92) less the header of the IP connection service (36; IBTA 1.4
/// annex A11).
const PRIVATE_DATA_MAX_IB: u32 = 56;
/// `private_data_len` of `struct rdma_conn_param` has 8 bits; MPA has room for 512 bytes.
const PRIVATE_DATA_MAX_IWARP: u32 = 255;

/// The name of a device of the list or of an open one.
pub(crate) fn name_of(library: &Library, device: *mut verbs::Device) -> String {
    // SAFETY: the device is of a list that lives, or of an open context, which keeps it.
    let name = unsafe { (library.verbs.ibv_get_device_name)(device) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: it points to the string in the device.
    unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned()
}

/// The attributes of a device, queried once.
#[derive(Debug)]
pub(crate) struct Description {
    pub(crate) attributes: DeviceAttributes,
    /// Local identifier of the port; zero on Ethernet.
    pub(crate) lid: u16,
    /// `enum ibv_mtu` of the port.
    pub(crate) mtu: c_int,
    /// Memory regions can start at another address than they lie at.
    pub(crate) has_iova: bool,
}

/// All ports are alike to haul; it uses the first.
pub(crate) const PORT: u8 = 1;

/// `SIW_VENDOR_ID` of Linux: siw ignores `iova` without an error.
const VENDOR_SIW: u32 = 0x62_6d74;

/// Asks an open device, all but for its inline data.
///
/// # Errors
/// [`Error::Os`].
pub(crate) fn describe(library: &Library, context: Raw<verbs::Context>) -> Result<Description> {
    // SAFETY: all zeros is a value of a structure of numbers.
    let mut device: DeviceAttr = unsafe { std::mem::zeroed() };
    // SAFETY: the context is open, the structure is ours and as large as the library takes it for.
    let returned = unsafe { (library.verbs.ibv_query_device)(context.ptr(), &raw mut device) };
    check("ibv_query_device", returned)?;
    // SAFETY: as above.
    let mut port: PortAttr = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let returned = unsafe { (library.verbs.ibv_query_port)(context.ptr(), PORT, &raw mut port) };
    check("ibv_query_port", returned)?;
    let transport = transport(context, &port)?;
    let iwarp = transport == Transport::Iwarp;
    let count = |value: c_int| u32::try_from(value).unwrap_or(0);
    let mut attributes = DeviceAttributes::new(transport, caps(&device, iwarp));
    attributes.max_qp = count(device.max_qp);
    attributes.max_qp_wr = count(device.max_qp_wr);
    attributes.max_sge = count(device.max_sge).min(u32::try_from(SGE_MAX).unwrap_or(u32::MAX));
    attributes.max_cqe = count(device.max_cqe);
    attributes.max_mr = count(device.max_mr);
    attributes.max_mr_size = device.max_mr_size;
    attributes.max_message = port.max_msg_sz.into();
    attributes.max_rd_atomic = count(device.max_qp_rd_atom);
    attributes.max_init_rd_atomic = count(device.max_qp_init_rd_atom);
    attributes.max_private_data = if iwarp {
        PRIVATE_DATA_MAX_IWARP
    } else {
        PRIVATE_DATA_MAX_IB
    };
    Ok(Description {
        attributes,
        lid: port.lid,
        mtu: port.active_mtu,
        has_iova: device.vendor_id != VENDOR_SIW,
    })
}

fn transport(context: Raw<verbs::Context>, port: &PortAttr) -> Result<Transport> {
    // SAFETY: the context is open.
    let device = unsafe { (*context.ptr()).device };
    // SAFETY: an open context keeps its device.
    match unsafe { (*device).transport_type } {
        verbs::TRANSPORT_IWARP => Ok(Transport::Iwarp),
        verbs::TRANSPORT_IB if port.link_layer == verbs::LINK_LAYER_ETHERNET => Ok(Transport::Roce),
        verbs::TRANSPORT_IB => Ok(Transport::InfiniBand),
        _ => Err(Error::Unsupported("this device's transport")),
    }
}

fn caps(device: &DeviceAttr, iwarp: bool) -> DeviceCaps {
    let mut caps = DeviceCaps::RC;
    caps.set(DeviceCaps::ATOMIC, device.atomic_cap != verbs::ATOMIC_NONE);
    caps.set(DeviceCaps::SRQ, device.max_srq > 0);
    caps.set(
        DeviceCaps::SEND_WITH_INVALIDATE,
        device.device_cap_flags & verbs::DEVICE_MEM_MGT_EXTENSIONS != 0,
    );
    // iWARP has immediate data since RFC 7306, which no driver of Linux implements.
    let infiniband = DeviceCaps::WRITE_WITH_IMM | DeviceCaps::SEND_WITH_IMM | DeviceCaps::ENDPOINTS;
    caps.set(infiniband, !iwarp);
    caps
}

/// The addresses of the port.
///
/// # Errors
/// [`Error::Os`].
pub(crate) fn gids(library: &Library, context: Raw<verbs::Context>) -> Result<Vec<GidEntry>> {
    const MAX: usize = 256;
    let mut entries: Vec<GidEntry> = Vec::with_capacity(MAX);
    // SAFETY: there is room for so many entries of this size.
    let count = unsafe {
        (library.verbs._ibv_query_gid_table)(
            context.ptr(),
            entries.as_mut_ptr(),
            MAX,
            0,
            size_of::<GidEntry>(),
        )
    };
    let Ok(count) = usize::try_from(count) else {
        let number = c_int::try_from(count.unsigned_abs()).unwrap_or(c_int::MAX);
        return Err(Error::Os {
            what: "ibv_query_gid_table",
            source: std::io::Error::from_raw_os_error(number),
        });
    };
    // SAFETY: the call has written `count` entries, at most `MAX`.
    unsafe { entries.set_len(count.min(MAX)) };
    entries.retain(|entry| entry.port_num == u32::from(PORT));
    Ok(entries)
}
