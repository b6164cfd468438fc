//! The key of a sealed service.

use std::fmt;

use zeroize::Zeroize;

/// The key of a sealed datagram service: 32 random bytes, the same at all queue
/// pairs that exchange messages. Whoever has it can read and write in the name of any of them. It
/// is erased when dropped and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SealKey([u8; Self::LEN]);

impl SealKey {
    /// Bytes of a key.
    pub const LEN: usize = 32;

    /// Takes the bytes of a key.
    #[must_use]
    pub const fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes, for a provider.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl Drop for SealKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_does_not_print_its_bytes() {
        assert_eq!(format!("{:?}", SealKey::new([0x5a; 32])), "SealKey(…)");
    }
}
