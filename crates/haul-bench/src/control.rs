//! The conversation beside the benchmark: JSON, a message a line, over a TCP connection of its own.
//!
//! The last member of each object is `crc32c`: eight hexadecimal digits of the CRC32C of all that
//! comes before it in the line.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use haul::dial::refused_hint;
use haul::fault::{Code, Fault};
use haul_report::machine::Machine;
use haul_verbs::{Endpoint, Remote};
use serde::{Deserialize, Serialize};

use crate::path::{self, account::Account};
use crate::plan::Plan;
use crate::report::{DeviceInfo, Memory, Spent};

/// Both ends must speak the same.
pub(crate) const VERSION: u32 = 4;
/// What the first message says that it is.
pub(crate) const PROTOCOL: &str = "haul-bench-rdma";
/// The same of a client that measures the path, and its version.
pub(crate) const PATH_PROTOCOL: &str = "haul-bench";
pub(crate) const PATH_VERSION: u32 = 3;
/// The longest message of a stranger, bytes.
const GREETING_MAX: usize = 64 << 10;
/// The longest message, bytes: the endpoints of all queue pairs.
const MESSAGE_MAX: usize = 8 << 20;
/// A server waits so long for a greeting.
const GREETING_TIME: Duration = Duration::from_secs(10);
/// How long the peer's own account of a failure is waited for that showed first on a queue pair.
const GRACE: Duration = Duration::from_millis(500);

/// What the ends tell each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum Message {
    /// Client: what is to be measured.
    Hello {
        protocol: String,
        version: u32,
        plan: Plan,
    },
    /// Server: it takes part; where its listener is, and what connections there must say.
    Welcome {
        software: String,
        port: u16,
        token: u64,
        place: Place,
    },
    /// Client: what the server must know to reach it.
    Join { place: Place },
    /// All queue pairs are connected, and receives are posted.
    Connected,
    /// Client: this size is next; `iterations` of each queue pair, or until the time of the plan is
    /// over.
    Begin { size: u32, iterations: Option<u64> },
    /// Server: ready for it.
    Ready,
    /// So many messages were sent on each queue pair, and all are placed.
    Finished { messages: Vec<u64> },
    /// What this end spent.
    Spent { spent: Spent },
    /// Memory of idle queue pairs.
    Memory { memory: Memory },
    /// Client: that was all.
    End,
    /// Client: what is to be measured of the path, instead of `Hello`.
    Ask {
        protocol: String,
        version: u32,
        plan: path::Plan,
    },
    /// Server: it takes part; where the data goes, and what it must say.
    Doors {
        software: String,
        ports: Vec<u16>,
        token: u64,
        machine: Machine,
    },
    /// Receiver: so many bytes have arrived since the last time, until so long after the start.
    Interval { until_ms: u64, bytes: u64 },
    /// Sender: it has sent all; so many datagrams, if they are.
    Sent { datagrams: u64 },
    /// What this end has to say when it is done.
    Account { account: Box<Account> },
    /// This end gives up.
    Failed {
        code: u16,
        text: String,
        hint: Option<String>,
    },
}

/// How one end is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) device: DeviceInfo,
    /// The memory region.
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    /// Of each queue pair, without the connection manager.
    pub(crate) endpoints: Vec<EndpointWire>,
    /// Of each queue pair of a datagram service: its port and its number, at the address of this
    /// conversation.
    pub(crate) bound: Vec<(u16, u32)>,
}

/// [`Endpoint`] as it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndpointWire {
    qp_num: u32,
    psn: u32,
    lid: u16,
    gid: [u8; 16],
    port: u16,
}

impl From<Endpoint> for EndpointWire {
    fn from(endpoint: Endpoint) -> Self {
        let Endpoint {
            qp_num,
            psn,
            lid,
            gid,
            port,
        } = endpoint;
        Self {
            qp_num,
            psn,
            lid,
            gid,
            port,
        }
    }
}

impl From<EndpointWire> for Endpoint {
    fn from(wire: EndpointWire) -> Self {
        let EndpointWire {
            qp_num,
            psn,
            lid,
            gid,
            port,
        } = wire;
        Self {
            qp_num,
            psn,
            lid,
            gid,
            port,
        }
    }
}

impl Place {
    /// The byte of its region at `offset`.
    pub(crate) fn remote(&self, offset: u64) -> Remote {
        Remote {
            addr: self.addr.wrapping_add(offset),
            rkey: self.rkey,
        }
    }
}

