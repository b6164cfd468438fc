//! Measures the cost of a gateway's edge by each method of Linux: `edge_copies [MIB [ROUNDS]]`
//! moves MIB (4096) through loopback TCP by each, in turns, ROUNDS (5) times, and prints the median
//! of the processor time of the thread that has the edge, user and system, seconds for 10^9 bytes,
//! with the least and the most.
//!
//! The slab is a ring of 64 MiB in user memory, which must have the bytes: a checksum is computed
//! over it, a device reads it. `in`: a program's bytes come into it. `out`: they leave it for a
//! program. `through`: both, in one thread; by splice they never are in user memory. The program's
//! side costs as little as it can: it sends pages that the kernel has (sendfile) and drops what
//! comes (`MSG_TRUNC`), but for the lines about places within a page, where both ends copy.

#![expect(clippy::print_stdout, reason = "the result of the measurement")]
#![expect(clippy::disallowed_types, reason = "it measures sockets as they are")]

use std::error::Error;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;

use haul_io::clock::thread_cpu;
use haul_io::stream;
use haul_io::zero_copy::{Pipe, ZeroCopy};
use haul_slab::Region;
use rustix::pipe::{SpliceFlags, fcntl_setpipe_size, splice};

/// Bytes of the slabs.
const RING: usize = 64 << 20;
/// Bytes of a call, as an edge makes it.
const CALL: usize = 256 << 10;
/// Memory that a notification of `MSG_ZEROCOPY` is waited for, in calls.
const OUTSTANDING: u32 = 16;

/// Processor time of the edge's thread, and of both ends, s for 10^9 bytes.
type Outcome = Result<[f64; 2], Box<dyn Error + Send + Sync>>;

#[derive(Debug, Clone, Copy)]
enum Way {
    /// `recv` into the ring: what an edge does.
    InRecv,
    /// Into a pipe by `splice`, from there into the ring by `read`.
    InSpliceRead,
    /// `send` from the ring: what an edge does.
    OutSend,
    /// `vmsplice` from the ring into a pipe, `splice` from there.
    OutVmsplice,
    /// `send` with `MSG_ZEROCOPY`, waiting for notifications.
    OutZeroCopy,
    /// `recv` and `send`, by the ring.
    ThroughCopy,
    /// `splice`, by a pipe.
    ThroughSplice,
    /// `recv` to a place so many bytes from that of the sender within a page.
    InPlace(usize),
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut words = std::env::args().skip(1);
    let mut number = |default: u64| words.next().map_or(Ok(default), |word| word.parse());
    let (mebibytes, rounds) = (number(4096)?, number(5)?);
    let bytes = mebibytes << 20;
    let mut ways = vec![
        ("in, recv into the slab", Way::InRecv),
        ("in, splice to a pipe and read", Way::InSpliceRead),
        ("out, send from the slab", Way::OutSend),
        ("out, vmsplice from the slab", Way::OutVmsplice),
        ("out, MSG_ZEROCOPY from the slab", Way::OutZeroCopy),
        ("through the slab, recv and send", Way::ThroughCopy),
        ("through a pipe, splice (no slab)", Way::ThroughSplice),
    ];
    let places = [0, 1, 4, 8, 15, 16, 24, 64, 1024, 2048, 4088, 4095];
    let names = places.map(|place| format!("in, recv {place} octets off within a page"));
    ways.extend(
        names
            .iter()
            .zip(places)
            .map(|(name, place)| (name.as_str(), Way::InPlace(place))),
    );
    let file = content()?;
    let mut found = vec![Vec::new(); ways.len()];
    for _ in 0..rounds {
        for ((_, way), found) in ways.iter().zip(&mut found) {
            found.push(measure(*way, bytes, &file)?);
        }
    }
    println!(
        "{:<40} {:>8} {:>8} {:>8} {:>10}",
        "s for 10^9 octets", "edge", "least", "most", "both ends"
    );
    for ((name, _), found) in ways.into_iter().zip(found) {
        let sorted = |which: usize| {
            let mut values: Vec<f64> = found.iter().map(|taken: &[f64; 2]| taken[which]).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let (edge, all) = (sorted(0), sorted(1));
        let middle = edge.len() / 2;
        let (Some(least), Some(most)) = (edge.first(), edge.last()) else {
            return Err("no rounds".into());
        };
        println!(
            "{name:<40} {:>8.4} {least:>8.4} {most:>8.4} {:>10.4}",
            edge[middle], all[middle]
        );
    }
    Ok(())
}

/// Pages that the kernel has, for the program's side.
fn content() -> io::Result<File> {
    let path = Path::new("/dev/shm").join(format!("edge_copies.{}", std::process::id()));
    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    for _ in 0..RING / CALL {
        file.write_all(&[1; CALL])?;
    }
    Ok(file)
}

fn measure(way: Way, bytes: u64, file: &File) -> Outcome {
    let (edge, program) = haul_io::tcp::pair()?;
    let feeds = !matches!(way, Way::OutSend | Way::OutVmsplice | Way::OutZeroCopy);
    std::thread::scope(|scope| {
        let copies = matches!(way, Way::InPlace(_));
        let fed = feeds.then(|| {
            scope.spawn(move || {
                if copies {
                    feed_by_copy(&program, bytes)?;
                } else {
                    feed(&program, bytes, file)?;
                }
                thread_cpu()
            })
        });
        let is_through = matches!(way, Way::ThroughCopy | Way::ThroughSplice);
        let drained = (is_through || !feeds)
            .then(haul_io::tcp::pair)
            .transpose()?;
        let (out, far) = drained.unzip();
        let drained = far.map(|far| {
            scope.spawn(move || {
                drop_all(&far)?;
                thread_cpu()
            })
        });
        let worker = scope.spawn(move || work(way, bytes, &edge, out.as_ref()));
        let taken = worker.join().map_err(|_| "the edge panicked")??;
        let mut all = taken;
        for thread in fed.into_iter().chain(drained) {
            let program = thread.join().map_err(|_| "the program panicked")??;
            all += program.total_ns() as f64 / bytes as f64;
        }
        Ok([taken, all])
    })
}

fn feed(stream: &TcpStream, bytes: u64, file: &File) -> io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        let len = left.min(RING as u64);
        haul_io::tcp::send_file(stream, file.as_fd(), 0, len)?;
        left -= len;
    }
    Ok(())
}

