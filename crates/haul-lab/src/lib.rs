//! An emulated WAN on one machine: hosts in network namespaces, joined by a path with a rate, a
//! delay, a queue and loss.
//!
//! It exists so that tools for data transfer across an ocean can be tried, tested and compared
//! without one. The path is emulated between two TUN devices that pass super-packets whole, while
//! every wire packet in them has a fate of its own (`haul-netem`), so one core carries gigabits,
//! with or without root, and without kernel modules.
//!
//! From the command line this is `haul lab` ([`Args`], [`run`]); in a program, [`Lab::start`] and
//! [`Lab::command`].
//!
//! Map: [`scenario`] the paths to emulate · [`lab`] hosts and processes · [`emulator`] the path in
//! real time · `packet` cutting super-packets · [`calibrate`] the emulator measured · [`compare`]
//! tools side by side · [`gateways`] gateways beside direct connections · [`movers`] programs that
//! move trees · `noise` bytes for files · `sshd` an OpenSSH server on a host · `state` files of
//! running labs · `process` the processes in a lab · [`report`] counters as text and JSON · [`cli`]
//! the commands.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![expect(
    clippy::disallowed_methods,
    reason = "the lab works in real time and reads the user's directories from the environment"
)]

pub mod calibrate;
pub mod cli;
pub mod compare;
mod driver;
pub mod emulator;
pub mod gateways;
pub mod lab;
pub mod movers;
mod noise;
pub mod out;
mod packet;
mod process;
pub mod report;
pub mod scenario;
mod sshd;
mod state;
mod usage;

pub use cli::{Args, Command, run};
pub use lab::{Engine, Lab};
pub use scenario::Scenario;
pub use usage::{Usage, line};
