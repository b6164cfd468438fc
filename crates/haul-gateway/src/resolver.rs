//! Resolves names on a few threads, because the system's resolver blocks.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

/// Names resolved at a time.
const THREADS: usize = 2;
/// Names that wait; further ones are refused.
const QUEUE_MAX: usize = 256;

type Reply = Box<dyn FnOnce(io::Result<Vec<SocketAddr>>) + Send>;

/// Resolves names until it is dropped; waiting requests are then answered with an error.
pub(crate) struct Resolver {
    questions: Sender<Question>,
    is_closing: Arc<AtomicBool>,
}

struct Question {
    name: String,
    port: u16,
    reply: Reply,
}

impl Resolver {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start() -> io::Result<Self> {
        Self::start_with(|name, port| Ok((name, port).to_socket_addrs()?.collect()))
    }

    fn start_with(
        lookup: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, receiver) = bounded(QUEUE_MAX);
        let resolver = Self {
            questions: sender,
            is_closing: Arc::default(),
        };
        for _ in 0..THREADS {
            let (receiver, lookup) = (receiver.clone(), lookup.clone());
            let is_closing = Arc::clone(&resolver.is_closing);
            std::thread::Builder::new()
                .name("haul-resolver".to_owned())
                .spawn(move || answer(&receiver, &is_closing, lookup))?;
        }
        Ok(resolver)
    }

    /// Resolves a name, and calls `reply` with at least one address, or with an error. `reply` runs
    /// on another thread, or at once if the queue is full. It must not block.
    pub(crate) fn resolve(
        &self,
        name: impl Into<String>,
        port: u16,
        reply: impl FnOnce(io::Result<Vec<SocketAddr>>) + Send + 'static,
    ) {
        let question = Question {
            name: name.into(),
            port,
            reply: Box::new(reply),
        };
        if let Err(TrySendError::Full(question) | TrySendError::Disconnected(question)) =
            self.questions.try_send(question)
        {
            let text = format!("{}: too many names wait to be resolved", question.name);
            (question.reply)(Err(io::Error::new(io::ErrorKind::WouldBlock, text)));
        }
    }
}

/// The threads are not joined: they end after the name that they resolve.
impl Drop for Resolver {
    fn drop(&mut self) {
        self.is_closing.store(true, Ordering::Release);
    }
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver")
            .field("waiting", &self.questions.len())
            .finish()
    }
}

fn answer(
    questions: &Receiver<Question>,
    is_closing: &AtomicBool,
    lookup: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>>,
) {
    for Question { name, port, reply } in questions {
        let found = match is_closing.load(Ordering::Acquire) {
            true => Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the gateway is being stopped",
            )),
            false => lookup(&name, port),
        };
        reply(match found {
            Ok(addresses) if addresses.is_empty() => Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{name} has no address"),
            )),
            Ok(addresses) => Ok(addresses),
            Err(error) => Err(io::Error::new(error.kind(), format!("{name}: {error}"))),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crossbeam_channel::unbounded;

    use super::*;

    /// Far longer than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(20);

    type Answers = Receiver<io::Result<Vec<SocketAddr>>>;

    fn ask(resolver: &Resolver, name: &str) -> Answers {
        let (answer, answers) = unbounded();
        resolver.resolve(name, 80, move |found| answer.send(found).unwrap());
        answers
    }

    fn error(answers: &Answers) -> io::Error {
        answers.recv_timeout(PATIENCE).unwrap().unwrap_err()
    }

    #[test]
    fn the_system_knows_addresses_and_this_host() {
        let resolver = Resolver::start().unwrap();
        let found = |name| {
            ask(&resolver, name)
                .recv_timeout(PATIENCE)
                .unwrap()
                .unwrap()
        };
        assert_eq!(found("192.0.2.1"), ["192.0.2.1:80".parse().unwrap()]);
        assert!(
            found("localhost")
                .iter()
                .all(|address| address.ip().is_loopback())
        );
    }

    #[test]
    fn a_name_without_addresses_is_an_error_that_names_it() {
        let resolver = Resolver::start_with(|name, _| match name {
            "empty" => Ok(Vec::new()),
            _ => Err(io::Error::other("no such name")),
        })
        .unwrap();
        assert_eq!(
            error(&ask(&resolver, "empty")).to_string(),
            "empty has no address"
        );
        assert_eq!(
            error(&ask(&resolver, "none")).to_string(),
            "none: no such name"
        );
    }

    #[test]
    fn the_queue_has_a_limit_and_every_question_has_an_answer() {
        let (go, gate) = bounded::<()>(0);
        let (entered, entries) = unbounded();
        let resolver = Resolver::start_with(move |_, port| {
            entered.send(()).unwrap();
            // Returns once the other end is dropped.
            let _ = gate.recv();
            Ok(vec![([192, 0, 2, 1], port).into()])
        })
        .unwrap();
        let mut asked: Vec<Answers> = (0..THREADS).map(|_| ask(&resolver, "slow")).collect();
        for _ in 0..THREADS {
            entries.recv_timeout(PATIENCE).unwrap();
        }
        asked.extend((0..QUEUE_MAX).map(|_| ask(&resolver, "waits")));
        let refused = error(&ask(&resolver, "one more"));
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
        let (go, gate) = bounded::<()>(0);
        let (entered, entries) = unbounded();
        let resolver = Resolver::start_with(move |_, port| {
            entered.send(()).unwrap();
            let _ = gate.recv();
            Ok(vec![([192, 0, 2, 1], port).into()])
        })
        .unwrap();
        let first: Vec<Answers> = (0..THREADS).map(|_| ask(&resolver, "slow")).collect();
        for _ in 0..THREADS {
            entries.recv_timeout(PATIENCE).unwrap();
        }
        let second = ask(&resolver, "waits");
        drop(resolver);
        drop(go);
        for answers in first {
            assert!(answers.recv_timeout(PATIENCE).unwrap().is_ok());
        }
        assert_eq!(error(&second).kind(), io::ErrorKind::ConnectionAborted);
    }
}
