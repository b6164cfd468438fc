//! The keys of this end and one peer.

use std::net::SocketAddr;

use haul_iwarp::Time;
use haul_iwarp::datagram::wire::{
    GREETING_LEN, SALT_LEN, SEALED_HEAD_LEN, SEALED_TAG_LEN, Salt, Sealed, reply_head,
};
use haul_seal::{Cipher, Keys, Secret, Side};

use super::replay::Replay;

/// Datagrams under one generation of keys: half of what RFC 9001 §6.6 allows.
const GENERATION_BITS: u32 = 22;

/// See the module.
#[derive(Debug)]
pub(super) struct Association {
    /// Where the peer is.
    pub(super) addr: SocketAddr,
    pub(super) own: Salt,
    pub(super) peer: Salt,
    pub(super) since: Time,
    /// When a datagram was last sealed or opened.
    pub(super) used: Time,
    keys: Keys,
    /// Datagrams sealed so far: the number of the next one.
    sealed: u64,
    /// Generation of the latest datagram that opened.
    generation: u64,
    replay: Replay,
}

/// Why a datagram was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// Not sealed under these keys, or changed.
    Forged,
    /// It came before.
    Replayed,
    /// Sealed by a peer under keys that are erased.
    Retired,
    /// So many datagrams were lost that this end has no key for it.
    Ahead,
}

impl Association {
    /// The keys that two salts make with the key of the service.
    pub(super) fn new(
        secret: &Secret,
        side: Side,
        (own, peer): (Salt, Salt),
        addr: SocketAddr,
        since: Time,
    ) -> Option<Self> {
        let salts = match side {
            Side::Initiator => pair(own, peer),
            Side::Responder => pair(peer, own),
        };
        let pair = secret.derive("haul datagram", &salts);
        Some(Self {
            addr,
            own,
            peer,
            since,
            used: since,
            keys: Keys::new(&pair, Cipher::Aes128Gcm, side, &[])?,
            sealed: 0,
            generation: 0,
            replay: Replay::default(),
        })
    }

    /// Seals a datagram in place: the plaintext lies behind [`SEALED_HEAD_LEN`] bytes and before
    /// [`SEALED_TAG_LEN`] others. Returns whether it may be sent.
    pub(super) fn seal(&mut self, now: Time, datagram: &mut [u8]) -> bool {
        self.used = now;
        let number = self.sealed;
        let head = Sealed::Datagram {
            to: self.peer.mark(),
            from: self.own,
            number,
        };
        head.emit(datagram);
        let (head, text) = datagram.split_at_mut(SEALED_HEAD_LEN);
        self.sealed += 1;
        let generation = number >> GENERATION_BITS;
        let sealer = &mut self.keys.sealer;
        sealer.seal_in_place(generation, number, head, text).is_ok()
    }

    /// As if all datagrams below `number` had been sealed.
    #[cfg(test)]
    pub(super) fn skip_to(&mut self, number: u64) {
        self.sealed = number;
    }

    /// Opens a datagram in place and returns the length of its plaintext, which lies behind the
    /// head.
    pub(super) fn open(
        &mut self,
        now: Time,
        number: u64,
        datagram: &mut [u8],
    ) -> Result<usize, Refused> {
        let generation = number >> GENERATION_BITS;
        if generation > self.generation + 1 {
            return Err(Refused::Ahead);
        }
        if !self.replay.is_new(number) {
            return Err(Refused::Replayed);
        }
        let (head, text) = datagram.split_at_mut(SEALED_HEAD_LEN);
        let opened = self.keys.opener.open(generation, number, head, text);
        let len = opened.ok_or(Refused::Forged)?;
        self.used = now;
        self.replay.note(number);
        self.generation = self.generation.max(generation);
        Ok(len)
    }
}

/// The answer to a greeting. It is the same each time, so its key seals one text only.
pub(super) fn reply(secret: &Secret, greeted: Salt, own: Salt) -> Option<[u8; GREETING_LEN]> {
    let mut reply = [0; GREETING_LEN];
    let to = greeted.mark();
    Sealed::Reply { to, from: own }.emit(&mut reply);
    let head = reply_head(&reply, greeted);
    let mut keys = reply_keys(secret, greeted, own, Side::Responder)?;
    let tag = &mut reply[GREETING_LEN - SEALED_TAG_LEN..];
    keys.sealer.seal_in_place(0, 0, &head, tag).ok()?;
    Some(reply)
}

/// Whether whoever made a reply has the key of the service and answers this greeting.
pub(super) fn is_reply(secret: &Secret, greeted: Salt, from: Salt, reply: &[u8]) -> bool {
    let Some(reply) = reply.first_chunk::<GREETING_LEN>() else {
        return false;
    };
    let head = reply_head(reply, greeted);
    let mut reply = *reply;
    let tag = &mut reply[GREETING_LEN - SEALED_TAG_LEN..];
    reply_keys(secret, greeted, from, Side::Initiator)
        .is_some_and(|mut keys| keys.opener.open(0, 0, &head, tag) == Some(0))
}

fn reply_keys(secret: &Secret, greeter: Salt, responder: Salt, side: Side) -> Option<Keys> {
    let secret = secret.derive("haul reply", &pair(greeter, responder));
    Keys::new(&secret, Cipher::Aes128Gcm, side, &[])
}

fn pair(greeter: Salt, responder: Salt) -> [u8; 2 * SALT_LEN] {
    let mut salts = [0; 2 * SALT_LEN];
    salts[..SALT_LEN].copy_from_slice(&greeter.0);
    salts[SALT_LEN..].copy_from_slice(&responder.0);
    salts
}
