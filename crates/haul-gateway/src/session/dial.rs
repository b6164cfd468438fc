//! Control connections to the next hop. They are made on a thread of their own, because name
//! resolution blocks.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use haul_io::poller::{Events, Interest, Poller};
use haul_io::stream::Stream;
use haul_report::host_port;
use haul_xsp::wire::NackStatus;
use haul_xsp::{ConnId, SECOND_NS};

use crate::control::Control;
use crate::shared::{SessionCommand, SessionHandle, Shared};

/// Time for a hop to answer, ns: clients that wait for it receive an error within three seconds.
pub(super) const ANSWER_NS: u64 = 2_700_000_000;
/// The same where another way can be tried after it, ns: a lost packet is retransmitted after a
/// second.
pub(super) const ANSWER_BEFORE_OTHERS_NS: u64 = 1_200_000_000;
/// Between attempts at two addresses of a name, ns.
const APART_NS: u64 = SECOND_NS / 5;
/// Before all addresses are tried once more beside the attempts that have no answer, ns. The kernel
/// repeats a lost packet after a second at the earliest, and then at growing intervals.
const AGAIN_NS: u64 = SECOND_NS * 7 / 10;

/// Connects to `hop` (`HOST:PORT`), and sends the outcome to the session: within `answer_ns` once
/// the name is resolved, and as much again for TLS.
pub(super) fn dial(shared: &Arc<Shared>, hop: String, answer_ns: u64, handle: &SessionHandle) {
    let own = handle.clone();
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("haul-dial".to_owned());
    let spawned = thread.spawn(move || {
        let control = connect(&shared, &hop, answer_ns).map(Box::new);
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

fn connect(shared: &Shared, hop: &str, answer_ns: u64) -> Result<Control, (NackStatus, String)> {
    let nowhere = |why: String| (NackStatus::NoRoute, format!("{hop}: {why}"));
    let split = host_port::split(hop).and_then(|split| Some((split.host, split.port?)));
    let split = split.and_then(|(host, port)| Some((host, host_port::port(port)?)));
    let (host, port) = split.ok_or_else(|| nowhere("it is no HOST:PORT".to_owned()))?;
    let addresses = shared.resolver.resolve_blocking(host, port);
    let addresses =
        addresses.map_err(|error| nowhere(format!("cannot resolve the name: {error}")))?;
    let Some(first) = addresses.first().copied() else {
        return Err(nowhere("the name has no address".to_owned()));
    };
    let failed = |(address, error): (SocketAddr, io::Error)| {
        (status_of(&error), format!("{hop} ({address}): {error}"))
    };
    let stream = race(shared, addresses, answer_ns).map_err(failed)?;
    let address = stream.peer_addr().unwrap_or(first);
    secure(shared, stream, hop).map_err(|error| failed((address, error)))
}

/// Classifies an error of the hop: only a refusal or an unreachable host means that no gateway runs
/// there ([`NackStatus::CannotConnect`]).
fn status_of(error: &io::Error) -> NackStatus {
    match error.kind() {
        // TLS has failed.
        io::ErrorKind::InvalidData => NackStatus::NotAuthenticated,
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::UnexpectedEof
        | io::ErrorKind::HostUnreachable => NackStatus::CannotConnect,
        io::ErrorKind::TimedOut => NackStatus::TimedOut,
        // This host's own network, perhaps: its link is down.
        _ => NackStatus::NoRoute,
    }
}

/// Connects to the address that answers first.
///
/// # Errors
/// All addresses have failed; the error is of the one that failed last. Or none has answered.
fn race(
    shared: &Shared,
    mut addresses: Vec<SocketAddr>,
    answer_ns: u64,
) -> Result<Stream, (SocketAddr, io::Error)> {
    let first = addresses[0];
    let at = |error| (first, error);
    let until = shared.clock.now_ns() + answer_ns;
    let mut poller = Poller::new().map_err(at)?;
    let mut events = Events::with_capacity(16);
    let mut attempts: Vec<(Stream, SocketAddr)> = Vec::new();
    let (mut next, mut next_at) = (0, 0);
    loop {
        let now = shared.clock.now_ns();
        if now >= until {
            return Err(at(io::ErrorKind::TimedOut.into()));
        }
        let mut failed = None;
        if now >= next_at {
            let address = addresses[next % addresses.len()];
            next += 1;
            let is_round = next.is_multiple_of(addresses.len());
            next_at = now + if is_round { AGAIN_NS } else { APART_NS };
            let started = Stream::start_connect(address).and_then(|stream| {
                poller.add(&stream, attempts.len() as u64, Interest::WRITE)?;
                Ok(stream)
            });
            match started {
                Ok(stream) => attempts.push((stream, address)),
                Err(error) => failed = Some((address, error)),
            }
        }
        if failed.is_none() {
            poller
                .wait(&mut events, Some(next_at.min(until)), shared.clock)
                .map_err(at)?;
            for event in events.iter() {
                let index = usize::try_from(event.token).unwrap_or(usize::MAX);
                let Some((stream, address)) = attempts.get(index) else {
                    continue;
                };
                match stream.connected() {
                    Ok(()) => {
                        let (stream, _) = attempts.swap_remove(index);
                        poller.remove(&stream).map_err(at)?;
                        return Ok(stream);
                    }
                    // An address that has failed is not tried again.
                    Err(_) if !addresses.contains(address) => {}
                    Err(error) => failed = Some((*address, error)),
                }
                let _ = poller.remove(stream);
            }
        }
        if let Some((address, error)) = failed {
            addresses.retain(|other| *other != address);
            if addresses.is_empty() {
                return Err((address, error));
            }
            next_at = 0;
        }
    }
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
    let until = shared.clock.now_ns() + ANSWER_NS;
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
