//! What applications declare about a session or a connection, for the gateways on the way and those
//! who look after them: a few pairs of texts, which Longhaul shows and does nothing else with.

use std::collections::BTreeMap;

use super::codec::{Reader, Writer};

/// Most pairs of one session or connection.
pub const METADATA_PAIRS_MAX: usize = 16;
/// Most bytes of a key.
pub const METADATA_KEY_MAX: usize = 64;
/// Most bytes of a value.
pub const METADATA_VALUE_MAX: usize = 256;

/// Pairs of key and value within the bounds.
///
/// From a peer that exceeds them nothing is taken, and [`Self::is_dropped`] says so: a description
/// is no reason to end what it describes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Metadata {
    /// At most [`METADATA_PAIRS_MAX`]; none with `is_dropped`.
    pairs: BTreeMap<String, String>,
    is_dropped: bool,
}

/// Why a pair is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub enum MetadataError {
    /// There is no `=`.
    NoPair,
    /// A key of nothing, of too much, or of what it may not have.
    Key,
    /// Too long a value.
    Value,
    /// A value that is no text.
    Text,
    /// The key is there.
    Twice,
    /// One pair more than may be.
    TooMany,
}

impl MetadataError {
    /// In words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NoPair => "metadata is KEY=VALUE",
            Self::Key => "a key of metadata is 1 to 64 of A-Z a-z 0-9 . _ -",
            Self::Value => "a value of metadata is at most 256 bytes",
            Self::Text => "a value of metadata is UTF-8",
            Self::Twice => "a key of metadata is there twice",
            Self::TooMany => "there are at most 16 pairs of metadata",
        }
    }
}

