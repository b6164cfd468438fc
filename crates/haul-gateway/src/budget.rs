//! The memory that a gateway can take at most, computed from its configuration.

use serde::Serialize;

use crate::channel::lane_bytes;
use crate::config::{ChannelKind, Config, ListenerKind, Route};
use crate::inbound::pending_bytes;
use crate::listener::CLIENT_MEMORY;
use crate::session::{LANES_MAX, Shape};

/// The share of the configured memory that one kind of session takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Budget {
    /// Which sessions: "of the route to …", "that ends here", "that passes through".
    pub what: String,
    /// Bytes that each session takes, whatever it carries.
    pub bytes: u64,
    /// Further bytes for the data channels of the kind that takes most.
    pub channel_bytes: u64,
    /// How many such sessions fit alone: with the largest channels, and with channels that take
    /// nothing.
    pub fit: [u64; 2],
}

/// The share of the configured memory that applications' RDMA connections take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RdmaBudget {
    /// Bytes that each connection takes.
    pub bytes: u64,
    /// Most connections at a time.
    pub connections: u16,
}

/// The memory plan of a gateway, bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryPlan {
    /// The configured memory, which all sessions share.
    pub memory: u64,
    /// What each kind of session takes of it.
    pub sessions: Vec<Budget>,
    /// What applications' RDMA connections take of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdma: Option<RdmaBudget>,
    /// Beside it: for peers that have not authenticated.
    #[serde(rename = "strangers")]
    pub unauthenticated: u64,
    /// Beside it: for clients of all listeners that have not named their destination.
    pub clients: u64,
}

impl Config {
    /// Computes the memory plan of a gateway with this configuration.
    #[must_use]
    pub fn memory_plan(&self) -> MemoryPlan {
        let memory = self.memory.0;
        let budget = |what: String, bytes: u64, channel_bytes: u64| Budget {
            what,
            bytes,
            channel_bytes,
            fit: [
                memory / (bytes + channel_bytes).max(1),
                memory / bytes.max(1),
            ],
        };
        let mut sessions = Vec::new();
        for route in &self.routes {
            let to: Vec<String> = route.to.iter().map(ToString::to_string).collect();
            let what = format!("of the route to {}", to.join(", "));
            let bytes = Shape::of_route(self, route).bytes(true);
            sessions.push(budget(what, bytes, channel_bytes(route)));
        }
        if self.listen.is_some() {
            let inbound = Shape::of_incoming(self);
            let kinds = self.channels.iter().map(|channel| channel.kind);
            // The peer chooses the number of streams.
            let near = most_bytes(kinds, LANES_MAX);
            if self.has_exit() {
                sessions.push(budget(
                    "that ends here".to_owned(),
                    inbound.bytes(true),
                    near,
                ));
            }
            if !self.next.is_empty() {
                let far = lane_bytes(ChannelKind::Udt) * u64::from(LANES_MAX);
                let what = "that passes through".to_owned();
                sessions.push(budget(what, inbound.bytes(false), near + far));
            }
        }
        let says_where = |kind| matches!(kind, ListenerKind::Socks5 | ListenerKind::Http);
        let listeners = self
            .listeners
            .iter()
            .filter(|listener| says_where(listener.kind));
        MemoryPlan {
            memory,
            sessions,
            rdma: self.rdma.as_ref().map(|rdma| RdmaBudget {
                bytes: rdma.plan().bytes() as u64,
                connections: rdma.connections,
            }),
            unauthenticated: pending_bytes(self),
            clients: listeners.count() as u64 * CLIENT_MEMORY,
        }
    }
}

/// Returns the bytes that the data channels of a route's session take beside its ring and its
/// arena.
pub(crate) fn channel_bytes(route: &Route) -> u64 {
    let ways = route.ways().into_iter();
    let kinds = ways.flat_map(|way| route.first_channels(way));
    most_bytes(kinds.copied(), route.streams.min(LANES_MAX))
}

fn most_bytes(kinds: impl Iterator<Item = ChannelKind>, lanes: u16) -> u64 {
    kinds.map(lane_bytes).max().unwrap_or(0) * u64::from(lanes)
}

