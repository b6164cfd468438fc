//! Early data: what is sent before it is requested.

use super::*;

const BINDING: [u8; 32] = [7; 32];
const KIB: usize = 1 << 10;

/// An entry that is offered by itself.
fn operand(path: &str, size: usize) -> Entry {
    let mut entry = member(path, size as u64);
    entry.is_member = false;
    entry
}

fn bytes_of(size: usize) -> Vec<u8> {
    (0..251).cycle().take(size).collect()
}

fn early_offer(entries: &[Entry], early: usize) -> Offer {
    Offer {
        early: Some(u32::try_from(early).unwrap()),
        ..offer(0, entries, true)
    }
}

/// The digests of the blocks of a file, and its hash.
fn digests_of(content: &[u8]) -> (Vec<Digest>, [u8; 32]) {
    let blocks = Blocks::new(content.len() as u64);
    let digest = |block| {
        let (position, len) = blocks.range(block, 1);
        let (position, len) = (usize::try_from(position), usize::try_from(len));
        let mut hasher = blocks.hasher(block);
        hasher.update(&content[position.unwrap()..][..len.unwrap()]);
        hasher.finish()
    };
    let digests: Vec<_> = (0..blocks.count()).map(digest).collect();
    let root = *blocks.root(&digests).as_bytes();
    (digests, root)
}

fn vouch(link: &Link, file: u32, content: &[u8]) {
    let digests = digests_of(content).0.concat();
    let first = 0;
    link.send(&Message::Digests(Digests {
        file,
        first,
        digests,
    }))
    .unwrap();
}

fn commit(link: &Link, file: u32, entry: &Entry, content: &[u8], end: usize) {
    let seal = entry.seal(&BINDING, &digests_of(content).1);
    let end = end as u64;
    link.send(&Message::Commit(Commit { file, seal, end }))
        .unwrap();
}

/// Reads messages until the receiver is done; returns those that are not its progress.
fn until_complete(link: &Link) -> Vec<Message> {
    let mut messages = Vec::new();
    loop {
        match link.receive().unwrap() {
            Message::Progress(_) => {}
            message @ Message::Complete(_) => {
                messages.push(message);
                return messages;
            }
            message => messages.push(message),
        }
    }
}

fn moved(messages: &[Message]) -> Option<u64> {
    match messages.last() {
        Some(Message::Complete(complete)) => Some(complete.moved),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    /// Data may arrive before the plan is made, and in any order.
    #[test]
    fn early_data_in_any_order_is_placed_and_only_the_rest_is_requested(
        large in 200 * KIB..(2 << 20) + 5,
        cuts in proptest::collection::btree_set(1_usize..200 * KIB, 0..20),
        seed in any::<u64>(),
    ) {
        let sizes = [5000, 0, large];
        let files = sizes.map(bytes_of);
        let entries = [operand("a", sizes[0]), operand("b", 0), operand("c", large)];
        let early = (sizes[0] + large).min(256 * KIB);
        let rest = 5000 + large - early;
        let space = [&files[0][..], &files[2]].concat();
        let mut start = 0;
        let mut pieces: Vec<_> = cuts
            .into_iter()
            .chain([early])
            .map(|end| std::mem::replace(&mut start, end)..end)
            .collect();
        let mut state = seed | 1;
        pieces.sort_by_cached_key(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 20
        });
        let (deliver, bytes) = unbounded();
        for piece in pieces {
            deliver.send((piece.start as u64, space[piece].to_vec())).unwrap();
        }
        let script = |near: Link| {
            for file in 0..3 {
                let content = &files[file as usize];
                vouch(&near, file, content);
                let end = [5000, 0, space.len()][file as usize];
                commit(&near, file, &entries[file as usize], content, end);
            }
            if rest > 0 {
                let wants = loop {
                    match near.receive().unwrap() {
                        Message::Wants(wants) => break wants,
                        Message::Plan(plan) => assert!(plan.parts.is_empty()),
                        Message::Done(done) => assert!(done.file < 2),
                        other => assert!(matches!(other, Message::Progress(_)), "{other:?}"),
                    }
                };
                let (first, count) = (0, Blocks::new(large as u64).count());
                assert_eq!(wants.runs, [Run { file: 2, first, count }]);
                deliver.send((early as u64, space[early..].to_vec())).unwrap();
            }
            let messages = until_complete(&near);
            assert!(!messages.iter().any(|one| matches!(one, Message::Wants(_))));
            assert_eq!(moved(&messages), Some(space.len() as u64));
            drop(deliver);
        };
        let offer = early_offer(&entries, early);
        let (result, _, place) = receive(&offer, BINDING, bytes, script);
        result.unwrap();
        for (name, content) in ["a", "b", "c"].iter().zip(&files) {
            prop_assert!(std::fs::read(place.path().join(name)).unwrap() == *content);
        }
        prop_assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 3);
    }
}

