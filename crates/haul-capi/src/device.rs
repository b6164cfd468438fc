//! Devices, contexts, and what a context tells.

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use haul_control::protect::Protection;
use haul_soft::rnic::{Cpus, Drive};
use haul_verbs::provider::Provider;
use haul_verbs::{AsyncEvent, Context, Device, DeviceAttributes, DeviceCaps, Transport};

use crate::abi::*;
use crate::border::{
    Last, NOWHERE, c_text, check_growing, destroy, handles, on, place, places, read_growing, run,
    write_growing,
};
use crate::status::{Error, Result};

/// Devices and providers as they were when it was made.
#[derive(Debug)]
pub struct haul_device_list {
    devices: Vec<Device>,
    providers: Vec<Found>,
    last: Arc<Last>,
}

/// What a provider has, or why it has nothing.
#[derive(Debug)]
struct Found {
    name: &'static str,
    devices: usize,
    reason: String,
}

/// An opened device.
#[derive(Debug)]
pub struct haul_context {
    device: Device,
    pub(crate) context: Context,
    /// As the application declared it; 0: measured.
    rate_bps: u64,
    /// Of its byte streams, too.
    pub(crate) engine_cpus: Option<Cpus>,
    protection: Option<Protection>,
    pub(crate) last: Arc<Last>,
}

handles!(haul_device_list, haul_context);

impl haul_device_list {
    pub(crate) fn new(providers: &[Arc<dyn Provider>]) -> Self {
        let mut list = Self {
            devices: Vec::new(),
            providers: Vec::new(),
            last: Arc::default(),
        };
        for provider in providers {
            let (devices, reason) = match provider.devices() {
                Ok(devices) => (devices, String::new()),
                Err(error) => (Vec::new(), error.to_string()),
            };
            list.providers.push(Found {
                name: provider.name(),
                devices: devices.len(),
                reason,
            });
            list.devices.extend(devices);
        }
        list
    }

    /// The device of this name, else the first of the provider of this name, else (without a name)
    /// the first.
    fn find(&self, name: Option<&str>) -> Result<&Device> {
        let Some(name) = name else {
            return self.devices.first().ok_or_else(|| self.missing("at all"));
        };
        let by_name = self.devices.iter().find(|device| device.name() == name);
        let by_provider = || self.devices.iter().find(|device| device.provider() == name);
        by_name
            .or_else(by_provider)
            .ok_or_else(|| self.missing(name))
    }

    fn missing(&self, wanted: &str) -> Error {
        let names: Vec<_> = self.devices.iter().map(Device::name).collect();
        Error::NoDevice {
            wanted: wanted.to_owned(),
            found: names.join(", "),
        }
    }
}

impl haul_context {
    pub(crate) fn open(
        device: &Device,
        rate_bps: u64,
        engine_cpus: Option<Cpus>,
        protection: Option<Protection>,
    ) -> Result<Self> {
        let is_software = [haul_soft::rnic::PROVIDER, haul_engine::PROVIDER];
        if protection.is_some() && !is_software.contains(&device.provider()) {
            return Err(haul_verbs::Error::Unsupported("protection").into());
        }
        Ok(Self {
            device: device.clone(),
            context: device.open()?,
            rate_bps,
            engine_cpus,
            protection,
            last: Arc::default(),
        })
    }

    /// Declares the rate of its byte streams, bits per second.
    ///
    /// # Errors
    /// A device without byte streams.
    pub(crate) fn stream_rate_bps(&self) -> Result<Option<u64>> {
        if !has_streams(&self.device, &self.context.attributes()?) {
            return Err(haul_verbs::Error::Unsupported("byte streams").into());
        }
        Ok((self.rate_bps > 0).then_some(self.rate_bps))
    }

    /// What makes the keys of its byte streams.
    pub(crate) fn stream_protect(&self) -> Option<Arc<dyn haul_soft::rnic::Protect>> {
        let protection = self.protection.as_ref()?;
        Some(Arc::new(protection.clone()))
    }
}

const OPEN_DEFAULTS: haul_open_options = haul_open_options {
    size: 0,
    flags: 0,
    shards: 0,
    fpdu_max: 0,
    socket_buffer: 0,
    pcap: std::ptr::null(),
    rate_bps: 0,
    connect_timeout_ns: 0,
    close_timeout_ns: 0,
    peer_timeout_ns: 0,
    protect: std::ptr::null(),
    engine_cpus: std::ptr::null(),
};

