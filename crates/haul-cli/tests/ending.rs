//! What programs see of a gateway at the edge that is killed, or told to stop: a reset, and never
//! an end that looks like one in order.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "what is not there where it must be fails the test; programs are threads with sockets"
)]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{Gateway, member};

mod common;

const KIND: &str = "tcp";
/// Bytes that have arrived before anything is done to a gateway.
const BEFORE: usize = 1 << 20;
/// How long programs at the gateway that lives are looked at.
const QUIET: Duration = Duration::from_millis(500);

/// The configuration of the far gateway.
fn far(listen: &str) -> String {
    member(KIND, listen, "exit = ['127.0.0.1']")
}

/// Two gateways, and a connection through them that both programs have.
struct Path {
    near: Gateway,
    far: Gateway,
    /// At the near gateway.
    client: TcpStream,
    /// At the far one.
    server: TcpStream,
}

impl Path {
    fn open(route: &str, args: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let far = Gateway::start_with(&far("127.0.0.1:0"), args);
        let near = Gateway::start_with(
            &format!(
                "name = 'near'\nanonymous = true\n[[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:0'\nto = '{to}'\n\
                 [[route]]\nto = ['*']\nvia = ['{}']\nring = '8MiB'\nchannels = ['{KIND}']\n{route}\n",
                far.sessions_at()
            ),
            args,
        );
        let client = TcpStream::connect(near.listener_at()).unwrap();
        let (server, _) = listener.accept().unwrap();
        for program in [&client, &server] {
            let patience = Some(Duration::from_secs(60));
            program.set_read_timeout(patience).unwrap();
            program.set_write_timeout(patience).unwrap();
        }
        Self {
            near,
            far,
            client,
            server,
        }
    }

    const fn gateway(&mut self, side: Side) -> &mut Gateway {
        match side {
            Side::Near => &mut self.near,
            Side::Far => &mut self.far,
        }
    }

    /// The program at that gateway.
    fn program(&self, side: Side) -> TcpStream {
        let program = match side {
            Side::Near => &self.client,
            Side::Far => &self.server,
        };
        program.try_clone().unwrap()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Near,
    Far,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }
}

/// Sends until it may not; why.
fn send_endlessly(mut program: TcpStream) -> JoinHandle<ErrorKind> {
    std::thread::spawn(move || {
        let octets = vec![7; 64 << 10];
        loop {
            if let Err(error) = program.write_all(&octets) {
                return error.kind();
            }
        }
    })
}

/// Reads what is left, and why there is no more: an end in order is none of the reasons.
fn read_on(mut program: &TcpStream) -> ErrorKind {
    let mut octets = vec![0; 64 << 10];
    loop {
        match program.read(&mut octets) {
            Ok(0) => panic!("it ended as if it were whole"),
            Ok(_) => {}
            Err(error) => return error.kind(),
        }
    }
}

/// Why a program's connection is over, which may be sending.
fn why_over(program: &TcpStream, sending: Option<JoinHandle<ErrorKind>>) -> ErrorKind {
    match sending {
        Some(sending) => sending.join().unwrap(),
        None => read_on(program),
    }
}

