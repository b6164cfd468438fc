//! Identities and trust as configurations of rustls, and its failures in words.

use std::sync::{Arc, Mutex};

use haul_seal::Cipher;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption, WebPkiServerVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, ClientHello, NoClientAuth};
use rustls::server::{ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    AlertDescription, CertificateError, CipherSuite, DigitallySignedStruct, DistinguishedName,
    Error, RootCertStore, SignatureScheme, version,
};
use webpki::EndEntityCert;

use crate::fault::{Code, Fault, RESUME};
use crate::identity::{Identity, PeerIdentity, PublicKey, Trust};
use crate::{PROTOCOL, SOFTWARE, lock};

/// What the protocol's names in ALPN begin with.
const ALPN_PREFIX: &[u8] = b"haul/";

/// Stands for the name of a server that has none.
pub(crate) const NO_NAME: &str = "haul.invalid";

/// ChaCha20-Poly1305 comes first at an end that prefers it.
fn provider(preferred: Cipher) -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    if preferred == Cipher::ChaCha20Poly1305 {
        let suites = &mut provider.cipher_suites;
        suites.sort_by_key(|suite| of_suite(suite.suite()) != preferred);
    }
    Arc::new(provider)
}

fn of_suite(suite: CipherSuite) -> Cipher {
    match suite {
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Cipher::ChaCha20Poly1305,
        _ => Cipher::Aes128Gcm,
    }
}

/// Returns the cipher of channels whose keys come from this connection. TLS has agreed on it: it is
/// ChaCha20-Poly1305 if either end prefers that.
pub(crate) fn cipher(tls: &rustls::Connection) -> Cipher {
    let suite = tls.negotiated_cipher_suite();
    suite.map_or_else(Cipher::default, |suite| of_suite(suite.suite()))
}

fn unusable(error: &Error) -> Fault {
    Fault::new(
        Code::Usage,
        format!("cannot use the identity for TLS: {error}"),
    )
    .hint("check that the key belongs to the certificate")
}

fn store(roots: &[CertificateDer<'static>]) -> Result<Arc<RootCertStore>, Fault> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(root.clone()).map_err(|error| unusable(&error))?;
    }
    Ok(Arc::new(store))
}

/// The configuration of a client, and the name that it expects of the server.
#[derive(Debug)]
pub(crate) struct TlsClient {
    pub(crate) config: Arc<rustls::ClientConfig>,
    pub(crate) name: ServerName<'static>,
    pub(crate) verifies_server: bool,
    raw: Arc<RawServer>,
}

impl TlsClient {
    /// `alpn` names the protocol inside TLS.
    pub(crate) fn new(
        identity: Option<&Identity>,
        trust: &Trust,
        alpn: &[u8],
    ) -> Result<Self, Fault> {
        Self::preferring(Cipher::preferred(), identity, trust, alpn)
    }

    fn preferring(
        cipher: Cipher,
        identity: Option<&Identity>,
        trust: &Trust,
        alpn: &[u8],
    ) -> Result<Self, Fault> {
        let provider = || provider(cipher);
        let raw = Arc::new(RawServer::new(match trust {
            Trust::Keys(keys) => Some(keys.clone()),
            Trust::Certificates { .. } | Trust::Anyone => None,
        }));
        let (verifier, name): (Arc<dyn ServerCertVerifier>, _) = match trust {
            // Raw keys have no name, and the extension with the name is not sent.
            Trust::Keys(_) | Trust::Anyone => (Arc::clone(&raw) as _, NO_NAME),
            Trust::Certificates { roots, name } => {
                let built = WebPkiServerVerifier::builder_with_provider(store(roots)?, provider());
                let verifier = built.build().map_err(|error| {
                    Fault::new(Code::Usage, format!("cannot use the roots: {error}"))
                })?;
                (verifier as _, name.as_str())
            }
        };
        let name = ServerName::try_from(name.to_owned()).map_err(|_| {
            let shown = crate::printable(name.as_bytes());
            Fault::new(Code::Usage, format!("'{shown}' is no name of a host"))
        })?;
        let builder = rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|error| unusable(&error))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(Identity::Key(key)) => builder.with_client_cert_resolver(Arc::new(
                AlwaysResolvesClientRawPublicKeys::new(key.certified()),
            )),
            Some(Identity::Certificate(own)) => builder
                .with_client_auth_cert(own.chain.clone(), own.key.clone_key())
                .map_err(|error| unusable(&error))?,
        };
        config.alpn_protocols = vec![alpn.to_vec()];
        config.enable_sni = matches!(trust, Trust::Certificates { .. });
        // Every connection presents its identities: a ticket would outlive them.
        config.resumption = Resumption::disabled();
        Ok(Self {
            config: Arc::new(config),
            name,
            verifies_server: !matches!(trust, Trust::Anyone),
            raw,
        })
    }

    pub(crate) fn refused_key(&self) -> Option<PublicKey> {
        *lock(&self.raw.refused)
    }
}

