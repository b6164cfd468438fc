//! An engine in this process.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use haul_engine::{Options, Server};
use haul_soft::rnic;
use haul_verbs::provider::Provider;

/// Devices of an engine that all tests of this process share. It has options of its own.
pub(crate) fn provider(options: rnic::Options) -> Arc<dyn Provider> {
    haul_engine::provider(path(), options)
}

pub(crate) fn path() -> PathBuf {
    static PATH: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = tempfile::tempdir().unwrap().keep();
        let path = folder.join("engine.sock");
        let server = Server::bind(&path, Options::default()).unwrap();
        std::thread::spawn(move || server.run(&(Arc::new(|text: &str| eprintln!("{text}")) as _)));
        path
    });
    PATH.clone()
}
