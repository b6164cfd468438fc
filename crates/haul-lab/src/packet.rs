//! Super-packets as they come from a TUN device, and how to cut them.
//!
//! A [`Packet`] is checked once, in [`Packet::parse`]; after that it knows how many wire packets it
//! stands for, how large each is, and how to write the headers of any run of them, as the kernel's
//! own segmentation would have (`tcp_gso_segment`, `__udp_gso_segment`): lengths, IPv4
//! identification and header checksum, TCP sequence number and flags, UDP length, and the
//! pseudo-header sum that checksum offload leaves in the transport's checksum field. Offsets into a
//! packet count from its IP header; the bytes of a packet begin with the [`VnetHeader`].

mod checksum;

use std::ops::Range;

use haul_io::tun::{VNET_HEADER_LEN, VnetHeader};

use checksum::Sum;

/// The longest headers that can be rewritten: virtio header, IP with options or extensions, TCP
/// with options.
pub(crate) const HEAD_MAX: usize = 256;

const TCP: u8 = 6;
const UDP: u8 = 17;
const IPV4_HEADER_LEN: usize = 20;
const IPV6_HEADER_LEN: usize = 40;
const TCP_HEADER_LEN: usize = 20;
const UDP_HEADER_LEN: usize = 8;
const TCP_FLAGS_AT: usize = 13;
const FIN_AND_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// A packet that has been checked. It does not own its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    vnet: VnetHeader,
    version: Version,
    /// `IP header < transport_at <= payload_at <= len`
    transport_at: usize,
    payload_at: usize,
    len: usize,
    /// Payload bytes of each segment but the last; `None` if the packet is a wire packet already.
    segment_bytes: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V4,
    V6,
}

/// Why bytes are not a packet that can be emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// Shorter than its headers.
    Short,
    /// Neither IPv4 nor IPv6.
    Version,
    /// The virtio header asks for something that the packet is not.
    Offload,
}

/// The content to send for a run of segments: these headers, then these bytes of the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Bytes of headers written, the virtio header included.
    pub(crate) head_len: usize,
    /// Which of the packet's bytes follow, counted from the virtio header.
    pub(crate) payload: Range<usize>,
}

