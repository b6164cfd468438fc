//! An opened device.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use haul_verbs::provider::{
    CompletionChannelOps, ContextOps, CqOps, EventChannelOps, ListenerOps, PdOps,
};
use haul_verbs::{AsyncEvent, DeviceAttributes, Error, Result};

use super::bounce::Bounces;
use super::completion::{CompletionChannel, Cq};
use super::core::{Core, ours};
use super::events::{EventChannel, Listener};
use super::inbox::{Came, receive};
use super::link::Opened;
use super::memory::Pd;
use crate::message::{Async, Request};
use crate::socket::Packets;

#[derive(Debug)]
pub(super) struct Context {
    pub(super) core: Arc<Core>,
    events: Packets,
    has_told: AtomicBool,
}

impl Context {
    pub(super) fn new(opened: Opened) -> Arc<Self> {
        let core = Core {
            link: opened.link,
            attributes: opened.attributes,
            bounces: Bounces::default(),
        };
        Arc::new(Self {
            core: Arc::new(core),
            events: opened.events,
            has_told: AtomicBool::new(false),
        })
    }
}

impl ContextOps for Context {
    fn attributes(&self) -> Result<DeviceAttributes> {
        Ok(self.core.attributes.clone())
    }

    fn alloc_pd(self: Arc<Self>) -> Result<Arc<dyn PdOps>> {
        let number = self.core.link.create(&Request::AllocPd, &[])?;
        Ok(Arc::new(Pd::new(Arc::clone(&self.core), number)))
    }

    fn create_completion_channel(self: Arc<Self>) -> Result<Arc<dyn CompletionChannelOps>> {
        Ok(CompletionChannel::create(&self.core)?)
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
                self.core.check(&channel.core)?;
                Some(channel)
            }
        };
        Ok(Cq::create(&self.core, entries, channel, token)?)
    }

    fn create_event_channel(self: Arc<Self>) -> Result<Arc<dyn EventChannelOps>> {
        Ok(EventChannel::create(&self.core)?)
    }

    fn listen(
        self: Arc<Self>,
        address: SocketAddr,
        channel: &Arc<dyn EventChannelOps>,
        backlog: u32,
    ) -> Result<Arc<dyn ListenerOps>> {
        let channel: Arc<EventChannel> = ours(channel)?;
        self.core.check(&channel.core)?;
        Ok(Arc::new(Listener::new(&channel, address, backlog)?))
    }

    fn poll_async_event(&self) -> Result<Option<AsyncEvent>> {
        match receive(&self.core.link, &self.events)? {
            Came::Packet(packet) => {
                let event: Async = packet.message().map_err(Error::os("an event"))?;
                Ok(event.get())
            }
            Came::Nothing => Ok(None),
            Came::End => {
                let has_told = self.has_told.swap(true, Ordering::AcqRel);
                Ok((!has_told).then_some(AsyncEvent::DeviceFatal))
            }
        }
    }

    fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.events.as_fd())
    }
}
