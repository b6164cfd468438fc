//! Trees of many files and files of many bytes: what both ends take, and how soon they begin.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::odd::rounds;
use crate::support::{MIB, Place, haul, make_file, read_file, start, text, wait_until};

/// So many files fill the credit of offered entries.
const FULL: u32 = 100_000;
/// No end takes more memory for a tree, KiB.
const MEMORY: u64 = 256 << 10;

/// Returns whether a file has its final name.
fn has_final(dir: &Path) -> bool {
    let is_final = |entry: std::io::Result<std::fs::DirEntry>| {
        let name = entry.unwrap().file_name();
        !name.to_string_lossy().contains(".haul-")
    };
    std::fs::read_dir(dir).is_ok_and(|mut entries| entries.any(is_final))
}

/// Sends so many files of 1 KiB, all in one directory; returns the memory of the two ends, KiB, and
/// when the first file had its name.
fn send_flat(files: u32) -> ([u64; 2], Duration) {
    let place = Place::new();
    std::fs::create_dir(place.client("tree")).unwrap();
    for index in 0..files {
        std::fs::write(place.client("tree").join(index.to_string()), [7; 1024]).unwrap();
    }
    // A source is on its disk, as a rule; a batch of the target, on the same one, would wait for
    // it.
    assert!(Command::new("sync").status().unwrap().success());
    let server = place.serve();
    let begun = Instant::now();
    let contents = text(&place.client("tree/."));
    let mut client = start(["send", "--json", &contents, &server.at("to/")]);
    let mut first = None;
    let mut peak = 0;
    while client.is_running() {
        if first.is_none() && has_final(&place.server("to")) {
            first = Some(begun.elapsed());
        }
        peak = client.peak_kib().unwrap_or(peak);
        std::thread::sleep(Duration::from_millis(20));
        assert!(begun.elapsed() < Duration::from_secs(3600));
    }
    let sent = client.end().ok().json();
    assert_eq!(sent["entries"]["copied"], files);
    let ends = [peak, server.peak_kib()];
    println!(
        "{files} files: {ends:?} KiB, first after {first:?}, all after {:?}",
        begun.elapsed()
    );
    (ends, first.unwrap())
}

/// `HAUL_FILES` says how many files the larger tree has, e.g. 1000000 (rclone#7974 ran out of
/// memory).
#[test]
fn memory_does_not_grow_with_the_number_of_files_and_the_first_arrives_soon() {
    let files = rounds("HAUL_FILES", 20_000);
    // Fewer files do not fill the credit of offered entries.
    let (base, _) = send_flat(if files > FULL { FULL } else { 2_000 });
    let (many, first) = send_flat(files);
    // A machine that runs other tests needs longer.
    let most = Duration::from_secs(if files > FULL { 2 } else { 5 });
    assert!(first < most, "{first:?}");
    for (base, many) in base.into_iter().zip(many) {
        assert!(many <= MEMORY, "{many} KiB");
        assert!(files <= FULL || many <= base * 6 / 5, "{base}, {many} KiB");
    }
}

/// Zeros replace what was there, to the last byte (rsync#450 left it).
#[test]
fn zeros_at_the_end_of_a_sparse_file_replace_old_data_to_the_last_byte() {
    let place = Place::new();
    let server = place.serve();
    std::fs::create_dir(place.client("tree")).unwrap();
    std::fs::create_dir(place.server("tree")).unwrap();
    let sizes = [
        (3 * MIB + 1, MIB),
        (3 * MIB, 0),
        (5 * MIB - 1, 5 * MIB - 2),
        (MIB / 2, 10),
    ];
    for (index, (size, data)) in (0..).zip(sizes) {
        let name = format!("tree/{index}");
        let file = File::create(place.client(&name)).unwrap();
        file.write_all_at(&vec![7; data], 0).unwrap();
        file.set_len(size as u64).unwrap();
        for old in [name.clone(), format!("tree/.{index}.haul-part")] {
            std::fs::write(place.server(&old), vec![0xff; size + 10]).unwrap();
        }
    }
    haul(["send", &text(&place.client("tree")), &server.at("")]).ok();
    for index in 0..sizes.len() {
        let name = format!("tree/{index}");
        let (here, there) = (place.client(&name), place.server(&name));
        assert!(read_file(&here) == read_file(&there), "{name}");
        let (here, there) = (
            here.metadata().unwrap().blocks(),
            there.metadata().unwrap().blocks(),
        );
        // A file of at most 1 MiB is moved whole.
        let is_small = index == 3;
        assert!(
            is_small || there <= here + here / 20 + 16,
            "{name}: {there} for {here}"
        );
    }
}

