//! Where Longhaul's driver of Globus XIO is.

use std::path::PathBuf;

/// The file name of the driver.
pub(crate) const DRIVER: &str = "libglobus_xio_haul_driver.so";

/// Where `make -C c xio` puts the driver when it builds for this program: in the folder `c` beside
/// that of the program.
pub(crate) fn built_driver() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let folder = own.parent()?.parent()?.join("c");
    folder.join(DRIVER).is_file().then_some(folder)
}

/// A folder that a user names as the driver's.
pub(crate) fn driver_folder(text: &str) -> Result<PathBuf, String> {
    let folder = PathBuf::from(text);
    if folder.join(DRIVER).is_file() {
        return Ok(folder);
    }
    Err(format!(
        "there is no {DRIVER} in it: `make -C c xio` makes one"
    ))
}
