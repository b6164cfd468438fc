//! Accepted connections whose first message has not arrived, and how many of them there may be.

use std::collections::{HashMap, VecDeque};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lock;
use crate::penalty::Source;

/// How often an acceptor checks whether it may go on.
const LOOK: Duration = Duration::from_millis(5);
/// A connection stays open this long, whatever else arrives: a client on a busy host needs a while
/// to send its first bytes.
const GRACE: Duration = Duration::from_millis(200);

/// Connections whose first message has not arrived, oldest first. If there are too many, the oldest
/// of the source that has most of them is closed, so that silent connections never keep out a
/// client that sends.
#[derive(Debug)]
pub struct Pending {
    max: usize,
    grace: Duration,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    open: VecDeque<Open>,
    entered: u64,
    left: u64,
}

#[derive(Debug)]
struct Open {
    number: u64,
    since: Instant,
    source: Option<Source>,
    stream: TcpStream,
}

/// A connection's place among the [`Pending`]; dropping it gives the place up.
#[derive(Debug)]
pub struct Place {
    number: u64,
    shared: Arc<Mutex<Shared>>,
}

impl Pending {
    /// Makes room for `max` connections, and for twice as many that have just been accepted.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            max,
            grace: GRACE,
            shared: Arc::default(),
        }
    }

    /// Adds a connection. If there are more than `max`, closes one that has been silent for 200 ms.
    /// Blocks while there are twice as many, so that a flood waits in the listener's queue.
    pub fn enter(&self, stream: &TcpStream) -> Place {
        loop {
            if let Some(place) = self.try_enter(stream) {
                return place;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Adds a connection as [`enter`](Self::enter) does; `None` where that would block.
    pub fn try_enter(&self, stream: &TcpStream) -> Option<Place> {
        let mut shared = lock(&self.shared);
        let open = shared.open.len();
        let surplus = if open >= self.max {
            shared.evict(self.grace)
        } else {
            None
        };
        let present = shared.entered - shared.left;
        let is_full = present >= 2 * u64::try_from(self.max).unwrap_or(u64::MAX / 2);
        let place = (!is_full).then(|| self.add(&mut shared, stream));
        drop(shared);
        if let Some(surplus) = surplus {
            // An error means that it has ended already.
            let _ = surplus.shutdown(Shutdown::Both);
        }
        place
    }

    fn add(&self, shared: &mut Shared, stream: &TcpStream) -> Place {
        shared.entered += 1;
        let number = shared.entered;
        // Without a second descriptor only its deadline ends it.
        if let Ok(handle) = stream.try_clone() {
            let source = stream.peer_addr().ok().map(|peer| peer.ip().into());
            shared.open.push_back(Open {
                number,
                since: Instant::now(),
                source,
                stream: handle,
            });
        }
        Place {
            number,
            shared: Arc::clone(&self.shared),
        }
    }

    #[cfg(test)]
    fn len(&self) -> u64 {
        let shared = lock(&self.shared);
        shared.entered - shared.left
    }
}

impl Shared {
    /// Takes out the oldest connection of the source that has most of them, if it is older than
    /// `grace`. On a busy server its first bytes may wait for their thread: then it stays.
    fn evict(&mut self, grace: Duration) -> Option<TcpStream> {
        let mut counts = HashMap::new();
        for open in &self.open {
            *counts.entry(open.source).or_insert(0_usize) += 1;
        }
        let (at, _) = (self.open.iter().enumerate())
            .max_by_key(|(_, open)| (counts[&open.source], std::cmp::Reverse(open.number)))?;
        let oldest = &self.open[at];
        if oldest.since.elapsed() < grace || has_unread(&oldest.stream) {
            return None;
        }
        self.open.remove(at).map(|open| open.stream)
    }
}

fn has_unread(stream: &TcpStream) -> bool {
    haul_io::tcp::unread(stream).is_ok_and(|bytes| bytes > 0)
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.left += 1;
        shared.open.retain(|open| open.number != self.number);
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

    fn is_open(stream: &TcpStream) -> bool {
        stream.set_nonblocking(true).unwrap();
        (&*stream).read(&mut [0]).is_err()
    }

    #[test]
    fn the_oldest_makes_room_and_the_others_stay() {
        let pending = without_grace(2);
        let pairs: Vec<_> = (0..3).map(|_| haul_io::tcp::pair().unwrap()).collect();
        let places: Vec<_> = (pairs.iter())
            .map(|(_, server)| pending.enter(server))
            .collect();
        assert_eq!((&pairs[0].0).read(&mut [0]).unwrap(), 0);
        assert!(is_open(&pairs[1].0) && is_open(&pairs[2].0));
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
                (client, listener.accept().unwrap().0)
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
    fn what_has_just_arrived_stays_and_the_acceptor_waits() {
        let pending = Pending {
            grace: Duration::from_secs(3600),
            ..Pending::new(1)
        };
        let pairs: Vec<_> = (0..3).map(|_| haul_io::tcp::pair().unwrap()).collect();
        let mut places: Vec<_> = (pairs[..2].iter())
            .map(|(_, server)| pending.enter(server))
            .collect();
        assert!(is_open(&pairs[0].0) && is_open(&pairs[1].0));
        std::thread::scope(|scope| {
            let third = scope.spawn(|| pending.enter(&pairs[2].1));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!third.is_finished());
            assert!(pending.try_enter(&pairs[2].1).is_none());
            places.pop();
            drop(third.join().unwrap());
        });
    }
}
