//! The RDMA devices of a provider, as `haul devices` lists them.

use haul_verbs::provider::Provider;
use haul_verbs::{Device, DeviceAttributes, Transport};
use serde::Serialize;

/// The devices of a provider.
#[derive(Debug, Serialize)]
pub(crate) struct Found {
    pub(crate) provider: &'static str,
    /// Why there is no device.
    pub(crate) reason: Option<String>,
    pub(crate) devices: Vec<Described>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Described {
    pub(crate) name: String,
    /// What there is to know beside the rest.
    pub(crate) note: Option<String>,
    /// Why the rest is missing: the device cannot be opened.
    pub(crate) error: Option<String>,
    #[serde(flatten)]
    pub(crate) details: Option<Details>,
}

/// The capabilities and limits of a device.
#[derive(Debug, Serialize)]
pub(crate) struct Details {
    pub(crate) transport: &'static str,
    pub(crate) capabilities: Vec<String>,
    /// Whose threads can send and receive.
    pub(crate) drive: &'static [&'static str],
    pub(crate) max_qp: u32,
    pub(crate) max_qp_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_inline_bytes: u32,
    pub(crate) max_cqe: u32,
    pub(crate) max_mr: u32,
    pub(crate) max_mr_bytes: u64,
    pub(crate) max_message_bytes: u64,
    pub(crate) max_ird: u32,
    pub(crate) max_ord: u32,
    pub(crate) max_private_data_bytes: u32,
}

/// Asks a provider for its devices.
pub(crate) fn ask(provider: &dyn Provider) -> Found {
    let (reason, devices) = match provider.devices() {
        Ok(devices) if devices.is_empty() => (Some("no device".to_owned()), devices),
        Ok(devices) => (None, devices),
        Err(error) => (Some(error.to_string()), Vec::new()),
    };
    Found {
        provider: provider.name(),
        reason,
        devices: devices.iter().map(describe).collect(),
    }
}

fn describe(device: &Device) -> Described {
    let attributes = device.attributes();
    Described {
        name: device.name().to_owned(),
        note: device.note(),
        error: attributes.as_ref().err().map(ToString::to_string),
        details: attributes
            .ok()
            .map(|attributes| details(device, &attributes)),
    }
}

fn details(device: &Device, attributes: &DeviceAttributes) -> Details {
    let capabilities = attributes.caps.iter_names();
    Details {
        transport: match attributes.transport {
            Transport::Iwarp => "iWARP",
            Transport::IwarpUdt => "iWARP over UDT",
            Transport::IwarpUdp => "iWARP over UDP",
            Transport::Roce => "RoCE",
            Transport::InfiniBand => "InfiniBand",
            _ => "other",
        },
        capabilities: capabilities
            .map(|(name, _)| name.to_lowercase().replace('_', "-"))
            .collect(),
        drive: match device.provider() {
            haul_soft::rnic::PROVIDER => &["caller", "engine"],
            haul_engine::PROVIDER => &["engine"],
            _ => &["device"],
        },
        max_qp: attributes.max_qp,
        max_qp_wr: attributes.max_qp_wr,
        max_sge: attributes.max_sge,
        max_inline_bytes: attributes.max_inline,
        max_cqe: attributes.max_cqe,
        max_mr: attributes.max_mr,
        max_mr_bytes: attributes.max_mr_size,
        max_message_bytes: attributes.max_message,
        max_ird: attributes.max_rd_atomic,
        max_ord: attributes.max_init_rd_atomic,
        max_private_data_bytes: attributes.max_private_data,
    }
}
