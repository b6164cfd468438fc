//! Early data: the first bytes of the offered files, which the sender puts at the beginning of the
//! transfer space before the receiver has requested anything. They save a round trip.
//!
//! An offer carries their number alone. [`divide`] gives both ends the same prefixes of files.

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
}

/// Returns how much early data an offer of these entries may have, bytes.
pub(crate) fn choose<'e>(entries: impl Iterator<Item = &'e Entry>) -> u32 {
    let entries = entries.take(ENTRIES_MAX).take_while(|one| !one.is_member);
    let data = entries.fold(0_u64, |sum, one| sum.saturating_add(one.data()));
    u32::try_from(data.min(EARLY_MAX)).unwrap_or(0)
}

/// Divides `early` bytes among the entries of the first offer, in their order.
///
/// # Errors
/// It is more than [`choose`] allows.
pub(crate) fn divide<'e>(
    entries: impl Iterator<Item = &'e Entry> + Clone,
    early: u32,
) -> Result<Vec<Prefix>, Fault> {
    if early > choose(entries.clone()) {
        return Err(Fault::protocol(
            "the peer sends too much before it is asked",
        ));
    }
    let mut left = u64::from(early);
    let prefixes = (0..).zip(entries).filter_map(|(file, entry)| {
        let len = entry.data().min(left);
        left -= len;
        let is_whole = len == entry.data();
        (len > 0).then_some(Prefix {
            file,
            len,
            is_whole,
        })
    });
    Ok(prefixes.take(ENTRIES_MAX).collect())
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
    fn members_and_later_entries_have_no_early_data() {
        let mut some = entries(&[5, 7, 9]);
        some[1].is_member = true;
        assert_eq!(choose(some.iter()), 5);
        assert!(divide(some.iter(), 6).is_err());
        let many = entries(&[1; ENTRIES_MAX + 9]);
        assert_eq!(choose(many.iter()) as usize, ENTRIES_MAX);
        assert_eq!(choose(entries(&[u64::MAX, u64::MAX]).iter()), 256 << 10);
        assert!(divide(entries(&[]).iter(), 1).is_err());
    }

    proptest! {
        #[test]
        fn prefixes_cover_what_was_offered_and_no_more(
            sizes in proptest::collection::vec(0..200_000_u64, 0..80),
            early in 0..300_000_u32,
        ) {
            let entries = entries(&sizes);
            let Ok(prefixes) = divide(entries.iter(), early) else {
                prop_assert!(early > choose(entries.iter()));
                return Ok(());
            };
            let sum: u64 = prefixes.iter().map(|prefix| prefix.len).sum();
            prop_assert_eq!(sum, u64::from(early));
            for (index, prefix) in prefixes.iter().enumerate() {
                let size = sizes[prefix.file as usize];
                prop_assert!(prefix.len > 0 && prefix.is_whole == (prefix.len == size));
                prop_assert!(prefix.is_whole || index + 1 == prefixes.len());
            }
        }
    }
}
