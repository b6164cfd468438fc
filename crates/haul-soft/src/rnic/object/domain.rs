//! Protection domains and memory regions.

use std::sync::{Arc, Mutex};

use haul_slab::{AccessFlags, Entry, Registration, Stag};
use haul_verbs::provider::{MrOps, PdOps, QpOps, SrqOps};
use haul_verbs::{
    Error, MrAddressing, MrInit, QpInit, QpType, Result, Sources, SrqInit, Transport,
};

use super::datagram_qp::DatagramQp;
use super::device::Pd;
use super::qp::Qp;
use super::srq::Srq;
use crate::rnic::lock::lock;

impl PdOps for Pd {
    fn reg_mr(self: Arc<Self>, init: MrInit) -> Result<Arc<dyn MrOps>> {
        let base = match init.addressing {
            MrAddressing::ZeroBased => 0,
            MrAddressing::Virtual => init.region.addr(),
            MrAddressing::At(base) => base,
        };
        if init.access.contains(AccessFlags::REMOTE_ATOMIC) && init.region.addr() % 8 != base % 8 {
            return Err(Error::Invalid(
                "addressing and the memory's address differ modulo 8, and access has REMOTE_ATOMIC",
            ));
        }
        let len = init.region.len() as u64;
        Error::at_most("addressing", base, u64::MAX - len)?;
        let entry = Entry {
            region: init.region,
            base,
            access: init.access,
            pd: self.number,
            note: match init.sources {
                Sources::Validated => None,
                other => Some(Arc::new(other)),
            },
        };
        let registration = self.rnic.registry.register(entry);
        let registration = registration.ok_or(Error::Exhausted("memory regions"))?;
        Ok(Arc::new(Mr {
            stag: registration.stag(),
            base,
            registration: Mutex::new(Some(registration)),
            pd: self,
        }))
    }

    fn create_qp(self: Arc<Self>, init: &QpInit<'_>) -> Result<Arc<dyn QpOps>> {
        let datagrams = self.rnic.transport == Transport::IwarpUdp;
        match init.qp_type {
            QpType::Rc if !datagrams => Ok(Arc::new(Qp::new(self, init)?)),
            QpType::Ud | QpType::Rd if datagrams => Ok(Arc::new(DatagramQp::new(self, init)?)),
            _ => Err(Error::Unsupported("this type of queue pair")),
        }
    }

    fn create_srq(self: Arc<Self>, init: &SrqInit) -> Result<Arc<dyn SrqOps>> {
        Ok(Arc::new(Srq::new(self, init)?))
    }
}

#[derive(Debug)]
struct Mr {
    stag: Stag,
    base: u64,
    registration: Mutex<Option<Registration>>,
    pd: Arc<Pd>,
}

impl MrOps for Mr {
    fn lkey(&self) -> u32 {
        self.stag.0
    }

    fn rkey(&self) -> u32 {
        self.stag.0
    }

    fn addr(&self) -> u64 {
        self.base
    }

    fn dereg(&self) -> Result<()> {
        if lock(&self.registration).take().is_some() {
            self.pd.rnic.revoke(self.stag);
        }
        Ok(())
    }
}
