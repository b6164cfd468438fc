//! Bodies of each datagram type, which follow the shim. All fields are big-endian; lengths are
//! exact unless stated otherwise.
//!
//! ```text
//!   ACK        cum 4 | limit 4 | echo_ts 4 | delay_us 4 | n 2 | 0 2 | n times start 4, end 4
//!   HELLO      cookie 16, zero if none | terms
//!   COOKIE     cookie 16
//!   READY      terms
//!   terms      caps 4 | init_psn 4 | window 4 | max_seg 2 | ird 2 | ord 2 | m 2 | m private data
//!   NOTICE     code 2 | 0 2 | detail 4; the shim names the message
//!   RATE       interval_us 4 | packets 4 | bytes 8 | lost 4 | dup 4 | ce 4 | nobuf 4 | hint_kbps 4
//!   CLOSE      code 2 | 0 2
//!   PROBE      token 4 | size 4 | zeros up to the size
//!   PROBE_ACK  token 4 | size 4
//! ```

use super::{Ext, Kind, Psn, Reject, SHIM_LEN, Segment, Shim};
use crate::crc::{CRC_LEN, Crc32c};
use crate::wire::{be16, be32, be64, put16, put32, put64};

/// Ranges in an ACK at most.
pub const ACK_RANGES_MAX: usize = 32;
/// Bytes of a cookie.
pub const COOKIE_LEN: usize = 16;
/// Bytes of private data in a hello at most.
pub const PRIVATE_MAX: usize = 512;
/// Bytes of the longest datagram that is neither DATA nor a probe.
pub const CONTROL_MAX: usize = SHIM_LEN + COOKIE_LEN + TERMS_LEN + PRIVATE_MAX + CRC_LEN;

const ACK_LEN: usize = 20;
const TERMS_LEN: usize = 20;
const NOTICE_LEN: usize = 8;
const RATE_LEN: usize = 36;
const CLOSE_LEN: usize = 4;
const PROBE_LEN: usize = 8;

