//! Sealed channels over loopback, and the worked example of docs/protocol/sealed.md.

use std::io::Read;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use haul_seal::{Cipher, Secret};
use haul_soft::bulk::{Extent, FileRange};

use super::*;
use crate::channel::setup::{Channel, ChannelKind, Setup, Ticket};
use crate::channel::tcp::{Acceptor, TcpChannel, accept_soon};
use crate::dial::Server;
use crate::lock;
use crate::spec::hex;

const PAGE: &str = include_str!("../../../../../docs/protocol/sealed.md");

/// Numbers of eight bytes.
struct Numbers(Vec<u8>);

impl Numbers {
    fn new(len: usize) -> Self {
        Self((0..).flat_map(u64::to_be_bytes).take(len).collect())
    }
}

impl Source for Numbers {
    fn wait(&self, _: u64, _: Duration) -> Extent {
        Extent {
            end: self.0.len() as u64,
            complete: true,
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        buf.copy_from_slice(&self.0[at..at + buf.len()]);
        Ok(())
    }

    fn file_at(&self, _: u64) -> Option<FileRange<'_>> {
        None
    }
}

#[derive(Default)]
struct Memory(Mutex<Vec<u8>>);

impl Sink for Memory {
    fn place(&self, position: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut memory = lock(&self.0);
        let mut at = usize::try_from(position).unwrap();
        for part in parts {
            let end = at + part.len();
            if memory.len() < end {
                memory.resize(end, 0);
            }
            memory[at..end].copy_from_slice(part);
            at = end;
        }
        Ok(())
    }
}

fn seal(byte: u8) -> Seal {
    Seal {
        secret: Secret::new([byte; 32]),
        cipher: Cipher::Aes128Gcm,
    }
}

/// Sends `source` over a channel of three streams whose ends have these seals; what both ends say,
/// and what arrived.
fn transfer(
    source: &Numbers,
    client: Option<Seal>,
    server: Option<Seal>,
) -> ([Result<(), ChannelError>; 2], Vec<u8>) {
    let sink = Memory::default();
    let results = over_channel(source, &sink, [client, server], 3);
    (results, sink.0.into_inner().unwrap())
}

/// Sends `source` over a channel to `sink`; what client and server say.
fn over_channel(
    source: &dyn Source,
    sink: &dyn Sink,
    [client, server]: [Option<Seal>; 2],
    streams: u16,
) -> [Result<(), ChannelError>; 2] {
    let listener = haul_io::tcp::listen(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap();
    let setup = |sealed| Setup {
        kind: ChannelKind::Tcp,
        ticket: Ticket::from_wire(5),
        streams,
        rate_bps: None,
        congestion: None,
        dead_after: Duration::from_secs(5),
        sealed,
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let server = Server::At(address);
            let setup = setup(client.as_ref().map(|seal| seal.cipher));
            let channel = TcpChannel::connect(&setup, &server, Duration::from_secs(5)).unwrap();
            if let Some(client) = client {
                channel.set_seal(client);
            }
            channel.send(source)
        });
        let acceptor = Acceptor::default();
        let setup = setup(server.as_ref().map(|seal| seal.cipher));
        let claim = acceptor.claim(setup.ticket, streams);
        for _ in 0..streams {
            let mut stream = accept_soon(&listener);
            let mut header = [0; 22];
            stream.read_exact(&mut header).unwrap();
            let rest = *header.last_chunk().unwrap();
            let (ticket, index) = crate::channel::tcp::parse_stream_header(rest).unwrap();
            acceptor.deliver(ticket, index, stream, deadline);
        }
        let channel = TcpChannel::accept(&setup, &claim, deadline).unwrap();
        if let Some(server) = server {
            channel.set_seal(server);
        }
        let received = channel.receive(sink);
        channel.close();
        [sender.join().unwrap(), received]
    })
}

#[test]
fn a_sealed_channel_carries_the_space_over_all_its_streams() {
    for len in [1, 16_384, 5_000_001, 40 << 20] {
        let source = Numbers::new(len);
        let ([sent, received], arrived) = transfer(&source, Some(seal(1)), Some(seal(1)));
        sent.unwrap();
        received.unwrap();
        assert!(arrived == source.0, "{len} bytes");
    }
}

