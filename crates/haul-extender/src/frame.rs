//! What two extenders say to each other in a connection of a session (docs/protocol/xsp.md).

/// Octets of a frame before its payload. Sixteen, so that payload keeps its place within a page to
/// a multiple of 16: the kernel copies much more slowly between places that are a few octets off.
pub(crate) const HEAD_BYTES: usize = 16;
/// Most octets of private data: what a connection request has room for on any transport.
pub(crate) const PRIVATE_MAX: usize = 512;

/// The version of these frames.
const VERSION: u16 = 1;
const HAS_IMMEDIATE: u8 = 1;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The first of the near end: an application wants to connect. Private data follow.
    Connect,
    /// The first of the far end: its application has accepted. Private data follow.
    Accept,
    /// The first of the far end, and its last: nothing comes of it. What the application says
    /// follows.
    Reject,
    /// A message, with its immediate data.
    Message(Option<u32>),
}

/// The beginning of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    /// Octets that follow.
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

    /// None for what is no frame: the peer is no extender, or one of another version.
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
mod tests {
    use super::*;

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
