//! Directory trees in both directions, compared whole.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::odd::rounds;
use crate::support::{MIB, Place, haul, make_file, read_file, start, text, wait_until};

/// What a tree holds, by path: everything that a transfer keeps.
type Tree = BTreeMap<Vec<u8>, Node>;

#[derive(Debug, PartialEq, Eq)]
struct Node {
    kind: &'static str,
    mode: u32,
    modified: (i64, i64),
    /// The hash of the content, or the target of a link.
    content: Vec<u8>,
    links: u64,
}

fn tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    walk(root, b"", &mut tree);
    tree
}

fn walk(dir: &Path, at: &[u8], tree: &mut Tree) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let path = [at, b"/", entry.file_name().as_bytes()].concat();
        let meta = entry.path().symlink_metadata().unwrap();
        let (kind, content) = if meta.is_dir() {
            walk(&entry.path(), &path, tree);
            ("directory", Vec::new())
        } else if meta.is_symlink() {
            let target = std::fs::read_link(entry.path()).unwrap();
            ("link", target.into_os_string().into_vec())
        } else {
            let hash = blake3_of(&read_file(&entry.path()));
            ("file", hash)
        };
        let is_file = kind == "file";
        let node = Node {
            kind,
            mode: if kind == "link" {
                0
            } else {
                meta.mode() & 0o7777
            },
            modified: (meta.mtime(), meta.mtime_nsec()),
            content,
            links: if is_file { meta.nlink() } else { 0 },
        };
        tree.insert(path, node);
    }
}

/// Any hash that tells contents apart.
fn blake3_of(content: &[u8]) -> Vec<u8> {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(content);
    [
        hasher.finish().to_le_bytes(),
        (content.len() as u64).to_le_bytes(),
    ]
    .concat()
}

fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (tree(one), tree(other));
    for (path, node) in &one {
        let shown = String::from_utf8_lossy(path);
        assert_eq!(Some(node), other.get(path), "{shown}");
    }
    assert_eq!(one.len(), other.len());
}

/// A tree with everything that a transfer keeps.
fn make_tree(root: &Path) {
    std::fs::create_dir_all(root.join("a/b/empty")).unwrap();
    std::fs::create_dir(root.join("z")).unwrap();
    for index in 0..40_u64 {
        let size = usize::try_from(index * index * 37).unwrap();
        make_file(&root.join(format!("a/b/{index}")), size, index + 1);
    }
    make_file(&root.join("a/big"), 3 * MIB + 17, 99);
    make_file(&root.join("a/mebibyte"), MIB, 98);
    make_file(&root.join("empty"), 0, 1);
    make_file(&root.join(OsStr::from_bytes(b"bytes \xff\n\x1b")), 10, 3);
    symlink("../nowhere/\u{e9}", root.join("a/dangling")).unwrap();
    symlink("b", root.join("a/to-directory")).unwrap();
    std::fs::hard_link(root.join("a/b/7"), root.join("z/seven")).unwrap();
    std::fs::hard_link(root.join("a/big"), root.join("z/large")).unwrap();
    for (name, mode) in [
        ("a/b/3", 0o400),
        ("a/b/4", 0o755),
        ("a/big", 0o600),
        ("z", 0o750),
    ] {
        std::fs::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
    }
    let long_ago = SystemTime::UNIX_EPOCH + Duration::new(1_234_567, 890);
    for name in ["a/b/5", "a/b/empty", "a/b", "a"] {
        let file = File::open(root.join(name)).unwrap();
        file.set_modified(long_ago).unwrap();
    }
}

#[test]
fn a_tree_goes_there_and_back_whole() {
    let place = Place::new();
    let server = place.serve();
    make_tree(&place.client("tree"));
    for channel in ["udt", "tcp"] {
        let to = format!("into-{channel}/");
        let sent = haul([
            "send",
            "--json",
            "--channel",
            channel,
            &text(&place.client("tree")),
            &server.at(&to),
        ]);
        let sent = sent.ok().json();
        assert_same(&place.client("tree"), &place.server(&to).join("tree"));
        assert_eq!(sent["entries"]["files"], 44, "{sent:#}");
        assert_eq!(sent["entries"]["directories"], 5);
        assert_eq!(sent["entries"]["links"], 4);
        assert_eq!(sent["entries"]["copied"], 48);
        assert_eq!(sent["entries"]["failed"], 0);
        let back = place.client(channel);
        std::fs::create_dir(&back).unwrap();
        let from = server.at(&format!("into-{channel}/tree"));
        haul(["get", "--channel", channel, &from, &text(&back)]).ok();
        assert_same(&place.client("tree"), &back.join("tree"));
    }
    assert!(own_files(&place.outside("")).is_empty());
}

