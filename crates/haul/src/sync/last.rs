//! The file systems on which the sources of deletions were, in a file of the user's. If a disk is
//! not mounted, its mount point looks like a source that has lost everything.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::PathBuf;

use haul_control::known::replace;

use crate::fault::Fault;

/// Maximum number of pairs in the file; the ones used least recently go first.
const PAIRS_MAX: usize = 1024;
/// Maximum size of the file that is read, bytes.
const FILE_MAX: u64 = 128 << 10;

const HEAD: &str = "# haul: file systems of the sources of 'haul sync --delete'; may be deleted.\n\
                    # source and destination, file system\n";

/// The file that remembers the file systems of the sources of deletions.
#[derive(Debug, Clone)]
pub struct Last(PathBuf);

impl Last {
    /// Keeps file systems in this file. It is made when there is something to keep.
    #[must_use]
    pub const fn new(file: PathBuf) -> Self {
        Self(file)
    }

    /// Returns the file system that a source was on.
    pub(super) fn find(&self, key: &str) -> Option<u64> {
        let mut known = self.read().into_iter();
        known.find(|(known, _)| known == key).map(|(_, now)| now)
    }

    /// Keeps the file system that a source is on.
    pub(super) fn keep(&self, key: &str, now: u64) -> Result<(), Fault> {
        let mut pairs = self.read();
        pairs.retain(|(known, _)| known != key);
        pairs.push((key.to_owned(), now));
        let excess = pairs.len().saturating_sub(PAIRS_MAX);
        let mut text = String::from(HEAD);
        for (key, file_system) in pairs.split_off(excess) {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{key} {file_system:x}");
        }
        replace(&self.0, &text, 0o600, |_| Ok(()))
    }

    /// Returns the pairs, the one used last at the end; none if the file cannot be read.
    fn read(&self) -> Vec<(String, u64)> {
        let mut text = String::new();
        let opened = std::fs::OpenOptions::new().read(true).open(&self.0);
        let read = opened.and_then(|file| file.take(FILE_MAX).read_to_string(&mut text));
        let pair = |line: &str| {
            let (key, file_system) = line.split_once(' ')?;
            let file_system = u64::from_str_radix(file_system, 16).ok()?;
            (key.len() == 32).then(|| (key.to_owned(), file_system))
        };
        match read {
            Ok(_) => text.lines().filter_map(pair).collect(),
            Err(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_found_again_and_what_is_no_pair_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("haul/sync");
        let last = Last::new(file.clone());
        let key = |digit: &str| digit.repeat(32);
        assert_eq!(last.find(&key("a")), None);
        last.keep(&key("a"), 7).unwrap();
        last.keep(&key("b"), u64::MAX).unwrap();
        last.keep(&key("a"), 8).unwrap();
        assert_eq!(last.find(&key("a")), Some(8));
        assert_eq!(last.find(&key("b")), Some(u64::MAX));
        std::fs::write(&file, format!("x\n{} y\n{} 5\n", key("a"), key("c"))).unwrap();
        assert_eq!(
            (last.find(&key("a")), last.find(&key("c"))),
            (None, Some(5))
        );
    }
}
