//! Early data: the first bytes of the offered files, which the sender puts at the beginning of the
//! transfer space before the receiver has requested anything. They save a round trip.
//!
//! An offer carries their number alone. [`divide`] gives both ends the same prefixes of files. Of
//! the members of trees, small ones are early, and only whole.

use crate::entry::Entry;
use crate::fault::Fault;
use crate::wire::FILES_OPEN;

/// Maximum early data of a session, bytes: more than a sender's first flight, so that the flight is
/// full, and little to discard where the receiver has the files.
pub(crate) const EARLY_MAX: u64 = 256 << 10;
/// Maximum number of entries that early data may reach: the receiver opens that many at once.
pub(crate) const ENTRIES_MAX: usize = FILES_OPEN;

/// The early data of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prefix {
    pub(crate) file: u32,
    /// Bytes from the beginning of its data; at least one.
    pub(crate) len: u64,
    /// They are all of its data, which is one block then.
    pub(crate) is_whole: bool,
    /// It is a member that moves whole.
    pub(crate) is_small: bool,
}

/// Returns how much early data an offer of these entries may have, bytes.
pub(crate) fn choose<'e>(entries: impl Iterator<Item = &'e Entry>) -> u32 {
    let (_, left) = fill(entries, EARLY_MAX);
    u32::try_from(EARLY_MAX - left).unwrap_or(0)
}

/// Divides up to `early` bytes among the entries, in their order; returns what is left.
fn fill<'e>(entries: impl Iterator<Item = &'e Entry>, early: u64) -> (Vec<Prefix>, u64) {
    let mut left = early;
    let prefixes = (0..).zip(entries.take(ENTRIES_MAX));
    let prefixes = prefixes.filter_map(|(file, entry)| {
        let (data, is_small) = (entry.data(), entry.is_small());
        let len = match entry.is_member {
            false => data.min(left),
            true if is_small && data <= left => data,
            true => 0,
        };
        left -= len;
        (len > 0).then_some(Prefix {
            file,
            len,
            is_whole: len == data,
            is_small,
        })
    });
    (prefixes.collect(), left)
}

/// Divides `early` bytes among the entries of the first offer, in their order.
///
/// # Errors
/// It is more than a session may have, or than these entries take.
pub(crate) fn divide<'e>(
    entries: impl Iterator<Item = &'e Entry>,
    early: u32,
) -> Result<Vec<Prefix>, Fault> {
    match fill(entries, early.into()) {
        (prefixes, 0) if u64::from(early) <= EARLY_MAX => Ok(prefixes),
        _ => Err(Fault::protocol(
            "the peer sends too much before it is asked",
        )),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::entry::{FileEntry, What};
    use crate::fs::path::Relative;
    use crate::wire::Time;

    fn entries(sizes: &[u64]) -> Vec<Entry> {
        let entry = |size: &u64| Entry {
            path: Relative::new(b"a").unwrap(),
            modified: Time {
                seconds: 0,
                nanos: 0,
            },
            is_member: false,
            mode: 0o600,
            what: What::File(FileEntry::dense(*size)),
            extra: None,
        };
        sizes.iter().map(entry).collect()
    }

    #[test]
    fn of_members_only_small_ones_have_early_data_and_only_whole() {
        let mut some = entries(&[5, 200_000, 100_000, 3 << 20, 7]);
        for member in &mut some[1..] {
            member.is_member = true;
        }
        assert_eq!(choose(some.iter()), 5 + 200_000 + 7);
        let prefixes = divide(some.iter(), 5 + 200_000 + 7).unwrap();
        let files: Vec<_> = prefixes
            .iter()
            .map(|one| (one.file, one.is_small))
            .collect();
        assert_eq!(files, [(0, false), (1, true), (4, true)]);
        // Less than all: 2 bytes of the first, or one that fits.
        assert_eq!(divide(some.iter(), 2).unwrap().len(), 1);
        assert_eq!(divide(some.iter(), 12).unwrap()[1].file, 4);
        assert!(divide(some.iter(), 6).is_err());
        assert!(divide(some.iter(), 300_000).is_err());
    }

    #[test]
    fn later_entries_have_no_early_data() {
        let many = entries(&[1; ENTRIES_MAX + 9]);
        assert_eq!(choose(many.iter()) as usize, ENTRIES_MAX);
        assert_eq!(choose(entries(&[u64::MAX, u64::MAX]).iter()), 256 << 10);
        assert!(divide(entries(&[]).iter(), 1).is_err());
    }

    proptest! {
        #[test]
        fn prefixes_cover_what_was_offered_and_no_more(
            sizes in proptest::collection::vec((0..200_000_u64, any::<bool>()), 0..80),
            early in 0..300_000_u32,
        ) {
            let (sizes, members): (Vec<_>, Vec<_>) = sizes.into_iter().unzip();
            let mut entries = entries(&sizes);
            for (entry, is_member) in entries.iter_mut().zip(members) {
                entry.is_member = is_member;
            }
            // What a sender chooses, a receiver divides.
            prop_assert!(divide(entries.iter(), choose(entries.iter())).is_ok());
            let Ok(prefixes) = divide(entries.iter(), early) else {
                return Ok(());
            };
            prop_assert!(early <= choose(entries.iter()));
            let sum: u64 = prefixes.iter().map(|prefix| prefix.len).sum();
            prop_assert_eq!(sum, u64::from(early));
            for (index, prefix) in prefixes.iter().enumerate() {
                let size = sizes[prefix.file as usize];
                prop_assert!(prefix.len > 0 && prefix.is_whole == (prefix.len == size));
                prop_assert!(prefix.is_whole || index + 1 == prefixes.len());
                prop_assert!(prefix.is_whole || !prefix.is_small);
            }
        }
    }
}
