//! A way to a gateway that can be shut.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Passes control connections on to a gateway, until it is shut: then it breaks them, and those
/// that come.
#[derive(Clone)]
pub struct Gate(Arc<Mutex<Gates>>);

struct Gates {
    is_shut: bool,
    passed: Vec<TcpStream>,
}

impl Gate {
    pub fn before(far: SocketAddr) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let gate = Self(Arc::new(Mutex::new(Gates {
            is_shut: false,
            passed: Vec::new(),
        })));
        let own = gate.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let mut gates = own.0.lock().unwrap();
                if gates.is_shut {
                    continue;
                }
                let Ok(far) = TcpStream::connect(far) else {
                    continue;
                };
                for [from, to] in [[&near, &far], [&far, &near]] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                gates.passed.extend([near, far]);
            }
        });
        (gate, address)
    }

    pub fn shut(&self) {
        let mut gates = self.0.lock().unwrap();
        gates.is_shut = true;
        for stream in gates.passed.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Breaks those that there are, and lets others through.
    pub fn cut(&self) {
        self.shut();
        self.open();
    }

    pub fn open(&self) {
        self.0.lock().unwrap().is_shut = false;
    }
}
