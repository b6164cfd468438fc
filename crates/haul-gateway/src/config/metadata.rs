//! Metadata of a route's sessions.

use haul_xsp::wire::Metadata;
use serde::{Deserialize, Deserializer, de};

/// Key-value pairs within the limits of [`Metadata`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionMetadata(pub Metadata);

impl SessionMetadata {
    /// Adds `KEY=VALUE`.
    ///
    /// # Errors
    /// States in one line why the pair is rejected.
    pub fn insert_pair(&mut self, pair: &str) -> Result<(), String> {
        let taken = self.0.insert_pair(pair.as_bytes());
        taken.map_err(|error| error.to_string())
    }
}

impl<'de> Deserialize<'de> for SessionMetadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pairs = std::collections::BTreeMap::<String, String>::deserialize(deserializer)?;
        let mut metadata = Metadata::default();
        for (key, value) in &pairs {
            let inserted = metadata.insert_of_user(key, value);
            inserted.map_err(de::Error::custom)?;
        }
        Ok(Self(metadata))
    }
}
