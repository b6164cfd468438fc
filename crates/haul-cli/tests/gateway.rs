//! `haul gateway` as its operator runs it: processes that are started, killed, started again.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "what is not there where it must be fails the test; programs are threads with sockets"
)]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Gateway, member};

mod common;

/// Kinds of data channels whose ends notice differently that the other is gone.
const KINDS: [&str; 2] = ["iwarp/udt", "tcp"];

fn entry(kind: &str, via: &[SocketAddr], to: SocketAddr, route: &str) -> String {
    let via: Vec<String> = via.iter().map(|hop| format!("'{hop}'")).collect();
    entry_by(kind, &via.join(", "), to, route)
}

/// With a `via` as it is written.
fn entry_by(kind: &str, via: &str, to: SocketAddr, route: &str) -> String {
    format!(
        "name = 'entry'\nanonymous = true\n[[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:0'\nto = '{to}'\n\
         [[route]]\nto = ['*']\nvia = [{via}]\nring = '8MiB'\nchannels = ['{kind}']\n{route}\n",
    )
}

/// A gateway at which sessions end, and one that they pass through.
fn last(kind: &str) -> Gateway {
    Gateway::start(&member(kind, "127.0.0.1:0", "exit = ['127.0.0.1']"))
}

fn between(kind: &str) -> Gateway {
    Gateway::start(&member(kind, "127.0.0.1:0", "next = ['127.0.0.1']"))
}

/// Where nobody listens.
fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

/// A server that sends back what it gets.
fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut writer = stream.try_clone().unwrap();
                let mut reader = stream;
                let _ = std::io::copy(&mut reader, &mut writer);
                let _ = writer.shutdown(Shutdown::Write);
            });
        }
    });
    address
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&to, Duration::from_secs(10)).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
        .set_write_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
}

/// Bytes that depend on their place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

/// Sends `octets` through `listener` and returns what comes back; calls `half_way` when half of it
/// has arrived.
fn exchange(
    listener: SocketAddr,
    octets: &[u8],
    half_way: impl FnOnce(),
) -> std::io::Result<Vec<u8>> {
    let stream = connect(listener);
    let mut writer = stream.try_clone()?;
    let mut reader = stream;
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || {
            writer.write_all(octets)?;
            writer.shutdown(Shutdown::Write)
        });
        let mut got = vec![0; octets.len() / 2];
        let received = reader.read_exact(&mut got).and_then(|()| {
            half_way();
            reader.read_to_end(&mut got)
        });
        // The kernel reports a reset once, to the first of the two calls; the other sees an end.
        let sent = sending.join().unwrap();
        received.and(sent).map(|()| got)
    })
}

/// A gateway at either end and one between.
struct Chain {
    kind: &'static str,
    _last: Gateway,
    middle: Gateway,
    middle_at: SocketAddr,
    near: Gateway,
}

impl Chain {
    /// Whose route leads to a server that sends back what it gets.
    fn start(kind: &'static str, route: &str) -> Self {
        let last = Gateway::start(&member(kind, "127.0.0.1:0", "exit = ['127.0.0.1']"));
        let middle = Gateway::start(&member(kind, "127.0.0.1:0", "next = ['127.0.0.1']"));
        let via = [middle.sessions_at(), last.sessions_at()];
        Self {
            kind,
            _last: last,
            middle,
            middle_at: via[0],
            near: Gateway::start(&entry(kind, &via, echo_server(), route)),
        }
    }

    /// Kills the one between; another takes its place.
    fn replace_middle(&mut self) {
        self.middle.kill();
        let listen = self.middle_at.to_string();
        self.middle = Gateway::start(&member(self.kind, &listen, "next = ['127.0.0.1']"));
    }
}

#[test]
fn a_gateway_between_that_is_killed_and_comes_back_loses_nothing_where_ends_acknowledge() {
    for kind in KINDS {
        let mut chain = Chain::start(kind, "end_to_end = true");
        let sent = pattern(32 << 20);
        let got = exchange(chain.near.listener_at(), &sent, || chain.replace_middle());
        let said = chain.near.all_said();
        assert!(got.is_ok_and(|got| got == sent), "{kind}: {said:?}");
        assert!(said.iter().any(|line| line.contains("goes on")), "{said:?}");
        let used = format!("data channel {kind} (");
        assert!(said.iter().any(|line| line.contains(&used)), "{said:?}");
    }
}

