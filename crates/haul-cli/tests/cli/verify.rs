//! `haul ls` and `haul verify`: trees are listed and compared, and no content crosses.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::schema::Schema;
use crate::support::{Ended, MIB, Place, events, haul, make_file};

/// The same tree at both ends, with every kind of entry.
fn trees() -> Place {
    let place = Place::new();
    for root in [place.server("data"), place.client("data")] {
        std::fs::create_dir_all(root.join("a/deep")).unwrap();
        std::fs::create_dir(root.join("empty")).unwrap();
        make_file(&root.join("a/deep/big"), 5 * MIB + 17, 1);
        make_file(&root.join("a/small"), 10, 2);
        std::fs::write(root.join("none"), "").unwrap();
        std::fs::write(root.join("tab\there"), "x").unwrap();
        std::fs::write(root.join(OsStr::from_bytes(b"\xff")), "y").unwrap();
        std::fs::hard_link(root.join("a/small"), root.join("a/again")).unwrap();
        symlink("../none", root.join("a/link")).unwrap();
    }
    place
}

fn lines(ended: &Ended) -> Vec<&str> {
    let mut lines: Vec<_> = ended.stdout.lines().collect();
    lines.sort_unstable();
    lines
}

/// The last fields of lines of `haul ls`.
fn names(ended: &Ended) -> Vec<String> {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // Mode, size and time come first.
    let name = |line: &str| line.split_once("Z ").unwrap().1.to_owned();
    let mut names: Vec<_> = ended.stdout.lines().map(name).collect();
    names.sort();
    names
}

#[test]
fn ls_lists_a_directory_a_file_and_a_tree() {
    let place = trees();
    let server = place.serve();
    let top = haul(["ls", &server.at("data/")]);
    assert_eq!(names(&top).len(), 5, "{top:?}");
    assert!(names(&top).contains(&"tab\\there".to_owned()), "{top:?}");
    let order: Vec<_> = top
        .stdout
        .lines()
        .map(|line| &line[line.len() - 2..])
        .collect();
    assert_eq!(order, [" a", "ty", "ne", "re", "ff"]);
    let file = haul(["ls", &server.at("data/a/small")]);
    assert_eq!(names(&file), ["small"]);
    assert_eq!(
        file.stdout.split_whitespace().nth(1),
        Some("10"),
        "{}",
        file.stdout
    );
    let all = haul(["ls", "-R", "--exclude", "/a/deep", &server.at("data")]);
    let found = names(&all);
    assert!(found.contains(&"a/link -> ../none".to_owned()), "{found:?}");
    assert!(found.iter().all(|name| !name.contains("deep")), "{found:?}");
    assert_eq!(
        found.iter().filter(|name| name.contains(" = a/")).count(),
        1,
        "{found:?}"
    );
}

#[test]
fn ls_prints_objects_with_names_that_are_no_text() {
    let place = trees();
    let server = place.serve();
    let ended = haul(["ls", "-R", "--json-stream", &server.at("data")]);
    let entries = events(&ended.stdout);
    let schema = Schema::load("list-v1.json");
    entries.iter().for_each(|entry| schema.check(entry));
    assert_eq!(entries.len(), 10, "{entries:?}");
    let of = |kind: &str| entries.iter().filter(|entry| entry["kind"] == kind).count();
    assert_eq!(
        (of("file"), of("directory"), of("symlink"), of("hard_link")),
        (5, 3, 1, 1)
    );
    let odd = entries
        .iter()
        .find(|entry| entry["path_b64"] == "/w==")
        .unwrap();
    assert_eq!(
        (&odd["size"], &odd["schema"]),
        (&Value::from(1), &Value::from("haul.list/1"))
    );
}

