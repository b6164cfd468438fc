//! Sessions of unauthenticated owners: the memory of each source, and which session is evicted for
//! a new one.
//!
//! Any peer that reaches a gateway with `anonymous = true` can open sessions. They take memory
//! whether or not they carry data.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use haul_io::address::source;
use haul_xsp::SECOND_NS;

use super::handle::SessionHandle;

/// Idle time before eviction, ns: a session's first connection follows its opening at once.
const IDLE_NS: u64 = SECOND_NS;
/// The same if the source has at least as much memory as the source of the new session will have,
/// ns.
const IDLE_OF_MANY_NS: u64 = SECOND_NS / 50;

/// Sessions of unauthenticated owners. See the module.
#[derive(Debug, Default)]
pub(crate) struct Unauthenticated {
    /// Oldest first.
    there: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    handle: SessionHandle,
    from: IpAddr,
    bytes: u64,
    idle: Idle,
}

/// Since when a session has been idle, ns; its thread sets it.
#[derive(Debug, Clone)]
pub(crate) struct Idle(Arc<AtomicU64>);

impl Idle {
    const NOT: u64 = u64::MAX;

    pub(crate) fn note(&self, carries: bool, now_ns: u64) {
        if carries {
            self.0.store(Self::NOT, Ordering::Release);
        } else {
            self.0.fetch_min(now_ns, Ordering::AcqRel);
        }
    }
}

impl Unauthenticated {
    /// Adds a session of `bytes` from this address. It cannot be evicted before it has been noted
    /// as idle.
    pub(crate) fn add(&mut self, handle: SessionHandle, from: IpAddr, bytes: u64) -> Idle {
        let idle = Idle(Arc::new(Idle::NOT.into()));
        self.there.push(Member {
            handle,
            from: source(from),
            bytes,
            idle: idle.clone(),
        });
        idle
    }

    /// Counts `bytes` more for a session, unless its source would have more than `most`. Returns
    /// true for a session that is not one of these.
    pub(crate) fn grow(&mut self, handle: &SessionHandle, bytes: u64, most: u64) -> bool {
        let Some(at) = self.there.iter().position(|one| one.handle.is(handle)) else {
            return true;
        };
        let fits = self.bytes_of(self.there[at].from) + bytes <= most;
        if fits {
            self.there[at].bytes += bytes;
        }
        fits
    }

    /// The session has returned `bytes`.
    pub(crate) fn shrink(&mut self, handle: &SessionHandle, bytes: u64) {
        let mut own = self.there.iter_mut().filter(|one| one.handle.is(handle));
        if let Some(member) = own.next() {
            member.bytes = member.bytes.saturating_sub(bytes);
        }
    }

    /// The session has ended.
    pub(crate) fn remove(&mut self, handle: &SessionHandle) {
        self.there.retain(|member| !member.handle.is(handle));
    }

    /// Whether the session belongs to this source.
    pub(crate) fn is_of(&self, handle: &SessionHandle, from: IpAddr) -> bool {
        let from = source(from);
        let mut own = self.there.iter().filter(|member| member.from == from);
        own.any(|member| member.handle.is(handle))
    }

    /// Returns the memory of a source's sessions, bytes.
    pub(crate) fn bytes_of(&self, from: IpAddr) -> u64 {
        let from = source(from);
        let own = self.there.iter().filter(|member| member.from == from);
        own.map(|member| member.bytes).sum()
    }

    /// Returns the sessions that may be evicted for a new one of this source, with their memory.
    /// Those of the source with most memory come first, and among them the longest idle. With
    /// `only_own`, returns only sessions of the same source.
    pub(crate) fn leavers(
        &self,
        from: IpAddr,
        now_ns: u64,
        only_own: bool,
    ) -> Vec<(SessionHandle, u64)> {
        let (own, own_bytes) = (source(from), self.bytes_of(from));
        let of_source = |member: &&Member| self.bytes_of(member.from);
        let since = |member: &&Member| member.idle.0.load(Ordering::Acquire);
        let may_go = |member: &&Member| {
            let has_more = member.from != own && of_source(member) >= own_bytes;
            let idle_ns = if has_more { IDLE_OF_MANY_NS } else { IDLE_NS };
            now_ns >= since(member).saturating_add(idle_ns) && (!only_own || member.from == own)
        };
        let mut leavers: Vec<&Member> = self.there.iter().filter(may_go).collect();
        leavers.sort_by_key(|member| (Reverse(of_source(member)), since(member)));
        let leavers = leavers.into_iter();
        leavers
            .map(|member| (member.handle.clone(), member.bytes))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const MANY: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const FEW: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

    fn names(leavers: &[(SessionHandle, u64)], all: &[SessionHandle]) -> Vec<usize> {
        let name = |leaver: &SessionHandle| all.iter().position(|one| one.is(leaver)).unwrap();
        leavers.iter().map(|(leaver, _)| name(leaver)).collect()
    }

    #[test]
    fn the_source_with_most_memory_makes_room_first_and_what_carries_something_stays() {
        let mut unauthenticated = Unauthenticated::default();
        let all = [(); 5].map(|()| SessionHandle::detached());
        let from = [FEW, MANY, MANY, MANY, FEW];
        let idle: Vec<Idle> = (0..)
            .zip(&all)
            .zip(from)
            .map(|((at, one), from)| {
                let idle = unauthenticated.add(one.clone(), from, 10);
                idle.note(false, at);
                idle
            })
            .collect();
        assert_eq!(
            (
                unauthenticated.bytes_of(MANY),
                unauthenticated.bytes_of(FEW)
            ),
            (30, 20)
        );
        idle[1].note(true, 5);
        let leavers = |unauthenticated: &Unauthenticated, from, now_ns, only_own| {
            names(&unauthenticated.leavers(from, now_ns, only_own), &all)
        };
        // A new session of the source with few, while the source with many is there.
        assert_eq!(
            leavers(&unauthenticated, FEW, IDLE_OF_MANY_NS + 2, false),
            [2]
        );
        assert_eq!(
            leavers(&unauthenticated, FEW, IDLE_NS + 9, false),
            [2, 3, 0, 4]
        );
        assert_eq!(leavers(&unauthenticated, FEW, IDLE_NS + 9, true), [0, 4]);
        // A new session of the source with many waits longer.
        assert!(leavers(&unauthenticated, MANY, IDLE_NS - 1, false).is_empty());
        // A session is idle from the end of its last connection.
        idle[1].note(false, IDLE_NS);
        assert_eq!(leavers(&unauthenticated, FEW, IDLE_NS + 9, true), [0, 4]);
        assert_eq!(
            leavers(&unauthenticated, MANY, 2 * IDLE_NS, true),
            [2, 3, 1]
        );
        unauthenticated.remove(&all[2]);
        assert_eq!(unauthenticated.bytes_of(MANY), 20);
        assert!(unauthenticated.grow(&all[1], 5, 25) && !unauthenticated.grow(&all[3], 1, 25));
        assert_eq!(unauthenticated.bytes_of(MANY), 25);
        assert!(
            unauthenticated.grow(&all[2], 1_000, 25),
            "it is none of them"
        );
        unauthenticated.shrink(&all[1], 5);
        assert_eq!(unauthenticated.bytes_of(MANY), 20);
    }
}
