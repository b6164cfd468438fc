//! `haul sync`, `--dry-run`, the filters of `haul get`, and `--bwlimit`.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, ReplyAttr,
    ReplyDirectory, ReplyEntry, Request,
};
use serde_json::Value;

use crate::schema::Schema;
use crate::support::{
    Client, Disk, Ended, MIB, Place, Server, events, haul, make_file, read_file, set_time,
    start_with, text, wait_until,
};

/// The paths below a directory, with a slash behind those of directories.
fn paths(root: &Path) -> BTreeSet<String> {
    fn walk(dir: &Path, at: &str, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let name = entry.file_name().as_bytes().escape_ascii().to_string();
            if entry.file_type().unwrap().is_dir() {
                found.insert(format!("{at}{name}/"));
                walk(&entry.path(), &format!("{at}{name}/"), found);
            } else {
                found.insert(format!("{at}{name}"));
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(root, "", &mut found);
    found
}

fn set(paths: &[&str]) -> BTreeSet<String> {
    paths.iter().map(|path| (*path).to_owned()).collect()
}

/// Runs `haul` with the state of earlier deletions in `place`.
fn begin<S: AsRef<OsStr>>(place: &Place, args: impl IntoIterator<Item = S>) -> Client {
    let state = format!("XDG_STATE_HOME={}", text(&place.outside("state")));
    start_with(&[state], args)
}

fn run<S: AsRef<OsStr>>(place: &Place, args: impl IntoIterator<Item = S>) -> Ended {
    begin(place, args).end()
}

/// More paths differ than fit into the list of one request.
#[test]
fn a_comparison_by_digests_has_as_many_differences_as_there_are() {
    let place = Place::new();
    let server = place.serve();
    let deep = ["d".repeat(250), "e".repeat(250), "f".repeat(250)].join("/");
    let there = place.server("tree").join(&deep);
    std::fs::create_dir_all(&there).unwrap();
    std::fs::write(place.server("tree/same"), "same").unwrap();
    let count = 4_000;
    for index in 0..count {
        std::fs::write(there.join(format!("{index:0>250}")), "x").unwrap();
    }
    let here = place.client("back/tree");
    std::fs::create_dir_all(&here).unwrap();
    std::fs::write(here.join("same"), "same").unwrap();
    let to = text(&place.client("back"));
    let json = run(
        &place,
        ["sync", "--checksum", "--json", &server.at("tree"), &to],
    );
    let json = json.ok().json();
    assert_eq!(json["entries"]["copied"], count, "{json:#}");
    assert_eq!(json["moved_bytes"], count);
    assert_eq!(paths(&here), paths(&place.server("tree")));
}

/// A tree at the client, which the server has too.
fn same(place: &Place) -> Server {
    let tree = place.client("tree");
    std::fs::create_dir_all(tree.join("d/e")).unwrap();
    make_file(&tree.join("big"), 2 * MIB + 7, 1);
    for (index, name) in ["a", "b", "d/c", "d/e/f"].into_iter().enumerate() {
        make_file(&tree.join(name), 100, index as u64 + 2);
    }
    std::fs::write(tree.join(OsStr::from_bytes(b"\xff")), "x").unwrap();
    symlink("a", tree.join("link")).unwrap();
    std::fs::hard_link(tree.join("b"), tree.join("d/b")).unwrap();
    let server = place.serve();
    run(place, ["sync", &text(&tree), &server.at("")]).ok();
    assert_eq!(paths(&tree), paths(&place.server("tree")));
    server
}

#[test]
fn trees_that_are_the_same_cost_no_content_in_both_directions() {
    let place = Place::new();
    let server = same(&place);
    let (here, there) = (text(&place.client("tree")), server.at(""));
    std::fs::create_dir(place.client("back")).unwrap();
    let (from, back) = (server.at("tree"), text(&place.client("back")));
    run(&place, ["sync", "--delete", &from, &back]).ok();
    assert_eq!(
        paths(&place.client("back/tree")),
        paths(&place.server("tree"))
    );
    for [source, destination] in [[&here, &there], [&from, &back]] {
        for option in ["--update", "--checksum", "--delete"] {
            let before = server.log().len();
            let ended = run(&place, ["sync", "--json", option, source, destination]);
            let json = ended.ok().json();
            Schema::load("transfer-v1.json").check(&json);
            let copied = &json["entries"]["copied"];
            assert_eq!(
                (&json["moved_bytes"], copied),
                (&0.into(), &0.into()),
                "{json:#}"
            );
            if option == "--delete" {
                assert_eq!(json["deletion"]["deleted"], 0, "{json:#}");
            }
            // One session for the transfer, and one listing for what it needs beside it. Before a
            // deletion, another one shows whether a server's tree is on the file system that was
            // there last time.
            let expected = match option {
                "--update" => 1,
                "--delete" if source == &from => 3,
                _ => 2,
            };
            wait_until("the end of the sessions", || {
                let ends = |line: &String| line.contains(" by anonymous: ");
                let ended = server.log()[before..]
                    .iter()
                    .filter(|line| ends(line))
                    .count();
                ended == expected
            });
        }
    }
}

#[test]
fn what_changed_is_copied_and_what_is_gone_is_deleted_byte_for_byte() {
    let place = Place::new();
    let server = same(&place);
    let (here, there) = (place.client("tree"), place.server("tree"));
    std::fs::remove_dir_all(here.join("d/e")).unwrap();
    std::fs::remove_file(here.join(OsStr::from_bytes(b"\xff"))).unwrap();
    std::fs::remove_file(here.join("link")).unwrap();
    make_file(&here.join("a"), 200, 50);
    make_file(&here.join("new"), 10, 51);
    std::fs::write(place.outside("kept"), "outside").unwrap();
    symlink(place.outside(""), there.join("out")).unwrap();
    std::fs::create_dir(there.join("only-there")).unwrap();
    let before = paths(&there);
    let args = ["sync", "--delete", "--json", &text(&here), &server.at("")];
    let planned = run(&place, args.iter().copied().chain(["--dry-run"]))
        .ok()
        .json();
    Schema::load("plan-v1.json").check(&planned);
    assert_eq!(paths(&there), before, "a dry run changes nothing");
    let steps = planned["steps"].as_array().unwrap();
    let of = |step: &str| -> BTreeSet<&str> {
        let steps = steps.iter().filter(|one| one["step"] == step);
        steps
            .map(|one| one["path"]["name"].as_str().unwrap())
            .collect()
    };
    assert_eq!(of("copy"), BTreeSet::from(["tree/new"]));
    assert_eq!(of("replace"), BTreeSet::from(["tree/a"]));
    let gone = [
        "tree/\\xff",
        "tree/d/e",
        "tree/d/e/f",
        "tree/link",
        "tree/only-there",
        "tree/out",
    ];
    assert_eq!(of("delete"), BTreeSet::from(gone));
    let odd = steps.iter().find(|one| one["path"]["name_b64"].is_string());
    assert_eq!(odd.unwrap()["path"]["name_b64"], "dHJlZS//");
    let done = run(&place, args).ok().json();
    Schema::load("transfer-v1.json").check(&done);
    assert_eq!(done["deletion"]["deleted"], 6, "{done:#}");
    assert_eq!(paths(&here), paths(&there));
    assert!(read_file(&here.join("a")) == read_file(&there.join("a")));
    assert_eq!(read_file(&place.outside("kept")), b"outside");
    let modified = |path: &Path| path.metadata().unwrap().modified().unwrap();
    let again = run(&place, args).ok().json();
    assert_eq!(again["deletion"]["deleted"], 0);
    assert_eq!(modified(&here.join("d")), modified(&there.join("d")));
}

#[test]
fn what_is_excluded_stays_at_the_destination() {
    for is_sent in [true, false] {
        let place = Place::new();
        let server = same(&place);
        std::fs::create_dir(place.client("back")).unwrap();
        let (from, to) = match is_sent {
            true => (place.client("tree"), place.server("tree")),
            false => (place.server("tree"), place.client("back/tree")),
        };
        let operands = match is_sent {
            true => [text(&from), server.at("")],
            false => [server.at("tree"), text(&place.client("back"))],
        };
        let sync = |options: &[&str]| {
            let args = ["sync", "--delete"]
                .iter()
                .chain(options)
                .map(OsString::from);
            run(&place, args.chain(operands.iter().map(OsString::from)))
        };
        sync(&[]).ok();
        std::fs::write(from.join("d/.haulignore"), "*.o\n").unwrap();
        std::fs::create_dir(to.join("old")).unwrap();
        for name in ["d/x.o", "x.tmp", "old/y.tmp", "gone"] {
            std::fs::write(to.join(name), "").unwrap();
        }
        // The source has it, and leaves it out.
        std::fs::write(from.join("z.tmp"), "").unwrap();
        std::fs::write(to.join("z.tmp"), "").unwrap();
        let kept = ["d/x.o", "x.tmp", "old/y.tmp", "z.tmp"];
        let planned = sync(&["--exclude", "*.tmp", "-n"]).ok();
        let deletes = planned.stdout.lines();
        let deletes = deletes.filter(|line| line.starts_with("delete "));
        assert_eq!(deletes.collect::<Vec<_>>(), ["delete   tree/gone"]);
        assert!(planned.stderr.contains("not deleted: old: "), "{planned:?}");
        let ended = sync(&["--exclude", "*.tmp"]).ok();
        assert!(
            ended.stderr.contains("not deleted: old: "),
            "{}",
            ended.stderr
        );
        assert!(
            ended.stderr.contains("1 entry deleted; 1 kept"),
            "{}",
            ended.stderr
        );
        let left = paths(&to);
        assert!(kept.iter().all(|name| left.contains(*name)), "{left:?}");
        assert!(!left.contains("gone"), "{left:?}");
        // Without its ignore file it is unknown what is protected below.
        std::fs::remove_file(to.join("d/.haulignore")).unwrap();
        std::fs::write(to.join("d/gone"), "").unwrap();
        let ended = sync(&["--exclude", "*.tmp", "--exclude", ".haulignore"]).ok();
        assert!(
            ended.stderr.contains("nothing below 'd' is deleted"),
            "{}",
            ended.stderr
        );
        let left = paths(&to);
        assert!(
            left.contains("d/x.o") && left.contains("d/gone"),
            "{left:?}"
        );
        sync(&["--exclude", "*.tmp", "--no-ignore"]).ok();
        assert!(!paths(&to).contains("d/x.o"));
    }
}

#[test]
fn each_guard_keeps_the_destination() {
    let place = Place::new();
    let server = same(&place);
    let (here, there) = (place.client("tree"), place.server("tree"));
    let sync = |options: &[&str]| {
        let (here, to) = (text(&here), server.at(""));
        let args = ["sync", "--delete"].iter().chain(options).copied();
        run(&place, args.chain([&here[..], &to]))
    };
    for index in 0..5 {
        std::fs::write(there.join(format!("extra{index}")), "").unwrap();
    }
    let full = paths(&there);
    sync(&["--max-delete", "4"]).failed(7, "--max-delete 5 deletes them");
    sync(&["--max-delete", "4", "-n"]).failed(7, "--max-delete 5 deletes them");
    assert_eq!(paths(&there), full);
    // Another file system than last time.
    let state = place.outside("state/haul/sync");
    sync(&["--max-delete", "5"]).ok();
    let known = std::fs::read_to_string(&state).unwrap();
    let (line, _) = known.trim_end().rsplit_once(' ').unwrap();
    std::fs::write(&state, format!("{line} 1\n")).unwrap();
    std::fs::write(there.join("extra"), "").unwrap();
    std::fs::write(here.join("new"), "").unwrap();
    sync(&[]).failed(7, "another file system");
    assert!(there.join("extra").exists());
    assert!(!there.join("new").exists(), "it was transferred");
    std::fs::remove_file(here.join("new")).unwrap();
    sync(&["--accept-source"]).ok();
    assert!(!there.join("extra").exists());
    // A directory where a file is, so that an entry fails.
    std::fs::remove_file(there.join("a")).unwrap();
    std::fs::create_dir(there.join("a")).unwrap();
    std::fs::write(there.join("extra"), "").unwrap();
    let ended = sync(&["--json"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("nothing is deleted"),
        "{}",
        ended.stderr
    );
    assert!(there.join("extra").exists());
    assert_eq!(
        sync(&["-n"])
            .failed(1, "not everything can be replaced")
            .code,
        Some(1)
    );
    std::fs::remove_dir(there.join("a")).unwrap();
    // An empty source: its disk is not mounted.
    std::fs::remove_dir_all(&here).unwrap();
    std::fs::create_dir(&here).unwrap();
    let full = paths(&there);
    sync(&[]).failed(7, "the source is empty");
    assert_eq!(paths(&there), full);
}

/// A local destination is looked at before anything is transferred, and the source at the server.
#[test]
fn a_deletion_that_would_be_refused_here_ends_before_the_transfer() {
    let place = Place::new();
    let server = same(&place);
    let here = place.client("tree");
    let sync = || {
        let from = server.at("tree/.");
        run(&place, ["sync", "--delete", &from, &text(&here)])
    };
    std::fs::write(here.join("extra"), "").unwrap();
    sync().ok();
    assert!(!here.join("extra").exists());
    let state = place.outside("state/haul/sync");
    let known = std::fs::read_to_string(&state).unwrap();
    let (line, _) = known.trim_end().rsplit_once(' ').unwrap();
    std::fs::write(&state, format!("{line} 1\n")).unwrap();
    std::fs::write(place.server("tree/new"), "").unwrap();
    std::fs::write(here.join("extra"), "").unwrap();
    sync().failed(
        7,
        "nothing is transferred or deleted: the source is on another file system",
    );
    assert!(here.join("extra").exists() && !here.join("new").exists());
    std::fs::write(&state, known).unwrap();
    let Some(disk) = Disk::mount(&here, "ro") else {
        return;
    };
    sync().failed_somehow("cannot write to the local directory");
    drop(disk);
    sync().ok();
    assert!(!here.join("extra").exists() && here.join("new").exists());
}

#[test]
fn sources_deleted_on_the_way_are_listed_and_nothing_is_deleted() {
    let place = Place::new();
    let server = place.serve();
    let tree = place.client("tree");
    std::fs::create_dir(&tree).unwrap();
    for index in 0..200_u64 {
        make_file(&tree.join(format!("{index:03}")), 500_000, index + 1);
    }
    std::fs::create_dir(place.server("tree")).unwrap();
    std::fs::write(place.server("tree/only-there"), "").unwrap();
    let list = place.outside("failed");
    let (list_path, tree_path, to) = (text(&list), text(&tree), server.at(""));
    let client = begin(
        &place,
        [
            "sync",
            "--delete",
            "--bwlimit",
            "80Mbit",
            "--failed-to",
            &list_path,
            &tree_path,
            &to,
        ],
    );
    wait_until("the first file", || {
        let names = std::fs::read_dir(place.server("tree")).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        names
            .map(name)
            .any(|name| !name.as_bytes().starts_with(b".") && name != "only-there")
    });
    for index in 100..200 {
        std::fs::remove_file(tree.join(format!("{index:03}"))).unwrap();
    }
    let ended = client.end();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let failed = String::from_utf8(read_file(&list)).unwrap();
    for index in 0..200 {
        let name = format!("{index:03}");
        let is_there = place.server(&format!("tree/{name}")).exists();
        let is_listed = failed.lines().any(|line| line == format!("tree/{name}"));
        assert_eq!(is_there, !is_listed, "{name}");
    }
    assert!(
        ended.stderr.contains("nothing is deleted"),
        "{}",
        ended.stderr
    );
    assert!(place.server("tree/only-there").exists());
}

/// A file system with a file and a directory whose content cannot be read.
struct Broken;

impl Broken {
    fn attr(inode: u64) -> FileAttr {
        let time = SystemTime::UNIX_EPOCH;
        let is_file = inode == 2;
        FileAttr {
            ino: INodeNo(inode),
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: if is_file {
                FileType::RegularFile
            } else {
                FileType::Directory
            },
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Broken {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let inode = match name.as_bytes() {
            b"file" => 2,
            b"broken" => 3,
            _ => return reply.error(Errno::ENOENT),
        };
        reply.entry(&Duration::ZERO, &Self::attr(inode), Generation(0));
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &Self::attr(inode.into()));
    }

    fn readdir(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if u64::from(inode) == 3 {
            return reply.error(Errno::EIO);
        }
        if offset == 0 {
            let _ = reply.add(INodeNo(2), 1, FileType::RegularFile, "file");
            let _ = reply.add(INodeNo(3), 2, FileType::Directory, "broken");
        }
        reply.ok();
    }
}

#[test]
fn a_directory_that_cannot_be_read_deletes_nothing() {
    for is_sent in [true, false] {
        let place = Place::new();
        let source = match is_sent {
            true => place.client("tree"),
            false => place.server("tree"),
        };
        std::fs::create_dir(&source).unwrap();
        let _mounted = match fuser::spawn_mount(Broken, &source, &fuser::Config::default()) {
            Ok(mounted) => mounted,
            Err(error) => return println!("SKIPPED: FUSE needs /dev/fuse and root: {error}"),
        };
        let to = match is_sent {
            true => place.server("tree"),
            false => place.client("back/tree"),
        };
        std::fs::create_dir_all(to.join("broken")).unwrap();
        std::fs::write(to.join("broken/kept"), "").unwrap();
        std::fs::write(to.join("extra"), "").unwrap();
        let server = place.serve();
        let operands = match is_sent {
            true => [text(&source), server.at("")],
            false => [server.at("tree"), text(&place.client("back"))],
        };
        for option in ["--quiet", "--dry-run"] {
            let ended = run(
                &place,
                ["sync", "--delete", option, &operands[0], &operands[1]],
            );
            assert_eq!(ended.code, Some(1), "{ended:?}");
            assert!(ended.stderr.contains("nothing is deleted"), "{ended:?}");
            assert!(to.join("broken/kept").exists() && to.join("extra").exists());
        }
    }
}

#[test]
fn update_keeps_what_is_newer_and_completes_what_was_killed() {
    let place = Place::new();
    let server = same(&place);
    let (here, there) = (place.client("tree"), place.server("tree"));
    std::fs::write(there.join("a"), "newer").unwrap();
    std::fs::write(there.join("b"), "older").unwrap();
    set_time(&there.join("b"), 1_000_000, 0);
    let big = make_file(&here.join("big"), 20 * MIB, 77);
    set_time(&here.join("big"), 1_500_000_000, 0);
    set_time(&there.join("big"), 1_400_000_000, 0);
    let (tree, to) = (text(&here), server.at(""));
    let killed = begin(
        &place,
        [
            "sync",
            "-u",
            "--bwlimit",
            "80Mbit",
            "--json-stream",
            &tree,
            &to,
        ],
    );
    killed.wait_for_bytes(4 * MIB as u64);
    killed.kill();
    let part = there.join(".big.haul-part");
    assert!(part.exists(), "the part file is newer than the source");
    assert!(read_file(&there.join("big")) != big);
    run(&place, ["sync", "-u", &tree, &to]).ok();
    assert!(read_file(&there.join("big")) == big);
    assert_eq!(read_file(&there.join("a")), b"newer");
    assert!(read_file(&there.join("b")) == read_file(&here.join("b")));
    run(&place, ["sync", &tree, &to]).ok();
    assert!(read_file(&there.join("a")) == read_file(&here.join("a")));
}

#[test]
fn checksum_finds_what_size_and_time_hide() {
    let place = Place::new();
    let server = same(&place);
    let (here, there) = (place.client("tree"), place.server("tree"));
    let time = here.join("d/c").metadata().unwrap().modified().unwrap();
    make_file(&there.join("d/c"), 100, 99);
    let file = std::fs::File::options()
        .write(true)
        .open(there.join("d/c"))
        .unwrap();
    file.set_modified(time).unwrap();
    // The same content at another time is no difference.
    set_time(&there.join("big"), 1_000_000, 0);
    let (tree, to) = (text(&here), server.at(""));
    run(&place, ["sync", "--json", "-u", &tree, &to]).ok();
    assert!(read_file(&there.join("d/c")) != read_file(&here.join("d/c")));
    set_time(&there.join("big"), 1_000_000, 0);
    let planned = run(&place, ["sync", "--checksum", "-n", &tree, &to]).ok();
    assert_eq!(planned.stdout, "replace  tree/d/c\n");
    let done = run(&place, ["sync", "--checksum", "--json", &tree, &to])
        .ok()
        .json();
    assert_eq!(done["moved_bytes"], 100, "{done:#}");
    assert!(read_file(&there.join("d/c")) == read_file(&here.join("d/c")));
    // Directories that are missing, and files on both sides of them.
    std::fs::remove_dir_all(there.join("d")).unwrap();
    std::fs::remove_file(there.join("a")).unwrap();
    std::fs::create_dir_all(here.join("e/deep")).unwrap();
    make_file(&here.join("e/deep/g"), 10, 5);
    run(&place, ["sync", "--checksum", &tree, &to]).ok();
    assert_eq!(paths(&here), paths(&there));
}

#[test]
fn a_dry_run_of_send_and_get_shows_the_plan_and_changes_nothing() {
    let place = Place::new();
    let server = same(&place);
    let (here, there) = (place.client("tree"), place.server("tree"));
    make_file(&here.join("d/c"), 300, 9);
    make_file(&here.join("new"), 10, 9);
    make_file(&place.client("single"), 10, 9);
    let before = paths(&there);
    let lines =
        |ended: &Ended| -> BTreeSet<String> { ended.stdout.lines().map(str::to_owned).collect() };
    let (tree, single) = (text(&here), text(&place.client("single")));
    let sent = run(&place, ["send", "-n", &tree, &single, &server.at("")]).ok();
    let expected = ["copy     single", "copy     tree/new", "replace  tree/d/c"];
    assert_eq!(lines(&sent), set(&expected));
    let kept = run(
        &place,
        ["send", "-n", "--no-replace", &tree, &server.at("")],
    );
    assert!(kept.stdout.contains("conflict tree/d/c"), "{kept:?}");
    assert_eq!(kept.code, Some(1), "{kept:?}");
    let fresh = run(&place, ["send", "-n", &tree, &server.at("fresh/")]).ok();
    assert_eq!(fresh.stdout.lines().count(), 11, "{fresh:?}");
    run(&place, ["send", "-n", &tree, &server.at("missing")]).failed_somehow("missing");
    assert_eq!(paths(&there), before);
    assert!(!place.server("fresh").exists() && !place.server("single").exists());
    std::fs::remove_file(here.join("a")).unwrap();
    let got = run(
        &place,
        [
            "get",
            "-n",
            "--json-stream",
            &server.at("tree"),
            &text(&place.client("")),
        ],
    );
    let found = events(&got.ok().stdout);
    found
        .iter()
        .for_each(|event| Schema::load("plan-v1.json").check(event));
    let end = found.last().unwrap();
    let counts = ["copy", "replace", "delete"].map(|name| &end[name]);
    assert_eq!(counts, [&Value::from(1), &1.into(), &0.into()], "{end:#}");
    assert!(!here.join("a").exists());
    assert!(read_file(&there.join("d/c")) != read_file(&here.join("d/c")));
}

#[test]
fn get_chooses_at_the_server() {
    let place = Place::new();
    let server = same(&place);
    let there = place.server("tree");
    std::fs::write(there.join("d/.haulignore"), "*.o\n").unwrap();
    for name in ["d/x.o", "y.o", "z.tmp"] {
        std::fs::write(there.join(name), "").unwrap();
    }
    let get = |name: &str, options: &[&str]| {
        let to = place.client(name);
        std::fs::create_dir(&to).unwrap();
        let args = ["get"].iter().chain(options).map(OsString::from);
        let operands = [OsString::from(server.at("tree")), to.into_os_string()];
        haul(args.chain(operands)).ok();
        paths(&place.client(&format!("{name}/tree")))
    };
    let some = get(
        "rules",
        &[
            "--include",
            "/d/c",
            "--exclude",
            "/d/*",
            "--exclude",
            "*.tmp",
        ],
    );
    let expected = ["\\xff", "a", "b", "big", "d/", "d/c", "link", "y.o"];
    assert_eq!(some, set(&expected));
    let all = get("all", &["--no-ignore"]);
    assert_eq!(all, paths(&there));
    let ignored = get("ignored", &[]);
    assert!(
        !ignored.contains("d/x.o") && ignored.contains("y.o"),
        "{ignored:?}"
    );
    let list = place.outside("list");
    std::fs::write(&list, b"d/e\0\xff\0./a").unwrap();
    let listed = get("listed", &["-0", "--from-file", &text(&list)]);
    assert_eq!(listed, set(&["\\xff", "a", "d/", "d/e/", "d/e/f"]));
    // A plan of the same takes no more, and a directory that the transfer makes may be missing.
    let fresh = text(&place.client("fresh/"));
    let planned = ["get", "-n", "-0", "--from-file", &text(&list)];
    let planned = haul(planned.into_iter().chain([&*server.at("tree"), &fresh])).ok();
    let shown: BTreeSet<_> = planned.stdout.lines().map(str::to_owned).collect();
    let steps = ["\\xff", "a", "d", "d/e", "d/e/f"].map(|path| format!("copy     tree/{path}"));
    let shown_without_root = shown.iter().filter(|line| *line != "copy     tree");
    assert_eq!(
        shown_without_root.collect::<Vec<_>>().len(),
        steps.len(),
        "{shown:?}"
    );
    assert!(!place.client("fresh").exists());
    std::fs::write(&list, "missing\n").unwrap();
    let to = text(&place.client("all"));
    let list = text(&list);
    let missing = haul(["get", "--from-file", &list, &server.at("tree"), &to]);
    assert_eq!(missing.code, Some(1), "{missing:?}");
    assert!(missing.stderr.contains("missing"), "{missing:?}");
    haul(["get", "--from-file", &list, &server.at("tree/a"), &to]).failed(2, "one directory");
    haul(["get", "--exclude", "[", &server.at("tree"), &to]).failed(2, "pattern");
    let long = "a".repeat(70_000);
    haul(["get", "--exclude", &long, &server.at("tree"), &to]).failed(2, "64 KiB");
}

#[test]
fn the_limit_holds_in_both_directions_and_changes_while_it_runs() {
    let place = Place::new();
    let server = place.serve();
    make_file(&place.client("file"), 4 * MIB, 1);
    let (file, to) = (text(&place.client("file")), server.at(""));
    for channel in ["udt", "tcp"] {
        let limit = ["--bwlimit", "16Mbit", "--channel", channel];
        let timed = |args: &[&str]| {
            let begun = Instant::now();
            haul(args.iter().chain(&limit)).ok();
            begun.elapsed().as_secs_f64()
        };
        let sent = timed(&["send", "--recheck", &file, &to]);
        // 4 MiB at 16 Mbit/s take 2.1 s.
        assert!((1.9..4.5).contains(&sent), "{channel}: {sent}");
        std::fs::create_dir(place.client(channel)).unwrap();
        let got = timed(&["get", &server.at("file"), &text(&place.client(channel))]);
        assert!((1.9..4.5).contains(&got), "{channel}: {got}");
    }
    // One hour of the whole day would be too long for a test: the file changes.
    let table = place.outside("table");
    std::fs::write(&table, "00:00,64kbit\n").unwrap();
    let at = format!("@{}", text(&table));
    std::fs::create_dir(place.client("later")).unwrap();
    let (from, later) = (server.at("file"), text(&place.client("later")));
    let mut client = begin(
        &place,
        ["get", "--json-stream", "--bwlimit", &at, &from, &later],
    );
    client.wait_for_plan();
    std::thread::sleep(Duration::from_secs(1));
    assert!(client.is_running(), "64 kbit/s take 9 minutes");
    std::fs::write(&table, "what is wrong\n").unwrap();
    client.signal("HUP");
    std::thread::sleep(Duration::from_millis(500));
    assert!(client.is_running());
    std::fs::write(&table, "# faster\n00:00,1Gbit 23:59,1Gbit\n").unwrap();
    client.signal("HUP");
    let ended = client.end().ok();
    assert!(
        ended.stderr.contains("keeps the bandwidth limit"),
        "{}",
        ended.stderr
    );
    assert!(
        ended.stderr.contains("read the bandwidth limit again"),
        "{}",
        ended.stderr
    );
    assert!(read_file(&place.client("later/file")) == read_file(&place.client("file")));
    let wrong = haul(["send", "--bwlimit", "08:00,fast", &file, &to]).code;
    assert_eq!(wrong, Some(2));
}

#[test]
fn a_target_without_room_is_named_before_the_first_byte() {
    let place = Place::new();
    let Some(_disk) = Disk::mount(&place.server(""), "size=1m,nr_inodes=20") else {
        return;
    };
    let server = place.serve();
    std::fs::create_dir(place.client("many")).unwrap();
    for index in 0..50 {
        std::fs::write(place.client(&format!("many/{index}")), "x").unwrap();
    }
    make_file(&place.client("many/big"), 2 * MIB, 1);
    let (many, to) = (text(&place.client("many")), server.at(""));
    let planned = run(&place, ["sync", "-n", &many, &to]).failed(13, "bytes");
    assert!(planned.stderr.contains("lacks"), "{planned:?}");
    std::fs::remove_file(place.client("many/big")).unwrap();
    run(&place, ["sync", "-n", &many, &to]).failed(13, "the target has no room: it lacks 3");
    let ended = run(&place, ["sync", &many, &to]).failed(13, "the target has no room: it lacks 3");
    assert!(!place.server("many/0").exists(), "{ended:?}");
}

#[test]
fn operands_that_make_no_sense_are_refused() {
    let place = Place::new();
    let server = place.serve();
    make_file(&place.client("file"), 10, 1);
    let (file, to) = (text(&place.client("file")), server.at(""));
    run(&place, ["sync", &file, &to]).failed(3, "is not a directory");
    run(&place, ["sync", &file, &file]).failed(2, "no operand is at a host");
    run(&place, ["sync", &to, &to]).failed(2, "both operands are at a host");
    let missing = text(&place.client("missing"));
    run(&place, ["sync", &missing, &to]).failed(4, "there is no file");
}

/// A file of 32 MiB at both ends, which `--delta` replaces.
struct Delta {
    place: Place,
    server: Server,
    here: PathBuf,
    there: PathBuf,
}

const DELTA_SIZE: usize = 32 * MIB;

impl Delta {
    fn new() -> Self {
        let place = Place::new();
        let server = place.serve();
        std::fs::create_dir(place.client("tree")).unwrap();
        std::fs::create_dir(place.server("tree")).unwrap();
        let (here, there) = (place.client("tree/a"), place.server("tree/a"));
        let old = make_file(&here, DELTA_SIZE, 1);
        std::fs::write(&there, old).unwrap();
        Self {
            place,
            server,
            here,
            there,
        }
    }

    fn args(&self) -> [String; 5] {
        let tree = text(&self.place.client("tree"));
        [
            "sync".into(),
            "--delta".into(),
            "--json".into(),
            tree,
            self.server.at(""),
        ]
    }

    /// Writes the source anew, and returns how many bytes a transfer then moves.
    fn sync(&self, content: &[u8]) -> u64 {
        std::fs::write(&self.here, content).unwrap();
        self.go_on(content)
    }

    /// Returns how many bytes a transfer moves of a source that has this content.
    fn go_on(&self, content: &[u8]) -> u64 {
        let json = run(&self.place, self.args()).ok().json();
        assert!(read_file(&self.there) == content);
        json["moved_bytes"].as_u64().unwrap()
    }
}

#[test]
fn of_a_replaced_file_only_what_differs_in_place_crosses() {
    let delta = Delta::new();
    let mut content = read_file(&delta.here);
    let piece = 4 << 10;
    // 1 % of it in two places, one of which lies across blocks.
    for at in [5 * MIB - 1000, 20 * MIB] {
        content[at..at + DELTA_SIZE / 200].fill(1);
    }
    let moved = delta.sync(&content);
    assert!(moved <= DELTA_SIZE as u64 * 3 / 100, "{moved}");
    // In many blocks, and many places of one.
    for at in (0..DELTA_SIZE)
        .step_by(3 * MIB / 2)
        .chain((7..20).map(|n| n * 5 * piece))
    {
        content[at] ^= 1;
    }
    let moved = delta.sync(&content);
    assert!(moved <= 40 * piece as u64, "{moved}");
    // 1 % of its pages, scattered as a database scatters them.
    let pages = DELTA_SIZE / 4096;
    for n in 0..pages / 100 {
        content[n * 7919 % pages * 4096 + 9] ^= 1;
    }
    let moved = delta.sync(&content);
    // The digests of the pieces of each block, beside those pages.
    let digests = DELTA_SIZE as u64 / 4096 * 32;
    let most = DELTA_SIZE as u64 * 3 / 100;
    assert!(
        moved == (pages / 100 * 4096) as u64 && moved + digests < most,
        "{moved}"
    );
    // Longer, then shorter.
    content.extend_from_slice(&[7; 3 * MIB / 2]);
    let moved = delta.sync(&content);
    assert!(moved <= 3 * MIB as u64 / 2 + 2 * piece as u64, "{moved}");
    content.truncate(10 * MIB + 9);
    let moved = delta.sync(&content);
    assert!(moved <= piece as u64, "{moved}");
    // A byte at the beginning moves everything.
    content.insert(0, 0);
    let moved = delta.sync(&content);
    assert!(moved <= content.len() as u64, "{moved}");
    assert!(moved > content.len() as u64 * 9 / 10, "{moved}");
    // In the other direction, where the client receives.
    content[3 * MIB] ^= 1;
    std::fs::write(&delta.there, &content).unwrap();
    let args = [
        "sync",
        "--delta",
        "--json",
        &delta.server.at("tree/."),
        &text(&delta.place.client("tree")),
    ];
    let json = run(&delta.place, args).ok().json();
    assert_eq!(json["moved_bytes"], piece);
    assert!(read_file(&delta.here) == content);
    let rest = paths(&delta.place.server("tree"));
    assert_eq!(rest, set(&["a"]));
}

#[test]
fn a_hole_of_a_replaced_file_costs_no_more_than_its_data() {
    let delta = Delta::new();
    let file = std::fs::File::create(&delta.here).unwrap();
    let old = read_file(&delta.there);
    for at in [0, 20 * MIB] {
        file.write_all_at(&old[at..at + 4 * MIB], at as u64)
            .unwrap();
    }
    file.set_len(DELTA_SIZE as u64).unwrap();
    if file.metadata().unwrap().blocks() >= DELTA_SIZE as u64 / 512 {
        println!("SKIPPED: this file system has no holes");
        return;
    }
    let json = run(&delta.place, delta.args()).ok().json();
    assert!(read_file(&delta.there) == read_file(&delta.here));
    assert_eq!(json["moved_bytes"], 0, "{json:#}");
    let blocks = delta.there.metadata().unwrap().blocks();
    assert!(blocks < DELTA_SIZE as u64 / 512 / 2, "{blocks}");
}

/// Either end is killed, or the source changes: the old file stays until the new one is whole.
#[test]
fn a_replaced_file_is_the_old_or_the_new_one_whatever_happens_meanwhile() {
    let delta = Delta::new();
    let old = read_file(&delta.here);
    let mut new = old.clone();
    for at in (0..DELTA_SIZE).step_by(MIB) {
        new[at..at + MIB / 2].fill(3);
    }
    std::fs::write(&delta.here, &new).unwrap();
    let begin = || {
        let args = delta.args().into_iter().filter(|arg| arg != "--json");
        let more = ["--json-stream", "--bwlimit=10Mbit"].map(str::to_owned);
        let client = begin(&delta.place, args.chain(more));
        // Half of it is the same.
        client.wait_for_bytes(DELTA_SIZE as u64 * 5 / 8);
        client
    };
    let client = begin();
    // The journal knows of blocks within a second.
    std::thread::sleep(Duration::from_millis(1500));
    client.kill();
    assert!(read_file(&delta.there) == old);
    let moved = delta.go_on(&new);
    let most = DELTA_SIZE as u64 * 3 / 8 + 2 * MIB as u64;
    assert!(moved <= most, "{moved}: nothing was kept");
    for at in (0..DELTA_SIZE).step_by(MIB) {
        new[at..at + MIB / 2].fill(4);
    }
    let old = read_file(&delta.there);
    std::fs::write(&delta.here, &new).unwrap();
    let client = begin();
    new[DELTA_SIZE - 1] ^= 1;
    std::fs::write(&delta.here, &new).unwrap();
    let ended = client.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(read_file(&delta.there) == old);
    // What has arrived belongs to another time of the source; the old file helps.
    let moved = delta.sync(&new);
    assert!(moved <= DELTA_SIZE as u64 * 5 / 8, "{moved}");
}
