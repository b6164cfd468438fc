//! The client: connects to a server, sends or gets files, and reconnects when the path fails.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use haul_control::connection::Connection;
use haul_control::frame::TaskId;
use haul_control::stream::Stream;
use haul_io::file::Dir;
use haul_seal::Cipher;

use crate::channel::{ChannelKind, Opening, Setup, Ticket, udt};
use crate::choice::{Choice, no_tree};
use crate::entry::Entry;
use crate::fault::{Code, Fault};
use crate::fs::walk;
use crate::link::{self, Link};
use crate::lock;
use crate::name::Name;
use crate::paths::PathKey;
use crate::printable;
use crate::report::{BenchSummary, Event, Observer, Summary};
use crate::session::plan::Destination;
use crate::session::{bench, receiver, sender};
use crate::sources;
use crate::wire::{self, Get, Message, OPERANDS_MAX, Put, SERVICE};

mod config;
mod connect;
mod control;
mod outcome;
mod reads;

pub use config::{Access, Config, Direct, Say};
pub(crate) use control::open_control;
use control::transfer_id;
use outcome::{Tally, bench_summary};
pub use reads::{Kind, Range, Reads, Stat};

/// First pause before a reconnect; each further one is twice as long.
const BACKOFF: Duration = Duration::from_millis(500);
/// Minimum connect timeout of a retry, even of the last.
const CONNECT_LEAST: Duration = Duration::from_millis(500);
/// Maximum pause before a reconnect.
const BACKOFF_MAX: Duration = Duration::from_secs(5);

pub use crate::wire::{Durable, Policy};

/// When a bench ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BenchLimit {
    /// After this time.
    Time(Duration),
    /// After this many bytes.
    Bytes(u64),
}

/// The files and trees to send.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Files and directories.
    pub operands: Vec<PathBuf>,
    /// Which entries of the directories, by paths relative to each of them.
    pub members: walk::Options,
}

impl Selection {
    /// Selects files, and directories as a whole.
    #[must_use]
    pub fn of(operands: Vec<PathBuf>) -> Self {
        Self {
            operands,
            members: walk::Options::default(),
        }
    }

    /// Finds out whether the files and directories can be sent, before a server is asked.
    ///
    /// # Errors
    /// Why one cannot.
    pub fn check(&self) -> Result<(), Fault> {
        sources::of_paths(&self.operands).map(drop)
    }
}

