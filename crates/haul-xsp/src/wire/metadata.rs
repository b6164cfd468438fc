//! Metadata that applications declare about a session or a connection, for the gateways on the path
//! and their operators: a few pairs of texts, which Longhaul only displays.

use std::collections::BTreeMap;

use super::codec::{Reader, Writer};

/// Most pairs of one session or connection.
pub const METADATA_PAIRS_MAX: usize = 16;
/// Most bytes of a key.
pub const METADATA_KEY_MAX: usize = 64;
/// Most bytes of a value.
pub const METADATA_VALUE_MAX: usize = 256;
/// Keys with this prefix are the gateways' own: applications cannot set them.
pub const METADATA_RESERVED: &str = "haul.";

/// Pairs of key and value within the bounds.
///
/// If a peer exceeds them, all its pairs are ignored and [`Self::is_dropped`] is set: metadata is
/// no reason to end a session.
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
    /// A key that is empty, too long, or has invalid characters.
    Key,
    /// Too long a value.
    Value,
    /// A value that is no text.
    Text,
    /// The key is there.
    Twice,
    /// One pair more than may be.
    TooMany,
    /// A key that only gateways set.
    Reserved,
}

impl MetadataError {
    /// Returns the error in words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NoPair => "metadata is KEY=VALUE",
            Self::Key => "a key of metadata is 1 to 64 of A-Z a-z 0-9 . _ -",
            Self::Value => "a value of metadata is at most 256 bytes",
            Self::Text => "a value of metadata is UTF-8",
            Self::Twice => "a key of metadata is there twice",
            Self::TooMany => "there are at most 16 pairs of metadata",
            Self::Reserved => "keys of metadata that begin with 'haul.' are reserved for gateways",
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

    /// Inserts a pair of an application or of a configuration.
    ///
    /// # Errors
    /// As [`Self::insert`], or the key is reserved for gateways ([`METADATA_RESERVED`]).
    pub fn insert_of_user(&mut self, key: &str, value: &str) -> Result<(), MetadataError> {
        if key.starts_with(METADATA_RESERVED) {
            return Err(MetadataError::Reserved);
        }
        self.insert(key, value)
    }

    /// Sets a pair of a gateway. It replaces a pair with this key; if it does not fit, it displaces
    /// the last other pair.
    ///
    /// # Errors
    /// The key or the value exceeds its bounds.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), MetadataError> {
        self.pairs.remove(key);
        let dropped = match self.pairs.len() {
            METADATA_PAIRS_MAX.. => self.pairs.pop_last(),
            _ => None,
        };
        let inserted = self.insert(key, value);
        if inserted.is_err() {
            self.pairs.extend(dropped);
        }
        inserted
    }

    /// Returns the value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.get(key).map(String::as_str)
    }

    /// Returns the pairs that applications and operators have set, without those of gateways.
    pub fn pairs_of_users(&self) -> impl Iterator<Item = (&String, &String)> {
        let pairs = self.pairs.iter();
        pairs.filter(|(key, _)| !key.starts_with(METADATA_RESERVED))
    }

    /// Inserts `KEY=VALUE` of an application. The value may contain `=`.
    ///
    /// # Errors
    /// As [`Self::insert_of_user`], or it is no such pair.
    pub fn insert_pair(&mut self, pair: &[u8]) -> Result<(), MetadataError> {
        let equals = pair.iter().position(|octet| *octet == b'=');
        let (key, value) = pair.split_at(equals.ok_or(MetadataError::NoPair)?);
        let key = std::str::from_utf8(key).map_err(|_| MetadataError::Key)?;
        let value = std::str::from_utf8(&value[1..]).map_err(|_| MetadataError::Text)?;
        self.insert_of_user(key, value)
    }

    /// Returns the pairs, in the order of their keys.
    #[must_use]
    pub const fn pairs(&self) -> &BTreeMap<String, String> {
        &self.pairs
    }

    /// Whether it has no pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Whether the peer's metadata exceeded the bounds and was ignored.
    #[must_use]
    pub const fn is_dropped(&self) -> bool {
        self.is_dropped
    }

    /// The metadata recorded for a peer that has exceeded a bound.
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

    /// `key octets (8) | value octets (16) | key | value`, for each. Dropped metadata is empty.
    pub(super) fn emit(&self, out: &mut Writer) {
        for (key, value) in &self.pairs {
            out.u8(u8::try_from(key.len()).unwrap_or(0));
            out.u16(u16::try_from(value.len()).unwrap_or(0));
            out.bytes(key.as_bytes()).bytes(value.as_bytes());
        }
    }

    /// Never fails: pairs beyond the bounds are dropped, as is an element without a pair.
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

    /// A session's metadata in APP_DATA.
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
    fn applications_cannot_set_what_gateways_set() {
        let mut made = Metadata::default();
        let forged = made.insert_pair(b"haul.client=192.0.2.1:1");
        assert_eq!(forged, Err(MetadataError::Reserved));
        for index in 0..METADATA_PAIRS_MAX {
            made.insert_of_user(&format!("x{index:02}"), "").unwrap();
        }
        made.set("haul.client", "192.0.2.1:1").unwrap();
        assert_eq!(made.len(), METADATA_PAIRS_MAX);
        assert_eq!(made.get("haul.client"), Some("192.0.2.1:1"));
        assert_eq!(made.get("x15"), None, "the last pair gave way");
        made.set("haul.client", "192.0.2.2:2").unwrap();
        assert_eq!(made.get("haul.client"), Some("192.0.2.2:2"));
        let long = "v".repeat(METADATA_VALUE_MAX + 1);
        assert_eq!(made.set("haul.gateway", &long), Err(MetadataError::Value));
        assert_eq!(made.pairs_of_users().count(), METADATA_PAIRS_MAX - 1);
        assert_eq!(Metadata::from_octets(&made.to_octets()), made);
    }

    #[test]
    fn metadata_beyond_a_bound_is_ignored() {
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
