//! Opening a channel on a thread of its own, beside the control handshake.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::setup::{Channel, Kind, Setup};
use super::{tcp, udt};
use crate::cancel::Cancel;
use crate::dial::Server;
use crate::fault::{Code, Fault};

/// A channel that is being opened, on a thread of its own. Dropping it before [`Opening::finish`]
/// cancels it.
pub(crate) struct Opening {
    /// `None` once finished.
    thread: Option<JoinHandle<Result<Arc<dyn Channel>, Fault>>>,
    cancel: Cancel,
}

impl Drop for Opening {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.cancel.cancel();
        }
    }
}

impl Opening {
    /// Begins to connect, as the client does.
    pub(crate) fn connect(
        setup: &Setup,
        server: &Server,
        timeout: Duration,
    ) -> Result<Self, Fault> {
        let (setup, server) = (setup.clone(), server.clone());
        match setup.kind {
            // Needs no cancel: it ends with the control connection's own attempt.
            Kind::Tcp => Self::spawn(Cancel::default(), move || {
                Ok(Arc::new(tcp::TcpChannel::connect(
                    &setup, &server, timeout,
                )?))
            }),
            Kind::Udt => {
                let udp = server.address().ok_or_else(|| {
                    Fault::new(Code::Usage, "the udt channel does not go through gateways")
                })?;
                let connecting = udt::Connecting::begin(&setup, udp, timeout)?;
                let remote = connecting.remote();
                Self::spawn(Cancel::by(move || remote.close()), move || {
                    Ok(Arc::new(connecting.finish()?))
                })
            }
        }
    }

    /// Begins to accept at `acceptors`, as the server does.
    pub(crate) fn accept(
        setup: &Setup,
        acceptors: &Arc<Acceptors>,
        timeout: Duration,
    ) -> Result<Self, Fault> {
        let setup = setup.clone();
        let deadline = Instant::now() + timeout;
        match setup.kind {
            Kind::Tcp => {
                // Claimed here and not on the thread: the first connection may come at once.
                let claim = Arc::new(acceptors.tcp.claim(setup.token));
                let claimed = Arc::clone(&claim);
                Self::spawn(Cancel::by(move || claimed.give_up()), move || {
                    Ok(Arc::new(tcp::TcpChannel::accept(&setup, &claim, deadline)?))
                })
            }
            Kind::Udt => {
                let claim = Arc::new(acceptors.udt.claim(&setup)?);
                let claimed = Arc::clone(&claim);
                Self::spawn(Cancel::by(move || claimed.give_up()), move || {
                    Ok(Arc::new(udt::UdtChannel::accept(&claim, deadline)?))
                })
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn ready(channel: Arc<dyn Channel>) -> Self {
        Self::spawn(Cancel::default(), move || Ok(channel)).unwrap()
    }

    /// Blocks until the channel is open.
    pub(crate) fn finish(mut self) -> Result<Arc<dyn Channel>, Fault> {
        let opened = self.thread.take().map(JoinHandle::join);
        opened
            .and_then(Result::ok)
            .unwrap_or_else(|| Err(Fault::new(Code::Other, "opening the channel failed")))
    }

    /// Returns the handle that makes opening fail at once instead of at its timeout.
    pub(crate) fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    fn spawn(
        cancel: Cancel,
        open: impl FnOnce() -> Result<Arc<dyn Channel>, Fault> + Send + 'static,
    ) -> Result<Self, Fault> {
        let builder = std::thread::Builder::new().name("haul-open".into());
        let thread = builder.spawn(open).map_err(|error| Fault::system(&error))?;
        Ok(Self {
            thread: Some(thread),
            cancel,
        })
    }
}

/// Where a server's data connections arrive.
#[derive(Debug, Default)]
pub(crate) struct Acceptors {
    pub(crate) tcp: tcp::Acceptor,
    pub(crate) udt: udt::Acceptor,
}
