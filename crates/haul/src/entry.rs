//! Entries of an offer: files, directories and links, and the batches that carry them.
//!
//! A batch is a sequence of entries. Each path is front-coded: the number of bytes that it shares
//! with the path before it, then the rest. docs/protocol/session.md lays down the bytes.

use crate::fault::{Code, Fault};
use crate::fs::meta::{Meta, XATTRS_MAX, Xattr};
use crate::fs::path::Relative;
use crate::name::PATH_MAX;
use crate::tree::SIZE_MAX;
use crate::wire::Time;

/// Maximum batch, bytes; an entry that alone is longer does not exist.
pub(crate) const BATCH_MAX: usize = 256 << 10;
/// Maximum of [`Entry::weight`] of the entries of a batch together, bytes; an entry that alone is
/// heavier does not exist.
const BATCH_WEIGHT: usize = 4 << 20;
/// Maximum number of entries of a batch.
pub(crate) const ENTRIES_MAX: usize = 16_384;
/// Maximum file that is offered to be moved whole, bytes.
pub(crate) const SMALL_MAX: u64 = 1 << 20;
/// Maximum target of a symbolic link, bytes.
const TARGET_MAX: usize = 4095;
/// Maximum number of data runs of a sparse file.
pub(crate) const EXTENTS_MAX: usize = 4096;
/// Maximum name of an extended attribute, bytes.
const XATTR_NAME_MAX: usize = 255;

const KIND: u8 = 0x07;
const FILE: u8 = 0;
const DIRECTORY: u8 = 1;
const SYMLINK: u8 = 2;
const HARD_LINK: u8 = 3;
const LINKED: u8 = 0x08;
const UNPROVEN: u8 = 0x10;
const MEMBER: u8 = 0x20;
const SPARSE: u8 = 0x40;
const EXTRA: u8 = 0x80;

/// An entry of an offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Below the directory of the request.
    pub(crate) path: Relative,
    pub(crate) modified: Time,
    /// Permission bits.
    pub(crate) mode: u32,
    /// It belongs to a tree: its failure does not end the session.
    pub(crate) is_member: bool,
    pub(crate) what: What,
    pub(crate) extra: Option<Extra>,
}

/// What an entry stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    File(FileEntry),
    Directory,
    Symlink {
        target: Vec<u8>,
    },
    /// Another name of a file that was offered before as `is_linked`.
    HardLink {
        path: Relative,
    },
}

/// A regular file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileEntry {
    pub(crate) size: u64,
    /// Size and time of the source prove nothing about its content: no file that exists counts as
    /// this one.
    pub(crate) unproven: bool,
    /// Hard links to it may follow.
    pub(crate) is_linked: bool,
    /// The data of a sparse file; the rest are holes. `None` if all of it is data.
    pub(crate) extents: Option<Vec<Extent>>,
}

/// A run of data of a sparse file, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

/// Owner and extended attributes of a member.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Extra {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) xattrs: Vec<Xattr>,
}

impl Entry {
    /// Returns the file, if it is one.
    pub(crate) fn file(&self) -> Option<&FileEntry> {
        match &self.what {
            What::File(file) => Some(file),
            _ => None,
        }
    }

    /// Returns the size of a file; 0 of everything else.
    pub(crate) fn size(&self) -> u64 {
        self.file().map_or(0, |file| file.size)
    }

    /// Returns the bytes of a file that the transfer space carries.
    pub(crate) fn data(&self) -> u64 {
        self.file().map_or(0, FileEntry::data)
    }

    /// Returns whether the file is moved whole, with others, instead of block by block.
    pub(crate) fn is_small(&self) -> bool {
        let is_small = |file: &FileEntry| file.size <= SMALL_MAX && file.extents.is_none();
        self.is_member && self.file().is_some_and(is_small)
    }

    /// Returns the bytes of paths, targets and attributes, and 16 for each run of data: what an end
    /// that knows the entry keeps of it beside a constant.
    pub(crate) fn weight(&self) -> usize {
        let what = match &self.what {
            What::File(file) => file.extents.as_ref().map_or(0, Vec::len) * size_of::<Extent>(),
            What::Directory => 0,
            What::Symlink { target } => target.len(),
            What::HardLink { path } => path.as_bytes().len(),
        };
        let xattrs = self.extra.iter().flat_map(|extra| &extra.xattrs);
        let xattrs: usize = xattrs.map(|(name, value)| name.len() + value.len()).sum();
        self.path.as_bytes().len() + what + xattrs
    }

