//! Authorities and certificates that are made for a test, and files that are wrong.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};

use super::*;

/// A certificate authority.
pub(crate) struct Authority {
    root: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, as PEM.
pub(crate) struct Issued {
    certificate: String,
    key: String,
}

/// When a certificate is valid.
pub(crate) enum Validity {
    Past,
    Now,
    Future,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Self { root, issuer }
    }

    pub(crate) fn issue(&self, names: &[&str], validity: Validity) -> Issued {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        match validity {
            Validity::Past => params.not_after = date_time_ymd(2001, 1, 1),
            Validity::Now => {}
            Validity::Future => params.not_before = date_time_ymd(3000, 1, 1),
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Issued {
            certificate,
            key: key.serialize_pem(),
        }
    }
}

/// Writes the files of a gateway with `issued` that trusts `authority`.
pub(crate) fn write(dir: &Path, name: &str, issued: &Issued, authority: &Authority) -> config::Tls {
    let file = |kind: &str, text: &str| {
        let path = dir.join(format!("{name}.{kind}"));
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    };
    config::Tls {
        certificate: file("crt", &issued.certificate),
        key: file("key", &issued.key),
        roots: file("roots.crt", &authority.root),
    }
}

pub(crate) fn context(
    dir: &Path,
    name: &str,
    issued: &Issued,
    authority: &Authority,
) -> TlsContext {
    TlsContext::load(&write(dir, name, issued, authority)).unwrap()
}

/// A client that trusts `authority` and has no certificate.
pub(crate) fn client_without_certificate(authority: &Authority) -> Arc<ClientConfig> {
    let mut store = RootCertStore::empty();
    store
        .add(CertificateDer::from_pem_slice(authority.root.as_bytes()).unwrap())
        .unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(store)
        .with_no_client_auth();
    Arc::new(config)
}

/// Writes a gateway's files and returns the error message after `change`.
fn told(change: impl FnOnce(&config::Tls)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("root");
    let issued = authority.issue(&["gateway.example"], Validity::Now);
    let config = write(dir.path(), "gateway", &issued, &authority);
    check(&config).unwrap();
    change(&config);
    let told = check(&config).unwrap_err().to_string();
    told.replace(&format!("{}/", dir.path().display()), "")
}

#[test]
fn unusable_files_are_reported() {
    let write = |path: &Path, text: &str| fs::write(path, text).unwrap();
    assert_eq!(
        told(|tls| write(&tls.certificate, "")),
        "gateway.crt: no certificate in it"
    );
    assert_eq!(told(|tls| write(&tls.key, "")), "gateway.key: no key in it");
    assert_eq!(
        told(|tls| write(&tls.roots, "")),
        "gateway.roots.crt: no certificate in it"
    );
    assert!(
        told(|tls| write(&tls.key, "-----BEGIN PRIVATE KEY-----\nx"))
            .starts_with("gateway.key: no PEM: ")
    );
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(told(|tls| write(&tls.roots, garbage)).starts_with("gateway.roots.crt: "));
    assert!(
        told(|tls| write(&tls.certificate, garbage)).starts_with("gateway.crt with gateway.key: ")
    );
    assert!(
        told(|tls| fs::remove_file(&tls.roots).unwrap())
            .starts_with("gateway.roots.crt: No such file")
    );
    let open =
        |tls: &config::Tls| fs::set_permissions(&tls.key, Permissions::from_mode(0o644)).unwrap();
    assert_eq!(
        told(open),
        "others have rights to gateway.key; chmod 600 gateway.key"
    );
}

#[test]
fn a_key_of_another_certificate_is_reported() {
    let other = Authority::new("root").issue(&["gateway.example"], Validity::Now);
    let told = told(|tls| fs::write(&tls.key, other.key).unwrap());
    assert!(told.starts_with("gateway.crt with gateway.key: "), "{told}");
}

#[test]
fn a_certificate_that_peers_would_refuse_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let say = |issued: &Issued| check(&write(dir.path(), "gateway", issued, &ours)).unwrap_err();
    let words = |issued: &Issued| say(issued).to_string();
    assert!(words(&ours.issue(&["a"], Validity::Past)).ends_with("gateway.crt: it has expired"));
    assert!(
        words(&ours.issue(&["a"], Validity::Future)).ends_with("gateway.crt: it is not valid yet")
    );
    assert!(words(&theirs.issue(&["a"], Validity::Past)).ends_with("gateway.crt: it has expired"));
    let foreign = say(&theirs.issue(&["a"], Validity::Now));
    assert!(
        matches!(foreign, TlsError::ForeignRoots { .. }),
        "{foreign}"
    );
}

/// The lines of docs/gateway-reference.md that make certificates.
#[test]
fn the_documented_commands_make_valid_certificates() {
    const DOCUMENT: &str = include_str!("../../../../docs/gateway-reference.md");
    let blocks = DOCUMENT.split("```sh certificates\n").skip(1);
    let script: String = blocks
        .filter_map(|rest| rest.split_once("```"))
        .map(|(lines, _)| lines)
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new("sh")
        .args(["-ec", &script])
        .current_dir(dir.path())
        .output()
        .unwrap();
    if output.status.code() == Some(127) {
        return println!("SKIPPED: no openssl(1)");
    }
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let config = config::Tls {
        certificate: dir.path().join("gateway.crt"),
        key: dir.path().join("gateway.key"),
        roots: dir.path().join("roots.crt"),
    };
    check(&config).unwrap();
}
