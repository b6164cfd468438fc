//! Settings of a connection over a stream.

use crate::qp::QpConfig;
use crate::time::SECOND_NS;
use crate::wire::mpa::RtrKinds;

/// How a connection over a stream is to be. Build it from [`StreamConfig::default`], then set
/// fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamConfig {
    /// The queue pair.
    pub qp: QpConfig,
    /// CRCs are asked for. If both ends do without, there are none; else both make and check them
    /// (RFC 5044 §7.1).
    pub crc: bool,
    /// Requests markers in the stream to this end. siw refuses that.
    pub markers: bool,
    /// The revision of MPA that an initiator asks for: 2, or 1 where 2 was refused.
    pub revision: u8,
    /// Initiator: requests a peer-to-peer connection, to be opened by one of these. Responder: the
    /// accepted kinds; `None` is all.
    pub peer_to_peer: Option<RtrKinds>,
    /// Longhaul's capabilities are offered, eight bytes behind the private data.
    pub extensions: bool,
    /// The longest FPDU to and from Longhaul ends, bytes; in steps of 256.
    pub fpdu_max: u32,
    /// The path's segment size: FPDUs to others are no longer (RFC 5044 §4.5).
    pub emss: u32,
    /// CRCs are verified before anything is placed, at the price of a copy.
    pub strict: bool,
    /// How long the peer may take for each step of start-up.
    pub startup_timeout_ns: u64,
    /// How long the peer may take to close after this end has.
    pub close_timeout_ns: u64,
    /// How long the peer may neither send nor take anything while requests or answers of this end
    /// wait for it; none: for ever. The kernel answers for a peer whose process is stopped, so TCP
    /// itself does not notice it.
    pub peer_timeout_ns: Option<u64>,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            qp: QpConfig::default(),
            crc: true,
            markers: false,
            revision: 2,
            peer_to_peer: None,
            extensions: true,
            fpdu_max: 65_536,
            emss: 1_460,
            strict: false,
            startup_timeout_ns: 5 * SECOND_NS,
            close_timeout_ns: 5 * SECOND_NS,
            peer_timeout_ns: None,
        }
    }
}
