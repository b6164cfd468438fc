//! Whether a tree that arrived is the one that was sent: content, metadata, links, holes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// Blocks that a file may have beyond those of its source: a share, and bytes.
const BLOCKS_SHARE: f64 = 1.05;
const BLOCKS_BYTES: u64 = 64 << 10;
const BUFFER: usize = 1 << 18;

/// A difference between a source and its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Difference {
    /// A file or directory is not there.
    Missing,
    /// Something is there that the source does not have.
    Extra,
    /// A file is a directory, or the other way round.
    Type,
    Content,
    Mode,
    /// The modification time, beyond full seconds.
    Modified,
    /// A symbolic link is missing, became something else, or points elsewhere.
    Link,
    /// Two names of one file became two files, or the other way round.
    HardLink,
    /// A file takes more blocks than its source.
    Holes,
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Compared {
    /// How often each difference was found.
    pub(super) counts: BTreeMap<Difference, u64>,
    /// The first name of each.
    pub(super) examples: BTreeMap<Difference, PathBuf>,
    /// Bytes that the files of the copy occupy on disk.
    pub(super) allocated: u64,
    /// The first names of files of source and copy, by their inode.
    names: [BTreeMap<u64, PathBuf>; 2],
}

impl Difference {
    /// Whether data was lost or changed, rather than its description.
    pub(super) const fn is_loss(self) -> bool {
        matches!(
            self,
            Self::Missing | Self::Extra | Self::Type | Self::Content
        )
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Extra => "extra",
            Self::Type => "of another type",
            Self::Content => "with other content",
            Self::Mode => "mode",
            Self::Modified => "time",
            Self::Link => "symbolic link",
            Self::HardLink => "hard link",
            Self::Holes => "holes",
        }
    }
}

/// Compares a copy with its source. The metadata of the two directories themselves is left out.
pub(super) fn compare(source: &Path, copy: &Path) -> Result<Compared> {
    let mut compared = Compared::default();
    compared.folder(source, copy, Path::new(""))?;
    Ok(compared)
}

impl Compared {
    fn add(&mut self, difference: Difference, path: &Path) {
        *self.counts.entry(difference).or_default() += 1;
        let example = self.examples.entry(difference);
        example.or_insert_with(|| path.to_path_buf());
    }

    fn folder(&mut self, source: &Path, copy: &Path, below: &Path) -> Result<()> {
        let wanted = names(&source.join(below))?;
        let found = match names(&copy.join(below)) {
            Err(error) if below == Path::new("") => return Err(error),
            found => found.unwrap_or_default(),
        };
        for name in found.difference(&wanted) {
            self.add(Difference::Extra, &below.join(name));
        }
        for name in &wanted {
            let path = below.join(name);
            self.entry(source, copy, &path)?;
        }
        Ok(())
    }

    fn entry(&mut self, source: &Path, copy: &Path, path: &Path) -> Result<()> {
        let (from, to) = (source.join(path), copy.join(path));
        let wanted = fs::symlink_metadata(&from)
            .with_context(|| format!("cannot look at {}", from.display()))?;
        let found = fs::symlink_metadata(&to).ok();
        if wanted.is_symlink() {
            let is_same = found.is_some_and(|found| found.is_symlink())
                && fs::read_link(&from).ok() == fs::read_link(&to).ok();
            if !is_same {
                self.add(Difference::Link, path);
            }
            return Ok(());
        }
        let Some(found) = found else {
            self.add(Difference::Missing, path);
            return Ok(());
        };
        if found.file_type() != wanted.file_type() {
            self.add(Difference::Type, path);
            return Ok(());
        }
        if wanted.permissions().mode() & 0o7777 != found.permissions().mode() & 0o7777 {
            self.add(Difference::Mode, path);
        }
        if wanted.mtime() != found.mtime() {
            self.add(Difference::Modified, path);
        }
        if wanted.is_dir() {
            return self.folder(source, copy, path);
        }
        self.file((&from, &wanted), (&to, &found), path)
    }

    fn file(
        &mut self,
        (from, wanted): (&Path, &Metadata),
        (to, found): (&Path, &Metadata),
        path: &Path,
    ) -> Result<()> {
        let occupied = |metadata: &Metadata| metadata.blocks() * 512;
        self.allocated += occupied(found);
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
        let (source, copy) = (occupied(wanted) as f64, occupied(found) as f64);
        if occupied(found) > occupied(wanted) + BLOCKS_BYTES && copy > source * BLOCKS_SHARE {
            self.add(Difference::Holes, path);
        }
        let first = [wanted, found].map(Metadata::ino);
        let first: Vec<_> = first
            .into_iter()
            .zip(&mut self.names)
            .map(|(inode, names)| names.entry(inode).or_insert_with(|| path.into()).clone())
            .collect();
        if first[0] != first[1] {
            self.add(Difference::HardLink, path);
        }
        let is_same = wanted.len() == found.len() && same_content(from, to)?;
        if !is_same {
            self.add(Difference::Content, path);
        }
        Ok(())
    }
}

