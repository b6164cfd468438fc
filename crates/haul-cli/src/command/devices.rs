//! `haul devices`.

use std::process::ExitCode;
use std::sync::Arc;

use haul_ibv::Ibv;
use haul_verbs::provider::Provider;

use crate::args::Devices;
use crate::device::ask;
use crate::output;

/// Lists the devices of every provider.
pub(crate) fn run(args: Devices) -> ExitCode {
    let providers: [Arc<dyn Provider>; 2] = [
        haul_soft::rnic::provider(haul_soft::rnic::Options::default()),
        Arc::new(Ibv::load()),
    ];
    let found: Vec<_> = providers.iter().map(|provider| ask(&**provider)).collect();
    output::devices(&found, args.json);
    ExitCode::SUCCESS
}
