//! The packages of the workspace and of everything it depends on, as `cargo metadata` tells them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Every package that is built on this platform.
#[derive(Debug, Deserialize)]
pub struct Graph {
    /// Packages of the workspace and of the registries.
    pub packages: Vec<Package>,
}

/// What a rule needs to know about one package.
#[derive(Debug, Deserialize)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Where it comes from; `None` for a package of this workspace.
    pub source: Option<String>,
    /// The licence expression.
    pub license: Option<String>,
    /// The oldest Rust it builds with, as the package says.
    pub rust_version: Option<String>,
    /// What it asks for.
    pub dependencies: Vec<Dependency>,
    /// What cargo can build of it.
    pub targets: Vec<Target>,
}

/// A library, program, test or example.
#[derive(Debug, Deserialize)]
pub struct Target {
    /// Its first source file.
    pub src_path: PathBuf,
}

/// One line of a package's manifest.
#[derive(Debug, Deserialize)]
pub struct Dependency {
    /// The package asked for.
    pub name: String,
    /// `None` is a normal dependency, else `dev` or `build`.
    pub kind: Option<String>,
    /// The folder, for a package of this workspace.
    pub path: Option<String>,
}

impl Graph {
    /// Asks cargo, with the lock file as it is.
    ///
    /// # Errors
    /// cargo is missing, or finds the manifests or the lock file wrong.
    pub fn load(root: &Path) -> Result<Self> {
        let platform = host_platform()?;
        Self::ask(root, &["--locked", "--filter-platform", &platform])
    }

    /// Asks cargo for the packages of the workspace in `root`, without what they depend on.
    ///
    /// # Errors
    /// cargo is missing, or finds the manifests wrong.
    pub fn load_members(root: &Path) -> Result<Self> {
        Self::ask(root, &["--no-deps"])
    }

    fn ask(root: &Path, options: &[&str]) -> Result<Self> {
        let output = Command::new("cargo")
            .args(["metadata", "--format-version", "1"])
            .args(options)
            .current_dir(root)
            .output();
        let output = output.context("start cargo")?;
        ensure!(
            output.status.success(),
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        serde_json::from_slice(&output.stdout).context("read what cargo metadata printed")
    }

    /// The packages of this workspace.
    pub fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages
            .iter()
            .filter(|package| package.source.is_none())
    }
}

fn host_platform() -> Result<String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .context("start rustc")?;
    let text = String::from_utf8(output.stdout).context("read what rustc -vV printed")?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .context("rustc -vV names no host platform")
}
