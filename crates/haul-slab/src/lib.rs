//! Memory that a peer, or the kernel on its behalf, may write while this program runs.
//!
//! Safe Rust cannot hold a reference to such memory: another party's write would be a data race. So
//! it is only ever a raw range here. A [`Region`] is one: bytes go in and out by copying, system
//! calls reach it through [`Gather`] and [`Scatter`], and a pointer takes `unsafe`. A
//! [`Registry`] gives regions names that are hard to guess ([`Stag`]) and rights, and takes both
//! away *now*: when it returns, no placement into them is running.
//!
//! What a racing write does: a copy out may see old and new bytes mixed, as with any DMA device.
//! Nothing here decides anything by the content of a region. In the memory model a copy is a series
//! of relaxed atomic accesses to bytes, so two threads of safe code that copy into and out of the
//! same region have no data race. Two things lie outside of the model: system calls and devices
//! that access a region, as everywhere, and a copy that races with [`Region::atomic`] on the same
//! eight bytes, which accesses them at another size; the processor gives each byte its old or new
//! value there too.
//!
//! Map: [`Arena`] one mapping, cut into regions · [`Region`] ·
//! [`SharedMemory`] memory of two processes · [`Gather`], [`Scatter`] ranges for
//! system calls · [`Registry`], [`Stag`], [`AccessFlags`] names and rights · [`ring`] slots that
//! stages hand on.
#![warn(missing_docs)]

mod access;
mod arena;
mod copy;
mod mapping;
mod piece;
mod region;
mod registry;
pub mod ring;
mod shared;
mod span;
mod stag;
mod sync;

pub use access::AccessFlags;
pub use arena::Arena;
pub use mapping::Pages;
pub use region::{OutOfBounds, Region};
pub use registry::{Entry, Guard, REGIONS_MAX, Registration, Registry};
pub use shared::SharedMemory;
pub use span::{Gather, Scatter};
pub use stag::Stag;