#[test]
fn ends_with_other_secrets_or_without_one_place_nothing() {
    let source = Numbers::new(3 << 20);
    for server in [Some(seal(2)), None] {
        let ([_, received], arrived) = transfer(&source, Some(seal(1)), server);
        assert!(received.is_err());
        assert!(arrived.is_empty());
    }
    let ([_, received], arrived) = transfer(&source, None, Some(seal(1)));
    assert!(matches!(received, Err(ChannelError::Lost(_))));
    assert!(arrived.is_empty());
}

/// What a sender of `len` bytes writes to stream `index`.
fn stream(len: usize, index: u16) -> Vec<u8> {
    let (near, mut far) = haul_io::tcp::pair().unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        far.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let (sealer, _) = keys(&seal(1), Side::Initiator, index).unwrap();
    let mut sender = ChunkSender::new(&near, sealer);
    sender.send(&Numbers::new(len), 0, len as u64).unwrap();
    sender.finish().unwrap();
    drop(near);
    reader.join().unwrap()
}

/// What a receiver of stream 0 makes of `bytes`, which come in pieces of at most `piece` bytes.
fn received(bytes: &[u8], piece: usize) -> (Result<(), ChannelError>, usize) {
    let mut rest = bytes;
    let pieces = |room: &mut [u8], _, _| {
        let len = piece.min(room.len());
        rest.read(&mut room[..len])
    };
    let (_, opener) = keys(&seal(1), Side::Responder, 0).unwrap();
    let sink = Memory::default();
    let result = receive_chunks(pieces, opener, &sink);
    (result, sink.0.into_inner().unwrap().len())
}

#[test]
fn records_in_pieces_of_any_size_are_opened_whole() {
    let bytes = stream(100_000, 0);
    for piece in [1, 4, 1_000, 16_406, 1 << 20] {
        let (result, len) = received(&bytes, piece);
        result.unwrap();
        assert_eq!(len, 100_000);
    }
}

#[test]
fn no_read_goes_past_the_end_of_a_chunk() {
    let (near, mut far) = haul_io::tcp::pair().unwrap();
    let (sealer, _) = keys(&seal(1), Side::Initiator, 0).unwrap();
    let source = Numbers::new(3 * CHUNK_BYTES);
    let (mut bytes, mut chunks) = (Vec::new(), Vec::new());
    let mut sender = ChunkSender::new(&near, sealer);
    for chunk in 0..3 {
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let records = CHUNK_BYTES.div_ceil(PAYLOAD_MAX) + 1;
                let mut chunk = vec![0; CHUNK_HEADER + CHUNK_BYTES + records * OVERHEAD];
                far.read_exact(&mut chunk).unwrap();
                chunk
            });
            sender.send(&source, chunk * CHUNK, CHUNK).unwrap();
            bytes.extend(reader.join().unwrap());
        });
        chunks.push(bytes.len());
    }
    sender.finish().unwrap();
    drop(near);
    far.read_to_end(&mut bytes).unwrap();
    let (_, opener) = keys(&seal(1), Side::Responder, 0).unwrap();
    let (sink, mut ends, mut rest) = (Memory::default(), Vec::new(), &bytes[..]);
    let receive = |room: &mut [u8], least, _| {
        assert!(least >= room.len());
        let received = rest.read(room);
        ends.push(bytes.len() - rest.len());
        received
    };
    receive_chunks(receive, opener, &sink).unwrap();
    assert!(*lock(&sink.0) == source.0);
    for chunk in chunks {
        assert!(ends.contains(&chunk), "{chunk} in {ends:?}");
    }
}

#[test]
fn a_stream_that_was_cut_off_changed_or_is_another_ones_is_an_error() {
    let bytes = stream(100_000, 0);
    let is_lost = |bytes: &[u8]| matches!(received(bytes, 1 << 20).0, Err(ChannelError::Lost(_)));
    assert!(!is_lost(&bytes));
    // Each record's end, and some places within: an end record is missing everywhere.
    let mut at = 0;
    while at < bytes.len() {
        assert!(is_lost(&bytes[..at]), "cut at {at}");
        assert!(is_lost(&bytes[..at + 3]), "cut behind {at}");
        let mut changed = bytes.clone();
        changed[at + 20] ^= 1;
        assert!(is_lost(&changed), "changed behind {at}");
        at += record_len(*bytes[at..].first_chunk().unwrap()).unwrap();
    }
    assert!(is_lost(&stream(100_000, 1)), "stream 1 as stream 0");
}

