//! What errors tell: which argument is wrong and what to do that has not been done already.

use crate::support::{Ended, Place, Server, haul, start_with, text};

/// It must have ended with this exit code and `text` on stderr.
#[track_caller]
fn says(ended: &Ended, code: i32, text: &str) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert!(ended.stderr.contains(text), "{ended:?}");
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
}

#[test]
fn a_number_that_is_none_is_told_as_such() {
    for args in [
        &["send", "a", "haul://h/", "--streams", "x"][..],
        &["send", "a", "haul://h/", "--port", ""],
        &["serve", ".", "--max-sessions", "0x1"],
        &["bench", "run", "h", "--repeat", "1.5"],
        &["lab", "compare", "--repeat", "x"],
    ] {
        says(&haul(args), 2, ": write a whole number");
    }
    let large = ["serve", ".", "--max-sessions", "99999999999999999999999"];
    says(
        &haul(large),
        2,
        "for '--max-sessions <N>': the number is too large",
    );
    let vs = ["bench", "run", "h", "--vs", "--streams x"];
    says(&haul(vs), 2, "write a whole number");
}

#[test]
fn a_wrong_variable_is_named_and_not_its_option() {
    let with = |variable: &str, args: &[&str]| {
        start_with(&[variable.to_owned()], args.iter().copied()).end()
    };
    for args in [
        &["send", "a", "haul://h/"][..],
        &["serve", "."],
        &["ls", "haul://h/"],
    ] {
        let ended = with("HAUL_PORT=x", args);
        says(
            &ended,
            2,
            "invalid value 'x' for 'HAUL_PORT': write a whole",
        );
        let ended = with("HAUL_PORT=70000", args);
        says(&ended, 2, "for 'HAUL_PORT': 70000 is not in 0..=65535");
    }
    let ended = with("HAUL_PORT_RANGE=9-8", &["receive"]);
    says(&ended, 2, "for 'HAUL_PORT_RANGE': write FIRST-LAST");
    // What is wrong is the option, whatever the variable holds.
    let ended = with("HAUL_PORT=x", &["serve", ".", "--port=x"]);
    says(&ended, 2, "for '--port <PORT>'");
}

#[test]
fn an_option_of_another_command_is_told_as_such() {
    let ended = haul(["receive", "--no-replace"]);
    says(
        &ended,
        2,
        "--no-replace is an option of haul send, haul get and haul sync",
    );
    assert!(!ended.stderr.contains("-- --no-replace"), "{ended:?}");
    let ended = haul(["get", "h:a", ".", "--delete"]);
    says(&ended, 2, "--delete is an option of haul sync");
    // One that no command has.
    says(&haul(["receive", "--nonsense"]), 2, "'--nonsense'");
}

#[test]
fn hints_are_not_what_was_just_done() {
    let place = Place::new();
    let home = format!("XDG_CONFIG_HOME={}", text(&place.outside("home")));
    let run = |args: &[&str]| start_with(std::slice::from_ref(&home), args.iter().copied()).end();
    if !place.outside("/etc/haul/key.pem").exists() {
        let ended = run(&["key", "show", "--server"]);
        ended.failed(4, "'haul key new --server'");
    }
    run(&["key", "show"]).failed(4, "'haul key new')");
    run(&["key", "show", "--key", "k"]).failed(4, "'haul key new --key'");
    let key = run(&["key", "new"]).ok().stdout;
    for server in ["host", "haul://root@host", "root@host:", "haul:h:1"] {
        let ended = run(&["key", "trust", server, key.trim()]);
        ended.failed(2, "is not haul://HOST or haul://HOST:PORT");
        run(&["key", "forget", server]).failed(2, "is not haul://HOST or haul://HOST:PORT");
    }
    for host in ["host", "haul://host", "haul://root@host"] {
        run(&["doctor", host]).failed(2, "put a colon behind the host");
    }
    let ended = run(&["send", "a", "haul://root@host/x"]);
    ended.failed(2, "write haul://host, or without haul://");
    // It ends in a slash, and still cannot be made.
    std::fs::write(place.server("a"), "x").unwrap();
    let server = place.serve();
    haul(["get", &server.at("a"), "/proc/x/"]).failed(4, "cannot make '/proc/x/'");
    std::fs::write(place.client("k"), "x").unwrap();
    let key = text(&place.client("none"));
    let args = ["send", &text(&place.client("k")), &server.at("")];
    let through = ["--gateway", "127.0.0.1", "--gateway-key", &key];
    let expected = format!("cannot read the key {key}: no such file");
    haul(args.iter().chain(&through)).failed(2, &expected);
}

