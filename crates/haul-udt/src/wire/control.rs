//! Control packets.

use super::check::seal_handshake;
use super::field::{CONTROL_BIT, HEADER_LEN, ParseError, SocketId, word};
use super::ranges::LossRanges;
use super::{Feedback, Handshake, Offer, SenderInfo};
use crate::seq::Seq;

const TYPE_HANDSHAKE: u16 = 0;
const TYPE_KEEP_ALIVE: u16 = 1;
const TYPE_ACK: u16 = 2;
const TYPE_NAK: u16 = 3;
const TYPE_CONGESTION: u16 = 4;
const TYPE_SHUTDOWN: u16 = 5;
const TYPE_ACK2: u16 = 6;
const TYPE_DROP: u16 = 7;
const TYPE_ERROR: u16 = 8;
const TYPE_USER: u16 = 0x7fff;

/// Longhaul's extended type within UDT's user-defined control type ("LH").
const USER_LONGHAUL: u16 = 0x4c48;
const LONGHAUL_FEEDBACK: u32 = 1;
const LONGHAUL_SENDER_INFO: u32 = 2;
const LONGHAUL_PROBE: u32 = 3;
const LONGHAUL_PROBE_ANSWER: u32 = 4;

/// libudt ends control packets that have no body with four bytes of padding, and so do we
/// (`packet.cpp` pack).
const PAD: [u8; 4] = [0; 4];

/// A control packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control<'a> {
    /// Connection set-up; the destination is zero on the way to a listener.
    Handshake {
        /// Receiving socket.
        destination: SocketId,
        /// The body.
        body: Handshake,
        /// The sender's offer beyond UDT4, in header words that UDT4 leaves zero.
        offer: Offer,
    },
    /// A keep-alive.
    KeepAlive,
    /// Cumulative acknowledgement.
    Ack {
        /// Number to be returned in an ACK2; zero in a light ACK.
        number: u32,
        /// The body.
        body: Ack,
    },
    /// Lost packets.
    Nak(LossRanges<'a>),
    /// Obsolete warning; ignored.
    CongestionWarning,
    /// The peer has closed.
    Shutdown,
    /// Acknowledgement of an ACK.
    Ack2 {
        /// The ACK's number.
        number: u32,
    },
    /// The sender will not (re)send a message's packets.
    DropRequest {
        /// The message.
        message: u32,
        /// First packet.
        first: Seq,
        /// Last packet, included.
        last: Seq,
    },
    /// The peer's application reports an error.
    PeerError(u32),
    /// Between Longhaul ends: feedback on arrived packets.
    Feedback(Feedback<'a>),
    /// Between Longhaul ends: the data sender's request for feedback.
    SenderInfo(SenderInfo),
    /// Between Longhaul ends: as long as the sender would like to make packets. The rest is
    /// padding.
    Probe {
        /// To be returned.
        number: u32,
    },
    /// Between Longhaul ends: a probe has arrived.
    ProbeAnswer {
        /// The probe's.
        number: u32,
    },
    /// A user-defined packet of another implementation; ignored.
    User(u16),
}

/// Body of an ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// Everything before it has arrived.
    pub next: Seq,
    /// Absent in a light ACK.
    pub rates: Option<AckRates>,
}

/// The figures of a full ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckRates {
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: u32,
    /// Its variation, microseconds.
    pub rtt_variation_us: u32,
    /// Free receive buffer, packets.
    pub window_packets: u32,
    /// Arrival rate and link capacity, packets per second; at most once per 10 ms.
    pub speed: Option<(u32, u32)>,
}

impl<'a> Control<'a> {
    pub(super) fn parse(header: &[u8; HEADER_LEN], body: &'a [u8]) -> Result<Self, ParseError> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "two 16-bit halves of a word"
        )]
        let (kind, extended) = (
            (word(header, 0) >> 16) as u16 & 0x7fff,
            word(header, 0) as u16,
        );
        let info = word(header, 1);
        let need = |what, len| {
            if body.len() < len {
                Err(ParseError::Short {
                    what,
                    len: body.len(),
                })
            } else {
                Ok(())
            }
        };
        Ok(match kind {
            TYPE_HANDSHAKE => Self::Handshake {
                destination: SocketId(word(header, 3)),
                body: Handshake::parse(body)?,
                offer: Offer::parse(header, body)?,
            },
            TYPE_KEEP_ALIVE => Self::KeepAlive,
            TYPE_ACK => {
                need("ACK", 4)?;
                Self::Ack {
                    number: info,
                    body: Ack::parse(body),
                }
            }
            TYPE_NAK => {
                need("NAK", 4)?;
                Self::Nak(LossRanges::parse(body)?)
            }
            TYPE_CONGESTION => Self::CongestionWarning,
            TYPE_SHUTDOWN => Self::Shutdown,
            TYPE_ACK2 => Self::Ack2 { number: info },
            TYPE_DROP => {
                need("drop request", 8)?;
                let (first, last) = (Seq::new(word(body, 0)), Seq::new(word(body, 1)));
                Self::DropRequest {
                    message: info,
                    first,
                    last,
                }
            }
            TYPE_ERROR => Self::PeerError(info),
            TYPE_USER if extended == USER_LONGHAUL && info == LONGHAUL_FEEDBACK => {
                Self::Feedback(Feedback::parse(word(header, 2), body)?)
            }
            TYPE_USER if extended == USER_LONGHAUL && info == LONGHAUL_SENDER_INFO => {
                Self::SenderInfo(SenderInfo::parse(body)?)
            }
            TYPE_USER if extended == USER_LONGHAUL && info == LONGHAUL_PROBE => Self::Probe {
                number: word(header, 2),
            },
            TYPE_USER if extended == USER_LONGHAUL && info == LONGHAUL_PROBE_ANSWER => {
                Self::ProbeAnswer {
                    number: word(header, 2),
                }
            }
            TYPE_USER => Self::User(extended),
            other => return Err(ParseError::UnknownControl(other)),
        })
    }
}