#[test]
fn without_acknowledgement_between_the_ends_a_kill_is_a_reset_and_never_a_silent_loss() {
    for kind in KINDS {
        let mut chain = Chain::start(kind, "");
        // More than all that is between the ends can hold.
        let sent = pattern(160 << 20);
        match exchange(chain.near.listener_at(), &sent, || chain.replace_middle()) {
            Ok(got) => panic!(
                "{kind}: an end in order after {} of {} octets",
                got.len(),
                sent.len()
            ),
            Err(error) => assert!(
                matches!(
                    error.kind(),
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
                ),
                "{kind}: {error}"
            ),
        }
        // What comes after it works again.
        let sent = pattern(1 << 20);
        assert!(exchange(chain.near.listener_at(), &sent, || {}).unwrap() == sent);
    }
}

/// How long a way may be missed that is gone for good: tries to have it back, and the next.
const CHANGE: Duration = Duration::from_secs(15);

/// Sends through `near` and has it all back, while half way `gone` is killed for good; what `near`
/// has said.
fn outlive(kind: &str, near: &Gateway, gone: &mut Gateway) -> Vec<String> {
    let sent = pattern(32 << 20);
    let mut since = Instant::now();
    let got = exchange(near.listener_at(), &sent, || {
        gone.kill();
        since = Instant::now();
    });
    let (said, took) = (near.all_said(), since.elapsed());
    assert!(got.is_ok_and(|got| got == sent), "{kind}: {said:#?}");
    assert!(took < CHANGE, "{kind}: {took:?}: {said:#?}");
    said
}

fn has_said(said: &[String], text: &str) {
    assert!(said.iter().any(|line| line.contains(text)), "{said:#?}");
}

#[test]
fn a_gateway_between_that_is_killed_for_good_loses_nothing_where_there_is_another_way() {
    for kind in KINDS {
        let (last, mut first, other) = (last(kind), between(kind), between(kind));
        let (end, by, or) = (last.sessions_at(), first.sessions_at(), other.sessions_at());
        let route = format!("end_to_end = true\nor_via = [['{or}', '{end}']]");
        let near = Gateway::start(&entry(kind, &[by, end], echo_server(), &route));
        let said = outlive(kind, &near, &mut first);
        has_said(
            &said,
            &format!("the session is to go on by {or}, {end}, not by {by}, {end}: "),
        );
        // Sessions that are opened meanwhile go there too.
        let again = entry(kind, &[by, end], echo_server(), &route);
        let near = Gateway::start(&again.replace("end_to_end = true", ""));
        let sent = pattern(1 << 20);
        assert!(exchange(near.listener_at(), &sent, || {}).unwrap() == sent);
        // The check of the ways finds out first, or the session that is to be opened.
        let said = near.all_said();
        let found = [
            format!("the way by {by}, {end} is down"),
            format!("trying by {or}, {end}"),
        ];
        let is_found = |line: &String| found.iter().any(|text| line.contains(text));
        assert!(said.iter().any(is_found), "{said:#?}");
    }
}

#[test]
fn a_way_that_is_back_is_used_when_the_other_is_gone() {
    let kind = "tcp";
    let (last, mut first, mut other) = (last(kind), between(kind), between(kind));
    let (end, by, or) = (last.sessions_at(), first.sessions_at(), other.sessions_at());
    let route = format!("end_to_end = true\nor_via = [['{or}', '{end}']]");
    let near = Gateway::start(&entry(kind, &[by, end], echo_server(), &route));
    let sent = pattern(32 << 20);
    let got = exchange(near.listener_at(), &sent, || {
        first.kill();
        near.said(&format!("{or}: the session goes on"));
        let again = member(kind, &by.to_string(), "next = ['127.0.0.1']");
        first = Gateway::start(&again);
        first.sessions_at();
        other.kill();
    });
    let said = near.all_said();
    assert!(got.is_ok_and(|got| got == sent), "{said:#?}");
    has_said(&said, &format!("{by}: the session goes on"));
}

#[test]
fn a_gateway_that_misses_its_next_tells_the_owner_who_knows_another_way() {
    let kind = "tcp";
    let (last, first, mut second) = (last(kind), between(kind), between(kind));
    // It can ask its network for a path, and is asked to when it is on the way.
    let other = member(kind, "127.0.0.1:0", "next = ['127.0.0.1']");
    let path = "[path]\nkind = 'exec'\nprogram = ['sh', '-c', 'cat > /dev/null; echo up']\n";
    let other = Gateway::start(&(other + path));
    let (end, or) = (last.sessions_at(), other.sessions_at());
    let via = [first.sessions_at(), second.sessions_at(), end];
    let route =
        format!("end_to_end = true\nor_via = [['{or}', '{end}']]\npath = ['dscp value=46']");
    let near = Gateway::start(&entry(kind, &via, echo_server(), &route));
    let said = outlive(kind, &near, &mut second);
    has_said(&said, &format!("the session is to go on by {or}, {end}"));
    near.said("path 'dscp value=46' at member is up");
}

