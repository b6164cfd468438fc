//! The configuration of a gateway: one TOML file.
//!
//! Map: `model` all settings · `parse` text to [`Config`], with `lines` · `channel` kinds of data
//! channels · `rule` hosts and ports · `unit` quantities · `key` files of keys · `path` path
//! requests to networks · `via` gateways on the way · `ways` the ways of a route · `metadata`
//! metadata of sessions · `problem` error messages.

mod channel;
mod key;
mod lines;
mod metadata;
mod model;
mod parse;
mod path;
mod problem;
mod rule;
mod unit;
mod via;
mod ways;

pub use crate::host::{HostPort, NoHostPort};
pub use channel::{ChannelKind, NoChannelKind};
pub use key::KeyError;
pub(crate) use key::read_secret;
pub use metadata::SessionMetadata;
pub(crate) use model::default_regions;
pub use model::{
    AccessFormat, AccessLog, Admin, Class, ClientMeans, Config, DEFAULT_PORT, Key, Listen,
    Listener, ListenerKind, Rdma, Route, RouteMode, Tls, Waits,
};
pub(crate) use parse::{CHANNEL, CLASS, DOOR, GUEST_CLASS, INBOUND_CLASS, KEY, LISTENER, ROUTE};
pub use path::{NoPathRule, PathRule, PathSignalling};
pub use problem::{Problem, Severity};
pub use rule::{AddressRule, Destination, HopRule, NoRule, Prefix};
pub use unit::{BitRate, ByteCount};
pub use via::Via;
pub use ways::RouteWays;
pub(crate) use ways::{FURTHER_MAX, words as way_in_words};
