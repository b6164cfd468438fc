//! Transfers between ends that know each other's keys, over sealed channels.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "these tests run in real time, and end at what they did not expect"
)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use haul::channel::ChannelKind;
use haul::choice::Choice;
use haul::client::{self, Config, Policy, Selection};
use haul::fault::{Code, Fault};
use haul::report::{Event, Observer, Summary};
use haul::server::{self, Root, Server};
use haul_control::identity::{Identity, PeerIdentity, PrivateKey, PublicKey};
use haul_control::trust::{ClientConfig, Refusal, Rights, ServerConfig, Trust};

const POLICY: Policy = Policy {
    replace: true,
    recheck: false,
    durable: client::Durable::Batch,
    xattrs: false,
    acls: false,
    setuid: false,
    update: false,
    delta: false,
    deletes: false,
};

struct Silent;

impl Observer for Silent {
    fn event(&self, _: &Event<'_>) {}
}

/// A server that admits one key, and only to sealed channels.
struct Place {
    server: SocketAddr,
    key: PublicKey,
    admitted: PrivateKey,
    log: Arc<Mutex<Vec<String>>>,
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self::with(&Rights {
            plain: false,
            ..Rights::all("known")
        })
    }

    fn with(rights: &Rights) -> Self {
        let rights = rights.clone();
        let dir = tempfile::tempdir().unwrap();
        for name in ["server", "client", "back"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let (own, admitted) = (
            PrivateKey::generate().unwrap(),
            PrivateKey::generate().unwrap(),
        );
        let known = admitted.public();
        let admission = Arc::new(move |peer: &PeerIdentity| match peer {
            PeerIdentity::Key(key) if *key == known => Ok(rights.clone()),
            peer => Err(Refusal {
                text: format!("{peer} is not in the list of keys"),
                hint: None,
            }),
        });
        let control = ServerConfig::new(&[Identity::Key(own.clone())], &[], admission).unwrap();
        let root = Root::Directory(dir.path().join("server"));
        let config = server::Config {
            listen: vec![([127, 0, 0, 1], 0).into()],
            ..server::Config::new(root, control)
        };
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&lines);
        let log: server::Log = Arc::new(move |line: &str| log.lock().unwrap().push(line.into()));
        let server = Server::bind(&config, log).unwrap();
        let address = server.addresses().unwrap()[0];
        std::thread::spawn(|| server.run());
        Self {
            server: address,
            key: own.public(),
            admitted,
            log: lines,
            dir,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn config(&self, kind: ChannelKind, key: &PrivateKey, trusted: PublicKey) -> Config {
        let trust = Trust::Keys(vec![trusted]);
        Config {
            host: self.server.ip().to_string(),
            port: self.server.port(),
            channel: kind,
            streams: if kind == ChannelKind::Tcp { 3 } else { 1 },
            rate_bps: None,
            congestion: None,
            connect_timeout: Duration::from_secs(20),
            dead_after: Duration::from_secs(20),
            give_up_after: Some(Duration::from_secs(20)),
            control: ClientConfig::new(Some(&Identity::Key(key.clone())), &trust).unwrap(),
            sealed: true,
            dialer: None,
            access: None,
            may_fall_back: false,
            paths: None,
            limit: None,
        }
    }

    fn send(&self, config: &Config) -> Result<Summary, Fault> {
        client::send(
            config,
            &Selection::of(vec![self.path("client/a")]),
            b"",
            POLICY,
            &Silent,
        )
    }

    /// Waits for a line of the server's log that has `text`.
    fn wait_for_log(&self, text: &str) {
        for _ in 0..200 {
            if self
                .log
                .lock()
                .unwrap()
                .iter()
                .any(|line| line.contains(text))
            {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("no '{text}' in {:?}", self.log.lock().unwrap());
    }
}

fn fill(path: &Path, len: usize) -> Vec<u8> {
    let content: Vec<u8> = (0..len)
        .map(|at| ((at * at) >> 7).to_le_bytes()[0])
        .collect();
    std::fs::write(path, &content).unwrap();
    content
}

#[test]
fn files_go_both_ways_over_sealed_channels_of_both_kinds() {
    let place = Place::new();
    for (kind, len) in [
        (ChannelKind::Tcp, 5 << 20),
        (ChannelKind::Udt, 3 << 20),
        (ChannelKind::Udt, 0),
    ] {
        let content = fill(&place.path("client/a"), len + 77);
        let config = place.config(kind, &place.admitted, place.key);
        let summary = place.send(&config).unwrap();
        assert_eq!(summary.moved_bytes, len as u64 + 77, "{kind:?}");
        assert!(std::fs::read(place.path("server/a")).unwrap() == content);
        client::get(
            &config,
            &[b"a".to_vec()],
            &Choice::default(),
            &place.path("back"),
            POLICY,
            &Silent,
        )
        .unwrap();
        assert!(std::fs::read(place.path("back/a")).unwrap() == content);
    }
}

#[test]
fn a_channel_without_encryption_is_refused_with_a_line_at_both_ends() {
    let place = Place::new();
    fill(&place.path("client/a"), 1000);
    for kind in [ChannelKind::Tcp, ChannelKind::Udt] {
        let config = Config {
            sealed: false,
            ..place.config(kind, &place.admitted, place.key)
        };
        let fault = place.send(&config).unwrap_err();
        assert_eq!((fault.code, fault.exit()), (Code::NotAuthenticated, 12));
        assert!(
            fault.text.contains("without encryption are not admitted"),
            "{fault}"
        );
    }
    place.wait_for_log("without encryption are not admitted");
    assert!(!place.path("server/a").exists());
}

#[test]
fn an_unknown_client_and_an_unknown_server_are_refused_with_a_line_at_both_ends() {
    let place = Place::new();
    fill(&place.path("client/a"), 1000);
    let other = PrivateKey::generate().unwrap();
    let fault = place
        .send(&place.config(ChannelKind::Tcp, &other, place.key))
        .unwrap_err();
    assert_eq!((fault.code, fault.exit()), (Code::NotAuthenticated, 12));
    assert!(fault.text.contains("is not in the list of keys"), "{fault}");
    place.wait_for_log("is not in the list of keys");
    let fault = place
        .send(&place.config(ChannelKind::Tcp, &place.admitted, other.public()))
        .unwrap_err();
    assert_eq!((fault.code, fault.exit()), (Code::NotAuthenticated, 12));
    assert!(fault.text.contains(&place.key.to_string()), "{fault}");
    place.wait_for_log("does not trust this end's key");
}

#[test]
fn one_who_may_only_drop_files_chooses_no_directory_replaces_nothing_and_hides_nothing() {
    let place = Place::with(&Rights {
        drop_only: true,
        ..Rights::all("known")
    });
    std::fs::create_dir(place.path("server/bin")).unwrap();
    fill(&place.path("client/.profile"), 1000);
    fill(&place.path("client/a"), 1000);
    let config = place.config(ChannelKind::Tcp, &place.admitted, place.key);
    let send = |name: &str, to: &[u8]| {
        let from = Selection::of(vec![place.path("client").join(name)]);
        client::send(&config, &from, to, POLICY, &Silent)
    };
    for directory in ["bin", "new/"] {
        let fault = send("a", directory.as_bytes()).unwrap_err();
        assert_eq!(fault.code, Code::Refused, "{fault}");
        assert!(fault.text.contains("one directory only"), "{fault}");
    }
    let fault = send(".profile", b"").unwrap_err();
    assert_eq!(fault.code, Code::Refused, "{fault}");
    assert!(fault.text.contains("begins with a dot"), "{fault}");
    send("a", b"").unwrap();
    // A connection that broke after the last byte: the client comes again.
    send("a", b"").unwrap();
    let before = std::fs::read(place.path("server/a")).unwrap();
    fill(&place.path("client/a"), 2000);
    let fault = send("a", b"").unwrap_err();
    assert_eq!(fault.code, Code::Exists, "{fault}");
    assert!(std::fs::read(place.path("server/a")).unwrap() == before);
    let mut names: Vec<_> = std::fs::read_dir(place.path("server"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["a", "bin"]);
}

#[test]
fn one_without_rights_takes_no_place() {
    let place = Place::with(&Rights {
        read: false,
        write: false,
        bench: false,
        ..Rights::all("known")
    });
    fill(&place.path("client/a"), 1000);
    let config = place.config(ChannelKind::Tcp, &place.admitted, place.key);
    let fault = place.send(&config).unwrap_err();
    assert_eq!(fault.code, Code::Refused, "{fault}");
    assert!(fault.text.contains("may not use this server"), "{fault}");
}
