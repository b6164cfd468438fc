//! Trees from and to file systems that fail, ignore case or allow few links.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::fuse::{Call, Folder, Pace};
use crate::support::{Disk, Ended, MIB, Place, haul, make_file, read_file, text};

/// Errors of Linux on most architectures.
const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const EDQUOT: i32 = 122;

/// Returns the number that a variable sets, for the long form of a test.
pub(crate) fn rounds(variable: &str, short: u32) -> u32 {
    std::env::var(variable).map_or(short, |rounds| rounds.parse().unwrap())
}

fn send(place: &Place, to: &str) -> Ended {
    let contents = format!("{}/.", text(&place.client("tree")));
    haul(["send", "--json", "--give-up-after=0", &contents, to])
}

/// Writes these files of a tree at the client: name, size, seed.
fn make(place: &Place, files: &[(&str, usize, u64)]) {
    std::fs::create_dir_all(place.client("tree")).unwrap();
    for (name, size, seed) in files {
        make_file(&place.client("tree").join(name), *size, *seed);
    }
}

/// Returns the files of a directory without those of unfinished transfers.
fn finals(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names = names.filter(|name| !name.contains(".haul-"));
    names
        .map(|name| (name.clone(), read_file(&dir.join(name))))
        .collect()
}

/// Any call of the target's file system may fail, with any error: what has a name is whole, old or
/// new, and the same command completes it. `HAUL_FAULTS` says how many.
#[test]
fn whatever_call_of_the_target_fails_a_file_is_old_or_new() {
    let place = Place::new();
    let folder = Folder::default();
    let fault = folder.fault.clone();
    let Some(_mounted) = folder.mount(&place.server("")) else {
        return;
    };
    let server = place.serve();
    let to = server.at("");
    let calls = [
        Call::Create,
        Call::Write,
        Call::SetAttr,
        Call::Fsync,
        Call::Rename,
        Call::Unlink,
        Call::Open,
        Call::Read,
    ];
    let errors = [EIO, ENOSPC, EDQUOT, EROFS];
    let (mut failed, mut random) = (0, 20_261_127_u64);
    let rounds = rounds("HAUL_FAULTS", 32);
    let mut old = BTreeMap::new();
    for round in 0..rounds {
        random = random * 16_807 % 0x7fff_ffff;
        let call = calls[round as usize % calls.len()];
        let errno = errors[round as usize / calls.len() % errors.len()];
        let seed = u64::from(round) * 10;
        make(
            &place,
            &[
                ("a", 100, seed + 1),
                ("b", 70_000, seed + 2),
                ("c", 2 * MIB + 9, seed + 3),
                ("d", 0, 1),
            ],
        );
        std::fs::hard_link(place.client("tree/a"), place.client("tree/e")).unwrap();
        let new = finals(&place.client("tree"));
        fault.arm(
            call,
            u32::try_from(random % 6).unwrap(),
            errno,
            round % 3 == 0,
        );
        let ended = send(&place, &to);
        let has_not_failed = fault.disarm();
        let shown = format!("round {round}: {call:?} {errno}: {ended:?}");
        assert!(!ended.stderr.contains("panicked"), "{shown}");
        for (name, content) in finals(&place.server("")) {
            let is_old = old.get(&name) == Some(&content);
            assert!(
                is_old || new.get(&name) == Some(&content),
                "{name}: {shown}"
            );
        }
        match ended.code {
            Some(0) => assert!(finals(&place.server("")) == new, "{shown}"),
            Some(1 | 7 | 13) => failed += 1,
            _ => panic!("{shown}"),
        }
        assert!(ended.code == Some(0) || !has_not_failed, "{shown}");
        let again = send(&place, &to);
        assert_eq!(again.code, Some(0), "{shown}\n{again:?}");
        assert!(finals(&place.server("")) == new, "{shown}");
        std::fs::remove_dir_all(place.client("tree")).unwrap();
        old = new;
    }
    let left = std::fs::read_dir(place.server("")).unwrap().count();
    assert_eq!(left, old.len(), "unfinished files are left");
    println!("{failed} of {rounds} faults failed a transfer");
    assert!(failed * 3 > rounds, "{failed}");
}

