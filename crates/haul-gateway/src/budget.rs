//! What a gateway holds memory for, and how much of it at most: known from its configuration,
//! before anything comes in.

use serde::Serialize;

use crate::channel::lane_bytes;
use crate::config::{ChannelKind, Config, ListenerKind, Route};
use crate::inbound::pending_bytes;
use crate::listener::CLIENT_MEMORY;
use crate::session::{LANES_MAX, Shape};

/// What sessions of a kind take of the configured memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Budget {
    /// Which: "of the route to …", "that ends here", "that passes through".
    pub what: String,
    /// Octets that each takes, whatever it carries.
    pub bytes: u64,
    /// Octets that its data channels take beside that, where they are of the kind that takes most.
    pub channel_bytes: u64,
    /// So many of them fit, if there are no others: with the channels that take most, and with
    /// those that take nothing.
    pub fit: [u64; 2],
}

/// What RDMA connections of applications take of the configured memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RdmaBudget {
    /// Octets that each takes.
    pub bytes: u64,
    /// So many there may be.
    pub connections: u16,
}

/// What a gateway may take, octets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryPlan {
    /// The configured memory: what sessions take comes out of it.
    pub memory: u64,
    /// What each session takes.
    pub sessions: Vec<Budget>,
    /// What RDMA connections of applications take of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdma: Option<RdmaBudget>,
    /// Beside it, for connections of others that have not shown who they are.
    pub strangers: u64,
    /// Beside it, for clients at all listeners that have not said where they want to go.
    pub clients: u64,
}

impl Config {
    /// What a gateway with this configuration may take.
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
            let guests = Shape::of_incoming(self);
            let kinds = self.channels.iter().map(|channel| channel.kind);
            // How many streams is the peer's choice.
            let near = most_bytes(kinds, LANES_MAX);
            if self.has_exit() {
                sessions.push(budget(
                    "that ends here".to_owned(),
                    guests.bytes(true),
                    near,
                ));
            }
            if !self.next.is_empty() {
                let far = lane_bytes(ChannelKind::Udt) * u64::from(LANES_MAX);
                let what = "that passes through".to_owned();
                sessions.push(budget(what, guests.bytes(false), near + far));
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
            strangers: pending_bytes(self),
            clients: listeners.count() as u64 * CLIENT_MEMORY,
        }
    }
}

/// Octets that the data channels of a route's session may take beside its ring and its arena.
pub(crate) fn channel_bytes(route: &Route) -> u64 {
    let ways = route.ways().into_iter();
    let kinds = ways.flat_map(|way| route.first_channels(way));
    most_bytes(kinds.copied(), route.streams.min(LANES_MAX))
}

fn most_bytes(kinds: impl Iterator<Item = ChannelKind>, lanes: u16) -> u64 {
    kinds.map(lane_bytes).max().unwrap_or(0) * u64::from(lanes)
}

impl MemoryPlan {
    /// The same for people, a line for each thing.
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
            (self.strangers, "who have not shown who they are"),
            (self.clients, "at listeners who have not said where to"),
        ];
        let beside: Vec<String> = beside
            .iter()
            .filter(|(bytes, _)| *bytes > 0)
            .map(|(bytes, whom)| format!("{} MiB for those {whom}", mib(*bytes)))
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
        assert_eq!((plain.strangers, plain.clients), (0, 0));
        let udt = plan(&format!("{ROUTE}channels = ['tcp', 'udt']\nstreams = 3"));
        let stream = lane_bytes(ChannelKind::Udt);
        // Both windows.
        assert!((32 << 20..34 << 20).contains(&stream), "{stream}");
        assert_eq!(udt.sessions[0].channel_bytes, 3 * stream);
        assert_eq!(udt.sessions[0].fit, [4, 8]);
        let segment = "[[route]]\nto = ['*']\nvia = [{ gateway = 'g:1', channels = ['udt'] }]\n";
        assert_eq!(plan(segment).sessions[0].channel_bytes, stream);
    }

    #[test]
    fn peers_choose_how_many_streams_and_strangers_have_a_limit() {
        let listen = "listen = '127.0.0.1:1'\nexit = ['192.0.2.1']\nnext = ['192.0.2.2']\n";
        let channel = |kind| format!("[[channel]]\nkind = '{kind}'\nlisten = '127.0.0.1:2'\n");
        let tcp = plan(&(listen.to_owned() + &channel("tcp")));
        let udt = plan(&(listen.to_owned() + &channel("udt")));
        let streams = 16 * lane_bytes(ChannelKind::Udt);
        let bytes = |plan: &MemoryPlan| {
            let bytes = |budget: &Budget| (budget.bytes >> 20, budget.channel_bytes);
            plan.sessions.iter().map(bytes).collect::<Vec<_>>()
        };
        // One side may be udt though this gateway takes none.
        assert_eq!(bytes(&tcp), [(128, 0), (128, streams)]);
        assert_eq!(bytes(&udt), [(128, streams), (128, 2 * streams)]);
        let more = udt.strangers - tcp.strangers;
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
