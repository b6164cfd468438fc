//! Whom an end accepts, and what an admitted client may do.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::pki_types::CertificateDer;

use crate::fault::{Code, Fault};
pub use crate::identity::Trust;
use crate::identity::{Identity, PeerIdentity, PublicKey};
use crate::{PROTOCOL, tls};

/// What an admitted client may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// The identity in logs.
    pub name: String,
    /// The directory that the client sees as the served one, relative to that.
    pub directory: PathBuf,
    /// May get files.
    pub read: bool,
    /// May send files.
    pub write: bool,
    /// May measure.
    pub bench: bool,
    /// Files go into the directory itself, replace nothing, and have no names that begin with a
    /// dot.
    pub drop_only: bool,
    /// May have data channels without protection.
    pub plain: bool,
    /// Upper bound of each data channel, bits per second.
    pub rate_bps: Option<u64>,
    /// When the admission ends.
    pub expires: Option<SystemTime>,
}

impl Rights {
    /// Returns the rights of a client that may do everything.
    #[must_use]
    pub fn all(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            directory: PathBuf::new(),
            read: true,
            write: true,
            bench: true,
            drop_only: false,
            plain: true,
            rate_bps: None,
            expires: None,
        }
    }
}

/// Why a client is not admitted: the peer gets these texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What is wrong with the identity, one line.
    pub text: String,
    /// What to do at the client.
    pub hint: Option<String>,
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        let fault = Self::new(Code::NotAuthenticated, refusal.text);
        match refusal.hint {
            Some(hint) => fault.hint(hint),
            None => fault,
        }
    }
}

/// Decides what the client with this identity may do.
pub type Admission = Arc<dyn Fn(&PeerIdentity) -> Result<Rights, Refusal> + Send + Sync>;

/// Returns the admission of a server without access control (`--allow-insecure`).
#[must_use]
pub fn admit_all() -> Admission {
    Arc::new(|peer| Ok(Rights::all(&peer.to_string())))
}

/// A client's side of TLS. Clones share it.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    pub(crate) tls: Arc<tls::TlsClient>,
}

impl ClientConfig {
    /// Makes the configuration of a client that presents `identity` and accepts servers by `trust`.
    ///
    /// # Errors
    /// A certificate, key or name is unusable.
    pub fn new(identity: Option<&Identity>, trust: &Trust) -> Result<Self, Fault> {
        let tls = Arc::new(tls::TlsClient::new(identity, trust, PROTOCOL.as_bytes())?);
        Ok(Self { tls })
    }

    /// Makes the configuration of a client that proves nothing and accepts any server.
    ///
    /// # Errors
    /// None is known.
    pub fn insecure() -> Result<Self, Fault> {
        Self::new(None, &Trust::Anyone)
    }

    /// Returns whether it accepts known servers only.
    #[must_use]
    pub fn verifies_server(&self) -> bool {
        self.tls.verifies_server
    }

    /// Returns the key that a server presented last, if [`Trust::Keys`] refused it.
    #[must_use]
    pub fn refused_key(&self) -> Option<PublicKey> {
        self.tls.refused_key()
    }
}

/// A server's side of TLS. Clones share it.
#[derive(Clone)]
pub struct ServerConfig {
    pub(crate) tls: Arc<tls::TlsServer>,
    pub(crate) admission: Admission,
}

impl ServerConfig {
    /// Makes the configuration of a server that has these identities, at most one of each kind.
    /// Certificates of clients must chain to `client_roots`; without roots, clients have none.
    ///
    /// # Errors
    /// A certificate or key is unusable.
    pub fn new(
        identities: &[Identity],
        client_roots: &[CertificateDer<'static>],
        admission: Admission,
    ) -> Result<Self, Fault> {
        let tls = Arc::new(tls::TlsServer::new(
            identities,
            client_roots,
            PROTOCOL.as_bytes(),
        )?);
        Ok(Self { tls, admission })
    }

    /// Makes the configuration of a server with a new key, which admits any client.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub fn insecure() -> Result<Self, Fault> {
        let key = crate::identity::PrivateKey::generate()?;
        Self::new(&[Identity::Key(key)], &[], admit_all())
    }
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConfig")
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}
