//! Quantities with their units.

use std::fmt;

use serde::{Deserialize, Deserializer, de::Error};

/// Octets: `"512MiB"`, `"1.5GB"`, or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteCount(pub u64);

/// Bits per second: `"9Gb/s"`, `"2.5Gbit"`, or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BitRate(pub u64);

const BYTES: [(&str, u64); 7] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

const BITS_PER_SECOND: [(&str, u64); 12] = [
    ("kb/s", 1_000),
    ("Mb/s", 1_000_000),
    ("Gb/s", 1_000_000_000),
    ("kbit/s", 1_000),
    ("Mbit/s", 1_000_000),
    ("Gbit/s", 1_000_000_000),
    ("kbit", 1_000),
    ("Mbit", 1_000_000),
    ("Gbit", 1_000_000_000),
    ("b/s", 1),
    ("bit/s", 1),
    ("bit", 1),
];

impl<'de> Deserialize<'de> for ByteCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = Number::deserialize(deserializer)?;
        number
            .of(&BYTES, "512MiB")
            .map(Self)
            .map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for BitRate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = Number::deserialize(deserializer)?;
        number
            .of(&BITS_PER_SECOND, "2.5Gb/s")
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
    fn of(&self, units: &[(&str, u64)], example: &str) -> Result<u64, String> {
        let text = match self {
            Self::Bare(number) => return Ok(*number),
            Self::Text(text) => text.trim(),
        };
        let end = text
            .find(|c: char| c != '.' && !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let factor = match unit.trim() {
            "" => Some(1),
            unit => units
                .iter()
                .find(|(known, _)| *known == unit)
                .map(|(_, factor)| *factor),
        };
        factor
            .and_then(|factor| times(number, factor))
            .ok_or_else(|| format!("'{text}' is no quantity here; write it like {example}"))
    }
}

/// A decimal fraction times `factor`, if that is whole and not too much.
fn times(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() {
        return None;
    }
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let product = digits.checked_mul(u128::from(factor))?;
    (product % scale == 0)
        .then(|| u64::try_from(product / scale).ok())
        .flatten()
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
        assert_eq!(parse("1", "'1GiB'"), None);
    }

    #[test]
    fn sizes_print_in_the_unit_that_they_are_whole_in() {
        assert_eq!(ByteCount(64 << 20).to_string(), "64MiB");
        assert_eq!(ByteCount(1 << 30).to_string(), "1GiB");
        assert_eq!(ByteCount(1000).to_string(), "1000B");
    }
}
