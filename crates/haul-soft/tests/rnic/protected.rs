//! Protected connections, their refusals, and a man in the middle.
#![expect(
    clippy::disallowed_types,
    reason = "the attacker has streams of its own"
)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use haul_control::identity::PrivateKey;
use haul_control::protect::Protection;
use haul_soft::rnic::Options;
use haul_verbs::cm::CmEvent;
use haul_verbs::{SendOp, WcStatus};

use crate::over::over_one;
use crate::support::{End, LOOPBACK, TCP, Wish, connect, protected};

fn of(device: usize) -> Wish {
    Wish {
        device,
        ..Wish::default()
    }
}

fn with(protection: &Protection) -> Options {
    let mut options = Options::default();
    options.protect = Some(Arc::new(protection.clone()));
    options
}

/// Has `near` connect to `address`; why it does not come to that.
fn refusal(near: &End, address: SocketAddr, wish: &Wish) -> String {
    near.qp
        .connect(address, &wish.param(), &near.events)
        .unwrap();
    match near.event() {
        CmEvent::Unreachable { failure, .. } => failure.to_string(),
        CmEvent::Rejected { private_data, .. } => {
            String::from_utf8_lossy(&private_data).into_owned()
        }
        other => panic!("{other:?}"),
    }
}

fn a_peer_with_another_key_is_refused_and_counted(wish: &Wish) {
    let [own, other] = [(); 2].map(|()| PrivateKey::generate().unwrap());
    let admits = Protection::keys(own.clone(), vec![own.public()]).unwrap();
    let far = End::new(&with(&admits), wish);
    let listener = far.context.listen(LOOPBACK, &far.events, 8).unwrap();
    // It trusts the key of the server and is not admitted there.
    let unknown = Protection::keys(other.clone(), vec![own.public()]).unwrap();
    let near = End::new(&with(&unknown), wish);
    let line = refusal(&near, listener.local_addr(), wish);
    assert!(
        line.contains("the peer refuses: its key is not one"),
        "{line}"
    );
    assert_eq!(admits.refused(), 1);
    // It does not trust the server.
    let wary = Protection::keys(own.clone(), vec![other.public()]).unwrap();
    let near = End::new(&with(&wary), wish);
    let line = refusal(&near, listener.local_addr(), wish);
    assert!(line.contains("not trusted"), "{line}");
    // An admitted one still gets in.
    let near = End::new(&with(&admits), wish);
    connect(&near, &far, wish);
}

fn a_peer_without_protection_gets_a_line_and_nothing_else(wish: &Wish) {
    let options = protected();
    let [plain, guarded] = [&Options::default(), &options].map(|options| End::new(options, wish));
    let listener = guarded
        .context
        .listen(LOOPBACK, &guarded.events, 8)
        .unwrap();
    let line = refusal(&plain, listener.local_addr(), wish);
    assert!(line.contains("protected connections only"), "{line}");
    let [plain, guarded] = [&Options::default(), &options].map(|options| End::new(options, wish));
    let listener = plain.context.listen(LOOPBACK, &plain.events, 8).unwrap();
    let line = refusal(&guarded, listener.local_addr(), wish);
    assert!(!line.is_empty(), "{line}");
}

over_one!(
    over_tcp,
    TCP,
    false,
    Caller,
    a_peer_with_another_key_is_refused_and_counted,
    a_peer_without_protection_gets_a_line_and_nothing_else
);
over_one!(
    over_udt,
    UDT,
    false,
    Caller,
    a_peer_with_another_key_is_refused_and_counted,
    a_peer_without_protection_gets_a_line_and_nothing_else
);

/// Carries one TCP connection to `server`. `change` sees what the client sends, in pieces of at
/// most 512 bytes, and what it leaves is forwarded.
struct Middle {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<u8>>>,
    armed: Arc<AtomicBool>,
}

