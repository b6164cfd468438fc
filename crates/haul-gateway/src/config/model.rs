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

/// The default control port of a gateway.
pub const DEFAULT_PORT: u16 = 7400;

/// The configuration of a gateway.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The name of this gateway: to peers with shared keys, in logs, on the page.
    pub name: String,
    /// Where peers open sessions. `None`: only listeners accept connections.
    #[serde(default, deserialize_with = "crate::host::listen_if_any")]
    pub listen: Option<SocketAddr>,
    /// Slab memory of all sessions together.
    #[serde(default = "default_memory")]
    pub memory: ByteCount,
    /// Ring and arena of inbound sessions, bytes each; a power of two.
    #[serde(default = "default_ring")]
    pub ring: ByteCount,
    /// Most sessions at a time.
    #[serde(default = "default_sessions")]
    pub sessions: usize,
    /// Keep-alive interval of a control connection, seconds; the smaller of both ends' applies. A
    /// peer silent for three intervals counts as lost, and its session is suspended.
    #[serde(default = "default_keepalive")]
    pub keepalive: u32,
    /// How long sessions wait for a peer that is lost.
    #[serde(default)]
    pub session: Waits,
    /// Where data channels are accepted, one for each kind.
    #[serde(default, rename = "channel")]
    pub channels: Vec<Listen>,
    /// Rate limit of what all sessions send to other gateways. `None`: unlimited.
    #[serde(default)]
    pub rate: Option<BitRate>,
    /// How sessions share that rate.
    #[serde(default, rename = "class")]
    pub classes: Vec<Class>,
    /// The class of inbound sessions whose key names none.
    #[serde(default, alias = "guest_class")]
    pub inbound_class: Option<String>,
    /// Certificates of this gateway, and the roots that it trusts.
    #[serde(default)]
    pub tls: Option<Tls>,
    /// Keys shared with peers.
    #[serde(default, rename = "key")]
    pub keys: Vec<Key>,
    /// Peers need not authenticate. For tests and closed networks.
    #[serde(default)]
    pub anonymous: bool,
    /// The only destinations to which sessions that end here may connect.
    #[serde(default)]
    pub exit: Vec<AddressRule>,
    /// Destinations that receive the client's address by the PROXY protocol, version 2. All others
    /// receive the stream alone.
    #[serde(default)]
    pub proxy_protocol: Vec<AddressRule>,
    /// Where a line is written for each connection.
    #[serde(default)]
    pub access_log: Option<AccessLog>,
    /// The device for applications' RDMA connections, at either end.
    #[serde(default)]
    pub rdma: Option<Rdma>,
    /// The only next hops of sessions that pass through.
    #[serde(default)]
    pub next: Vec<HopRule>,
    /// Where applications connect.
    #[serde(default, rename = "listener")]
    pub listeners: Vec<Listener>,
    /// Where connections go; the first route that matches.
    #[serde(default, rename = "route")]
    pub routes: Vec<Route>,
    /// The administration server: page and metrics.
    #[serde(default)]
    pub admin: Option<Admin>,
    /// The back end that sets up the paths that sessions request.
    #[serde(default)]
    pub path: PathSignalling,
    /// Where settings are in the file.
    #[serde(skip)]
    pub(crate) lines: Lines,
}

