//! What the tests of `haul-soft` run over here: an engine.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use haul_engine::{Options, Server};
use haul_soft::rnic;
use haul_verbs::provider::Provider;

/// Devices of an engine that all tests of this process share. It has options of its own.
pub(crate) fn provider(options: rnic::Options) -> Arc<dyn Provider> {
    static PATH: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = tempfile::tempdir().unwrap().keep();
        let path = folder.join("engine.sock");
        let server = Server::bind(&path, Options::default()).unwrap();
        std::thread::spawn(move || server.run(&(Arc::new(|text: &str| eprintln!("{text}")) as _)));
        path
    });
    haul_engine::provider(PATH.clone(), options)
}

/// Tests of what these devices do not do, and why.
pub(crate) const NOT_HERE: [(&str, &str); 2] = [
    (
        "endpoints_that_know_each_other_connect_without_events",
        "an engine's devices have no endpoints (DeviceCaps::ENDPOINTS)",
    ),
    (
        "an_overflowing_completion_queue_ends_its_queue_pairs",
        "an engine's completion queues hold twice as many as were asked for",
    ),
];

/// Makes each function a test over TCP and one over UDT.
macro_rules! over_both {
    ($($name:ident),* $(,)?) => {
        crate::over::over_one!(over_tcp, TCP, $($name),*);
        crate::over::over_one!(over_udt, UDT, $($name),*);
    };
}
pub(crate) use over_both;

macro_rules! over_one {
    ($module:ident, $device:ident, $($name:ident),*) => {
        mod $module {
            $(#[test]
            fn $name() {
                if let Some((_, why)) = crate::over::NOT_HERE.iter().find(|(name, _)| *name == stringify!($name)) {
                    println!("SKIPPED: {why}");
                    return;
                }
                super::$name(&crate::support::Wish {
                    device: crate::support::$device,
                    drive: haul_soft::rnic::Drive::Engine,
                    ..Default::default()
                });
            })*
        }
    };
}
pub(crate) use over_one;
