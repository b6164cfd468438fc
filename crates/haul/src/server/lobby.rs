//! Connections that have not said yet what they are.

use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};

use crate::lock;

/// So many strangers may wait at a time; one more, and the one that has waited longest must go.
const STRANGERS_MAX: usize = 256;

/// Who waits, longest first.
#[derive(Debug, Default)]
pub(super) struct Lobby {
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    strangers: VecDeque<(u64, TcpStream)>,
    entered: u64,
}

/// A connection's stay in the lobby; it leaves when this is dropped.
#[derive(Debug)]
pub(super) struct Guest {
    number: u64,
    waiting: Arc<Mutex<Waiting>>,
}

impl Lobby {
    pub(super) fn enter(&self, stream: &TcpStream) -> Guest {
        let mut waiting = lock(&self.waiting);
        waiting.entered += 1;
        let number = waiting.entered;
        // Without a second descriptor it cannot be shown out; its deadline still ends it.
        if let Ok(handle) = stream.try_clone() {
            waiting.strangers.push_back((number, handle));
        }
        if waiting.strangers.len() > STRANGERS_MAX
            && let Some((_, oldest)) = waiting.strangers.pop_front()
        {
            // An error means that it is gone already.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        Guest {
            number,
            waiting: Arc::clone(&self.waiting),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut waiting = lock(&self.waiting);
        waiting
            .strangers
            .retain(|(number, _)| *number != self.number);
    }
}
