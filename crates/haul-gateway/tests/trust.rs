//! Who may use a gateway: shared keys, certificates, and what the others are told.
#![expect(
    clippy::unwrap_used,
    reason = "what is not there where it must be fails the test"
)]

mod common;

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use common::{Lines, connect, echo_server, exchange, pattern, start};
use haul_gateway::Gateway;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

fn secret(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// A pair of gateways that believe each other by what `near` and `far` add to their configurations.
fn pair(near: &str, far: &str, route: &str) -> ((Gateway, Lines), (Gateway, Lines)) {
    let far = start(&format!(
        "name = 'exit'\nlisten = '127.0.0.1:0'\nexit = ['127.0.0.0/8']\nring = '4MiB'\n{far}\n\
         [[channel]]\nkind = 'iwarp/tcp'\nlisten = '127.0.0.1:0'\n"
    ));
    let near = start(&format!(
        "name = 'entry'\n{near}\n[[door]]\nkind = 'forward'\nlisten = '127.0.0.1:0'\nto = '{}'\n\
         [[route]]\nto = ['*']\nvia = ['{}']\nring = '4MiB'\nchannels = ['iwarp/tcp']\n{route}\n",
        echo_server(),
        far.0.listen_addr().unwrap(),
    ));
    (near, far)
}

fn goes_through(near: &Gateway) -> bool {
    let sent = pattern(100_000, 1);
    exchange(connect(near.door_addrs()[0]), sent.clone()) == sent
}

fn is_refused(near: &Gateway) -> bool {
    connect(near.door_addrs()[0]).read(&mut [0]).is_err()
}

#[test]
fn a_shared_key_opens_and_another_key_or_none_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let (good, bad) = (folder.path().join("good"), folder.path().join("bad"));
    secret(&good, &"5a".repeat(32));
    secret(&bad, &"a5".repeat(32));
    let key = |path: &Path| format!("[[key]]\nname = 'campus'\nfile = '{}'\n", path.display());
    let ((near, _), _far) = pair(&key(&good), &key(&good), "key = 'campus'");
    assert!(goes_through(&near));
    for (key_of_near, route) in [
        (key(&bad), "key = 'campus'"),
        ("anonymous = true\n".to_owned(), ""),
    ] {
        let ((near, near_lines), (_far, far_lines)) = pair(&key_of_near, &key(&good), route);
        assert!(is_refused(&near));
        for lines in [near_lines, far_lines] {
            lines.wait_for(&["not authenticated", "NotAuthenticated"]);
        }
    }
}

/// Certificate, key and root of a gateway at 127.0.0.1, as files; and what its configuration says of them.
fn certificates(folder: &Path, name: &str, root: &CertificateParams, root_key: &KeyPair) -> String {
    let issuer = Issuer::from_params(root, root_key);
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let own = own.signed_by(&key, &issuer).unwrap();
    let path = |what: &str| folder.join(format!("{name}-{what}.pem"));
    std::fs::write(path("cert"), own.pem()).unwrap();
    secret(&path("key"), &key.serialize_pem());
    std::fs::write(path("root"), root.self_signed(root_key).unwrap().pem()).unwrap();
    format!(
        "[tls]\ncertificate = '{}'\nkey = '{}'\nroots = '{}'\n",
        path("cert").display(),
        path("key").display(),
        path("root").display()
    )
}

fn authority(name: &str) -> (CertificateParams, KeyPair) {
    let mut root = CertificateParams::new(Vec::new()).unwrap();
    root.distinguished_name.push(DnType::CommonName, name);
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    (root, KeyPair::generate().unwrap())
}

#[test]
fn certificates_of_one_root_open_and_those_of_another_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let ((root, root_key), (other, other_key)) = (authority("ours"), authority("theirs"));
    let near_tls = certificates(folder.path(), "near", &root, &root_key);
    let far_tls = certificates(folder.path(), "far", &root, &root_key);
    let strange_tls = certificates(folder.path(), "strange", &other, &other_key);
    let ((near, lines), _far) = pair(&near_tls, &far_tls, "");
    assert!(goes_through(&near), "{:?}", lines.all());
    let ((near, near_lines), (_far, far_lines)) = pair(&strange_tls, &far_tls, "");
    assert!(is_refused(&near));
    near_lines.wait_for(&["certificate"]);
    far_lines.wait_for(&["roots"]);
    // Neither does one that speaks no TLS.
    let ((near, _), _far) = pair("anonymous = true\n", &far_tls, "");
    assert!(is_refused(&near));
}
