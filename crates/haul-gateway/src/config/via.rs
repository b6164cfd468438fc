//! Gateways on the way of a route.

use serde::{Deserialize, Deserializer, de};

use super::channel::ChannelKind;
use crate::host::HostPort;

/// A gateway on the way: `"HOST:PORT"`, or a table with further settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Via {
    /// `HOST:PORT`.
    Plain(HostPort),
    /// A table.
    With {
        /// `HOST:PORT`.
        gateway: HostPort,
        /// Channel kinds of the segment to it, best first, if not the route's.
        channels: Option<Vec<ChannelKind>>,
        /// The way leaves it out if it is unreachable.
        optional: bool,
        /// The key to authenticate with to it, by name, if not the route's. Only for a gateway that
        /// may be the first.
        key: Option<String>,
    },
}

impl Via {
    /// Returns its host and port.
    #[must_use]
    pub const fn gateway(&self) -> &HostPort {
        match self {
            Self::Plain(gateway) | Self::With { gateway, .. } => gateway,
        }
    }

    /// Returns the gateway with other channel kinds of the segment to it.
    pub(crate) fn with_channels(&self, channels: Vec<ChannelKind>) -> Self {
        Self::With {
            gateway: self.gateway().clone(),
            channels: Some(channels),
            optional: self.is_optional(),
            key: self.key().map(str::to_owned),
        }
    }

    /// Returns the channel kinds of the segment to it, if not the route's.
    #[must_use]
    pub fn channels(&self) -> Option<&[ChannelKind]> {
        match self {
            Self::Plain(_) => None,
            Self::With { channels, .. } => channels.as_deref(),
        }
    }

    /// Returns whether the way leaves it out if it is unreachable.
    #[must_use]
    pub const fn is_optional(&self) -> bool {
        matches!(self, Self::With { optional: true, .. })
    }

    /// Returns the key to authenticate with to it, if not the route's.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Plain(_) => None,
            Self::With { key, .. } => key.as_deref(),
        }
    }
}

impl<'de> Deserialize<'de> for Via {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ViaVisitor)
    }
}

/// Distinguishes the two forms by type, so that an error names the setting.
struct ViaVisitor;

impl<'de> de::Visitor<'de> for ViaVisitor {
    type Value = Via;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "\"HOST:PORT\" or { gateway = \"HOST:PORT\", channels = […], optional = true, key = \"NAME\" }",
        )
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Via, E> {
        text.parse().map(Via::Plain).map_err(E::custom)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Via, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct With {
            gateway: HostPort,
            channels: Option<Vec<ChannelKind>>,
            #[serde(default)]
            optional: bool,
            key: Option<String>,
        }
        let With {
            gateway,
            channels,
            optional,
            key,
        } = With::deserialize(de::value::MapAccessDeserializer::new(map))?;
        Ok(Via::With {
            gateway,
            channels,
            optional,
            key,
        })
    }
}
