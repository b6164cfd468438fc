//! Access to a gateway: shared keys, certificates, and errors without them.
#![expect(
    clippy::unwrap_used,
    reason = "what is not there where it must be fails the test"
)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::common::{Filed, Lines, assert_reset, connect, echo_server, exchange, pattern, start};
use haul_gateway::Gateway;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

fn secret(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// A pair of gateways that authenticate each other by the lines of `near` and `far` in their
/// configurations.
fn pair(near: &str, far: &str, route: &str) -> ((Gateway, Lines), (Gateway, Lines)) {
    let far = start(&format!(
        "name = 'exit'\nlisten = '127.0.0.1:0'\nexit = ['127.0.0.0/8']\nring = '4MiB'\n{far}\n\
         [[channel]]\nkind = 'tcp'\nlisten = '127.0.0.1:0'\n"
    ));
    let near = start(&format!(
        "name = 'entry'\n{near}\n[[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:0'\nto = '{}'\n\
         [[route]]\nto = ['*']\nvia = ['{}']\nring = '4MiB'\nchannels = ['tcp']\n{route}\n",
        echo_server(),
        far.0.listen_addr().unwrap(),
    ));
    (near, far)
}

fn goes_through(near: &Gateway) -> bool {
    let sent = pattern(100_000, 1);
    exchange(connect(near.listener_addrs()[0]), sent.clone()) == sent
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
    let (wrong, none) = (
        "the proof of the key is wrong",
        "no common method of authentication",
    );
    for (key_of_near, route, far_says) in [
        (key(&bad), "key = 'campus'", wrong),
        ("anonymous = true\n".to_owned(), "", none),
    ] {
        let ((near, near_lines), (_far, far_lines)) = pair(&key_of_near, &key(&good), route);
        assert_reset(near.listener_addrs()[0]);
        assert_one_line(&near_lines, "it refuses what this end shows");
        assert_one_line(&far_lines, far_says);
    }
}

/// When a certificate is valid.
#[derive(Clone, Copy)]
enum Validity {
    Past,
    Now,
}

/// Certificate, key and root of a gateway at 127.0.0.1, as files; and the configuration that names
/// them.
fn certificates(folder: &Path, name: &str, root: &CertificateParams, root_key: &KeyPair) -> String {
    certificates_of(folder, name, (root, root_key), "127.0.0.1", Validity::Now)
}

fn certificates_of(
    folder: &Path,
    name: &str,
    (root, root_key): (&CertificateParams, &KeyPair),
    subject: &str,
    validity: Validity,
) -> String {
    let issuer = Issuer::from_params(root, root_key);
    let key = KeyPair::generate().unwrap();
    let mut own = CertificateParams::new(vec![subject.to_owned()]).unwrap();
    if matches!(validity, Validity::Past) {
        own.not_after = rcgen::date_time_ymd(2001, 1, 1);
    }
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
    assert_reset(near.listener_addrs()[0]);
    let words = "certificate does not come from one of the roots";
    assert_one_line(&near_lines, words);
    assert_one_line(
        &far_lines,
        "certificate: it does not come from one of its roots",
    );
    // Neither does one without TLS.
    let ((near, _), _far) = pair("anonymous = true\n", &far_tls, "");
    assert_reset(near.listener_addrs()[0]);
}

/// One line has `words` in it, and no other is about why one end does not authenticate the other,
/// except for the lines of the clients that were refused for it.
fn assert_one_line(lines: &Lines, words: &str) {
    lines.wait_for(&[words]);
    let is_about = |line: &&String| {
        !line.starts_with("client ")
            && ["certificate", "TLS", "authenticated", "Authenticated"]
                .iter()
                .any(|word| line.contains(word))
    };
    let all = lines.all();
    let about: Vec<&String> = all.iter().filter(is_about).collect();
    assert!(about.len() == 1 && about[0].contains(words), "{all:?}");
}

#[test]
fn each_end_reports_in_one_line_why_certificates_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let ((root, root_key), (other, other_key)) = (authority("ours"), authority("theirs"));
    let (ours, theirs) = ((&root, &root_key), (&other, &other_key));
    let (anew, anew_key) = authority("ours");
    let of = |name: &str, issuer, subject, validity| {
        certificates_of(folder, name, issuer, subject, validity)
    };
    let good = |name: &str| of(name, ours, "127.0.0.1", Validity::Now);
    // One of another root, which trusts ours.
    let strange = |name: &str, issuer| {
        let config = of(name, issuer, "127.0.0.1", Validity::Now);
        let root = folder.join(format!("{name}-root.pem"));
        std::fs::write(&root, root_of(ours)).unwrap();
        config
    };
    let foreign = |name: &str| strange(name, theirs);
    let renewed = |name: &str| strange(name, (&anew, &anew_key));
    let expired = |name: &str| of(name, ours, "127.0.0.1", Validity::Past);
    let misnamed = |name: &str| of(name, ours, "gw.site-b.example", Validity::Now);
    let foreign_words = (
        "the peer's certificate does not come from one of the roots",
        "the peer refuses this gateway's certificate: it does not come from one of its roots",
    );
    let expired_words = (
        "the peer's certificate has expired",
        "the peer refuses this gateway's certificate: it has expired, or is not valid yet",
    );
    let renewed_words = (
        "the peer's certificate is signed by another root of that name",
        "the peer refuses this gateway's certificate: it is signed by another root of that name",
    );
    let misnamed_words = (
        "the peer's certificate is not for 127.0.0.1",
        "the peer refuses this gateway's certificate: it is not for the name that it was asked by, or is damaged",
    );
    // Near, far, the near one's log line, the far one's.
    let cases = [
        (expired("a1"), good("a2"), expired_words.1, expired_words.0),
        (good("b1"), expired("b2"), expired_words.0, expired_words.1),
        (foreign("c1"), good("c2"), foreign_words.1, foreign_words.0),
        (good("d1"), foreign("d2"), foreign_words.0, foreign_words.1),
        (renewed("f1"), good("f2"), renewed_words.1, renewed_words.0),
        (good("g1"), renewed("g2"), renewed_words.0, renewed_words.1),
        (
            good("e1"),
            misnamed("e2"),
            misnamed_words.0,
            misnamed_words.1,
        ),
    ];
    for (near, far, near_says, far_says) in cases {
        let ((near, near_lines), (_far, far_lines)) = pair(&near, &far, "");
        assert_reset(near.listener_addrs()[0]);
        assert_one_line(&near_lines, near_says);
        assert_one_line(&far_lines, far_says);
    }
}

