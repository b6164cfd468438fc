//! Which system calls of an application `haul run` decides: a seccomp filter, in the language of
//! the kernel's classic BPF.
//!
//! The filter is no security boundary. It makes sure that no TCP connection leaves without `haul
//! run` having seen it: what the supervisor cannot carry, the filter refuses with the error of a
//! kernel that lacks the feature.

use libc::{c_int, c_long, sock_filter};

use crate::sys::OWN;

const ARCH_X86_64: u32 = 0xc000_003e;
const ARCH_I386: u32 = 0x4000_0003;
const ARCH_AARCH64: u32 = 0xc000_00b7;
const ARCH_ARM: u32 = 0x4000_0028;

/// The architecture of this program.
pub(super) const NATIVE: u32 = if cfg!(target_arch = "aarch64") {
    ARCH_AARCH64
} else {
    ARCH_X86_64
};
/// The architecture of 32-bit applications here, and their numbers of connect(2) and socketcall(2).
/// They cannot load the library.
const SMALL: (u32, u32, Option<u32>) = if cfg!(target_arch = "aarch64") {
    (ARCH_ARM, 283, None)
} else {
    (ARCH_I386, 362, Some(102))
};
/// connect(2) as an argument of socketcall(2).
const SOCKETCALL_CONNECT: u32 = 3;
/// Sockets of SMC (linux/socket.h).
const AF_SMC: u32 = 43;
/// The bit of system calls of x32, the 32-bit interface of x86-64.
const X32: u32 = 0x4000_0000;

/// A call that the supervisor decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// connect(2): descriptor, address, length.
    Connect([u64; 3]),
    /// socketcall(2) of a 32-bit application: where the three arguments of connect(2) are.
    Socketcall(u64),
    /// getpeername(2): descriptor, address, where the length is.
    Peer([u64; 3]),
    /// getsockopt(2) of `SO_ERROR`: descriptor, where the number goes, where its length is.
    Error([u64; 3]),
}

/// What a notification of the kernel is about.
pub(super) fn call(data: &libc::seccomp_data) -> Option<Call> {
    let [a, b, c, d, e, _] = data.args;
    let (number, (small, connect, socketcall)) = (c_long::from(data.nr), SMALL);
    let is_small = |wanted: u32| u32::try_from(data.nr) == Ok(wanted);
    if data.arch == small {
        return match socketcall {
            _ if is_small(connect) => Some(Call::Connect([a, b, c])),
            Some(socketcall) if is_small(socketcall) => Some(Call::Socketcall(b)),
            _ => None,
        };
    }
    match number {
        libc::SYS_connect => Some(Call::Connect([a, b, c])),
        libc::SYS_getpeername => Some(Call::Peer([a, b, c])),
        libc::SYS_getsockopt => Some(Call::Error([a, d, e])),
        _ => None,
    }
}

/// The filter.
pub(super) fn program() -> Vec<sock_filter> {
    const NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;
    let refuse = |errno: c_int| libc::SECCOMP_RET_ERRNO | u32::try_from(errno).unwrap_or(0);
    let word = |number: c_int| u32::try_from(number).unwrap_or(0);
    let fast_open = word(libc::MSG_FASTOPEN);
    let (small, connect, socketcall) = SMALL;

    let mut code = Code::default();
    code.load(ARCH);
    // 32-bit applications.
    let mut theirs = Code::default();
    theirs.load(NUMBER);
    theirs.when(connect, |code| code.end(NOTIFY));
    if let Some(socketcall) = socketcall {
        theirs.when(socketcall, |code| {
            code.load(argument(0));
            code.when(SOCKETCALL_CONNECT, |code| code.end(NOTIFY));
        });
    }
    theirs.end(libc::SECCOMP_RET_ALLOW);
    code.when(small, |code| code.0.extend(theirs.0));
    // Others than this program's architecture are not to be expected.
    code.unless(NATIVE, |code| code.end(refuse(libc::ENOSYS)));
    code.load(NUMBER);
    if cfg!(target_arch = "x86_64") {
        code.when_any(X32, |code| code.end(refuse(libc::ENOSYS)));
    }
    code.call(libc::SYS_connect, |code| {
        code.end_of_own(3);
        code.end(NOTIFY);
    });
    code.call(libc::SYS_getpeername, |code| {
        code.end_of_own(3);
        code.end(NOTIFY);
    });
    code.call(libc::SYS_getsockopt, |code| {
        code.load(argument(1));
        code.unless(word(libc::SOL_SOCKET), |code| {
            code.end(libc::SECCOMP_RET_ALLOW)
        });
        code.load(argument(2));
        code.unless(word(libc::SO_ERROR), |code| {
            code.end(libc::SECCOMP_RET_ALLOW)
        });
        code.end_of_own(5);
        code.end(NOTIFY);
    });
    // These would connect, too.
    for (number, flags) in [
        (libc::SYS_sendto, 3),
        (libc::SYS_sendmsg, 2),
        (libc::SYS_sendmmsg, 3),
    ] {
        code.call(number, |code| {
            code.load(argument(flags));
            code.when_any(fast_open, |code| code.end(refuse(libc::EOPNOTSUPP)));
            code.end(libc::SECCOMP_RET_ALLOW);
        });
    }
    code.call(libc::SYS_socket, |code| {
        // Its sockets connect by TCP inside the kernel.
        code.load(argument(0));
        code.when(AF_SMC, |code| code.end(refuse(libc::EAFNOSUPPORT)));
        code.load(argument(2));
        code.when(word(libc::IPPROTO_MPTCP), |code| {
            code.end(refuse(libc::EPROTONOSUPPORT))
        });
        code.end(libc::SECCOMP_RET_ALLOW);
    });
    code.call(libc::SYS_io_uring_setup, |code| {
        code.end(refuse(libc::EPERM))
    });
    code.end(libc::SECCOMP_RET_ALLOW);
    code.0
}

