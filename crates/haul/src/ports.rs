//! The ports that an agent may listen on.

use std::fmt;
use std::str::FromStr;

/// A range of ports, TCP and UDP alike, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    first: u16,
    last: u16,
}

/// Maximum length of a range: a firewall is to be opened for it, and a check tries each.
const PORTS_MAX: u16 = 64;

impl Ports {
    /// The range if nobody names another: 16 ports that are registered to no service, below those
    /// that Linux gives to outgoing connections.
    pub const DEFAULT: Self = Self {
        first: 24_725,
        last: 24_740,
    };

    /// Takes a range; `None` if it is empty, holds port 0 or is longer than 64 ports.
    #[must_use]
    pub const fn new(first: u16, last: u16) -> Option<Self> {
        if first == 0 || last < first || last - first >= PORTS_MAX {
            return None;
        }
        Some(Self { first, last })
    }

    /// Returns the first and the last port.
    pub(crate) const fn ends(self) -> (u16, u16) {
        (self.first, self.last)
    }

    /// Returns all ports of the range.
    pub(crate) fn iter(self) -> impl Iterator<Item = u16> {
        self.first..=self.last
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let port = |text: &str| text.trim().parse::<u16>().ok();
        let ends = match text.split_once('-') {
            Some((first, last)) => port(first).zip(port(last)),
            None => port(text).map(|port| (port, port)),
        };
        ends.and_then(|(first, last)| Self::new(first, last))
            .ok_or_else(|| {
                format!(
                    "write FIRST-LAST, at most {PORTS_MAX} ports, as in {}",
                    Self::DEFAULT
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_and_has_an_end() {
        let ends = |text: &str| text.parse().ok().map(Ports::ends);
        assert_eq!(ends("24725-24740"), Some((24_725, 24_740)));
        assert_eq!(ends("99"), Some((99, 99)));
        assert_eq!(ends("1-64"), Some((1, 64)));
        for bad in ["", "0-5", "9-8", "1-65", "x-9", "1-2-3", "70000"] {
            assert_eq!(ends(bad), None, "{bad}");
        }
        assert_eq!(Ports::DEFAULT.iter().count(), 16);
    }
}
