//! Resolves names on threads of its own, because the system's resolver blocks, and for longer than
//! clients wait.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::bounded;
use haul_io::clock::Clock;
use haul_xsp::SECOND_NS;

use crate::sync::lock;

/// Time for the answer to a name. The system may take longer; its answer then comes too late.
const TIMEOUT_NS: u64 = 3 * SECOND_NS;
/// Different names resolved at a time: a name server that does not answer takes a thread for each.
const THREADS_MAX: usize = 32;
/// How long a thread waits for another name before it ends.
const IDLE: Duration = Duration::from_secs(10);
/// Requests that wait; further ones are refused.
const WAITING_MAX: usize = 1_024;

type Reply = Box<dyn FnOnce(io::Result<Vec<SocketAddr>>) + Send>;
type Lookup = dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Resolves names until it is dropped; waiting requests are then answered with an error.
pub(crate) struct Resolver(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// A name waits, or the resolver is being dropped.
    has_name: Condvar,
    /// A request waits, or the resolver is being dropped.
    has_request: Condvar,
    lookup: Box<Lookup>,
    timeout_ns: u64,
    clock: Clock,
}

#[derive(Default)]
struct State {
    /// Names that no thread has taken.
    names: VecDeque<String>,
    /// Requests by name; several for one name share its answer.
    requests: HashMap<String, Vec<Request>>,
    /// Deadlines in the order of requests, ns. Some are answered.
    deadlines: VecDeque<(u64, String)>,
    waiting: usize,
    threads: usize,
    idle: usize,
    is_closing: bool,
}

struct Request {
    port: u16,
    until_ns: u64,
    reply: Reply,
}

impl Resolver {
    /// Starts the thread that watches deadlines. Others are started when names need them.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start() -> io::Result<Self> {
        Self::start_with(TIMEOUT_NS, |name| {
            Ok((name, 0).to_socket_addrs()?.collect())
        })
    }

    fn start_with(
        timeout_ns: u64,
        lookup: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let inner = Arc::new(Inner {
            state: Mutex::default(),
            has_name: Condvar::new(),
            has_request: Condvar::new(),
            lookup: Box::new(lookup),
            timeout_ns,
            clock: Clock::new(),
        });
        let own = Arc::clone(&inner);
        thread(move || own.watch())?;
        Ok(Self(inner))
    }

    /// Resolves a name, and calls `reply` with at least one address, or with an error after 3 s at
    /// the latest. `reply` runs on another thread, or at once if too many requests wait. It must
    /// not block.
    pub(crate) fn resolve(
        &self,
        name: impl Into<String>,
        port: u16,
        reply: impl FnOnce(io::Result<Vec<SocketAddr>>) + Send + 'static,
    ) {
        let name = name.into();
        if let Err(why) = self.queue(&name, port, Box::new(reply)) {
            let (reply, why) = *why;
            reply(Err(io::Error::new(why.kind(), format!("{name}: {why}"))));
        }
    }

    /// Resolves a name, and blocks until there is an answer: 3 s at most.
    ///
    /// # Errors
    /// The name has no address, or there is no answer in time.
    pub(crate) fn resolve_blocking(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let (sender, answer) = bounded(1);
        self.resolve(name, port, move |found| drop(sender.send(found)));
        // Every request is answered.
        answer
            .recv()
            .unwrap_or_else(|_| Err(io::ErrorKind::ConnectionAborted.into()))
    }

    fn queue(&self, name: &str, port: u16, reply: Reply) -> Result<(), Box<(Reply, io::Error)>> {
        let inner = &self.0;
        let mut state = lock(&inner.state);
        if state.waiting >= WAITING_MAX {
            let why = "too many names wait to be resolved";
            return Err(Box::new((
                reply,
                io::Error::new(io::ErrorKind::WouldBlock, why),
            )));
        }
        let is_new = !state.requests.contains_key(name);
        if is_new && state.idle <= state.names.len() && state.threads < THREADS_MAX {
            let own = Arc::clone(inner);
            match thread(move || own.answer()) {
                Ok(()) => state.threads += 1,
                // Another thread takes it.
                Err(_) if state.threads > 0 => {}
                Err(error) => return Err(Box::new((reply, error))),
            }
        }
        let until_ns = inner.clock.now_ns() + inner.timeout_ns;
        let requests = state.requests.entry(name.to_owned()).or_default();
        requests.push(Request {
            port,
            until_ns,
            reply,
        });
        state.waiting += 1;
        let is_first = state.deadlines.is_empty();
        state.deadlines.push_back((until_ns, name.to_owned()));
        if is_new {
            state.names.push_back(name.to_owned());
            inner.has_name.notify_one();
        }
        drop(state);
        // Deadlines are in the order of requests: a later one changes nothing for the watcher.
        if is_first {
            inner.has_request.notify_one();
        }
        Ok(())
    }
}

