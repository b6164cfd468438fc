//! Which of two gateways is named when a session or a connection through both cannot be opened.
#![expect(
    clippy::unwrap_used,
    reason = "what is not there where it must be fails the test"
)]

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use crate::common::{echo_server, entry_gateway, start};
use haul_gateway::{Cause, Gateway, Refusal};

const CHANNEL: &str = "[[channel]]\nkind = 'tcp'\nlisten = '127.0.0.1:0'\n";

fn key(path: &Path, digits: &str) -> String {
    std::fs::write(path, digits.repeat(32)).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    format!("[[key]]\nname = 'k'\nfile = '{}'\n", path.display())
}

/// Returns the error that an application receives for a connection through two gateways, and the
/// near gateway's log line.
fn refused(first: &str, second: &str) -> (Refusal, [SocketAddr; 2], String) {
    let member = |more: &str| {
        start(&format!(
            "name = 'member'\nlisten = '127.0.0.1:0'\nring = '4MiB'\n{more}\n{CHANNEL}"
        ))
    };
    let (second, _) = member(second);
    let (first, _) = member(&format!("anonymous = true\nnext = ['127.0.0.1']\n{first}"));
    let hops = [&first, &second].map(|gateway: &Gateway| gateway.listen_addr().unwrap());
    let server = echo_server();
    let (near, lines) = entry_gateway(&hops, server, "channels = ['tcp']");
    let to = server.to_string().parse().unwrap();
    let patience = Duration::from_secs(20);
    let why = near.connect("program", &to, patience).unwrap_err();
    let named = format!("gateway {}", hops[1]);
    lines.wait_for(&[&named]);
    let line = lines.all().into_iter().find(|line| line.contains(&named));
    (why, hops, line.unwrap())
}

#[test]
fn different_keys_of_gateways_are_distinguished_from_a_missing_key() {
    let folder = tempfile::tempdir().unwrap();
    let one = key(&folder.path().join("one"), "5a");
    let another = key(&folder.path().join("another"), "a5");
    let (why, [first, second], line) = refused(&one, &another);
    for text in [&why.text, &line] {
        assert!(text.contains(&format!("gateway {second}")), "{text}");
        assert!(!text.contains(&first.to_string()), "{text}");
        assert!(text.contains("not authenticated"), "{text}");
    }
    assert_eq!(why.cause, Cause::Gateway);
    // The near end's own: that is another matter.
    let (far, _) = start(&format!(
        "name = 'far'\nlisten = '127.0.0.1:0'\nring = '4MiB'\n{one}\n{CHANNEL}"
    ));
    let via = far.listen_addr().unwrap();
    let (near, _) = entry_gateway(&[via], via, "channels = ['tcp']");
    let to = via.to_string().parse().unwrap();
    let why = near.connect("program", &to, Duration::from_secs(20));
    let why = why.unwrap_err();
    assert_eq!(why.cause, Cause::Trust, "{why}");
    assert!(why.text.contains(&format!("gateway {via}")), "{why}");
}

#[test]
fn a_gateway_without_memory_is_named_by_the_one_before_it() {
    let short = "anonymous = true\nexit = ['127.0.0.1']\nmemory = '4MiB'";
    let (why, [first, second], line) = refused("", short);
    for text in [&why.text, &line] {
        assert!(text.contains(&format!("gateway {second}")), "{text}");
        assert!(!text.contains(&first.to_string()), "{text}");
        assert!(text.contains("bytes of memory"), "{text}");
    }
    assert_eq!(why.cause, Cause::Gateway);
}

#[test]
fn a_last_gateway_that_does_not_allow_a_destination_is_named() {
    let (why, _, line) = refused("", "anonymous = true");
    assert_eq!(why.cause, Cause::Forbidden);
    assert!(line.contains("does not allow it"), "{line}");
}
