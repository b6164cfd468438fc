//! Sealed links over loopback: what arrives is what was sent, and an attacker on the same port
//! changes nothing.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "transfers take real time, and a test ends at what it did not expect"
)]

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use haul_io::udp::{UdpOptions, UdpSocket};
use haul_soft::bulk::{Extent, FileRange, Sink, Source};
use haul_soft::udt::{
    Cipher, Identity, Link, LinkError, LinkOptions, Listener, Seal, Secret, Seq, Stats, connect,
    rendezvous,
};
use haul_udt::wire::{HEADER_LEN, SEALED_HEAD_LEN, SocketId};

const OWN: Identity = Identity {
    initial: Seq::new(5),
    socket: SocketId(9),
};

/// Numbers of eight bytes, in memory or not.
struct Numbers {
    bytes: Vec<u8>,
    in_memory: bool,
}

impl Numbers {
    fn new(len: usize, in_memory: bool) -> Self {
        let bytes = (0..len as u64 / 8).flat_map(u64::to_be_bytes).collect();
        Self { bytes, in_memory }
    }
}

impl Source for Numbers {
    fn wait(&self, _: u64, _: Duration) -> Extent {
        Extent {
            end: self.bytes.len() as u64,
            complete: true,
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        buf.copy_from_slice(&self.bytes[at..at + buf.len()]);
        Ok(())
    }

    fn memory_at(&self, offset: u64) -> Option<&[u8]> {
        self.bytes
            .get(usize::try_from(offset).ok()?..)
            .filter(|_| self.in_memory)
    }

    fn file_at(&self, _: u64) -> Option<FileRange<'_>> {
        None
    }
}

/// Checks what arrives, each number where it belongs.
#[derive(Default)]
struct Checked {
    bytes: AtomicU64,
    wrong: AtomicU64,
}

impl Sink for Checked {
    fn place(&self, position: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut at = position;
        for byte in parts.iter().flat_map(|part| part.iter()) {
            let expected = (at / 8).to_be_bytes()[usize::try_from(at % 8).unwrap()];
            self.wrong
                .fetch_add(u64::from(*byte != expected), Ordering::Relaxed);
            at += 1;
        }
        self.bytes.fetch_add(at - position, Ordering::Relaxed);
        Ok(())
    }
}

fn options(seal: Option<u8>) -> LinkOptions {
    let mut options = LinkOptions::default();
    options.seal = seal.map(|byte| Seal {
        secret: Secret::new([byte; 32]),
        cipher: Cipher::preferred(),
    });
    options.config.rekey_packets = 1_000;
    options.config.connect_timeout_ns = 2_000_000_000;
    options
}

fn local() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

fn listen(options: &LinkOptions) -> Listener {
    Listener::bind(local(), options, [7; 16]).unwrap()
}

fn accept(listener: &mut Listener, options: &LinkOptions) -> Link {
    let accepted = listener.accept(None, &mut |_| Some(options.clone()));
    accepted.unwrap().unwrap().1
}

/// Sends `source` from a client to a server, beside `attack`, and checks that it arrives; the
/// counters of both ends.
fn transfer(source: &Numbers, attack: impl FnOnce(SocketAddr, SocketAddr) + Send) -> [Stats; 2] {
    let options = options(Some(1));
    let mut listener = listen(&options);
    let address = listener.local_addr();
    let sink = Checked::default();
    let stats = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut link = connect(local(), address, OWN, &options).unwrap();
            link.send(source).unwrap();
            link.stats().unwrap()
        });
        let mut link = accept(&mut listener, &options);
        let client = link.peer();
        scope.spawn(move || attack(address, client));
        link.receive(&sink).unwrap();
        [sender.join().unwrap(), link.stats().unwrap()]
    });
    assert_eq!(sink.wrong.into_inner(), 0);
    assert!(sink.bytes.into_inner() >= source.bytes.len() as u64);
    stats
}

#[test]
fn memory_and_what_is_read_ahead_arrive_and_nothing_is_refused() {
    for in_memory in [true, false] {
        for stats in transfer(&Numbers::new(48 << 20, in_memory), |_, _| ()) {
            assert_eq!(stats.refused, haul_soft::udt::Refused::default());
            assert_eq!(stats.misbehaviour, 0);
        }
    }
}

