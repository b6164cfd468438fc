//! All settings of a gateway.

use std::net::SocketAddr;
use std::path::PathBuf;

use haul_extender::Plan;
use haul_xsp::wire::Endpoint;
use haul_xsp::{Allowed, SECOND_NS};
use serde::Deserialize;

use super::channel::ChannelKind;
use super::lines::Lines;
use super::metadata::SessionMetadata;
use super::path::{PathRule, PathSignalling};
use super::rule::{AddressRule, Destination, HopRule, Prefix};
use super::unit::{BitRate, ByteCount};
use super::via::Via;
use crate::host::HostPort;

/// Where a gateway is expected when nobody says otherwise.
pub const DEFAULT_PORT: u16 = 7400;

/// A gateway's configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// How this gateway names itself: to peers with shared keys, in logs, on its page.
    pub name: String,
    /// Where sessions of other gateways and of native clients come in. None: nothing comes in but
    /// through listeners.
    #[serde(default, deserialize_with = "crate::host::listen_if_any")]
    pub listen: Option<SocketAddr>,
    /// Most memory for slabs, all sessions together.
    #[serde(default = "default_memory")]
    pub memory: ByteCount,
    /// Octets of the ring and of the arena of sessions that come in, a power of two each.
    #[serde(default = "default_ring")]
    pub ring: ByteCount,
    /// Most sessions at a time.
    #[serde(default = "default_sessions")]
    pub sessions: usize,
    /// Seconds between signs of life on a control connection, the fewer of both ends'. Who gives
    /// none for three times as long is taken for gone, and its session waits for it to come back.
    #[serde(default = "default_keepalive")]
    pub keepalive: u32,
    /// Where data channels come in, each kind that is to be had.
    #[serde(default, rename = "channel")]
    pub channels: Vec<Listen>,
    /// What this gateway sends to other gateways, all sessions together. None: as much as there is.
    #[serde(default)]
    pub rate: Option<BitRate>,
    /// How sessions share it.
    #[serde(default, rename = "class")]
    pub classes: Vec<Class>,
    /// The class of sessions that come in, where their key has none.
    #[serde(default)]
    pub guest_class: Option<String>,
    /// Who this gateway is, and whom it believes, by certificates.
    #[serde(default)]
    pub tls: Option<Tls>,
    /// Keys shared with peers.
    #[serde(default, rename = "key")]
    pub keys: Vec<Key>,
    /// Peers need not prove who they are. For tests and closed networks.
    #[serde(default)]
    pub anonymous: bool,
    /// Destinations that sessions which end here may connect to. Nothing else.
    #[serde(default)]
    pub exit: Vec<AddressRule>,
    /// The device for RDMA connections of applications, at either end.
    #[serde(default)]
    pub rdma: Option<Rdma>,
    /// Next hops that sessions which pass through may go to. Nothing else.
    #[serde(default)]
    pub next: Vec<HopRule>,
    /// Where programs' connections come in.
    #[serde(default, rename = "listener")]
    pub listeners: Vec<Listener>,
    /// Where they go, the first that fits.
    #[serde(default, rename = "route")]
    pub routes: Vec<Route>,
    /// The page, the metrics.
    #[serde(default)]
    pub admin: Option<Admin>,
    /// Who sets up paths in the network that sessions ask for.
    #[serde(default)]
    pub path: PathSignalling,
    /// Where in the file things are.
    #[serde(skip)]
    pub(crate) lines: Lines,
}

