//! `haul bench`.

use std::process::ExitCode;
use std::sync::Arc;

use haul::client::{self, BenchLimit, Config};

use crate::args::{Bench, BenchKind};
use crate::operand::host_and_port;
use crate::output::Output;
use crate::{interrupt, trust};

/// Measures.
pub(crate) fn run(args: Bench) -> ExitCode {
    match args.kind {
        Some(BenchKind::Rdma(rdma)) => return super::rdma::run(*rdma),
        Some(BenchKind::Serve(serve)) => return super::rdma::serve(*serve),
        Some(BenchKind::Run(run)) => return super::path::run(&run),
        None => {}
    }
    let output = Arc::new(Output::bench(args.output));
    let shown = Arc::clone(&output);
    if let Err(fault) = interrupt::watch(move |by| shown.interrupted(by)) {
        return output.fault(&fault);
    }
    let limit = args
        .bytes
        .map_or(BenchLimit::Time(args.time), BenchLimit::Bytes);
    let (host, port) = host_and_port(&args.host.unwrap_or_default());
    let config = args.path.client_config(host, port).and_then(|config| {
        let control = trust::of_bench(&args.trust, &config.host, config.port)?;
        Ok(Config {
            sealed: control.verifies_server(),
            control,
            ..config
        })
    });
    let measured = config.and_then(|config| client::bench(&config, limit, args.reverse, &*output));
    match measured {
        Ok(summary) => {
            output.bench_summary(&summary);
            ExitCode::SUCCESS
        }
        Err(fault) => output.fault(&fault),
    }
}