#[test]
fn an_attacker_who_sends_from_the_peers_port_is_counted_and_changes_nothing() {
    let done = AtomicBool::new(false);
    let sent = AtomicU64::new(0);
    let attack = |server: SocketAddr, client: SocketAddr| {
        let mut shared = UdpOptions::default();
        shared.share_port = true;
        // The kernel hands its datagrams to the client's socket, which is connected to this port.
        let socket = UdpSocket::bind(server, &shared).unwrap();
        let mut datagrams: Vec<Vec<u8>> = Vec::new();
        // A shutdown without a seal, for every socket id that it may have.
        for id in [9_u32, 0] {
            let words = [0x8005_0000_u32, 0, 0, id, 0];
            datagrams.push(words.iter().flat_map(|word| word.to_be_bytes()).collect());
        }
        // Sealed by somebody else: data, feedback, shutdown; small numbers and jumps.
        for kind in [9_u32, 0xffff_4c48, 0x8005_0000] {
            for number in [0_u32, 70_000, 1 << 30, u32::MAX] {
                let words = [kind, 1, 0, 9, number, 1, 2, 3, 4, 5];
                datagrams.push(words.iter().flat_map(|word| word.to_be_bytes()).collect());
            }
        }
        while !done.load(Ordering::Acquire) {
            for datagram in &datagrams {
                let slices = [IoSlice::new(datagram)];
                let taken = socket.send_segments(client, datagram.len(), &slices);
                sent.fetch_add(u64::from(taken.is_ok()), Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let source = Numbers::new(96 << 20, true);
    let [client, server] = std::thread::scope(|scope| {
        let transfer = scope.spawn(|| transfer(&source, attack));
        while !transfer.is_finished() {
            if sent.load(Ordering::Relaxed) > 2_000 {
                done.store(true, Ordering::Release);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        done.store(true, Ordering::Release);
        transfer.join().unwrap()
    });
    println!(
        "{} datagrams of the attacker: {client:?}",
        sent.into_inner()
    );
    assert!(client.refused.forged > 0 && client.refused.unsealed > 0);
    assert_eq!(client.misbehaviour, 0);
    assert_eq!(server.refused, haul_soft::udt::Refused::default());
}

#[test]
fn an_end_that_does_not_seal_gets_no_connection() {
    for (client, server) in [(Some(1), None), (None, Some(1))] {
        let mut listener = listen(&options(server));
        let (address, stop) = (listener.local_addr(), listener.stop_handle());
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = listener.accept(None, &mut |_| Some(options(server)));
            });
            let error = connect(local(), address, OWN, &options(client)).unwrap_err();
            stop.stop();
            error
        });
        let expected = match error {
            LinkError::Protocol(haul_udt::Error::Incompatible(_)) => client.is_some(),
            LinkError::Protocol(haul_udt::Error::TimedOut) => client.is_none(),
            _ => false,
        };
        assert!(expected, "{error}");
    }
}

#[test]
fn ends_with_other_secrets_move_nothing() {
    let mut server = options(Some(2));
    server.config.idle_timeout_ns = 1_000_000_000;
    let mut client = options(Some(1));
    client.config.idle_timeout_ns = 1_000_000_000;
    let mut listener = listen(&server);
    let address = listener.local_addr();
    let sink = Checked::default();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut link = connect(local(), address, OWN, &client).unwrap();
            link.send(&Numbers::new(1 << 20, true)).unwrap_err()
        });
        let mut link = accept(&mut listener, &server);
        assert!(link.receive(&sink).is_err());
        assert!(link.stats().unwrap().refused.forged > 0);
        sender.join().unwrap();
    });
    assert_eq!(sink.bytes.into_inner(), 0);
}

#[test]
fn a_sealed_rendezvous_opens() {
    let free = || UdpSocket::bind(local(), &UdpOptions::default()).unwrap();
    let ports = [free(), free()].map(|socket| socket.local_addr());
    let source = Numbers::new(4 << 20, true);
    let sink = Checked::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let own = Identity {
                socket: SocketId(10),
                ..OWN
            };
            let mut link = rendezvous(ports[0], ports[1], own, &options(Some(1))).unwrap();
            link.send(&source).unwrap();
        });
        let mut link = rendezvous(ports[1], ports[0], OWN, &options(Some(1))).unwrap();
        link.receive(&sink).unwrap();
    });
    assert_eq!(sink.bytes.into_inner(), 4 << 20);
}