/// All providers, the one that works everywhere first.
///
/// # Safety
/// As [`text`] for the strings.
unsafe fn providers(
    options: &haul_open_options,
    engine_cpus: Option<&Cpus>,
    protection: Option<&Protection>,
) -> Result<Vec<Arc<dyn Provider>>> {
    if options.flags & !(HAUL_OPEN_NO_CRC | HAUL_OPEN_STRICT | HAUL_OPEN_ENGINE) != 0 {
        return Err(Error::unknown("flags", options.flags, "of HAUL_OPEN_…"));
    }
    let defaults = haul_soft::rnic::Options::default();
    let time = |ns: u64| (ns > 0).then(|| Duration::from_nanos(ns));
    let or_default = |value: u32, default: u32| if value == 0 { default } else { value };
    // SAFETY: the caller's contract.
    let protect = unsafe { text(options.protect)? }.map(str::to_owned);
    // SAFETY: the caller's contract.
    let pcap = unsafe { text(options.pcap)? };
    let mut soft = defaults.clone();
    soft.crc = options.flags & HAUL_OPEN_NO_CRC == 0;
    soft.strict = options.flags & HAUL_OPEN_STRICT != 0;
    if options.flags & HAUL_OPEN_ENGINE != 0 {
        soft.drive = Drive::Engine;
    } else if engine_cpus.is_some() {
        return Err(Error::Argument(
            "engine_cpus needs the flag HAUL_OPEN_ENGINE",
        ));
    }
    soft.engine_cpus = engine_cpus.cloned();
    soft.fpdu_max = or_default(options.fpdu_max, defaults.fpdu_max);
    soft.shards = match options.shards {
        0 => defaults.shards,
        shards => shards as usize,
    };
    let (bytes, most) = (options.socket_buffer, usize::MAX as u64);
    haul_verbs::Error::at_most("socket_buffer", bytes, most)?;
    soft.socket_buffer = usize::try_from(bytes).ok().filter(|bytes| *bytes > 0);
    soft.rate_bps = (options.rate_bps > 0).then_some(options.rate_bps);
    soft.pcap = pcap.map(PathBuf::from);
    soft.connect_timeout = time(options.connect_timeout_ns).or(defaults.connect_timeout);
    soft.close_timeout = time(options.close_timeout_ns).unwrap_or(defaults.close_timeout);
    soft.peer_timeout = time(options.peer_timeout_ns).unwrap_or(defaults.peer_timeout);
    soft.protect = protection.map(|protection| Arc::new(protection.clone()) as _);
    Ok(vec![
        haul_soft::rnic::provider(soft.clone()),
        haul_engine::protected(haul_engine::default_path(), soft, protect),
        Arc::new(haul_ibv::Ibv::load()),
    ])
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_abi_version() -> u32 {
    HAUL_ABI_VERSION
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_last_error(
    context: Option<&haul_context>,
    buffer: *mut c_char,
    len: usize,
) -> usize {
    let last = context.map_or(&NOWHERE, |context| &context.last);
    let text = last.text();
    // SAFETY: the caller's buffer.
    let Ok(buffer) = (unsafe { places(buffer, len) }) else {
        return text.len();
    };
    if let Some(room) = buffer.len().checked_sub(1) {
        let mut end = text.len().min(room);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let bytes = text[..end].bytes().chain([0]);
        for (place, byte) in buffer.iter_mut().zip(bytes) {
            place.write(byte.cast_signed());
        }
    }
    text.len()
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_last_errno(context: Option<&haul_context>) -> c_int {
    context.map_or(&NOWHERE, |context| &context.last).errno()
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_device_list_create(
    out: Option<&mut MaybeUninit<*mut haul_device_list>>,
) -> c_int {
    run(&NOWHERE, "haul_device_list_create", || {
        place(out, || {
            // SAFETY: the defaults have no path.
            let providers = unsafe { providers(&OPEN_DEFAULTS, None, None)? };
            Ok(haul_device_list::new(&providers))
        })
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_device_list_destroy(list: Option<Box<haul_device_list>>) {
    destroy(list, "haul_device_list_destroy");
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_device_list_device(
    list: Option<&haul_device_list>,
    index: usize,
    out: *mut haul_device_info,
) -> c_int {
    run(&NOWHERE, "haul_device_list_device", || {
        let list = list.ok_or(Error::Argument("the list is NULL"))?;
        // SAFETY: the caller's structure.
        unsafe { check_growing(out)? };
        let Some(device) = list.devices.get(index) else {
            return Ok(0);
        };
        let info = device_info(device, &device.attributes()?);
        // SAFETY: as above.
        unsafe { write_growing(out, &info)? };
        Ok(1)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_device_list_provider(
    list: Option<&haul_device_list>,
    index: usize,
    out: *mut haul_provider_info,
) -> c_int {
    run(&NOWHERE, "haul_device_list_provider", || {
        let list = list.ok_or(Error::Argument("the list is NULL"))?;
        // SAFETY: the caller's structure.
        unsafe { check_growing(out)? };
        let Some(found) = list.providers.get(index) else {
            return Ok(0);
        };
        let info = haul_provider_info {
            size: 0,
            devices: u32::try_from(found.devices).unwrap_or(u32::MAX),
            name: c_text(found.name),
            reason: c_text(&found.reason),
        };
        // SAFETY: as above.
        unsafe { write_growing(out, &info)? };
        Ok(1)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_open(
    name: *const c_char,
    options: *const haul_open_options,
    out: Option<&mut MaybeUninit<*mut haul_context>>,
) -> c_int {
    run(&NOWHERE, "haul_open", || {
        place(out, || {
            // SAFETY: the caller's structure.
            let options = unsafe { read_growing(options, OPEN_DEFAULTS)? };
            let options = options.unwrap_or(OPEN_DEFAULTS);
            // SAFETY: the caller's string.
            let name = unsafe { text(name)? };
            // Keys that an engine reads do not enter this process.
            let is_elsewhere = name.is_some_and(|name| name.starts_with(haul_engine::PROVIDER))
                && haul_engine::answers(&haul_engine::default_path());
            let protection = match is_elsewhere {
                true => None,
                // SAFETY: the caller's string.
                false => unsafe { protection(options.protect)? },
            };
            // SAFETY: the caller's string.
            let engine_cpus = unsafe { text(options.engine_cpus)? };
            let engine_cpus = engine_cpus.map(str::parse).transpose();
            let engine_cpus =
                engine_cpus.map_err(|wrong: String| Error::Text(format!("engine_cpus {wrong}")))?;
            let (cpus, protect) = (engine_cpus.as_ref(), protection.as_ref());
            // SAFETY: the caller's path.
            let providers = unsafe { providers(&options, cpus, protect)? };
            let list = haul_device_list::new(&providers);
            haul_context::open(list.find(name)?, options.rate_bps, engine_cpus, protection)
        })
    })
}

/// What `protect` asks for.
///
/// # Safety
/// As [`text`].
unsafe fn protection(protect: *const c_char) -> Result<Option<Protection>> {
    // SAFETY: the caller's contract.
    let text = unsafe { text(protect)? };
    let parsed = text.map(Protection::parse).transpose();
    parsed.map_err(|fault| {
        let hint = fault.hint.map(|hint| format!("; {hint}"));
        Error::Text(format!("{}{}", fault.text, hint.unwrap_or_default()))
    })
}

/// None for NULL.
///
/// # Safety
/// NULL, or a string that ends with a NUL and does not change while it is used.
unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's contract.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str();
    text.map(Some)
        .map_err(|_| Error::Argument("a name or path is not UTF-8"))
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_close(context: Option<Box<haul_context>>) {
    destroy(context, "haul_close");
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_refused_peers(
    context: Option<&haul_context>,
    out: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    on(context, "haul_refused_peers", |context| {
        let protection = context.protection.as_ref();
        let protection = protection.ok_or(haul_verbs::Error::Unsupported("protection"))?;
        let out = out.ok_or(Error::Argument("out is NULL"))?;
        out.write(protection.refused());
        Ok(0)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_query(
    context: Option<&haul_context>,
    out: *mut haul_device_info,
) -> c_int {
    on(context, "haul_query", |context| {
        let info = device_info(&context.device, &context.context.attributes()?);
        // SAFETY: the caller's structure.
        unsafe { write_growing(out, &info)? };
        Ok(HAUL_OK)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_async_fd(context: Option<&haul_context>) -> c_int {
    on(context, "haul_async_fd", |context| {
        Ok(context.context.async_fd()?.as_raw_fd())
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_async_poll(
    context: Option<&haul_context>,
    out: *mut haul_async_event,
) -> c_int {
    on(context, "haul_async_poll", |context| {
        // SAFETY: the caller's structure.
        unsafe { check_growing(out)? };
        let Some(event) = context.context.poll_async_event()? else {
            return Ok(0);
        };
        // SAFETY: as above.
        unsafe { write_growing(out, &async_event(event))? };
        Ok(1)
    })
}

fn async_event(event: AsyncEvent) -> haul_async_event {
    let (r#type, qp_num, token) = match event {
        AsyncEvent::CqError { token } => (HAUL_ASYNC_CQ_ERROR, 0, token),
        AsyncEvent::QpFatal { qp_num } => (HAUL_ASYNC_QP_FATAL, qp_num, 0),
        AsyncEvent::QpAccessError { qp_num } => (HAUL_ASYNC_QP_ACCESS_ERROR, qp_num, 0),
        AsyncEvent::CommunicationEstablished { qp_num } => (HAUL_ASYNC_COMM_ESTABLISHED, qp_num, 0),
        AsyncEvent::SrqLimitReached { token } => (HAUL_ASYNC_SRQ_LIMIT_REACHED, 0, token),
        AsyncEvent::DeviceFatal => (HAUL_ASYNC_DEVICE_FATAL, 0, 0),
        AsyncEvent::DatagramRefused { qp_num } => (HAUL_ASYNC_DATAGRAM_REFUSED, qp_num, 0),
        AsyncEvent::DatagramUndelivered { qp_num } => (HAUL_ASYNC_DATAGRAM_UNDELIVERED, qp_num, 0),
        _ => (HAUL_ASYNC_OTHER, 0, 0),
    };
    haul_async_event {
        size: 0,
        r#type,
        qp_num,
        reserved: 0,
        token,
    }
}

fn device_info(device: &Device, attributes: &DeviceAttributes) -> haul_device_info {
    haul_device_info {
        size: 0,
        transport: match attributes.transport {
            Transport::Iwarp => HAUL_TRANSPORT_IWARP,
            Transport::IwarpUdt => HAUL_TRANSPORT_IWARP_UDT,
            Transport::Roce => HAUL_TRANSPORT_ROCE,
            Transport::InfiniBand => HAUL_TRANSPORT_INFINIBAND,
            Transport::IwarpUdp => HAUL_TRANSPORT_IWARP_UDP,
            _ => HAUL_TRANSPORT_OTHER,
        },
        caps: caps(attributes.caps)
            | if has_streams(device, attributes) {
                HAUL_CAP_STREAM
            } else {
                0
            },
        name: c_text(device.name()),
        provider: c_text(device.provider()),
        max_qp: attributes.max_qp,
        max_qp_wr: attributes.max_qp_wr,
        max_sge: attributes.max_sge.min(HAUL_SGE_MAX),
        max_inline: attributes.max_inline.min(HAUL_INLINE_MAX),
        max_cqe: attributes.max_cqe,
        max_mr: attributes.max_mr,
        max_mr_size: attributes.max_mr_size,
        max_message: attributes.max_message,
        max_rd_atomic: attributes.max_rd_atomic,
        max_init_rd_atomic: attributes.max_init_rd_atomic,
        max_private_data: attributes.max_private_data.min(HAUL_PRIVATE_DATA_MAX),
        reserved: 0,
    }
}

/// Byte streams are UDT's.
fn has_streams(device: &Device, attributes: &DeviceAttributes) -> bool {
    let providers = [haul_soft::rnic::PROVIDER, haul_engine::PROVIDER];
    providers.contains(&device.provider()) && attributes.transport == Transport::IwarpUdt
}

/// The bits of the header are those of the verbs.
fn caps(caps: DeviceCaps) -> u64 {
    caps.bits().into()
}

const _: () = {
    let table = [
        (DeviceCaps::ATOMIC, HAUL_CAP_ATOMIC),
        (DeviceCaps::SRQ, HAUL_CAP_SRQ),
        (DeviceCaps::SEND_WITH_INVALIDATE, HAUL_CAP_SEND_WITH_INV),
        (DeviceCaps::WRITE_WITH_IMM, HAUL_CAP_WRITE_WITH_IMM),
        (DeviceCaps::SEND_WITH_IMM, HAUL_CAP_SEND_WITH_IMM),
        (DeviceCaps::UD, HAUL_CAP_UD),
        (DeviceCaps::ZERO_BASED, HAUL_CAP_ZERO_BASED),
        (DeviceCaps::REMOTE_PLACEMENT, HAUL_CAP_REMOTE_PLACEMENT),
        (DeviceCaps::ENDPOINTS, HAUL_CAP_ENDPOINTS),
        (DeviceCaps::RD, HAUL_CAP_RD),
        (DeviceCaps::RC, HAUL_CAP_RC),
        (DeviceCaps::WRITE_RECORD, HAUL_CAP_WRITE_RECORD),
        (DeviceCaps::RATE_LIMIT, HAUL_CAP_RATE_LIMIT),
    ];
    let mut all = HAUL_CAP_STREAM;
    let mut at = 0;
    while at < table.len() {
        let (ours, theirs) = table[at];
        assert!(ours.bits() as u64 == theirs && all & theirs == 0);
        all |= theirs;
        at += 1;
    }
    assert!(DeviceCaps::all().bits() as u64 | HAUL_CAP_STREAM == all);
};
