//! Attributes and ranges of a server's files, over both kinds of channel.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "time must pass, and these tests end at what they did not expect"
)]

use std::net::TcpListener;
mod common;

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use haul::channel::ChannelKind;
use haul::client::{Config, Kind, Range, Reads, Stat};
use haul::fault::{Code, Fault};
use haul_control::trust::Rights;

struct Place {
    config: Config,
    port: Arc<haul_control::server::Server>,
    dir: tempfile::TempDir,
}

impl Place {
    fn new(rights: &Rights) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("served/d")).unwrap();
        std::fs::write(dir.path().join("outside"), "secret").unwrap();
        symlink("../outside", dir.path().join("served/link")).unwrap();
        let (config, port) = common::serve(dir.path().join("served"), rights, false);
        let config = Config {
            channel: ChannelKind::Udt,
            ..config
        };
        Self { config, port, dir }
    }

    fn served(&self, name: &str) -> PathBuf {
        self.dir.path().join("served").join(name)
    }

    fn reads(&self, channel: ChannelKind) -> Reads {
        Reads::new(Config {
            channel,
            ..self.config.clone()
        })
    }
}

fn content(len: usize) -> Vec<u8> {
    haul::endless::pattern(len)
}

fn read(reads: &Reads, path: &str, stat: Stat, offset: u64, length: u64) -> Result<Vec<u8>, Fault> {
    let range = Range {
        path: path.into(),
        offset,
        length,
        size: stat.size,
        modified: stat.modified,
    };
    let mut found = Vec::new();
    reads.read(&range, &mut |bytes| {
        found.extend(bytes);
        Ok(())
    })?;
    Ok(found)
}

#[test]
fn ranges_arrive_as_they_are_from_many_threads_at_once() {
    const LEN: usize = 20 << 20;
    let place = Place::new(&Rights::all("anybody"));
    let bytes = content(LEN);
    std::fs::write(place.served("d/f"), &bytes).unwrap();
    std::fs::write(place.served("empty"), "").unwrap();
    for kind in [ChannelKind::Tcp, ChannelKind::Udt] {
        let reads = place.reads(kind);
        let stat = reads.stat(b"d/f").unwrap();
        assert_eq!((stat.kind, stat.size), (Kind::File, LEN as u64));
        assert_eq!(reads.stat(b"d").unwrap().kind, Kind::Directory);
        assert_eq!(reads.stat(b"").unwrap().kind, Kind::Directory);
        assert_eq!(read(&reads, "d/f", stat, 0, LEN as u64).unwrap(), bytes);
        std::thread::scope(|scope| {
            for thread in 0..8_usize {
                let (reads, bytes) = (&reads, &bytes);
                scope.spawn(move || {
                    for step in 0..20_usize {
                        let offset = (thread * 7_919_777 + step * 1_299_709) % LEN;
                        let length = (step * 77_777 + 1).min(LEN - offset);
                        let found = read(reads, "d/f", stat, offset as u64, length as u64);
                        assert!(found.unwrap() == bytes[offset..offset + length], "{offset}");
                    }
                });
            }
        });
        let empty = reads.stat(b"empty").unwrap();
        assert_eq!(read(&reads, "empty", empty, 0, 0).unwrap(), b"");
    }
}

#[test]
fn many_requests_behind_a_large_range_are_answered() {
    const LEN: usize = 64 << 20;
    const THREADS: usize = 64;
    const STATS: usize = 1000;
    let place = Place::new(&Rights::all("anybody"));
    let bytes = content(LEN);
    std::fs::write(place.served("f"), &bytes).unwrap();
    for channel in [ChannelKind::Tcp, ChannelKind::Udt] {
        // A piece takes 40 ms, so that as many requests as may be open wait behind it.
        let reads = Reads::new(Config {
            channel,
            rate_bps: Some(800_000_000),
            ..place.config.clone()
        });
        let stat = reads.stat(b"f").unwrap();
        std::thread::scope(|scope| {
            let (reads, bytes) = (&reads, &bytes);
            scope.spawn(move || {
                let found = read(reads, "f", stat, 0, LEN as u64);
                assert!(found.unwrap() == *bytes);
            });
            for thread in 0..THREADS {
                let count = STATS / THREADS + usize::from(thread < STATS % THREADS);
                scope.spawn(move || {
                    for _ in 0..count {
                        assert_eq!(reads.stat(b"f").unwrap(), stat);
                    }
                });
            }
        });
    }
}

#[test]
fn requests_that_wait_for_one_attempt_share_its_failure() {
    const THREADS: usize = 32;
    let place = Place::new(&Rights::all("anybody"));
    // It completes no handshake.
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let reads = Reads::new(Config {
        port: silent.local_addr().unwrap().port(),
        connect_timeout: Duration::from_millis(500),
        ..place.config.clone()
    });
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&attempts);
    std::thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok(accepted) = silent.accept() {
            held.push(accepted);
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| reads.stat(b"f").unwrap_err());
        }
    });
    // Four attempts, each with a second handshake.
    assert!(attempts.load(Ordering::Relaxed) < THREADS);
}

