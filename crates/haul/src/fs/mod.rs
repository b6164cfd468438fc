//! Trees of the local file system: walked at the source, written at the target.
//!
//! Every path is relative to an open root directory and resolved with `openat2` beneath it,
//! without symbolic links, so that a directory swapped in meanwhile leads nowhere else.
//!
//! Map: [`path`] paths below a root · [`entry`] what a name stands for · [`filter`] which entries
//! are taken · [`walk`] the source's walk · [`extents`] runs of data in sparse files · [`tree`] the
//! target's names · [`batch`] files that become durable together · [`meta`] attributes.

pub mod batch;
pub mod entry;
pub mod extents;
pub mod filter;
pub mod meta;
pub mod path;
pub mod tree;
pub mod walk;