/// Reading the source fails at any call: never success with other content.
#[test]
fn a_source_that_fails_is_never_delivered_as_something_else() {
    let place = Place::new();
    std::fs::create_dir(place.client("tree")).unwrap();
    let folder = Folder::default();
    let fault = folder.fault.clone();
    let Some(_mounted) = folder.mount(&place.client("tree")) else {
        return;
    };
    make(
        &place,
        &[("a", 100, 1), ("b", 70_000, 2), ("c", 3 * MIB, 3)],
    );
    let expected = finals(&place.client("tree"));
    let server = place.serve();
    for round in 0..rounds("HAUL_FAULTS", 12) {
        let call = [Call::Read, Call::Open, Call::ReadDir][round as usize % 3];
        fault.arm(call, round / 3 % 8, EIO, round % 2 == 0);
        let to = format!("{round}/");
        let ended = send(&place, &server.at(&to));
        let has_failed = !fault.disarm();
        let there = place.server(&to);
        let there = if there.exists() {
            finals(&there)
        } else {
            BTreeMap::new()
        };
        for (name, content) in &there {
            assert!(expected[name] == *content, "{name}: {call:?}: {ended:?}");
        }
        let is_whole = there.len() == expected.len();
        // All may be there although a directory could not be read to its end.
        assert!(is_whole || ended.code != Some(0), "{call:?}: {ended:?}");
        assert!(ended.code == Some(0) || has_failed, "{call:?}: {ended:?}");
    }
}

/// The listing of a directory fails: what was found arrives, and the exit code tells. (s5cmd#695
/// deleted the target.)
#[test]
fn a_directory_that_cannot_be_read_to_its_end_is_no_success() {
    let place = Place::new();
    std::fs::create_dir(place.client("tree")).unwrap();
    let folder = Folder::default();
    let fault = folder.fault.clone();
    let Some(_mounted) = folder.mount(&place.client("tree")) else {
        return;
    };
    make(&place, &[("a", 100, 1)]);
    let server = place.serve();
    fault.arm(Call::ReadDir, 0, EIO, true);
    let ended = send(&place, &server.at("to/"));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stderr.contains("cannot read the directory '.'"),
        "{ended:?}"
    );
}

/// One of a thousand files cannot be read (xrootd#305 stopped at file 5).
#[test]
fn one_of_a_thousand_files_that_cannot_be_read_is_the_only_one_missing() {
    let place = Place::new();
    std::fs::create_dir(place.client("tree")).unwrap();
    let folder = Folder::default();
    let fault = folder.fault.clone();
    let Some(_mounted) = folder.mount(&place.client("tree")) else {
        return;
    };
    for index in 0..1000_u64 {
        make_file(&place.client(&format!("tree/{index}")), 100, index + 1);
    }
    let server = place.serve();
    // All reads of it fail: one that fails once is read again.
    fault.arm_one_file(4);
    let ended = send(&place, &server.at("to/"));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.json()["entries"]["failed"], 1, "{ended:?}");
    let there = finals(&place.server("to"));
    assert_eq!(there.len(), 999);
    for (name, content) in there {
        assert!(content == read_file(&place.client("tree").join(name)));
    }
}

