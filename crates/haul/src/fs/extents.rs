//! Runs of data in sparse files, and holes at the target.
//!
//! The source asks its file system where data lies; a hole reads as zeros and is not sent. At the
//! target a hole is never allocated. In a file that had content, the hole is punched, so that the
//! old bytes are gone and their storage is free.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

/// Bytes of zeros that are written at once where a hole cannot be punched.
const ZEROS: usize = 64 << 10;

/// The runs of data of a file, in order; what lies between them is zeros.
///
/// A file system that does not know reports the whole file as one run. It moves the position of the
/// descriptor.
#[derive(Debug)]
pub struct Extents<'a> {
    file: &'a File,
    next: u64,
    size: u64,
}

impl<'a> Extents<'a> {
    /// Begins at the start of a file of `size` bytes. What lies beyond is not looked at.
    #[must_use]
    pub fn new(file: &'a File, size: u64) -> Self {
        Self {
            file,
            next: 0,
            size,
        }
    }

    fn find(&mut self) -> io::Result<Option<Range<u64>>> {
        if self.next >= self.size {
            return Ok(None);
        }
        let data = match seek(self.file, SeekFrom::Data(self.next)) {
            Ok(data) => data,
            // No data from here on.
            Err(Errno::NXIO) => return Ok(None),
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                return Ok(Some(self.next..self.size));
            }
            Err(error) => return Err(error.into()),
        };
        if data >= self.size {
            return Ok(None);
        }
        let hole = match seek(self.file, SeekFrom::Hole(data)) {
            Ok(hole) => hole.min(self.size),
            // The file became shorter.
            Err(Errno::NXIO) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // A file system that returned an empty run would be asked forever.
        let end = if hole > data { hole } else { self.size };
        Ok(Some(data..end))
    }
}

impl Iterator for Extents<'_> {
    type Item = io::Result<Range<u64>>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.find().transpose();
        self.next = match &found {
            Some(Ok(run)) => run.end,
            _ => self.size,
        };
        found
    }
}

/// Makes a range of a file read as zeros without storage, where the file system can; elsewhere it
/// writes zeros. The file's size stays as it is, and `range` lies within it.
///
/// # Errors
/// Those of `fallocate(2)` and `pwrite(2)`.
pub fn make_hole(file: &File, range: Range<u64>) -> io::Result<()> {
    let len = range.end.saturating_sub(range.start);
    if len == 0 {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(file, flags, range.start, len) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(file, range),
        result => Ok(result?),
    }
}