#[test]
fn quantities_and_addresses_are_not_guessed() {
    let ended = haul(["doctor", "--rtt", "100"]);
    says(&ended, 2, "write a number and a unit, such as 100ms");
    let ended = haul(["profile", "--emulate", "--distances", "1,20"]);
    says(&ended, 2, "write a number and a unit, such as 100ms");
    let ended = haul(["serve", ".", "--metrics", "127.0.0.1"]);
    says(&ended, 2, "'--metrics <ADDR:PORT>': write ADDR:PORT");
}

#[test]
fn a_wrong_command_of_the_lab_exits_2() {
    for args in [
        &["lab", "run", "no-such"][..],
        &["lab", "calibrate", "no-such"],
        &["lab", "up", "no-such"],
        &["lab", "scenarios", "no-such"],
        &["lab", "compare", "no-such"],
        &["lab", "compare", "--tools", "no-such"],
        &["lab", "movers", "--movers", "no-such"],
        &["lab", "movers", "--scale", "11"],
        &["lab", "gateways", "--only", "no-such"],
        &["lab", "compare", "--time", "1500ms"],
        &["lab", "up", "wan-100ms", "--name", "a/b"],
    ] {
        let ended = haul(args);
        assert_eq!(ended.code, Some(2), "{args:?} {ended:?}");
    }
}

#[test]
fn options_without_effect_in_a_dry_run_exit_2() {
    let place = Place::new();
    std::fs::create_dir(place.client("tree")).unwrap();
    let server = place.serve();
    let (tree, to, list) = (
        text(&place.client("tree")),
        server.at(""),
        text(&place.outside("failed")),
    );
    for verb in ["send", "sync"] {
        let args = [verb, "-n", &tree, &to];
        haul(args.iter().chain(&["--failed-to", &list])).failed(2, "--dry-run moves nothing");
        haul(args.iter().chain(&["-0"])).failed(2, "-0 is about lists of paths");
    }
    let args = ["get", "-n", &server.at("tree"), &text(&place.client(""))];
    haul(args.iter().chain(&["-0"])).failed(2, "-0 is about lists of paths");
    assert!(!place.outside("failed").exists());
}

#[test]
fn lists_and_ignore_files_are_named_with_their_place() {
    let place = Place::new();
    let tree = place.client("tree");
    std::fs::create_dir_all(tree.join("sub/.haulignore")).unwrap();
    std::fs::write(tree.join("a"), "x").unwrap();
    let server = place.serve();
    let (from, to, list) = (text(&tree), server.at(""), text(&place.client("list")));
    for (content, wrong) in [
        ("a\n\n/a\n", "line 3 of the list: the path '/a' is absolute"),
        ("a\n../a\n", "line 2 of the list: the name '..'"),
    ] {
        std::fs::write(&list, content).unwrap();
        haul(["send", "--from-file", &list, &from, &to]).failed(2, wrong);
    }
    let ended = haul(["send", &from, &to]);
    says(&ended, 1, "'tree/sub': it is not a file; --no-ignore");
    let ended = haul(["send", "-n", &from, &to]);
    says(
        &ended,
        1,
        "cannot use .haulignore of the directory 'sub': it is not a file",
    );
    haul(["send", "--no-ignore", &from, &to]).ok();
}

