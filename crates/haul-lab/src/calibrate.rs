//! The emulator proves itself: it is measured from the outside, by datagrams that cross it.
//!
//! [`check_path`] asks whether one scenario is what it says: delay, loss and rate, each direction
//! by itself. [`find_ceilings`] searches for the highest rate that this machine carries honestly.
//! The ceilings are kept ([`Ceilings::save`]), so that a lab that asks for more is refused.
//!
//! Map: `traffic` datagrams that are sent, stamped, and counted · `path` a scenario against what it
//! says · `agreement` two emulators · `ceiling` the search · `interval` how sure a share is.

mod agreement;
mod ceiling;
mod interval;
mod path;
mod traffic;

pub use agreement::{Agreement, Compared, DirectionAgreement};
pub use ceiling::{Ceiling, Ceilings, Verdict, find_ceilings};
pub use path::{Check, Delays, DirectionCheck, PathCheck, check_path};