/// The configurations of a server, by the kinds of identity that the two ends present.
pub(crate) struct TlsServer {
    configs: Vec<(Kinds, Arc<rustls::ServerConfig>)>,
}

/// Whether an end presents a raw key (RFC 7250) and not a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kinds {
    server_raw: bool,
    client_raw: bool,
}

impl std::fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.configs.iter().map(|(kinds, _)| kinds))
            .finish()
    }
}

impl TlsServer {
    /// `alpn` names the protocol inside TLS.
    pub(crate) fn new(
        identities: &[Identity],
        client_roots: &[CertificateDer<'static>],
        alpn: &[u8],
    ) -> Result<Self, Fault> {
        Self::preferring(Cipher::preferred(), identities, client_roots, alpn)
    }

    fn preferring(
        cipher: Cipher,
        identities: &[Identity],
        client_roots: &[CertificateDer<'static>],
        alpn: &[u8],
    ) -> Result<Self, Fault> {
        let provider = || provider(cipher);
        let of_certificates: Arc<dyn ClientCertVerifier> = if client_roots.is_empty() {
            Arc::new(NoClientAuth)
        } else {
            let roots = store(client_roots)?;
            WebPkiClientVerifier::builder_with_provider(roots, provider())
                .allow_unauthenticated()
                .build()
                .map_err(|error| {
                    Fault::new(
                        Code::Usage,
                        format!("cannot use the clients' roots: {error}"),
                    )
                })?
        };
        let mut configs = Vec::new();
        for identity in identities {
            let (server_raw, resolver): (_, Arc<dyn ResolvesServerCert>) = match identity {
                Identity::Key(key) => {
                    let resolver = AlwaysResolvesServerRawPublicKeys::new(key.certified());
                    (true, Arc::new(resolver))
                }
                Identity::Certificate(own) => {
                    let key = own.key.clone_key();
                    let certified = CertifiedKey::from_der(own.chain.clone(), key, &provider())
                        .map_err(|error| unusable(&error))?;
                    (false, Arc::new(SingleCertAndKey::from(certified)))
                }
            };
            for client_raw in [true, false] {
                let verifier = if client_raw {
                    Arc::new(RawClient(algorithms())) as _
                } else {
                    Arc::clone(&of_certificates)
                };
                let mut config = rustls::ServerConfig::builder_with_provider(provider())
                    .with_protocol_versions(&[&version::TLS13])
                    .map_err(|error| unusable(&error))?
                    .with_client_cert_verifier(verifier)
                    .with_cert_resolver(Arc::clone(&resolver));
                config.alpn_protocols = vec![alpn.to_vec()];
                config.send_tls13_tickets = 0;
                // Otherwise the client decides.
                config.ignore_client_order = cipher == Cipher::ChaCha20Poly1305;
                let kinds = Kinds {
                    server_raw,
                    client_raw,
                };
                configs.push((kinds, Arc::new(config)));
            }
        }
        Ok(Self { configs })
    }

    /// Returns the configuration for clients that present what the server does, keys or
    /// certificates; `None` if it has no such identity.
    pub(crate) fn config(&self, is_raw: bool) -> Option<Arc<rustls::ServerConfig>> {
        let kinds = Kinds {
            server_raw: is_raw,
            client_raw: is_raw,
        };
        let found = self.configs.iter().find(|(known, _)| *known == kinds);
        found.map(|(_, config)| Arc::clone(config))
    }

    /// Chooses the configuration for a client; with it, why the client cannot be served once the
    /// handshake is complete.
    ///
    /// # Errors
    /// The client speaks another protocol, or wants an identity of a kind that this server lacks.
    pub(crate) fn choose(
        &self,
        hello: &ClientHello<'_>,
    ) -> Result<(Arc<rustls::ServerConfig>, Option<Fault>), Fault> {
        use rustls::server::CertificateType::RawPublicKey;
        let raw = |types: Option<&[_]>| types.is_some_and(|types| types.contains(&RawPublicKey));
        let kinds = Kinds {
            server_raw: raw(hello.server_cert_types()),
            client_raw: raw(hello.client_cert_types()),
        };
        let found = self.configs.iter().find(|(known, _)| *known == kinds);
        let Some((_, config)) = found else {
            let text = match kinds.server_raw {
                true => "the client expects a key and this server has only a certificate",
                false => "the client expects a certificate and this server has only a key",
            };
            return Err(Fault::new(Code::NotAuthenticated, text));
        };
        let names: Vec<&[u8]> = hello.alpn().into_iter().flatten().collect();
        if names.contains(&PROTOCOL.as_bytes()) {
            return Ok((Arc::clone(config), None));
        }
        let theirs = names.iter().find(|name| name.starts_with(ALPN_PREFIX));
        let Some(theirs) = theirs else {
            return Err(Fault::new(Code::NotHaul, "the client does not speak haul"));
        };
        // Told inside TLS: an alert has no room for the versions, and can be forged.
        let mut config = (**config).clone();
        config.alpn_protocols.clear();
        let text = format!(
            "{SOFTWARE} here speaks {PROTOCOL}; the client speaks {}",
            crate::printable(theirs)
        );
        let fault = Fault::new(Code::Version, text).hint("run the same haul version at both ends");
        Ok((Arc::new(config), Some(fault)))
    }
}

fn algorithms() -> WebPkiSupportedAlgorithms {
    aws_lc_rs::default_provider().signature_verification_algorithms
}

/// Accepts servers by their raw keys.
#[derive(Debug)]
struct RawServer {
    /// `None` accepts any.
    trusted: Option<Vec<PublicKey>>,
    refused: Mutex<Option<PublicKey>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl RawServer {
    fn new(trusted: Option<Vec<PublicKey>>) -> Self {
        Self {
            trusted,
            refused: Mutex::default(),
            algorithms: algorithms(),
        }
    }
}

/// Returns the key in what TLS carries in the place of a certificate.
fn raw_key(spki: &CertificateDer<'_>) -> Result<PublicKey, Error> {
    PublicKey::from_spki(spki).ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))
}

impl ServerCertVerifier for RawServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let key = raw_key(end_entity)?;
        match &self.trusted {
            Some(trusted) if !trusted.contains(&key) => {
                *lock(&self.refused) = Some(key);
                Err(Error::InvalidCertificate(
                    CertificateError::ApplicationVerificationFailure,
                ))
            }
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not enabled".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let spki = SubjectPublicKeyInfoDer::from(cert.as_ref());
        verify_tls13_signature_with_raw_key(message, &spki, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Accepts any raw key of a client, or none: admission decides afterwards.
#[derive(Debug)]
struct RawClient(WebPkiSupportedAlgorithms);

impl ClientCertVerifier for RawClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        raw_key(end_entity).map(|_| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not enabled".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let spki = SubjectPublicKeyInfoDer::from(cert.as_ref());
        verify_tls13_signature_with_raw_key(message, &spki, dss, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Returns who the peer of a completed handshake is.
pub(crate) fn peer_identity(tls: &rustls::Connection) -> PeerIdentity {
    let Some(end_entity) = tls.peer_certificates().and_then(<[_]>::first) else {
        return PeerIdentity::Anonymous;
    };
    // No certificate parses as a bare key, nor the reverse.
    if let Some(key) = PublicKey::from_spki(end_entity) {
        return PeerIdentity::Key(key);
    }
    match EndEntityCert::try_from(end_entity) {
        Ok(certificate) => PeerIdentity::Certificate {
            subject: common_name(certificate.subject()).unwrap_or_default(),
            sans: certificate.valid_dns_names().map(str::to_owned).collect(),
        },
        Err(_) => PeerIdentity::Anonymous,
    }
}

/// Finds the common name in a subject: a sequence of sets of sequences of a type and a value (RFC
/// 5280 §4.1.2.4). `webpki` leaves the outermost header out.
fn common_name(mut subject: &[u8]) -> Option<String> {
    const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    const OBJECT_ID: u8 = 0x06;
    const TEXT: [u8; 2] = [0x0c, 0x13];
    while !subject.is_empty() {
        let (_, mut set) = element(&mut subject)?;
        while !set.is_empty() {
            let (_, mut pair) = element(&mut set)?;
            let (kind, value) = (element(&mut pair)?, element(&mut pair)?);
            if kind == (OBJECT_ID, COMMON_NAME) && TEXT.contains(&value.0) {
                return String::from_utf8(value.1.to_vec()).ok();
            }
        }
    }
    None
}

/// Takes the first DER element of `bytes`: its tag and its content, of at most 255 bytes.
fn element<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (length, header) = match **bytes {
        [_, 0x81, length, ..] => (length, 3),
        [_, length @ ..=0x7f, ..] => (length, 2),
        _ => return None,
    };
    let end = header + usize::from(length);
    let (element, rest) = bytes.split_at_checked(end)?;
    *bytes = rest;
    Some((element[0], &element[header..]))
}

/// Makes the fault of a failed handshake; `peer` names the other end.
pub(crate) fn handshake_fault(error: &Error, peer: &str) -> Fault {
    let untrusted = |text: String| Fault::new(Code::NotAuthenticated, text);
    match error {
        Error::InvalidCertificate(error) => {
            let (words, hint) = certificate_words(error);
            untrusted(format!("{peer} {words}")).hint(hint)
        }
        Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            let text = format!("{peer} speaks TLS and not {PROTOCOL}");
            Fault::new(Code::NotHaul, text).hint("check the address and the port")
        }
        Error::AlertReceived(alert) => match alert_words(*alert) {
            Some((words, hint)) => untrusted(format!("{peer} {words}")).hint(hint),
            None => cut(&format!("{peer} ended the TLS handshake ({alert:?})")),
        },
        error => cut(&format!("the TLS handshake with {peer} failed: {error}")),
    }
}

/// Makes the fault of a record that does not decrypt: the connection is lost, and a new one may
/// succeed.
pub(crate) fn record_fault(error: &Error, peer: &str) -> Fault {
    match error {
        Error::AlertReceived(_) | Error::InvalidCertificate(_) => handshake_fault(error, peer),
        _ => cut("a control message arrived damaged"),
    }
}

fn cut(text: &str) -> Fault {
    Fault::new(Code::PeerGone, text).hint(RESUME)
}

fn certificate_words(error: &CertificateError) -> (String, &'static str) {
    let (words, hint) = match error {
        CertificateError::ApplicationVerificationFailure => (
            "presents a key that is not trusted",
            "compare its fingerprint with the one that its operator gives you",
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => (
            "presents a certificate that has expired",
            "renew it there, and check the clocks of both hosts",
        ),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => (
            "presents a certificate that is not valid yet",
            "check the clocks of both hosts",
        ),
        CertificateError::UnknownIssuer | CertificateError::BadSignature => (
            "presents a certificate that does not come from a trusted root",
            "check the certificate there and the roots here",
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => (
            "presents a certificate for another name",
            "use the name in the certificate as the host",
        ),
        error => {
            let words = format!("presents an identity that cannot be used: {error}");
            return (words, "check its key or certificate");
        }
    };
    (words.to_owned(), hint)
}

/// Interprets an alert (RFC 8446 §6.2) about this end's identity.
const fn alert_words(alert: AlertDescription) -> Option<(&'static str, &'static str)> {
    Some(match alert {
        AlertDescription::CertificateExpired => (
            "refuses this end's certificate: it has expired or is not valid yet",
            "renew it, and check the clocks of both hosts",
        ),
        AlertDescription::UnknownCA | AlertDescription::DecryptError => (
            "refuses this end's certificate: it does not come from a root that it trusts",
            "check the certificate here and the roots there",
        ),
        AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateRevoked
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::AccessDenied => (
            "does not trust this end's key or certificate",
            "have it add this end's identity, or check which one is used",
        ),
        AlertDescription::CertificateRequired => (
            "asks for an identity",
            "make a key with 'haul key' and have it added there",
        ),
        AlertDescription::HandshakeFailure => (
            "has no identity of the kind that this end expects (key or certificate)",
            "trust its key instead of a certificate, or the reverse",
        ),
        _ => return None,
    })
}

/// Parses what a peer's identity holds.
#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    let _ = common_name(bytes);
    let _ = PublicKey::from_spki(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::PrivateKey;

    #[test]
    fn both_ends_have_a_say_on_the_cipher() {
        use Cipher::{Aes128Gcm, ChaCha20Poly1305};
        let key = PrivateKey::generate().unwrap();
        let trust = Trust::Keys(vec![key.public()]);
        let identity = Identity::Key(key);
        for ([near, far], agreed) in [
            ([Aes128Gcm, Aes128Gcm], Aes128Gcm),
            ([Aes128Gcm, ChaCha20Poly1305], ChaCha20Poly1305),
            ([ChaCha20Poly1305, Aes128Gcm], ChaCha20Poly1305),
            ([ChaCha20Poly1305, ChaCha20Poly1305], ChaCha20Poly1305),
        ] {
            let client = TlsClient::preferring(near, None, &trust, b"haul/1").unwrap();
            let server =
                TlsServer::preferring(far, std::slice::from_ref(&identity), &[], b"haul/1");
            let config = server.unwrap().configs.remove(1);
            assert!(config.0.server_raw && !config.0.client_raw);
            let mut ends: [rustls::Connection; 2] = [
                rustls::ClientConnection::new(client.config, client.name)
                    .unwrap()
                    .into(),
                rustls::ServerConnection::new(config.1).unwrap().into(),
            ];
            for turn in 0..4 {
                let mut bytes = Vec::new();
                while ends[turn % 2].wants_write() {
                    ends[turn % 2].write_tls(&mut bytes).unwrap();
                }
                let mut bytes = &bytes[..];
                while !bytes.is_empty() {
                    ends[1 - turn % 2].read_tls(&mut bytes).unwrap();
                    ends[1 - turn % 2].process_new_packets().unwrap();
                }
            }
            for end in &ends {
                assert!(!end.is_handshaking());
                assert_eq!(cipher(end), agreed, "{near:?} and {far:?}");
            }
        }
    }
}
