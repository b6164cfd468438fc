//! `haul agent --stdio`: what ssh starts at the other host.
//!
//! The agent opens a server for one client: the one whose key came over ssh. The client reaches it
//! by a port of the range, or through ssh itself. The server outlives the ssh connection, so that a
//! client that lost its path comes back without another login.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use haul_control::identity::{Identity, PeerIdentity, PrivateKey, PublicKey};
use haul_control::server as control;
use haul_control::trust::{Refusal, Rights, ServerConfig};
use haul_io::tcp;

use super::greeting::{Introduction, Welcome, line};
use super::mux::{End, Kind, Mux, read_frame, write_frame};
use super::probe;
use crate::fault::{Code, Fault};
use crate::ports::Ports;
use crate::server::{Config, Log, Root, Server};

/// An agent ends after this time, whatever happens.
const LIFE: Duration = Duration::from_secs(12 * 3600);
/// Without ssh and without a session, an agent waits this long for its client.
const LINGER: Duration = Duration::from_secs(600);
/// If ssh and the last session end within this time of each other, the client is gone: both end
/// with its process, and a path that fails ends one long before the other.
const TOGETHER: Duration = Duration::from_secs(5);
/// A check of the ports takes no longer.
const PROBE: Duration = Duration::from_secs(300);
/// How often the agent examines whether it is still needed.
const LOOK: Duration = Duration::from_secs(1);

/// Values of the agent's environment.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// The ports to listen on, in place of those that the client asks for.
    pub ports: Option<Ports>,
    /// SSH_CONNECTION: addresses and ports of both ends of the ssh connection.
    pub connection: Option<String>,
}

/// Serves the client at the other end of `input` and `output` until it needs the agent no more.
///
/// # Errors
/// The client does not introduce itself, or this host lacks a thread.
pub fn serve(
    mut input: impl Read + Send + 'static,
    mut output: impl Write + Send + 'static,
    environment: &Environment,
) -> Result<(), Fault> {
    let gone = |error: io::Error| Fault::connection(&error);
    output.write_all(line().as_bytes()).map_err(gone)?;
    output.flush().map_err(gone)?;
    let (header, body) = read_frame(&mut input).map_err(gone)?;
    let introduction = match header.kind {
        Kind::Greeting => minicbor::decode::<Introduction>(&body).ok(),
        _ => None,
    };
    let introduction =
        introduction.ok_or_else(|| Fault::protocol("the client did not introduce itself"))?;
    let asked = introduction
        .ports
        .and_then(|(first, last)| Ports::new(first, last));
    let ports = environment.ports.or(asked).unwrap_or(Ports::DEFAULT);
    let mut welcome = Welcome {
        key: [0; 32],
        ports: Vec::new(),
        address: environment.connection.as_deref().and_then(own_address),
        range: ports.ends(),
        failure: None,
        token: random()?,
    };
    if introduction.probe {
        welcome.ports = probe::open(ports, welcome.token);
        send(&mut output, &welcome)?;
        let mux = Mux::start(input, output, None).map_err(|error| Fault::system(&error))?;
        mux.wait(PROBE);
        return Ok(());
    }
    match open(ports, &introduction) {
        Ok(opened) => {
            welcome.key = opened.key;
            welcome.ports = vec![opened.port];
            send(&mut output, &welcome)?;
            let port = Arc::clone(&opened.control);
            // Not by way of the port: a packet filter may drop what comes from this host itself.
            let accept = Box::new(move || {
                let (near, far) = tcp::local_pair()?;
                port.take(far, "ssh".to_owned());
                Ok(near)
            });
            let mux = Mux::start(input, output, Some(accept));
            let mux = mux.map_err(|error| Fault::system(&error))?;
            std::thread::Builder::new()
                .name("haul-agent".into())
                .spawn(move || opened.server.run())
                .map_err(|error| Fault::system(&error))?;
            attend(&mux, &opened.control, &opened.is_satisfied);
            Ok(())
        }
        Err(fault) => {
            welcome.failure = Some(fault.to_string());
            send(&mut output, &welcome)?;
            Err(fault)
        }
    }
}

fn send(output: &mut impl Write, welcome: &Welcome) -> Result<(), Fault> {
    let body = minicbor::to_vec(welcome)
        .map(haul_control::next::extend)
        .map_err(|error| Fault::new(Code::Other, format!("cannot encode: {error}")))?;
    write_frame(output, Kind::Greeting, 0, &body).map_err(|error| Fault::connection(&error))
}

/// A server for one client, not yet running.
struct Opened {
    server: Server,
    control: Arc<control::Server>,
    /// The session that ended last has done what it was asked.
    is_satisfied: Arc<AtomicBool>,
    port: u16,
    key: [u8; 32],
}

/// Opens the server on the first port of the range that is free.
fn open(ports: Ports, introduction: &Introduction) -> Result<Opened, Fault> {
    let client = PeerIdentity::Key(PublicKey::from_bytes(introduction.key));
    let key = PrivateKey::generate()?;
    let public = *key.public().as_bytes();
    let admission = Arc::new(move |peer: &PeerIdentity| {
        if *peer == client {
            return Ok(Rights::all(&peer.to_string()));
        }
        Err(Refusal {
            text: "this port belongs to the client of an ssh login".to_owned(),
            hint: Some("log in by ssh as well".to_owned()),
        })
    });
    let is_satisfied = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&is_satisfied);
    let config = Config {
        audit: Some(Arc::new(move |entry| {
            if entry.operation != "login" {
                noted.store(entry.fault.is_none(), Ordering::Release);
            }
        })),
        ..Config::new(
            Root::Account,
            ServerConfig::new(&[Identity::Key(key)], &[], admission)?,
        )
    };
    let any = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let log: Log = Arc::new(|_| {});
    let (server, port) = Server::bind_in(&config, &any, ports, &log)?;
    Ok(Opened {
        control: Arc::clone(server.port()),
        server,
        is_satisfied,
        port,
        key: public,
    })
}

