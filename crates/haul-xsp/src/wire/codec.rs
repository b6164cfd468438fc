//! Reading with every length checked, and writing; elements (`type | length | value | padding to
//! 4`).

use super::error::ParseError;

/// Most elements in a list of them (part B1).
pub const TLVS_MAX: usize = 1_024;
/// How deep elements may nest (part B1).
pub const DEPTH_MAX: u8 = 4;
/// Critical bit of an element's type: a reader that does not know the type must refuse the PDU.
pub(crate) const CRITICAL: u16 = 0x8000;

/// The unread input.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
    depth: u8,
    tlvs: usize,
}

/// An element.
pub(crate) struct Tlv<'a> {
    pub(crate) kind: u16,
    pub(crate) critical: bool,
    pub(crate) value: Reader<'a>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(octets: &'a [u8], what: &'static str) -> Self {
        Self {
            rest: octets,
            what,
            depth: 0,
            tlvs: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], ParseError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(ParseError::Short(self.what))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        let (taken, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(ParseError::Short(self.what))?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, ParseError> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, ParseError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, ParseError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, ParseError> {
        self.array().map(u64::from_be_bytes)
    }

    /// All that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// All that is left, as text of at most `most` bytes.
    pub(crate) fn text(&mut self, most: usize) -> Result<String, ParseError> {
        let octets = self.rest();
        if octets.len() > most {
            return Err(ParseError::TooMany("bytes of text"));
        }
        let text = std::str::from_utf8(octets).map_err(|_| ParseError::Text)?;
        Ok(text.to_owned())
    }

    /// The next element; `None` at the end.
    pub(crate) fn tlv(&mut self) -> Result<Option<Tlv<'a>>, ParseError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        if self.depth == DEPTH_MAX || self.tlvs == TLVS_MAX {
            return Err(ParseError::TooMany("elements"));
        }
        self.tlvs += 1;
        let kind = self.u16()?;
        let len = usize::from(self.u16()?);
        let value = self.bytes(len)?;
        self.bytes(padding(len))?;
        Ok(Some(Tlv {
            kind: kind & !CRITICAL,
            critical: kind & CRITICAL != 0,
            value: Reader {
                rest: value,
                what: "element",
                depth: self.depth + 1,
                tlvs: 0,
            },
        }))
    }

    /// Nothing may be left.
    pub(crate) fn end(&self) -> Result<(), ParseError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(ParseError::Long(self.what))
        }
    }
}

impl Tlv<'_> {
    /// An element that is not known here: passed over unless it is critical.
    pub(crate) fn unknown(&self) -> Result<(), ParseError> {
        if self.critical {
            return Err(ParseError::Unknown {
                what: "critical element",
                code: self.kind,
            });
        }
        Ok(())
    }
}

/// Zeros behind `len` bytes up to a multiple of four.
pub(crate) const fn padding(len: usize) -> usize {
    len.wrapping_neg() % 4
}

/// Bytes in the making.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub(crate) fn bytes(&mut self, octets: &[u8]) -> &mut Self {
        self.0.extend_from_slice(octets);
        self
    }

    /// An element whose value `fill` writes. Callers keep values below 64 KiB: the bounds of their
    /// types ensure that.
    pub(crate) fn tlv(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        self.u16(kind).u16(0);
        let start = self.0.len();
        fill(self);
        let len = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        self.0.truncate(start + usize::from(len));
        self.0[start - 2..start].copy_from_slice(&len.to_be_bytes());
        self.0.resize(self.0.len() + padding(usize::from(len)), 0);
        self
    }
}
