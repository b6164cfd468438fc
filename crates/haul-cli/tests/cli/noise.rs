//! A path that damages packets so that no checksum of UDP or TCP notices, in both directions: each
//! is sent anew, and gets a good checksum for what it has become.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Payload of a TCP segment, bytes.
const SEGMENT: usize = 1448;

/// Forwards every connection and datagram to a server until the process ends.
pub(crate) struct Noise {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    server: SocketAddr,
    /// One packet in so many has a bit flipped; 0: none.
    one_in: u64,
    random: AtomicU64,
    /// Control messages that were damaged.
    control: AtomicU64,
    data: AtomicU64,
}

impl Noise {
    pub(crate) fn start(server: u16, one_in: u64) -> Self {
        let (listener, udp) = loop {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            // Another program may have that port of UDP.
            if let Ok(udp) = UdpSocket::bind(listener.local_addr().unwrap()) {
                break (listener, udp);
            }
        };
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            server: SocketAddr::from(([127, 0, 0, 1], server)),
            one_in,
            random: AtomicU64::new(0x5eed),
            control: AtomicU64::new(0),
            data: AtomicU64::new(0),
        });
        let all = Arc::clone(&shared);
        std::thread::spawn(move || accept(&listener, &all));
        let all = Arc::clone(&shared);
        std::thread::spawn(move || relay(&udp, &all));
        Self { port, shared }
    }

    pub(crate) fn at(&self, path: &str) -> String {
        format!("haul://127.0.0.1:{}/{path}", self.port)
    }

    /// Control messages, and packets of data, that were damaged.
    pub(crate) fn damaged(&self) -> (u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::SeqCst);
        (load(&self.shared.control), load(&self.shared.data))
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming().map_while(Result::ok) {
        let Ok(server) = TcpStream::connect(shared.server) else {
            continue;
        };
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
        }
        let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
        for (from, to) in [(client, server), back] {
            let shared = Arc::clone(shared);
            std::thread::spawn(move || forward(from, to, &shared));
        }
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, shared: &Shared) {
    let mut buffer = [0; SEGMENT];
    let mut is_data = None;
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        let bytes = &mut buffer[..n];
        // Data goes both ways; a control connection begins with a handshake of TLS.
        let is_data = *is_data.get_or_insert_with(|| !bytes.starts_with(&[22, 3]));
        shared.damage(
            bytes,
            if is_data {
                &shared.data
            } else {
                &shared.control
            },
        );
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

/// Relays datagrams, with a socket towards the server for each client.
fn relay(socket: &UdpSocket, shared: &Arc<Shared>) {
    let mut clients: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok((n, client)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let towards = clients.entry(client).or_insert_with(|| {
            let towards = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
            towards.connect(shared.server).unwrap();
            let (back, from) = (socket.try_clone().unwrap(), Arc::clone(&towards));
            let shared = Arc::clone(shared);
            std::thread::spawn(move || {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(n) = from.recv(&mut buffer) {
                    shared.damage(&mut buffer[..n], &shared.data);
                    let _ = back.send_to(&buffer[..n], client);
                }
            });
            towards
        });
        shared.damage(&mut buffer[..n], &shared.data);
        let _ = towards.send(&buffer[..n]);
    }
}

impl Shared {
    fn damage(&self, bytes: &mut [u8], count: &AtomicU64) {
        if self.one_in == 0 || bytes.is_empty() || !self.draw().is_multiple_of(self.one_in) {
            return;
        }
        let bit = usize::try_from(self.draw() % (bytes.len() as u64 * 8)).unwrap();
        bytes[bit / 8] ^= 1 << (bit % 8);
        count.fetch_add(1, Ordering::SeqCst);
    }

    fn draw(&self) -> u64 {
        let state = self
            .random
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}
