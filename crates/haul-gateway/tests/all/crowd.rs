//! Resource exhaustion: many sessions that carry nothing, and clients that read nothing.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "what is not there where it must be fails the test; programs have sockets of their own"
)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::common::{Lines, connect, echo, echo_server, entry_gateway, serve, start};
use crate::own_network;
use haul_gateway::{Gateway, raise_open_files};

const PATIENCE: Duration = Duration::from_secs(20);
/// A session's memory, with `ring = '4MiB'`.
const SESSION_MIB: u64 = 8;

/// A gateway at which sessions of anybody end, with memory for so many, and its port.
fn exit(sessions: u64) -> (Gateway, Lines, u16) {
    let memory = SESSION_MIB * sessions + 1;
    let (gateway, lines) = start(&format!(
        "name = 'exit'\nlisten = '0.0.0.0:0'\nanonymous = true\nexit = ['127.0.0.0/8']\nring = '4MiB'\nmemory = '{memory}MiB'\n\
         [[channel]]\nkind = 'tcp'\nlisten = '127.0.0.1:0'\n"
    ));
    let port = gateway.listen_addr().unwrap().port();
    (gateway, lines, port)
}

fn near(at: SocketAddr, server: SocketAddr) -> Gateway {
    entry_gateway(&[at], server, "channels = ['tcp']").0
}

/// A connection to an address of this host has that address as its source.
const OTHER: &str = "10.9.9.9";

#[test]
fn idle_sessions_keep_no_other_out() {
    let setup = format!("ip link set lo up && ip address add {OTHER}/32 dev lo");
    own_network::run_ignored("crowd::beside_idle_sessions", &setup);
}

#[test]
#[ignore = "needs two addresses; started by idle_sessions_keep_no_other_out"]
fn beside_idle_sessions() {
    let server = echo_server();
    let to = server.to_string().parse().unwrap();
    for sessions in [1, 8] {
        let (_far, lines, port) = exit(sessions);
        let [here, there] =
            ["127.0.0.1", OTHER].map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
        // More than there is memory for, all of one source.
        let idle: Vec<Gateway> = (0..sessions + 2).map(|_| near(there, server)).collect();
        for gateway in &idle {
            // The last ones may be refused.
            let _ = gateway.open_session(&to, PATIENCE, || true);
        }
        // One that has only just opened may be about to carry its first connection, and stays.
        std::thread::sleep(Duration::from_millis(50));
        let since = Instant::now();
        let honest = near(here, server);
        let refused = honest.open_session(&to, PATIENCE, || true);
        assert!(refused.is_ok(), "{refused:?}: {:#?}", lines.all());
        echo(&mut connect(honest.listener_addrs()[0]), 1_000, 1);
        let took = since.elapsed();
        println!("memory for {sessions}: a session of another source opens in {took:?}");
        assert!(took < Duration::from_secs(1), "{:?}", lines.all());
    }
}

#[test]
fn one_source_has_three_quarters_of_the_memory_and_what_carries_something_stays() {
    let server = echo_server();
    let (_far, lines, port) = exit(8);
    let here = SocketAddr::from(([127, 0, 0, 1], port));
    let gateways: Vec<Gateway> = (0..7).map(|_| near(here, server)).collect();
    let (last, first) = gateways.split_last().unwrap();
    let mut used: Vec<TcpStream> = first
        .iter()
        .map(|gateway| {
            let mut program = connect(gateway.listener_addrs()[0]);
            echo(&mut program, 1_000, 1);
            program
        })
        .collect();
    std::thread::sleep(Duration::from_millis(1_200));
    let to = server.to_string().parse().unwrap();
    let refused = last.connect("program", &to, PATIENCE).unwrap_err();
    assert!(refused.text.contains("three quarters"), "{refused}");
    for program in &mut used {
        echo(program, 1_000, 2);
    }
    // An idle session frees its memory.
    used.pop();
    let until = Instant::now() + PATIENCE;
    while last.connect("program", &to, PATIENCE).is_err() {
        assert!(Instant::now() < until, "{:?}", lines.all());
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(lines.contain("it is idle"), "{:?}", lines.all());
}

/// The time that 5 MiB take beside so many clients of the same session that read nothing, and how
/// often it is measured.
fn time_beside(unread: usize) -> Duration {
    const LEN: usize = 5 << 20;
    // A request of 1 is answered with 5 MiB, others with an endless stream.
    let server = serve(|mut stream| {
        let mut asked = [0];
        if stream.read_exact(&mut asked).is_ok() {
            let part = vec![7; 64 << 10];
            let parts = if asked == [1] { LEN >> 16 } else { usize::MAX };
            let _ = (0..parts).try_for_each(|_| stream.write_all(&part));
        }
    });
    let (far, _) = start(
        "name = 'exit'\nlisten = '127.0.0.1:0'\nanonymous = true\nexit = ['127.0.0.0/8']\nring = '16MiB'\n\
         [[channel]]\nkind = 'tcp'\nlisten = '127.0.0.1:0'\n",
    );
    let (near, _) = start(&format!(
        "name = 'entry'\nanonymous = true\n[[listener]]\nkind = 'socks5'\nlisten = '127.0.0.1:0'\n\
         [[route]]\nto = ['*']\nvia = ['{}']\nring = '16MiB'\nchannels = ['tcp']\n",
        far.listen_addr().unwrap()
    ));
    let listener = near.listener_addrs()[0];
    let ask = |what: u8| {
        let mut stream = connect(listener);
        stream.write_all(&[5, 1, 0]).unwrap();
        stream.read_exact(&mut [0; 2]).unwrap();
        let [high, low] = server.port().to_be_bytes();
        stream
            .write_all(&[5, 1, 0, 1, 127, 0, 0, 1, high, low])
            .unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
        stream.write_all(&[what]).unwrap();
        stream
    };
    let _unread: Vec<TcpStream> = (0..unread).map(|_| ask(0)).collect();
    // Until all that they can hold is there.
    std::thread::sleep(Duration::from_millis(2_000));
    let mut times: Vec<Duration> = (0..5)
        .map(|_| {
            let since = Instant::now();
            let mut got = Vec::new();
            ask(1).read_to_end(&mut got).unwrap();
            assert_eq!(got.len(), LEN);
            since.elapsed()
        })
        .collect();
    times.sort();
    times[2]
}

#[test]
fn clients_that_read_nothing_hold_their_share_and_the_others_get_theirs_as_fast() {
    raise_open_files().unwrap();
    let alone = time_beside(0);
    for unread in [64, 300] {
        let beside = time_beside(unread);
        println!("5 MiB take {alone:?} alone and {beside:?} beside {unread} that read nothing");
        assert!(beside < 4 * alone + Duration::from_millis(200));
    }
}
