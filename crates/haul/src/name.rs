//! Names and paths that a peer chooses: which of them are allowed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use crate::fault::{Code, Fault};
use crate::printable;

/// Maximum file name of common file systems, bytes.
const NAME_MAX: usize = 255;
/// Maximum path that a peer may name, bytes.
pub(crate) const PATH_MAX: usize = 4096;

pub(crate) const PART_SUFFIX: &str = ".haul-part";
/// Suffix of the temporary names of a tree's members; no file of another transfer has it.
pub(crate) const TEMP_SUFFIX: &str = ".haul-temp";
pub(crate) const JOURNAL_SUFFIX: &str = ".haul-journal";

/// The name of one file inside a directory, safe to use there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Name(OsString);

impl Name {
    /// Checks a name: no path, not empty, `.` or `..`, no NUL, not one of Longhaul's own.
    ///
    /// # Errors
    /// [`Code::Refused`].
    pub(crate) fn new(bytes: &[u8]) -> Result<Self, Fault> {
        check(bytes)?;
        Ok(Self(OsString::from_vec(bytes.to_vec())))
    }

    /// Takes the last component of a path that the local user named.
    ///
    /// # Errors
    /// [`Code::Refused`] if the path does not end in a name.
    pub(crate) fn of_path(path: &Path) -> Result<Self, Fault> {
        Self::new(
            path.file_name()
                .unwrap_or_else(|| OsStr::new(""))
                .as_bytes(),
        )
    }

    /// Returns the bytes as the wire carries them.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Returns the name for system calls.
    pub(crate) fn as_os_str(&self) -> &OsStr {
        &self.0
    }

    /// Returns the name of its part file.
    pub(crate) fn part(&self) -> OsString {
        self.companion(PART_SUFFIX)
    }

    /// Returns the name of its journal.
    pub(crate) fn journal(&self) -> OsString {
        self.companion(JOURNAL_SUFFIX)
    }

    /// Returns `.NAME` + suffix; a name that is too long for both is cut and made unique by a hash.
    fn companion(&self, suffix: &str) -> OsString {
        let bytes = self.as_bytes();
        let mut name = Vec::with_capacity(NAME_MAX);
        name.push(b'.');
        if bytes.len() + 1 + suffix.len() <= NAME_MAX {
            name.extend_from_slice(bytes);
        } else {
            name.extend_from_slice(&bytes[..200]);
            name.push(b'-');
            name.extend_from_slice(&blake3::hash(bytes).to_hex().as_bytes()[..16]);
        }
        name.extend_from_slice(suffix.as_bytes());
        OsString::from_vec(name)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&printable(self.as_bytes()))
    }
}

/// Checks the name of one file inside a directory, as [`Name::new`] does.
///
/// # Errors
/// [`Code::Refused`].
pub(crate) fn check(bytes: &[u8]) -> Result<(), Fault> {
    let refuse = |why: &str| {
        Err(Fault::new(
            Code::Refused,
            format!("the name '{}' {why}", printable(bytes)),
        ))
    };
    match bytes {
        b"" => return refuse("is empty"),
        b"." | b".." => return refuse("is not the name of a file"),
        _ => {}
    }
    if bytes.len() > NAME_MAX {
        return refuse("is longer than 255 bytes");
    }
    if bytes.contains(&b'/') || bytes.contains(&0) {
        return refuse("has a '/' or NUL in it");
    }
    if is_own(bytes) {
        return refuse("is one that haul itself uses for files not yet complete");
    }
    Ok(())
}

/// Returns whether a name is one of Longhaul's own, of a file that is not yet complete.
pub(crate) fn is_own(name: &[u8]) -> bool {
    let own = [PART_SUFFIX, TEMP_SUFFIX, JOURNAL_SUFFIX];
    name.starts_with(b".") && own.iter().any(|suffix| name.ends_with(suffix.as_bytes()))
}

/// Checks a path that a peer named: relative, without `..` and NUL. Empty is the root itself.
///
/// # Errors
/// [`Code::Refused`].
pub(crate) fn relative_path(bytes: &[u8]) -> Result<PathBuf, Fault> {
    let path = Path::new(OsStr::from_bytes(bytes));
    let safe = path
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !safe || bytes.contains(&0) || bytes.len() > PATH_MAX {
        return Err(Fault::new(
            Code::Refused,
            format!(
                "the path '{}' leads outside the directory that is served",
                printable(bytes)
            ),
        )
        .hint("name it relative to that directory, without '..'"));
    }
    Ok(path
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_paths_or_ours_are_refused() {
        for bad in [
            &b""[..],
            b".",
            b"..",
            b"a/b",
            b"/etc/passwd",
            b"a\0b",
            b".x.haul-part",
            b".x.haul-journal",
        ] {
            assert_eq!(Name::new(bad).unwrap_err().code, Code::Refused, "{bad:?}");
        }
        assert!(Name::new(&[b'a'; 256]).is_err());
        assert!(Name::new("ünï çode\n".as_bytes()).is_ok());
    }

    #[test]
    fn companions_fit_beside_the_longest_name_and_differ() {
        let mut other = [b'a'; 255];
        other[254] = b'b';
        let (one, two) = (Name::new(&[b'a'; 255]).unwrap(), Name::new(&other).unwrap());
        assert!(one.part().len() <= NAME_MAX && one.journal().len() <= NAME_MAX);
        assert_ne!(one.part(), two.part());
        assert_eq!(Name::new(b"x").unwrap().part(), ".x.haul-part");
    }

    #[test]
    fn paths_that_lead_outside_are_refused() {
        for bad in [&b".."[..], b"a/../..", b"/etc", b"a/../b", b"a\0"] {
            assert_eq!(
                relative_path(bad).unwrap_err().code,
                Code::Refused,
                "{bad:?}"
            );
        }
        assert_eq!(relative_path(b"").unwrap(), PathBuf::new());
        assert_eq!(relative_path(b"./a//b/").unwrap(), PathBuf::from("a/b"));
    }
}
