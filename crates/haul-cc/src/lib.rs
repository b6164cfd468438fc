//! Round-trip estimation, pacing and congestion control for datagram transports, and the two types
//! that all protocol cores share: [`Time`] and [`Crc32c`].
//!
//! No I/O, no clock, no threads: callers pass [`Time`]. All byte counts are *wire* bytes (IP packet
//! size), so that a declared rate means the rate of the link and not of the payload.
//!
//! Map: [`time`] moments in nanoseconds · [`crc`] CRC32C · [`rtt`] round-trip estimates · [`pacer`]
//! when the next batch may leave · [`path_mtu`] how long packets may be · [`arrivals`] how fast
//! data arrives · [`controller`] what a congestion control sees and answers · [`resume`] starts
//! that use what an earlier connection found · [`algorithm`] the controls by name · [`fixed`],
//! [`daimd`], [`model`], [`window`] the controls, the last one those of TCP · [`filter`] windowed
//! extremes.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod algorithm;
pub mod arrivals;
pub mod controller;
pub mod crc;
pub mod daimd;
pub mod filter;
pub mod fixed;
pub mod model;
pub mod pacer;
pub mod path_mtu;
pub mod resume;
pub mod rtt;
pub mod time;
pub mod window;

pub use algorithm::Algorithm;
pub use arrivals::Arrivals;
pub use controller::{Ack, Controller, Loss, Marks, Rate, RateSample, Remembered, Snapshot};
pub use crc::{Crc32c, crc32c};
pub use pacer::Pacer;
pub use path_mtu::PathMtu;
pub use rtt::RttEstimator;
pub use time::Time;