/// The body of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'a> {
    /// [`Kind::Data`].
    Data(Segment<'a>),
    /// [`Kind::Ack`].
    Ack(Ack<'a>),
    /// [`Kind::Hello`].
    Hello(Hello<'a>),
    /// [`Kind::Cookie`].
    Cookie(Cookie),
    /// [`Kind::Ready`].
    Ready(Terms<'a>),
    /// [`Kind::Notice`].
    Notice(Notice),
    /// [`Kind::Rate`].
    Rate(Rate),
    /// [`Kind::Close`].
    Close(Close),
    /// [`Kind::Probe`].
    Probe(Probe),
    /// [`Kind::ProbeAck`].
    ProbeAck(Probe),
}

/// A cookie as others see it: opaque bytes to return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cookie(pub [u8; COOKIE_LEN]);

/// An acknowledgement.
#[derive(Debug, Clone, Copy)]
pub struct Ack<'a> {
    /// The next packet expected: all before it are there.
    pub cum: Psn,
    /// The first packet that may not be sent yet.
    pub limit: Psn,
    /// The time in the packet that caused the ACK, microseconds of the other's clock.
    pub echo_ts: u32,
    /// How long ago it arrived, microseconds.
    pub delay_us: u32,
    ranges: Ranges<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Ranges<'a> {
    Wire(&'a [u8]),
    Given(&'a [(Psn, Psn)]),
}

impl PartialEq for Ack<'_> {
    fn eq(&self, other: &Self) -> bool {
        let fixed = |ack: &Self| (ack.cum, ack.limit, ack.echo_ts, ack.delay_us);
        fixed(self) == fixed(other) && self.ranges().eq(other.ranges())
    }
}

impl Eq for Ack<'_> {}

impl<'a> Ack<'a> {
    /// Makes an ACK with `ranges` (start, end exclusive) of packets that are there beyond `cum`;
    /// those after the first [`ACK_RANGES_MAX`] are left out.
    #[must_use]
    pub fn new(
        cum: Psn,
        limit: Psn,
        echo_ts: u32,
        delay_us: u32,
        ranges: &'a [(Psn, Psn)],
    ) -> Self {
        Self {
            cum,
            limit,
            echo_ts,
            delay_us,
            ranges: Ranges::Given(&ranges[..ranges.len().min(ACK_RANGES_MAX)]),
        }
    }

    /// Returns the ranges: start, end exclusive. Their order and sense are for the receiver to
    /// judge.
    pub fn ranges(&self) -> impl Iterator<Item = (Psn, Psn)> + use<'a> {
        let (wire, given): (&'a [u8], &'a [_]) = match self.ranges {
            Ranges::Wire(octets) => (octets, &[]),
            Ranges::Given(ranges) => (&[], ranges),
        };
        let wire = wire
            .chunks_exact(8)
            .map(|pair| (Psn(be32(pair, 0)), Psn(be32(pair, 4))));
        wire.chain(given.iter().copied())
    }

    fn parse(octets: &'a [u8]) -> Result<Self, Reject> {
        let (head, ranges) = octets
            .split_at_checked(ACK_LEN)
            .ok_or(Reject::Malformed("ACK"))?;
        let count = usize::from(be16(head, 16));
        if count > ACK_RANGES_MAX || ranges.len() != count * 8 {
            return Err(Reject::Malformed("ranges of an ACK"));
        }
        Ok(Self {
            cum: Psn(be32(head, 0)),
            limit: Psn(be32(head, 4)),
            echo_ts: be32(head, 8),
            delay_us: be32(head, 12),
            ranges: Ranges::Wire(ranges),
        })
    }

    fn emit(&self, out: &mut [u8]) -> usize {
        put32(out, 0, self.cum.0);
        put32(out, 4, self.limit.0);
        put32(out, 8, self.echo_ts);
        put32(out, 12, self.delay_us);
        let mut at = ACK_LEN;
        let mut count = 0;
        for (start, end) in self.ranges() {
            put32(out, at, start.0);
            put32(out, at + 4, end.0);
            at += 8;
            count += 1;
        }
        put16(out, 16, count);
        put16(out, 18, 0);
        at
    }
}

/// The parameters that an end requests (RD), or its presence alone (UD).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Terms<'a> {
    /// Capabilities, a bit each; unknown ones are ignored.
    pub caps: u32,
    /// The first packet number.
    pub init_psn: Psn,
    /// Most packets in flight.
    pub window: u32,
    /// The longest datagram that this end takes, bytes of UDP payload.
    pub max_seg: u16,
    /// Inbound reads and atomics.
    pub ird: u16,
    /// Outbound reads and atomics.
    pub ord: u16,
    /// For the user, [`PRIVATE_MAX`] bytes at most.
    pub private: &'a [u8],
}

impl<'a> Terms<'a> {
    fn parse(octets: &'a [u8]) -> Result<Self, Reject> {
        let (head, private) = octets
            .split_at_checked(TERMS_LEN)
            .ok_or(Reject::Malformed("terms"))?;
        if usize::from(be16(head, 18)) != private.len() || private.len() > PRIVATE_MAX {
            return Err(Reject::Malformed("private data"));
        }
        Ok(Self {
            caps: be32(head, 0),
            init_psn: Psn(be32(head, 4)),
            window: be32(head, 8),
            max_seg: be16(head, 12),
            ird: be16(head, 14),
            ord: be16(head, 16),
            private,
        })
    }

    fn emit(&self, out: &mut [u8]) -> usize {
        let private = &self.private[..self.private.len().min(PRIVATE_MAX)];
        put32(out, 0, self.caps);
        put32(out, 4, self.init_psn.0);
        put32(out, 8, self.window);
        put16(out, 12, self.max_seg);
        put16(out, 14, self.ird);
        put16(out, 16, self.ord);
        put16(out, 18, u16::try_from(private.len()).unwrap_or(0));
        out[TERMS_LEN..TERMS_LEN + private.len()].copy_from_slice(private);
        TERMS_LEN + private.len()
    }
}

/// A HELLO: the start of a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello<'a> {
    /// The cookie that the other end issued. Without one the field is still on the wire, so that no
    /// reply to a hello without a cookie is longer than the hello.
    pub cookie: Option<Cookie>,
    /// The requested parameters.
    pub terms: Terms<'a>,
}

impl<'a> Hello<'a> {
    fn parse(octets: &'a [u8]) -> Result<Self, Reject> {
        let (cookie, terms) = octets
            .split_first_chunk::<COOKIE_LEN>()
            .ok_or(Reject::Malformed("HELLO"))?;
        Ok(Self {
            cookie: (*cookie != [0; COOKIE_LEN]).then_some(Cookie(*cookie)),
            terms: Terms::parse(terms)?,
        })
    }

