use super::*;

#[cfg(not(loom))]
mod model {
    use proptest::prelude::*;

    use super::*;

    /// What the ring is, as inequalities over numbers that nobody shares.
    #[derive(Debug)]
    struct Oracle {
        slots: u64,
        cursors: Vec<u64>,
        done: Vec<std::collections::BTreeSet<u64>>,
    }

    impl Oracle {
        fn held(&self, stage: usize) -> u64 {
            let limit = match stage {
                0 => self.cursors[self.cursors.len() - 1] + self.slots,
                _ => self.cursors[stage - 1],
            };
            limit - self.cursors[stage]
        }

        fn finish(&mut self, stage: usize, position: u64) -> u64 {
            let own = self.cursors[stage];
            if !(own..own + self.held(stage)).contains(&position) {
                return 0;
            }
            self.done[stage].insert(position);
            while self.done[stage].remove(&self.cursors[stage]) {
                self.cursors[stage] += 1;
            }
            self.cursors[stage] - own
        }

        fn release(&mut self, stage: usize, count: u64) -> u64 {
            let count = count.min(self.held(stage));
            self.cursors[stage] += count;
            let own = self.cursors[stage];
            self.done[stage].retain(|position| *position >= own);
            count
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Operation {
        Release { stage: usize, count: u64 },
        Finish { stage: usize, ahead: u64 },
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            (0..8_usize, 0..12_u64).prop_map(|(stage, count)| Operation::Release { stage, count }),
            (0..8_usize, 0..12_u64).prop_map(|(stage, ahead)| Operation::Finish { stage, ahead }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 2 } else { 256 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn every_stage_holds_what_the_inequalities_say(
            count in 2..5_usize,
            slots in 0..5_u32,
            operations in prop::collection::vec(operation(), 1..if cfg!(miri) { 30 } else { 400 }),
        ) {
            let memory = Region::map(4096).unwrap();
            let mut ring = stages(&memory.cut(0, 8 << slots).unwrap(), 8, count).unwrap();
            let mut oracle = Oracle {
                slots: 1 << slots,
                cursors: vec![0; count],
                done: vec![Default::default(); count],
            };
            for operation in operations {
                match operation {
                    Operation::Release { stage, count: wanted } => {
                        let stage = stage % count;
                        prop_assert_eq!(ring[stage].acquire(u64::MAX), oracle.held(stage));
                        prop_assert_eq!(ring[stage].release(wanted), oracle.release(stage, wanted));
                    }
                    Operation::Finish { stage, ahead } => {
                        let stage = stage % count;
                        prop_assert_eq!(ring[stage].acquire(u64::MAX), oracle.held(stage));
                        let position = ring[stage].position() + ahead;
                        prop_assert_eq!(ring[stage].finish(position), oracle.finish(stage, position));
                    }
                }
                for (stage, own) in ring.iter().zip(&oracle.cursors) {
                    prop_assert_eq!(stage.position(), *own);
                }
            }
        }
    }

    #[test]
    fn three_threads_move_every_slot_once_and_see_its_content() {
        const SLOTS: u64 = if cfg!(miri) { 50 } else { 200_000 };
        let memory = Region::map(64 * 8).unwrap();
        let mut ring = stages(&memory, 8, 3).unwrap().into_iter();
        let (mut fill, mut forward, mut retire) = (
            ring.next().unwrap(),
            ring.next().unwrap(),
            ring.next().unwrap(),
        );
        std::thread::scope(|scope| {
            scope.spawn(move || {
                each(&mut fill, SLOTS, |position, slot| {
                    slot.write(0, &position.to_ne_bytes()).unwrap();
                });
            });
            scope.spawn(move || {
                each(&mut forward, SLOTS, |position, slot| {
                    assert_eq!(number(slot), position);
                    slot.write(0, &(position * 3).to_ne_bytes()).unwrap();
                });
            });
            each(&mut retire, SLOTS, |position, slot| {
                assert_eq!(number(slot), position * 3);
            });
        });
    }

    fn each(stage: &mut Stage, slots: u64, mut work: impl FnMut(u64, &Region)) {
        while stage.position() < slots {
            let held = stage.acquire(1).min(slots - stage.position());
            for position in stage.position()..stage.position() + held {
                work(position, &stage.slot(position).unwrap().unwrap());
            }
            if stage.release(held) == 0 {
                std::thread::yield_now();
            }
        }
    }

    fn number(slot: &Region) -> u64 {
        let mut bytes = [0; 8];
        slot.read(0, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn a_slot_that_is_not_held_has_no_memory() {
        let memory = Region::map(4096).unwrap();
        let mut ring = stages(&memory, 1024, 2).unwrap();
        assert!(ring[0].slot(3).is_some());
        assert!(ring[0].slot(4).is_none());
        assert!(ring[1].slot(0).is_none());
        ring[0].release(1);
        assert!(ring[0].slot(0).is_none());
        assert_eq!(ring[1].acquire(1), 1);
        assert!(ring[1].slot(0).is_some());
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        let memory = Region::map(4096).unwrap();
        for (slot_len, count, wrong) in [
            (0, 2, Shape::TooSmall),
            (4097, 2, Shape::TooSmall),
            (64, 1, Shape::Stages),
            (64, 17, Shape::Stages),
        ] {
            assert_eq!(stages(&memory, slot_len, count).unwrap_err(), wrong);
        }
        assert_eq!(stages(&memory, 1000, 2).unwrap()[0].slots(), 4);
        assert_eq!(stages(&memory, 1300, 2).unwrap()[0].slots(), 2);
    }
}

#[cfg(loom)]
mod loom_tests {
    use loom::cell::UnsafeCell;

    use super::*;

    #[test]
    fn no_interleaving_shows_a_slot_to_two_stages() {
        loom::model(|| {
            let memory = Region::map(4096).unwrap().cut(0, 2).unwrap();
            let mut ring = stages(&memory, 1, 2).unwrap().into_iter();
            let (mut fill, mut retire) = (ring.next().unwrap(), ring.next().unwrap());
            // The cells stand for the slots' bytes, of which loom sees nothing.
            let cells = Arc::new([UnsafeCell::new(0_u64), UnsafeCell::new(0)]);
            let theirs = Arc::clone(&cells);
            let filler = loom::thread::spawn(move || {
                while fill.position() < 3 {
                    if fill.acquire(1) > 0 {
                        let position = fill.position();
                        let cell = &theirs[fill.offset(position).unwrap()];
                        // SAFETY: the slot is this stage's; loom checks just that.
                        cell.with_mut(|value| unsafe { *value = position + 1 });
                        fill.finish(position);
                    } else {
                        loom::thread::yield_now();
                    }
                }
            });
            while retire.position() < 3 {
                if retire.acquire(1) > 0 {
                    let position = retire.position();
                    let cell = &cells[retire.offset(position).unwrap()];
                    // SAFETY: as above.
                    cell.with(|value| assert_eq!(unsafe { *value }, position + 1));
                    retire.release(1);
                } else {
                    loom::thread::yield_now();
                }
            }
            filler.join().unwrap();
        });
    }
}