impl Config {
    /// Of a process that opens sessions for itself and takes none: whatever it wants goes over
    /// `hops`, the last of which connects to the destination. With several, or with several ways,
    /// the ends acknowledge, so that one between may fail and come back, or another way is taken.
    #[must_use]
    pub fn of_client(hops: Vec<HostPort>, means: ClientMeans) -> Self {
        let way = |hops: Vec<HostPort>| hops.into_iter().map(Via::Plain).collect();
        let channels = match means.channels {
            none if none.is_empty() => default_channels(),
            channels => channels,
        };
        let route = Route {
            to: vec![Destination::any()],
            end_to_end: hops.len() > 1 || !means.or_hops.is_empty(),
            via: way(hops),
            or_via: means.or_hops.into_iter().map(way).collect(),
            channels,
            mode: RouteMode::default(),
            regions: default_regions(),
            ring: default_ring(),
            rate: None,
            burst: None,
            streams: default_streams(),
            ready: false,
            checksum: default_true(),
            key: means.key.as_ref().map(|key| key.name.clone()),
            class: None,
            path: Vec::new(),
            metadata: means.metadata,
        };
        Self {
            name: "client".to_owned(),
            listen: None,
            memory: default_memory(),
            ring: default_ring(),
            sessions: default_sessions(),
            keepalive: default_keepalive(),
            channels: Vec::new(),
            rate: None,
            classes: Vec::new(),
            guest_class: None,
            // Who has no means of proof can only take the gateway for what it says it is.
            anonymous: means.key.is_none() && means.tls.is_none(),
            tls: means.tls,
            keys: means.key.into_iter().collect(),
            exit: Vec::new(),
            rdma: None,
            next: Vec::new(),
            listeners: Vec::new(),
            routes: vec![route],
            admin: None,
            path: PathSignalling::default(),
            lines: Lines::default(),
        }
    }

    /// The same routes, none of whose sessions is opened before it is asked for, and nothing that
    /// comes in: for a process beside the gateway.
    #[must_use]
    pub fn outwards(mut self) -> Self {
        for route in &mut self.routes {
            route.ready = false;
        }
        Self {
            listen: None,
            channels: Vec::new(),
            rdma: None,
            listeners: Vec::new(),
            admin: None,
            ..self
        }
    }

    /// Between signs of life, ns.
    pub(crate) fn keepalive_ns(&self) -> u64 {
        u64::from(self.keepalive) * SECOND_NS
    }

    /// Whether sessions that end here may connect to `to`: an address that a name has led to, or
    /// one that was asked for.
    #[must_use]
    pub fn may_exit(&self, to: SocketAddr) -> bool {
        self.exit.iter().any(|rule| rule.allows(to))
    }

    /// Whether sessions may end here.
    pub(crate) fn has_exit(&self) -> bool {
        !self.exit.is_empty() || self.rdma.iter().any(|rdma| !rdma.exit.is_empty())
    }

    /// The same for a connection by RDMA, or by TCP.
    pub(crate) fn lets_out(&self, to: SocketAddr, by_rdma: bool) -> bool {
        if !by_rdma {
            return self.may_exit(to);
        }
        let mut rules = self.rdma.iter().flat_map(|rdma| &rdma.exit);
        rules.any(|rule| rule.allows(to))
    }

    /// Next hops that sessions which pass through may go to, for the directory of sessions.
    #[must_use]
    pub fn allowed(&self) -> Vec<Allowed> {
        self.next.iter().map(HopRule::allowed).collect()
    }

    /// The first route that leads to `to`.
    #[must_use]
    pub fn route(&self, to: &Endpoint) -> Option<&Route> {
        self.routes.get(self.route_number(to)?)
    }

    /// The class of a session that comes in from somebody with this name: that of a key, or of a
    /// certificate.
    #[must_use]
    pub fn class_of_guest(&self, name: Option<&str>) -> Option<&str> {
        let key = self.keys.iter().find(|key| Some(key.name.as_str()) == name);
        let own = key.and_then(|key| key.class.as_deref());
        own.or(self.guest_class.as_deref())
    }

    /// The number of the first route that leads to `to`, from 0.
    #[must_use]
    pub fn route_number(&self, to: &Endpoint) -> Option<usize> {
        let leads = |route: &Route| route.to.iter().any(|rule| rule.covers(to));
        self.routes.iter().position(leads)
    }
}

fn default_memory() -> ByteCount {
    ByteCount(1 << 30)
}

