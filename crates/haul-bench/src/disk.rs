//! The file that is sent instead of memory, and the one that it is written to.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::path::Path;

use haul::fault::{Code, Fault};
use haul_slab::Region;

use crate::error::range;

/// A file, or none: then arriving data is dropped.
#[derive(Debug)]
pub(crate) struct Disk {
    name: String,
    file: Option<File>,
}

impl Disk {
    pub(crate) fn nowhere() -> Self {
        Self {
            name: String::new(),
            file: None,
        }
    }

    /// Opens a file to be sent; its length too.
    pub(crate) fn source(path: &Path) -> Result<(Self, u64), Fault> {
        let name = haul::printable(path.as_os_str().as_encoded_bytes());
        let failed = |error: io::Error| Fault::file(&format!("cannot read '{name}'"), &error);
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(Fault::new(
                Code::Refused,
                format!("'{name}' is not a regular file"),
            ));
        }
        let disk = Self {
            name,
            file: Some(file),
        };
        Ok((disk, metadata.len()))
    }

    /// Makes the file that is written to, or empties it.
    pub(crate) fn sink(path: &Path) -> Result<Self, Fault> {
        let name = haul::printable(path.as_os_str().as_encoded_bytes());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .map_err(|error| Fault::file(&format!("cannot write '{name}'"), &error))?;
        Ok(Self {
            name,
            file: Some(file),
        })
    }

    /// Reads `len` bytes from `offset` of the file to `at` in the region.
    pub(crate) fn read(
        &self,
        region: &Region,
        at: usize,
        len: u32,
        offset: u64,
    ) -> Result<(), Fault> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let range = region.scatter(at, len as usize).map_err(range)?;
        haul_io::file::read_exact_at(file, range, offset)
            .map_err(|error| Fault::file(&format!("cannot read '{}'", self.name), &error))
    }

    /// Writes `len` bytes at `at` in the region to `offset` of the file.
    pub(crate) fn write(
        &self,
        region: &Region,
        at: usize,
        len: u32,
        offset: u64,
    ) -> Result<(), Fault> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let range = region.gather(at, len as usize).map_err(range)?;
        haul_io::file::write_region_at(file, range, offset).map_err(|error| self.failed(&error))
    }

    /// Waits until all of it is on storage.
    pub(crate) fn sync(&self) -> Result<(), Fault> {
        match &self.file {
            Some(file) => file.sync_data().map_err(|error| self.failed(&error)),
            None => Ok(()),
        }
    }

    /// BLAKE3 of the whole file; none where there is no file.
    pub(crate) fn hash(&self) -> Result<Option<[u8; 32]>, Fault> {
        let Some(file) = &self.file else {
            return Ok(None);
        };
        let mut hasher = blake3::Hasher::new();
        let mut from: &File = file;
        let result = from.rewind().and_then(|()| {
            let mut window = vec![0; 1 << 20];
            loop {
                match from.read(&mut window)? {
                    0 => return Ok(()),
                    count => hasher.update(&window[..count]),
                };
            }
        });
        result.map_err(|error| Fault::file(&format!("cannot read '{}'", self.name), &error))?;
        Ok(Some(hasher.finalize().into()))
    }

    fn failed(&self, error: &io::Error) -> Fault {
        Fault::file(&format!("cannot write '{}'", self.name), error)
    }
}
