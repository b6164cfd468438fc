//! A relay between two ends that loses what a test says.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::support::LOOPBACK;

/// A datagram as far as a relay looks into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// From the end that the relay was made for.
    pub(crate) forward: bool,
    /// Which one in this direction, counted from zero.
    pub(crate) index: usize,
    pub(crate) is_data: bool,
    /// Where its payload lies in its message; length of the message.
    pub(crate) offset: u32,
    pub(crate) message_len: u32,
    /// Bytes of the datagram.
    pub(crate) octets: u32,
}

/// Passes the datagrams of two ends on. Ends when it is dropped.
pub(crate) struct Tap {
    /// Where the near end sends to, and the far end receives from.
    pub(crate) near_side: SocketAddr,
    /// Where the far end receives from.
    pub(crate) far_side: Arc<UdpSocket>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Tap {
    /// Between whoever sends to it and `far`. `pass` gets each datagram, whether it goes to `far`,
    /// and its number in that direction; it may change the datagram, and returns whether it passes.
    pub(crate) fn new(
        far: SocketAddr,
        pass: impl Fn(&mut [u8], bool, usize) -> bool + Send + Sync + 'static,
    ) -> Self {
        let sockets = [(); 2].map(|()| {
            let socket = UdpSocket::bind(LOOPBACK).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_millis(20)))
                .unwrap();
            Arc::new(socket)
        });
        let near_side = sockets[0].local_addr().unwrap();
        let far_side = Arc::clone(&sockets[1]);
        let stop = Arc::new(AtomicBool::new(false));
        let (near, pass) = (Arc::new(Mutex::new(None)), Arc::new(pass));
        let threads = [true, false].map(|forward| {
            let (from, to) = if forward { (0, 1) } else { (1, 0) };
            let (from, to) = (Arc::clone(&sockets[from]), Arc::clone(&sockets[to]));
            let (stop, near, pass) = (Arc::clone(&stop), Arc::clone(&near), Arc::clone(&pass));
            std::thread::spawn(move || {
                let mut buffer = vec![0; 65_536];
                let mut index = 0;
                while !stop.load(Ordering::Relaxed) {
                    let Ok((len, sender)) = from.recv_from(&mut buffer) else {
                        continue;
                    };
                    let target = if forward {
                        *near.lock().unwrap() = Some(sender);
                        Some(far)
                    } else {
                        *near.lock().unwrap()
                    };
                    let passes = pass(&mut buffer[..len], forward, index);
                    index += 1;
                    if let Some(target) = target.filter(|_| passes) {
                        to.send_to(&buffer[..len], target).unwrap();
                    }
                }
            })
        });
        Self {
            near_side,
            far_side,
            stop,
            threads: threads.into(),
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// See the module.
pub(crate) struct Relay {
    /// Where the near end sends to.
    pub(crate) near_side: SocketAddr,
    lost: Arc<Mutex<Vec<Seen>>>,
    _tap: Tap,
}

impl Relay {
    /// Between whoever sends to it and `far`. `lose` says what does not get through.
    pub(crate) fn new(
        far: SocketAddr,
        lose: impl Fn(Seen) -> bool + Send + Sync + 'static,
    ) -> Self {
        let lost = Arc::<Mutex<Vec<Seen>>>::default();
        let all_lost = Arc::clone(&lost);
        let tap = Tap::new(far, move |datagram, forward, index| {
            let seen = look(datagram, forward, index);
            let is_lost = lose(seen);
            if is_lost {
                all_lost.lock().unwrap().push(seen);
            }
            !is_lost
        });
        Self {
            near_side: tap.near_side,
            lost,
            _tap: tap,
        }
    }

    /// What did not get through so far.
    pub(crate) fn lost(&self) -> Vec<Seen> {
        self.lost.lock().unwrap().clone()
    }
}

fn look(datagram: &[u8], forward: bool, index: usize) -> Seen {
    let word = |at: usize| {
        let bytes = datagram.get(at..at + 4).unwrap_or(&[0; 4]);
        u32::from_be_bytes(bytes.try_into().unwrap())
    };
    Seen {
        forward,
        index,
        is_data: datagram.get(1) == Some(&0),
        offset: word(28),
        message_len: word(24),
        octets: u32::try_from(datagram.len()).unwrap(),
    }
}
