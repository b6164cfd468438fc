//! Seals what a link sends and opens what it receives (docs/protocol/udt.md).

use std::io::{self, IoSlice};

use haul_seal::{Keys, Seal, SealError, Side};
use haul_udt::wire::{HEADER_LEN, SEAL_LEN, SEALED_HEAD_LEN, Sealed};
use haul_udt::{Connection, Opener, Transmit};

/// The keys of a link, and what it has sealed and not sent.
///
/// A packet is sealed once: the memory that it was gathered from may have changed before the socket
/// has room, and two ciphertexts under one nonce would allow forgeries.
#[derive(Debug)]
pub(crate) struct Sealing {
    lock: Lock,
    kept: Vec<u8>,
    /// Bytes of `kept` that are sealed.
    used: usize,
}

#[derive(Debug)]
struct Lock {
    seal: Option<Seal>,
    /// From the moment that both ends agree.
    keys: Option<Keys>,
}

impl Sealing {
    /// Without a seal until [`Sealing::set`].
    pub(crate) fn new(seal: Option<Seal>) -> Self {
        Self {
            lock: Lock { seal, keys: None },
            kept: Vec::new(),
            used: 0,
        }
    }

    /// Gives it the secret, once.
    pub(crate) fn set(&mut self, seal: Seal) {
        self.lock.seal.get_or_insert(seal);
    }

    pub(crate) fn has_secret(&self) -> bool {
        self.lock.seal.is_some()
    }

    /// Forgets what was sealed: something else leaves next.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Sealed datagrams of `segment_len` bytes, but for the first `skip`.
    pub(crate) fn rest(&self, segment_len: usize, skip: usize) -> &[u8] {
        self.kept[..self.used]
            .get(segment_len * skip..)
            .unwrap_or_default()
    }

    /// Seals the packets of a batch, given as headers and pieces of payload.
    pub(crate) fn seal_batch(
        &mut self,
        connection: &Connection,
        batch: &Transmit,
        slices: &[IoSlice<'_>],
    ) -> io::Result<()> {
        let first = batch.sealed.ok_or(io::ErrorKind::InvalidInput)?;
        let mut slices = slices.iter();
        for (at, (header, range)) in batch.headers.iter().zip(&batch.payload).enumerate() {
            // The header that `batch` has, too.
            slices.next();
            self.seal(
                connection,
                first.plus(at),
                header,
                range.len as usize,
                || slices.next().map(|slice| &**slice),
            )?;
        }
        Ok(())
    }

    /// Seals packets that lie one behind the other, each `len` bytes long.
    pub(crate) fn seal_packets(
        &mut self,
        connection: &Connection,
        first: Sealed,
        packets: &[u8],
        len: usize,
    ) -> io::Result<()> {
        for (at, packet) in packets.chunks(len).enumerate() {
            let (header, body) = packet
                .split_first_chunk()
                .ok_or(io::ErrorKind::InvalidInput)?;
            let mut body = Some(body);
            self.seal(
                connection,
                first.plus(at),
                header,
                packet.len() - HEADER_LEN,
                || body.take(),
            )?;
        }
        Ok(())
    }

    /// Appends a sealed datagram with `len` bytes of payload, which `next` gives in pieces.
    fn seal<'p>(
        &mut self,
        connection: &Connection,
        sealed: Sealed,
        header: &[u8; HEADER_LEN],
        len: usize,
        mut next: impl FnMut() -> Option<&'p [u8]>,
    ) -> io::Result<()> {
        let start = self.used;
        let end = start + HEADER_LEN + SEAL_LEN + len;
        if self.kept.len() < end {
            self.kept.resize(end, 0);
        }
        let sealer = self.lock.keys(connection).map(|keys| &mut keys.sealer);
        let sealer = sealer.ok_or_else(|| io::Error::other("this host has no such cipher"))?;
        let (head, text) = self.kept[start..end].split_at_mut(SEALED_HEAD_LEN);
        head.copy_from_slice(&sealed.head(header));
        let Sealed { generation, number } = sealed;
        let payload = if len == 0 { Some(&[][..]) } else { next() };
        let mut payload = payload.ok_or(io::ErrorKind::UnexpectedEof)?;
        let done = if payload.len() == len {
            sealer.seal(generation, number, head, payload, text)
        } else {
            let mut filled = 0;
            loop {
                text[filled..filled + payload.len()].copy_from_slice(payload);
                filled += payload.len();
                if filled == len {
                    break;
                }
                payload = next().ok_or(io::ErrorKind::UnexpectedEof)?;
            }
            sealer.seal_in_place(generation, number, head, text)
        };
        done.map_err(|error: SealError| io::Error::other(error))?;
        self.used = end;
        Ok(())
    }
}

/// Opens a datagram in place; none where it is to be dropped.
pub(crate) fn open<'d>(
    sealing: &mut Option<Sealing>,
    connection: &mut Connection,
    now: haul_cc::Time,
    datagram: &'d mut [u8],
) -> Option<&'d [u8]> {
    let keys = sealing
        .as_mut()
        .and_then(|sealing| sealing.lock.keys(connection));
    let mut opener = keys.map(|keys| Opening(&mut keys.opener));
    let opener = opener.as_mut().map(|opener| opener as &mut dyn Opener);
    connection.open(now, datagram, opener)
}

impl Lock {
    /// The keys of an open connection.
    fn keys(&mut self, connection: &Connection) -> Option<&mut Keys> {
        if self.keys.is_none() {
            let (seal, context) = (self.seal.as_ref()?, connection.seal_context()?);
            let side = if context.is_initiator {
                Side::Initiator
            } else {
                Side::Responder
            };
            self.keys = Keys::new(&seal.secret, seal.cipher, side, &context.bytes);
        }
        self.keys.as_mut()
    }
}

struct Opening<'a>(&'a mut haul_seal::Opener);

impl Opener for Opening<'_> {
    fn open(&mut self, sealed: Sealed, head: &[u8], text: &mut [u8]) -> Option<usize> {
        self.0.open(sealed.generation, sealed.number, head, text)
    }

    fn forget_previous(&mut self) {
        self.0.forget_previous();
    }
}

#[cfg(test)]
mod tests;
