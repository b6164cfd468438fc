//! Protection domains and memory regions.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use haul_slab::Region;
use haul_verbs::provider::MrOps;
use haul_verbs::{AccessFlags, Error, MrAddressing, MrInit, Result};

use crate::context::Context;
use crate::ffi::verbs::{self, access};
use crate::library::{Raw, check};

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) context: Arc<Context>,
    pub(crate) raw: Raw<verbs::Pd>,
}

impl Pd {
    pub(crate) fn new(context: Arc<Context>) -> Result<Self> {
        // SAFETY: the context is open.
        let pd = unsafe { (context.library.verbs.ibv_alloc_pd)(context.raw.ptr()) };
        let raw = Raw::made("protection domain", pd)?;
        Ok(Self { context, raw })
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: everything made from the domain holds it, so nothing is left; it is freed once.
        unsafe { (self.context.library.verbs.ibv_dealloc_pd)(self.raw.ptr()) };
    }
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct Mr {
    lkey: u32,
    rkey: u32,
    addr: u64,
    /// The registration and the bytes it covers, until the rights are taken away.
    registered: Mutex<Option<(Raw<verbs::Mr>, Region)>>,
    pd: Arc<Pd>,
}

impl Mr {
    pub(crate) fn new(pd: Arc<Pd>, init: MrInit) -> Result<Self> {
        let verbs = &pd.context.library.verbs;
        // What libibverbs lets a peer invalidate are memory windows.
        if init.access.contains(AccessFlags::REMOTE_INVALIDATE) {
            return Err(Error::Unsupported(
                "a memory region that the peer can invalidate",
            ));
        }
        let access = rights(init.access);
        let region = init.region;
        let start = region.as_ptr().cast();
        let addr = match init.addressing {
            MrAddressing::At(addr) => addr,
            // The kernel wants an `iova` that lies in its page as the bytes do, so zero is seldom
            // possible.
            MrAddressing::ZeroBased | MrAddressing::Virtual => region.addr(),
        };
        let mr = if addr == region.addr() {
            // SAFETY: the domain lives; the bytes stay mapped until the registration ends, for
            // `registered` holds them, and no reference to them is formed in Rust (`Region`).
            unsafe { (verbs.ibv_reg_mr)(pd.raw.ptr(), start, region.len(), access) }
        } else if pd.context.description.has_iova {
            let access = access.cast_unsigned();
            // SAFETY: as above.
            unsafe { (verbs.ibv_reg_mr_iova2)(pd.raw.ptr(), start, region.len(), addr, access) }
        } else {
            return Err(Error::Unsupported("a memory region that starts elsewhere"));
        };
        let mr = Raw::made("memory region", mr)?;
        // SAFETY: it was just made.
        let lkey = unsafe { (*mr.ptr()).lkey };
        // SAFETY: as above.
        let rkey = unsafe { (*mr.ptr()).rkey };
        Ok(Self {
            lkey,
            rkey,
            addr,
            registered: Mutex::new(Some((mr, region))),
            pd,
        })
    }
}

fn rights(wanted: AccessFlags) -> c_int {
    let table = [
        (AccessFlags::LOCAL_WRITE, access::LOCAL_WRITE),
        (AccessFlags::REMOTE_WRITE, access::REMOTE_WRITE),
        (AccessFlags::REMOTE_READ, access::REMOTE_READ),
        (AccessFlags::REMOTE_ATOMIC, access::REMOTE_ATOMIC),
    ];
    let bits = table
        .iter()
        .filter(|(flag, _)| wanted.contains(*flag))
        .map(|(_, bit)| *bit);
    bits.fold(0, |all, bit| all | bit)
}

impl MrOps for Mr {
    fn lkey(&self) -> u32 {
        self.lkey
    }

    fn rkey(&self) -> u32 {
        self.rkey
    }

    fn addr(&self) -> u64 {
        self.addr
    }

    fn dereg(&self) -> Result<()> {
        let mut registered = self
            .registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some((mr, region)) = registered.take() else {
            return Ok(());
        };
        // SAFETY: the registration is ended once: it was taken out.
        let returned = unsafe { (self.pd.context.library.verbs.ibv_dereg_mr)(mr.ptr()) };
        let ended = check("ibv_dereg_mr", returned);
        if ended.is_err() {
            // The device may still write there, so the bytes must never be given to anybody else.
            std::mem::forget(region);
        }
        ended
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // Nobody is left to tell; `dereg` has told who asked.
        let _ = self.dereg();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_keep_their_meaning() {
        assert_eq!(rights(AccessFlags::empty()), 0);
        assert_eq!(rights(AccessFlags::all()), 0b1111);
        assert_eq!(
            rights(AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ),
            0b101
        );
    }
}
