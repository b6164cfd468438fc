//! Opening a channel on a thread of its own, beside the control handshake.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use haul_cc::Remembered;
use haul_seal::Seal;

use super::setup::{Channel, ChannelKind, Setup};
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
    sealed: bool,
    seal: Option<Seal>,
    remembered: Option<Remembered>,
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
        let sealed = setup.sealed.is_some();
        match setup.kind {
            // Needs no cancel: it ends with the control connection's own attempt.
            ChannelKind::Tcp => Self::spawn(sealed, Cancel::default(), move || {
                Ok(Arc::new(tcp::TcpChannel::connect(
                    &setup, &server, timeout,
                )?))
            }),
            ChannelKind::Udt => {
                let udp = server.address().ok_or_else(|| {
                    Fault::new(Code::Usage, "the udt channel does not go through gateways")
                })?;
                let connecting = udt::Connecting::begin(&setup, udp, timeout)?;
                let remote = connecting.remote();
                Self::spawn(sealed, Cancel::by(move || remote.close()), move || {
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
        let (setup, sealed) = (setup.clone(), setup.sealed.is_some());
        let deadline = Instant::now() + timeout;
        match setup.kind {
            ChannelKind::Tcp => {
                // Claimed here and not on the thread: the first connection may come at once.
                let claim = Arc::new(acceptors.tcp.claim(setup.ticket, setup.streams));
                let claimed = Arc::clone(&claim);
                Self::spawn(sealed, Cancel::by(move || claimed.give_up()), move || {
                    Ok(Arc::new(tcp::TcpChannel::accept(&setup, &claim, deadline)?))
                })
            }
            ChannelKind::Udt => {
                let claim = Arc::new(acceptors.udt.claim(&setup)?);
                let claimed = Arc::clone(&claim);
                Self::spawn(sealed, Cancel::by(move || claimed.give_up()), move || {
                    Ok(Arc::new(udt::UdtChannel::accept(&claim, deadline)?))
                })
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn ready(channel: Arc<dyn Channel>) -> Self {
        Self::spawn(false, Cancel::default(), move || Ok(channel)).unwrap()
    }

    /// Gives a sealed channel its secret, which no other channel may have.
    pub(crate) fn set_seal(&mut self, seal: Seal) {
        self.seal = Some(seal);
    }

    /// Has the channel start from what an earlier one found on the path.
    pub(crate) const fn resume(&mut self, remembered: Remembered) {
        self.remembered = Some(remembered);
    }

    /// Blocks until the channel is open.
    pub(crate) fn finish(mut self) -> Result<Arc<dyn Channel>, Fault> {
        let opened = self.thread.take().map(JoinHandle::join);
        let channel = opened
            .and_then(Result::ok)
            .unwrap_or_else(|| Err(Fault::new(Code::Other, "opening the channel failed")))?;
        match self.seal.take() {
            Some(seal) if self.sealed => channel.set_seal(seal),
            None if !self.sealed => {}
            _ => {
                return Err(Fault::protocol(
                    "both ends must seal the channel, or neither",
                ));
            }
        }
        if let Some(remembered) = self.remembered {
            channel.resume(remembered);
        }
        Ok(channel)
    }

    /// Returns the handle that makes opening fail at once instead of at its timeout.
    pub(crate) fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    fn spawn(
        sealed: bool,
        cancel: Cancel,
        open: impl FnOnce() -> Result<Arc<dyn Channel>, Fault> + Send + 'static,
    ) -> Result<Self, Fault> {
        let builder = std::thread::Builder::new().name("haul-open".into());
        let thread = builder.spawn(open).map_err(|error| Fault::system(&error))?;
        Ok(Self {
            thread: Some(thread),
            cancel,
            sealed,
            seal: None,
            remembered: None,
        })
    }
}

/// Where a server's data connections arrive.
#[derive(Debug, Default)]
pub(crate) struct Acceptors {
    pub(crate) tcp: tcp::Acceptor,
    pub(crate) udt: udt::Acceptor,
}

#[cfg(test)]
mod tests {
    use std::io::{self, IoSlice, Read as _};
    use std::sync::atomic::{AtomicU64, Ordering};

    use haul_seal::{Cipher, Secret};
    use haul_soft::bulk::{Extent, FileRange, Sink, Source};

    use super::*;
    use crate::channel::Ticket;

    const BYTES: u64 = 3 << 20;

    struct Nines;

    impl Source for Nines {
        fn wait(&self, _: u64, _: Duration) -> Extent {
            Extent {
                end: BYTES,
                complete: true,
            }
        }

        fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<()> {
            buf.fill(9);
            Ok(())
        }

        fn file_at(&self, _: u64) -> Option<FileRange<'_>> {
            None
        }
    }

    /// Counts nines.
    #[derive(Default)]
    struct Counter(AtomicU64);

    impl Sink for Counter {
        fn place(&self, _: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
            let nines = parts.iter().flat_map(|part| part.iter());
            let nines = nines.filter(|byte| **byte == 9).count();
            self.0.fetch_add(nines as u64, Ordering::Relaxed);
            Ok(())
        }
    }

    fn seal() -> Seal {
        Seal {
            secret: Secret::new([3; 32]),
            cipher: Cipher::preferred(),
        }
    }

    /// Opens a channel at both ends, each with the secret or without it.
    fn open(kind: ChannelKind, sealed: [bool; 2]) -> [Result<Arc<dyn Channel>, Fault>; 2] {
        let setup = Setup {
            kind,
            ticket: Ticket::random().unwrap(),
            streams: 1,
            rate_bps: None,
            congestion: None,
            dead_after: Duration::from_secs(10),
            sealed: Some(Cipher::preferred()),
        };
        let timeout = Duration::from_secs(10);
        let acceptors = Arc::new(Acceptors::default());
        let local = ([127, 0, 0, 1], 0).into();
        let tcp = haul_io::tcp::listen(local).unwrap();
        let mut udp = udt::listen(local).unwrap();
        let address = match kind {
            ChannelKind::Tcp => tcp.local_addr().unwrap(),
            ChannelKind::Udt => udp.local_addr(),
        };
        let mut server = Opening::accept(&setup, &acceptors, timeout).unwrap();
        let shared = Arc::clone(&acceptors);
        std::thread::spawn(move || shared.udt.serve(&mut udp));
        let mut client = Opening::connect(&setup, &Server::At(address), timeout).unwrap();
        if kind == ChannelKind::Tcp {
            let mut stream = tcp::accept_soon(&tcp);
            let mut header = [0; 8 + tcp::STREAM_HEADER_REST];
            stream.read_exact(&mut header).unwrap();
            let (ticket, index) = tcp::parse_stream_header(*header.last_chunk().unwrap()).unwrap();
            acceptors
                .tcp
                .deliver(ticket, index, stream, Instant::now() + timeout);
        }
        for (opening, sealed) in [&mut client, &mut server].into_iter().zip(sealed) {
            if sealed {
                opening.set_seal(seal());
            }
        }
        [client.finish(), server.finish()]
    }

    #[test]
    fn channels_get_their_secret_after_they_began_to_open() {
        for kind in [ChannelKind::Tcp, ChannelKind::Udt] {
            let [client, server] = open(kind, [true; 2]).map(Result::unwrap);
            let sink = Counter::default();
            std::thread::scope(|scope| {
                scope.spawn(|| client.send(&Nines).unwrap());
                server.receive(&sink).unwrap();
            });
            assert_eq!(sink.0.into_inner(), BYTES, "{kind:?}");
        }
    }

    #[test]
    fn a_sealed_channel_without_a_secret_does_not_open() {
        for kind in [ChannelKind::Tcp, ChannelKind::Udt] {
            let [client, server] = open(kind, [false, true]);
            assert!(client.is_err() && server.is_ok());
        }
    }
}
