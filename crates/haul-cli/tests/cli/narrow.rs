//! Transfers across a router with a link whose MTU is lower than that of both ends. Everything is
//! in network namespaces that the test makes.

#[path = "../../../haul-io/tests/own_network/mod.rs"]
pub(crate) mod own_network;

#[path = "../common/host.rs"]
mod host;

use std::process::Command;
use std::time::{Duration, Instant};

use host::{Host, is_ok};

use crate::support::{
    Ended, MIB, Place, Server, haul, make_file, read_file, start, text, wait_until,
};

/// Where the far host listens.
const ADDRESSES: [&str; 2] = ["10.9.2.1", "[fd09:2::1]"];
/// No transfer here takes longer, with time for a loaded machine.
const LIMIT: Duration = Duration::from_secs(20);
/// That of the benches here.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);

#[test]
fn a_narrow_path_carries_transfers_with_icmp_and_without() {
    own_network::run_ignored("narrow::across_a_router", "true");
}

#[test]
#[ignore = "needs a namespace of its own; started by a_narrow_path_carries_transfers_with_icmp_and_without"]
fn across_a_router() {
    let Some(network) = Network::make() else {
        println!("SKIPPED: `ip`, `nft`, `nsenter` or the right to use them is missing");
        return;
    };
    for (case, filter) in [
        ("ICMP works", Filter::Nothing),
        ("ICMP filtered", Filter::Icmp),
        ("ICMP and fragments filtered", Filter::IcmpAndFragments),
    ] {
        for address in ADDRESSES {
            network.get(&format!("get, {case}, {address}"), address, filter);
            network.bench(&format!("bench, {case}, {address}"), address, filter);
            network.rdma(&format!("RDMA, {case}, {address}"), address, filter);
            for late in [false, true] {
                network.send(
                    &format!("{case}, {address}, late: {late}"),
                    address,
                    filter,
                    late,
                );
            }
        }
    }
    network.jumbo();
}

#[test]
fn what_is_in_flight_goes_on_where_the_path_narrows() {
    own_network::run_ignored("narrow::while_the_path_narrows", "true");
}

#[test]
#[ignore = "needs a namespace of its own; started by what_is_in_flight_goes_on_where_the_path_narrows"]
fn while_the_path_narrows() {
    let Some(network) = Network::make() else {
        println!("SKIPPED: `ip`, `nft`, `nsenter` or the right to use them is missing");
        return;
    };
    let [old, new] = ADDRESSES;
    for (case, address, filter) in [
        ("ICMP works", new, Filter::Nothing),
        ("ICMP filtered", old, Filter::Icmp),
    ] {
        network.late_get(&format!("get, {case}"), address, filter);
        network.late_bench(&format!("bench, {case}"), address, filter);
        network.late_rdma(&format!("RDMA, {case}"), address, filter);
    }
}

#[test]
fn a_bench_whose_datagrams_all_vanish_ends_with_its_peer_timeout() {
    own_network::run_ignored("narrow::where_the_path_loses_all_datagrams", "true");
}

#[test]
#[ignore = "needs a namespace of its own; started by a_bench_whose_datagrams_all_vanish_ends_with_its_peer_timeout"]
fn where_the_path_loses_all_datagrams() {
    let Some(network) = Network::make() else {
        println!("SKIPPED: `ip`, `nft`, `nsenter` or the right to use them is missing");
        return;
    };
    network.lose_datagrams();
}

/// What the network keeps from the ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Filter {
    Nothing,
    Icmp,
    IcmpAndFragments,
}

/// Memory to memory, a fixed number of bytes.
fn bench_args<'a>(to: &'a str, bytes: &'a str) -> [&'a str; 9] {
    let flags = [
        "--engine=udt",
        "--rate=40Mbit",
        "--peer-timeout=5s",
        "--json",
    ];
    let [engine, rate, timeout, json] = flags;
    [
        "bench", "run", to, engine, rate, timeout, json, "--bytes", bytes,
    ]
}

/// RDMA Writes of 64 KiB.
fn rdma_args<'a>(to: &'a str, count: &'a str) -> [&'a str; 9] {
    let flags = [
        "--channel=udt",
        "--max-rate=40Mbit",
        "--peer-timeout=5s",
        "--json",
    ];
    let [channel, rate, timeout, json] = flags;
    [
        "bench",
        "rdma",
        to,
        channel,
        rate,
        timeout,
        json,
        "--iterations",
        count,
    ]
}

