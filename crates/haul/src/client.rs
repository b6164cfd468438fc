//! The client: connects to a server, sends or gets files, and reconnects when the path fails.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haul_io::file::Dir;

use crate::channel::{Kind, Opening, Setup, Token, udt};
use crate::fault::{Code, Fault};
use crate::link::{self, Handshake, Link, agree};
use crate::name::Name;
use crate::report::{BenchSummary, Event, Observer, Summary};
use crate::session::{bench, receiver, sender};
use crate::source::SourceFile;
use crate::text::printable;
use crate::wire::{self, CONTROL_PREAMBLE, FILES_MAX, Get, Hello, Message, Put, TransferId};
use crate::{SOFTWARE, lock};

mod config;
mod connect;
mod outcome;

pub use config::Config;
use outcome::{Tally, bench_summary};

/// First pause before a reconnect; each further one is twice as long.
const BACKOFF: Duration = Duration::from_millis(500);
/// Minimum connect timeout of a retry, even of the last.
const CONNECT_LEAST: Duration = Duration::from_millis(500);
/// Maximum pause before a reconnect.
const BACKOFF_MAX: Duration = Duration::from_secs(15);

/// What to do about files that exist at the receiver.
pub use crate::wire::Policy as ExistingPolicy;

/// When a bench ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BenchLimit {
    /// After this time.
    Time(Duration),
    /// After this many bytes.
    Bytes(u64),
}

/// Sends local files into a directory of the server.
///
/// # Errors
/// The failure that ended it. A transient one is retried first, as `config` says.
pub fn send(
    config: &Config,
    files: &[PathBuf],
    directory: &[u8],
    policy: ExistingPolicy,
    observer: &dyn Observer,
) -> Result<Summary, Fault> {
    check_count(files.len())?;
    let transfer = transfer_id()?;
    let put = Message::Put(Put {
        directory: directory.to_vec(),
        policy,
    });
    let binding = wire::binding(&put)?;
    let mut tally = Tally::new(config);
    persist(config, observer, |config, observer| {
        let sources = open_sources(files)?;
        tally.offered(
            sources
                .iter()
                .map(|file| (file.name.to_string(), file.size)),
        );
        let mut requests = vec![put.clone()];
        requests.extend(sender::offer(&sources, &binding)?);
        let session = Session::open(config, transfer, &requests, observer)?;
        tally.connected(&session.peer);
        let mut outcome = sender::SenderOutcome::default();
        let result = sender::run(
            &session.link,
            sources,
            binding,
            session.opening,
            observer,
            &mut outcome,
        );
        tally.sent(&outcome);
        observer.event(&Event::AttemptOver {
            moved: outcome.spent.moved,
        });
        if result.is_ok() {
            session.link.hang_up();
        }
        // Another attempt replaces what has just been delivered, if it may.
        result.map_err(|fault| match fault.code {
            Code::SourceChanged if outcome.is_superseded && policy.replace => Fault {
                code: Code::PeerGone,
                ..fault
            },
            _ => fault,
        })
    })?;
    Ok(tally.into_summary(crate::report::Direction::Send))
}

/// Gets files of the server into a local directory.
///
/// # Errors
/// The failure that ended it. A transient one is retried first, as `config` says.
pub fn get(
    config: &Config,
    paths: &[Vec<u8>],
    directory: &Path,
    policy: ExistingPolicy,
    observer: &dyn Observer,
) -> Result<Summary, Fault> {
    check_count(paths.len())?;
    let names: Vec<Name> = paths
        .iter()
        .map(|path| Name::new(path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()))
        .collect::<Result<_, _>>()?;
    let shown = printable(directory.as_os_str().as_encoded_bytes());
    let dir = Dir::open(directory).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Fault::new(
            Code::DirectoryNotFound,
            format!("'{shown}' is not a directory"),
        )
        .hint("make it first, or name another"),
        _ => Fault::file(&format!("cannot open '{shown}'"), &error),
    })?;
    let dir = Arc::new(dir);
    let transfer = transfer_id()?;
    let wanted = paths.iter().map(|path| path.clone().into()).collect();
    let request = Message::Get(Get { paths: wanted });
    let binding = wire::binding(&request)?;
    let mut tally = Tally::new(config);
    persist(config, observer, |config, observer| {
        let session = Session::open(config, transfer, std::slice::from_ref(&request), observer)?;
        tally.connected(&session.peer);
        let offer = match session.link.receive()? {
            Message::Offer(offer) => offer,
            other => return Err(other.misplaced()),
        };
        // A server must not choose names: it offers exactly the requested files.
        if !offer
            .files
            .iter()
            .map(|entry| entry.name.as_slice())
            .eq(names.iter().map(Name::as_bytes))
        {
            return Err(Fault::protocol(
                "the server offers other files than were asked for",
            ));
        }
        tally.offered(
            names
                .iter()
                .zip(&offer.files)
                .map(|(n, entry)| (n.to_string(), entry.size)),
        );
        let mut outcome = receiver::ReceiverOutcome::default();
        let result = receiver::run(
            &session.link,
            &dir,
            &offer,
            receiver::Terms { policy, binding },
            session.opening,
            observer,
            &mut outcome,
        );
        tally.received(&outcome);
        observer.event(&Event::AttemptOver {
            moved: outcome.spent.moved,
        });
        if result.is_ok() {
            session.link.hang_up();
        }
        result
    })?;
    Ok(tally.into_summary(crate::report::Direction::Get))
}