/// A disk that makes 20 files a second: the first have their names before 64 are made.
#[test]
fn files_get_their_names_soon_on_a_disk_that_makes_them_slowly() {
    let place = Place::new();
    let folder = Folder {
        pace: Arc::new(Pace {
            create: Duration::from_millis(50),
            ..Pace::default()
        }),
        ..Folder::default()
    };
    let pace = Arc::clone(&folder.pace);
    let Some(_mounted) = folder.mount(&place.server("")) else {
        return;
    };
    std::fs::create_dir(place.client("tree")).unwrap();
    for index in 0..100_u64 {
        make_file(&place.client(&format!("tree/{index}")), 1000, index + 1);
    }
    let server = place.serve();
    let sent = send(&place, &server.at("")).ok();
    assert_eq!(sent.json()["entries"]["copied"], 100);
    let made = *pace.made_at_first_rename.get().unwrap();
    println!("{made} of 100 files were made before the first had its name");
    assert!(made < 40, "{made}");
}

/// The target allows three names of a file (rsync#329 crashed at 65,000).
#[test]
fn links_beyond_those_that_the_target_allows_are_copied_and_counted() {
    let place = Place::new();
    let folder = Folder {
        links_max: 3,
        ..Folder::default()
    };
    let Some(_mounted) = folder.mount(&place.server("")) else {
        return;
    };
    make(&place, &[("0", 1000, 1), ("large", 2 * MIB, 2)]);
    for index in 1..10 {
        let name = place.client(&format!("tree/{index}"));
        std::fs::hard_link(place.client("tree/0"), name).unwrap();
    }
    std::fs::hard_link(place.client("tree/large"), place.client("tree/l2")).unwrap();
    let server = place.serve();
    let sent = send(&place, &server.at("")).ok();
    // A link has two names and its temporary one for a moment.
    let copied = sent.json()["lost"]["links"].as_u64().unwrap();
    assert!((6..=8).contains(&copied), "{copied}");
    assert!(sent.stderr.contains("hard links became files"), "{sent:?}");
    assert!(finals(&place.server("")) == finals(&place.client("tree")));
    let contents = format!("{}/.", text(&place.client("tree")));
    std::fs::remove_file(place.server("9")).unwrap();
    let strict = ["send", "--strict-metadata", &contents, &server.at("")];
    assert_eq!(haul(strict).code, Some(1));
}

/// The files of a target that ignores case: those that differ only in case fail, and what is there
/// stays (in syncthing#2907 one deleted both).
fn ignores_case(place: &Place) {
    let server = place.serve();
    let to = server.at("");
    let sizes = [("a", 100), ("Large", 2 * MIB), ("\u{e9}t\u{e9}", 10)];
    for (seed, (name, size)) in (1..).zip(sizes) {
        let other = match name.to_uppercase() {
            other if other != name => other,
            _ => name.to_lowercase(),
        };
        let tree = place.client("tree");
        let _ = std::fs::remove_dir_all(&tree);
        make(place, &[(name, size, seed)]);
        send(place, &to).ok();
        let first = read_file(&tree.join(name));
        for is_same in [false, true] {
            std::fs::remove_dir_all(&tree).unwrap();
            make(place, &[(&other, size, seed + 100)]);
            if is_same {
                let modified = place.server(name).metadata().unwrap().modified().unwrap();
                let file = std::fs::File::options().write(true).open(tree.join(&other));
                file.unwrap().set_modified(modified).unwrap();
            }
            let ended = send(place, &to);
            assert_eq!(ended.code, Some(1), "{other} {is_same}: {ended:?}");
            assert!(ended.stderr.contains("only in case"), "{ended:?}");
            assert!(read_file(&place.server(name)) == first, "{name}");
        }
    }
}

#[test]
fn names_that_differ_only_in_case_fail_where_the_target_ignores_case() {
    let place = Place::new();
    let folder = Folder {
        folds_case: true,
        ..Folder::default()
    };
    if let Some(_mounted) = folder.mount(&place.server("")) {
        ignores_case(&place);
    }
}

#[test]
fn names_that_differ_only_in_case_fail_on_ext4_that_ignores_case() {
    let place = Place::new();
    let image = place.outside("image");
    let Some(_disk) = Disk::mount_casefold(&image, &place.server("")) else {
        return;
    };
    ignores_case(&place);
}
