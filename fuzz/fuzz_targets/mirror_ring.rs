//! Sequences of operations on the two ends of a ring, against a queue.

#![no_main]

use std::collections::VecDeque;

use arbitrary::Arbitrary;
use haul_io::ring::mirror_ring;
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
enum Step {
    Produce { max: u16, share: u8 },
    Read { back: u16, len: u16 },
    Release { len: u16 },
}

fuzz_target!(|steps: Vec<Step>| {
    let (mut producer, mut consumer) = mirror_ring(8192).expect("a ring of two pages");
    let capacity = producer.capacity();
    let mut queue = VecDeque::new();
    for step in steps {
        match step {
            Step::Produce { max, share } => {
                let room = producer.writable(max.into());
                assert_eq!(room.len(), usize::from(max).min(capacity - queue.len()));
                let len = room.len() * usize::from(share) / 255;
                for (byte, value) in room[..len].iter_mut().zip(share..=u8::MAX) {
                    *byte = value;
                }
                queue.extend(&room[..len]);
                producer.commit(len);
            }
            Step::Read { back, len } => {
                let (back, len) = (usize::from(back), usize::from(len));
                let held = consumer.slice(consumer.released() + back as u64, len);
                assert_eq!(held.is_some(), back + len <= queue.len());
                if let Some(held) = held {
                    assert!(held.iter().eq(queue.range(back..back + len)));
                }
            }
            Step::Release { len } => {
                let len = usize::from(len).min(queue.len());
                consumer.release(consumer.released() + len as u64);
                queue.drain(..len);
            }
        }
    }
});
