//! The traffic of sockets as a packet capture: raw IP packets with TCP and UDP headers that are
//! made up, so that no privilege is needed and every byte is exactly what went through the socket.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};

use haul_io::clock::Clock;

use super::lock::lock;

/// A capture file.
pub(super) struct Tap(Mutex<Box<dyn Write + Send>>);

impl std::fmt::Debug for Tap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tap")
    }
}

/// The capture of one TCP connection.
#[derive(Debug)]
pub(super) struct Flow {
    tap: Arc<Tap>,
    local: SocketAddr,
    peer: SocketAddr,
    /// Sequence numbers of the next byte out and in.
    out: u32,
    into: u32,
    /// Bytes of the call that is being told about.
    call: Vec<u8>,
}

/// LINKTYPE_RAW: packets begin with their IP header.
const LINK_TYPE: u32 = 101;
/// Nanoseconds, in the writer's byte order (pcap-savefile(5)).
const MAGIC: u32 = 0xa1b2_3c4d;
/// Bytes of payload in a packet: no reader is surprised by it.
const PAYLOAD: usize = 32 << 10;
const TCP: u8 = 6;
const TCP_LEN: usize = 20;
const UDP: u8 = 17;
const UDP_LEN: usize = 8;
/// Bytes before a packet: its time and its length (pcap-savefile(5)).
const RECORD_LEN: usize = 16;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const FIRST: u32 = 1;