/// Prints goodput and processor time of a plain and a sealed transfer in memory.
#[test]
#[ignore = "a measurement"]
fn plain_beside_sealed() {
    const BYTES: usize = 2 << 30;
    struct Counted(AtomicU64);
    impl Sink for Counted {
        fn place(&self, _: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
            let len: usize = parts.iter().map(|part| part.len()).sum();
            self.0.fetch_add(len as u64, Ordering::Relaxed);
            Ok(())
        }
    }
    let source = Numbers::new(BYTES, true);
    let cpu = || {
        let cpu = haul_io::clock::process_cpu().unwrap();
        (cpu.user_ns + cpu.system_ns) as f64 * 1e-9
    };
    for round in 0..10 {
        let seal = (round % 2 == 1).then_some(1);
        let mut options = options(seal);
        options.config.rekey_packets = 1 << 22;
        let mut listener = listen(&options);
        let address = listener.local_addr();
        let sink = Counted(AtomicU64::new(0));
        let (began, before) = (Instant::now(), cpu());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut link = connect(local(), address, OWN, &options).unwrap();
                link.send(&source).unwrap();
            });
            let mut link = accept(&mut listener, &options);
            link.receive(&sink).unwrap();
        });
        let (seconds, used) = (began.elapsed().as_secs_f64(), cpu() - before);
        let gigabytes = BYTES as f64 * 1e-9;
        let name = if seal.is_some() { "sealed" } else { "plain" };
        println!(
            "udt {name}: {:.2} Gb/s, {:.3} CPU s/GB",
            gigabytes * 8.0 / seconds,
            used / gigabytes
        );
    }
}

/// Numbers of eight bytes that no memory holds.
struct Generated(u64);

impl Source for Generated {
    fn wait(&self, _: u64, _: Duration) -> Extent {
        Extent {
            end: self.0,
            complete: true,
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        for (byte, at) in buf.iter_mut().zip(offset..) {
            *byte = (at / 8).to_be_bytes()[usize::try_from(at % 8).unwrap()];
        }
        Ok(())
    }

    fn memory_at(&self, _: u64) -> Option<&[u8]> {
        None
    }

    fn file_at(&self, _: u64) -> Option<FileRange<'_>> {
        None
    }
}

/// One direction of a path with an attacker on it, who loses a datagram in a thousand.
struct Path {
    random: u64,
    /// Which numbers were on the wire.
    seen: Vec<u64>,
    datagrams: u64,
    repeated: u64,
    /// The latest datagrams, to send again.
    kept: Vec<Vec<u8>>,
    flipped: u64,
    replayed: u64,
    forged: u64,
    /// How many of each attack.
    attacks: u64,
}

