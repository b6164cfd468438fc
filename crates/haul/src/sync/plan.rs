//! What a transfer between two trees would do, and what only the destination has.
//!
//! The server lists its tree and the local one is looked at and walked: 16 bytes of memory for each
//! entry of the server, and the entries that only the destination has.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use haul_io::file::Dir;

use super::pair::Pair;
use crate::choice::{Choice, no_tree};
use crate::client::{self, Config};
use crate::fault::{Code, Fault, plain};
use crate::fs::entry::{Entry, Kind, Stat};
use crate::fs::filter::IGNORE_FILE;
use crate::fs::path::Relative;
use crate::fs::walk::{Options, Walk};
use crate::listing::client::{Found, Request, Session};
use crate::listing::delete::in_order;
use crate::listing::digest;
use crate::listing::verify::{Local, Source};
use crate::room::Room;
use crate::target::is_near;

/// Entries that only the destination has and that are remembered; further ones are counted.
const EXTRA_MAX: usize = 1 << 20;

/// The options of a comparison of two trees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct How {
    /// The digests of files decide, not their times.
    pub checksum: bool,
    /// A file that is newer at the destination counts as the same.
    pub update: bool,
    /// No file counts as the same.
    pub recheck: bool,
    /// What is different may not be replaced.
    pub adds_only: bool,
    /// What only the destination has is looked for.
    pub wants_extra: bool,
}

/// The step that a plan takes for an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The destination lacks it.
    Make,
    /// The destination has another one.
    Replace,
    /// The destination has something that cannot be replaced by it.
    Conflict,
    /// Only the destination has it.
    Delete,
}

