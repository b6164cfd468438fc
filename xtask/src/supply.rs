//! What dependencies may look like, read from the file that `cargo deny` reads too.

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::Finding;
use crate::graph::{Graph, Package};
use crate::spdx;

/// The part of `deny.toml` that is checked here.
#[derive(Debug, Deserialize)]
pub struct Policy {
    licenses: Licenses,
}

#[derive(Debug, Deserialize)]
struct Licenses {
    allow: Vec<String>,
    exceptions: Vec<Exception>,
}

#[derive(Debug, Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    krate: String,
    allow: Vec<String>,
}

impl Policy {
    /// Reads the text of `deny.toml`.
    ///
    /// # Errors
    /// The text is no such file.
    pub fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).context("read deny.toml")
    }

    /// Packages whose licence the policy does not allow.
    #[must_use]
    pub fn check_licenses(&self, graph: &Graph) -> Vec<Finding> {
        let refused = graph
            .packages
            .iter()
            .filter(|package| !self.allows(package));
        refused
            .map(|package| {
                let licence = package.license.as_deref().unwrap_or("no licence");
                format!(
                    "{} {}: {licence} is not in deny.toml",
                    package.name, package.version
                )
            })
            .collect()
    }

    fn allows(&self, package: &Package) -> bool {
        let allowed = |licence: &str| {
            let exceptions = self
                .licenses
                .exceptions
                .iter()
                .filter(|e| e.krate == package.name);
            let lists = exceptions.map(|e| &e.allow).chain([&self.licenses.allow]);
            lists.flatten().any(|allowed| allowed == licence)
        };
        package
            .license
            .as_deref()
            .is_some_and(|expression| spdx::is_satisfied(expression, &allowed))
    }
}

/// Packages that come from anywhere but this workspace and cargo's own registry.
#[must_use]
pub fn check_sources(graph: &Graph) -> Vec<Finding> {
    let outside = graph.packages.iter().filter_map(|package| {
        let source = package.source.as_deref()?;
        (!source.starts_with("registry+")).then(|| format!("{} comes from {source}", package.name))
    });
    outside.collect()
}

/// Packages that need a newer Rust than this workspace promises to build with.
#[must_use]
pub fn check_rust_versions(graph: &Graph) -> Vec<Finding> {
    let promised = graph.members().filter_map(rust_version).min();
    let newer = graph
        .packages
        .iter()
        .filter(|package| rust_version(package) > promised);
    newer
        .map(|package| {
            let version = package.rust_version.as_deref().unwrap_or_default();
            format!("{} {} needs Rust {version}", package.name, package.version)
        })
        .collect()
}

/// As numbers; a package that names none builds with any.
fn rust_version(package: &Package) -> Option<Vec<u32>> {
    let text = package.rust_version.as_deref()?;
    text.split('.').map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = r#"
        [licenses]
        allow = ["MIT"]
        exceptions = [{ crate = "tool", allow = ["MPL-2.0"] }]
    "#;

    fn package(name: &str, license: &str, rust_version: &str, source: Option<&str>) -> Package {
        Package {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            source: source.map(str::to_owned),
            license: Some(license.to_owned()),
            rust_version: Some(rust_version.to_owned()),
            dependencies: Vec::new(),
            targets: Vec::new(),
        }
    }

    #[test]
    fn an_exception_holds_for_its_crate_alone() {
        let policy = Policy::parse(POLICY).unwrap();
        assert!(policy.allows(&package("tool", "MPL-2.0", "1.60", None)));
        assert!(!policy.allows(&package("library", "MPL-2.0", "1.60", None)));
    }

    #[test]
    fn a_dependency_newer_than_the_promise_is_found() {
        let registry = Some("registry+somewhere");
        let ours = package("ours", "MIT", "1.90", None);
        let old = package("old", "MIT", "1.9.0", registry);
        let new = package("new", "MIT", "1.91", registry);
        let findings = check_rust_versions(&Graph {
            packages: vec![ours, old, new],
        });
        assert_eq!(findings, ["new 1.0.0 needs Rust 1.91"]);
    }

    #[test]
    fn a_dependency_from_a_repository_is_found() {
        let forked = package("forked", "MIT", "1.60", Some("git+somewhere"));
        let usual = package("usual", "MIT", "1.60", Some("registry+somewhere"));
        let findings = check_sources(&Graph {
            packages: vec![forked, usual],
        });
        assert_eq!(findings, ["forked comes from git+somewhere"]);
    }
}
