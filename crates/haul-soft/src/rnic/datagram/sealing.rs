//! A sealed service: every datagram is encrypted and authenticated under keys of its two ends,
//! which follow from the key of the service and a salt of each (docs/protocol/datagram.md).
//!
//! Whoever sends first greets. The answer brings the peer's salt, and shows that the peer has the
//! key of the service and is there now. The peer keeps nothing until a datagram has opened. It must
//! not forget such a greeter as long as its own salt stays the same, or what the greeter has sent
//! could be replayed by others.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;

use haul_iwarp::datagram::wire::{
    GREETING_LEN, Mark, SALT_LEN, SEALED_HEAD_LEN, SEALED_TAG_LEN, STALE_LEN, Salt, Sealed,
};
use haul_iwarp::{SECOND_NS, Time};
use haul_seal::{Secret, Side};
use haul_verbs::{Error, Result, SealKey};

use super::association::{Association, Refused, is_reply, reply};

/// Peers under one salt. With one more, the salt changes and all of them greet again.
const PEERS_MAX: usize = 16_384;
/// With so many, those that nothing came or went by for a while are erased: a peer that moves
/// leaves one behind at each address.
const PEERS_IDLE: usize = 1_024;
/// How long that is.
const IDLE_NS: u64 = 600 * SECOND_NS;
/// Greetings in progress.
const GREETINGS_MAX: usize = 4_096;
/// Answers that wait to be sent.
const ANSWERS_MAX: usize = 1_024;
/// How often a greeting is sent, and how long the first answer may take; then twice as long.
const TRIES: u32 = 8;
const ANSWER_NS: u64 = SECOND_NS / 10;
const ANSWER_NS_MAX: u64 = 2 * SECOND_NS;
/// The least age of keys before a handshake with a peer that reports to have none.
const STALE_NS: u64 = SECOND_NS;

/// See the module.
#[derive(Debug)]
pub(super) struct Sealing {
    secret: Secret,
    /// Of this end, where peers greet.
    salt: Salt,
    associations: HashMap<Name, Box<Association>>,
    /// By which association datagrams to a peer leave.
    by_addr: HashMap<SocketAddr, Name>,
    /// Salts of peers that greeted again or were idle: what was sent under them is not opened.
    retired: HashSet<Salt>,
    /// With so many associations, idle ones are looked for.
    crowded: usize,
    greetings: HashMap<SocketAddr, Greeting>,
    timers: BTreeSet<(Time, SocketAddr)>,
    answers: VecDeque<Answer>,
    settled: VecDeque<(SocketAddr, bool)>,
    pub(super) refused: RefusedCounts,
}

/// The salt of the peer, and the mark of that of this end.
type Name = (Salt, Mark);

#[derive(Debug, Clone, Copy)]
struct Greeting {
    salt: Salt,
    tries: u32,
    due: Time,
}

#[derive(Debug, Clone, Copy)]
struct Answer {
    to: SocketAddr,
    octets: [u8; GREETING_LEN],
    len: usize,
}

/// Datagrams that were dropped before the core saw them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RefusedCounts {
    pub(super) unsealed: u64,
    pub(super) forged: u64,
    pub(super) replayed: u64,
}

impl Sealing {
    pub(super) fn new(key: &SealKey) -> Result<Self> {
        Ok(Self {
            secret: Secret::new(*key.as_bytes()),
            salt: random_salt().map_err(Error::os("random bytes"))?,
            associations: HashMap::new(),
            by_addr: HashMap::new(),
            retired: HashSet::new(),
            crowded: PEERS_IDLE,
            greetings: HashMap::new(),
            timers: BTreeSet::new(),
            answers: VecDeque::new(),
            settled: VecDeque::new(),
            refused: RefusedCounts::default(),
        })
    }

    // ---- what arrives