#[test]
fn an_optional_gateway_that_is_down_is_left_out() {
    let kind = "tcp";
    let (last, first) = (last(kind), between(kind));
    let (end, by, down) = (last.sessions_at(), first.sessions_at(), nobody());
    let optional = format!("{{ gateway = '{down}', optional = true }}");
    let sent = pattern(1 << 20);
    for via in [
        format!("{optional}, '{by}', '{end}'"),
        format!("'{by}', {optional}, '{end}'"),
    ] {
        let near = Gateway::start(&entry_by(kind, &via, echo_server(), ""));
        let got = exchange(near.listener_at(), &sent, || {});
        assert!(got.unwrap() == sent, "{via}: {:?}", near.all_said());
    }
    has_said(&first.all_said(), &format!("{down} is left out: "));
}

#[test]
fn an_optional_gateway_that_is_killed_is_left_out_where_ends_acknowledge() {
    let kind = "tcp";
    let (last, first) = (last(kind), between(kind));
    let (end, by) = (last.sessions_at(), first.sessions_at());
    for is_first in [true, false] {
        let mut optional = between(kind);
        let at = optional.sessions_at();
        let table = format!("{{ gateway = '{at}', optional = true }}");
        let via = match is_first {
            true => format!("{table}, '{by}', '{end}'"),
            false => format!("'{by}', {table}, '{end}'"),
        };
        let near = entry_by(kind, &via, echo_server(), "end_to_end = true");
        let near = Gateway::start(&near);
        outlive(kind, &near, &mut optional);
    }
}

/// A command that becomes `haul` as the next version speaks; see `HAUL_NEXT` in src/main.rs.
fn speaking(next: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_haul"));
    if !next.is_empty() {
        command.env("HAUL_NEXT", next);
    }
    command
}

#[test]
fn gateways_of_two_versions_carry_connections_and_outlive_an_upgrade() {
    for kind in KINDS {
        for (near, far) in [("minor", ""), ("", "minor")] {
            let start = |speaks, listen: &str, more| {
                Gateway::start_by(speaking(speaks), &member(kind, listen, more), &[])
            };
            let last = start(far, "127.0.0.1:0", "exit = ['127.0.0.1']");
            let mut middle = start(near, "127.0.0.1:0", "next = ['127.0.0.1']");
            let via = [middle.sessions_at(), last.sessions_at()];
            let config = entry(kind, &via, echo_server(), "end_to_end = true");
            let entry = Gateway::start_by(speaking(near), &config, &[]);
            let sent = pattern(8 << 20);
            let got = exchange(entry.listener_at(), &sent, || {
                // The upgrade of a gateway that connections pass.
                middle.kill();
                middle = start(far, &via[0].to_string(), "next = ['127.0.0.1']");
            });
            let said = entry.all_said();
            assert!(got.is_ok_and(|got| got == sent), "{kind}: {said:#?}");
            has_said(&said, &format!("data channel {kind} ("));
        }
    }
}

#[test]
fn a_gateway_that_drains_is_replaced_by_the_next_version() {
    for (before, after) in [("", "minor"), ("minor", "")] {
        let config = |listen: &str| member("tcp", listen, "exit = ['127.0.0.1']");
        let mut last = Gateway::start_by(speaking(before), &config("127.0.0.1:0"), &[]);
        let at = last.sessions_at();
        let near = Gateway::start(&entry("tcp", &[at], echo_server(), ""));
        let sent = pattern(8 << 20);
        let got = exchange(near.listener_at(), &sent, || last.signal("TERM"));
        let said = near.all_said();
        assert!(got.is_ok_and(|got| got == sent), "{said:#?}");
        assert_eq!(last.exit_code(), Some(0));
        let next = Gateway::start_by(speaking(after), &config(&at.to_string()), &[]);
        assert_eq!(next.sessions_at(), at);
        let got = exchange(near.listener_at(), &sent, || {});
        let said = near.all_said();
        assert!(got.is_ok_and(|got| got == sent), "{said:#?}");
    }
}

#[test]
fn gateways_without_a_common_version_name_both_at_both_ends() {
    for (near, far, theirs, ours) in [("incompatible", "", 3, 2), ("", "incompatible", 2, 3)] {
        let config = member("tcp", "127.0.0.1:0", "exit = ['127.0.0.1']");
        let last = Gateway::start_by(speaking(far), &config, &[]);
        let config = entry("tcp", &[last.sessions_at()], echo_server(), "");
        let near = Gateway::start_by(speaking(near), &config, &[]);
        assert!(exchange(near.listener_at(), b"ping", || {}).is_err());
        let line = |theirs, ours| format!("XSP version {theirs} and this end version {ours}");
        last.said(&line(theirs, ours));
        near.said(&line(ours, theirs));
    }
}
