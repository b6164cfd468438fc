//! The two trees of a transfer.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::fault::Fault;
use crate::fs::path::Relative;
use crate::listing::verify::Source;
use crate::name::Name;
use crate::sources::is_contents;

/// A tree at a server and a local one, of which one is the source of the other. Each may be a file.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The path at the server.
    pub there: Vec<u8>,
    /// The local path.
    pub here: PathBuf,
    /// The name of the source, which its path at the destination begins with; empty if its content
    /// is meant.
    pub name: Vec<u8>,
    /// Which of both is the source.
    pub source: Source,
}

impl Pair {
    /// Returns the pair of a local source that is sent into a directory of the server.
    ///
    /// # Errors
    /// The source has no name.
    pub fn to_server(source: &Path, directory: &[u8]) -> Result<Self, Fault> {
        let name = name(source.as_os_str().as_bytes())?;
        let there = match (directory, &name[..]) {
            (directory, b"") => directory.to_vec(),
            (b"", name) => name.to_vec(),
            (directory, name) => [directory, b"/", name].concat(),
        };
        Ok(Self {
            there,
            here: source.to_owned(),
            name,
            source: Source::Local,
        })
    }

    /// Returns the pair of a path of the server that is got into a local directory.
    ///
    /// # Errors
    /// The path has no name.
    pub fn from_server(path: &[u8], directory: &Path) -> Result<Self, Fault> {
        let name = name(path)?;
        let here = match &name[..] {
            b"" => directory.to_owned(),
            name => directory.join(OsStr::from_bytes(name)),
        };
        Ok(Self {
            there: path.to_vec(),
            here,
            name,
            source: Source::Remote,
        })
    }

    /// Returns the path that a transfer offers for one of the source.
    ///
    /// # Errors
    /// It is too long.
    pub fn offered(&self, path: &Relative) -> Result<Relative, Fault> {
        Relative::new(&self.name)?.append(path)
    }
}

/// Returns the name that a source has at its destination; empty if its content is meant.
fn name(path: &[u8]) -> Result<Vec<u8>, Fault> {
    if is_contents(path) {
        return Ok(Vec::new());
    }
    let name = Name::of_path(Path::new(OsStr::from_bytes(path)))?;
    Ok(name.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_its_name_at_the_destination_unless_its_content_is_meant() {
        let to = |source: &str, directory: &str| {
            let pair = Pair::to_server(Path::new(source), directory.as_bytes()).unwrap();
            String::from_utf8(pair.there).unwrap()
        };
        assert_eq!(to("a/tree", "data"), "data/tree");
        assert_eq!(to("a/tree/", ""), "tree");
        assert_eq!(to("a/tree/.", "data/"), "data/");
        assert_eq!(to(".", ""), "");
        let of = |path: &str| {
            Pair::from_server(path.as_bytes(), Path::new("d"))
                .unwrap()
                .here
        };
        assert_eq!(of("a/tree"), Path::new("d/tree"));
        assert_eq!(of("a/tree/."), Path::new("d"));
        assert!(Pair::to_server(Path::new("a/.."), b"").is_err());
    }
}
