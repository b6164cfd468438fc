//! Protection domains and memory regions.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use haul_verbs::{AccessFlags, Mr, MrAddressing, MrInit, Region, Sources};

use crate::abi::*;
use crate::border::{Last, create, destroy, handles, on, read_growing, slice, write_growing};
use crate::datagram::source_of;
use crate::device::haul_context;
use crate::handle::haul_pd;
use crate::status::{Error, Result};

/// A memory region.
#[derive(Debug)]
pub struct haul_mr {
    mr: Mr,
    access: u32,
    last: Arc<Last>,
}

handles!(haul_mr);

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_pd_create(
    context: Option<&haul_context>,
    out: Option<&mut MaybeUninit<*mut haul_pd>>,
) -> c_int {
    create(context, "haul_pd_create", out, |context| {
        Ok(haul_pd {
            pd: context.context.alloc_pd()?,
            last: Arc::clone(&context.last),
        })
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_pd_destroy(pd: Option<Box<haul_pd>>) {
    destroy(pd, "haul_pd_destroy");
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_mr_reg(
    pd: Option<&haul_pd>,
    start: *mut c_void,
    len: usize,
    access: u32,
    out: Option<&mut MaybeUninit<*mut haul_mr>>,
) -> c_int {
    create(pd, "haul_mr_reg", out, |pd| {
        // SAFETY: the caller's memory, until haul_mr_dereg has returned.
        let region = unsafe { foreign(start, len)? };
        register(pd, region, access, None, Sources::default())
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_mr_reg_iova(
    pd: Option<&haul_pd>,
    start: *mut c_void,
    len: usize,
    iova: u64,
    access: u32,
    out: Option<&mut MaybeUninit<*mut haul_mr>>,
) -> c_int {
    create(pd, "haul_mr_reg_iova", out, |pd| {
        // SAFETY: the caller's memory, until haul_mr_dereg has returned.
        let region = unsafe { foreign(start, len)? };
        register(pd, region, access, Some(iova), Sources::default())
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_mr_alloc(
    pd: Option<&haul_pd>,
    len: usize,
    access: u32,
    out: Option<&mut MaybeUninit<*mut haul_mr>>,
) -> c_int {
    create(pd, "haul_mr_alloc", out, |pd| {
        let region = pd.pd.map(len)?;
        register(pd, region, access, None, Sources::default())
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_mr_create(
    pd: Option<&haul_pd>,
    init: *const haul_mr_init,
    out: Option<&mut MaybeUninit<*mut haul_mr>>,
) -> c_int {
    create(pd, "haul_mr_create", out, |pd| {
        // SAFETY: the caller's structure.
        let init = unsafe { read_growing(init, MR_DEFAULTS)? };
        let init = init.ok_or(Error::Argument(
            "init is NULL: begin with HAUL_MR_INIT, and set len",
        ))?;
        // SAFETY: the caller's array.
        let peers = unsafe { slice(init.peers, init.peer_count as usize)? };
        let sources = match init.sources {
            HAUL_SOURCES_VALIDATED => Sources::Validated,
            HAUL_SOURCES_ANY => Sources::Any,
            HAUL_SOURCES_PEERS => Sources::Of(peers.iter().map(source_of).collect()),
            other => return Err(Error::unknown("sources", other, "one of HAUL_SOURCES_…")),
        };
        if init.sources != HAUL_SOURCES_PEERS && !peers.is_empty() {
            let count = init.peer_count;
            return Err(Error::Text(format!(
                "peer_count is {count}, and must be 0 unless sources is HAUL_SOURCES_PEERS"
            )));
        }
        let region = if init.start.is_null() {
            pd.pd.map(init.len)?
        } else {
            // SAFETY: the caller's memory, until haul_mr_dereg has returned.
            unsafe { foreign(init.start, init.len)? }
        };
        let iova = (init.iova != 0).then_some(init.iova);
        register(pd, region, init.access, iova, sources)
    })
}

const MR_DEFAULTS: haul_mr_init = haul_mr_init {
    size: 0,
    access: 0,
    start: std::ptr::null_mut(),
    len: 0,
    iova: 0,
    peers: std::ptr::null(),
    peer_count: 0,
    sources: HAUL_SOURCES_VALIDATED,
};

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_mr_query(mr: Option<&haul_mr>, out: *mut haul_mr_info) -> c_int {
    on(mr, "haul_mr_query", |mr| {
        let info = haul_mr_info {
            size: 0,
            access: mr.access,
            lkey: mr.mr.lkey(),
            rkey: mr.mr.rkey(),
            addr: mr.mr.addr(),
            len: mr.mr.len() as u64,
            ptr: mr.mr.region().as_ptr().cast(),
        };
        // SAFETY: the caller's structure.
        unsafe { write_growing(out, &info)? };
        Ok(HAUL_OK)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_mr_dereg(mr: Option<Box<haul_mr>>) -> c_int {
    let Some(mr) = mr else {
        return HAUL_OK;
    };
    let last = Arc::clone(&mr.last);
    crate::border::run(&last, "haul_mr_dereg", || {
        mr.mr.dereg()?;
        Ok(HAUL_OK)
    })
}

/// # Safety
/// As [`Region::from_raw`].
unsafe fn foreign(start: *mut c_void, len: usize) -> Result<Region> {
    let start = NonNull::new(start.cast()).ok_or(Error::Argument("the memory is NULL"))?;
    haul_verbs::Error::at_least("len", len as u64, 1)?;
    // SAFETY: the caller's contract.
    Ok(unsafe { Region::from_raw(start, len) })
}

fn register(
    pd: &haul_pd,
    region: Region,
    access: u32,
    iova: Option<u64>,
    sources: Sources,
) -> Result<haul_mr> {
    let addressing = match iova {
        Some(iova) => MrAddressing::At(iova),
        None if access & HAUL_ACCESS_ZERO_BASED != 0 => MrAddressing::ZeroBased,
        None => MrAddressing::Virtual,
    };
    let flags = AccessFlags::from_bits(access & !HAUL_ACCESS_ZERO_BASED);
    let mut init = MrInit::new(
        region,
        flags.ok_or_else(|| Error::unknown("access", access, "of HAUL_ACCESS_…"))?,
    );
    init.addressing = addressing;
    init.sources = sources;
    Ok(haul_mr {
        mr: pd.pd.register(init)?,
        access,
        last: Arc::clone(&pd.last),
    })
}

/// The rights have the numbers of `haul-verbs`.
const _: () = {
    assert!(AccessFlags::LOCAL_WRITE.bits() == HAUL_ACCESS_LOCAL_WRITE);
    assert!(AccessFlags::REMOTE_WRITE.bits() == HAUL_ACCESS_REMOTE_WRITE);
    assert!(AccessFlags::REMOTE_READ.bits() == HAUL_ACCESS_REMOTE_READ);
    assert!(AccessFlags::REMOTE_ATOMIC.bits() == HAUL_ACCESS_REMOTE_ATOMIC);
    assert!(AccessFlags::REMOTE_INVALIDATE.bits() == HAUL_ACCESS_REMOTE_INVALIDATE);
};
