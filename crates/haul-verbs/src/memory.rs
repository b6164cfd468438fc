//! Protection domains and memory regions.

use std::any::Any;
use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use haul_slab::{AccessFlags, Region};

use crate::address::Remote;
use crate::attributes::QpType;
use crate::datagram::Sources;
use crate::error::{Error, Result};
use crate::queue::{Qp, QpInit, QpOps};
use crate::srq::{Srq, SrqInit, SrqOps};
use crate::work::Sge;

/// A protection domain: queue pairs reach the memory regions of their own domain only.
#[derive(Debug, Clone)]
pub struct Pd(Arc<dyn PdOps>);

/// The origin of addresses in a memory region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MrAddressing {
    /// Its first byte is 0: the default, for it tells the peer nothing of this process.
    #[default]
    ZeroBased,
    /// Its first byte is its address in this process, as `ibv_reg_mr` does.
    Virtual,
    /// Its first byte is this (`ibv_reg_mr_iova`).
    At(u64),
}

/// Parameters of a memory region to register.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MrInit {
    /// The bytes.
    pub region: Region,
    /// Who may do what.
    pub access: AccessFlags,
    /// What addresses count from. Devices without
    /// [`DeviceCaps::ZERO_BASED`](crate::DeviceCaps::ZERO_BASED) take [`MrAddressing::Virtual`] for
    /// [`MrAddressing::ZeroBased`]; [`Mr::addr`] returns the first one.
    pub addressing: MrAddressing,
    /// Whose datagrams reach it.
    pub sources: Sources,
}

impl MrInit {
    /// Describes a region whose addresses count from zero and that validated sources reach.
    #[must_use]
    pub fn new(region: Region, access: AccessFlags) -> Self {
        Self {
            region,
            access,
            addressing: MrAddressing::default(),
            sources: Sources::default(),
        }
    }

    /// Sets whose datagrams reach the region.
    #[must_use]
    pub fn with_sources(self, sources: Sources) -> Self {
        Self { sources, ..self }
    }
}

impl Pd {
    pub(crate) fn from_ops(ops: Arc<dyn PdOps>) -> Self {
        Self(ops)
    }

    /// Returns the provider's object.
    #[must_use]
    pub fn ops(&self) -> &Arc<dyn PdOps> {
        &self.0
    }

    /// Maps memory, zeroed, of the kind that the device reaches at the least cost.
    ///
    /// # Errors
    /// [`Error::Os`] where there is no memory.
    pub fn map(&self, len: usize) -> Result<Region> {
        self.0.map(len).map_err(Error::os("mapping memory"))
    }

    /// Registers `region`, counting from zero.
    ///
    /// # Errors
    /// As [`Pd::register`].
    pub fn reg_mr(&self, region: &Region, access: AccessFlags) -> Result<Mr> {
        self.register(MrInit::new(region.clone(), access))
    }

    /// Registers a region.
    ///
    /// # Errors
    /// [`Error::Invalid`] for rights that contradict each other ([`AccessFlags::is_consistent`]) or
    /// addresses that wrap; [`Error::Exhausted`]; [`Error::Os`] where memory cannot be pinned.
    pub fn register(&self, init: MrInit) -> Result<Mr> {
        if !init.access.is_consistent() {
            return Err(Error::Invalid(
                "access has REMOTE_WRITE or REMOTE_ATOMIC, and must have LOCAL_WRITE too",
            ));
        }
        let region = init.region.clone();
        let ops = self.0.clone().reg_mr(init)?;
        Ok(Mr { ops, region })
    }

    /// Creates a queue pair.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a type or capacity that the device does not have, or queues of
    /// another context.
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<Qp> {
        if init.qp_type == QpType::Rc && init.datagram.seal_key.is_some() {
            return Err(Error::Unsupported("a seal key of a reliable connection"));
        }
        self.0.clone().create_qp(init).map(Qp::from_ops)
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// [`Error::Unsupported`]; [`Error::Invalid`] for a capacity that the device does not have.
    pub fn create_srq(&self, init: &SrqInit) -> Result<Srq> {
        self.0.clone().create_srq(init).map(Srq::from_ops)
    }
}

/// A memory region: bytes with keys and rights. Dropping it takes the rights away: when that has
/// returned, no peer and no work request touches the bytes any more; those that try fail.
#[derive(Debug)]
pub struct Mr {
    ops: Arc<dyn MrOps>,
    region: Region,
}

impl Mr {
    /// Returns the bytes.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the key for work requests of this end.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.ops.lkey()
    }

    /// Returns the key for the peer. Over iWARP it is the STag, which is also the lkey.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.ops.rkey()
    }

    /// Returns the address of its first byte, for work requests and peers.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.ops.addr()
    }

    /// Returns its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.region.is_empty()
    }

    /// Returns `len` bytes from `offset` on as a piece of a work request. Bounds are checked when
    /// the request is carried out.
    #[must_use]
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge {
            addr: self.addr().wrapping_add(offset),
            len,
            lkey: self.lkey(),
        }
    }

    /// Returns the whole region as a piece of a work request.
    ///
    /// # Errors
    /// [`Error::Invalid`] where it is longer than a piece can be (2^32 - 1 bytes).
    pub fn whole(&self) -> Result<Sge> {
        let len = self.len() as u64;
        Error::at_most("the length of a piece", len, u32::MAX.into())?;
        Ok(self.sge(0, u32::try_from(len).unwrap_or(u32::MAX)))
    }

    /// Returns what a peer needs to address the byte at `offset`.
    #[must_use]
    pub fn remote(&self, offset: u64) -> Remote {
        Remote {
            addr: self.addr().wrapping_add(offset),
            rkey: self.rkey(),
        }
    }

    /// Deregisters the region, and reports a failure, which dropping it does not.
    ///
    /// # Errors
    /// [`Error::Os`] of a device.
    pub fn dereg(self) -> Result<()> {
        self.ops.dereg()
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // An error of the device cannot be returned here; `dereg` returns it.
        let _ = self.ops.dereg();
    }
}

/// A provider's part of [`Pd`].
pub trait PdOps: Any + Debug + Send + Sync {
    /// See [`Pd::map`](crate::Pd::map).
    ///
    /// # Errors
    /// Of the system.
    fn map(&self, len: usize) -> io::Result<Region> {
        Region::map(len)
    }
    /// See [`Pd::register`](crate::Pd::register). The rights do not contradict each other.
    fn reg_mr(self: Arc<Self>, init: MrInit) -> Result<Arc<dyn MrOps>>;
    /// See [`Pd::create_qp`](crate::Pd::create_qp).
    fn create_qp(self: Arc<Self>, init: &QpInit<'_>) -> Result<Arc<dyn QpOps>>;
    /// See [`Pd::create_srq`](crate::Pd::create_srq).
    fn create_srq(self: Arc<Self>, _init: &SrqInit) -> Result<Arc<dyn SrqOps>> {
        Err(Error::Unsupported("a shared receive queue"))
    }
}

/// A provider's part of [`Mr`].
pub trait MrOps: Any + Debug + Send + Sync {
    /// See [`Mr::lkey`](crate::Mr::lkey).
    fn lkey(&self) -> u32;
    /// See [`Mr::rkey`](crate::Mr::rkey).
    fn rkey(&self) -> u32;
    /// See [`Mr::addr`](crate::Mr::addr).
    fn addr(&self) -> u64;
    /// Deregisters the region; called at least once, a second call does nothing. When it has
    /// returned nobody touches the bytes.
    fn dereg(&self) -> Result<()>;
}
