//! Protection of connections that have no control connection: RDMA connections and the data
//! connections of GridFTP. Each begins with a TLS 1.3 handshake and goes on under keys that TLS
//! exports (docs/protocol/sealed.md).

use std::fmt;
use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use haul_seal::handshake::{Handshake, HandshakeError, Protect, Transport};
use haul_seal::{Seal, Secret};
use rustls::Connection;
use rustls::pki_types::{CertificateDer, ServerName};

use crate::fault::{Code, Fault};
use crate::identity::{Certificate, Identity, PeerIdentity, PrivateKey, PublicKey, Trust};
use crate::tls;

/// Name in ALPN: such a handshake gives no keys to anything else, and no other one gives keys here.
const ALPN: &[u8] = b"haul-rdma/1";
const EXPORTER: &[u8] = b"EXPORTER-haul-rdma";
/// Most bytes that one end sends for a handshake.
const HANDSHAKE_MAX: usize = 64 << 10;
/// Longest line of a refusal.
const REFUSAL_MAX: usize = 512;
/// Bytes of a TLS record before its content.
const RECORD_HEADER: usize = 5;
/// The longest record (RFC 8446 §5.2), header excluded.
const RECORD_MAX: usize = (1 << 14) + 256;

/// Whom an end lets connect to it and connects to, and who it is itself. Clones share the count of
/// refusals.
#[derive(Clone)]
pub struct Protection(Arc<Ends>);

struct Ends {
    client: tls::TlsClient,
    server: Arc<rustls::ServerConfig>,
    peers: Peers,
    refused: AtomicU64,
}

/// Which peers are admitted.
enum Peers {
    Keys(Vec<PublicKey>),
    /// Those with a certificate that TLS has verified. The end that connects expects this name, or
    /// else the address.
    Certificates {
        name: Option<ServerName<'static>>,
    },
}

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protection")
            .field("refused", &self.refused())
            .finish_non_exhaustive()
    }
}

impl Protection {
    /// Admits the peers that hold one of the keys `peers`, and proves to hold `own`. Ends that
    /// share a key file pass its public key.
    ///
    /// # Errors
    /// If the key is unusable.
    pub fn keys(own: PrivateKey, peers: Vec<PublicKey>) -> Result<Self, Fault> {
        let trust = Trust::Keys(peers.clone());
        Self::new(Identity::Key(own), &trust, &[], Peers::Keys(peers))
    }

    /// Admits the peers that hold a certificate from one of `roots`, and presents `own`. A peer
    /// that this end connects to must have a certificate for `name`, or for its address if that is
    /// `None`.
    ///
    /// # Errors
    /// If the certificate, a root or the name is unusable.
    pub fn certificates(
        own: Certificate,
        roots: Vec<CertificateDer<'static>>,
        name: Option<&str>,
    ) -> Result<Self, Fault> {
        let trust = Trust::Certificates {
            roots: roots.clone(),
            name: name.unwrap_or(tls::NO_NAME).to_owned(),
        };
        let name = name.and_then(|name| ServerName::try_from(name.to_owned()).ok());
        let identity = Identity::Certificate(own);
        Self::new(identity, &trust, &roots, Peers::Certificates { name })
    }