/// Places in a `seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;

/// The lower half of an argument.
const fn argument(at: u32) -> u32 {
    16 + 8 * at + if cfg!(target_endian = "big") { 4 } else { 0 }
}

/// Instructions. Jumps go forward over a block, as far as 255 instructions.
#[derive(Debug, Default)]
struct Code(Vec<sock_filter>);

impl Code {
    fn push(&mut self, code: u32, k: u32, (jt, jf): (u8, u8)) {
        let code = u16::try_from(code).unwrap_or(0);
        self.0.push(sock_filter { code, jt, jf, k });
    }

    /// Takes a word of the call's data.
    fn load(&mut self, at: u32) {
        self.push(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, (0, 0));
    }

    fn end(&mut self, action: u32) {
        self.push(libc::BPF_RET | libc::BPF_K, action, (0, 0));
    }

    /// Jumps over a block unless a test of the word holds.
    fn block(&mut self, test: u32, k: u32, holds: bool, body: impl FnOnce(&mut Self)) {
        let mut block = Self::default();
        body(&mut block);
        let over = u8::try_from(block.0.len()).expect("blocks are short");
        let jump = if holds { (0, over) } else { (over, 0) };
        self.push(libc::BPF_JMP | test | libc::BPF_K, k, jump);
        self.0.extend(block.0);
    }

    /// If the word is that.
    fn when(&mut self, k: u32, body: impl FnOnce(&mut Self)) {
        self.block(libc::BPF_JEQ, k, true, body);
    }

    /// If it is not.
    fn unless(&mut self, k: u32, body: impl FnOnce(&mut Self)) {
        self.block(libc::BPF_JEQ, k, false, body);
    }

    /// If it has one of these bits.
    fn when_any(&mut self, bits: u32, body: impl FnOnce(&mut Self)) {
        self.block(libc::BPF_JSET, bits, true, body);
    }

    /// If the word is the number of this system call; the block ends the filter.
    fn call(&mut self, number: c_long, body: impl FnOnce(&mut Self)) {
        self.when(u32::try_from(number).unwrap_or(u32::MAX), body);
    }

