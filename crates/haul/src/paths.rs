//! What earlier transfers found on the paths to their servers, in a file of the user's: one line
//! for each server and address, with rate and round-trip time. It makes starts faster
//! ([`haul_cc::resume`]) and nothing else depends on it: it may be deleted at any time, and lines
//! that cannot be read are left out.

use std::fmt::Write as _;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use haul_cc::time::MICROSECOND_NS;
use haul_cc::{Rate, Remembered};
use haul_control::identity::PeerIdentity;
use haul_control::known::replace;

use crate::fault::Fault;

/// Maximum number of paths in the file; the ones used least recently go first.
const PATHS_MAX: usize = 256;
/// Maximum size of the file that is read, bytes.
const FILE_MAX: u64 = 64 << 10;
/// After this time a path may have become another one.
const VALID_FOR: Duration = Duration::from_secs(24 * 3600);
/// Rates outside this range are no path's, bits per second.
const RATES_BPS: std::ops::RangeInclusive<u64> = 64_000..=Rate::UNLIMITED.bps();
/// Round-trip times beyond this are no path's, microseconds.
const RTT_US_MAX: u64 = 60_000_000;

/// The file of remembered path rates.
#[derive(Debug, Clone)]
pub struct Paths(PathBuf);

/// A server at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathKey {
    /// Of the server's identity, in hexadecimal.
    peer: String,
    address: IpAddr,
}

impl PathKey {
    pub(crate) fn new(peer: &PeerIdentity, address: IpAddr) -> Self {
        let hash = blake3::hash(peer.to_string().as_bytes());
        let hash = &hash.to_hex()[..32];
        Self {
            peer: hash.to_owned(),
            address: address.to_canonical(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    key: PathKey,
    rate_bps: u64,
    rtt_us: u64,
    /// Seconds since 1970.
    at: u64,
}

impl Paths {
    /// Keeps paths in this file. It is made when there is something to keep.
    #[must_use]
    pub const fn new(file: PathBuf) -> Self {
        Self(file)
    }

    /// Returns what was found on a path of late.
    pub(crate) fn recall(&self, key: &PathKey, now: SystemTime) -> Option<Remembered> {
        let entry = self.read().into_iter().find(|entry| entry.key == *key)?;
        let age = seconds(now).checked_sub(entry.at)?;
        (age <= VALID_FOR.as_secs()).then(|| Remembered {
            rate: Rate::from_bps(entry.rate_bps),
            rtt_ns: entry.rtt_us * MICROSECOND_NS,
        })
    }

    /// Keeps what was found on a path now.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn keep(
        &self,
        key: &PathKey,
        found: Remembered,
        now: SystemTime,
    ) -> Result<(), Fault> {
        let entry = Entry {
            key: key.clone(),
            rate_bps: found.rate.bps(),
            rtt_us: found.rtt_ns / MICROSECOND_NS,
            at: seconds(now),
        };
        if !entry.is_valid() {
            return Ok(());
        }
        let mut entries = self.read();
        entries.retain(|other| other.key != *key);
        entries.push(entry);
        let excess = entries.len().saturating_sub(PATHS_MAX);
        let mut text = String::from(HEAD);
        for entry in entries.split_off(excess) {
            let Entry {
                key,
                rate_bps,
                rtt_us,
                at,
            } = entry;
            let PathKey { peer, address } = key;
            // Writing to a string does not fail.
            let _ = writeln!(text, "{peer} {address} {rate_bps} {rtt_us} {at}");
        }
        // What a crash leaves empty is found anew.
        replace(&self.0, &text, 0o600, |_| Ok(()))
    }

    /// Returns the entries, oldest first; none if the file cannot be read.
    fn read(&self) -> Vec<Entry> {
        let mut text = String::new();
        let opened = std::fs::OpenOptions::new().read(true).open(&self.0);
        let read = opened.and_then(|file| file.take(FILE_MAX).read_to_string(&mut text));
        match read {
            Ok(_) => parse(&text),
            Err(_) => Vec::new(),
        }
    }
}

const HEAD: &str = "# haul: paths of earlier transfers; may be deleted.\n\
                    # identity, address, bit/s, round-trip time in us, seconds since 1970\n";

impl Entry {
    fn is_valid(&self) -> bool {
        RATES_BPS.contains(&self.rate_bps) && (1..=RTT_US_MAX).contains(&self.rtt_us)
    }
}

/// Parses the text of the file; leaves out what is no entry. A newer version may have added words
/// to a line.
fn parse(text: &str) -> Vec<Entry> {
    let entries = text.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let entry = Entry {
            key: PathKey {
                peer: words.next().filter(|word| is_hash(word))?.to_owned(),
                address: words.next()?.parse().ok()?,
            },
            rate_bps: words.next()?.parse().ok()?,
            rtt_us: words.next()?.parse().ok()?,
            at: words.next()?.parse().ok()?,
        };
        entry.is_valid().then_some(entry)
    });
    entries.take(PATHS_MAX).collect()
}