    fn emit(&self, out: &mut [u8]) -> usize {
        let cookie = self.cookie.map_or([0; COOKIE_LEN], |cookie| cookie.0);
        out[..COOKIE_LEN].copy_from_slice(&cookie);
        COOKIE_LEN + self.terms.emit(&mut out[COOKIE_LEN..])
    }
}

/// Why a message was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NoticeCode {
    /// No receive is posted.
    Rnr,
    /// The receive is too small.
    TooLong,
    /// The tag is unknown, or not for this sender, this operation or this range.
    Access,
    /// The operation is not known here, or not allowed over this service.
    Unsupported,
    /// The receiver has no state of the sender, which has to repeat the handshake.
    UnknownPeer,
    /// A code of a later version.
    Other(u16),
}

impl NoticeCode {
    const fn parse(code: u16) -> Self {
        match code {
            1 => Self::Rnr,
            2 => Self::TooLong,
            3 => Self::Access,
            4 => Self::Unsupported,
            5 => Self::UnknownPeer,
            other => Self::Other(other),
        }
    }

    const fn emit(self) -> u16 {
        match self {
            Self::Rnr => 1,
            Self::TooLong => 2,
            Self::Access => 3,
            Self::Unsupported => 4,
            Self::UnknownPeer => 5,
            Self::Other(code) => code,
        }
    }
}

/// A message was refused; its number is in the shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notice {
    /// Why.
    pub code: NoticeCode,
    /// More about it: bytes that would have fitted, for [`NoticeCode::TooLong`]; else zero.
    pub detail: u32,
}

/// A receiver's report on one sender over an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rate {
    /// The interval, microseconds.
    pub interval_us: u32,
    /// Packets received.
    pub packets: u32,
    /// Bytes received.
    pub octets: u64,
    /// Packet numbers that did not come.
    pub lost: u32,
    /// Packets that came again.
    pub duplicate: u32,
    /// Packets that the network marked as congested.
    pub ce: u32,
    /// Packets dropped here for want of a buffer.
    pub no_buffer: u32,
    /// The rate that the receiver requests, kbit/s; 0 is no request.
    pub hint_kbps: u32,
}

impl Rate {
    fn parse(octets: &[u8]) -> Self {
        Self {
            interval_us: be32(octets, 0),
            packets: be32(octets, 4),
            octets: be64(octets, 8),
            lost: be32(octets, 16),
            duplicate: be32(octets, 20),
            ce: be32(octets, 24),
            no_buffer: be32(octets, 28),
            hint_kbps: be32(octets, 32),
        }
    }

    fn emit(&self, out: &mut [u8]) -> usize {
        put32(out, 0, self.interval_us);
        put32(out, 4, self.packets);
        put64(out, 8, self.octets);
        put32(out, 16, self.lost);
        put32(out, 20, self.duplicate);
        put32(out, 24, self.ce);
        put32(out, 28, self.no_buffer);
        put32(out, 32, self.hint_kbps);
        RATE_LEN
    }
}

/// The source forgets this peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Close {
    /// Why: 0 is in order.
    pub code: u16,
}

/// A probe, padded to the length that it states, or its acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// The prober's.
    pub token: u32,
    /// Bytes of the probe's UDP payload.
    pub size: u32,
}

impl Probe {
    fn parse(octets: &[u8]) -> Self {
        Self {
            token: be32(octets, 0),
            size: be32(octets, 4),
        }
    }

    fn emit(&self, out: &mut [u8]) -> usize {
        put32(out, 0, self.token);
        put32(out, 4, self.size);
        PROBE_LEN
    }
}