impl Message {
    /// It came where it makes no sense.
    pub(crate) fn misplaced(self) -> Fault {
        match self {
            Self::Failed { code, text, hint } => Fault {
                hint: hint.map(|hint| haul::printable(hint.as_bytes())),
                ..Fault::new(Code::from_number(code), text)
            },
            other => {
                let name = format!("{other:?}");
                let end = name.find([' ', '{']).unwrap_or(name.len());
                Fault::protocol(format!("the peer said '{}' out of turn", &name[..end]))
            }
        }
    }
}

/// One end of the conversation.
#[derive(Debug)]
pub(crate) struct Control {
    stream: TcpStream,
    incoming: Receiver<Result<Message, Fault>>,
    /// Taken from `incoming` by somebody who was looking for a failure.
    early: RefCell<Option<Message>>,
    reader: Option<JoinHandle<()>>,
}

impl Control {
    /// Takes a connection over; a peer that is gone is noticed within `dead_after`.
    pub(crate) fn start(stream: TcpStream, dead_after: Duration) -> Result<Self, Fault> {
        let failed = |error: io::Error| Fault::connection(&error);
        stream.set_nodelay(true).map_err(failed)?;
        // How long a message may take once it has begun.
        stream.set_read_timeout(Some(dead_after)).map_err(failed)?;
        stream.set_write_timeout(Some(dead_after)).map_err(failed)?;
        haul_io::tcp::detect_dead_peer(&stream, dead_after).map_err(failed)?;
        let input = stream.try_clone().map_err(failed)?;
        let (sender, incoming) = channel();
        let reader = std::thread::Builder::new()
            .name("bench-control".into())
            .spawn(move || read_all(input, &sender, dead_after))
            .map_err(|error| Fault::new(Code::Other, format!("cannot start a thread: {error}")))?;
        Ok(Self {
            stream,
            incoming,
            early: RefCell::new(None),
            reader: Some(reader),
        })
    }

    pub(crate) fn send(&self, message: &Message) -> Result<(), Fault> {
        write(&self.stream, message).map_err(|error| {
            let fault = gone(&error.to_string());
            self.account_of(fault)
        })
    }

    /// The next message, if one is there.
    pub(crate) fn poll(&self) -> Result<Option<Message>, Fault> {
        if let Some(message) = self.early.take() {
            return Ok(Some(message));
        }
        match self.incoming.try_recv() {
            Ok(message) => message.map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(gone("it is closed")),
        }
    }

    /// The next message.
    pub(crate) fn receive(&self) -> Result<Message, Fault> {
        if let Some(message) = self.early.take() {
            return Ok(message);
        }
        let closed = || Err(gone("it is closed"));
        self.incoming.recv().unwrap_or_else(|_| closed())
    }

    /// Returns the server's reply to the first message. Servers of other protocols close the
    /// connection instead.
    pub(crate) fn first_reply(&self, server: SocketAddr) -> Result<Message, Fault> {
        self.receive().map_err(|fault| {
            if fault == damaged() {
                return fault;
            }
            let text = format!(
                "{server} closed the connection without a reply: it is not 'haul bench serve', or it has ended"
            );
            Fault::new(fault.code, text)
                .hint("start 'haul bench serve' there, or give its port with --port")
        })
    }

    /// The next message of a peer that has no reason to wait.
    pub(crate) fn receive_within(&self, limit: Duration) -> Result<Message, Fault> {
        if let Some(message) = self.early.take() {
            return Ok(message);
        }
        self.incoming
            .recv_timeout(limit)
            .unwrap_or_else(|error| match error {
                RecvTimeoutError::Timeout => Err(gone("it sends nothing")),
                RecvTimeoutError::Disconnected => Err(gone("it is closed")),
            })
    }

    /// Why the peer has given up, if it has; anything else that it has said stays for later.
    ///
    /// # Errors
    /// The connection is closed.
    pub(crate) fn peek_failure(&self) -> Result<Option<Fault>, Fault> {
        if self.early.borrow().is_some() {
            return Ok(None);
        }
        match self.poll()? {
            Some(failed @ Message::Failed { .. }) => Ok(Some(failed.misplaced())),
            other => {
                self.early.replace(other);
                Ok(None)
            }
        }
    }

