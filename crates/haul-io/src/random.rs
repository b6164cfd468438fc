//! Random numbers from the kernel: secrets, keys and unpredictable names.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// `N` random bytes.
///
/// # Errors
/// That of `getrandom(2)`; none is known once the system has started.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_draws_differ() {
        assert_ne!(bytes::<16>().unwrap(), bytes::<16>().unwrap());
    }
}