impl Middle {
    fn new(server: SocketAddr, change: impl Fn(&mut Vec<u8>, &TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind(LOOPBACK).unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, armed) = (
            Arc::new(Mutex::new(Vec::new())),
            Arc::new(AtomicBool::new(false)),
        );
        let (theirs, is_armed) = (Arc::clone(&seen), Arc::clone(&armed));
        std::thread::spawn(move || {
            let client = listener.accept().unwrap().0;
            let server = TcpStream::connect(server).unwrap();
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || forward(back.0, back.1, |_, _| {}));
            forward(client, server, |piece, to| {
                theirs.lock().unwrap().extend_from_slice(piece);
                if is_armed.load(Ordering::SeqCst) {
                    change(piece, to);
                }
            });
        });
        Self {
            address,
            seen,
            armed,
        }
    }

    fn saw(&self, text: &[u8]) -> bool {
        let seen = self.seen.lock().unwrap();
        seen.windows(text.len()).any(|window| window == text)
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, change: impl Fn(&mut Vec<u8>, &TcpStream)) {
    let mut buffer = [0; 512];
    loop {
        match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                let mut piece = buffer[..count].to_vec();
                change(&mut piece, &to);
                if to.write_all(&piece).is_err() {
                    break;
                }
            }
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

const TEXT: &[u8] = b"nobody on the path may read this";

/// Connects through a middle that does `change` to what the client sends once it is armed.
fn through(
    options: &Options,
    change: impl Fn(&mut Vec<u8>, &TcpStream) + Send + 'static,
) -> (End, End, Middle) {
    let wish = of(TCP);
    let [near, far] = [(); 2].map(|()| End::new(options, &wish));
    let listener = far.context.listen(LOOPBACK, &far.events, 8).unwrap();
    let middle = Middle::new(listener.local_addr(), change);
    near.qp
        .connect(middle.address, &wish.param(), &near.events)
        .unwrap();
    match far.event() {
        CmEvent::ConnectRequest(request) => request.accept(&far.qp, &wish.param()).unwrap(),
        other => panic!("{other:?}"),
    }
    far.established();
    near.established();
    (near, far, middle)
}

#[test]
fn the_path_sees_no_payload_of_a_protected_connection() {
    for (options, is_seen) in [(Options::default(), true), (protected(), false)] {
        let (near, far, middle) = through(&options, |_, _| {});
        near.write(0, TEXT);
        far.receive(7, 0, 64);
        near.post(1, SendOp::Send, 0, TEXT.len() as u32);
        near.success(1);
        far.success(7);
        assert_eq!(far.read(0, TEXT.len()), TEXT);
        assert_eq!(middle.saw(TEXT), is_seen);
    }
}

/// What a changed stream does to a Send: the receive is flushed, and the memory keeps what it had.
fn nothing_arrives(change: impl Fn(&mut Vec<u8>, &TcpStream) + Send + 'static) {
    let (near, far, middle) = through(&protected(), change);
    near.write(0, TEXT);
    far.receive(7, 0, 64);
    middle.armed.store(true, Ordering::SeqCst);
    near.post(1, SendOp::Send, 0, TEXT.len() as u32);
    let wc = far.completion();
    assert_eq!((wc.wr_id, wc.status), (7, WcStatus::WrFlushErr));
    assert_eq!(far.read(0, TEXT.len()), vec![0; TEXT.len()]);
    assert!(far.qp.failure().is_some());
}

#[test]
fn a_flipped_bit_ends_the_connection_and_writes_nothing() {
    for at in [5, 20, 60] {
        nothing_arrives(move |piece, _| {
            let at = at.min(piece.len() - 1);
            piece[at] ^= 4;
        });
    }
}

#[test]
fn a_truncated_stream_is_no_orderly_end() {
    nothing_arrives(|piece, to| {
        piece.clear();
        let _ = to.shutdown(Shutdown::Write);
    });
}

#[test]
fn a_record_that_is_replayed_in_front_of_another_ends_the_connection() {
    let (near, far, middle) = through(&protected(), |piece, mut to| {
        // It arrives once, and once more.
        let _ = to.write_all(piece);
    });
    far.receive(7, 0, 64);
    far.receive(8, 100, 64);
    near.write(0, TEXT);
    middle.armed.store(true, Ordering::SeqCst);
    near.post(1, SendOp::Send, 0, TEXT.len() as u32);
    far.success(7);
    let wc = far.completion();
    assert_eq!((wc.wr_id, wc.status), (8, WcStatus::WrFlushErr));
    assert_eq!(far.read(100, TEXT.len()), vec![0; TEXT.len()]);
    let failure = far.qp.failure().unwrap().to_string();
    assert!(failure.contains("record"), "{failure}");
}