/// From the beginning of a page to the beginning of a page of the kernel's, for all lengths are of
/// whole pages.
fn feed_by_copy(mut stream: &TcpStream, bytes: u64) -> io::Result<()> {
    let memory = Region::map(CALL)?;
    memory.write(0, &vec![1; CALL]).map_err(io::Error::other)?;
    let mut left = bytes;
    while left > 0 {
        let range = memory.gather(0, CALL).map_err(io::Error::other)?;
        let sent = blocking(|| stream::send(stream, &[range], false), stream, true)?;
        // A call that was cut short would move what follows within the kernel's pages.
        if sent < CALL {
            stream.write_all(&vec![1; CALL - sent])?;
        }
        left = left.saturating_sub(CALL as u64);
    }
    stream.flush()
}

fn drop_all(stream: &TcpStream) -> io::Result<()> {
    loop {
        // SAFETY: with MSG_TRUNC nothing is written.
        let count = unsafe {
            libc::recv(
                stream.as_raw_fd(),
                std::ptr::null_mut(),
                RING,
                libc::MSG_TRUNC,
            )
        };
        match count {
            0 => return Ok(()),
            1.. => {}
            _ => return Err(io::Error::last_os_error()),
        }
    }
}

/// Calls that never wait, for a socket that does.
fn blocking(
    mut call: impl FnMut() -> io::Result<usize>,
    stream: &TcpStream,
    writes: bool,
) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let wanted = if writes { libc::POLLOUT } else { libc::POLLIN };
                let mut fd = libc::pollfd {
                    fd: stream.as_raw_fd(),
                    events: wanted,
                    revents: 0,
                };
                // SAFETY: one entry, which is ours.
                unsafe { libc::poll(&raw mut fd, 1, -1) };
            }
            result => return result,
        }
    }
}

/// Processor time of this thread, seconds for 10^9 bytes.
fn work(
    way: Way,
    bytes: u64,
    edge: &TcpStream,
    out: Option<&TcpStream>,
) -> Result<f64, Box<dyn Error + Send + Sync>> {
    let place = match way {
        Way::InPlace(place) => place,
        _ => 0,
    };
    let ring = Region::map(RING + 4096)?;
    ring.write(0, &vec![1; RING + 4096])?;
    let pipe = Pipe::new()?;
    let mut zero_copy = match (way, out) {
        (Way::OutZeroCopy, Some(out)) => Some(ZeroCopy::new(out)?),
        _ => None,
    };
    let plain: &[u8] = {
        // SAFETY: the ring is not written while the methods that use this send it.
        unsafe { std::slice::from_raw_parts(ring.as_ptr(), RING) }
    };
    let (mut from, into) = io::pipe()?;
    fcntl_setpipe_size(&into, CALL)?;
    let mut copy = vec![1; RING];
    let before = thread_cpu()?;
    let bytes = usize::try_from(bytes)?;
    let mut done = 0;
    while done < bytes {
        let at = done % RING;
        let len = CALL.min(RING - at).min(bytes - done);
        let count = match (way, out) {
            (Way::InRecv | Way::InPlace(_), _) => receive(&ring, at + place, len, edge)?,
            (Way::InSpliceRead, _) => {
                let flags = SpliceFlags::MOVE;
                let count = splice(edge, None, &into, None, len, flags)?;
                from.read_exact(&mut copy[at..at + count])?;
                count
            }
            (Way::OutSend, Some(out)) => send(&ring, at, len, out)?,
            (Way::OutVmsplice, Some(out)) => {
                pipe.send_memory(out, &plain[at..at + len])?;
                len
            }
            (Way::OutZeroCopy, _) => {
                let zero_copy = zero_copy.as_mut().ok_or("no socket")?;
                zero_copy.send_all(&plain[at..at + len], OUTSTANDING)?;
                len
            }
            (Way::ThroughCopy, Some(out)) => {
                let count = receive(&ring, at, len, edge)?;
                let mut sent = 0;
                while sent < count {
                    sent += send(&ring, at + sent, count - sent, out)?;
                }
                count
            }
            (Way::ThroughSplice, Some(out)) => pipe.receive(edge, out.as_fd(), None, len)?,
            (_, None) => return Err("no socket to send to".into()),
        };
        if count == 0 {
            return Err("the program ended too early".into());
        }
        done += count;
    }
    Ok(thread_cpu()?.since(before).total_ns() as f64 / bytes as f64)
}

fn receive(ring: &Region, at: usize, len: usize, edge: &TcpStream) -> io::Result<usize> {
    blocking(
        || {
            let range = ring.scatter(at, len).map_err(io::Error::other)?;
            stream::receive(edge, &mut [range])
        },
        edge,
        false,
    )
}

fn send(ring: &Region, at: usize, len: usize, out: &TcpStream) -> io::Result<usize> {
    blocking(
        || {
            let range = ring.gather(at, len).map_err(io::Error::other)?;
            stream::send(out, &[range], false)
        },
        out,
        true,
    )
}