#[test]
fn early_data_of_a_file_that_is_present_is_discarded() {
    let entries = [operand("a", 1000), operand("b", 1000)];
    let content = bytes_of(1000);
    let place = tempfile::tempdir().unwrap();
    let present = File::create(place.path().join("a")).unwrap();
    present.write_all_at(&[9; 1000], 0).unwrap();
    haul_io::file::set_modified(&present, entries[0].modified.into()).unwrap();
    let (deliver, bytes) = unbounded();
    let early = [&content[..], &content].concat();
    deliver.send((0, early)).unwrap();
    let script = |near: Link| {
        for file in 0..2 {
            vouch(&near, file, &content);
            let end = 1000 * (1 + file as usize);
            commit(&near, file, &entries[file as usize], &content, end);
        }
        let messages = until_complete(&near);
        assert!(matches!(&messages[0], Message::Plan(plan) if plan.complete == [1]));
        assert_eq!(moved(&messages), Some(1000));
        drop(deliver);
    };
    let offer = early_offer(&entries, 2000);
    let (result, outcome) = receive_below(place.path(), &offer, BINDING, bytes, script);
    result.unwrap();
    assert_eq!((outcome.counts.skipped, outcome.counts.copied), (1, 1));
    assert!(std::fs::read(place.path().join("a")).unwrap() == [9; 1000]);
    assert!(std::fs::read(place.path().join("b")).unwrap() == content);
}

#[test]
fn early_data_that_arrives_damaged_is_repaired() {
    let (entry, content) = (operand("a", 40 * KIB), bytes_of(40 * KIB));
    let (deliver, bytes) = unbounded();
    let mut damaged = content.clone();
    damaged[20 * KIB] ^= 1;
    deliver.send((0, damaged)).unwrap();
    let script = |near: Link| {
        vouch(&near, 0, &content);
        commit(&near, 0, &entry, &content, 40 * KIB);
        while !matches!(near.receive().unwrap(), Message::Locate(_)) {}
        let pieces = Blocks::new(content.len() as u64).pieces(0);
        let read = |buf: &mut [u8], at| -> Result<(), Fault> {
            let at = usize::try_from(at).unwrap();
            buf.copy_from_slice(&content[at..at + buf.len()]);
            Ok(())
        };
        let digests = hash_pieces(pieces, &mut vec![0; 64 * KIB], read).unwrap();
        near.send(&Message::Pieces(Pieces {
            file: 0,
            block: 0,
            digests: digests.concat(),
        }))
        .unwrap();
        let repair = loop {
            if let Message::Repair(repair) = near.receive().unwrap() {
                break repair;
            }
        };
        assert_eq!((repair.runs[0].first, repair.runs[0].count), (5, 1));
        let piece = content[20 * KIB..24 * KIB].to_vec();
        deliver.send((40 * KIB as u64, piece)).unwrap();
        until_complete(&near);
        drop(deliver);
    };
    let offer = early_offer(std::slice::from_ref(&entry), 40 * KIB);
    let (result, outcome, place) = receive(&offer, BINDING, bytes, script);
    result.unwrap();
    assert_eq!(outcome.spent.repaired, 4 * KIB as u64);
    assert!(std::fs::read(place.path().join("a")).unwrap() == content);
}

