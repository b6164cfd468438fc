//! UDT4-compatible reliable transport over datagrams, as a state machine