fn root_of((root, key): (&CertificateParams, &KeyPair)) -> String {
    root.self_signed(key).unwrap().pem()
}

#[test]
fn a_certificate_that_is_read_again_counts_from_the_next_connection_on() {
    let folder = tempfile::tempdir().unwrap();
    let (root, root_key) = authority("ours");
    let of = |name: &str, validity| {
        certificates_of(
            folder.path(),
            name,
            (&root, &root_key),
            "127.0.0.1",
            validity,
        )
    };
    let (near_tls, old) = (of("near", Validity::Now), of("far", Validity::Past));
    let listener = format!(
        "[[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:0'\nto = '{}'\n",
        echo_server()
    );
    let config = |tls: &str| {
        format!(
            "name = 'exit'\nlisten = '127.0.0.1:0'\nexit = ['127.0.0.0/8']\nring = '8MiB'\n{tls}\n\
             [[channel]]\nkind = 'tcp'\nlisten = '127.0.0.1:0'\n"
        )
    };
    let mut far = Filed::start(&config(&old));
    let (near, near_lines) = start(&format!(
        "name = 'entry'\n{near_tls}\n{listener}[[route]]\nto = ['*']\nvia = ['{}']\nring = '4MiB'\nchannels = ['tcp']\n",
        far.gateway.listen_addr().unwrap(),
    ));
    assert_reset(near.listener_addrs()[0]);
    near_lines.wait_for(&["the peer's certificate has expired"]);
    // In the place of the old one, as a renewal is.
    let new = of("far", Validity::Now);
    assert_eq!(new, old);
    // It has not been read yet.
    assert_reset(near.listener_addrs()[0]);
    far.reload(&config(&new)).unwrap();
    assert!(goes_through(&near), "{:?}", near_lines.all());
    // One that is over by then is not taken, and the one before stays.
    of("far", Validity::Past);
    let said = far.reload(&config(&old)).unwrap_err();
    assert!(said.contains("it has expired"), "{said}");
    assert!(goes_through(&near), "{:?}", near_lines.all());
}
