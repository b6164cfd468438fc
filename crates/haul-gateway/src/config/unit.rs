//! Quantities with their units.

use std::fmt;

use haul_report::quantity::{Rate, Size};
use serde::{Deserialize, Deserializer, de::Error};

/// Bytes: `"512MiB"`, `"1.5GB"`, or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteCount(pub u64);

/// Bits per second: `"9Gb/s"`, `"2.5Gbit"`, or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BitRate(pub u64);

impl<'de> Deserialize<'de> for ByteCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = Number::deserialize(deserializer)?;
        number
            .read(|text| Size::parse_whole(text).map(|size| size.bytes))
            .map(Self)
            .map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for BitRate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = Number::deserialize(deserializer)?;
        number
            .read(|text| Rate::parse_whole(text).map(|rate| rate.bps))
            .map(Self)
            .map_err(D::Error::custom)
    }
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let fits = binary
            .into_iter()
            .find(|(factor, _)| self.0 > 0 && self.0.is_multiple_of(*factor));
        let (factor, unit) = fits.unwrap_or((1, "B"));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a quantity: a whole number, or a text with a unit"
)]
enum Number {
    Bare(u64),
    Text(String),
}

impl Number {
    /// A bare number, also as text, or what `parse` reads from a text whose number has digits on
    /// both sides of its decimal point.
    fn read(&self, parse: fn(&str) -> Result<u64, String>) -> Result<u64, String> {
        let text = match self {
            Self::Bare(number) => return Ok(*number),
            Self::Text(text) => text.trim(),
        };
        let end = text.find(|c: char| c != '.' && !c.is_ascii_digit());
        let number = &text[..end.unwrap_or(text.len())];
        if number.starts_with('.') || number.ends_with('.') {
            return Err(format!(
                "`{text}` needs digits on both sides of the decimal point"
            ));
        }
        if end.is_none() {
            return Size::parse_whole(text).map(|size| size.bytes);
        }
        parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct File {
        size: ByteCount,
        rate: BitRate,
    }

    fn parse(size: &str, rate: &str) -> Option<(u64, u64)> {
        let file: File = toml::from_str(&format!("size = {size}\nrate = {rate}")).ok()?;
        Some((file.size.0, file.rate.0))
    }

    #[test]
    fn quantities_have_units_or_are_numbers() {
        assert_eq!(
            parse("'512MiB'", "'9Gb/s'"),
            Some((512 << 20, 9_000_000_000))
        );
        assert_eq!(
            parse("'1.5 GB'", "'2.5Gbit'"),
            Some((1_500_000_000, 2_500_000_000))
        );
        assert_eq!(parse("'1.5KiB'", "1"), Some((1536, 1)));
        assert_eq!(parse("4096", "'100Mbit/s'"), Some((4096, 100_000_000)));
        assert_eq!(parse("'0'", "'1bit'"), Some((0, 1)));
        assert_eq!(parse("'64M'", "'1GiB'"), Some((64 << 20, 8 << 30)));
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for size in [
            "''",
            "'x'",
            "'1.B'",
            "'.5MiB'",
            "'1.2.3B'",
            "'-1B'",
            "-1",
            "1.5",
            "'0.5B'",
            "'1Gb/s'",
            "'99999999999999999999'",
            "'20000000000GiB'",
        ] {
            assert_eq!(parse(size, "1"), None, "{size}");
        }
        assert_eq!(parse("1", "'1Gb'"), None);
        assert_eq!(parse("1", "'1.5bit'"), None);
    }

    #[test]
    fn sizes_print_in_the_unit_that_they_are_whole_in() {
        assert_eq!(ByteCount(64 << 20).to_string(), "64MiB");
        assert_eq!(ByteCount(1 << 30).to_string(), "1GiB");
        assert_eq!(ByteCount(1000).to_string(), "1000B");
    }
}
