//! Two connected ends, and short names for what tests do with them.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use haul_control::identity::PrivateKey;
use haul_control::protect::Protection;
use haul_soft::rnic::{Drive, Options};
use haul_verbs::cm::{CmEvent, ConnParam, Established, EventChannel};
use haul_verbs::{
    AccessFlags, Context, Cq, Mr, Pd, Qp, QpCapacity, QpInit, RateLimit, RecvWr, SendOp, SendWr,
    WcStatus, WorkCompletion,
};

use crate::over::provider;

/// Longer than anything takes on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const LOOPBACK: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Bytes of each end's memory.
pub(crate) const MEMORY: usize = 4 << 20;

/// One end: a context of its own, as in a process of its own.
pub(crate) struct End {
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) events: EventChannel,
    pub(crate) mr: Mr,
    pub(crate) qp: Qp,
}

pub(crate) const TCP: usize = 0;
pub(crate) const UDT: usize = 1;

pub(crate) use crate::over::over_both;

/// Options of ends that share a key, in all of this process.
pub(crate) fn protected() -> Options {
    static SHARED: LazyLock<Protection> = LazyLock::new(|| {
        let key = PrivateKey::generate().unwrap();
        let public = key.public();
        Protection::keys(key, vec![public]).unwrap()
    });
    let mut options = Options::default();
    options.protect = Some(Arc::new(SHARED.clone()));
    options
}

/// How tests want queue pairs.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    /// Which of the provider's devices.
    pub(crate) device: usize,
    pub(crate) depth: u32,
    pub(crate) remote_placement: bool,
    pub(crate) rate_limit: Option<RateLimit>,
    pub(crate) signal_all: bool,
    pub(crate) ird: u16,
    pub(crate) ord: u16,
    pub(crate) protected: bool,
    pub(crate) drive: Drive,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            device: TCP,
            depth: 256,
            remote_placement: false,
            rate_limit: None,
            signal_all: false,
            ird: 16,
            ord: 16,
            protected: false,
            drive: Drive::Caller,
        }
    }
}

impl Wish {
    /// Options for both ends.
    pub(crate) fn options(&self) -> Options {
        let mut options = if self.protected {
            protected()
        } else {
            Options::default()
        };
        options.drive = self.drive;
        options
    }

    pub(crate) fn param(&self) -> ConnParam<'static> {
        let mut param = ConnParam::default();
        param.responder_resources = self.ird;
        param.initiator_depth = self.ord;
        param
    }
}

pub(crate) fn all_access() -> AccessFlags {
    AccessFlags::all()
}

impl End {
    pub(crate) fn new(options: &Options, wish: &Wish) -> Self {
        let devices = provider(options.clone()).devices().unwrap();
        let context = devices[wish.device].open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(wish.depth * 4, None, 0).unwrap();
        let events = context.create_event_channel().unwrap();
        let region = pd.map(MEMORY).unwrap();
        let mr = pd.reg_mr(&region, all_access()).unwrap();
        let qp = make_qp(&pd, &cq, wish);
        Self {
            context,
            pd,
            cq,
            events,
            mr,
            qp,
        }
    }

    /// Posts a signalled send work request.
    pub(crate) fn post(&self, wr_id: u64, op: SendOp, at: u64, len: u32) {
        let wr = SendWr::new(wr_id, op, self.mr.sge(at, len));
        self.qp.post_send(&[wr]).unwrap();
    }

    pub(crate) fn receive(&self, wr_id: u64, at: u64, len: u32) {
        let wr = RecvWr::new(wr_id, self.mr.sge(at, len));
        self.qp.post_recv(&[wr]).unwrap();
    }

    /// The next completion.
    #[track_caller]
    pub(crate) fn completion(&self) -> WorkCompletion {
        let mut out = [WorkCompletion::default()];
        let count = self.cq.wait(&mut out, Some(PATIENCE)).unwrap();
        assert_eq!(count, 1, "no completion; {:?}", self.qp.failure());
        out[0]
    }

    #[track_caller]
    pub(crate) fn success(&self, wr_id: u64) -> WorkCompletion {
        let wc = self.completion();
        assert_eq!(
            (wc.status, wc.wr_id),
            (WcStatus::Success, wr_id),
            "{:?}",
            self.qp.failure()
        );
        wc
    }

    #[track_caller]
    pub(crate) fn event(&self) -> CmEvent {
        self.events.wait(Some(PATIENCE)).unwrap().expect("an event")
    }

    #[track_caller]
    pub(crate) fn established(&self) -> Established {
        match self.event() {
            CmEvent::Established { established, .. } => established,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        self.mr.region().write(at, bytes).unwrap();
    }

    pub(crate) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.region().read(at, &mut bytes).unwrap();
        bytes
    }
}

pub(crate) fn make_qp(pd: &Pd, cq: &Cq, wish: &Wish) -> Qp {
    let mut init = QpInit::new(cq);
    init.capacity = capacity(wish);
    init.remote_placement = wish.remote_placement;
    init.rate_limit = wish.rate_limit;
    init.signal_all = wish.signal_all;
    pd.create_qp(&init).unwrap()
}

pub(crate) fn capacity(wish: &Wish) -> QpCapacity {
    let mut capacity = QpCapacity::default();
    (capacity.max_send_wr, capacity.max_recv_wr) = (wish.depth, wish.depth);
    (capacity.max_send_sge, capacity.max_recv_sge) = (4, 4);
    capacity.max_inline = 256;
    capacity
}

/// Two ends with a connection; the first has asked for it.
pub(crate) fn connected(wish: &Wish) -> (End, End) {
    connected_with(&wish.options(), wish)
}

pub(crate) fn connected_with(options: &Options, wish: &Wish) -> (End, End) {
    let (near, far) = (End::new(options, wish), End::new(options, wish));
    connect(&near, &far, wish);
    (near, far)
}

pub(crate) fn connect(near: &End, far: &End, wish: &Wish) {
    connect_to(near, far, &far.qp, wish);
}

/// The same, to another queue pair of `far`.
pub(crate) fn connect_to(near: &End, far: &End, qp: &Qp, wish: &Wish) {
    let listener = far.context.listen(LOOPBACK, &far.events, 8).unwrap();
    near.qp
        .connect(listener.local_addr(), &wish.param(), &near.events)
        .unwrap();
    match far.event() {
        CmEvent::ConnectRequest(request) => request.accept(qp, &wish.param()).unwrap(),
        other => panic!("{other:?}"),
    }
    far.established();
    near.established();
}

/// Bytes that tell where they are.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| byte()).collect()
}