    /// Returns the hash of the whole file, if its data are the whole file.
    pub(crate) fn hash_of_file(&self, root: [u8; 32]) -> Option<[u8; 32]> {
        let file = self.file()?;
        file.extents.is_none().then_some(root)
    }

    /// Returns the attributes to apply.
    pub(crate) fn meta(&self) -> Meta {
        let extra = self.extra.clone().unwrap_or_default();
        Meta {
            mode: self.mode,
            modified: self.modified.into(),
            uid: extra.uid,
            gid: extra.gid,
            xattrs: extra.xattrs,
        }
    }

    /// Returns whether the file has no data to request, and is not small.
    pub(crate) fn is_blank(&self) -> bool {
        self.file().is_some() && self.data() == 0 && !self.is_small()
    }

    /// Returns the path for people.
    pub(crate) fn shown(&self) -> String {
        self.path.to_string()
    }

    /// Hashes what both ends must agree on before a file is published: the request, the entry, and
    /// its content: a mistake of either end must not give a file another's name.
    pub(crate) fn seal(&self, binding: &[u8; 32], root: &[u8; 32]) -> [u8; 32] {
        let mut bytes = [&binding[..], &root[..]].concat();
        self.emit(&[], &mut bytes);
        *blake3::hash(&bytes).as_bytes()
    }

    /// Appends the entry to a batch, behind an entry with the path `previous`.
    fn emit(&self, previous: &[u8], out: &mut Vec<u8>) {
        let mut flags = if self.is_member { MEMBER } else { 0 };
        flags |= match &self.what {
            What::File(file) => {
                let unproven = if file.unproven { UNPROVEN } else { 0 };
                let linked = if file.is_linked { LINKED } else { 0 };
                FILE | unproven | linked | if file.extents.is_some() { SPARSE } else { 0 }
            }
            What::Directory => DIRECTORY,
            What::Symlink { .. } => SYMLINK,
            What::HardLink { .. } => HARD_LINK,
        };
        flags |= if self.extra.is_some() { EXTRA } else { 0 };
        out.push(flags);
        let path = self.path.as_bytes();
        let shared = shared(previous, path);
        number(shared as u64, out);
        bytes(&path[shared..], out);
        number(zigzag(self.modified.seconds), out);
        number(self.modified.nanos.into(), out);
        number(self.mode.into(), out);
        match &self.what {
            What::File(file) => {
                number(file.size, out);
                if let Some(extents) = &file.extents {
                    emit_extents(extents, out);
                }
            }
            What::Directory => {}
            What::Symlink { target } => bytes(target, out),
            What::HardLink { path } => bytes(path.as_bytes(), out),
        }
        if let Some(extra) = &self.extra {
            extra.emit(out);
        }
    }
}

impl FileEntry {
    /// Makes a file without holes.
    pub(crate) fn dense(size: u64) -> Self {
        Self {
            size,
            unproven: false,
            is_linked: false,
            extents: None,
        }
    }

    /// Returns the bytes that are data.
    pub(crate) fn data(&self) -> u64 {
        match &self.extents {
            None => self.size,
            Some(extents) => extents.iter().map(|extent| extent.len).sum(),
        }
    }
}

impl Extra {
    fn emit(&self, out: &mut Vec<u8>) {
        number(self.uid.into(), out);
        number(self.gid.into(), out);
        number(self.xattrs.len() as u64, out);
        for (name, value) in &self.xattrs {
            bytes(name, out);
            bytes(value, out);
        }
    }
}

fn emit_extents(extents: &[Extent], out: &mut Vec<u8>) {
    number(extents.len() as u64, out);
    let mut end = 0;
    for extent in extents {
        number(extent.start - end, out);
        number(extent.len, out);
        end = extent.start + extent.len;
    }
}

/// Returns how many bytes two paths have in common at their beginning.
fn shared(one: &[u8], other: &[u8]) -> usize {
    let pairs = one.iter().zip(other);
    pairs.take_while(|(one, other)| one == other).count()
}

