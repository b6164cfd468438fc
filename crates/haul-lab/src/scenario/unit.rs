//! Quantities as people write them: `1Gbit`, `100ms`, `3MiB`, `0.1%`, `1bdp`.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

/// A rate: a number and `bit`, `kbit`, `Mbit`, `Gbit`, `Tbit`, with or without `/s`; or `bps`,
/// `kbps`, …
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bits per second, above 0.
    pub bps: u64,
}

/// A time: a number and `ns`, `us`, `µs`, `ms` or `s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Nanoseconds.
    pub ns: u64,
}

/// A size: a number and `B`, `kB`, `MB`, `GB`, `KiB`, `MiB` or `GiB`, or a bare number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes.
    pub bytes: u64,
}

/// A probability: a number from 0 to 1, or a percentage such as `"0.1%"`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Probability(
    /// From 0 to 1.
    pub f64,
);

/// The size of a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QueueSize {
    /// `"3MiB"`
    Bytes(u64),
    /// `"100packets"`
    Packets(u64),
    /// `"1.5bdp"`: multiples of rate times round-trip time.
    Bdp(f64),
}

const RATES: [(&str, f64); 10] = [
    ("bit", 1.0),
    ("kbit", 1e3),
    ("mbit", 1e6),
    ("gbit", 1e9),
    ("tbit", 1e12),
    ("bps", 1.0),
    ("kbps", 1e3),
    ("mbps", 1e6),
    ("gbps", 1e9),
    ("tbps", 1e12),
];
const SPANS: [(&str, f64); 5] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
];
const SIZES: [(&str, f64); 9] = [
    ("", 1.0),
    ("b", 1.0),
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
    ("kib", 1024.0),
    ("mib", 1_048_576.0),
    ("gib", 1_073_741_824.0),
    ("bytes", 1.0),
];

impl Rate {
    /// Reads a rate.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let plain = text.trim().strip_suffix("/s").unwrap_or(text);
        match quantity(plain, &RATES).map(whole) {
            Some(Some(bps)) if bps > 0 => Ok(Self { bps }),
            _ => Err(format!(
                "`{text}` is no rate: write a number above 0 and a unit, such as \"1Gbit\""
            )),
        }
    }
}

impl Span {
    /// Reads a time.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let ns = quantity(text, &SPANS).and_then(whole);
        ns.map(|ns| Self { ns }).ok_or_else(|| {
            format!("`{text}` is no time: write a number and a unit, such as \"100ms\"")
        })
    }
}

impl Size {
    /// Reads a size.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bytes = quantity(text, &SIZES).and_then(whole);
        bytes.map(|bytes| Self { bytes }).ok_or_else(|| {
            format!("`{text}` is no size: write a number and a unit, such as \"3MiB\"")
        })
    }
}

impl Probability {
    /// Reads a probability.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value = quantity(text, &[("", 1.0), ("%", 0.01)]);
        value
            .filter(|value| (0.0..=1.0).contains(value))
            .map(Self)
            .ok_or_else(|| format!("`{text}` is no probability: write 0 to 1, or \"0.1%\""))
    }
}

impl QueueSize {
    /// Reads the size of a queue.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(times) = quantity(text, &[("bdp", 1.0)]) {
            return Ok(Self::Bdp(times));
        }
        if let Some(packets) = quantity(text, &[("packets", 1.0), ("packet", 1.0)]).and_then(whole)
        {
            return Ok(Self::Packets(packets));
        }
        Size::parse(text)
            .map(|size| Self::Bytes(size.bytes))
            .map_err(|_| {
                format!("`{text}` is no queue: write \"1bdp\", \"3MiB\" or \"100packets\"")
            })
    }
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

/// A number at least 0, times its unit. Units are not case-sensitive: nobody means millibits.
fn quantity(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'));
    let exponent = |at: usize| {
        let rest = &text[at..];
        let digits = rest
            .trim_start_matches(['e', 'E'])
            .trim_start_matches(['-', '+']);
        let is_exponent =
            rest.starts_with(['e', 'E']) && digits.starts_with(|c: char| c.is_ascii_digit());
        let tail = digits
            .find(|c: char| !c.is_ascii_digit())
            .map_or(text.len(), |i| text.len() - digits.len() + i);
        if is_exponent { tail } else { at }
    };
    let (number, unit) = text.split_at(end.map_or(text.len(), exponent));
    let value: f64 = number.replace('_', "").parse().ok()?;
    let unit = unit.trim().to_lowercase();
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    Some(value * scale).filter(|value| value.is_finite() && *value >= 0.0)
}

/// To the nearest whole number, if it fits.
fn whole(value: f64) -> Option<u64> {
    let rounded = value.round();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to lie in range"
    )]
    (0.0..1.8e19).contains(&rounded).then_some(rounded as u64)
}

/// Takes a string or a bare number, and reads it with `parse`.
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
                deserializer.deserialize_any(TextOrNumber {
                    expecting: $expecting,
                    parse: Self::parse,
                })
            }
        }
    };
}

deserialize!(Rate, "a rate such as \"1Gbit\"");
deserialize!(Span, "a time such as \"100ms\"");
deserialize!(Size, "a size such as \"3MiB\"");
deserialize!(Probability, "a probability from 0 to 1, or \"0.1%\"");
deserialize!(
    QueueSize,
    "a queue such as \"1bdp\", \"3MiB\" or \"100packets\""
);

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
        ] {
            assert_eq!(Rate::parse(text), Ok(Rate { bps: 1_000_000_000 }), "{text}");
        }
        assert_eq!(Rate::parse("2.5Gbit"), Ok(Rate { bps: 2_500_000_000 }));
        for text in [
            "1",
            "0Gbit",
            "-1Gbit",
            "fast",
            "",
            "1 furlong",
            "1e400bit",
            "Gbit",
        ] {
            assert!(Rate::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_and_sizes_have_units() {
        assert_eq!(Span::parse("100ms"), Ok(Span { ns: 100_000_000 }));
        assert_eq!(Span::parse("1.5 µs"), Ok(Span { ns: 1500 }));
        assert!(Span::parse("100").is_err());
        assert_eq!(Size::parse("3MiB"), Ok(Size { bytes: 3 << 20 }));
        assert_eq!(Size::parse("1500"), Ok(Size { bytes: 1500 }));
        assert_eq!(Size::parse("1.5kB"), Ok(Size { bytes: 1500 }));
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
    fn queues_count_in_bytes_packets_or_products() {
        assert_eq!(QueueSize::parse("1.5bdp"), Ok(QueueSize::Bdp(1.5)));
        assert_eq!(QueueSize::parse("100 packets"), Ok(QueueSize::Packets(100)));
        assert_eq!(QueueSize::parse("2MiB"), Ok(QueueSize::Bytes(2 << 20)));
        assert!(QueueSize::parse("big").is_err());
    }

    #[test]
    fn quantities_print_as_they_are_written() {
        assert_eq!(Rate { bps: 2_500_000_000 }.to_string(), "2.5 Gbit/s");
        assert_eq!(Span { ns: 100_000_000 }.to_string(), "100 ms");
        assert_eq!(Size { bytes: 3 << 20 }.to_string(), "3 MiB");
        assert_eq!(Span::default().to_string(), "0 ns");
    }
}
