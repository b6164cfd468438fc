//! Paths of the programs that a comparison runs.

use std::path::PathBuf;

use crate::driver;

/// Where the tools are.
#[derive(Clone, Debug, clap::Args)]
pub struct Programs {
    /// The haul to measure [default: this program; of haul-papers: beside it, or in PATH]
    #[arg(long, value_name = "PATH")]
    pub haul: Option<PathBuf>,
    /// udt_bench, as tests/interop/build.sh makes it [default: beside this program, or in PATH]
    #[arg(long, value_name = "PATH")]
    pub udt_bench: Option<PathBuf>,
    /// Directory of the Globus XIO driver, libglobus_xio_haul_driver.so [default: the build
    /// directory of `make -C c xio` beside this program, or the library path]
    #[arg(long, value_name = "FOLDER", env = "HAUL_XIO_DRIVER", value_parser = driver::driver_folder)]
    pub xio_driver: Option<PathBuf>,
}

/// Paths of the programs.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The `haul` that is measured.
    pub haul: PathBuf,
    pub(crate) udt_bench: Option<PathBuf>,
    pub(crate) iperf: Option<PathBuf>,
    /// Where the driver of Globus XIO is, if not where the system looks.
    pub(crate) xio_driver: Option<PathBuf>,
}

impl Programs {
    /// Searches for the programs whose paths are not set.
    #[must_use]
    pub fn resolve(&self) -> Resolved {
        let found = |name| beside(name).or_else(|| in_path(name));
        Resolved {
            haul: self
                .haul
                .clone()
                .or_else(|| found("haul"))
                .unwrap_or_else(|| "haul".into()),
            udt_bench: self.udt_bench.clone().or_else(|| found("udt_bench")),
            iperf: in_path("iperf3"),
            xio_driver: self.xio_driver.clone().or_else(driver::built_driver),
        }
    }
}

/// A program in the folder of this one.
fn beside(name: &str) -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.with_file_name(name);
    path.is_file().then_some(path)
}

/// Where a program is, if it is in one of the folders of `PATH`.
pub fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|candidate| candidate.is_file())
}
