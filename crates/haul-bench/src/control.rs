//! The messages beside the benchmark: JSON, over the control connection of all services.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, TryRecvError};
use haul::dial::refused_hint;
use haul::fault::{Code, Fault};
use haul_control::connection::Connection;
use haul_control::duplex;
use haul_control::frame::Greeting;
use haul_control::stream::Stream;
use haul_control::trust::ClientConfig;
use haul_report::machine::Machine;
use haul_verbs::{Endpoint, Remote};
use serde::{Deserialize, Serialize};

use crate::path::{self, account::Account};
use crate::plan::Plan;
use crate::report::{DeviceInfo, Memory, Spent};

/// Name of the service in the greeting of a control connection.
pub(crate) const SERVICE: &str = "bench";
/// How long an end that sees a queue pair fail waits for the peer's own report of the failure.
const GRACE: Duration = Duration::from_millis(500);

/// The messages between the ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum Message {
    /// Client: the plan.
    Hello { plan: Plan },
    /// Server: accepts; its listener's address, and the ticket for connections there.
    Welcome {
        software: String,
        port: u16,
        ticket: u64,
        place: Place,
    },
    /// Client: its address for the server.
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
    /// The resources that this end used.
    Spent { spent: Spent },
    /// Memory of idle queue pairs.
    Memory { memory: Memory },
    /// Client: no further size follows.
    End,
    /// Client: the plan of a path measurement, instead of `Hello`.
    Ask { plan: path::PathPlan },
    /// Server: accepts; the address for the data, and its ticket.
    #[serde(rename = "doors")]
    Listening {
        software: String,
        ports: Vec<u16>,
        ticket: u64,
        machine: Machine,
    },
    /// Receiver: so many bytes have arrived since the last time, until so long after the start.
    Interval { until_ms: u64, bytes: u64 },
    /// Sender: it has sent all; so many datagrams, if they are.
    Sent { datagrams: u64 },
    /// The final account of this end.
    Account { account: Box<Account> },
    /// Of a newer peer; never sent.
    #[serde(other)]
    Unknown,
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
    /// control connection.
    pub(crate) bound: Vec<(u16, u32)>,
}

/// [`Endpoint`] on the wire.
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
            ..
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
        Self::new(wire.qp_num, wire.psn, wire.lid, wire.gid, wire.port)
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
    /// Makes the fault of a peer that sends this message in the wrong state.
    pub(crate) fn misplaced(self) -> Fault {
        let name = format!("{self:?}");
        let end = name.find([' ', '{']).unwrap_or(name.len());
        Fault::protocol(format!(
            "the peer sent '{}' at the wrong time",
            &name[..end]
        ))
    }
}

/// One end of the control connection of a measurement.
#[derive(Debug)]
pub(crate) struct Control {
    sender: duplex::Sender,
    receiver: duplex::Receiver<Message>,
    /// Taken from `receiver` by a check for a failure.
    early: RefCell<Option<Message>>,
}

impl Control {
    /// Takes a connection over after both ends have greeted; a lost peer is noticed within
    /// `dead_after`.
    pub(crate) fn start(connection: Connection, dead_after: Duration) -> Result<Self, Fault> {
        let (sender, receiver) = connection.split(dead_after, message_of)?;
        Ok(Self {
            sender,
            receiver,
            early: RefCell::new(None),
        })
    }

    pub(crate) fn send(&self, message: &Message) -> Result<(), Fault> {
        let sent = encode(message).and_then(|bytes| self.sender.send(bytes));
        sent.map_err(|fault| self.account_of(fault))
    }

    /// The next message, if one is there.
    pub(crate) fn poll(&self) -> Result<Option<Message>, Fault> {
        if let Some(message) = self.early.take() {
            return Ok(Some(message));
        }
        match self.receiver.incoming().try_recv() {
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
        self.receiver.receive()
    }

    /// The next message of a peer that has no reason to wait.
    pub(crate) fn receive_within(&self, limit: Duration) -> Result<Message, Fault> {
        if let Some(message) = self.early.take() {
            return Ok(message);
        }
        self.receiver
            .incoming()
            .recv_timeout(limit)
            .unwrap_or_else(|error| match error {
                RecvTimeoutError::Timeout => Err(gone("it sends nothing")),
                RecvTimeoutError::Disconnected => Err(gone("it is closed")),
            })
    }

    /// Returns the peer's error, if it has given up; keeps its other messages for later.
    ///
    /// # Errors
    /// The connection is closed.
    pub(crate) fn peek_failure(&self) -> Result<Option<Fault>, Fault> {
        if self.early.borrow().is_some() {
            return Ok(None);
        }
        match self.poll() {
            Err(fault) if fault.code != Code::PeerGone => Ok(Some(fault)),
            found => {
                self.early.replace(found?);
                Ok(None)
            }
        }
    }

    /// Returns the peer's reason for a failure seen here, or that the peer is gone; otherwise the
    /// failure itself.
    pub(crate) fn account_of(&self, fault: Fault) -> Fault {
        loop {
            match self.receiver.incoming().recv_timeout(GRACE) {
                Ok(Ok(_)) => {}
                Ok(Err(told)) => return told,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return fault,
            }
        }
    }

    /// Sends the peer the reason why this end gives up.
    pub(crate) fn fail(&self, fault: &Fault) {
        self.sender.report(fault);
    }
}

/// How a client reaches a server.
#[derive(Debug)]
pub(crate) struct Reach<'a> {
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    pub(crate) control: &'a ClientConfig,
    pub(crate) connect_timeout: Duration,
    pub(crate) dead_after: Duration,
}

