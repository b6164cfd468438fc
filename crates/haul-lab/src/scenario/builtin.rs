//! The scenarios that the program brings along, so that they can be named without their files.

/// Name and text.
pub const BUILTIN: &[(&str, &str)] = &[
    ("5g", include_str!("../../../../scenarios/5g.toml")),
    (
        "ack-loss",
        include_str!("../../../../scenarios/ack-loss.toml"),
    ),
    ("bursty", include_str!("../../../../scenarios/bursty.toml")),
    (
        "gateways",
        include_str!("../../../../scenarios/gateways.toml"),
    ),
    (
        "gridftp",
        include_str!("../../../../scenarios/gridftp.toml"),
    ),
    ("jumbo", include_str!("../../../../scenarios/jumbo.toml")),
    ("lossy", include_str!("../../../../scenarios/lossy.toml")),
    ("metro", include_str!("../../../../scenarios/metro.toml")),
    (
        "policer",
        include_str!("../../../../scenarios/policer.toml"),
    ),
    (
        "reorder",
        include_str!("../../../../scenarios/reorder.toml"),
    ),
    (
        "wan-100ms",
        include_str!("../../../../scenarios/wan-100ms.toml"),
    ),
];
