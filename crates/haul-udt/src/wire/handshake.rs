//! The handshake body (UDT4 draft §5, libudt `core.cpp`), and Longhaul's offer beside it.

use std::net::IpAddr;

use super::check::of_handshake;
use super::field::{HEADER_LEN, ParseError, word};
use crate::seq::Seq;
use crate::wire::SocketId;

/// UDT's protocol version.
pub(crate) const UDT_VERSION: u32 = 4;

/// Body of a handshake packet: 48 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handshake {
    /// 4 for UDT4; 0 in libudt's last step of a rendezvous, which states neither version nor
    /// `kind`.
    pub version: u32,
    /// Stream or messages. libudt sends 1 and 2, the draft specifies 0 and 1; this follows libudt.
    pub kind: SocketKind,
    /// First sequence number of the sender.
    pub initial: Seq,
    /// Largest packet with IP and UDP headers, bytes.
    pub mss: u32,
    /// Packets that the sender can take in flight.
    pub flight: u32,
    /// Step of the handshake.
    pub request: RequestKind,
    /// The sender's socket.
    pub socket: SocketId,
    /// SYN cookie: opaque to the client.
    pub cookie: u32,
    /// The address at which the sender sees its peer; informative.
    pub peer: PeerAddress,
}

/// An IP address as libudt writes it into a handshake.
///
/// libudt takes words in host order of a little-endian machine and swaps them, so the bytes of an
/// IPv4 address appear reversed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAddress(pub(super) [u32; 4]);

impl From<IpAddr> for PeerAddress {
    fn from(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(v4) => [u32::from_le_bytes(v4.octets()), 0, 0, 0],
            IpAddr::V6(v6) => {
                let bytes = v6.octets();
                std::array::from_fn(|i| {
                    u32::from_le_bytes(std::array::from_fn(|j| bytes[i * 4 + j]))
                })
            }
        })
    }
}

/// Stream or messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SocketKind {
    /// A byte stream.
    #[default]
    Stream,
    /// Messages with boundaries, optionally unordered and with a time to live.
    Datagram,
}

/// Step of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// First request of a client.
    Induction,
    /// Either side of a rendezvous, first step.
    Rendezvous,
    /// Client's request with the cookie, server's acceptance, rendezvous' second step.
    Conclusion,
    /// Rendezvous' last step.
    Agreement,
    /// Refused, with libudt's code (1002: version or kind do not match, 1004: other).
    Rejected(u32),
}

/// libudt: version or socket type do not match.
pub(crate) const REJECT_INCOMPATIBLE: u32 = 1002;

/// An end's offer beyond UDT4, carried in the two header words that UDT4 leaves zero and libudt
/// ignores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offer {
    /// Packets carry their stream offset and feedback is selective (docs/protocol/udt.md).
    pub placement: bool,
    /// Congestion marks are counted and reported in feedback; only with placement.
    pub ecn: bool,
    /// Each direction of a stream may end by itself; only with placement.
    pub finish: bool,
    /// Headers and control packets carry a check, and so does this handshake; only with placement.
    pub check: bool,
    /// Probes of the path are answered, and packets may come in pieces; only with placement.
    pub path: bool,
    /// Every datagram but handshakes is sealed; only with placement.
    pub seal: bool,
}

/// "HAUL".
const OFFER_MAGIC: u32 = 0x4841_554c;
/// Bit 0 offered placement with an older layout of feedback; nothing but plain UDT is agreed with
/// such a peer.
const OFFER_PLACEMENT: u32 = 8;
const OFFER_ECN: u32 = 2;
const OFFER_FINISH: u32 = 4;
const OFFER_CHECK: u32 = 16;
const OFFER_PATH: u32 = 32;
const OFFER_SEAL: u32 = 64;
/// A word that differs from the magic number in no more bits is that number, damaged.
const OFFER_DAMAGE_BITS: u32 = 2;

