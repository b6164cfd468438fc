//! One direction of an emulated network path, as a state machine: delay, jitter, loss, rate, a
//! finite queue, a policer, reordering, duplication and corruption.
//!
//! The same code runs on virtual time in the simulator and in real time in the lab's emulator, so
//! that there is one truth about what "100 ms, 1e-4 loss, a queue of 512 KiB" means. There is no
//! clock, no thread, no payload and no random source here: the caller passes `now_ns` and a seed,
//! and the same calls with the same seed give the same fates.
//!
//! A [`Link`] answers at once what becomes of a packet, because the departure times of a first-in
//! first-out queue are known when a packet is admitted. A packet meets, in this order:
//!
//! 1. the **policer**: a token bucket that drops what exceeds its rate and burst;
//! 2. the **queue**: full in bytes or in packets means dropped (tail drop);
//! 3. the **shaper**: packets leave one after the other at the link's rate;
//! 4. **loss** on the wire: the packet is lost after it has used its share of the rate;
//! 5. **delay** and **jitter**: these keep the order of packets;
//! 6. **reordering**: chosen packets are held longer, and those behind them overtake;
//! 7. **duplication**: a second copy arrives directly behind the first;
//! 8. **corruption**: the packet, and its copy, arrive damaged.
//!
//! Every impairment draws from its own stream of random numbers, so switching one on does not
//! change which packets another one hits.
//!
//! Map: `config` what a link is asked to be · `link` the pipeline above and its counters · `shaper`
//! rate and queue · `policer` the token bucket · `loss` the loss models · `jitter` delay variation
//! that keeps order · `rng` seeded random numbers.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod config;
mod jitter;
mod link;
mod loss;
mod policer;
mod rng;
mod shaper;

pub use config::{ConfigError, LinkConfig, LossModel, Policer, Reorder, Shaper};
pub use link::{DropCause, Fate, Link, LinkStats};
pub use rng::Rng;
pub use shaper::Backlog;
