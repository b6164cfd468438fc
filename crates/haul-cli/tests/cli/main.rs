//! The `haul` program from outside: real processes, real files, loopback.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "these tests run programs, open sockets and wait"
)]

mod access;
mod bench;
#[path = "../common/mod.rs"]
mod common;
mod compare;
mod config;
mod damage;
mod devices;
mod engine;
mod errors;
mod failure;
mod first_steps;
mod fuse;
mod gateway;
mod hostile;
mod json;
mod metrics;
mod narrow;
mod noise;
mod odd;
mod opaque;
mod path;
mod proxy;
mod rdma;
mod resources;
mod resume;
mod roundtrip;
mod roundtrips;
mod run;
mod scale;
mod schema;
mod service;
mod signals;
mod ssh;
mod stall;
mod support;
mod sync;
mod texts;
mod through;
mod tree;
mod verify;
mod versions;
