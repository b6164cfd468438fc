//! What a client and its engine tell each other over the control socket.
//!
//! One packet of `SOCK_SEQPACKET` is one message in CBOR, with the descriptors that belong to it. A
//! client sends a [`Request`] and waits for its [`Reply`]; objects have numbers that the engine
//! chooses. Events come over sockets of their own: [`Event`] for connections, [`Async`] for a
//! device, and eight bytes with a token for each completion event.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use haul_soft::udt::stream;
use haul_verbs::cm::{ConnParam, Established};
use haul_verbs::{
    AsyncEvent, Blame, DatagramInit, DatagramStatistics, DeviceAttributes, DeviceCaps, Error,
    Failure, Peer, QpCapacity, QpState, QpStatistics, QpType, RateLimit, RecordMode, RecordStatus,
    Remote, SealKey, Sources, Transport, WriteRecord,
};
use minicbor::{Decode, Encode};

/// Both ends must have the same: layouts of rings and messages.
pub(crate) const ABI: u32 = 2;
/// Bytes of the longest message.
pub(crate) const MESSAGE_MAX: usize = 64 << 10;
/// Descriptors of a message, at most.
pub(crate) const DESCRIPTORS_MAX: usize = 3;

/// What a client asks for. Descriptors are named in the order in which they come.
#[derive(Debug, Encode, Decode)]
pub(crate) enum Request {
    /// The first of a client: opens a device. With the memory of the doorbell and its descriptor.
    #[n(0)]
    Open {
        #[n(0)]
        abi: u32,
        #[n(1)]
        transport: u8,
        /// What protects connections, as `haul_open_options` has it. The engine reads the files.
        #[n(2)]
        protect: Option<String>,
    },
    #[n(1)]
    AllocPd,
    /// With the socket that events go to.
    #[n(2)]
    CreateCompletionChannel,
    /// With the socket that events go to.
    #[n(3)]
    CreateEventChannel,
    /// With the memory of its ring, and the descriptor that wakes the client.
    #[n(4)]
    CreateCq {
        #[n(0)]
        entries: u32,
        #[n(1)]
        channel: Option<u32>,
        #[n(2)]
        token: u64,
    },
    /// With the memory of its rings: of sends, then of receives unless there is a shared queue.
    #[n(5)]
    CreateQp(#[n(0)] Box<CreateQp>),
    /// With the memory.
    #[n(6)]
    Register {
        #[n(0)]
        pd: u32,
        #[n(1)]
        offset: u64,
        #[n(2)]
        len: u64,
        #[n(3)]
        access: u32,
        /// The address of its first byte; zero-based without it.
        #[n(4)]
        addr: Option<u64>,
        #[n(5)]
        sources: Allowed,
    },
    /// With the memory of its ring.
    #[n(7)]
    CreateSrq {
        #[n(0)]
        pd: u32,
        #[n(1)]
        max_wr: u32,
        #[n(2)]
        max_sge: u32,
        #[n(3)]
        token: u64,
    },
    #[n(8)]
    ArmSrq {
        #[n(0)]
        srq: u32,
        #[n(1)]
        limit: u32,
    },
    #[n(9)]
    Listen {
        #[n(0)]
        address: SocketAddr,
        #[n(1)]
        channel: u32,
        #[n(2)]
        backlog: u32,
    },
    #[n(10)]
    Connect {
        #[n(0)]
        qp: u32,
        #[n(1)]
        peer: SocketAddr,
        #[n(2)]
        param: Parameters,
        #[n(3)]
        channel: u32,
    },
    #[n(11)]
    Accept {
        #[n(0)]
        request: u32,
        #[n(1)]
        qp: u32,
        #[n(2)]
        param: Parameters,
    },
    #[n(12)]
    Reject {
        #[n(0)]
        request: u32,
        #[cbor(n(1), with = "minicbor::bytes")]
        private_data: Vec<u8>,
    },
    #[n(13)]
    Disconnect(#[n(0)] u32),
    #[n(14)]
    State(#[n(0)] u32),
    #[n(15)]
    Statistics(#[n(0)] u32),
    #[n(16)]
    Bind {
        #[n(0)]
        qp: u32,
        #[n(1)]
        address: SocketAddr,
    },
    /// With the socket.
    #[n(17)]
    Adopt(#[n(0)] u32),
    #[n(18)]
    Multicast {
        #[n(0)]
        qp: u32,
        #[n(1)]
        attach: bool,
        #[n(2)]
        group: IpAddr,
        #[n(3)]
        interface: Option<IpAddr>,
    },
    #[n(19)]
    TakeRecord {
        #[n(0)]
        qp: u32,
        #[n(1)]
        wr_id: u64,
    },
    #[n(20)]
    Records {
        #[n(0)]
        qp: u32,
        #[n(1)]
        rkey: u32,
    },
    #[n(21)]
    DatagramStatistics(#[n(0)] u32),
    /// Ends an object. Nothing uses its memory any more when the reply is there.
    #[n(22)]
    Close(#[n(0)] u32),
    /// A byte stream over UDT. With an address of its own the peer does the same (rendezvous).
    #[n(23)]
    ConnectStream {
        #[n(0)]
        local: Option<SocketAddr>,
        #[n(1)]
        peer: SocketAddr,
        #[n(2)]
        options: StreamOptions,
    },
    #[n(24)]
    ListenForStreams {
        #[n(0)]
        address: SocketAddr,
        #[n(1)]
        options: StreamOptions,
    },
    /// Takes the next stream of a listener, for which a packet has come.
    #[n(25)]
    AcceptStream(#[n(0)] u32),
}

/// As [`stream::Options`], but for what the device determines.
#[derive(Debug, Encode, Decode)]
pub(crate) struct StreamOptions {
    /// Of what is sent, and of what arrives.
    #[n(0)]
    ring_bytes: (u64, u64),
    #[n(1)]
    rate_bps: Option<u64>,
    /// For connecting, and for a peer that is silent.
    #[n(2)]
    timeouts_ns: (u64, u64),
    #[n(3)]
    slot_memory_bytes: u64,
}

/// Of a ring of a stream.
const STREAM_RING_BYTES: std::ops::RangeInclusive<u64> = 4 << 10..=1 << 30;

impl StreamOptions {
    pub(crate) fn of(options: &stream::Options) -> Self {
        let config = &options.udt.config;
        Self {
            ring_bytes: (options.send_bytes as u64, options.receive_bytes as u64),
            rate_bps: options.rate_bps,
            timeouts_ns: (config.connect_timeout_ns, config.idle_timeout_ns),
            slot_memory_bytes: config.slot_memory_bytes,
        }
    }

    pub(crate) fn get(&self, device: &stream::Options) -> Option<stream::Options> {
        let ring = |bytes: u64| {
            let bytes = Some(bytes).filter(|bytes| STREAM_RING_BYTES.contains(bytes))?;
            usize::try_from(bytes).ok()
        };
        let mut options = device.clone();
        options.send_bytes = ring(self.ring_bytes.0)?;
        options.receive_bytes = ring(self.ring_bytes.1)?;
        if self.rate_bps == Some(0) {
            return None;
        }
        options.rate_bps = self.rate_bps;
        let config = &mut options.udt.config;
        (config.connect_timeout_ns, config.idle_timeout_ns) = self.timeouts_ns;
        config.slot_memory_bytes = ring(self.slot_memory_bytes)? as u64;
        Some(options)
    }
}

#[derive(Debug, Encode, Decode)]
pub(crate) struct CreateQp {
    #[n(0)]
    pub(crate) pd: u32,
    #[n(1)]
    pub(crate) qp_type: u8,
    #[n(2)]
    pub(crate) send_cq: u32,
    #[n(3)]
    pub(crate) recv_cq: u32,
    #[n(4)]
    pub(crate) srq: Option<u32>,
    #[n(5)]
    pub(crate) capacity: Capacity,
    #[n(6)]
    pub(crate) signal_all: bool,
    #[n(7)]
    pub(crate) remote_placement: bool,
    /// Bits per second, and the longest burst.
    #[n(8)]
    pub(crate) rate_limit: Option<(u64, Option<u64>)>,
    #[n(9)]
    pub(crate) datagram: Datagram,
}

/// As [`QpCapacity`].
#[derive(Debug, Clone, Copy, Encode, Decode)]
pub(crate) struct Capacity(#[n(0)] [u32; 5]);

impl Capacity {
    pub(crate) fn of(capacity: QpCapacity) -> Self {
        Self([
            capacity.max_send_wr,
            capacity.max_recv_wr,
            capacity.max_send_sge,
            capacity.max_recv_sge,
            capacity.max_inline,
        ])
    }

    pub(crate) fn get(self) -> QpCapacity {
        let mut capacity = QpCapacity::default();
        [
            capacity.max_send_wr,
            capacity.max_recv_wr,
            capacity.max_send_sge,
            capacity.max_recv_sge,
            capacity.max_inline,
        ] = self.0;
        capacity
    }
}

/// As [`DatagramInit`].
#[derive(Debug, Encode, Decode)]
pub(crate) struct Datagram {
    #[n(0)]
    records: u8,
    #[n(1)]
    path_mtu: u16,
    #[n(2)]
    max_rate: Option<u64>,
    #[n(3)]
    multicast: (u8, bool, bool),
    #[n(4)]
    tail_repeats: u8,
    #[n(5)]
    read_timeout_ns: u64,
    #[n(6)]
    retries: u8,
    #[n(7)]
    window: u32,
    #[n(8)]
    peer_error_is_fatal: bool,
    #[n(9)]
    receives_in_order: bool,
    #[cbor(n(10), with = "minicbor::bytes")]
    seal_key: Option<[u8; SealKey::LEN]>,
}

const RECORD_MODES: [RecordMode; 3] = [
    RecordMode::Aggregate,
    RecordMode::PerChunk,
    RecordMode::Query,
];

impl Datagram {
    pub(crate) fn of(init: &DatagramInit) -> Self {
        Self {
            records: position(&RECORD_MODES, &init.records),
            path_mtu: init.path_mtu,
            max_rate: init.max_rate,
            multicast: (init.multicast_ttl, init.multicast_loop, init.group_writes),
            tail_repeats: init.tail_repeats,
            read_timeout_ns: ns(init.read_timeout),
            retries: init.retries,
            window: init.window,
            peer_error_is_fatal: init.peer_error_is_fatal,
            receives_in_order: init.receives_in_order,
            seal_key: init.seal_key.as_ref().map(|key| *key.as_bytes()),
        }
    }

    pub(crate) fn get(&self) -> Option<DatagramInit> {
        let mut init = DatagramInit::default();
        init.records = *RECORD_MODES.get(usize::from(self.records))?;
        init.path_mtu = self.path_mtu;
        init.max_rate = self.max_rate;
        (init.multicast_ttl, init.multicast_loop, init.group_writes) = self.multicast;
        init.tail_repeats = self.tail_repeats;
        init.read_timeout = Duration::from_nanos(self.read_timeout_ns);
        init.retries = self.retries;
        init.window = self.window;
        init.peer_error_is_fatal = self.peer_error_is_fatal;
        init.receives_in_order = self.receives_in_order;
        init.seal_key = self.seal_key.map(SealKey::new);
        Some(init)
    }
}

/// As [`Sources`].
#[derive(Debug, Encode, Decode)]
pub(crate) enum Allowed {
    #[n(0)]
    Validated,
    #[n(1)]
    Any,
    #[n(2)]
    Of(#[n(0)] Vec<(IpAddr, Option<u32>)>),
}

impl Allowed {
    pub(crate) fn of(sources: &Sources) -> Self {
        match sources {
            Sources::Validated => Self::Validated,
            Sources::Any => Self::Any,
            Sources::Of(list) => Self::Of(list.clone()),
        }
    }

    pub(crate) fn get(self) -> Sources {
        match self {
            Self::Validated => Sources::Validated,
            Self::Any => Sources::Any,
            Self::Of(list) => Sources::Of(list),
        }
    }
}

/// As [`ConnParam`].
#[derive(Debug, Encode, Decode)]
pub(crate) struct Parameters {
    #[cbor(n(0), with = "minicbor::bytes")]
    private_data: Vec<u8>,
    #[n(1)]
    resources: (u16, u16),
    #[n(2)]
    retries: (u8, u8),
}

impl Parameters {
    pub(crate) fn of(param: &ConnParam<'_>) -> Self {
        Self {
            private_data: param.private_data.to_vec(),
            resources: (param.responder_resources, param.initiator_depth),
            retries: (param.rnr_retry_count, param.retry_count),
        }
    }

    pub(crate) fn get(&self) -> ConnParam<'_> {
        let mut param = ConnParam::default();
        param.private_data = &self.private_data;
        (param.responder_resources, param.initiator_depth) = self.resources;
        (param.rnr_retry_count, param.retry_count) = self.retries;
        param
    }
}

/// What the engine answers.
#[derive(Debug, Encode, Decode)]
pub(crate) enum Reply {
    #[n(0)]
    Done,
    #[n(1)]
    Failed(#[n(0)] Box<Failed>),
    /// With the socket that asynchronous events come from.
    #[n(2)]
    Opened(#[n(0)] Box<Attributes>),
    /// The number of a new object.
    #[n(3)]
    Object(#[n(0)] u32),
    #[n(4)]
    Qp {
        #[n(0)]
        qp: u32,
        #[n(1)]
        qp_num: u32,
    },
    #[n(5)]
    Mr {
        #[n(0)]
        mr: u32,
        #[n(1)]
        lkey: u32,
        #[n(2)]
        rkey: u32,
        #[n(3)]
        addr: u64,
    },
    #[n(6)]
    Listener {
        #[n(0)]
        listener: u32,
        #[n(1)]
        address: SocketAddr,
    },
    #[n(7)]
    Address(#[n(0)] SocketAddr),
    #[n(8)]
    State {
        #[n(0)]
        state: u8,
        #[n(1)]
        failure: Option<Why>,
    },
    /// The fields of the structure, in its order.
    #[n(9)]
    Numbers(#[n(0)] Vec<u64>),
    #[n(10)]
    Records(#[n(0)] Vec<Record>),
    /// A byte stream. With its memory, and what wakes who uses it and who waits.
    #[n(11)]
    Stream {
        #[n(0)]
        stream: u32,
        #[n(1)]
        peer: SocketAddr,
        #[n(2)]
        ring_bytes: (u64, u64),
    },
}

/// An [`Error`] on its way.
#[derive(Debug, Encode, Decode)]
pub(crate) struct Failed {
    #[n(0)]
    kind: u8,
    #[n(1)]
    text: String,
    #[n(2)]
    value: u64,
    #[n(3)]
    limit: u64,
}

impl Failed {
    pub(crate) fn of(error: &Error) -> Box<Self> {
        let (kind, text, value, limit) = match error {
            Error::Unsupported(what) => (0, *what, 0, 0),
            Error::Invalid(what) => (1, *what, 0, 0),
            Error::Limit {
                field,
                value,
                limit,
            } => (2, *field, *value, *limit),
            Error::Full(what) => (3, *what, 0, 0),
            Error::State(state) => (4, "", position(&STATES, state).into(), 0),
            Error::Exhausted(what) => (5, *what, 0, 0),
            Error::Busy(what) => (6, *what, 0, 0),
            Error::CqOverflow => (7, "", 0, 0),
            Error::Os { what, source } => match source.raw_os_error() {
                Some(errno) => (8, *what, u64::from(errno.unsigned_abs()), 0),
                None => return Self::of_text(format!("{what}: {source}")),
            },
            _ => return Self::of_text(error.to_string()),
        };
        Box::new(Self {
            kind,
            text: text.to_owned(),
            value,
            limit,
        })
    }

    fn of_text(text: String) -> Box<Self> {
        Box::new(Self {
            kind: 9,
            text,
            value: 0,
            limit: 0,
        })
    }

    pub(crate) fn get(self) -> Error {
        if self.kind == 9 {
            return Error::Os {
                what: "the engine",
                source: io::Error::other(self.text),
            };
        }
        let text = interned(self.text);
        match self.kind {
            0 => Error::Unsupported(text),
            1 => Error::Invalid(text),
            2 => Error::Limit {
                field: text,
                value: self.value,
                limit: self.limit,
            },
            3 => Error::Full(text),
            4 => Error::State(at(&STATES, self.value).unwrap_or_default()),
            5 => Error::Exhausted(text),
            6 => Error::Busy(text),
            7 => Error::CqOverflow,
            _ => Error::Os {
                what: text,
                source: match i32::try_from(self.value) {
                    Ok(errno) if errno > 0 => io::Error::from_raw_os_error(errno),
                    _ => io::ErrorKind::Other.into(),
                },
            },
        }
    }
}

/// Texts of errors live as long as the program; an engine has few of them.
fn interned(text: String) -> &'static str {
    static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    match texts.get(text.as_str()) {
        Some(known) => known,
        None if texts.len() < 1_000 => {
            let text: &'static str = String::leak(text);
            texts.insert(text);
            text
        }
        None => "an error of the engine",
    }
}

/// As [`DeviceAttributes`].
#[derive(Debug, Encode, Decode)]
pub(crate) struct Attributes {
    #[n(0)]
    transport: u8,
    #[n(1)]
    caps: u32,
    #[n(2)]
    numbers: [u32; 9],
    #[n(3)]
    sizes: [u64; 2],
}

pub(crate) const TRANSPORTS: [Transport; 3] =
    [Transport::Iwarp, Transport::IwarpUdt, Transport::IwarpUdp];

impl Attributes {
    pub(crate) fn of(attributes: &DeviceAttributes) -> Self {
        Self {
            transport: position(&TRANSPORTS, &attributes.transport),
            caps: attributes.caps.bits(),
            numbers: [
                attributes.max_qp,
                attributes.max_qp_wr,
                attributes.max_sge,
                attributes.max_inline,
                attributes.max_cqe,
                attributes.max_mr,
                attributes.max_rd_atomic,
                attributes.max_init_rd_atomic,
                attributes.max_private_data,
            ],
            sizes: [attributes.max_mr_size, attributes.max_message],
        }
    }

    pub(crate) fn get(&self) -> Option<DeviceAttributes> {
        let transport = at(&TRANSPORTS, self.transport.into())?;
        // An endpoint is connected by a call that waits.
        let caps = DeviceCaps::from_bits_truncate(self.caps) - DeviceCaps::ENDPOINTS;
        let mut attributes = DeviceAttributes::new(transport, caps);
        [
            attributes.max_qp,
            attributes.max_qp_wr,
            attributes.max_sge,
            attributes.max_inline,
            attributes.max_cqe,
            attributes.max_mr,
            attributes.max_rd_atomic,
            attributes.max_init_rd_atomic,
            attributes.max_private_data,
        ] = self.numbers;
        [attributes.max_mr_size, attributes.max_message] = self.sizes;
        Some(attributes)
    }
}

/// As [`Failure`].
#[derive(Debug, Encode, Decode)]
pub(crate) struct Why {
    #[n(0)]
    blame: u8,
    #[n(1)]
    reason: String,
}

const BLAMES: [Blame; 4] = [
    Blame::Local,
    Blame::Peer,
    Blame::PeerComplains,
    Blame::Network,
];

impl Why {
    pub(crate) fn of(failure: &Failure) -> Self {
        Self {
            blame: position(&BLAMES, &failure.blame),
            reason: failure.reason.clone(),
        }
    }

    pub(crate) fn get(self) -> Failure {
        let blame = at(&BLAMES, self.blame.into()).unwrap_or(Blame::Local);
        Failure::new(blame, self.reason)
    }
}

/// As [`WriteRecord`].
#[derive(Debug, Encode, Decode)]
pub(crate) struct Record {
    #[n(0)]
    status: u8,
    #[n(1)]
    source: (SocketAddr, u32),
    #[n(2)]
    message: u32,
    #[n(3)]
    target: (u64, u32),
    #[n(4)]
    len: u32,
    #[n(5)]
    valid: u32,
    #[n(6)]
    ranges: Vec<(u32, u32)>,
    #[n(7)]
    imm: Option<u32>,
}

const RECORD_STATUSES: [RecordStatus; 8] = [
    RecordStatus::Open,
    RecordStatus::Full,
    RecordStatus::Partial,
    RecordStatus::Aged,
    RecordStatus::Superseded,
    RecordStatus::Evicted,
    RecordStatus::Revoked,
    RecordStatus::Chunk,
];

impl Record {
    pub(crate) fn of(record: &WriteRecord) -> Self {
        let ranges = record.valid_ranges.iter();
        Self {
            status: position(&RECORD_STATUSES, &record.status),
            source: (record.source.addr, record.source.qp_num),
            message: record.message,
            target: (record.target.addr, record.target.rkey),
            len: record.len,
            valid: record.valid,
            ranges: ranges.map(|range| (range.start, range.end)).collect(),
            imm: record.imm,
        }
    }

    pub(crate) fn get(self) -> Option<WriteRecord> {
        let status = at(&RECORD_STATUSES, self.status.into())?;
        let source = Peer::new(self.source.0, self.source.1);
        let target = Remote {
            addr: self.target.0,
            rkey: self.target.1,
        };
        let mut record = WriteRecord::new(status, source, self.message, target, self.len);
        record.valid = self.valid;
        record.valid_ranges = self.ranges.into_iter().map(|(from, to)| from..to).collect();
        record.imm = self.imm;
        Some(record)
    }
}

/// An event of a connection.
#[derive(Debug, Encode, Decode)]
pub(crate) enum Event {
    #[n(0)]
    Request {
        #[n(0)]
        request: u32,
        #[n(1)]
        peer: SocketAddr,
        #[cbor(n(2), with = "minicbor::bytes")]
        private_data: Vec<u8>,
        #[n(3)]
        resources: (u16, u16),
    },
    #[n(1)]
    Established {
        #[n(0)]
        qp_num: u32,
        #[cbor(n(1), with = "minicbor::bytes")]
        private_data: Vec<u8>,
        #[n(2)]
        resources: (u16, u16),
    },
    #[n(2)]
    Rejected {
        #[n(0)]
        qp_num: u32,
        #[cbor(n(1), with = "minicbor::bytes")]
        private_data: Vec<u8>,
    },
    #[n(3)]
    Unreachable {
        #[n(0)]
        qp_num: u32,
        #[n(1)]
        failure: Why,
    },
    #[n(4)]
    Disconnected {
        #[n(0)]
        qp_num: u32,
        #[n(1)]
        failure: Option<Why>,
    },
}

pub(crate) fn established(private_data: Vec<u8>, resources: (u16, u16)) -> Established {
    let mut established = Established::default();
    established.private_data = private_data;
    (established.responder_resources, established.initiator_depth) = resources;
    established
}

/// As [`AsyncEvent`].
#[derive(Debug, Encode, Decode)]
pub(crate) struct Async {
    #[n(0)]
    kind: u8,
    #[n(1)]
    about: u64,
}

impl Async {
    pub(crate) fn of(event: AsyncEvent) -> Option<Self> {
        let (kind, about) = match event {
            AsyncEvent::CqError { token } => (0, token),
            AsyncEvent::QpFatal { qp_num } => (1, qp_num.into()),
            AsyncEvent::QpAccessError { qp_num } => (2, qp_num.into()),
            AsyncEvent::DatagramRefused { qp_num } => (3, qp_num.into()),
            AsyncEvent::DatagramUndelivered { qp_num } => (4, qp_num.into()),
            AsyncEvent::CommunicationEstablished { qp_num } => (5, qp_num.into()),
            AsyncEvent::SrqLimitReached { token } => (6, token),
            AsyncEvent::DeviceFatal => (7, 0),
            _ => return None,
        };
        Some(Self { kind, about })
    }

    pub(crate) fn get(self) -> Option<AsyncEvent> {
        let token = self.about;
        let qp_num = u32::try_from(token).unwrap_or(0);
        Some(match self.kind {
            0 => AsyncEvent::CqError { token },
            1 => AsyncEvent::QpFatal { qp_num },
            2 => AsyncEvent::QpAccessError { qp_num },
            3 => AsyncEvent::DatagramRefused { qp_num },
            4 => AsyncEvent::DatagramUndelivered { qp_num },
            5 => AsyncEvent::CommunicationEstablished { qp_num },
            6 => AsyncEvent::SrqLimitReached { token },
            7 => AsyncEvent::DeviceFatal,
            _ => return None,
        })
    }
}

pub(crate) const STATES: [QpState; 7] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Sqe,
    QpState::Err,
];
pub(crate) const QP_TYPES: [QpType; 3] = [QpType::Rc, QpType::Ud, QpType::Rd];

/// The number of a value in its list. The lists are whole.
pub(crate) fn position<T: PartialEq>(list: &[T], value: &T) -> u8 {
    let at = list.iter().position(|listed| listed == value);
    at.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX)
}

/// The value of a number.
pub(crate) fn at<T: Copy>(list: &[T], number: u64) -> Option<T> {
    usize::try_from(number)
        .ok()
        .and_then(|at| list.get(at))
        .copied()
}

pub(crate) fn rate_limit((bits_per_second, burst): (u64, Option<u64>)) -> RateLimit {
    RateLimit::new(bits_per_second).with_burst(burst)
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

macro_rules! numbers {
    ($of:ident, $get:ident, $structure:ty, [$($field:ident),* $(,)?]) => {
        pub(crate) fn $of(from: &$structure) -> Vec<u64> {
            vec![$(from.$field),*]
        }

        pub(crate) fn $get(numbers: &[u64]) -> $structure {
            let mut numbers = numbers.iter().copied();
            let mut to = <$structure>::default();
            $(to.$field = numbers.next().unwrap_or(0);)*
            to
        }
    };
}

numbers!(
    of_statistics,
    statistics,
    QpStatistics,
    [
        resent_segments,
        resent_bytes,
        early_segments,
        duplicate_segments,
        round_trip_ns,
    ]
);
numbers!(
    of_datagram_statistics,
    datagram_statistics,
    DatagramStatistics,
    [
        sent,
        received,
        bad_checksum,
        malformed,
        unknown_qp,
        no_receive,
        too_long,
        duplicates,
        incomplete,
        refused,
        late,
        evicted,
        resent,
        peers,
        peer_bytes,
        kernel_drops,
        undelivered,
        unsealed,
        forged,
        replayed,
    ]
);
