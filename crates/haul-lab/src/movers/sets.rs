//! The trees that movers move. They follow from their name and the scale alone, except for
//! `kernel`, which is a part of a real source tree.

use std::fs::{self, File, FileTimes, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use haul_netem::Rng;
use serde::{Deserialize, Serialize};

use crate::noise::noise;

/// Files of one directory of `tiny`.
const TINY_FILES: u64 = 250;
/// The data of `sparse` lies in pieces of this size.
const PIECE: u64 = 1 << 20;
/// In `changed`, one page of so many is another one at the target.
const CHANGED_EVERY: u64 = 100;
/// A page of the other content.
const PAGE: [u8; 4096] = [0; 4096];
/// So many bytes are made and written at a time.
const CHUNK: usize = 1 << 16;

/// A tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Set {
    /// 100,000 files of 4 KiB
    Tiny,
    /// 10,000 files of 1 MiB in one directory
    Flat,
    /// The sources of Linux, or of the crates on this machine
    Kernel,
    /// One file of 100 GiB with 1 GiB of data
    Sparse,
    /// 1 file of 4 GiB, 40 of 100 MB, 2,000 of 1 MB, 10,000 of 10 kB
    Climate,
    /// The files of `tiny`, which the target has already
    Again,
    /// One file of 4 GiB, of which the target has all but one page in 100
    Changed,
    /// One file of 4 KiB at any scale, by ssh
    Single,
}

/// A tree on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Made {
    pub(super) set: Set,
    /// Its source.
    pub(super) material: String,
    pub(super) files: u64,
    /// Lengths of the files.
    pub(super) bytes: u64,
    /// Bytes outside holes.
    pub(super) data_bytes: u64,
    /// Where it lies, relative to the working directory of the measurement.
    pub(super) path: PathBuf,
}

/// A file to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Planned {
    path: String,
    len: u64,
    content: Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Whole,
    /// One piece of data in each span of this length.
    PieceEvery(u64),
}

impl Set {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Flat => "flat",
            Self::Kernel => "kernel",
            Self::Sparse => "sparse",
            Self::Climate => "climate",
            Self::Again => "again",
            Self::Changed => "changed",
            Self::Single => "single",
        }
    }

    /// Its files at a scale; none for `kernel`.
    fn plan(self, scale: f64) -> Vec<Planned> {
        match self {
            Self::Tiny | Self::Again => group(100_000, 4096, scale, |at| {
                format!("{:03}/{:05}", at / TINY_FILES, at)
            }),
            Self::Flat => group(10_000, 1 << 20, scale, |at| format!("{at:05}.dat")),
            Self::Kernel => Vec::new(),
            Self::Changed => group(1, 4 << 30, scale, |_| "disk.img".into()),
            Self::Single => group(1, 4096, 1.0, |_| "file".into()),
            Self::Sparse => {
                let len = scaled(100 << 30, scale).next_multiple_of(100 * PIECE);
                let content = Content::PieceEvery(100 * PIECE);
                let path = "disk.img".to_owned();
                vec![Planned { path, len, content }]
            }
            Self::Climate => [
                group(1, 4 << 30, scale, |_| "model.nc".into()),
                group(40, 100_000_000, scale, |at| format!("years/{at:02}.nc")),
                group(2_000, 1_000_000, scale, |at| {
                    format!("months/{:02}/{at:04}.nc", at / 100)
                }),
                group(10_000, 10_000, scale, |at| {
                    format!("stations/{:02}/{at:05}.csv", at / 200)
                }),
            ]
            .concat(),
        }
    }

    /// Makes it below `folder`, unless it is there.
    pub(super) fn make(self, folder: &Path, scale: f64, kernel: Option<&Path>) -> Result<Made> {
        let name = format!("{}-{scale}", self.name());
        let (tree, note) = (folder.join(&name), folder.join(format!("{name}.json")));
        if let Ok(text) = fs::read(&note) {
            let about = || format!("{} is damaged: remove it", note.display());
            return serde_json::from_slice(&text).with_context(about);
        }
        eprintln!("making {name} in {}", folder.display());
        remove(&tree)?;
        fs::create_dir_all(&tree).with_context(|| format!("cannot make {}", tree.display()))?;
        let material = if self == Self::Kernel {
            copy_sources(&tree, scale, kernel)?
        } else {
            for file in self.plan(scale) {
                let path = tree.join(&file.path);
                write(&path, &file).with_context(|| format!("cannot write {}", path.display()))?;
            }
            "pseudo-random bytes".to_owned()
        };
        let mut made = Made {
            set: self,
            material,
            files: 0,
            bytes: 0,
            data_bytes: 0,
            path: Path::new("sets").join(name),
        };
        made.finish(&tree, &tree)?;
        ensure!(made.files > 0, "{} is empty", tree.display());
        fs::write(&note, serde_json::to_vec(&made)?)
            .with_context(|| format!("cannot write {}", note.display()))?;
        Ok(made)
    }
}

