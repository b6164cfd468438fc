//! Frames between two extenders (docs/protocol/xsp.md).

/// Length of a frame's head, bytes. Sixteen keeps the payload's place within a page to a multiple
/// of 16: the kernel copies much more slowly between places that differ by a few bytes.
pub(crate) const HEAD_BYTES: usize = 16;
/// Longest private data, bytes: what a connection request carries on any transport.
pub(crate) const PRIVATE_MAX: usize = 512;

/// Version of the frames.
const VERSION: u16 = 1;
const HAS_IMMEDIATE: u8 = 1;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// First of the near end: an application connects. Private data follows.
    Connect,
    /// First of the far end: its application has accepted. Private data follows.
    Accept,
    /// First and last of the far end: the connection failed. The application's private data
    /// follows.
    Reject,
    /// A message, with its immediate data.
    Message(Option<u32>),
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    /// Bytes that follow.
    pub(crate) len: u32,
}

impl Head {
    pub(crate) fn encode(self) -> [u8; HEAD_BYTES] {
        let (code, immediate) = match self.kind {
            Kind::Connect => (1, None),
            Kind::Accept => (2, None),
            Kind::Reject => (3, None),
            Kind::Message(immediate) => (4, immediate),
        };
        let mut octets = [0; HEAD_BYTES];
        octets[0] = code;
        octets[1] = if immediate.is_some() {
            HAS_IMMEDIATE
        } else {
            0
        };
        octets[2..4].copy_from_slice(&VERSION.to_be_bytes());
        octets[4..8].copy_from_slice(&self.len.to_be_bytes());
        octets[8..12].copy_from_slice(&immediate.unwrap_or(0).to_be_bytes());
        octets
    }

    /// Decodes a head. `None`: the peer is not an extender, or has another version.
    pub(crate) fn decode(octets: [u8; HEAD_BYTES]) -> Option<Self> {
        let [
            code,
            flags,
            v0,
            v1,
            l0,
            l1,
            l2,
            l3,
            i0,
            i1,
            i2,
            i3,
            0,
            0,
            0,
            0,
        ] = octets
        else {
            return None;
        };
        if u16::from_be_bytes([v0, v1]) != VERSION {
            return None;
        }
        let len = u32::from_be_bytes([l0, l1, l2, l3]);
        let kind = match (code, flags, [i0, i1, i2, i3]) {
            (1, 0, [0, 0, 0, 0]) => Kind::Connect,
            (2, 0, [0, 0, 0, 0]) => Kind::Accept,
            (3, 0, [0, 0, 0, 0]) => Kind::Reject,
            (4, 0, [0, 0, 0, 0]) => Kind::Message(None),
            (4, HAS_IMMEDIATE, immediate) => Kind::Message(Some(u32::from_be_bytes(immediate))),
            _ => return None,
        };
        let is_short = matches!(kind, Kind::Message(_)) || len as usize <= PRIVATE_MAX;
        is_short.then_some(Self { kind, len })
    }
}

#[cfg(test)]
#[path = "../../../tests/pages/hex.rs"]
mod hex;
#[cfg(test)]
#[path = "../../../tests/fixtures/recorded.rs"]
mod recorded;

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/protocol/xsp.md");

    #[test]
    fn the_frame_of_the_page_is_what_this_build_reads_and_writes() {
        let octets = hex::bytes(PAGE, "rdma-message");
        let (head, payload) = octets.split_first_chunk().unwrap();
        let kind = Kind::Message(Some(0x0102_0304));
        let frame = Head { kind, len: 4 };
        assert_eq!(Head::decode(*head), Some(frame));
        assert_eq!((frame.encode(), payload), (*head, &b"ping"[..]));
    }

    #[test]
    fn heads_are_those_of_the_first_release() {
        let made = [
            ("CONNECT", Kind::Connect),
            ("ACCEPT", Kind::Accept),
            ("REJECT", Kind::Reject),
            ("MESSAGE", Kind::Message(None)),
            ("MESSAGE-immediate", Kind::Message(Some(7))),
        ];
        let made = made.map(|(name, kind)| {
            let head = Head { kind, len: 300 };
            assert_eq!(Head::decode(head.encode()), Some(head), "{name}");
            (name, head.encode().to_vec())
        });
        recorded::assert_recorded("gateway-rdma", &made);
    }

    #[test]
    fn frames_are_what_they_were() {
        for kind in [
            Kind::Connect,
            Kind::Accept,
            Kind::Reject,
            Kind::Message(None),
            Kind::Message(Some(0)),
            Kind::Message(Some(u32::MAX)),
        ] {
            let head = Head { kind, len: 500 };
            assert_eq!(Head::decode(head.encode()), Some(head));
        }
        let octets = Head {
            kind: Kind::Message(Some(0x0102_0304)),
            len: 0x0a0b_0c0d,
        };
        assert_eq!(
            octets.encode(),
            [4, 1, 0, 1, 10, 11, 12, 13, 1, 2, 3, 4, 0, 0, 0, 0]
        );
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let good = Head {
            kind: Kind::Connect,
            len: 512,
        };
        assert!(Head::decode(good.encode()).is_some());
        for (place, octet) in [
            (0, 0),
            (0, 5),
            (1, 1),
            (1, 2),
            (3, 2),
            (7, 1),
            (8, 1),
            (15, 1),
        ] {
            let mut octets = good.encode();
            octets[place] = octet;
            assert_eq!(Head::decode(octets), None, "{place}: {octet}");
        }
        assert_eq!(Head::decode(*b"GET / HTTP/1.1\r\n"), None);
    }
}
