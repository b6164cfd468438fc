//! Rates, sizes and times as people write them.

use std::time::Duration;

const BITS: [(&str, f64); 5] = [
    ("bit", 1.0),
    ("kbit", 1e3),
    ("mbit", 1e6),
    ("gbit", 1e9),
    ("tbit", 1e12),
];
const BYTES: [(&str, f64); 9] = [
    ("b", 1.0),
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
    ("tb", 1e12),
    ("kib", 1024.0),
    ("mib", 1_048_576.0),
    ("gib", 1_073_741_824.0),
    ("tib", 1_099_511_627_776.0),
];
/// Of sizes, as iperf3 and dd mean them; a rate could be of bits or of bytes.
const LETTERS: [(&str, f64); 4] = [
    ("k", 1024.0),
    ("m", 1_048_576.0),
    ("g", 1_073_741_824.0),
    ("t", 1_099_511_627_776.0),
];
const TIMES: [(&str, f64); 5] = [
    ("", 1.0),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

/// A rate in bits per second: `10Gbit` is bits, `1.2GiB` and `100MB` are bytes.
pub(crate) fn rate(text: &str) -> Result<u64, String> {
    let per_second = text.strip_suffix("/s").unwrap_or(text);
    let (number, unit) = split(per_second)?;
    let bits = find(&BITS, unit)
        .or_else(|| find(&BYTES, unit).map(|factor| factor * 8.0))
        // `Gb` could be either.
        .filter(|_| !unit.ends_with('b'));
    let rate = bits
        .and_then(|factor| whole(number * factor))
        .ok_or("give bits or bytes per second, like 10Gbit or 1.2GiB")?;
    if rate < haul::channel::RATE_BPS_MIN {
        return Err("the lowest rate is 64kbit".into());
    }
    Ok(rate)
}

/// A size in bytes: `1GiB` or `1G`, `500MB`, or a plain number.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor = if unit.is_empty() {
        Some(1.0)
    } else {
        find(&BYTES, unit).or_else(|| find(&LETTERS, unit))
    };
    factor
        .and_then(|factor| whole(number * factor))
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "give bytes, like 1GiB, 500MB or 4096".into())
}

/// The longest span that is taken: clocks can add it to the present without overflowing.
const TIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// A span of time: `10s`, `500ms`, `2m`, `1h`, or seconds as a plain number.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    find(&TIMES, unit)
        .and_then(|factor| Duration::try_from_secs_f64(number * factor).ok())
        .filter(|time| *time <= TIME_MAX)
        .ok_or_else(|| "give a time, like 10s, 500ms or 2m".into())
}

fn split(text: &str) -> Result<(f64, &str), String> {
    let end = text
        .find(|c: char| c != '.' && !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number = number
        .parse()
        .map_err(|_| format!("'{text}' does not begin with a number"))?;
    Ok((number, unit.trim()))
}

fn find(units: &[(&str, f64)], unit: &str) -> Option<f64> {
    units
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))
        .map(|(_, factor)| *factor)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "checked to lie between 0 and 2^63"
)]
fn whole(number: f64) -> Option<u64> {
    (number >= 0.0 && number < i64::MAX as f64).then_some(number.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_say_whether_they_mean_bits_or_bytes() {
        assert_eq!(rate("10Gbit"), Ok(10_000_000_000));
        assert_eq!(rate("1.5mbit/s"), Ok(1_500_000));
        assert_eq!(rate("100MB"), Ok(800_000_000));
        assert_eq!(rate("1GiB"), Ok(8_589_934_592));
        for bad in [
            "", "10", "10Gb", "10G", "fast", "0bit", "1kbit", "-1bit", "1e9bit",
        ] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_and_times_are_read() {
        assert_eq!(bytes("1GiB"), Ok(1 << 30));
        assert_eq!(bytes("64k"), Ok(64 << 10));
        assert_eq!(bytes("1M"), bytes("1MiB"));
        assert_eq!(bytes("4096"), Ok(4096));
        assert!(bytes("99999999999TiB").is_err() && bytes("0").is_err());
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert!(duration("soon").is_err() && duration("9999999999999999999s").is_err());
    }
}
