//! Listeners, as applications hold them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use haul_io::stream::Acceptor;
use haul_verbs::provider::ListenerOps;
use haul_verbs::{Error, Result, Transport};

use super::device::Rnic;
use crate::rnic::events::CmEvents;
use crate::rnic::shard::ListeningSocket;

fn open(rnic: &Rnic, address: SocketAddr) -> io::Result<ListeningSocket> {
    Ok(match rnic.transport {
        Transport::IwarpUdt => {
            let secret = haul_io::random::bytes()?;
            let acceptor = crate::udt::Acceptor::bind(address, &rnic.udt, secret)?;
            ListeningSocket::Udt(Box::new(acceptor.with_budget()))
        }
        _ => ListeningSocket::Tcp(Acceptor::bind(address)?),
    })
}

/// See the module.
#[derive(Debug)]
pub(in crate::rnic) struct Listener {
    rnic: Arc<Rnic>,
    address: SocketAddr,
    number: u32,
}

impl Listener {
    pub(in crate::rnic) fn new(
        rnic: Arc<Rnic>,
        address: SocketAddr,
        channel: &Arc<CmEvents>,
        backlog: u32,
    ) -> Result<Self> {
        let acceptor = open(&rnic, address).map_err(Error::os("listening"))?;
        let address = acceptor.local_addr().map_err(Error::os("listening"))?;
        let shard = rnic.first_shard();
        let number = shard.with(|inner| inner.listen(acceptor, channel, backlog))?;
        Ok(Self {
            rnic,
            address,
            number,
        })
    }
}

impl ListenerOps for Listener {
    fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let shard = self.rnic.first_shard();
        shard.with(|inner| inner.unlisten(self.number));
    }
}
