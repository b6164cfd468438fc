//! Random operations both ways at once leave at both ends the bytes that they say.

use haul_verbs::{SendFlags, SendOp, SendWr, WcOpcode, WcStatus, WorkCompletion};

use crate::support::{End, PATIENCE, Wish, connected_with, over_both, pattern};

/// A small generator, so that a seed says everything.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }

    fn len(&mut self) -> u32 {
        let bits = self.below(18);
        (self.next() & ((1 << bits) - 1)) as u32
    }
}

/// Each end's memory: what it sends from, what the peer writes, what reads and receives bring.
const SOURCE: u64 = 0;
const TARGET: u64 = 1 << 20;
const SINK: u64 = 2 << 20;
const INBOX: u64 = 3 << 20;
const AREA: u64 = 1 << 20;
const SLOT: u32 = 1 << 18;
const OPERATIONS: u64 = 400;

fn bytes_survive_any_mixture_of_operations(wish: &Wish) {
    for (options, seed) in [
        (wish.options(), 1),
        (
            {
                let mut options = wish.options();
                options.crc = false;
                options
            },
            2,
        ),
        (
            {
                let mut options = wish.options();
                options.fpdu_max = 1_024;
                options
            },
            3,
        ),
        (
            {
                let mut options = wish.options();
                options.strict = true;
                options
            },
            4,
        ),
    ] {
        let (near, far) = connected_with(&options, wish);
        let source = pattern(AREA as usize, seed);
        near.write(SOURCE as usize, &source);
        far.write(SOURCE as usize, &source);
        std::thread::scope(|scope| {
            let theirs = scope.spawn(|| run(&far, &near, &source, seed * 7));
            run(&near, &far, &source, seed * 5);
            theirs.join().unwrap();
        });
    }
}

/// Writes to, reads from and sends to the peer, and looks at what comes back.
fn run(own: &End, peer: &End, source: &[u8], seed: u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for number in 0..4 {
        own.receive(number, INBOX + number * u64::from(SLOT), SLOT);
    }
    let mut expected = vec![0; AREA as usize];
    for wr_id in 0..OPERATIONS {
        let len = rng.len();
        let from = rng.below(AREA - u64::from(len));
        let to = rng.below(AREA - u64::from(len));
        let bytes = &source[from as usize..][..len as usize];
        if rng.below(2) == 0 {
            // What is written is read back: the peer's memory must show it (RFC 5040 §5.5 rule 3).
            expected[to as usize..][..len as usize].copy_from_slice(bytes);
            let write = SendOp::RdmaWrite(peer.mr.remote(TARGET + to));
            let read = SendOp::RdmaRead(peer.mr.remote(TARGET + to));
            let requests = [
                SendWr::new(wr_id, write, own.mr.sge(SOURCE + from, len))
                    .with_flags(SendFlags::empty()),
                SendWr::new(wr_id, read, own.mr.sge(SINK, len)),
            ];
            own.qp.post_send(&requests).unwrap();
            wait_for(own, wr_id);
            let got = own.read(SINK as usize, len as usize);
            assert!(
                got == bytes,
                "seed {seed}, operation {wr_id}: {len} bytes to {to}"
            );
        } else {
            let read = SendOp::RdmaRead(peer.mr.remote(SOURCE + from));
            let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
            let requests = [
                SendWr::new(wr_id, read, own.mr.sge(SINK, len)).with_flags(SendFlags::empty()),
                SendWr::new(
                    wr_id,
                    SendOp::RdmaWrite(peer.mr.remote(TARGET + to)),
                    own.mr.sge(SINK, len),
                )
                .with_flags(fenced),
            ];
            expected[to as usize..][..len as usize].copy_from_slice(bytes);
            own.qp.post_send(&requests).unwrap();
            wait_for(own, wr_id);
        }
    }
    own.post(
        OPERATIONS,
        SendOp::RdmaRead(peer.mr.remote(TARGET)),
        SINK,
        AREA as u32,
    );
    wait_for(own, OPERATIONS);
    assert!(
        own.read(SINK as usize, AREA as usize) == expected,
        "seed {seed}: the whole area"
    );
}

fn wait_for(end: &End, wr_id: u64) {
    loop {
        let mut out = [WorkCompletion::default()];
        let count = end.cq.wait(&mut out, Some(PATIENCE)).unwrap();
        assert_eq!(count, 1, "no completion of {wr_id}: {:?}", end.qp.failure());
        assert_eq!(out[0].status, WcStatus::Success, "{:?}", end.qp.failure());
        if out[0].opcode != WcOpcode::Recv && out[0].wr_id == wr_id {
            return;
        }
    }
}

over_both!(bytes_survive_any_mixture_of_operations);
