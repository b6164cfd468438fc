//! Ancillary data: segment size or source address on the way out; segment size, time of arrival,
//! ECN mark and destination on the way in.
//!
//! Layout (`cmsg(3)`, 64-bit Linux): records of a header {length: usize, level: int, type: int} and
//! data, each record padded to the size of a `usize`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Why a datagram was not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undelivered {
    /// It is too long for a link of the path, which takes IP packets of `mtu` bytes; 0 if the
    /// network does not report it.
    TooLong {
        /// Bytes of an IP packet.
        mtu: u32,
    },
    /// The port is closed.
    Refused,
    /// Anything else, as the system's number.
    Other(i32),
}

/// One `UDP_SEGMENT` record, ready to be sent.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct SegmentSize {
    header: libc::cmsghdr,
    segment_bytes: u16,
    padding: [u8; PADDING],
}

const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
const ALIGN: usize = size_of::<usize>();
const PADDING: usize = ALIGN - size_of::<u16>();
const _: () = assert!(HEADER_BYTES.is_multiple_of(ALIGN));
const _: () = assert!(size_of::<SegmentSize>() == HEADER_BYTES + ALIGN);

impl SegmentSize {
    pub(super) const fn new(segment_bytes: u16) -> Self {
        Self {
            header: libc::cmsghdr {
                cmsg_len: HEADER_BYTES + size_of::<u16>(),
                cmsg_level: libc::SOL_UDP,
                cmsg_type: libc::UDP_SEGMENT,
            },
            segment_bytes,
            padding: [0; PADDING],
        }
    }
}

/// One record that names the address a packet is to come from, ready to be sent.
#[derive(Clone, Copy)]
pub(super) enum SourceAddress {
    V4(Source<libc::in_pktinfo>),
    V6(Source<libc::in6_pktinfo>),
}

/// A header and what follows it. Both kinds of `pktinfo` leave four bytes to the next multiple of a
/// `usize`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Source<T> {
    header: libc::cmsghdr,
    info: T,
    padding: [u8; 4],
}

const _: () = assert!(size_of::<Source<libc::in_pktinfo>>().is_multiple_of(ALIGN));
const _: () = assert!(size_of::<Source<libc::in6_pktinfo>>().is_multiple_of(ALIGN));

impl SourceAddress {
    pub(super) fn new(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => {
                let info = libc::in_pktinfo {
                    ipi_ifindex: 0,
                    ipi_spec_dst: libc::in_addr {
                        s_addr: u32::from_ne_bytes(v4.ip().octets()),
                    },
                    ipi_addr: libc::in_addr { s_addr: 0 },
                };
                Self::V4(Source::new(libc::IPPROTO_IP, libc::IP_PKTINFO, info))
            }
            SocketAddr::V6(v6) => {
                let info = libc::in6_pktinfo {
                    ipi6_addr: libc::in6_addr {
                        s6_addr: v6.ip().octets(),
                    },
                    ipi6_ifindex: v6.scope_id(),
                };
                Self::V6(Source::new(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info))
            }
        }
    }
}

/// Both records: segment size, then source address.
#[derive(Clone, Copy)]
pub(super) enum SegmentSource {
    V4(Both<libc::in_pktinfo>),
    V6(Both<libc::in6_pktinfo>),
}

/// See [`SegmentSource`]. Each part is a multiple of the alignment long, so there is nothing
/// between them.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Both<T> {
    segment: SegmentSize,
    source: Source<T>,
}

const _: () = assert!(
    size_of::<Both<libc::in6_pktinfo>>()
        == size_of::<SegmentSize>() + size_of::<Source<libc::in6_pktinfo>>()
);

impl SegmentSource {
    pub(super) fn new(segment: SegmentSize, source: SourceAddress) -> Self {
        match source {
            SourceAddress::V4(source) => Self::V4(Both { segment, source }),
            SourceAddress::V6(source) => Self::V6(Both { segment, source }),
        }
    }
}

impl<T> Source<T> {
    fn new(level: libc::c_int, kind: libc::c_int, info: T) -> Self {
        Self {
            header: libc::cmsghdr {
                cmsg_len: HEADER_BYTES + size_of::<T>(),
                cmsg_level: level,
                cmsg_type: kind,
            },
            info,
            padding: [0; 4],
        }
    }
}

/// Space for the kernel's ancillary data of one arrival: time (32 bytes), segment size (24), two
/// kinds of ECN mark (24 each), destination (40); or, without a segment size, about one error (64).
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct ControlBuffer(pub(super) [u8; CONTROL_BYTES]);

const CONTROL_BYTES: usize = 208;

impl ControlBuffer {
    pub(super) const EMPTY: Self = Self([0; CONTROL_BYTES]);
}

