//! An opened device: what its objects share.

use std::any::Any;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use haul_io::notify::{Signal, wait_readable};
use haul_slab::{Registry, Stag};
use haul_verbs::{Error, Result, Transport};

use crate::rnic::events::{AsyncEvents, async_events};
use crate::rnic::link::udt_options;
use crate::rnic::options::Options;
use crate::rnic::shard::{Engine, NewRequest, Progress, Shard};
use crate::rnic::tap::Tap;

/// An opened device. Every object that an application holds keeps it; the engine threads end with
/// it.
#[derive(Debug)]
pub(super) struct Rnic {
    pub(super) transport: Transport,
    pub(super) registry: Registry,
    pub(super) async_events: Arc<AsyncEvents>,
    pub(super) socket_buffer: Option<usize>,
    pub(super) udt: crate::udt::LinkOptions,
    engines: Vec<Engine>,
    /// Completion queues that are armed.
    armed: Arc<AtomicU32>,
    next_pd: AtomicU32,
    next_qp: AtomicU32,
    next_shard: AtomicUsize,
}

impl Rnic {
    /// Opens a device; `new_request` makes what an application answers a request with.
    pub(super) fn open(
        transport: Transport,
        options: &Options,
        new_request: NewRequest,
    ) -> Result<Arc<Self>> {
        options.check()?;
        let tap = match &options.pcap {
            Some(path) => Some(Arc::new(Tap::create(path).map_err(Error::os("pcap file"))?)),
            None => None,
        };
        let random = haul_io::random::bytes::<16>().map_err(Error::os("random bytes"))?;
        let [low, high] = [0, 8].map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&random[at..at + 8]);
            u64::from_ne_bytes(word)
        });
        let registry = Registry::new([low, high]);
        let armed = Arc::new(AtomicU32::new(0));
        let start = |number| {
            let (registry, tap) = (registry.clone(), tap.clone());
            Engine::start(
                number,
                registry,
                transport,
                options,
                new_request,
                tap,
                Arc::clone(&armed),
            )
        };
        let engines = (0..options.shards)
            .map(start)
            .collect::<io::Result<Vec<_>>>()
            .map_err(Error::os("engine thread"))?;
        Ok(Arc::new(Self {
            transport,
            registry,
            async_events: Arc::new(async_events()?),
            socket_buffer: options.socket_buffer,
            udt: udt_options(options),
            engines,
            armed,
            next_pd: AtomicU32::new(1),
            next_qp: AtomicU32::new(0),
            next_shard: AtomicUsize::new(0),
        }))
    }

    /// The shard for the next queue pair.
    pub(super) fn next_shard(&self) -> Arc<Shard> {
        let number = self.next_shard.fetch_add(1, Ordering::Relaxed) % self.engines.len();
        Arc::clone(self.engines[number].shard())
    }

    /// A number for a queue pair: 24 bits, and neither 0 nor 1, which InfiniBand has given away.
    pub(super) fn next_qp_num(&self) -> u32 {
        self.next_qp.fetch_add(1, Ordering::Relaxed) % 0xff_fffe + 2
    }

    /// A name was taken away: services that wait for more to come to it need not.
    pub(super) fn revoke(&self, stag: Stag) {
        if self.transport == Transport::IwarpUdp {
            for engine in &self.engines {
                engine.shard().with(|inner| inner.revoke(stag));
            }
        }
    }

    /// The shard where connections begin.
    pub(super) fn first_shard(&self) -> &Arc<Shard> {
        self.engines[0].shard()
    }

    /// Whether nobody but the engines drives.
    pub(super) fn is_offloaded(&self) -> bool {
        self.first_shard().is_offloaded()
    }

    /// Makes what progress there is to make at `now_ns`; does not wait. None if the engines drive.
    pub(super) fn drive(&self, now_ns: u64) -> Progress {
        if self.is_offloaded() {
            return Progress::Still;
        }
        let shards = self.engines.iter().map(Engine::shard);
        let drives = shards.map(|shard| shard.try_drive(now_ns));
        drives.max().unwrap_or(Progress::Still)
    }

    /// The count of armed completion queues.
    pub(super) fn armed(&self) -> &Arc<AtomicU32> {
        &self.armed
    }

    /// A completion queue has been armed: from now on the engines see to it.
    pub(super) fn attend(&self) {
        for engine in &self.engines {
            engine.shard().attend();
        }
    }

    /// Whether nobody has driven for some calls.
    pub(super) fn is_due(&self) -> bool {
        self.engines.iter().any(|engine| engine.shard().is_due())
    }

    /// Whether arrivals, which end a [`Rnic::sleep`], are all there is to wait for: driving first
    /// would find nothing else.
    pub(super) fn only_listens(&self) -> bool {
        match &self.engines[..] {
            [engine] => engine.shard().only_listens(),
            _ => false,
        }
    }

    /// Sleeps until `signal`, or until there is something to drive, or until `timeout_ns` has
    /// passed. Several shards, and those of which the engine alone drives, are left to their
    /// engines.
    pub(super) fn sleep(&self, signal: &Signal, timeout_ns: Option<u64>) -> io::Result<()> {
        match &self.engines[..] {
            [engine] if !self.is_offloaded() => engine.shard().sleep(signal, timeout_ns),
            _ => wait_readable([signal.as_fd()], timeout_ns).map(|_| ()),
        }
    }
}

impl Rnic {
    pub(super) fn new_domain(self: Arc<Self>) -> Pd {
        let number = self.next_pd.fetch_add(1, Ordering::Relaxed);
        Pd { rnic: self, number }
    }
}

/// A protection domain: a number that queue pairs and regions share.
#[derive(Debug)]
pub(super) struct Pd {
    pub(super) rnic: Arc<Rnic>,
    pub(super) number: u32,
}

/// An object of this provider, given back by an application.
pub(super) fn ours<T: Any>(object: &Arc<impl AsAny + ?Sized>) -> Result<&T> {
    let any = object.as_any();
    any.downcast_ref()
        .ok_or(Error::Invalid("an object of another provider"))
}

/// Upcasts of the traits' objects.
pub(super) trait AsAny {
    fn as_any(&self) -> &dyn Any;
}

macro_rules! as_any {
    ($($ops:path),*) => {
        $(impl AsAny for dyn $ops {
            fn as_any(&self) -> &dyn Any {
                self
            }
        })*
    };
}

as_any!(
    dyn_ops::CompletionChannel,
    dyn_ops::Cq,
    dyn_ops::EventChannel,
    dyn_ops::Qp,
    dyn_ops::Srq
);

/// The traits under names that a macro can take.
mod dyn_ops {
    pub(super) use haul_verbs::provider::{
        CompletionChannelOps as CompletionChannel, CqOps as Cq, EventChannelOps as EventChannel,
        QpOps as Qp, SrqOps as Srq,
    };
}
