//! A guard of the kernel's for threads that write where a peer says: Landlock, in Linux 5.19 and
//! later.

use std::io;
use std::os::fd::AsFd;

use landlock::{
    ABI, AccessFs, CompatLevel, Compatible as _, PathBeneath, Ruleset, RulesetAttr as _,
    RulesetCreated, RulesetCreatedAttr as _, RulesetError,
};

/// Confines this thread, and those that it starts from now on, to changing files beneath `dir`: the
/// kernel refuses to write, make, remove, rename or link anything elsewhere, whatever path leads
/// there. Reading is not confined, nor are files that are open. It cannot be undone.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] where the kernel has no such guard; the thread goes on without.
pub fn write_beneath(dir: impl AsFd) -> io::Result<()> {
    let confine = || -> Result<(), RulesetError> {
        let rule = PathBeneath::new(dir, AccessFs::from_write(ABI::V3));
        ruleset()?.add_rule(rule)?.restrict_self()?;
        Ok(())
    };
    confine().map_err(|error| io::Error::new(io::ErrorKind::Unsupported, error))
}

/// Whether [`write_beneath`] works here.
#[must_use]
pub fn is_supported() -> bool {
    ruleset().is_ok()
}

/// Without `Refer`, of ABI 2, hard links from one directory to another would fail. ABI 3 confines
/// truncation, too.
fn ruleset() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_write(ABI::V2))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::Truncate)?
        .create()
}

#[cfg(test)]
#[expect(clippy::disallowed_types, reason = "files live here")]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Without any other guard: paths are followed wherever they lead.
    #[test]
    fn a_confined_thread_changes_nothing_elsewhere_though_its_path_leads_there() {
        if !is_supported() {
            eprintln!("SKIPPED: this kernel has no Landlock, or too little of it");
            return;
        }
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("kept"), "kept").unwrap();
        let (dir, link) = (inside.path().join("dir"), inside.path().join("link"));
        let (aside, is_done) = (inside.path().join("aside"), AtomicBool::new(false));
        fs::create_dir(&dir).unwrap();
        symlink(outside.path(), &link).unwrap();
        std::thread::scope(|scope| {
            // A directory is a link to another one half of the time.
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    fs::rename(&dir, &aside).unwrap();
                    fs::rename(&link, &dir).unwrap();
                    fs::rename(&dir, &link).unwrap();
                    fs::rename(&aside, &dir).unwrap();
                }
            });
            let confined = scope.spawn(|| {
                write_beneath(File::open(inside.path()).unwrap()).unwrap();
                let (mut made, mut refused) = (0, 0);
                while (made < 100 || refused < 100) && made + refused < 1_000_000 {
                    let path = dir.join("new");
                    let results = [
                        fs::write(&path, "new"),
                        fs::rename(&path, dir.join("renamed")),
                        fs::hard_link(dir.join("kept"), dir.join("linked")),
                        fs::remove_file(dir.join("kept")),
                        fs::create_dir(dir.join("made")),
                        symlink("x", dir.join("symlink")),
                        File::options()
                            .write(true)
                            .truncate(true)
                            .open(dir.join("kept"))
                            .map(drop),
                    ];
                    made += u32::from(results[0].is_ok());
                    let denied = |result: &&io::Result<()>| {
                        let kind = result.as_ref().err().map(io::Error::kind);
                        matches!(
                            kind,
                            Some(io::ErrorKind::PermissionDenied | io::ErrorKind::CrossesDevices)
                        )
                    };
                    refused += u32::from(results.iter().any(|result| denied(&result)));
                }
                // Threads of its own are confined, too.
                let deep =
                    || fs::write(outside.path().join("new"), "new").map_err(|error| error.kind());
                let deeper = std::thread::scope(|scope| scope.spawn(deep).join().unwrap());
                assert_eq!(deeper, Err(io::ErrorKind::PermissionDenied));
                (made, refused)
            });
            let (made, refused) = confined.join().unwrap();
            is_done.store(true, Ordering::Relaxed);
            assert!(
                made >= 100 && refused >= 100,
                "{made} made, {refused} refused"
            );
        });
        let left = fs::read_dir(outside.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["kept"]);
        assert_eq!(fs::read(outside.path().join("kept")).unwrap(), b"kept");
        // This thread is not.
        fs::write(outside.path().join("new"), "new").unwrap();
    }
}
