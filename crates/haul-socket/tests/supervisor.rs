//! Applications that do not load the library, under the supervisor: here the connections of a shell
//! and of a C program that calls the kernel itself. Nothing leaves this host: the far end is this
//! test.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "the far end of connections takes its time, and what goes wrong there fails the test"
)]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use haul_socket::run::{
    Call, Calls, Carrier, Config, Failure, NotRun, Row, Run, Signals, Supervision,
};
use haul_socket::table::Options;
use tempfile::TempDir;

/// No host of the internet has these addresses (RFC 5737, RFC 3849).
const SERVED: &str = "192.0.2.1:80";
const SERVED_V6: &str = "[2001:db8::1]:80";
const REFUSED: &str = "192.0.2.2:80";

/// What a run gave.
struct Ran {
    code: Option<i32>,
    out: String,
    rows: Vec<Row>,
    /// Lines about connections that were not carried.
    lines: Vec<String>,
}

/// Runs a command under a supervisor whose gateway reaches SERVED, slowly, and nothing else.
/// `None` after saying why there is no supervisor here.
fn run(command: &mut Command, folder: &TempDir) -> Option<Ran> {
    let signals = Signals::block().unwrap();
    let run = Run::start(&config(folder)).unwrap();
    let calls = run.take_calls(serve).unwrap();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let out = folder.path().join("out");
    command.stdin(Stdio::null()).stdout(
        std::fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .open(&out)
            .unwrap(),
    );
    let ended = signals.run(command, Some(supervision(&calls, &lines)));
    let status = match ended {
        Err(NotRun::Supervision(error)) => {
            println!("SKIPPED: no seccomp filter here ({error})");
            return None;
        }
        status => status.unwrap(),
    };
    drop(calls);
    let rows = run.report().rows;
    run.end().unwrap();
    let lines = lines.lock().unwrap().clone();
    Some(Ran {
        code: status.code(),
        out: std::fs::read_to_string(out).unwrap(),
        rows,
        lines,
    })
}

fn config(folder: &TempDir) -> Config {
    Config {
        port: 4793,
        options: Options {
            datagram: false,
            stream: false,
            write_record: false,
            gateway: true,
        },
        table: Some(folder.path().join("table")),
    }
}

fn supervision<'a>(calls: &'a Calls, lines: &Arc<Mutex<Vec<String>>>) -> Supervision<'a> {
    let lines = Arc::clone(lines);
    Supervision {
        calls,
        say: Box::new(move |line| lines.lock().unwrap().push(line.to_owned())),
    }
}

/// The gateway: it takes its time, and what it serves is "hello from " and the destination.
fn serve(call: Call) {
    let answer = move || {
        std::thread::sleep(Duration::from_millis(100));
        let to = call.to().to_string();
        match to.as_str() {
            SERVED | SERVED_V6 => {
                let mut stream: TcpStream = call.accept().unwrap();
                stream.set_nonblocking(false).unwrap();
                let mut octets = [0; 5];
                stream.read_exact(&mut octets).unwrap();
                assert_eq!(&octets, b"greet");
                write!(stream, "hello from {to}").unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                assert_eq!(stream.read(&mut octets).unwrap(), 0);
            }
            REFUSED => call.refuse(Failure::Refused),
            _ => call.refuse(Failure::NoWay),
        }
    };
    std::thread::spawn(answer);
}

/// Builds tests/supervised.c, static, so that it calls the kernel itself.
fn program(folder: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/supervised.c");
    let program = folder.join("supervised");
    let flags = [
        "-std=c11",
        "-D_GNU_SOURCE",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O2",
        "-static",
    ];
    let built = Command::new("cc")
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg(source)
        .output();
    match built {
        Ok(output) if output.status.success() => Some(program),
        Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            println!("SKIPPED: no C compiler ({error})");
            None
        }
    }
}

#[test]
fn a_shell_without_the_library_is_carried() {
    let folder = tempfile::tempdir().unwrap();
    let script = "exec 3<>/dev/tcp/192.0.2.1/80 && printf greet >&3 && cat <&3 && \
                  ! (exec 3<>/dev/tcp/192.0.2.2/80) 2>$0 && cat $0";
    let error = folder.path().join("error");
    let mut command = Command::new("bash");
    command.args(["-c", script]).arg(error).env("LC_ALL", "C");
    let Some(ran) = run(&mut command, &folder) else {
        return;
    };
    assert_eq!(ran.code, Some(0), "{}", ran.out);
    assert!(
        ran.out.starts_with("hello from 192.0.2.1:80"),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("Connection refused"), "{}", ran.out);
    let row = ran
        .rows
        .iter()
        .find(|row| row.remote == Some(SERVED.parse().unwrap()));
    let row = row.unwrap();
    assert_eq!((row.carrier, row.carried), (Carrier::Gateway, None));
    let row = ran
        .rows
        .iter()
        .find(|row| row.remote == Some(REFUSED.parse().unwrap()));
    assert_eq!(row.unwrap().carrier, Carrier::Kernel);
    assert_eq!(ran.lines, Vec::<String>::new());
}

/// Every case of tests/supervised.c.
#[test]
fn a_static_program_sees_connections_as_the_kernel_makes_them() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = program(folder.path()) else {
        return;
    };
    // On this host nothing is carried.
    let near = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = near.local_addr().unwrap().port().to_string();
    let mut command = Command::new(program);
    command.arg(port);
    let Some(ran) = run(&mut command, &folder) else {
        return;
    };
    assert_eq!(ran.lines, Vec::<String>::new(), "{}", ran.out);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "end\n"));
}

/// The thread that takes calls and drains ends although some calls wait for an answer.
#[test]
fn a_call_that_waits_does_not_hold_who_takes_calls() {
    let folder = tempfile::tempdir().unwrap();
    let signals = Signals::block().unwrap();
    let run = Run::start(&config(&folder)).unwrap();
    let (waiting, taker) = (Arc::new(Mutex::new(Vec::new())), Arc::new(()));
    let (kept, own) = (Arc::clone(&waiting), Arc::clone(&taker));
    let keep = move |call: Call| {
        let _holds = &own;
        kept.lock().unwrap().push(call);
    };
    let calls = run.take_calls(keep).unwrap();
    let mut command = Command::new("timeout");
    command.args(["1", "bash", "-c", "exec 3<>/dev/tcp/192.0.2.1/80"]);
    let lines = Arc::default();
    let ended = signals.run(&mut command, Some(supervision(&calls, &lines)));
    if let Err(NotRun::Supervision(error)) = ended {
        println!("SKIPPED: no seccomp filter here ({error})");
        return;
    }
    drop(calls);
    assert_eq!(
        (waiting.lock().unwrap().len(), Arc::strong_count(&taker)),
        (1, 1)
    );
}

#[test]
fn what_cannot_be_started_is_told_apart_from_what_cannot_be_supervised() {
    let folder = tempfile::tempdir().unwrap();
    let signals = Signals::block().unwrap();
    let run = Run::start(&config(&folder)).unwrap();
    let calls = run.take_calls(serve).unwrap();
    let lines = Arc::default();
    let mut command = Command::new("/no/such/program");
    match signals.run(&mut command, Some(supervision(&calls, &lines))) {
        Err(NotRun::Program(error)) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
        Err(NotRun::Supervision(error)) => println!("SKIPPED: no seccomp filter here ({error})"),
        Ok(status) => panic!("{status}"),
    }
}
