//! The emulator proves itself: it is measured from the outside, by datagrams that cross it.
//!
//! [`check_path`] checks the emulation of one scenario: delay, loss and rate, each direction by
//! itself. [`find_ceilings`] searches for the highest rate that this machine carries honestly. The
//! ceilings are kept ([`Ceilings::save`]), so that a scenario with a higher rate is refused.
//!
//! Map: `traffic` datagrams that are sent, stamped, and counted · `path` one scenario checked ·
//! `agreement` two emulators · `ceiling` the search · `interval` confidence intervals.

mod agreement;
mod ceiling;
mod interval;
mod path;
mod traffic;

pub use agreement::{Agreement, Compared, DirectionAgreement};
pub use ceiling::{Ceiling, Ceilings, Verdict, find_ceilings};
pub use path::{Check, Delays, DirectionCheck, PathCheck, check_path};
