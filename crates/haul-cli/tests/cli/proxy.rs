//! A man in the middle of the TCP channel: flips bits, or goes silent.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Forwards every connection to a server until the process ends.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    control: Arc<Control>,
}

#[derive(Default)]
struct Control {
    frozen: AtomicBool,
    /// Bytes of payload that data connections have carried so far.
    carried: AtomicU64,
    /// Flips one bit when `carried` passes a multiple of this; 0 flips none.
    flip_every: AtomicU64,
    /// How many bits may still be flipped.
    flips_left: AtomicU64,
    flipped: AtomicU64,
}

impl Proxy {
    pub(crate) fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let control = Arc::new(Control::default());
        let shared = Arc::clone(&control);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else {
                    continue;
                };
                let (client_too, server_too) =
                    (client.try_clone().unwrap(), server.try_clone().unwrap());
                let is_data = Arc::new(AtomicBool::new(false));
                let (known, control) = (Arc::clone(&is_data), Arc::clone(&shared));
                std::thread::spawn(move || forward(client, server, 22, &is_data, &control));
                let control = Arc::clone(&shared);
                std::thread::spawn(move || forward(server_too, client_too, 0, &known, &control));
            }
        });
        Self { port, control }
    }

    /// Damages the payload each time another `bytes` have passed, `times` times at most.
    pub(crate) fn flip(&self, bytes: u64, times: u64) {
        self.control.flips_left.store(times, Ordering::SeqCst);
        self.control.flip_every.store(bytes, Ordering::SeqCst);
    }

    pub(crate) fn flipped(&self) -> u64 {
        self.control.flipped.load(Ordering::SeqCst)
    }

    /// From now on nothing passes, and neither end is notified.
    pub(crate) fn freeze(&self) {
        self.control.frozen.store(true, Ordering::SeqCst);
    }

    pub(crate) fn at(&self, path: &str) -> String {
        format!("haul://127.0.0.1:{}/{path}", self.port)
    }
}

/// `skip` bytes at the beginning are the header of a stream.
fn forward(
    mut from: TcpStream,
    mut to: TcpStream,
    skip: usize,
    is_data: &AtomicBool,
    control: &Control,
) {
    let mut buffer = vec![0; 64 << 10];
    let mut chunks = Chunks {
        skip,
        left: 0,
        header: Vec::new(),
    };
    while let Ok(n) = from.read(&mut buffer) {
        while control.frozen.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
        }
        if n == 0 {
            break;
        }
        if buffer[..n].starts_with(b"hauldat\n") {
            is_data.store(true, Ordering::SeqCst);
        }
        if is_data.load(Ordering::SeqCst) {
            chunks.tamper(&mut buffer[..n], control);
        }
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    // So that neither half outlives the other when one end is killed.
    let _ = from.shutdown(Shutdown::Read);
}

/// Follows the framing of a data connection so that only payload is damaged.
struct Chunks {
    /// Bytes of the stream's header still to pass.
    skip: usize,
    /// Bytes of payload left in the chunk.
    left: usize,
    header: Vec<u8>,
}

impl Chunks {
    fn tamper(&mut self, bytes: &mut [u8], control: &Control) {
        for byte in bytes {
            if self.skip > 0 {
                self.skip -= 1;
            } else if self.left == 0 {
                self.header.push(*byte);
                if self.header.len() == 16 {
                    self.left = u32::from_be_bytes(self.header[8..12].try_into().unwrap()) as usize;
                    self.header.clear();
                }
            } else {
                self.left -= 1;
                let carried = control.carried.fetch_add(1, Ordering::SeqCst) + 1;
                let every = control.flip_every.load(Ordering::SeqCst);
                let take = |left: u64| left.checked_sub(1);
                if every > 0
                    && carried.is_multiple_of(every)
                    && control
                        .flips_left
                        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
                        .is_ok()
                {
                    *byte ^= 1 << (carried % 8);
                    control.flipped.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    }
}
