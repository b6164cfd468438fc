//! Kinds of data channels.

use serde::Deserialize;

/// A kind of data channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, serde::Serialize)]
pub enum ChannelKind {
    /// Plain TCP streams.
    #[serde(rename = "tcp")]
    Tcp,
    /// Paced datagrams, reliable by RD queue pairs.
    #[serde(rename = "udp")]
    Udp,
    /// UDT.
    #[serde(rename = "udt")]
    Udt,
    /// RDMA over TCP.
    #[serde(rename = "iwarp/tcp")]
    IwarpTcp,
    /// RDMA over UDT.
    #[serde(rename = "iwarp/udt")]
    IwarpUdt,
    /// RDMA by a device of this machine.
    #[serde(rename = "verbs")]
    Verbs,
}

impl ChannelKind {
    const ALL: [Self; 6] = [
        Self::Tcp,
        Self::Udp,
        Self::Udt,
        Self::IwarpTcp,
        Self::IwarpUdt,
        Self::Verbs,
    ];
}

/// Rejects a text that names no kind of data channel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no kind of data channel: tcp, udp, udt, iwarp/tcp, iwarp/udt or verbs")]
pub struct NoChannelKind(String);

impl std::str::FromStr for ChannelKind {
    type Err = NoChannelKind;

    fn from_str(text: &str) -> Result<Self, NoChannelKind> {
        let found = Self::ALL.into_iter().find(|kind| kind.to_string() == text);
        found.ok_or_else(|| NoChannelKind(text.to_owned()))
    }
}

impl std::fmt::Display for ChannelKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Udt => "udt",
            Self::IwarpTcp => "iwarp/tcp",
            Self::IwarpUdt => "iwarp/udt",
            Self::Verbs => "verbs",
        })
    }
}