/// Whether a name is that of an unfinished transfer's file.
fn is_own(name: &[u8]) -> bool {
    [".haul-part", ".haul-temp", ".haul-journal"]
        .iter()
        .any(|end| name.ends_with(end.as_bytes()))
}

/// The files of unfinished transfers below a directory.
fn own_files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(own_files(&entry.path()));
        } else if is_own(entry.file_name().as_bytes()) {
            found.push(entry.path());
        }
    }
    found
}

#[test]
fn the_contents_of_a_tree_and_single_files_go_together() {
    let place = Place::new();
    let server = place.serve();
    make_tree(&place.client("tree"));
    let content = make_file(&place.client("single"), 5000, 7);
    let contents = format!("{}/.", text(&place.client("tree")));
    let single = text(&place.client("single"));
    haul(["send", &contents, &single, &server.at("new/")]).ok();
    assert!(read_file(&place.server("new/single")) == content);
    std::fs::remove_file(place.server("new/single")).unwrap();
    assert_same(&place.client("tree"), &place.server("new"));
    std::fs::create_dir(place.client("back")).unwrap();
    haul(["get", &server.at("new/."), &text(&place.client("back"))]).ok();
    assert_same(&place.client("tree"), &place.client("back"));
}

#[test]
fn what_is_there_is_not_sent_again_and_what_changed_is() {
    let place = Place::new();
    let server = place.serve();
    make_tree(&place.client("tree"));
    let send = || {
        haul([
            "send",
            "--json",
            &text(&place.client("tree")),
            &server.at(""),
        ])
        .ok()
    };
    assert_eq!(send().json()["resumed_bytes"], 0);
    let again = send().json();
    assert_eq!(again["moved_bytes"], 0, "{again:#}");
    assert_eq!(again["resumed_bytes"], again["bytes"], "{again:#}");
    let (from, to) = (server.at("tree"), text(&place.client("")));
    let got = haul(["get", "--json", &from, &to]).ok().json();
    assert_eq!(got["resumed_bytes"], again["bytes"], "{got:#}");
    assert_eq!(
        (&again["entries"]["copied"], &again["entries"]["skipped"]),
        (&0.into(), &48.into())
    );
    make_file(&place.client("tree/a/b/9"), 9000, 77);
    make_file(&place.client("tree/a/big"), 2 * MIB, 78);
    let sent = send().json();
    let number = |name: &str| sent[name].as_u64().unwrap();
    assert_eq!(number("moved_bytes"), 9000 + 2 * MIB as u64);
    assert_eq!(
        number("resumed_bytes") + number("moved_bytes"),
        number("bytes")
    );
    assert_same(&place.client("tree"), &place.server("tree"));
}

#[test]
fn ten_thousand_small_files_arrive() {
    let place = Place::new();
    let server = place.serve();
    for dir in 0..20 {
        let dir = place.client(&format!("tree/{dir}"));
        std::fs::create_dir_all(&dir).unwrap();
        for file in 0..500_u64 {
            let size = usize::try_from(file * 7 % 6000).unwrap();
            make_file(&dir.join(file.to_string()), size, file + 1);
        }
    }
    let sent = haul([
        "send",
        "--json",
        &text(&place.client("tree")),
        &server.at(""),
    ]);
    assert_eq!(sent.ok().json()["entries"]["copied"], 10_000);
    assert_same(&place.client("tree"), &place.server("tree"));
    std::fs::create_dir(place.client("back")).unwrap();
    haul(["get", &server.at("tree"), &text(&place.client("back"))]).ok();
    assert_same(&place.client("tree"), &place.client("back/tree"));
}

