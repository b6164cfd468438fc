//! Protection domains, and memory that the engine reaches.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use haul_slab::{AccessFlags, Region, SharedMemory};
use haul_verbs::provider::{MrOps, PdOps, QpOps, SrqOps};
use haul_verbs::{Error, MrAddressing, MrInit, QpInit, Result, SrqInit};

use super::bounce::Bounce;
use super::core::Core;
use super::link::UNEXPECTED;
use super::queue::{Qp, Srq};
use crate::message::{Allowed, Reply, Request};

#[derive(Debug)]
pub(super) struct Pd {
    pub(super) core: Arc<Core>,
    pub(super) number: u32,
}

impl Pd {
    pub(super) fn new(core: Arc<Core>, number: u32) -> Self {
        Self { core, number }
    }
}

impl PdOps for Pd {
    fn map(&self, len: usize) -> io::Result<Region> {
        let whole = SharedMemory::create(len)?;
        Region::of_shared(&whole)
            .cut(0, len)
            .map_err(io::Error::other)
    }

    fn reg_mr(self: Arc<Self>, init: MrInit) -> Result<Arc<dyn MrOps>> {
        let double = match init.region.shared() {
            Some(_) => None,
            None => Some(double(&init)?),
        };
        let region = double.as_ref().unwrap_or(&init.region);
        let (memory, offset) = region.shared().ok_or(UNEXPECTED)?;
        let request = Request::Register {
            pd: self.number,
            offset: offset as u64,
            len: init.region.len() as u64,
            access: init.access.bits(),
            addr: match init.addressing {
                MrAddressing::ZeroBased => None,
                MrAddressing::Virtual => Some(init.region.addr()),
                MrAddressing::At(addr) => Some(addr),
            },
            sources: Allowed::of(&init.sources),
        };
        match self
            .core
            .link
            .call(&request, &[memory.fd().ok_or(UNEXPECTED)?])?
        {
            (
                Reply::Mr {
                    mr,
                    lkey,
                    rkey,
                    addr,
                },
                _,
            ) => {
                if let Some(shared) = double {
                    let bounce = Bounce {
                        own: init.region,
                        shared,
                        base: addr,
                    };
                    self.core.bounces.insert(lkey, bounce);
                }
                Ok(Arc::new(Mr {
                    pd: self,
                    number: mr,
                    keys: (lkey, rkey),
                    addr,
                    is_closed: AtomicBool::new(false),
                }))
            }
            _ => Err(UNEXPECTED),
        }
    }

    fn create_qp(self: Arc<Self>, init: &QpInit<'_>) -> Result<Arc<dyn QpOps>> {
        let (core, pd) = (Arc::clone(&self.core), self.number);
        Ok(Qp::create(core, (pd, self), init)?)
    }

    fn create_srq(self: Arc<Self>, init: &SrqInit) -> Result<Arc<dyn SrqOps>> {
        let (core, pd) = (Arc::clone(&self.core), self.number);
        Ok(Srq::create(core, (pd, self), init)?)
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        self.core.link.close(self.number);
    }
}

/// Memory that the engine maps in the place of a region that it does not.
fn double(init: &MrInit) -> Result<Region> {
    let remote = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    if init.access.intersects(remote) {
        return Err(Error::Unsupported(
            "access of peers to memory that the engine does not share (Pd::map and haul_mr_alloc \
             give such memory)",
        ));
    }
    let memory = SharedMemory::create(init.region.len());
    let whole = memory.map_err(Error::os("memory for the engine"))?;
    let part = Region::of_shared(&whole).cut(0, init.region.len());
    part.map_err(|_| UNEXPECTED)
}

#[derive(Debug)]
struct Mr {
    pd: Arc<Pd>,
    number: u32,
    keys: (u32, u32),
    addr: u64,
    is_closed: AtomicBool,
}

impl MrOps for Mr {
    fn lkey(&self) -> u32 {
        self.keys.0
    }

    fn rkey(&self) -> u32 {
        self.keys.1
    }

    fn addr(&self) -> u64 {
        self.addr
    }

    fn dereg(&self) -> Result<()> {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.pd.core.bounces.remove(self.keys.0);
        let link = &self.pd.core.link;
        match link.order(&Request::Close(self.number)) {
            // An engine that is gone touches nothing.
            Err(_) if link.is_dead() => Ok(()),
            done => done,
        }
    }
}
