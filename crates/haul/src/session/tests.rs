//! The two roles against a scripted peer.

use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use haul_io::file::Dir;
use haul_soft::bulk::{Sink, Source};

use super::receiver::{self, ReceiverOutcome, Terms};
use super::sender::{self, SenderOutcome};
use crate::channel::{Channel, ChannelError, ChannelStats, Opening};
use crate::fault::{Code, Fault};
use crate::link::Link;
use crate::lock;
use crate::name::Name;
use crate::report::{Event, Observer};
use crate::source::{SourceFile, changed};
use crate::wire::{
    self, Commit, FilePlan, FileRoot, Message, Offer, Plan, Policy, Progress, Run, Wants, WireError,
};

pub(super) struct Silent;

impl Observer for Silent {
    fn event(&self, _: &Event<'_>) {}
}

/// Takes everything at once, and counts this as sent.
#[derive(Default)]
pub(super) struct Counting(pub(super) Option<u64>);

impl Channel for Counting {
    fn send(&self, _: &dyn Source) -> Result<(), ChannelError> {
        Ok(())
    }

    fn receive(&self, _: &dyn Sink) -> Result<(), ChannelError> {
        Ok(())
    }

    fn close(&self) {}

    fn stats(&self) -> ChannelStats {
        ChannelStats {
            sent: self.0,
            ..ChannelStats::default()
        }
    }
}

/// Moves nothing, and takes all there is to send, until it is closed.
struct Open {
    close: std::sync::Mutex<Option<Sender<()>>>,
    closed: Receiver<()>,
}

impl Open {
    fn opening() -> Opening {
        let (close, closed) = unbounded();
        let close = std::sync::Mutex::new(Some(close));
        Opening::ready(Arc::new(Self { close, closed }))
    }
}

impl Channel for Open {
    fn send(&self, source: &dyn Source) -> Result<(), ChannelError> {
        let mut taken = 0;
        while !source.wait(taken, Duration::from_millis(20)).complete {
            taken = source.wait(taken, Duration::ZERO).end;
        }
        Ok(())
    }

    fn receive(&self, _: &dyn Sink) -> Result<(), ChannelError> {
        let _ = self.closed.recv();
        Ok(())
    }

    fn close(&self) {
        lock(&self.close).take();
    }

    fn stats(&self) -> ChannelStats {
        ChannelStats::default()
    }
}

pub(super) fn links() -> (Link, Link) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    let start = |stream| Link::start(stream, "the peer", Duration::from_secs(20)).unwrap();
    (start(near), start(far))
}

pub(super) fn source(name: &str, content: &[u8]) -> (SourceFile, File) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    let handle = file.try_clone().unwrap();
    let name = Name::new(name.as_bytes()).unwrap();
    (SourceFile::new(name, file, "a file").unwrap(), handle)
}

/// The sender withdraws a commit that the receiver has read already.
#[test]
fn a_receiver_sends_done_for_each_file_that_it_published_before_an_error() {
    let binding = [7; 32];
    let entry = source("a", b"").0.entry();
    let root = *blake3::hash(b"").as_bytes();
    let seal = wire::seal(&binding, &entry, &root).unwrap();
    let offer = Offer { files: vec![entry] };
    let policy = Policy {
        replace: true,
        recheck: false,
    };
    for wait_us in 0..40 {
        let place = tempfile::tempdir().unwrap();
        let dir = Arc::new(Dir::open(place.path()).unwrap());
        let (near, far) = links();
        let mut outcome = ReceiverOutcome::default();
        let (result, is_done) = std::thread::scope(|scope| {
            let script = scope.spawn(move || {
                let commit = Commit {
                    file: 0,
                    seal,
                    end: 0,
                };
                near.send(&Message::Commit(commit)).unwrap();
                std::thread::sleep(Duration::from_micros(wait_us * 10));
                near.report(&changed(&"a", "grew"));
                let mut is_done = false;
                while let Ok(message) = near.receive() {
                    is_done |= matches!(message, Message::Done(_));
                }
                near.hang_up();
                is_done
            });
            let result = receiver::run(
                &far,
                &dir,
                &offer,
                Terms { policy, binding },
                Open::opening(),
                &Silent,
                &mut outcome,
            );
            (result, script.join().unwrap())
        });
        let is_published = place.path().join("a").exists();
        assert_eq!(is_done, is_published, "{result:?}");
        assert_eq!(outcome.roots[0].is_some(), is_published);
    }
}

/// Sends the files a and b, of which b is written to after the receiver has both `Commit`s and its
/// `Done` is awaited; `answer` is what the receiver does then.
fn withdraw(answer: impl FnOnce(&Link)) -> (Fault, SenderOutcome) {
    let (a, _) = source("a", b"content");
    let (b, writer) = source("b", b"content");
    let (near, far) = links();
    let mut outcome = SenderOutcome::default();
    let fault = std::thread::scope(|scope| {
        let outcome = &mut outcome;
        let sender = scope.spawn(move || {
            let (files, opening) = (vec![a, b], Open::opening());
            sender::run(&near, files, [0; 32], opening, &Silent, outcome)
        });
        let run = |file| Run {
            file,
            first: 0,
            count: 1,
        };
        let plan = FilePlan {
            present: 0,
            complete: false,
            restarted: false,
        };
        let files = vec![plan, plan];
        far.send(&Message::Plan(Plan { files })).unwrap();
        let runs = vec![run(0), run(1)];
        far.send(&Message::Wants(Wants { runs })).unwrap();
        let mut commits = 0;
        while commits < 2 {
            commits += u32::from(matches!(far.receive().unwrap(), Message::Commit(_)));
        }
        writer.write_all_at(b"anew and longer", 0).unwrap();
        let progress = Progress { present: 14 };
        far.send(&Message::Progress(progress)).unwrap();
        let told = far.receive().unwrap_err();
        assert_eq!(told.code, Code::SourceChanged);
        assert!(!told.text.contains("delivered"), "{told}");
        answer(&far);
        drop(far);
        sender.join().unwrap().unwrap_err()
    });
    (fault, outcome)
}

#[test]
fn a_sender_that_withdraws_a_commit_knows_whether_that_file_was_published() {
    let done = |link: &Link, file| {
        let blake3 = *blake3::hash(b"content").as_bytes();
        link.send(&Message::Done(FileRoot { file, blake3 }))
            .unwrap();
    };
    let error = |link: &Link| {
        let fault = Fault::new(Code::SourceChanged, "the sender: 'b' grew");
        let error = WireError::from(&fault);
        link.send(&Message::Error(error)).unwrap();
    };
    let (fault, outcome) = withdraw(|link| {
        done(link, 0);
        error(link);
    });
    assert_eq!(fault.code, Code::SourceChanged);
    assert!(fault.text.ends_with("; it was not delivered"), "{fault}");
    assert!(!outcome.is_superseded && outcome.roots[0].is_some() && outcome.roots[1].is_none());

    let (fault, outcome) = withdraw(|link| {
        done(link, 1);
        error(link);
    });
    assert!(fault.text.ends_with("as it was before"), "{fault}");
    assert!(outcome.is_superseded && outcome.roots[1].is_some());

    let (fault, outcome) = withdraw(|link| done(link, 0));
    assert!(fault.text.ends_with("is not known"), "{fault}");
    assert!(!outcome.is_superseded);
}
