//! Keeps a tree of a server and a local one the same: what a transfer would do, and the deletion of
//! what the source no longer has.
//!
//! The transfer itself is that of [`crate::client`]. A deletion follows it and looks at both trees
//! again, so it knows what is there then. Map: `pair` two trees · `plan` compares them · `last`
//! remembers the file systems of sources.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use haul_io::file::Dir;
use rustix::fs::access;

use crate::choice::Choice;
use crate::client::{self, Config};
use crate::fault::{Code, Fault, plain};
use crate::fs::tree::Tree;
use crate::listing::delete::{self, Outcome};
use crate::report::count_of;

mod last;
mod pair;
mod plan;

pub use crate::listing::verify::Source;
pub use last::Last;
pub use pair::Pair;
use plan::file_system_there;
pub use plan::{Finding, How, Plan, Step, check_destination, examine};

const OTHER_SOURCE: &str = "the source is on another file system than at the last deletion";
const RIGHT_SOURCE: &str = "check whether the right one is mounted; --accept-source takes this one";
/// Default of [`Guards::max_delete`].
pub const MAX_DELETE: u64 = 1000;

/// Prepares the way to the server once, for all that a command does there.
///
/// # Errors
/// As [`client::Access::prepare`].
pub fn enter(config: &Config) -> Result<Config, Fault> {
    let mut entered = config.clone();
    if let Some(access) = &config.access {
        access.prepare(&mut entered)?;
        entered.access = Some(Arc::new(Entered(Arc::clone(access))));
    }
    Ok(entered)
}

/// The access to a server that is prepared.
#[derive(Debug)]
struct Entered(Arc<dyn client::Access>);

impl client::Access for Entered {
    fn prepare(&self, _: &mut Config) -> Result<(), Fault> {
        Ok(())
    }

    fn recover(&self, config: &mut Config, fault: &Fault) -> Result<bool, Fault> {
        self.0.recover(config, fault)
    }
}

/// The checks that precede a deletion.
#[derive(Debug, Clone)]
pub struct Guards {
    /// Maximum number of entries to delete; of more, none is deleted.
    pub max_delete: u64,
    /// Remembers the file systems of sources; without it, each counts as the one of last time.
    pub last: Option<Last>,
    /// The file system of the source may be another one than last time.
    pub accepts_source: bool,
}

impl Guards {
    /// Refuses a deletion that a guard forbids.
    ///
    /// # Errors
    /// The guard's reason.
    pub fn check(&self, pair: &Pair, plan: &Plan) -> Result<(), Fault> {
        let refuse = |code, text: &str, hint: String| {
            Err(Fault::new(code, format!("nothing is deleted: {text}")).hint(hint))
        };
        if plan.failures > 0 {
            let hint = "read the lines above; the next complete run deletes".to_owned();
            return refuse(Code::FileError, "not everything could be examined", hint);
        }
        if plan.extra_count == 0 {
            return Ok(());
        }
        if plan.conflicts > 0 {
            let hint = "move away what is in the way at the destination".to_owned();
            return refuse(Code::FileError, "not everything can be replaced", hint);
        }
        if plan.source_is_empty {
            let hint = "check whether the source is mounted; to empty the destination, remove it";
            return refuse(Code::Refused, "the source is empty", hint.to_owned());
        }
        if self
            .expected(pair)
            .is_some_and(|then| plan.source_file_system.is_some_and(|now| now != then))
        {
            return refuse(Code::Refused, OTHER_SOURCE, RIGHT_SOURCE.to_owned());
        }
        if plan.extra_count > self.max_delete {
            let (count, most) = (plan.extra_count, self.max_delete);
            let extra = count_of(count, "entry is", "entries are");
            let text = format!("{extra} only at the destination, more than {most}");
            let hint = format!("see --dry-run; --max-delete {count} deletes them");
            return refuse(Code::Refused, &text, hint);
        }
        Ok(())
    }

    /// Returns the file system that the source must be on.
    fn expected(&self, pair: &Pair) -> Option<u64> {
        let last = self.last.as_ref().filter(|_| !self.accepts_source);
        last.and_then(|last| last.find(&key(pair)))
    }

