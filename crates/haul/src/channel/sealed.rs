//! The chunks of a TCP stream as records of TLS 1.3 (docs/protocol/session.md).
//!
//! A record holds bytes of one chunk only: the first one its header, then payload. So each record
//! names the place of its payload. The receiver opens it in the buffer that it read into, and
//! writes it from there.

use std::io::{self, IoSlice, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::time::Duration;

use haul_seal::record::{
    Content, HEADER_LEN, OVERHEAD, PAYLOAD_MAX, RECORD_MAX, RecordError, RecordOpener,
    RecordSealer, Records, record_len,
};
use haul_seal::{Keys, Opener, Seal, SealError, Sealer, Side};
use haul_soft::bulk::{Sink, Source};

use super::chunk::{CHUNK, CHUNK_HEADER, PLACE_AFTER, chunk_header, parse_chunk_header};
use super::setup::ChannelError;

/// A whole chunk, and a record behind it.
const READ_BYTES: usize =
    CHUNK_BYTES + (CHUNK_BYTES.div_ceil(PAYLOAD_MAX) + 1) * OVERHEAD + RECORD_MAX;
/// How long a receiver waits for a whole chunk before it knows the length. A wake-up for each part
/// costs as much as the cipher.
const CHUNK_PATIENCE: Duration = Duration::from_millis(1);
#[expect(clippy::cast_possible_truncation, reason = "1 MiB")]
const CHUNK_BYTES: usize = CHUNK as usize;

/// Makes the keys of stream `index` of the channel that `seal` belongs to.
pub(super) fn keys(seal: &Seal, side: Side, index: u16) -> Option<(Sealer, Opener)> {
    let secret = seal.secret.derive("haul stream", &index.to_be_bytes());
    let keys = Keys::new(&secret, seal.cipher, side, &[])?;
    Some((keys.sealer, keys.opener))
}

impl From<SealError> for ChannelError {
    fn from(error: SealError) -> Self {
        Self::System(io::Error::other(error))
    }
}

impl From<RecordError> for ChannelError {
    fn from(error: RecordError) -> Self {
        // Whoever did it: a new connection may succeed.
        Self::Lost(error.to_string())
    }
}

fn lost(error: io::Error) -> ChannelError {
    ChannelError::lost(&error)
}

/// Seals chunks and writes each at once.
pub(super) struct ChunkSender<'s> {
    stream: &'s TcpStream,
    records: RecordSealer,
    buffer: Records,
}

impl<'s> ChunkSender<'s> {
    pub(super) fn new(stream: &'s TcpStream, sealer: Sealer) -> Self {
        Self {
            stream,
            records: RecordSealer::new(sealer),
            buffer: Records::default(),
        }
    }

    pub(super) fn send(
        &mut self,
        source: &dyn Source,
        offset: u64,
        len: u64,
    ) -> Result<(), ChannelError> {
        let (mut at, end) = (offset, offset + len);
        // A chunk is no longer than CHUNK.
        let header = chunk_header(offset, u32::try_from(len).unwrap_or(u32::MAX));
        let mut header = &header[..];
        while at < end {
            let room = PAYLOAD_MAX - header.len();
            let payload = usize::try_from(end - at).map_or(room, |left| left.min(room));
            let read = |record: &mut [u8]| {
                let (front, rest) = record.split_at_mut(header.len());
                front.copy_from_slice(header);
                source.read_at(at, rest).map_err(ChannelError::store)
            };
            let len = header.len() + payload;
            self.records.append(&mut self.buffer, len, read)?;
            at += payload as u64;
            header = &[];
        }
        self.write()
    }

    /// Tells the peer that all chunks of this stream have been sent.
    pub(super) fn finish(&mut self) -> Result<(), ChannelError> {
        self.records.append_end(&mut self.buffer)?;
        self.write()
    }

    fn write(&mut self) -> Result<(), ChannelError> {
        self.stream
            .write_all(self.buffer.as_bytes())
            .map_err(lost)?;
        self.buffer.clear();
        Ok(())
    }
}

/// Where the payload of the next record goes.
#[derive(Debug, Default)]
struct Position {
    offset: u64,
    /// Bytes of the chunk that have not come.
    left: u64,
}