fn is_hash(word: &str) -> bool {
    word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const FOUND: Remembered = Remembered {
        rate: Rate::from_bps(930_000_000),
        rtt_ns: 100_123_000,
    };
    const NOW: Duration = Duration::from_secs(1_800_000_000);

    fn key(last: u8) -> PathKey {
        PathKey::new(&PeerIdentity::Anonymous, [192, 0, 2, last].into())
    }

    #[test]
    fn a_path_is_recalled_for_a_day_by_identity_and_address() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("haul/paths");
        let (paths, now) = (Paths::new(file.clone()), UNIX_EPOCH + NOW);
        assert_eq!(paths.recall(&key(1), now), None);
        paths.keep(&key(1), FOUND, now).unwrap();
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(paths.recall(&key(1), now + VALID_FOR), Some(FOUND));
        let late = now + VALID_FOR + Duration::from_secs(1);
        assert_eq!(paths.recall(&key(1), late), None);
        assert_eq!(paths.recall(&key(1), now - Duration::from_secs(1)), None);
        assert_eq!(paths.recall(&key(2), now), None);
        let named = PeerIdentity::Certificate {
            subject: "another".into(),
            sans: Vec::new(),
        };
        let other = PathKey::new(&named, key(1).address);
        assert_eq!(paths.recall(&other, now), None);
        let slower = Remembered {
            rate: Rate::from_bps(80_000_000),
            ..FOUND
        };
        paths.keep(&key(1), slower, now).unwrap();
        assert_eq!(paths.recall(&key(1), now), Some(slower));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(paths.recall(&key(1), now), None);
    }

    #[test]
    fn the_file_is_bounded_and_forgets_the_oldest() {
        let dir = tempfile::tempdir().unwrap();
        let (paths, now) = (Paths::new(dir.path().join("paths")), UNIX_EPOCH + NOW);
        let key = |index: u32| {
            PathKey::new(
                &PeerIdentity::Anonymous,
                std::net::Ipv4Addr::from_bits(0x0a00_0000 | index).into(),
            )
        };
        for index in 0..260 {
            paths.keep(&key(index), FOUND, now).unwrap();
        }
        assert_eq!(paths.read().len(), PATHS_MAX);
        assert_eq!(paths.recall(&key(3), now), None);
        assert!(paths.recall(&key(4), now).is_some());
        assert!(paths.recall(&key(259), now).is_some());
    }

    #[test]
    fn lines_that_no_path_can_have_are_left_out() {
        let hash = &blake3::hash(b"x").to_hex()[..32];
        let good = format!("{hash} 192.0.2.1 1000000 100 1");
        assert_eq!(parse(&good).len(), 1);
        assert_eq!(parse(&format!("{good} more")), parse(&good));
        for bad in [
            "",
            "# comment",
            &good[1..],
            &format!("{hash} nowhere 1000000 100 1"),
            &format!("{hash} 192.0.2.1 1 100 1"),
            &format!("{hash} 192.0.2.1 99999999999999 100 1"),
            &format!("{hash} 192.0.2.1 1000000 0 1"),
            &format!("{hash} 192.0.2.1 1000000 60000001 1"),
            &format!("{hash} 192.0.2.1 -1 100 1"),
        ] {
            assert_eq!(parse(&format!("{bad}\n{good}\n")).len(), 1, "{bad}");
        }
    }
}
