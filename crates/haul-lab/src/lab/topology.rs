//! Which hosts, devices, addresses and routes a scenario needs, as lines for `ip -batch`.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::scenario::{Scenario, Topology};

/// The addresses of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// IPv4.
    pub v4: Ipv4Addr,
    /// IPv6 address; only with an MTU of at least 1280.
    pub v6: Ipv6Addr,
}

/// RFC 8200 §5: no IPv6 on links with less.
pub(crate) const IPV6_MTU_MIN: u16 = 1280;

/// The device at each end of the path.
pub const WAN: &str = "wan";

/// A host's device towards its gateway.
pub(crate) const LAN: &str = "lan";

/// Packets that may wait for the emulator: 3 ms of single packets at 16 Gb/s. Were they all
/// super-packets, they would take 256 MiB.
const EMULATED_QUEUE_PACKETS: u32 = 4096;

/// The topology to create.
#[derive(Debug)]
pub(crate) struct Plan {
    /// In the order of the scenario's names.
    pub(crate) hosts: Vec<HostPlan>,
    /// Indices of the two hosts that the path joins.
    pub(crate) wan: [usize; 2],
    /// Veth pairs on the local sides.
    pub(crate) pairs: Vec<VethPair>,
}

#[derive(Debug)]
pub(crate) struct HostPlan {
    pub(crate) name: String,
    pub(crate) addresses: Addresses,
    /// Lines that bring up its devices, once they are there.
    pub(crate) batch: Vec<String>,
    /// Devices behind which something is emulated.
    pub(crate) emulated: Vec<String>,
    /// Devices that join arriving packets, so that a gateway forwards super-packets.
    pub(crate) gro_devices: Vec<String>,
    pub(crate) forwards: bool,
    /// A gateway's devices towards its hosts, with addresses of their own.
    pub(crate) links: Vec<(String, Addresses)>,
}

/// A veth pair between two hosts.
#[derive(Debug)]
pub(crate) struct VethPair {
    pub(crate) gateway: usize,
    pub(crate) gateway_device: String,
    pub(crate) host: usize,
    pub(crate) host_device: &'static str,
}

/// A subnet: IPv4 /24 and IPv6 /64.
#[derive(Clone, Copy)]
struct Subnet(u8);

impl Subnet {
    fn address(self, host: u8) -> Addresses {
        Addresses {
            v4: Ipv4Addr::new(10, 77, self.0, host),
            v6: Ipv6Addr::new(0xfd77, 0, 0, self.0.into(), 0, 0, 0, host.into()),
        }
    }
}

/// The path itself. The others are numbered from here: odd ones behind `ga`, even ones behind `gb`.
const WAN_SUBNET: Subnet = Subnet(0);

pub(crate) fn plan(scenario: &Scenario) -> Plan {
    match scenario.topology {
        Topology::Pair => pair(scenario),
        Topology::Gateways => gateways(scenario),
    }
}

fn pair(scenario: &Scenario) -> Plan {
    let hosts = ["a", "b"].into_iter().zip(1..).map(|(name, number)| {
        let mut host = HostPlan::new(name.into(), WAN_SUBNET.address(number), false);
        host.bring_up_emulated(scenario, WAN, WAN_SUBNET.address(number));
        host
    });
    Plan {
        hosts: hosts.collect(),
        wan: [0, 1],
        pairs: Vec::new(),
    }
}

fn gateways(scenario: &Scenario) -> Plan {
    let sides = usize::from(scenario.hosts_per_side);
    let names = scenario.host_names();
    let wan = [sides, sides + 1];
    let mut plan = Plan {
        hosts: Vec::new(),
        wan,
        pairs: Vec::new(),
    };
    for name in names {
        plan.hosts
            .push(HostPlan::new(name, WAN_SUBNET.address(0), false));
    }
    for (side, gateway) in wan.into_iter().enumerate() {
        let number = if side == 0 { 1 } else { 2 };
        let own = WAN_SUBNET.address(number);
        let far = WAN_SUBNET.address(3 - number);
        plan.hosts[gateway].forwards = true;
        plan.hosts[gateway].addresses = own;
        plan.hosts[gateway].bring_up_emulated(scenario, WAN, own);
        plan.hosts[gateway].default_route(scenario, far);
        for index in 0..sides {
            let host = if side == 0 { index } else { sides + 2 + index };
            plan.join(scenario, gateway, host, index, number);
        }
    }
    plan
}

impl Plan {
    /// A veth pair, its subnet, and the way out for the host.
    fn join(&mut self, scenario: &Scenario, gateway: usize, host: usize, index: usize, side: u8) {
        let offset = u8::try_from(index * 2).unwrap_or(u8::MAX - 2);
        let subnet = Subnet(offset + side);
        let (near, end) = (subnet.address(1), subnet.address(2));
        let device = format!("lan{}", index + 1);
        self.hosts[host].addresses = end;
        self.hosts[gateway].links.push((device.clone(), near));
        for (index, device, own) in [(gateway, device.as_str(), near), (host, LAN, end)] {
            let end = &mut self.hosts[index];
            if scenario.edge.is_some() {
                end.bring_up_emulated(scenario, device, own);
            } else {
                end.bring_up(scenario, device, own);
                end.gro_devices.push(device.into());
            }
        }
        self.hosts[host].default_route(scenario, near);
        self.pairs.push(VethPair {
            gateway,
            gateway_device: device,
            host,
            host_device: LAN,
        });
    }
}

