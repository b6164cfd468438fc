//! The two roles against a scripted peer.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use haul_control::connection::Connection;
use haul_control::stream::Stream;
use haul_control::trust::{ClientConfig, ServerConfig};
use haul_io::file::Dir;
use haul_soft::bulk::{Sink, Source};
use proptest::prelude::*;

use super::plan::Destination;
use super::receiver::{self, ReceiverOutcome, Terms};
use super::sender::{self, Catalogue, SenderOutcome};
use crate::channel::{Channel, ChannelError, ChannelStats, Opening};
use crate::entry::{Batch, Entry, Extra, FileEntry, What};
use crate::fault::{Code, Fault};
use crate::fs::path::Relative;
use crate::fs::walk::Options;
use crate::limit::Limit;
use crate::link::{Link, greeting};
use crate::lock;
use crate::outbound::{Offered, Origin};
use crate::report::{Event, Observer};
use crate::scan;
use crate::source::{SourceFile, changed};
use crate::target::hash_pieces;
use crate::tree::{Blocks, Digest};
use crate::wire::{
    Commit, Digests, FileRoot, Message, Offer, Part, Pieces, Plan, Policy, Progress, Run, SERVICE,
    Seals, Wants,
};

mod early;
mod ranges;

pub(super) struct Silent;

impl Observer for Silent {
    fn event(&self, _: &Event<'_>) {}
}

/// Takes everything at once, and counts this as sent.
#[derive(Default)]
pub(super) struct Counting(pub(super) Option<u64>);

impl Channel for Counting {
    fn send(&self, _: &dyn Source) -> Result<(), ChannelError> {
        Ok(())
    }

    fn receive(&self, _: &dyn Sink) -> Result<(), ChannelError> {
        Ok(())
    }

    fn close(&self) {}

    fn set_seal(&self, _: haul_seal::Seal) {}

    fn stats(&self) -> ChannelStats {
        ChannelStats {
            sent: self.0,
            ..ChannelStats::default()
        }
    }
}

/// Moves nothing, and takes all there is to send, until it is closed.
struct Open {
    close: std::sync::Mutex<Option<Sender<()>>>,
    closed: Receiver<()>,
}

impl Open {
    fn opening() -> Opening {
        let (close, closed) = unbounded();
        let close = std::sync::Mutex::new(Some(close));
        Opening::ready(Arc::new(Self { close, closed }))
    }
}

impl Channel for Open {
    fn send(&self, source: &dyn Source) -> Result<(), ChannelError> {
        let mut taken = 0;
        while !source.wait(taken, Duration::from_millis(20)).complete {
            taken = source.wait(taken, Duration::ZERO).end;
        }
        Ok(())
    }

    fn receive(&self, _: &dyn Sink) -> Result<(), ChannelError> {
        let _ = self.closed.recv();
        Ok(())
    }

    fn close(&self) {
        lock(&self.close).take();
    }

    fn set_seal(&self, _: haul_seal::Seal) {}

    fn stats(&self) -> ChannelStats {
        ChannelStats::default()
    }
}

pub(super) fn links() -> (Link, Link) {
    let limit = Duration::from_secs(20);
    let deadline = Instant::now() + limit;
    let (near, far) = haul_io::tcp::pair().unwrap();
    let start = |connection: Connection| Link::start(connection, limit).unwrap();
    std::thread::scope(|scope| {
        let far = scope.spawn(|| {
            let (far, config) = (Stream::tcp(far).unwrap(), ServerConfig::insecure().unwrap());
            let (mut far, _) = Connection::server(far, &[], &config, "near", deadline).unwrap();
            far.greet(&greeting(SERVICE, [0; 16], limit), &[]).unwrap();
            far.greeting().unwrap();
            start(far)
        });
        let (near, config) = (
            Stream::tcp(near).unwrap(),
            ClientConfig::insecure().unwrap(),
        );
        let mut near = Connection::client(near, &config, "far", deadline).unwrap();
        near.greet(&greeting(SERVICE, [0; 16], limit), &[]).unwrap();
        near.greeting().unwrap();
        (start(near), far.join().unwrap())
    })
}

pub(super) fn source(name: &str, content: &[u8]) -> (Offered, File) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    let handle = file.try_clone().unwrap();
    let source = SourceFile::new(file, name).unwrap();
    let entry = source.entry(Relative::new(name.as_bytes()).unwrap());
    let offered = Offered::new(entry, Origin::Open(Box::new(source)));
    (offered, handle)
}

