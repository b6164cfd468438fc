//! The resume journal: which blocks of a part file are verified, kept in a file beside it.
//!
//! An append-only log of fixed-size records behind a header that names the source and the part
//! file. Each record carries a check keyed by the header, so a torn tail, or a record of an earlier
//! journal that happens to lie on the same disk blocks, ends the log instead of being trusted. The
//! data is durable before a record of it is written (docs/adr/0006-resume-journal.md).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use haul_io::file::FileTime;

use crate::tree::Digest;

#[cfg(test)]
mod power;

const MAGIC: &[u8; 8] = b"haulJRN2";
pub(crate) const HEADER: usize = 64;
const RECORD: usize = 44;
const CHECK: usize = 8;
/// Maximum log: 65 536 blocks, each verified a few times. A longer one is not ours.
const LENGTH_MAX: u64 = 64 << 20;

/// Subject of a log. If any field differs, the log is discarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) size: u64,
    pub(crate) modified: FileTime,
    /// Inode of the part file.
    pub(crate) inode: u64,
    /// Where the data of a sparse file lies: [`crate::layout::Layout::mark`].
    pub(crate) layout: u32,
}

/// A verified block and its digest.
pub(crate) type Verified = (u32, Digest);

/// Content of an existing log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// The part file holds these blocks of the same source.
    Blocks(Vec<Verified>),
    /// It belongs to another source.
    OtherSource,
    /// It is missing or unreadable.
    Nothing,
}

/// What a journal needs of a file.
pub(crate) trait Storage {
    fn length(&self) -> io::Result<u64>;
    fn read_exact_at(&self, buf: &mut [u8], position: u64) -> io::Result<()>;
    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()>;
    fn set_length(&self, length: u64) -> io::Result<()>;
    /// Makes what was written durable.
    fn sync(&self) -> io::Result<()>;
}

impl Storage for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, buf: &mut [u8], position: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buf, position)
    }

    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, position)
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

#[derive(Debug)]
pub(crate) struct Journal<S = File> {
    file: S,
    subject: Subject,
    key: [u8; 32],
    end: u64,
}

impl<S: Storage> Journal<S> {
    /// Opens the log in `file` and reads its records of `subject`; whatever else it holds
    /// is thrown away and a new log begun, with `id` as 16 fresh random bytes.
    pub(crate) fn open(file: S, subject: Subject, id: [u8; 16]) -> io::Result<(Self, Content)> {
        let bytes = load(&file)?;
        let mut content = Content::Nothing;
        if let Some(header) = bytes.get(..HEADER)
            && let Some(found) = parse_header(header)
        {
            if found == subject {
                let key = *blake3::hash(header).as_bytes();
                let (blocks, end) = parse_records(&bytes[HEADER..], &key);
                let journal = Self {
                    file,
                    subject,
                    key,
                    end: (HEADER + end) as u64,
                };
                journal.file.set_length(journal.end)?;
                return Ok((journal, Content::Blocks(blocks)));
            }
            content = Content::OtherSource;
        }
        let mut journal = Self {
            file,
            subject,
            key: [0; 32],
            end: 0,
        };
        journal.restart(id)?;
        Ok((journal, content))
    }

    /// Discards all records, durably, and begins a new log with `id` as 16 fresh random bytes.
    pub(crate) fn restart(&mut self, id: [u8; 16]) -> io::Result<()> {
        let header = emit_header(self.subject, id);
        self.file.set_length(0)?;
        self.file.write_all_at(&header, 0)?;
        self.file.sync()?;
        self.key = *blake3::hash(&header).as_bytes();
        self.end = HEADER as u64;
        Ok(())
    }

    /// Makes the data of blocks durable, then appends these and makes the log durable.
    pub(crate) fn append(&mut self, data: &S, blocks: &[Verified]) -> io::Result<()> {
        data.sync()?;
        let mut bytes = Vec::with_capacity(blocks.len() * RECORD);
        for (block, digest) in blocks {
            let start = bytes.len();
            bytes.extend_from_slice(&block.to_le_bytes());
            bytes.extend_from_slice(digest);
            let check = check(&self.key, &bytes[start..]);
            bytes.extend_from_slice(&check);
        }
        self.file.write_all_at(&bytes, self.end)?;
        self.file.sync()?;
        self.end += bytes.len() as u64;
        Ok(())
    }
}

