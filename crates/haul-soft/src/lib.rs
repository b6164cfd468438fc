//! The engine: threads that own transports and join the protocol cores to sockets