/// The threads are not joined: they end after the name that they resolve.
impl Drop for Resolver {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.is_closing = true;
        state.names.clear();
        let requests = std::mem::take(&mut state.requests);
        drop(state);
        self.0.has_name.notify_all();
        self.0.has_request.notify_all();
        for (name, request) in requests.into_iter().flat_map(|(name, requests)| {
            requests
                .into_iter()
                .map(move |request| (name.clone(), request))
        }) {
            let text = format!("{name}: the gateway is being stopped");
            let aborted = io::ErrorKind::ConnectionAborted;
            (request.reply)(Err(io::Error::new(aborted, text)));
        }
    }
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver")
            .field("waiting", &lock(&self.0.state).waiting)
            .finish()
    }
}

fn thread(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("haul-resolver".to_owned());
    thread.spawn(run).map(drop)
}

impl Inner {
    /// Resolves names until there has been none for a while.
    fn answer(&self) {
        let mut state = lock(&self.state);
        loop {
            state.idle += 1;
            let waited = self
                .has_name
                .wait_timeout_while(state, IDLE, |state| {
                    state.names.is_empty() && !state.is_closing
                })
                .unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
            state.idle -= 1;
            let Some(name) = state.names.pop_front() else {
                state.threads -= 1;
                return;
            };
            drop(state);
            let found = (self.lookup)(&name);
            state = lock(&self.state);
            let requests = state.requests.remove(&name).unwrap_or_default();
            state.waiting -= requests.len();
            drop(state);
            for Request { port, reply, .. } in requests {
                reply(answer(&name, port, &found));
            }
            state = lock(&self.state);
        }
    }