struct Network {
    router: Host,
    far: Host,
}

impl Network {
    fn make() -> Option<Self> {
        let (router, far) = (Host::new()?, Host::new()?);
        // Before the host joins fragments; links cut what the socket gave as one.
        let chain = "nft add table inet filter
             nft 'add chain inet filter in { type filter hook prerouting priority -450; }'";
        let near = format!(
            "ip link add near type veth peer name left netns {}
             ip address add 10.9.1.1/24 dev near
             ip address add fd09:1::1/64 dev near nodad
             ip link set near up
             ip route add default via 10.9.1.254
             ip route add default via fd09:1::254
             ip link set near gso_max_segs 1
             {chain}",
            router.id()
        );
        let middle = format!(
            "ip link add right type veth peer name far netns {}
             ip address add 10.9.1.254/24 dev left
             ip address add fd09:1::254/64 dev left nodad
             ip address add 10.9.2.254/24 dev right
             ip address add fd09:2::254/64 dev right nodad
             ip link set left up
             ip link set right up
             echo 1 >/proc/sys/net/ipv4/ip_forward
             echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
             ip link set left gso_max_segs 1
             ip link set right gso_max_segs 1
             nft add table inet filter
             nft 'add chain inet filter out {{ type filter hook output priority 0; }}'",
            far.id()
        );
        let end = format!(
            "ip address add 10.9.2.1/24 dev far
             ip address add fd09:2::1/64 dev far nodad
             ip link set far up
             ip route add default via 10.9.2.254
             ip route add default via fd09:2::254
             ip link set far gso_max_segs 1
             {chain}"
        );
        let made =
            is_ok(Command::new("sh").args(["-ec", &near])) && router.run(&middle) && far.run(&end);
        made.then_some(Self { router, far })
    }

    /// Sets the MTUs of the link to this host and of the one behind the router, forgets what the
    /// ends have learnt, and filters.
    fn set(&self, (near, far): (u32, u32), filter: Filter) {
        let icmp = "nft add rule inet filter out icmp type destination-unreachable drop
             nft add rule inet filter out icmpv6 type packet-too-big drop";
        let icmp = if filter == Filter::Nothing { "" } else { icmp };
        assert!(self.router.run(&format!(
            "ip link set left mtu {near}
             ip link set right mtu {far}
             nft flush chain inet filter out
             {icmp}"
        )));
        let fragments = "nft add rule inet filter in ip frag-off \\& 0x3fff != 0 drop
             nft add rule inet filter in exthdr frag exists drop";
        let fragments = if filter == Filter::IcmpAndFragments {
            fragments
        } else {
            ""
        };
        let end = |device| {
            format!(
                "ip route flush cache
                 ip -6 route flush cache
                 ip link set {device} mtu {}
                 nft flush chain inet filter in
                 {fragments}",
                near.max(far).max(1_500)
            )
        };
        let near_set = is_ok(Command::new("sh").args(["-ec", &end("near")]));
        assert!(near_set && self.far.run(&end("far")));
    }

    fn serve(&self, args: &[&str], address: &str) -> Server {
        let program = self.far.command(env!("CARGO_BIN_EXE_haul"));
        let at = format!("{address}:0");
        let listen = ["--listen", &at, "--allow-insecure"];
        Server::spawn_as(program, args.iter().copied().chain(listen))
    }

    fn send(&self, case: &str, address: &str, filter: Filter, late: bool) {
        self.set((1_500, if late { 1_500 } else { 1_300 }), filter);
        let place = Place::new();
        let server = self.serve(&["serve", &text(&place.server(""))], address);
        // Long enough for a report of progress.
        let size = if late { 8 * MIB } else { 4 * MIB };
        let content = make_file(&place.client("a"), size, 1);
        let begun = Instant::now();
        let client = start([
            "send",
            "--json-stream",
            "--rate=40Mbit",
            "--peer-timeout=5s",
            &text(&place.client("a")),
            &server.at_address(address, ""),
        ]);
        if late {
            client.wait_for_bytes(1 << 20);
            assert!(self.router.run("ip link set right mtu 1300"));
        }
        let ended = client.end().ok();
        let took = begun.elapsed();
        println!("{case}: {:.2} s", took.as_secs_f64());
        assert!(read_file(&place.server("a")) == content, "{case}");
        assert!(!ended.stdout.contains("retry"), "{case}: {}", ended.stdout);
        assert!(took < LIMIT, "{case}: {took:?}");
    }