impl Packet {
    /// Checks the data of a TUN device: virtio header and IP packet.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (vnet, ip) = bytes
            .split_first_chunk::<VNET_HEADER_LEN>()
            .ok_or(Malformed::Short)?;
        let vnet = VnetHeader::parse(vnet);
        let (version, ip_header_len, protocol) = parse_ip(ip)?;
        if vnet.flags & VnetHeader::NEEDS_CHECKSUM != 0 {
            let field_at = usize::from(vnet.checksum_start) + usize::from(vnet.checksum_offset);
            if usize::from(vnet.checksum_start) < ip_header_len || field_at + 2 > ip.len() {
                return Err(Malformed::Offload);
            }
        }
        let packet = |transport_at, payload_at, segment_bytes| Self {
            vnet,
            version,
            transport_at,
            payload_at,
            len: ip.len(),
            segment_bytes,
        };
        if vnet.gso_type == VnetHeader::GSO_NONE {
            let payload_at = payload_start(ip, ip_header_len, protocol).unwrap_or(ip_header_len);
            return Ok(packet(ip_header_len, payload_at, None));
        }
        let transport_at = usize::from(vnet.checksum_start);
        let protocol = offloaded_protocol(&vnet, version)?;
        let payload_at = payload_start(ip, transport_at, Some(protocol)).ok_or(Malformed::Short)?;
        if vnet.gso_size == 0 || VNET_HEADER_LEN + payload_at > HEAD_MAX {
            return Err(Malformed::Offload);
        }
        let segment_bytes = usize::from(vnet.gso_size);
        let whole = ip.len() - payload_at <= segment_bytes;
        Ok(packet(
            transport_at,
            payload_at,
            (!whole).then_some(segment_bytes),
        ))
    }

    /// How many wire packets this stands for; at least 1, and at most 65535.
    pub(crate) fn segments(&self) -> u16 {
        let segments = self
            .segment_bytes
            .map_or(1, |size| (self.len - self.payload_at).div_ceil(size));
        u16::try_from(segments).unwrap_or(u16::MAX)
    }

    /// Bytes of one wire packet, IP header included.
    pub(crate) fn wire_bytes(&self, segment: u16) -> u32 {
        let bytes = match self.segment_bytes {
            None => self.len,
            Some(_) => self.payload_at + self.payload_of(segment, segment + 1).len(),
        };
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// Writes the headers of the segments from `first` up to `end` into `head`, as one packet.
    /// `bytes` are those that were parsed.
    pub(crate) fn cut(&self, bytes: &[u8], first: u16, end: u16, head: &mut [u8; HEAD_MAX]) -> Cut {
        let payload = self.payload_of(first, end);
        let Some(segment_bytes) = self.segment_bytes else {
            head[..VNET_HEADER_LEN].copy_from_slice(&bytes[..VNET_HEADER_LEN]);
            return Cut {
                head_len: VNET_HEADER_LEN,
                payload: VNET_HEADER_LEN..VNET_HEADER_LEN + self.len,
            };
        };
        let ip = &bytes[VNET_HEADER_LEN..];
        let (vnet_head, ip_head) = head.split_at_mut(VNET_HEADER_LEN);
        let ip_head = &mut ip_head[..self.payload_at];
        ip_head.copy_from_slice(&ip[..self.payload_at]);

        let mut vnet = self.vnet;
        if payload.len() <= segment_bytes {
            (vnet.gso_type, vnet.gso_size) = (VnetHeader::GSO_NONE, 0);
        } else if first > 0 {
            vnet.gso_type &= !VnetHeader::GSO_ECN;
        }
        vnet_head.copy_from_slice(&vnet.emit());
        self.write_ip(ip_head, first, payload.len());
        self.write_transport(ip_head, first, end, payload.len());

        let at = VNET_HEADER_LEN + payload.start;
        Cut {
            head_len: VNET_HEADER_LEN + self.payload_at,
            payload: at..at + payload.len(),
        }
    }

    /// Damages one wire packet, complete in `bytes`, by turning over one bit that `random` chooses.
    ///
    /// With `undetected` the damage is in the payload and the packet is marked as verified for the
    /// receiving kernel, as if the packet had been damaged before it was computed; a packet without
    /// payload stays as it is. Otherwise the checksum is completed first, so that the receiving
    /// kernel finds the damage, unless the packet had none.
    pub(crate) fn damage(bytes: &mut [u8], random: u64, undetected: bool) {
        let Ok(packet) = Self::parse(bytes) else {
            return;
        };
        let ip = &mut bytes[VNET_HEADER_LEN..];
        let has_payload = packet.payload_at < packet.len;
        if undetected && !has_payload {
            return;
        }
        let from = if has_payload {
            packet.payload_at
        } else {
            packet.transport_at
        };
        let mut vnet = packet.vnet;
        if undetected {
            if vnet.flags & VnetHeader::NEEDS_CHECKSUM == 0 {
                vnet.flags |= VnetHeader::CHECKSUM_VALID;
            }
        } else {
            if vnet.flags & VnetHeader::NEEDS_CHECKSUM != 0 {
                complete_checksum(ip, &vnet);
            }
            vnet = VnetHeader::default();
        }
        flip(&mut ip[from..], random);
        bytes[..VNET_HEADER_LEN].copy_from_slice(&vnet.emit());
    }

    /// Marks a packet, complete in `bytes`, with congestion experienced (CE), if it is ECN-capable
    /// (RFC 3168 §5).
    pub(crate) fn mark_congestion(bytes: &mut [u8]) {
        const ECN: u8 = 0b11;
        let Ok(packet) = Self::parse(bytes) else {
            return;
        };
        let ip = &mut bytes[VNET_HEADER_LEN..];
        match packet.version {
            Version::V4 if ip[1] & ECN != 0 => {
                ip[1] |= ECN;
                write_ipv4_checksum(ip);
            }
            // The traffic class lies across the first two bytes: version, class, class, flow label.
            Version::V6 if ip[1] >> 4 & ECN != 0 => ip[1] |= ECN << 4,
            Version::V4 | Version::V6 => {}
        }
    }

    /// The payload of the segments from `first` up to `end`, counted from the IP header.
    fn payload_of(&self, first: u16, end: u16) -> Range<usize> {
        let Some(size) = self.segment_bytes else {
            return self.payload_at..self.len;
        };
        let at = |segment: u16| (self.payload_at + usize::from(segment) * size).min(self.len);
        at(first)..at(end)
    }

    fn write_ip(&self, head: &mut [u8], first: u16, payload_len: usize) {
        let total = self.payload_at + payload_len;
        match self.version {
            Version::V4 => {
                put_u16(head, 2, low_u16(total));
                let id = u16::from_be_bytes([head[4], head[5]]).wrapping_add(first);
                put_u16(head, 4, id);
                write_ipv4_checksum(head);
            }
            Version::V6 => put_u16(head, 4, low_u16(total - IPV6_HEADER_LEN)),
        }
    }

    fn write_transport(&self, head: &mut [u8], first: u16, end: u16, payload_len: usize) {
        let transport_len = self.payload_at - self.transport_at + payload_len;
        let is_udp = self.is_udp();
        let pseudo = self.pseudo_header(head, if is_udp { UDP } else { TCP }, transport_len);
        let transport = &mut head[self.transport_at..];
        if is_udp {
            put_u16(transport, 4, low_u16(transport_len));
            put_u16(transport, 6, pseudo);
            return;
        }
        let offset = u32::from(first) * u32::from(self.vnet.gso_size);
        let sequence = u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]]);
        transport[4..8].copy_from_slice(&sequence.wrapping_add(offset).to_be_bytes());
        if end < self.segments() {
            transport[TCP_FLAGS_AT] &= !FIN_AND_PSH;
        }
        if first > 0 {
            transport[TCP_FLAGS_AT] &= !CWR;
        }
        put_u16(transport, 16, pseudo);
    }

    /// The pseudo-header sum that checksum offload expects in the checksum field (RFC 793 §3.1, RFC
    /// 8200 §8.1).
    fn pseudo_header(&self, head: &[u8], protocol: u8, transport_len: usize) -> u16 {
        let addresses = match self.version {
            Version::V4 => &head[12..20],
            Version::V6 => &head[8..40],
        };
        Sum::default()
            .add(addresses)
            .add(&[0, protocol])
            .add(&low_u16(transport_len).to_be_bytes())
            .folded()
    }

    fn is_udp(&self) -> bool {
        self.vnet.gso_type & !VnetHeader::GSO_ECN == VnetHeader::GSO_UDP_L4
    }
}

