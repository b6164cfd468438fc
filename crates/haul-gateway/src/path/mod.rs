//! Paths asked of the network when a session opens, and given back when it ends: by a program or a
//! service of the operator's, which knows what its network can do.
//!
//! Map: `request` what is asked and how it ends · `backend` who is asked · `exec` a program · `http` a
//! service.

mod backend;
mod exec;
mod http;
mod request;

pub(crate) use backend::Backend;
pub(crate) use request::{Action, Outcome, Request, word, words};
