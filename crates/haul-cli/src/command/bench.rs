//! `haul bench`.

use std::process::ExitCode;
use std::sync::Arc;

use haul::client::{self, BenchLimit};

use crate::args::{Bench, BenchKind};
use crate::interrupt;
use crate::operand::host_and_port;
use crate::output::Output;

/// Measures.
pub(crate) fn run(args: Bench) -> ExitCode {
    match args.kind {
        Some(BenchKind::Rdma(rdma)) => return super::rdma::run(*rdma),
        Some(BenchKind::Serve(serve)) => return super::rdma::serve(serve),
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
    let config = args.path.client_config(host, port);
    match client::bench(&config, limit, args.reverse, &*output) {
        Ok(summary) => {
            output.bench_summary(&summary);
            ExitCode::SUCCESS
        }
        Err(fault) => output.fault(&fault),
    }
}
