//! How many round trips a command takes over a path that is nothing but long, where this machine
//! lets a lab be made.

use std::process::Command;

use crate::support::{MIB, Place, make_file, read_file, text};

/// Long, so that processor time is little of it.
const RTT_MS: u128 = 400;
/// The fastest of these counts: what a loaded machine adds is no round trip.
const TRIES: [u8; 3] = [1, 2, 3];

/// A file's name, its size in bytes, and the round trips that it may take.
const FILES: [(&str, usize, u128); 4] = [
    ("empty", 0, 4),
    ("small", 4 << 10, 4),
    ("window", 64 << 10, 4),
    ("mebibyte", MIB, 5),
];
/// A tree's name, the number of its files of 4 KiB, and the round trips that it may take: one more
/// than a single file.
const TREES: [(&str, u64, u128); 2] = [("one", 1, 5), ("ten", 10, 5)];

#[test]
fn a_file_takes_few_round_trips_from_the_commands_start_to_its_exit() {
    let place = Place::new();
    make_operands(&place);
    let (haul, timed) = (env!("CARGO_BIN_EXE_haul"), place.outside("timed"));
    let names = FILES.map(|(name, ..)| name).into_iter();
    let names: Vec<_> = names.chain(TREES.map(|(name, ..)| name)).collect();
    let script = format!(
        "for wait in $(seq 100); do\n\
         {haul} ls --allow-insecure haul://b/ > {timed}.ls 2>&1 && break; sleep 0.3; done\n\
         timed() {{ kind=$1; shift; begun=$(date +%s%N); {haul} \"$@\" -q --allow-insecure || exit 1\n\
         echo $kind $(( ($(date +%s%N) - begun) / 1000000 )) >> {timed}; }}\n\
         export XDG_STATE_HOME={timed}.state\n\
         timed sync sync {client}tree haul://b\n\
         for try in {tries}; do for channel in udt tcp; do\n\
         dir=$channel$try; mkdir {client}$dir; for name in {names}; do\n\
         timed $channel-send-$name send --channel=$channel {client}$name haul://b/$dir/\n\
         timed $channel-get-$name get --channel=$channel haul://b/$dir/$name {client}$dir\n\
         done; done; for option in --update --delete; do\n\
         timed sync$option sync $option --channel=udt {client}tree haul://b; done; done",
        timed = text(&timed),
        client = text(&place.client("")),
        names = names.join(" "),
        tries = TRIES.map(|number| number.to_string()).join(" "),
    );
    let scenario = format!(
        "[path]\nrate = '1Gbit'\nrtt = '{RTT_MS}ms'\n\
         [[run]]\nhost = 'b'\nbackground = true\n\
         command = '{haul} serve {} --allow-insecure --listen 0.0.0.0:4725'\n\
         [[run]]\nhost = 'a'\ncommand = '''{script}'''\n",
        text(&place.server("")),
    );
    let path = place.outside("scenario.toml");
    std::fs::write(&path, scenario).unwrap();
    let mut lab = Command::new(haul);
    lab.args(["lab", "run", "-q", "--force"]).arg(&path);
    let output = lab.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() && said.contains("root") {
        println!("SKIPPED: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
    let times = String::from_utf8(read_file(&timed)).unwrap();
    println!("{times}");
    for (name, _, round_trips) in FILES {
        // TCP's first window is 10 packets, and doubles: it needs longer for more.
        let channels = if name == "small" {
            &["udt", "tcp"][..]
        } else {
            &["udt"]
        };
        for (channel, direction) in channels
            .iter()
            .flat_map(|one| [(one, "send"), (one, "get")])
        {
            let prefix = format!("{channel}-{direction}-{name} ");
            let took = fastest(&times, &prefix);
            assert!(took <= round_trips * RTT_MS, "{prefix}: {took} ms");
        }
        let sent = read_file(&place.client(name));
        for dir in TRIES
            .iter()
            .flat_map(|number| [format!("udt{number}"), format!("tcp{number}")])
        {
            assert!(
                sent == read_file(&place.server(&format!("{dir}/{name}"))),
                "{name}"
            );
            assert!(
                sent == read_file(&place.client(&format!("{dir}/{name}"))),
                "{name}"
            );
        }
    }
    for (name, files, round_trips) in TREES {
        for direction in ["send", "get"] {
            let prefix = format!("udt-{direction}-{name} ");
            let took = fastest(&times, &prefix);
            println!("{prefix}{} hundredths of a round trip", took * 100 / RTT_MS);
            assert!(took <= round_trips * RTT_MS, "{prefix}: {took} ms");
        }
        for dir in TRIES.map(|number| format!("udt{number}/{name}/d")) {
            for index in 0..files {
                let sent = read_file(&place.client(name).join(format!("d/{index}")));
                for there in [place.server(&dir), place.client(&dir)] {
                    assert!(sent == read_file(&there.join(index.to_string())), "{name}");
                }
            }
        }
    }
    for (option, round_trips) in [("--update", 5), ("--delete", 10)] {
        let took = fastest(&times, &format!("sync{option} "));
        assert!(took <= round_trips * RTT_MS, "sync {option}: {took} ms");
    }
}

/// Makes what is sent.
fn make_operands(place: &Place) {
    for (name, size, _) in FILES {
        make_file(&place.client(name), size, 1);
    }
    for (name, files, _) in TREES {
        std::fs::create_dir_all(place.client(name).join("d")).unwrap();
        for index in 0..files {
            make_file(
                &place.client(name).join(format!("d/{index}")),
                4 << 10,
                index,
            );
        }
    }
    std::fs::create_dir(place.client("tree")).unwrap();
    for index in 0..100 {
        make_file(&place.client(&format!("tree/{index}")), 100, index);
    }
}

/// Returns the least of the times with this prefix, ms.
fn fastest(times: &str, prefix: &str) -> u128 {
    let took = times.lines().filter_map(|line| line.strip_prefix(prefix));
    took.map(|took| took.trim().parse().unwrap()).min().unwrap()
}
