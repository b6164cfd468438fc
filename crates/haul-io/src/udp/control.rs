//! Ancillary data: the segment size on the way out; segment size, time of arrival and ECN mark on the way in.
//!
//! Layout (`cmsg(3)`, 64-bit Linux): records of a header {length: usize, level: int, type: int} and data, each
//! record padded to the size of a `usize`.

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

/// Room for what the kernel tells about one arrival: time (32 bytes), segment size (24), two kinds of ECN mark (24 each).
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct ControlBuffer(pub(super) [u8; 128]);

impl ControlBuffer {
    pub(super) const EMPTY: Self = Self([0; 128]);
}

/// What the kernel told about one arrival.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ArrivalNotes {
    /// Size of the datagrams that were joined (the last may be smaller); none when there is only one.
    pub(super) segment_bytes: Option<usize>,
    /// Wall-clock time, nanoseconds since 1970.
    pub(super) realtime_ns: Option<u64>,
    /// The two ECN bits (RFC 3168 §5).
    pub(super) ecn: u8,
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
            _ => {}
        }
    }
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
        let records = [
            record(libc::IPPROTO_IP, libc::IP_TOS, &[0xff]),
            record(libc::SOL_UDP, libc::UDP_GRO, &1472_i32.to_ne_bytes()),
            record(9999, 1, b"unknown"),
            record(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &stamp),
        ];
        let expected = ArrivalNotes {
            segment_bytes: Some(1472),
            realtime_ns: Some(7_000_000_005),
            ecn: 3,
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
    fn broken_records_end_the_reading_without_a_panic() {
        let whole = record(libc::SOL_UDP, libc::UDP_GRO, &1472_i32.to_ne_bytes());
        for cut in 0..whole.len() {
            let _ = ArrivalNotes::parse(&whole[..cut]);
        }
        for len in [0_usize, 1, HEADER_BYTES - 1, usize::MAX, usize::MAX - 7] {
            let mut lying = whole.clone();
            lying[..ALIGN].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(ArrivalNotes::parse(&lying), ArrivalNotes::default());
        }
    }
}
