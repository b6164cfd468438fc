//! Byte streams with a thread of their own, over sockets of this machine: in one process, and as if
//! another one drove them.
#![allow(
    clippy::allow_attributes,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "a test ends at what it did not expect; a relay between the ends has sockets of its own"
)]

#[path = "."]
mod here {
    #[path = "here.rs"]
    pub(crate) mod over;

    #[path = "cases.rs"]
    mod cases;
}

#[path = "."]
mod served {
    #[path = "served.rs"]
    pub(crate) mod over;

    #[path = "cases.rs"]
    mod cases;
}
