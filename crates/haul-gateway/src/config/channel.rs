//! Kinds of data channels.

use serde::{Deserialize, Serialize};

/// A kind of data channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum ChannelKind {
    /// Plain TCP streams.
    Tcp,
    /// RDMA over UDT.
    IwarpUdt,
    /// RDMA by a device of this machine.
    Verbs,
}

impl ChannelKind {
    const ALL: [Self; 3] = [Self::Tcp, Self::IwarpUdt, Self::Verbs];

    const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::IwarpUdt => "iwarp/udt",
            Self::Verbs => "verbs",
        }
    }
}

/// Kinds that earlier versions had, with their replacements (ADR 0028).
const REMOVED: [(&str, ChannelKind); 3] = [
    ("udp", ChannelKind::IwarpUdt),
    ("udt", ChannelKind::IwarpUdt),
    ("iwarp/tcp", ChannelKind::Tcp),
];

/// Rejects a text that names no kind of data channel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoChannelKind {
    /// An earlier version had this kind.
    #[error("data channel kind '{kind}' was removed; use '{replacement}'")]
    Removed {
        /// The kind.
        kind: &'static str,
        /// The kind to use in its place.
        replacement: ChannelKind,
    },
    /// No version has this kind.
    #[error("'{0}' is no kind of data channel: tcp, iwarp/udt or verbs")]
    Unknown(String),
}

impl std::str::FromStr for ChannelKind {
    type Err = NoChannelKind;

    fn from_str(text: &str) -> Result<Self, NoChannelKind> {
        if let Some(kind) = Self::ALL.into_iter().find(|kind| kind.name() == text) {
            return Ok(kind);
        }
        let removed = REMOVED.into_iter().find(|(kind, _)| *kind == text);
        Err(match removed {
            Some((kind, replacement)) => NoChannelKind::Removed { kind, replacement },
            None => NoChannelKind::Unknown(text.to_owned()),
        })
    }
}

impl TryFrom<String> for ChannelKind {
    type Error = NoChannelKind;

    fn try_from(text: String) -> Result<Self, NoChannelKind> {
        text.parse()
    }
}

impl From<ChannelKind> for &'static str {
    fn from(kind: ChannelKind) -> Self {
        kind.name()
    }
}

impl std::fmt::Display for ChannelKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
