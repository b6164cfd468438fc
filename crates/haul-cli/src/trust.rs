//! Identities of this end, and which others it accepts, from the command line and the user's files.

#![expect(clippy::disallowed_types, reason = "haul-control takes the stream")]

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use haul::client::Config;
use haul::fault::{Code, Fault};
use haul::printable;
use haul_control::authorized::Authorized;
use haul_control::connection::Connection;
use haul_control::frame::Greeting;
use haul_control::identity::{Certificate, Identity, PeerIdentity, PrivateKey, PublicKey};
use haul_control::stream::Stream;
use haul_control::trust::{Admission, ClientConfig, Refusal, Rights, ServerConfig, Trust};
use haul_control::{known, pairing};

use crate::args::trust::{ClientTrust, ServerTrust};
use crate::place;

/// Returns the TLS side of a client of a standing server.
pub(crate) fn of_client(args: &ClientTrust, host: &str, port: u16) -> Result<ClientConfig, Fault> {
    if let Some(path) = &args.shared_key {
        let key = PrivateKey::read(path)?;
        let trust = Trust::Keys(vec![key.public()]);
        return ClientConfig::new(Some(&Identity::Key(key)), &trust);
    }
    let identity = match (&args.certificate, &args.certificate_key) {
        (Some(chain), Some(key)) => Some(Identity::Certificate(Certificate::read(chain, key)?)),
        _ => own_key(args.key.as_deref())?.map(Identity::Key),
    };
    let trust = if args.allow_insecure {
        Trust::Anyone
    } else if let Some(key) = args.server_key {
        Trust::Keys(vec![key])
    } else if let Some(roots) = &args.roots {
        Trust::certificates(roots, host)?
    } else {
        // If it is empty, the handshake tells the key that the server has.
        Trust::Keys(place::known_servers()?.keys(host, port))
    };
    ClientConfig::new(identity.as_ref(), &trust)
}

/// Returns the TLS side of a client that measures. What it sends is worth nothing to anybody, so
/// that an unknown server will do.
pub(crate) fn of_bench(args: &ClientTrust, host: &str, port: u16) -> Result<ClientConfig, Fault> {
    let names_server =
        args.server_key.is_some() || args.roots.is_some() || args.shared_key.is_some();
    if names_server || !place::known_servers()?.keys(host, port).is_empty() {
        return of_client(args, host, port);
    }
    let anyone = ClientTrust {
        allow_insecure: true,
        ..args.clone()
    };
    of_client(&anyone, host, port)
}