#[test]
fn a_sealed_chunk_of_an_impossible_length_is_the_fault_of_the_peer() {
    let too_long = u32::try_from(CHUNK).unwrap() + 1;
    let headers = [
        chunk_header(0, 0),
        chunk_header(0, too_long),
        chunk_header(u64::MAX, 2),
    ];
    for header in headers {
        let mut position = Position::default();
        let data = [&header[..], &[0; 4]].concat();
        assert!(matches!(position.take(&data), Err(ChannelError::Peer(_))));
    }
    let mut position = Position::default();
    let data = [&chunk_header(9, 3)[..], &[0; 4]].concat();
    assert!(position.take(&data).is_err(), "more than the chunk");
    let mut position = Position::default();
    assert!(position.take(&data[..CHUNK_HEADER]).is_err(), "no payload");
    assert!(
        position.take(&data[..CHUNK_HEADER - 1]).is_err(),
        "no header"
    );
}

#[test]
fn the_stream_of_the_page_is_what_this_build_writes_and_reads() {
    let bytes = hex::bytes(PAGE, "sealed-stream");
    let seal = Seal {
        secret: Secret::new(std::array::from_fn(|at| u8::try_from(at).unwrap())),
        cipher: Cipher::Aes128Gcm,
    };
    let (near, mut far) = haul_io::tcp::pair().unwrap();
    let (sealer, _) = keys(&seal, Side::Initiator, 0).unwrap();
    let mut sender = ChunkSender::new(&near, sealer);
    sender.send(&Numbers(b"hello\n".to_vec()), 0, 6).unwrap();
    sender.finish().unwrap();
    drop(near);
    let mut written = Vec::new();
    far.read_to_end(&mut written).unwrap();
    assert_eq!(written, bytes);

    let (_, opener) = keys(&seal, Side::Responder, 0).unwrap();
    let sink = Memory::default();
    let mut rest = &bytes[..];
    receive_chunks(|room, _, _| rest.read(room), opener, &sink).unwrap();
    assert_eq!(*lock(&sink.0), b"hello\n");
}

/// Prints goodput and processor time of plain and sealed channels of one stream in memory.
#[test]
#[ignore = "a measurement"]
fn plain_beside_sealed() {
    const BYTES: u64 = 4 << 30;
    struct Zeros(Vec<u8>);
    impl Source for Zeros {
        fn wait(&self, _: u64, _: Duration) -> Extent {
            Extent {
                end: BYTES,
                complete: true,
            }
        }

        fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<()> {
            buf.copy_from_slice(&self.0[..buf.len()]);
            Ok(())
        }

        fn file_at(&self, _: u64) -> Option<FileRange<'_>> {
            None
        }
    }
    struct Nowhere;
    impl Sink for Nowhere {
        fn place(&self, _: u64, _: &[IoSlice<'_>]) -> io::Result<()> {
            Ok(())
        }
    }
    let source = Zeros(vec![0; CHUNK_BYTES]);
    let cpu = || {
        let cpu = haul_io::clock::process_cpu().unwrap();
        (cpu.user_ns + cpu.system_ns) as f64 * 1e-9
    };
    for round in 0..10 {
        let seal = (round % 2 == 1).then(|| seal(1));
        let name = if seal.is_some() { "sealed" } else { "plain" };
        let (began, before) = (Instant::now(), cpu());
        over_channel(&source, &Nowhere, [seal.clone(), seal], 1)
            .into_iter()
            .for_each(|result| result.unwrap());
        let (seconds, used) = (began.elapsed().as_secs_f64(), cpu() - before);
        let gigabytes = BYTES as f64 * 1e-9;
        println!(
            "tcp {name}: {:.2} Gb/s, {:.3} CPU s/GB",
            gigabytes * 8.0 / seconds,
            used / gigabytes
        );
    }
}
