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
    let options = haul_soft::rnic::Options::default();
    let providers: [Arc<dyn Provider>; 3] = [
        haul_soft::rnic::provider(options.clone()),
        haul_engine::provider(haul_engine::default_path(), options),
        Arc::new(Ibv::load()),
    ];
    let found: Vec<_> = providers.iter().map(|provider| ask(&**provider)).collect();
    output::devices(&found, args.json);
    ExitCode::SUCCESS
}
