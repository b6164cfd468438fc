//! Sockets, files, clock and poller: the only crate that makes system calls on the data path.

pub mod address;
pub mod clock;
pub mod confine;
pub mod error;
pub mod file;
pub mod hole;
pub mod netns;
pub mod notify;
pub mod perf;
pub mod poller;
pub mod process;
pub mod random;
pub mod ring;
pub mod stream;
pub mod tcp;
pub mod thread;
pub mod tun;
pub mod udp;
pub mod wake;
pub mod watch;
pub mod zero_copy;