fn write_zeros(file: &File, range: Range<u64>) -> io::Result<()> {
    let zeros = vec![0; ZEROS];
    let mut at = range.start;
    while at < range.end {
        let left = usize::try_from(range.end - at).unwrap_or(ZEROS);
        let piece = &zeros[..left.min(ZEROS)];
        file.write_all_at(piece, at)?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// Gives a file its size, and reserves storage for its runs of data alone, in order.
///
/// What lies between the runs becomes a hole, also where the file had content.
///
/// # Errors
/// Those of `ftruncate(2)` and `fallocate(2)`; `StorageFull` or `QuotaExceeded` where there is no
/// room.
pub fn reserve(
    file: &File,
    size: u64,
    runs: impl IntoIterator<Item = Range<u64>>,
) -> io::Result<()> {
    let old = file.metadata()?.len();
    file.set_len(size)?;
    let mut end = 0;
    for run in runs {
        make_hole(file, end..run.start.min(old))?;
        end = run.end;
        let len = run.end.saturating_sub(run.start);
        if len == 0 {
            continue;
        }
        match fallocate(file, FallocateFlags::KEEP_SIZE, run.start, len) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if end < size.min(old) {
        // Also frees the last block, of which a hole up to `size` would be a part only.
        file.set_len(end)?;
        file.set_len(size)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// On a disk: memory file systems are sparse in their own way.
    fn file() -> File {
        tempfile::tempfile_in(".").unwrap()
    }

    fn runs(file: &File) -> Vec<Range<u64>> {
        let size = file.metadata().unwrap().len();
        Extents::new(file, size).map(Result::unwrap).collect()
    }

    fn is_sparse() -> bool {
        let file = file();
        file.set_len(MIB).unwrap();
        let sparse = runs(&file).is_empty();
        if !sparse {
            println!("SKIPPED: the file system has no holes");
        }
        sparse
    }

    #[test]
    fn runs_cover_the_data_and_no_hole() {
        if !is_sparse() {
            return;
        }
        let file = file();
        file.set_len(10 * MIB).unwrap();
        file.write_all_at(&[1; 100], 3 * MIB).unwrap();
        file.write_all_at(&[1; 100], 9 * MIB).unwrap();
        let found = runs(&file);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains(&(3 * MIB)) && found[1].contains(&(9 * MIB)));
        assert!(found.iter().all(|run| run.end - run.start <= 64 << 10));
        let short: Vec<_> = Extents::new(&file, 9 * MIB + 1)
            .map(Result::unwrap)
            .collect();
        assert_eq!(short[1].end, 9 * MIB + 1, "a run ends with the size");
        let before: Vec<_> = Extents::new(&file, 2 * MIB).collect();
        assert!(before.is_empty());
    }

    #[test]
    fn a_file_without_holes_is_one_run_and_an_empty_one_none() {
        let file = file();
        assert!(runs(&file).is_empty());
        file.write_all_at(&[1; 5000], 0).unwrap();
        assert_eq!(runs(&file), std::slice::from_ref(&(0..5000)));
    }

    #[test]
    fn a_file_system_that_does_not_know_has_one_run() {
        // Files of /proc refuse SEEK_DATA.
        let file = File::open("/proc/self/status").unwrap();
        assert_eq!(seek(&file, SeekFrom::Data(0)), Err(Errno::INVAL));
        let found: Vec<_> = Extents::new(&file, 100).map(Result::unwrap).collect();
        assert_eq!(found, std::slice::from_ref(&(0..100)));
    }

    #[test]
    fn holes_are_not_allocated_and_replace_old_data() {
        if !is_sparse() {
            return;
        }
        let file = file();
        file.write_all_at(&vec![7; 4 << 20], 0).unwrap();
        file.sync_all().unwrap();
        let data = MIB..MIB + 100_000;
        reserve(&file, 3 * MIB - 1, [data.clone()]).unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!(meta.len(), 3 * MIB - 1);
        assert!(meta.blocks() * 512 < 200 << 10, "{} blocks", meta.blocks());
        let mut content = vec![1; 3 << 20];
        let read = file.read_at(&mut content, 0).unwrap();
        let zeros = |range: Range<u64>| {
            let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
            content[range].iter().all(|byte| *byte == 0)
        };
        assert_eq!(read as u64, 3 * MIB - 1);
        assert!(
            zeros(0..data.start) && zeros(data.end..3 * MIB - 1),
            "stale bytes"
        );
        // A file that grows has no old bytes behind its end.
        reserve(&file, 8 * MIB, []).unwrap();
        assert_eq!(file.metadata().unwrap().blocks(), 0);
    }

    #[test]
    fn storage_of_the_runs_is_reserved() {
        if !is_sparse() {
            return;
        }
        let file = file();
        reserve(&file, 100 * MIB, [5 * MIB..6 * MIB, 50 * MIB..51 * MIB]).unwrap();
        let stored = file.metadata().unwrap().blocks() * 512;
        assert!((2 * MIB..3 * MIB).contains(&stored), "{stored}");
    }

    #[test]
    fn zeros_are_written_where_no_hole_can_be_punched() {
        let file = file();
        file.write_all_at(&[7; 200_000], 0).unwrap();
        write_zeros(&file, 10..199_990).unwrap();
        let mut content = vec![1; 200_001];
        assert_eq!(file.read_at(&mut content, 0).unwrap(), 200_000);
        assert!(content[10..199_990].iter().all(|byte| *byte == 0));
        assert!(
            content[..10]
                .iter()
                .chain(&content[199_990..200_000])
                .all(|byte| *byte == 7)
        );
    }
}