/// A finding of a comparison.
#[derive(Debug)]
pub enum Finding<'a> {
    /// Something to do.
    Step(Step, &'a Entry),
    /// What could not be examined or read.
    Failed(&'a str),
    /// What the user should know.
    Note(&'a str),
}

/// The result of a comparison: entries and bytes by kind of step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Entries that the destination lacks.
    pub make: u64,
    /// Entries that are replaced.
    pub replace: u64,
    /// Entries that cannot be replaced.
    pub conflicts: u64,
    /// Bytes of the files to make and replace.
    pub bytes: u64,
    /// Entries that are the same.
    pub same: u64,
    /// Devices, pipes and sockets of the source.
    pub special: u64,
    /// What only the destination has, in the order of its removal, up to 2^20 entries.
    pub extra: Vec<Entry>,
    /// The number of all such entries.
    pub extra_count: u64,
    /// Such entries that stay, because it is unknown whether an ignore file protects them.
    pub protected: u64,
    /// Directories among them that stay, because something excluded is in them.
    pub full: Vec<Relative>,
    /// What could not be examined or read.
    pub failures: u64,
    /// The source has no entry.
    pub source_is_empty: bool,
    /// The file system of the source, if it is known.
    pub source_file_system: Option<u64>,
    /// What is free at the destination, if that is known.
    pub room: Option<Room>,
}

impl Plan {
    /// Checks that the destination has room for what is to be made and replaced.
    ///
    /// # Errors
    /// [`Code::DiskFull`], with how much is missing.
    pub fn check_room(&self) -> Result<(), Fault> {
        let inodes = self.make.saturating_add(self.replace.min(1));
        self.room
            .map_or(Ok(()), |room| room.check(self.bytes, inodes))
    }
}

/// Compares the two trees and hands each finding to `each`. Returns the session too, in which the
/// server can remove what it has listed; `None` if the server does not have its tree.
///
/// # Errors
/// The server cannot be reached, or the source does not exist.
pub fn examine(
    config: &Config,
    pair: &Pair,
    choice: &Choice,
    how: How,
    each: &mut dyn FnMut(&Finding<'_>),
) -> Result<(Plan, Option<Session>), Fault> {
    let here = match Local::open(&pair.here) {
        Err(fault) if pair.source == Source::Remote && is_missing(&fault) => None,
        opened => Some(opened?),
    };
    let mut examination = Examination {
        pair,
        choice,
        how,
        here,
        each,
        seen: HashSet::new(),
        differing: HashMap::new(),
        ignore_files: HashSet::new(),
        plan: Plan::default(),
        extra: Vec::new(),
        hides_extra: false,
    };
    let session = examination.there(config)?;
    examination.here()?;
    examination.settle(config)?;
    Ok((examination.plan, session))
}

/// Checks that the directory that gets a transfer exists, unless the transfer makes it. Returns
/// what is free there, if that is known.
///
/// # Errors
/// It does not exist, or the server cannot be reached.
pub fn check_destination(
    config: &Config,
    source: Source,
    directory: &[u8],
) -> Result<Option<Room>, Fault> {
    if source == Source::Remote {
        let target = client::Local::open(Path::new(OsStr::from_bytes(directory)))?;
        return Ok(target.dir.as_ref().and_then(|dir| Room::of(dir).ok()));
    }
    let request = Request::nothing_of(directory);
    let is_made = directory.ends_with(b"/");
    match Session::open(config, &request)?.list(|_| Ok(())) {
        Err(fault) if is_made && is_missing(&fault) => Ok(None),
        listed => listed.map(|listed| listed.room),
    }
}

/// Returns which file system a directory of the server is on, if that is known.
pub(super) fn file_system_there(config: &Config, directory: &[u8]) -> Result<Option<u64>, Fault> {
    let session = Session::open(config, &Request::nothing_of(directory))?;
    session.list(|_| Ok(())).map(|listed| listed.file_system)
}

fn is_missing(fault: &Fault) -> bool {
    matches!(fault.code, Code::FileNotFound | Code::DirectoryNotFound)
}

struct Examination<'a> {
    pair: &'a Pair,
    choice: &'a Choice,
    how: How,
    /// `None` if the local destination does not exist.
    here: Option<Local>,
    each: &'a mut dyn FnMut(&Finding<'_>),
    /// What the server has, by the hashes of the paths.
    seen: HashSet<[u8; 16]>,
    /// Of that, what differs from the local source.
    differing: HashMap<[u8; 16], Step>,
    /// Ignore files that are the same at both ends.
    ignore_files: HashSet<[u8; 16]>,
    plan: Plan,
    extra: Vec<Entry>,
    /// The destination has entries that the choice excludes.
    hides_extra: bool,
}

