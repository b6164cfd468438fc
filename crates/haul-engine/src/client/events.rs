//! Events of connections, requests for them, and listeners.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use haul_verbs::cm::{CmEvent, ConnParam, ConnectRequest};
use haul_verbs::provider::{EventChannelOps, ListenerOps, QpOps, RequestOps};
use haul_verbs::{Blame, Error, Failure, Result};

use super::core::Core;
use super::inbox::{Came, Inbox};
use super::link::{OpenQp, UNEXPECTED};
use crate::lock::lock;
use crate::message::{Event, Parameters, Reply, Request, Why, established};

#[derive(Debug)]
pub(super) struct EventChannel {
    pub(super) core: Arc<Core>,
    inbox: Inbox,
    /// Connections whose end is still to be told.
    open: Mutex<BTreeSet<u32>>,
}

impl EventChannel {
    pub(super) fn create(core: &Arc<Core>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            core: Arc::clone(core),
            inbox: Inbox::create(&core.link, &Request::CreateEventChannel)?,
            open: Mutex::default(),
        }))
    }

    /// Its number at the engine.
    pub(super) fn number(&self) -> u32 {
        self.inbox.number()
    }

    /// A connection begins whose end this channel tells.
    pub(super) fn begin(&self, qp_num: u32) {
        lock(&self.open).insert(qp_num);
    }

    /// It has ended, or never began.
    pub(super) fn end(&self, qp_num: u32) {
        lock(&self.open).remove(&qp_num);
    }

    fn event(&self, event: Event) -> CmEvent {
        let end = |qp_num: u32| self.end(qp_num);
        match event {
            Event::Request {
                request,
                peer,
                private_data,
                resources: (resources, depth),
            } => {
                let ops = Box::new(PendingRequest {
                    core: Arc::clone(&self.core),
                    number: Some(request),
                });
                let request = ConnectRequest::new(ops, peer, private_data, resources, depth);
                CmEvent::ConnectRequest(request)
            }
            Event::Established {
                qp_num,
                private_data,
                resources,
            } => {
                // Of a connection that was accepted, too.
                self.begin(qp_num);
                if let Some(qp) = self.core.link.qp(qp_num) {
                    qp.begin();
                }
                CmEvent::Established {
                    qp_num,
                    established: established(private_data, resources),
                }
            }
            Event::Rejected {
                qp_num,
                private_data,
            } => {
                end(qp_num);
                CmEvent::Rejected {
                    qp_num,
                    private_data,
                }
            }
            Event::Unreachable { qp_num, failure } => {
                end(qp_num);
                CmEvent::Unreachable {
                    qp_num,
                    failure: failure.get(),
                }
            }
            Event::Disconnected { qp_num, failure } => {
                end(qp_num);
                CmEvent::Disconnected {
                    qp_num,
                    failure: failure.map(Why::get),
                }
            }
        }
    }
}

impl EventChannelOps for EventChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.inbox.fd()
    }

    fn poll(&self) -> Result<Option<CmEvent>> {
        match self.inbox.receive()? {
            Came::Packet(packet) => {
                let event = packet.message().map_err(Error::os("an event"))?;
                Ok(Some(self.event(event)))
            }
            Came::Nothing => Ok(None),
            Came::End => {
                let ended = lock(&self.open).pop_first();
                Ok(ended.map(|qp_num| CmEvent::Disconnected {
                    qp_num,
                    failure: Some(ENDED()),
                }))
            }
        }
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<Option<CmEvent>> {
        self.inbox.wait(timeout, || self.poll())
    }
}

/// Why the connections of an engine that is gone have ended.
pub(super) const ENDED: fn() -> Failure = || Failure::new(Blame::Local, "the engine has ended");

#[derive(Debug)]
pub(super) struct Listener {
    channel: Arc<EventChannel>,
    number: u32,
    address: SocketAddr,
}

impl Listener {
    pub(super) fn new(
        channel: &Arc<EventChannel>,
        address: SocketAddr,
        backlog: u32,
    ) -> Result<Self> {
        let request = Request::Listen {
            address,
            channel: channel.number(),
            backlog,
        };
        match channel.core.link.call(&request, &[])? {
            (Reply::Listener { listener, address }, _) => Ok(Self {
                channel: Arc::clone(channel),
                number: listener,
                address,
            }),
            _ => Err(UNEXPECTED),
        }
    }
}

impl ListenerOps for Listener {
    fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.channel.core.link.close(self.number);
    }
}

/// A request for a connection, which is refused if nobody answers it.
#[derive(Debug)]
struct PendingRequest {
    core: Arc<Core>,
    number: Option<u32>,
}

impl RequestOps for PendingRequest {
    fn accept(mut self: Box<Self>, qp: &Arc<dyn QpOps>, param: &ConnParam<'_>) -> Result<()> {
        let found = self.core.link.qp(qp.qp_num());
        // Another device may have a queue pair of this number.
        let is_it =
            |found: &Arc<dyn OpenQp>| std::ptr::addr_eq(Arc::as_ptr(found), Arc::as_ptr(qp));
        let number = found.filter(is_it).map(|found| found.number());
        let number = number.ok_or(Error::Invalid("a queue pair of another context"))?;
        let Some(request) = self.number.take() else {
            return Err(UNEXPECTED);
        };
        self.core.link.order(&Request::Accept {
            request,
            qp: number,
            param: Parameters::of(param),
        })
    }

    fn reject(mut self: Box<Self>, private_data: &[u8]) -> Result<()> {
        let Some(request) = self.number.take() else {
            return Err(UNEXPECTED);
        };
        self.core.link.order(&Request::Reject {
            request,
            private_data: private_data.to_vec(),
        })
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.core.link.close(number);
        }
    }
}
