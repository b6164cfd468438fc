//! The RDMA devices that a command line can name.

use haul::fault::{Code, Fault};
use haul_bench::plan::{Over, Service, Wire};
use haul_gateway::config::ChannelKind;
use haul_soft::rnic;
use haul_verbs::Device;
use haul_verbs::provider::Provider as _;

use crate::args::Channel;
use crate::args::rdma;

/// Opens the device of this name; the software provider's uses the transport of `wire`.
pub(crate) fn device(args: &rdma::Device, service: Service, wire: &Wire) -> Result<Device, Fault> {
    if args.engine_cpus.is_some() && args.drive == rdma::Drive::Caller {
        return Err(Fault::new(
            Code::Usage,
            "--engine-cpus needs --drive engine",
        ));
    }
    match &args.provider {
        rdma::Provider::Soft => soft(args, service, wire),
        rdma::Provider::Engine => engine(args, service, wire),
        rdma::Provider::Ibv(_) if args.drive == rdma::Drive::Engine => Err(Fault::new(
            Code::Usage,
            "--drive engine needs --provider soft: a device drives itself",
        )),
        rdma::Provider::Ibv(name) => {
            let devices = haul_ibv::Ibv::load().devices();
            pick(devices.map_err(none)?, name)
        }
    }
}

/// The device of an engine, which has options of its own.
fn engine(args: &rdma::Device, service: Service, wire: &Wire) -> Result<Device, Fault> {
    let default = rnic::Options::default();
    let is_own = args.drive == rdma::Drive::Engine
        || wire.crc != default.crc
        || wire.strict != default.strict
        || wire.fpdu_max.is_some_and(|max| max != default.fpdu_max)
        || args.pcap.is_some();
    if is_own {
        let text = "--provider engine takes no --drive, --pcap or options of the wire format";
        return Err(Fault::new(Code::Usage, text).hint("processors: haul engine run --cpus"));
    }
    let provider = haul_engine::provider(haul_engine::default_path(), default);
    let name = match (service, channel(args, wire)) {
        (Service::Ud | Service::Rd, _) => "engine-udp",
        (Service::Rc, Channel::Tcp) => "engine-tcp",
        (Service::Rc, Channel::Udt) => "engine-udt",
    };
    let device = pick(provider.devices().map_err(none)?, name)?;
    if let Some(note) = device.note() {
        crate::output::note(&format!("{name}: {note}"));
    }
    Ok(device)
}

fn channel(args: &rdma::Device, wire: &Wire) -> Channel {
    match wire.over {
        Some(Over::Tcp) => Channel::Tcp,
        Some(Over::Udt) => Channel::Udt,
        None => args.channel,
    }
}

fn soft(args: &rdma::Device, service: Service, wire: &Wire) -> Result<Device, Fault> {
    let default = rnic::Options::default();
    let fpdu_max = wire.fpdu_max.unwrap_or(default.fpdu_max);
    if !(512..=65_536).contains(&fpdu_max) {
        let text = format!("an FPDU has 512 to 65536 bytes, not {fpdu_max}");
        return Err(Fault::new(Code::Usage, text));
    }
    let mut options = default;
    options.crc = wire.crc;
    options.strict = wire.strict;
    options.fpdu_max = fpdu_max;
    options.shards = args.shards.into();
    options.pcap = args.pcap.clone();
    options.drive = match args.drive {
        rdma::Drive::Caller => rnic::Drive::Caller,
        rdma::Drive::Engine => rnic::Drive::Engine,
    };
    options.engine_cpus = args.engine_cpus.clone();
    let name = match (service, channel(args, wire)) {
        (Service::Ud | Service::Rd, _) => "soft-udp",
        (Service::Rc, Channel::Tcp) => "soft-tcp",
        (Service::Rc, Channel::Udt) => "soft-udt",
    };
    pick(rnic::provider(options).devices().map_err(none)?, name)
}

/// The device of a gateway's kind of data channel; `name` is of a real one.
pub(crate) fn of_channel(kind: ChannelKind, name: Option<&str>) -> Result<Device, String> {
    let text = |fault: Fault| match fault.hint {
        Some(hint) => format!("{}; {hint}", fault.text),
        None => fault.text,
    };
    let soft = |name| {
        let devices = rnic::provider(rnic::Options::default()).devices();
        devices
            .map_err(none)
            .and_then(|devices| pick(devices, name))
            .map_err(text)
    };
    match (kind, name) {
        (ChannelKind::IwarpUdt, _) => soft("soft-udt"),
        (ChannelKind::Verbs, Some(name)) => {
            let devices = haul_ibv::Ibv::load().devices();
            devices
                .map_err(none)
                .and_then(|devices| pick(devices, name))
                .map_err(text)
        }
        (ChannelKind::Verbs, None) => {
            Err("it needs the name of a device (haul devices)".to_owned())
        }
        (ChannelKind::Tcp, _) => Err(format!("{kind} takes no device")),
    }
}

fn pick(devices: Vec<Device>, name: &str) -> Result<Device, Fault> {
    let names: Vec<_> = devices
        .iter()
        .map(|device| device.name().to_owned())
        .collect();
    devices
        .into_iter()
        .find(|device| device.name() == name)
        .ok_or_else(|| {
            let there = if names.is_empty() {
                "there are none".to_owned()
            } else {
                format!("there is {}", names.join(", "))
            };
            Fault::new(Code::Usage, format!("no device is called '{name}'")).hint(there)
        })
}

fn none(error: haul_verbs::Error) -> Fault {
    Fault::new(Code::Usage, format!("no RDMA devices: {error}"))
        .hint("install Debian's ibverbs-providers and librdmacm1, or leave --provider out")
}
