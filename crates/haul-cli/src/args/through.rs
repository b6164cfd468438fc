//! The options of commands whose connections go through gateways.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::Args;
use haul_gateway::config::{ChannelKind, HostPort, Key, NoHostPort, SessionMetadata};

/// Gateways to go through; this process is the near end of the session.
#[derive(Debug, Clone, Args)]
pub(crate) struct ThroughArgs {
    /// Connect through these gateways, in order (docs/gateways.md) [default port: 7400]
    #[arg(help_heading = "Gateways", long, value_name = "HOST[:PORT],…", value_delimiter = ',', value_parser = hop)]
    pub(crate) gateway: Vec<HostPort>,
    /// Alternative gateways if those fail; repeatable
    #[arg(help_heading = "Gateways", long, requires = "gateway", value_name = "HOST[:PORT],…", value_parser = way)]
    pub(crate) gateway_or: Vec<Way>,
    /// The key shared with the first gateway, and its name there [default name: the file name
    /// without its extension]
    #[arg(help_heading = "Gateways", long, requires = "gateway", value_name = "[NAME=]FILE", value_parser = key)]
    pub(crate) gateway_key: Option<Key>,
    /// Data channels to try, in order of preference: iwarp/udt, tcp, verbs [default: as for routes]
    #[arg(
        help_heading = "Gateways",
        long,
        requires = "gateway",
        value_name = "KIND,…",
        value_delimiter = ','
    )]
    pub(crate) gateway_channel: Vec<ChannelKind>,
    /// Client certificate (PEM) for TLS to the first gateway
    #[arg(help_heading = "Gateways", long, requires_all = ["gateway", "gateway_tls_key", "gateway_tls_roots"], value_name = "FILE")]
    pub(crate) gateway_tls_certificate: Option<PathBuf>,
    /// Private key of the certificate
    #[arg(
        help_heading = "Gateways",
        long,
        requires = "gateway_tls_certificate",
        value_name = "FILE"
    )]
    pub(crate) gateway_tls_key: Option<PathBuf>,
    /// Root certificates that must have issued the gateway's certificate
    #[arg(
        help_heading = "Gateways",
        long,
        requires = "gateway_tls_certificate",
        value_name = "FILE"
    )]
    pub(crate) gateway_tls_roots: Option<PathBuf>,
    /// Session metadata for the logs and pages of the gateways; repeatable
    #[arg(help_heading = "Gateways", long, requires = "gateway", value_name = "KEY=VALUE", value_parser = pair)]
    pub(crate) metadata: Vec<String>,
}

/// One pair of metadata; whether all go together is seen when they are.
fn pair(text: &str) -> Result<String, String> {
    SessionMetadata::default().insert_pair(text)?;
    Ok(text.to_owned())
}

/// Gateways in order.
#[derive(Debug, Clone)]
pub(crate) struct Way(pub(crate) Vec<HostPort>);

fn way(text: &str) -> Result<Way, NoHostPort> {
    text.split(',').map(hop).collect::<Result<_, _>>().map(Way)
}

fn hop(text: &str) -> Result<HostPort, NoHostPort> {
    HostPort::parse_or(text, haul_gateway::config::DEFAULT_PORT)
}

/// `NAME=FILE`, or `FILE` with a name like the file's.
fn key(text: &str) -> Result<Key, String> {
    let (name, file) = match text.split_once('=') {
        Some((name, file)) => (Some(name), file),
        None => (Path::new(text).file_stem().and_then(OsStr::to_str), text),
    };
    let name = name.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| format!("'{text}' has no name; write NAME=FILE"))?;
    Ok(Key {
        name: name.to_owned(),
        file: file.into(),
        class: None,
    })
}