#[test]
fn a_session_waits_and_goes_on() {
    let place = Place::new(&Rights::all("anybody"));
    std::fs::write(place.served("f"), "0123456789").unwrap();
    for channel in [ChannelKind::Tcp, ChannelKind::Udt] {
        let reads = Reads::new(Config {
            channel,
            dead_after: Duration::from_secs(1),
            ..place.config.clone()
        });
        let stat = reads.stat(b"f").unwrap();
        assert_eq!(read(&reads, "f", stat, 2, 3).unwrap(), b"234");
        std::thread::sleep(Duration::from_millis(2500));
        assert_eq!(read(&reads, "f", stat, 9, 1).unwrap(), b"9");
        reads.rest(Duration::ZERO);
        assert_eq!(read(&reads, "f", stat, 0, 10).unwrap(), b"0123456789");
    }
}

#[test]
fn a_server_that_drains_ends_idle_sessions() {
    let place = Place::new(&Rights::all("anybody"));
    std::fs::write(place.served("f"), "0123456789").unwrap();
    let reads = place.reads(ChannelKind::Udt);
    let stat = reads.stat(b"f").unwrap();
    assert_eq!(read(&reads, "f", stat, 2, 3).unwrap(), b"234");
    assert_eq!(place.port.sessions(), 1);
    place.port.drain();
    let begun = Instant::now();
    while place.port.sessions() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(15));
        std::thread::sleep(Duration::from_millis(20));
    }
    let fault = reads.stat(b"f").unwrap_err();
    assert_eq!(fault.code, Code::ServerBusy, "{fault}");
}

#[test]
fn what_is_not_served_is_not_read() {
    let place = Place::new(&Rights::all("anybody"));
    std::fs::write(place.served("f"), "0123456789").unwrap();
    std::fs::write(place.served(".f.haul-part"), "01").unwrap();
    let reads = place.reads(ChannelKind::Tcp);
    let stat = reads.stat(b"f").unwrap();
    let code = |path: &str| reads.stat(path.as_bytes()).unwrap_err().code;
    assert_eq!(code("../outside"), Code::Refused);
    assert_eq!(code("/etc/passwd"), Code::Refused);
    assert_eq!(code("link"), Code::Refused);
    assert_eq!(code(".f.haul-part"), Code::Refused);
    assert_eq!(code("none"), Code::FileNotFound);
    let code = |path: &str, offset, length| {
        let read = read(&reads, path, stat, offset, length);
        read.unwrap_err().code
    };
    for path in ["../outside", "link", "d", ".f.haul-part"] {
        assert_eq!(code(path, 0, 1), Code::Refused, "{path}");
    }
    assert_eq!(code("f", 10, 1), Code::Usage);
    assert_eq!(code("f", u64::MAX, 1), Code::Usage);
    // The session has outlived all of them.
    assert_eq!(read(&reads, "f", stat, 0, 10).unwrap(), b"0123456789");
}

#[test]
fn only_who_may_read_reads() {
    let place = Place::new(&Rights {
        read: false,
        ..Rights::all("writer")
    });
    let fault = place.reads(ChannelKind::Tcp).stat(b"d").unwrap_err();
    assert_eq!(fault.code, Code::Refused, "{fault}");
    assert!(fault.text.contains("may not read files"), "{fault}");
    let place = Place::new(&Rights {
        directory: "d".into(),
        ..Rights::all("reader")
    });
    std::fs::write(place.served("above"), "x").unwrap();
    std::fs::write(place.served("d/own"), "x").unwrap();
    let reads = place.reads(ChannelKind::Tcp);
    assert_eq!(reads.stat(b"own").unwrap().size, 1);
    assert_eq!(reads.stat(b"above").unwrap_err().code, Code::FileNotFound);
    assert_eq!(reads.stat(b"../above").unwrap_err().code, Code::Refused);
}

#[test]
fn a_file_that_changes_between_two_reads_is_an_error() {
    let place = Place::new(&Rights::all("anybody"));
    std::fs::write(place.served("f"), "0123456789").unwrap();
    let reads = place.reads(ChannelKind::Udt);
    let stat = reads.stat(b"f").unwrap();
    assert_eq!(read(&reads, "f", stat, 0, 5).unwrap(), b"01234");
    // As long, but of another time.
    std::thread::sleep(Duration::from_millis(20));
    std::fs::write(place.served("f"), "abcdefghij").unwrap();
    let fault = read(&reads, "f", stat, 5, 5).unwrap_err();
    assert_eq!(fault.code, Code::SourceChanged, "{fault}");
    let stat = reads.stat(b"f").unwrap();
    assert_eq!(read(&reads, "f", stat, 5, 5).unwrap(), b"fghij");
    // Replaced by another file, as a transfer does.
    std::fs::write(place.served("new"), "ABCDEFGHIJKL").unwrap();
    std::fs::rename(place.served("new"), place.served("f")).unwrap();
    let fault = read(&reads, "f", stat, 0, 5).unwrap_err();
    assert_eq!(fault.code, Code::SourceChanged, "{fault}");
}
