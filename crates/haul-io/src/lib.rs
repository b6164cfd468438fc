//! Sockets, files, clock and poller: the only crate that makes system calls on the data path