/// The kernel's ancillary data of one arrival.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ArrivalNotes {
    /// Size of the datagrams that were joined (the last may be smaller); none when there is only
    /// one.
    pub(super) segment_bytes: Option<usize>,
    /// Wall-clock time, nanoseconds since 1970.
    pub(super) realtime_ns: Option<u64>,
    /// The two ECN bits (RFC 3168 §5).
    pub(super) ecn: u8,
    /// Which of our addresses it was sent to; without a port.
    pub(super) to: Option<SocketAddr>,
}

impl ArrivalNotes {
    /// Reads the records in `bytes`; unknown and cut-off ones are passed over.
    pub(super) fn parse(mut bytes: &[u8]) -> Self {
        let mut notes = Self::default();
        while let Some((level, kind, data, rest)) = next_record(bytes) {
            notes.note(level, kind, data);
            bytes = rest;
        }
        notes
    }

    fn note(&mut self, level: i32, kind: i32, data: &[u8]) {
        match (level, kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                self.segment_bytes = int(data).and_then(|size| usize::try_from(size).ok());
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => self.realtime_ns = timespec_ns(data),
            // The kernel sends an IPv4 mark as one byte and an IPv6 one as an int.
            (libc::IPPROTO_IP, libc::IP_TOS) => self.ecn = data.first().map_or(0, |tos| tos & 0b11),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                self.ecn = int(data).map_or(0, |class| class.to_le_bytes()[0] & 0b11);
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => self.to = destination_v4(data),
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => self.to = destination_v6(data),
            _ => {}
        }
    }
}

/// The error in the records, and whether this host reported it.
pub(super) fn error_of(mut bytes: &[u8]) -> Option<(Undelivered, bool)> {
    while let Some((level, kind, data, rest)) = next_record(bytes) {
        if let (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) =
            (level, kind)
        {
            return undelivered(data);
        }
        bytes = rest;
    }
    None
}

/// Of `sock_extended_err` {number 4, origin 1, type 1, code 1, padding 1, information 4, data 4}:
/// number, origin, information.
fn undelivered(data: &[u8]) -> Option<(Undelivered, bool)> {
    let errno = int(data)?;
    let local = *data.get(4)? == libc::SO_EE_ORIGIN_LOCAL;
    let mtu = u32::from_ne_bytes(*data.get(8..)?.first_chunk()?);
    let why = match errno {
        libc::EMSGSIZE => Undelivered::TooLong { mtu },
        libc::ECONNREFUSED => Undelivered::Refused,
        other => Undelivered::Other(other),
    };
    Some((why, local))
}

/// Level, type and data of the first record, and what follows it.
fn next_record(bytes: &[u8]) -> Option<(i32, i32, &[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<{ size_of::<usize>() }>()?;
    let (level, rest) = rest.split_first_chunk::<4>()?;
    let (kind, _) = rest.split_first_chunk::<4>()?;
    let len = usize::from_ne_bytes(*len);
    let data = bytes.get(HEADER_BYTES..len)?;
    let next = bytes.get(len.next_multiple_of(ALIGN)..).unwrap_or(&[]);
    Some((
        i32::from_ne_bytes(*level),
        i32::from_ne_bytes(*kind),
        data,
        next,
    ))
}

fn int(data: &[u8]) -> Option<i32> {
    data.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes))
}

/// Of `in_pktinfo` {interface, address to answer from, address in the header}: the second, which is
/// never a broadcast address.
fn destination_v4(data: &[u8]) -> Option<SocketAddr> {
    let (_interface, rest) = data.split_first_chunk::<4>()?;
    let ip = Ipv4Addr::from(*rest.first_chunk::<4>()?);
    Some((ip, 0).into())
}

/// Of `in6_pktinfo` {address, interface}. Returns an IPv4-mapped address as IPv4, and none for a
/// group, which cannot be a source address.
fn destination_v6(data: &[u8]) -> Option<SocketAddr> {
    let (ip, rest) = data.split_first_chunk::<16>()?;
    let ip = Ipv6Addr::from(*ip);
    if let Some(ip) = ip.to_ipv4_mapped() {
        return Some((ip, 0).into());
    }
    // Only a link-local address needs a scope.
    let scope = if ip.is_unicast_link_local() {
        u32::from_ne_bytes(*rest.first_chunk()?)
    } else {
        0
    };
    (!ip.is_multicast()).then(|| SocketAddrV6::new(ip, 0, 0, scope).into())
}