    /// Refuses a transfer whose deletion would be refused after it: the source is on another file
    /// system, or this user may not remove anything from the local destination. A server refuses
    /// the transfer by itself.
    ///
    /// # Errors
    /// The reason, or the server cannot be reached.
    pub fn check_first(&self, config: &Config, pair: &Pair) -> Result<(), Fault> {
        let refuse = |code, text: &str| {
            Err(Fault::new(
                code,
                format!("nothing is transferred or deleted: {text}"),
            ))
        };
        let here = match Dir::open(&pair.here) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            opened => Some(opened.map_err(|error| cannot_open(&error))?),
        };
        if let (Source::Remote, Some(_)) = (pair.source, &here)
            && let Err(error) = access(
                &pair.here,
                rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
            )
        {
            let text = format!(
                "cannot write to the local directory: {}",
                plain(&error.into())
            );
            return refuse(Code::FileError, &text);
        }
        let Some(expected) = self.expected(pair) else {
            return Ok(());
        };
        let now = match (pair.source, here) {
            (Source::Local, here) => here.and_then(|dir| dir.file_system().ok()),
            (Source::Remote, _) => file_system_there(config, &pair.there)?,
        };
        match now.is_some_and(|now| now != expected) {
            true => refuse(Code::Refused, OTHER_SOURCE).map_err(|fault| fault.hint(RIGHT_SOURCE)),
            false => Ok(()),
        }
    }

    /// Remembers the file system of the source.
    ///
    /// # Errors
    /// The file cannot be written.
    fn note(&self, pair: &Pair, plan: &Plan) -> Result<(), Fault> {
        match (&self.last, plan.source_file_system) {
            (Some(last), Some(now)) => last.keep(&key(pair), now),
            _ => Ok(()),
        }
    }
}

/// Deletes what only the destination has, unless `guards` refuse. `each` gets what cannot be
/// examined.
///
/// What the rules and ignore files of `choice` exclude stays.
///
/// # Errors
/// A guard's reason, or the server cannot be reached or refuses.
pub fn delete(
    config: &Config,
    pair: &Pair,
    choice: &Choice,
    guards: &Guards,
    each: &mut dyn FnMut(&Finding<'_>),
) -> Result<(Plan, Outcome), Fault> {
    let how = How {
        wants_extra: true,
        ..How::default()
    };
    let (mut plan, session) = examine(config, pair, choice, how, each)?;
    guards.check(pair, &plan)?;
    guards.note(pair, &plan)?;
    let (extra, full) = (
        std::mem::take(&mut plan.extra),
        std::mem::take(&mut plan.full),
    );
    let mut outcome = match (pair.source, session) {
        _ if extra.is_empty() => Outcome::default(),
        (Source::Local, Some(session)) => session.delete(&extra)?,
        (Source::Local, None) => Outcome::default(),
        (Source::Remote, _) => {
            let dir = Dir::open(&pair.here).map_err(|error| cannot_open(&error))?;
            let tree = Tree::new(dir, [0; 8]);
            delete::delete(&tree, extra).map_err(|error| Fault::system(&error))?
        }
    };
    let full = full.iter().map(|path| path.as_bytes().to_vec());
    outcome.not_empty.extend(full);
    Ok((plan, outcome))
}

fn cannot_open(error: &io::Error) -> Fault {
    Fault::file("cannot open the local directory", error)
}

/// Returns what a pair of trees is remembered by: the local one, because the other has many
/// spellings.
fn key(pair: &Pair) -> String {
    let here = pair.here.canonicalize();
    let here = here.unwrap_or_else(|_| pair.here.clone());
    let direction = match pair.source {
        Source::Local => &b"to"[..],
        Source::Remote => b"of",
    };
    let parts = [here.as_os_str().as_bytes(), direction];
    blake3::hash(&parts.join(&0)).to_hex()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(extra_count: u64) -> Plan {
        Plan {
            extra_count,
            source_file_system: Some(7),
            ..Plan::default()
        }
    }

    #[test]
    fn each_guard_keeps_a_deletion_back() {
        let dir = tempfile::tempdir().unwrap();
        let last = Last::new(dir.path().join("haul/sync"));
        let tree = dir.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        std::os::unix::fs::symlink(&tree, dir.path().join("link")).unwrap();
        let pair = Pair::to_server(&tree, b"").unwrap();
        let guards = Guards {
            max_delete: 3,
            last: Some(last),
            accepts_source: false,
        };
        let check = |plan: &Plan| guards.check(&pair, plan).map_err(|fault| fault.code);
        assert_eq!(check(&plan(3)), Ok(()));
        assert_eq!(check(&plan(4)), Err(Code::Refused));
        for (failures, conflicts, source_is_empty, code) in [
            (1, 0, false, Code::FileError),
            (0, 1, false, Code::FileError),
            (0, 0, true, Code::Refused),
        ] {
            let plan = Plan {
                failures,
                conflicts,
                source_is_empty,
                ..plan(1)
            };
            assert_eq!(check(&plan), Err(code));
        }
        guards.note(&pair, &plan(0)).unwrap();
        assert_eq!(check(&plan(1)), Ok(()));
        let other = Plan {
            source_file_system: Some(8),
            ..plan(1)
        };
        assert_eq!(check(&other), Err(Code::Refused));
        for spelled in ["./tree/", "tree/.", "link"] {
            let pair = Pair::to_server(&dir.path().join(spelled), b"./").unwrap();
            assert!(guards.check(&pair, &other).is_err(), "{pair:?}");
        }
        let accepting = Guards {
            accepts_source: true,
            ..guards.clone()
        };
        assert!(accepting.check(&pair, &other).is_ok());
    }
}
