//! Copies between memory that only this thread uses and memory that others may read and write
//! meanwhile.
//!
//! In Rust's memory model each byte of the shared memory is accessed by relaxed atomic operations
//! of its own, so a racing copy is no data race: it sees old and new bytes mixed. Few bytes are
//! copied by such operations. Longer copies consist of instructions that the compiler does not see
//! into, and that the processor carries out as accesses to single bytes, or to more of them at
//! once: no byte tears, and none has a value that nobody wrote.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

/// Copies `len` bytes out of shared memory.
///
/// # Safety
/// `from` is valid for reads of `len` bytes, which others may access meanwhile, by this module or
/// by system calls; `to` is valid for writes of as many, and nobody else accesses it. They do not
/// overlap.
pub(crate) unsafe fn load(from: NonNull<u8>, to: *mut u8, len: usize) {
    // SAFETY: the caller's contract.
    if unsafe { opaque::copy(from.as_ptr(), to, len) } {
        return;
    }
    for at in 0..len {
        // SAFETY: the caller's contract.
        let byte = unsafe { shared(from, at) }.load(Ordering::Relaxed);
        // SAFETY: the caller's contract: `at` is below `len`.
        unsafe { to.wrapping_add(at).write(byte) };
    }
}

/// Copies `len` bytes into shared memory.
///
/// # Safety
/// As [`load`], the other way round.
pub(crate) unsafe fn store(from: *const u8, to: NonNull<u8>, len: usize) {
    // SAFETY: the caller's contract.
    if unsafe { opaque::copy(from, to.as_ptr(), len) } {
        return;
    }
    for at in 0..len {
        // SAFETY: the caller's contract: `at` is below `len`.
        let byte = unsafe { from.wrapping_add(at).read() };
        // SAFETY: the caller's contract.
        unsafe { shared(to, at) }.store(byte, Ordering::Relaxed);
    }
}

/// Sets `len` bytes of shared memory.
///
/// # Safety
/// `to` is valid for writes of `len` bytes, which others may access meanwhile as for [`load`].
pub(crate) unsafe fn fill(to: NonNull<u8>, len: usize, byte: u8) {
    // SAFETY: the caller's contract.
    if unsafe { opaque::fill(to.as_ptr(), len, byte) } {
        return;
    }
    for at in 0..len {
        // SAFETY: the caller's contract.
        unsafe { shared(to, at) }.store(byte, Ordering::Relaxed);
    }
}

/// A byte of shared memory.
///
/// # Safety
/// The byte at `at` is valid as long as the result is used, and others access it atomically.
unsafe fn shared<'a>(start: NonNull<u8>, at: usize) -> &'a AtomicU8 {
    // SAFETY: the caller's contract; a byte is always aligned.
    unsafe { AtomicU8::from_ptr(start.as_ptr().wrapping_add(at)) }
}

/// What the compiler does not see into. `false`: nothing was done.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod opaque {
    use std::arch::asm;

    const BLOCK: usize = 16;
    const LINE: usize = 64;
    /// From here on it pays to store at aligned addresses: a store across two cache lines takes two
    /// turns.
    const ALIGNED_MIN: usize = 256;
    /// From here on the processor's own loop is quicker.
    const STRING_MIN: usize = 4 << 10;

    /// # Safety
    /// Both are valid for `len` bytes and do not overlap.
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> bool {
        if len < BLOCK {
            return false;
        }
        if len >= STRING_MIN {
            // SAFETY: the caller's contract; the direction flag is clear between instructions of
            // Rust.
            unsafe {
                asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
                    options(nostack, preserves_flags));
            }
            return true;
        }
        let mut at = 0;
        if len >= ALIGNED_MIN {
            // SAFETY: `BLOCK` is less than `len`.
            unsafe { block(from, to) };
            at = BLOCK - to.addr() % BLOCK;
        }
        while at + LINE <= len {
            // SAFETY: `at + LINE` is at most `len`.
            unsafe { line(from.wrapping_add(at), to.wrapping_add(at)) };
            at += LINE;
        }
        while at + BLOCK <= len {
            // SAFETY: `at + BLOCK` is at most `len`.
            unsafe { block(from.wrapping_add(at), to.wrapping_add(at)) };
            at += BLOCK;
        }
        if at < len {
            // Some of its bytes are copied twice.
            let last = len - BLOCK;
            // SAFETY: `last + BLOCK` is `len`.
            unsafe { block(from.wrapping_add(last), to.wrapping_add(last)) };
        }
        true
    }

    /// # Safety
    /// Both are valid for a line.
    unsafe fn line(from: *const u8, to: *mut u8) {
        // SAFETY: the caller's contract.
        unsafe {
            asm!(
                "movups {a}, [{from}]", "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]", "movups {d}, [{from} + 48]",
                "movups [{to}], {a}", "movups [{to} + 16], {b}",
                "movups [{to} + 32], {c}", "movups [{to} + 48], {d}",
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                from = in(reg) from, to = in(reg) to, options(nostack, preserves_flags),
            );
        }
    }

    /// # Safety
    /// Both are valid for a block.
    unsafe fn block(from: *const u8, to: *mut u8) {
        // SAFETY: the caller's contract.
        unsafe {
            asm!("movups {a}, [{from}]", "movups [{to}], {a}", a = out(xmm_reg) _,
                from = in(reg) from, to = in(reg) to, options(nostack, preserves_flags));
        }
    }

    /// # Safety
    /// `to` is valid for `len` bytes.
    pub(super) unsafe fn fill(to: *mut u8, len: usize, byte: u8) -> bool {
        if len >= BLOCK {
            // SAFETY: the caller's contract; the direction flag is clear between instructions of
            // Rust.
            unsafe {
                asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") byte,
                    options(nostack, preserves_flags));
            }
        }
        len >= BLOCK
    }
}

/// Elsewhere there are only the single operations.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod opaque {
    /// # Safety
    /// None is needed.
    pub(super) unsafe fn copy(_from: *const u8, _to: *mut u8, _len: usize) -> bool {
        false
    }

    /// # Safety
    /// None is needed.
    pub(super) unsafe fn fill(_to: *mut u8, _len: usize, _byte: u8) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_and_no_other_is_copied() {
        let lens = (0..300).chain([1_452, 4_095, 4_096, 4_097, 10_000]);
        for (len, shift) in lens.flat_map(|len| [(len, 0), (len, 1), (len, 15)]) {
            let from: Vec<u8> = (0..=250).cycle().take(len).collect();
            let mut shared = vec![0xee_u8; len + 32];
            let start = NonNull::new(shared[shift..].as_mut_ptr()).unwrap();
            // SAFETY: the vector has that many bytes from there on, and nobody else uses it.
            unsafe { store(from.as_ptr(), start, len) };
            assert_eq!(shared[shift..shift + len], from, "{len} at {shift}");
            assert!(shared[..shift].iter().all(|byte| *byte == 0xee));
            assert!(shared[shift + len..].iter().all(|byte| *byte == 0xee));
            let mut to = vec![0xdd_u8; len + 1];
            let start = NonNull::new(shared[shift..].as_mut_ptr()).unwrap();
            // SAFETY: as above.
            unsafe { load(start, to.as_mut_ptr(), len) };
            assert_eq!(to[..len], from);
            assert_eq!(to[len], 0xdd);
            // SAFETY: as above.
            unsafe { fill(start, len, 0x11) };
            assert!(shared[shift..shift + len].iter().all(|byte| *byte == 0x11));
            assert_eq!(shared[shift + len], 0xee);
        }
    }
}
