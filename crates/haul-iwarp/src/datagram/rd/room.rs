//! Receives that messages hold which do not go on make room for one that could be taken at once.
//!
//! A peer that sends the beginning of a message holds a receive until the rest has come. What nobody else needs it may hold for
//! as long as it lives. Where a message of which nothing before it is missing finds no receive, it is the turn of a peer that
//! has brought nothing new for a while, or that comes from an address which holds more than half of them: it is closed as one is
//! that makes room in a full table, and sends again what it had begun. So an address that holds half of the receives or fewer, and
//! goes on, is left alone.

use std::collections::BTreeMap;
use std::net::IpAddr;

use haul_cc::Time;
use haul_cc::time::MILLISECOND_NS;

use super::meet::CLOSE_ROOM;
use super::work::{Down, RdStatus};
use super::{PeerId, RdQp};

/// After so long without anything new a message does not go on, ns.
const STALL_NS: u64 = 250 * MILLISECOND_NS;

/// A peer that holds receives.
struct Holder {
    id: PeerId,
    address: IpAddr,
    count: usize,
    /// When it brought something new last.
    news_at: Time,
}

impl RdQp {
    /// Has a peer other than `asker` give back the receives that it holds. False where none must.
    pub(super) fn make_room(&mut self, now: Time, asker: PeerId) -> bool {
        let holders = self.holders();
        let Some(asking) = self.peers[asker as usize].as_deref() else {
            return false;
        };
        let own = asking.remote.addr.ip();
        let mut of_address: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for holder in &holders {
            *of_address.entry(holder.address).or_default() += holder.count;
        }
        let all: usize = of_address.values().sum();
        let has_most = |holder: &Holder| {
            let count = of_address.get(&holder.address).copied().unwrap_or(0);
            holder.address != own && count > 1 && count > all / 2
        };
        let must = |holder: &&Holder| {
            holder.id != asker && (now.since(holder.news_at) >= STALL_NS || has_most(holder))
        };
        let longest = holders.iter().filter(must).min_by_key(|one| one.news_at);
        let Some(id) = longest.map(|holder| holder.id) else {
            return false;
        };
        self.say_close(id, CLOSE_ROOM);
        self.stats.evicted += 1;
        self.forget(now, id, Down::Closed, RdStatus::Flushed, None);
        true
    }

    /// Those that hold receives now; others are forgotten.
    fn holders(&mut self) -> Vec<Holder> {
        let mut holders = Vec::new();
        let peers = &self.peers;
        self.holding.retain(|&id| {
            let peer = peers.get(id as usize).and_then(|peer| peer.as_deref());
            let holder = peer.and_then(|peer| {
                let receiving = peer.receiving.as_ref()?;
                let count = receiving.receives();
                (count > 0).then(|| Holder {
                    id,
                    address: peer.remote.addr.ip(),
                    count,
                    news_at: receiving.news_at(),
                })
            });
            let is_one = holder.is_some();
            holders.extend(holder);
            is_one
        });
        holders
    }
}
