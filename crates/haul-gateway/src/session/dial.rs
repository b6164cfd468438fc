//! Control connections to the next hop. They are made on a thread of their own, because name
//! resolution blocks.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use haul_io::poller::{Events, Interest, Poller};
use haul_io::stream::Stream;
use haul_xsp::wire::NackStatus;
use haul_xsp::{ConnId, SECOND_NS};

use crate::control::Control;
use crate::shared::{SessionCommand, SessionHandle, Shared};

/// Timeout of one address.
const CONNECT: Duration = Duration::from_secs(5);
/// Timeout of the TLS handshake, ns.
const HANDSHAKE_NS: u64 = 10 * SECOND_NS;

/// Connects to `hop` (`HOST:PORT`), and sends the outcome to the session.
pub(super) fn dial(shared: &Arc<Shared>, hop: String, handle: &SessionHandle) {
    let own = handle.clone();
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("haul-dial".to_owned());
    let spawned = thread.spawn(move || {
        let control = connect(&shared, &hop).map(Box::new);
        // The session may have ended.
        let _ = own.send(SessionCommand::Dialled(control));
    });
    if let Err(error) = spawned {
        let why = (NackStatus::Busy, format!("no thread for it: {error}"));
        let _ = handle.send(SessionCommand::Dialled(Err(why)));
    }
}

/// Resolves a name, and sends the addresses to the session.
pub(super) fn resolve(
    shared: &Shared,
    conn: ConnId,
    name: &str,
    port: u16,
    handle: &SessionHandle,
) {
    let own = handle.clone();
    shared.resolver.resolve(name, port, move |found| {
        let found = found.map_err(|error| error.to_string());
        // The session may have ended.
        let _ = own.send(SessionCommand::Resolved(conn, found));
    });
}

fn connect(shared: &Shared, hop: &str) -> Result<Control, (NackStatus, String)> {
    let unreachable = |why: String| (NackStatus::CannotConnect, format!("{hop}: {why}"));
    let addresses: Vec<SocketAddr> = hop
        .to_socket_addrs()
        .map_err(|error| unreachable(error.to_string()))?
        .collect();
    let mut failed = unreachable("the name has no address".to_owned());
    for address in addresses {
        let connected = Stream::connect(address, CONNECT);
        match connected.and_then(|stream| secure(shared, stream, hop)) {
            Ok(control) => return Ok(control),
            Err(error) => {
                let status = match error.kind() {
                    // TLS has failed.
                    io::ErrorKind::InvalidData => NackStatus::NotAuthenticated,
                    _ => NackStatus::CannotConnect,
                };
                failed = (status, format!("{hop} ({address}): {error}"));
            }
        }
    }
    Err(failed)
}

/// Starts TLS, if this gateway has certificates.
fn secure(shared: &Shared, stream: Stream, hop: &str) -> io::Result<Control> {
    let Some(context) = shared.tls() else {
        return Ok(Control::new(stream));
    };
    let host = hop.rsplit_once(':').map_or(hop, |(host, _)| host);
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let mut control = Control::tls_client(stream, &context, name)?;
    let mut poller = Poller::new()?;
    let mut events = Events::with_capacity(1);
    poller.add(control.stream(), 0, Interest::BOTH)?;
    let until = shared.clock.now_ns() + HANDSHAKE_NS;
    while !control.handshake()? {
        if shared.clock.now_ns() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let interest = Interest {
            readable: true,
            writable: control.wants_write(),
        };
        poller.modify(control.stream(), 0, interest)?;
        poller.wait(&mut events, Some(until), shared.clock)?;
    }
    poller.remove(control.stream())?;
    Ok(control)
}
