//! Rates, sizes and times on the command line: the quantities of `haul_report`, within the bounds
//! of what they are for.

use std::time::Duration;

use haul_report::quantity::{Rate, Size, Span};

/// A rate in bits per second: `10Gbit` is bits, `1.2GiB` and `100MB` are bytes.
pub(crate) fn rate(text: &str) -> Result<u64, String> {
    let rate = Rate::parse(text)?.bps;
    if rate < haul::channel::RATE_BPS_MIN {
        return Err("the lowest rate is 64kbit".into());
    }
    Ok(rate)
}

/// A size in bytes above 0: `1GiB` or `1G`, `500MB`, or a plain number.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let bytes = Size::parse(text)?.bytes;
    if bytes == 0 || i64::try_from(bytes).is_err() {
        return Err("write 1 byte to 8 EiB".into());
    }
    Ok(bytes)
}

/// The longest time that is accepted: clocks can add it to the present without overflowing.
const TIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// A time: `10s`, `500ms`, `2m`, `1h`, or seconds as a plain number.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let is_bare = text.ends_with(|c: char| c.is_ascii_digit() || c == '.');
    let span = if is_bare {
        Span::parse(&format!("{text}s"))
    } else {
        Span::parse(text)
    };
    let time = Duration::from_nanos(span?.ns);
    if time > TIME_MAX {
        return Err("the longest time is 366 days (8784h)".into());
    }
    Ok(time)
}

/// A time with its unit, where seconds are not what a bare number means: `100ms`.
pub(crate) fn short_time(text: &str) -> Result<Duration, String> {
    Span::parse(text)?;
    duration(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_a_lower_bound() {
        assert_eq!(rate("10Gbit"), Ok(10_000_000_000));
        assert_eq!(rate("100MB"), Ok(800_000_000));
        assert_eq!(rate("64kbit"), Ok(64_000));
        for bad in ["", "10", "10Gb", "10G", "fast", "0bit", "1kbit", "-1bit"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_above_0_and_times_may_be_bare_seconds() {
        assert_eq!(bytes("1M"), bytes("1MiB"));
        assert_eq!(bytes("4096"), Ok(4096));
        for bad in ["99999999999TiB", "0", "9EiB", "9223372036854775808"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(short_time("100ms"), Ok(Duration::from_millis(100)));
        assert!(short_time("100").is_err() && short_time("8785h").is_err());
        for bad in ["soon", "", "8785h", "9999999999999999999s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