fn names(folder: &Path) -> Result<BTreeSet<OsString>> {
    let entries = fs::read_dir(folder).and_then(|entries| {
        let names = entries.map(|entry| Ok(entry?.file_name()));
        names.collect::<io::Result<_>>()
    });
    entries.with_context(|| format!("cannot read the directory {}", folder.display()))
}

fn same_content(one: &Path, other: &Path) -> Result<bool> {
    let open =
        |path: &Path| File::open(path).with_context(|| format!("cannot open {}", path.display()));
    let (mut one, mut other) = (open(one)?, open(other)?);
    let (mut left, mut right) = (vec![0; BUFFER], vec![0; BUFFER]);
    loop {
        let count = one.read(&mut left)?;
        if count == 0 {
            return Ok(other.read(&mut right)? == 0);
        }
        match other.read_exact(&mut right[..count]) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            result => result?,
        }
        if left[..count] != right[..count] {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt as _, symlink};

    use super::*;

    /// A tree with one of each, and a copy of it.
    fn two() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let (source, copy) = (folder.path().join("source"), folder.path().join("copy"));
        fs::create_dir_all(source.join("folder/below")).unwrap();
        fs::write(source.join("folder/file"), vec![7; BUFFER + 5]).unwrap();
        fs::write(source.join("empty"), "").unwrap();
        symlink("folder/file", source.join("link")).unwrap();
        fs::write(source.join("twin"), "two names").unwrap();
        fs::hard_link(source.join("twin"), source.join("twin2")).unwrap();
        let sparse = File::create(source.join("sparse")).unwrap();
        sparse.set_len(8 << 20).unwrap();
        sparse.write_all_at(b"data", 4 << 20).unwrap();
        let status = std::process::Command::new("cp")
            .args(["-a", "--sparse=always"])
            .args([&source, &copy])
            .status();
        assert!(status.unwrap().success());
        (folder, source, copy)
    }

    #[test]
    fn a_copy_does_not_differ() {
        let (_folder, source, copy) = two();
        let compared = compare(&source, &copy).unwrap();
        assert_eq!(compared.counts, BTreeMap::new());
        assert!(compared.allocated > BUFFER as u64);
    }

    /// A change to a copy, by its path, and the difference to be found.
    type Change = (Difference, &'static str, fn(&Path));

    #[test]
    fn each_kind_of_difference_is_found() {
        use Difference as D;
        let changes: [Change; 13] = [
            (D::Missing, "empty", |path| fs::remove_file(path).unwrap()),
            (D::Missing, "folder/below", |path| {
                fs::remove_dir(path).unwrap();
            }),
            (D::Extra, "folder/new", |path| fs::write(path, "").unwrap()),
            (D::Type, "empty", |path| {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            }),
            (D::Content, "folder/file", |path| {
                let file = File::options().write(true).open(path).unwrap();
                file.write_all_at(b"x", BUFFER as u64 + 2).unwrap();
            }),
            (D::Content, "empty", |path| fs::write(path, "x").unwrap()),
            (D::Mode, "empty", |path| {
                fs::set_permissions(path, fs::Permissions::from_mode(0o4711)).unwrap();
            }),
            (D::Modified, "folder/file", |path| {
                let file = File::options().write(true).open(path).unwrap();
                let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
                file.set_times(times).unwrap();
            }),
            (D::Link, "link", |path| {
                fs::remove_file(path).unwrap();
                symlink("elsewhere", path).unwrap();
            }),
            (D::Link, "link", |path| fs::remove_file(path).unwrap()),
            (D::Link, "link", |path| {
                fs::remove_file(path).unwrap();
                fs::write(path, vec![7; BUFFER + 5]).unwrap();
            }),
            (D::HardLink, "twin2", |path| {
                fs::remove_file(path).unwrap();
                fs::write(path, "two names").unwrap();
            }),
            (D::Holes, "sparse", |path| {
                let bytes = fs::read(path).unwrap();
                fs::write(path, bytes).unwrap();
            }),
        ];
        for (difference, path, change) in changes {
            let (_folder, source, copy) = two();
            change(&copy.join(path));
            let found = compare(&source, &copy).unwrap();
            assert_eq!(found.counts.get(&difference), Some(&1), "{path}: {found:?}");
            let name = &found.examples[&difference];
            assert_eq!(name, Path::new(path), "{found:?}");
        }
    }

    #[test]
    fn a_copy_that_is_not_there_is_an_error() {
        let (folder, source, _) = two();
        let error = compare(&source, &folder.path().join("none")).unwrap_err();
        assert!(error.to_string().contains("none"), "{error}");
    }
}
