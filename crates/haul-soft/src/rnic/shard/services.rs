//! Queue pairs of datagram services: members of a shard beside those with connections.

use haul_slab::Stag;
use haul_verbs::{Error, Result};

use super::{Inner, Subject};
use crate::rnic::datagram::{Service, Tools};

impl Inner {
    pub(in crate::rnic) fn insert_service(&mut self, service: Service) -> Result<u32> {
        self.services
            .insert(Box::new(service))
            .map_err(|_| Error::Exhausted("queue pairs"))
    }

    /// Works with a service, then has it send and report what came of it.
    pub(in crate::rnic) fn with_service<R>(
        &mut self,
        number: u32,
        work: impl FnOnce(&mut Service, &mut Tools<'_>) -> R,
    ) -> Option<R> {
        let service = self.services.get_mut(number)?;
        let mut tools = Tools {
            now: self.now,
            registry: &self.registry,
            scratch: &mut self.scratch,
            outbox: &mut self.outbox,
            poller: &self.poller,
            tap: self.tap.as_deref(),
        };
        let result = work(service, &mut tools);
        let subject = Subject::Service(number);
        if service.has_more() && !self.again.contains(&subject) {
            self.again.push(subject);
        }
        if let Some(due) = service.due() {
            if !self.clocked.contains(&subject) {
                self.clocked.push(subject);
            }
            self.clocked_due = Some(self.clocked_due.map_or(due, |before| before.min(due)));
        }
        Some(result)
    }

    /// Receives and sends for one service.
    pub(super) fn turn_service(&mut self, number: u32) -> bool {
        self.with_service(number, Service::turn).unwrap_or(false)
    }

    /// A service has a socket.
    pub(in crate::rnic) fn bind_service(
        &mut self,
        number: u32,
        bind: impl FnOnce(&mut Service, &mut Tools<'_>, u64) -> Result<()>,
    ) -> Result<()> {
        let token = Subject::Service(number).token();
        self.with_service(number, |service, tools| bind(service, tools, token))
            .unwrap_or(Err(Error::Invalid("the queue pair is gone")))?;
        self.bound.push(number);
        Ok(())
    }

    /// A name was taken away.
    pub(in crate::rnic) fn revoke(&mut self, stag: Stag) {
        for at in 0..self.bound.len() {
            if let Some(number) = self.bound.get(at) {
                self.with_service(*number, |service, tools| service.revoke(tools, stag));
            }
        }
    }

    /// Sends what was posted and the engine has not come to: the end would flush it.
    fn send_posted(&mut self, number: u32) {
        if self.posted.contains(&Subject::Service(number)) {
            self.turn_service(number);
        }
    }

    /// A service ends: everything posted is flushed.
    pub(in crate::rnic) fn end_service(&mut self, number: u32) {
        self.send_posted(number);
        self.with_service(number, |service, tools| service.end(tools));
        self.bound.retain(|bound| *bound != number);
    }

    /// The application lets go of a service: what is posted goes with it, without completions.
    pub(in crate::rnic) fn remove_service(&mut self, number: u32) {
        self.send_posted(number);
        self.with_service(number, Service::leave);
        if let Some(service) = self.services.remove(number) {
            service.unregister(&self.poller);
            self.bound.retain(|bound| *bound != number);
            self.clocked
                .retain(|subject| *subject != Subject::Service(number));
            self.again
                .retain(|subject| *subject != Subject::Service(number));
            self.posted
                .retain(|subject| *subject != Subject::Service(number));
        }
    }
}
