//! Where a session goes, and what each segment may use: hops, protocols with their parameters,
//! endpoints.

use super::ParseError;
use super::codec::{CRITICAL, Reader, Writer, padding};

/// Most hops of a session (part B3, limits).
pub const HOPS_MAX: usize = 16;
/// Most protocols offered for a segment.
const OFFERS_MAX: usize = 16;
/// Most bytes of a name.
const NAME_MAX: usize = 255;
/// Most bytes of the name of a congestion control.
const CC_MAX: usize = 32;

pub(super) const TLV_HOP: u16 = 1;
pub(super) const TLV_PROTO: u16 = 2;
pub(super) const TLV_ENDPOINT: u16 = 5;

/// The data-channel protocol of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
pub enum Proto {
    /// TCP streams.
    Tcp = 1,
    /// Paced datagrams with reliability of our own.
    Udp = 2,
    /// UDT.
    Udt = 3,
    /// iWARP over TCP.
    IwarpTcp = 4,
    /// Unreliable datagrams of iWARP.
    IwarpUd = 5,
    /// Reliable datagrams of iWARP.
    IwarpRd = 6,
    /// iWARP over UDT.
    IwarpUdt = 7,
    /// Reliable connections of an RDMA device.
    VerbsRc = 8,
    /// TCP streams within TLS.
    TlsTcp = 9,
}

impl Proto {
    const ALL: [Self; 9] = [
        Self::Tcp,
        Self::Udp,
        Self::Udt,
        Self::IwarpTcp,
        Self::IwarpUd,
        Self::IwarpRd,
        Self::IwarpUdt,
        Self::VerbsRc,
        Self::TlsTcp,
    ];

    /// Returns the number on the wire.
    #[must_use]
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// `None` is a protocol of the future: an offer of it is passed over.
    #[must_use]
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|proto| proto.code() == code)
    }
}

macro_rules! params {
    ($($name:ident: $ty:ident = $code:literal, $text:literal;)*) => {
        /// Parameters of a protocol. An absent one is left to the other end.
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        pub struct Params {
            $(#[doc = $text] pub $name: Option<$ty>,)*
            /// Name of the congestion control, at most 32 bytes.
            pub cc: Option<String>,
        }

        impl Params {
            pub(super) fn emit(&self, out: &mut Writer) {
                $(if let Some(value) = self.$name {
                    out.tlv($code, |out| { out.$ty(value); });
                })*
                if let Some(cc) = &self.cc {
                    out.tlv(0x26, |out| { out.bytes(cut(cc, CC_MAX).as_bytes()); });
                }
            }

            /// Takes the elements that are parameters; the others go to `other`.
            pub(super) fn parse<'a>(
                reader: &mut Reader<'a>,
                mut other: impl FnMut(super::codec::Tlv<'a>) -> Result<(), ParseError>,
            ) -> Result<Self, ParseError> {
                let mut params = Self::default();
                while let Some(mut tlv) = reader.tlv()? {
                    match tlv.kind {
                        $($code => {
                            params.$name = Some(tlv.value.$ty()?);
                            tlv.value.end()?;
                        })*
                        0x26 => params.cc = Some(tlv.value.text(CC_MAX)?),
                        _ => other(tlv)?,
                    }
                }
                Ok(params)
            }
        }
    };
}

params! {
    max_msg: u32 = 0x20, "Largest message, bytes.";
    mss: u32 = 0x21, "Largest segment, bytes.";
    sndbuf: u64 = 0x22, "Send buffer, bytes.";
    rcvbuf: u64 = 0x23, "Receive buffer, bytes.";
    streams: u16 = 0x24, "Parallel streams.";
    rate_bps: u64 = 0x25, "Rate not to be exceeded, bits per second.";
    burst_bytes: u64 = 0x34, "Octets that a policer on the way lets pass beyond the rate.";
    slab_bytes: u64 = 0x27, "Most bytes of a slab.";
    slab_regions: u16 = 0x28, "Regions of the producer's ring.";
    ord: u16 = 0x29, "Reads that the consumer may have outstanding.";
    ird: u16 = 0x2a, "Reads that the producer can answer at a time.";
    crc: u8 = 0x2b, "Checksums of records: 0 none, 1 from segment to segment, 2 from end to end.";
    sec: u8 = 0x2c, "Protection: 0 none, 1 integrity, 2 secrecy.";
    qpn: u32 = 0x2d, "Queue pair number.";
    epoch: u32 = 0x2e, "Generation of the channel.";
    push: u8 = 0x37, "Who moves bytes: 0 or nothing the consumer by reading, 1 the producer by writing.";
}

impl Params {
    /// Which end moves the bytes.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self.push {
            Some(1) => Mode::Push,
            _ => Mode::Pull,
        }
    }

    /// Combines the parameters of both ends (part B2): the lesser of numbers, the stricter of
    /// checks, and this end's congestion control if it has one, as the receiver of the offer.
    #[must_use]
    pub fn agree(&self, offer: &Self) -> Self {
        fn least<T: Ord>(mine: Option<T>, theirs: Option<T>) -> Option<T> {
            match (mine, theirs) {
                (Some(mine), Some(theirs)) => Some(mine.min(theirs)),
                (mine, theirs) => mine.or(theirs),
            }
        }
        Self {
            max_msg: least(self.max_msg, offer.max_msg),
            mss: least(self.mss, offer.mss),
            sndbuf: least(self.sndbuf, offer.sndbuf),
            rcvbuf: least(self.rcvbuf, offer.rcvbuf),
            streams: least(self.streams, offer.streams),
            rate_bps: least(self.rate_bps, offer.rate_bps),
            burst_bytes: least(self.burst_bytes, offer.burst_bytes),
            slab_bytes: least(self.slab_bytes, offer.slab_bytes),
            slab_regions: least(self.slab_regions, offer.slab_regions),
            ord: least(self.ord, offer.ord),
            ird: least(self.ird, offer.ird),
            crc: self.crc.max(offer.crc),
            sec: self.sec.max(offer.sec),
            qpn: offer.qpn,
            epoch: offer.epoch,
            // Only where both want it.
            push: self
                .push
                .zip(offer.push)
                .map(|(mine, theirs)| mine.min(theirs)),
            cc: self.cc.clone().or_else(|| offer.cc.clone()),
        }
    }
}