/// Connects to a server and asks it to take part; returns this end's and the server's address.
pub(crate) fn open(
    reach: &Reach<'_>,
    addresses: &[SocketAddr],
    request: &Message,
) -> Result<(Control, SocketAddr, SocketAddr), Fault> {
    let failed = |error: io::Error| Fault::connection(&error);
    let name = format!(
        "{} port {}",
        haul::printable(reach.host.as_bytes()),
        reach.port
    );
    let deadline = Instant::now() + reach.connect_timeout;
    let stream = connect(addresses, &name, reach.connect_timeout)?;
    let (own, peer) = (
        stream.local_addr().map_err(failed)?,
        stream.peer_addr().map_err(failed)?,
    );
    let stream = Stream::tcp(stream).map_err(failed)?;
    let mut connection = Connection::client(stream, reach.control, &peer.to_string(), deadline)?;
    let greeting = Greeting {
        software: haul::SOFTWARE.to_owned(),
        service: SERVICE.to_owned(),
        features: 0,
        dead_after_ms: u32::try_from(reach.dead_after.as_millis()).unwrap_or(u32::MAX),
        task: [0; 16],
    };
    connection.greet(&greeting, &[encode(request)?])?;
    connection.greeting()?;
    Ok((Control::start(connection, reach.dead_after)?, own, peer))
}

