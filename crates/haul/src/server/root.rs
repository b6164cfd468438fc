//! What a server serves: one directory, or all that its user may reach.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use haul_io::file::Dir;

use crate::fault::{Code, Fault};
use crate::name::{Name, relative_path};
use crate::printable;
use crate::sources::is_contents;

/// The part of a file system that a server serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// A directory; nothing outside it is reachable.
    Directory(PathBuf),
    /// All that this process may reach, as its user: paths are those of the working directory, and
    /// symbolic links are followed.
    Account,
}

/// An open [`Root`], or a directory below it.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Below(Arc<Dir>),
    Account,
}

impl Root {
    pub(super) fn open(&self) -> Result<Place, Fault> {
        match self {
            Self::Directory(path) => open_root(path).map(Place::Below),
            Self::Account => Ok(Place::Account),
        }
    }
}

impl Place {
    /// Returns the directory below this one that an identity is limited to.
    pub(super) fn below(&self, directory: &Path) -> Result<Self, Fault> {
        match self {
            Self::Below(dir) if !directory.as_os_str().is_empty() => {
                let opened = dir.open_beneath(directory).map_err(|error| {
                    let shown = printable(directory.as_os_str().as_encoded_bytes());
                    Fault::file(&format!("cannot open '{shown}', your directory"), &error)
                })?;
                Ok(Self::Below(Arc::new(opened)))
            }
            place => Ok(place.clone()),
        }
    }

    /// Opens the directory that the client named. One whose path ends in a slash is made if it is
    /// missing: it can only be a directory.
    pub(super) fn directory(&self, bytes: &[u8]) -> Result<Dir, Fault> {
        let make = bytes.ends_with(b"/");
        let opened = match self {
            Self::Below(dir) => {
                let path = relative_path(bytes)?;
                if make {
                    dir.make_beneath(&path)
                } else {
                    dir.open_beneath(&path)
                }
            }
            Self::Account => {
                let path = account_path(bytes)?;
                let made = if make {
                    std::fs::create_dir_all(&path)
                } else {
                    Ok(())
                };
                made.and_then(|()| Dir::open(&path))
            }
        };
        opened.map_err(|error| match error.kind() {
            // As where the file system makes no directories.
            io::ErrorKind::NotFound if make => {
                Fault::file(&format!("cannot make '{}'", printable(bytes)), &error)
            }
            _ => named(&printable(bytes), &error, true),
        })
    }

    /// Opens the file or directory that the client named; it has no name if its contents are
    /// meant.
    pub(super) fn file(&self, bytes: &[u8]) -> Result<(Option<Name>, File), Fault> {
        let name = match is_contents(bytes) {
            true => None,
            false => Some(Name::of_path(&self.path(bytes)?)?),
        };
        Ok((name, self.open(bytes)?))
    }

    /// Opens the file or directory that the client named, which may have no name, such as `/`.
    pub(super) fn open(&self, bytes: &[u8]) -> Result<File, Fault> {
        let path = self.path(bytes)?;
        if path.file_name().is_some() {
            Name::of_path(&path)?;
        }
        let opened = match self {
            Self::Below(dir) if path.as_os_str().is_empty() => dir.open_file(Path::new(".")),
            Self::Below(dir) => dir.open_file(&path),
            Self::Account => haul_io::file::open_source(&path),
        };
        opened.map_err(|error| named(&printable(bytes), &error, false))
    }

    fn path(&self, bytes: &[u8]) -> Result<PathBuf, Fault> {
        match self {
            Self::Below(_) => relative_path(bytes),
            Self::Account => account_path(bytes),
        }
    }
}

/// Returns a path as the user wrote it: relative to the working directory, or absolute. Empty is
/// the working directory. That is the home directory, which `~` names too.
fn account_path(bytes: &[u8]) -> Result<PathBuf, Fault> {
    use std::os::unix::ffi::OsStrExt as _;

    if bytes.contains(&0) {
        return Err(Fault::new(Code::Refused, "the path has a NUL in it"));
    }
    let path = match bytes {
        b"" | b"~" => b".",
        // More slashes must not make it absolute.
        [b'~', b'/', rest @ ..] => match rest.iter().position(|byte| *byte != b'/') {
            Some(begin) => &rest[begin..],
            None => b".",
        },
        bytes => bytes,
    };
    Ok(PathBuf::from(std::ffi::OsStr::from_bytes(path)))
}

fn open_root(path: &Path) -> Result<Arc<Dir>, Fault> {
    let shown = printable(path.as_os_str().as_encoded_bytes());
    match Dir::open(path) {
        Ok(dir) => Ok(Arc::new(dir)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Err(Fault::new(
                Code::DirectoryNotFound,
                format!("'{shown}' is not a directory"),
            )
            .hint("make it first, or name another"))
        }
        Err(error) => Err(Fault::file(&format!("cannot open '{shown}'"), &error)),
    }
}

/// Maps an error of opening a path that the client named.
fn named(shown: &str, error: &io::Error, directory: bool) -> Fault {
    let fault = |code, text: &str| Fault::new(code, format!("'{shown}' {text}"));
    match error.kind() {
        io::ErrorKind::NotADirectory if directory => {
            fault(Code::DirectoryNotFound, "is not a directory of the server")
                .hint("name a directory: files keep their names")
        }
        io::ErrorKind::NotFound if directory => {
            fault(Code::DirectoryNotFound, "is not a directory of the server")
                .hint("put a / at its end to have it made; files keep their names")
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            fault(Code::FileNotFound, "is not a file of the server").hint("check the name")
        }
        io::ErrorKind::CrossesDevices => fault(
            Code::Refused,
            "leads through a symbolic link or outside the directory served",
        )
        .hint("name the file itself"),
        _ => Fault::file(&format!("cannot open '{shown}'"), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_sees_its_own_directory_only() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("alice")).unwrap();
        std::fs::write(dir.path().join("secret"), "x").unwrap();
        std::fs::write(dir.path().join("alice/own"), "y").unwrap();
        let root = Root::Directory(dir.path().to_owned()).open().unwrap();
        let place = root.below(Path::new("alice")).unwrap();
        assert!(place.file(b"own").is_ok());
        for outside in [&b"secret"[..], b"../secret", b"/secret"] {
            assert!(place.file(outside).is_err(), "{}", printable(outside));
        }
        assert!(place.directory(b"new/").is_ok());
        assert!(dir.path().join("alice/new").is_dir());
        assert!(root.below(Path::new("bob")).is_err());
    }

    #[test]
    fn an_account_has_the_paths_of_its_user() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "x").unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        let path = |name: &str| dir.path().join(name).into_os_string().into_encoded_bytes();
        let place = Root::Account.open().unwrap();
        assert!(place.file(&path("link")).is_ok());
        for unnamed in [&b"/"[..], b"//", b"..", b"~", b""] {
            let opened = place.open(unnamed).unwrap();
            assert!(opened.metadata().unwrap().is_dir());
        }
        assert!(place.file(b"/").is_err());
        assert!(place.directory(&path("new/deep/")).is_ok());
        assert_eq!(
            place.directory(&path("nothing")).unwrap_err().code,
            Code::DirectoryNotFound
        );
        assert!(place.directory(b"").is_ok());
        assert!(place.directory(b"a\0b/").is_err());
    }
}