impl Offer {
    /// The offer of a handshake packet.
    pub(super) fn parse(header: &[u8; HEADER_LEN], body: &[u8]) -> Result<Self, ParseError> {
        let (info, word2) = (word(header, 1), word(header, 2));
        let is_damaged = if word2 == OFFER_MAGIC {
            let check = info >> 16;
            check != 0 && check != u32::from(of_handshake(header, body))
        } else {
            (word2 ^ OFFER_MAGIC).count_ones() <= OFFER_DAMAGE_BITS
        };
        if is_damaged {
            return Err(ParseError::Damaged);
        }
        let placement = word2 == OFFER_MAGIC && info & OFFER_PLACEMENT != 0;
        Ok(Self {
            placement,
            ecn: placement && info & OFFER_ECN != 0,
            finish: placement && info & OFFER_FINISH != 0,
            check: placement && info & OFFER_CHECK != 0,
            path: placement && info & OFFER_PATH != 0,
            seal: placement && info & OFFER_SEAL != 0,
        })
    }

    pub(crate) fn to_words(self) -> (u32, u32) {
        if !self.placement {
            return (0, 0);
        }
        let bit = |offered: bool, bit: u32| if offered { bit } else { 0 };
        let more = bit(self.ecn, OFFER_ECN)
            | bit(self.finish, OFFER_FINISH)
            | bit(self.check, OFFER_CHECK)
            | bit(self.path, OFFER_PATH)
            | bit(self.seal, OFFER_SEAL);
        (OFFER_PLACEMENT | more, OFFER_MAGIC)
    }
}

impl SocketKind {
    fn from_wire(value: u32) -> Result<Self, ParseError> {
        match value {
            1 => Ok(Self::Stream),
            2 => Ok(Self::Datagram),
            value => Err(ParseError::UnknownValue {
                what: "socket type",
                value,
            }),
        }
    }

    pub(crate) fn to_wire(self) -> u32 {
        match self {
            Self::Stream => 1,
            Self::Datagram => 2,
        }
    }
}

impl RequestKind {
    fn from_wire(value: u32) -> Result<Self, ParseError> {
        match value.cast_signed() {
            1 => Ok(Self::Induction),
            0 => Ok(Self::Rendezvous),
            -1 => Ok(Self::Conclusion),
            -2 => Ok(Self::Agreement),
            code if code > 1_000 => Ok(Self::Rejected(value)),
            _ => Err(ParseError::UnknownValue {
                what: "handshake request type",
                value,
            }),
        }
    }

    fn to_wire(self) -> u32 {
        match self {
            Self::Induction => 1,
            Self::Rendezvous => 0,
            Self::Conclusion => (-1_i32).cast_unsigned(),
            Self::Agreement => (-2_i32).cast_unsigned(),
            Self::Rejected(code) => code,
        }
    }
}

impl Handshake {
    /// Bytes of the body.
    pub const LEN: usize = 48;

    pub(super) fn parse(body: &[u8]) -> Result<Self, ParseError> {
        match body.len() {
            len if len < Self::LEN => {
                return Err(ParseError::Short {
                    what: "handshake",
                    len,
                });
            }
            len if len > Self::LEN => return Err(ParseError::Long { len }),
            _ => {}
        }
        let request = RequestKind::from_wire(word(body, 5))?;
        // A connected libudt fills in neither word when it answers a rendezvous (`core.cpp`
        // processCtrl).
        let is_bare = request == RequestKind::Agreement && word(body, 0) == 0 && word(body, 1) == 0;
        Ok(Self {
            version: word(body, 0),
            kind: if is_bare {
                SocketKind::default()
            } else {
                SocketKind::from_wire(word(body, 1))?
            },
            initial: Seq::new(word(body, 2)),
            mss: word(body, 3),
            flight: word(body, 4),
            request,
            socket: SocketId(word(body, 6)),
            cookie: word(body, 7),
            peer: PeerAddress(std::array::from_fn(|i| word(body, 8 + i))),
        })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let fixed = [
            self.version,
            self.kind.to_wire(),
            self.initial.get(),
            self.mss,
            self.flight,
            self.request.to_wire(),
            self.socket.0,
            self.cookie,
        ];
        for word in fixed.into_iter().chain(self.peer.0) {
            out.extend_from_slice(&word.to_be_bytes());
        }
    }
}
