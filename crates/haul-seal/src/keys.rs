//! Keys of both directions of a channel, and their generations.

use std::fmt;

use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce};
use zeroize::Zeroize;

use crate::secret::{Cipher, Secret};

/// Bytes of the tag behind a ciphertext.
pub const TAG_LEN: usize = 16;

/// Which end of a channel this is. The ends must differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The end that opened the channel.
    Initiator,
    /// The end that accepted it.
    Responder,
}

/// Keys of one end of a channel.
#[derive(Debug)]
pub struct Keys {
    /// Seals what this end sends.
    pub sealer: Sealer,
    /// Opens what the peer sends.
    pub opener: Opener,
}

impl Keys {
    /// Splits `secret` by direction. Both ends must pass the same `cipher` and `context` (at most
    /// 255 bytes): whatever they agreed on without authentication belongs into the latter, because
    /// ends with different contexts cannot open each other's data. `None` if the library has no
    /// such cipher.
    #[must_use]
    pub fn new(secret: &Secret, cipher: Cipher, side: Side, context: &[u8]) -> Option<Self> {
        let direction = |from: Side| {
            let label = match from {
                Side::Initiator => "haul initiator",
                Side::Responder => "haul responder",
            };
            secret.derive(label, context)
        };
        let (own, peer) = match side {
            Side::Initiator => (Side::Initiator, Side::Responder),
            Side::Responder => (Side::Responder, Side::Initiator),
        };
        Some(Self {
            sealer: Sealer::new(direction(own), cipher)?,
            opener: Opener::new(direction(peer), cipher)?,
        })
    }
}

/// Why nothing was sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The number is not above all earlier ones of its generation: a repeated nonce would allow
    /// forgeries.
    #[error("number {0} was used before")]
    Repeated(u64),
    /// The generation is neither the present one nor the next.
    #[error("no key of generation {0}")]
    Generation(u64),
    /// The cipher refused the lengths.
    #[error("the cipher refused {0} bytes")]
    Length(usize),
}

/// Seals one direction of a channel.
#[derive(Debug)]
pub struct Sealer {
    chain: Chain,
    current: Phase,
    next: Phase,
    generation: u64,
    /// Lower numbers of this generation must not be used any more.
    free: u64,
}

impl Sealer {
    fn new(secret: Secret, cipher: Cipher) -> Option<Self> {
        let mut chain = Chain { secret, cipher };
        Some(Self {
            current: chain.phase()?,
            next: chain.phase()?,
            chain,
            generation: 0,
            free: 0,
        })
    }

    /// Seals `plain` as number `number` of `generation` and writes ciphertext and tag to `sealed`,
    /// which must be [`TAG_LEN`] bytes longer. `head` stays in the clear and is authenticated.
    /// Generations begin at 0; the one after the present may follow at any time. Numbers of a
    /// generation must ascend and may have gaps.
    ///
    /// # Errors
    /// [`SealError`]; nothing must be sent then.
    pub fn seal(
        &mut self,
        generation: u64,
        number: u64,
        head: &[u8],
        plain: &[u8],
        sealed: &mut [u8],
    ) -> Result<(), SealError> {
        let phase = self.claim(generation, number)?;
        let (text, tag) = sealed
            .split_at_mut_checked(plain.len())
            .ok_or(SealError::Length(plain.len()))?;
        phase
            .key
            .seal_out_of_place_scatter(phase.nonce(number), Aad::from(head), plain, text, &[], tag)
            .map_err(|_| SealError::Length(plain.len()))
    }

    /// As [`Sealer::seal`], where `sealed` holds the plaintext and room for the tag.
    ///
    /// # Errors
    /// As there.
    pub fn seal_in_place(
        &mut self,
        generation: u64,
        number: u64,
        head: &[u8],
        sealed: &mut [u8],
    ) -> Result<(), SealError> {
        let phase = self.claim(generation, number)?;
        let len = sealed.len();
        let (text, tag) = sealed
            .split_last_chunk_mut::<TAG_LEN>()
            .ok_or(SealError::Length(len))?;
        phase
            .key
            .seal_in_place_scatter(phase.nonce(number), Aad::from(head), text, &[], tag)
            .map_err(|_| SealError::Length(len))
    }

