//! An opened device.

use std::any::Any;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use haul_verbs::provider::{
    CompletionChannelOps, ContextOps, CqOps, EventChannelOps, ListenerOps, PdOps,
};
use haul_verbs::{AsyncEvent, DeviceAttributes, Error, Result};
use rustix::net::RecvFlags;

use super::bounce::Bounces;
use super::completion::{CompletionChannel, Cq};
use super::events::{EventChannel, Listener};
use super::link::{Link, Opened};
use super::memory::Pd;
use crate::message::{Async, Request};
use crate::socket::Packets;

#[derive(Debug)]
pub(super) struct Context {
    pub(super) link: Arc<Link>,
    pub(super) attributes: DeviceAttributes,
    pub(super) bounces: Bounces,
    events: Packets,
    has_told: AtomicBool,
}

impl Context {
    pub(super) fn new(opened: Opened) -> Arc<Self> {
        Arc::new(Self {
            link: opened.link,
            attributes: opened.attributes,
            bounces: Bounces::default(),
            events: opened.events,
            has_told: AtomicBool::new(false),
        })
    }

    /// Refuses an object of another device.
    pub(super) fn check(self: &Arc<Self>, other: &Arc<Self>) -> Result<()> {
        if Arc::ptr_eq(self, other) {
            Ok(())
        } else {
            Err(Error::Invalid("an object of another context"))
        }
    }
}

impl ContextOps for Context {
    fn attributes(&self) -> Result<DeviceAttributes> {
        Ok(self.attributes.clone())
    }

    fn alloc_pd(self: Arc<Self>) -> Result<Arc<dyn PdOps>> {
        let number = self.link.create(&Request::AllocPd, &[])?;
        Ok(Arc::new(Pd::new(self, number)))
    }

    fn create_completion_channel(self: Arc<Self>) -> Result<Arc<dyn CompletionChannelOps>> {
        Ok(CompletionChannel::create(&self)?)
    }

    fn create_cq(
        self: Arc<Self>,
        entries: u32,
        channel: Option<&Arc<dyn CompletionChannelOps>>,
        token: u64,
    ) -> Result<Arc<dyn CqOps>> {
        let channel = match channel {
            None => None,
            Some(channel) => {
                let channel: Arc<CompletionChannel> = ours(channel)?;
                self.check(&channel.context)?;
                Some(channel)
            }
        };
        Ok(Cq::create(&self, entries, channel, token)?)
    }

    fn create_event_channel(self: Arc<Self>) -> Result<Arc<dyn EventChannelOps>> {
        Ok(EventChannel::create(&self)?)
    }

    fn listen(
        self: Arc<Self>,
        address: SocketAddr,
        channel: &Arc<dyn EventChannelOps>,
        backlog: u32,
    ) -> Result<Arc<dyn ListenerOps>> {
        let channel: Arc<EventChannel> = ours(channel)?;
        self.check(&channel.context)?;
        Ok(Arc::new(Listener::new(&channel, address, backlog)?))
    }

    fn poll_async_event(&self) -> Result<Option<AsyncEvent>> {
        match self.events.receive(RecvFlags::DONTWAIT) {
            Ok(Some(packet)) => {
                let event: Async = packet.message().map_err(Error::os("an event"))?;
                Ok(event.get())
            }
            Ok(None) => {
                self.link.die();
                let has_told = self.has_told.swap(true, Ordering::AcqRel);
                Ok((!has_told).then_some(AsyncEvent::DeviceFatal))
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(Error::os("waiting for an event")(error)),
        }
    }

    fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.events.as_fd())
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

as_any!(CompletionChannelOps, CqOps, EventChannelOps, QpOps, SrqOps);