/// Whatever a bug in the resolution of paths may lead to: here the session itself writes elsewhere.
#[test]
fn a_session_that_receives_can_write_nowhere_else() {
    if !haul_io::confine::is_supported() {
        println!("SKIPPED: this kernel has no Landlock, or too little of it");
        return;
    }
    let (place, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let written = std::sync::Mutex::new(None);
    let (_near, far) = links();
    let result = receiver::run(
        &far,
        &offer(0, &[source("a", b"").0.entry], true),
        Destination::new(Dir::open(place.path()).unwrap(), &[7; 32]).unwrap(),
        &Terms {
            policy: Policy::default(),
            binding: [7; 32],
            allows: &|_| {
                let elsewhere = std::fs::write(outside.path().join("new"), "new");
                std::fs::write(place.path().join("new"), "new").unwrap();
                *lock(&written) = Some(elsewhere.map_err(|error| error.kind()));
                Err(Fault::new(Code::Refused, "the test is over"))
            },
            only: None,
            adds_only: false,
            limit: None,
        },
        Open::opening(),
        &Silent,
        &mut ReceiverOutcome::default(),
    );
    assert_eq!(result.unwrap_err().code, Code::Refused);
    let denied = Some(Err(std::io::ErrorKind::PermissionDenied));
    assert_eq!(*lock(&written), denied);
    // This thread can.
    std::fs::write(outside.path().join("new"), "new").unwrap();
}

/// The sender withdraws a commit that the receiver has read already.
#[test]
fn a_receiver_sends_done_for_each_file_that_it_published_before_an_error() {
    let binding = [7; 32];
    let entry = source("a", b"").0.entry;
    let root = *blake3::hash(b"").as_bytes();
    let seal = entry.seal(&binding, &root);
    let mut batch = Batch::default();
    batch.push(&entry);
    let offer = Offer {
        first: 0,
        entries: batch.into_bytes(),
        is_last: true,
        early: None,
    };
    let policy = Policy {
        replace: true,
        ..Policy::default()
    };
    for wait_us in 0..40 {
        let place = tempfile::tempdir().unwrap();
        let dir = Dir::open(place.path()).unwrap();
        let (near, far) = links();
        let mut outcome = ReceiverOutcome::default();
        let (result, is_done) = std::thread::scope(|scope| {
            let script = scope.spawn(move || {
                let commit = Commit {
                    file: 0,
                    seal,
                    end: 0,
                };
                near.send(&Message::Commit(commit)).unwrap();
                std::thread::sleep(Duration::from_micros(wait_us * 10));
                near.report(&changed(&"a", "grew"));
                let mut is_done = false;
                while let Ok(message) = near.receive() {
                    is_done |= matches!(message, Message::Done(_));
                }
                near.hang_up();
                is_done
            });
            let result = receiver::run(
                &far,
                &offer,
                Destination::new(dir, &binding).unwrap(),
                &Terms {
                    policy,
                    binding,
                    allows: &|_| Ok(()),
                    only: None,
                    adds_only: false,
                    limit: None,
                },
                Open::opening(),
                &Silent,
                &mut outcome,
            );
            (result, script.join().unwrap())
        });
        let is_published = place.path().join("a").exists();
        assert_eq!(is_done, is_published, "{result:?}");
        assert_eq!(outcome.operands[&0].root.is_some(), is_published);
    }
}

/// Sends the files a and b, of which b is written to after the receiver has both `Commit`s and its
/// `Done` is awaited; `answer` is what the receiver does then.
fn withdraw(answer: impl FnOnce(&Link)) -> (Fault, SenderOutcome) {
    let (a, _) = source("a", b"content");
    let (b, writer) = source("b", b"content");
    let (near, far) = links();
    let mut outcome = SenderOutcome::default();
    let fault = std::thread::scope(|scope| {
        let outcome = &mut outcome;
        let sender = scope.spawn(move || {
            let catalogue = Catalogue {
                limit: Limit::default(),
                operands: vec![a, b],
                members: Vec::new(),
                scan: None,
                left_over: None,
            };
            sender::run(&near, catalogue, [0; 32], Open::opening(), &Silent, outcome)
        });
        let plan = Plan {
            first: 0,
            count: 2,
            complete: vec![0],
            parts: Vec::new(),
        };
        far.send(&Message::Plan(plan)).unwrap();
        let mut commits = 0;
        while commits < 2 {
            commits += u32::from(matches!(far.receive().unwrap(), Message::Commit(_)));
        }
        writer.write_all_at(b"anew and longer", 0).unwrap();
        let progress = Progress { present: 14 };
        far.send(&Message::Progress(progress)).unwrap();
        // The sender's counters precede it.
        let told = std::iter::repeat_with(|| far.receive())
            .find_map(Result::err)
            .unwrap();
        assert_eq!(told.code, Code::SourceChanged);
        assert!(!told.text.contains("delivered"), "{told}");
        answer(&far);
        drop(far);
        sender.join().unwrap().unwrap_err()
    });
    (fault, outcome)
}

#[test]
fn a_sender_that_withdraws_a_commit_knows_whether_that_file_was_published() {
    let done = |link: &Link, file| {
        let blake3 = *blake3::hash(b"content").as_bytes();
        link.send(&Message::Done(FileRoot { file, blake3 }))
            .unwrap();
    };
    let error = |link: &Link| {
        let fault = Fault::new(Code::SourceChanged, "the sender: 'b' grew");
        link.report(&fault);
    };
    let (fault, outcome) = withdraw(|link| {
        done(link, 0);
        error(link);
    });
    assert_eq!(fault.code, Code::SourceChanged);
    assert!(fault.text.ends_with("; it was not delivered"), "{fault}");
    assert!(
        !outcome.is_superseded
            && outcome.operands[&0].root.is_some()
            && outcome.operands[&1].root.is_none()
    );

    let (fault, outcome) = withdraw(|link| {
        done(link, 1);
        error(link);
    });
    assert!(fault.text.ends_with("as it was before"), "{fault}");
    assert!(outcome.is_superseded && outcome.operands[&1].root.is_some());

    let (fault, outcome) = withdraw(|link| done(link, 0));
    assert!(fault.text.ends_with("is not known"), "{fault}");
    assert!(!outcome.is_superseded);
}

/// Places what the test sends, until it is closed.
struct Delivering {
    close: std::sync::Mutex<Option<Sender<()>>>,
    closed: Receiver<()>,
    bytes: Receiver<(u64, Vec<u8>)>,
}

impl Delivering {
    fn opening(bytes: Receiver<(u64, Vec<u8>)>) -> Opening {
        let (close, closed) = unbounded();
        let close = std::sync::Mutex::new(Some(close));
        Opening::ready(Arc::new(Self {
            close,
            closed,
            bytes,
        }))
    }
}

impl Channel for Delivering {
    fn send(&self, _: &dyn Source) -> Result<(), ChannelError> {
        Ok(())
    }

    fn receive(&self, sink: &dyn Sink) -> Result<(), ChannelError> {
        for (offset, bytes) in &self.bytes {
            sink.place(offset, &[std::io::IoSlice::new(&bytes)])
                .map_err(ChannelError::store)?;
        }
        let _ = self.closed.recv();
        Ok(())
    }

    fn close(&self) {
        lock(&self.close).take();
    }

    fn set_seal(&self, _: haul_seal::Seal) {}

    fn stats(&self) -> ChannelStats {
        ChannelStats::default()
    }
}

fn member(path: &str, size: u64) -> Entry {
    let mut entry = source("a", b"").0.entry;
    entry.path = Relative::new(path.as_bytes()).unwrap();
    entry.is_member = true;
    entry.what = What::File(FileEntry::dense(size));
    entry
}

fn offer(first: u32, entries: &[Entry], is_last: bool) -> Offer {
    let mut batch = Batch::default();
    for entry in entries {
        assert!(batch.push(entry));
    }
    Offer {
        first,
        entries: batch.into_bytes(),
        is_last,
        early: None,
    }
}

/// Runs a receiver of `first` against a script.
fn receive(
    first: &Offer,
    binding: [u8; 32],
    bytes: Receiver<(u64, Vec<u8>)>,
    script: impl FnOnce(Link) + Send,
) -> (Result<(), Fault>, ReceiverOutcome, tempfile::TempDir) {
    let place = tempfile::tempdir().unwrap();
    let (result, outcome) = receive_below(place.path(), first, binding, bytes, script);
    (result, outcome, place)
}

/// Runs a receiver of `first` into `place` against a script.
fn receive_below(
    place: &Path,
    first: &Offer,
    binding: [u8; 32],
    bytes: Receiver<(u64, Vec<u8>)>,
    script: impl FnOnce(Link) + Send,
) -> (Result<(), Fault>, ReceiverOutcome) {
    let dir = Dir::open(place).unwrap();
    let (near, far) = links();
    let mut outcome = ReceiverOutcome::default();
    let terms = Terms {
        policy: Policy {
            replace: true,
            ..Policy::default()
        },
        binding,
        allows: &|_| Ok(()),
        only: None,
        adds_only: false,
        limit: None,
    };
    let result = std::thread::scope(|scope| {
        scope.spawn(move || script(near));
        let root = Destination::new(dir, &binding).unwrap();
        let opening = Delivering::opening(bytes);
        receiver::run(&far, first, root, &terms, opening, &Silent, &mut outcome)
    });
    (result, outcome)
}

#[test]
fn a_small_file_that_arrives_damaged_is_requested_again_and_published_once_it_is_right() {
    let binding = [7; 32];
    let entries = [member("d/a", 7), member("d/b", 3)];
    let (deliver, bytes) = unbounded();
    let script = |near: Link| {
        let seals: Vec<u8> = entries
            .iter()
            .zip([&b"content"[..], b"abc"])
            .flat_map(|(entry, content)| entry.seal(&binding, blake3::hash(content).as_bytes()))
            .collect();
        let wanted = |near: &Link| loop {
            match near.receive().unwrap() {
                Message::WantFiles(wanted) => return wanted.runs,
                Message::DoneFiles(done) => assert_ne!(done.runs[0].first, 0),
                _ => {}
            }
        };
        let run = |first, count| crate::wire::FileRun { first, count };
        assert_eq!(wanted(&near), [run(0, 2)]);
        deliver.send((0, b"conXentabc".to_vec())).unwrap();
        let all = Seals {
            first: 0,
            seals: seals.clone(),
        };
        near.send(&Message::Seals(all)).unwrap();
        assert_eq!(wanted(&near), [run(0, 1)]);
        deliver.send((10, b"content".to_vec())).unwrap();
        let first = Seals {
            first: 0,
            seals: seals[..32].to_vec(),
        };
        near.send(&Message::Seals(first)).unwrap();
        while !matches!(near.receive().unwrap(), Message::Complete(_)) {}
        drop(deliver);
        near.send(&Message::Complete(crate::wire::Complete::default()))
            .unwrap();
    };
    let (result, outcome, place) = receive(&offer(0, &entries, true), binding, bytes, script);
    result.unwrap();
    assert_eq!((outcome.counts.copied, outcome.counts.failed), (2, 0));
    assert_eq!(std::fs::read(place.path().join("d/a")).unwrap(), b"content");
    assert_eq!(std::fs::read(place.path().join("d/b")).unwrap(), b"abc");
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
}

#[test]
fn offers_out_of_order_and_names_that_come_twice_end_the_session() {
    let entries = [member("a", 7), member("a", 7)];
    let twice = offer(0, &entries, true);
    let ahead = offer(5, &entries[..1], true);
    for (bad, code) in [(twice, Code::Usage), (ahead, Code::Protocol)] {
        let (_, bytes) = unbounded();
        let script = |near: Link| while near.receive().is_ok() {};
        let (result, _, place) = receive(&bad, [1; 32], bytes, script);
        assert_eq!(result.unwrap_err().code, code);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }
}

/// Takes the offers of a sender that scans; returns the ids of the entries by their paths.
fn offers(link: &Link) -> HashMap<String, u32> {
    let mut ids = HashMap::new();
    loop {
        let Message::Offer(offer) = link.receive().unwrap() else {
            panic!("no offer");
        };
        let entries = crate::entry::parse(&offer.entries).unwrap();
        let count = u32::try_from(entries.len()).unwrap();
        ids.extend(entries.iter().map(Entry::shown).zip(offer.first..));
        link.send(&Message::Plan(Plan {
            first: offer.first,
            count,
            complete: vec![0; entries.len().div_ceil(8)],
            parts: Vec::new(),
        }))
        .unwrap();
        if offer.is_last {
            return ids;
        }
    }
}

/// The receiver requests more of a member before it reads that the member failed.
#[test]
fn a_request_that_crosses_the_failure_of_its_member_does_not_end_the_session() {
    let place = tempfile::tempdir().unwrap();
    for name in ["gone", "good"] {
        std::fs::write(place.path().join(name), vec![7; 3 << 20]).unwrap();
    }
    let root = scan::Root {
        dir: Dir::open(place.path()).unwrap(),
        path: Relative::root(),
    };
    let scan = scan::start(vec![root], Policy::default(), Options::default()).unwrap();
    let catalogue = Catalogue {
        operands: Vec::new(),
        members: Vec::new(),
        scan: Some(scan),
        left_over: None,
        limit: Limit::default(),
    };
    let (near, far) = links();
    let mut outcome = SenderOutcome::default();
    std::thread::scope(|scope| {
        let outcome = &mut outcome;
        let sender = scope.spawn(move || {
            sender::run(&near, catalogue, [0; 32], Open::opening(), &Silent, outcome)
        });
        let ids = offers(&far);
        let (gone, good) = (ids["gone"], ids["good"]);
        let run = |file, first, count| Run { file, first, count };
        let want = |runs| far.send(&Message::Wants(Wants { runs })).unwrap();
        std::fs::remove_file(place.path().join("gone")).unwrap();
        want(vec![run(gone, 0, 1)]);
        while !matches!(far.receive().unwrap(), Message::Failed(failed) if failed.file == gone) {}
        want(vec![run(gone, 1, 2)]);
        let confirm = crate::wire::Confirm {
            runs: vec![run(gone, 0, 1)],
        };
        far.send(&Message::Confirm(confirm)).unwrap();
        let locate = crate::wire::Locate {
            file: gone,
            block: 2,
        };
        far.send(&Message::Locate(locate)).unwrap();
        let repair = crate::wire::Repair {
            file: gone,
            block: 2,
            runs: vec![crate::wire::PieceRun { first: 0, count: 1 }],
        };
        far.send(&Message::Repair(repair)).unwrap();
        want(vec![run(good, 0, 3)]);
        while !matches!(far.receive().unwrap(), Message::Commit(commit) if commit.file == good) {}
        let blake3 = *blake3::hash(&vec![7; 3 << 20]).as_bytes();
        far.send(&Message::Done(FileRoot { file: good, blake3 }))
            .unwrap();
        let complete = crate::wire::Complete::default();
        far.send(&Message::Complete(complete)).unwrap();
        sender.join().unwrap().unwrap();
    });
    assert_eq!((outcome.counts.copied, outcome.counts.failed), (1, 1));
}

#[test]
fn a_scan_that_ends_early_ends_the_session() {
    let (near, _far) = links();
    let (found, scan) = unbounded();
    found
        .send(scan::Scanned::Special(b"pipe".to_vec()))
        .unwrap();
    // As by a panic of its thread.
    drop(found);
    let catalogue = Catalogue {
        operands: Vec::new(),
        members: Vec::new(),
        scan: Some(scan),
        left_over: None,
        limit: Limit::default(),
    };
    let mut outcome = SenderOutcome::default();
    let opening = Open::opening();
    let result = sender::run(&near, catalogue, [0; 32], opening, &Silent, &mut outcome);
    assert!(result.unwrap_err().text.contains("scans"));
}

#[test]
fn what_members_lost_is_known_although_the_session_fails_later() {
    let binding = [7; 32];
    let mut entries = [member("a", 7), member("b", 3)];
    entries[0].mode = 0o4755;
    let (deliver, bytes) = unbounded();
    let script = |near: Link| {
        while !matches!(near.receive().unwrap(), Message::WantFiles(_)) {}
        deliver.send((0, b"content".to_vec())).unwrap();
        let seals = entries[0]
            .seal(&binding, blake3::hash(b"content").as_bytes())
            .to_vec();
        near.send(&Message::Seals(Seals { first: 0, seals }))
            .unwrap();
        let mut is_lost = false;
        loop {
            match near.receive().unwrap() {
                Message::Lost(lost) => is_lost = lost.setuid == 1,
                Message::DoneFiles(_) => break,
                _ => {}
            }
        }
        assert!(is_lost, "it comes before the entry is done");
        drop(deliver);
        near.hang_up();
    };
    let (result, outcome, _) = receive(&offer(0, &entries, true), binding, bytes, script);
    assert!(result.is_err());
    assert_eq!((outcome.lost.setuid, outcome.counts.copied), (1, 1));
}

/// A file of 1 GiB without data, and an attribute of `len` bytes.
fn hole(path: &str, len: usize) -> Entry {
    let mut entry = member(path, 1 << 30);
    entry.what = What::File(FileEntry {
        extents: Some(Vec::new()),
        ..FileEntry::dense(1 << 30)
    });
    entry.extra = Some(Extra {
        xattrs: vec![(b"user.a"[..].into(), vec![7; len].into())],
        ..Extra::default()
    });
    entry
}

/// Offers entries in batches as fast as they are planned; returns how many failed.
fn offer_all(near: &Link, entries: impl Iterator<Item = Entry>) -> u32 {
    let (mut failed, mut next) = (0, 0);
    let mut entries = entries.peekable();
    while entries.peek().is_some() {
        let mut batch = Batch::default();
        let first = next;
        while entries.peek().is_some_and(|entry| batch.push(entry)) {
            entries.next();
            next += 1;
        }
        let offer = Offer {
            first,
            entries: batch.into_bytes(),
            is_last: false,
            early: None,
        };
        if near.send(&Message::Offer(offer)).is_err() {
            return failed;
        }
        loop {
            match near.receive() {
                Ok(Message::Plan(plan)) if plan.first + plan.count == next => break,
                Ok(Message::Failed(_)) => failed += 1,
                Ok(_) => {}
                Err(_) => return failed,
            }
        }
    }
    failed
}

/// Memory that this process has had at most, bytes.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.unwrap().parse::<u64>().unwrap() << 10
}

