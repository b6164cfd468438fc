//! Removes entries of a tree that a listing has shown.

use std::io;

use crate::fault::plain;
use crate::fs::entry::{Entry, Kind, Stat};
use crate::fs::tree::Tree;

/// The outcome of removing entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Entries that were removed.
    pub deleted: u64,
    /// Directories that stay because something is in them: excluded, new, or of a transfer that is
    /// not complete.
    pub not_empty: Vec<Vec<u8>>,
    /// Entries that could not be removed, each with the reason.
    pub failures: Vec<(Vec<u8>, String)>,
}

/// Removes entries in their order, the content of a directory before the directory, and makes that
/// durable.
///
/// What is no longer as it was listed stays, and so does a directory that is not empty. What is
/// gone already is no failure.
///
/// # Errors
/// The system has no thread for it.
pub(crate) fn delete(tree: &Tree, entries: Vec<Entry>) -> io::Result<Outcome> {
    tree.confined(|| delete_all(tree, entries))
}

fn delete_all(tree: &Tree, entries: Vec<Entry>) -> Outcome {
    let mut outcome = Outcome::default();
    for entry in entries {
        match remove(tree, &entry) {
            Ok(Removed::Yes) => outcome.deleted += 1,
            Ok(Removed::WasGone) => {}
            Ok(Removed::NotEmpty) => outcome.not_empty.push(entry.path.as_bytes().to_vec()),
            Err(why) => {
                let path = entry.path.as_bytes().to_vec();
                outcome.failures.push((path, why));
            }
        }
    }
    let unsynced = tree.sync().into_iter().map(|(path, error)| {
        let why = format!("cannot make the directory durable: {}", plain(&error));
        (path.as_bytes().to_vec(), why)
    });
    outcome.failures.extend(unsynced);
    outcome
}

enum Removed {
    Yes,
    WasGone,
    NotEmpty,
}

fn remove(tree: &Tree, entry: &Entry) -> Result<Removed, String> {
    let Entry { path, kind, stat } = entry;
    let Some(found) = tree.look(path).map_err(|error| plain(&error))? else {
        return Ok(Removed::WasGone);
    };
    if !is_same((kind, stat), (&found.0, &found.1)) {
        return Err("it has changed since it was listed".to_owned());
    }
    let removed = match kind {
        Kind::Directory => tree.remove_directory(path),
        _ => tree.remove(path),
    };
    match removed {
        Ok(()) => Ok(Removed::Yes),
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(Removed::NotEmpty),
        Err(error) => Err(plain(&error)),
    }
}

/// Returns whether an entry is as it was listed. The time of a directory changes with its content.
fn is_same(listed: (&Kind, &Stat), found: (&Kind, &Stat)) -> bool {
    match (listed.0, found.0) {
        (Kind::File | Kind::HardLink(_), Kind::File) => {
            listed.1.size == found.1.size && listed.1.modified == found.1.modified
        }
        (listed, found) => listed == found,
    }
}

/// Returns the entries to remove in their order: what is in a directory precedes it.
pub(crate) fn in_order(mut entries: Vec<Entry>) -> Vec<Entry> {
    // A path follows those of the directories above it, so their reverse order has content first.
    entries.sort_unstable_by(|one, other| other.path.cmp(&one.path));
    entries
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use haul_io::file::Dir;

    use super::*;
    use crate::fs::walk::{Options, Walk};

    fn listed(root: &std::path::Path) -> Vec<Entry> {
        let walk = Walk::start(Dir::open(root).unwrap(), &Options::default()).unwrap();
        walk.map(Result::unwrap).collect()
    }

    fn tree(root: &std::path::Path) -> Tree {
        Tree::new(Dir::open(root).unwrap(), [0; 8])
    }

    #[test]
    fn content_goes_before_its_directory_and_nothing_is_followed() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| root.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::write(at("a/b/file"), "x").unwrap();
        std::fs::write(at("a-b"), "x").unwrap();
        std::fs::write(outside.path().join("kept"), "x").unwrap();
        symlink(outside.path(), at("a/link")).unwrap();
        let entries = in_order(listed(root.path()));
        let outcome = delete(&tree(root.path()), entries).unwrap();
        assert_eq!((outcome.deleted, outcome.failures.len()), (5, 0));
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
        assert!(outside.path().join("kept").exists());
    }

    #[test]
    fn what_has_changed_or_is_not_empty_stays() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        std::fs::create_dir(at("d")).unwrap();
        for name in ["d/old", "gone", "grown", "other"] {
            std::fs::write(at(name), "x").unwrap();
        }
        let entries = in_order(listed(root.path()));
        std::fs::write(at("d/.new.haul-part"), "a running transfer's").unwrap();
        std::fs::remove_file(at("gone")).unwrap();
        std::fs::write(at("grown"), "longer").unwrap();
        std::fs::remove_file(at("other")).unwrap();
        std::fs::create_dir(at("other")).unwrap();
        let outcome = delete(&tree(root.path()), entries).unwrap();
        let mut kept: Vec<_> = outcome.failures.iter().map(|(path, _)| &path[..]).collect();
        kept.sort_unstable();
        assert_eq!(kept, [&b"grown"[..], b"other"]);
        assert_eq!(outcome.not_empty, [b"d"]);
        assert_eq!(outcome.deleted, 1);
        assert!(at("d/.new.haul-part").exists() && !at("d/old").exists());
    }

    #[test]
    fn a_directory_swapped_for_a_link_leads_nowhere() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| root.path().join(name);
        std::fs::create_dir(at("d")).unwrap();
        std::fs::write(at("d/file"), "x").unwrap();
        let entries = in_order(listed(root.path()));
        std::fs::rename(at("d"), outside.path().join("d")).unwrap();
        symlink(outside.path().join("d"), at("d")).unwrap();
        // Without the kernel's guard, which has a test of its own.
        let outcome = delete_all(&tree(root.path()), entries);
        assert_eq!((outcome.deleted, outcome.failures.len()), (0, 2));
        assert!(outside.path().join("d/file").exists());
    }
}