/// The first session ends after one block of two; the second one offers early data of it again.
#[test]
fn early_data_of_a_file_that_resumes_is_discarded() {
    let (entry, content) = (operand("a", (1 << 20) + 9), bytes_of((1 << 20) + 9));
    let place = tempfile::tempdir().unwrap();
    let early = 256 * KIB;
    let offer = early_offer(std::slice::from_ref(&entry), early);
    let (deliver, bytes) = unbounded();
    deliver.send((0, content[..early].to_vec())).unwrap();
    let journal = place.path().join(".a.haul-journal");
    let script = |near: Link| {
        vouch(&near, 0, &content);
        while !matches!(near.receive().unwrap(), Message::Wants(_)) {}
        let rest = content[early..1 << 20].to_vec();
        deliver.send((early as u64, rest)).unwrap();
        while std::fs::metadata(&journal).unwrap().len() <= 64 {
            std::thread::sleep(Duration::from_millis(20));
        }
        near.report(&Fault::new(Code::Other, "it ends"));
        drop(deliver);
        while near.receive().is_ok() {}
    };
    let (result, _) = receive_below(place.path(), &offer, BINDING, bytes, script);
    assert!(result.unwrap_err().text.ends_with("it ends"));

    let (deliver, bytes) = unbounded();
    deliver.send((0, content[..early].to_vec())).unwrap();
    let script = |near: Link| {
        let Message::Plan(plan) = near.receive().unwrap() else {
            panic!("the plan is first")
        };
        assert_eq!(plan.parts[0].present, 1 << 20);
        let Message::Wants(wants) = near.receive().unwrap() else {
            panic!("the rest is requested")
        };
        assert_eq!((wants.runs[0].first, wants.runs[0].count), (1, 1));
        deliver
            .send((early as u64, content[1 << 20..].to_vec()))
            .unwrap();
        vouch(&near, 0, &content);
        commit(&near, 0, &entry, &content, early + 9);
        assert_eq!(moved(&until_complete(&near)), Some(9));
        drop(deliver);
    };
    let (result, _) = receive_below(place.path(), &offer, BINDING, bytes, script);
    result.unwrap();
    assert!(std::fs::read(place.path().join("a")).unwrap() == content);
}

fn seals_of(files: &[(&Entry, &[u8])]) -> Vec<u8> {
    let seal =
        |(entry, content): &(&Entry, &[u8])| entry.seal(&BINDING, blake3::hash(content).as_bytes());
    files.iter().flat_map(seal).collect()
}

/// Of three small members one is present and one arrives damaged; a large one is requested.
#[test]
fn small_members_whose_data_is_early_are_placed_without_a_request() {
    let mut directory = member("d", 0);
    directory.what = What::Directory;
    let files = [5000, 900, 300, 3 << 20].map(bytes_of);
    let names = ["d/a", "d/b", "d/c", "d/large"];
    let members = names.iter().zip(&files);
    let members = members.map(|(name, content)| member(name, content.len() as u64));
    let entries: Vec<_> = std::iter::once(directory).chain(members).collect();
    let place = tempfile::tempdir().unwrap();
    std::fs::create_dir(place.path().join("d")).unwrap();
    let present = File::create(place.path().join("d/b")).unwrap();
    present.write_all_at(&[9; 900], 0).unwrap();
    haul_io::file::set_modified(&present, entries[2].modified.into()).unwrap();
    let (deliver, bytes) = unbounded();
    let mut early = files[..3].concat();
    early[5900] ^= 1;
    deliver.send((0, early)).unwrap();
    let script = |near: Link| {
        let known: Vec<_> = entries[1..4].iter().zip(&files).collect();
        let known: Vec<_> = known.iter().map(|(one, file)| (*one, &file[..])).collect();
        let seals = seals_of(&known);
        near.send(&Message::Seals(Seals { first: 1, seals }))
            .unwrap();
        let (mut wants, mut again) = (None, None);
        while wants.is_none() || again.is_none() {
            match near.receive().unwrap() {
                Message::Plan(plan) => {
                    assert_eq!((plan.complete, plan.parts), (vec![0b101], Vec::new()));
                }
                Message::Wants(wanted) => wants = Some(wanted.runs),
                Message::WantFiles(wanted) => again = Some(wanted.runs),
                Message::DoneFiles(_) | Message::Progress(_) => {}
                other => panic!("{other:?}"),
            }
        }
        let (first, count) = (0, 3);
        assert_eq!(
            wants.unwrap(),
            [Run {
                file: 4,
                first,
                count
            }]
        );
        assert_eq!(
            again.unwrap(),
            [crate::wire::FileRun { first: 3, count: 1 }]
        );
        let rest = [&files[3][..], &files[2]].concat();
        deliver.send((6200, rest)).unwrap();
        let seals = seals_of(&[(&entries[3], &files[2])]);
        near.send(&Message::Seals(Seals { first: 3, seals }))
            .unwrap();
        vouch(&near, 4, &files[3]);
        commit(&near, 4, &entries[4], &files[3], 6200 + (3 << 20));
        let messages = until_complete(&near);
        assert_eq!(moved(&messages), Some(5000 + 300 + 300 + (3 << 20)));
        drop(deliver);
    };
    let offer = early_offer(&entries, 6200);
    let (result, outcome) = receive_below(place.path(), &offer, BINDING, bytes, script);
    result.unwrap();
    let counts = outcome.counts;
    assert_eq!((counts.copied, counts.skipped, counts.failed), (3, 1, 0));
    assert_eq!((outcome.resumed, outcome.spent.repaired), (900, 300));
    let read = |name| std::fs::read(place.path().join(name)).unwrap();
    assert!(read("d/b") == [9; 900]);
    for index in [0, 2, 3] {
        assert!(read(names[index]) == files[index], "{}", names[index]);
    }
}

