//! Return routability: validates that a peer receives at its source address by HELLO, COOKIE, HELLO
//! with the cookie, READY.
//!
//! The responder keeps no state until the cookie has come back, and no reply is longer than the
//! datagram that caused it. The initiator retransmits for a bounded time.

use std::hash::{Hash, Hasher};
use std::net::SocketAddr;

use siphasher::sip::SipHasher24;

use super::config::UdConfig;
use super::sources::{Known, Sources};
use super::wire::{COOKIE_LEN, Cookie, MsgId};
use crate::address::{Destination, Source};
use crate::time::{SECOND_NS, Time};

/// How often a HELLO is sent before the peer counts as silent, and the first retransmission
/// interval, which doubles each time.
const TRIES: u32 = 8;
/// How often a cookie is sent before it counts as forged or out of date.
const COOKIE_TRIES: u32 = 2;
const FIRST_NS: u64 = SECOND_NS / 5;

/// Makes and checks cookies; it is all the state there is about those that asked.
#[derive(Debug, Clone, Copy)]
pub struct Cookies {
    key: [u8; 16],
    lifetime_ns: u64,
}

impl Cookies {
    /// Cookies under a secret key, good for a time.
    #[must_use]
    pub const fn new(key: [u8; 16], lifetime_ns: u64) -> Self {
        Self { key, lifetime_ns }
    }

    /// Returns the cookie of a source: when it was made, and a code over that and the source.
    #[must_use]
    pub fn make(&self, now: Time, source: &Source) -> Cookie {
        let made = now.as_ns();
        let mut out = [0; COOKIE_LEN];
        let (time, code) = out.split_at_mut(8);
        time.copy_from_slice(&made.to_be_bytes());
        code.copy_from_slice(&self.code(made, source).to_be_bytes());
        Cookie(out)
    }

    /// Returns whether a cookie was made for this source not too long ago.
    #[must_use]
    pub fn check(&self, now: Time, source: &Source, cookie: &Cookie) -> bool {
        let [made, code] = [cookie.0.first_chunk(), cookie.0.last_chunk()];
        let (Some(made), Some(code)) = (made, code) else {
            return false;
        };
        let made = u64::from_be_bytes(*made);
        let age = now.as_ns().checked_sub(made);
        age.is_some_and(|age| age <= self.lifetime_ns)
            && u64::from_be_bytes(*code) == self.code(made, source)
    }

    fn code(&self, made: u64, source: &Source) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        made.hash(&mut hasher);
        source.hash(&mut hasher);
        hasher.finish()
    }
}

#[derive(Debug, Default)]
struct Valid;

impl Known for Valid {
    fn is_idle(&self) -> bool {
        true
    }
}

/// Sources that have brought their cookie.
#[derive(Debug)]
pub(super) struct Validated {
    cookies: Cookies,
    sources: Sources<Valid>,
}

impl Validated {
    pub(super) fn new(config: &UdConfig) -> Self {
        Self {
            cookies: Cookies::new(config.key, config.cookie_ns),
            sources: Sources::new(config.validated, config.key),
        }
    }

    pub(super) fn contains(&mut self, source: &Source) -> bool {
        self.sources.find(source).is_some()
    }

    pub(super) fn cookie(&self, now: Time, source: &Source) -> Cookie {
        self.cookies.make(now, source)
    }

    /// Whether the cookie is good; the source is validated then.
    pub(super) fn redeem(&mut self, now: Time, source: &Source, cookie: &Cookie) -> bool {
        let is_good = self.cookies.check(now, source, cookie);
        if is_good {
            self.sources.enter(source);
        }
        is_good
    }

    /// Takes a source in without a cookie: the session layer knows it.
    pub(super) fn admit(&mut self, source: &Source) {
        self.sources.enter(source);
    }
}

#[derive(Debug)]
struct Asking {
    to: Destination,
    /// Comes back in the answers.
    token: MsgId,
    cookie: Option<Cookie>,
    /// How often it may still be sent.
    cookie_tries: u32,
    tries: u32,
    next: Time,
}

/// A HELLO that is due.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    pub(super) to: Destination,
    pub(super) token: MsgId,
    pub(super) cookie: Option<Cookie>,
}

/// Validations that this end has started.
#[derive(Debug)]
pub(super) struct Asks {
    key: [u8; 16],
    asking: Vec<Asking>,
    limit: usize,
    /// Validated peers, the latest at the end.
    known: Vec<Destination>,
}

impl Asks {
    pub(super) fn new(config: &UdConfig) -> Self {
        Self {
            key: config.key,
            asking: Vec::new(),
            limit: config.validations.max(1),
            known: Vec::new(),
        }
    }

    pub(super) fn is_known(&self, to: &Destination) -> bool {
        self.known.contains(to)
    }

    /// The peer may have forgotten this end.
    pub(super) fn doubt(&mut self, to: &Destination) {
        self.known.retain(|known| known != to);
    }

    /// Begins to ask, unless it does. False: too many are asked already.
    pub(super) fn begin(&mut self, now: Time, to: Destination) -> bool {
        if self.asking.iter().any(|asking| asking.to == to) {
            return true;
        }
        if self.asking.len() >= self.limit {
            return false;
        }
        let mut hasher = SipHasher24::new_with_key(&self.key);
        (to, now.as_ns()).hash(&mut hasher);
        let token = u32::try_from(hasher.finish() >> 32).unwrap_or(0);
        self.asking.push(Asking {
            to,
            token: MsgId(token),
            cookie: None,
            cookie_tries: 0,
            tries: 0,
            next: now,
        });
        true
    }

    fn find(&mut self, from: SocketAddr, qpn: u32, token: MsgId) -> Option<usize> {
        let to = Destination { addr: from, qpn };
        self.asking
            .iter()
            .position(|asking| asking.to == to && asking.token == token)
    }

    /// A cookie has come. Whether it was asked for.
    pub(super) fn handle_cookie(
        &mut self,
        now: Time,
        source: &Source,
        token: MsgId,
        cookie: Cookie,
    ) -> bool {
        let found = self.find(source.addr, source.qpn, token);
        let Some(asking) = found.map(|at| &mut self.asking[at]) else {
            return false;
        };
        if asking.cookie.is_none() {
            asking.cookie = Some(cookie);
            asking.cookie_tries = COOKIE_TRIES;
            asking.next = now;
        }
        true
    }

    /// The peer knows this end now. Whether that was asked for.
    pub(super) fn handle_ready(&mut self, source: &Source, token: MsgId) -> bool {
        let Some(at) = self.find(source.addr, source.qpn, token) else {
            return false;
        };
        let asking = self.asking.swap_remove(at);
        if self.known.len() >= self.limit {
            self.known.remove(0);
        }
        self.known.push(asking.to);
        true
    }

    /// The next HELLO to send, or a peer that does not answer.
    pub(super) fn poll(&mut self, now: Time) -> Option<Result<Due, Destination>> {
        let at = self.asking.iter().position(|asking| asking.next <= now)?;
        if self.asking[at].tries >= TRIES {
            return Some(Err(self.asking.swap_remove(at).to));
        }
        let asking = &mut self.asking[at];
        asking.next = now.after(FIRST_NS << asking.tries.min(4));
        asking.tries += 1;
        let due = Due {
            to: asking.to,
            token: asking.token,
            cookie: asking.cookie,
        };
        asking.cookie_tries = asking.cookie_tries.saturating_sub(1);
        if asking.cookie_tries == 0 {
            asking.cookie = None;
        }
        Some(Ok(due))
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.asking.iter().map(|asking| asking.next).min()
    }
}