/// Version, length of the header, and the protocol behind it if it starts there: not in later
/// fragments, not behind extension headers.
fn parse_ip(ip: &[u8]) -> Result<(Version, usize, Option<u8>), Malformed> {
    match ip.first().ok_or(Malformed::Short)? >> 4 {
        4 => {
            let header_len = ipv4_header_len(ip);
            if header_len < IPV4_HEADER_LEN || ip.len() < header_len {
                return Err(Malformed::Short);
            }
            let is_fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0;
            Ok((Version::V4, header_len, (!is_fragment).then_some(ip[9])))
        }
        6 if ip.len() >= IPV6_HEADER_LEN => Ok((Version::V6, IPV6_HEADER_LEN, Some(ip[6]))),
        6 => Err(Malformed::Short),
        _ => Err(Malformed::Version),
    }
}

fn ipv4_header_len(ip: &[u8]) -> usize {
    usize::from(ip[0] & 0x0f) * 4
}

fn write_ipv4_checksum(ip: &mut [u8]) {
    put_u16(ip, 10, 0);
    let header_len = ipv4_header_len(ip);
    let sum = Sum::default().add(&ip[..header_len]).folded();
    put_u16(ip, 10, !sum);
}

/// The protocol of a super-packet by its virtio header.
fn offloaded_protocol(vnet: &VnetHeader, version: Version) -> Result<u8, Malformed> {
    let (protocol, checksum_offset) = match (vnet.gso_type & !VnetHeader::GSO_ECN, version) {
        (VnetHeader::GSO_TCPV4, Version::V4) | (VnetHeader::GSO_TCPV6, Version::V6) => (TCP, 16),
        (VnetHeader::GSO_UDP_L4, _) => (UDP, 6),
        _ => return Err(Malformed::Offload),
    };
    let complete = vnet.flags & VnetHeader::NEEDS_CHECKSUM == 0;
    if complete || vnet.checksum_offset != checksum_offset {
        return Err(Malformed::Offload);
    }
    Ok(protocol)
}

/// Where the payload behind a transport header begins, if that header is whole.
fn payload_start(ip: &[u8], transport_at: usize, protocol: Option<u8>) -> Option<usize> {
    let transport = ip.get(transport_at..)?;
    let header_len = match protocol? {
        TCP => usize::from(transport.get(12)? >> 4) * 4,
        _ => UDP_HEADER_LEN,
    };
    let least = if protocol == Some(TCP) {
        TCP_HEADER_LEN
    } else {
        UDP_HEADER_LEN
    };
    (header_len >= least && transport.len() >= header_len).then_some(transport_at + header_len)
}

/// Completes the checksum that offload has left.
fn complete_checksum(ip: &mut [u8], vnet: &VnetHeader) {
    let start = usize::from(vnet.checksum_start);
    let sum = !Sum::default().add(&ip[start..]).folded();
    // In UDP zero means that there is no checksum; in one's complement 0xffff is the same number.
    put_u16(
        ip,
        start + usize::from(vnet.checksum_offset),
        if sum == 0 { 0xffff } else { sum },
    );
}

fn flip(bytes: &mut [u8], random: u64) {
    if bytes.is_empty() {
        return;
    }
    let bit = usize::try_from(random % (bytes.len() as u64 * 8)).unwrap_or(0);
    bytes[bit / 8] ^= 1 << (bit % 8);
}

fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Lengths inside an IP packet fit 16 bits, since the packet that was parsed did.
fn low_u16(value: usize) -> u16 {
    u16::try_from(value & 0xffff).unwrap_or(0)
}

#[cfg(test)]
mod tests;