/// A protocol that a segment may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtoOffer {
    /// Which.
    pub proto: Proto,
    /// The higher, the rather.
    pub preference: u8,
    /// Its parameters.
    pub params: Params,
}

impl ProtoOffer {
    pub(super) fn emit(&self, out: &mut Writer) {
        out.tlv(CRITICAL | TLV_PROTO, |out| {
            out.u16(self.proto.code()).u8(self.preference).u8(0);
            self.params.emit(out);
        });
    }

    /// `None` is a protocol that is not known here.
    pub(super) fn parse(value: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        let (proto, preference, _flags) = (value.u16()?, value.u8()?, value.u8()?);
        let params = Params::parse(value, |tlv| tlv.unknown())?;
        Ok(Proto::from_code(proto).map(|proto| Self {
            proto,
            preference,
            params,
        }))
    }
}

/// Where something is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// IPv4.
    V4([u8; 4]),
    /// IPv6.
    V6([u8; 16]),
    /// A host's name, at most 255 bytes.
    Name(String),
    /// A uniform or human-readable resource name, at most 255 bytes.
    Urn(String),
    /// A switch (OpenFlow).
    Dpid([u8; 8]),
}

impl Address {
    const fn kind(&self) -> u8 {
        match self {
            Self::V4(_) => 1,
            Self::V6(_) => 2,
            Self::Name(_) => 3,
            Self::Urn(_) => 4,
            Self::Dpid(_) => 5,
        }
    }

    fn octets(&self) -> &[u8] {
        match self {
            Self::V4(octets) => octets,
            Self::V6(octets) => octets,
            Self::Name(name) | Self::Urn(name) => cut(name, NAME_MAX).as_bytes(),
            Self::Dpid(octets) => octets,
        }
    }

    fn parse(kind: u8, octets: &[u8]) -> Result<Self, ParseError> {
        const WRONG: ParseError = ParseError::Value("length of an address");
        let name = || {
            if octets.is_empty() || octets.len() > NAME_MAX {
                return Err(WRONG);
            }
            let name = std::str::from_utf8(octets).map_err(|_| ParseError::Text)?;
            Ok(name.to_owned())
        };
        match kind {
            1 => octets.try_into().map(Self::V4).map_err(|_| WRONG),
            2 => octets.try_into().map(Self::V6).map_err(|_| WRONG),
            3 => name().map(Self::Name),
            4 => name().map(Self::Urn),
            5 => octets.try_into().map(Self::Dpid).map_err(|_| WRONG),
            _ => Err(ParseError::Unknown {
                what: "kind of address",
                code: u16::from(kind),
            }),
        }
    }
}

