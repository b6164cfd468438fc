//! Checks of what UDP's checksum may miss: headers, control packets and handshakes between Longhaul
//! ends (docs/protocol/udt.md). Payload has none here: whoever places it knows what it must be.

use super::{CONTROL_BIT, HEADER_LEN, SocketId, word};

/// Where the destination is, which the check is added to.
const DESTINATION: std::ops::Range<usize> = 12..HEADER_LEN;
/// Where a handshake, which may be addressed to nobody yet, has its check: the upper half of the
/// offer.
const HANDSHAKE: std::ops::Range<usize> = 4..6;

/// CRC32C (RFC 3385), eight octets at a time. Most of what it covers is a header of 16 octets, for
/// which a library that chooses among the processor's instructions at run time takes longer than
/// these tables.
fn crc32c(bytes: &[u8]) -> u32 {
    let (eights, rest) = bytes.as_chunks::<8>();
    let by = |table: usize, octet: u32| TABLES[table][(octet & 0xff) as usize];
    let crc = eights
        .iter()
        .fold(u32::MAX, |crc, &[a, b, c, d, e, f, g, h]| {
            let low = crc ^ u32::from_le_bytes([a, b, c, d]);
            let high = u32::from_le_bytes([e, f, g, h]);
            by(7, low)
                ^ by(6, low >> 8)
                ^ by(5, low >> 16)
                ^ by(4, low >> 24)
                ^ by(3, high)
                ^ by(2, high >> 8)
                ^ by(1, high >> 16)
                ^ by(0, high >> 24)
        });
    !rest.iter().fold(crc, |crc, &octet| {
        by(0, crc ^ u32::from(octet)) ^ (crc >> 8)
    })
}

/// What an octet in front of 0 to 7 others adds to the CRC.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    /// Castagnoli's polynomial, its bits reversed.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut tables = [[0; 256]; 8];
    let mut octet = 0;
    while octet < 256_u32 {
        let (mut crc, mut bit) = (octet, 0);
        while bit < 8 {
            crc = (crc >> 1) ^ (POLYNOMIAL * (crc & 1));
            bit += 1;
        }
        tables[0][octet as usize] = crc;
        octet += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut octet = 0;
        while octet < 256 {
            let crc = tables[table - 1][octet];
            tables[table][octet] = (crc >> 8) ^ tables[0][(crc & 0xff) as usize];
            octet += 1;
        }
        table += 1;
    }
    tables
}

/// The check of a data packet with `payload_len` octets: of its first three words and that length.
fn of_data(header: &[u8], payload_len: u32) -> u32 {
    let mut covered = [0; HEADER_LEN];
    covered[..DESTINATION.start].copy_from_slice(&header[..DESTINATION.start]);
    covered[DESTINATION].copy_from_slice(&payload_len.to_be_bytes());
    crc32c(&covered)
}

/// The check of a control packet: of all but its destination.
fn of_control(packet: &[u8]) -> u32 {
    let (header, body) = packet.split_at(HEADER_LEN);
    crc32c(&header[..DESTINATION.start]) ^ crc32c(body).rotate_left(1)
}

/// Adds its check to the header of a data packet with `payload_len` octets.
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
/// one, most probably nobody's.
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

/// The check of a handshake packet, whatever it has for one; never zero, which says that it has
/// none.
pub(super) fn of_handshake(header: &[u8; HEADER_LEN], body: &[u8]) -> u16 {
    let mut covered = *header;
    covered[HANDSHAKE].fill(0);
    let check = crc32c(&covered) ^ crc32c(body).rotate_left(1);
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

#[cfg(test)]
mod tests {
    use super::crc32c;

    /// RFC 3720, appendix B.4, and the check value of the catalogue of CRCs.
    #[test]
    fn known_values_of_the_crc() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&ascending), 0x46dd_794e);
    }
}
