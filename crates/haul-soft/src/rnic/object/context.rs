//! What an application asks of an opened device.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use haul_verbs::provider::{
    CompletionChannelOps, ContextOps, CqOps, EventChannelOps, ListenerOps, PdOps,
};
use haul_verbs::{AsyncEvent, DeviceAttributes, Error, Result, Transport};

use super::cq::{CompletionChannel, Cq};
use super::device::{Rnic, ours};
use super::event_channel::EventChannel;
use super::listener::Listener;
use super::request::Request;
use crate::rnic::events::cm_events;
use crate::rnic::limits::{CQE_MAX, attributes};
use crate::rnic::options::Options;
use crate::rnic::queue::channel;

/// Opens a device.
pub(in crate::rnic) fn open(
    transport: Transport,
    options: &Options,
) -> Result<Arc<dyn ContextOps>> {
    Ok(Rnic::open(transport, options, Request::boxed)?)
}

impl ContextOps for Rnic {
    fn attributes(&self) -> Result<DeviceAttributes> {
        Ok(attributes(self.transport))
    }

    fn alloc_pd(self: Arc<Self>) -> Result<Arc<dyn PdOps>> {
        Ok(Arc::new(self.new_domain()))
    }

    fn create_completion_channel(self: Arc<Self>) -> Result<Arc<dyn CompletionChannelOps>> {
        let channel = Arc::new(channel()?);
        Ok(Arc::new(CompletionChannel {
            channel,
            rnic: self,
        }))
    }

    fn create_cq(
        self: Arc<Self>,
        entries: u32,
        channel: Option<&Arc<dyn CompletionChannelOps>>,
        token: u64,
    ) -> Result<Arc<dyn CqOps>> {
        Error::at_least("entries", entries.into(), 1)?;
        Error::at_most("entries", entries.into(), CQE_MAX.into())?;
        let channel = match channel {
            Some(channel) => {
                let channel: &CompletionChannel = ours(channel)?;
                if !Arc::ptr_eq(&channel.rnic, &self) {
                    return Err(Error::Invalid("a channel of another context"));
                }
                Some(Arc::clone(&channel.channel))
            }
            None => None,
        };
        Ok(Arc::new(Cq::new(self, entries, channel, token)?))
    }

    fn create_event_channel(self: Arc<Self>) -> Result<Arc<dyn EventChannelOps>> {
        let events = Arc::new(cm_events()?);
        Ok(Arc::new(EventChannel {
            events,
            _rnic: self,
        }))
    }

    fn listen(
        self: Arc<Self>,
        address: SocketAddr,
        channel: &Arc<dyn EventChannelOps>,
        backlog: u32,
    ) -> Result<Arc<dyn ListenerOps>> {
        let channel: &EventChannel = ours(channel)?;
        Ok(Arc::new(Listener::new(
            self,
            address,
            &channel.events,
            backlog,
        )?))
    }

    fn poll_async_event(&self) -> Result<Option<AsyncEvent>> {
        Ok(self.async_events.pop())
    }

    fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.async_events.signal().as_fd())
    }
}
