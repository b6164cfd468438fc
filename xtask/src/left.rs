//! The arrows up that are left, each with its reason.

use crate::structure::Left;

/// What [`crate::structure::check`] lets pass.
pub const LEFT: &[Left] = &[
    Left {
        krate: "haul-bench",
        up: ("control.rs", "path/"),
        reason: "The control connection carries the plan of a path and its account.",
    },
    Left {
        krate: "haul-bench",
        up: ("path/", "client.rs"),
        reason: "A path's measurement runs the client of the benchmarks of verbs.",
    },
    Left {
        krate: "haul-ibv",
        up: ("queue/", "cm/"),
        reason: "A queue pair begins its own connection.",
    },
];