    fn get(&self, case: &str, address: &str, filter: Filter) {
        self.set((1_300, 1_500), filter);
        let place = Place::new();
        let server = self.serve(&["serve", &text(&place.server(""))], address);
        let content = make_file(&place.server("a"), 4 * MIB, 1);
        let begun = Instant::now();
        let into = text(&place.client(""));
        let from = server.at_address(address, "a");
        let ended = haul(["get", "--json-stream", &from, &into]).ok();
        assert!(!ended.stdout.contains("retry"), "{case}: {}", ended.stdout);
        println!("{case}: {:.2} s", begun.elapsed().as_secs_f64());
        assert!(read_file(&place.client("a")) == content, "{case}");
    }

    /// Memory to memory, over several connections.
    fn bench(&self, case: &str, address: &str, filter: Filter) {
        self.set((1_500, 1_300), filter);
        let server = self.serve(&["bench", "serve"], address);
        let to = format!("{address}:{}", server.port);
        let flags = [
            "--engine=udt",
            "--rate=100Mbit",
            "--streams=2",
            "--time=2s",
            "--json",
        ];
        let ended = haul(["bench", "run", &to].iter().chain(&flags)).ok().json();
        let bytes = ended["runs"][0]["bytes"].as_u64().unwrap();
        println!("{case}: {bytes} bytes");
        assert!(
            bytes > 10_000_000,
            "{case}: {bytes} bytes in 3 s at 100 Mb/s"
        );
    }

    /// RDMA over UDT, whose segments keep their size.
    fn rdma(&self, case: &str, address: &str, filter: Filter) {
        self.set((1_500, 1_300), filter);
        let server = self.serve(&["bench", "rdma", "serve", "--channel=udt"], address);
        let to = format!("{address}:{}", server.port);
        for op in ["write", "read"] {
            let begun = Instant::now();
            let flags = [
                "--op",
                op,
                "--sizes=65536..65536",
                "--iterations=50",
                "--verify",
                "--json",
            ];
            let flags = flags.iter().chain(&["--channel=udt"]);
            let json = haul(["bench", "rdma", &to].iter().chain(flags)).ok().json();
            println!("{case}, {op}: {:.2} s", begun.elapsed().as_secs_f64());
            assert_eq!(json["rows"][0]["bandwidth"]["iterations"], 50, "{case}");
        }
    }

    /// Starts a client, and once a MiB has passed changes what the router does; returns how the
    /// client ended, and how long after the change.
    fn midway(&self, case: &str, args: &[&str], change: &str) -> (Ended, Duration) {
        let before = self.moved();
        let mut client = start(args);
        wait_until("a MiB to pass", || self.moved() > before + (1 << 20));
        assert!(client.is_running(), "{case}");
        assert!(self.router.run(change));
        let changed = Instant::now();
        let ended = client.end();
        let took = changed.elapsed();
        println!("{case}: ended {:.2} s after the change", took.as_secs_f64());
        (ended, took)
    }

    /// As [`midway`](Self::midway), where the path becomes narrow and the client must get through.
    fn narrowed(&self, case: &str, args: &[&str]) -> Ended {
        let change = "ip link set left mtu 1300; ip link set right mtu 1300";
        let (ended, took) = self.midway(case, args, change);
        assert!(took < LIMIT, "{case}: {took:?}");
        ended.ok()
    }

    fn late_get(&self, case: &str, address: &str, filter: Filter) {
        self.set((1_500, 1_500), filter);
        let place = Place::new();
        let server = self.serve(&["serve", &text(&place.server(""))], address);
        let content = make_file(&place.server("a"), 4 * MIB, 1);
        let (from, into) = (server.at_address(address, "a"), text(&place.client("")));
        let flags = ["--json-stream", "--rate=40Mbit", "--peer-timeout=5s"];
        let args = ["get", &from, &into].into_iter().chain(flags);
        let ended = self.narrowed(case, &args.collect::<Vec<_>>());
        assert!(read_file(&place.client("a")) == content, "{case}");
        assert!(!ended.stdout.contains("retry"), "{case}: {}", ended.stdout);
    }

