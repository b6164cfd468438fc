//! What all objects of an opened device share.

use std::any::Any;
use std::sync::Arc;

use haul_verbs::{DeviceAttributes, Error, Result};

use super::bounce::Bounces;
use super::link::Link;

#[derive(Debug)]
pub(super) struct Core {
    pub(super) link: Arc<Link>,
    pub(super) attributes: DeviceAttributes,
    pub(super) bounces: Bounces,
}

impl Core {
    /// Refuses an object of another device.
    pub(super) fn check(self: &Arc<Self>, other: &Arc<Self>) -> Result<()> {
        if Arc::ptr_eq(self, other) {
            Ok(())
        } else {
            Err(Error::Invalid("an object of another context"))
        }
    }
}

/// An object of this provider, given back by an application.
pub(super) fn ours<T: Any + Send + Sync>(object: &Arc<impl AsAny + ?Sized>) -> Result<Arc<T>> {
    Arc::downcast(object.clone().as_any())
        .map_err(|_| Error::Invalid("an object of another provider"))
}

/// Upcasts of the traits' objects.
pub(super) trait AsAny {
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

macro_rules! as_any {
    ($($ops:ident),*) => {
        $(impl AsAny for dyn haul_verbs::provider::$ops {
            fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
                self
            }
        })*
    };
}

as_any!(
    CompletionChannelOps,
    ContextOps,
    CqOps,
    EventChannelOps,
    SrqOps
);
