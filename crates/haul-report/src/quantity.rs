//! Quantities as people write them: `10Gbit`, `1.2GiB`, `50ms`, `0.1%`.
//!
//! Command lines, configuration files and scenarios read them here, so one spelling has one
//! meaning. A number may have a fraction, an exponent (`1e9`) and underscores. Units ignore case,
//! except where it tells bits from bytes.
//!
//! | quantity | units |
//! |---|---|
//! | [`Rate`] in bits | `bit`, `kbit`, `Mbit`, `Gbit`, `Tbit`; `bps`, `kbps`, … |
//! | [`Rate`] in bits, in this case only | `b/s`, `kb/s`, `Mb/s`, `Gb/s`, `Tb/s` |
//! | [`Rate`] in bytes | `B`, `kB`, `MB`, `GB`, `TB`; `KiB`, `MiB`, `GiB`, `TiB` |
//! | [`Size`] | none or `bytes`; the units of bytes; `k`, `M`, `G`, `T` as powers of 1024 |
//! | [`Span`] | `ns`, `us`, `µs`, `ms`, `s`, `m`, `h` |
//! | [`Probability`] | none, or `%` |
//!
//! A rate may end in `/s`. `10Gb` without it could mean either and is refused.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

/// A rate above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bits per second.
    pub bps: u64,
}

/// A time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Nanoseconds.
    pub ns: u64,
}

/// A size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes.
    pub bytes: u64,
}

/// A probability.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Probability(
    /// From 0 to 1.
    pub f64,
);

const BITS: [(&str, u64); 10] = [
    ("bit", 1),
    ("kbit", 1_000),
    ("mbit", 1_000_000),
    ("gbit", 1_000_000_000),
    ("tbit", 1_000_000_000_000),
    ("bps", 1),
    ("kbps", 1_000),
    ("mbps", 1_000_000),
    ("gbps", 1_000_000_000),
    ("tbps", 1_000_000_000_000),
];
/// Only with `/s`, and only in this case.
const BITS_PER_SECOND: [(&str, u64); 5] = [
    ("b", 1),
    ("kb", 1_000),
    ("Mb", 1_000_000),
    ("Gb", 1_000_000_000),
    ("Tb", 1_000_000_000_000),
];
const BYTES: [(&str, u64); 9] = [
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];
/// Of sizes alone: a rate could be of bits or of bytes. Letters are what iperf3 and dd take.
const SIZES: [(&str, u64); 6] = [
    ("", 1),
    ("bytes", 1),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
];
const SPANS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl Rate {
    /// Reads a rate, and rounds it to whole bits per second.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::read(text).map(|(rate, _)| rate)
    }

    /// Reads a rate that is a whole number of bits per second.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse_whole(text: &str) -> Result<Self, String> {
        whole(text, Self::read(text)?)
    }

    fn read(text: &str) -> Result<(Self, bool), String> {
        let plain = text.trim();
        let per_second = plain.strip_suffix("/s");
        let read = || {
            let (number, unit) = split(per_second.unwrap_or(plain))?;
            let bits = find(&BITS, unit);
            let bytes = || find(&BYTES, unit).filter(|_| unit.ends_with('B'));
            let exact = || BITS_PER_SECOND.iter().find(|(name, _)| *name == unit);
            let factor = bits
                .or_else(|| bytes().map(|factor| factor * 8))
                .or_else(|| per_second.and_then(|_| exact().map(|(_, factor)| *factor)))?;
            scale(&number, factor).filter(|(bps, _)| *bps > 0)
        };
        read()
            .map(|(bps, exact)| (Self { bps }, exact))
            .ok_or_else(|| {
                format!(
                    "`{text}` is not a rate: write a number above 0 and a unit of bits or bytes, such as 10Gbit or 1.2GiB"
                )
            })
    }
}

impl Span {
    /// Reads a time, and rounds it to nanoseconds.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (number, unit) = split(text.trim()).ok_or_else(|| Self::wrong(text))?;
        let ns = find(&SPANS, unit).and_then(|factor| scale(&number, factor));
        ns.map(|(ns, _)| Self { ns })
            .ok_or_else(|| Self::wrong(text))
    }

    fn wrong(text: &str) -> String {
        format!("`{text}` is not a time: write a number and a unit, such as 100ms")
    }
}

