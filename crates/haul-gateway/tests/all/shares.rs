//! Classes that share what a gateway sends.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "programs at the edges are like any others, rates are octets of real time, and what is not there fails the test"
)]

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{connect, exit_gateway, serve, start, wait_until};
use haul_gateway::Gateway;

/// Bytes that connections have brought.
#[derive(Clone, Default)]
struct Count(Arc<AtomicU64>);

impl Count {
    fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// A server that counts what it gets.
fn sink() -> (SocketAddr, Count) {
    let count = Count::default();
    let counter = count.clone();
    let address = serve(move |mut stream| {
        let mut octets = vec![0; 64 << 10];
        while let Ok(len @ 1..) = std::io::Read::read(&mut stream, &mut octets) {
            counter.0.fetch_add(len as u64, Ordering::AcqRel);
        }
    });
    (address, count)
}

/// Sends as much as there is room for, until the other end goes away.
fn flood(to: SocketAddr) {
    std::thread::spawn(move || {
        let mut stream = connect(to);
        let octets = vec![7; 64 << 10];
        while stream.write_all(&octets).is_ok() {}
    });
}

/// A gateway whose first listener leads to `rest` by a route of no class, and whose second leads to
/// `bulk` by one of class bulk.
fn sharing(far: &Gateway, rate: &str, mode: &str, rest: SocketAddr, bulk: SocketAddr) -> Gateway {
    let via = far.listen_addr().unwrap();
    let route = format!("via = ['{via}']\nring = '4MiB'\nchannels = ['tcp']\nmode = '{mode}'");
    let listener = "[[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:0'";
    start(&format!(
        "name = 'entry'\nanonymous = true\n{rate}\n[[class]]\nname = 'bulk'\nshare = 25\nrate = '40Mb/s'\n\
         {listener}\nto = '{rest}'\n{listener}\nto = '{bulk}'\n\
         [[route]]\nto = ['{rest}']\n{route}\n[[route]]\nto = ['{bulk}']\nclass = 'bulk'\n{route}\n"
    ))
    .0
}

#[test]
fn classes_that_flood_have_their_shares_of_the_rate() {
    for mode in ["pull", "push"] {
        let (far, _) = exit_gateway("");
        let ((rest, rest_count), (bulk, bulk_count)) = (sink(), sink());
        let near = sharing(&far, "rate = '80Mb/s'", mode, rest, bulk);
        near.listener_addrs().into_iter().for_each(flood);
        wait_until("both to flow", || {
            rest_count.get() > 0 && bulk_count.get() > 0
        });
        // Bytes before both were active do not count.
        std::thread::sleep(Duration::from_millis(300));
        let (begin, before) = (Instant::now(), (rest_count.get(), bulk_count.get()));
        wait_until("octets", || rest_count.get() - before.0 > 6_000_000);
        let (rest, bulk) = (rest_count.get() - before.0, bulk_count.get() - before.1);
        let rate = (rest + bulk) as f64 * 8.0 / begin.elapsed().as_secs_f64();
        // A busy machine may keep a class from asking in time; never does one get more than the
        // rate, or all of it.
        assert!(rate < 90e6, "{mode}: {rate} b/s");
        let share = bulk as f64 / (rest + bulk) as f64;
        assert!((0.1..0.4).contains(&share), "{mode}: bulk had {share}");
    }
}

#[test]
fn a_class_keeps_to_its_own_rate_where_there_is_no_other() {
    let (far, _) = exit_gateway("");
    let ((rest, _), (bulk, count)) = (sink(), sink());
    let near = sharing(&far, "", "pull", rest, bulk);
    let begin = Instant::now();
    flood(near.listener_addrs()[1]);
    wait_until("octets", || count.get() > 5_000_000);
    let rate = count.get() as f64 * 8.0 / begin.elapsed().as_secs_f64();
    assert!(rate < 44e6, "{rate} b/s");
}