    /// What the peer says about a failure that showed here, or that it is gone; else the failure as
    /// it showed.
    pub(crate) fn account_of(&self, fault: Fault) -> Fault {
        loop {
            match self.incoming.recv_timeout(GRACE) {
                Ok(Ok(failed @ Message::Failed { .. })) => return failed.misplaced(),
                Ok(Ok(_)) => {}
                Ok(Err(closed)) if closed.code == Code::PeerGone => return closed,
                Ok(Err(_)) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return fault;
                }
            }
        }
    }

    /// Tells the peer why this end gives up.
    pub(crate) fn fail(&self, fault: &Fault) {
        // The connection may be what failed.
        let _ = write(&self.stream, &failed(fault));
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // It may be closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            // A reader that panicked has said so.
            let _ = reader.join();
        }
    }
}

/// Connects to a server.
pub(crate) fn connect(
    addresses: &[SocketAddr],
    name: &str,
    timeout: Duration,
) -> Result<TcpStream, Fault> {
    let mut last = None;
    for address in addresses {
        match TcpStream::connect_timeout(address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some((error, address.ip())),
        }
    }
    let hint = last.as_ref().map_or_else(
        || "check the name".to_owned(),
        |(_, ip)| refused_hint("haul bench serve", *ip),
    );
    let last = last.map(|(error, _)| error);
    let why = match last.as_ref().map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionRefused) => "nothing listens there".to_owned(),
        Some(io::ErrorKind::TimedOut) => "it does not answer".to_owned(),
        _ => last.map_or_else(|| "it has no address".to_owned(), |error| error.to_string()),
    };
    Err(Fault::new(Code::Unreachable, format!("cannot reach {name}: {why}")).hint(hint))
}

/// What a stranger asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A bench of the verbs.
    Verbs(Box<Plan>),
    /// A bench of the path.
    Path(Box<path::Plan>),
}

impl Asked {
    /// It is to run beside another one.
    pub(crate) fn beside(&self) -> bool {
        match self {
            Self::Verbs(plan) => plan.beside,
            Self::Path(plan) => plan.beside,
        }
    }
}

/// The first message of a stranger, who says nothing more before the answer.
pub(crate) fn greeting(mut stream: &TcpStream) -> Result<Asked, Fault> {
    let failed = |error: io::Error| Fault::connection(&error);
    let end = Instant::now() + GREETING_TIME;
    let mut line = Vec::new();
    let mut piece = [0; 4096];
    while line.len() < GREETING_MAX {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        stream.set_read_timeout(Some(left)).map_err(failed)?;
        match stream.read(&mut piece).map_err(failed)? {
            0 => break,
            count => line.extend_from_slice(&piece[..count]),
        }
        if line.ends_with(b"\n") {
            return asked(&line);
        }
    }
    Err(Fault::new(Code::NotHaul, "not a haul bench"))
}

/// Reads a greeting, which may be anything.
pub(crate) fn asked(line: &[u8]) -> Result<Asked, Fault> {
    let Some(message) = checked(line) else {
        return Err(not_understood(line));
    };
    match serde_json::from_slice(message) {
        Ok(Message::Hello {
            protocol,
            version: VERSION,
            plan,
        }) if protocol == PROTOCOL => {
            plan.validate()?;
            Ok(Asked::Verbs(Box::new(plan)))
        }
        Ok(Message::Ask {
            protocol,
            version: PATH_VERSION,
            plan,
        }) if protocol == PATH_PROTOCOL => {
            plan.validate()?;
            Ok(Asked::Path(Box::new(plan)))
        }
        _ => Err(not_understood(line)),
    }
}

/// Another version, or something else altogether.
fn not_understood(line: &[u8]) -> Fault {
    let value: serde_json::Value = serde_json::from_slice(line).unwrap_or_default();
    let known = [(PROTOCOL, VERSION), (PATH_PROTOCOL, PATH_VERSION)];
    let found = known.iter().find(|(name, _)| value["protocol"] == *name);
    let Some((name, version)) = found else {
        return Fault::new(Code::NotHaul, "not a haul bench");
    };
    if value["version"] == *version {
        return damaged();
    }
    let theirs = value["version"].as_u64().unwrap_or(0);
    let text = format!("the client speaks version {theirs} of {name}, not {version}");
    Fault::new(Code::Version, text).hint("run the same haul version at both ends")
}

/// Turns a stranger away.
pub(crate) fn refuse(stream: &TcpStream, fault: &Fault) {
    // Whoever it was may be gone.
    let _ = write(stream, &failed(fault));
    let _ = stream.shutdown(Shutdown::Write);
}

fn failed(fault: &Fault) -> Message {
    Message::Failed {
        code: fault.code.number(),
        text: fault.text.clone(),
        hint: fault.hint.clone(),
    }
}

