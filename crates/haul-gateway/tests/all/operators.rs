//! The operator's interface: logs, the access log, clients' addresses, health checks, memory.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "programs at the edges are like any others, and what is not there where it must be fails the test"
)]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{
    self, connect, echo_server, entry_gateway, exit_gateway, gate, serve, start, wait_until,
};
use haul_gateway::{Config, Gateway, Level, Log};
use serde_json::Value;

const ADMIN: &str = "[admin]\nlisten = '127.0.0.1:0'\n";

/// An address without a listener.
fn nobody() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// Sends a few bytes through `listener`, gets them back, and ends in order. Returns the client's
/// address.
fn exchange(listener: SocketAddr) -> SocketAddr {
    let mut stream = connect(listener);
    let client = stream.local_addr().unwrap();
    stream.write_all(b"hello").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "hello");
    client
}

fn status(gateway: &Gateway) -> Value {
    let mut stream = connect(gateway.admin_addr().unwrap());
    stream
        .write_all(b"GET /api/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn lines_of(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// A server that expects a header of the PROXY protocol, keeps it, and sends the rest back.
fn proxied_server(headers: &Arc<Mutex<Vec<Vec<u8>>>>) -> SocketAddr {
    let headers = Arc::clone(headers);
    serve(move |mut stream| {
        let mut header = vec![0; 16];
        stream.read_exact(&mut header).unwrap();
        let mut rest = vec![0; usize::from(header[15])];
        stream.read_exact(&mut rest).unwrap();
        header.extend(rest);
        headers.lock().unwrap().push(header);
        let mut content = Vec::new();
        stream.read_to_end(&mut content).unwrap();
        stream.write_all(&content).unwrap();
    })
}

#[test]
fn the_far_end_its_log_and_its_servers_know_the_client() {
    let dir = tempfile::tempdir().unwrap();
    let (near_file, far_file) = (dir.path().join("near"), dir.path().join("far"));
    let headers = Arc::default();
    let server = proxied_server(&headers);
    let far = format!(
        "proxy_protocol = ['{server}']\n[access_log]\nfile = '{}'\nformat = 'json'\n",
        far_file.display()
    );
    let (far, far_lines) = exit_gateway(&far);
    let access = format!("[access_log]\nfile = '{}'", near_file.display());
    let (near, _) = entry_gateway(&[far.listen_addr().unwrap()], server, &access);
    let client = exchange(near.listener_addrs()[0]);
    wait_until("lines", || {
        !lines_of(&near_file).is_empty() && !lines_of(&far_file).is_empty()
    });
    let header = &headers.lock().unwrap()[0];
    assert_eq!(header[..14], *b"\r\n\r\n\0\r\nQUIT\n\x21\x11");
    assert_eq!(header[24..26], client.port().to_be_bytes());
    assert_eq!(header[26..28], server.port().to_be_bytes());
    let line = &lines_of(&near_file)[0];
    let wanted = format!(" client={client} target={server} bytes_received=5 bytes_sent=5 seconds=");
    assert!(line.contains(&wanted), "{line}");
    assert!(line.ends_with(" result=done"), "{line}");
    let json: Value = serde_json::from_str(&lines_of(&far_file)[0]).unwrap();
    assert_eq!(json["client"], client.to_string());
    assert_eq!(
        (&json["gateway"], &json["result"]),
        (&"entry".into(), &"done".into())
    );
    assert!(
        far_lines.contain("of gateway 'entry'"),
        "{:?}",
        far_lines.all()
    );
}

#[test]
fn a_client_that_is_not_forwarded_stays_unknown() {
    let headers = Arc::default();
    let server = proxied_server(&headers);
    let (far, _) = exit_gateway(&format!("proxy_protocol = ['{server}']\n"));
    let route = "forward_client = false";
    let (near, _) = entry_gateway(&[far.listen_addr().unwrap()], server, route);
    exchange(near.listener_addrs()[0]);
    assert_eq!(headers.lock().unwrap()[0][12..], [0x20, 0, 0, 0]);
}

#[test]
fn a_refused_connection_is_logged_once_with_its_client_and_counted() {
    let (far, far_lines) = exit_gateway(ADMIN);
    let to = nobody();
    let (near, near_lines) = entry_gateway(&[far.listen_addr().unwrap()], to, ADMIN);
    for _ in 0..5 {
        common::assert_reset(near.listener_addrs()[0]);
    }
    for (gateway, lines, client) in [
        (&near, &near_lines, "client 127.0.0.1:"),
        (&far, &far_lines, "client 127.0.0.1 of entry:"),
    ] {
        wait_until("five refusals", || {
            status(gateway)["totals"]["refusals"]["refused"] == 5
        });
        let line = format!("{client} no connection to {to}: it refuses connections");
        let told = lines.all().into_iter().filter(|told| told.contains(&line));
        assert_eq!(told.count(), 1, "{line}: {:?}", lines.all());
        let log = status(gateway)["log"].clone();
        let mut log = log.as_array().unwrap().iter();
        let shown = log.find(|shown| shown["text"] == line).unwrap();
        assert_eq!(shown["times"], 5);
        assert_eq!(status(gateway)["totals"]["connections_refused"], 5);
    }
}

#[test]
fn a_name_that_cannot_be_resolved_is_not_a_refusal_by_its_server() {
    let (far, far_lines) = exit_gateway("");
    let far_at = far.listen_addr().unwrap();
    let (near, near_lines) = start(&format!(
        "name = 'entry'\nanonymous = true\n[[listener]]\nkind = 'http'\nlisten = '127.0.0.1:0'\n\
         [[route]]\nto = ['*']\nvia = ['{far_at}']\nring = '4MiB'\n"
    ));
    let mut stream = connect(near.listener_addrs()[0]);
    let name = "no-such-name.invalid:80";
    let request = format!("CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert!(
        answer.ends_with("its name cannot be resolved\n"),
        "{answer}"
    );
    let named = format!("no connection to {name}: gateway {far_at}: its name cannot be resolved");
    near_lines.wait_for(&[&named]);
    far_lines.wait_for(&[&format!("no connection to {name}: no-such-name.invalid")]);
}

#[test]
fn a_name_with_an_address_that_is_not_allowed_is_forbidden() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let (far, _far_lines) = start(
        "name = 'exit'\nlisten = '127.0.0.1:0'\nanonymous = true\nexit = ['192.0.2.0/24']\n\
         [[channel]]\nkind = 'tcp'\nlisten = '127.0.0.1:0'\n",
    );
    let far_at = far.listen_addr().unwrap();
    let (near, _near_lines) = start(&format!(
        "name = 'entry'\nanonymous = true\n[[listener]]\nkind = 'http'\nlisten = '127.0.0.1:0'\n\
         [[route]]\nto = ['*']\nvia = ['{far_at}']\nring = '4MiB'\n"
    ));
    let mut stream = connect(near.listener_addrs()[0]);
    let name = format!("localhost:{port}");
    let request = format!("CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    server.set_nonblocking(true).unwrap();
    assert_eq!(
        server.accept().unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock
    );
}

#[test]
fn another_server_at_the_address_of_a_gateway_is_called_that() {
    let server = serve(|mut stream| {
        let mut some = [0; 64];
        let _ = stream.read(&mut some);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    });
    let (near, lines) = entry_gateway(&[server], nobody(), "");
    common::assert_reset(near.listener_addrs()[0]);
    let text =
        format!("gateway {server}: no Longhaul gateway at this address: an HTTP server answers");
    lines.wait_for(&[&text]);
    assert!(!lines.contain("version"), "{:?}", lines.all());
}

/// A gateway, and the lines above `Info` that it logs.
fn start_watched(text: &str) -> (Gateway, Arc<Mutex<Vec<String>>>) {
    let above: Arc<Mutex<Vec<String>>> = Arc::default();
    let own = Arc::clone(&above);
    let log = Log::new(move |level, line| {
        if level < Level::Info {
            own.lock().unwrap().push(line.to_owned());
        }
    });
    let config = Config::parse(text).unwrap();
    (Gateway::start(config, common::device, log).unwrap(), above)
}

fn far_text(more: &str) -> String {
    format!(
        "name = 'exit'\nlisten = '127.0.0.1:0'\nanonymous = true\nexit = ['127.0.0.0/8']\n{more}\n\
         [[channel]]\nkind = 'tcp'\nlisten = '127.0.0.1:0'\n\
         [[channel]]\nkind = 'iwarp/udt'\nlisten = '127.0.0.1:0'\n"
    )
}

#[test]
fn an_ordinary_end_of_a_session_is_no_warning() {
    for kind in ["tcp", "iwarp/udt"] {
        let (far, far_above) = start_watched(&far_text("ring = '8MiB'"));
        let (to, at) = (echo_server(), far.listen_addr().unwrap());
        let (near, near_above) = start_watched(&format!(
            "name = 'entry'\nanonymous = true\n[[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:0'\nto = '{to}'\n\
             [[route]]\nto = ['*']\nvia = ['{at}']\nring = '8MiB'\nchannels = ['{kind}']\n"
        ));
        let mut stream = connect(near.listener_addrs()[0]);
        common::echo(&mut stream, 1 << 20, 3);
        drop(stream);
        wait_until("no connection", || {
            near.sessions()[0].connections.is_empty()
        });
        drop(near);
        wait_until("no session", || far.sessions().is_empty());
        // A probe leaves no line either.
        let probe = Config::parse(&format!(
            "name = 'entry'\nanonymous = true\n[[route]]\nto = ['*']\nvia = ['{at}']\nring = '8MiB'\n\
             channels = ['{kind}']\n"
        ));
        let (probing, probe_above) = (probe.unwrap().outwards(), Arc::new(Mutex::new(Vec::new())));
        let own = Arc::clone(&probe_above);
        let log =
            Log::new(move |level, line| own.lock().unwrap().push(format!("{level:?} {line}")));
        let probing = Gateway::start(probing, common::device, log).unwrap();
        let reach = probing.reach(Duration::from_secs(20));
        assert!(reach[0].hops.is_ok(), "{reach:?}");
        drop(probing);
        for above in [far_above, near_above] {
            assert_eq!(*above.lock().unwrap(), [""; 0], "{kind}");
        }
    }
}

#[test]
fn each_port_of_the_data_channels_is_tried() {
    let dead = nobody();
    let (far, _) = start(&format!(
        "name = 'exit'\nlisten = '127.0.0.1:0'\nanonymous = true\nexit = ['127.0.0.0/8']\nring = '4MiB'\n\
         [[channel]]\nkind = 'tcp'\nlisten = '127.0.0.1:0'\npublic = '{dead}'\n\
         [[channel]]\nkind = 'iwarp/udt'\nlisten = '127.0.0.1:0'\n"
    ));
    let at = far.listen_addr().unwrap();
    let near = |channels: &str| {
        let text = format!(
            "name = 'entry'\nanonymous = true\n[[route]]\nto = ['*']\nvia = ['{at}']\nring = '4MiB'\n{channels}\n"
        );
        start(&text).0
    };
    let reach = near("").reach(Duration::from_secs(20));
    assert!(reach[0].hops.is_ok(), "{reach:?}");
    let [(_, udt), (_, tcp)] = &reach[0].channels[..] else {
        panic!("{reach:?}");
    };
    assert!(udt.is_ok(), "{udt:?}");
    let why = tcp.as_ref().unwrap_err().to_string();
    assert!(why.contains("no data channel can be opened"), "{why}");
    // A kind that the gateway does not offer is no blocked port.
    let reach = near("channels = ['verbs', 'iwarp/udt']").reach(Duration::from_secs(20));
    assert_eq!(reach[0].channels.len(), 1, "{reach:?}");
    wait_until("no session", || far.sessions().is_empty());
}

#[test]
fn a_new_session_goes_to_a_gateway_that_is_up_and_not_first_to_one_that_is_down() {
    let to = echo_server();
    let ((first, _), (second, _)) = (exit_gateway(""), exit_gateway(""));
    let (by, or) = (first.listen_addr().unwrap(), second.listen_addr().unwrap());
    let route = format!("or_via = [['{or}']]\nhealth = 1\n{ADMIN}");
    let (near, lines) = entry_gateway(&[by], to, &route);
    wait_until("both ways up", || {
        let ways = status(&near)["ways"].clone();
        ways.as_array()
            .is_some_and(|ways| ways.len() == 2 && ways.iter().all(|way| way["is_up"] == true))
    });
    // Probes are no sessions.
    assert_eq!(status(&near)["sessions"], Value::Array(Vec::new()));
    drop(first);
    lines.wait_for(&[&format!("the way by {by} is down: ")]);
    exchange(near.listener_addrs()[0]);
    assert!(!lines.contain("trying by"), "{:?}", lines.all());
    assert_eq!(status(&near)["sessions"][0]["hops"][0], or.to_string());
    let first = start(&far_text("ring = '4MiB'").replace(
        "listen = '127.0.0.1:0'\nanonymous",
        &format!("listen = '{by}'\nanonymous"),
    ));
    lines.wait_for(&[&format!("the way by {by} is up again")]);
    drop(first);
}

#[test]
fn a_far_gateway_has_room_for_more_than_eight_sessions_and_gets_back_what_they_used() {
    // As many as the default of 1 GiB for the default ring.
    let (far, _) = start(&far_text("memory = '256MiB'\nsessions = 64\n"));
    let (at, to) = (far.listen_addr().unwrap(), echo_server());
    let open = || {
        let (near, lines) = start(&format!(
            "name = 'entry'\nanonymous = true\nmemory = '128MiB'\n[[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:0'\n\
             to = '{to}'\n[[route]]\nto = ['*']\nvia = ['{at}']\nchannels = ['tcp']\n"
        ));
        exchange(near.listener_addrs()[0]);
        (near, lines)
    };
    let all: Vec<_> = (0..9).map(|_| open()).collect();
    assert_eq!(far.memory_left(), (256 - 9 * 16) << 20);
    // A far application that takes bytes by fits and starts makes a ring larger.
    let slow = serve(|stream| {
        let mut block = vec![0; 8 << 20];
        while (&stream).read_exact(&mut block).is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let (near, _) = start(&format!(
        "name = 'busy'\nanonymous = true\nmemory = '128MiB'\n[[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:0'\n\
         to = '{slow}'\n[[route]]\nto = ['*']\nvia = ['{at}']\nchannels = ['tcp']\n"
    ));
    let stream = connect(near.listener_addrs()[0]);
    let has_grown = || near.memory_left() < (128 - 16) << 20;
    let block = vec![7; 1 << 20];
    for _ in 0..2_000 {
        if !has_grown() {
            (&stream).write_all(&block).unwrap();
        }
    }
    assert!(has_grown());
    drop(stream);
    wait_until("memory returned", || {
        near.memory_left() == (128 - 16) << 20 && far.memory_left() == (256 - 10 * 16) << 20
    });
    drop(all);
}

#[test]
fn new_connections_go_to_another_gateway_while_a_session_is_suspended() {
    let ((first, _), (second, _)) = (exit_gateway(""), exit_gateway(""));
    let (gate, by) = gate::Gate::before(first.listen_addr().unwrap());
    let or = second.listen_addr().unwrap();
    let route = format!("or_via = [['{or}']]\nchannels = ['tcp']\n{ADMIN}");
    let (near, lines) = entry_gateway(&[by], echo_server(), &route);
    let mut stream = connect(near.listener_addrs()[0]);
    common::echo(&mut stream, 1 << 10, 1);
    assert_eq!(status(&near)["sessions"][0]["hops"][0], by.to_string());
    gate.shut();
    wait_until("suspended", || {
        status(&near)["sessions"][0]["ends_in_s"].is_number()
    });
    let since = std::time::Instant::now();
    exchange(near.listener_addrs()[0]);
    assert!(
        since.elapsed() < Duration::from_secs(3),
        "{:?}",
        lines.all()
    );
    // The earlier connection goes on when the way is back.
    gate.open();
    common::echo(&mut stream, 1 << 10, 2);
}
