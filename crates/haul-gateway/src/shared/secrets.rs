//! Keys and certificates of this gateway.

use std::sync::Arc;

use haul_xsp::SharedKey;

use crate::config::{Config, Key};
use crate::tls::TlsContext;

/// The keys and certificates of this gateway.
#[derive(Debug)]
pub(crate) struct Secrets {
    pub(super) keys: Vec<(String, SharedKey)>,
    pub(super) tls: Option<Arc<TlsContext>>,
}

impl Secrets {
    /// Reads the files that a configuration names.
    ///
    /// # Errors
    /// States in one line which file is unusable, and why.
    pub(crate) fn load(config: &Config) -> Result<Self, String> {
        let key = |key: &Key| {
            let secret = key.read().map_err(|error| error.to_string())?;
            Ok((key.name.clone(), SharedKey::new(&key.name, &secret)))
        };
        let tls = config.tls.as_ref().map(TlsContext::load).transpose();
        Ok(Self {
            keys: config.keys.iter().map(key).collect::<Result<_, String>>()?,
            tls: tls.map_err(|error| error.to_string())?.map(Arc::new),
        })
    }
}
