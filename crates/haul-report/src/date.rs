//! Dates in UTC as RFC 3339 writes them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the present time with milliseconds.
#[must_use]
pub fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let ns = since.map_or(0, |since| since.as_nanos());
    millis(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// Formats seconds since 1970: `2026-01-01T00:00:00Z`.
#[must_use]
pub fn seconds(since_1970: u64) -> String {
    format!("{}Z", time(since_1970))
}

/// Formats nanoseconds since 1970 with milliseconds: `2026-01-01T00:00:00.000Z`.
#[must_use]
pub fn millis(since_1970_ns: u64) -> String {
    let millis = since_1970_ns / 1_000_000;
    format!("{}.{:03}Z", time(millis / 1_000), millis % 1_000)
}

fn time(seconds: u64) -> String {
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

/// Year, month and day of a day since 1970-01-01: eras of 400 years that begin in March, so that
/// the leap day comes last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let calendar_month = if month < 10 { month + 3 } else { month - 9 };
    (
        era * 400 + year + u64::from(calendar_month <= 2),
        calendar_month,
        day_of_month,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(seconds(0), "1970-01-01T00:00:00Z");
        assert_eq!(seconds(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(seconds(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(seconds(1_767_225_600), "2026-01-01T00:00:00Z");
        let at = 1_767_225_600_007_999_999;
        assert_eq!(millis(at), "2026-01-01T00:00:00.007Z");
    }
}
