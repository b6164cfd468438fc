//! Gateways in one process, with applications at their edges.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "each test uses its part of it"
)]

pub mod browser;
pub mod gate;
pub mod openmetrics;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haul_gateway::config::ChannelKind;
use haul_gateway::{Config, Gateway, Log};
use haul_verbs::Device;

/// All kinds of data channels.
pub const KINDS: [&str; 3] = ["tcp", "iwarp/udt", "verbs"];

/// A device of the software provider.
pub fn device(kind: ChannelKind, _name: Option<&str>) -> Result<Device, String> {
    let name = match kind {
        // `verbs` is for real devices; what it does with memory is seen with any.
        ChannelKind::Verbs => "soft-tcp",
        ChannelKind::IwarpUdt => "soft-udt",
        ChannelKind::Tcp => return Err("tcp takes no device".to_owned()),
    };
    let provider = haul_soft::rnic::provider(haul_soft::rnic::Options::default());
    let devices = provider.devices().unwrap();
    devices
        .into_iter()
        .find(|device| device.name() == name)
        .ok_or_else(|| "none".to_owned())
}

/// The log lines of a gateway.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    pub fn log(&self) -> Log {
        let lines = self.clone();
        Log::new(move |level, line| {
            if std::env::var_os("GATEWAY_LOG").is_some() {
                eprintln!("{level:?} {line}");
            }
            lines.0.lock().unwrap().push(line.to_owned());
        })
    }

    pub fn contain(&self, text: &str) -> bool {
        self.0
            .lock()
            .unwrap()
            .iter()
            .any(|line| line.contains(text))
    }

    /// Waits until a line with one of `texts` is there.
    pub fn wait_for(&self, texts: &[&str]) {
        let until = Instant::now() + Duration::from_secs(20);
        while !texts.iter().any(|text| self.contain(text)) {
            assert!(
                Instant::now() < until,
                "none of {texts:?} in {:?}",
                self.all()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

pub fn start(text: &str) -> (Gateway, Lines) {
    let config = Config::parse(text).unwrap();
    let lines = Lines::default();
    (Gateway::start(config, device, lines.log()).unwrap(), lines)
}

/// A gateway whose configuration is a file.
pub struct Filed {
    pub gateway: Gateway,
    pub lines: Lines,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Filed {
    pub fn start(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gateway.toml");
        std::fs::write(&path, text).unwrap();
        let (gateway, lines) = start(text);
        Self {
            gateway,
            lines,
            path,
            _dir: dir,
        }
    }

    pub fn reload(&mut self, text: &str) -> Result<(), String> {
        std::fs::write(&self.path, text).unwrap();
        let taken = self.gateway.reload(&self.path);
        taken.map_err(|error| error.to_string())
    }

    pub fn listener(&self, at: usize) -> SocketAddr {
        self.gateway.listener_addrs()[at]
    }
}

/// A gateway at which sessions end.
pub fn exit_gateway(more: &str) -> (Gateway, Lines) {
    start(&format!(
        "name = 'exit'\nlisten = '127.0.0.1:0'\nanonymous = true\nexit = ['127.0.0.0/8']\nring = '4MiB'\n{more}\n\
         [[channel]]\nkind = 'tcp'\nlisten = '127.0.0.1:0'\n\
         [[channel]]\nkind = 'verbs'\nlisten = '127.0.0.1:0'\n\
         [[channel]]\nkind = 'iwarp/udt'\nlisten = '127.0.0.1:0'\n"
    ))
}

/// A gateway with a listener that leads to `to` over `via`.
pub fn entry_gateway(via: &[SocketAddr], to: SocketAddr, route: &str) -> (Gateway, Lines) {
    let via: Vec<String> = via.iter().map(|hop| format!("'{hop}'")).collect();
    start(&format!(
        "name = 'entry'\nanonymous = true\n[[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:0'\nto = '{to}'\n\
         [[route]]\nto = ['*']\nvia = [{}]\nring = '4MiB'\n{route}\n",
        via.join(", ")
    ))
}

/// A server that sends back what it gets, until the end of each connection.
pub fn echo_server() -> SocketAddr {
    serve(|mut stream| {
        let mut octets = vec![0; 64 << 10];
        while let Ok(count) = stream.read(&mut octets) {
            if count == 0 || stream.write_all(&octets[..count]).is_err() {
                return;
            }
        }
    })
}

/// A server, each connection on a thread of its own.
pub fn serve(handle: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let handle = Arc::new(handle);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let handle = Arc::clone(&handle);
            std::thread::spawn(move || handle(stream));
        }
    });
    address
}

pub fn connect(to: SocketAddr) -> TcpStream {
    try_connect(to).unwrap()
}

fn try_connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, Duration::from_secs(10))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.set_write_timeout(Some(Duration::from_secs(30)))?;
    Ok(stream)
}

/// Sends and gets so many bytes back over a connection that stays open.
pub fn echo(stream: &mut TcpStream, octets: usize, seed: u64) {
    let sent = pattern(octets, seed);
    let mut writer = stream.try_clone().unwrap();
    let sending = sent.clone();
    let sending = std::thread::spawn(move || writer.write_all(&sending).unwrap());
    let mut got = vec![0; octets];
    stream.read_exact(&mut got).unwrap();
    sending.join().unwrap();
    assert!(got == sent);
}

/// The reset of a connection that comes to nothing: it may come before the client has noticed that
/// it is connected.
pub fn assert_reset(to: SocketAddr) {
    let read = try_connect(to).and_then(|mut stream| stream.read(&mut [0]));
    let error = read.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
}

/// Bytes that depend on where they are.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

/// Sends `octets` while reading the echo, to the end.
pub fn exchange(stream: TcpStream, octets: Vec<u8>) -> Vec<u8> {
    exchange_past(&[], stream, octets, || {})
}

/// The same; calls `past` when as many bytes as each of `marks` have come back.
pub fn exchange_past(
    marks: &[usize],
    stream: TcpStream,
    octets: Vec<u8>,
    mut past: impl FnMut(),
) -> Vec<u8> {
    let mut writer = stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        writer.write_all(&octets).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut got = Vec::new();
    let mut reader = stream;
    for mark in marks {
        let missing = (mark - got.len()) as u64;
        (&mut reader).take(missing).read_to_end(&mut got).unwrap();
        past();
    }
    reader.read_to_end(&mut got).unwrap();
    sending.join().unwrap();
    got
}

/// Waits for something that happens soon.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