fn timespec_ns(data: &[u8]) -> Option<u64> {
    let (seconds, nanos) = data.split_first_chunk::<8>()?;
    let seconds = u64::try_from(i64::from_ne_bytes(*seconds)).ok()?;
    let nanos = u64::try_from(i64::from_ne_bytes(*nanos.first_chunk()?)).ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let mut out = (HEADER_BYTES + data.len()).to_ne_bytes().to_vec();
        out.extend(level.to_ne_bytes());
        out.extend(kind.to_ne_bytes());
        out.extend(data);
        out.resize(out.len().next_multiple_of(ALIGN), 0);
        out
    }

    #[test]
    fn all_known_records_are_read_in_any_order() {
        let mut stamp = 7_i64.to_ne_bytes().to_vec();
        stamp.extend(5_i64.to_ne_bytes());
        let pktinfo = [2, 0, 0, 0, 192, 0, 2, 7, 192, 0, 2, 255];
        let records = [
            record(libc::IPPROTO_IP, libc::IP_TOS, &[0xff]),
            record(libc::SOL_UDP, libc::UDP_GRO, &1472_i32.to_ne_bytes()),
            record(9999, 1, b"unknown"),
            record(libc::IPPROTO_IP, libc::IP_PKTINFO, &pktinfo),
            record(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &stamp),
        ];
        let expected = ArrivalNotes {
            segment_bytes: Some(1472),
            realtime_ns: Some(7_000_000_005),
            ecn: 3,
            to: Some("192.0.2.7:0".parse().unwrap()),
        };
        assert_eq!(ArrivalNotes::parse(&records.concat()), expected);
        let backwards: Vec<u8> = records.iter().rev().flatten().copied().collect();
        assert_eq!(ArrivalNotes::parse(&backwards), expected);
    }

    #[test]
    fn ipv6_class_gives_the_mark() {
        let class = record(
            libc::IPPROTO_IPV6,
            libc::IPV6_TCLASS,
            &0b1010_1010_i32.to_ne_bytes(),
        );
        assert_eq!(ArrivalNotes::parse(&class).ecn, 2);
    }

    #[test]
    fn ipv6_destination_keeps_its_link_and_loses_its_clothes() {
        let to = |ip: &str| {
            let ip: Ipv6Addr = ip.parse().unwrap();
            let mut data = ip.octets().to_vec();
            data.extend(3_u32.to_ne_bytes());
            let record = record(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &data);
            ArrivalNotes::parse(&record).to.map(|to| to.to_string())
        };
        assert_eq!(to("2001:db8::1").as_deref(), Some("[2001:db8::1]:0"));
        assert_eq!(to("fe80::1").as_deref(), Some("[fe80::1%3]:0"));
        assert_eq!(to("::ffff:192.0.2.1").as_deref(), Some("192.0.2.1:0"));
        assert_eq!(to("ff02::1"), None);
    }

    #[test]
    fn an_error_has_its_number_and_the_length_that_would_do() {
        let data = |errno: i32, origin: u8, info: u32| {
            let head = [errno.to_ne_bytes(), [origin, 3, 4, 0]].concat();
            [head, info.to_ne_bytes().to_vec(), vec![0; 4 + 16]].concat()
        };
        let tos = record(libc::IPPROTO_IP, libc::IP_TOS, &[0]);
        let too_long = record(libc::IPPROTO_IP, libc::IP_RECVERR, &data(90, 2, 1_400));
        let refused = record(libc::IPPROTO_IPV6, libc::IPV6_RECVERR, &data(111, 3, 0));
        let no_route = record(libc::IPPROTO_IP, libc::IP_RECVERR, &data(113, 1, 0));
        let both = [tos.clone(), too_long].concat();
        let too_long = Undelivered::TooLong { mtu: 1_400 };
        assert_eq!(error_of(&both), Some((too_long, false)));
        assert_eq!(error_of(&refused), Some((Undelivered::Refused, false)));
        assert_eq!(error_of(&no_route), Some((Undelivered::Other(113), true)));
        assert_eq!(error_of(&tos), None);
        for len in 0..both.len() {
            error_of(&both[..len]);
        }
    }

    #[test]
    fn broken_records_end_the_reading_without_a_panic() {
        let whole = record(libc::SOL_UDP, libc::UDP_GRO, &1472_i32.to_ne_bytes());
        for (level, kind) in [
            (libc::SOL_UDP, libc::UDP_GRO),
            (libc::IPPROTO_IP, libc::IP_PKTINFO),
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO),
        ] {
            for len in 0..20 {
                let short = record(level, kind, &[0xfe; 20][..len]);
                for cut in 0..short.len() {
                    let _ = ArrivalNotes::parse(&short[..cut]);
                }
            }
        }
        for len in [0_usize, 1, HEADER_BYTES - 1, usize::MAX, usize::MAX - 7] {
            let mut lying = whole.clone();
            lying[..ALIGN].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(ArrivalNotes::parse(&lying), ArrivalNotes::default());
        }
    }
}
