//! Cookies: an unknown peer gets no state before it has shown that it receives at the address that
//! it sends from.
//!
//! A cookie carries its time of issue. One that is older than the association with its bearer
//! proves nothing, so a replayed or delayed hello cannot restore an earlier state of a peer.

use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};

use haul_cc::Time;
use haul_cc::time::SECOND_NS;
use siphasher::sip::SipHasher24;

use super::work::Remote;
use crate::datagram::wire::Cookie;

/// Makes and checks cookies.
#[derive(Debug, Clone)]
pub(super) struct Cookies {
    secret: [u8; 16],
}

/// How long a cookie is good for.
const LIFE_NS: u64 = 10 * SECOND_NS;

impl Cookies {
    pub(super) fn new(secret: [u8; 16]) -> Self {
        Self { secret }
    }

    /// Computes the cookie of a queue pair that claims `epoch`.
    pub(super) fn make(&self, now: Time, from: Remote, epoch: u32) -> Cookie {
        // Never zero, which on the wire is no cookie.
        let made = now.as_ns().saturating_add(1);
        let mut octets = [0; 16];
        octets[..8].copy_from_slice(&made.to_be_bytes());
        octets[8..].copy_from_slice(&self.mac(from, epoch, made).to_be_bytes());
        Cookie(octets)
    }

    /// When a cookie was made, if it was made here, for this bearer, and not too long ago.
    pub(super) fn check(
        &self,
        now: Time,
        from: Remote,
        epoch: u32,
        cookie: &Cookie,
    ) -> Option<Time> {
        let (made, mac) = cookie.0.split_first_chunk::<8>()?;
        let made = u64::from_be_bytes(*made);
        let expected = self.mac(from, epoch, made).to_be_bytes();
        let age_ns = now.as_ns().saturating_add(1).checked_sub(made)?;
        (*mac == expected && age_ns <= LIFE_NS).then(|| Time::from_ns(made.saturating_sub(1)))
    }

    /// Returns an unpredictable number, a different one for each `nonce`.
    pub(super) fn random(&self, nonce: u64) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        hasher.write_u8(0);
        hasher.write_u64(nonce);
        hasher.finish()
    }

    fn mac(&self, from: Remote, epoch: u32, made: u64) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        hasher.write_u8(1);
        hash_address(&mut hasher, from.addr);
        hasher.write_u32(from.qpn);
        hasher.write_u32(epoch);
        hasher.write_u64(made);
        hasher.finish()
    }
}

fn hash_address(hasher: &mut SipHasher24, addr: SocketAddr) {
    match addr.ip() {
        IpAddr::V4(ip) => hasher.write(&ip.octets()),
        IpAddr::V6(ip) => hasher.write(&ip.octets()),
    }
    hasher.write_u16(addr.port());
}
