//! Every integration test of this crate in one program, which is linked once.

mod goodput;
mod hostile;
mod marks;
mod narrow;
mod rates;
mod resume;
mod sealed;
mod share;
mod sinks;
mod stalls;
mod workers;