impl Examination<'_> {
    fn source(&self) -> Source {
        self.pair.source
    }

    fn fail(&mut self, text: &str) {
        self.plan.failures += 1;
        (self.each)(&Finding::Failed(text));
    }

    fn step(&mut self, step: Step, entry: &Entry) {
        match step {
            Step::Make => self.plan.make += 1,
            Step::Replace if self.how.adds_only => return self.step(Step::Conflict, entry),
            Step::Replace => self.plan.replace += 1,
            Step::Conflict => self.plan.conflicts += 1,
            Step::Delete => {}
        }
        if matches!(step, Step::Make | Step::Replace) && entry.kind == Kind::File {
            self.plan.bytes = self.plan.bytes.saturating_add(entry.stat.size);
        }
        (self.each)(&Finding::Step(step, entry));
    }

    fn note_extra(&mut self, entry: Entry) {
        self.plan.extra_count += 1;
        if self.extra.len() < EXTRA_MAX {
            self.extra.push(entry);
        }
    }

    /// Takes what the server has.
    fn there(&mut self, config: &Config) -> Result<Option<Session>, Fault> {
        let request = Request {
            path: self.pair.there.clone(),
            is_recursive: true,
            with_digests: self.how.checksum,
            choice: Choice {
                list: None,
                ..self.choice.clone()
            },
            deletes: self.how.wants_extra && self.source() == Source::Local,
        };
        let is_only_trees = self.choice.only_trees && self.source() == Source::Remote;
        let session = Session::open(config, &request)?;
        let mut count = 0_u64;
        let listed = session.list(|found| {
            match found {
                Found::Entry(entry, _) if entry.path.is_root() && is_only_trees => {
                    return Err(no_tree(&request.path));
                }
                Found::Entry(entry, digest) => {
                    count += 1;
                    self.there_is(entry, digest);
                }
                Found::Failed { text, .. } => self.fail(&text),
            }
            Ok(())
        });
        let listed = match listed {
            Err(fault) if self.source() == Source::Local && is_missing(&fault) => return Ok(None),
            listed => listed?,
        };
        match self.source() {
            Source::Local => {
                self.plan.room = listed.room;
                self.hides_extra = listed.excluded > 0;
            }
            Source::Remote => {
                self.plan.source_is_empty = count == 0 && listed.excluded == 0;
                self.plan.source_file_system = listed.file_system;
            }
        }
        Ok(Some(session))
    }

    /// Returns whether the list of the choice, if there is one, takes an entry: it names the entry,
    /// or one above or below it.
    fn is_listed(&self, path: &Relative) -> bool {
        let Some(list) = &self.choice.list else {
            return true;
        };
        let at = list.partition_point(|one| one.components().le(path.components()));
        list[..at].last().is_some_and(|one| path.is_in(one))
            || list.get(at).is_some_and(|one| one.is_in(path))
    }

    /// Compares an entry of the server with the local one.
    fn there_is(&mut self, entry: Entry, digest: Option<[u8; 32]>) {
        if self.source() == Source::Remote && !self.is_listed(&entry.path) {
            return;
        }
        let hash = entry.path.short_hash();
        self.seen.insert(hash);
        let Some(here) = &self.here else {
            return match entry.kind {
                Kind::Special => self.plan.special += 1,
                _ => self.step(Step::Make, &entry),
            };
        };
        let (kind, stat) = match here.look(&entry.path) {
            Ok(Some(found)) => found,
            Ok(None) if self.source() == Source::Local => return self.note_extra(entry),
            Ok(None) if entry.kind == Kind::Special => return self.plan.special += 1,
            Ok(None) => return self.step(Step::Make, &entry),
            Err(error) => {
                let (path, why) = (&entry.path, plain(&error));
                return self.fail(&format!("cannot examine '{path}': {why}"));
            }
        };
        let is_equal = match digest {
            Some(digest) if kind == Kind::File && stat.size == entry.stat.size => {
                let hashed = here
                    .file(&entry.path)
                    .and_then(|file| digest::of_file(&file));
                match hashed {
                    Ok((hash, _)) => Some(hash == digest),
                    Err(error) => {
                        let (path, why) = (&entry.path, plain(&error));
                        return self.fail(&format!("cannot read '{path}': {why}"));
                    }
                }
            }
            Some(_) => Some(false),
            None => None,
        };
        let (one, other) = ((&entry.kind, &entry.stat), (&kind, &stat));
        let step = match self.source() {
            Source::Local => compare(other, one, is_equal, self.how),
            Source::Remote => compare(one, other, is_equal, self.how),
        };
        match step {
            None if entry.path.name() == IGNORE_FILE.as_bytes() => {
                self.ignore_files.insert(hash);
            }
            Some(step) if self.source() == Source::Local => {
                self.differing.insert(hash, step);
                return;
            }
            Some(step) => return self.step(step, &entry),
            None => {}
        }
        if self.source() == Source::Remote {
            match entry.kind {
                Kind::Special => self.plan.special += 1,
                _ => self.plan.same += 1,
            }
        }
    }

    /// Walks the local tree.
    fn here(&mut self) -> Result<(), Fault> {
        let is_source = self.source() == Source::Local;
        let dir = match &self.here {
            Some(Local::Directory { path, .. }) => Dir::open(path),
            Some(Local::File(_)) if is_source => return self.here_is_file(),
            _ => return Ok(()),
        };
        let failed = |error: io::Error| Fault::file("cannot read the local directory", &error);
        let dir = dir.map_err(failed)?;
        if is_source {
            self.plan.source_file_system = dir.file_system().ok();
        } else {
            self.plan.room = Room::of(&dir).ok();
            if !self.how.wants_extra {
                return Ok(());
            }
        }
        let mut walk = Walk::start(dir, &self.choice.options()?).map_err(failed)?;
        let mut count = 0_u64;
        for found in walk.by_ref() {
            match found {
                Ok(entry) => {
                    count += 1;
                    self.here_is(entry);
                }
                Err(failure) => self.fail(&failure.to_string()),
            }
        }
        let excluded = walk.counts().excluded;
        match self.source() {
            Source::Local => self.plan.source_is_empty = count == 0 && excluded == 0,
            Source::Remote => self.hides_extra = excluded > 0,
        }
        Ok(())
    }

    fn here_is_file(&mut self) -> Result<(), Fault> {
        let Some(found) = self.here.as_ref().map(|here| here.look(&Relative::root())) else {
            return Ok(());
        };
        let failed = |error| Fault::file("cannot examine the local file", &error);
        if let Some((kind, stat)) = found.map_err(failed)? {
            let path = Relative::root();
            self.here_is(Entry { path, kind, stat });
        }
        Ok(())
    }

    /// Takes a local entry, after all of the server.
    fn here_is(&mut self, entry: Entry) {
        let hash = entry.path.short_hash();
        let is_seen = self.seen.contains(&hash);
        if self.source() == Source::Remote {
            if !is_seen {
                self.note_extra(entry);
            }
        } else if entry.kind == Kind::Special {
            self.plan.special += 1;
        } else if let Some(step) = self.differing.remove(&hash) {
            self.step(step, &entry);
        } else if is_seen {
            self.plan.same += 1;
        } else {
            self.step(Step::Make, &entry);
        }
    }

    /// Decides what of the extra entries is to be deleted.
    fn settle(&mut self, config: &Config) -> Result<(), Fault> {
        if !self.how.wants_extra {
            (self.extra, self.plan.extra_count) = (Vec::new(), 0);
            return Ok(());
        }
        if self.extra.is_empty() {
            return Ok(());
        }
        let unknown = match self.source() {
            Source::Local => self.unknown_of_local()?,
            Source::Remote => self.spare_excluded(config)?,
        };
        for directory in &unknown {
            let at = if directory.is_root() {
                "the tree"
            } else {
                "it"
            };
            let text = format!(
                "nothing below '{directory}' is deleted: the {IGNORE_FILE} of {at} is not the same \
                 at both ends (--include {IGNORE_FILE} transfers it)"
            );
            (self.each)(&Finding::Note(&text));
        }
        let before = self.extra.len();
        let is_known = |entry: &Entry| !unknown.iter().any(|dir| entry.path.is_in(dir));
        self.extra.retain(is_known);
        self.plan.protected = (before - self.extra.len()) as u64;
        self.plan.extra_count -= self.plan.protected;
        self.spare_full(config)?;
        let extra = in_order(std::mem::take(&mut self.extra));
        for entry in &extra {
            self.step(Step::Delete, entry);
        }
        self.plan.extra = extra;
        Ok(())
    }

    /// Drops the extra directories in which something stays because it is excluded.
    fn spare_full(&mut self, config: &Config) -> Result<(), Fault> {
        let is_directory = |entry: &Entry| entry.kind == Kind::Directory;
        if !self.hides_extra || !self.extra.iter().any(is_directory) {
            return Ok(());
        }
        let extra = self.extra.iter().map(|entry| entry.path.short_hash());
        let extra: HashSet<_> = extra.collect();
        let mut full = HashSet::new();
        let mut note = |path: &Relative| {
            if !extra.contains(&path.short_hash()) {
                full.extend(path.ancestors().map(|above| above.short_hash()));
            }
        };
        let mut failures = Vec::new();
        match (self.source(), &self.here) {
            (Source::Local, _) => {
                let request = Request {
                    path: self.pair.there.clone(),
                    is_recursive: true,
                    ..Request::default()
                };
                Session::open(config, &request)?.list(|found| {
                    match found {
                        Found::Entry(entry, _) => note(&entry.path),
                        Found::Failed { text, .. } => failures.push(text),
                    }
                    Ok(())
                })?;
            }
            (Source::Remote, Some(Local::Directory { path, .. })) => {
                let walk = Dir::open(path).and_then(|dir| Walk::start(dir, &Options::default()));
                let failed = |error| Fault::file("cannot read the local directory", &error);
                for found in walk.map_err(failed)? {
                    match found {
                        Ok(entry) => note(&entry.path),
                        Err(failure) => failures.push(failure.to_string()),
                    }
                }
            }
            (Source::Remote, _) => {}
        }
        failures.iter().for_each(|text| self.fail(text));
        let is_full =
            |entry: &mut Entry| is_directory(entry) && full.contains(&entry.path.short_hash());
        let kept = self.extra.extract_if(.., is_full);
        self.plan.full = in_order(kept.collect())
            .into_iter()
            .map(|entry| entry.path)
            .collect();
        self.plan.extra_count -= self.plan.full.len() as u64;
        Ok(())
    }

    /// Returns the directories above extra entries whose ignore file the server does not have.
    fn unknown_of_local(&mut self) -> Result<Vec<Relative>, Fault> {
        let mut unknown = Vec::new();
        let Some(here) = self
            .here
            .as_ref()
            .filter(|_| self.choice.reads_ignore_files)
        else {
            return Ok(unknown);
        };
        let mut known: HashSet<Relative> = HashSet::new();
        for entry in &self.extra {
            for directory in std::iter::once(Relative::root()).chain(entry.path.ancestors()) {
                if !known.insert(directory.clone()) {
                    continue;
                }
                let file = directory.join(IGNORE_FILE.as_bytes())?;
                let failed = |error| Fault::file(&format!("cannot examine '{file}'"), &error);
                if here.look(&file).map_err(failed)?.is_some()
                    && !self.ignore_files.contains(&file.short_hash())
                {
                    unknown.push(directory);
                }
            }
        }
        Ok(unknown)
    }

    /// Drops the extra entries that the server has and excludes. Returns the directories whose
    /// ignore file is not the same here.
    fn spare_excluded(&mut self, config: &Config) -> Result<Vec<Relative>, Fault> {
        let request = Request {
            path: self.pair.there.clone(),
            is_recursive: true,
            ..Request::default()
        };
        let mut excluded = HashSet::new();
        let mut unknown = Vec::new();
        Session::open(config, &request)?.list(|found| {
            match found {
                Found::Entry(entry, _) => {
                    let hash = entry.path.short_hash();
                    if self.choice.reads_ignore_files
                        && entry.path.name() == IGNORE_FILE.as_bytes()
                        && !self.ignore_files.contains(&hash)
                        && let Some((directory, _)) = entry.path.split()
                    {
                        unknown.push(directory);
                    }
                    if !self.seen.contains(&hash) {
                        excluded.insert(hash);
                    }
                }
                Found::Failed { text, .. } => self.fail(&text),
            }
            Ok(())
        })?;
        let before = self.extra.len();
        self.extra
            .retain(|entry| !excluded.contains(&entry.path.short_hash()));
        self.plan.extra_count -= (before - self.extra.len()) as u64;
        // Only what lies above an extra entry matters.
        unknown.retain(|dir| self.extra.iter().any(|entry| entry.path.is_in(dir)));
        Ok(unknown)
    }
}