/// Appends a number, 7 bits a byte, the lowest first (LEB128).
fn number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn bytes(bytes: &[u8], out: &mut Vec<u8>) {
    number(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

const fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

const fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -((number & 1).cast_signed())
}

/// A batch that is being filled.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    count: usize,
    weight: usize,
    last: Relative,
}

impl Batch {
    /// Appends an entry unless the batch is full; returns whether it did.
    pub(crate) fn push(&mut self, entry: &Entry) -> bool {
        let (before, weight) = (self.bytes.len(), self.weight + entry.weight());
        if self.count == ENTRIES_MAX || weight > BATCH_WEIGHT && self.count > 0 {
            return false;
        }
        entry.emit(self.last.as_bytes(), &mut self.bytes);
        if self.bytes.len() > BATCH_MAX && self.count > 0 {
            self.bytes.truncate(before);
            return false;
        }
        self.last.clone_from(&entry.path);
        (self.count, self.weight) = (self.count + 1, weight);
        true
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of bytes so far.
    pub(crate) const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the bytes.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Parses a batch of entries.
///
/// # Errors
/// [`Code::Protocol`] for bytes that are no batch, [`Code::Refused`] for a path that leads out.
pub(crate) fn parse(bytes: &[u8]) -> Result<Vec<Entry>, Fault> {
    let mut entries: Vec<Entry> = Vec::new();
    let (mut reader, mut weight) = (Reader(bytes), 0);
    // One entry may be longer than a full batch.
    if bytes.len() > BATCH_MAX + 2 * XATTRS_MAX {
        return Err(malformed());
    }
    while !reader.0.is_empty() {
        if entries.len() == ENTRIES_MAX {
            return Err(malformed());
        }
        let previous = entries
            .last()
            .map_or(&[][..], |entry| entry.path.as_bytes());
        let entry = reader.entry(previous)?;
        // Paths may be many times longer than what they share with others.
        weight += entry.weight();
        if weight > BATCH_WEIGHT && !entries.is_empty() {
            return Err(malformed());
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn malformed() -> Fault {
    Fault::protocol("the peer sent a batch of entries that cannot be read")
}

/// Checks a path that the peer chose.
fn below(path: &[u8]) -> Result<Relative, Fault> {
    let path = Relative::new(path)?;
    match path.is_root() {
        true => Err(Fault::new(Code::Refused, "an offered path is empty")),
        false => Ok(path),
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn entry(&mut self, previous: &[u8]) -> Result<Entry, Fault> {
        let flags = self.byte()?;
        let shared = self.length(previous.len())?;
        let rest = self.bytes(PATH_MAX)?;
        let path = below(&[&previous[..shared], rest].concat())?;
        let seconds = unzigzag(self.number()?);
        let nanos = self.small(999_999_999)?;
        let mode = self.small(0o7777)?;
        let what = match flags & KIND {
            FILE => What::File(self.file(flags)?),
            DIRECTORY => What::Directory,
            SYMLINK => What::Symlink {
                target: self.target()?,
            },
            HARD_LINK => What::HardLink {
                path: below(self.bytes(PATH_MAX)?)?,
            },
            _ => return Err(malformed()),
        };
        let extra = match flags & EXTRA {
            0 => None,
            _ => Some(self.extra()?),
        };
        Ok(Entry {
            path,
            modified: Time { seconds, nanos },
            mode,
            is_member: flags & MEMBER != 0,
            what,
            extra,
        })
    }

    fn file(&mut self, flags: u8) -> Result<FileEntry, Fault> {
        let size = self.number()?;
        if size > SIZE_MAX {
            return Err(Fault::new(Code::Refused, "a file is too large"));
        }
        let extents = match flags & SPARSE {
            0 => None,
            _ => Some(self.extents(size)?),
        };
        Ok(FileEntry {
            size,
            unproven: flags & UNPROVEN != 0,
            is_linked: flags & LINKED != 0,
            extents,
        })
    }

    fn extents(&mut self, size: u64) -> Result<Vec<Extent>, Fault> {
        let count = self.length(EXTENTS_MAX)?;
        let (mut extents, mut end) = (Vec::new(), 0_u64);
        for index in 0..count {
            let (gap, len) = (self.number()?, self.number()?);
            let start = end.checked_add(gap).ok_or_else(malformed)?;
            end = start.checked_add(len).ok_or_else(malformed)?;
            if len == 0 || (gap == 0 && index > 0) || end > size {
                return Err(malformed());
            }
            extents.push(Extent { start, len });
        }
        Ok(extents)
    }

    fn target(&mut self) -> Result<Vec<u8>, Fault> {
        let target = self.bytes(TARGET_MAX)?;
        if target.is_empty() || target.contains(&0) {
            return Err(malformed());
        }
        Ok(target.to_vec())
    }

    fn extra(&mut self) -> Result<Extra, Fault> {
        let (uid, gid) = (self.small(u32::MAX)?, self.small(u32::MAX)?);
        let count = self.length(XATTRS_MAX / 2)?;
        let (mut xattrs, mut left) = (Vec::new(), XATTRS_MAX);
        for _ in 0..count {
            let name = self.bytes(left.min(XATTR_NAME_MAX))?;
            let value = self.bytes(left - name.len())?;
            if name.is_empty() || name.contains(&0) {
                return Err(malformed());
            }
            left -= name.len() + value.len();
            xattrs.push((name.into(), value.into()));
        }
        Ok(Extra { uid, gid, xattrs })
    }

    fn byte(&mut self) -> Result<u8, Fault> {
        let (first, rest) = self.0.split_first().ok_or_else(malformed)?;
        self.0 = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Result<u64, Fault> {
        let mut number = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(malformed());
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                // The shortest form only: seals cover these bytes.
                return match byte == 0 && shift > 0 {
                    true => Err(malformed()),
                    false => Ok(number),
                };
            }
        }
        Err(malformed())
    }

    fn small(&mut self, most: u32) -> Result<u32, Fault> {
        let number = u32::try_from(self.number()?).ok();
        number
            .filter(|number| *number <= most)
            .ok_or_else(malformed)
    }

    fn length(&mut self, most: usize) -> Result<usize, Fault> {
        let length = usize::try_from(self.number()?).ok();
        length
            .filter(|length| *length <= most)
            .ok_or_else(malformed)
    }

    fn bytes(&mut self, most: usize) -> Result<&'a [u8], Fault> {
        let length = self.length(most)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or_else(malformed)?;
        self.0 = rest;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_that_share_much_do_not_make_a_batch_heavy() {
        let long = vec!["x".repeat(250); 15].join("/");
        let mut batch = Batch::default();
        let mut count = 0;
        while batch.push(&file(&format!("{long}/{count}"), 1)) {
            count += 1;
        }
        assert!(count < ENTRIES_MAX && batch.bytes.len() < BATCH_MAX / 4);
        let one_more = file(&format!("{long}/{count}"), 1);
        one_more.emit(batch.last.as_bytes(), &mut batch.bytes);
        assert!(parse(&batch.bytes).is_err());
        let end = batch.bytes.len() - 1;
        assert!(parse(&batch.bytes[..end]).is_err());
    }

    fn file(path: &str, size: u64) -> Entry {
        Entry {
            path: Relative::new(path.as_bytes()).unwrap(),
            modified: Time {
                seconds: -5,
                nanos: 7,
            },
            mode: 0o644,
            is_member: true,
            what: What::File(FileEntry::dense(size)),
            extra: None,
        }
    }

    fn batch(entries: &[Entry]) -> Vec<u8> {
        let mut batch = Batch::default();
        for entry in entries {
            assert!(batch.push(entry));
        }
        batch.into_bytes()
    }

    #[test]
    fn entries_of_all_kinds_survive_the_wire() {
        let mut sparse = file("t/d/sparse", 1 << 40);
        let extents = [(4096, 8192), (1 << 30, 1)];
        let extents = extents.map(|(start, len)| Extent { start, len });
        sparse.what = What::File(FileEntry {
            size: 1 << 40,
            unproven: true,
            is_linked: true,
            extents: Some(extents.to_vec()),
        });
        let with = |path: &str, what| Entry {
            what,
            extra: Some(Extra {
                uid: 0,
                gid: 7,
                xattrs: vec![(b"user.a"[..].into(), [0, 255][..].into())],
            }),
            ..file(path, 0)
        };
        let target = b"../\xff".to_vec();
        let path = sparse.path.clone();
        let entries = [
            with("t", What::Directory),
            with("t/d", What::Directory),
            sparse,
            with("t/link", What::Symlink { target }),
            with("t/other", What::HardLink { path }),
            file("a\nb", 0),
        ];
        assert_eq!(parse(&batch(&entries)).unwrap(), entries);
    }

    #[test]
    fn a_full_batch_takes_no_more_and_is_read() {
        let (mut batch, mut count) = (Batch::default(), 0);
        while batch.push(&file(&format!("{count:0200}"), count)) {
            count += 1;
        }
        let bytes = batch.into_bytes();
        assert!(bytes.len() <= BATCH_MAX);
        assert_eq!(parse(&bytes).unwrap().len() as u64, count);
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for bad in [
            "",
            "/etc",
            "..",
            "a/..",
            "a/../b",
            "a//b",
            "a/",
            "./a",
            "a\0b",
            ".x.haul-part",
            "a/.x.haul-journal/b",
        ] {
            let mut bytes = vec![DIRECTORY, 0];
            super::bytes(bad.as_bytes(), &mut bytes);
            bytes.extend([0, 0, 0]);
            assert!(parse(&bytes).is_err(), "{bad:?}");
            let mut bytes = vec![HARD_LINK, 0, 1, b'a', 0, 0, 0];
            super::bytes(bad.as_bytes(), &mut bytes);
            assert!(parse(&bytes).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_number_has_one_form_and_64_bits() {
        let read = |bytes: &[u8]| Reader(bytes).number().ok();
        assert_eq!(read(&[0x80, 0x01]), Some(128));
        assert_eq!(read(&[0x80, 0x00]), None);
        let mut most = Vec::new();
        number(u64::MAX, &mut most);
        assert_eq!(read(&most), Some(u64::MAX));
        *most.last_mut().unwrap() = 2;
        assert_eq!(read(&most), None);
        assert_eq!(read(&[0xff; 11]), None);
    }

    #[test]
    fn extents_ascend_and_stay_inside_the_file() {
        let sparse = |list: &[(u64, u64)]| {
            let extents = list.iter().map(|(start, len)| Extent {
                start: *start,
                len: *len,
            });
            let what = What::File(FileEntry {
                size: 100,
                unproven: false,
                is_linked: false,
                extents: Some(extents.collect()),
            });
            parse(&batch(&[Entry {
                what,
                ..file("a", 0)
            }]))
        };
        assert!(sparse(&[]).is_ok());
        assert!(sparse(&[(0, 10), (20, 80)]).is_ok());
        for bad in [&[(0, 101)][..], &[(0, 0)], &[(0, 10), (10, 5)], &[(99, 2)]] {
            assert!(sparse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_seal_covers_the_request_the_entry_and_the_content() {
        let entry = file("name", 7);
        let seal = |change: fn(&mut Entry)| {
            let mut entry = entry.clone();
            change(&mut entry);
            entry.seal(&[1; 32], &[9; 32])
        };
        let same = seal(|_| {});
        for other in [
            seal(|entry| entry.path = Relative::new(b"namf").unwrap()),
            seal(|entry| entry.what = What::File(FileEntry::dense(6))),
            seal(|entry| entry.modified.seconds ^= 1),
            seal(|entry| entry.modified.nanos ^= 1),
            seal(|entry| entry.mode ^= 1),
            seal(|entry| entry.is_member = false),
            seal(|entry| entry.extra = Some(Extra::default())),
            entry.seal(&[2; 32], &[9; 32]),
            entry.seal(&[1; 32], &[8; 32]),
        ] {
            assert_ne!(other, same);
        }
    }

    proptest! {
        #[test]
        fn junk_is_an_error_and_what_is_read_is_written_alike(
            junk in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            if let Ok(entries) = parse(&junk) {
                let again = batch(&entries);
                prop_assert_eq!(parse(&again).unwrap(), entries);
            }
        }

        #[test]
        fn any_time_survives(seconds in any::<i64>(), nanos in 0_u32..1_000_000_000) {
            let mut entry = file("a", 1);
            entry.modified = Time { seconds, nanos };
            prop_assert_eq!(parse(&batch(&[entry.clone()])).unwrap(), [entry]);
        }
    }
}