    /// Answers requests whose time is over.
    fn watch(&self) {
        let mut state = lock(&self.state);
        while !state.is_closing {
            let now_ns = self.clock.now_ns();
            let late = state.take_late(now_ns);
            if !late.is_empty() {
                drop(state);
                for (name, reply) in late {
                    let seconds = self.timeout_ns as f64 / SECOND_NS as f64;
                    let text = format!("{name}: no name server has answered within {seconds} s");
                    reply(Err(io::Error::new(io::ErrorKind::TimedOut, text)));
                }
                state = lock(&self.state);
                continue;
            }
            let next = state.deadlines.front().map(|(until_ns, _)| *until_ns);
            state = match next {
                Some(until_ns) => {
                    let left = Duration::from_nanos(until_ns.saturating_sub(now_ns));
                    let waited = self.has_request.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.has_request.wait(state);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }
}

impl State {
    /// Takes the requests whose deadline is over. A name without requests is forgotten, unless a
    /// thread resolves it.
    fn take_late(&mut self, now_ns: u64) -> Vec<(String, Reply)> {
        let mut late = Vec::new();
        while let Some((until_ns, name)) = self.deadlines.pop_front() {
            if until_ns > now_ns {
                self.deadlines.push_front((until_ns, name));
                break;
            }
            let Some(requests) = self.requests.get_mut(&name) else {
                continue;
            };
            let over = requests.extract_if(.., |request| request.until_ns <= now_ns);
            let over: Vec<Reply> = over.map(|request| request.reply).collect();
            self.waiting -= over.len();
            let is_queued = self.names.iter().position(|queued| *queued == name);
            if let Some(queued) = is_queued.filter(|_| requests.is_empty()) {
                self.names.remove(queued);
                self.requests.remove(&name);
            }
            late.extend(over.into_iter().map(|reply| (name.clone(), reply)));
        }
        late
    }
}

fn answer(
    name: &str,
    port: u16,
    found: &io::Result<Vec<SocketAddr>>,
) -> io::Result<Vec<SocketAddr>> {
    match found {
        Ok(addresses) if addresses.is_empty() => Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("{name} has no address"),
        )),
        Ok(addresses) => Ok(addresses
            .iter()
            .map(|address| {
                let mut address = *address;
                address.set_port(port);
                address
            })
            .collect()),
        Err(error) => Err(io::Error::new(error.kind(), format!("{name}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, unbounded};

    use super::*;

    /// Far longer than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(20);
    const PATIENCE_NS: u64 = 20 * SECOND_NS;

    type Answers = Receiver<io::Result<Vec<SocketAddr>>>;

    fn ask(resolver: &Resolver, name: &str, port: u16) -> Answers {
        let (answer, answers) = unbounded();
        resolver.resolve(name, port, move |found| answer.send(found).unwrap());
        answers
    }

    fn error(answers: &Answers) -> io::Error {
        answers.recv_timeout(PATIENCE).unwrap().unwrap_err()
    }

    /// A resolver that waits until the sender is dropped, and reports each name that it begins.
    fn gated() -> (Resolver, crossbeam_channel::Sender<()>, Receiver<String>) {
        let (go, gate) = bounded::<()>(0);
        let (entered, entries) = unbounded();
        let resolver = Resolver::start_with(PATIENCE_NS, move |name| {
            entered.send(name.to_owned()).unwrap();
            let _ = gate.recv();
            Ok(vec![([192, 0, 2, 1], 0).into()])
        });
        (resolver.unwrap(), go, entries)
    }

    #[test]
    fn the_system_knows_addresses_and_this_host() {
        let resolver = Resolver::start().unwrap();
        let found = |name| resolver.resolve_blocking(name, 80).unwrap();
        assert_eq!(found("192.0.2.1"), ["192.0.2.1:80".parse().unwrap()]);
        assert!(
            found("localhost")
                .iter()
                .all(|address| address.ip().is_loopback() && address.port() == 80)
        );
    }

    #[test]
    fn a_name_without_addresses_is_an_error_that_names_it() {
        let resolver = Resolver::start_with(PATIENCE_NS, |name| match name {
            "empty" => Ok(Vec::new()),
            _ => Err(io::Error::other("no such name")),
        })
        .unwrap();
        let empty = error(&ask(&resolver, "empty", 80));
        assert_eq!(empty.to_string(), "empty has no address");
        let none = error(&ask(&resolver, "none", 80));
        assert_eq!(none.to_string(), "none: no such name");
    }

    #[test]
    fn names_that_are_not_answered_time_out_and_do_not_hold_up_others() {
        let (go, gate) = bounded::<()>(0);
        let resolver = Resolver::start_with(SECOND_NS / 20, move |name| {
            if name.starts_with("dead") {
                let _ = gate.recv();
            }
            Ok(vec![([192, 0, 2, 1], 0).into()])
        })
        .unwrap();
        for number in 0..THREADS_MAX - 1 {
            let late = error(&ask(&resolver, &format!("dead{number}"), 80));
            assert_eq!(late.kind(), io::ErrorKind::TimedOut, "{late}");
        }
        assert!(resolver.resolve_blocking("alive", 80).is_ok());
        // All threads wait: a name that none of them takes times out as well.
        for number in 0..2 {
            error(&ask(&resolver, &format!("dead too {number}"), 80));
        }
        let late = error(&ask(&resolver, "alive", 80)).to_string();
        assert_eq!(late, "alive: no name server has answered within 0.05 s");
        assert_eq!(lock(&resolver.0.state).waiting, 0);
        drop(go);
        let until = Clock::new().now_ns() + PATIENCE_NS;
        while resolver.resolve_blocking("alive", 80).is_err() {
            assert!(Clock::new().now_ns() < until);
        }
    }

    #[test]
    fn requests_for_one_name_share_a_thread_and_keep_their_ports() {
        let (resolver, go, entries) = gated();
        let asked: Vec<Answers> = (1..=3).map(|port| ask(&resolver, "one", port)).collect();
        assert_eq!(entries.recv_timeout(PATIENCE).unwrap(), "one");
        drop(go);
        for (port, answers) in (1..).zip(&asked) {
            let found = answers.recv_timeout(PATIENCE).unwrap().unwrap();
            assert_eq!(found[0].port(), port);
        }
        assert!(entries.is_empty());
    }

    #[test]
    fn requests_have_a_limit_and_every_one_has_an_answer() {
        let (resolver, go, entries) = gated();
        let asked: Vec<Answers> = (0..WAITING_MAX)
            .map(|number| ask(&resolver, &format!("{}", number % 100), 80))
            .collect();
        for _ in 0..THREADS_MAX {
            entries.recv_timeout(PATIENCE).unwrap();
        }
        let refused = error(&ask(&resolver, "one more", 80));
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(
            refused.to_string(),
            "one more: too many names wait to be resolved"
        );
        drop(go);
        for answers in asked {
            assert!(answers.recv_timeout(PATIENCE).unwrap().is_ok());
        }
    }

    #[test]
    fn what_waits_when_it_ends_is_answered() {
        let (resolver, go, entries) = gated();
        let first = ask(&resolver, "slow", 80);
        entries.recv_timeout(PATIENCE).unwrap();
        let second = ask(&resolver, "waits", 80);
        drop(resolver);
        for answers in [first, second] {
            assert_eq!(error(&answers).kind(), io::ErrorKind::ConnectionAborted);
        }
        drop(go);
    }
}