/// Returns what is to be done about an entry of the source, if the destination has one of its path.
/// `is_equal` is whether the digests are, if they were compared.
fn compare(
    source: (&Kind, &Stat),
    target: (&Kind, &Stat),
    is_equal: Option<bool>,
    how: How,
) -> Option<Step> {
    match (source.0, target.0) {
        (Kind::Special, _) | (Kind::Directory, Kind::Directory) => None,
        (Kind::Directory, _) | (_, Kind::Directory) => Some(Step::Conflict),
        (Kind::Symlink(one), Kind::Symlink(other)) if one == other => None,
        (Kind::Symlink(_), _) => Some(Step::Replace),
        (Kind::File | Kind::HardLink(_), Kind::File | Kind::HardLink(_)) => {
            let (source, target) = (source.1, target.1);
            let (then, now) = (source.modified, target.modified);
            // A file system that stores whole seconds, or every second one.
            let is_coarse = now.nanos == 0 && is_near(then, now);
            let is_same = match is_equal {
                Some(is_equal) => is_equal,
                None => source.size == target.size && (then == now || is_coarse),
            };
            let is_kept = is_same && !how.recheck || how.update && now > then;
            (!is_kept).then_some(Step::Replace)
        }
        (Kind::File | Kind::HardLink(_), _) => Some(Step::Conflict),
    }
}