    /// Allows calls that the library has marked in this argument.
    fn end_of_own(&mut self, at: u32) {
        #[expect(clippy::cast_possible_truncation, reason = "both halves of it")]
        let (low, high) = (OWN as u32, (OWN >> 32) as u32);
        self.load(argument(at));
        self.when(low, |code| {
            code.load(argument(at) ^ 4);
            code.when(high, |code| code.end(libc::SECCOMP_RET_ALLOW));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would do.
    fn decide(arch: u32, number: u32, args: [u64; 6]) -> u32 {
        let (program, mut at, mut word) = (program(), 0, 0);
        let half = |value: u64, upper: bool| {
            u32::try_from(if upper {
                value >> 32
            } else {
                value & 0xffff_ffff
            })
            .unwrap()
        };
        loop {
            let one = program[at];
            at += 1;
            match u32::from(one.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    word = match one.k {
                        NUMBER => number,
                        ARCH => arch,
                        k => half(args[(k as usize - 16) / 8], k % 8 == 4),
                    };
                }
                code if code == libc::BPF_RET | libc::BPF_K => return one.k,
                code => {
                    let holds = match code & 0xf0 {
                        libc::BPF_JEQ => word == one.k,
                        _ => word & one.k != 0,
                    };
                    at += usize::from(if holds { one.jt } else { one.jf });
                }
            }
        }
    }

    fn native(number: c_long, args: [u64; 6]) -> u32 {
        decide(NATIVE, u32::try_from(number).unwrap(), args)
    }

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;

    fn errno(number: c_int) -> u32 {
        libc::SECCOMP_RET_ERRNO | u32::try_from(number).unwrap()
    }

    #[test]
    fn connections_are_decided_unless_the_library_has() {
        assert_eq!(native(libc::SYS_connect, [3, 1 << 40, 16, 0, 0, 0]), NOTIFY);
        assert_eq!(
            native(libc::SYS_connect, [3, 1 << 40, 16, OWN, 0, 0]),
            ALLOW
        );
        let halves = [OWN & 0xffff_ffff, OWN >> 32 << 32, OWN + 1, OWN ^ (1 << 63)];
        for mark in halves {
            assert_eq!(native(libc::SYS_connect, [3, 0, 16, mark, 0, 0]), NOTIFY);
        }
        assert_eq!(native(libc::SYS_getpeername, [3, 0, 0, 0, 0, 0]), NOTIFY);
        assert_eq!(native(libc::SYS_getpeername, [3, 0, 0, OWN, 0, 0]), ALLOW);
    }

    #[test]
    fn of_options_only_the_error_is_decided() {
        let (level, name) = (libc::SOL_SOCKET as u64, libc::SO_ERROR as u64);
        assert_eq!(
            native(libc::SYS_getsockopt, [3, level, name, 0, 0, 0]),
            NOTIFY
        );
        assert_eq!(
            native(libc::SYS_getsockopt, [3, level, name, 0, 0, OWN]),
            ALLOW
        );
        assert_eq!(native(libc::SYS_getsockopt, [3, level, 7, 0, 0, 0]), ALLOW);
        assert_eq!(native(libc::SYS_getsockopt, [3, 6, name, 0, 0, 0]), ALLOW);
    }

    #[test]
    fn what_would_connect_past_the_supervisor_is_refused() {
        let flags = u64::try_from(libc::MSG_FASTOPEN | libc::MSG_NOSIGNAL).unwrap();
        let unsupported = errno(libc::EOPNOTSUPP);
        assert_eq!(
            native(libc::SYS_sendto, [3, 0, 0, flags, 0, 0]),
            unsupported
        );
        assert_eq!(
            native(libc::SYS_sendmsg, [3, 0, flags, 0, 0, 0]),
            unsupported
        );
        assert_eq!(
            native(libc::SYS_sendmmsg, [3, 0, 1, flags, 0, 0]),
            unsupported
        );
        for number in [libc::SYS_sendto, libc::SYS_sendmsg, libc::SYS_sendmmsg] {
            let args = [3, flags, 0x4000, 0x4000, flags, flags];
            assert_eq!(native(number, args), ALLOW, "{number}");
        }
        assert_eq!(
            native(libc::SYS_socket, [2, 1, 262, 0, 0, 0]),
            errno(libc::EPROTONOSUPPORT)
        );
        let smc = native(libc::SYS_socket, [43, 1, 0, 0, 0, 0]);
        assert_eq!(smc, errno(libc::EAFNOSUPPORT));
        assert_eq!(native(libc::SYS_socket, [2, 1, 6, 0, 0, 0]), ALLOW);
        assert_eq!(
            native(libc::SYS_io_uring_setup, [8, 0, 0, 0, 0, 0]),
            errno(libc::EPERM)
        );
    }

    #[test]
    fn everything_else_is_allowed() {
        for number in [
            libc::SYS_read,
            libc::SYS_execve,
            libc::SYS_bind,
            libc::SYS_clone,
            libc::SYS_accept4,
        ] {
            assert_eq!(native(number, [u64::MAX; 6]), ALLOW);
        }
    }

    #[test]
    fn other_architectures_are_seen_or_have_no_calls() {
        let (small, connect, socketcall) = SMALL;
        assert_eq!(decide(small, connect, [3, 0, 16, OWN, 0, 0]), NOTIFY);
        assert_eq!(decide(small, 3, [0; 6]), ALLOW);
        if let Some(number) = socketcall {
            assert_eq!(decide(small, number, [3, 0, 0, 0, 0, 0]), NOTIFY);
            assert_eq!(decide(small, number, [1, 0, 0, 0, 0, 0]), ALLOW);
        }
        assert_eq!(decide(1, 3, [0; 6]), errno(libc::ENOSYS));
        if cfg!(target_arch = "x86_64") {
            assert_eq!(decide(NATIVE, X32 | 42, [0; 6]), errno(libc::ENOSYS));
        }
    }

    #[test]
    fn notifications_are_understood() {
        let data = |arch, nr| libc::seccomp_data {
            nr,
            arch,
            instruction_pointer: 0,
            args: [1, 2, 3, 4, 5, 6],
        };
        let native = |number| call(&data(NATIVE, c_int::try_from(number).unwrap()));
        assert_eq!(native(libc::SYS_connect), Some(Call::Connect([1, 2, 3])));
        assert_eq!(native(libc::SYS_getpeername), Some(Call::Peer([1, 2, 3])));
        assert_eq!(native(libc::SYS_getsockopt), Some(Call::Error([1, 4, 5])));
        assert_eq!(native(libc::SYS_read), None);
        let (small, connect, socketcall) = SMALL;
        let theirs = |number: u32| call(&data(small, c_int::try_from(number).unwrap()));
        assert_eq!(theirs(connect), Some(Call::Connect([1, 2, 3])));
        if let Some(number) = socketcall {
            assert_eq!(theirs(number), Some(Call::Socketcall(2)));
        }
    }
}