/// Sends local files and trees into a directory of the server.
///
/// # Errors
/// The failure that ended it. A transient one is retried first, within the limits of `config`.
pub fn send(
    config: &Config,
    selection: &Selection,
    directory: &[u8],
    policy: Policy,
    observer: &dyn Observer,
) -> Result<Summary, Fault> {
    check_count(selection.operands.len())?;
    let transfer = transfer_id()?;
    let put = Message::Put(Put {
        directory: directory.to_vec(),
        policy,
        binding: [0; 32],
    });
    let binding = wire::binding(&put)?;
    let mut tally = Tally::new(config);
    persist(config, observer, |config, observer| {
        let found = sources::of_paths(&selection.operands)?;
        let mut catalogue = sender::Catalogue {
            limit: config.limit.clone().unwrap_or_default(),
            ..found.catalogue(policy, &selection.members)?
        };
        // The scan goes on during the handshake.
        let requests = || {
            let offers = sender::offer(&mut catalogue, &binding);
            [vec![put.clone()], offers].concat()
        };
        let session = Session::open(config, SERVICE, transfer, requests)?;
        tally.connected(&session.peer, config.channel);
        let observer = &Greeted::new(observer, &session.link, &session.peer);
        let mut outcome = sender::SenderOutcome::default();
        let path = session.path;
        let result = sender::run(
            &session.link,
            catalogue,
            binding,
            session.opening,
            observer,
            &mut outcome,
        );
        observer.tell();
        tally.sent(&outcome);
        if let (Some(paths), Some(key), Some(shown)) = (&config.paths, &path, outcome.shown)
            && let Err(fault) = paths.keep(key, shown, SystemTime::now())
        {
            observer.event(&Event::Note(&format!(
                "the path's rate is not kept: {fault}"
            )));
        }
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

/// Gets files and trees of the server into a local directory. `choice` chooses among what is in the
/// trees, by paths relative to each of them.
///
/// # Errors
/// The failure that ended it. A transient one is retried first, within the limits of `config`.
pub fn get(
    config: &Config,
    paths: &[Vec<u8>],
    choice: &Choice,
    directory: &Path,
    policy: Policy,
    observer: &dyn Observer,
) -> Result<Summary, Fault> {
    check_count(paths.len())?;
    let wanted = Wanted::new(paths)?;
    let mut dir = Local::open(directory)?;
    let transfer = transfer_id()?;
    let request = Message::Get(Get {
        paths: paths.iter().map(|path| path.clone().into()).collect(),
        policy,
        choice: choice.chosen()?,
        binding: [0; 32],
    });
    let binding = wire::binding(&request)?;
    let mut tally = Tally::new(config);
    persist(config, observer, |config, observer| {
        let mut requests = vec![request.clone()];
        let limit = config.limit.as_ref();
        let limit = limit.map(|limit| (limit, limit.rate_bps()));
        if let Some((_, bps)) = limit {
            requests.push(Message::Rate(wire::Rate { bps }));
        }
        let session = Session::open(config, SERVICE, transfer, || requests)?;
        tally.connected(&session.peer, config.channel);
        let observer = &Greeted::new(observer, &session.link, &session.peer);
        let first = match session.link.receive()? {
            Message::Offer(offer) => offer,
            other => return Err(other.misplaced()),
        };
        observer.tell();
        let copy = dir.copy()?;
        let mut outcome = receiver::ReceiverOutcome::default();
        let result = receiver::run(
            &session.link,
            &first,
            Destination::new(copy, &binding)?,
            &receiver::Terms {
                policy,
                binding,
                allows: &|entry| match entry.is_member || !choice.only_trees {
                    true => wanted.check(entry),
                    false => Err(no_tree(entry.path.as_bytes())),
                },
                only: choice.only.as_ref(),
                adds_only: false,
                limit,
            },
            session.opening,
            observer,
            &mut outcome,
        );
        let result = result.and_then(|()| wanted.check_all());
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

/// The local directory that gets files. One whose path ends in a slash is made, if it is missing,
/// once the server has something to put there.
pub(crate) struct Local<'a> {
    path: &'a Path,
    pub(crate) dir: Option<Dir>,
}

impl<'a> Local<'a> {
    pub(crate) fn open(path: &'a Path) -> Result<Self, Fault> {
        let bytes = path.as_os_str().as_encoded_bytes();
        let dir = match Dir::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && bytes.ends_with(b"/") => None,
            result => Some(result.map_err(|error| Self::fault(path, &error))?),
        };
        Ok(Self { path, dir })
    }

    /// Opens the directory once more.
    fn copy(&mut self) -> Result<Dir, Fault> {
        if self.dir.is_none() {
            std::fs::create_dir_all(self.path).map_err(|error| {
                let shown = printable(self.path.as_os_str().as_encoded_bytes());
                Fault::file(&format!("cannot make '{shown}'"), &error)
            })?;
        }
        let opened = match self.dir.take() {
            Some(dir) => Ok(dir),
            None => Dir::open(self.path),
        };
        let copied = opened.and_then(|dir| self.dir.insert(dir).open_beneath(Path::new("")));
        copied.map_err(|error| Self::fault(self.path, &error))
    }

    fn fault(path: &Path, error: &io::Error) -> Fault {
        let shown = printable(path.as_os_str().as_encoded_bytes());
        let fault = |hint| {
            let text = format!("'{shown}' is not a directory");
            Fault::new(Code::DirectoryNotFound, text).hint(hint)
        };
        match error.kind() {
            io::ErrorKind::NotFound => fault("put a / at its end to have it made"),
            io::ErrorKind::NotADirectory => fault("name a directory: files keep their names"),
            _ => Fault::file(&format!("cannot open '{shown}'"), error),
        }
    }
}

/// What a client asked for: a server must not choose names.
struct Wanted {
    /// The names of the files and trees, and whether each was offered.
    names: Mutex<HashMap<Vec<u8>, bool>>,
    /// The contents of a directory were asked for, whose names only the server knows.
    has_contents: bool,
}

impl Wanted {
    fn new(paths: &[Vec<u8>]) -> Result<Self, Fault> {
        if paths.iter().any(Vec::is_empty) {
            return Err(Fault::new(Code::Usage, "a path is empty")
                .hint("name a file or directory; '.' is everything in the directory"));
        }
        let (contents, named): (Vec<_>, Vec<_>) =
            paths.iter().partition(|path| sources::is_contents(path));
        let name = |path: &&Vec<u8>| {
            let path = path.strip_suffix(b"/").unwrap_or(path);
            let name = Name::new(path.rsplit(|byte| *byte == b'/').next().unwrap_or_default())?;
            Ok((name.as_bytes().to_vec(), false))
        };
        let names: HashMap<_, _> = named.iter().map(name).collect::<Result<_, Fault>>()?;
        if names.len() < named.len() {
            return Err(Fault::new(Code::Usage, "two files have the same name")
                .hint("get them into different directories"));
        }
        Ok(Self {
            names: Mutex::new(names),
            has_contents: !contents.is_empty(),
        })
    }

    /// Checks that an offered entry lies below what was asked for.
    fn check(&self, entry: &Entry) -> Result<(), Fault> {
        let first = entry.path.as_bytes().split(|byte| *byte == b'/').next();
        let mut names = lock(&self.names);
        let wanted = names.get_mut(first.unwrap_or_default());
        let is_wanted = wanted.is_some();
        if let Some(is_offered) = wanted {
            *is_offered = true;
        }
        if is_wanted || self.has_contents {
            return Ok(());
        }
        Err(unasked())
    }

    /// Checks that everything that was asked for was offered.
    fn check_all(&self) -> Result<(), Fault> {
        let names = lock(&self.names);
        match names.values().all(|is_offered| *is_offered) {
            true => Ok(()),
            false => Err(unasked()),
        }
    }
}

fn unasked() -> Fault {
    Fault::protocol("the server offers other files than were asked for")
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
    let requests = || vec![Message::Bench(request.clone())];
    let session = Session::open(config, SERVICE, transfer_id()?, requests)?;
    let observer = &Greeted::new(observer, &session.link, &session.peer);
    let (report, sender, receiver) = if reverse {
        let received = bench::receive(&session.link, session.opening, observer);
        let received = received?;
        (
            received.report.clone(),
            received.peer,
            received.report.spent,
        )
    } else {
        let sent = bench::send(&session.link, &request, session.opening, observer);
        let sent = sent?;
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
    /// What the path is remembered by.
    path: Option<PathKey>,
}

/// Refuses options that the channel does not have: an option without effect would mislead.
fn check_channel(config: &Config) -> Result<(), Fault> {
    if config.dialer.is_some() {
        let what = match (config.channel, &config.congestion) {
            (ChannelKind::Tcp, None) => return Ok(()),
            (ChannelKind::Tcp, Some(_)) => "the congestion control between gateways is theirs",
            (ChannelKind::Udt, _) => "gateways carry TCP, not the udt channel",
        };
        return Err(Fault::new(Code::Usage, what).hint("leave the option out"));
    }
    let what = match (config.channel, &config.congestion) {
        (ChannelKind::Tcp, _) => return Ok(()),
        (ChannelKind::Udt, _) if config.streams > 1 => "has one stream and needs no more",
        (ChannelKind::Udt, Some(_)) if config.rate_bps.is_some() => {
            "keeps a declared rate, without another control"
        }
        (ChannelKind::Udt, Some(name)) => return udt::control(name).map(drop),
        (ChannelKind::Udt, None) => return Ok(()),
    };
    let fault = Fault::new(Code::Usage, format!("the udt channel {what}"));
    Err(fault.hint("leave the option out, or say --channel tcp"))
}

impl Session {
    /// Connects, sends the greeting and the requests in one flight, and opens the channel in
    /// parallel. Does not wait for the server's greeting: what follows the requests may leave with
    /// them.
    fn open(
        config: &Config,
        service: &str,
        transfer: TaskId,
        requests: impl FnOnce() -> Vec<Message>,
    ) -> Result<Self, Fault> {
        check_channel(config)?;
        let mut setup = Setup {
            kind: config.channel,
            ticket: Ticket::random()?,
            streams: config.streams,
            rate_bps: config.rate_bps,
            congestion: config.congestion.clone(),
            dead_after: config.dead_after,
            sealed: config.sealed.then(Cipher::preferred),
        };
        let (stream, server, mut opening) = connect::connect(config, &setup)?;
        let peer = server.to_string();
        let deadline = Instant::now() + config.connect_timeout;
        let handshake = |stream| {
            let stream = Stream::tcp(stream).map_err(|error| Fault::connection(&error))?;
            Connection::client(stream, &config.control, &peer, deadline)
        };
        let mut connection = match handshake(stream) {
            // Damage may look like a refusal, but not twice.
            Err(failed) if !failed.is_certain => {
                handshake(server.connect(config.connect_timeout)?)?
            }
            result => result?,
        };
        // Both ends have agreed on it meanwhile.
        setup.sealed = setup.sealed.map(|_| connection.cipher());
        let mut messages = vec![wire::encode(&Message::OpenChannel(setup.to_message()))?];
        let export = |label: &str, context: &[u8]| connection.export(label, context);
        if let Some(seal) = setup.seal(&messages[0], export)? {
            opening.set_seal(seal);
        }
        // An agent that ssh starts has another key each time.
        let keeps_rates = config.keeps_rates() && config.access.is_none();
        let address = server.address().filter(|_| keeps_rates);
        let path = address.map(|address| PathKey::new(connection.peer(), address.ip()));
        if let (Some(paths), Some(path)) = (&config.paths, &path)
            && let Some(remembered) = paths.recall(path, SystemTime::now())
        {
            opening.resume(remembered);
        }
        for request in requests() {
            messages.push(wire::encode(&request)?);
        }
        let greeting = link::greeting(service, transfer, config.dead_after);
        connection.greet(&greeting, &messages)?;
        let link = Link::start(connection, config.dead_after)?;
        Ok(Self {
            link,
            opening,
            peer,
            path,
        })
    }
}

/// Reports, before the first event after it, that the server has greeted.
struct Greeted<'a> {
    observer: &'a dyn Observer,
    link: &'a Link,
    peer: &'a str,
    is_told: AtomicBool,
}

impl<'a> Greeted<'a> {
    const fn new(observer: &'a dyn Observer, link: &'a Link, peer: &'a str) -> Self {
        Self {
            observer,
            link,
            peer,
            is_told: AtomicBool::new(false),
        }
    }

    fn tell(&self) {
        if let Some(greeting) = self.link.greeting()
            && !self.is_told.swap(true, Ordering::Relaxed)
        {
            self.observer.event(&Event::Connected {
                peer: self.peer,
                software: &printable(haul_control::abridged(&greeting.software).as_bytes()),
            });
        }
    }
}

impl Observer for Greeted<'_> {
    fn event(&self, event: &Event<'_>) {
        self.tell();
        self.observer.event(event);
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
    if let Some(access) = &config.access {
        access.prepare(&mut bounded)?;
    }
    loop {
        let Err(fault) = attempt(&bounded, &watch) else {
            return Ok(());
        };
        if let Some(access) = config.access.as_ref().filter(|_| fault.code.passes())
            && access.recover(&mut bounded, &fault)?
        {
            continue;
        }
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

fn check_count(count: usize) -> Result<(), Fault> {
    if count <= OPERANDS_MAX {
        return Ok(());
    }
    Err(Fault::new(
        Code::Usage,
        format!("{count} files are too many for one transfer"),
    )
    .hint(format!("name at most {OPERANDS_MAX} at a time")))
}