#[test]
fn one_file_that_cannot_be_written_is_named_and_the_others_arrive() {
    let place = Place::new();
    let server = place.serve();
    std::fs::create_dir_all(place.client("tree/d")).unwrap();
    for index in 0..1000_u64 {
        make_file(&place.client(&format!("tree/{index}")), 100, index + 1);
    }
    make_file(&place.client("tree/large"), 2 * MIB, 1);
    // In the way: a directory for a file, a file for a directory, a link that leads outside.
    std::fs::create_dir_all(place.server("tree/500")).unwrap();
    std::fs::create_dir_all(place.server("tree/large")).unwrap();
    let secret = make_file(&place.outside("secret"), 10, 9);
    symlink(place.outside("secret"), place.server("tree/501")).unwrap();
    make_file(&place.client("tree/d/inside"), 10, 4);
    symlink(place.outside(""), place.server("tree/d")).unwrap();
    let list = place.outside("failed");
    let ended = haul([
        "send",
        "--json",
        "--failed-to",
        &text(&list),
        &text(&place.client("tree")),
        &server.at(""),
    ]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let mut failed: Vec<_> = String::from_utf8(read_file(&list))
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    failed.sort();
    let expected = [
        "tree/500",
        "tree/501",
        "tree/d",
        "tree/d/inside",
        "tree/large",
    ];
    assert_eq!(failed, expected);
    for path in expected {
        assert!(
            ended.stderr.contains(&format!("failed: {path}:")),
            "{}",
            ended.stderr
        );
    }
    let json = ended.json();
    assert_eq!(
        (&json["ok"], &json["entries"]["failed"]),
        (&false.into(), &5.into())
    );
    for index in (0..1000).filter(|index| !matches!(index, 500 | 501)) {
        let name = format!("tree/{index}");
        assert!(read_file(&place.client(&name)) == read_file(&place.server(&name)));
    }
    assert!(read_file(&place.outside("secret")) == secret);
    assert!(!place.outside("inside").exists());
}

#[test]
fn sources_that_vanish_or_change_on_the_way_are_exactly_those_that_failed() {
    let place = Place::new();
    let server = place.serve();
    std::fs::create_dir_all(place.client("tree")).unwrap();
    for index in 0..200_u64 {
        make_file(
            &place.client(&format!("tree/{index:03}")),
            500_000,
            index + 1,
        );
    }
    let list = place.outside("failed");
    let (tree, to) = (text(&place.client("tree")), server.at(""));
    let list_path = text(&list);
    let args = [
        "send",
        "--rate",
        "80Mbit",
        "--failed-to",
        &list_path,
        &tree,
        &to,
    ];
    let client = start(args);
    wait_until("the first file", || {
        std::fs::read_dir(place.server("tree"))
            .is_ok_and(|mut dir| dir.any(|entry| !is_own(entry.unwrap().file_name().as_bytes())))
    });
    for index in 100..200 {
        // Those that are sent already may be there as they were.
        std::fs::remove_file(place.client(&format!("tree/{index:03}"))).unwrap();
    }
    let ended = client.end();
    let failed = String::from_utf8(read_file(&list)).unwrap();
    let failed: Vec<&str> = failed.lines().collect();
    assert_eq!(
        ended.code == Some(1),
        !failed.is_empty(),
        "{}",
        ended.stderr
    );
    for index in 0..200_u64 {
        let name = format!("tree/{index:03}");
        let is_there = place.server(&name).exists();
        assert_eq!(is_there, !failed.contains(&name.as_str()), "{name}");
        if is_there {
            let expected = make_file(&place.outside("expected"), 500_000, index + 1);
            assert!(read_file(&place.server(&name)) == expected, "{name}");
        }
    }
    assert!(!failed.is_empty(), "the rate leaves time to remove some");
}

#[test]
fn holes_stay_holes_and_replace_what_was_there() {
    let place = Place::new();
    let server = place.serve();
    std::fs::create_dir(place.client("tree")).unwrap();
    let path = place.client("tree/sparse");
    let file = File::create(&path).unwrap();
    file.set_len(1 << 30).unwrap();
    file.write_all_at(b"begin", 0).unwrap();
    file.write_all_at(&[7; 100_000], (500 << 20) + 5).unwrap();
    file.write_all_at(b"end", (1 << 30) - 3).unwrap();
    let blocks = path.metadata().unwrap().blocks();
    if blocks > 2048 {
        println!("SKIPPED: this file system has no holes");
        return;
    }
    // A part file of the same transfer, full of other bytes.
    std::fs::create_dir(place.server("tree")).unwrap();
    let part = File::create(place.server("tree/.sparse.haul-part")).unwrap();
    part.write_all_at(&vec![0xff; 4 * MIB], 0).unwrap();
    let sent = haul([
        "send",
        "--json",
        &text(&place.client("tree")),
        &server.at(""),
    ]);
    let moved = sent.ok().json()["moved_bytes"].as_u64().unwrap();
    assert!(moved < 1 << 20, "{moved}");
    let target = File::open(place.server("tree/sparse")).unwrap();
    let meta = target.metadata().unwrap();
    assert_eq!(meta.len(), 1 << 30);
    assert!(
        meta.blocks() <= blocks + blocks / 20 + 16,
        "{} {blocks}",
        meta.blocks()
    );
    let mut read = vec![0; 6 * MIB];
    target.read_exact_at(&mut read, 0).unwrap();
    assert!(&read[..5] == b"begin" && read[5..].iter().all(|byte| *byte == 0));
    target.read_exact_at(&mut read, 500 << 20).unwrap();
    assert!(read[..5] == [0; 5] && read[5..100_005] == [7; 100_000]);
    target.read_exact_at(&mut read[..3], (1 << 30) - 3).unwrap();
    assert_eq!(&read[..3], b"end");
}

#[test]
fn kills_of_either_end_at_random_moments_leave_no_wrong_file() {
    let rounds: u64 = rounds("HAUL_KILLS", 10).into();
    let place = Place::new();
    std::fs::create_dir_all(place.client("tree/d")).unwrap();
    for index in 0..300_u64 {
        let size = usize::try_from(index * 331 % 40_000).unwrap();
        make_file(&place.client(&format!("tree/d/{index}")), size, index + 1);
    }
    for index in 0..3_u64 {
        make_file(
            &place.client(&format!("tree/{index}")),
            3 * MIB,
            index + 1000,
        );
    }
    let source = tree(&place.client("tree"));
    let (mut seed, mut unfinished) = (0x5eed_u64, 0);
    for round in 0..rounds {
        let mut server = place.serve();
        let client = start([
            "send",
            "--rate",
            "200Mbit",
            "--give-up-after",
            "0s",
            &text(&place.client("tree")),
            &server.at(""),
        ]);
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_millis((seed >> 33) % 900));
        match round % 3 {
            0 => {
                server.kill();
                let _ = client.end();
            }
            1 => {
                client.kill();
                server.kill();
            }
            _ => {
                client.kill();
                // The server ends the session by itself.
                std::thread::sleep(Duration::from_millis(300));
                server.kill();
            }
        }
        let target = place.server("tree");
        let there = if target.exists() {
            tree(&target)
        } else {
            Tree::new()
        };
        for (path, node) in there.iter().filter(|(path, _)| !is_own(path)) {
            let shown = String::from_utf8_lossy(path);
            let expected = source
                .get(path)
                .unwrap_or_else(|| panic!("{shown} is not of the tree"));
            assert_eq!(
                node.content, expected.content,
                "round {round}, seed {seed}: {shown}"
            );
        }
        unfinished += u64::from(there.len() < source.len());
        if there.len() >= source.len() {
            std::fs::remove_dir_all(&target).unwrap();
        }
    }
    println!("{unfinished} of {rounds} kills came before the end");
    let server = place.serve();
    haul(["send", &text(&place.client("tree")), &server.at("")]).ok();
    assert_same(&place.client("tree"), &place.server("tree"));
    assert!(own_files(&place.server("")).is_empty());
}

