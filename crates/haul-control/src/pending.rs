//! Accepted connections that no service has taken over, and how many of them there may be.

use std::collections::{HashMap, VecDeque};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::lock;
use crate::penalty::Source;

/// How often an acceptor without room checks whether a connection may be closed.
const LOOK: Duration = Duration::from_millis(20);
/// A connection stays open for this long in each stage, whatever else arrives: a client on a busy
/// host needs a while to send its next bytes.
const GRACE: Duration = Duration::from_millis(200);

/// Connections without a complete first message, and those in their handshake, each oldest first.
/// If there are too many of one kind, the oldest of the source that has most of them is closed:
/// neither silent nor half-open connections keep out a client that completes its handshake.
///
/// They hold no descriptors of their own, and nobody but an acceptor waits for room.
#[derive(Debug)]
pub struct Pending {
    max: usize,
    grace: Duration,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    has_left: Condvar,
}

#[derive(Debug, Default)]
struct State {
    silent: VecDeque<Open>,
    greeting: VecDeque<Open>,
    entered: u64,
    left: u64,
}

#[derive(Debug)]
struct Open {
    number: u64,
    /// Since when the client has been expected to send; `None` while this end has work to do.
    since: Option<Instant>,
    source: Option<Source>,
    stream: Weak<TcpStream>,
}

/// A connection's place among the [`Pending`]; dropping it gives the place up.
#[derive(Debug)]
pub struct Place {
    number: u64,
    shared: Arc<Shared>,
}

