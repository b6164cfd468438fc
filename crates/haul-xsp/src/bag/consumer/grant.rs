//! How much of the arena is promised to which connection.

use super::rx::Rx;
use super::{Consumer, Grant, Mode};
use crate::ConnId;

/// A connection may have so many times what is free: alone all but a 17th of the arena, two of them
/// all but a 33rd. What the others begin with is not taken from that (`Arena::take_first`).
const FREE_GAIN: u64 = 16;
/// Half of the arena is for connections whose applications take what comes. Of it each of the
/// others has one such share at most, and less where there are many: 300 that nobody reads have two
/// fifths of the arena together.
const UNTAKEN_SHARE: usize = 256;
const UNTAKEN_SHARE_EACH: usize = 8;

impl Consumer {
    /// How many bytes may be promised to a connection and not used up: its window, unless half of
    /// the arena is taken and nobody may read what comes.
    fn window(&self, rx: &Rx) -> u64 {
        let all = self.arena.shared_bytes();
        if rx.is_taken() || self.arena.free_bytes() > all / 2 {
            return rx.window;
        }
        let shares = UNTAKEN_SHARE.max(UNTAKEN_SHARE_EACH.saturating_mul(self.conns.len()));
        rx.window.min((all / shares as u64).max(self.arena.least()))
    }

    /// Promises more to a connection: up to its window, and no more than [`FREE_GAIN`] times what
    /// is free, so that nobody can have it all (dynamic thresholds, Choudhury and Hahne 1998). It
    /// begins with one of the first extents, and has one again where it has nothing and there is
    /// nothing else. They are for nothing else: else, over several hops, each could wait for memory
    /// that the other has.
    pub(super) fn grant(&mut self, conn: ConnId) {
        while let Some(rx) = self.conns.get(&conn).filter(|rx| rx.is_open()) {
            let (promised, window, is_new) = (rx.promised(), self.window(rx), rx.is_new());
            let (free, least) = (self.arena.free_bytes(), self.arena.least());
            let most = window.min((free * FREE_GAIN).max(least));
            if promised >= window {
                return;
            }
            let want = (most / 4).clamp(least, self.config.extent_bytes_max);
            // As long as extents are.
            let want = 1 << want.ilog2();
            // A small extent costs a read of its own: what was given back gathers until it is worth
            // one.
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
                Mode::Push => self.grants.push_back((
                    Grant {
                        conn,
                        offset,
                        at,
                        len,
                    },
                    None,
                )),
            }
        }
    }
}