#[test]
fn a_tree_that_is_being_written_is_not_written_twice_at_once() {
    let place = Place::new();
    let server = place.serve();
    std::fs::create_dir(place.client("tree")).unwrap();
    for index in 0..40_u64 {
        make_file(&place.client(&format!("tree/{index}")), 100_000, index + 1);
    }
    let send = |rate| {
        start([
            "send",
            "--rate",
            rate,
            "--give-up-after",
            "0s",
            &text(&place.client("tree")),
            &server.at(""),
        ])
    };
    let first = send("2Mbit");
    wait_until("the first file", || place.server("tree").exists());
    let second = send("100Mbit").end();
    assert_eq!(second.code, Some(5), "{}", second.stderr);
    assert!(
        second
            .stderr
            .contains("another transfer is writing the same tree"),
        "{}",
        second.stderr
    );
    first.end().ok();
    assert_same(&place.client("tree"), &place.server("tree"));
}

/// The files below a directory, relative to it, in order.
fn files_below(root: &Path) -> Vec<String> {
    let below = tree(root);
    let files = below.iter().filter(|(_, node)| node.kind == "file");
    files
        .map(|(path, _)| String::from_utf8_lossy(&path[1..]).into_owned())
        .collect()
}

#[test]
fn rules_and_ignore_files_choose_what_is_sent() {
    let place = Place::new();
    let server = place.serve();
    for name in [
        "a.c", "a.o", "keep.o", "sub/b.c", "sub/b.o", "tmp/c", "log/d",
    ] {
        let path = place.client("tree").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        make_file(&path, 10, 1);
    }
    std::fs::write(place.client("tree/.haulignore"), "/log/\n").unwrap();
    let tree = text(&place.client("tree/."));
    let rules = [
        "--include",
        "keep.o",
        "--exclude",
        "*.o",
        "--exclude",
        "/tmp/",
    ];
    haul([&["send"][..], &rules, &[&tree, &server.at("some/")]].concat()).ok();
    let expected = [".haulignore", "a.c", "keep.o", "sub/b.c"];
    assert_eq!(files_below(&place.server("some")), expected);
    assert!(!place.server("some/log").exists());

    haul([
        "send",
        "--no-ignore",
        "--exclude",
        "*.?",
        &tree,
        &server.at("rest/"),
    ])
    .ok();
    assert_eq!(
        files_below(&place.server("rest")),
        [".haulignore", "log/d", "tmp/c"]
    );
    haul(["send", "--exclude", "[", &tree, &server.at("")]).failed(2, "the pattern '['");
}