/// Makes what the target of a set has before a run: `copy` is where its tree belongs.
pub(super) fn prepare(set: Set, source: &Path, copy: &Path) -> Result<()> {
    if !matches!(set, Set::Again | Set::Changed) {
        return Ok(());
    }
    let mut command = Command::new("cp");
    let copied = command.arg("-a").args([source, copy]).status();
    let copied = copied.context("cannot run cp")?;
    ensure!(copied.success(), "cannot copy {}", source.display());
    if set == Set::Changed {
        for entry in fs::read_dir(copy)? {
            let path = entry?.path();
            change(&path).with_context(|| format!("cannot change {}", path.display()))?;
        }
    }
    Ok(())
}

/// Overwrites some pages.
fn change(path: &Path) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    let len = file.metadata()?.len();
    let mut at = 0;
    let page = PAGE.len() as u64;
    while at + page <= len {
        file.write_all_at(&PAGE, at)?;
        at += CHANGED_EVERY * page;
    }
    Ok(())
}

impl Made {
    /// Counts the entries below a directory, and sets every directory's time, the deepest first.
    fn finish(&mut self, root: &Path, folder: &Path) -> Result<()> {
        for entry in fs::read_dir(folder)? {
            let (entry, metadata) = entry.and_then(|entry| {
                let metadata = entry.metadata()?;
                Ok((entry, metadata))
            })?;
            if metadata.is_dir() {
                self.finish(root, &entry.path())?;
            } else if metadata.is_file() {
                self.files += 1;
                self.bytes += metadata.len();
                self.data_bytes += metadata.len().min(metadata.blocks() * 512);
            }
        }
        Ok(set_time(folder, relative(root, folder))?)
    }
}

/// `count` files of `len` bytes at a scale: fewer files, or, below one, one shorter file.
fn group(count: u64, len: u64, scale: f64, name: impl Fn(u64) -> String) -> Vec<Planned> {
    let files = scaled(count, scale);
    let (files, len) = match files {
        0 => (1, scaled(count * len, scale).max(1)),
        files => (files, len),
    };
    let planned = |at| Planned {
        path: name(at),
        len,
        content: Content::Whole,
    };
    (0..files).map(planned).collect()
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a scale lies between 0 and 10, and sizes are far below 2^53"
)]
fn scaled(value: u64, scale: f64) -> u64 {
    (value as f64 * scale) as u64
}

/// FNV-1a with a final mix.
fn hash(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash ^= hash >> 32;
    hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn write(path: &Path, planned: &Planned) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut rng = Rng::new(hash(planned.path.as_bytes()));
    let mut file = File::create(path)?;
    match planned.content {
        Content::Whole => {
            let mut left = planned.len;
            while left > 0 {
                let bytes = noise(&mut rng, CHUNK);
                let len = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
                file.write_all(&bytes[..len])?;
                left -= len as u64;
            }
        }
        Content::PieceEvery(span) => {
            file.set_len(planned.len)?;
            for begin in (0..planned.len).step_by(usize::try_from(span).unwrap_or(usize::MAX)) {
                for at in (begin..begin + PIECE).step_by(CHUNK) {
                    file.write_all_at(&noise(&mut rng, CHUNK), at)?;
                }
            }
        }
    }
    let modes = [0o644, 0o600, 0o755, 0o640];
    let at = usize::try_from(hash(planned.path.as_bytes()) % 4).unwrap_or(0);
    file.set_permissions(Permissions::from_mode(modes[at]))?;
    set_time(path, planned.path.as_bytes())
}

