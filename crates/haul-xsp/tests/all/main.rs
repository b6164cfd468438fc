//! Every integration test of this crate in one program, which is linked once.

mod attacks;
mod claims;
#[path = "../common/mod.rs"]
mod common;
mod draining;
mod early;
mod hops;
mod latency;
mod law;
mod metadata;
mod opening;
mod outages;
mod simulation;
mod vectors;