#[test]
fn one_is_not_many() {
    let place = Place::new();
    for root in [place.client("t"), place.server("t")] {
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join("a"), "x").unwrap();
    }
    std::fs::write(place.server("t/more"), "x").unwrap();
    let server = place.serve();
    let (tree, to) = (text(&place.client("t")), server.at("t"));
    let ended = haul(["verify", &tree, &to]).ok();
    says(
        &ended,
        0,
        "1 entry is the same (1 B), 0 differ, 0 are missing, 1 is only at",
    );
    let sync = ["sync", "--delete", &tree, &server.at("")];
    haul(sync.iter().chain(&["--max-delete=0"])).failed(7, "1 entry is only at the destination");
    haul(sync).ok();
    server.wait_for_log("1 entry deleted below 't'");
    // One file is named, not shown as a dot.
    std::fs::write(place.server("t/a"), "yy").unwrap();
    let (file, at) = (text(&place.client("t/a")), server.at("t/a"));
    let list = text(&place.outside("list"));
    let ended = haul(["verify", "--failed-to", &list, &file, &at]);
    assert_eq!(ended.stdout, "a: 2 bytes instead of 1\n");
    ended.failed(11, "1 entry of the source differs at the destination");
    assert_eq!(std::fs::read(&list).unwrap(), b"a\n");
}

#[test]
fn a_sync_of_a_remote_file_is_refused() {
    let place = Place::new();
    std::fs::write(place.server("a"), "x").unwrap();
    let server = place.serve();
    let into = text(&place.client(""));
    for flags in [&[][..], &["-n"], &["--checksum"], &["--delete"]] {
        let args = ["sync", &server.at("a"), &into].map(str::to_owned);
        let args = args.iter().map(String::as_str).chain(flags.iter().copied());
        haul(args).failed(3, "'a' is not a directory");
    }
    assert_eq!(std::fs::read_dir(&into).unwrap().count(), 0);
}

#[test]
fn a_data_channel_of_a_gateway_names_the_address_that_is_in_use() {
    let place = Place::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let config = format!(
        "name = \"a\"\nlisten = \"127.0.0.1:0\"\nanonymous = true\n\
         exit = [\"127.0.0.0/8\"]\n\n[[channel]]\nkind = \"tcp\"\n\
         listen = \"{at}\"\n"
    );
    std::fs::write(place.outside("a.toml"), config).unwrap();
    let ended = haul(["gateway", "run", &text(&place.outside("a.toml"))]);
    let expected = format!("data channel tcp: cannot listen at {at}: ");
    ended.failed_somehow(&expected);
}

#[test]
fn a_data_channel_of_a_bench_names_the_address_that_is_in_use() {
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for (flags, taken) in [
        (&[][..], tcp.local_addr().unwrap()),
        (&["--qp", "ud"], udp.local_addr().unwrap()),
    ] {
        let port = taken.port().to_string();
        let serve = [
            "bench",
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--data-port",
            &port,
        ];
        let server = Server::spawn(serve);
        let at = format!("127.0.0.1:{}", server.port);
        let ended = haul(["bench", "rdma", &at, "--size=64"].iter().chain(flags));
        ended.failed_somehow(&format!("cannot listen on {taken}: "));
    }
}

#[test]
fn a_deletion_that_is_forbidden_is_refused_before_anything_moves() {
    let place = Place::new();
    std::fs::create_dir(place.client("t")).unwrap();
    std::fs::write(place.client("t/a"), "x").unwrap();
    let server = Server::start(&place.server(""), "127.0.0.1:0", &["--read-only"]);
    let (tree, to) = (text(&place.client("t")), server.at(""));
    haul(["sync", "--delete", &tree, &to]).failed(7, "deletes no files");
    haul(["sync", "-n", "--delete", &tree, &to]).failed(7, "deletes no files");
    assert!(!place.server("t").exists());
}
