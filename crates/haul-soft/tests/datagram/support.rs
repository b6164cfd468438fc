//! Queue pairs of datagram services, and short names for what tests do with them.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use haul_soft::rnic::{Drive, Options};
use haul_verbs::{
    AccessFlags, Context, Cq, DatagramInit, DatagramStatistics, Mr, MrInit, Pd, Peer, Qp,
    QpCapacity, QpInit, QpState, QpType, RecvWr, SendOp, SendWr, Sources, WcOpcode, WcStatus,
    WorkCompletion,
};

use crate::over::{DEVICE, provider};

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
    pub(crate) mr: Mr,
    pub(crate) qp: Qp,
    pub(crate) addr: SocketAddr,
}

pub(crate) fn context() -> Context {
    context_with(Options::default())
}

fn context_with(options: Options) -> Context {
    let devices = provider(options).devices().unwrap();
    let device = devices.iter().find(|device| device.name() == DEVICE);
    device.unwrap().open().unwrap()
}

pub(crate) fn capacity() -> QpCapacity {
    let mut capacity = QpCapacity::default();
    (capacity.max_send_wr, capacity.max_recv_wr) = (256, 256);
    (capacity.max_send_sge, capacity.max_recv_sge) = (4, 4);
    capacity.max_inline = 256;
    capacity
}

pub(crate) fn memory(pd: &Pd, sources: Sources) -> Mr {
    let region = pd.map(MEMORY).unwrap();
    pd.register(MrInit::new(region, AccessFlags::all()).with_sources(sources))
        .unwrap()
}

impl End {
    /// An unreliable end on loopback, whose memory takes writes from anybody.
    pub(crate) fn new() -> Self {
        Self::with(QpType::Ud, DatagramInit::default(), Sources::Any)
    }

    pub(crate) fn with(qp_type: QpType, datagram: DatagramInit, sources: Sources) -> Self {
        Self::at(LOOPBACK, qp_type, datagram, sources)
    }

    pub(crate) fn at(
        addr: SocketAddr,
        qp_type: QpType,
        datagram: DatagramInit,
        sources: Sources,
    ) -> Self {
        Self::of(context(), addr, qp_type, datagram, sources)
    }

    /// An end on loopback whose engine alone drives.
    pub(crate) fn by_engine(qp_type: QpType) -> Self {
        let mut options = Options::default();
        options.drive = Drive::Engine;
        let context = context_with(options);
        Self::of(
            context,
            LOOPBACK,
            qp_type,
            DatagramInit::default(),
            Sources::Any,
        )
    }

    fn of(
        context: Context,
        addr: SocketAddr,
        qp_type: QpType,
        datagram: DatagramInit,
        sources: Sources,
    ) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(4_096, None, 0).unwrap();
        let mr = memory(&pd, sources);
        let mut init = QpInit::new(&cq);
        init.qp_type = qp_type;
        init.capacity = capacity();
        init.datagram = datagram;
        let qp = pd.create_qp(&init).unwrap();
        assert_eq!(qp.state(), QpState::Reset);
        let addr = qp.bind(addr).unwrap();
        assert_eq!(qp.state(), QpState::Rts);
        Self {
            context,
            pd,
            cq,
            mr,
            qp,
            addr,
        }
    }

    pub(crate) fn peer(&self) -> Peer {
        Peer::new(self.addr, self.qp.qp_num())
    }

    /// Posts a signalled send work request.
    #[track_caller]
    pub(crate) fn post(&self, wr_id: u64, op: SendOp, at: u64, len: u32, peer: Peer) {
        let wr = SendWr::new(wr_id, op, self.mr.sge(at, len)).to(peer);
        self.qp.post_send(&[wr]).unwrap();
    }

    #[track_caller]
    pub(crate) fn receive(&self, wr_id: u64, at: u64, len: u32) {
        let wr = RecvWr::new(wr_id, self.mr.sge(at, len));
        self.qp.post_recv(&[wr]).unwrap();
    }

    /// The next completion.
    #[track_caller]
    pub(crate) fn completion(&self) -> WorkCompletion {
        next(&self.cq)
    }

    pub(crate) fn completion_within(&self, time: Duration) -> Option<WorkCompletion> {
        let mut out = [WorkCompletion::default()];
        let count = self.cq.wait(&mut out, Some(time)).unwrap();
        (count == 1).then_some(out[0])
    }

    #[track_caller]
    pub(crate) fn success(&self, wr_id: u64, opcode: WcOpcode) -> WorkCompletion {
        let wc = self.completion();
        assert_eq!(
            (wc.status, wc.wr_id, wc.opcode),
            (WcStatus::Success, wr_id, opcode)
        );
        wc
    }

    pub(crate) fn nothing(&self) {
        let mut out = [WorkCompletion::default()];
        assert_eq!(self.cq.poll(&mut out).unwrap(), 0, "{:?}", out[0]);
    }

    pub(crate) fn statistics(&self) -> DatagramStatistics {
        self.qp.datagram_statistics().unwrap()
    }

    /// Drives until the counts are as `wanted` says.
    #[track_caller]
    pub(crate) fn counts(
        &self,
        wanted: impl Fn(&DatagramStatistics) -> bool,
    ) -> DatagramStatistics {
        let mut statistics = self.statistics();
        let end = Instant::now() + PATIENCE;
        while !wanted(&statistics) {
            assert!(Instant::now() < end, "{statistics:?}");
            let mut none = [];
            self.cq.poll(&mut none).unwrap();
            statistics = self.statistics();
        }
        statistics
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

#[track_caller]
pub(crate) fn next(cq: &Cq) -> WorkCompletion {
    let mut out = [WorkCompletion::default()];
    let count = cq.wait(&mut out, Some(PATIENCE)).unwrap();
    assert_eq!(count, 1, "no completion");
    out[0]
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
