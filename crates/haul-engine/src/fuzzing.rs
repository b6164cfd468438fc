//! What the fuzz targets call.

use std::sync::atomic::Ordering;

use haul_slab::SharedMemory;

use crate::entry;
use crate::message::{Async, Event, Reply, Request};
use crate::ring::{Consumer, Place, Producer};

/// Bytes as each kind of message.
pub fn control(bytes: &[u8]) {
    let _ = minicbor::decode::<Request>(bytes);
    if let Ok(Reply::Failed(failed)) = minicbor::decode(bytes) {
        let _ = failed.get();
    }
    let _ = minicbor::decode::<Event>(bytes);
    let _ = minicbor::decode::<Async>(bytes).map(Async::get);
}

/// Words as the memory of a ring: what both ends make of it is bounded by the ring.
pub fn rings(bytes: &[u8]) {
    const ENTRIES: u32 = 4;
    let Ok(memory) = SharedMemory::create(Place::bytes(ENTRIES, entry::REQUEST)) else {
        return;
    };
    for (word, chunk) in memory.words().iter().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..chunk.len()].copy_from_slice(chunk);
        word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
    }
    let place = || Place::new(&memory, 0, ENTRIES, entry::REQUEST);
    let (Some(first), Some(second)) = (place(), place()) else {
        return;
    };
    let mut consumer = Consumer::new(first);
    if let Ok(available) = consumer.available() {
        assert!(available <= ENTRIES);
        for _ in 0..available {
            let words: entry::Request = consumer.take();
            let _ = entry::send(&words);
            let _ = entry::recv(&words);
            let mut few = [0; entry::COMPLETION];
            few.copy_from_slice(&words[..entry::COMPLETION]);
            let _ = entry::completion(&few);
        }
        consumer.release();
    }
    let producer = Producer::new(second);
    assert!(producer.room().is_ok_and(|room| room <= ENTRIES) || producer.room().is_err());
}
