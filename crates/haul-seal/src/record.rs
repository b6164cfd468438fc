//! Records of a sealed byte stream: TLS 1.3's format (RFC 8446 §5) under a channel's keys.
//!
//! A stream carries data records, a KeyUpdate record before the keys change, and an end record.
//! Without the end record the stream was cut off.

use crate::keys::{Opener, SealError, Sealer, TAG_LEN};

/// Bytes of a record in front of its ciphertext.
pub const HEADER_LEN: usize = 5;
/// Payload of the longest record.
pub const PAYLOAD_MAX: usize = 1 << 14;
/// Bytes that a record adds to its payload: header, type, tag.
pub const OVERHEAD: usize = HEADER_LEN + 1 + TAG_LEN;
/// The longest record.
pub const RECORD_MAX: usize = PAYLOAD_MAX + OVERHEAD;

/// Records under one key before the next. AES-128-GCM allows 2^24.5 (RFC 8446 §5.5).
const RECORDS_PER_KEY: u64 = 1 << 22;

const APPLICATION_DATA: u8 = 23;
const HANDSHAKE: u8 = 22;
const ALERT: u8 = 21;
/// A KeyUpdate message that requests none in return (RFC 8446 §4.6.3).
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
/// `close_notify` (RFC 8446 §6.1).
const CLOSE_NOTIFY: [u8; 2] = [1, 0];

/// Why a stream is of no use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The header is not one of TLS 1.3, or names an impossible length.
    #[error("a record with a header that TLS 1.3 does not have")]
    Header,
    /// The record was not sealed under this key, or is not the next one.
    #[error("a record that the peer did not seal, or that was changed, moved or removed")]
    Forged,
    /// A record inside which is no message that a channel has.
    #[error("a record of a type that a channel does not have")]
    Content,
}

/// What a record holds.
#[derive(Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// Payload.
    Data(&'a [u8]),
    /// The next record is sealed under the next key.
    KeyUpdate,
    /// The stream ends in order.
    End,
}

/// Reads the length of the record that begins with `header`, all of it.
///
/// # Errors
/// [`RecordError::Header`].
pub fn record_len(header: [u8; HEADER_LEN]) -> Result<usize, RecordError> {
    let [kind, 3, 3, high, low] = header else {
        return Err(RecordError::Header);
    };
    let len = usize::from(u16::from_be_bytes([high, low]));
    if kind == APPLICATION_DATA && (1 + TAG_LEN..=RECORD_MAX - HEADER_LEN).contains(&len) {
        Ok(HEADER_LEN + len)
    } else {
        Err(RecordError::Header)
    }
}

/// Records that wait to be sent. It keeps its memory, so that room for a record is zeroed once.
#[derive(Debug, Default)]
pub struct Records {
    bytes: Vec<u8>,
    /// used <= bytes.len()
    used: usize,
}

impl Records {
    /// Returns the records, one behind the other.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    /// Forgets the records and keeps their memory.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Appends bytes of a handshake, which go in front of the records.
    pub fn append_plain(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.used += bytes.len();
    }

    /// Room for a record of `len` bytes, which holds bytes of earlier ones.
    fn room(&mut self, len: usize) -> &mut [u8] {
        let end = self.used + len;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[self.used..end]
    }
}

/// Seals the records of one direction of a stream.
#[derive(Debug)]
pub struct RecordSealer {
    sealer: Sealer,
    generation: u64,
    number: u64,
    per_key: u64,
}

impl RecordSealer {
    /// Begins the stream of `sealer`.
    #[must_use]
    pub fn new(sealer: Sealer) -> Self {
        Self::with_limit(sealer, RECORDS_PER_KEY)
    }

    fn with_limit(sealer: Sealer, per_key: u64) -> Self {
        Self {
            sealer,
            generation: 0,
            number: 0,
            per_key,
        }
    }

    /// Appends the record that `filled` makes in place: it writes `len` bytes of payload, at most
    /// [`PAYLOAD_MAX`], and returns whether it could. A KeyUpdate record may come in front.
    ///
    /// # Errors
    /// That of `filled`, with no payload appended; [`SealError`], after which the stream must end.
    pub fn append<E: From<SealError>>(
        &mut self,
        out: &mut Records,
        len: usize,
        filled: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.number + 1 >= self.per_key {
            self.record(out, HANDSHAKE, KEY_UPDATE.len(), |room| {
                room.copy_from_slice(&KEY_UPDATE);
                Ok::<_, SealError>(())
            })?;
            (self.generation, self.number) = (self.generation + 1, 0);
        }
        self.record(out, APPLICATION_DATA, len, filled)
    }

    /// Appends the record that ends the stream.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn append_end(&mut self, out: &mut Records) -> Result<(), SealError> {
        self.record(out, ALERT, CLOSE_NOTIFY.len(), |room| {
            room.copy_from_slice(&CLOSE_NOTIFY);
            Ok(())
        })
    }

    fn record<E: From<SealError>>(
        &mut self,
        out: &mut Records,
        kind: u8,
        len: usize,
        filled: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let sealed_len = u16::try_from(len + 1 + TAG_LEN)
            .ok()
            .filter(|_| len <= PAYLOAD_MAX)
            .ok_or(SealError::Length(len))?;
        let [high, low] = sealed_len.to_be_bytes();
        let (head, sealed) = out.room(OVERHEAD + len).split_at_mut(HEADER_LEN);
        head.copy_from_slice(&[APPLICATION_DATA, 3, 3, high, low]);
        filled(&mut sealed[..len])?;
        sealed[len] = kind;
        self.sealer
            .seal_in_place(self.generation, self.number, head, sealed)?;
        self.number += 1;
        out.used += OVERHEAD + len;
        Ok(())
    }
}

/// Opens the records of one direction of a stream, in their order.
#[derive(Debug)]
pub struct RecordOpener {
    opener: Opener,
    generation: u64,
    number: u64,
}

impl RecordOpener {
    /// Begins the stream of `opener`.
    #[must_use]
    pub fn new(opener: Opener) -> Self {
        Self {
            opener,
            generation: 0,
            number: 0,
        }
    }

    /// Opens a whole record ([`record_len`]) in place.
    ///
    /// # Errors
    /// [`RecordError`]; the stream must end then.
    pub fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<Content<'a>, RecordError> {
        let (head, sealed) = record
            .split_at_mut_checked(HEADER_LEN)
            .ok_or(RecordError::Header)?;
        let len = self
            .opener
            .open(self.generation, self.number, head, sealed)
            .ok_or(RecordError::Forged)?;
        self.number += 1;
        match sealed[..len].split_last() {
            Some((&APPLICATION_DATA, data)) => Ok(Content::Data(data)),
            Some((&HANDSHAKE, data)) if *data == KEY_UPDATE => {
                (self.generation, self.number) = (self.generation + 1, 0);
                self.opener.forget_previous();
                Ok(Content::KeyUpdate)
            }
            Some((&ALERT, data)) if *data == CLOSE_NOTIFY => Ok(Content::End),
            _ => Err(RecordError::Content),
        }
    }
}

#[cfg(test)]
mod tests;
