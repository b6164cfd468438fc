//! TLS 1.3 with certificates at both ends (RFC 8446): identity, trust, and failures in words.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use haul_io::clock::Clock;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, InvalidMessage,
    RootCertStore, ServerConfig, ServerConnection,
};
use webpki::{EndEntityCert, KeyUsage};

use crate::config::{self, KeyError, read_secret};

/// The ALPN name, so that no other protocol's endpoint is mistaken for ours.
const ALPN: &[u8] = b"haul-xsp";

/// The TLS settings of [`crate::control::Control`]: a certificate, its key, and roots.
#[derive(Debug, Clone)]
pub(crate) struct TlsContext {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

/// States why files are unusable for TLS.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The file of the key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The key does not belong to the certificate, or one of them has an unknown type.
    #[error("{} with {}: {reason}", certificate.display(), key.display())]
    Pair {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The certificate does not chain to the roots. That is right only where peers have others.
    #[error("{} does not chain to the roots in {}", certificate.display(), roots.display())]
    ForeignRoots {
        /// The certificate.
        certificate: PathBuf,
        /// The roots.
        roots: PathBuf,
    },
}

/// The contents of the files.
struct Material {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Vec<CertificateDer<'static>>,
}

impl TlsContext {
    /// Reads certificate, key and roots.
    ///
    /// # Errors
    /// A file is missing or malformed, others may read the key, or the key does not belong to the
    /// certificate.
    pub(crate) fn load(config: &config::Tls) -> Result<Self, TlsError> {
        let Material { chain, key, roots } = Material::read(config)?;
        let mut store = RootCertStore::empty();
        for root in roots {
            let added = store.add(root);
            added.map_err(|error| of_file(&config.roots, explain(&error)))?;
        }
        let (store, provider) = (Arc::new(store), Arc::new(aws_lc_rs::default_provider()));
        let pair = |error: rustls::Error| TlsError::Pair {
            certificate: config.certificate.clone(),
            key: config.key.clone(),
            reason: explain(&error),
        };
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&store), Arc::clone(&provider))
                .build()
                .map_err(|error| of_file(&config.roots, error.to_string()))?;
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(pair)?
            .with_root_certificates(store)
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(pair)?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(pair)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(pair)?;
        client.alpn_protocols = vec![ALPN.to_vec()];
        server.alpn_protocols = vec![ALPN.to_vec()];
        // Every connection presents its certificates: a ticket would outlive them.
        client.resumption = Resumption::disabled();
        server.send_tls13_tickets = 0;
        Ok(Self {
            client: Arc::new(client),
            server: Arc::new(server),
        })
    }

    pub(crate) fn client(
        &self,
        name: ServerName<'static>,
    ) -> Result<ClientConnection, rustls::Error> {
        ClientConnection::new(Arc::clone(&self.client), name)
    }

    pub(crate) fn server(&self) -> Result<ServerConnection, rustls::Error> {
        ServerConnection::new(Arc::clone(&self.server))
    }
}

/// Checks this gateway's own certificate as a peer with the same roots would.
///
/// # Errors
/// It has expired, is not valid yet, or does not chain to the roots; or those of
/// [`TlsContext::load`].
pub(crate) fn check(config: &config::Tls) -> Result<(), TlsError> {
    TlsContext::load(config)?;
    let Material { chain, roots, .. } = Material::read(config)?;
    let refused = |error: webpki::Error| match error {
        webpki::Error::CertExpired { .. } => {
            of_file(&config.certificate, "it has expired".to_owned())
        }
        webpki::Error::CertNotValidYet { .. } => {
            of_file(&config.certificate, "it is not valid yet".to_owned())
        }
        webpki::Error::UnknownIssuer => TlsError::ForeignRoots {
            certificate: config.certificate.clone(),
            roots: config.roots.clone(),
        },
        error => of_file(&config.certificate, error.to_string()),
    };
    [KeyUsage::server_auth(), KeyUsage::client_auth()]
        .into_iter()
        .try_for_each(|usage| verify_chain(&chain, &roots, usage))
        .map_err(refused)
}

