//! Datagrams: RDMA without connections (docs/protocol/datagram.md).

pub mod wire;
pub mod rd;
