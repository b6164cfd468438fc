//! A data channel that is a byte stream receives anything, for the target in `fuzz/`.

use std::io;

use haul_slab::{AccessFlags, Region};
use haul_xsp::bag::{Get, GetId};
use haul_xsp::wire::Key;

use super::fabric::{Lost, News};
use super::flow::Inlet;
use super::frame::{Frame, HEADER_LEN};
use super::ledger::{Ledger, Part};

const BYTES: u64 = 4096;

/// Feeds `octets`, `piece` bytes at a time, to an end with open memory and a GET in flight. Returns
/// its memory, the number of events, and why the channel ended. Its keys are the same each time.
pub(crate) fn receive(octets: &[u8], piece: usize) -> (Vec<u8>, usize, Option<String>) {
    if let Some(header) = octets.first_chunk::<HEADER_LEN>()
        && let Ok(frame) = Frame::parse(header)
    {
        assert_eq!(frame.emit(), *header);
    }
    let map = || Region::map(BYTES as usize).unwrap_or_else(|error| panic!("{error}"));
    let (arena, lent) = (map(), map());
    let mut ledger = Ledger::new(&arena, [1, 2]);
    let write = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let open = [AccessFlags::REMOTE_READ, write].map(|access| ledger.open(&lent, 0, BYTES, access));
    assert!(open.iter().all(Result::is_ok));
    ledger.get(Get {
        id: GetId(1),
        key: Key::default(),
        at: 0,
        len: BYTES as u32,
    });
    assert!(ledger.poll_short().is_some());
    let (mut into, mut news) = (Inlet::new(true), Vec::new());
    let over = octets.chunks(piece).find_map(|octets| {
        let heard = listen(&mut into, &mut ledger, &mut news, octets);
        heard.err().map(|Lost(why)| why)
    });
    let mut memory = vec![0; 2 * BYTES as usize];
    let (one, two) = memory.split_at_mut(BYTES as usize);
    assert!(arena.read(0, one).is_ok() && lent.read(0, two).is_ok());
    while let Some((_, span)) = ledger.poll_long() {
        assert!(ledger.part(&span, |part| part.at + part.len <= BYTES as usize) == Ok(true));
    }
    (memory, news.len(), over)
}

fn listen(
    into: &mut Inlet,
    ledger: &mut Ledger,
    news: &mut Vec<News>,
    mut octets: &[u8],
) -> Result<(), Lost> {
    while !octets.is_empty() {
        into.turn(ledger, news, |part, rest| take(&mut octets, part, rest))?;
    }
    Ok(())
}

fn take(octets: &mut &[u8], part: Option<Part<'_>>, rest: &mut [u8]) -> io::Result<usize> {
    let (payload, behind) = octets.split_at(octets.len().min(part.map_or(0, |part| part.len)));
    if let Some(part) = part {
        let written = part.region.write(part.at, payload);
        written.map_err(|error| io::Error::other(error.to_string()))?;
    }
    let count = behind.len().min(rest.len());
    rest[..count].copy_from_slice(&behind[..count]);
    *octets = &behind[count..];
    Ok(payload.len() + count)
}
