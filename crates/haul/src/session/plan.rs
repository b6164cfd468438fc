//! Plans a transfer: what is present of the offered files, and whether the rest has room.

use std::collections::HashSet;
use std::sync::Arc;

use haul_io::file::Dir;

use super::saturating_sum;
use crate::fault::{Code, Fault};
use crate::journal::Verified;
use crate::target::{Found, HASH_PIECE, Target};
use crate::wire::{FILES_MAX, FilePlan, Offer, Policy};

/// The offered files as they are found, in order.
pub(super) struct Planned {
    pub(super) files: Vec<PlannedFile>,
    pub(super) plans: Vec<FilePlan>,
}

/// One of them.
pub(super) struct PlannedFile {
    pub(super) size: u64,
    /// `None` for a file that is present already.
    pub(super) target: Option<Arc<Target>>,
    pub(super) verified: Vec<Verified>,
}

/// Opens and locks the part files and reserves their storage. If that fails, removes the files that
/// it created.
pub(super) fn prepare(dir: &Arc<Dir>, offer: &Offer, policy: Policy) -> Result<Planned, Fault> {
    if offer.files.len() > FILES_MAX {
        return Err(Fault::new(
            Code::Refused,
            format!("{} files are too many for one transfer", offer.files.len()),
        )
        .hint(format!("send at most {FILES_MAX} at a time")));
    }
    let mut names = HashSet::new();
    if let Some(twice) = offer.files.iter().find(|entry| !names.insert(&entry.name)) {
        let name = crate::printable(&twice.name);
        return Err(
            Fault::new(Code::Usage, format!("two files are called '{name}'"))
                .hint("send them to different directories"),
        );
    }
    let mut planned = Planned {
        files: Vec::new(),
        plans: Vec::new(),
    };
    let result = open_all(dir, offer, policy, &mut planned).and_then(|()| reserve(dir, &planned));
    if let Err(fault) = result {
        for file in planned.files.iter().filter(|file| file.verified.is_empty()) {
            if let Some(target) = &file.target {
                target.discard();
            }
        }
        return Err(fault);
    }
    Ok(planned)
}

fn open_all(
    dir: &Arc<Dir>,
    offer: &Offer,
    policy: Policy,
    planned: &mut Planned,
) -> Result<(), Fault> {
    for entry in &offer.files {
        let (file, plan) = match Target::find(dir, entry, policy)? {
            Found::Complete => (
                PlannedFile {
                    size: entry.size,
                    target: None,
                    verified: Vec::new(),
                },
                FilePlan {
                    present: entry.size,
                    complete: true,
                    restarted: false,
                },
            ),
            Found::Part {
                target,
                mut verified,
                restarted,
            } => {
                if policy.recheck {
                    recheck(&target, &mut verified)?;
                }
                let blocks = verified
                    .iter()
                    .map(|(block, _)| target.blocks.range(*block, 1).1);
                let present = saturating_sum(blocks);
                let target = Some(Arc::from(target));
                (
                    PlannedFile {
                        size: entry.size,
                        target,
                        verified,
                    },
                    FilePlan {
                        present,
                        complete: false,
                        restarted,
                    },
                )
            }
        };
        planned.files.push(file);
        planned.plans.push(plan);
    }
    Ok(())
}

/// Keeps only the blocks that still match the journal, in the journal as well.
fn recheck(target: &Target, verified: &mut Vec<Verified>) -> Result<(), Fault> {
    let mut buffer = vec![0; HASH_PIECE];
    let (mut failed, before) = (None, verified.len());
    verified.retain(
        |(block, digest)| match target.hash_block(*block, &mut buffer) {
            Ok(found) => found == *digest,
            Err(error) => {
                failed.get_or_insert(error);
                false
            }
        },
    );
    if let Some(error) = failed {
        return Err(target.fault("cannot read back", &error));
    }
    if verified.len() < before {
        target.forget()?;
        target.commit(verified)?;
    }
    Ok(())
}

fn reserve(dir: &Dir, planned: &Planned) -> Result<(), Fault> {
    let targets: Vec<_> = planned
        .files
        .iter()
        .filter_map(|file| file.target.as_ref())
        .collect();
    let missing = targets.iter().map(|target| target.missing_storage());
    let missing = saturating_sum(missing.collect::<Result<Vec<_>, _>>()?.into_iter());
    let free = dir
        .free_bytes()
        .map_err(|error| Fault::file("cannot ask the target how much room it has", &error))?;
    if missing > free {
        return Err(Fault::new(
            Code::DiskFull,
            format!("the target has no room: {missing} bytes are needed and {free} are free"),
        )
        .hint("make room there and run the same command again"));
    }
    targets.into_iter().try_for_each(|target| target.reserve())
}
