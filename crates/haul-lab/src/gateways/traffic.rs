//! The server and the clients of this program itself: downloads of a known pattern, one or many at
//! a time, and a ping-pong. Every byte is compared.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use haul_io::clock::Clock;
use haul_io::netns::NetNs;
use haul_io::poller::{Events, Interest, Poller, Waker};
use haul_io::stream::{Acceptor, Stream};

/// Bytes of a request, which holds the number of bytes to return.
const REQUEST_LEN: usize = 8;
/// The byte at an offset is the offset modulo this prime.
const PERIOD: usize = 251;
/// Bytes of a call.
const CHUNK: usize = 256 * PERIOD;
const ACCEPTOR: u64 = u64::MAX - 1;
/// How often a wait looks whether it is to end.
const LOOK_NS: u64 = 100_000_000;

/// Bytes from any offset on, `CHUNK` of them.
fn pattern() -> Vec<u8> {
    // A remainder below 251 fits.
    (0..CHUNK + PERIOD)
        .map(|at| u8::try_from(at % PERIOD).unwrap_or(0))
        .collect()
}

/// Where the pattern has the byte of an offset.
fn at(offset: u64) -> usize {
    usize::try_from(offset % PERIOD as u64).unwrap_or(0)
}

/// Answers on a thread of its own until it is dropped.
#[derive(Debug)]
pub(super) struct Server {
    is_over: std::sync::Arc<AtomicBool>,
    waker: Waker,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    pub(super) fn start(netns: &NetNs, address: SocketAddr) -> Result<Self> {
        let acceptor = netns.run(|| Acceptor::bind(address))?;
        let acceptor = acceptor.context("cannot listen")?;
        let poller = Poller::new()?;
        poller.add(&acceptor, ACCEPTOR, Interest::READ)?;
        let (waker, is_over) = (poller.waker(), std::sync::Arc::new(AtomicBool::new(false)));
        let own = std::sync::Arc::clone(&is_over);
        let serve = move || {
            let mut serving = Serving {
                acceptor,
                poller,
                pattern: pattern(),
                clients: BTreeMap::new(),
                next: 0,
            };
            if let Err(error) = serving.run(&own) {
                eprintln!("the server of the lab failed: {error}");
            }
        };
        let thread = std::thread::Builder::new().name("answers".into());
        Ok(Self {
            is_over,
            waker,
            thread: Some(thread.spawn(serve)?),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // Where it panicked, that was printed.
            let _ = thread.join();
        }
    }
}

struct Serving {
    acceptor: Acceptor,
    poller: Poller,
    pattern: Vec<u8>,
    clients: BTreeMap<u64, Answering>,
    next: u64,
}

struct Answering {
    stream: Stream,
    request: Vec<u8>,
    /// Of the answer in progress: bytes sent, and its length.
    sent: u64,
    len: u64,
    interest: Interest,
}

impl Serving {
    fn run(&mut self, is_over: &AtomicBool) -> io::Result<()> {
        let (clock, mut events) = (Clock::new(), Events::with_capacity(256));
        while !is_over.load(Ordering::Acquire) {
            self.poller.wait(&mut events, None, clock)?;
            for event in events.iter() {
                if event.token == ACCEPTOR {
                    self.accept()?;
                } else if let Some(client) = self.clients.get_mut(&event.token)
                    && !client.serve(&self.pattern, &self.poller, event.token)
                {
                    self.clients.remove(&event.token);
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        while let Some((stream, _)) = self.acceptor.accept()? {
            let token = self.next;
            self.next += 1;
            self.poller.add(&stream, token, Interest::READ)?;
            let client = Answering {
                stream,
                request: Vec::new(),
                sent: 0,
                len: 0,
                interest: Interest::READ,
            };
            self.clients.insert(token, client);
        }
        Ok(())
    }
}

impl Answering {
    /// Goes on as far as it goes; whether the client is still there.
    fn serve(&mut self, pattern: &[u8], poller: &Poller, token: u64) -> bool {
        let goes_on = match self.step(pattern) {
            Ok(goes_on) => goes_on,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        let interest = if self.sent < self.len {
            Interest::WRITE
        } else {
            Interest::READ
        };
        if goes_on && interest != self.interest {
            self.interest = interest;
            return poller.modify(&self.stream, token, interest).is_ok();
        }
        goes_on
    }

    fn step(&mut self, pattern: &[u8]) -> io::Result<bool> {
        loop {
            while self.sent < self.len {
                let chunk = usize::try_from(self.len - self.sent)
                    .unwrap_or(CHUNK)
                    .min(CHUNK);
                let begin = at(self.sent);
                self.sent += self.stream.write(&pattern[begin..begin + chunk])? as u64;
            }
            let mut octets = [0; REQUEST_LEN];
            let missing = REQUEST_LEN - self.request.len();
            let count = self.stream.read(&mut octets[..missing])?;
            if count == 0 {
                return Ok(false);
            }
            self.request.extend_from_slice(&octets[..count]);
            if let Ok(request) = <[u8; REQUEST_LEN]>::try_from(self.request.as_slice()) {
                self.request.clear();
                (self.sent, self.len) = (0, u64::from_be_bytes(request));
            }
        }
    }
}

/// A download of this program.
struct Asking {
    stream: Stream,
    has_asked: bool,
    received: u64,
}

/// Downloads `len` bytes over each of so many connections, all begun at once; the time until the
/// last byte. Each byte is compared.
pub(super) fn download(
    netns: &NetNs,
    target: SocketAddr,
    count: usize,
    len: u64,
    limit: Duration,
) -> Result<f64> {
    let (never, begin) = (AtomicBool::new(false), Instant::now());
    fetch(netns, target, (count, len), limit, &never)?;
    Ok(begin.elapsed().as_secs_f64())
}

/// Downloads over so many connections for `time`. Returns the bytes that each has received.
pub(super) fn shares(
    netns: &NetNs,
    target: SocketAddr,
    count: usize,
    time: Duration,
) -> Result<Vec<u64>> {
    beside(netns, target, count, time, || std::thread::sleep(time)).map(|(shares, ())| shares)
}

/// Downloads over so many connections while `what` runs, which takes about `time`. Returns the
/// bytes that each has received, and the result of `what`.
fn beside<R>(
    netns: &NetNs,
    target: SocketAddr,
    count: usize,
    time: Duration,
    what: impl FnOnce() -> R,
) -> Result<(Vec<u64>, R)> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let bulk = scope.spawn(|| {
            let limit = time + Duration::from_secs(60);
            fetch(netns, target, (count, u64::MAX), limit, &is_over)
        });
        let result = what();
        is_over.store(true, Ordering::Release);
        let shares = bulk
            .join()
            .unwrap_or_else(|_| bail!("the download panicked"))?;
        Ok((shares, result))
    })
}

/// Downloads until all is there or `is_over` is set. Returns the bytes of each connection.
fn fetch(
    netns: &NetNs,
    target: SocketAddr,
    (count, len): (usize, u64),
    limit: Duration,
    is_over: &AtomicBool,
) -> Result<Vec<u64>> {
    let begin = Instant::now();
    let mut poller = Poller::new()?;
    let connect = || (0..count).map(|_| Stream::start_connect(target)).collect();
    let streams: io::Result<Vec<Stream>> = netns.run(connect)?;
    let (mut open, mut shares) = (BTreeMap::new(), vec![0; count]);
    for (token, stream) in (0..).zip(streams.context("cannot connect")?) {
        poller.add(&stream, token, Interest::WRITE)?;
        let asking = Asking {
            stream,
            has_asked: false,
            received: 0,
        };
        open.insert(token, asking);
    }
    let (clock, pattern) = (Clock::new(), pattern());
    let (mut octets, mut events) = (vec![0; CHUNK], Events::with_capacity(256));
    while !open.is_empty() {
        if is_over.load(Ordering::Acquire) {
            break;
        }
        let left = open.len();
        ensure!(
            begin.elapsed() < limit,
            "{left} of {count} downloads are not complete after {} s",
            limit.as_secs()
        );
        poller.wait(&mut events, Some(clock.now_ns() + LOOK_NS), clock)?;
        for event in events.iter() {
            let Some(asking) = open.get_mut(&event.token) else {
                continue;
            };
            if !asking.has_asked {
                asking.stream.connected().context("cannot connect")?;
                // A new connection has room for it.
                let written = asking.stream.write(&len.to_be_bytes())?;
                ensure!(written == REQUEST_LEN, "a request was cut");
                asking.has_asked = true;
                poller.modify(&asking.stream, event.token, Interest::READ)?;
            }
            let is_whole = asking.take(&pattern, &mut octets, len)?;
            shares[usize::try_from(event.token)?] = asking.received;
            if is_whole {
                open.remove(&event.token);
            }
        }
    }
    Ok(shares)
}

impl Asking {
    /// Takes arrived bytes; returns whether all have arrived.
    fn take(&mut self, pattern: &[u8], octets: &mut [u8], len: u64) -> Result<bool> {
        while self.received < len {
            let count = match self.stream.read(octets) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                count => count.context("a download broke off")?,
            };
            let begin = at(self.received);
            if count == 0 || octets[..count] != pattern[begin..begin + count] {
                let received = self.received;
                bail!(
                    "after {received} bytes of {len} came the end of the connection or wrong bytes"
                );
            }
            self.received += count as u64;
        }
        ensure!(self.received == len, "more came than was asked for");
        Ok(true)
    }
}

/// One byte there and one back every `interval` for `time`, beside a download; the times of the
/// round trips in order of length, s. The first second is left out.
pub(super) fn ping_pong(
    netns: &NetNs,
    target: SocketAddr,
    interval: Duration,
    time: Duration,
) -> Result<Vec<f64>> {
    let ping = || pings(netns, target, interval, time);
    let (_, times) = beside(netns, target, 1, time, ping).context("beside the ping-pong")?;
    let mut times = times?;
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn pings(
    netns: &NetNs,
    target: SocketAddr,
    interval: Duration,
    time: Duration,
) -> Result<Vec<f64>> {
    const WARM: Duration = Duration::from_secs(1);
    const PATIENCE: Duration = Duration::from_secs(20);
    let stream = netns.run(|| Stream::connect(target, PATIENCE))??;
    let mut poller = Poller::new()?;
    poller.add(&stream, 0, Interest::READ)?;
    let (clock, mut events) = (Clock::new(), Events::with_capacity(1));
    let (begin, mut times) = (Instant::now(), Vec::new());
    let mut next = begin;
    while begin.elapsed() < time {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let sent = Instant::now();
        stream.write(&1_u64.to_be_bytes())?;
        let mut byte = [0];
        loop {
            match stream.read(&mut byte) {
                Ok(1) => break,
                Ok(_) => bail!("the ping-pong's connection ended"),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("the ping-pong's connection broke off"),
            }
            ensure!(
                sent.elapsed() < PATIENCE,
                "no answer within {} s",
                PATIENCE.as_secs()
            );
            poller.wait(&mut events, Some(clock.now_ns() + LOOK_NS), clock)?;
        }
        if begin.elapsed() > WARM {
            times.push(sent.elapsed().as_secs_f64());
        }
        next = (next + interval).max(Instant::now());
    }
    ensure!(!times.is_empty(), "there was no time for a round trip");
    Ok(times)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn here() -> (NetNs, SocketAddr, Server) {
        let netns = NetNs::open("/proc/self/ns/net".as_ref()).unwrap();
        let free = Acceptor::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let server = Server::start(&netns, address).unwrap();
        (netns, address, server)
    }

    /// Entering a network namespace, even the present one, needs a right.
    fn may_enter(netns: &NetNs) -> bool {
        let may = netns.run(|| ()).is_ok();
        if !may {
            println!("SKIPPED: no right to enter a network namespace");
        }
        may
    }

    #[test]
    fn many_downloads_and_a_ping_pong_have_their_bytes() {
        let netns = NetNs::open("/proc/self/ns/net".as_ref()).unwrap();
        if !may_enter(&netns) {
            return;
        }
        let (netns, address, _server) = here();
        for (count, len) in [(1, 3_000_001), (50, 10_000), (3, 1)] {
            assert!(download(&netns, address, count, len, LIMIT).unwrap() > 0.0);
        }
        let interval = Duration::from_millis(10);
        let times = ping_pong(&netns, address, interval, Duration::from_millis(1200)).unwrap();
        let shares = shares(&netns, address, 4, Duration::from_millis(300)).unwrap();
        assert!(
            shares.len() == 4 && shares.iter().all(|share| *share > 0),
            "{shares:?}"
        );
        assert!(times.is_sorted() && times.iter().all(|time| *time > 0.0));
    }

    #[test]
    fn a_wrong_byte_fails_a_download() {
        let netns = NetNs::open("/proc/self/ns/net".as_ref()).unwrap();
        if !may_enter(&netns) {
            return;
        }
        let acceptor = Acceptor::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = acceptor.local_addr().unwrap();
        let wrong = || loop {
            if let Some((stream, _)) = acceptor.accept().unwrap() {
                stream.write(&[0, 1, 2, 4]).unwrap();
                return stream;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        std::thread::scope(|scope| {
            let server = scope.spawn(wrong);
            let error = download(&netns, address, 1, 4, LIMIT).unwrap_err();
            assert!(format!("{error:#}").contains("wrong bytes"), "{error:#}");
            drop(server.join());
        });
    }
}
