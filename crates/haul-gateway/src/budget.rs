//! The memory that a gateway can take at most, computed from its configuration.

use serde::Serialize;

use crate::config::{Config, ListenerKind};
use crate::inbound::pending_bytes;
use crate::listener::CLIENT_MEMORY;
use crate::session::Shape;

/// The share of the configured memory that one kind of session takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Budget {
    /// Which sessions: "of the route to …", "that ends here", "that passes through".
    pub what: String,
    /// Bytes that each session takes from its opening on.
    pub first_bytes: u64,
    /// The most bytes that each takes, when it uses them.
    pub bytes: u64,
    /// Further bytes for data channels: 0, for no kind takes any. Version 1 of the JSON schema
    /// has this field.
    pub channel_bytes: u64,
    /// How many such sessions fit alone: with the most that each takes, and with the least.
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
    /// The share of each kind of session.
    pub sessions: Vec<Budget>,
    /// The share of applications' RDMA connections.
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
        let budget = |what: String, shape: &Shape, is_end: bool| {
            let (first_bytes, bytes) = (shape.first_bytes(is_end), shape.bytes(is_end));
            Budget {
                what,
                first_bytes,
                bytes,
                channel_bytes: 0,
                fit: [bytes, first_bytes].map(|bytes| memory / bytes.max(1)),
            }
        };
        let mut sessions = Vec::new();
        for route in &self.routes {
            let to: Vec<String> = route.to.iter().map(ToString::to_string).collect();
            let what = format!("of the route to {}", to.join(", "));
            sessions.push(budget(what, &Shape::of_route(self, route), true));
        }
        if self.listen.is_some() {
            let inbound = Shape::of_incoming(self);
            if self.has_exit() {
                sessions.push(budget("that ends here".to_owned(), &inbound, true));
            }
            if !self.next.is_empty() {
                let what = "that passes through".to_owned();
                sessions.push(budget(what, &inbound, false));
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

impl MemoryPlan {
    /// Describes the plan, one line for each item.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let mut lines = Vec::new();
        for budget in &self.sessions {
            let (what, first, bytes) = (&budget.what, mib(budget.first_bytes), mib(budget.bytes));
            let [fit, fit_first] = budget.fit;
            lines.push(match first == bytes {
                true => format!("a session {what} takes {bytes} MiB of them; {fit} fit"),
                false => format!(
                    "a session {what} takes {first} MiB of them, and up to {bytes} MiB when it uses them; {fit_first} \
                     fit, {fit} at their full size"
                ),
            });
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
    fn a_route_takes_little_at_first_and_its_ring_twice_at_most() {
        let plain = plan(ROUTE);
        let [route] = &plain.sessions[..] else {
            panic!("{plain:?}");
        };
        assert_eq!((route.first_bytes, route.bytes), (16 << 20, 128 << 20));
        assert_eq!(route.fit, [8, 64]);
        assert_eq!((plain.unauthenticated, plain.clients), (0, 0));
    }

    #[test]
    fn inbound_sessions_take_their_ring_twice_and_pending_peers_have_a_limit() {
        let listen = "listen = '127.0.0.1:1'\nexit = ['192.0.2.1']\nnext = ['192.0.2.2']\n";
        let channel = "[[channel]]\nkind = 'tcp'\nlisten = '127.0.0.1:2'\n";
        let plan = plan(&(listen.to_owned() + channel));
        let bytes = plan.sessions.iter().map(|budget| budget.bytes >> 20);
        assert_eq!(bytes.collect::<Vec<_>>(), [128, 128]);
        assert!((1..1 << 30).contains(&plan.unauthenticated), "{plan:?}");
    }

    #[test]
    fn everything_is_said() {
        let listener = "[[listener]]\nkind = 'socks5'\nlisten = '127.0.0.1:3'\n";
        let told = plan(&format!(
            "listen = '127.0.0.1:1'\nexit = ['192.0.2.1']\n[[channel]]\nkind = 'tcp'\nlisten = '127.0.0.1:2'\n{listener}{ROUTE}"
        ));
        let lines = told.lines();
        let starts = [
            "a session of the route to * takes 16 MiB of them, and up to 128 MiB when it uses them; 64 fit, 8 at",
            "a session that ends here takes 16 MiB of them, and up to 128 MiB when it uses them; 64 fit, 8 at",
            "beside them at most ",
        ];
        assert_eq!(lines.len(), starts.len(), "{lines:#?}");
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}");
        }
    }
}