impl MemoryPlan {
    /// Describes the plan, one line for each item.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let mut lines = Vec::new();
        for budget in &self.sessions {
            let [least, most] = budget.fit;
            let channel = match mib(budget.channel_bytes) {
                0 => String::new(),
                channel => format!(", and up to {channel} MiB for channels of kind udt"),
            };
            let fit = match least == most {
                true => most.to_string(),
                false => format!("{least} to {most}"),
            };
            let (what, bytes) = (&budget.what, mib(budget.bytes));
            lines.push(format!(
                "a session {what} takes {bytes} MiB of them{channel}; {fit} fit"
            ));
        }
        if let Some(RdmaBudget { bytes, connections }) = self.rdma {
            let mib = mib(bytes);
            lines.push(format!(
                "an RDMA connection of an application takes {mib} MiB of them; there are {connections} at most"
            ));
        }
        let beside = [
            (self.unauthenticated, "peers that have not authenticated"),
            (self.clients, "clients that have not named a destination"),
        ];
        let beside: Vec<String> = beside
            .iter()
            .filter(|(bytes, _)| *bytes > 0)
            .map(|(bytes, whom)| format!("{} MiB for {whom}", mib(*bytes)))
            .collect();
        if !beside.is_empty() {
            lines.push(format!("beside them at most {}", beside.join(", ")));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> MemoryPlan {
        Config::parse(&format!("name = 'g'\nanonymous = true\n{text}"))
            .unwrap()
            .memory_plan()
    }

    const ROUTE: &str = "[[route]]\nto = ['*']\nvia = ['192.0.2.1:7400']\n";

    #[test]
    fn what_a_route_takes_is_its_ring_twice_and_its_streams_of_udt() {
        let plain = plan(ROUTE);
        let [route] = &plain.sessions[..] else {
            panic!("{plain:?}");
        };
        assert_eq!((route.bytes, route.channel_bytes), (128 << 20, 0));
        assert_eq!(route.fit, [8, 8]);
        assert_eq!((plain.unauthenticated, plain.clients), (0, 0));
        let udt = plan(&format!("{ROUTE}channels = ['tcp', 'udt']\nstreams = 3"));
        let stream = lane_bytes(ChannelKind::Udt);
        // The windows of both directions.
        assert!((32 << 20..34 << 20).contains(&stream), "{stream}");
        assert_eq!(udt.sessions[0].channel_bytes, 3 * stream);
        assert_eq!(udt.sessions[0].fit, [4, 8]);
        let segment = "[[route]]\nto = ['*']\nvia = [{ gateway = 'g:1', channels = ['udt'] }]\n";
        assert_eq!(plan(segment).sessions[0].channel_bytes, stream);
    }

    #[test]
    fn peers_choose_how_many_streams_and_pending_ones_have_a_limit() {
        let listen = "listen = '127.0.0.1:1'\nexit = ['192.0.2.1']\nnext = ['192.0.2.2']\n";
        let channel = |kind| format!("[[channel]]\nkind = '{kind}'\nlisten = '127.0.0.1:2'\n");
        let tcp = plan(&(listen.to_owned() + &channel("tcp")));
        let udt = plan(&(listen.to_owned() + &channel("udt")));
        let streams = 16 * lane_bytes(ChannelKind::Udt);
        let bytes = |plan: &MemoryPlan| {
            let bytes = |budget: &Budget| (budget.bytes >> 20, budget.channel_bytes);
            plan.sessions.iter().map(bytes).collect::<Vec<_>>()
        };
        // The other segment may use udt though this gateway does not listen for it.
        assert_eq!(bytes(&tcp), [(128, 0), (128, streams)]);
        assert_eq!(bytes(&udt), [(128, streams), (128, 2 * streams)]);
        let more = udt.unauthenticated - tcp.unauthenticated;
        assert!((1..64 << 20).contains(&more), "{more}");
    }

    #[test]
    fn everything_is_said() {
        let listener = "[[listener]]\nkind = 'socks5'\nlisten = '127.0.0.1:3'\n";
        let told = plan(&format!(
            "listen = '127.0.0.1:1'\nexit = ['192.0.2.1']\n[[channel]]\nkind = 'udt'\nlisten = '127.0.0.1:2'\n{listener}{ROUTE}"
        ));
        let lines = told.lines();
        let starts = [
            "a session of the route to * takes 128 MiB of them; 8 fit",
            "a session that ends here takes 128 MiB of them, and up to 520 MiB for channels of kind udt; 1 to 8 fit",
            "beside them at most ",
        ];
        assert_eq!(lines.len(), starts.len(), "{lines:#?}");
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}");
        }
    }
}
