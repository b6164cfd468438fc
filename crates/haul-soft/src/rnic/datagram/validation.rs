//! Which peers know this end: most memory takes writes only from sources that have shown that they
//! receive at their address. Writes wait here until their peer has been asked once.

use std::collections::{HashMap, HashSet};

use haul_iwarp::datagram::Destination;

use super::request::Request;

/// Peers that are remembered; with one more, all are asked again when they are written to.
const KNOWN_MAX: usize = 1 << 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Validation {
    known: HashSet<Destination>,
    /// Bounded by the send queue: each has a request that waits.
    asked: HashMap<Destination, Asked>,
}

#[derive(Debug, Default)]
struct Asked {
    waiting: Vec<Request>,
    /// The core is asking.
    begun: bool,
}

impl Validation {
    pub(super) fn is_known(&self, to: &Destination) -> bool {
        self.known.contains(to)
    }

    /// Keeps a request until its peer has been asked.
    pub(super) fn wait(&mut self, request: Request) {
        let asked = self.asked.entry(request.to).or_default();
        asked.waiting.push(request);
    }

    /// Asks the peers that are due; `ask` returns whether it could begin.
    pub(super) fn ask(&mut self, mut ask: impl FnMut(Destination) -> bool) {
        for (to, asked) in &mut self.asked {
            asked.begun = asked.begun || ask(*to);
        }
    }

    /// A peer has answered, or will not: what waits for it goes out in any case.
    pub(super) fn settle(&mut self, to: Destination, answered: bool) -> Vec<Request> {
        if answered {
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            self.known.insert(to);
        }
        self.asked
            .remove(&to)
            .map_or_else(Vec::new, |asked| asked.waiting)
    }

    /// All that waits, for good.
    pub(super) fn flush(&mut self) -> impl Iterator<Item = Request> {
        let asked = std::mem::take(&mut self.asked);
        asked.into_values().flat_map(|asked| asked.waiting)
    }
}