impl Metadata {
    /// Takes a pair.
    ///
    /// # Errors
    /// Why not: then nothing has changed.
    pub fn insert(&mut self, key: &str, value: &str) -> Result<(), MetadataError> {
        let is_known =
            |octet: u8| octet.is_ascii_alphanumeric() || matches!(octet, b'.' | b'_' | b'-');
        if !(1..=METADATA_KEY_MAX).contains(&key.len()) || !key.bytes().all(is_known) {
            return Err(MetadataError::Key);
        }
        if value.len() > METADATA_VALUE_MAX {
            return Err(MetadataError::Value);
        }
        if self.pairs.contains_key(key) {
            return Err(MetadataError::Twice);
        }
        if self.pairs.len() >= METADATA_PAIRS_MAX {
            return Err(MetadataError::TooMany);
        }
        self.pairs.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    /// Takes `KEY=VALUE`, as people write it. A value may have `=` in it.
    ///
    /// # Errors
    /// As [`Self::insert`], or it is not that.
    pub fn insert_pair(&mut self, pair: &[u8]) -> Result<(), MetadataError> {
        let equals = pair.iter().position(|octet| *octet == b'=');
        let (key, value) = pair.split_at(equals.ok_or(MetadataError::NoPair)?);
        let key = std::str::from_utf8(key).map_err(|_| MetadataError::Key)?;
        let value = std::str::from_utf8(&value[1..]).map_err(|_| MetadataError::Text)?;
        self.insert(key, value)
    }

    /// The pairs, in the order of their keys.
    #[must_use]
    pub const fn pairs(&self) -> &BTreeMap<String, String> {
        &self.pairs
    }

    /// There is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The peer has said something beyond the bounds, of which nothing was taken.
    #[must_use]
    pub const fn is_dropped(&self) -> bool {
        self.is_dropped
    }

    /// What a peer that has exceeded a bound counts as having said.
    pub(crate) const fn dropped() -> Self {
        Self {
            pairs: BTreeMap::new(),
            is_dropped: true,
        }
    }

    /// Pairs.
    pub(crate) fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Bytes of keys and values.
    pub(crate) fn octets(&self) -> usize {
        let pairs = self.pairs.iter();
        pairs.map(|(key, value)| key.len() + value.len()).sum()
    }

    /// `key octets (8) | value octets (16) | key | value`, for each. What was dropped is nothing.
    pub(super) fn emit(&self, out: &mut Writer) {
        for (key, value) in &self.pairs {
            out.u8(u8::try_from(key.len()).unwrap_or(0));
            out.u16(u16::try_from(value.len()).unwrap_or(0));
            out.bytes(key.as_bytes()).bytes(value.as_bytes());
        }
    }

    /// Never fails: what is not within the bounds is dropped, as is an element without a pair.
    pub(super) fn parse(value: &mut Reader<'_>) -> Self {
        Self::parse_pairs(value)
            .filter(|found| !found.is_empty())
            .unwrap_or(Self::dropped())
    }

    fn parse_pairs(value: &mut Reader<'_>) -> Option<Self> {
        let mut found = Self::default();
        while !value.is_empty() {
            let (key_len, value_len) = (value.u8().ok()?, value.u16().ok()?);
            let key = value.bytes(usize::from(key_len)).ok()?;
            let text = value.bytes(usize::from(value_len)).ok()?;
            let text = std::str::from_utf8(text).ok()?;
            found.insert(std::str::from_utf8(key).ok()?, text).ok()?;
        }
        Some(found)
    }

    /// What APP_DATA has of a session's.
    pub(crate) fn to_octets(&self) -> Vec<u8> {
        let mut out = Writer::default();
        self.emit(&mut out);
        out.0
    }

    /// The reverse.
    pub(crate) fn from_octets(octets: &[u8]) -> Self {
        Self::parse(&mut Reader::new(octets, "metadata"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(pairs: &[(&str, &str)]) -> Metadata {
        let mut made = Metadata::default();
        for (key, value) in pairs {
            made.insert(key, value).unwrap();
        }
        made
    }

    fn dropped(octets: &[u8]) -> bool {
        Metadata::from_octets(octets) == Metadata::dropped()
    }

    #[test]
    fn pairs_are_written_and_read_again_alike() {
        let one = metadata(&[("job", "a=b é"), ("Site_1.x-y", "")]);
        let octets = one.to_octets();
        assert_eq!(
            octets,
            b"\x0a\0\0Site_1.x-y\x03\0\x06joba=b \xc3\xa9".as_slice()
        );
        assert_eq!(Metadata::from_octets(&octets), one);
        let mut most = Metadata::default();
        for index in 0..METADATA_PAIRS_MAX {
            let key = format!("{index:0>METADATA_KEY_MAX$}");
            most.insert(&key, &"v".repeat(METADATA_VALUE_MAX)).unwrap();
        }
        assert_eq!(Metadata::from_octets(&most.to_octets()), most);
        assert_eq!(most.insert("more", ""), Err(MetadataError::TooMany));
    }

    #[test]
    fn what_exceeds_a_bound_is_not_taken() {
        let mut made = metadata(&[("there", "")]);
        let long = "k".repeat(METADATA_KEY_MAX + 1);
        for key in ["", "a b", "é", "a\n", "a=b", long.as_str()] {
            assert_eq!(made.insert(key, ""), Err(MetadataError::Key), "{key:?}");
        }
        let value = "é".repeat(METADATA_VALUE_MAX / 2) + "x";
        assert_eq!(made.insert("key", &value), Err(MetadataError::Value));
        assert_eq!(made.insert("there", "again"), Err(MetadataError::Twice));
        assert_eq!(made.insert_pair(b"key"), Err(MetadataError::NoPair));
        assert_eq!(made.insert_pair(b"=value"), Err(MetadataError::Key));
        assert_eq!(made.insert_pair(b"key=\xff"), Err(MetadataError::Text));
        assert_eq!(made, metadata(&[("there", "")]));
        made.insert_pair(b"key=a=b").unwrap();
        assert_eq!(made.pairs()["key"], "a=b");
    }

    #[test]
    fn of_octets_that_exceed_a_bound_nothing_is_taken() {
        assert!(dropped(b""), "no pair");
        assert!(dropped(b"\x01\0"), "too short");
        assert!(dropped(b"\x02\0\0a"), "too short a key");
        assert!(dropped(b"\x01\0\x02av"), "too short a value");
        assert!(dropped(b"\x00\0\x01v"), "no key");
        assert!(dropped(b"\x01\0\0 "), "a key that may not be");
        assert!(dropped(b"\x01\0\x01a\xff"), "no text");
        assert!(dropped(b"\x01\0\0a\x01\0\0a"), "twice");
        let long = [b"\x01\x01\x01a".as_slice(), &[b'v'; 257]].concat();
        assert!(dropped(&long), "too long a value");
        let many: Vec<u8> = (b'a'..)
            .take(METADATA_PAIRS_MAX + 1)
            .flat_map(|key| [1, 0, 0, key])
            .collect();
        assert!(dropped(&many), "too many");
        assert!(!dropped(&many[..many.len() - 4]));
        assert_eq!(Metadata::dropped().to_octets(), b"");
    }
}