impl Config {
    /// Configures a process that opens sessions for itself and accepts none. All connections go
    /// over `hops`, the last of which connects to the destination. With several hops or ways,
    /// sessions are acknowledged end to end, so that they survive the loss of a gateway in between.
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
            forward_client: default_true(),
            health: 0,
        };
        Self {
            name: "client".to_owned(),
            listen: None,
            memory: default_memory(),
            ring: default_ring(),
            sessions: default_sessions(),
            keepalive: default_keepalive(),
            session: Waits::default(),
            channels: Vec::new(),
            rate: None,
            classes: Vec::new(),
            inbound_class: None,
            // A client without key or certificate trusts any gateway that it reaches.
            anonymous: means.key.is_none() && means.tls.is_none(),
            tls: means.tls,
            keys: means.key.into_iter().collect(),
            exit: Vec::new(),
            proxy_protocol: Vec::new(),
            access_log: None,
            rdma: None,
            next: Vec::new(),
            listeners: Vec::new(),
            routes: vec![route],
            admin: None,
            path: PathSignalling::default(),
            lines: Lines::default(),
        }
    }

    /// Returns the same routes for a process beside the gateway: nothing is accepted, and no
    /// session is opened before it is needed.
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

    /// Keep-alive interval, ns.
    pub(crate) fn keepalive_ns(&self) -> u64 {
        u64::from(self.keepalive) * SECOND_NS
    }

    /// Returns whether sessions that end here may connect to `to`, an address that was named or
    /// resolved.
    #[must_use]
    pub fn may_exit(&self, to: SocketAddr) -> bool {
        self.exit.iter().any(|rule| rule.allows(to))
    }

    /// Whether sessions may end here.
    pub(crate) fn has_exit(&self) -> bool {
        !self.exit.is_empty() || self.rdma.iter().any(|rdma| !rdma.exit.is_empty())
    }

    /// Whether data channels of inbound sessions may use an RDMA device.
    pub(crate) fn has_device(&self) -> bool {
        let mut kinds = self.channels.iter().map(|channel| channel.kind);
        kinds.any(|kind| kind == ChannelKind::Verbs)
    }

    /// Whether a server receives the client's address by the PROXY protocol.
    pub(crate) fn announces_client(&self, to: SocketAddr) -> bool {
        self.proxy_protocol.iter().any(|rule| rule.allows(to))
    }

    /// Whether sessions may connect to `to`, by RDMA or by TCP.
    pub(crate) fn lets_out(&self, to: SocketAddr, by_rdma: bool) -> bool {
        if !by_rdma {
            return self.may_exit(to);
        }
        let mut rules = self.rdma.iter().flat_map(|rdma| &rdma.exit);
        rules.any(|rule| rule.allows(to))
    }

    /// Returns the next hops allowed, for the directory of sessions.
    #[must_use]
    pub fn allowed(&self) -> Vec<Allowed> {
        self.next.iter().map(HopRule::allowed).collect()
    }

    /// Returns the first route that leads to `to`.
    #[must_use]
    pub fn route(&self, to: &Endpoint) -> Option<&Route> {
        self.routes.get(self.route_number(to)?)
    }

    /// Returns the class of an inbound session whose peer authenticated with this name.
    #[must_use]
    pub fn class_of_inbound(&self, name: Option<&str>) -> Option<&str> {
        let key = self.keys.iter().find(|key| Some(key.name.as_str()) == name);
        let own = key.and_then(|key| key.class.as_deref());
        own.or(self.inbound_class.as_deref())
    }

    /// Returns the number, from 0, of the first route that leads to `to`.
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

/// How long sessions wait for a peer that is lost, with their connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Waits {
    /// Hold of a session whose peer is gone (its host refuses or cannot be reached), seconds.
    pub hold: u32,
    /// Hold of a session whose peer does not answer (the path may be interrupted), seconds.
    pub outage: u32,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            hold: 15,
            outage: 300,
        }
    }
}

/// Where a kind of data channel is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// The kind.
    pub kind: ChannelKind,
    /// Address and port. Port 0 takes any free port, which is announced to the peer.
    #[serde(deserialize_with = "crate::host::listen")]
    pub listen: SocketAddr,
    /// The address that peers connect to, if it is not that of the control connection.
    #[serde(default)]
    pub public: Option<SocketAddr>,
    /// The device, for `verbs`.
    #[serde(default)]
    pub device: Option<String>,
}

/// Certificates, as PEM files.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The certificate of this gateway, with its intermediates.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The roots that peers' certificates must chain to.
    pub roots: PathBuf,
}

/// A key shared with a peer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Its name at both ends.
    pub name: String,
    /// A file that only its owner may read: 32 bytes in hexadecimal.
    pub file: PathBuf,
    /// The class of sessions that authenticate with it.
    #[serde(default)]
    pub class: Option<String>,
}

/// Sessions that share a rate.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Its name in routes and keys.
    pub name: String,
    /// Its percentage of the gateway's `rate` while other classes want theirs. Sessions in no class
    /// share the rest.
    pub share: u8,
    /// Rate limit of its sessions together.
    #[serde(default)]
    pub rate: Option<BitRate>,
}

/// Where applications' connections are accepted.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// The protocol.
    pub kind: ListenerKind,
    /// The address to listen at.
    #[serde(deserialize_with = "crate::host::listen")]
    pub listen: SocketAddr,
    /// For `forward` and `rdma`: the destination of all connections.
    #[serde(default)]
    pub to: Option<HostPort>,
    /// Clients that may connect; empty: everybody.
    #[serde(default)]
    pub clients: Vec<Prefix>,
}

impl Listener {
    /// Returns whether `client` may connect.
    #[must_use]
    pub fn admits(&self, client: SocketAddr) -> bool {
        self.clients.is_empty() || self.clients.iter().any(|prefix| prefix.covers(client.ip()))
    }
}

/// How a process that opens sessions for itself reaches its gateway.
#[derive(Debug, Clone, Default)]
pub struct ClientMeans {
    /// Alternative ways, for when the first fails.
    pub or_hops: Vec<Vec<HostPort>>,
    /// Channel kinds of the segments, best first; empty: a route's default.
    pub channels: Vec<ChannelKind>,
    /// The key to authenticate with.
    pub key: Option<Key>,
    /// Certificates to authenticate with.
    pub tls: Option<Tls>,
    /// Metadata of the session.
    pub metadata: SessionMetadata,
}

