//! Accepted connections whose first message has not arrived, and how many of them there may be.

use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::lock;

/// How often an acceptor checks whether connections that it closed have been dropped.
const LOOK: Duration = Duration::from_millis(5);

/// Connections whose first message has not arrived, oldest first. If there are too many, the oldest
/// is closed, so that silent connections never keep out a client that sends.
#[derive(Debug)]
pub struct Pending {
    max: usize,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    open: VecDeque<(u64, TcpStream)>,
    entered: u64,
    left: u64,
}

/// A connection's place among the [`Pending`]; dropping it gives the place up.
#[derive(Debug)]
pub struct Place {
    number: u64,
    shared: Arc<Mutex<Shared>>,
}

impl Pending {
    /// Makes room for `max` connections.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            max,
            shared: Arc::default(),
        }
    }

    /// Adds a connection. If there are more than `max`, calls `farewell` with the oldest and closes
    /// it. Blocks while twice as many have not been dropped.
    pub fn enter(&self, stream: &TcpStream, farewell: impl FnOnce(&TcpStream)) -> Place {
        // Closed connections end soon; a flood may arrive faster than their threads end.
        while self.len() >= 2 * self.max {
            std::thread::sleep(LOOK);
        }
        let mut shared = lock(&self.shared);
        shared.entered += 1;
        let number = shared.entered;
        // Without a second descriptor only its deadline ends it.
        if let Ok(handle) = stream.try_clone() {
            shared.open.push_back((number, handle));
        }
        let oldest = (shared.open.len() > self.max)
            .then(|| shared.open.pop_front())
            .flatten();
        drop(shared);
        if let Some((_, oldest)) = oldest {
            farewell(&oldest);
            // An error means that it has ended already.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        Place {
            number,
            shared: Arc::clone(&self.shared),
        }
    }

    /// Counts the connections that have not been dropped.
    fn len(&self) -> usize {
        let shared = lock(&self.shared);
        usize::try_from(shared.entered - shared.left).unwrap_or(usize::MAX)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.left += 1;
        shared.open.retain(|(number, _)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_oldest_makes_room_and_the_others_stay() {
        let pending = Pending::new(2);
        let pairs: Vec<_> = (0..3).map(|_| haul_io::tcp::pair().unwrap()).collect();
        let mut closed = None;
        let places: Vec<_> = pairs
            .iter()
            .map(|(_, server)| pending.enter(server, |oldest| closed = oldest.peer_addr().ok()))
            .collect();
        assert_eq!(closed, pairs[0].0.local_addr().ok());
        assert_eq!((&pairs[0].0).read(&mut [0]).unwrap(), 0);
        pairs[1].0.set_nonblocking(true).unwrap();
        assert!((&pairs[1].0).read(&mut [0]).is_err());
        assert_eq!(pending.len(), 3);
        drop(places);
        assert_eq!(pending.len(), 0);
    }

    #[test]
    fn an_acceptor_waits_where_twice_as_many_have_not_left() {
        let pending = Pending::new(1);
        let (_client, server) = haul_io::tcp::pair().unwrap();
        let mut places: Vec<_> = (0..2).map(|_| pending.enter(&server, |_| {})).collect();
        std::thread::scope(|scope| {
            let third = scope.spawn(|| pending.enter(&server, |_| {}));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!third.is_finished());
            places.pop();
            drop(third.join().unwrap());
        });
    }
}