impl<'a> Body<'a> {
    pub(super) fn parse(shim: &Shim, ext: Ext<'a>, octets: &'a [u8]) -> Result<Self, Reject> {
        Ok(match shim.kind {
            Kind::Data => Self::Data(Segment::parse(shim, ext, octets)?),
            Kind::Ack => Self::Ack(Ack::parse(octets)?),
            Kind::Hello => Self::Hello(Hello::parse(octets)?),
            Kind::Cookie => {
                let cookie = octets.try_into().map_err(|_| Reject::Malformed("COOKIE"))?;
                Self::Cookie(Cookie(cookie))
            }
            Kind::Ready => Self::Ready(Terms::parse(octets)?),
            Kind::Notice => {
                exactly(octets, NOTICE_LEN, "NOTICE")?;
                Self::Notice(Notice {
                    code: NoticeCode::parse(be16(octets, 0)),
                    detail: be32(octets, 4),
                })
            }
            Kind::Rate => {
                exactly(octets, RATE_LEN, "RATE")?;
                Self::Rate(Rate::parse(octets))
            }
            Kind::Close => {
                exactly(octets, CLOSE_LEN, "CLOSE")?;
                Self::Close(Close {
                    code: be16(octets, 0),
                })
            }
            Kind::Probe => {
                let fixed = octets.len().min(PROBE_LEN);
                exactly(&octets[..fixed], PROBE_LEN, "PROBE")?;
                let probe = Probe::parse(octets);
                let size = SHIM_LEN + 4 * ext.len() + octets.len() + CRC_LEN;
                if probe.size as usize != size {
                    return Err(Reject::Malformed("size of a PROBE"));
                }
                Self::Probe(probe)
            }
            Kind::ProbeAck => {
                exactly(octets, PROBE_LEN, "PROBE_ACK")?;
                Self::ProbeAck(Probe::parse(octets))
            }
        })
    }

    /// Returns the type that the shim has to have.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Data(_) => Kind::Data,
            Self::Ack(_) => Kind::Ack,
            Self::Hello(_) => Kind::Hello,
            Self::Cookie(_) => Kind::Cookie,
            Self::Ready(_) => Kind::Ready,
            Self::Notice(_) => Kind::Notice,
            Self::Rate(_) => Kind::Rate,
            Self::Close(_) => Kind::Close,
            Self::Probe(_) => Kind::Probe,
            Self::ProbeAck(_) => Kind::ProbeAck,
        }
    }

    /// Writes a whole datagram, CRC included, to the start of `out`: [`CONTROL_MAX`] bytes are
    /// enough, a probe needs its size. `shim` is given this body's type. Returns its bytes: 0 for
    /// DATA, which is written with [`super::DataHeader`], and for a probe whose size cannot be.
    pub fn emit(&self, shim: &Shim, out: &mut [u8]) -> usize {
        let shim = Shim {
            kind: self.kind(),
            ..*shim
        };
        shim.emit(0, out);
        let (head, body) = out.split_at_mut(SHIM_LEN);
        let len = match self {
            Self::Data(_) => return 0,
            Self::Ack(ack) => ack.emit(body),
            Self::Hello(hello) => hello.emit(body),
            Self::Cookie(cookie) => {
                body[..COOKIE_LEN].copy_from_slice(&cookie.0);
                COOKIE_LEN
            }
            Self::Ready(terms) => terms.emit(body),
            Self::Notice(notice) => {
                put16(body, 0, notice.code.emit());
                put16(body, 2, 0);
                put32(body, 4, notice.detail);
                NOTICE_LEN
            }
            Self::Rate(rate) => rate.emit(body),
            Self::Close(close) => {
                put16(body, 0, close.code);
                put16(body, 2, 0);
                CLOSE_LEN
            }
            Self::Probe(probe) => {
                let fixed = probe.emit(body);
                let len = (probe.size as usize).wrapping_sub(head.len() + CRC_LEN);
                let Some(padding) = body.get_mut(fixed..len) else {
                    return 0;
                };
                padding.fill(0);
                len
            }
            Self::ProbeAck(probe) => probe.emit(body),
        };
        let covered = SHIM_LEN + len;
        seal(out, covered)
    }
}

fn exactly(octets: &[u8], len: usize, what: &'static str) -> Result<(), Reject> {
    if octets.len() == len {
        Ok(())
    } else {
        Err(Reject::Malformed(what))
    }
}

/// Appends the CRC to the `len` bytes at the start of `out`; returns the bytes of the whole.
fn seal(out: &mut [u8], len: usize) -> usize {
    let mut crc = Crc32c::new();
    crc.update(&out[..len]);
    out[len..len + CRC_LEN].copy_from_slice(&crc.to_wire());
    len + CRC_LEN
}