    /// The key of `generation`; `number` counts as used from now on.
    fn claim(&mut self, generation: u64, number: u64) -> Result<&Phase, SealError> {
        if generation == self.generation + 1 {
            let prepared = self
                .chain
                .phase()
                .ok_or(SealError::Generation(generation))?;
            self.current = std::mem::replace(&mut self.next, prepared);
            self.generation = generation;
            self.free = 0;
        } else if generation != self.generation {
            return Err(SealError::Generation(generation));
        }
        if number < self.free {
            return Err(SealError::Repeated(number));
        }
        self.free = number + 1;
        Ok(&self.current)
    }
}

/// Opens one direction of a channel. Whether a number came before is the caller's to check.
#[derive(Debug)]
pub struct Opener {
    chain: Chain,
    previous: Option<Phase>,
    current: Phase,
    next: Phase,
    generation: u64,
}

impl Opener {
    fn new(secret: Secret, cipher: Cipher) -> Option<Self> {
        let mut chain = Chain { secret, cipher };
        Some(Self {
            previous: None,
            current: chain.phase()?,
            next: chain.phase()?,
            chain,
            generation: 0,
        })
    }

    /// Opens `sealed`, ciphertext and tag, in place and returns the length of the plaintext at its
    /// beginning. `None` where it was not sealed under this key with `head` and `number`, or where
    /// there is no key of `generation`; the bytes are useless then. The first datagram of the next
    /// generation that opens makes it the present one.
    pub fn open(
        &mut self,
        generation: u64,
        number: u64,
        head: &[u8],
        sealed: &mut [u8],
    ) -> Option<usize> {
        let is_next = generation == self.generation + 1;
        let phase = if generation == self.generation {
            &self.current
        } else if is_next {
            &self.next
        } else if generation + 1 == self.generation {
            self.previous.as_ref()?
        } else {
            return None;
        };
        let plain = phase
            .key
            .open_in_place(phase.nonce(number), Aad::from(head), sealed)
            .ok()?
            .len();
        if is_next {
            let prepared = self.chain.phase()?;
            let next = std::mem::replace(&mut self.next, prepared);
            self.previous = Some(std::mem::replace(&mut self.current, next));
            self.generation = generation;
        }
        Some(plain)
    }

    /// Erases the key of the generation before the present one.
    pub fn forget_previous(&mut self) {
        self.previous = None;
    }
}

/// Makes the keys of a direction, one generation after the other.
#[derive(Debug)]
struct Chain {
    /// Of the generation that [`Chain::phase`] makes next.
    secret: Secret,
    cipher: Cipher,
}

impl Chain {
    fn phase(&mut self) -> Option<Phase> {
        let (key, iv) = self.secret.key(self.cipher)?;
        // As RFC 8446 §7.2: who learns a key learns nothing about the keys before it.
        self.secret = self.secret.derive("haul ku", &[]);
        Some(Phase { key, iv })
    }
}

/// A key, and what its nonces begin with.
struct Phase {
    key: LessSafeKey,
    iv: [u8; 12],
}

impl Phase {
    /// The nonce of a number (RFC 8446 §5.3).
    fn nonce(&self, number: u64) -> Nonce {
        let mut nonce = self.iv;
        for (byte, of_number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= of_number;
        }
        Nonce::assume_unique_for_key(nonce)
    }
}

impl Drop for Phase {
    fn drop(&mut self) {
        self.iv.zeroize();
    }
}

impl fmt::Debug for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Phase(…)")
    }
}

#[cfg(test)]
mod tests;