/// Sets a time that follows from the name.
fn set_time(path: &Path, name: &[u8]) -> io::Result<()> {
    let hash = hash(name);
    let nanos = u32::try_from(hash % 1_000_000_000).unwrap_or(0);
    let age = Duration::new(1_600_000_000 + (hash >> 40), nanos);
    let time: SystemTime = UNIX_EPOCH + age;
    File::open(path)?.set_times(FileTimes::new().set_modified(time))
}

fn relative<'a>(root: &Path, path: &'a Path) -> &'a [u8] {
    let name = path.strip_prefix(root).unwrap_or(path);
    name.as_os_str().as_encoded_bytes()
}

fn remove(tree: &Path) -> Result<()> {
    match fs::remove_dir_all(tree) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", tree.display()))
        }
        _ => Ok(()),
    }
}

/// Copies a part of a real source tree; returns its description.
fn copy_sources(tree: &Path, scale: f64, kernel: Option<&Path>) -> Result<String> {
    let from = kernel.map(Path::to_path_buf).or_else(found_sources);
    let from = from.context(
        "no sources for the set kernel: install linux-source, or name an archive or a directory with --kernel",
    )?;
    let name = from.file_name().map_or_else(
        || from.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    );
    let mut command;
    let material = if from.is_dir() {
        command = Command::new("cp");
        command.arg("-a").arg(from.join(".")).arg(tree);
        format!("sources of crates ({name})")
    } else {
        command = Command::new("tar");
        command.arg("-xf").arg(&from).arg("-C").arg(tree);
        command.arg("--strip-components=1");
        name
    };
    let output = command.output().context("cannot copy the sources")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("cannot copy {}: {}", from.display(), why.trim());
    }
    if scale < 1.0 {
        thin(tree, tree, scale)?;
        // A link may lead to a directory that became empty.
        while prune(tree)? {}
    }
    Ok(material)
}

/// Where Debian puts the sources of Linux, or else where cargo puts those of crates.
fn found_sources() -> Option<PathBuf> {
    let newest = |folder: &Path, is_right: fn(&str) -> bool| {
        let entries = fs::read_dir(folder).ok()?.flatten();
        let fits = entries.filter(|entry| is_right(&entry.file_name().to_string_lossy()));
        fits.map(|entry| entry.path()).max()
    };
    let is_linux = |name: &str| name.starts_with("linux-source-") && name.contains(".tar.");
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo = cargo.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
    newest(Path::new("/usr/src"), is_linux)
        .or_else(|| newest(&cargo?.join("registry/src"), |_| true))
}

/// Keeps a share of the files, chosen by their names.
fn thin(root: &Path, folder: &Path, scale: f64) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        if kind.is_dir() {
            thin(root, &path, scale)?;
        } else if kind.is_file() && hash(relative(root, &path)) >> 11 >= scaled(1 << 53, scale) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Removes empty directories, and symbolic links whose target is not there; whether there were any.
fn prune(folder: &Path) -> Result<bool> {
    let mut has_removed = false;
    for entry in fs::read_dir(folder)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        if kind.is_dir() {
            has_removed |= prune(&path)?;
            match fs::remove_dir(&path) {
                Ok(()) => has_removed = true,
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                Err(error) => return Err(error).context("cannot remove an empty directory"),
            }
        } else if kind.is_symlink() && !path.exists() {
            fs::remove_file(&path)?;
            has_removed = true;
        }
    }
    Ok(has_removed)
}

#[cfg(test)]
mod tests {
    use super::super::tree;
    use super::*;