fn verify_chain(
    chain: &[CertificateDer<'_>],
    roots: &[CertificateDer<'_>],
    usage: KeyUsage,
) -> Result<(), webpki::Error> {
    let Some((own, between)) = chain.split_first() else {
        return Err(webpki::Error::UnknownIssuer);
    };
    let roots = roots.iter().map(webpki::anchor_from_trusted_cert);
    let roots = roots.collect::<Result<Vec<_>, _>>()?;
    let now = UnixTime::since_unix_epoch(Duration::from_nanos(Clock::new().realtime_ns()));
    let algorithms = aws_lc_rs::default_provider()
        .signature_verification_algorithms
        .all;
    let own = EndEntityCert::try_from(own)?;
    own.verify_for_usage(algorithms, &roots, between, now, usage, None, None)?;
    Ok(())
}

impl Material {
    fn read(config: &config::Tls) -> Result<Self, TlsError> {
        let key = read_secret(&config.key)?;
        Ok(Self {
            chain: certificates(&config.certificate)?,
            key: PrivateKeyDer::from_pem_slice(&key)
                .map_err(|error| of_file(&config.key, pem_words(&error, "key")))?,
            roots: certificates(&config.roots)?,
        })
    }
}

/// Reads all certificates of a file, at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = std::fs::read(path).map_err(|error| of_file(path, error.to_string()))?;
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match parsed {
        Ok(certificates) if certificates.is_empty() => {
            Err(of_file(path, "no certificate in it".to_owned()))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(of_file(path, pem_words(&error, "certificate"))),
    }
}

fn pem_words(error: &pem::Error, what: &str) -> String {
    match error {
        pem::Error::NoItemsFound => format!("no {what} in it"),
        error => format!("no PEM: {error}"),
    }
}

fn of_file(path: &Path, reason: String) -> TlsError {
    TlsError::File {
        path: path.to_owned(),
        reason,
    }
}

/// Describes what failed, and at which end.
pub(crate) fn explain(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(error) => match certificate_words(error) {
            Some(words) => format!("the peer's certificate {words}"),
            None => format!("the peer's certificate: {error}"),
        },
        rustls::Error::NoCertificatesPresented => "the peer showed no certificate".to_owned(),
        rustls::Error::AlertReceived(alert) => match alert_words(*alert) {
            Some(words) => format!("the peer refuses this gateway's certificate: it {words}"),
            None => format!("the peer ended TLS: {alert:?}"),
        },
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "the peer does not speak TLS: it is no Longhaul gateway, or one without a certificate"
                .to_owned()
        }
        rustls::Error::InvalidMessage(_) => "the peer does not speak TLS as it should".to_owned(),
        error => error.to_string(),
    }
}

fn certificate_words(error: &CertificateError) -> Option<String> {
    Some(match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet".to_owned()
        }
        CertificateError::UnknownIssuer => "does not come from one of the roots".to_owned(),
        // A new root may have the name of the old one.
        CertificateError::BadSignature => "is signed by another root of that name".to_owned(),
        CertificateError::NotValidForName => "is for another name".to_owned(),
        CertificateError::NotValidForNameContext { expected, .. } => {
            format!("is not for {}", expected.to_str())
        }
        _ => return None,
    })
}

/// Interprets an alert (RFC 8446 §6.2) about this end's certificate.
const fn alert_words(alert: AlertDescription) -> Option<&'static str> {
    Some(match alert {
        AlertDescription::CertificateExpired => "has expired, or is not valid yet",
        AlertDescription::UnknownCA => "does not come from one of its roots",
        AlertDescription::DecryptError => "is signed by another root of that name",
        AlertDescription::CertificateRequired => "is missing",
        AlertDescription::BadCertificate => {
            "is not for the name that it was asked by, or is damaged"
        }
        AlertDescription::CertificateRevoked => "is revoked",
        AlertDescription::UnsupportedCertificate | AlertDescription::CertificateUnknown => {
            "is of no use to it"
        }
        AlertDescription::AccessDenied => "may not do this",
        _ => return None,
    })
}

#[cfg(test)]
pub(crate) mod tests;
