//! What is free where files go.

use std::io;

use haul_io::file::Dir;
use minicbor::{Decode, Encode};

use crate::fault::{Code, Fault};

/// The free space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Room {
    /// Bytes that this user may still write.
    #[n(0)]
    pub bytes: u64,
    /// Files that it may still make; `None` if the file system has no limit.
    #[n(1)]
    pub inodes: Option<u64>,
}

impl Room {
    /// Returns what is free on the file system of a directory.
    pub(crate) fn of(dir: &Dir) -> io::Result<Self> {
        Ok(Self {
            bytes: dir.free_bytes()?,
            inodes: dir.free_inodes()?,
        })
    }

    /// Checks that so much is free.
    ///
    /// # Errors
    /// [`Code::DiskFull`], with how much is missing.
    pub(crate) fn check(self, bytes: u64, inodes: u64) -> Result<(), Fault> {
        let (needed, free, one, many) = match self.inodes {
            _ if bytes > self.bytes => (bytes, self.bytes, "byte", "bytes"),
            Some(free) if inodes > free => (inodes, free, "inode", "inodes"),
            _ => return Ok(()),
        };
        let lack = needed - free;
        let unit = if lack == 1 { one } else { many };
        let text =
            format!("the target has no room: it lacks {lack} {unit}; {needed} needed, {free} free");
        let fault = Fault::new(Code::DiskFull, text);
        Err(fault.hint("make room there and run the same command again"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_target_lacks_is_named() {
        let check = |bytes, inodes| Room { bytes, inodes }.check(100, 5);
        assert!(check(100, Some(5)).is_ok());
        assert!(check(100, None).is_ok());
        for (checked, what) in [
            (check(99, None), "1 byte;"),
            (check(100, Some(3)), "2 inodes;"),
        ] {
            let fault = checked.unwrap_err();
            assert_eq!(fault.code, Code::DiskFull);
            assert!(fault.text.contains(what), "{fault}");
        }
    }
}
