//! Segment sizes of a message. All segments but the last have the same length and carry it, so that
//! the offset determines the packet's index. The path MTU at the start of a message sets its
//! segment size.

use super::control::AROUND_SEGMENT;
use crate::datagram::wire::Flags;

/// The capability in terms: messages may be cut for sizes other than the agreed one.
pub(super) const CAPABILITY: u32 = 1;

/// Bytes of UDP payload by number, from 1 on: what usual MTUs leave (`haul_cc::path_mtu`), sealed
/// and not.
const SIZES: [u16; 15] = [
    1_196, 1_216, 1_232, 1_252, 1_292, 1_332, 1_352, 1_372, 1_412, 1_432, 1_452, 2_000, 4_304,
    7_952, 8_952,
];

/// The number of a size; zero is the datagram that both ends agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Size(u8);

impl Size {
    pub(super) const AGREED: Self = Self(0);

    /// Returns the longest size of at most `octets`, where `agreed` were agreed on; `None` if all
    /// are longer.
    pub(super) fn fitting(octets: u32, agreed: u16) -> Option<Self> {
        if u32::from(agreed) <= octets {
            return Some(Self::AGREED);
        }
        let count = SIZES.partition_point(|&size| u32::from(size) <= octets);
        u8::try_from(count)
            .ok()
            .filter(|&count| count > 0)
            .map(Self)
    }

    pub(super) const fn of(flags: Flags) -> Self {
        Self(flags.size())
    }

    pub(super) const fn flags(self) -> Flags {
        Flags::NONE.with_size(self.0)
    }

    /// Bytes of the longest DDP segment.
    pub(super) fn segment_max(self, agreed: u16) -> u32 {
        let size = usize::from(self.0).checked_sub(1);
        let size = size.and_then(|at| SIZES.get(at)).copied();
        u32::from(size.map_or(agreed, |size| size.min(agreed))) - AROUND_SEGMENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_that_fits_is_chosen_and_both_ends_take_it_for_the_same() {
        for agreed in [256, 1_200, 1_232, 1_436, 1_472, 8_972, u16::MAX] {
            for octets in 1_196..u32::from(u16::MAX) {
                let size = Size::fitting(octets, agreed).unwrap();
                let segment_max = size.segment_max(agreed);
                assert!(segment_max + AROUND_SEGMENT <= octets);
                assert_eq!(Size::of(size.flags()), size);
                assert!(segment_max + AROUND_SEGMENT >= 1_196.min(agreed.into()));
            }
        }
        assert_eq!(Size::fitting(1_195, 1_472), None);
        assert_eq!(Size::fitting(1_252, 1_472), Some(Size(4)));
    }
}
