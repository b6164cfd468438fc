//! What somebody meets who has just installed `haul`.

use crate::support::{Place, haul, read_file, start_with, text};

#[test]
fn alone_it_shows_four_things_to_do() {
    let ended = haul::<&str>([]);
    assert_eq!(ended.code, Some(2));
    let examples = [
        "haul send ",
        "haul receive ",
        "haul gateway run ",
        "haul profile ",
    ];
    for example in examples {
        assert!(
            ended.stderr.contains(example),
            "{example}: {}",
            ended.stderr
        );
    }
    assert!(ended.stderr.lines().all(|line| line.len() <= 100));
}

#[test]
fn an_unknown_command_names_the_nearest() {
    let ended = haul(["sned", "a", "host:"]);
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.stderr.contains("a similar subcommand exists: 'send'"),
        "{}",
        ended.stderr
    );
}

#[test]
fn completions_are_installed_where_each_shell_looks() {
    let place = Place::new();
    for (shell, path) in [
        ("bash", ".local/share/bash-completion/completions/haul"),
        ("zsh", ".local/share/zsh/site-functions/_haul"),
        ("fish", ".config/fish/completions/haul.fish"),
    ] {
        let home = [
            format!("HOME={}", text(&place.client(""))),
            "XDG_DATA_HOME=".to_owned(),
            "XDG_CONFIG_HOME=".to_owned(),
        ];
        start_with(&home, ["completions", shell, "--install"])
            .end()
            .ok();
        let printed = haul(["completions", shell]).ok().stdout;
        assert_eq!(
            printed.as_bytes(),
            read_file(&place.client(path)),
            "{shell}"
        );
        assert!(
            printed.contains("verify"),
            "{shell}: the commands are in it"
        );
    }
    std::fs::write(place.client("file"), "").unwrap();
    let home = [format!("XDG_DATA_HOME={}", text(&place.client("file")))];
    start_with(&home, ["completions", "zsh", "--install"])
        .end()
        .failed_somehow("cannot write");
}

#[test]
fn every_visible_command_has_a_manual_page() {
    let place = Place::new();
    haul(["man", &text(&place.client("man"))]).ok();
    let names = ["haul", "haul-send", "haul-gateway-run", "haul-bench-rdma"];
    for name in names {
        let page = read_file(&place.client(&format!("man/{name}.1")));
        let page = String::from_utf8(page).unwrap();
        assert!(page.contains(".SH NAME"), "{name}");
    }
    assert!(!place.client("man/haul-agent.1").exists(), "hidden");
}

/// An option stands below the heading of its group, and no other does.
#[test]
fn options_are_below_their_headings() {
    for (command, heading, among, not_among) in [
        (&["send"][..], "Trees:", "--xattrs", "--rate"),
        (&["send"], "Gateways:", "--gateway-key", "--quiet"),
        (
            &["serve"],
            "Trust in clients:",
            "--authorized-keys",
            "--max-sessions",
        ),
        (
            &["bench", "run"],
            "Trust in servers:",
            "--server-key",
            "--engine",
        ),
        (&["doctor"], "Ssh:", "--remote-haul", "--rtt"),
        (&["run"], "Gateways:", "--gateway-key", "--preload"),
    ] {
        let help = haul(command.iter().chain(&["--help"])).ok().stdout;
        let (_, behind) = help.split_once(heading).expect(heading);
        // The next heading stands at the left margin.
        let group = behind.lines().skip(1);
        let group = group.take_while(|line| line.is_empty() || line.starts_with(' '));
        let group = group.collect::<Vec<_>>().join("\n");
        assert!(group.contains(among), "{command:?} {heading}: {group}");
        assert!(!group.contains(not_among), "{command:?} {heading}: {group}");
    }
}