impl Tap {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let mut file = haul_io::file::create_output(path)?;
        let mut head = Vec::with_capacity(24);
        head.extend_from_slice(&MAGIC.to_ne_bytes());
        head.extend_from_slice(&2_u16.to_ne_bytes());
        head.extend_from_slice(&4_u16.to_ne_bytes());
        for word in [0, 0, 65_535, LINK_TYPE] {
            head.extend_from_slice(&word.to_ne_bytes());
        }
        file.write_all(&head)?;
        Ok(Self(Mutex::new(file)))
    }

    /// Datagrams that a socket has sent or received in one call: each has `datagram_len` bytes,
    /// the last perhaps fewer.
    pub(super) fn datagrams(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        bytes: &[u8],
        datagram_len: usize,
    ) {
        let ends = (from.ip().to_canonical(), to.ip().to_canonical());
        for payload in bytes.chunks(datagram_len.max(1)) {
            let len = UDP_LEN + payload.len();
            let mut datagram = Vec::with_capacity(len);
            datagram.extend_from_slice(&from.port().to_be_bytes());
            datagram.extend_from_slice(&to.port().to_be_bytes());
            datagram.extend_from_slice(&len16(len));
            datagram.extend_from_slice(&[0, 0]);
            datagram.extend_from_slice(payload);
            let sum = udp_checksum(ends, &datagram);
            datagram[6..UDP_LEN].copy_from_slice(&sum.to_be_bytes());
            self.record(ends, UDP, &[&datagram]);
        }
    }

    /// An IP packet with these pieces of payload.
    fn record(&self, (from, to): (IpAddr, IpAddr), protocol: u8, pieces: &[&[u8]]) {
        let payload_len = pieces.iter().map(|piece| piece.len()).sum();
        let mut packet = Vec::with_capacity(RECORD_LEN + IPV6_LEN + payload_len);
        packet.resize(RECORD_LEN, 0);
        ip(&mut packet, (from, to), protocol, payload_len);
        for piece in pieces {
            packet.extend_from_slice(piece);
        }
        let now = Clock::new().realtime_ns();
        let len = len32(&packet[RECORD_LEN..]);
        let seconds = u32::try_from(now / 1_000_000_000).unwrap_or(u32::MAX);
        let nanos = u32::try_from(now % 1_000_000_000).unwrap_or(0);
        for (at, word) in [seconds, nanos, len, len].into_iter().enumerate() {
            packet[4 * at..4 * at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        // A capture that the disk has no room for is cut short; the connection goes on.
        let _ = lock(&self.0).write_all(&packet);
    }
}

impl Flow {
    /// A connection's; none where the addresses are of two families.
    pub(super) fn new(tap: &Arc<Tap>, local: SocketAddr, peer: SocketAddr) -> Option<Self> {
        (local.is_ipv4() == peer.is_ipv4()).then(|| Self {
            tap: Arc::clone(tap),
            local,
            peer,
            out: FIRST,
            into: FIRST,
            call: Vec::new(),
        })
    }

    /// The next bytes of a call.
    pub(super) fn show(&mut self, bytes: &[u8]) {
        self.call.extend_from_slice(bytes);
    }

    /// The socket has taken what was shown.
    pub(super) fn sent(&mut self) {
        let call = std::mem::take(&mut self.call);
        for part in call.chunks(PAYLOAD) {
            self.record((self.local, self.peer), (self.out, self.into), part);
            self.out = self.out.wrapping_add(len32(part));
        }
    }

    /// The socket has given what was shown.
    pub(super) fn received(&mut self) {
        let call = std::mem::take(&mut self.call);
        for part in call.chunks(PAYLOAD) {
            self.record((self.peer, self.local), (self.into, self.out), part);
            self.into = self.into.wrapping_add(len32(part));
        }
    }

    fn record(&self, (from, to): (SocketAddr, SocketAddr), (seq, ack): (u32, u32), payload: &[u8]) {
        let mut header = Vec::with_capacity(TCP_LEN);
        header.extend_from_slice(&from.port().to_be_bytes());
        header.extend_from_slice(&to.port().to_be_bytes());
        header.extend_from_slice(&seq.to_be_bytes());
        header.extend_from_slice(&ack.to_be_bytes());
        // Five words of header, ACK and PSH, a full window; no checksum, no urgent pointer.
        header.extend_from_slice(&[0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
        let ends = (from.ip(), to.ip());
        self.tap.record(ends, TCP, &[&header, payload]);
    }
}

fn len32(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

fn len16(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

fn ip(out: &mut Vec<u8>, ends: (IpAddr, IpAddr), protocol: u8, payload_len: usize) {
    const TTL: u8 = 64;
    match ends {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let start = out.len();
            out.extend_from_slice(&[0x45, 0]);
            out.extend_from_slice(&len16(IPV4_LEN + payload_len));
            out.extend_from_slice(&[0, 0, 0x40, 0, TTL, protocol, 0, 0]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
            let sum = checksum(&out[start..]);
            out[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
        }
        (from, to) => {
            out.extend_from_slice(&[0x60, 0, 0, 0]);
            out.extend_from_slice(&len16(payload_len));
            out.extend_from_slice(&[protocol, TTL]);
            for address in [from, to] {
                out.extend_from_slice(&octets_v6(address));
            }
        }
    }
}

fn octets_v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// RFC 768 and RFC 8200 §8.1: over a pseudo-header and the datagram; zero stands for none.
fn udp_checksum(ends: (IpAddr, IpAddr), datagram: &[u8]) -> u16 {
    let mut covered = Vec::with_capacity(2 * 16 + 4 + datagram.len());
    match ends {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            covered.extend_from_slice(&from.octets());
            covered.extend_from_slice(&to.octets());
        }
        (from, to) => {
            covered.extend_from_slice(&octets_v6(from));
            covered.extend_from_slice(&octets_v6(to));
        }
    }
    covered.extend_from_slice(&[0, UDP]);
    covered.extend_from_slice(&len16(datagram.len()));
    covered.extend_from_slice(datagram);
    match checksum(&covered) {
        0 => u16::MAX,
        sum => sum,
    }
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|word| u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]));
    let sum: u32 = words.map(u32::from).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_header_checks_out() {
        let mut out = Vec::new();
        let ends = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        ip(&mut out, ends, TCP, 100);
        assert_eq!(out.len(), IPV4_LEN);
        assert_eq!(checksum(&out), 0);
    }
}
