//! Dependency direction: the picture in ARCHITECTURE.md as a table.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;
use crate::graph::{Graph, Package};

/// What one crate may name in its manifest.
struct Allowed {
    krate: &'static str,
    /// Crates of this workspace.
    internal: &'static [&'static str],
    /// Packages from outside; `None` leaves the choice to review.
    external: Option<&'static [&'static str]>,
}

/// A protocol core computes; whatever could reach a clock, a socket or a file is not on its list.
const PURE: Option<&[&str]> = Some(&["siphasher", "thiserror"]);

const ALLOWED: &[Allowed] = &[
    Allowed {
        krate: "haul-netem",
        internal: &[],
        external: PURE,
    },
    Allowed {
        krate: "haul-cc",
        internal: &[],
        external: Some(&["crc-fast"]),
    },
    Allowed {
        krate: "haul-udt",
        internal: &["haul-cc"],
        external: PURE,
    },
    Allowed {
        krate: "haul-iwarp",
        internal: &["haul-cc"],
        external: PURE,
    },
    Allowed {
        krate: "haul-xsp",
        internal: &["haul-cc"],
        external: Some(&["hmac", "sha2", "thiserror"]),
    },
    Allowed {
        krate: "haul-seal",
        internal: &[],
        external: Some(&["aws-lc-rs", "thiserror", "zeroize"]),
    },
    Allowed {
        krate: "haul-sim",
        internal: &["haul-cc", "haul-netem", "haul-seal", "haul-udt"],
        external: PURE,
    },
    Allowed {
        krate: "haul-slab",
        internal: &[],
        external: None,
    },
    Allowed {
        krate: "haul-engine",
        internal: &[
            "haul-control",
            "haul-io",
            "haul-slab",
            "haul-soft",
            "haul-verbs",
        ],
        external: None,
    },
    Allowed {
        krate: "haul-verbs",
        internal: &["haul-slab"],
        external: None,
    },
    Allowed {
        krate: "haul-io",
        internal: &["haul-slab"],
        external: None,
    },
    Allowed {
        krate: "haul-soft",
        internal: &[
            "haul-cc",
            "haul-control",
            "haul-io",
            "haul-iwarp",
            "haul-seal",
            "haul-slab",
            "haul-udt",
            "haul-verbs",
        ],
        external: None,
    },
    Allowed {
        krate: "haul-ibv",
        internal: &["haul-slab", "haul-verbs"],
        external: None,
    },
    Allowed {
        krate: "haul-capi",
        internal: &[
            "haul-control",
            "haul-engine",
            "haul-ibv",
            "haul-soft",
            "haul-verbs",
        ],
        external: None,
    },
    Allowed {
        krate: "haul-socket",
        internal: &["haul-io", "haul-iwarp"],
        external: None,
    },
    Allowed {
        krate: "haul-control",
        internal: &["haul-io", "haul-report", "haul-seal"],
        external: None,
    },
    Allowed {
        krate: "haul",
        internal: &[
            "haul-cc",
            "haul-control",
            "haul-io",
            "haul-seal",
            "haul-soft",
            "haul-udt",
        ],
        external: None,
    },
    Allowed {
        krate: "haul-extender",
        internal: &["haul-io", "haul-slab", "haul-soft", "haul-verbs"],
        external: None,
    },
    Allowed {
        krate: "haul-admin",
        internal: &["haul-io"],
        external: None,
    },
    Allowed {
        krate: "haul-gateway",
        internal: &[
            "haul-admin",
            "haul-extender",
            "haul-io",
            "haul-report",
            "haul-slab",
            "haul-soft",
            "haul-verbs",
            "haul-xsp",
        ],
        external: None,
    },
    Allowed {
        krate: "haul-report",
        internal: &[],
        external: None,
    },
    Allowed {
        krate: "haul-lab",
        internal: &["haul-io", "haul-netem", "haul-report"],
        external: None,
    },
    Allowed {
        krate: "haul-papers",
        internal: &["haul-io", "haul-lab", "haul-report"],
        external: None,
    },
    Allowed {
        krate: "haul-bench",
        internal: &[
            "haul",
            "haul-cc",
            "haul-control",
            "haul-io",
            "haul-report",
            "haul-slab",
            "haul-soft",
            "haul-udt",
            "haul-verbs",
        ],
        external: None,
    },
    Allowed {
        krate: "haul-cli",
        internal: &[
            "haul",
            "haul-admin",
            "haul-bench",
            "haul-control",
            "haul-engine",
            "haul-gateway",
            "haul-ibv",
            "haul-lab",
            "haul-report",
            "haul-socket",
            "haul-soft",
            "haul-verbs",
        ],
        external: None,
    },
    Allowed {
        krate: "haul-guest",
        internal: &[
            "haul-gateway",
            "haul-io",
            "haul-ibv",
            "haul-slab",
            "haul-soft",
            "haul-verbs",
        ],
        external: None,
    },
    Allowed {
        krate: "haul-interop",
        internal: &["haul-netem", "haul-soft", "haul-udt"],
        external: None,
    },
    Allowed {
        krate: "xtask",
        internal: &[],
        external: None,
    },
];

