//! The provider and its devices.

use std::sync::Arc;

use haul_verbs::provider::{ContextOps, DeviceOps, Provider};
use haul_verbs::{Device, DeviceAttributes, Result, Transport};

use super::limits::attributes;
use super::object::open;
use super::options::Options;

/// Returns the provider of software RNICs: devices over TCP, UDT and UDP.
#[must_use]
pub fn provider(options: Options) -> Arc<dyn Provider> {
    Arc::new(Soft { options })
}

#[derive(Debug)]
struct Soft {
    options: Options,
}

impl Provider for Soft {
    fn name(&self) -> &'static str {
        PROVIDER
    }

    fn devices(&self) -> Result<Vec<Device>> {
        let device = |transport| {
            let options = self.options.clone();
            Device::from_ops(Arc::new(SoftDevice { transport, options }))
        };
        Ok(vec![
            device(Transport::Iwarp),
            device(Transport::IwarpUdt),
            device(Transport::IwarpUdp),
        ])
    }
}

/// Name of the provider that [`provider`] returns.
pub const PROVIDER: &str = "soft";

#[derive(Debug)]
struct SoftDevice {
    transport: Transport,
    options: Options,
}

impl DeviceOps for SoftDevice {
    fn name(&self) -> &str {
        match self.transport {
            Transport::IwarpUdt => "soft-udt",
            Transport::IwarpUdp => "soft-udp",
            _ => "soft-tcp",
        }
    }

    fn provider(&self) -> &'static str {
        PROVIDER
    }

    fn attributes(&self) -> Result<DeviceAttributes> {
        Ok(attributes(self.transport))
    }

    fn open(&self) -> Result<Arc<dyn ContextOps>> {
        open(self.transport, &self.options)
    }
}
