//! Checks against damage that UDP's checksum may miss: headers, control packets and handshakes
//! between Longhaul ends (docs/protocol/udt.md). Payload has none here: the layer that places it
//! verifies it.

use haul_cc::crc::crc32c_header;

use super::field::{CONTROL_BIT, HEADER_LEN, SocketId, word};

/// Where the destination is, which the check is added to.
const DESTINATION: std::ops::Range<usize> = 12..HEADER_LEN;
/// The check field of a handshake, whose destination id may still be zero: the upper half of the
/// offer.
const HANDSHAKE: std::ops::Range<usize> = 4..6;

/// The check of a data packet with `payload_len` bytes: of its first three words and that length.
fn of_data(header: &[u8], payload_len: u32) -> u32 {
    let mut covered = [0; HEADER_LEN];
    covered[..DESTINATION.start].copy_from_slice(&header[..DESTINATION.start]);
    covered[DESTINATION].copy_from_slice(&payload_len.to_be_bytes());
    crc32c_header(&covered)
}

/// The check of a control packet: of all but its destination.
fn of_control(packet: &[u8]) -> u32 {
    let (header, body) = packet.split_at(HEADER_LEN);
    crc32c_header(&header[..DESTINATION.start]) ^ crc32c_header(body).rotate_left(1)
}

/// Adds its check to the header of a data packet with `payload_len` bytes.
pub(crate) fn seal_data(header: &mut [u8; HEADER_LEN], payload_len: u32) {
    let sealed = word(header, 3) ^ of_data(header, payload_len);
    header[DESTINATION].copy_from_slice(&sealed.to_be_bytes());
}

/// Adds its check to a control packet; a handshake has its own.
pub(crate) fn seal_control(packet: &mut [u8]) {
    if !is_handshake(packet) {
        let sealed = word(packet, 3) ^ of_control(packet);
        packet[DESTINATION].copy_from_slice(&sealed.to_be_bytes());
    }
}

/// The destination of a packet with a check, which [`super::Packet::parse`] has taken; of a damaged
/// one, most probably an unused id.
pub(crate) fn opened(packet: &[u8]) -> SocketId {
    let check = if word(packet, 0) & CONTROL_BIT != 0 {
        of_control(packet)
    } else {
        // No datagram is longer.
        of_data(
            packet,
            u32::try_from(packet.len() - HEADER_LEN).unwrap_or(0),
        )
    };
    SocketId(word(packet, 3) ^ check)
}

pub(crate) fn is_handshake(packet: &[u8]) -> bool {
    word(packet, 0) >> 16 == CONTROL_BIT >> 16
}

/// Computes the check of a handshake packet, ignoring its check field; never zero, which means no
/// check.
pub(super) fn of_handshake(header: &[u8; HEADER_LEN], body: &[u8]) -> u16 {
    let mut covered = *header;
    covered[HANDSHAKE].fill(0);
    let check = crc32c_header(&covered) ^ crc32c_header(body).rotate_left(1);
    // Its lower half.
    u16::try_from(check & 0xffff).unwrap_or(0).max(1)
}

/// Adds its check to a handshake packet with an offer.
pub(super) fn seal_handshake(packet: &mut [u8]) {
    if let Some((header, body)) = packet.split_first_chunk() {
        let check = of_handshake(header, body);
        packet[HANDSHAKE].copy_from_slice(&check.to_be_bytes());
    }
}