fn is_reset(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// A gateway is killed in the middle of a transfer from one program to the other, which has more to
/// come or waits for nothing.
fn kill(killed: Side, from: Side, is_busy: bool) {
    // The gateway that lives waits no longer than that for the other, once it is to end.
    let mut path = Path::open("", &["--patience", "1"]);
    let mut receiver = path.program(from.other());
    let mut sender = path.program(from);
    let sending = is_busy.then(|| send_endlessly(path.program(from)));
    if !is_busy {
        sender.write_all(&vec![7; BEFORE]).unwrap();
    }
    receiver.read_exact(&mut vec![0; BEFORE]).unwrap();
    path.gateway(killed).kill();
    let case = format!("killed {killed:?}, from {from:?}, busy {is_busy}");
    let (close, distant) = (path.program(killed), path.program(killed.other()));
    // The kernel reports a reset once: to a sender, if there is one.
    let (sending_close, sending_distant) = match killed == from {
        true => (sending, None),
        false => (None, sending),
    };
    let told = why_over(&close, sending_close);
    assert!(is_reset(told), "{case}: {told:?}");
    // The session may be resumed, as far as the other gateway knows: until it is given up its
    // program waits.
    distant.set_read_timeout(Some(QUIET)).unwrap();
    assert_eq!(read_on(&distant), ErrorKind::WouldBlock, "{case}");
    let alive = path.gateway(killed.other());
    alive.signal("TERM");
    alive.exit_code();
    let told = why_over(&distant, sending_distant);
    assert!(is_reset(told), "{case}: {told:?}");
}

#[test]
fn a_gateway_at_the_edge_that_is_killed_resets_programs_that_do_not_have_everything() {
    for killed in [Side::Near, Side::Far] {
        for from in [Side::Near, Side::Far] {
            for is_busy in [true, false] {
                kill(killed, from, is_busy);
            }
        }
    }
}

#[test]
fn a_program_that_has_ended_its_own_half_is_reset_in_the_middle_of_an_answer() {
    let mut path = Path::open("", &[]);
    path.client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(path.server.read(&mut [0]).unwrap(), 0);
    path.server.write_all(&[7; 100]).unwrap();
    path.client.read_exact(&mut [0; 100]).unwrap();
    path.near.kill();
    assert_eq!(read_on(&path.client), ErrorKind::ConnectionReset);
}

#[test]
fn a_gateway_that_is_told_a_second_time_to_stop_ends_at_once_and_resets_its_programs() {
    for side in [Side::Near, Side::Far] {
        let mut path = Path::open("", &[]);
        path.server.write_all(&[7; 100]).unwrap();
        path.client.read_exact(&mut [0; 100]).unwrap();
        let gateway = path.gateway(side);
        gateway.signal("TERM");
        gateway.said("draining connections");
        gateway.signal("TERM");
        assert_eq!(gateway.exit_code(), Some(130), "{side:?}");
        let told = read_on(&path.program(side));
        assert_eq!(told, ErrorKind::ConnectionReset, "{side:?}");
    }
}

#[test]
fn a_far_gateway_that_is_killed_and_comes_back_ends_what_the_near_one_still_has() {
    for route in ["", "end_to_end = true"] {
        let mut path = Path::open(route, &[]);
        path.server.write_all(&vec![7; BEFORE]).unwrap();
        path.client.read_exact(&mut vec![0; BEFORE]).unwrap();
        let listen = path.far.sessions_at().to_string();
        path.far.kill();
        path.far = Gateway::start(&far(&listen));
        for program in [&path.client, &path.server] {
            let told = read_on(program);
            assert_eq!(told, ErrorKind::ConnectionReset, "{route}");
        }
    }
}

#[test]
fn what_a_gateway_has_handed_to_its_kernel_arrives_after_it_has_ended() {
    let mut path = Path::open("", &[]);
    // More than the program's socket takes unread, and no more than there is room for at the
    // gateway's.
    let sent = vec![7; 512 << 10];
    path.client.shutdown(Shutdown::Write).unwrap();
    path.server.write_all(&sent).unwrap();
    path.server.shutdown(Shutdown::Write).unwrap();
    assert_eq!(path.server.read(&mut [0]).unwrap(), 0);
    for side in [Side::Near, Side::Far] {
        path.gateway(side).signal("TERM");
        assert_eq!(path.gateway(side).exit_code(), Some(0), "{side:?}");
    }
    let mut got = Vec::new();
    path.client.read_to_end(&mut got).unwrap();
    assert!(got == sent, "{} octets", got.len());
}

#[test]
fn connections_that_outlast_the_patience_are_reset_and_the_gateway_ends_in_order() {
    for side in [Side::Near, Side::Far] {
        let mut path = Path::open("", &["--patience", "1"]);
        path.client.write_all(&[7; 100]).unwrap();
        path.server.read_exact(&mut [0; 100]).unwrap();
        let begun = Instant::now();
        path.gateway(side).signal("TERM");
        path.gateway(side)
            .said("some connections did not finish and are reset");
        assert!(begun.elapsed() >= Duration::from_secs(1));
        assert_eq!(path.gateway(side).exit_code(), Some(0), "{side:?}");
        for program in [&path.client, &path.server] {
            assert_eq!(read_on(program), ErrorKind::ConnectionReset, "{side:?}");
        }
    }
}
