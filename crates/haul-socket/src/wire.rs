//! The messages between agents: 80 bytes, one a datagram, big-endian.
//!
//! ```text
//!   0   2  "HS"
//!   2   1  version, 1
//!   3   1  1 query · 2 cookie · 3 answer · 4 notice
//!   4   1  protocol: 1 UDP · 2 TCP
//!   5   1  verdict of an answer: 0 yes · 1 no such socket · 2 addresses are translated
//!   6   2  zero, ignored
//!   8   8  nonce of the query, repeated by what answers it
//!  16   8  cookie: in a query the one that was given, or zero; in a cookie the one that is given
//!  24   4  QPN: query, the asker's; answer and notice, the target's
//!  28   4  epoch, likewise
//!  32  20  asker: address (IPv4 mapped into IPv6), port, zero
//!  52  20  target, likewise
//!  72   8  zero, ignored
//! ```
//!
//! A reader ignores messages of a kind that it does not know.
//!
//! Every message has the same length, so nothing that is answered is answered with more than was
//! asked.

use std::net::SocketAddr;

use crate::table::{Named, Protocol, Why, address, words};

/// Bytes of a message.
pub(crate) const MESSAGE_LEN: usize = 80;

const MAGIC: [u8; 3] = *b"HS\x01";

/// Whether this end fills the fields that a newer version may use; in builds for tests only
/// (docs/adr/0054-versions.md).
#[cfg(debug_assertions)]
static NEXT: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Makes this process's agent speak the next minor version.
#[cfg(debug_assertions)]
pub(crate) fn pretend_next() {
    NEXT.store(true, std::sync::atomic::Ordering::Relaxed);
}

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Does a socket speak there? One that speaks here wants to send to it.
    Query = 1,
    /// Ask again with this: proves that the asker receives at its address.
    Cookie = 2,
    /// Whether it does.
    Answer = 3,
    /// A socket that an answer or a query named is gone.
    Notice = 4,
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) protocol: Protocol,
    /// Answers.
    pub(crate) verdict: Option<Why>,
    pub(crate) nonce: u64,
    pub(crate) cookie: u64,
    pub(crate) named: Named,
    pub(crate) asker: SocketAddr,
    pub(crate) target: SocketAddr,
}

impl Message {
    /// Reads a message; `None` for anything that is not one.
    pub(crate) fn parse(octets: &[u8]) -> Option<Self> {
        let octets: &[u8; MESSAGE_LEN] = octets.try_into().ok()?;
        if octets[..3] != MAGIC {
            return None;
        }
        let kind = match octets[3] {
            1 => Kind::Query,
            2 => Kind::Cookie,
            3 => Kind::Answer,
            4 => Kind::Notice,
            _ => return None,
        };
        let verdict = match octets[5] {
            0 => None,
            1 => Some(Why::NoSocket),
            2 => Some(Why::Translated),
            _ => return None,
        };
        let named = Named {
            qpn: be32(octets, 24),
            epoch: be32(octets, 28),
        };
        if named.qpn > 0x00ff_fffe {
            return None;
        }
        Some(Self {
            kind,
            protocol: Protocol::from_number(octets[4].into())?,
            verdict,
            nonce: be64(octets, 8),
            cookie: be64(octets, 16),
            named,
            asker: place(octets, 32)?,
            target: place(octets, 52)?,
        })
    }

    /// The bytes.
    pub(crate) fn emit(&self) -> [u8; MESSAGE_LEN] {
        let mut out = [0; MESSAGE_LEN];
        #[cfg(debug_assertions)]
        if NEXT.load(std::sync::atomic::Ordering::Relaxed) {
            out.fill(0xa5);
            for zero in [50..52, 70..72] {
                out[zero].fill(0);
            }
        }
        out[..3].copy_from_slice(&MAGIC);
        out[3] = self.kind as u8;
        out[4] = if self.protocol == Protocol::Udp { 1 } else { 2 };
        out[5] = match self.verdict {
            None => 0,
            Some(Why::Translated) => 2,
            Some(_) => 1,
        };
        out[8..16].copy_from_slice(&self.nonce.to_be_bytes());
        out[16..24].copy_from_slice(&self.cookie.to_be_bytes());
        out[24..28].copy_from_slice(&self.named.qpn.to_be_bytes());
        out[28..32].copy_from_slice(&self.named.epoch.to_be_bytes());
        for (at, place) in [(32, self.asker), (52, self.target)] {
            let words = words(place);
            for (word, value) in words[..4].iter().enumerate() {
                out[at + 4 * word..at + 4 * word + 4].copy_from_slice(&value.to_be_bytes());
            }
            out[at + 16..at + 18].copy_from_slice(&place.port().to_be_bytes());
        }
        out
    }
}