/// Blocks until the client is done, or has been away for too long.
fn attend(mux: &Mux, server: &control::Server, is_satisfied: &AtomicBool) {
    let begun = Instant::now();
    let mut idle_since = begun;
    let mut alone_since = None;
    while begun.elapsed() < LIFE {
        let end = mux.wait(LOOK);
        if end == Some(End::Done) {
            return;
        }
        if end.is_some() {
            alone_since.get_or_insert_with(Instant::now);
        }
        if server.sessions() > 0 {
            idle_since = Instant::now();
        } else if let Some(alone) = alone_since
            && (is_satisfied.load(Ordering::Acquire) || is_over(alone, idle_since, Instant::now()))
        {
            return;
        }
        if end.is_some() {
            std::thread::sleep(LOOK);
        }
    }
}

/// Returns whether the client will not come back: ssh has been gone since `alone`, and there has
/// been no session since `idle`.
fn is_over(alone: Instant, idle: Instant, now: Instant) -> bool {
    let apart = alone.max(idle) - alone.min(idle);
    // The last session may be about to end, or the first to begin.
    let is_settled = now - alone.max(idle) >= LOOK;
    (is_settled && apart <= TOGETHER) || now - idle > LINGER
}

/// Returns this host's address: the third word of SSH_CONNECTION.
fn own_address(connection: &str) -> Option<String> {
    connection.split_whitespace().nth(2).map(str::to_owned)
}

fn random() -> Result<[u8; probe::TOKEN], Fault> {
    haul_io::random::bytes()
        .map_err(|error| Fault::new(Code::Other, format!("cannot read random bytes: {error}")))
}

#[cfg(test)]
mod tests {
    use haul_control::trust::{ClientConfig, Trust};

    use super::*;

    #[test]
    fn only_the_client_of_the_login_is_admitted() {
        let (ours, other) = (
            PrivateKey::generate().unwrap(),
            PrivateKey::generate().unwrap(),
        );
        let introduction = Introduction {
            software: String::new(),
            key: *ours.public().as_bytes(),
            ports: None,
            probe: false,
        };
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let opened = open(Ports::new(port, port).unwrap(), &introduction).unwrap();
        let agent = PublicKey::from_bytes(opened.key);
        std::thread::spawn(move || opened.server.run());
        let dir = tempfile::tempdir().unwrap();
        let get = |key: Option<&PrivateKey>, agent: PublicKey| {
            let identity = key.cloned().map(Identity::Key);
            let config = crate::client::Config {
                host: "127.0.0.1".to_owned(),
                port,
                channel: crate::channel::ChannelKind::Tcp,
                streams: 1,
                rate_bps: None,
                congestion: None,
                connect_timeout: Duration::from_secs(10),
                dead_after: Duration::from_secs(10),
                give_up_after: Some(Duration::ZERO),
                sealed: true,
                control: ClientConfig::new(identity.as_ref(), &Trust::Keys(vec![agent])).unwrap(),
                dialer: None,
                access: None,
                may_fall_back: false,
                paths: None,
                limit: None,
            };
            let policy = crate::client::Policy {
                replace: true,
                recheck: false,
                ..crate::client::Policy::default()
            };
            let paths = [b"/nothing/here".to_vec()];
            let all = crate::choice::Choice::default();
            let got = crate::client::get(&config, &paths, &all, dir.path(), policy, &Silent);
            got.unwrap_err().code
        };
        assert_eq!(get(Some(&ours), agent), Code::FileNotFound);
        assert_eq!(get(Some(&other), agent), Code::NotAuthenticated);
        assert_eq!(get(None, agent), Code::NotAuthenticated);
        assert_eq!(get(Some(&ours), other.public()), Code::NotAuthenticated);
    }

    struct Silent;

    impl crate::report::Observer for Silent {
        fn event(&self, _: &crate::report::Event<'_>) {}
    }

    #[test]
    fn an_agent_waits_for_a_client_whose_path_failed_and_not_for_one_that_ended() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        // Both ended, in either order.
        assert!(is_over(at(100), at(102), at(104)));
        assert!(is_over(at(102), at(100), at(104)));
        // ssh ended, and the session a while later or before.
        assert!(!is_over(at(100), at(200), at(202)));
        assert!(!is_over(at(200), at(100), at(202)));
        assert!(!is_over(at(100), at(200), at(800)));
        assert!(is_over(at(100), at(200), at(801)));
        // Just now.
        assert!(!is_over(at(100), at(100), at(100)));
    }

    #[test]
    fn the_address_of_this_host_is_the_third_word() {
        let connection = "192.0.2.9 52344 2001:db8::2 22";
        assert_eq!(own_address(connection).as_deref(), Some("2001:db8::2"));
        assert_eq!(own_address(""), None);
    }
}
