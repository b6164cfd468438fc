//! The value of `--bwlimit`: a rate, or rates by the time of day, or a file of them.

use std::path::PathBuf;

use crate::quantity;

const DAY: u32 = 24 * 3600;

/// The value of `--bwlimit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Bwlimit {
    /// These rates.
    Rates(Timetable),
    /// Those in a file, which is read again on SIGHUP.
    File(PathBuf),
}

/// Parses the value of the option.
pub(crate) fn bwlimit(text: &str) -> Result<Bwlimit, String> {
    match text.strip_prefix('@') {
        Some("") => Err("write the name of the file after @".into()),
        Some(file) => Ok(Bwlimit::File(file.into())),
        None => Timetable::parse(text).map(Bwlimit::Rates),
    }
}

/// Rates by the time of day: seconds since midnight, ascending, and bits per second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Timetable(Vec<(u32, Option<u64>)>);

impl Timetable {
    /// Parses `RATE`, `off`, or `HH:MM,RATE HH:MM,RATE …`; what follows `#` in a line is a comment.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let lines = text
            .lines()
            .map(|line| line.split('#').next().unwrap_or_default());
        let words: Vec<_> = lines.flat_map(str::split_whitespace).collect();
        if let [word] = words[..]
            && !word.contains(',')
        {
            return Ok(Self(vec![(0, rate(word)?)]));
        }
        let mut rates = Vec::with_capacity(words.len());
        for word in &words {
            let wrong = || format!("'{word}' is not HH:MM,RATE or HH:MM,off");
            let (time, limit) = word.split_once(',').ok_or_else(wrong)?;
            let entry = (second(time).ok_or_else(wrong)?, rate(limit)?);
            if rates.last().is_some_and(|(last, _)| *last >= entry.0) {
                return Err(format!("'{word}' is not later than the time before it"));
            }
            rates.push(entry);
        }
        match rates.is_empty() {
            true => Err("write a rate, or HH:MM,RATE HH:MM,RATE …".into()),
            false => Ok(Self(rates)),
        }
    }

    /// Returns the rate at a second of the day: before the first time, that of the evening.
    pub(crate) fn at(&self, second: u32) -> Option<u64> {
        let now = self.0.iter().rev().find(|(from, _)| *from <= second % DAY);
        now.or_else(|| self.0.last()).and_then(|(_, rate)| *rate)
    }
}

fn rate(text: &str) -> Result<Option<u64>, String> {
    match text {
        "off" => Ok(None),
        text => quantity::rate(text).map(Some),
    }
}

/// Parses `HH:MM`.
fn second(text: &str) -> Option<u32> {
    let (hour, minute) = text.split_once(':')?;
    let number = |text: &str, below: u32| {
        let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse::<u32>().ok().filter(|number| *number < below);
        number.filter(|_| is_number)
    };
    Some((number(hour, 24)? * 60 + number(minute, 60)?) * 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_counts_from_its_time_until_the_next_one() {
        let table = Timetable::parse("08:00,200Mbit 19:00,off").unwrap();
        let at = |hour: u32, minute: u32| table.at((hour * 60 + minute) * 60);
        let day = Some(200_000_000);
        assert_eq!((at(7, 59), at(8, 0), at(18, 59)), (None, day, day));
        assert_eq!((at(19, 0), at(23, 59), at(0, 0)), (None, None, None));
        let night = Timetable::parse("06:30,1Gbit # day\n22:00,10MiB").unwrap();
        assert_eq!(night.at(0), Some(83_886_080));
        assert_eq!(night.at(7 * 3600), Some(1_000_000_000));
        let always = Timetable::parse("1Gbit").unwrap();
        assert_eq!(
            (always.at(0), always.at(DAY - 1)),
            (Some(1_000_000_000), Some(1_000_000_000))
        );
        assert_eq!(Timetable::parse("off").unwrap().at(5), None);
    }

    #[test]
    fn what_is_no_timetable_is_refused() {
        for bad in [
            "",
            "#",
            "fast",
            "1kbit",
            "8:00,1Gbit",
            "24:00,off",
            "08:60,off",
            "08:00,",
            "+8:00,off",
            "08:00,1Gbit 08:00,off",
            "19:00,off 08:00,off",
            "08:00,1Gbit off",
        ] {
            assert!(Timetable::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(bwlimit("@f"), Ok(Bwlimit::File("f".into())));
        assert!(bwlimit("@").is_err());
    }
}