#[test]
fn nothing_outside_is_listed() {
    let place = trees();
    std::fs::write(place.outside("secret"), "x").unwrap();
    symlink("..", place.server("up")).unwrap();
    let server = place.serve();
    for path in ["../", "../secret", "up", "up/secret", "data/../../secret"] {
        let ended = haul(["ls", &server.at(path)]);
        assert_ne!(ended.code, Some(0), "{path}: {ended:?}");
        assert!(ended.stdout.is_empty(), "{path}: {ended:?}");
    }
    let missing = haul(["ls", &server.at("data/missing/")]);
    assert_eq!(missing.code, Some(4), "{missing:?}");
    assert!(!place.server("data/missing").exists(), "it was made");
}

#[test]
fn equal_trees_verify_in_both_directions() {
    let place = trees();
    let server = place.serve();
    let (local, remote) = (place.client("data"), server.at("data"));
    let local = local.to_str().unwrap();
    for operands in [[local, &remote], [&remote, local]] {
        let ended = haul(["verify", operands[0], operands[1]]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stdout.is_empty(), "{ended:?}");
        assert!(
            ended.stderr.contains("10 entries are the same"),
            "{ended:?}"
        );
    }
    let file = format!("{local}/a/deep/big");
    let ended = haul(["verify", &file, &server.at("data/a/deep/big")]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let both = haul(["verify", local, local]);
    assert_eq!(both.code, Some(2), "{both:?}");
}

#[test]
fn what_differs_is_named_with_its_ranges() {
    let place = trees();
    let server = place.serve();
    let flip = |path: &Path, at: usize| {
        let mut content = std::fs::read(path).unwrap();
        content[at] ^= 1;
        std::fs::write(path, content).unwrap();
    };
    let big = place.server("data/a/deep/big");
    flip(&big, 2 * MIB);
    flip(&big, 5 * MIB + 16);
    std::fs::write(place.server("data/none"), "more").unwrap();
    std::fs::remove_dir(place.server("data/empty")).unwrap();
    std::fs::write(place.server("data/empty"), "").unwrap();
    std::fs::remove_file(place.server("data/tab\there")).unwrap();
    std::fs::remove_file(place.server("data/a/link")).unwrap();
    symlink("elsewhere", place.server("data/a/link")).unwrap();
    std::fs::write(place.server("data/extra"), "").unwrap();
    let (local, remote) = (place.client("data"), server.at("data"));
    let ended = haul([OsStr::new("verify"), local.as_os_str(), OsStr::new(&remote)]);
    assert_eq!(ended.code, Some(11), "{ended:?}");
    let end = 5 * MIB + 16;
    let expected = [
        format!(
            "a/deep/big: differs in bytes {}-{}, {}-{end}",
            2 * MIB,
            3 * MIB - 1,
            5 * MIB
        ),
        "a/link: a link with another target".to_owned(),
        "empty: of another kind".to_owned(),
        "none: 4 bytes instead of 0".to_owned(),
        "tab\\there: missing".to_owned(),
    ];
    assert_eq!(lines(&ended), expected);
    assert!(
        ended.stderr.contains("1 is only at the destination"),
        "{ended:?}"
    );
    let back = haul(["verify", "--json-stream", &remote, local.to_str().unwrap()]);
    assert_eq!(back.code, Some(11), "{back:?}");
    let events = events(&back.stdout);
    let schema = Schema::load("verify-v1.json");
    events.iter().for_each(|event| schema.check(event));
    let end = events.iter().find(|event| event["event"] == "end").unwrap();
    let counts =
        ["different", "missing", "extra", "failures"].map(|name| end[name].as_u64().unwrap());
    assert_eq!(counts, [4, 1, 1, 0]);
    let content = events
        .iter()
        .find(|event| event["difference"] == "content")
        .unwrap();
    assert_eq!(content["ranges"][0], serde_json::json!([2 * MIB, 3 * MIB]));
}

#[test]
fn a_file_and_a_directory_are_not_the_same() {
    let place = trees();
    let server = place.serve();
    let local = |name: &str| place.client(name).to_str().unwrap().to_owned();
    std::fs::create_dir(place.client("hollow")).unwrap();
    for (source, destination) in [
        (local("data/a/small"), server.at("data/a")),
        (local("data/a/small"), server.at("data/empty")),
        (server.at("data/a"), local("data/a/small")),
        (local("data"), server.at("data/a/small")),
        (local("hollow"), server.at("data/a/small")),
        (server.at("data/a/small"), local("hollow")),
    ] {
        haul(["verify", &source, &destination]).failed(11, "is a directory");
    }
}

#[test]
fn what_cannot_be_examined_is_no_success() {
    let place = trees();
    // Nothing below may be taken where the ignore file cannot be understood.
    std::fs::write(place.server("data/a/.haulignore"), b"\xff").unwrap();
    let server = place.serve();
    let (local, remote) = (place.client("data"), server.at("data"));
    let local = local.to_str().unwrap();
    let ended = haul(["verify", "--exclude", "/a/*", &remote, local]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains(".haulignore"), "{ended:?}");
    let ended = haul([
        "verify",
        "--no-ignore",
        "--exclude",
        ".haulignore",
        &remote,
        local,
    ]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn a_manifest_is_one_that_b3sum_reads() {
    let place = trees();
    std::fs::remove_file(place.client("data").join(OsStr::from_bytes(b"\xff"))).unwrap();
    std::fs::write(place.client("data/line\nend"), "z").unwrap();
    std::fs::write(place.server("data/line\nend"), "z").unwrap();
    let server = place.serve();
    let (local, manifest) = (place.client("data"), place.outside("manifest"));
    let ended = haul([
        OsStr::new("verify"),
        OsStr::new("--manifest"),
        manifest.as_os_str(),
        local.as_os_str(),
        OsStr::new(&server.at("data")),
    ]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let text = std::fs::read_to_string(&manifest).unwrap();
    assert_eq!(text.lines().count(), 6, "{text}");
    let small = blake3::hash(&std::fs::read(local.join("a/small")).unwrap());
    assert!(text.contains(&format!("{small}  a/small\n")), "{text}");
    assert!(text.contains("  line\\nend\n"), "{text}");
    let mut b3sum = Command::new("b3sum");
    b3sum
        .arg("--check")
        .arg(&manifest)
        .current_dir(&local)
        .stdout(Stdio::null());
    match b3sum.status() {
        Ok(status) => assert!(status.success(), "{text}"),
        Err(error) => println!("SKIPPED: b3sum does not run: {error}"),
    }
}

#[test]
fn what_differs_is_a_list_that_send_takes() {
    let place = trees();
    std::fs::write(place.client("data/two\nlines"), "x").unwrap();
    std::fs::write(place.client("data/a/small"), "other").unwrap();
    let server = place.serve();
    let (here, list) = (place.client("data"), place.outside("list"));
    let (here, list) = (here.to_str().unwrap(), list.to_str().unwrap());
    let there = server.at("data");
    let verify = |null: &[&str]| {
        let args = ["verify", "--failed-to", list, here, &there];
        let ended = haul(args.iter().chain(null));
        assert_eq!(ended.code, Some(11), "{ended:?}");
        (ended, std::fs::read(list).unwrap())
    };
    let (ended, found) = verify(&[]);
    assert!(ended.stderr.contains("add -0"), "{ended:?}");
    assert_eq!(
        found.iter().filter(|byte| **byte == b'\n').count(),
        2,
        "{ended:?}"
    );
    let (ended, found) = verify(&["-0"]);
    assert!(!ended.stderr.contains("add -0"), "{ended:?}");
    let found: Vec<_> = found.split(|byte| *byte == 0).collect();
    assert!(found.contains(&&b"two\nlines"[..]), "{found:?}");
    let contents = format!("{here}/.");
    haul(["send", "-0", "--from-file", list, &contents, &there]).ok();
    assert_eq!(haul(["verify", here, &there]).code, Some(0));
}