const fn default_sessions() -> usize {
    64
}

const fn default_keepalive() -> u32 {
    10
}

/// Where a kind of data channel comes in.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// Which kind.
    pub kind: ChannelKind,
    /// Address and port; port 0 takes any, which the peer is told. With `udp` each channel of each
    /// session has a port of its own: this one or the next that is free, of 64.
    #[serde(deserialize_with = "crate::host::listen")]
    pub listen: SocketAddr,
    /// What peers are to connect to, where it is not the address of the control connection.
    #[serde(default)]
    pub public: Option<SocketAddr>,
    /// The device, for `verbs`.
    #[serde(default)]
    pub device: Option<String>,
}

/// Certificates, as files of PEM.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// This gateway's certificate and those between it and its root.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The roots that peers' certificates must come from.
    pub roots: PathBuf,
}

/// A key shared with a peer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Its name at both ends.
    pub name: String,
    /// A file to which others have no right: 32 octets in hexadecimal.
    pub file: PathBuf,
    /// The class of sessions that come in with it.
    #[serde(default)]
    pub class: Option<String>,
}

/// Sessions that share what they may send.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// How routes and keys call it.
    pub name: String,
    /// Of a hundred parts of the gateway's `rate`, while others want theirs. What is in no class
    /// has what is left.
    pub share: u8,
    /// Rate that its sessions together do not exceed.
    #[serde(default)]
    pub rate: Option<BitRate>,
}

/// How programs' connections come in.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// What is spoken.
    pub kind: ListenerKind,
    /// Where it listens.
    #[serde(deserialize_with = "crate::host::listen")]
    pub listen: SocketAddr,
    /// For `forward` and `rdma`: where all its connections go.
    #[serde(default)]
    pub to: Option<HostPort>,
    /// Who may come: where nothing is said, whoever reaches it.
    #[serde(default)]
    pub clients: Vec<Prefix>,
}

impl Listener {
    /// Whether somebody from `client` may come in.
    #[must_use]
    pub fn admits(&self, client: SocketAddr) -> bool {
        self.clients.is_empty() || self.clients.iter().any(|prefix| prefix.covers(client.ip()))
    }
}

/// How a process that opens sessions for itself gets to its gateway.
#[derive(Debug, Clone, Default)]
pub struct ClientMeans {
    /// Further ways, for when the first cannot be had.
    pub or_hops: Vec<Vec<HostPort>>,
    /// What the segments may use, the best first; what a route has by default, if there are none.
    pub channels: Vec<ChannelKind>,
    /// What it proves with.
    pub key: Option<Key>,
    /// Certificates.
    pub tls: Option<Tls>,
    /// What its session says about itself.
    pub metadata: SessionMetadata,
}

/// What is spoken at a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListenerKind {
    /// Nothing: the kernel has diverted the connection (TPROXY, REDIRECT).
    Transparent,
    /// SOCKS 5 (RFC 1928).
    Socks5,
    /// HTTP CONNECT (RFC 9110 §9.3.6).
    Http,
    /// Nothing: all connections go to one destination.
    Forward,
    /// Reliable connections of an RDMA device: all go to one destination.
    Rdma,
}

/// RDMA connections of applications at the edges, ended here and taken on from there.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rdma {
    /// The device.
    pub device: String,
    /// Octets of the longest message.
    #[serde(default = "default_message")]
    pub message: ByteCount,
    /// Messages that each connection may have here, each way.
    #[serde(default = "default_depth")]
    pub depth: u16,
    /// Connections at a time, of those that come to listeners and those that go out.
    #[serde(default = "default_connections")]
    pub connections: u16,
    /// Seconds for the far end and its application to answer; and, when one side has ended, for the
    /// other to take more of what is left, or to end.
    #[serde(default = "default_answer")]
    pub answer: u32,
    /// Destinations that sessions which end here may reach by RDMA. Nothing else.
    #[serde(default)]
    pub exit: Vec<AddressRule>,
}

