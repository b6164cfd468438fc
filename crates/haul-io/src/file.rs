//! Files: positioned reads and writes, preallocation, durable rename.
