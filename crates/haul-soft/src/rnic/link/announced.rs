//! Messages that the UDT transport has been told of and has not sent yet.
//!
//! The core makes each header once, to learn the length of its message; until the message leaves
//! for the first time the header waits here. Headers of messages in flight are not kept: the core
//! makes them again for a retransmission.

use std::collections::VecDeque;

use haul_iwarp::Datagram;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Announced {
    messages: VecDeque<Message>,
    /// Number of the first of them.
    first: u64,
    /// Headers and control messages, one behind the other.
    bytes: Vec<u8>,
    /// Bytes of messages that have left; taken <= bytes.len()
    taken: usize,
}

/// A message, and how many bytes of it wait.
#[derive(Debug, Clone, Copy)]
struct Message {
    len: usize,
    /// None: a control message, which waits whole.
    segment: Option<Datagram>,
}

/// Bytes of messages that have left before the others are moved down.
const TAKEN_MAX: usize = 64 << 10;

impl Announced {
    /// Where the core appends the next message, if it is a control message: then
    /// [`Announced::add_control`] follows.
    pub(super) fn room(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Bytes of all that wait.
    pub(super) fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    /// The last `len` bytes are a control message.
    pub(super) fn add_control(&mut self, len: usize) {
        self.messages.push_back(Message { len, segment: None });
    }

    pub(super) fn add_segment(&mut self, segment: Datagram, header: &[u8]) {
        self.bytes.extend_from_slice(header);
        self.messages.push_back(Message {
            len: header.len(),
            segment: Some(segment),
        });
    }

    /// Takes message `index`, which leaves now, and those before it: its bytes, and the segment
    /// that they are the header of. None where it has left before.
    pub(super) fn take(&mut self, index: u64) -> Option<(&[u8], Option<Datagram>)> {
        while self.first <= index {
            let message = self.messages.pop_front()?;
            let start = self.taken;
            self.taken += message.len;
            self.first += 1;
            if self.first > index {
                return Some((&self.bytes[start..self.taken], message.segment));
            }
        }
        None
    }

    /// Gives back the room of messages that have left.
    pub(super) fn compact(&mut self) {
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.taken = 0;
        } else if self.taken >= TAKEN_MAX.max(self.bytes.len() / 2) {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use haul_iwarp::{Payload, Segment};

    use super::*;

    fn segment(index: u64) -> Datagram {
        Datagram {
            segment: Segment {
                index,
                header_len: 2,
                payload: Payload::None,
                payload_len: 0,
            },
            crc: true,
        }
    }

    #[test]
    fn each_message_is_taken_once_and_in_order() {
        let mut announced = Announced::default();
        announced.room().extend_from_slice(b"hello");
        announced.add_control(5);
        announced.add_segment(segment(1), b"h1");
        announced.add_segment(segment(2), b"h2");
        assert_eq!(announced.take(0), Some((&b"hello"[..], None)));
        assert_eq!(announced.take(0), None);
        assert_eq!(announced.take(2), Some((&b"h2"[..], Some(segment(2)))));
        assert_eq!(announced.take(1), None);
        assert_eq!(announced.take(3), None);
        announced.compact();
        assert_eq!(announced.bytes_len(), 0);
    }

    #[test]
    fn what_waits_is_kept_when_room_is_given_back() {
        let mut announced = Announced::default();
        for index in 0..100_000 {
            announced.add_segment(segment(index), &index.to_be_bytes());
            if let Some(index) = index.checked_sub(10) {
                let (bytes, _) = announced.take(index).unwrap();
                assert_eq!(bytes, index.to_be_bytes());
                announced.compact();
                assert!(announced.bytes_len() < 2 * TAKEN_MAX);
            }
        }
    }
}
