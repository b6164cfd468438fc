//! Transfers across a router whose link towards the receiver has an MTU of 1,300 bytes, while both
//! ends' links have 1,500. Everything is in network namespaces that the test makes.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{MIB, Place, Server, haul, make_file, read_file, start, text};

/// No transfer here takes longer, with time for a loaded machine.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_narrow_path_carries_transfers_with_icmp_and_without() {
    let made = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "narrow::across_a_router"])
        .args(["--nocapture"])
        .output();
    let Ok(output) = made else {
        println!("SKIPPED: no `unshare` command (Debian package util-linux)");
        return;
    };
    let (errors, report) = (
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout),
    );
    if errors.contains("unshare:") || report.contains("SKIPPED") {
        println!("SKIPPED: cannot make network namespaces here: {errors}{report}");
        return;
    }
    assert!(
        output.status.success() && report.contains("1 passed"),
        "{report}{errors}"
    );
    print!("{report}");
}

#[test]
#[ignore = "needs a namespace of its own; started by a_narrow_path_carries_transfers_with_icmp_and_without"]
fn across_a_router() {
    let Some(network) = Network::make() else {
        println!("SKIPPED: `ip`, `nft`, `nsenter` or the right to use them is missing");
        return;
    };
    for (case, icmp, late) in [
        ("ICMP works", true, false),
        ("ICMP works, narrowed in mid-transfer", true, true),
        ("ICMP filtered", false, false),
        ("ICMP filtered, narrowed in mid-transfer", false, true),
    ] {
        // Without ICMP no sender learns that an IPv6 path is narrow, and routers do not fragment.
        let addresses = ["10.9.2.1", "[fd09:2::1]"];
        for address in addresses.into_iter().take(1 + usize::from(icmp)) {
            network.send(&format!("{case}, {address}"), address, icmp, late);
        }
    }
    network.get("ICMP filtered, get", "10.9.2.1");
}

/// A network namespace that lives as long as the process that holds it.
struct Host(Child);

impl Host {
    fn new() -> Option<Self> {
        let child = Command::new("unshare")
            .args(["--net", "sleep", "600"])
            .stdin(Stdio::null())
            .spawn()
            .ok()?;
        let host = Self(child);
        let own = std::fs::read_link("/proc/self/ns/net").ok()?;
        let until = Instant::now() + Duration::from_secs(5);
        while std::fs::read_link(host.path()).ok()? == own {
            if Instant::now() > until {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        host.run("ip link set lo up").then_some(host)
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    fn command(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path()));
        command
    }

    /// Runs lines of shell; whether all of them succeeded.
    fn run(&self, lines: &str) -> bool {
        is_ok(self.command().args(["sh", "-ec", lines]))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_ok(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

struct Network {
    router: Host,
    far: Host,
}

impl Network {
    fn make() -> Option<Self> {
        let (router, far) = (Host::new()?, Host::new()?);
        let near = format!(
            "ip link add near type veth peer name left netns {}
             ip address add 10.9.1.1/24 dev near
             ip address add fd09:1::1/64 dev near nodad
             ip link set near up
             ip route add default via 10.9.1.254
             ip route add default via fd09:1::254",
            router.0.id()
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
             nft add table inet filter
             nft 'add chain inet filter out {{ type filter hook output priority 0; }}'",
            far.0.id()
        );
        let end = "ip address add 10.9.2.1/24 dev far
             ip address add fd09:2::1/64 dev far nodad
             ip link set far up
             ip route add default via 10.9.2.254
             ip route add default via fd09:2::254";
        let made =
            is_ok(Command::new("sh").args(["-ec", &near])) && router.run(&middle) && far.run(end);
        made.then_some(Self { router, far })
    }

    /// Sets the router's MTUs, forgets what the ends have learnt, and lets ICMP pass or not.
    fn set(&self, device: &str, mtu: u32, icmp: bool) {
        let (drop4, drop6) = (
            "icmp type destination-unreachable",
            "icmpv6 type packet-too-big",
        );
        let filter = match icmp {
            true => String::new(),
            false => format!(
                "nft add rule inet filter out {drop4} drop
                 nft add rule inet filter out {drop6} drop"
            ),
        };
        assert!(self.router.run(&format!(
            "ip link set left mtu 1500
             ip link set right mtu 1500
             ip link set {device} mtu {mtu}
             nft flush chain inet filter out
             {filter}"
        )));
        let forget = "ip route flush cache; ip -6 route flush cache";
        assert!(is_ok(Command::new("sh").args(["-ec", forget])) && self.far.run(forget));
    }

    fn serve(&self, dir: &Path, address: &str) -> Server {
        let mut program = self.far.command();
        program.arg(env!("CARGO_BIN_EXE_haul"));
        let at = format!("{address}:0");
        let listen = ["--listen", &at, "--allow-insecure"];
        Server::spawn_as(program, ["serve", &text(dir)].into_iter().chain(listen))
    }

    fn send(&self, case: &str, address: &str, icmp: bool, late: bool) {
        self.set("right", if late { 1_500 } else { 1_300 }, icmp);
        let place = Place::new();
        let server = self.serve(&place.server(""), address);
        let content = make_file(&place.client("a"), 8 * MIB, 1);
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
            client.wait_for_bytes(2 << 20);
            assert!(self.router.run("ip link set right mtu 1300"));
        }
        let ended = client.end().ok();
        let took = begun.elapsed();
        println!("{case}: {:.2} s", took.as_secs_f64());
        assert!(read_file(&place.server("a")) == content, "{case}");
        assert!(!ended.stdout.contains("retry"), "{case}: {}", ended.stdout);
        assert!(took < LIMIT, "{case}: {took:?}");
    }

    fn get(&self, case: &str, address: &str) {
        self.set("left", 1_300, false);
        let place = Place::new();
        let server = self.serve(&place.server(""), address);
        let content = make_file(&place.server("a"), 8 * MIB, 1);
        let begun = Instant::now();
        let into = text(&place.client(""));
        haul(["get", &server.at_address(address, "a"), &into]).ok();
        println!("{case}: {:.2} s", begun.elapsed().as_secs_f64());
        assert!(read_file(&place.client("a")) == content, "{case}");
    }
}
