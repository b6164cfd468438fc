//! Verbs on RDMA devices.
mod ffi;
