//! The verbs.

use std::process::ExitCode;

use haul::fault::Fault;

pub(crate) mod agent;
pub(crate) mod api;
pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod devices;
pub(crate) mod doctor;
pub(crate) mod emulated;
pub(crate) mod engine;
pub(crate) mod fill;
pub(crate) mod gateway;
pub(crate) mod key;
pub(crate) mod lab;
mod limit;
pub(crate) mod list;
mod listen;
pub(crate) mod metrics;
pub(crate) mod path;
mod plan;
pub(crate) mod profile;
pub(crate) mod rdma;
pub(crate) mod receive;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod sync;
pub(crate) mod through;
pub(crate) mod transfer;

/// Tells the user of a failure outside any output format.
fn fail(fault: &Fault) -> ExitCode {
    crate::output::print_fault(fault);
    ExitCode::from(fault.exit())
}