/// Measures memory to memory, without retries.
///
/// # Errors
/// The failure that ended it.
pub fn bench(
    config: &Config,
    limit: BenchLimit,
    reverse: bool,
    observer: &dyn Observer,
) -> Result<BenchSummary, Fault> {
    let (bytes, time_ms) = match limit {
        BenchLimit::Bytes(bytes) => (Some(bytes), None),
        BenchLimit::Time(time) => (
            None,
            Some(u64::try_from(time.min(bench::TIME_MAX).as_millis()).unwrap_or(0)),
        ),
    };
    let request = wire::Bench {
        reverse,
        bytes,
        time_ms,
    };
    let session = Session::open(
        config,
        transfer_id()?,
        &[Message::Bench(request.clone())],
        observer,
    )?;
    let (report, sender, receiver) = if reverse {
        let received = bench::receive(&session.link, session.opening, observer)?;
        (
            received.report.clone(),
            received.peer,
            received.report.spent,
        )
    } else {
        let sent = bench::send(&session.link, &request, session.opening, observer)?;
        (sent.report.clone(), sent.spent, sent.report.spent)
    };
    Ok(bench_summary(
        config,
        &session.peer,
        reverse,
        &report,
        &sender,
        &receiver,
    ))
}

/// A session whose request has been sent.
struct Session {
    link: Link,
    opening: Opening,
    peer: String,
}

/// Refuses options that the channel does not have: an option without effect would mislead.
fn check_channel(config: &Config) -> Result<(), Fault> {
    if config.dialer.is_some() {
        let what = match (config.channel, &config.congestion) {
            (Kind::Tcp, None) => return Ok(()),
            (Kind::Tcp, Some(_)) => "the congestion control between gateways is theirs",
            (Kind::Udt, _) => "gateways carry TCP, not the udt channel",
        };
        return Err(Fault::new(Code::Usage, what).hint("leave the option out"));
    }
    let what = match (config.channel, &config.congestion) {
        (Kind::Tcp, _) => return Ok(()),
        (Kind::Udt, _) if config.streams > 1 => "has one stream and needs no more",
        (Kind::Udt, Some(_)) if config.rate_bps.is_some() => {
            "keeps a declared rate, without another control"
        }
        (Kind::Udt, Some(name)) => return udt::control(name).map(drop),
        (Kind::Udt, None) => return Ok(()),
    };
    let fault = Fault::new(Code::Usage, format!("the udt channel {what}"));
    Err(fault.hint("leave the option out, or say --channel tcp"))
}

impl Session {
    /// Connects, sends `Hello` and the requests in one flight, and opens the channel in parallel.
    fn open(
        config: &Config,
        transfer: TransferId,
        requests: &[Message],
        observer: &dyn Observer,
    ) -> Result<Self, Fault> {
        check_channel(config)?;
        let setup = Setup {
            kind: config.channel,
            token: Token::random()?,
            streams: config.streams,
            rate_bps: config.rate_bps,
            congestion: config.congestion.clone(),
            dead_after: config.dead_after,
        };
        let (stream, server, opening) = connect::connect(config, &setup)?;
        let peer = server.to_string();
        let mut flight = CONTROL_PREAMBLE.to_vec();
        flight.extend(wire::encode(&Message::Hello(link::hello(
            transfer,
            config.dead_after,
        )))?);
        flight.extend(wire::encode(&Message::OpenChannel(setup.to_message()))?);
        for request in requests {
            flight.extend(wire::encode(request)?);
        }
        let deadline = Instant::now() + config.connect_timeout;
        let mut handshake = Handshake::new(&stream, deadline);
        handshake
            .write(&flight)
            .map_err(|error| Fault::connection(&error))?;
        let hello = answer(&mut handshake, &peer)?;
        agree(SOFTWARE, &hello, &format!("the server at {peer}"))?;
        observer.event(&Event::Connected {
            peer: &peer,
            software: &printable(wire::abridged(&hello.software).as_bytes()),
        });
        let link = Link::start(stream, "the server", config.dead_after)?;
        Ok(Self {
            link,
            opening,
            peer,
        })
    }
}

