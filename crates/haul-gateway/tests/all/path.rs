//! Paths that sessions ask of the network, here and at gateways on the way.

use std::path::Path;

use crate::common::{self, connect, echo_server, exchange, pattern, start, wait_until};
use haul_gateway::{Config, Gateway};

/// A program for [path] that writes its requests to `log`, and prints `up` or `down` once `gate`
/// exists.
fn back_end(log: &Path, gate: &Path) -> String {
    let script = format!(
        "cat >> {log}; echo >> {log}; echo pending patience; while [ ! -e {gate} ]; do sleep 0.05; done; \
         if tail -n 1 {log} | grep -q delete; then echo down; else echo up vlan 12; fi",
        log = log.display(),
        gate = gate.display()
    );
    format!("[path]\nkind = 'exec'\nprogram = ['sh', '-c', '''{script}''']\n")
}

fn states(gateway: &Gateway) -> Vec<String> {
    let sessions = gateway.sessions();
    let paths = sessions.iter().flat_map(|session| &session.paths);
    paths
        .map(|path| format!("{} {} {}", path.gateway, path.state, path.text))
        .collect()
}

const CHANNEL: &str = "[[channel]]\nkind = 'tcp'\nlisten = '127.0.0.1:0'\n";

#[test]
fn a_route_s_path_is_asked_for_along_the_way_and_taken_down_with_its_session() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let (far, _) = start(&format!(
        "name = 'far'\nlisten = '127.0.0.1:0'\nanonymous = true\nexit = ['127.0.0.0/8']\nring = '1MiB'\n{CHANNEL}"
    ));
    let (middle, middle_lines) = start(&format!(
        "name = 'middle'\nlisten = '127.0.0.1:0'\nanonymous = true\nnext = ['127.0.0.1']\nring = '1MiB'\n{CHANNEL}{}",
        back_end(&file("middle"), &file("gate"))
    ));
    let (mut near, near_lines) = start(&format!(
        "name = 'near'\nanonymous = true\n[[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:0'\nto = '{}'\n\
         [[route]]\nto = ['*']\nvia = ['{}', '{}']\nring = '1MiB'\nchannels = ['tcp']\n\
         path = ['vlan id=12 rate=1Gb/s', 'dscp value=46']\n{}",
        echo_server(),
        middle.listen_addr().unwrap(),
        far.listen_addr().unwrap(),
        back_end(&file("near"), &file("gate"))
    ));
    // The session does not wait for its path.
    let sent = pattern(100_000, 1);
    assert!(exchange(connect(near.listener_addrs()[0]), sent.clone()) == sent);
    let wanted = [
        "near pending patience",
        "middle pending patience",
        "far failed this gateway has no back end for paths",
    ];
    wait_until("three gateways' states", || {
        let states = states(&near);
        wanted
            .iter()
            .all(|wanted| states.iter().any(|state| state == wanted))
    });
    std::fs::write(file("gate"), "").unwrap();
    let wanted = [
        "near up vlan 12",
        "middle up vlan 12",
        "far failed this gateway has no back end for paths",
    ];
    wait_until("both paths", || {
        let states = states(&near);
        wanted
            .iter()
            .all(|wanted| states.iter().any(|state| state == wanted))
    });
    wait_until("the state in the middle", || {
        states(&middle) == ["middle up vlan 12"]
    });
    assert!(
        near_lines.contain("path 'vlan id=12 rate=1Gb/s; dscp value=46' at middle is up: vlan 12"),
        "{:?}",
        near_lines.all()
    );

    let session = near.sessions()[0].session.clone();
    assert!(near.drain(std::time::Duration::from_secs(30)));
    wait_until("no session in the middle", || middle.sessions().is_empty());
    let asked = |name: &str| std::fs::read_to_string(file(name)).unwrap();
    // A drained session has taken its path down before it ended.
    let (create, delete) = (
        asked("near"),
        asked("near").lines().nth(1).unwrap_or_default().to_owned(),
    );
    let json: serde_json::Value = serde_json::from_str(create.lines().next().unwrap()).unwrap();
    assert_eq!(json["action"], "create");
    assert_eq!(json["session"], session);
    assert_eq!(json["position"], 0);
    assert_eq!(json["hops"].as_array().unwrap().len(), 2);
    assert_eq!(json["rules"][0]["type"], "vlan");
    assert_eq!(json["rules"][0]["values"]["rate"], "1Gb/s");
    let json: serde_json::Value = serde_json::from_str(&delete).unwrap();
    assert_eq!(
        (&json["action"], &json["session"]),
        (&"delete".into(), &session.into())
    );
    wait_until("the path in the middle is down", || {
        middle_lines
            .all()
            .iter()
            .any(|line| line.starts_with("taking down path 1") && line.contains(": down"))
    });
    assert_eq!(
        asked("middle")
            .lines()
            .filter(|line| line.contains("\"delete\""))
            .count(),
        1
    );
}

#[test]
fn an_unusable_back_end_is_reported_at_the_start() {
    let start = |path: &str| {
        let config = Config::parse(&format!("name = 'x'\n[path]\n{path}")).unwrap();
        let lines = common::Lines::default();
        Gateway::start(config, common::device, lines.log())
            .unwrap_err()
            .to_string()
    };
    assert!(start("kind = 'exec'\nprogram = []").contains("no program"));
}