fn write(mut stream: &TcpStream, message: &Message) -> io::Result<()> {
    stream.write_all(&line_of(message)?)
}

/// What the member with the check begins with.
const CHECK: &[u8] = b",\"crc32c\":\"";
/// What comes behind its digits.
const CHECK_END: &[u8] = b"\"}\n";

/// A message as it goes over the wire.
fn line_of(message: &Message) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(message).map(seal)
}

/// Adds its check to an object, and ends the line.
pub(crate) fn seal(mut object: Vec<u8>) -> Vec<u8> {
    object.pop();
    let digits = digits(&object);
    object.extend([CHECK, &digits, CHECK_END].concat());
    object
}

fn digits(covered: &[u8]) -> [u8; 8] {
    let mut digits = [0; 8];
    for (pair, byte) in digits.chunks_mut(2).zip(haul::crc32c(covered)) {
        for (digit, half) in pair.iter_mut().zip([byte >> 4, byte & 15]) {
            *digit = b"0123456789abcdef"[usize::from(half)];
        }
    }
    digits
}

/// The line, if its check holds.
fn checked(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_suffix(CHECK_END)?;
    let (rest, found) = rest.split_last_chunk::<8>()?;
    let covered = rest.strip_suffix(CHECK)?;
    (digits(covered) == *found).then_some(line)
}

/// The message in a line. A refusal may come from a server of another version, without a check.
fn message_of(line: &[u8]) -> Result<Message, Fault> {
    let message = serde_json::from_slice(line);
    if checked(line).is_none() && !matches!(message, Ok(Message::Failed { .. })) {
        return Err(damaged());
    }
    message.map_err(|error| Fault::protocol(format!("the peer talks nonsense: {error}")))
}

fn damaged() -> Fault {
    Fault::new(Code::PeerGone, "a control message arrived damaged")
        .hint("run the same command again")
}

fn read_all(mut input: TcpStream, sender: &Sender<Result<Message, Fault>>, patience: Duration) {
    let (mut line, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    let (mut begun, mut seen) = (None, 0);
    loop {
        let mut over = match input.read(&mut piece) {
            Ok(0) => Some(gone("it has closed the connection")),
            Ok(count) => {
                line.extend_from_slice(&piece[..count]);
                None
            }
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted
                | io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut => None,
                _ => Some(gone(&error.to_string())),
            },
        };
        while let Some(end) = line[seen..].iter().position(|byte| *byte == b'\n') {
            let end = seen + end;
            let message = message_of(&line[..=end]);
            line.drain(..=end);
            seen = 0;
            begun = None;
            let is_last = message.is_err();
            // Without a receiver nobody wants to know.
            if sender.send(message).is_err() || is_last {
                return;
            }
        }
        seen = line.len();
        if line.is_empty() {
            begun = None;
        } else if begun.get_or_insert_with(Instant::now).elapsed() > patience
            || line.len() > MESSAGE_MAX
        {
            over.get_or_insert_with(|| gone("its message has no end"));
        }
        if let Some(fault) = over {
            // As above.
            let _ = sender.send(Err(fault));
            return;
        }
    }
}

