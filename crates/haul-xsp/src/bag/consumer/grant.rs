//! How much of the arena is promised to which connection.

use super::rx::Rx;
use super::{Consumer, Grant, Mode};
use crate::ConnId;

/// A connection may hold this multiple of the free memory: alone all but a 17th of the arena, two
/// of them all but a 33rd. First extents of other connections are not part of that
/// (`Arena::take_first`).
const FREE_GAIN: u64 = 16;
/// Half of the arena is reserved for connections whose applications read. Each of the others has
/// one such share at most, and less if there are many: 300 without a reader have two fifths of the
/// arena together.
const UNTAKEN_SHARE: usize = 256;
const UNTAKEN_SHARE_EACH: usize = 8;

impl Consumer {
    /// How many bytes may be promised to a connection and not used up: its window, unless half of
    /// the arena is taken and its application may not be reading.
    fn window(&self, rx: &Rx) -> u64 {
        let all = self.arena.shared_bytes();
        if rx.is_taken() || self.arena.free_bytes() > all / 2 {
            return rx.window;
        }
        let shares = UNTAKEN_SHARE.max(UNTAKEN_SHARE_EACH.saturating_mul(self.conns.len()));
        rx.window.min((all / shares as u64).max(self.arena.least()))
    }

    /// Promises more to a connection: up to its window, and no more than [`FREE_GAIN`] times what
    /// is free, so that no connection can take all (dynamic thresholds, Choudhury and Hahne 1998).
    /// An extent is at most half of what is free: a connection that waited for more would wait
    /// while others took every smaller one.
    /// It begins with one of the first extents, and gets one again if it holds nothing and nothing
    /// else is free. First extents have no other use: otherwise, over several hops, two connections
    /// could wait for each other's memory.
    pub(super) fn grant(&mut self, conn: ConnId) {
        while let Some(rx) = self.conns.get(&conn).filter(|rx| rx.is_open()) {
            let (promised, window, is_new) = (rx.promised(), self.window(rx), rx.is_new());
            let (free, least) = (self.arena.free_bytes(), self.arena.least());
            let most = window.min((free * FREE_GAIN).max(least));
            if promised >= window {
                return;
            }
            // The initial credit goes to the peer in one grant.
            let parts = if promised <= self.arena.first_bytes() {
                1
            } else {
                4
            };
            let want = (most / parts)
                .min(free / 2)
                .clamp(least, self.config.extent_bytes_max);
            // As long as extents are.
            let want = 1 << want.ilog2();
            // A small extent costs a read of its own: returned memory is collected until it is
            // worth one.
            if promised > 0 && most == window && most - promised < want {
                return;
            }
            let first = (promised == 0 && (is_new || free < want)).then(|| self.arena.take_first());
            let may = promised == 0 || promised < most && free >= want;
            let taken = first
                .flatten()
                .or_else(|| may.then(|| self.arena.take(want)).flatten());
            let Some(rx) = self.conns.get_mut(&conn) else {
                return;
            };
            let Some((at, len)) = taken else {
                if !std::mem::replace(&mut rx.hungry, true) {
                    self.hungry.push_back(conn);
                }
                return;
            };
            let offset = rx.credit;
            rx.push_extent(at, len);
            match self.config.mode {
                Mode::Pull => {
                    self.credits.insert(conn);
                }
                Mode::Push => {
                    let grant = Grant {
                        conn,
                        offset,
                        at,
                        len,
                    };
                    self.grants.push_back((grant, None));
                    if self.is_channelless {
                        self.credits.insert(conn);
                    }
                }
            }
        }
    }

    /// Forgets grants that the peer does not have yet.
    pub(super) fn drop_grants(&mut self, is_void: impl Fn(&Grant) -> bool) {
        let before = self.grants.len();
        self.grants.retain(|(grant, _)| !is_void(grant));
        if self.grants.len() < before {
            self.keyed = 0;
        }
    }
}
