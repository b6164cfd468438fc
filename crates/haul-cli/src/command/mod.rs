//! The verbs.

use std::process::ExitCode;

use haul::fault::Fault;

pub(crate) mod bench;
pub(crate) mod devices;
pub(crate) mod lab;
pub(crate) mod rdma;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod transfer;

/// Tells the user of a failure outside any output format.
fn fail(fault: &Fault) -> ExitCode {
    crate::output::print_fault(fault);
    ExitCode::from(fault.exit())
}