impl Ack {
    fn parse(body: &[u8]) -> Self {
        let rates = (body.len() >= 16).then(|| AckRates {
            rtt_us: word(body, 1),
            rtt_variation_us: word(body, 2),
            window_packets: word(body, 3),
            speed: (body.len() >= 24).then(|| (word(body, 4), word(body, 5))),
        });
        Self {
            next: Seq::new(word(body, 0)),
            rates,
        }
    }
}

/// Writes control packets into a buffer that keeps its capacity.
#[derive(Debug)]
pub(crate) struct ControlWriter<'b> {
    out: &'b mut Vec<u8>,
    destination: SocketId,
}

impl<'b> ControlWriter<'b> {
    /// Replaces the content of `out`.
    pub(crate) fn new(out: &'b mut Vec<u8>, destination: SocketId) -> Self {
        out.clear();
        Self { out, destination }
    }

    fn header(&mut self, kind: u16, extended: u16, info: u32, word2: u32) {
        let word0 = CONTROL_BIT | u32::from(kind) << 16 | u32::from(extended);
        for word in [word0, info, word2, self.destination.0] {
            self.out.extend_from_slice(&word.to_be_bytes());
        }
    }

    pub(crate) fn handshake(mut self, body: &Handshake, offer: Offer) {
        let (info, word2) = offer.to_words();
        self.header(TYPE_HANDSHAKE, 0, info, word2);
        body.emit(self.out);
        if offer.check && offer.placement {
            seal_handshake(self.out);
        }
    }

    pub(crate) fn keep_alive(mut self) {
        self.header(TYPE_KEEP_ALIVE, 0, 0, 0);
        self.out.extend_from_slice(&PAD);
    }

    pub(crate) fn ack(mut self, number: u32, body: &Ack) {
        self.header(TYPE_ACK, 0, number, 0);
        let mut push = |word: u32| self.out.extend_from_slice(&word.to_be_bytes());
        push(body.next.get());
        if let Some(rates) = body.rates {
            push(rates.rtt_us);
            push(rates.rtt_variation_us);
            push(rates.window_packets);
            if let Some((arrivals, capacity)) = rates.speed {
                push(arrivals);
                push(capacity);
            }
        }
    }

    /// Starts a NAK; ranges follow by `push_range` on the same buffer.
    pub(crate) fn nak(mut self) {
        self.header(TYPE_NAK, 0, 0, 0);
    }

    pub(crate) fn shutdown(mut self) {
        self.header(TYPE_SHUTDOWN, 0, 0, 0);
        self.out.extend_from_slice(&PAD);
    }

    pub(crate) fn ack2(mut self, number: u32) {
        self.header(TYPE_ACK2, 0, number, 0);
        self.out.extend_from_slice(&PAD);
    }

    pub(crate) fn drop_request(mut self, message: u32, first: u64, last: u64) {
        self.header(TYPE_DROP, 0, message, 0);
        self.out
            .extend_from_slice(&Seq::of(first).get().to_be_bytes());
        self.out
            .extend_from_slice(&Seq::of(last).get().to_be_bytes());
    }

    /// Starts feedback: the fixed part. Gaps follow by `push_range` on the same buffer.
    pub(crate) fn feedback(mut self, number: u32, fixed: &Feedback<'_>) {
        self.header(TYPE_USER, USER_LONGHAUL, LONGHAUL_FEEDBACK, number);
        fixed.emit_fixed(self.out);
    }

    pub(crate) fn sender_info(mut self, info: SenderInfo) {
        self.header(TYPE_USER, USER_LONGHAUL, LONGHAUL_SENDER_INFO, 0);
        info.emit(self.out);
    }

    /// A probe of `len` bytes, header included.
    pub(crate) fn probe(mut self, number: u32, len: usize) {
        self.header(TYPE_USER, USER_LONGHAUL, LONGHAUL_PROBE, number);
        self.out.resize(len.max(HEADER_LEN), 0);
    }

    pub(crate) fn probe_answer(mut self, number: u32) {
        self.header(TYPE_USER, USER_LONGHAUL, LONGHAUL_PROBE_ANSWER, number);
        self.out.extend_from_slice(&PAD);
    }
}