impl Position {
    /// Takes the plaintext of a record: where its payload goes, and how many bytes of it are a
    /// header.
    fn take(&mut self, data: &[u8]) -> Result<(u64, usize), ChannelError> {
        let impossible = || ChannelError::Peer("a chunk of an impossible length".into());
        let mut skip = 0;
        if self.left == 0 {
            let header = data.first_chunk::<CHUNK_HEADER>().ok_or_else(impossible)?;
            let parsed = parse_chunk_header(*header);
            let (offset, len) = parsed
                .ok_or_else(|| ChannelError::Peer("a chunk header with a wrong check".into()))?;
            let len = u64::from(len);
            if len == 0 || len > CHUNK || offset.checked_add(len).is_none() {
                return Err(impossible());
            }
            *self = Self { offset, left: len };
            skip = CHUNK_HEADER;
        }
        let payload = (data.len() - skip) as u64;
        if payload == 0 || payload > self.left {
            return Err(impossible());
        }
        let at = self.offset;
        self.offset += payload;
        self.left -= payload;
        Ok((at, skip))
    }
}

/// Opens the records that `receive` writes to its room, and places their payload until the stream
/// ends in order. `receive` should wait until so many bytes as its second argument says are there,
/// but no longer than its third.
pub(super) fn receive_chunks(
    mut receive: impl FnMut(&mut [u8], usize, Duration) -> io::Result<usize>,
    opener: Opener,
    sink: &dyn Sink,
) -> Result<(), ChannelError> {
    let mut records = RecordOpener::new(opener);
    let mut buffer = vec![0; READ_BYTES];
    // Bytes at the front of the buffer: the beginning of a record.
    let mut filled = 0;
    let mut ready: Vec<(u64, Range<usize>)> = Vec::new();
    let mut position = Position::default();
    loop {
        let (rest, patience) = match position.left {
            0 => (sealed_len(CHUNK_HEADER as u64 + CHUNK), CHUNK_PATIENCE),
            left => (sealed_len(left), PLACE_AFTER),
        };
        let rest = rest.saturating_sub(filled).max(1);
        // Not past the chunk, so that records lie at the front of the buffer.
        let end = buffer.len().min(filled + rest);
        let room = &mut buffer[filled..end];
        match receive(room, rest, patience) {
            // Without an end record somebody else may have ended it.
            Ok(0) => return Err(lost(io::ErrorKind::ConnectionAborted.into())),
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(lost(error)),
        }
        let mut opened = 0;
        while let Some(len) = whole_record(&buffer[opened..filled])? {
            let record = opened..opened + len;
            match records.open(&mut buffer[record.clone()])? {
                Content::Data(data) => {
                    let (at, skip) = position.take(data)?;
                    let start = record.start + HEADER_LEN;
                    ready.push((at, start + skip..start + data.len()));
                }
                Content::KeyUpdate => {}
                Content::End if position.left == 0 => {
                    return place(sink, &buffer, &mut ready);
                }
                Content::End => return Err(lost(io::ErrorKind::ConnectionAborted.into())),
            }
            opened = record.end;
        }
        place(sink, &buffer, &mut ready)?;
        buffer.copy_within(opened..filled, 0);
        filled -= opened;
    }
}

/// Bytes of the records that hold `left` bytes, if each is as long as can be.
fn sealed_len(left: u64) -> usize {
    let left = usize::try_from(left).unwrap_or(CHUNK_BYTES);
    left + left.div_ceil(PAYLOAD_MAX) * OVERHEAD
}

/// The length of the record that `bytes` begins with, if all of it has come.
fn whole_record(bytes: &[u8]) -> Result<Option<usize>, RecordError> {
    let Some(header) = bytes.first_chunk() else {
        return Ok(None);
    };
    Ok(Some(record_len(*header)?).filter(|len| *len <= bytes.len()))
}

/// Places what is ready, each run of neighbours at once.
fn place(
    sink: &dyn Sink,
    buffer: &[u8],
    ready: &mut Vec<(u64, Range<usize>)>,
) -> Result<(), ChannelError> {
    let follows = |(at, range): &(u64, Range<usize>), next: &(u64, Range<usize>)| {
        at + range.len() as u64 == next.0
    };
    for run in ready.chunk_by(follows) {
        let parts: Vec<_> = run
            .iter()
            .map(|(_, range)| IoSlice::new(&buffer[range.clone()]))
            .collect();
        sink.place(run[0].0, &parts).map_err(ChannelError::store)?;
    }
    ready.clear();
    Ok(())
}

#[cfg(test)]
mod tests;
