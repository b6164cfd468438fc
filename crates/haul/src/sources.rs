//! What a sender offers: operands are opened at once, the members of trees when they are needed.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use haul_io::file::Dir;

use crate::fault::{Code, Fault};
use crate::fs::path::Relative;
use crate::fs::walk;
use crate::limit::Limit;
use crate::name::Name;
use crate::outbound::{Offered, Origin};
use crate::printable;
use crate::scan::{self, Root};
use crate::session::sender::Catalogue;
use crate::source::SourceFile;
use crate::wire::Policy;

/// Files and trees that were opened and are not offered yet.
#[derive(Default)]
pub(crate) struct Sources {
    names: HashSet<Name>,
    operands: Vec<Offered>,
    roots: Vec<Root>,
}

/// Returns whether a path names what is in a directory, and not the directory.
pub(crate) fn is_contents(path: &[u8]) -> bool {
    matches!(path, b"" | b".") || path.ends_with(b"/.")
}

impl Sources {
    /// Adds an open file or directory by the path that the user wrote.
    pub(crate) fn add(&mut self, path: &[u8], name: Option<Name>, file: File) -> Result<(), Fault> {
        let shown = printable(path);
        let is_dir = file
            .metadata()
            .map_err(|error| Fault::file(&format!("cannot read '{shown}'"), &error))?
            .is_dir();
        let path = match name {
            None if is_dir => Relative::root(),
            None => {
                let text = format!("'{shown}' is not a directory");
                return Err(Fault::new(Code::DirectoryNotFound, text).hint("leave out the '/.'"));
            }
            Some(name) => {
                let path = Relative::new(name.as_bytes())?;
                if !self.names.insert(name) {
                    let text = format!("two files are called '{path}'");
                    return Err(
                        Fault::new(Code::Usage, text).hint("send them to different directories")
                    );
                }
                path
            }
        };
        if is_dir {
            let dir = Dir::of_file(file);
            self.roots.push(Root { dir, path });
            return Ok(());
        }
        let source = SourceFile::new(file, &shown)?;
        let entry = source.entry(path);
        self.operands
            .push(Offered::new(entry, Origin::Open(Box::new(source))));
        Ok(())
    }

    /// Starts to scan the trees. `members` chooses among what is below them.
    pub(crate) fn catalogue(
        self,
        policy: Policy,
        members: &walk::Options,
    ) -> Result<Catalogue, Fault> {
        if members.list.is_some() && (self.roots.len() != 1 || !self.operands.is_empty()) {
            let text = "a list of paths needs one directory, to which they are relative";
            return Err(Fault::new(Code::Usage, text));
        }
        let scan = match self.roots.is_empty() {
            true => None,
            false => Some(scan::start(self.roots, policy, members.clone())?),
        };
        Ok(Catalogue {
            operands: self.operands,
            members: Vec::new(),
            scan,
            left_over: None,
            limit: Limit::default(),
        })
    }
}

/// Opens the files and trees that the local user named.
pub(crate) fn of_paths(paths: &[PathBuf]) -> Result<Sources, Fault> {
    let mut sources = Sources::default();
    for path in paths {
        let bytes = path.as_os_str().as_bytes();
        let file = open_source(path)?;
        let name = match is_contents(bytes) {
            true => None,
            false => Some(Name::of_path(path)?),
        };
        sources.add(bytes, name, file)?;
    }
    Ok(sources)
}

fn open_source(path: &Path) -> Result<File, Fault> {
    let shown = printable(path.as_os_str().as_bytes());
    haul_io::file::open_source(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            Fault::new(Code::FileNotFound, format!("there is no file '{shown}'"))
                .hint("check the name")
        }
        _ => Fault::file(&format!("cannot read '{shown}'"), &error),
    })
}
