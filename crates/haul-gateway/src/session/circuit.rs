//! A path that a session asks of the network.
//!
//! A session's thread creates a [`Circuit`] for each request. The circuit's thread asks the back
//! end for the path, and reports its state to the session. Once the circuit is dropped, it asks for
//! the path to be taken down. The session never waits for it.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use haul_io::notify::{Signal, wait_readable};
use haul_xsp::wire::PathState;

use crate::log::Level;
use crate::path::{Action, Outcome, Request, word};
use crate::shared::Shared;

/// Circuits at a time, each with a thread.
const CIRCUITS_MAX: usize = 64;

/// A path that is wanted until this is dropped.
#[derive(Debug)]
pub(crate) struct Circuit(Arc<Signal>);

impl Drop for Circuit {
    fn drop(&mut self) {
        self.0.set();
    }
}

impl Circuit {
    /// Requests a path. Calls `tell` with each state, on another thread.
    ///
    /// # Errors
    /// There are too many circuits, or the system has no thread or descriptor left.
    pub(crate) fn ask(
        shared: &Arc<Shared>,
        request: Request,
        tell: impl Fn(PathState, &str) + Send + 'static,
    ) -> Result<Self, String> {
        let slot = shared
            .take_circuit(CIRCUITS_MAX)
            .ok_or("too many paths at a time")?;
        let text = |error: io::Error| error.to_string();
        let end = Arc::new(Signal::new().map_err(text)?);
        let never = Signal::new().map_err(text)?;
        let (backend, shared) = (shared.path(), Arc::clone(shared));
        let own = Arc::clone(&end);
        let thread = std::thread::Builder::new().name("haul-path".to_owned());
        let run = move || {
            let _slot = slot;
            let outcome = backend.ask(&request, Action::Create, &own, &mut |state, text| {
                tell(state, text)
            });
            while !wait_readable([own.as_fd()], None).unwrap_or(true) {}
            if outcome == Outcome::Refused {
                return tell(PathState::Expired, "");
            }
            let name = format!("path {} of session {}", request.request, request.session);
            let outcome = backend.ask(&request, Action::Delete, &never, &mut |state, text| {
                shared.log(
                    Level::Info,
                    format!("taking down {name}: {} {text}", word(state)),
                );
                tell(state, text);
            });
            if outcome != Outcome::Done {
                shared.log(Level::Error, format!("{name} may not have been taken down"));
            }
        };
        thread.spawn(run).map_err(text)?;
        Ok(Self(end))
    }
}