/// Reads the client's key; none if it is the default one and does not exist.
fn own_key(path: Option<&Path>) -> Result<Option<PrivateKey>, Fault> {
    if let Some(path) = path {
        return PrivateKey::read(path).map(Some);
    }
    match place::of_client(place::KEY).and_then(|path| PrivateKey::read(&path)) {
        Ok(key) => Ok(Some(key)),
        Err(fault) if matches!(fault.code, Code::FileNotFound | Code::Usage) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Adds to a failure how to trust the server, if it was only unknown.
pub(crate) fn explain(fault: Fault, control: &ClientConfig, host: &str, port: u16) -> Fault {
    let Some(key) = control.refused_key() else {
        return fault;
    };
    if fault.code != Code::NotAuthenticated {
        return fault;
    }
    let name = known::name(host, port);
    let known = place::known_servers().map(|known| known.keys(host, port));
    match known.as_deref() {
        Ok(known) if known.contains(&key) => Fault::new(
            Code::NotAuthenticated,
            format!("{name} has its known key, but not the key that the command line names"),
        )
        .hint("start it with that --shared-key, or leave --shared-key and --server-key out here"),
        Ok([before, ..]) => Fault::new(
            Code::NotAuthenticated,
            format!(
                "{name} has another key than before: {}, not {}",
                key.fingerprint(),
                before.fingerprint()
            ),
        )
        .hint(format!(
            "somebody may be on the path; if its operator confirms the new key: haul key trust \
             haul://{name} {key}"
        )),
        _ => Fault::new(
            Code::NotAuthenticated,
            format!(
                "{name} is not a known server; its key is {}",
                key.fingerprint()
            ),
        )
        .hint(format!(
            "compare it with what the server printed when it started, then: haul key trust \
             haul://{name} {key}"
        )),
    }
}

/// A server's identities and clients, as its command line names them.
pub(crate) struct ServerFiles {
    key: Option<PrivateKey>,
    certificate: Option<Certificate>,
    roots: Option<PathBuf>,
    clients: Clients,
}

/// Whom a server admits.
enum Clients {
    Everybody,
    Shared(PublicKey),
    Listed(PathBuf),
}

impl ServerFiles {
    /// Reads the keys.
    pub(crate) fn open(args: &ServerTrust) -> Result<Self, Fault> {
        let certificate = match (&args.certificate, &args.certificate_key) {
            (Some(chain), Some(key)) => Some(Certificate::read(chain, key)?),
            _ => None,
        };
        let (key, clients) = if let Some(path) = &args.shared_key {
            let key = PrivateKey::read(path)?;
            let public = key.public();
            (Some(key), Clients::Shared(public))
        } else if args.allow_insecure {
            let key = match &args.key {
                Some(path) => PrivateKey::read(path)?,
                None => PrivateKey::generate()?,
            };
            (Some(key), Clients::Everybody)
        } else {
            let path = match &args.authorized_keys {
                Some(path) => path.clone(),
                None => place::of_server(place::AUTHORIZED)?,
            };
            // Before a key is made for nothing.
            Authorized::read(&path).map_err(|fault| no_clients(fault, &path))?;
            let key = match &args.key {
                Some(path) => path.clone(),
                None => place::of_server(place::KEY)?,
            };
            (Some(place::find_or_make(&key)?), Clients::Listed(path))
        };
        Ok(Self {
            key,
            certificate,
            roots: args.client_roots.clone(),
            clients,
        })
    }

    /// Returns whether the server knows its clients.
    pub(crate) const fn authenticates(&self) -> bool {
        !matches!(self.clients, Clients::Everybody)
    }

    /// Returns the server's public key, if clients are to compare it.
    pub(crate) fn public(&self) -> Option<PublicKey> {
        match self.clients {
            Clients::Listed(_) => self.key.as_ref().map(PrivateKey::public),
            Clients::Everybody | Clients::Shared(_) => None,
        }
    }

    /// Reads the authorised keys and returns the server's side of TLS.
    pub(crate) fn config(&self) -> Result<ServerConfig, Fault> {
        let mut identities: Vec<Identity> =
            self.key.clone().map(Identity::Key).into_iter().collect();
        identities.extend(self.certificate.clone().map(Identity::Certificate));
        let roots = match &self.roots {
            Some(path) => match Trust::certificates(path, "")? {
                Trust::Certificates { roots, .. } => roots,
                Trust::Keys(_) | Trust::Anyone => Vec::new(),
            },
            None => Vec::new(),
        };
        let admission: Admission = match &self.clients {
            Clients::Everybody => haul_control::trust::admit_all(),
            Clients::Shared(key) => shared(*key),
            Clients::Listed(path) => {
                let authorized = Authorized::read(path)?;
                Arc::new(move |peer: &PeerIdentity| authorized.admit(peer, SystemTime::now()))
            }
        };
        ServerConfig::new(&identities, &roots, admission)
    }
}

fn shared(key: PublicKey) -> Admission {
    Arc::new(move |peer| {
        if *peer == PeerIdentity::Key(key) {
            return Ok(Rights {
                plain: false,
                ..Rights::all("the shared key")
            });
        }
        Err(Refusal {
            text: "the client does not have the server's shared key".to_owned(),
            hint: Some("name the file with --shared-key".to_owned()),
        })
    })
}

fn no_clients(fault: Fault, path: &Path) -> Fault {
    if fault.code != Code::FileNotFound {
        return fault;
    }
    let shown = printable(path.as_os_str().as_encoded_bytes());
    Fault::new(
        Code::Usage,
        format!("the server knows no clients: there is no '{shown}'"),
    )
    .hint(
        "write their public keys into it ('haul key new' prints one), or add --allow-insecure in a lab; \
         with ssh no server is needed: haul send FILE HOST:",
    )
}

/// Pairs with a receiver by the code that the user enters; returns how to reach it from then on.
pub(crate) fn pair(config: Config) -> Result<Config, Fault> {
    let code = pairing::PairingCode::parse(&ask()?)?;
    let key = PrivateKey::generate()?;
    let identity = Identity::Key(key);
    let (host, port) = (config.host.as_str(), config.port);
    let shown = printable(host.as_bytes());
    let found = (host, port).to_socket_addrs().map_err(|_| {
        Fault::new(
            Code::Unreachable,
            format!("cannot find a host called '{shown}'"),
        )
        .hint("write it as haul receive prints it")
    })?;
    let (address, receiver) = pair_with(&config, found, &identity, &code)?;
    Ok(Config {
        control: ClientConfig::new(Some(&identity), &Trust::Keys(vec![receiver]))?,
        sealed: true,
        host: address.ip().to_string(),
        ..config
    })
}

/// Pairs with the first of these addresses that accepts a connection. Whatever fails then is the
/// end: a second receiver would have a second guess at the code.
fn pair_with(
    config: &Config,
    addresses: impl Iterator<Item = SocketAddr>,
    identity: &Identity,
    code: &pairing::PairingCode,
) -> Result<(SocketAddr, PublicKey), Fault> {
    let shown = printable(config.host.as_bytes());
    let mut last = Fault::new(Code::Unreachable, format!("'{shown}' has no address"));
    for address in addresses {
        match TcpStream::connect_timeout(&address, config.connect_timeout) {
            Ok(stream) => {
                let receiver = pair_over(config, stream, address, identity, code)?;
                return Ok((address, receiver));
            }
            Err(error) => {
                let text = format!("no haul receive at {address}: {error}");
                last = Fault::new(Code::Unreachable, text)
                    .hint("check that it still waits, the address, and any firewall in between");
            }
        }
    }
    Err(last)
}

fn pair_over(
    config: &Config,
    stream: TcpStream,
    address: SocketAddr,
    identity: &Identity,
    code: &pairing::PairingCode,
) -> Result<PublicKey, Fault> {
    let deadline = Instant::now() + config.connect_timeout;
    let stream = Stream::tcp(stream).map_err(|error| Fault::connection(&error))?;
    let control = ClientConfig::new(Some(identity), &Trust::Anyone)?;
    let mut connection = Connection::client(stream, &control, &address.to_string(), deadline)?;
    connection.greet(
        &Greeting {
            software: haul::SOFTWARE.to_owned(),
            service: pairing::SERVICE.to_owned(),
            features: 0,
            task: [0; 16],
            dead_after_ms: u32::try_from(config.dead_after.as_millis()).unwrap_or(u32::MAX),
        },
        &[],
    )?;
    connection.greeting()?;
    pairing::prove(&mut connection, code)
}

/// Asks for the code at the terminal, or reads it from standard input.
fn ask() -> Result<String, Fault> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        let mut stderr = std::io::stderr().lock();
        // Without a prompt the code can still be entered.
        let _ = write!(stderr, "code: ").and_then(|()| stderr.flush());
    }
    let mut line = String::new();
    let read = stdin.lock().read_line(&mut line);
    match read {
        Ok(1..) => Ok(line),
        _ => Err(Fault::new(Code::Usage, "no code was entered")
            .hint("enter it at the prompt, or on standard input")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_code_is_tried_at_one_address() {
        let (first, second) = (
            TcpListener::bind("127.0.0.1:0").unwrap(),
            TcpListener::bind("127.0.0.1:0").unwrap(),
        );
        let closed = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = [&closed, &first, &second].map(|one| one.local_addr().unwrap());
        drop(closed);
        let config = Config {
            host: "receiver".to_owned(),
            port: 1,
            channel: haul::channel::ChannelKind::Tcp,
            streams: 1,
            rate_bps: None,
            congestion: None,
            connect_timeout: Duration::from_secs(10),
            dead_after: Duration::from_secs(10),
            give_up_after: None,
            sealed: true,
            control: ClientConfig::insecure().unwrap(),
            dialer: None,
            access: None,
            may_fall_back: false,
            paths: None,
            limit: None,
        };
        let identity = Identity::Key(PrivateKey::generate().unwrap());
        let code = pairing::PairingCode::random().unwrap();
        // It accepts and closes, as if no receiver were there.
        let closing = std::thread::spawn(move || {
            first.accept().unwrap().0.read_exact(&mut [0; 8]).unwrap();
        });
        let fault = pair_with(&config, addresses.into_iter(), &identity, &code).unwrap_err();
        closing.join().unwrap();
        assert_eq!(fault.code, Code::Unreachable, "{fault}");
        second.set_nonblocking(true).unwrap();
        assert!(second.accept().is_err());
    }
}
