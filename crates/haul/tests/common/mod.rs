//! A server of a directory on loopback, for the tests of its services.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use haul::channel::ChannelKind;
use haul::client::Config;
use haul::server::{self, Root, Server};
use haul_control::identity::{Identity, PeerIdentity, PrivateKey};
use haul_control::trust::{ClientConfig, Rights, ServerConfig};

/// Serves a directory to everybody, with these rights. Returns how clients reach it, and its port.
pub(crate) fn serve(
    directory: PathBuf,
    rights: &Rights,
    read_only: bool,
) -> (Config, Arc<haul_control::server::Server>) {
    let rights = rights.clone();
    let key = Identity::Key(PrivateKey::generate().unwrap());
    let admission = Arc::new(move |_: &PeerIdentity| Ok(rights.clone()));
    let control = ServerConfig::new(&[key], &[], admission).unwrap();
    let config = server::Config {
        listen: vec![([127, 0, 0, 1], 0).into()],
        read_only,
        ..server::Config::new(Root::Directory(directory), control)
    };
    let server = Server::bind(&config, Arc::new(|_| {})).unwrap();
    let address = server.addresses().unwrap()[0];
    let port = Arc::clone(server.port());
    std::thread::spawn(|| server.run());
    let config = Config {
        host: address.ip().to_string(),
        port: address.port(),
        channel: ChannelKind::Tcp,
        streams: 1,
        rate_bps: None,
        congestion: None,
        connect_timeout: Duration::from_secs(20),
        dead_after: Duration::from_secs(20),
        give_up_after: None,
        control: ClientConfig::insecure().unwrap(),
        sealed: true,
        dialer: None,
        access: None,
        may_fall_back: false,
        paths: None,
        limit: None,
    };
    (config, port)
}
