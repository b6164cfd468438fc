//! Links over loopback into sinks that block: the receiving thread goes on, and the sender repeats
//! nothing.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a sink that blocks takes real time, and a test ends at what it did not expect"
)]

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use haul_cc::{Algorithm, Rate};
use haul_soft::bulk::{Extent, FileRange, Sink, Source};
use haul_soft::udt::{
    Identity, Link, LinkError, LinkOptions, Listener, Remote, Seq, Stats, connect,
};
use haul_udt::wire::SocketId;

const BYTES: u64 = 24 << 20;

struct Zeros(Vec<u8>);

impl Source for Zeros {
    fn wait(&self, _: u64, _: Duration) -> Extent {
        Extent {
            end: BYTES,
            complete: true,
        }
    }

    fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<()> {
        buf.fill(0);
        Ok(())
    }

    fn memory_at(&self, offset: u64) -> Option<&[u8]> {
        self.0.get(usize::try_from(offset).ok()?..)
    }

    fn file_at(&self, _: u64) -> Option<FileRange<'_>> {
        None::<BorrowedFd<'_>>.map(|fd| FileRange {
            fd,
            position: 0,
            len: 0,
        })
    }
}

/// Takes `bps`, and stalls once, in the middle.
struct Slow {
    bps: u64,
    stall: Duration,
    began: Instant,
    taken: AtomicU64,
}

impl Sink for Slow {
    fn place(&self, _: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let before = self.taken.fetch_add(len, Ordering::Relaxed);
        if before < BYTES / 2 && before + len >= BYTES / 2 {
            std::thread::sleep(self.stall);
        }
        let due = Duration::from_micros((before + len) * 8_000_000 / self.bps);
        std::thread::sleep(due.saturating_sub(self.began.elapsed()));
        Ok(())
    }
}

fn options() -> LinkOptions {
    let mut options = LinkOptions::default();
    // Far less than what is in flight when the sink stalls.
    options.recv_buffer_bytes = 512 << 10;
    options.config.control = Algorithm::Fixed(Rate::from_bps(200_000_000));
    options
}

/// Connects over loopback, sends [`BYTES`] on a thread of its own, and has `receive` take them.
/// Returns what both counted; the sender fails where `receive` does not take everything.
fn transfer<T>(receive: impl FnOnce(&mut Link) -> T) -> (Result<Stats, LinkError>, T) {
    let options = options();
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut listener = Listener::bind(local, &options, [7; 16]).unwrap();
    let address = listener.local_addr();
    let own = Identity {
        initial: Seq::new(5),
        socket: SocketId(9),
    };
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut link = connect(local, address, own, &options).unwrap();
            link.send(&Zeros(vec![0; usize::try_from(BYTES).unwrap()]))?;
            Ok(link.stats().unwrap())
        });
        let (_, mut link) = listener
            .accept(None, &mut |_| Some(options.clone()))
            .unwrap()
            .unwrap();
        let received = receive(&mut link);
        (sender.join().unwrap(), received)
    })
}

fn slow(bps: u64, stall: Duration) -> Slow {
    Slow {
        bps,
        stall,
        began: Instant::now(),
        taken: AtomicU64::new(0),
    }
}

#[test]
fn a_sink_that_blocks_makes_nobody_repeat_anything() {
    for (bps, stall) in [(100_000_000, 0), (400_000_000, 3)] {
        let sink = slow(bps, Duration::from_secs(stall));
        let (stats, received) = transfer(|link| link.receive(&sink));
        received.unwrap();
        assert_eq!(sink.taken.into_inner(), BYTES);
        let stats = stats.unwrap();
        println!("{bps} b/s, a stall of {stall} s: {:?}", stats.sent);
        assert_eq!(stats.sent.refused_bytes, 0);
        assert_eq!(stats.sent.timer_bytes, 0);
        // The system drops what a busy machine leaves in the socket for 20 ms.
        assert!(stats.sent.resent_bytes < BYTES / 50);
    }
}

/// How long `receive` goes on into a sink that takes `bps` when `end` is called after everything
/// has arrived, and how much the sink has then.
fn ended(bps: u64, end: fn(&Remote)) -> (Duration, u64) {
    let sink = slow(bps, Duration::ZERO);
    let (_, took) = transfer(|link| {
        let remote = link.remote();
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| link.receive(&sink));
            std::thread::sleep(Duration::from_millis(1500));
            let asked = Instant::now();
            end(&remote);
            let received = receiver.join().unwrap();
            match received {
                Ok(()) => assert_eq!(sink.taken.load(Ordering::Relaxed), BYTES),
                Err(error) => assert!(matches!(error, LinkError::Closed)),
            }
            asked.elapsed()
        })
    });
    (took, sink.taken.into_inner())
}

#[test]
fn a_cancel_gives_up_what_waits_for_a_slow_sink_and_an_end_does_not() {
    let (took, taken) = ended(10_000_000, Remote::close);
    println!("{taken} bytes taken, {took:?} after the cancel");
    assert!(took < Duration::from_secs(1) && taken < BYTES / 4);
    let (_, taken) = ended(80_000_000, Remote::finish);
    assert_eq!(taken, BYTES);
}
