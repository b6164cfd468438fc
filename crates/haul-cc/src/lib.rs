//! Round-trip estimation, pacing and congestion control for datagram transports