#[test]
fn a_list_chooses_what_is_sent_and_that_of_failures_is_one() {
    let place = Place::new();
    let server = place.serve();
    for name in ["a", "b", "sub/c", "sub/d", "sub/deep/e"] {
        let path = place.client("tree").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        make_file(&path, 10, 1);
    }
    let (tree, list) = (text(&place.client("tree/.")), place.outside("list"));
    std::fs::write(&list, "sub/deep\nb\nmissing\n").unwrap();
    let list = text(&list);
    let to = server.at("some/");
    let ended = haul(["send", "--from-file", &list, &tree, &to]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("failed: missing: "),
        "{}",
        ended.stderr
    );
    assert_eq!(files_below(&place.server("some")), ["b", "sub/deep/e"]);

    // The list of failures is enough to send what failed.
    std::fs::create_dir_all(place.server("again/sub/c")).unwrap();
    let (to, failed) = (server.at("again/"), text(&place.outside("failed")));
    let ended = haul(["send", "--failed-to", &failed, &tree, &to]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    std::fs::remove_dir(place.server("again/sub/c")).unwrap();
    let again = ["send", "--json", "--from-file", &failed, &tree, &to];
    let sent = haul(again).ok().json();
    assert_eq!(sent["entries"]["files"], 1, "{sent:#}");
    assert_same(&place.client("tree"), &place.server("again"));

    std::fs::write(&list, b"a\0sub/c\0").unwrap();
    haul([
        "send",
        "-0",
        "--from-file",
        &list,
        &tree,
        &server.at("nul/"),
    ])
    .ok();
    assert_eq!(files_below(&place.server("nul")), ["a", "sub/c"]);
    let single = text(&place.client("tree/a"));
    haul(["send", "--from-file", &list, &single, &server.at("")]).failed(2, "needs one directory");
}

#[test]
fn a_tree_of_which_nothing_or_little_can_be_offered_arrives_as_far_as_it_can() {
    let place = Place::new();
    let server = place.serve();
    let pipe = |path: &Path| {
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.unwrap().success());
    };
    for (name, files) in [("pipes", 0), ("both", 1)] {
        let dir = place.client(name);
        std::fs::create_dir(&dir).unwrap();
        (0..300).for_each(|index| pipe(&dir.join(format!("pipe-{index}"))));
        (0..files).for_each(|index| drop(make_file(&dir.join(format!("file-{index}")), 10, 1)));
        // The order of the scan is not the same each time.
        for round in 0..5 {
            let to = server.at(&format!("{name}-{round}/"));
            let contents = format!("{}/.", text(&dir));
            let sent = haul(["send", "--json", &contents, &to]).ok().json();
            assert_eq!(sent["entries"]["special"], 300, "{sent:#}");
            assert_eq!(sent["entries"]["files"], files, "{sent:#}");
            let from = server.at(&format!("{name}-{round}/."));
            let back = place.client(&format!("{name}-{round}"));
            std::fs::create_dir(&back).unwrap();
            haul(["get", &from, &text(&back)]).ok();
            assert_eq!(files_below(&back).len(), files);
        }
    }
}