/// The protocol of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListenerKind {
    /// None: the kernel diverts the connection (TPROXY, REDIRECT).
    Transparent,
    /// SOCKS 5 (RFC 1928).
    Socks5,
    /// HTTP CONNECT (RFC 9110 §9.3.6).
    Http,
    /// None: all connections go to one destination.
    Forward,
    /// Reliable connections of an RDMA device: all go to one destination.
    Rdma,
}

/// Applications' RDMA connections, which end at the gateways.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rdma {
    /// The device.
    pub device: String,
    /// Longest message, bytes.
    #[serde(default = "default_message")]
    pub message: ByteCount,
    /// Messages in flight of each connection, in each direction.
    #[serde(default = "default_depth")]
    pub depth: u16,
    /// Most connections at a time, accepted and made.
    #[serde(default = "default_connections")]
    pub connections: u16,
    /// Timeout, seconds: for the far end and its application to answer; and, after one side has
    /// ended, for the other to make progress.
    #[serde(default = "default_answer")]
    pub answer: u32,
    /// The only destinations that sessions which end here may reach by RDMA.
    #[serde(default)]
    pub exit: Vec<AddressRule>,
}

impl Rdma {
    /// Bytes of all connections.
    pub(crate) fn bytes(&self) -> u64 {
        (self.plan().bytes() as u64).saturating_mul(self.connections.into())
    }

    /// Limits of each connection.
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

/// The access log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessLog {
    /// The file that lines are appended to.
    pub file: PathBuf,
    /// The form of a line.
    #[serde(default)]
    pub format: AccessFormat,
}

/// The form of a line of the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessFormat {
    /// A date, and `key=value` pairs.
    #[default]
    Text,
    /// A JSON object.
    Json,
}

/// Where connections go.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Destinations: `PREFIX`, `NAME`, `.DOMAIN` or `*`, each with or without `:PORT`.
    pub to: Vec<Destination>,
    /// The gateways on the way, `HOST:PORT`; the last one connects to the destination.
    pub via: Vec<Via>,
    /// Alternative ways, best first, for when this one fails.
    #[serde(default)]
    pub or_via: Vec<Vec<Via>>,
    /// Channel kinds of the segments, best first.
    #[serde(default = "default_channels")]
    pub channels: Vec<ChannelKind>,
    /// Which end moves the data.
    #[serde(default)]
    pub mode: RouteMode,
    /// Regions of the ring.
    #[serde(default = "default_regions")]
    pub regions: u16,
    /// The ring, and the arena at the other end, bytes; a power of two.
    #[serde(default = "default_ring")]
    pub ring: ByteCount,
    /// Rate limit.
    #[serde(default)]
    pub rate: Option<BitRate>,
    /// The burst that a policer on the way accepts.
    #[serde(default)]
    pub burst: Option<ByteCount>,
    /// Queue pairs or streams of a data channel.
    #[serde(default = "default_streams")]
    pub streams: u16,
    /// The session is opened at the start and reopened when it is lost.
    #[serde(default)]
    pub ready: bool,
    /// The opener keeps data until the terminus has delivered it.
    #[serde(default)]
    pub end_to_end: bool,
    /// Records carry checksums, which the receiver verifies.
    #[serde(default = "default_true")]
    pub checksum: bool,
    /// The key to authenticate with, by name.
    #[serde(default)]
    pub key: Option<String>,
    /// The class of its session, by name.
    #[serde(default)]
    pub class: Option<String>,
    /// Paths to ask of the network, here and at the gateways on the way: `type key=value …`.
    #[serde(default)]
    pub path: Vec<PathRule>,
    /// Metadata that its sessions send to the gateways on the way.
    #[serde(default)]
    pub metadata: SessionMetadata,
    /// The gateways on the way learn the addresses of clients.
    #[serde(default = "default_true")]
    pub forward_client: bool,
    /// Interval of health checks of the ways of a route with several, seconds; 0: none.
    #[serde(default = "default_health")]
    pub health: u32,
}

/// Which end moves the data of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteMode {
    /// The receiving gateway reads.
    Pull,
    /// The sending gateway writes.
    #[default]
    Push,
}

fn default_channels() -> Vec<ChannelKind> {
    vec![ChannelKind::IwarpUdt, ChannelKind::Tcp]
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

const fn default_health() -> u32 {
    10
}

const fn default_true() -> bool {
    true
}

/// The administration server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Admin {
    /// Address and port of the page and the metrics.
    #[serde(default = "default_admin", deserialize_with = "crate::host::listen")]
    pub listen: SocketAddr,
    /// Host names under which it answers, beside `localhost` and addresses. Other names are
    /// refused: a web page could have its own name resolve to this server (DNS rebinding).
    #[serde(default)]
    pub names: Vec<String>,
    /// Other hosts may connect. There is no authentication.
    #[serde(default)]
    pub allow_remote: bool,
}

fn default_admin() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 4728))
}
