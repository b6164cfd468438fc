//! Slots for packets without a stream offset: one per packet of the receive window.
//!
//! Plain UDT peers send no stream offsets, and messages are delivered whole. The payload itself is
//! in memory of the caller, at the position that belongs to its slot; this module keeps only its
//! metadata.

use std::collections::VecDeque;
use std::ops::Range;

use crate::wire::Data;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Empty,
    Present,
    /// Delivered, or given up by the sender.
    Done,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    state: State,
    first: bool,
    last: bool,
    in_order: bool,
    message: u32,
    len: u32,
}

/// A piece of payload in the caller's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Position in the receive memory, bytes.
    pub position: u64,
    /// Length, bytes.
    pub len: u32,
}

/// A message that has arrived whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its number.
    pub number: u32,
    /// Its length, bytes.
    pub len: u64,
    packets: Range<u64>,
}

/// The receive window, one slot per packet.
#[derive(Debug)]
pub(crate) struct Slots {
    /// Packet number of the front slot: all earlier ones are finished.
    base: u64,
    slots: VecDeque<Slot>,
    capacity: u64,
    slot_len: u32,
    /// Where the search for a message that may overtake others continues.
    searched: u64,
    /// Numbers of the messages taken last, where a message may come twice.
    taken: Option<VecDeque<u32>>,
}

/// libudt repeats messages right behind the one that it has given up.
const TAKEN_KEPT: usize = 256;

impl Slots {
    /// `repeats`: after it has given a message up, the sender may send another twice, under
    /// different packet numbers, as libudt does.
    pub(crate) fn new(first: u64, capacity: u32, slot_len: u32, repeats: bool) -> Self {
        Self {
            taken: repeats.then(VecDeque::new),
            base: first,
            slots: VecDeque::with_capacity(capacity as usize),
            capacity: u64::from(capacity),
            slot_len,
            searched: first,
        }
    }

