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
    /// Where it listens; without, data channels of this kind go outwards only.
    pub(crate) listen: Option<SocketAddr>,
    /// What peers are told, where it is not the address that they have reached.
    pub(crate) public: Option<SocketAddr>,
}

/// What data channels are made with.
#[derive(Debug)]
pub(crate) enum Means {
    /// TCP connections.
    Tcp,
    /// UDT connections.
    Udt,
    /// Reliable datagrams of an RDMA device.
    Datagram { context: Context },
    /// Connections of an RDMA device.
    Connected {
        context: Context,
        /// Listens as long as it is there.
        _listener: Option<Listener>,
        /// Of the listener and of the queue pairs that came of it.
        events: EventChannel,
    },
}