/// Reads the server's `Hello`, or finds out what else answered.
fn answer(handshake: &mut Handshake<'_>, peer: &str) -> Result<Hello, Fault> {
    let mut preamble = [0; CONTROL_PREAMBLE.len()];
    let silent = |how: &str| {
        Fault::new(
            Code::Unreachable,
            format!("{peer} accepts the connection and {how}"),
        )
        .hint("check that 'haul serve' runs there and listens on that port")
    };
    let got = handshake
        .read(&mut preamble)
        .map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => silent("sends nothing"),
            _ => silent("resets it"),
        })?;
    if got == 0 {
        return Err(silent("closes it"));
    }
    if !wire::is_preamble(preamble, CONTROL_PREAMBLE) {
        let answer = printable(&preamble[..got]);
        return Err(Fault::new(
            Code::NotHaul,
            format!("{peer} is not haul; it answers '{answer}'"),
        )
        .hint("check the address and --port"));
    }
    match handshake.message()? {
        Some(Message::Hello(hello)) => Ok(hello),
        Some(Message::Error(error)) => Err(error.into_fault("the server")),
        _ => Err(Fault::protocol("the server did not answer with Hello")),
    }
}

/// Makes attempts until one succeeds, one fails for good, or `give_up_after` has passed. The first
/// attempt must reach a session.
fn persist(
    config: &Config,
    observer: &dyn Observer,
    mut attempt: impl FnMut(&Config, &dyn Observer) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let watch = Watch {
        observer,
        seen: Mutex::default(),
    };
    let mut pause = BACKOFF;
    let mut alive_at = Instant::now();
    let mut bounded = config.clone();
    loop {
        let Err(fault) = attempt(&bounded, &watch) else {
            return Ok(());
        };
        let seen = {
            let mut seen = lock(&watch.seen);
            let now = *seen;
            seen.moved_at = None;
            now
        };
        if let Some(moved_at) = seen.moved_at {
            (pause, alive_at) = (BACKOFF, moved_at);
        }
        let out_of_time = config
            .give_up_after
            .is_some_and(|limit| alive_at.elapsed() + pause > limit);
        // If the very first attempt finds no server, the address is wrong: no retry. If it is cut
        // or told to wait, a retry may succeed.
        let reached = seen.planned || matches!(fault.code, Code::PeerGone | Code::ServerBusy);
        if !fault.code.passes() || !reached || out_of_time {
            return Err(fault);
        }
        observer.event(&Event::Retrying {
            fault: &fault,
            after: pause,
        });
        std::thread::sleep(pause);
        if let Some(limit) = config.give_up_after {
            let left = limit.saturating_sub(alive_at.elapsed());
            bounded.connect_timeout = config.connect_timeout.min(left.max(CONNECT_LEAST));
        }
        pause = (pause * 2).min(BACKOFF_MAX);
    }
}

/// Notes from the events whether the attempts make progress.
struct Watch<'a> {
    observer: &'a dyn Observer,
    seen: Mutex<Seen>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// An attempt reached a session.
    planned: bool,
    /// When bytes last arrived, if they did since the last failure.
    moved_at: Option<Instant>,
}

impl Observer for Watch<'_> {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Planned { .. } => lock(&self.seen).planned = true,
            Event::Progress { .. } | Event::FileDone(_) => {
                lock(&self.seen).moved_at = Some(Instant::now());
            }
            _ => {}
        }
        self.observer.event(event);
    }
}

fn open_sources(paths: &[PathBuf]) -> Result<Vec<SourceFile>, Fault> {
    let mut names = std::collections::HashSet::new();
    paths
        .iter()
        .map(|path| {
            let shown = printable(path.as_os_str().as_encoded_bytes());
            let file = haul_io::file::open_source(path).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => {
                    Fault::new(Code::FileNotFound, format!("there is no file '{shown}'"))
                        .hint("check the name")
                }
                _ => Fault::file(&format!("cannot read '{shown}'"), &error),
            })?;
            let name = Name::of_path(path)?;
            if !names.insert(name.clone()) {
                return Err(
                    Fault::new(Code::Usage, format!("two files are called '{name}'"))
                        .hint("send them to different directories"),
                );
            }
            SourceFile::new(name, file, &shown)
        })
        .collect()
}

fn check_count(count: usize) -> Result<(), Fault> {
    if count <= FILES_MAX {
        return Ok(());
    }
    Err(Fault::new(
        Code::Usage,
        format!("{count} files are too many for one transfer"),
    )
    .hint(format!("name at most {FILES_MAX} at a time")))
}

fn transfer_id() -> Result<TransferId, Fault> {
    haul_io::random::bytes()
        .map_err(|error| Fault::new(Code::Other, format!("cannot read random bytes: {error}")))
}
