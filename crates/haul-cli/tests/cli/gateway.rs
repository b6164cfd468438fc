use std::fs;

use crate::schema::Schema;
use crate::support::haul;

/// What `haul gateway check` says about a file with this text.
fn check(text: &str) -> (Option<i32>, String, serde_json::Value) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.toml");
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let json = haul(["gateway", "check", "--json", file]);
    let value = json.json();
    Schema::load("gateway-check-v1.json").check(&value);
    let plain = haul(["gateway", "check", file]);
    assert_eq!(json.code, plain.code);
    (plain.code, plain.stdout.replace(file, "FILE"), value)
}

const GOOD: &str = "
name = 'gateway'
anonymous = true
[[listener]]
kind = 'forward'
listen = '127.0.0.1:8080'
to = 'example.org:80'
[[route]]
to = ['*']
via = ['192.0.2.1:7400']
";

#[test]
fn a_good_configuration_is_good() {
    let (code, text, json) = check(GOOD);
    let told = "FILE: 1024 MiB for slabs\n\
                FILE: a session of the route to * takes 16 MiB of them, and up to 128 MiB when it uses them; 64 fit, 8 at their full size\n\
                FILE: 0 errors, 0 warnings\n";
    assert_eq!((code, text.as_str()), (Some(0), told));
    assert_eq!(json["ok"], true);
    assert_eq!(json["memory"]["sessions"][0]["bytes"], 128 << 20);
}

#[test]
fn the_ways_of_a_route_are_said_where_there_are_several() {
    let optional = "{ gateway = '192.0.2.3:7400', optional = true }";
    let text = format!("{GOOD}or_via = [[{optional}, '192.0.2.1:7400'], ['192.0.2.2:7400']]\n");
    let (code, text, json) = check(&text);
    assert_eq!(code, Some(0), "{text}");
    let line = "FILE: the route to * goes by 192.0.2.1:7400; or by 192.0.2.3:7400, 192.0.2.1:7400; or by 192.0.2.2:7400\n";
    assert!(text.starts_with(line), "{text}");
    assert_eq!(json["routes"][0]["ways"][2][0], "192.0.2.2:7400");
}

#[test]
fn what_sessions_and_pending_peers_may_take_is_said() {
    let channel = "[[channel]]\nkind = 'iwarp/udt'\nlisten = '127.0.0.1:7401'\n";
    let listen = "listen = '127.0.0.1:7400'\nexit = ['192.0.2.1']\nsessions = 2\nanonymous";
    let text = GOOD.replacen("anonymous", listen, 1) + channel;
    let (code, text, json) = check(&text);
    assert_eq!(code, Some(0), "{text}");
    for part in [
        "route to * takes 16 MiB of them, and up to 128 MiB when it uses them; 64 fit, 8 at their full size\n",
        "ends here takes 16 MiB of them, and up to 128 MiB when it uses them; 64 fit, 8 at their full size\n",
        "MiB for peers that have not authenticated\n",
    ] {
        assert!(text.contains(part), "{part}{text}");
    }
    assert!(json["memory"]["strangers"].as_u64().unwrap() > 0);
}

#[test]
fn a_removed_kind_of_data_channel_is_refused_with_its_replacement() {
    let (code, text, json) = check(&format!("{GOOD}channels = ['udp']\n"));
    assert_ne!(code, Some(0), "{text}");
    let why = "data channel kind 'udp' was removed; use 'iwarp/udt'";
    assert!(text.contains(why), "{text}");
    assert_eq!(json["ok"], false);
}

#[test]
fn a_warning_is_told_and_no_failure() {
    let (code, text, json) =
        check(&GOOD.replacen("anonymous", "exit = ['192.0.2.0/24']\nanonymous", 1));
    assert_eq!(code, Some(0));
    assert!(text.starts_with("FILE: line 3: warning: exit: "), "{text}");
    assert_eq!(
        (&json["ok"], &json["problems"][0]["line"]),
        (&true.into(), &3.into())
    );
}

#[test]
fn everything_wrong_is_told_with_its_line() {
    let (code, text, json) = check(
        &GOOD
            .replace("'*'", "'example.net'")
            .replace("192.0.2.1:7400", "192.0.2.1"),
    );
    assert_eq!(code, Some(2));
    assert!(
        text.starts_with("FILE: line 10: error: [[route]] 1: via: "),
        "{text}"
    );
    assert_eq!(json["ok"], false);
    let (code, text, _) = check(
        &GOOD
            .replace("'*'", "'example.net'")
            .replace("anonymous = true", ""),
    );
    assert_eq!(code, Some(2));
    assert!(text.ends_with("FILE: 2 errors, 0 warnings\n"), "{text}");
    assert!(
        text.contains(
            "FILE: line 4: error: [[listener]] 1: to: no route leads to example.org:80; add a"
        ),
        "{text}"
    );
}

#[test]
fn a_file_that_is_not_there_is_an_error() {
    let output = haul(["gateway", "check", "/nowhere/gateway.toml"]);
    assert_eq!(output.code, Some(2));
    assert!(
        output.stdout.contains("cannot read /nowhere/gateway.toml"),
        "{}",
        output.stdout
    );
}
