//! A seeded world of hosts and links on virtual time, for tests
