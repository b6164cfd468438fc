//! The connection to an engine, which all objects of a context share.

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use haul_io::notify::Doorbell;
use haul_io::wake::SleepWord;
use haul_slab::SharedMemory;
use haul_verbs::{DeviceAttributes, Error, Result, Transport, WorkCompletion};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags};

use crate::lock::lock;
use crate::message::{ABI, Failed, Reply, Request, TRANSPORTS, position};
use crate::socket::Packets;

#[derive(Debug)]
pub(super) struct Link {
    control: Packets,
    /// One request at a time.
    turn: Mutex<()>,
    /// Its first word is not zero while the engine sleeps.
    sleeping: SharedMemory,
    doorbell: Doorbell,
    is_dead: AtomicBool,
    /// By their numbers of completions.
    qps: Mutex<HashMap<u32, Weak<dyn OpenQp>>>,
    queues: Mutex<Vec<Weak<dyn Sleepers>>>,
}

/// A queue pair, as completion queues and event channels see it.
pub(super) trait OpenQp: Debug + Send + Sync {
    /// Its number in completions.
    fn qp_num(&self) -> u32;
    /// Its number at the engine.
    fn number(&self) -> u32;
    /// It may send from now on.
    fn begin(&self);
    /// A completion of it was taken, whose number becomes that of the application.
    fn complete(&self, completion: &mut WorkCompletion);
    /// Completes all requests whose completions go to the queue of this number, for the engine is
    /// gone.
    fn flush(&self, queue: u32, to: &mut VecDeque<WorkCompletion>);
}

/// Where threads sleep that are woken when the engine is gone.
pub(super) trait Sleepers: Debug + Send + Sync {
    fn wake(&self);
}

/// A new connection.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) link: Arc<Link>,
    pub(super) attributes: DeviceAttributes,
    /// Where asynchronous events come from.
    pub(super) events: Packets,
}

impl Link {
    /// Whether an engine answers at this path.
    pub(super) fn probe(path: &Path) -> io::Result<()> {
        Packets::connect(path).map(drop)
    }

    pub(super) fn open(
        path: &Path,
        transport: Transport,
        protect: Option<String>,
    ) -> Result<Opened> {
        let connecting = Error::os("connecting to the engine");
        let control = Packets::connect(path).map_err(connecting)?;
        let sleeping = SharedMemory::create(1).map_err(Error::os("memory for the engine"))?;
        let request = Request::Open {
            abi: ABI,
            transport: position(&TRANSPORTS, &transport),
            protect,
        };
        let memory = sleeping.fd().ok_or(UNEXPECTED)?;
        let answer = exchange(&control, &request, &[memory]);
        let (reply, descriptors) = answer.map_err(LOST)?.map_err(|failed| failed.get())?;
        let mut descriptors = descriptors.into_iter();
        let (Reply::Opened(attributes), Some(events), Some(doorbell)) =
            (reply, descriptors.next(), descriptors.next())
        else {
            return Err(UNEXPECTED);
        };
        let link = Self {
            control,
            turn: Mutex::new(()),
            sleeping,
            doorbell: Doorbell::new(doorbell),
            is_dead: AtomicBool::new(false),
            qps: Mutex::default(),
            queues: Mutex::default(),
        };
        Ok(Opened {
            link: Arc::new(link),
            attributes: attributes.get().ok_or(UNEXPECTED)?,
            events: Packets::new(events),
        })
    }

    /// Asks the engine for something.
    pub(super) fn call(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<Answer> {
        let turn = lock(&self.turn);
        if self.is_dead.load(Ordering::Acquire) {
            return Err(gone());
        }
        let answer = exchange(&self.control, request, descriptors);
        drop(turn);
        match answer {
            Ok(answer) => answer.map_err(|failed| failed.get()),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                Err(Error::Exhausted("bytes of a message to the engine"))
            }
            Err(_) => {
                self.die();
                Err(gone())
            }
        }
    }

    /// Asks for what has no answer but that it was done.
    pub(super) fn order(&self, request: &Request) -> Result<()> {
        match self.call(request, &[])? {
            (Reply::Done, _) => Ok(()),
            _ => Err(UNEXPECTED),
        }
    }

    /// Asks for a new object with memory of its own.
    pub(super) fn create(&self, request: &Request, memory: &[BorrowedFd<'_>]) -> Result<u32> {
        match self.call(request, memory)? {
            (Reply::Object(number), _) => Ok(number),
            _ => Err(UNEXPECTED),
        }
    }

    /// Ends an object; an engine that is gone has none.
    pub(super) fn close(&self, number: u32) {
        let _ = self.order(&Request::Close(number));
    }

    /// Wakes the engine if it sleeps, after something was published.
    pub(super) fn ring(&self) {
        if SleepWord(&self.sleeping.words()[0]).is_set() {
            self.doorbell.ring();
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    /// Asks the kernel whether the engine is gone.
    pub(super) fn look(&self) -> bool {
        if !self.is_dead() {
            let mut fds = [PollFd::new(&self.control, PollFlags::empty())];
            let timeout = Timespec::default();
            if poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0) {
                self.die();
            }
        }
        self.is_dead()
    }

    /// A descriptor that has failed when the engine is gone.
    pub(super) fn life(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// The engine is gone, or has written what cannot be: completion queues flush what is open once
    /// they have given what the engine has completed.
    pub(super) fn die(&self) {
        if self.is_dead.swap(true, Ordering::AcqRel) {
            return;
        }
        // The engine, if there is one, ends the session.
        let _ = rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both);
        for queue in lock(&self.queues).iter().filter_map(Weak::upgrade) {
            queue.wake();
        }
    }

    pub(super) fn add_qp(&self, qp_num: u32, qp: Weak<dyn OpenQp>) {
        lock(&self.qps).insert(qp_num, qp);
    }

    pub(super) fn remove_qp(&self, qp_num: u32) {
        lock(&self.qps).remove(&qp_num);
    }

    pub(super) fn qp(&self, qp_num: u32) -> Option<Arc<dyn OpenQp>> {
        lock(&self.qps).get(&qp_num).and_then(Weak::upgrade)
    }

    /// All queue pairs.
    pub(super) fn qps(&self) -> Vec<Arc<dyn OpenQp>> {
        lock(&self.qps).values().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn add_queue(&self, queue: Weak<dyn Sleepers>) {
        let mut queues = lock(&self.queues);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(queue);
    }
}

/// A reply, and the descriptors that belong to it.
pub(super) type Answer = (Reply, Vec<OwnedFd>);

/// Sends a request, and returns its answer; an error is one of the connection.
fn exchange(
    control: &Packets,
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<Result<Answer, Box<Failed>>> {
    control.put(request, descriptors, SendFlags::empty())?;
    let packet = control.receive(RecvFlags::empty())?;
    let packet = packet.ok_or(io::ErrorKind::ConnectionReset)?;
    Ok(match packet.message()? {
        Reply::Failed(failed) => Err(failed),
        reply => Ok((reply, packet.descriptors)),
    })
}

/// The connection to an engine that is being opened broke.
const LOST: fn(io::Error) -> Error = |source| Error::Os {
    what: "the engine",
    source,
};

/// Whether nobody listens there.
pub(super) fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    matches!(error.kind(), NotFound | ConnectionRefused)
}

pub(super) fn gone() -> Error {
    Error::Os {
        what: "the engine has ended",
        source: io::ErrorKind::ConnectionReset.into(),
    }
}

/// An answer of another kind.
pub(super) const UNEXPECTED: Error = Error::Invalid("the engine answers something else");
