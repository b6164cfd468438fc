//! Keys of ends, whom a client trusts, and who a peer is.

use std::fmt;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::encoding::{AsDer as _, Pkcs8V1Der};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer,
};
use rustls::sign::{CertifiedKey, SigningKey};
use zeroize::Zeroizing;

use crate::fault::{Code, Fault};

/// First characters of a public key in text.
const PREFIX: &str = "haul1:";
/// What precedes the 32 bytes of an Ed25519 key in its SubjectPublicKeyInfo (RFC 8410).
const SPKI_PREFIX: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];
/// Largest file that is read as a key, bytes.
const KEY_FILE_MAX: u64 = 64 << 10;

/// An Ed25519 public key: the identity of an end without a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Takes the raw bytes of a key.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the raw bytes of the key.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns what people compare: the SHA-256 of the key, as OpenSSH writes fingerprints.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let hash = digest(&SHA256, &self.0);
        format!("SHA256:{}", STANDARD_NO_PAD.encode(hash.as_ref()))
    }

    /// Parses the SubjectPublicKeyInfo that TLS carries; `None` if it is not an Ed25519 key.
    pub(crate) fn from_spki(spki: &[u8]) -> Option<Self> {
        let key = spki.strip_prefix(&SPKI_PREFIX)?;
        key.try_into().ok().map(Self)
    }

    /// Returns the SubjectPublicKeyInfo.
    pub(crate) fn to_spki(self) -> SubjectPublicKeyInfoDer<'static> {
        [&SPKI_PREFIX[..], &self.0].concat().into()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let bytes = text
            .strip_prefix(PREFIX)
            .and_then(|rest| URL_SAFE_NO_PAD.decode(rest).ok())
            .and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(|| {
            let shown = crate::printable(text.as_bytes());
            let form = "'haul1:' and 43 characters, as 'haul key show' prints it";
            Fault::new(
                Code::Usage,
                format!("'{shown}' is not a public key: {form}"),
            )
        })
    }
}

/// An Ed25519 key pair.
#[derive(Clone)]
pub struct PrivateKey {
    pkcs8: Arc<PrivatePkcs8KeyDer<'static>>,
    signing: Arc<dyn SigningKey>,
    public: PublicKey,
}

impl PrivateKey {
    /// Makes a new key pair.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub fn generate() -> Result<Self, Fault> {
        let no_key = |_| Fault::new(Code::Other, "cannot make a key: no random bytes");
        let pair = Ed25519KeyPair::generate().map_err(no_key)?;
        // Version 1, which every OpenSSL reads.
        let der: Pkcs8V1Der<'static> = pair.as_der().map_err(no_key)?;
        Self::from_pkcs8(der.as_ref().to_vec().into())
            .ok_or_else(|| Fault::new(Code::Other, "cannot use the key that was just made"))
    }

    /// Reads a PKCS#8 PEM file, as [`Self::write`] and `openssl genpkey -algorithm ed25519` write
    /// it.
    ///
    /// # Errors
    /// The file cannot be read, others may read it, or it holds no Ed25519 key.
    pub fn read(path: &Path) -> Result<Self, Fault> {
        let text = read_private(path)?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(&text).ok();
        key.and_then(Self::from_pkcs8).ok_or_else(|| {
            Fault::new(
                Code::Usage,
                format!("'{}' holds no Ed25519 key", shown(path)),
            )
            .hint("make one with 'haul key new', or convert it to PKCS#8 PEM")
        })
    }

    /// Writes the key to a new file that only its owner may read (mode 0600).
    ///
    /// # Errors
    /// The file exists or cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Fault> {
        let failed = |error: io::Error| {
            Fault::file(&format!("cannot write the key '{}'", shown(path)), &error)
        };
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        // A umask may have taken bits away, and an ACL of the directory may have added some.
        file.set_permissions(Permissions::from_mode(0o600))
            .and_then(|()| file.write_all(self.to_pem().as_bytes()))
            .and_then(|()| file.sync_all())
            .map_err(failed)
    }

    /// Returns the public key.
    #[must_use]
    pub const fn public(&self) -> PublicKey {
        self.public
    }

    /// Returns the PKCS#8 PEM text of the key. It is secret.
    fn to_pem(&self) -> Zeroizing<String> {
        let body = Zeroizing::new(STANDARD.encode(self.pkcs8.secret_pkcs8_der()));
        // Twice the body is room for line breaks and both frames: text that grows leaves copies.
        let mut pem = Zeroizing::new(String::with_capacity(2 * body.len() + 128));
        pem.push_str("-----BEGIN PRIVATE KEY-----\n");
        let lines = body.as_bytes().chunks(64);
        for line in lines.filter_map(|line| std::str::from_utf8(line).ok()) {
            pem.push_str(line);
            pem.push('\n');
        }
        pem.push_str("-----END PRIVATE KEY-----\n");
        pem
    }

    fn from_pkcs8(pkcs8: PrivatePkcs8KeyDer<'static>) -> Option<Self> {
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8.secret_pkcs8_der()).ok()?;
        let public = pair.public_key().as_ref().try_into().ok()?;
        let signing = rustls::crypto::aws_lc_rs::sign::any_eddsa_type(&pkcs8).ok()?;
        Some(Self {
            pkcs8: Arc::new(pkcs8),
            signing,
            public: PublicKey(public),
        })
    }

    /// Returns the key as TLS presents it (RFC 7250).
    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        let spki = self.public.to_spki().as_ref().to_vec();
        Arc::new(CertifiedKey::new(
            vec![spki.into()],
            Arc::clone(&self.signing),
        ))
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PrivateKey").field(&self.public).finish()
    }
}

