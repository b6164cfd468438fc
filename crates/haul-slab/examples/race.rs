//! A safe program whose threads copy into and out of the same bytes of one region at the same time.
//! ThreadSanitizer says whether that is a data race: `./test tsan`.
//!
//! Its threads never end, and nothing is joined: the sanitizer does not know how the standard
//! library does that.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};

use haul_slab::Region;

const ROUNDS: u32 = 2_000;
const OFFSET: usize = 3;
const LENS: [usize; 7] = [1, 8, 15, 16, 100, 1_452, 8_192];
/// Threads that have done their rounds, whatever they do after that.
static DONE: AtomicU32 = AtomicU32::new(0);

/// Does `job` with each length, for ever.
fn start(job: impl Fn(usize) + Send + 'static) {
    std::thread::spawn(move || {
        for round in 1.. {
            for len in LENS {
                job(len);
            }
            if round == ROUNDS {
                DONE.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
}

fn main() -> ExitCode {
    let Ok(region) = Region::map(64 << 10) else {
        eprintln!("no memory");
        return ExitCode::FAILURE;
    };
    let region: &'static Region = Box::leak(Box::new(region));
    let is_written = |byte: &u8| *byte < 4;
    for byte in [1, 2] {
        let bytes = [byte; 8_192];
        start(move |len| assert!(region.write(OFFSET, &bytes[..len]).is_ok()));
    }
    start(move |len| assert!(region.fill(OFFSET, len, 3).is_ok()));
    start(move |len| {
        let mut seen = [7; 8_192];
        assert!(region.read(OFFSET, &mut seen[..len]).is_ok());
        assert!(seen[..len].iter().all(is_written));
    });
    start(move |len| {
        let check = |seen: &[u8]| assert!(seen.iter().all(is_written));
        assert!(region.visit(OFFSET, len, check).is_ok());
    });
    while DONE.load(Ordering::Relaxed) < 5 {
        std::thread::yield_now();
    }
    std::process::exit(0)
}