/// Crates that tests may use as well.
const FOR_TESTS: [&str; 2] = ["haul-netem", "haul-sim"];

/// Edges between crates of this workspace, and dependencies of the cores, that the table does not
/// have.
#[must_use]
pub fn check(graph: &Graph) -> Vec<Finding> {
    graph.members().flat_map(check_package).collect()
}

/// Differences between the table and the list under "Dependencies" in ARCHITECTURE.md.
#[must_use]
pub fn check_page(page: &str) -> Vec<Finding> {
    let block = page.split_once("\n## Dependencies\n");
    let block = block.and_then(|(_, rest)| rest.split("```").nth(1));
    let mut listed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in block.unwrap_or_default().lines() {
        let mut crates = line
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
            .filter(|word| *word == "haul" || word.starts_with("haul-"));
        if let Some(krate) = crates.next() {
            listed.insert(krate, crates.collect());
        }
    }
    let rows = ALLOWED.iter().filter(|row| row.krate != "xtask");
    let allowed: BTreeMap<_, _> = rows
        .map(|row| (row.krate, row.internal.iter().copied().collect()))
        .collect();
    let names: BTreeSet<_> = allowed.keys().chain(listed.keys()).collect();
    names
        .into_iter()
        .filter(|name| allowed.get(*name) != listed.get(*name))
        .map(|name| {
            let (table, page) = (allowed.get(name), listed.get(name));
            format!("{name}: xtask/src/edges.rs has {table:?}, ARCHITECTURE.md has {page:?}")
        })
        .collect()
}

fn check_package(package: &Package) -> Vec<Finding> {
    let name = &package.name;
    let Some(allowed) = ALLOWED.iter().find(|allowed| allowed.krate == name) else {
        return vec![format!(
            "{name}: not in the table of xtask/src/edges.rs; say what it may use"
        )];
    };
    let mut findings = Vec::new();
    for dependency in &package.dependencies {
        let wanted = dependency.name.as_str();
        let for_tests = dependency.kind.as_deref() == Some("dev");
        let fine = if dependency.path.is_some() {
            allowed.internal.contains(&wanted) || for_tests && FOR_TESTS.contains(&wanted)
        } else {
            for_tests || allowed.external.is_none_or(|list| list.contains(&wanted))
        };
        if !fine {
            findings.push(format!(
                "{name} may not depend on {wanted} (ARCHITECTURE.md, dependencies)"
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Dependency;

    fn package(name: &str, wanted: &str, kind: Option<&str>, path: Option<&str>) -> Package {
        let dependency = Dependency {
            name: wanted.to_owned(),
            kind: kind.map(str::to_owned),
            path: path.map(str::to_owned),
        };
        Package {
            name: name.to_owned(),
            version: "0.1.0".to_owned(),
            source: None,
            license: None,
            rust_version: None,
            dependencies: vec![dependency],
            targets: Vec::new(),
        }
    }

    #[test]
    fn a_core_that_reaches_for_sockets_is_found() {
        let found = check_package(&package(
            "haul-udt",
            "haul-io",
            None,
            Some("crates/haul-io"),
        ));
        assert_eq!(found.len(), 1, "{found:?}");
        let found = check_package(&package("haul-cc", "libc", None, None));
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn the_simulation_may_serve_tests_only() {
        let path = Some("crates/haul-sim");
        assert!(check_package(&package("haul-udt", "haul-sim", Some("dev"), path)).is_empty());
        assert_eq!(
            check_package(&package("haul-soft", "haul-sim", None, path)).len(),
            1
        );
    }

    #[test]
    fn tests_of_a_gateway_may_use_the_software_rnic_and_those_of_its_protocol_may_not() {
        let path = Some("crates/haul-soft");
        let gateway = package("haul-gateway", "haul-soft", Some("dev"), path);
        assert!(check_package(&gateway).is_empty());
        let other = package("haul-xsp", "haul-soft", Some("dev"), path);
        assert_eq!(check_package(&other).len(), 1);
    }

    #[test]
    fn a_page_that_lists_other_edges_is_found() {
        let page =
            "\n## Dependencies\n\n```\nhaul-netem -\nhaul-verbs  haul-slab (and haul-io)\n```\n";
        let found = check_page(page);
        assert!(found.iter().any(|line| line.starts_with("haul-verbs: ")));
        assert!(found.iter().any(|line| line.starts_with("haul-cc: ")));
        assert!(!found.iter().any(|line| line.starts_with("haul-netem: ")));
    }

    #[test]
    fn a_new_crate_must_be_entered_in_the_table() {
        assert_eq!(
            check_package(&package("haul-new", "thiserror", None, None)).len(),
            1
        );
    }
}
