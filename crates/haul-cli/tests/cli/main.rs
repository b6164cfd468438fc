//! The `haul` program from outside: real processes, real files, loopback.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "these tests run programs, open sockets and wait"
)]

mod bench;
#[path = "../common/mod.rs"]
mod common;
mod compare;
mod damage;
mod devices;
mod errors;
mod failure;
mod fuse;
mod gateway;
mod hostile;
mod json;
mod narrow;
mod noise;
mod path;
mod proxy;
mod rdma;
mod resources;
mod resume;
mod roundtrip;
mod roundtrips;
mod schema;
mod service;
mod signals;
mod stall;
mod support;
mod through;
