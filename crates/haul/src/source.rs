//! A file at its source: read as it was offered, or not at all.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use haul_io::file::{FileTime, Metadata, memory_file, metadata};

use crate::entry::{Entry, FileEntry, What};
use crate::fault::{Code, Fault};
use crate::fs::path::Relative;
use crate::layout::Layout;
use crate::lock;
use crate::tree::SIZE_MAX;
use crate::wire::Time;

/// A file whose size the system does not know is copied to memory up to this length, bytes, because
/// each read may return different content.
const SNAPSHOT_MAX: usize = 64 << 20;
/// How often to measure a file that is being written to.
const MEASURED: u32 = 3;

/// An offered file.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// For people.
    pub(crate) shown: String,
    pub(crate) file: File,
    pub(crate) size: u64,
    layout: Layout,
    /// Bytes that are data.
    data: u64,
    modified: FileTime,
    mode: u32,
    /// What fstat(2) must still return at the end; `None` for a copy, which cannot change.
    stat: Option<Mutex<Stat>>,
    /// The system does not know the size (/proc, some FUSE), so its times prove nothing either.
    unproven: bool,
}

/// What fstat(2) returns for a source.
#[derive(Debug, Clone, Copy)]
struct Stat {
    size: u64,
    modified: FileTime,
    changed: FileTime,
}

/// State of a source since it was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Unchanged,
    /// Its attributes changed, or its content and the time was put back: only reading it shows.
    Touched,
}

impl SourceFile {
    /// Takes an open file as it is now. `shown` names it in messages.
    pub(crate) fn new(file: File, shown: &str) -> Result<Self, Fault> {
        let unreadable = |error: io::Error| Fault::file(&format!("cannot read '{shown}'"), &error);
        for _ in 0..MEASURED {
            let meta = metadata(&file).map_err(unreadable)?;
            if !meta.regular {
                let text = format!("'{shown}' is neither a regular file nor a directory");
                return Err(Fault::new(Code::Refused, text).hint("name others"));
            }
            if meta.size > SIZE_MAX {
                return Err(Fault::new(Code::Refused, format!("'{shown}' is too large")));
            }
            if ends_at(&file, meta.size).map_err(unreadable)? {
                return Ok(Self::with(shown, file, &meta, meta.size));
            }
            if metadata(&file).map_err(unreadable)?.size == meta.size {
                return Self::measured(shown, file, &meta).map_err(unreadable);
            }
            // Its size has changed since fstat(2).
        }
        let fault = changed(&shown, "grew or became shorter");
        Err(fault.with("; it was not delivered"))
    }

    /// Opens a file that was offered by its attributes alone; it must still have them.
    pub(crate) fn offered(file: File, entry: &Entry) -> Result<Self, Fault> {
        let shown = entry.shown();
        let meta = metadata(&file)
            .map_err(|error| Fault::file(&format!("cannot read '{shown}'"), &error))?;
        let mut source = Self::with(&shown, file, &meta, meta.size);
        if !meta.regular || source.size != entry.size() || source.time() != entry.modified {
            return Err(changed(&shown, "changed"));
        }
        if let Some(file) = entry.file() {
            (source.layout, source.data) = (Layout::new(file), file.data());
        }
        Ok(source)
    }

    fn with(shown: &str, file: File, meta: &Metadata, size: u64) -> Self {
        Self {
            shown: shown.to_owned(),
            file,
            size,
            layout: Layout::new(&FileEntry::dense(size)),
            data: size,
            modified: meta.modified,
            mode: meta.mode,
            stat: Some(Mutex::new(Stat {
                size: meta.size,
                modified: meta.modified,
                changed: meta.changed,
            })),
            unproven: false,
        }
    }

    /// Reads a file whose size differs from the system's to its end.
    fn measured(shown: &str, file: File, meta: &Metadata) -> io::Result<Self> {
        let (mut content, mut size) = (Vec::new(), 0);
        let mut piece = vec![0; 256 << 10];
        loop {
            let read = read_at(&file, &mut piece, size)?;
            if read == 0 {
                break;
            }
            if content.len() as u64 == size && content.len() + read <= SNAPSHOT_MAX {
                content.extend_from_slice(&piece[..read]);
            }
            size += read as u64;
        }
        let mut source = Self::with(shown, file, meta, size);
        source.unproven = true;
        if content.len() as u64 == size {
            source.file = memory_file(&content)?;
            source.stat = None;
        }
        Ok(source)
    }

    /// Makes the entry of an operand with this path.
    pub(crate) fn entry(&self, path: Relative) -> Entry {
        Entry {
            path,
            modified: self.time(),
            mode: self.mode & 0o777,
            is_member: false,
            what: What::File(FileEntry {
                unproven: self.unproven,
                ..FileEntry::dense(self.size)
            }),
            extra: None,
        }
    }

    fn time(&self) -> Time {
        Time {
            seconds: self.modified.seconds,
            nanos: self.modified.nanos,
        }
    }

    /// Fills all of `buf` with the data from `position` on.
    ///
    /// # Errors
    /// [`Code::SourceChanged`] if the file ends before, or has changed where it cannot be read.
    pub(crate) fn read_exact_at(&self, buf: &mut [u8], position: u64) -> Result<(), Fault> {
        let len = buf.len();
        self.layout.each(position, len, |place, range| {
            self.read_part(&mut buf[range], place)
        })
    }

