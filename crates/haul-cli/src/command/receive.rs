//! `haul receive`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use haul::fault::{Code, Fault};
use haul::ports::Ports;
use haul::server::{Config, Root, Server, own_addresses};
use haul_control::identity::{Identity, PeerIdentity, PrivateKey};
use haul_control::pairing::{self, Outcome, PairingService};
use haul_control::server as control;
use haul_control::trust::ServerConfig;

use super::fail;
use crate::args::trust::Receive;
use crate::operand::listen_address;
use crate::output::{note, tell};

/// How often it examines whether it is still needed.
const LOOK: Duration = Duration::from_millis(200);
/// A paired sender that is away for so long has given up.
pub(super) const AWAY: Duration = Duration::from_secs(600);

/// Maximum number of own addresses that it prints.
const HOSTS_MAX: usize = 4;

/// What ends the wait for a sender.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// A sender has proved the code.
    Paired,
    /// No more codes may be tried.
    Locked,
}

/// Receives from the one sender that knows the code.
pub(crate) fn run(args: &Receive) -> ExitCode {
    match receive(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => fail(&fault),
    }
}

fn receive(args: &Receive) -> Result<(), Fault> {
    let code = pairing::PairingCode::random()?;
    let until = Instant::now() + args.time;
    let (told, events) = std::sync::mpsc::channel();
    let service = Arc::new(PairingService::new(code.clone(), until, move |outcome| {
        let event = match outcome {
            Outcome::Paired(_) => Event::Paired,
            Outcome::Wrong(left) => {
                note(&format!(
                    "a sender entered a wrong code; tries left: {left}"
                ));
                if *left > 0 {
                    return;
                }
                Event::Locked
            }
        };
        // Nobody waits any more if the main thread has ended.
        let _ = told.send(event);
    }));
    let ended = Arc::new(OnceLock::new());
    let noted = Arc::clone(&ended);
    let log = super::serve::log(args.quiet);
    let told = Arc::clone(&log);
    let admitting = Arc::clone(&service);
    let admission = Arc::new(move |peer: &PeerIdentity| admitting.admit(peer));
    let identity = Identity::Key(PrivateKey::generate()?);
    let config = Config {
        services: vec![service],
        audit: Some(Arc::new(move |entry| {
            told(&entry.to_string());
            if entry.operation == "put" && !entry.fault.is_some_and(|fault| fault.code.passes()) {
                // The first one counts: no other sender is admitted.
                let _ = noted.set(entry.fault.cloned().map_or(Ok(()), Err));
            }
        })),
        ..Config::new(
            Root::Directory(args.dir.clone()),
            ServerConfig::new(&[identity], &[], admission)?,
        )
    };
    let any = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let ports = args.ports.unwrap_or(Ports::DEFAULT);
    let (server, port) = match &args.listen {
        None => Server::bind_in(&config, &any, ports, &log)?,
        Some(text) => match listen_address(text, 0)? {
            address if address.port() == 0 => {
                Server::bind_in(&config, &[address.ip()], ports, &log)?
            }
            address => {
                let listen = vec![address];
                (
                    Server::bind(&Config { listen, ..config }, log)?,
                    address.port(),
                )
            }
        },
    };
    let handle = Arc::clone(server.port());
    std::thread::Builder::new()
        .name("haul-receive".into())
        .spawn(move || server.run())
        .map_err(|error| Fault::new(Code::Other, format!("cannot start a thread: {error}")))?;
    let hosts = match &args.listen {
        Some(text) => vec![listen_address(text, 0)?.ip()],
        None => own_addresses().unwrap_or_default(),
    };
    for line in commands(&hosts, port) {
        tell(&line);
    }
    tell(&format!("and enter this code: {code}"));
    let left = until.saturating_duration_since(Instant::now());
    match events.recv_timeout(left) {
        Ok(Event::Paired) => wait(&handle, &ended),
        Ok(Event::Locked) => Err(over("three wrong codes were entered")),
        Err(_) => Err(over("no sender entered the code in time")),
    }
}

/// Returns a line with the sender's command for each of the first addresses.
fn commands(hosts: &[IpAddr], port: u16) -> Vec<String> {
    if hosts.is_empty() {
        return vec![format!(
            "run there, with this host's name or address for HOST: haul send FILE haul:HOST:{port}"
        )];
    }
    let hosts = hosts.iter().take(HOSTS_MAX).enumerate();
    let line = |(at, ip): (usize, &IpAddr)| {
        let begin = if at == 0 { "run there" } else { "or" };
        format!(
            "{begin}: haul send FILE haul:{}",
            SocketAddr::new(*ip, port)
        )
    };
    hosts.map(line).collect()
}

fn over(text: &str) -> Fault {
    Fault::new(Code::NotAuthenticated, text).hint("start haul receive again for another code")
}

/// Blocks until the sender's command has succeeded or failed for good, or the sender has been away
/// for too long.
fn wait(server: &control::Server, ended: &OnceLock<Result<(), Fault>>) -> Result<(), Fault> {
    let mut away_since = Instant::now();
    loop {
        if let Some(result) = ended.get() {
            return result.clone();
        }
        if server.sessions() > 0 {
            away_since = Instant::now();
        } else if away_since.elapsed() > AWAY {
            return Err(Fault::new(Code::PeerGone, "the sender is gone")
                .hint("start haul receive again; the same files resume"));
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_name_this_hosts_addresses() {
        let hosts = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        let expected = [
            "run there: haul send FILE haul:192.0.2.1:7",
            "or: haul send FILE haul:[2001:db8::1]:7",
        ];
        assert_eq!(commands(&hosts, 7), expected);
        assert_eq!(commands(&[hosts[0]; 9], 7).len(), HOSTS_MAX);
        assert!(commands(&[], 7)[0].ends_with("haul:HOST:7"));
    }
}
