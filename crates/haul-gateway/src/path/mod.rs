//! Paths that sessions ask of the network when they open, and release when they end. An operator's
//! program sets them up.
//!
//! Map: `request` a request and its outcome · `backend` the interface of back ends · `exec` a
//! program.

mod backend;
mod exec;
mod request;

pub(crate) use backend::Backend;
pub(crate) use request::{Action, Outcome, Request, word, words};
