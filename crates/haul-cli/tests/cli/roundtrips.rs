//! How many round trips a command takes over a path that is nothing but long, where this machine
//! lets a lab be made.

use std::process::Command;

use crate::support::{MIB, Place, make_file, read_file, text};

const RTT_MS: u128 = 200;

#[test]
fn a_file_takes_few_round_trips_from_the_commands_start_to_its_exit() {
    let place = Place::new();
    for (name, size) in [("empty", 0), ("small", 1_000), ("mebibyte", MIB)] {
        make_file(&place.client(name), size, 1);
    }
    let (haul, timed) = (env!("CARGO_BIN_EXE_haul"), place.outside("timed"));
    let script = format!(
        "sleep 1; ping -c 1 -q b > {timed}.ping 2>&1\n\
         for name in empty small mebibyte; do\n\
         begun=$(date +%s%N); {haul} send -q --channel=udt {client}$name b: || exit 1\n\
         echo $name $(( ($(date +%s%N) - begun) / 1000000 )) >> {timed}; done",
        timed = text(&timed),
        client = text(&place.client("")),
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
    for (name, round_trips) in [("empty", 3), ("small", 4), ("mebibyte", 5)] {
        let line = times.lines().find_map(|line| line.strip_prefix(name));
        let took: u128 = line.unwrap().trim().parse().unwrap();
        assert!(took <= round_trips * RTT_MS, "{name}: {took} ms");
        let (sent, got) = (place.client(name), place.server(name));
        assert!(read_file(&sent) == read_file(&got), "{name}");
    }
}