fn gone(why: &str) -> Fault {
    Fault::new(Code::PeerGone, format!("the peer is gone: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::plan;

    #[test]
    fn a_message_that_stays_incomplete_ends_the_connection() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let limit = Duration::from_millis(300);
        let control = Control::start(far, limit).unwrap();
        // Between messages a peer may be silent.
        std::thread::sleep(2 * limit);
        near.write_all(&line_of(&Message::Ready).unwrap()).unwrap();
        let first = control.receive_within(Duration::from_secs(10));
        let ended = first.and_then(|_| {
            // What trickles in does not prolong it.
            for _ in 0..40 {
                let _ = near.write_all(b"[");
                std::thread::sleep(limit / 10);
            }
            control.receive_within(Duration::from_secs(10))
        });
        let fault = ended.unwrap_err();
        assert_eq!(fault.code, Code::PeerGone, "{fault}");
        assert!(fault.text.contains("no end"), "{fault}");
    }

    #[test]
    fn a_server_that_closes_without_a_reply_is_not_a_bench_server() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let near = TcpStream::connect(address).unwrap();
        let control = Control::start(near, Duration::from_secs(10)).unwrap();
        drop(listener.accept().unwrap());
        let fault = control.first_reply(address).unwrap_err();
        assert_eq!(fault.code, Code::PeerGone, "{fault}");
        assert!(fault.text.contains("not 'haul bench serve'"), "{fault}");
    }

    fn hello(protocol: &str, version: u32) -> Vec<u8> {
        let hello = Message::Hello {
            protocol: protocol.into(),
            version,
            plan: plan(),
        };
        line_of(&hello).unwrap()
    }

    #[test]
    fn every_flipped_bit_of_a_message_is_noticed() {
        let finished = Message::Finished {
            messages: vec![7, 70_000],
        };
        for message in [Message::Connected, finished] {
            let line = line_of(&message).unwrap();
            assert_eq!(message_of(&line), Ok(message));
            for bit in 0..line.len() * 8 {
                let mut damaged = line.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let noticed = message_of(&damaged).map_err(|fault| fault.code);
                assert_eq!(noticed, Err(Code::PeerGone), "bit {bit}");
            }
        }
        let line = hello(PROTOCOL, VERSION);
        for bit in 0..line.len() * 8 {
            let mut damaged = line.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(asked(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_client_without_checks_is_told_its_version_and_a_refusal_needs_none() {
        let unchecked = |version| {
            let line = String::from_utf8(hello(PROTOCOL, version)).unwrap();
            let end = line.find(",\"crc32c").unwrap();
            format!("{}}}\n", &line[..end])
        };
        let fault = asked(unchecked(VERSION - 1).as_bytes()).unwrap_err();
        assert_eq!(fault.code, Code::Version);
        let fault = asked(unchecked(VERSION).as_bytes()).unwrap_err();
        assert_eq!(fault.code, Code::PeerGone);
        let refusal = failed(&Fault::new(Code::Version, "older"));
        let line = serde_json::to_vec(&refusal).unwrap();
        assert_eq!(message_of(&line), Ok(refusal));
    }

    #[test]
    fn a_message_that_does_not_end_is_a_lost_connection() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let control = Control::start(stream, Duration::from_millis(300)).unwrap();
        // A peer that says nothing is not gone, and one that is slow is not either.
        std::thread::sleep(Duration::from_millis(500));
        let line = line_of(&Message::Ready).unwrap();
        for half in line.chunks(line.len().div_ceil(2)) {
            peer.write_all(half).unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(control.receive(), Ok(Message::Ready));
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(2) {
            // Its reader may have closed.
            let _ = peer.write_all(b"x");
            std::thread::sleep(Duration::from_millis(50));
        }
        let fault = control.receive_within(Duration::ZERO).unwrap_err();
        assert!(fault.text.contains("has no end"), "{fault}");
    }

    #[test]
    fn strangers_and_other_versions_are_told_apart() {
        let verbs = Asked::Verbs(Box::new(plan()));
        assert_eq!(asked(&hello(PROTOCOL, VERSION)), Ok(verbs));
        let ask = |version| {
            let ask = Message::Ask {
                protocol: PATH_PROTOCOL.into(),
                version,
                plan: path::Plan::new(path::Engine::Tcp),
            };
            line_of(&ask).unwrap()
        };
        let plan = Box::new(path::Plan::new(path::Engine::Tcp));
        assert_eq!(asked(&ask(PATH_VERSION)), Ok(Asked::Path(plan)));
        let code = |line: &[u8]| asked(line).unwrap_err().code;
        assert_eq!(code(&ask(PATH_VERSION + 1)), Code::Version);
        assert_eq!(code(&hello(PROTOCOL, VERSION + 1)), Code::Version);
        assert_eq!(code(&hello("other", VERSION)), Code::NotHaul);
        for line in [&b""[..], b"GET / HTTP/1.1\r\n", b"{}", b"[1]", b"\xff\0"] {
            assert_eq!(code(line), Code::NotHaul);
        }
    }

    #[test]
    fn a_plan_out_of_range_is_refused_at_the_door() {
        let mut plan = plan();
        plan.qps = u32::MAX;
        let hello = Message::Hello {
            protocol: PROTOCOL.into(),
            version: VERSION,
            plan,
        };
        let fault = asked(&line_of(&hello).unwrap()).unwrap_err();
        assert_eq!(fault.code, Code::Usage);
    }

    #[test]
    fn the_peers_failure_is_the_failure() {
        let fault = Fault::new(Code::DiskFull, "no room").hint("make some");
        assert_eq!(failed(&fault).misplaced(), fault);
        let fault = Message::Ready.misplaced();
        assert!(fault.text.contains("'Ready' out of turn"), "{fault}");
    }

    proptest::proptest! {
        #[test]
        fn no_line_is_too_strange(line in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let _ = asked(&line);
        }
    }
}
