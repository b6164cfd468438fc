//! Sockets, files, clock and poller: the only crate that makes system calls on the data path.

pub mod clock;
pub mod file;
pub mod netns;
pub mod poller;
pub mod process;
pub mod ring;
pub mod tcp;
pub mod tun;
pub mod udp;
