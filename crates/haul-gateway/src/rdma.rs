//! RDMA connections of applications: what the range extender gets from this gateway, and where its
//! listeners lead.

#![expect(
    clippy::disallowed_types,
    reason = "haul-io makes the stream that the extender hands over"
)]

use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use haul_extender::{Host, Listen, MemoryGuard, PendingConnect, RdmaListener, Runner, Severity};
use haul_xsp::wire::Metadata;

use crate::caller::{Call, Caller, Party};
use crate::config;
use crate::host::{Shown, by_rdma};
use crate::listener::OpenError;
use crate::log::Level;
use crate::refusal::Refusal;
use crate::session::dispatch;
use crate::shared::{SessionCommand, Shared};
use haul_io::thread::Thread;

/// The gateway as the extender sees it.
struct Budget(Arc<Shared>);

impl Host for Budget {
    fn take_memory(&self, bytes: u64) -> Option<MemoryGuard> {
        let share = self.0.take_memory(bytes)?;
        Some(Box::new(share))
    }

    fn memory_left(&self) -> u64 {
        self.0.memory_left()
    }

    fn withdrawn(&self) {
        self.0.broadcast(|| SessionCommand::Withdrawn);
    }

    fn log(&self, severity: Severity, text: &str) {
        let level = match severity {
            Severity::Error => Level::Error,
            Severity::Warning => Level::Warning,
        };
        self.0.log(level, text);
    }

    fn log_shortage(&self, text: &str) {
        self.0.log_shortage(text);
    }
}

impl Caller for PendingConnect {
    fn accepted(self: Box<Self>) -> io::Result<TcpStream> {
        Self::accepted(*self)
    }

    fn refused(self: Box<Self>, why: &Refusal) {
        Self::refused(*self, why.text.clone());
    }

    fn is_wanted(&self) -> bool {
        Self::is_wanted(self)
    }
}

/// Starts the thread that bridges connections; it ends when it is dropped.
pub(crate) fn start(shared: &Arc<Shared>, runner: Runner) -> io::Result<Thread> {
    let host = Budget(Arc::clone(shared));
    Thread::spawn_woken("haul-extender", runner.waker(), move |stop| {
        runner.run(&host, || stop.is_set());
    })
}

/// Opens a listener for RDMA connections, all of which go to its destination.
///
/// # Errors
/// The listener has no destination, the gateway was started without `[rdma]`, or the address is in
/// use or not the device's.
pub(crate) fn listen(
    shared: &Arc<Shared>,
    listener: &config::Listener,
) -> Result<RdmaListener, OpenError> {
    let address = listener.listen;
    let to = listener.to.as_ref();
    let to = to
        .ok_or(OpenError::NoDestination(address))?
        .endpoint()
        .clone();
    let open = || {
        let extender = shared
            .extender
            .as_ref()
            .ok_or_else(|| io::Error::other("the gateway was started without [rdma]"))?;
        let named = by_rdma(&to)
            .ok_or_else(|| io::Error::other("the name of its destination is too long"))?;
        let (own, clients) = (Arc::clone(shared), listener.clone());
        extender.listen(Listen {
            address,
            admits: Box::new(move |client| clients.admits(client)),
            destination: Shown(&to).to_string(),
            connect: Box::new(move |from, pending| {
                let call = Call {
                    party: Party::Own(Box::new(pending)),
                    from,
                    to: to.clone(),
                    named: Some(named.clone()),
                    metadata: Metadata::default(),
                    began: own.now(),
                    is_again: false,
                };
                dispatch(&own, call);
            }),
        })
    };
    open().map_err(|source| OpenError::System { address, source })
}
