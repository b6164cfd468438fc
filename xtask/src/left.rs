//! The circles and arrows up that are left, each with its reason.

use crate::structure::Left;
use crate::structure::What::{Circle, Up};

/// What [`crate::structure::check`] lets pass.
pub const LEFT: &[Left] = &[
    Left {
        krate: "haul-bench",
        what: Circle(&[
            "profile/findings.rs",
            "profile/mod.rs",
            "profile/schedule.rs",
            "profile/steps.rs",
        ]),
        reason: "The steps of a profile follow its options, which its public interface declares.",
    },
    Left {
        krate: "haul-bench",
        what: Up("control.rs", "path/"),
        reason: "The control connection carries the plan of a path and its account.",
    },
    Left {
        krate: "haul-bench",
        what: Up("path/", "client.rs"),
        reason: "A path's measurement runs the client of the benchmarks of verbs.",
    },
    Left {
        krate: "haul-cli",
        what: Circle(&[
            "args.rs",
            "args/list.rs",
            "args/path.rs",
            "args/profile.rs",
            "args/rdma.rs",
            "args/sync.rs",
        ]),
        reason: "The parser declares the options that its subcommands share.",
    },
    Left {
        krate: "haul-ibv",
        what: Up("queue/", "cm/"),
        reason: "A queue pair begins its own connection.",
    },
    Left {
        krate: "haul-iwarp",
        what: Up("memory.rs", "datagram/"),
        reason: "`Memory` answers in terms of work requests and their sources.",
    },
    Left {
        krate: "haul-iwarp",
        what: Up("memory.rs", "qp/"),
        reason: "`Memory` answers in terms of work requests and their sources.",
    },
    Left {
        krate: "haul-iwarp",
        what: Up("wire/", "error.rs"),
        reason: "A header that cannot be parsed names the code of its Terminate.",
    },
    Left {
        krate: "haul-lab",
        what: Circle(&["lab.rs", "lab/kernel.rs", "lab/setup.rs", "lab/topology.rs"]),
        reason: "`Lab` is made in one file per kind of emulation; they fill its private fields.",
    },
    Left {
        krate: "haul-papers",
        what: Circle(&[
            "reproduce.rs",
            "reproduce/datagram.rs",
            "reproduce/efficient.rs",
            "reproduce/gridftp.rs",
            "reproduce/phoebus.rs",
            "reproduce/phoebus/distance.rs",
            "reproduce/wan.rs",
            "reproduce/wan/rdma.rs",
            "reproduce/wan/tcp.rs",
        ]),
        reason: "The table of figures names every figure, and every figure is an `Experiment` of that table.",
    },
    Left {
        krate: "haul-soft",
        what: Circle(&["udt/link.rs", "udt/mod.rs"]),
        reason: "The errors and options of a link are the folder's public interface.",
    },
    Left {
        krate: "haul-udt",
        what: Circle(&[
            "wire/check.rs",
            "wire/control.rs",
            "wire/feedback.rs",
            "wire/handshake.rs",
            "wire/mod.rs",
            "wire/ranges.rs",
        ]),
        reason: "`Packet` has the kinds of control packet as variants; they share its header's constants and errors.",
    },
    Left {
        krate: "haul-xsp",
        what: Up("wire/", "bag/"),
        reason: "A hop on the wire names the mode that the plan chooses.",
    },
];
