//! Metadata of sessions and connections, as shown by the gateways on the way.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_types,
    reason = "programs at the edges are like any others, and what is not there where it must be fails the test"
)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use crate::common::{Lines, connect, echo_server, exit_gateway, start, wait_until};
use haul_gateway::{Config, Gateway};
use serde_json::{Value, json};

const ADMIN: &str = "[admin]\nlisten = '127.0.0.1:0'\n";
const CHANNEL: &str = "[[channel]]\nkind = 'tcp'\nlisten = '127.0.0.1:0'\n";

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn session(gateway: &Gateway) -> Value {
    let address = gateway.admin_addr().unwrap();
    let request = format!("GET /api/status HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let answer = ask(address, &request);
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let status: Value = serde_json::from_str(body).unwrap();
    status["sessions"][0].clone()
}

/// A gateway with an HTTP listener, one between, and the last one.
fn three(route: &str) -> [(Gateway, Lines); 3] {
    let far = exit_gateway(ADMIN);
    let between = start(&format!(
        "name = 'between'\nlisten = '127.0.0.1:0'\nring = '4MiB'\nanonymous = true\nnext = ['127.0.0.1']\n\
         {ADMIN}{CHANNEL}"
    ));
    let hops = [&between.0, &far.0].map(|gateway| gateway.listen_addr().unwrap());
    let near = start(&format!(
        "name = 'near'\nanonymous = true\n{ADMIN}[[listener]]\nkind = 'http'\nlisten = '127.0.0.1:0'\n\
         [[route]]\nto = ['*']\nvia = ['{}', '{}']\nring = '4MiB'\nchannels = ['tcp']\n{route}\n",
        hops[0], hops[1]
    ));
    [near, between, far]
}

fn tunnel(near: &Gateway, to: SocketAddr, fields: &str) -> TcpStream {
    let mut stream = connect(near.listener_addrs()[0]);
    let head = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{fields}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, *b"HTTP/1.1 200");
    stream
}

#[test]
fn metadata_of_clients_and_routes_is_seen_at_every_gateway() {
    let gateways = three("metadata = { site = 'north <b>' }");
    let server = echo_server();
    let fields = "Haul-Metadata: job=17\r\nHaul-Metadata: note=a\tb\r\n";
    let first = tunnel(&gateways[0].0, server, fields);
    let second = tunnel(&gateways[0].0, server, "Haul-Metadata: job=18\r\n");
    for (gateway, lines) in &gateways {
        let of = |job: &str| {
            let connections = session(gateway)["connections"].clone();
            let connections = connections.as_array().cloned().unwrap_or_default();
            connections
                .into_iter()
                .find(|connection| connection["metadata"]["job"] == job)
        };
        wait_until("both connections", || {
            of("17").is_some() && of("18").is_some()
        });
        assert_eq!(
            of("17").unwrap()["metadata"],
            json!({ "job": "17", "note": "a\tb" })
        );
        assert_eq!(session(gateway)["metadata"], json!({ "site": "north <b>" }));
        let told = |text: &str| {
            lines
                .all()
                .iter()
                .filter(|line| line.contains(text))
                .count()
        };
        assert_eq!(
            told(r#": metadata: job="17" note="a\tb""#),
            1,
            "{:?}",
            lines.all()
        );
        assert_eq!(told(r#": metadata: job="18""#), 1);
        assert_eq!(told(r#": metadata: site="north <b>""#), 1);
    }
    drop((first, second));
}

#[test]
fn a_client_with_wrong_metadata_gets_an_error() {
    let [(near, _), ..] = three("");
    let listener = near.listener_addrs()[0];
    for (field, why) in [
        ("job", "metadata is KEY=VALUE"),
        ("a key=", "a key of metadata is"),
    ] {
        let head = format!("CONNECT h:1 HTTP/1.0\r\nHaul-Metadata: {field}\r\n\r\n");
        let answer = ask(listener, &head);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(answer.contains(why), "{answer}");
    }
}

#[test]
fn a_route_whose_metadata_is_wrong_is_refused_with_its_line() {
    let route = "name = 'g'\n[[route]]\nto = ['*']\nvia = ['a:1']\nmetadata = { 'a b' = 'x' }\n";
    let error = format!("{:?}", Config::parse(route).unwrap_err());
    assert!(error.contains("a key of metadata"), "{error}");
    assert!(error.contains("5"), "{error}");
}