/// The sender of a small tree needs no answer to send all of it, up to its counters.
#[test]
fn a_small_tree_leaves_with_its_first_offer() {
    let place = tempfile::tempdir().unwrap();
    std::fs::create_dir(place.path().join("d")).unwrap();
    for name in ["d/a", "d/b"] {
        std::fs::write(place.path().join(name), name).unwrap();
    }
    std::fs::write(place.path().join("d/empty"), "").unwrap();
    let root = scan::Root {
        dir: Dir::open(place.path()).unwrap(),
        path: Relative::root(),
    };
    let scan = scan::start(vec![root], Policy::default(), Options::default()).unwrap();
    let mut catalogue = Catalogue {
        operands: Vec::new(),
        members: Vec::new(),
        scan: Some(scan),
        left_over: None,
        limit: Limit::default(),
    };
    let messages = sender::offer(&mut catalogue, &BINDING);
    let [Message::Offer(offer)] = &messages[..] else {
        panic!("{messages:?}");
    };
    assert_eq!((offer.is_last, offer.early), (true, Some(6)));
    let entries = crate::entry::parse(&offer.entries).unwrap();
    assert_eq!(entries.len(), 4);
    let (near, far) = links();
    let mut outcome = SenderOutcome::default();
    std::thread::scope(|scope| {
        let outcome = &mut outcome;
        let sender = scope.spawn(move || {
            sender::run(&near, catalogue, BINDING, Open::opening(), &Silent, outcome)
        });
        let mut sealed = 0;
        loop {
            match far.receive().unwrap() {
                Message::Seals(seals) => {
                    let first = seals.first as usize;
                    for (seal, entry) in seals.seals.chunks(32).zip(&entries[first..]) {
                        let root = blake3::hash(entry.path.as_bytes());
                        assert_eq!(seal, entry.seal(&BINDING, root.as_bytes()));
                        sealed += 1;
                    }
                }
                Message::Complete(_) => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(sealed, 2);
        let complete = vec![1];
        let parts = Vec::new();
        far.send(&Message::Plan(Plan {
            first: 0,
            count: 4,
            complete,
            parts,
        }))
        .unwrap();
        let runs = vec![crate::wire::FileRun { first: 1, count: 3 }];
        far.send(&Message::DoneFiles(crate::wire::FileRuns { runs }))
            .unwrap();
        far.send(&Message::Complete(crate::wire::Complete::default()))
            .unwrap();
        sender.join().unwrap().unwrap();
    });
    assert_eq!((outcome.counts.copied, outcome.counts.directories), (3, 1));
}

/// Names that lead out, and names of links that do, are made nowhere: each kind of entry with each.
#[test]
fn entries_of_a_hostile_sender_are_made_nowhere_else() {
    let place = tempfile::tempdir().unwrap();
    let (root, outside) = (place.path().join("root"), place.path().join("outside"));
    for dir in [&root, &outside] {
        std::fs::create_dir(dir).unwrap();
    }
    std::fs::write(outside.join("secret"), "secret").unwrap();
    let kinds = |path: &str| {
        let of = |what| Entry {
            what,
            ..member(path, 6)
        };
        let to = Relative::new(b"AA/outside/secret").unwrap();
        [
            member(path, 6),
            of(What::Directory),
            of(What::Symlink {
                target: b"/".to_vec(),
            }),
            of(What::HardLink { path: to }),
        ]
    };
    let mut refused = 0;
    // What the placeholder AA is replaced by, on the wire: parents, absolute, NUL, an empty name.
    for (from, bad) in [
        ("AA", ".."),
        ("AA/", "../"),
        ("AA", "./"),
        ("AA", "\0\0"),
        ("AA", "//"),
        ("AA/", "/AA"),
    ] {
        for entry in kinds("AA/outside/made") {
            let mut batch = Batch::default();
            batch.push(&entry);
            let bytes = batch.into_bytes();
            let at = bytes
                .windows(from.len())
                .rposition(|part| part == from.as_bytes());
            let mut entries = bytes;
            entries[at.unwrap()..][..bad.len()].copy_from_slice(bad.as_bytes());
            let offer = Offer {
                entries,
                ..offer(0, &[], true)
            };
            let (_, bytes) = unbounded();
            let script = |near: Link| while near.receive().is_ok() {};
            let (result, _) = receive_below(&root, &offer, BINDING, bytes, script);
            assert!(result.is_err(), "{bad}: {entry:?}");
            refused += 1;
        }
    }
    // A link that leads out gives way to the directory of its members. Nothing is made below one
    // that was there before, or in its place, or in place of a pipe.
    std::os::unix::fs::symlink(&outside, root.join("old")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    let link = Entry {
        what: What::Symlink {
            target: b"../outside".to_vec(),
        },
        ..member("link", 0)
    };
    let empty = ["link/made", "old/made", "old", "pipe"].map(|path| member(path, 0));
    let made = ["link/dir", "old/dir"].map(|path| Entry {
        what: What::Directory,
        ..member(path, 0)
    });
    let entries: Vec<_> = std::iter::once(link).chain(made).chain(empty).collect();
    let (deliver, bytes) = unbounded();
    let script = |near: Link| {
        until_complete(&near);
        drop(deliver);
    };
    let (result, outcome) = receive_below(&root, &offer(0, &entries, true), BINDING, bytes, script);
    result.unwrap();
    println!(
        "{refused} batches refused, {} entries failed",
        outcome.counts.failed
    );
    assert_eq!(outcome.counts.failed, 5, "{:?}", outcome.counts);
    let kind = |name| root.join(name).symlink_metadata().unwrap().file_type();
    assert!(kind("old").is_symlink() && kind("link").is_dir());
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&kind("pipe")));
    let names: Vec<_> = std::fs::read_dir(&outside).unwrap().collect();
    assert_eq!(names.len(), 1);
    assert_eq!(std::fs::read(outside.join("secret")).unwrap(), b"secret");
}

#[test]
fn early_data_beyond_its_bounds_ends_the_session_and_nothing_is_stored() {
    let one = operand("a", 300 * KIB);
    let small = member("d", 300 * KIB as u64);
    let many: Vec<_> = (0..70)
        .map(|index| operand(&format!("f{index}"), 1))
        .collect();
    for (entries, early) in [
        (std::slice::from_ref(&one), 256 * KIB + 1),
        (std::slice::from_ref(&one), u32::MAX as usize),
        (std::slice::from_ref(&small), 1),
        (&many[..], 65),
        (&[], 1),
    ] {
        let (_, bytes) = unbounded();
        let script = |near: Link| while near.receive().is_ok() {};
        let (result, _, place) = receive(&early_offer(entries, early), BINDING, bytes, script);
        assert_eq!(result.unwrap_err().code, Code::Protocol);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }
    // In a later offer, and data behind what the offer announced.
    let (_, bytes) = unbounded();
    let first = Offer {
        is_last: false,
        ..early_offer(&many[..1], 1)
    };
    let script = |near: Link| {
        let later = Offer {
            first: 1,
            ..early_offer(&many[1..2], 1)
        };
        near.send(&Message::Offer(later)).unwrap();
        while near.receive().is_ok() {}
    };
    let (result, ..) = receive(&first, BINDING, bytes, script);
    assert_eq!(result.unwrap_err().code, Code::Protocol);
    let (deliver, bytes) = unbounded();
    deliver.send((0, vec![0; 2])).unwrap();
    drop(deliver);
    let script = |near: Link| while near.receive().is_ok() {};
    let (result, _, place) = receive(&early_offer(&many[..1], 1), BINDING, bytes, script);
    assert_eq!(result.unwrap_err().code, Code::Protocol);
    assert!(!place.path().join("f0").exists());
}

/// Runs a sender of a small and a large file against a receiver.
fn send_early(script: impl FnOnce(&Link)) -> SenderOutcome {
    let (small, _small) = source("a", &bytes_of(1000));
    let (large, _large) = source("b", &bytes_of(300 * KIB));
    let (near, far) = links();
    let mut outcome = SenderOutcome::default();
    std::thread::scope(|scope| {
        let outcome = &mut outcome;
        let sender = scope.spawn(move || {
            let mut catalogue = Catalogue {
                operands: vec![small, large],
                members: Vec::new(),
                scan: None,
                left_over: None,
                limit: Limit::default(),
            };
            let messages = sender::offer(&mut catalogue, &BINDING);
            assert!(
                matches!(&messages[..], [Message::Offer(offer)] if offer.early == Some(256 << 10))
            );
            sender::run(&near, catalogue, BINDING, Open::opening(), &Silent, outcome)
        });
        script(&far);
        drop(far);
        sender.join().unwrap().unwrap();
    });
    outcome
}

/// Returns the ends of the next commits, by file.
fn commits(link: &Link, count: usize) -> Vec<(u32, u64)> {
    let mut commits = Vec::new();
    while commits.len() < count {
        if let Message::Commit(commit) = link.receive().unwrap() {
            commits.push((commit.file, commit.end));
        }
    }
    commits
}

fn finish(link: &Link, files: &[(u32, usize)]) {
    for (file, size) in files {
        let blake3 = digests_of(&bytes_of(*size)).1;
        let file = *file;
        link.send(&Message::Done(FileRoot { file, blake3 }))
            .unwrap();
    }
    link.send(&Message::Complete(crate::wire::Complete::default()))
        .unwrap();
    while !matches!(link.receive(), Ok(Message::Complete(complete)) if complete.moved > 0) {}
}

fn plan(complete: u8, parts: Vec<Part>) -> Message {
    Message::Plan(Plan {
        first: 0,
        count: 2,
        complete: vec![complete],
        parts,
    })
}

#[test]
fn a_sender_commits_early_data_unasked_and_sends_the_rest_of_a_block_behind_it() {
    let run = Run {
        file: 1,
        first: 0,
        count: 1,
    };
    let outcome = send_early(|far| {
        assert_eq!(commits(far, 1), [(0, 1000)]);
        far.send(&plan(0, Vec::new())).unwrap();
        far.send(&Message::Wants(Wants { runs: vec![run] }))
            .unwrap();
        assert_eq!(commits(far, 1), [(1, 1000 + 300 * KIB as u64)]);
        // Its counters follow the last commit.
        assert!(matches!(far.receive().unwrap(), Message::Complete(_)));
        finish(far, &[(0, 1000), (1, 300 * KIB)]);
    });
    assert_eq!(outcome.spent.moved, 1000 + 300 * KIB as u64);

    // The receiver has the first file, and a part of the second.
    let outcome = send_early(|far| {
        let part = Part {
            file: 1,
            present: 1,
            restarted: false,
        };
        assert_eq!(commits(far, 1), [(0, 1000)]);
        far.send(&plan(1, vec![part])).unwrap();
        far.send(&Message::Wants(Wants { runs: vec![run] }))
            .unwrap();
        let end = (256 + 300) * KIB as u64;
        assert_eq!(commits(far, 1), [(1, end)]);
        finish(far, &[(1, 300 * KIB)]);
    });
    assert_eq!(outcome.spent.moved, 300 * KIB as u64);
}