impl HostPlan {
    fn new(name: String, addresses: Addresses, forwards: bool) -> Self {
        let batch = vec!["link set lo up".to_string()];
        Self {
            name,
            addresses,
            batch,
            emulated: Vec::new(),
            gro_devices: Vec::new(),
            forwards,
            links: Vec::new(),
        }
    }

    fn bring_up_emulated(&mut self, scenario: &Scenario, device: &str, own: Addresses) {
        self.emulated.push(device.into());
        self.batch.push(format!(
            "link set {device} txqueuelen {EMULATED_QUEUE_PACKETS}"
        ));
        if scenario.mtu >= IPV6_MTU_MIN {
            // Without a link-local address the kernel sends no traffic of its own over the path.
            self.batch
                .push(format!("link set {device} addrgenmode none"));
        }
        self.bring_up(scenario, device, own);
    }

    fn bring_up(&mut self, scenario: &Scenario, device: &str, own: Addresses) {
        let mtu = scenario.mtu;
        self.batch.push(format!("link set {device} mtu {mtu}"));
        if mtu >= IPV6_MTU_MIN {
            self.batch
                .push(format!("addr add {}/64 dev {device} nodad", own.v6));
        }
        self.batch
            .push(format!("addr add {}/24 dev {device}", own.v4));
        self.batch.push(format!("link set {device} up"));
    }

    fn default_route(&mut self, scenario: &Scenario, via: Addresses) {
        self.batch
            .push(format!("route add 0.0.0.0/0 via {}", via.v4));
        if scenario.mtu >= IPV6_MTU_MIN {
            self.batch.push(format!("route add ::/0 via {}", via.v6));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(text: &str) -> Plan {
        plan(&Scenario::parse("test", text).unwrap())
    }

    #[test]
    fn a_pair_shares_the_path_subnet() {
        let plan = planned("[path]\nrtt = \"1ms\"\nmtu = 9000");
        assert_eq!(plan.wan, [0, 1]);
        assert_eq!(plan.hosts[1].addresses.v4, Ipv4Addr::new(10, 77, 0, 2));
        assert!(
            plan.hosts[0]
                .batch
                .contains(&"link set wan mtu 9000".to_string())
        );
        assert!(
            plan.hosts[0]
                .batch
                .contains(&"addr add fd77::1/64 dev wan nodad".to_string())
        );
    }

    #[test]
    fn a_small_mtu_leaves_ipv6_out() {
        let plan = planned("[path]\nrtt = \"1ms\"\nmtu = 1000");
        assert!(
            plan.hosts[0]
                .batch
                .iter()
                .all(|line| !line.contains("fd77"))
        );
    }

    #[test]
    fn edges_are_emulated_where_they_are_asked_for() {
        let text = "topology = \"gateways\"\n[path]\nrtt = \"1ms\"\n";
        let devices = |text: &str| -> Vec<Vec<String>> {
            let hosts = planned(text).hosts.into_iter();
            hosts.map(|host| host.emulated).collect()
        };
        let path = [vec![], vec!["wan"], vec!["wan"], vec![]];
        assert_eq!(devices(text), path);
        let edges = [
            vec!["lan"],
            vec!["wan", "lan1"],
            vec!["wan", "lan1"],
            vec!["lan"],
        ];
        assert_eq!(devices(&format!("{text}[edge]\nrtt = \"2ms\"")), edges);
    }

    #[test]
    fn gateways_have_an_address_towards_each_host() {
        let plan = planned("topology = \"gateways\"\nhosts_per_side = 2\n[path]\nrtt = \"1ms\"");
        let links = |host: usize| -> Vec<String> {
            let links = plan.hosts[host].links.iter();
            links
                .map(|(device, addresses)| format!("{device} {}", addresses.v4))
                .collect()
        };
        assert_eq!(links(2), ["lan1 10.77.1.1", "lan2 10.77.3.1"]);
        assert_eq!(links(3), ["lan1 10.77.2.1", "lan2 10.77.4.1"]);
        assert!(links(0).is_empty());
    }

    #[test]
    fn every_host_has_an_address_and_a_cable_of_its_own() {
        let plan = planned("topology = \"gateways\"\nhosts_per_side = 100\n[path]\nrtt = \"1ms\"");
        assert_eq!(plan.hosts.len(), 202);
        assert_eq!(plan.pairs.len(), 200);
        let mut addresses: Vec<Ipv4Addr> =
            plan.hosts.iter().map(|host| host.addresses.v4).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), 202);
        assert_eq!(plan.hosts.iter().filter(|host| host.forwards).count(), 2);
    }
}
