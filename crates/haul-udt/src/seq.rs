//! 31-bit sequence numbers on the wire, 64-bit packet numbers inside.
//!
//! Only the wire wraps. A [`Seq`] becomes a packet number once, on arrival, relative to a packet
//! number known to be near; everything behind compares plain integers.

use std::fmt;

/// A sequence number as UDT sends it: 31 bits (UDT4 draft §3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Seq(u32);

const MASK: u32 = 0x7fff_ffff;
const SPAN: i64 = 1 << 31;

impl Seq {
    /// Makes a sequence number of the lower 31 bits of `raw`.
    #[must_use]
    pub const fn new(raw: u32) -> Self {
        Self(raw & MASK)
    }

    /// Returns the 31 bits.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the sequence number of packet `number`.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the wire carries the lower 31 bits"
    )]
    pub const fn of(number: u64) -> Self {
        Self(number as u32 & MASK)
    }

    /// Returns the packet number nearest to `near` that has this sequence number.
    #[must_use]
    pub fn extend(self, near: u64) -> u64 {
        let ahead = i64::from(self.0) - i64::from(Self::of(near).0);
        let distance = (ahead + SPAN / 2).rem_euclid(SPAN) - SPAN / 2;
        near.saturating_add_signed(distance)
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seq({:#x})", self.0)
    }
}

/// Extends the lower `bits` bits of an offset to the 64-bit offset nearest to `near`.
#[must_use]
pub(crate) fn extend_offset((low, bits): (u64, u32), near: u64) -> u64 {
    let unused = u64::BITS - bits;
    let distance = (low.wrapping_sub(near) << unused).cast_signed() >> unused;
    near.saturating_add_signed(distance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn extension_inverts_truncation_within_half_the_span(near in (1_u64 << 31)..(1 << 60), distance in -(1_i64 << 30)..(1 << 30)) {
            let number = near.saturating_add_signed(distance);
            prop_assert_eq!(Seq::of(number).extend(near), number);
        }

        #[test]
        fn offsets_extend_across_the_wrap(
            near in (1_u64 << 60)..(1 << 62),
            share in -1.0_f64..1.0,
            bits in 32..60_u32,
        ) {
            #[expect(clippy::cast_possible_truncation, reason = "less than half the range")]
            let distance = (share * (1_u64 << (bits - 1)) as f64) as i64;
            let offset = near.saturating_add_signed(distance);
            prop_assert_eq!(extend_offset((offset & ((1 << bits) - 1), bits), near), offset);
        }
    }
}