#[cfg(test)]
mod tests {
    use haul_io::file::FileTime;

    use super::*;

    fn file(size: u64, seconds: i64, nanos: u32) -> Stat {
        let time = FileTime { seconds, nanos };
        Stat {
            size,
            allocated: 0,
            modified: time,
            changed: time,
            identity: (0, 0),
            links: 1,
            mode: 0o644,
            uid: 0,
            gid: 0,
        }
    }

    #[test]
    fn size_and_time_decide_unless_digests_were_compared() {
        let step = |source: Stat, target: Stat, equal, how| {
            compare((&Kind::File, &source), (&Kind::File, &target), equal, how)
        };
        let (plain, replace) = (How::default(), Some(Step::Replace));
        assert_eq!(step(file(1, 5, 9), file(1, 5, 9), None, plain), None);
        assert_eq!(step(file(1, 5, 9), file(1, 5, 0), None, plain), None);
        assert_eq!(step(file(1, 5, 9), file(1, 5, 8), None, plain), replace);
        assert_eq!(step(file(1, 5, 9), file(2, 5, 9), None, plain), replace);
        assert_eq!(step(file(1, 5, 9), file(1, 9, 9), Some(true), plain), None);
        assert_eq!(
            step(file(1, 5, 9), file(1, 5, 9), Some(false), plain),
            replace
        );
        let update = How {
            update: true,
            ..plain
        };
        assert_eq!(step(file(1, 5, 9), file(2, 6, 0), None, update), None);
        assert_eq!(step(file(1, 5, 9), file(2, 5, 8), None, update), replace);
        let recheck = How {
            recheck: true,
            ..plain
        };
        assert_eq!(step(file(1, 5, 9), file(1, 5, 9), None, recheck), replace);
    }

    #[test]
    fn what_is_in_the_way_is_a_conflict() {
        let stat = file(0, 0, 0);
        let link = || Kind::Symlink((*b"x").into());
        let of =
            |one: Kind, other: Kind| compare((&one, &stat), (&other, &stat), None, How::default());
        assert_eq!(of(Kind::File, Kind::Directory), Some(Step::Conflict));
        assert_eq!(of(Kind::Directory, Kind::File), Some(Step::Conflict));
        assert_eq!(of(Kind::File, link()), Some(Step::Conflict));
        assert_eq!(of(link(), Kind::File), Some(Step::Replace));
        assert_eq!(of(link(), link()), None);
        assert_eq!(of(Kind::Directory, Kind::Directory), None);
    }
}
