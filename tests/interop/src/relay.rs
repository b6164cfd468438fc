//! A relay between two UDP ports of loopback that treats packets as an emulated link would.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use haul_netem::{Fate, Link, LinkConfig};

/// A relay that runs until it is dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

const POLL: Duration = Duration::from_micros(200);

impl Relay {
    /// Relays between whoever sends to [`Relay::address`] and `server`, both ways through a link of
    /// `config`.
    pub fn start(server: SocketAddr, config: &LinkConfig, seed: u64) -> Self {
        let bind = || UdpSocket::bind((server.ip(), 0)).expect("loopback has ports");
        let (front, back) = (bind(), bind());
        back.connect(server).expect("loopback is there");
        for socket in [&front, &back] {
            socket.set_nonblocking(true).expect("a socket");
        }
        let address = front.local_addr().expect("it is bound");
        let stop = Arc::new(AtomicBool::new(false));
        let links = [
            Link::new(config.clone(), seed),
            Link::new(config.clone(), seed + 1),
        ];
        let lower_len = if server.is_ipv4() { 28 } else { 48 };
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || run(&front, &back, links, lower_len, &stopped));
        Self {
            address,
            stop,
            thread: Some(thread),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// When, in which order, in which direction, what.
type Waiting = BinaryHeap<Reverse<(u64, u64, usize, Vec<u8>)>>;

fn run(
    front: &UdpSocket,
    back: &UdpSocket,
    mut links: [Link; 2],
    lower_len: u32,
    stop: &AtomicBool,
) {
    let (begun, mut waiting, mut order) = (Instant::now(), Waiting::new(), 0);
    let (mut client, mut buffer) = (None, vec![0; 65_536]);
    while !stop.load(Ordering::Acquire) {
        let now = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut admit = |direction: usize, bytes: &[u8]| {
            let wire = u32::try_from(bytes.len()).unwrap_or(u32::MAX) + lower_len;
            let fate = links[direction].admit(now, wire);
            if let Fate::Delivered {
                at_ns,
                duplicate_at_ns,
                ..
            } = fate
            {
                for at in [Some(at_ns), duplicate_at_ns].into_iter().flatten() {
                    order += 1;
                    waiting.push(Reverse((at, order, direction, bytes.to_vec())));
                }
            }
        };
        while let Ok((len, from)) = front.recv_from(&mut buffer) {
            client = Some(from);
            admit(0, &buffer[..len]);
        }
        while let Ok(len) = back.recv(&mut buffer) {
            admit(1, &buffer[..len]);
        }
        while waiting.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Some(Reverse((_, _, direction, bytes))) = waiting.pop() else {
                break;
            };
            // What the kernel does not take is lost, as on any path.
            let _ = match (direction, client) {
                (0, _) => back.send(&bytes),
                (_, Some(client)) => front.send_to(&bytes, client),
                _ => Ok(0),
            };
        }
        std::thread::sleep(POLL);
    }
}