    /// Reads the value of a command's option: `key:FILE` is a key file that both ends have,
    /// `key:FILE,PUBLIC-KEY,…` an own key file and the peers' public keys, and
    /// `cert:CHAIN,KEY,ROOTS` or `cert:CHAIN,KEY,ROOTS,NAME` certificates in PEM files.
    ///
    /// # Errors
    /// The text has another form, or a file cannot be used.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let parts: Vec<&str> = rest.split(',').collect();
        match (kind, &parts[..]) {
            ("key", [file]) if !file.is_empty() => {
                let own = PrivateKey::read(Path::new(file))?;
                let public = own.public();
                Self::keys(own, vec![public])
            }
            ("key", [file, peers @ ..]) if !file.is_empty() => {
                let peers = peers
                    .iter()
                    .map(|peer| peer.parse())
                    .collect::<Result<_, _>>()?;
                Self::keys(PrivateKey::read(Path::new(file))?, peers)
            }
            ("cert", [chain, key, roots, name @ ..]) if name.len() <= 1 => {
                let own = Certificate::read(Path::new(chain), Path::new(key))?;
                let roots = crate::identity::certificates(Path::new(roots))?;
                Self::certificates(own, roots, name.first().copied())
            }
            _ => Err(Fault::new(
                Code::Usage,
                format!("'{text}' names no key and no certificate"),
            )
            .hint("write key:FILE, key:FILE,PUBLIC-KEY or cert:CHAIN,KEY,ROOTS[,NAME]")),
        }
    }

    fn new(
        identity: Identity,
        trust: &Trust,
        roots: &[CertificateDer<'static>],
        peers: Peers,
    ) -> Result<Self, Fault> {
        let client = tls::TlsClient::new(Some(&identity), trust, ALPN)?;
        let server = tls::TlsServer::new(&[identity], roots, ALPN)?;
        let is_raw = matches!(peers, Peers::Keys(_));
        let server = server.config(is_raw).ok_or_else(|| {
            Fault::new(
                Code::Usage,
                "the identity does not fit the peers that it expects",
            )
        })?;
        Ok(Self(Arc::new(Ends {
            client,
            server,
            peers,
            refused: AtomicU64::new(0),
        })))
    }

    /// Returns how many connections this end has refused: without protection, without an admitted
    /// identity, or with bytes that are no handshake.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    fn begin(&self, tls: Connection, transport: Transport, responds: bool) -> Box<dyn Handshake> {
        Box::new(Exchange {
            ends: Arc::clone(&self.0),
            tls,
            transport,
            responds,
            record_left: 0,
            total: 0,
            seal: None,
            failed: None,
        })
    }
}

impl Protect for Protection {
    fn initiate(
        &self,
        peer: IpAddr,
        transport: Transport,
    ) -> Result<Box<dyn Handshake>, HandshakeError> {
        let client = &self.0.client;
        let name = match &self.0.peers {
            Peers::Keys(_) => client.name.clone(),
            Peers::Certificates { name } => name.clone().unwrap_or_else(|| peer.into()),
        };
        let tls = rustls::ClientConnection::new(Arc::clone(&client.config), name);
        let tls = tls.map_err(|error| failed(&error))?;
        Ok(self.begin(tls.into(), transport, false))
    }

    fn respond(&self, transport: Transport) -> Result<Box<dyn Handshake>, HandshakeError> {
        let tls = rustls::ServerConnection::new(Arc::clone(&self.0.server));
        let tls = tls.map_err(|error| failed(&error))?;
        Ok(self.begin(tls.into(), transport, true))
    }
}

/// One handshake.
struct Exchange {
    ends: Arc<Ends>,
    tls: Connection,
    transport: Transport,
    responds: bool,
    /// Bytes of the present record that have not come.
    record_left: usize,
    total: usize,
    seal: Option<Seal>,
    failed: Option<HandshakeError>,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange")
            .field("responds", &self.responds)
            .field("is_complete", &self.seal.is_some())
            .finish_non_exhaustive()
    }
}

impl Handshake for Exchange {
    fn read(&mut self, bytes: &[u8]) -> Result<usize, HandshakeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.read_records(bytes).inspect_err(|error| {
            self.failed = Some(error.clone());
            if self.responds {
                self.ends.refused.fetch_add(1, Ordering::Relaxed);
            }
        })
    }

    fn write(&mut self, out: &mut Vec<u8>) {
        while self.tls.wants_write() {
            // A Vec takes everything.
            if self.tls.write_tls(out).is_err() {
                return;
            }
        }
    }

    fn seal(&self) -> Option<Seal> {
        self.seal.clone()
    }

    fn refusal(&mut self, bytes: &[u8]) -> Option<HandshakeError> {
        feed(&mut self.tls, bytes)?;
        if let Err(error) = self.tls.process_new_packets() {
            return matches!(error, rustls::Error::AlertReceived(_)).then(|| failed(&error));
        }
        let mut line = [0; REFUSAL_MAX];
        let len = self
            .tls
            .reader()
            .read(&mut line)
            .ok()
            .filter(|len| *len > 0)?;
        let text = crate::printable(&line[..len]);
        Some(HandshakeError::Failed(format!("the peer refuses: {text}")))
    }
}