    #[test]
    fn sets_have_the_files_that_the_page_names() {
        let count = |set: Set, scale| {
            let files = set.plan(scale);
            (files.len(), files.iter().map(|file| file.len).sum::<u64>())
        };
        assert_eq!(count(Set::Tiny, 1.0), (100_000, 100_000 << 12));
        assert_eq!(count(Set::Flat, 0.01), (100, 100 << 20));
        assert_eq!(count(Set::Sparse, 1.0), (1, 100 << 30));
        let climate = (4 << 30) + 40 * 100_000_000 + 2_000 * 1_000_000 + 10_000 * 10_000;
        assert_eq!(count(Set::Climate, 1.0), (12_041, climate));
        assert_eq!(count(Set::Changed, 1.0), (1, 4 << 30));
        assert_eq!(count(Set::Single, 0.01), (1, 4096));
        // Below one file the file becomes shorter.
        let files = Set::Climate.plan(0.01);
        assert_eq!((files[0].len, files[1].len), (42_949_672, 40_000_000));
        let mut names: Vec<_> = files.iter().map(|file| &file.path).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), files.len());
    }

    #[test]
    fn a_set_is_the_same_each_time_and_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
        for set in [Set::Tiny, Set::Climate, Set::Sparse] {
            let made = set.make(&one, 0.0001, None).unwrap();
            assert_eq!(made, set.make(&other, 0.0001, None).unwrap());
            let trees = [&one, &other].map(|at| at.join(made.path.file_name().unwrap()));
            assert_eq!(
                tree::compare(&trees[0], &trees[1]).unwrap().counts,
                [].into()
            );
            fs::remove_dir_all(&trees[1]).unwrap();
            assert_eq!(made, set.make(&other, 0.0001, None).unwrap());
            assert!(!trees[1].exists(), "it was made again");
        }
    }

    #[test]
    fn a_target_has_what_its_set_says() {
        let folder = tempfile::tempdir().unwrap();
        let prepared = |set: Set, scale| {
            let made = set.make(folder.path(), scale, None).unwrap();
            let source = folder.path().join(made.path.file_name().unwrap());
            let copy = folder.path().join(format!("copy of {}", set.name()));
            prepare(set, &source, &copy).unwrap();
            (source, copy)
        };
        let (source, copy) = prepared(Set::Again, 0.0001);
        assert_eq!(tree::compare(&source, &copy).unwrap().counts, [].into());
        let (source, copy) = prepared(Set::Changed, 0.0001);
        let [source, copy] = [source, copy].map(|tree| fs::read(tree.join("disk.img")).unwrap());
        assert_eq!(source.len(), copy.len());
        let pages = source.chunks(4096).zip(copy.chunks(4096));
        // Of 104 whole pages.
        assert_eq!(pages.filter(|(source, copy)| source != copy).count(), 2);
        assert!(!prepared(Set::Tiny, 0.0001).1.exists());
    }

    #[test]
    fn a_sparse_file_has_one_hundredth_of_data() {
        let folder = tempfile::tempdir().unwrap();
        let made = Set::Sparse.make(folder.path(), 0.001, None).unwrap();
        assert_eq!(made.bytes, 200 << 20);
        if made.data_bytes == made.bytes {
            println!("SKIPPED: the file system has no holes");
            return;
        }
        assert!((2 << 20..3 << 20).contains(&made.data_bytes), "{made:?}");
    }

    #[test]
    fn a_part_of_a_source_tree_has_no_dangling_links_and_no_empty_directories() {
        let folder = tempfile::tempdir().unwrap();
        let sources = folder.path().join("sources");
        for at in 0..200 {
            let folder = sources.join(format!("{}", at / 5));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(at.to_string()), at.to_string()).unwrap();
            std::os::unix::fs::symlink(at.to_string(), folder.join(format!("to-{at}"))).unwrap();
        }
        let made = |name: &str, scale| {
            let at = folder.path().join(name);
            let made = Set::Kernel.make(&at, scale, Some(&sources)).unwrap();
            (at.join(made.path.file_name().unwrap()), made)
        };
        let (tree, part) = made("one", 0.25);
        assert!((20..80).contains(&part.files), "{part:?}");
        assert_eq!(part.material, "sources of crates (sources)");
        let mut walk = Command::new("find");
        walk.arg(&tree).args(["-empty", "-o", "-xtype", "l"]);
        assert!(walk.output().unwrap().stdout.is_empty());
        let (other, again) = made("other", 0.25);
        assert_eq!(part, again);
        assert_eq!(tree::compare(&tree, &other).unwrap().counts, [].into());
        assert_eq!(made("whole", 1.0).1.files, 200);
    }
}
