//! Paths below a root: bytes whose components are all plain names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::fault::{Code, Fault};
use crate::name::{self, PATH_MAX};
use crate::printable;

/// A path below a root directory. Empty is the root itself.
///
/// Each component is a name that [`crate::name`] accepts: not empty, `.` or `..`, at most 255
/// bytes, no NUL, not one of Longhaul's own. The whole is at most 4096 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Relative(Box<[u8]>);

impl Relative {
    /// Returns the root itself.
    #[must_use]
    pub fn root() -> Self {
        Self::default()
    }

    /// Returns a hash by which many paths are remembered in little memory.
    pub(crate) fn short_hash(&self) -> [u8; 16] {
        let mut short = [0; 16];
        short.copy_from_slice(&blake3::hash(self.as_bytes()).as_bytes()[..16]);
        short
    }

    /// Checks a path that a peer chose. It must be in the form that [`Relative::as_bytes`] returns.
    ///
    /// # Errors
    /// [`Code::Refused`].
    pub fn new(bytes: &[u8]) -> Result<Self, Fault> {
        if bytes.is_empty() {
            return Ok(Self::root());
        }
        if bytes.len() > PATH_MAX {
            return Err(too_long(bytes));
        }
        bytes
            .split(|byte| *byte == b'/')
            .try_for_each(name::check)?;
        Ok(Self(bytes.into()))
    }

    /// Takes a path that the local user wrote: `./`, `//` and a trailing `/` are dropped.
    ///
    /// # Errors
    /// [`Code::Refused`] for an absolute path and for one with `..`.
    pub fn of_user(bytes: &[u8]) -> Result<Self, Fault> {
        if bytes.starts_with(b"/") {
            let text = format!("the path '{}' is absolute", printable(bytes));
            return Err(Fault::new(Code::Refused, text).hint("write it relative to the tree"));
        }
        let parts = bytes.split(|byte| *byte == b'/');
        let parts: Vec<_> = parts.filter(|part| !matches!(*part, b"" | b".")).collect();
        Self::new(&parts.join(&b'/'))
    }

    /// Returns the path of `name` in this directory.
    ///
    /// # Errors
    /// [`Code::Refused`].
    pub fn join(&self, name: &[u8]) -> Result<Self, Fault> {
        name::check(name)?;
        if self.is_root() {
            return Ok(Self(name.into()));
        }
        let path = [&self.0[..], b"/", name].concat();
        if path.len() > PATH_MAX {
            return Err(too_long(&path));
        }
        Ok(Self(path.into()))
    }

    /// Returns the path of `below`, which is relative to this directory.
    ///
    /// # Errors
    /// [`Code::Refused`] where both together are too long.
    pub fn append(&self, below: &Self) -> Result<Self, Fault> {
        if self.is_root() || below.is_root() {
            return Ok(if self.is_root() { below } else { self }.clone());
        }
        Self::new(&[&self.0[..], b"/", &below.0[..]].concat())
    }

    /// Returns whether this is the root itself.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the bytes: components with one slash between them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the path for system calls; the root is empty.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// Returns the directory and the name in it; `None` for the root.
    #[must_use]
    pub fn split(&self) -> Option<(Self, &OsStr)> {
        if self.is_root() {
            return None;
        }
        let slash = self.0.iter().rposition(|byte| *byte == b'/');
        let parent = self.0[..slash.unwrap_or(0)].into();
        let name = &self.0[slash.map_or(0, |slash| slash + 1)..];
        Some((Self(parent), OsStr::from_bytes(name)))
    }

    /// Returns the last component; empty for the root.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.0.rsplit(|byte| *byte == b'/').next().unwrap_or(b"")
    }

    /// Returns the components; the root has none.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        let components = self.0.split(|byte| *byte == b'/');
        components.filter(|component| !component.is_empty())
    }

    /// Returns whether this is `directory` itself or lies below it.
    #[must_use]
    pub fn is_in(&self, directory: &Self) -> bool {
        let below = self.0.strip_prefix(directory.as_bytes());
        directory.is_root() || below.is_some_and(|below| matches!(below, [] | [b'/', ..]))
    }

    /// Returns the directories above, the outermost first, without the root.
    pub fn ancestors(&self) -> impl Iterator<Item = Self> {
        let slashes = self.0.iter().enumerate();
        slashes
            .filter(|(_, byte)| **byte == b'/')
            .map(|(at, _)| Self(self.0[..at].into()))
    }
}

impl std::fmt::Display for Relative {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&printable(if self.is_root() { b"." } else { &self.0 }))
    }
}

impl std::fmt::Debug for Relative {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "'{self}'")
    }
}

fn too_long(path: &[u8]) -> Fault {
    let shown = printable(&path[..path.len().min(64)]);
    let text = format!("the path '{shown}…' is longer than {PATH_MAX} bytes");
    Fault::new(Code::Refused, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_that_are_no_names_are_refused() {
        for bad in [
            &b"/a"[..],
            b"a/",
            b"a//b",
            b"..",
            b"a/../b",
            b"./a",
            b"a\0",
            b"a/.b.haul-part",
        ] {
            assert_eq!(
                Relative::new(bad).unwrap_err().code,
                Code::Refused,
                "{bad:?}"
            );
        }
        assert!(Relative::new(&b"a/".repeat(3000)[..5999]).is_err());
        assert_eq!(
            Relative::new(b"a/\xff\n/b").unwrap().as_bytes(),
            b"a/\xff\n/b"
        );
        assert!(Relative::new(b"").unwrap().is_root());
    }

    #[test]
    fn a_path_of_the_user_is_normalised_and_stays_below() {
        let of_user = |bytes| Relative::of_user(bytes).map(|path| path.as_bytes().to_vec());
        assert_eq!(of_user(b"./a//b/").unwrap(), b"a/b");
        assert_eq!(of_user(b".").unwrap(), b"");
        assert!(of_user(b"/a").is_err() && of_user(b"a/../../b").is_err());
    }

    #[test]
    fn paths_are_taken_apart_and_put_together() {
        let path = Relative::new(b"a/b/c").unwrap();
        let (parent, name) = path.split().unwrap();
        assert_eq!(
            (parent.as_bytes(), name.as_bytes()),
            (&b"a/b"[..], &b"c"[..])
        );
        assert_eq!(parent.join(b"c").unwrap(), path);
        assert_eq!(path.name(), b"c");
        let above: Vec<_> = path.ancestors().collect();
        assert_eq!(above, [Relative::new(b"a").unwrap(), parent]);
        assert!(Relative::root().split().is_none());
        let top = Relative::root().join(b"x").unwrap();
        assert_eq!(top.split().unwrap().0, Relative::root());
        assert_eq!(top.append(&path).unwrap().as_bytes(), b"x/a/b/c");
        assert!(path.is_in(&path) && path.is_in(&Relative::root()));
        assert!(path.is_in(&above[0]) && !above[0].is_in(&path));
        assert!(!Relative::new(b"ab").unwrap().is_in(&above[0]));
        assert!(top.join(b"y/z").is_err());
        let deep = Relative::new(&b"a/".repeat(2048)[..4095]).unwrap();
        assert!(deep.join(b"b").is_err() && deep.append(&path).is_err());
    }
}
