//! Every integration test of this crate in one program, which is linked once.

mod damage;
mod finish;
mod hostile;
mod prompt;
mod rendezvous;
mod replay;