    fn read_part(&self, mut buf: &mut [u8], mut at: u64) -> Result<(), Fault> {
        while !buf.is_empty() {
            match read_at(&self.file, buf, at) {
                Ok(0) => return Err(changed(&self.shown, "became shorter")),
                Ok(read) => {
                    buf = &mut buf[read..];
                    at += read as u64;
                }
                Err(error) => {
                    self.check_unchanged()?;
                    return Err(self.unreadable(&error));
                }
            }
        }
        Ok(())
    }

    /// Reads all of a small file and checks that it still is what was offered.
    ///
    /// # Errors
    /// As [`SourceFile::read_exact_at`].
    pub(crate) fn read_whole(&self) -> Result<Vec<u8>, Fault> {
        let mut content = vec![0; usize::try_from(self.data).unwrap_or(0)];
        self.read_exact_at(&mut content, 0)?;
        match self.check_unchanged()? {
            Standing::Unchanged => Ok(content),
            Standing::Touched => Err(changed(&self.shown, "changed")),
        }
    }

    fn unreadable(&self, error: &io::Error) -> Fault {
        Fault::file(&format!("cannot read '{}'", self.shown), error)
    }

    /// Checks that the file still is what was offered.
    ///
    /// # Errors
    /// [`Code::SourceChanged`] if it is not.
    pub(crate) fn check_unchanged(&self) -> Result<Standing, Fault> {
        let Some(stat) = &self.stat else {
            return Ok(Standing::Unchanged);
        };
        let failed = |error: io::Error| self.unreadable(&error);
        let before = *lock(stat);
        let now = metadata(&self.file).map_err(failed)?;
        let how = match now.size.cmp(&before.size) {
            std::cmp::Ordering::Less => "became shorter",
            std::cmp::Ordering::Greater => "grew",
            std::cmp::Ordering::Equal if now.modified != before.modified => "was written to",
            std::cmp::Ordering::Equal if !ends_at(&self.file, self.size).map_err(failed)? => {
                "became longer or shorter"
            }
            std::cmp::Ordering::Equal if now.changed != before.changed => {
                return Ok(Standing::Touched);
            }
            std::cmp::Ordering::Equal => return Ok(Standing::Unchanged),
        };
        Err(changed(&self.shown, how))
    }

    /// Runs `is_same`, which reads the content, until nothing touches the file meanwhile.
    ///
    /// # Errors
    /// [`Code::SourceChanged`] if the content differs, or the file is touched again and again.
    pub(crate) fn prove(
        &self,
        mut is_same: impl FnMut() -> Result<bool, Fault>,
    ) -> Result<(), Fault> {
        let Some(stat) = &self.stat else {
            return Ok(());
        };
        for _ in 0..MEASURED {
            let meta = metadata(&self.file).map_err(|error| self.unreadable(&error))?;
            lock(stat).changed = meta.changed;
            if !is_same()? {
                break;
            }
            if self.check_unchanged()? == Standing::Unchanged {
                return Ok(());
            }
        }
        Err(changed(&self.shown, "was written to"))
    }
}

/// Makes the fault of a source that is no longer what was offered. The caller adds whether it was
/// delivered.
pub(crate) fn changed(name: &dyn fmt::Display, how: &str) -> Fault {
    Fault::new(
        Code::SourceChanged,
        format!("'{name}' {how} while it was being sent"),
    )
    .hint("send it again when nothing writes to it")
}

/// Reads whether the content of `file` ends at `size`.
fn ends_at(file: &File, size: u64) -> io::Result<bool> {
    let mut byte = [0];
    if size > 0 && read_at(file, &mut byte, size - 1)? == 0 {
        return Ok(false);
    }
    Ok(read_at(file, &mut byte, size)? == 0)
}

fn read_at(file: &File, buf: &mut [u8], position: u64) -> io::Result<usize> {
    loop {
        match file.read_at(buf, position) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// What becomes of a file whose size the system does not know, as some of FUSE are.
    fn unknown(content: &[u8], len: u64) -> (SourceFile, File) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file.set_len(len).unwrap();
        let told = metadata(&file).unwrap();
        let source = SourceFile::measured("a", file.try_clone().unwrap(), &told).unwrap();
        assert!(source.unproven && source.size == len);
        (source, file)
    }

    #[test]
    fn a_short_file_of_unknown_size_is_sent_as_it_was_read() {
        let (source, file) = unknown(b"content", 7);
        file.write_all_at(b"changed and longer", 0).unwrap();
        let mut read = [0; 7];
        source.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"content");
        assert_eq!(source.check_unchanged().unwrap(), Standing::Unchanged);
    }

    #[test]
    fn a_long_file_of_unknown_size_is_read_in_place_and_may_not_change() {
        let len = SNAPSHOT_MAX as u64 + 1;
        for changed in [len + 1, len - 1] {
            let (source, file) = unknown(b"content", len);
            let mut read = [0; 7];
            source.read_exact_at(&mut read, 0).unwrap();
            assert_eq!(&read, b"content");
            assert_eq!(source.check_unchanged().unwrap(), Standing::Unchanged);
            file.set_len(changed).unwrap();
            let fault = source.check_unchanged().unwrap_err();
            assert_eq!(fault.code, Code::SourceChanged);
        }
    }
}