impl Size {
    /// Reads a size, and rounds it to whole bytes.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::read(text).map(|(size, _)| size)
    }

    /// Reads a size that is a whole number of bytes.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse_whole(text: &str) -> Result<Self, String> {
        whole(text, Self::read(text)?)
    }

    fn read(text: &str) -> Result<(Self, bool), String> {
        let read = || {
            let (number, unit) = split(text.trim())?;
            let factor = find(&BYTES, unit).or_else(|| find(&SIZES, unit))?;
            scale(&number, factor)
        };
        read()
            .map(|(bytes, exact)| (Self { bytes }, exact))
            .ok_or_else(|| {
                format!("`{text}` is not a size: write a number and a unit, such as 3MiB")
            })
    }
}

impl Probability {
    /// Reads a probability.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        multiple(text, "")
            .or_else(|| multiple(text, "%").map(|percent| percent * 0.01))
            .filter(|value| (0.0..=1.0).contains(value))
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a probability: write 0 to 1, or 0.1%"))
    }
}

/// Reads a number at least 0 that has this unit, which is in lower case; `None` for any other
/// text.
#[must_use]
pub fn multiple(text: &str, unit: &str) -> Option<f64> {
    let (number, found) = split(text.trim())?;
    let value: f64 = number.parse().ok()?;
    (found.to_lowercase() == unit && value.is_finite()).then_some(value)
}

/// Deserializes a text or a bare number by the function that reads the text.
///
/// # Errors
/// The function's own message.
pub fn text_or_number<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expecting: &'static str,
    parse: fn(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    deserializer.deserialize_any(TextOrNumber { expecting, parse })
}

/// A number without underscores, and the unit that follows it.
fn split(text: &str) -> Option<(String, &str)> {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(text.len());
    let end = end + exponent(&text[end..]);
    let (number, unit) = text.split_at(end);
    let number = number.replace('_', "");
    number
        .starts_with(|c: char| c.is_ascii_digit() || c == '.')
        .then_some((number, unit.trim()))
}

/// The length of the exponent that a text begins with.
fn exponent(text: &str) -> usize {
    let digits = text
        .strip_prefix(['e', 'E'])
        .map(|rest| rest.strip_prefix(['-', '+']).unwrap_or(rest))
        .unwrap_or_default();
    match digits.find(|c: char| !c.is_ascii_digit()) {
        Some(0) => 0,
        Some(end) => text.len() - digits.len() + end,
        None if digits.is_empty() => 0,
        None => text.len(),
    }
}

fn find(units: &[(&str, u64)], unit: &str) -> Option<u64> {
    let unit = unit.to_lowercase();
    let found = units.iter().find(|(name, _)| *name == unit);
    found.map(|(_, factor)| *factor)
}

/// A number times a factor, to the nearest whole number, and whether it was one.
fn scale(number: &str, factor: u64) -> Option<(u64, bool)> {
    let (number, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: u128 = format!("{integer}{fraction}").parse().ok()?;
    let fraction_len = i32::try_from(fraction.len()).ok()?;
    let exponent = exponent.parse::<i32>().ok()?.checked_sub(fraction_len)?;
    let product = digits.checked_mul(factor.into())?;
    let power = 10_u128.checked_pow(exponent.unsigned_abs())?;
    let (value, exact) = if exponent >= 0 {
        (product.checked_mul(power)?, true)
    } else {
        let (value, rest) = (product / power, product % power);
        (value + u128::from(rest >= power - rest), rest == 0)
    };
    Some((u64::try_from(value).ok()?, exact))
}

fn whole<T>(text: &str, (quantity, exact): (T, bool)) -> Result<T, String> {
    exact
        .then_some(quantity)
        .ok_or_else(|| format!("`{text}` is not a whole number of bits or bytes"))
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(
            f,
            self.bps,
            &[
                (1_000_000_000, "Gbit/s"),
                (1_000_000, "Mbit/s"),
                (1000, "kbit/s"),
                (1, "bit/s"),
            ],
        )
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(
            f,
            self.ns,
            &[
                (1_000_000_000, "s"),
                (1_000_000, "ms"),
                (1000, "µs"),
                (1, "ns"),
            ],
        )
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(
            f,
            self.bytes,
            &[
                (1 << 30, "GiB"),
                (1 << 20, "MiB"),
                (1 << 10, "KiB"),
                (1, "B"),
            ],
        )
    }
}

/// In the largest unit that leaves at least one, with at most three decimals.
fn scaled(f: &mut fmt::Formatter<'_>, value: u64, units: &[(u64, &str)]) -> fmt::Result {
    let (scale, unit) = units
        .iter()
        .find(|(scale, _)| value >= *scale)
        .or_else(|| units.last())
        .copied()
        .unwrap_or((1, ""));
    let (whole, part) = (
        value / scale,
        u128::from(value % scale) * 1000 / u128::from(scale),
    );
    if part == 0 {
        return write!(f, "{whole} {unit}");
    }
    let decimals = format!("{part:03}");
    write!(f, "{whole}.{} {unit}", decimals.trim_end_matches('0'))
}

