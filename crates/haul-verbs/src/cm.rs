//! Connections, as librdmacm makes them: listen, connect, accept, reject, disconnect, and events.
//!
//! The passive end listens; each [`ConnectRequest`] that appears on the listener's channel is
//! accepted with a queue pair, or rejected. The active end connects a queue pair. Both then see
//! [`CmEvent::Established`] on the channel they named, and [`CmEvent::Disconnected`] when it is
//! over, whoever ended it and however.

use std::any::Any;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;

pub use crate::attributes::{ConnParam, Established};
pub use crate::queue::{CmEvent, ConnectRequest, EventChannel};

/// A listener. Dropping it ends it, but not its connections.
#[derive(Debug)]
pub struct Listener(Arc<dyn ListenerOps>);

impl Listener {
    pub(crate) fn from_ops(ops: Arc<dyn ListenerOps>) -> Self {
        Self(ops)
    }

    /// Returns the address it listens at.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }
}

/// A provider's part of [`Listener`]. Dropping it ends the listener.
pub trait ListenerOps: Any + Debug + Send + Sync {
    /// See [`Listener::local_addr`](crate::cm::Listener::local_addr).
    fn local_addr(&self) -> SocketAddr;
}