impl Pending {
    /// Makes room for `max` connections of each kind. There are never more than twice as many in
    /// all, those included that have been closed and whose threads have not ended.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            max,
            grace: GRACE,
            shared: Arc::default(),
        }
    }

    /// Adds a connection. If there are too many, closes one whose client has sent nothing for 200
    /// ms. Blocks while there is no room, so that a flood waits in the listener's queue.
    pub fn enter(&self, stream: &Arc<TcpStream>) -> Place {
        let mut state = lock(&self.shared.state);
        loop {
            if let Some(place) = self.place(&mut state, stream) {
                return place;
            }
            let waited = self.shared.has_left.wait_timeout(state, LOOK);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Adds a connection as [`enter`](Self::enter) does; `None` where that would block.
    pub fn try_enter(&self, stream: &Arc<TcpStream>) -> Option<Place> {
        self.place(&mut lock(&self.shared.state), stream)
    }

    /// Closes a connection of each kind: the process has no descriptor left.
    pub fn make_room(&self) {
        let mut state = lock(&self.shared.state);
        evict(&mut state.silent, self.grace);
        evict(&mut state.greeting, self.grace);
    }

    fn place(&self, state: &mut State, stream: &Arc<TcpStream>) -> Option<Place> {
        if state.silent.len() >= self.max {
            evict(&mut state.silent, self.grace);
        }
        if state.greeting.len() >= self.max {
            evict(&mut state.greeting, self.grace);
        }
        let present = state.entered - state.left;
        if present >= 2 * u64::try_from(self.max).unwrap_or(u64::MAX / 2) {
            return None;
        }
        state.entered += 1;
        state.silent.push_back(Open {
            number: state.entered,
            since: Some(Instant::now()),
            source: stream.peer_addr().ok().map(|peer| peer.ip().into()),
            stream: Arc::downgrade(stream),
        });
        Some(Place {
            number: state.entered,
            shared: Arc::clone(&self.shared),
        })
    }

    #[cfg(test)]
    fn len(&self) -> u64 {
        let state = lock(&self.shared.state);
        state.entered - state.left
    }
}

impl Place {
    /// Notes that the client's first message is complete: its handshake begins.
    pub fn advance(&self) {
        let mut state = lock(&self.shared.state);
        // It may have been closed.
        if let Some(mut open) = take(&mut state.silent, self.number) {
            open.since = None;
            state.greeting.push_back(open);
        }
    }

    /// Notes that this end has answered: from now on it waits for the client.
    pub fn wait_for_client(&self) {
        let mut state = lock(&self.shared.state);
        let mut greeting = state.greeting.iter_mut();
        if let Some(open) = greeting.find(|open| open.number == self.number) {
            open.since = Some(Instant::now());
        }
    }
}

fn take(open: &mut VecDeque<Open>, number: u64) -> Option<Open> {
    let at = open.iter().position(|open| open.number == number)?;
    open.remove(at)
}

/// Closes the oldest connection of the source that has most of them, if this end has waited for its
/// client for `grace`. On a busy server its next bytes may wait for their thread: then it stays.
fn evict(open: &mut VecDeque<Open>, grace: Duration) {
    // Whoever took over the others bounds their number.
    open.retain(|open| open.stream.strong_count() > 0);
    let mut counts = HashMap::new();
    for open in &*open {
        *counts.entry(open.source).or_insert(0_usize) += 1;
    }
    let most =
        (open.iter()).max_by_key(|open| (counts[&open.source], std::cmp::Reverse(open.number)));
    let Some(source) = most.map(|open| open.source) else {
        return;
    };
    let is_due = |open: &Open| {
        open.source == source && open.since.is_some_and(|since| since.elapsed() >= grace)
    };
    let mut due = (open.iter().enumerate()).filter(|(_, open)| is_due(open));
    let idle = |(at, open): (usize, &Open)| {
        let stream = open.stream.upgrade()?;
        (!has_unread(&stream)).then_some((at, stream))
    };
    if let Some((at, stream)) = due.find_map(idle) {
        // An error means that it has ended already.
        let _ = stream.shutdown(Shutdown::Both);
        open.remove(at);
    }
}

fn has_unread(stream: &TcpStream) -> bool {
    haul_io::tcp::unread(stream).is_ok_and(|bytes| bytes > 0)
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.left += 1;
        if take(&mut state.silent, self.number).is_none() {
            take(&mut state.greeting, self.number);
        }
        self.shared.has_left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn without_grace(max: usize) -> Pending {
        Pending {
            grace: Duration::ZERO,
            ..Pending::new(max)
        }
    }

    /// Connected clients, and the ends that the acceptor has of them.
    fn pairs(count: usize) -> (Vec<TcpStream>, Vec<Arc<TcpStream>>) {
        let pairs = (0..count).map(|_| haul_io::tcp::pair().unwrap());
        pairs
            .map(|(client, server)| (client, server.into()))
            .unzip()
    }

    fn is_open(stream: &TcpStream) -> bool {
        stream.set_nonblocking(true).unwrap();
        (&*stream).read(&mut [0]).is_err()
    }

    #[test]
    fn the_oldest_makes_room_and_the_others_stay() {
        let pending = without_grace(2);
        let (clients, servers) = pairs(3);
        let places: Vec<_> = servers.iter().map(|server| pending.enter(server)).collect();
        assert_eq!((&clients[0]).read(&mut [0]).unwrap(), 0);
        assert!(is_open(&clients[1]) && is_open(&clients[2]));
        assert_eq!(pending.len(), 3);
        drop(places);
        assert_eq!(pending.len(), 0);
    }

    #[test]
    fn the_source_that_has_most_makes_room() {
        let pending = without_grace(3);
        let listener = std::net::TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let pairs: Vec<_> = ["[::1]", "127.0.0.1", "127.0.0.1", "127.0.0.1"]
            .iter()
            .map(|host| {
                let client = TcpStream::connect(format!("{host}:{port}")).unwrap();
                (client, Arc::new(listener.accept().unwrap().0))
            })
            .collect();
        let places: Vec<_> = (pairs.iter())
            .map(|(_, server)| pending.enter(server))
            .collect();
        assert_eq!((&pairs[1].0).read(&mut [0]).unwrap(), 0);
        for at in [0, 2, 3] {
            assert!(is_open(&pairs[at].0));
        }
        drop(places);
    }

    #[test]
    fn silent_and_half_open_connections_make_room_for_their_own_kind() {
        let pending = without_grace(2);
        let (clients, servers) = pairs(7);
        let enter = |range: std::ops::Range<usize>| -> Vec<_> {
            let servers = servers[range].iter();
            servers.map(|server| pending.enter(server)).collect()
        };
        // The first client is answered, the second one waits for this end.
        let mut places = enter(0..2);
        places.iter().for_each(Place::advance);
        places[0].wait_for_client();
        places.extend(enter(2..4));
        assert_eq!((&clients[0]).read(&mut [0]).unwrap(), 0);
        places.remove(0);
        // Too many are silent, and too many in their handshake: the answered one leaves.
        places[1].advance();
        places[1].wait_for_client();
        places.extend(enter(4..5));
        assert_eq!((&clients[2]).read(&mut [0]).unwrap(), 0);
        assert!([1, 3, 4].iter().all(|at| is_open(&clients[*at])));
        drop(places);
        assert_eq!(pending.len(), 0);
    }

    #[test]
    fn a_connection_that_is_handed_over_is_not_closed_for_others() {
        let pending = without_grace(1);
        let (clients, mut servers) = pairs(2);
        let first = pending.enter(&servers[0]);
        let taken = Arc::into_inner(servers.remove(0)).unwrap();
        let second = pending.enter(&servers[0]);
        assert!(is_open(&clients[0]));
        drop((first, second, taken));
    }

    #[test]
    fn what_has_just_arrived_stays_and_the_acceptor_waits() {
        let pending = Pending {
            grace: Duration::from_secs(3600),
            ..Pending::new(1)
        };
        let (clients, servers) = pairs(3);
        let enter = |server| pending.enter(server);
        let mut places: Vec<_> = servers[..2].iter().map(enter).collect();
        assert!(is_open(&clients[0]) && is_open(&clients[1]));
        std::thread::scope(|scope| {
            let third = scope.spawn(|| pending.enter(&servers[2]));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!third.is_finished());
            assert!(pending.try_enter(&servers[2]).is_none());
            places.pop();
            drop(third.join().unwrap());
        });
    }
}
