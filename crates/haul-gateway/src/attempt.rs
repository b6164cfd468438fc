//! How long each attempt to connect may take, where there are several addresses to try.

use haul_xsp::Time;

/// When an attempt that begins now is given up for the next: of the time that is left until `until`
/// it and each of the `others` behind it have an equal part, the last one all of it.
pub(crate) fn until(now: Time, until: Time, others: usize) -> Time {
    now.after(until.since(now) / (others as u64 + 1))
}

#[cfg(test)]
mod tests {
    use haul_xsp::SECOND_NS;

    use super::*;

    #[test]
    fn each_address_has_an_equal_part_of_what_is_left() {
        let at = |seconds: u64| Time::from_ns(seconds * SECOND_NS);
        assert_eq!(until(at(5), at(15), 1), at(10));
        assert_eq!(until(at(5), at(15), 4), at(7));
        assert_eq!(until(at(10), at(15), 0), at(15));
        // A moment that has passed leaves nothing.
        assert_eq!(until(at(16), at(15), 3), at(16));
    }
}
