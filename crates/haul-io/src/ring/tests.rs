use std::collections::VecDeque;
use std::thread;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Produce { max: usize, share: usize },
    Read { back: usize, len: usize },
    Release { len: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..9000_usize, 0..=100_usize).prop_map(|(max, share)| Step::Produce { max, share }),
        (0..9000_usize, 0..9000_usize).prop_map(|(back, len)| Step::Read { back, len }),
        (0..9000_usize).prop_map(|len| Step::Release { len }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn ring_agrees_with_a_queue(steps in vec(step(), 1..200)) {
        let (mut producer, mut consumer) = mirror_ring(8192).unwrap();
        let capacity = producer.capacity();
        let mut oracle = VecDeque::new();
        let mut next = 0_u64;
        for step in steps {
            match step {
                Step::Produce { max, share } => {
                    let room = producer.writable(max);
                    prop_assert_eq!(room.len(), max.min(capacity - oracle.len()));
                    let len = room.len() * share / 100;
                    for byte in &mut room[..len] {
                        *byte = (next * 7 % 251).to_le_bytes()[0];
                        oracle.push_back(*byte);
                        next += 1;
                    }
                    producer.commit(len);
                }
                Step::Read { back, len } => {
                    let offset = consumer.released() + back as u64;
                    let held = consumer.slice(offset, len);
                    prop_assert_eq!(held.is_some(), back + len <= oracle.len());
                    if let Some(held) = held {
                        prop_assert!(held.iter().eq(oracle.range(back..back + len)));
                    }
                }
                Step::Release { len } => {
                    let len = len.min(oracle.len());
                    consumer.release(consumer.released() + len as u64);
                    oracle.drain(..len);
                }
            }
            prop_assert_eq!(consumer.committed(), next);
            prop_assert_eq!(consumer.committed() - consumer.released(), oracle.len() as u64);
        }
    }
}

#[test]
fn every_byte_crosses_between_threads_once_and_in_order() {
    const BYTES: u64 = 4 << 20;
    let (mut producer, mut consumer) = mirror_ring(3 * 4096).unwrap();
    let writer = thread::spawn(move || {
        let mut size = 1;
        while producer.committed() < BYTES {
            let left = usize::try_from(BYTES - producer.committed()).unwrap();
            let start = producer.committed();
            let room = producer.writable(left.min(size));
            for (byte, offset) in room.iter_mut().zip(start..) {
                *byte = (offset * 13 % 241).to_le_bytes()[0];
            }
            let len = room.len();
            producer.commit(len);
            size = size * 5 % 7919 + 1;
            if len == 0 {
                thread::yield_now();
            }
        }
        producer.finish();
    });
    let mut size = 1;
    loop {
        let (end, ending) = consumer.extent();
        let start = consumer.released();
        if start == end {
            if ending == Ending::Finished {
                break;
            }
            assert_eq!(ending, Ending::Open);
            thread::yield_now();
        }
        let len = usize::try_from(end - start).unwrap().min(size);
        let held = consumer.slice(start, len).unwrap();
        assert!(
            held.iter()
                .zip(start..)
                .all(|(&byte, offset)| byte == (offset * 13 % 241).to_le_bytes()[0])
        );
        consumer.release(start + len as u64);
        size = size * 3 % 8191 + 1;
    }
    assert_eq!(consumer.released(), BYTES);
    writer.join().unwrap();
}

#[test]
fn range_over_the_seam_is_one_slice() {
    let (mut producer, mut consumer) = mirror_ring(4096).unwrap();
    let capacity = producer.capacity();
    producer.commit(capacity - 3);
    consumer.release(capacity as u64 - 3);
    producer.writable(6).copy_from_slice(b"seam!!");
    producer.commit(6);
    assert_eq!(consumer.slice(capacity as u64 - 3, 6), Some(&b"seam!!"[..]));
}

#[test]
fn slices_outside_what_is_held_are_refused() {
    let (mut producer, mut consumer) = mirror_ring(4096).unwrap();
    producer.commit(100);
    consumer.release(10);
    assert!(consumer.slice(9, 1).is_none());
    assert!(consumer.slice(10, 91).is_none());
    assert!(consumer.slice(u64::MAX, 1).is_none());
    assert_eq!(consumer.slice(10, 90).map(<[u8]>::len), Some(90));
    assert_eq!(consumer.slice(100, 0).map(<[u8]>::len), Some(0));
    consumer.release(5);
    assert_eq!(consumer.released(), 10);
}

#[test]
fn an_end_is_distinguished_from_a_lost_producer() {
    let (producer, consumer) = mirror_ring(1).unwrap();
    assert_eq!(consumer.extent(), (0, Ending::Open));
    producer.finish();
    assert_eq!(consumer.extent(), (0, Ending::Finished));
    let (mut producer, consumer) = mirror_ring(1).unwrap();
    producer.commit(1);
    drop(producer);
    assert_eq!(consumer.extent(), (1, Ending::Lost));
    let (producer, consumer) = mirror_ring(1).unwrap();
    assert!(!producer.is_consumer_gone());
    drop(consumer);
    assert!(producer.is_consumer_gone());
}

#[test]
#[should_panic(expected = "of 0 free ones")]
fn committing_more_than_is_free_is_a_fault_of_the_caller() {
    let (mut producer, _consumer) = mirror_ring(1).unwrap();
    let capacity = producer.capacity();
    producer.commit(capacity);
    producer.commit(1);
}