    /// Takes a datagram from `addr`. Returns the datagram inside, without its CRC, if there is one
    /// that opens.
    pub(super) fn handle<'d>(
        &mut self,
        now: Time,
        addr: SocketAddr,
        datagram: &'d mut [u8],
    ) -> Option<&'d [u8]> {
        let Ok(sealed) = Sealed::parse(datagram) else {
            self.refused.unsealed += 1;
            return None;
        };
        match sealed {
            Sealed::Greeting { from } => {
                let octets = reply(&self.secret, from, self.salt)?;
                self.answer(addr, octets, GREETING_LEN);
                None
            }
            Sealed::Reply { to, from } => {
                self.handle_reply(now, addr, (to, from), datagram);
                None
            }
            Sealed::Stale { to } => {
                self.handle_stale(now, addr, to);
                None
            }
            Sealed::Datagram { to, from, number } => {
                let len = self.open(now, addr, (from, to), number, datagram)?;
                datagram.get(SEALED_HEAD_LEN..SEALED_HEAD_LEN + len)
            }
        }
    }

    fn open(
        &mut self,
        now: Time,
        addr: SocketAddr,
        name: Name,
        number: u64,
        datagram: &mut [u8],
    ) -> Option<usize> {
        let opened = match self.associations.get_mut(&name) {
            // Keys belong to an address: a peer that moves greets again.
            Some(known) if known.addr != addr => Err(Refused::Ahead),
            Some(known) => known.open(now, number, datagram),
            None => self.meet(now, addr, name, number, datagram),
        };
        match opened {
            Ok(len) => return Some(len),
            Err(Refused::Forged) => self.refused.forged += 1,
            Err(Refused::Replayed) => self.refused.replayed += 1,
            Err(Refused::Ahead) => {
                self.refused.forged += 1;
                self.answer_stale(addr, name.0);
            }
            Err(Refused::Retired) => {
                self.refused.replayed += 1;
                self.answer_stale(addr, name.0);
            }
        }
        None
    }

    /// Tells a peer that this end has no keys for its datagrams.
    fn answer_stale(&mut self, addr: SocketAddr, from: Salt) {
        let mut octets = [0; GREETING_LEN];
        Sealed::Stale { to: from.mark() }.emit(&mut octets);
        self.answer(addr, octets, STALE_LEN);
    }

    /// A datagram under a salt that has not been seen: who greeted is known if it opens.
    fn meet(
        &mut self,
        now: Time,
        addr: SocketAddr,
        (from, to): Name,
        number: u64,
        datagram: &mut [u8],
    ) -> std::result::Result<usize, Refused> {
        if to != self.salt.mark() {
            return Err(Refused::Ahead);
        }
        if self.retired.contains(&from) {
            return Err(Refused::Retired);
        }
        let salts = (self.salt, from);
        let met = Association::new(&self.secret, Side::Responder, salts, addr, now);
        let mut met = Box::new(met.ok_or(Refused::Forged)?);
        let len = met.open(now, number, datagram)?;
        self.erase_idle(now);
        if self.associations.len() + self.retired.len() >= PEERS_MAX {
            self.change_salt();
            return Err(Refused::Ahead);
        }
        self.use_for(addr, met);
        Ok(len)
    }

    /// Datagrams to `addr` leave by this association from now on.
    fn use_for(&mut self, addr: SocketAddr, association: Box<Association>) {
        let name = (association.peer, association.own.mark());
        let is_own_greeting = association.own != self.salt;
        self.associations.insert(name, association);
        let Some(before) = self.by_addr.insert(addr, name) else {
            return;
        };
        let earlier = self.associations.get(&before);
        let replaced = earlier.filter(|earlier| (earlier.own != self.salt) == is_own_greeting);
        if before != name && replaced.is_some() {
            self.associations.remove(&before);
            if !is_own_greeting {
                self.retired.insert(before.0);
            }
        }
    }

    /// If there are many associations, erases those that are idle. Their peers greet again.
    fn erase_idle(&mut self, now: Time) {
        if self.associations.len() < self.crowded {
            return;
        }
        let (own, retired) = (self.salt, &mut self.retired);
        self.associations.retain(|_, known| {
            let is_idle = now >= known.used.after(IDLE_NS);
            if is_idle && known.own == own {
                retired.insert(known.peer);
            }
            !is_idle
        });
        self.forget_routes();
        // So that looking costs little for each peer that comes.
        self.crowded = PEERS_IDLE.max(2 * self.associations.len());
    }

    /// Forgets all peers that have greeted, and what they have sent with them.
    fn change_salt(&mut self) {
        let Ok(salt) = random_salt() else { return };
        let old = std::mem::replace(&mut self.salt, salt);
        self.associations.retain(|_, known| known.own != old);
        self.retired.clear();
        self.crowded = PEERS_IDLE;
        self.forget_routes();
    }

    fn forget_routes(&mut self) {
        let associations = &self.associations;
        self.by_addr
            .retain(|_, name| associations.contains_key(name));
    }

    fn handle_reply(
        &mut self,
        now: Time,
        addr: SocketAddr,
        (to, from): (Mark, Salt),
        reply: &[u8],
    ) {
        let greeting = self.greetings.get(&addr).copied();
        let Some(greeting) = greeting.filter(|greeting| greeting.salt.mark() == to) else {
            return;
        };
        // A greeting that somebody returned to this end was answered by this end itself.
        if from == self.salt || !is_reply(&self.secret, greeting.salt, from, reply) {
            self.refused.forged += 1;
            return;
        }
        self.greetings.remove(&addr);
        self.timers.remove(&(greeting.due, addr));
        let salts = (greeting.salt, from);
        let met = Association::new(&self.secret, Side::Initiator, salts, addr, now);
        let is_met = met.is_some();
        if let Some(met) = met {
            self.use_for(addr, Box::new(met));
        }
        self.settled.push_back((addr, is_met));
    }

    fn handle_stale(&mut self, now: Time, addr: SocketAddr, to: Mark) {
        let known = self.by_addr.get(&addr);
        let known = known.and_then(|name| self.associations.get(name));
        if known.is_some_and(|known| known.own.mark() == to && now >= known.since.after(STALE_NS)) {
            self.greet(now, addr);
        }
    }

    // ---- what leaves

    /// Whether datagrams to `addr` can be sealed.
    pub(super) fn is_met(&self, addr: &SocketAddr) -> bool {
        self.by_addr.contains_key(addr)
    }

    /// Begins to greet `addr`, unless it is being greeted; false if that is not possible now.
    pub(super) fn greet(&mut self, now: Time, addr: SocketAddr) -> bool {
        if self.greetings.contains_key(&addr) {
            return true;
        }
        let Ok(salt) = random_salt() else {
            return false;
        };
        self.erase_idle(now);
        if self.greetings.len() >= GREETINGS_MAX {
            return false;
        }
        if self.associations.len() >= PEERS_MAX {
            // Nothing can be replayed under a salt that is used no more.
            let own = self.salt;
            self.associations.retain(|_, known| known.own == own);
            self.forget_routes();
        }
        let greeting = Greeting {
            salt,
            tries: 0,
            due: now,
        };
        self.greetings.insert(addr, greeting);
        self.timers.insert((now, addr));
        true
    }

    /// Seals a datagram for `to` in place, as [`Association::seal`]; false if it must not be sent.
    pub(super) fn seal(&mut self, now: Time, to: SocketAddr, datagram: &mut [u8]) -> bool {
        let name = self.by_addr.get(&to);
        match name.and_then(|name| self.associations.get_mut(name)) {
            Some(known) => known.seal(now, datagram),
            None => {
                self.greet(now, to);
                false
            }
        }
    }

    /// The next datagram of the handshake: to whom, and its length in `out`.
    pub(super) fn poll(&mut self, now: Time, out: &mut [u8]) -> Option<(SocketAddr, usize)> {
        if let Some(answer) = self.answers.pop_front() {
            out[..answer.len].copy_from_slice(&answer.octets[..answer.len]);
            return Some((answer.to, answer.len));
        }
        while let Some(&(due, addr)) = self.timers.first()
            && due <= now
        {
            self.timers.pop_first();
            let Some(greeting) = self.greetings.get_mut(&addr) else {
                continue;
            };
            if greeting.tries >= TRIES {
                self.greetings.remove(&addr);
                self.settled.push_back((addr, false));
                continue;
            }
            let wait_ns = (ANSWER_NS << greeting.tries).min(ANSWER_NS_MAX);
            greeting.tries += 1;
            greeting.due = now.after(wait_ns);
            self.timers.insert((greeting.due, addr));
            let from = greeting.salt;
            return Some((addr, Sealed::Greeting { from }.emit(out)));
        }
        None
    }

    /// When [`Sealing::poll`] or [`Sealing::poll_settled`] has something.
    pub(super) fn due(&self) -> Option<Time> {
        if !self.settled.is_empty() {
            return Some(Time::default());
        }
        self.timers.first().map(|&(due, _)| due)
    }

    /// Answers that wait to be sent.
    pub(super) fn answers(&self) -> usize {
        self.answers.len()
    }

    /// A peer that was greeted has answered, or does not answer.
    pub(super) fn poll_settled(&mut self) -> Option<(SocketAddr, bool)> {
        self.settled.pop_front()
    }

    /// Whether a datagram to `to` that the network quotes was sent from here.
    pub(super) fn has_sent(&self, to: SocketAddr, quoted: &[u8]) -> bool {
        let name = self.by_addr.get(&to);
        let known = name.and_then(|name| self.associations.get(name));
        let greeting = self.greetings.get(&to);
        // Whoever greets this end has its salt. Of the two salts of an association, the greeter's
        // is seen only on the path; a greeting names no other salt.
        let sent = [
            known.map(|known| (known.peer.mark(), known.own)),
            greeting.map(|greeting| (Mark([0; 4]), greeting.salt)),
        ];
        let head = (quoted.get(4..8), quoted.get(8..8 + SALT_LEN));
        let is_head = |(to, own): &(Mark, Salt)| head == (Some(&to.0[..]), Some(&own.0[..]));
        sent.iter().flatten().any(is_head)
    }

    #[cfg(test)]
    fn association(&mut self, addr: &SocketAddr) -> &mut Association {
        self.associations.get_mut(&self.by_addr[addr]).unwrap()
    }

    fn answer(&mut self, to: SocketAddr, octets: [u8; GREETING_LEN], len: usize) {
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push_back(Answer { to, octets, len });
        }
    }
}

/// The bytes around a datagram of `len` bytes without its CRC.
pub(super) const fn sealed_len(len: usize) -> usize {
    SEALED_HEAD_LEN + len + SEALED_TAG_LEN
}

fn random_salt() -> std::io::Result<Salt> {
    haul_io::random::bytes::<SALT_LEN>().map(Salt)
}

#[cfg(test)]
mod tests;
