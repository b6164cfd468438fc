//! The traits that a provider implements.
//!
//! Applications never see these traits: the types of the crate's root wrap them. Every trait is
//! object safe, and objects of one provider are given back to it as they are (`ops()` of the
//! wrappers, then a downcast through [`Any`](std::any::Any); one of another provider is
//! [`Error::Invalid`](crate::Error::Invalid)). Objects keep what they were made from alive. Methods
//! that have a default body are optional.

use std::fmt::Debug;

use crate::device::Device;
use crate::error::Result;

pub use crate::cm::ListenerOps;
pub use crate::completion::{CompletionChannelOps, CqOps};
pub use crate::device::{ContextOps, DeviceOps};
pub use crate::memory::{MrOps, PdOps};
pub use crate::queue::{EventChannelOps, QpOps, RequestOps};
pub use crate::srq::SrqOps;

/// A provider of RDMA devices: the software provider, libibverbs.
pub trait Provider: Debug + Send + Sync {
    /// Returns its name, in lower case.
    fn name(&self) -> &'static str;

    /// Returns its present devices.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) where the machine lacks what the provider
    /// needs, with the reason.
    fn devices(&self) -> Result<Vec<Device>>;
}