/// A certificate with its chain, and its key.
#[derive(Debug)]
pub struct Certificate {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl Clone for Certificate {
    fn clone(&self) -> Self {
        Self {
            chain: self.chain.clone(),
            key: self.key.clone_key(),
        }
    }
}

impl Certificate {
    /// Reads a chain and its key from PEM files.
    ///
    /// # Errors
    /// A file cannot be read, others may read the key, or a file holds no certificate or no key.
    pub fn read(chain: &Path, key: &Path) -> Result<Self, Fault> {
        let unusable = |path: &Path, what: &str| {
            Fault::new(Code::Usage, format!("'{}' holds no {what}", shown(path)))
                .hint("name a PEM file")
        };
        let text = read_private(key)?;
        Ok(Self {
            chain: certificates(chain)?,
            key: PrivateKeyDer::from_pem_slice(&text).map_err(|_| unusable(key, "private key"))?,
        })
    }
}

/// Bytes that are read of a file of certificates: some hundred.
const CHAIN_FILE_MAX: u64 = 1 << 20;

/// Reads a file with a private key, which only its owner may read.
fn read_private(path: &Path) -> Result<Zeroizing<Vec<u8>>, Fault> {
    let shown = shown(path);
    let failed = |error: io::Error| Fault::file(&format!("cannot read the key '{shown}'"), &error);
    let file = std::fs::File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    // Room for all of it: a buffer that grows leaves copies behind.
    let room = usize::try_from(metadata.len().min(KEY_FILE_MAX)).unwrap_or(0);
    let mut text = Zeroizing::new(Vec::with_capacity(room + 64));
    if metadata.permissions().mode() & 0o077 != 0 {
        let text = format!("other users may read the key '{shown}'");
        return Err(Fault::new(Code::Denied, text).hint(format!("chmod 600 '{shown}'")));
    }
    io::Read::read_to_end(&mut io::Read::take(file, KEY_FILE_MAX), &mut text).map_err(failed)?;
    Ok(text)
}

/// Reads the certificates of a PEM file, at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let shown = shown(path);
    let mut text = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| {
            io::Read::read_to_end(&mut io::Read::take(file, CHAIN_FILE_MAX), &mut text)
        })
        .map_err(|error| Fault::file(&format!("cannot read '{shown}'"), &error))?;
    let parsed = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<Vec<_>, _>>()
        .ok()
        .filter(|certificates| !certificates.is_empty());
    parsed.ok_or_else(|| {
        Fault::new(Code::Usage, format!("'{shown}' holds no certificate")).hint("name a PEM file")
    })
}

fn shown(path: &Path) -> String {
    crate::printable(path.as_os_str().as_encoded_bytes())
}

/// Who this end is.
#[derive(Debug, Clone)]
pub enum Identity {
    /// A raw public key.
    Key(PrivateKey),
    /// A certificate.
    Certificate(Certificate),
}

/// Which servers a client accepts.
#[derive(Debug, Clone)]
pub enum Trust {
    /// A server that holds one of these keys.
    Keys(Vec<PublicKey>),
    /// A server with a certificate for `name` that chains to one of `roots`.
    Certificates {
        /// Trusted roots.
        roots: Vec<CertificateDer<'static>>,
        /// DNS name or address of the server.
        name: String,
    },
    /// Any server: encrypted, but whoever is on the path may be the other end.
    Anyone,
}

impl Trust {
    /// Reads trusted roots from a PEM file.
    ///
    /// # Errors
    /// The file cannot be read or holds no certificate.
    pub fn certificates(roots: &Path, name: &str) -> Result<Self, Fault> {
        Ok(Self::Certificates {
            roots: certificates(roots)?,
            name: name.to_owned(),
        })
    }
}

/// Who the peer has proved to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerIdentity {
    /// It holds this key.
    Key(PublicKey),
    /// It holds the key of a certificate that chains to this end's roots.
    Certificate {
        /// The common name of the subject; empty if there is none.
        subject: String,
        /// DNS names for which the certificate is valid.
        sans: Vec<String>,
    },
    /// It proved nothing.
    Anonymous,
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => key.fmt(f),
            Self::Certificate { subject, sans } => match sans.first() {
                Some(name) => write!(f, "certificate of {name}"),
                None => write!(f, "certificate of {subject}"),
            },
            Self::Anonymous => f.write_str("anonymous"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_key_survives_its_text_and_its_spki() {
        let public = PrivateKey::generate().unwrap().public();
        let text = public.to_string();
        assert_eq!(text.len(), 49);
        assert_eq!(text.parse::<PublicKey>().unwrap(), public);
        assert_eq!(
            PublicKey::from_spki(public.to_spki().as_ref()),
            Some(public)
        );
        assert!(public.fingerprint().starts_with("SHA256:"));
        for wrong in ["", "haul1:", &text[..48], &text[6..], &format!("{text}A")] {
            let fault = wrong.parse::<PublicKey>().unwrap_err();
            assert_eq!(fault.code, Code::Usage, "{wrong}");
        }
    }

    #[test]
    fn a_key_file_is_private_and_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let key = PrivateKey::generate().unwrap();
        key.write(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(PrivateKey::read(&path).unwrap().public(), key.public());
        assert_eq!(key.write(&path).unwrap_err().code, Code::Exists);
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let fault = PrivateKey::read(&path).unwrap_err();
        assert_eq!(fault.code, Code::Denied);
        let fault = Certificate::read(&path, &path).unwrap_err();
        assert_eq!(fault.code, Code::Denied);
        assert!(!format!("{key:?}").contains("pkcs8"));
    }

    #[test]
    fn a_file_without_a_key_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("junk");
        std::fs::write(&path, "junk").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let fault = PrivateKey::read(&path).unwrap_err();
        assert!(fault.text.contains("holds no Ed25519 key"), "{fault}");
    }
}