struct TextOrNumber<T> {
    expecting: &'static str,
    parse: fn(&str) -> Result<T, String>,
}

impl<T> Visitor<'_> for TextOrNumber<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        (self.parse)(&number.to_string()).map_err(E::custom)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        (self.parse)(&number.to_string()).map_err(E::custom)
    }
}

macro_rules! deserialize {
    ($type:ty, $expecting:literal) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                text_or_number(deserializer, $expecting, Self::parse)
            }
        }
    };
}

deserialize!(Rate, "a rate such as \"1Gbit\"");
deserialize!(Span, "a time such as \"100ms\"");
deserialize!(Size, "a size such as \"3MiB\"");
deserialize!(Probability, "a probability from 0 to 1, or \"0.1%\"");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_write_rates_in_many_ways() {
        for text in [
            "1Gbit",
            "1 Gbit/s",
            "1Gbps",
            "1000Mbit",
            "1e9bit",
            "1_000_000 kbit",
            "1Gb/s",
            "1000 Mb/s",
            "125MB",
            "0.125GB/s",
        ] {
            assert_eq!(Rate::parse(text), Ok(Rate { bps: 1_000_000_000 }), "{text}");
        }
        let bps = 2_500_000_000;
        assert_eq!(Rate::parse("2.5Gbit"), Ok(Rate { bps }));
        let bps = 8 << 30;
        assert_eq!(Rate::parse("1GiB"), Ok(Rate { bps }));
        for text in [
            "1",
            "0Gbit",
            "-1Gbit",
            "fast",
            "",
            "1 furlong",
            "1e400bit",
            "Gbit",
            "10Gb",
            "10gb/s",
            "10G",
            "0bit",
            "0.1bit",
            "1..5Gbit",
            ".Gbit",
        ] {
            assert!(Rate::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_and_sizes_have_units() {
        assert_eq!(Span::parse("100ms"), Ok(Span { ns: 100_000_000 }));
        assert_eq!(Span::parse("1.5 µs"), Ok(Span { ns: 1500 }));
        assert_eq!(Span::parse("2m"), Span::parse("120s"));
        assert_eq!(Span::parse("1h"), Span::parse("60m"));
        for text in ["100", "soon", "9999999999999999999s", "1e400s"] {
            assert!(Span::parse(text).is_err(), "{text}");
        }
        for (text, bytes) in [
            ("3MiB", 3 << 20),
            ("1500", 1500),
            ("1.5kB", 1500),
            ("1GB", 1_000_000_000),
            ("64k", 64 << 10),
            ("1M", 1 << 20),
            (".5 KiB", 512),
            ("12 bytes", 12),
            ("1.2GiB", 1_288_490_189),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(Size::parse(text), Ok(Size { bytes }), "{text}");
        }
        for text in [
            "",
            "-1",
            "99999999999TiB",
            "1Gb/s",
            "18446744073709551616",
            "1.5e-2147483648B",
            "1e2147483648B",
        ] {
            assert!(Size::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_whole_number_of_bytes_or_bits_can_be_asked_for() {
        assert_eq!(Size::parse_whole("1.5KiB"), Ok(Size { bytes: 1536 }));
        assert!(Size::parse_whole("0.5B").is_err() && Size::parse_whole("1.2GiB").is_err());
        assert!(Rate::parse_whole("1.5bit").is_err() && Rate::parse_whole("1.5kbit").is_ok());
    }

    #[test]
    fn probabilities_stay_between_none_and_all() {
        assert_eq!(Probability::parse("1e-3"), Ok(Probability(1e-3)));
        assert_eq!(Probability::parse("0.1%"), Ok(Probability(0.1 * 0.01)));
        for text in ["1.01", "101%", "-0.1", "NaN", "inf", "e"] {
            assert!(Probability::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn quantities_print_as_they_are_written() {
        assert_eq!(Rate { bps: 2_500_000_000 }.to_string(), "2.5 Gbit/s");
        assert_eq!(Span { ns: 100_000_000 }.to_string(), "100 ms");
        assert_eq!(Size { bytes: 3 << 20 }.to_string(), "3 MiB");
        assert_eq!(Span::default().to_string(), "0 ns");
    }
}