fn place(octets: &[u8; MESSAGE_LEN], at: usize) -> Option<SocketAddr> {
    if octets[at + 18..at + 20] != [0; 2] {
        return None;
    }
    let port = u32::from(octets[at + 16]) << 8 | u32::from(octets[at + 17]);
    let word = |nth: usize| be32(octets, at + 4 * nth);
    let place = address([word(0), word(1), word(2), word(3), port]);
    // What has two forms is taken in one: `::ffff:a.b.c.d` is IPv4.
    Some(place)
}

fn be32(octets: &[u8; MESSAGE_LEN], at: usize) -> u32 {
    octets[at..at + 4]
        .iter()
        .fold(0, |value, octet| value << 8 | u32::from(*octet))
}

fn be64(octets: &[u8; MESSAGE_LEN], at: usize) -> u64 {
    u64::from(be32(octets, at)) << 32 | u64::from(be32(octets, at + 4))
}

#[cfg(test)]
#[path = "../../../tests/fixtures/recorded.rs"]
mod recorded;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn example() -> Message {
        Message {
            kind: Kind::Query,
            protocol: Protocol::Tcp,
            verdict: None,
            nonce: 1,
            cookie: 2,
            named: Named {
                qpn: 0x12,
                epoch: 0xcafe_f00d,
            },
            asker: "10.0.0.1:40000".parse().unwrap(),
            target: "[2001:db8::1]:80".parse().unwrap(),
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for kind in [Kind::Query, Kind::Cookie, Kind::Answer, Kind::Notice] {
            for verdict in [None, Some(Why::NoSocket), Some(Why::Translated)] {
                let message = Message {
                    kind,
                    verdict,
                    ..example()
                };
                assert_eq!(Message::parse(&message.emit()), Some(message));
            }
        }
    }

    #[test]
    fn messages_are_those_of_the_first_release() {
        let kinds = [
            ("query", Kind::Query, None),
            ("cookie", Kind::Cookie, None),
            ("answer", Kind::Answer, Some(Why::NoSocket)),
            ("notice", Kind::Notice, None),
        ];
        let made = kinds.map(|(name, kind, verdict)| {
            let message = Message {
                kind,
                verdict,
                ..example()
            };
            assert_eq!(Message::parse(&message.emit()), Some(message), "{name}");
            (name, message.emit().to_vec())
        });
        recorded::assert_recorded("sockets", &made);
    }

    #[test]
    fn what_a_newer_version_adds_is_ignored_and_the_length_is_exact() {
        let octets = example().emit();
        for at in [6, 7, 72, 79] {
            let mut newer = octets;
            newer[at] = 0x80;
            assert_eq!(Message::parse(&newer), Some(example()), "octet {at}");
        }
        for at in [0, 1, 2, 3, 50, 51, 70, 71] {
            let mut changed = octets;
            changed[at] ^= 0x80;
            assert_eq!(Message::parse(&changed), None, "octet {at}");
        }
        assert_eq!(Message::parse(&octets[..79]), None);
        assert_eq!(Message::parse(&[&octets[..], &[0]].concat()), None);
    }

    proptest! {
        #[test]
        fn whatever_is_read_is_written_as_it_came(octets in proptest::collection::vec(any::<u8>(), 77)) {
            let mut octets = [&MAGIC[..], &octets].concat();
            if let Some(message) = Message::parse(&octets) {
                octets[6..8].fill(0);
                octets[72..].fill(0);
                prop_assert_eq!(&message.emit()[..], &octets[..]);
            }
        }
    }
}