    /// Bytes of memory that the slots stand for.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.capacity * u64::from(self.slot_len)
    }

    /// One past the last packet that has a slot.
    pub(crate) fn limit(&self) -> u64 {
        self.base + self.capacity
    }

    /// Slots in all.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Free slots, given that everything below `next` has arrived.
    pub(crate) fn free_slots(&self, next: u64) -> u64 {
        self.limit().saturating_sub(next)
    }

    /// Takes a packet that has not arrived before and lies below the limit.
    pub(crate) fn put(&mut self, number: u64, data: &Data, message: u32, len: u32) -> Piece {
        self.grow(number);
        let index = self.index(number);
        self.slots[index] = Slot {
            state: State::Present,
            first: data.first,
            last: data.last,
            in_order: data.in_order,
            message,
            len,
        };
        self.searched = self.searched.min(number);
        Piece {
            position: self.position(number),
            len,
        }
    }

    /// Whether the packet belongs to `message` or is not known yet.
    pub(crate) fn may_drop(&self, number: u64, message: u32) -> bool {
        self.get(number)
            .is_none_or(|slot| slot.state == State::Empty || slot.message == message)
    }

    /// The sender gave the packet up.
    pub(crate) fn drop_packet(&mut self, number: u64) {
        if number < self.base || number >= self.limit() {
            return;
        }
        self.grow(number);
        let index = self.index(number);
        self.slots[index].state = State::Done;
        self.advance();
    }

    /// Next piece of a stream, if it is there.
    pub(crate) fn front(&self) -> Option<Piece> {
        let slot = self
            .slots
            .front()
            .filter(|slot| slot.state == State::Present)?;
        Some(Piece {
            position: self.position(self.base),
            len: slot.len,
        })
    }

    /// The caller has taken the front piece.
    pub(crate) fn pop_front(&mut self) {
        if let Some(slot) = self.slots.front_mut() {
            slot.state = State::Done;
            self.advance();
        }
    }

    /// Returns a complete message that may be delivered: the first, or any that may be out of
    /// order.
    pub(crate) fn message(&mut self) -> Option<Message> {
        self.discard_fragments();
        while let Some(message) = self.message_at(self.base) {
            if !self.is_repeated(&message) {
                return Some(message);
            }
            self.free(&message);
            self.discard_fragments();
        }
        let end = self.base + self.slots.len() as u64;
        let mut number = self.searched.max(self.base);
        while number < end {
            if let Some(message) = self.message_at(number) {
                if !self.slots[self.index(number)].in_order && !self.is_repeated(&message) {
                    self.searched = number;
                    return Some(message);
                }
                number = message.packets.end;
            } else {
                number += 1;
            }
        }
        self.searched = self.searched.max(self.base);
        None
    }

    /// The pieces of a message, in order.
    pub(crate) fn pieces(&self, message: &Message) -> impl Iterator<Item = Piece> + '_ {
        message.packets.clone().filter_map(|number| {
            let slot = self.get(number)?;
            Some(Piece {
                position: self.position(number),
                len: slot.len,
            })
        })
    }

    /// The caller has taken the message.
    pub(crate) fn release(&mut self, message: &Message) {
        if let Some(taken) = &mut self.taken {
            taken.truncate(TAKEN_KEPT - 1);
            taken.push_front(message.number);
        }
        self.free(message);
    }

    fn is_repeated(&self, message: &Message) -> bool {
        let taken = self.taken.as_ref();
        taken.is_some_and(|taken| taken.contains(&message.number))
    }

    fn free(&mut self, message: &Message) {
        for number in message.packets.clone() {
            if number >= self.base && self.get(number).is_some() {
                let index = self.index(number);
                self.slots[index].state = State::Done;
            }
        }
        self.advance();
    }

    /// Packets that arrived without gaps and form no message never will: their sender dropped the
    /// rest, or is broken.
    fn discard_fragments(&mut self) {
        while let Some(front) = self.slots.front()
            && front.state == State::Present
        {
            let (starts, ends, message) = (front.first, front.last, front.message);
            let inner = |slot: &Slot| {
                slot.state == State::Present && slot.message == message && !slot.first
            };
            let middle = |slot: &&Slot| inner(slot) && !slot.last;
            let run = 1 + self.slots.iter().skip(1).take_while(middle).count();
            let goes_on = |slot: &Slot| slot.state == State::Empty || inner(slot);
            if starts && (ends || self.slots.get(run).is_none_or(goes_on)) {
                return;
            }
            let broken = if starts { run } else { 1 };
            self.slots
                .iter_mut()
                .take(broken)
                .for_each(|slot| slot.state = State::Done);
            self.advance();
        }
    }

    fn message_at(&self, number: u64) -> Option<Message> {
        let first = self
            .get(number)
            .filter(|slot| slot.state == State::Present && slot.first)?;
        let mut len = 0;
        for end in number.. {
            let slot = self.get(end)?;
            let foreign = slot.message != first.message || slot.first && end > number;
            if slot.state != State::Present || foreign {
                return None;
            }
            len += u64::from(slot.len);
            if slot.last {
                return Some(Message {
                    number: first.message,
                    len,
                    packets: number..end + 1,
                });
            }
        }
        None
    }

    fn get(&self, number: u64) -> Option<&Slot> {
        let index = number.checked_sub(self.base)?;
        self.slots.get(usize::try_from(index).ok()?)
    }

    fn index(&self, number: u64) -> usize {
        usize::try_from(number - self.base).unwrap_or(usize::MAX)
    }

    fn position(&self, number: u64) -> u64 {
        number % self.capacity * u64::from(self.slot_len)
    }

    fn grow(&mut self, number: u64) {
        while self.base + self.slots.len() as u64 <= number {
            self.slots.push_back(Slot::default());
        }
    }

    fn advance(&mut self) {
        while self
            .slots
            .front()
            .is_some_and(|slot| slot.state == State::Done)
        {
            self.slots.pop_front();
            self.base += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seq::Seq;
    use crate::wire::SocketId;

    fn packet(number: u64, ends: (bool, bool), in_order: bool) -> Data {
        Data {
            seq: Seq::of(number),
            first: ends.0,
            last: ends.1,
            in_order,
            message: 0,
            word2: 0,
            destination: SocketId(1),
        }
    }

    #[test]
    fn messages_keep_their_order_unless_configured_otherwise() {
        let mut slots = Slots::new(0, 16, 100, false);
        slots.put(2, &packet(2, (true, true), true), 2, 10);
        slots.put(3, &packet(3, (true, true), false), 3, 20);
        let overtaker = slots.message().unwrap();
        assert_eq!((overtaker.number, overtaker.len), (3, 20));
        slots.release(&overtaker);
        assert_eq!(slots.message(), None);
        slots.put(0, &packet(0, (true, false), true), 1, 100);
        slots.put(1, &packet(1, (false, true), true), 1, 5);
        let first = slots.message().unwrap();
        assert_eq!((first.number, first.len), (1, 105));
        assert_eq!(
            slots
                .pieces(&first)
                .map(|piece| piece.position)
                .collect::<Vec<_>>(),
            [0, 100]
        );
        slots.release(&first);
        assert_eq!(slots.message().unwrap().number, 2);
        slots.release(&slots.message_at(2).unwrap());
        assert_eq!(slots.free_slots(4), 16);
    }

    #[test]
    fn a_message_interrupted_by_another_number_is_not_delivered() {
        let mut slots = Slots::new(0, 16, 100, false);
        slots.put(0, &packet(0, (true, false), true), 1, 100);
        slots.put(1, &packet(1, (false, true), true), 2, 100);
        assert_eq!(slots.message(), None);
    }

    #[test]
    fn a_message_that_a_plain_peer_sends_twice_is_delivered_once() {
        let mut slots = Slots::new(0, 16, 100, true);
        for number in [0, 2] {
            slots.put(number, &packet(number, (true, true), true), 3, 10);
        }
        slots.put(3, &packet(3, (true, true), true), 4, 10);
        slots.release(&slots.message_at(0).unwrap());
        slots.drop_packet(1);
        assert_eq!(slots.message().unwrap().number, 4);
    }

    #[test]
    fn the_rest_of_a_dropped_message_makes_way() {
        let mut slots = Slots::new(0, 16, 100, false);
        slots.put(0, &packet(0, (true, false), true), 1, 100);
        slots.put(1, &packet(1, (false, false), true), 1, 100);
        slots.put(3, &packet(3, (true, true), true), 2, 100);
        assert_eq!(slots.message(), None);
        slots.drop_packet(2);
        assert_eq!(slots.message().unwrap().number, 2);
    }

    #[test]
    fn dropped_packets_make_way() {
        let mut slots = Slots::new(0, 4, 100, false);
        slots.put(1, &packet(1, (true, true), true), 2, 1);
        slots.drop_packet(0);
        assert_eq!(slots.message().unwrap().number, 2);
    }
}
