//! The options of links, and what follows from them.

use std::net::SocketAddr;

use haul_io::udp::UdpOptions;
use haul_seal::Seal;
use haul_udt::Config;

use super::sealing::Sealing;

/// How to open links. Build it from [`LinkOptions::default`], then set fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LinkOptions {
    /// The protocol's choices. `lower_len` and `mtu` are set from the address family and the route.
    /// With `seal`, every datagram but handshakes is sealed, and peers that do not are refused.
    pub config: Config,
    /// The secret of a sealed connection, and of that one only; it implies `seal`. Where it is not
    /// known before the connection opens, [`super::Link::set_seal`] takes it.
    pub seal: Option<Seal>,
    /// Receive buffer to ask the kernel for, bytes.
    pub recv_buffer_bytes: usize,
    /// Send buffer to ask the kernel for, bytes.
    pub send_buffer_bytes: usize,
}

/// A few milliseconds of tens of gigabits; what an unprivileged process gets is often less.
const SOCKET_BUFFER_BYTES: usize = 16 << 20;

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            config: Config::default(),
            seal: None,
            recv_buffer_bytes: SOCKET_BUFFER_BYTES,
            send_buffer_bytes: SOCKET_BUFFER_BYTES / 4,
        }
    }
}

impl LinkOptions {
    /// The keys of a link with these options, if it is sealed.
    pub(super) fn sealing(&self) -> Option<Sealing> {
        let seals = self.config.seal || self.seal.is_some();
        seals.then(|| Sealing::new(self.seal.clone()))
    }

    pub(crate) fn socket_options(&self, share_port: bool) -> UdpOptions {
        let mut options = UdpOptions::default();
        options.recv_buffer_bytes = self.recv_buffer_bytes;
        options.send_buffer_bytes = self.send_buffer_bytes;
        options.share_port = share_port;
        options
    }

    /// The protocol's choices for packets to `peer`, whose route carries `mtu` bytes.
    pub(crate) fn config_for(&self, peer: SocketAddr, mtu: Option<u32>) -> Config {
        let lower_len = if peer.is_ipv4() {
            haul_udt::wire::LOWER_LEN_V4
        } else {
            haul_udt::wire::LOWER_LEN_V6
        };
        let mut config = self.config.clone();
        config.lower_len = u32::try_from(lower_len).unwrap_or(u32::MAX);
        config.mtu = mtu.unwrap_or(self.config.mtu).min(MTU_MAX);
        config.seal |= self.seal.is_some();
        config
    }
}

/// Above it a batch would hold few packets and a lost one would cost much; loopback offers 64 KiB.
const MTU_MAX: u32 = 9_216;
