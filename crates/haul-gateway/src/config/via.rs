//! Gateways on the way of a route.

use serde::{Deserialize, Deserializer, de};

use super::channel::ChannelKind;
use crate::host::HostPort;

/// A gateway on the way: `"HOST:PORT"`, or a table with what else is said of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Via {
    /// `HOST:PORT`.
    Plain(HostPort),
    /// With more than that.
    With {
        /// `HOST:PORT`.
        gateway: HostPort,
        /// What the segment to it may use, the best first, where it is not what the route says.
        channels: Option<Vec<ChannelKind>>,
        /// It is left out where it cannot be had.
        optional: bool,
        /// The key to prove with, by name, where it is not the route's: of a gateway that may be
        /// the first.
        key: Option<String>,
    },
}

impl Via {
    /// Where it is.
    #[must_use]
    pub const fn gateway(&self) -> &HostPort {
        match self {
            Self::Plain(gateway) | Self::With { gateway, .. } => gateway,
        }
    }

    /// What the segment to it may use, where it is not what the route says.
    #[must_use]
    pub fn channels(&self) -> Option<&[ChannelKind]> {
        match self {
            Self::Plain(_) => None,
            Self::With { channels, .. } => channels.as_deref(),
        }
    }

    /// Whether it is left out where it cannot be had.
    #[must_use]
    pub const fn is_optional(&self) -> bool {
        matches!(self, Self::With { optional: true, .. })
    }

    /// The key to prove with to it, where it is not the route's.
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

/// Tells the two forms apart by what is there, so that what is wrong in one is told.
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
