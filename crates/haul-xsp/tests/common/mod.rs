//! Shared parts of tests: numbers from a seed, a chain of hosts on virtual time, applications with
//! an oracle.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "each test uses its part of it"
)]

pub mod app;
pub mod chain;
#[path = "../../../../tests/random.rs"]
pub mod random;
pub mod world;

use haul_xsp::wire::{Address, Endpoint, Hop, HopFlags, Params, Proto, ProtoOffer, SessOpen};

pub fn endpoint(name: &str, port: u16) -> Endpoint {
    let address = Address::Name(name.to_owned());
    Endpoint { address, port }
}

pub fn tcp() -> ProtoOffer {
    let params = Params::default();
    ProtoOffer {
        proto: Proto::Tcp,
        preference: 1,
        params,
    }
}

/// A list of `count` hops, the last the terminus.
pub fn hops(count: usize) -> Vec<Hop> {
    let hop = |index: usize| Hop {
        depth: index as u8,
        flags: HopFlags {
            gateway: index + 1 < count,
            optional: false,
            last: index + 1 == count,
        },
        endpoint: endpoint(&format!("hop{index}"), 5006),
        offers: vec![tcp()],
    };
    (0..count).map(hop).collect()
}

pub fn open(count: usize, end_to_end: bool) -> SessOpen {
    SessOpen {
        resumable: true,
        end_to_end,
        takes_early: true,
        hops: hops(count),
        ..SessOpen::default()
    }
}