impl Rdma {
    /// Octets of all connections.
    pub(crate) fn bytes(&self) -> u64 {
        (self.plan().bytes() as u64).saturating_mul(self.connections.into())
    }

    /// What each connection may take.
    pub(crate) fn plan(&self) -> Plan {
        Plan {
            message: usize::try_from(self.message.0).unwrap_or(usize::MAX),
            depth: self.depth,
            answer_ns: u64::from(self.answer) * SECOND_NS,
        }
    }
}

fn default_message() -> ByteCount {
    ByteCount(64 << 10)
}

const fn default_depth() -> u16 {
    32
}

const fn default_answer() -> u32 {
    30
}

const fn default_connections() -> u16 {
    64
}

/// Where connections go.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Destinations: `PREFIX`, `NAME`, `.DOMAIN` or `*`, each with `:PORT` or without.
    pub to: Vec<Destination>,
    /// Gateways on the way, `HOST:PORT`, the last of which connects to the destination.
    pub via: Vec<Via>,
    /// Further ways, the best first, for when this one cannot be had.
    #[serde(default)]
    pub or_via: Vec<Vec<Via>>,
    /// What the segments may use, the best first.
    #[serde(default = "default_channels")]
    pub channels: Vec<ChannelKind>,
    /// Who moves the octets.
    #[serde(default)]
    pub mode: RouteMode,
    /// Regions of the ring.
    #[serde(default = "default_regions")]
    pub regions: u16,
    /// Octets of the ring, and of the arena at the other end, a power of two.
    #[serde(default = "default_ring")]
    pub ring: ByteCount,
    /// Rate not to be exceeded.
    #[serde(default)]
    pub rate: Option<BitRate>,
    /// Burst that a policer on the way lets pass.
    #[serde(default)]
    pub burst: Option<ByteCount>,
    /// Queue pairs, or streams, of a data channel.
    #[serde(default = "default_streams")]
    pub streams: u16,
    /// Its session is opened at the start, and again when it is lost, before anybody asks for it.
    #[serde(default)]
    pub ready: bool,
    /// Octets are kept until the far end has handed them out.
    #[serde(default)]
    pub end_to_end: bool,
    /// Checksums of records are computed and compared.
    #[serde(default = "default_true")]
    pub checksum: bool,
    /// The key to prove with, by name.
    #[serde(default)]
    pub key: Option<String>,
    /// The class of its session, by name.
    #[serde(default)]
    pub class: Option<String>,
    /// What its sessions ask of the network, here and at the gateways on the way: `type key=value
    /// …`.
    #[serde(default)]
    pub path: Vec<PathRule>,
    /// What its sessions say about themselves to the gateways on the way.
    #[serde(default)]
    pub metadata: SessionMetadata,
}

/// Who moves the octets of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteMode {
    /// The receiving gateway reads.
    #[default]
    Pull,
    /// The sending gateway writes.
    Push,
}

fn default_channels() -> Vec<ChannelKind> {
    vec![
        ChannelKind::IwarpUdt,
        ChannelKind::IwarpTcp,
        ChannelKind::Tcp,
    ]
}

pub(crate) const fn default_regions() -> u16 {
    8
}

fn default_ring() -> ByteCount {
    ByteCount(64 << 20)
}

const fn default_streams() -> u16 {
    1
}

const fn default_true() -> bool {
    true
}

/// Where operators look.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Admin {
    /// Address and port of the page and the metrics.
    #[serde(default = "default_admin", deserialize_with = "crate::host::listen")]
    pub listen: SocketAddr,
    /// Names under which it may be asked, beside `localhost` and addresses. Whatever else a browser
    /// asks for is refused: the page of another may have lent it its name.
    #[serde(default)]
    pub names: Vec<String>,
    /// Others than this machine may look. Nobody has to prove who they are.
    #[serde(default)]
    pub allow_remote: bool,
}

fn default_admin() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 4728))
}
