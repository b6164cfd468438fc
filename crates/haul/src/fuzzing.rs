//! Parsers of bytes that come from outside, for the targets in `fuzz/`.

use crate::{early, entry, journal, wire};

/// A control message: what is read must be read the same after it was written.
///
/// # Panics
/// If it is not.
pub fn control_message(body: &[u8]) {
    let Ok(Some(message)) = wire::decode(body) else {
        return;
    };
    if let Ok(body) = wire::encode(&message) {
        let again = wire::decode(&body).ok().flatten();
        assert_eq!(
            again.and_then(|again| wire::encode(&again).ok()),
            Some(body)
        );
    }
}

/// A batch of offered entries: what is read must be read the same after it was written, and names
/// nothing outside its directory. Early data of it lie within its files.
///
/// # Panics
/// If it is not.
pub fn offered_entries(bytes: &[u8]) {
    let Ok(entries) = entry::parse(bytes) else {
        return;
    };
    let early = bytes
        .last_chunk()
        .map_or(0, |last| u32::from_be_bytes(*last));
    if let Ok(prefixes) = early::divide(entries.iter(), early) {
        let sum: u64 = prefixes.iter().map(|prefix| prefix.len).sum();
        assert_eq!(sum, early.into());
        for prefix in prefixes {
            let data = entries[prefix.file as usize].data();
            assert!((1..=data).contains(&prefix.len) && sum <= early::EARLY_MAX);
        }
    }
    let mut batch = entry::Batch::default();
    for entry in &entries {
        let path = entry.path.as_bytes();
        assert!(
            !path
                .split(|byte| *byte == b'/')
                .any(|part| matches!(part, b"" | b"." | b".."))
        );
        assert!(entry.data() <= entry.size());
        if !batch.push(entry) {
            return;
        }
    }
    assert_eq!(
        entry::parse(&batch.into_bytes()).ok().as_ref(),
        Some(&entries)
    );
}

/// The choice of a request: what is read must be read the same after it was written, and its list
/// names nothing outside the tree.
///
/// # Panics
/// If it is not.
pub fn choice(body: &[u8]) {
    let Ok(chosen) = minicbor::decode::<crate::choice::Chosen>(body) else {
        return;
    };
    if let Ok(body) = minicbor::to_vec(&chosen) {
        assert_eq!(minicbor::decode(&body).ok().as_ref(), Some(&chosen));
    }
    let Ok(options) = chosen.options() else {
        return;
    };
    for path in options.list.unwrap_or_default() {
        assert!(!path.components().any(|name| matches!(name, b".." | b".")));
    }
}

/// A message of a listing: entries of a server, and those that a client has removed, lie below what
/// was asked for.
///
/// # Panics
/// If one does not.
pub fn listing(body: &[u8]) {
    use crate::listing::wire::{Message, decode};

    let items = match decode(body) {
        Ok(Some(Message::Batch(batch))) => batch.items,
        Ok(Some(Message::Delete(delete))) => delete.items,
        _ => return,
    };
    for item in items {
        let Ok((entry, _)) = item.into_entry() else {
            continue;
        };
        assert!(
            entry
                .path
                .components()
                .all(|name| !matches!(name, b".." | b"." | b""))
        );
    }
}

/// A resume journal: any header, any records behind it.
pub fn resume_journal(key: &[u8; 32], bytes: &[u8]) {
    let _ = bytes.get(..journal::HEADER).and_then(journal::parse_header);
    let (blocks, end) = journal::parse_records(bytes, key);
    assert!(end <= bytes.len() && blocks.len() <= bytes.len());
}

/// What an agent and a client receive through ssh: the agent's line, frames, greetings.
pub fn ssh(bytes: &[u8]) {
    use crate::ssh::greeting::{Introduction, Welcome, parse};
    use crate::ssh::mux::{HEADER, header};

    let _ = parse(bytes);
    if let Some(first) = bytes.first_chunk::<HEADER>()
        && let Some(header) = header(*first)
    {
        assert!(header.len <= 64 << 10);
    }
    let _ = minicbor::decode::<Introduction>(bytes);
    let _ = minicbor::decode::<Welcome>(bytes);
}
