//! The right to create namespaces and TUN devices, and the remedy without it.

use std::io;

use anyhow::{Error, Result, anyhow};
use haul_io::netns;
use haul_io::tun::TUN_DEVICE;
use rustix::fs::{Mode, OFlags};
use rustix::thread::CapabilitySet;

/// Makes sure that this process may build a lab. An ordinary user becomes root in a user namespace
/// of their own, which works only before the process has started other threads.
///
/// # Errors
/// The remedy, in one line.
pub fn acquire() -> Result<()> {
    rustix::fs::open(TUN_DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| tun_error(&error.into()))?;
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    let capabilities = rustix::thread::capabilities(None).map_err(io::Error::from)?;
    if capabilities.effective.contains(needed) {
        return Ok(());
    }
    netns::become_root_in_user_namespace().map_err(|error| user_namespace_error(&error))
}

/// Returns the error message for a TUN device that cannot be opened.
pub(super) fn tun_error(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => {
            anyhow!(
                "{TUN_DEVICE} is missing: as root, run `modprobe tun` (in a container, pass the device in)"
            )
        }
        io::ErrorKind::PermissionDenied => anyhow!(
            "no permission to open {TUN_DEVICE}: run as root, or let everybody use it with `chmod 666 {TUN_DEVICE}` \
             (it gives no rights over the machine's own network)"
        ),
        _ => anyhow!("cannot make a TUN device: {error}"),
    }
}

fn user_namespace_error(error: &io::Error) -> Error {
    if error.kind() == io::ErrorKind::InvalidInput {
        return anyhow!("a lab without root must be started before the process has other threads");
    }
    anyhow!(
        "a lab needs root or a user namespace, and this system refuses one ({error}): run as root, or allow them \
         (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_in_one_line() {
        for kind in [
            io::ErrorKind::NotFound,
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::Other,
        ] {
            let message = tun_error(&kind.into()).to_string();
            assert!(!message.contains('\n') && message.len() > 20);
        }
        assert!(
            tun_error(&io::ErrorKind::PermissionDenied.into())
                .to_string()
                .contains("chmod")
        );
    }
}