/// Connects to a server.
fn connect(addresses: &[SocketAddr], name: &str, timeout: Duration) -> Result<TcpStream, Fault> {
    let mut last = None;
    for address in addresses {
        match haul_io::tcp::connect_narrow(address, timeout) {
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

/// The measurement that a client requests, before it is authorised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A bench of the verbs.
    Verbs(Box<Plan>),
    /// A bench of the path.
    Path(Box<path::PathPlan>),
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

/// Reads a request, which may be anything; `None` is a message that only a newer client knows.
pub(crate) fn asked(bytes: &[u8]) -> Result<Option<Asked>, Fault> {
    match message_of(bytes)? {
        Some(Message::Hello { plan }) => {
            plan.validate()?;
            Ok(Some(Asked::Verbs(Box::new(plan))))
        }
        Some(Message::Ask { plan }) => {
            plan.validate()?;
            Ok(Some(Asked::Path(Box::new(plan))))
        }
        Some(other) => Err(other.misplaced()),
        None => Ok(None),
    }
}

fn encode(message: &Message) -> Result<Vec<u8>, Fault> {
    serde_json::to_vec(message)
        .map(haul_control::next::extend)
        .map_err(|error| Fault::new(Code::Other, format!("cannot encode a message: {error}")))
}

fn message_of(bytes: &[u8]) -> Result<Option<Message>, Fault> {
    match serde_json::from_slice(bytes) {
        Ok(Message::Unknown) => Ok(None),
        Ok(message) => Ok(Some(message)),
        Err(error) => Err(Fault::protocol(format!(
            "the peer sent a message that cannot be read: {error}"
        ))),
    }
}

fn gone(why: &str) -> Fault {
    Fault::new(Code::PeerGone, format!("the peer is gone: {why}"))
}

/// Makes the two ends of a connection within this process.
#[cfg(test)]
pub(crate) fn pair(dead_after: Duration) -> (Control, Control) {
    let deadline = Instant::now() + Duration::from_secs(10);
    let (near, far) = haul_io::tcp::pair().unwrap();
    let greeting = Greeting {
        software: haul::SOFTWARE.to_owned(),
        service: SERVICE.to_owned(),
        features: 0,
        dead_after_ms: 1_000,
        task: [0; 16],
    };
    let start = |mut end: Connection| {
        end.greet(&greeting, &[]).unwrap();
        end.greeting().unwrap();
        Control::start(end, dead_after).unwrap()
    };
    std::thread::scope(|scope| {
        let far = scope.spawn(|| {
            let config = haul_control::trust::ServerConfig::insecure().unwrap();
            let far = Stream::tcp(far).unwrap();
            start(
                Connection::server(far, &[], &config, "near", deadline)
                    .unwrap()
                    .0,
            )
        });
        let config = ClientConfig::insecure().unwrap();
        let near = Stream::tcp(near).unwrap();
        let near = start(Connection::client(near, &config, "far", deadline).unwrap());
        (near, far.join().unwrap())
    })
}

#[cfg(test)]
#[path = "../../../tests/fixtures/recorded.rs"]
mod recorded;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::plan;

    fn bytes(message: &Message) -> Vec<u8> {
        encode(message).unwrap()
    }

    #[test]
    fn requests_of_both_kinds_are_read() {
        let hello = Message::Hello { plan: plan() };
        assert_eq!(
            asked(&bytes(&hello)),
            Ok(Some(Asked::Verbs(Box::new(plan()))))
        );
        let plan = path::PathPlan::new(path::Engine::Tcp);
        let ask = Message::Ask { plan: plan.clone() };
        assert_eq!(asked(&bytes(&ask)), Ok(Some(Asked::Path(Box::new(plan)))));
        for other in [&bytes(&Message::Ready)[..], b"", b"{}", b"[1]", b"\xff\0"] {
            assert_eq!(asked(other).unwrap_err().code, Code::Protocol);
        }
        assert_eq!(
            asked(br#"{"is":"of a newer version","more":[1]}"#),
            Ok(None)
        );
    }

    #[test]
    fn a_plan_out_of_range_is_refused_before_anything_is_made() {
        let mut plan = plan();
        plan.qps = u32::MAX;
        let fault = asked(&bytes(&Message::Hello { plan })).unwrap_err();
        assert_eq!(fault.code, Code::Usage);
    }

    #[test]
    fn the_peers_failure_is_the_failure() {
        let (near, far) = pair(Duration::from_secs(10));
        near.send(&Message::Connected).unwrap();
        near.fail(&Fault::new(Code::DiskFull, "no room").hint("make some"));
        assert_eq!(far.receive(), Ok(Message::Connected));
        let told = far.account_of(Fault::new(Code::Other, "as it showed here"));
        let expected = Fault::new(Code::DiskFull, "the client: no room").hint("make some");
        assert_eq!(told, expected);
        let fault = Message::Ready.misplaced();
        assert!(fault.text.contains("'Ready' at the wrong time"), "{fault}");
    }

    #[test]
    fn what_is_not_a_failure_stays_for_later() {
        let (near, far) = pair(Duration::from_secs(10));
        near.send(&Message::Connected).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while far.early.borrow().is_none() && Instant::now() < deadline {
            assert_eq!(far.peek_failure(), Ok(None));
        }
        assert_eq!(far.receive(), Ok(Message::Connected));
        near.fail(&Fault::new(Code::Usage, "no such thing"));
        let found = std::iter::repeat_with(|| far.peek_failure());
        let fault = found.map(Result::unwrap).find_map(|fault| fault).unwrap();
        assert_eq!(fault.code, Code::Usage, "{fault}");
    }

    #[test]
    fn messages_are_those_of_the_first_release() {
        let place = || Place {
            device: DeviceInfo {
                provider: "soft".into(),
                name: "soft-tcp".into(),
                transport: "iwarp".into(),
            },
            addr: 1 << 40,
            rkey: 7,
            endpoints: vec![EndpointWire {
                qp_num: 1,
                psn: 2,
                lid: 3,
                gid: [4; 16],
                port: 5,
            }],
            bound: vec![(5, 6)],
        };
        let listening = r#"{"is":"doors","software":"haul 0.1.0","ports":[1],"ticket":2,"machine":{"cpu":"c","cores":2,"memory_bytes":3,"kernel":"6","haul_version":"0.1.0","haul_commit":null,"iperf3":null,"date":"2026-11-27T00:00:00Z"}}"#;
        let messages = [
            ("hello", Message::Hello { plan: plan() }),
            (
                "welcome",
                Message::Welcome {
                    software: "haul 0.1.0".into(),
                    port: 1,
                    ticket: 2,
                    place: place(),
                },
            ),
            ("join", Message::Join { place: place() }),
            ("connected", Message::Connected),
            (
                "begin",
                Message::Begin {
                    size: 64,
                    iterations: Some(10),
                },
            ),
            ("ready", Message::Ready),
            ("finished", Message::Finished { messages: vec![10] }),
            (
                "spent",
                Message::Spent {
                    spent: Spent::default(),
                },
            ),
            (
                "memory",
                Message::Memory {
                    memory: Memory::default(),
                },
            ),
            ("end", Message::End),
            (
                "ask",
                Message::Ask {
                    plan: path::PathPlan::new(path::Engine::Tcp),
                },
            ),
            ("listening", serde_json::from_str(listening).unwrap()),
            (
                "interval",
                Message::Interval {
                    until_ms: 100,
                    bytes: 1 << 33,
                },
            ),
            ("sent", Message::Sent { datagrams: 9 }),
            (
                "account",
                Message::Account {
                    account: Box::default(),
                },
            ),
        ];
        let made = messages.map(|(name, message)| {
            let bytes = bytes(&message);
            assert_eq!(message_of(&bytes), Ok(Some(message)), "{name}");
            (name, bytes)
        });
        recorded::assert_recorded("bench", &made);
    }

    proptest::proptest! {
        #[test]
        fn no_request_is_too_strange(line in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let _ = asked(&line);
        }
    }
}
