//! The secret of a channel, and the keys that follow from it.

use std::fmt;

use aws_lc_rs::aead::{AES_128_GCM, Algorithm, CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk};
use zeroize::Zeroize;

/// The cipher of a channel. Both ends must use the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cipher {
    /// AES-128-GCM (NIST SP 800-38D).
    #[default]
    Aes128Gcm,
    /// ChaCha20-Poly1305 (RFC 8439), for processors without AES instructions.
    ChaCha20Poly1305,
}

impl Cipher {
    /// Returns the cipher that this processor computes faster.
    #[must_use]
    pub fn preferred() -> Self {
        #[cfg(target_arch = "x86_64")]
        let has_aes = std::arch::is_x86_feature_detected!("aes");
        #[cfg(target_arch = "aarch64")]
        let has_aes = std::arch::is_aarch64_feature_detected!("aes");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let has_aes = false;
        if has_aes {
            Self::Aes128Gcm
        } else {
            Self::ChaCha20Poly1305
        }
    }

    pub(crate) fn algorithm(self) -> &'static Algorithm {
        match self {
            Self::Aes128Gcm => &AES_128_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }
}

/// A secret that two ends share: 32 bytes, erased when dropped and never printed.
///
/// A secret MUST belong to one connection only. Two connections under one secret would repeat
/// nonces.
#[derive(Clone)]
pub struct Secret([u8; Self::LEN]);

impl Secret {
    /// Bytes of a secret.
    pub const LEN: usize = 32;

    /// Takes the bytes of a secret, which must not be predictable.
    #[must_use]
    pub const fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Derives another secret with HKDF-Expand-Label (RFC 8446 §7.1, SHA-256). `label` has at most
    /// 249 bytes, `context` at most 255; longer ones are cut.
    #[must_use]
    pub fn derive(&self, label: &str, context: &[u8]) -> Self {
        let mut derived = [0; Self::LEN];
        self.expand(label, context, &mut derived);
        Self(derived)
    }

    /// Fills `out`, at most 255 bytes, with HKDF-Expand-Label of this secret. They disclose nothing
    /// of what is derived with another label.
    pub fn expand(&self, label: &str, context: &[u8], out: &mut [u8]) {
        const PREFIX: &[u8] = b"tls13 ";
        let len = u8::try_from(out.len()).unwrap_or(u8::MAX);
        let label = &label.as_bytes()[..label.len().min(usize::from(u8::MAX) - PREFIX.len())];
        let context = &context[..context.len().min(usize::from(u8::MAX))];
        let label_len = u8::try_from(PREFIX.len() + label.len()).unwrap_or(u8::MAX);
        let context_len = u8::try_from(context.len()).unwrap_or(u8::MAX);
        let info = [&[0, len, label_len], PREFIX, label, &[context_len], context];
        let expanded = Prk::new_less_safe(HKDF_SHA256, &self.0)
            .expand(&info, Len(usize::from(len)))
            .and_then(|okm| okm.fill(out));
        // Fails only for more than 255 blocks of output.
        debug_assert!(expanded.is_ok());
    }

    /// Makes the key and the initial nonce that this secret stands for (RFC 8446 §7.3). `None` if
    /// the library has no such cipher.
    pub(crate) fn key(&self, cipher: Cipher) -> Option<(LessSafeKey, [u8; 12])> {
        let algorithm = cipher.algorithm();
        let mut bytes = [0; 32];
        let key_bytes = &mut bytes[..algorithm.key_len()];
        self.expand("haul key", &[], key_bytes);
        let key = UnboundKey::new(algorithm, key_bytes);
        bytes.zeroize();
        let mut iv = [0; 12];
        self.expand("haul iv", &[], &mut iv);
        Some((LessSafeKey::new(key.ok()?), iv))
    }
}

/// What both ends of a sealed channel hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seal {
    /// The secret of this channel alone.
    pub secret: Secret,
    /// The cipher that both ends agreed on.
    pub cipher: Cipher,
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl Eq for Secret {}

/// The length that `aws_lc_rs::hkdf` is asked for.
struct Len(usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print_its_bytes() {
        let secret = Secret::new([0x5a; 32]);
        let printed = format!("{secret:?}");
        assert!(
            !printed.contains("90") && !printed.contains("5a"),
            "{printed}"
        );
    }

    #[test]
    fn label_and_context_make_different_secrets() {
        let secret = Secret::new([1; 32]);
        let derived = [
            secret.derive("a", b""),
            secret.derive("b", b""),
            secret.derive("a", b"\0"),
            secret.derive("ab", b""),
        ];
        for (at, one) in derived.iter().enumerate() {
            assert!(derived[at + 1..].iter().all(|other| one != other));
        }
        assert!(derived[0] == secret.derive("a", b""));
    }
}
