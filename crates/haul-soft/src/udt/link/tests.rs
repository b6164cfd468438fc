//! A socket without room: what was sealed stays as it is.

use std::net::{Ipv4Addr, SocketAddr};

use haul_seal::{Cipher, Secret};
use haul_udt::wire::SocketId;
use haul_udt::{Identity, Seq};

use super::super::outgoing::Outgoing;
use super::super::{Connecting, LinkOptions, Listener};
use super::*;
use crate::bulk::{Extent, FileRange};

/// One byte, over and over.
struct Memory(Vec<u8>);

impl Source for Memory {
    fn wait(&self, _: u64, _: Duration) -> Extent {
        Extent {
            end: self.0.len() as u64,
            complete: true,
        }
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn memory_at(&self, offset: u64) -> Option<&[u8]> {
        self.0.get(usize::try_from(offset).ok()?..)
    }

    fn file_at(&self, _: u64) -> Option<FileRange<'_>> {
        None
    }
}

fn options() -> LinkOptions {
    LinkOptions {
        seal: Some(Seal {
            secret: Secret::new([1; 32]),
            cipher: Cipher::Aes128Gcm,
        }),
        ..LinkOptions::default()
    }
}

/// Two ends of an open connection.
fn pair() -> (Link, Link) {
    let options = options();
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut listener = Listener::bind(local, &options, [7; 16]).unwrap();
    let address = listener.local_addr();
    let own = Identity {
        socket: SocketId(9),
        initial: Seq::new(5),
    };
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let connecting = Connecting::begin(local, address, own, &options);
            connecting.and_then(Connecting::finish).unwrap()
        });
        let accepted = listener.accept(None, &mut |_| Some(options.clone()));
        (client.join().unwrap(), accepted.unwrap().unwrap().1)
    })
}

fn arrived(socket: &UdpSocket) -> Vec<Vec<u8>> {
    let mut batch = RecvBatch::new(RECEIVE_MESSAGES, RECEIVE_BUFFER_BYTES, 0).unwrap();
    let mut all = Vec::new();
    while socket.recv_batch(&mut batch).is_ok_and(|count| count > 0) {
        all.extend(batch.iter().map(|message| message.bytes.to_vec()));
    }
    all
}

/// What a batch is on the wire where the socket takes it after it had no room, and the source's
/// memory has changed meanwhile: the first time, and the second.
fn sent_twice(change: impl FnOnce(&mut Link)) -> [Vec<Vec<u8>>; 2] {
    let (mut link, peer) = pair();
    arrived(&peer.socket);
    let mut source = Memory(vec![1; 200_000]);
    link.read_clock();
    link.connection.write(link.now, 200_000, true).unwrap();
    loop {
        assert!(link.connection.poll_transmit(link.now, &mut link.transmit));
        if !link.transmit.headers.is_empty() {
            break;
        }
    }
    link.left = Some(0);
    link.sealing.as_mut().unwrap().clear();
    let outgoing = &mut Outgoing::Memory { source: &source };
    assert!(link.push_out(outgoing).unwrap());
    let first = arrived(&peer.socket);
    // As if the socket had taken nothing.
    link.left = Some(0);
    source.0.fill(2);
    change(&mut link);
    let outgoing = &mut Outgoing::Memory { source: &source };
    while link.left.is_some() {
        link.push_out(outgoing).unwrap();
    }
    [first, arrived(&peer.socket)]
}

#[test]
fn a_batch_that_waited_for_room_leaves_as_it_was_sealed() {
    let [first, second] = sent_twice(|_| ());
    assert!(!first.is_empty());
    assert_eq!(first, second);
}

#[test]
fn a_batch_that_became_too_long_while_it_waited_gets_new_numbers() {
    let numbers = |datagrams: &[Vec<u8>]| -> Vec<Vec<u8>> {
        let datagrams = datagrams.iter();
        datagrams
            .map(|datagram| datagram[HEADER_LEN..HEADER_LEN + 4].to_vec())
            .collect()
    };
    let mut max = 0;
    let [first, second] = sent_twice(|link| {
        link.connection.handle_too_big(link.now, Some(1_280));
        max = link.connection.datagram_max();
    });
    assert_eq!(max, 1_280 - 28 - SEAL_LEN);
    let longest = second.iter().map(Vec::len).max();
    assert!(longest.is_some());
    let (first, second) = (numbers(&first), numbers(&second));
    assert!(second.iter().all(|number| !first.contains(number)));
}
