//! Kinds of data channels that this gateway has.

use std::net::SocketAddr;

use haul_verbs::Context;
use haul_verbs::cm::{EventChannel, Listener};

use crate::config::ChannelKind;

/// A kind of data channel that this gateway has.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) kind: ChannelKind,
    pub(crate) means: Means,
    /// Where it listens; `None`: it is only dialled.
    pub(crate) listen: Option<SocketAddr>,
    /// The address announced to peers, if it differs from the one that they have reached.
    pub(crate) public: Option<SocketAddr>,
}

/// The settings of data channels of one kind.
#[derive(Debug)]
pub(crate) enum Means {
    /// TCP connections.
    Tcp,
    /// Connections of an RDMA device.
    Connected {
        context: Context,
        /// Listens while it exists.
        _listener: Option<Listener>,
        /// Events of the listener and of its queue pairs.
        events: EventChannel,
    },
}
