//! Datagrams: RDMA without connections (docs/protocol/datagram.md).

pub mod rd;
pub mod wire;
