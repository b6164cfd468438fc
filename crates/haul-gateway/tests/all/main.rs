//! Every integration test of this crate but one in one program, which is linked once. `flood`
//! counts the processor time of its process, and so is alone.

mod admin;
mod blackout;
mod busy;
mod common;
mod crowd;
mod early;
mod fallback;
mod faults;
mod hops;
mod metadata;
mod operators;
#[path = "../../../haul-io/tests/own_network/mod.rs"]
mod own_network;
mod path;
mod rdma;
mod reload;
mod shares;
mod stopping;
mod through;
mod trust;