/// A transfer of 100 GiB with holes goes on at once (croc#1029, #981 hashed for hours). `HAUL_MIB`
/// says how many of them are data.
#[test]
fn a_killed_transfer_of_a_sparse_file_moves_new_bytes_soon() {
    let data = u64::from(rounds("HAUL_MIB", 160));
    let place = Place::new();
    std::fs::create_dir(place.client("tree")).unwrap();
    let file = File::create(place.client("tree/huge")).unwrap();
    file.set_len(100 << 30).unwrap();
    let mut content = vec![0; MIB];
    for index in 0..data {
        content.fill(u8::try_from(index % 251 + 1).unwrap());
        file.write_all_at(&content, index * ((100 << 30) / data) / 4096 * 4096)
            .unwrap();
    }
    if place.client("tree/huge").metadata().unwrap().blocks() > 1 << 27 {
        println!("SKIPPED: this file system has no holes");
        return;
    }
    let mut server = place.serve();
    let to = server.at("");
    let tree = text(&place.client("tree"));
    let half = data * MIB as u64 / 2;
    let client = start(["send", "--rate=200Mbit", "--json-stream", &tree, &to]);
    client.wait_for_bytes(half);
    // The journal knows of blocks within a second.
    std::thread::sleep(Duration::from_millis(1500));
    client.kill();
    server.kill();
    let server = place.serve();
    let begun = Instant::now();
    let to = server.at("");
    let client = start(["send", "--rate=80Mbit", "--json-stream", &tree, &to]);
    let before = server.written_bytes();
    wait_until("new bytes", || server.written_bytes() > before + MIB as u64);
    let after = begun.elapsed();
    let present = client.wait_for_bytes(1);
    assert!(present >= half, "{present} of {half} were kept");
    assert!(after < Duration::from_secs(5), "{after:?}");
    println!("new bytes after {after:?}");
    client.kill();
    drop(server);
    let server = place.serve();
    haul(["send", &tree, &server.at("")]).ok();
    let there = File::open(place.server("tree/huge")).unwrap();
    let mut read = vec![0; MIB];
    for index in 0..data {
        content.fill(u8::try_from(index % 251 + 1).unwrap());
        there
            .read_exact_at(&mut read, index * ((100 << 30) / data) / 4096 * 4096)
            .unwrap();
        assert!(read == content, "{index}");
    }
}

/// Members are cut, written to, made longer or replaced at a random moment: the content from before
/// or after arrives. `HAUL_CHANGES` is how often.
#[test]
fn a_member_that_changes_at_any_moment_arrives_as_it_was_or_fails() {
    let place = Place::new();
    let server = place.serve();
    let path = place.client("tree/a");
    std::fs::create_dir(place.client("tree")).unwrap();
    let (mut random, mut failed) = (20_261_128_u64, 0);
    let rounds = rounds("HAUL_CHANGES", 8);
    for round in 0..rounds {
        random = random * 16_807 % 0x7fff_ffff;
        let size = if round % 2 == 0 { 3 * MIB } else { MIB };
        let before = make_file(&path, size, random);
        for other in 0..4 {
            make_file(
                &place.client(&format!("tree/o{other}")),
                MIB,
                random + other,
            );
        }
        let to = format!("{round}/");
        let contents = text(&place.client("tree/."));
        let client = start(["send", "--rate=200Mbit", &contents, &server.at(&to)]);
        std::thread::sleep(Duration::from_millis(20 + random % 330));
        let open = || File::options().write(true).open(&path).unwrap();
        match random % 4 {
            0 => open().set_len(1000).unwrap(),
            1 => open().write_all_at(b"changed", 100).unwrap(),
            2 => open().write_all_at(b"longer", size as u64).unwrap(),
            _ => {
                make_file(&place.client("new"), size, random + 9);
                std::fs::rename(place.client("new"), &path).unwrap();
            }
        }
        let after = read_file(&path);
        let ended = client.end();
        let there = place.server(&format!("{round}/a"));
        match ended.code {
            Some(0) => assert!(there.exists()),
            Some(1) => failed += 1,
            _ => panic!("{ended:?}"),
        }
        if there.exists() {
            let there = read_file(&there);
            assert!(
                there == before || there == after,
                "round {round}: {ended:?}"
            );
        }
    }
    println!("{failed} of {rounds} changes failed the member");
}
