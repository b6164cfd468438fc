//! The provider: an application's half.

mod bounce;
mod completion;
mod context;
mod core;
mod events;
mod inbox;
mod link;
mod memory;
mod queue;
mod stream;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use haul_soft::rnic;
use haul_verbs::provider::{ContextOps, DeviceOps, Provider};
use haul_verbs::{Device, DeviceAttributes, DeviceCaps, Error, Result, Transport};

use crate::message::TRANSPORTS;
use context::Context;
use link::Link;
pub use stream::{StreamListener, Streams, streams};

/// Name of the provider.
pub const PROVIDER: &str = "engine";

/// Returns the provider of devices of an engine, which listens at `path`. Where no engine does, its
/// devices are those of `haul-soft` with `fallback`.
#[must_use]
pub fn provider(path: PathBuf, fallback: rnic::Options) -> Arc<dyn Provider> {
    protected(path, fallback, None)
}

/// As [`provider`], with what protects connections, in the form of
/// [`Protection::parse`](haul_control::protect::Protection::parse). The engine reads the keys, with
/// the rights of this process; `fallback` has the same.
#[must_use]
pub fn protected(
    path: PathBuf,
    fallback: rnic::Options,
    protect: Option<String>,
) -> Arc<dyn Provider> {
    Arc::new(Engine {
        path,
        fallback,
        protect,
    })
}

/// Returns whether an engine answers at `path`.
#[must_use]
pub fn answers(path: &Path) -> bool {
    Link::probe(path).is_ok()
}

/// Where engines listen, and applications look for them: `HAUL_ENGINE_SOCKET` if it is set; for a
/// user with a run-time directory `$XDG_RUNTIME_DIR/haul/engine.sock`, if there is one; else
/// `/run/haul/engine.sock`.
#[must_use]
pub fn default_path() -> PathBuf {
    if let Some(path) = std::env::var_os("HAUL_ENGINE_SOCKET").filter(|path| !path.is_empty()) {
        return path.into();
    }
    let system = PathBuf::from("/run/haul/engine.sock");
    let Some(folder) = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) else {
        return system;
    };
    let own = Path::new(&folder).join("haul/engine.sock");
    if own.exists() || !system.exists() {
        own
    } else {
        system
    }
}

#[derive(Debug)]
struct Engine {
    path: PathBuf,
    fallback: rnic::Options,
    protect: Option<String>,
}

impl Provider for Engine {
    fn name(&self) -> &'static str {
        PROVIDER
    }

    fn devices(&self) -> Result<Vec<Device>> {
        let soft = rnic::provider(self.fallback.clone()).devices()?;
        let device = |transport: Transport| {
            let is_same = |soft: &&Device| {
                soft.attributes()
                    .is_ok_and(|attributes| attributes.transport == transport)
            };
            let ops: Arc<dyn DeviceOps> = Arc::new(EngineDevice {
                transport,
                path: self.path.clone(),
                fallback: soft.iter().find(is_same)?.clone(),
                protect: self.protect.clone(),
            });
            Some(Device::from_ops(ops))
        };
        Ok(TRANSPORTS.into_iter().filter_map(device).collect())
    }
}

#[derive(Debug)]
struct EngineDevice {
    transport: Transport,
    path: PathBuf,
    fallback: Device,
    protect: Option<String>,
}

impl DeviceOps for EngineDevice {
    fn name(&self) -> &str {
        match self.transport {
            Transport::IwarpUdt => "engine-udt",
            Transport::IwarpUdp => "engine-udp",
            _ => "engine-tcp",
        }
    }

    fn provider(&self) -> &'static str {
        PROVIDER
    }

    fn attributes(&self) -> Result<DeviceAttributes> {
        let mut attributes = self.fallback.attributes()?;
        attributes.caps -= DeviceCaps::ENDPOINTS;
        Ok(attributes)
    }

    fn note(&self) -> Option<String> {
        let path = self.path.display();
        Some(match Link::probe(&self.path) {
            Ok(()) => format!("by the engine at {path}"),
            Err(error) => format!("in this process, for no engine answers at {path}: {error}"),
        })
    }

    fn open(&self) -> Result<Arc<dyn ContextOps>> {
        match Link::open(&self.path, self.transport, self.protect.clone()) {
            Ok(opened) => Ok(Context::new(opened)),
            Err(Error::Os { source, .. }) if link::is_absent(&source) => {
                let context = self.fallback.open()?;
                Ok(Arc::clone(context.ops()))
            }
            Err(error) => Err(error),
        }
    }
}