    fn late_bench(&self, case: &str, address: &str, filter: Filter) {
        self.set((1_500, 1_500), filter);
        let server = self.serve(&["bench", "serve"], address);
        let to = format!("{address}:{}", server.port);
        let args = bench_args(&to, "4MiB");
        let ended = self.narrowed(case, &args);
        let moved = ended.json()["runs"][0]["bytes"].as_u64();
        assert_eq!(moved, Some(4 << 20), "{case}");
    }

    fn late_rdma(&self, case: &str, address: &str, filter: Filter) {
        self.set((1_500, 1_500), filter);
        let server = self.serve(&["bench", "rdma", "serve", "--channel=udt"], address);
        let to = format!("{address}:{}", server.port);
        let ended = self.narrowed(case, &rdma_args(&to, "25"));
        let moved = &ended.json()["rows"][0]["bandwidth"]["iterations"];
        assert_eq!(*moved, 25, "{case}");
    }

    /// Nothing of UDP passes from some moment on, and all of TCP.
    fn lose_datagrams(&self) {
        let address = ADDRESSES[0];
        self.set((1_500, 1_500), Filter::Nothing);
        assert!(
            self.router.run(
                "nft 'add chain inet filter through { type filter hook forward priority 0; }'"
            )
        );
        let lose = "nft add rule inet filter through meta l4proto udp drop";
        let serve: [&[&str]; 2] = [
            &["bench", "serve"],
            &["bench", "rdma", "serve", "--channel=udt"],
        ];
        for (serve, case) in serve.into_iter().zip(["bench", "RDMA"]) {
            let server = self.serve(serve, address);
            let to = format!("{address}:{}", server.port);
            let args = match case {
                "bench" => bench_args(&to, "1GiB"),
                _ => rdma_args(&to, "10000"),
            };
            let (ended, took) = self.midway(case, &args, lose);
            println!("{case}: {}", ended.stderr);
            ended.failed_somehow("");
            assert!(took > PEER_TIMEOUT * 4 / 5, "{case}: {took:?}");
            // Three seconds for a loaded machine.
            assert!(
                took < PEER_TIMEOUT + Duration::from_secs(3),
                "{case}: {took:?}"
            );
            assert!(self.router.run("nft flush chain inet filter through"));
        }
    }

    /// Long packets where all links carry them, and short ones where the one behind the router does
    /// not.
    fn jumbo(&self) {
        for (far, most) in [(9_000, 9_000), (1_500, 1_500)] {
            self.set((9_000, far), Filter::IcmpAndFragments);
            for address in ADDRESSES {
                let case = format!("jumbo, {far}, {address}");
                let place = Place::new();
                let server = self.serve(&["serve", &text(&place.server(""))], address);
                let content = make_file(&place.client("a"), 4 * MIB, 1);
                let before = self.received();
                let from = text(&place.client("a"));
                // Slow enough that the answer to the probes comes before most of it has left.
                let to = server.at_address(address, "");
                haul(["send", "--rate=100Mbit", &from, &to]).ok();
                let after = self.received();
                assert!(read_file(&place.server("a")) == content, "{case}");
                let mean = (after.0 - before.0) / (after.1 - before.1);
                println!("{case}: packets of {mean} bytes");
                assert!(mean > most * 3 / 4 && mean <= most + 14, "{case}: {mean}");
            }
        }
    }

    /// Bytes and packets that have come to the far host, each packet as long as it was on the wire.
    fn received(&self) -> (u64, u64) {
        let counts = self.counts();
        (counts[0], counts[1])
    }

    /// Bytes that have come to the far host or left it.
    fn moved(&self) -> u64 {
        let counts = self.counts();
        counts[0] + counts[8]
    }

    /// The counts of the far host's device in `/proc/net/dev`.
    fn counts(&self) -> Vec<u64> {
        let output = self.far.command("cat").arg("/proc/net/dev").output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        let line = text.split("far:").nth(1).unwrap().lines().next().unwrap();
        let counts = line.split_whitespace().map(|count| count.parse().unwrap());
        counts.collect()
    }
}
