//! The other end: answers a handshake, and acknowledges selectively (RFC 2018) with time stamps
//! (RFC 7323).

use haul_io::tun::{VNET_HEADER_LEN, VnetHeader};

const FIN: u8 = 1;
const SYN: u8 = 2;
const ACK: u8 = 16;
const IP_LEN: usize = 20;
/// Ports; where the sequence number, the acknowledgement and the flags are.
const SEQ: usize = 4;
const DATA_OFFSET: usize = 12;
const FLAGS: usize = 13;
const TCP_LEN: usize = 20;
/// Kinds of options.
const NOP: u8 = 1;
const MSS: [u8; 4] = [2, 4, 1_460_u16.to_be_bytes()[0], 1_460_u16.to_be_bytes()[1]];
const WINDOW_SCALE: [u8; 3] = [3, 3, 14];
const SACK_PERMITTED: [u8; 2] = [4, 2];
const SACK: u8 = 5;
const TIMESTAMPS: [u8; 2] = [8, 10];
/// As many as fit beside the time stamps.
const BLOCKS: usize = 3;
/// What follows a SYN+ACK.
const INITIAL_SEQ: u32 = 1_000;

/// A segment of the sender.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Data {
    /// Bytes from the first one, where its payload begins.
    pub(crate) start: u64,
    pub(crate) len: u64,
    timestamp: [u8; 4],
}

/// The receiver of one connection.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    /// IPv4 addresses and ports as they stand in what the sender sends.
    addresses: [u8; 8],
    ports: [u8; 4],
    /// Sequence number of the sender's first octet.
    first: u32,
    /// Everything before this has come, bytes.
    whole: u64,
    /// What has come beyond, in order, with a gap between any two.
    beyond: Vec<(u64, u64)>,
}

impl Peer {
    /// Nobody has spoken yet.
    pub(crate) fn is_alone(&self) -> bool {
        self.addresses == [0; 8]
    }

    /// Reads the handshake's first packet; the answer to it.
    pub(crate) fn meet(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let (ip, tcp) = split(packet)?;
        if tcp[FLAGS] & SYN == 0 {
            return None;
        }
        self.addresses.copy_from_slice(ip.get(12..20)?);
        self.ports.copy_from_slice(&tcp[..4]);
        self.first = word(tcp, SEQ)?.wrapping_add(1);
        let options = [
            &MSS[..],
            &SACK_PERMITTED,
            &stamps(tcp)?,
            &[NOP],
            &WINDOW_SCALE,
        ]
        .concat();
        Some(self.packet(INITIAL_SEQ, SYN | ACK, &options))
    }

    /// Reads a packet that carries payload.
    pub(crate) fn data(&self, packet: &[u8]) -> Option<Data> {
        let (_, tcp) = split(packet)?;
        let header = usize::from(tcp[DATA_OFFSET] >> 4) * 4;
        let len = tcp.len().checked_sub(header)? as u64;
        let start = u64::from(word(tcp, SEQ)?.wrapping_sub(self.first));
        let stamped = stamps(tcp)?;
        let timestamp = [stamped[6], stamped[7], stamped[8], stamped[9]];
        // A connection of an earlier run may still try to be heard.
        let carries = tcp.starts_with(&self.ports) && len > 0 && tcp[FLAGS] & (SYN | FIN) == 0;
        carries.then_some(Data {
            start,
            len,
            timestamp,
        })
    }

    /// Takes a segment; the acknowledgement that it causes.
    pub(crate) fn receive(&mut self, data: Data) -> Vec<u8> {
        let block = self.place(data.start, data.start + data.len);
        let mut blocks: Vec<(u64, u64)> = self.beyond.iter().rev().copied().collect();
        // The first block is the one that the segment belongs to.
        blocks.sort_by_key(|each| Some(*each) != block);
        blocks.truncate(BLOCKS);
        let mut options = [&TIMESTAMPS[..], &[0; 4], &data.timestamp, &[NOP; 2]].concat();
        if !blocks.is_empty() {
            let len = u8::try_from(2 + 8 * blocks.len()).unwrap_or(0);
            options.extend([NOP, NOP, SACK, len]);
        }
        for (start, end) in blocks {
            options.extend(self.seq(start).to_be_bytes());
            options.extend(self.seq(end).to_be_bytes());
        }
        self.packet(INITIAL_SEQ + 1, ACK, &options)
    }

    /// Takes note of bytes; answers the stretch beyond a gap that they belong to, if any.
    fn place(&mut self, mut start: u64, mut end: u64) -> Option<(u64, u64)> {
        self.beyond.retain(|&(from, to)| {
            let apart = to < start || from > end;
            if !apart {
                (start, end) = (start.min(from), end.max(to));
            }
            apart
        });
        if start <= self.whole {
            self.whole = self.whole.max(end);
            return None;
        }
        self.beyond.push((start, end));
        self.beyond.sort_unstable();
        Some((start, end))
    }

    #[expect(clippy::cast_possible_truncation, reason = "sequence numbers wrap")]
    fn seq(&self, octet: u64) -> u32 {
        self.first.wrapping_add(octet as u32)
    }

    /// A packet to the sender, as a TUN device takes it: the kernel need not verify its TCP
    /// checksum.
    fn packet(&self, seq: u32, flags: u8, options: &[u8]) -> Vec<u8> {
        let offload = VnetHeader {
            flags: VnetHeader::NEEDS_CHECKSUM,
            checksum_start: 20,
            checksum_offset: 16,
            ..VnetHeader::default()
        };
        let header = TCP_LEN + options.len();
        let total = u16::try_from(IP_LEN + header).unwrap_or(0);
        let mut ip = [
            0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[12..16].copy_from_slice(&self.addresses[4..]);
        ip[16..].copy_from_slice(&self.addresses[..4]);
        let sum = checksum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut packet = offload.emit().to_vec();
        packet.extend(ip);
        packet.extend([self.ports[2], self.ports[3], self.ports[0], self.ports[1]]);
        packet.extend(seq.to_be_bytes());
        packet.extend(self.seq(self.whole).to_be_bytes());
        packet.extend([
            u8::try_from((header / 4) << 4).unwrap_or(0),
            flags,
            0xff,
            0xff,
            0,
            0,
            0,
            0,
        ]);
        packet.extend(options);
        packet
    }
}

/// The IP header and the rest of a TCP packet that came out of a TUN device.
fn split(packet: &[u8]) -> Option<(&[u8], &[u8])> {
    let (ip, tcp) = packet.get(VNET_HEADER_LEN..)?.split_at_checked(IP_LEN)?;
    (ip[0] == 0x45 && ip[9] == 6 && tcp.len() >= TCP_LEN).then_some((ip, tcp))
}

/// The answer to a segment's time stamps option; its last four bytes are the sender's own.
fn stamps(tcp: &[u8]) -> Option<Vec<u8>> {
    let end = usize::from(tcp[DATA_OFFSET] >> 4) * 4;
    let mut options = tcp.get(TCP_LEN..end)?;
    while let [kind, rest @ ..] = options {
        if *kind == NOP {
            options = rest;
        } else if options.starts_with(&TIMESTAMPS) {
            return Some([&TIMESTAMPS[..], &[0; 4], options.get(2..6)?].concat());
        } else {
            options = options.get(usize::from(*rest.first()?).max(2)..)?;
        }
    }
    None
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes(word.try_into().ok()?))
}

/// RFC 1071.
fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or(0)
}