impl Path {
    fn new(attacks: u64) -> Self {
        Self {
            random: 0x9e37_79b9_7f4a_7c15,
            seen: vec![0; 1 << 25],
            datagrams: 0,
            repeated: 0,
            kept: Vec::new(),
            flipped: 0,
            replayed: 0,
            forged: 0,
            attacks,
        }
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Notes the number of a sealed datagram. Handshakes are none.
    fn note(&mut self, datagram: &[u8]) {
        let Some(head) = datagram.first_chunk::<SEALED_HEAD_LEN>() else {
            return;
        };
        if head[..2] == [0x80, 0] {
            return;
        }
        self.datagrams += 1;
        let number: [u8; 4] = head[HEADER_LEN..].try_into().unwrap();
        let number = u32::from_be_bytes(number) & 0x7fff_ffff;
        let (word, bit) = (number as usize / 64, 1 << (number % 64));
        self.repeated += u64::from(self.seen[word] & bit != 0);
        self.seen[word] |= bit;
    }

    fn carry(&mut self, datagram: &[u8], send: &dyn Fn(&[u8])) {
        self.note(datagram);
        if !self.random().is_multiple_of(1_000) {
            send(datagram);
        }
        if self.datagrams == 0 || self.replayed >= self.attacks {
            return;
        }
        let mut flipped = datagram.to_vec();
        let bit = usize::try_from(self.random()).unwrap() % (flipped.len() * 8);
        flipped[bit / 8] ^= 1 << (bit % 8);
        send(&flipped);
        let at = usize::try_from(self.random()).unwrap() % 1_024;
        match self.kept.get_mut(at) {
            // Half of them are still within the window.
            Some(kept) => {
                send(kept);
                self.replayed += 1;
                *kept = datagram.to_vec();
            }
            None => self.kept.push(datagram.to_vec()),
        }
        let mut forged = datagram.to_vec();
        for byte in &mut forged[HEADER_LEN..] {
            *byte = self.random().to_be_bytes()[0];
        }
        send(&forged);
        self.flipped += 1;
        self.forged += 1;
    }
}

#[test]
fn attacks_on_a_lossy_path_place_nothing_and_no_number_repeats() {
    under_attack(32 << 20, 5_000);
}

#[test]
#[ignore = "takes minutes"]
fn a_million_of_each_attack_beside_ten_gibibytes() {
    under_attack(10 << 30, 1_000_000);
}

/// Moves `bytes` over a path that loses datagrams and on which an attacker tries each attack
/// `attacks` times; prints what the receiver refused.
fn under_attack(bytes: u64, attacks: u64) {
    let mut options = options(Some(1));
    options.config.rekey_packets = 1 << 22;
    let mut listener = listen(&options);
    let server = listener.local_addr();
    let [front, back] = [(); 2].map(|()| std::net::UdpSocket::bind(local()).unwrap());
    for socket in [&front, &back] {
        let tick = Some(Duration::from_millis(100));
        socket.set_read_timeout(tick).unwrap();
    }
    let address = front.local_addr().unwrap();
    let client = std::sync::OnceLock::new();
    let is_over = AtomicBool::new(false);
    let sink = Checked::default();
    let (mut there, mut back_again) = (Path::new(attacks), Path::new(0));
    let began = Instant::now();
    let stats = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 2_048];
            while !is_over.load(Ordering::Acquire) {
                if let Ok((len, from)) = front.recv_from(&mut buffer) {
                    client.get_or_init(|| from);
                    // One that does not leave is lost.
                    there.carry(&buffer[..len], &|datagram| {
                        let _ = back.send_to(datagram, server);
                    });
                }
            }
        });
        scope.spawn(|| {
            let mut buffer = [0; 2_048];
            while !is_over.load(Ordering::Acquire) {
                if let (Ok((len, _)), Some(client)) = (back.recv_from(&mut buffer), client.get()) {
                    back_again.carry(&buffer[..len], &|datagram| {
                        let _ = front.send_to(datagram, client);
                    });
                }
            }
        });
        let sender = scope.spawn(|| {
            let mut link = connect(local(), address, OWN, &options).unwrap();
            link.send(&Generated(bytes)).unwrap();
        });
        let mut link = accept(&mut listener, &options);
        link.receive(&sink).unwrap();
        let stats = link.stats().unwrap();
        sender.join().unwrap();
        is_over.store(true, Ordering::Release);
        stats
    });
    println!(
        "{} bytes in {:.0} s, {} of them wrong; {} + {} datagrams, numbers repeated: {} + {}",
        sink.bytes.load(Ordering::Relaxed),
        began.elapsed().as_secs_f64(),
        sink.wrong.load(Ordering::Relaxed),
        there.datagrams,
        back_again.datagrams,
        there.repeated,
        back_again.repeated,
    );
    println!(
        "sent: {} flipped, {} replayed, {} forged; refused: {:?}, misbehaviour: {}",
        there.flipped, there.replayed, there.forged, stats.refused, stats.misbehaviour
    );
    assert_eq!(sink.wrong.into_inner(), 0);
    assert!(sink.bytes.into_inner() >= bytes);
    assert_eq!((there.repeated, back_again.repeated), (0, 0));
    assert!(there.datagrams > bytes / 2_048);
    for tried in [there.flipped, there.replayed, there.forged] {
        assert!(tried >= attacks, "{tried}");
    }
    assert!(stats.refused.forged > 0 && stats.refused.replayed > 0);
    assert_eq!(stats.misbehaviour, 0);
}
