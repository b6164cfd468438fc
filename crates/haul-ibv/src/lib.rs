//! Verbs on RDMA devices: `haul-verbs` on libibverbs and librdmacm.
//!
//! Neither library is linked: both are loaded when [`Ibv::load`] asks for them, so an application
//! starts where rdma-core is missing and can report what it lacks. The connection manager is used
//! with queue pairs that are made without it (`rdma_conn_param::qp_num`): one protection domain and
//! one completion queue serve any number of connections, however they are made.
//!
//! Map: `ffi` what C declares · `library` loading, errors · `wait` · `device` attributes ·
//! `context` what is opened · `memory` · `completion` · `queue` queue pairs and their states ·
//! `post` work requests as C has them · `cm` connections · `address` · `provider` ties them
//! together.
#![warn(missing_docs)]
#![expect(
    clippy::disallowed_methods,
    reason = "waiting with a time-out reads the clock"
)]

use std::sync::Arc;

use haul_verbs::provider::Provider;
use haul_verbs::{Device, Error, Result};

mod address;
mod cm;
mod completion;
mod context;
mod device;
mod ffi;
mod library;
mod memory;
mod post;
mod provider;
mod queue;
mod wait;

use library::Library;
use provider::NAME;

/// The provider of RDMA devices. Clones share the libraries, which stay loaded as long as anything
/// made from them lives.
#[derive(Debug, Clone)]
pub struct Ibv(Result<Arc<Library>, String>);

impl Ibv {
    /// Loads libibverbs and librdmacm, if they are there.
    #[must_use]
    pub fn load() -> Self {
        Self(Library::load().map(Arc::new))
    }
}

impl Provider for Ibv {
    fn name(&self) -> &'static str {
        NAME
    }

    fn devices(&self) -> Result<Vec<Device>> {
        match &self.0 {
            Ok(library) => provider::list(library),
            Err(why) => Err(Error::Os {
                what: "rdma-core is not installed",
                source: std::io::Error::other(why.clone()),
            }),
        }
    }
}
