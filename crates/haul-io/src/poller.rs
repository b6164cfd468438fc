//! Waiting for sockets, wake-ups and deadlines.