fn load(file: &impl Storage) -> io::Result<Vec<u8>> {
    let length = file.length()?;
    if length > LENGTH_MAX {
        return Ok(Vec::new());
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn emit_header(subject: Subject, id: [u8; 16]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..24].copy_from_slice(&id);
    header[24..32].copy_from_slice(&subject.size.to_le_bytes());
    header[32..40].copy_from_slice(&subject.modified.seconds.to_le_bytes());
    header[40..44].copy_from_slice(&subject.modified.nanos.to_le_bytes());
    header[44..48].copy_from_slice(&subject.layout.to_le_bytes());
    header[48..56].copy_from_slice(&subject.inode.to_le_bytes());
    let check = check(blake3::hash(MAGIC).as_bytes(), &header[..HEADER - CHECK]);
    header[HEADER - CHECK..].copy_from_slice(&check);
    header
}

pub(crate) fn parse_header(header: &[u8]) -> Option<Subject> {
    let (body, found) = header.split_at(HEADER - CHECK);
    if &body[..8] != MAGIC || found != check(blake3::hash(MAGIC).as_bytes(), body) {
        return None;
    }
    let number = |at: usize| body[at..at + 8].try_into().map(u64::from_le_bytes).ok();
    Some(Subject {
        size: number(24)?,
        modified: FileTime {
            seconds: body[32..40].try_into().map(i64::from_le_bytes).ok()?,
            nanos: body[40..44].try_into().map(u32::from_le_bytes).ok()?,
        },
        layout: body[44..48].try_into().map(u32::from_le_bytes).ok()?,
        inode: number(48)?,
    })
}

/// Parses the records up to the first whose check fails, and returns where they end. A block that
/// occurs twice counts with its latest digest.
pub(crate) fn parse_records(bytes: &[u8], key: &[u8; 32]) -> (Vec<Verified>, usize) {
    let mut blocks = std::collections::BTreeMap::new();
    let mut end = 0;
    for record in bytes.as_chunks::<RECORD>().0 {
        let (body, found) = record.split_at(RECORD - CHECK);
        let (Some((block, _)), Some((_, digest))) =
            (body.split_first_chunk::<4>(), body.split_last_chunk::<32>())
        else {
            break;
        };
        if found != check(key, body) {
            break;
        }
        blocks.insert(u32::from_le_bytes(*block), *digest);
        end += RECORD;
    }
    (blocks.into_iter().collect(), end)
}

fn check(key: &[u8; 32], bytes: &[u8]) -> [u8; CHECK] {
    let hash = blake3::keyed_hash(key, bytes);
    let mut check = [0; CHECK];
    check.copy_from_slice(&hash.as_bytes()[..CHECK]);
    check
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SUBJECT: Subject = Subject {
        size: 10 << 20,
        modified: FileTime {
            seconds: -5,
            nanos: 7,
        },
        inode: 77,
        layout: 9,
    };

    fn journal_with(blocks: &[Verified]) -> File {
        let file = tempfile::tempfile().unwrap();
        let (mut journal, content) =
            Journal::open(file.try_clone().unwrap(), SUBJECT, [1; 16]).unwrap();
        assert_eq!(content, Content::Nothing);
        journal.append(&file, blocks).unwrap();
        file
    }

    fn reopen(file: &File, subject: Subject) -> Content {
        Journal::open(file.try_clone().unwrap(), subject, [2; 16])
            .unwrap()
            .1
    }

    #[test]
    fn blocks_are_found_again_and_more_can_follow() {
        let file = journal_with(&[(3, [3; 32]), (1, [1; 32])]);
        let (mut journal, content) =
            Journal::open(file.try_clone().unwrap(), SUBJECT, [2; 16]).unwrap();
        assert_eq!(content, Content::Blocks(vec![(1, [1; 32]), (3, [3; 32])]));
        journal.append(&file, &[(2, [2; 32])]).unwrap();
        let Content::Blocks(blocks) = reopen(&file, SUBJECT) else {
            panic!("lost")
        };
        assert_eq!(blocks.len(), 3);
    }

    #[test]
    fn a_changed_source_or_another_part_file_voids_the_log() {
        for other in [
            Subject { size: 1, ..SUBJECT },
            Subject {
                modified: FileTime {
                    seconds: -5,
                    nanos: 8,
                },
                ..SUBJECT
            },
            Subject {
                inode: 78,
                ..SUBJECT
            },
        ] {
            let file = journal_with(&[(0, [0; 32])]);
            assert_eq!(reopen(&file, other), Content::OtherSource);
            assert_eq!(reopen(&file, other), Content::Blocks(vec![]));
        }
    }

    #[test]
    fn a_log_that_is_begun_anew_claims_only_what_is_noted_since() {
        let file = journal_with(&[(1, [1; 32]), (2, [2; 32])]);
        let (mut journal, _) = Journal::open(file.try_clone().unwrap(), SUBJECT, [2; 16]).unwrap();
        journal.restart([3; 16]).unwrap();
        assert_eq!(reopen(&file, SUBJECT), Content::Blocks(vec![]));
        journal.append(&file, &[(2, [9; 32])]).unwrap();
        assert_eq!(reopen(&file, SUBJECT), Content::Blocks(vec![(2, [9; 32])]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn a_torn_or_damaged_log_never_claims_a_block_that_was_not_written(
            count in 0_u8..20,
            cut in 0_usize..1000,
            damage in proptest::option::of((0_usize..1000, 1_u8..=255)),
        ) {
            let written: Vec<Verified> = (0..count).map(|n| (n.into(), [n; 32])).collect();
            let file = journal_with(&written);
            let length = usize::try_from(file.metadata().unwrap().len()).unwrap();
            file.set_len(cut.min(length) as u64).unwrap();
            if let Some((at, flip)) = damage && at < cut.min(length) {
                let mut byte = [0];
                FileExt::read_exact_at(&file, &mut byte, at as u64).unwrap();
                FileExt::write_all_at(&file, &[byte[0] ^ flip], at as u64).unwrap();
            }
            if let Content::Blocks(blocks) = reopen(&file, SUBJECT) {
                prop_assert!(blocks.iter().all(|block| written.contains(block)));
            }
        }
    }
}