/// An address with its port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Where.
    pub address: Address,
    /// TCP or UDP port; 0 where there is none.
    pub port: u16,
}

impl Endpoint {
    pub(super) fn emit(&self, out: &mut Writer) {
        out.tlv(CRITICAL | TLV_ENDPOINT, |out| self.emit_value(out, 0, 0));
    }

    fn emit_value(&self, out: &mut Writer, depth: u8, flags: u8) {
        let octets = self.address.octets();
        let len = u16::try_from(octets.len()).unwrap_or(u16::MAX);
        out.u8(depth).u8(flags).u16(self.port);
        out.u8(self.address.kind()).u8(0).u16(len);
        out.bytes(octets).bytes(&[0; 3][..padding(octets.len())]);
    }

    /// Depth, flags, and where.
    fn parse_value(value: &mut Reader<'_>) -> Result<(u8, u8, Self), ParseError> {
        let (depth, flags, port) = (value.u8()?, value.u8()?, value.u16()?);
        let (kind, _zero, len) = (value.u8()?, value.u8()?, usize::from(value.u16()?));
        let address = Address::parse(kind, value.bytes(len)?)?;
        value.bytes(padding(len))?;
        Ok((depth, flags, Self { address, port }))
    }

    pub(super) fn parse(value: &mut Reader<'_>) -> Result<Self, ParseError> {
        let (_, _, endpoint) = Self::parse_value(value)?;
        value.end()?;
        Ok(endpoint)
    }
}

/// Which end moves the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The consumer reads (the default).
    Pull,
    /// The producer writes where the consumer allows it.
    Push,
}

impl Mode {
    /// Round trips for which a byte occupies the producer's ring after its slab is sealed. Pull:
    /// announcement, read, answer, acknowledgement, half a round trip each. Push: write,
    /// acknowledgement.
    #[must_use]
    pub const fn round_trips(self) -> u64 {
        match self {
            Self::Pull => 2,
            Self::Push => 1,
        }
    }
}

/// The kind of a hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct HopFlags {
    /// A gateway, which goes on to the next hop.
    pub gateway: bool,
    /// May be left out if it cannot be reached.
    pub optional: bool,
    /// The terminus.
    pub last: bool,
}

/// A hop of the session, and the protocols of the segment to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// Depth of version 1's tree in pre-order; a list counts 0, 1, 2…
    pub depth: u8,
    /// Its kind.
    pub flags: HopFlags,
    /// Where it is.
    pub endpoint: Endpoint,
    /// Protocols for the segment to it; an empty list leaves the choice to the hop.
    pub offers: Vec<ProtoOffer>,
}

impl Hop {
    pub(super) fn emit(&self, out: &mut Writer) {
        let HopFlags {
            gateway,
            optional,
            last,
        } = self.flags;
        let flags = u8::from(gateway) | u8::from(optional) << 1 | u8::from(last) << 2;
        out.tlv(CRITICAL | TLV_HOP, |out| {
            self.endpoint.emit_value(out, self.depth, flags);
            self.offers
                .iter()
                .take(OFFERS_MAX)
                .for_each(|o| o.emit(out));
        });
    }

    pub(super) fn parse(value: &mut Reader<'_>) -> Result<Self, ParseError> {
        let (depth, flags, endpoint) = Endpoint::parse_value(value)?;
        let mut offers = Vec::new();
        while let Some(mut tlv) = value.tlv()? {
            if tlv.kind != TLV_PROTO {
                tlv.unknown()?;
                continue;
            }
            if offers.len() == OFFERS_MAX {
                return Err(ParseError::TooMany("protocols of a hop"));
            }
            offers.extend(ProtoOffer::parse(&mut tlv.value)?);
        }
        let flags = HopFlags {
            gateway: flags & 1 != 0,
            optional: flags & 2 != 0,
            last: flags & 4 != 0,
        };
        Ok(Self {
            depth,
            flags,
            endpoint,
            offers,
        })
    }
}

/// The longest beginning of `text` of at most `most` bytes.
pub(crate) fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
