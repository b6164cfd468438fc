use super::*;

fn entry(len: usize) -> Entry {
    Entry {
        region: Region::map(len).unwrap(),
        base: 0,
        access: AccessFlags::LOCAL_WRITE,
        pd: 1,
        note: None,
    }
}

#[cfg(not(loom))]
mod plain {
    use super::*;

    #[test]
    fn a_name_finds_its_region_until_it_is_taken_away() {
        let registry = Registry::new([0, 7]);
        let registration = registry.register(entry(100)).unwrap();
        let stag = registration.stag();
        assert_eq!(registry.lookup(stag).unwrap().region.len(), 100);
        assert!(registry.lookup(Stag(stag.0 ^ 1)).is_none());
        assert!(registry.lookup(Stag(stag.0 ^ 0x8000_0000)).is_none());
        assert!(registry.invalidate(stag));
        assert!(registry.lookup(stag).is_none());
        assert!(!registry.invalidate(stag));
    }

    #[test]
    fn a_dropped_registration_leaves_a_dead_name() {
        let registry = Registry::new([0, 7]);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..if cfg!(miri) { 10 } else { 1_000 } {
            let registration = registry.register(entry(1)).unwrap();
            let stag = registration.stag();
            assert!(seen.insert(stag), "used again: {stag:?}");
            drop(registration);
            assert!(registry.lookup(stag).is_none());
        }
    }

    #[test]
    fn a_name_used_again_has_another_key() {
        let registry = Registry::new([0, 7]);
        let first = registry.register(entry(1)).unwrap().stag();
        let mut free = registry.0.free.lock().unwrap();
        free.fresh = REGIONS_MAX;
        drop(free);
        let second = registry.register(entry(1)).unwrap();
        assert_eq!(second.stag().index(), first.index());
        assert_eq!(second.stag().key(), first.key().wrapping_add(1));
        assert!(registry.lookup(first).is_none());
        assert!(registry.lookup(second.stag()).is_some());
        assert!(registry.register(entry(1)).is_none(), "all are taken");
    }

    #[test]
    fn guessed_names_are_rarely_right() {
        let registry = Registry::new([0, 0x1234_5678]);
        let held: Vec<_> = (0..if cfg!(miri) { 4 } else { 1_000 })
            .map(|_| registry.register(entry(1)).unwrap())
            .collect();
        let sequential = (0..100_000_u32).step_by(if cfg!(miri) { 999 } else { 1 });
        let hits = sequential.filter(|guess| registry.lookup(Stag(*guess)).is_some());
        assert!(hits.count() <= 1, "of {} names", held.len());
    }

    #[test]
    fn bounds_hold_at_both_ends_of_the_address_space() {
        let mut high = entry(100);
        high.base = u64::MAX - 100;
        assert_eq!(high.offset(u64::MAX - 100, 100), Some(0));
        assert_eq!(high.offset(u64::MAX - 1, 1), Some(99));
        assert_eq!(high.offset(u64::MAX, 1), None);
        assert_eq!(high.offset(u64::MAX - 50, u64::MAX), None);
        assert_eq!(high.offset(u64::MAX - 101, 1), None);
        high.base = u64::MAX - 99;
        assert!(Registry::new([0, 1]).register(high).is_none());
    }

    #[test]
    fn nobody_uses_a_region_after_its_name_was_taken_away() {
        let rounds = if cfg!(miri) { 3 } else { 2_000 };
        let registry = Registry::new([0, 3]);
        for _ in 0..rounds {
            let registration = registry.register(entry(64)).unwrap();
            let stag = registration.stag();
            std::thread::scope(|scope| {
                let user = scope.spawn(|| {
                    let mut used = 0_u32;
                    while let Some(guard) = registry.lookup(stag) {
                        guard.region.write(0, &[1; 64]).unwrap();
                        used += 1;
                    }
                    used
                });
                registry.invalidate(stag);
                user.join().unwrap();
            });
        }
    }
}

#[cfg(loom)]
mod loom_tests {
    use super::*;

    #[test]
    fn a_lookup_either_holds_the_region_or_does_not_see_it() {
        loom::model(|| {
            let registry = Registry::new([0, 3]);
            let registration = registry.register(entry(1)).unwrap();
            let stag = registration.stag();
            let theirs = registry.clone();
            let user = loom::thread::spawn(move || {
                if let Some(guard) = theirs.lookup(stag) {
                    assert_eq!(guard.pd, 1);
                }
            });
            // Loom's cell complains if the entry is taken out while a guard looks at it.
            registry.invalidate(stag);
            user.join().unwrap();
            assert!(registry.lookup(stag).is_none());
        });
    }
}
