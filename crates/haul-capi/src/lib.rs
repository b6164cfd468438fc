//! The C interface of Longhaul: what include/haul.h declares, over `haul-verbs`.
//!
//! The only crate with `extern "C"`. It adds nothing to the verbs but the border: handles instead
//! of types, numbers instead of errors, arrays instead of slices. include/haul.h documents
//! the functions, structures and numbers; the names here are the same, and `tests/header` compares
//! the two.
//!
//! Rules: a handle crosses as `Option<&T>`, its end as `Option<Box<T>>`, a result as `Option<&mut
//! MaybeUninit<T>>`, so that NULL is a value like others. What is left, arrays and structures with
//! a size, goes through the functions of `border`, which are `unsafe` and state why. Every function
//! runs inside `border::run`: no panic passes.
//!
//! Map: `number`, `abi` numbers and structures · `status` failures · `border` · `handle` · `device`
//! devices and contexts · `memory` · `completion` · `queue` · `work` posting · `cm` connections ·
//! `stream` bytes over UDT · `address` of sockets.
#![warn(missing_docs)]
#![expect(
    non_camel_case_types,
    reason = "types have the names of include/haul.h"
)]
#![expect(
    clippy::missing_safety_doc,
    reason = "what callers owe is said in include/haul.h"
)]

#[expect(missing_docs, reason = "documented in include/haul.h")]
pub mod abi;
mod address;
mod border;
mod cm;
mod completion;
mod datagram;
mod device;
mod handle;
mod memory;
#[expect(missing_docs, reason = "documented in include/haul.h")]
mod number;
mod queue;
mod status;
mod stream;
mod work;

#[cfg(test)]
mod tests;

pub use cm::*;
pub use completion::*;
pub use datagram::*;
pub use device::*;
pub use handle::*;
pub use memory::*;
pub use queue::*;
pub use status::{haul_strerror, haul_wc_status_str};
pub use stream::*;
pub use work::*;