impl Exchange {
    fn read_records(&mut self, bytes: &[u8]) -> Result<usize, HandshakeError> {
        let mut at = 0;
        while self.seal.is_none() {
            if self.record_left == 0 {
                let Some(header) = bytes[at..].first_chunk() else {
                    self.check_first(&bytes[at..])?;
                    break;
                };
                self.check_first(header)?;
                self.record_left = record_len(*header).ok_or_else(damaged)?;
            }
            let part = &bytes[at..];
            let part = &part[..part.len().min(self.record_left)];
            if part.is_empty() {
                break;
            }
            self.total += part.len();
            if self.total > HANDSHAKE_MAX {
                return Err(HandshakeError::Failed(
                    "the peer's TLS handshake is too long".into(),
                ));
            }
            feed(&mut self.tls, part).ok_or_else(damaged)?;
            self.record_left -= part.len();
            at += part.len();
            if self.record_left == 0 {
                self.tls
                    .process_new_packets()
                    .map_err(|error| failed(&error))?;
                self.conclude()?;
            }
        }
        Ok(at)
    }

    /// Whether the peer's first bytes are those of a handshake.
    fn check_first(&self, bytes: &[u8]) -> Result<(), HandshakeError> {
        let is_tls = matches!(bytes, [] | [20..=23] | [20..=23, 3, ..]);
        if self.total > 0 || is_tls {
            Ok(())
        } else {
            Err(HandshakeError::Unprotected)
        }
    }

    /// Makes the keys if the handshake is complete and the peer is admitted.
    fn conclude(&mut self) -> Result<(), HandshakeError> {
        if self.tls.is_handshaking() {
            return Ok(());
        }
        // RFC 7301 lets an end that sends no names pass.
        let speaks_ours = self.tls.alpn_protocol() == Some(ALPN);
        let identity = tls::peer_identity(&self.tls);
        let refusal = match (&self.ends.peers, &identity) {
            _ if !speaks_ours => Some("it speaks another protocol inside TLS"),
            (Peers::Keys(keys), PeerIdentity::Key(key)) if keys.contains(key) => None,
            (Peers::Certificates { .. }, PeerIdentity::Certificate { .. }) => None,
            (_, PeerIdentity::Anonymous) => Some("it presents no key and no certificate"),
            _ => Some("its key is not one of those that are admitted"),
        };
        if let Some(reason) = refusal {
            // An alert would carry no reason. Neither write fails: TLS keeps the bytes.
            let _ = self.tls.writer().write(reason.as_bytes());
            self.tls.send_close_notify();
            let text = format!("the peer was refused ({identity}): {reason}");
            return Err(HandshakeError::Failed(text));
        }
        let context: &[u8] = match self.transport {
            Transport::Tcp => b"tcp",
            Transport::Udt => b"udt",
            Transport::UdtStream => b"udt stream",
        };
        let mut secret = [0; Secret::LEN];
        self.tls
            .export_keying_material(&mut secret, EXPORTER, Some(context))
            .map_err(|error| failed(&error))?;
        self.seal = Some(Seal {
            secret: Secret::new(secret),
            cipher: tls::cipher(&self.tls),
        });
        Ok(())
    }
}

fn failed(error: &rustls::Error) -> HandshakeError {
    let fault = tls::handshake_fault(error, "the peer");
    HandshakeError::Failed(match fault.hint {
        Some(hint) if fault.code == Code::NotAuthenticated => format!("{}; {hint}", fault.text),
        _ => fault.text,
    })
}

fn damaged() -> HandshakeError {
    HandshakeError::Failed("the peer's TLS handshake arrived damaged".into())
}

/// The length of a record, header included; `None` if TLS has no such record.
fn record_len(header: [u8; RECORD_HEADER]) -> Option<usize> {
    let [20..=23, 3, _, high, low] = header else {
        return None;
    };
    let len = usize::from(u16::from_be_bytes([high, low]));
    (len <= RECORD_MAX).then_some(RECORD_HEADER + len)
}

/// Hands all bytes to TLS; `None` if it does not take them.
fn feed(tls: &mut Connection, mut bytes: &[u8]) -> Option<()> {
    while !bytes.is_empty() {
        if tls.read_tls(&mut bytes).ok()? == 0 {
            return None;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests;
