//! Removals that a client asks a server for, and what the server refuses.
#![expect(
    clippy::unwrap_used,
    reason = "these tests end at what they did not expect"
)]

mod common;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use haul::client::Config;
use haul::fault::{Code, Fault};
use haul::fs::entry::{self, Entry};
use haul::fs::path::Relative;
use haul::listing::client::{Found, Request, Session};
use haul::listing::delete::Outcome;
use haul_control::trust::Rights;

/// A server with `served/tree` in it, and a file outside of it.
struct Place {
    config: Config,
    dir: tempfile::TempDir,
}

impl Place {
    fn new(rights: &Rights, read_only: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("served/tree/d")).unwrap();
        std::fs::create_dir(at("served/other")).unwrap();
        for name in [
            "outside",
            "served/other/f",
            "served/tree/f",
            "served/tree/d/g",
        ] {
            std::fs::write(at(name), "x").unwrap();
        }
        symlink(at("served/other"), at("served/tree/link")).unwrap();
        let (config, _) = common::serve(at("served"), rights, read_only);
        Self { config, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Lists the tree, and has the server remove these entries instead of what it listed.
    fn delete(&self, choose: impl Fn(&[Entry]) -> Vec<Entry>) -> Result<Outcome, Fault> {
        let request = Request {
            path: b"tree".to_vec(),
            is_recursive: true,
            ..Request::default()
        };
        self.delete_of(&request, choose)
    }

    /// Lists what the request names, and has the server remove these entries.
    fn delete_of(
        &self,
        request: &Request,
        choose: impl Fn(&[Entry]) -> Vec<Entry>,
    ) -> Result<Outcome, Fault> {
        let session = Session::open(&self.config, request)?;
        let mut entries = Vec::new();
        session.list(|found| {
            match found {
                Found::Entry(entry, _) => entries.push(entry),
                Found::Failed { text, .. } => panic!("{text}"),
            }
            Ok(())
        })?;
        session.delete(&choose(&entries))
    }

    fn assert_whole(&self) {
        for name in [
            "outside",
            "served/other/f",
            "served/tree/f",
            "served/tree/d/g",
        ] {
            assert!(self.path(name).exists(), "{name}");
        }
    }
}

fn file(entries: &[Entry]) -> Vec<Entry> {
    let is_file = |entry: &&Entry| entry.path.as_bytes() == b"f";
    entries.iter().filter(is_file).cloned().collect()
}

fn all() -> Rights {
    Rights {
        directory: Path::new("").to_owned(),
        ..Rights::all("anybody")
    }
}

#[test]
fn only_who_may_write_removes_anything() {
    let cases = [
        (all(), true),
        (
            Rights {
                write: false,
                ..all()
            },
            false,
        ),
        (
            Rights {
                drop_only: true,
                ..all()
            },
            false,
        ),
    ];
    for (rights, read_only) in cases {
        let place = Place::new(&rights, read_only);
        let refused = place.delete(file).unwrap_err();
        assert_eq!(refused.code, Code::Refused, "{refused}");
        // A request that names its deletion is refused before anything is listed.
        let request = Request {
            path: b"tree".to_vec(),
            deletes: true,
            ..Request::default()
        };
        let listed = |_: &[Entry]| panic!("it was listed");
        let refused = place.delete_of(&request, listed).unwrap_err();
        assert_eq!(refused.code, Code::Refused, "{refused}");
        place.assert_whole();
    }
    let place = Place::new(&all(), false);
    assert_eq!(place.delete(file).unwrap().deleted, 1);
    assert!(!place.path("served/tree/f").exists());
}

#[test]
fn nothing_outside_the_listed_directory_is_removed() {
    let place = Place::new(&all(), false);
    let named = |path: &str| {
        place.delete(|entries| {
            let mut entry = file(entries).remove(0);
            entry.path = Relative::new(path.as_bytes()).unwrap();
            vec![entry]
        })
    };
    // Beneath a symbolic link, which is not followed.
    let outcome = named("link/f").unwrap();
    assert_eq!((outcome.deleted, outcome.failures.len()), (0, 1));
    // The directory itself, which is the empty path.
    let root = named("").unwrap_err();
    assert_eq!(root.code, Code::Protocol, "{root}");
    place.assert_whole();
}

#[test]
fn what_is_not_as_it_was_listed_stays() {
    let place = Place::new(&all(), false);
    let outcome = place.delete(|entries| {
        std::fs::write(place.path("served/tree/f"), "written meanwhile").unwrap();
        file(entries)
    });
    let outcome = outcome.unwrap();
    assert_eq!((outcome.deleted, outcome.failures.len()), (0, 1));
    place.assert_whole();
    // A directory with something in it.
    let directories = |entries: &[Entry]| {
        let is_directory = |entry: &&Entry| entry.kind == entry::Kind::Directory;
        entries.iter().filter(is_directory).cloned().collect()
    };
    let outcome = place.delete(directories).unwrap();
    assert_eq!((outcome.deleted, outcome.not_empty.len()), (0, 1));
    place.assert_whole();
}