#[test]
fn a_conflict_of_kinds_names_both_sides() {
    let place = Place::new();
    let server = place.serve();
    let fifo = |path: &Path| {
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.unwrap().success());
    };
    for (here, there, text_of) in [
        (
            "file",
            "directory",
            "'x' is a file at the source and a directory at the target",
        ),
        (
            "directory",
            "file",
            "'x' is a directory at the source and a file at the target",
        ),
        (
            "link",
            "directory",
            "'x' is a symbolic link at the source and a directory at the target",
        ),
        (
            "file",
            "pipe",
            "'x' is a file at the source and a device, pipe or socket at the target",
        ),
        (
            "directory",
            "link",
            "'x' is a directory at the source and a symbolic link at the target",
        ),
    ] {
        let make = |root: &Path, kind: &str| {
            std::fs::create_dir_all(root).unwrap();
            match kind {
                "file" => drop(make_file(&root.join("x"), 10, 1)),
                "directory" => {
                    std::fs::create_dir(root.join("x")).unwrap();
                    make_file(&root.join("x/inside"), 10, 1);
                }
                "link" => symlink("nowhere", root.join("x")).unwrap(),
                _ => fifo(&root.join("x")),
            }
        };
        for operation in ["send", "get"] {
            let (near, far) = (place.client("t"), place.server("t"));
            let (source, target) = match operation {
                "send" => (&near, &far),
                _ => (&far, &near),
            };
            make(source, here);
            make(target, there);
            let ended = match operation {
                "send" => haul(["send", &text(&near.join(".")), &server.at("t")]),
                _ => haul(["get", &server.at("t/."), &text(&near)]),
            };
            assert_eq!(ended.code, Some(1), "{operation}: {ended:?}");
            assert!(ended.stderr.contains(text_of), "{operation}: {ended:?}");
            assert!(
                ended.stderr.contains("remove or rename one of them"),
                "{ended:?}"
            );
            std::fs::remove_dir_all(&near).unwrap();
            std::fs::remove_dir_all(&far).unwrap();
        }
    }
}

#[test]
fn get_makes_a_directory_that_ends_in_a_slash_once_there_is_something_for_it() {
    let place = Place::new();
    let server = place.serve();
    make_file(&place.server("a"), 10, 1);
    let into = format!("{}/", text(&place.client("new/deep")));
    haul(["get", &server.at("missing"), &into]).failed(4, "missing");
    assert!(!place.client("new").exists());
    haul(["get", &server.at("a"), &into]).ok();
    assert!(place.client("new/deep/a").exists());
    let missing = text(&place.client("nowhere"));
    let ended = haul(["get", &server.at("a"), &missing]);
    assert!(ended.stderr.contains("put a / at its end"), "{ended:?}");
    let file = text(&place.client("new/deep/a"));
    haul(["get", &server.at("a"), &file]).failed(3, "is not a directory");
}

#[test]
fn failures_with_line_ends_in_their_names_are_a_list_with_nul() {
    let place = Place::new();
    let server = place.serve();
    std::fs::create_dir(place.client("tree")).unwrap();
    for name in ["two\nlines", "plain"] {
        make_file(&place.client("tree").join(name), 10, 1);
        std::fs::create_dir_all(place.server("to").join(name)).unwrap();
    }
    let (tree, to) = (text(&place.client("tree/.")), server.at("to"));
    let list = text(&place.outside("list"));
    let lines = ["send", "--failed-to", &list, &tree, &to];
    assert!(haul(lines).stderr.contains("add -0"));
    assert_eq!(read_file(&place.outside("list")), b"plain\n");
    let ended = haul(["send", "-0", "--failed-to", &list, &tree, &to]);
    assert!(!ended.stderr.contains("add -0"), "{ended:?}");
    for name in ["two\nlines", "plain"] {
        std::fs::remove_dir(place.server("to").join(name)).unwrap();
    }
    haul(["send", "-0", "--from-file", &list, &tree, &to]).ok();
    assert_same(&place.client("tree"), &place.server("to"));
}
