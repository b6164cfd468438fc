//! Paths that sessions ask of the network when they open, and release when they end. An operator's
//! program or service sets them up.
//!
//! Map: `request` a request and its outcome · `backend` who is asked · `exec` a program · `http` a
//! service.

mod backend;
mod exec;
mod http;
mod request;

pub(crate) use backend::Backend;
pub(crate) use request::{Action, Outcome, Request, word, words};