/// What a sender offers takes few descriptors and a bounded memory, whatever it is.
#[test]
fn a_sender_that_only_offers_takes_bounded_memory_and_few_descriptors() {
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", r#"ulimit -n 64 && exec "$0" "$@""#]);
    shell.arg(std::env::current_exe().unwrap());
    let name = "session::tests::hostile_offers";
    let output = shell.args(["--exact", name, "--ignored"]).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && shown.contains("1 passed"),
        "{shown}"
    );
}

#[test]
#[ignore = "needs a process of its own, with few descriptors; another test starts it"]
fn hostile_offers() {
    let empty = offer(0, &[], false);
    let run = |entries: &mut (dyn Iterator<Item = Entry> + Send)| {
        let (_, bytes) = unbounded();
        let failed = AtomicU32::new(0);
        let script = |near: Link| {
            failed.store(offer_all(&near, entries), Ordering::Relaxed);
            near.hang_up();
        };
        let (result, _, place) = receive(&empty, [7; 32], bytes, script);
        (result.unwrap_err().code, failed.into_inner(), place)
    };
    let before = memory();
    // Files that are open until they are committed.
    let (code, failed, _place) = run(&mut (0..65_000).map(|index| hole(&index.to_string(), 1)));
    assert_eq!((code, failed), (Code::PeerGone, 0), "descriptors ran out");
    // Attributes of directories, which are set at the end.
    let directory = |index: u32| Entry {
        what: What::Directory,
        ..hole(&index.to_string(), 20_000)
    };
    let (code, failed, _place) = run(&mut (0..10_000).map(directory));
    assert_eq!((code, failed), (Code::PeerGone, 0));
    // Attributes of files that are not finished.
    let (code, _, _place) = run(&mut (0..10_000).map(|index| hole(&index.to_string(), 20_000)));
    assert_eq!(code, Code::Protocol);
    let more = memory() - before;
    assert!(more < 128 << 20, "{more} bytes");
    println!("{more} bytes more");
}
