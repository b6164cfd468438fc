//! Metadata from applications about a session and its connections: a log line for each, and pairs
//! for the page.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use haul_xsp::wire::Metadata;
use haul_xsp::{ConnId, Side};

use super::Worker;
use super::state::Body;
use crate::caller::CLIENT;
use crate::host::{Shown, hex};
use crate::log::Level;
use crate::status::Connection;

/// Longest log line of pairs, bytes, and most connections shown at a relay.
const LINE_BYTES_MAX: usize = 600;
const SHOWN_MAX: usize = 200;

/// Key of a session's metadata: the name of the gateway that opened it.
pub(super) const GATEWAY: &str = "haul.gateway";

impl Worker {
    /// Handles metadata of the session, which may be repeated.
    pub(super) fn note_session(&mut self, metadata: Metadata) {
        if metadata.is_dropped() {
            self.log_dropped("the session");
            return;
        }
        let earlier = std::mem::replace(&mut self.described.metadata, metadata);
        if earlier.get(GATEWAY) != self.described.metadata.get(GATEWAY) {
            self.log_opener();
        }
        self.log_metadata();
    }

    fn log_opener(&mut self) {
        let id = self.body.session(0).map(|session| hex(&session.id().0));
        let peer = self.segments[0].side.as_ref();
        let peer = peer.map_or("", |segment| segment.peer.as_str());
        let Some((id, name)) = id.zip(self.described.metadata.get(GATEWAY)) else {
            return;
        };
        let name = name.escape_debug();
        let text = format!("{peer}: session {id} of gateway '{name}'");
        self.shared.log(Level::Info, text);
    }

    /// Returns the name of the gateway that opened the session, as it states it.
    pub(super) fn opener_name(&self) -> Option<&str> {
        self.described.metadata.get(GATEWAY)
    }

    /// Returns the client of a connection that the session's opener has asked for: its address, if
    /// the opener states a valid one.
    pub(super) fn client_of(&mut self, conn: ConnId) -> String {
        let session = self.body.session(0);
        let metadata = session
            .as_ref()
            .and_then(|session| session.conn_metadata(conn));
        client(metadata)
    }

    /// Logs it once for each session.
    pub(super) fn log_metadata(&mut self) {
        let pairs = self.described.metadata.pairs_of_users();
        if pairs.count() == 0 || self.described.is_logged {
            return;
        }
        self.described.is_logged = true;
        let id = self.body.session(0).map(|session| hex(&session.id().0));
        let (id, pairs) = (id.unwrap_or_default(), Pairs(&self.described.metadata));
        self.shared
            .log(Level::Info, format!("session {id}: metadata: {pairs}"));
    }

    pub(super) fn note_conn(&self, conn: ConnId, metadata: &Metadata) {
        let name = format!("connection {}", conn.0);
        if metadata.is_dropped() {
            self.log_dropped(&name);
        } else if metadata.pairs_of_users().count() > 0 {
            let text = format!("{name}: metadata: {}", Pairs(metadata));
            self.shared.log(Level::Info, text);
        }
    }

    pub(super) fn log_dropped(&self, what: &str) {
        let peer = self.segments[0].side.as_ref();
        let peer = peer.map_or("", |segment| segment.peer.as_str());
        let text = format!("{peer}: metadata of {what} is ignored: it exceeds the limits");
        self.shared.log(Level::Debug, text);
    }

    /// Adds metadata to connections; at a relay, lists the connections that have some.
    pub(super) fn describe(&mut self, connections: &mut Vec<Connection>) {
        if let Body::Two(relay) = &mut self.body {
            let near = relay.side(Side::Near);
            let described = near.described_conns().take(SHOWN_MAX);
            connections.extend(described.map(|(conn, to, metadata)| Connection {
                number: conn.0,
                from: client(Some(metadata)),
                to: Shown(to).to_string(),
                metadata: pairs(metadata),
                ..Connection::default()
            }));
            return;
        }
        let Some(session) = self.body.session(0) else {
            return;
        };
        for connection in connections {
            if let Some(metadata) = session.conn_metadata(ConnId(connection.number)) {
                connection.metadata = pairs(metadata);
            }
        }
    }
}

/// Returns the pairs that the page shows.
pub(super) fn pairs(metadata: &Metadata) -> BTreeMap<String, String> {
    let pairs = metadata.pairs_of_users();
    pairs
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Returns the client that metadata names, or another word if it names none.
fn client(metadata: Option<&Metadata>) -> String {
    let named = metadata.and_then(|metadata| metadata.get(CLIENT));
    let address = named.and_then(|named| named.parse::<SocketAddr>().ok());
    address.map_or_else(|| "session".to_owned(), |address| address.to_string())
}

/// Formats pairs for a log line, as far as there is room.
struct Pairs<'a>(&'a Metadata);

impl fmt::Display for Pairs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = LINE_BYTES_MAX;
        for (index, (key, value)) in self.0.pairs_of_users().enumerate() {
            let text = format!("{key}=\"{}\"", value.escape_debug());
            let Some(rest) = left.checked_sub(text.len()) else {
                return f.write_str(" …");
            };
            left = rest;
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{text}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_an_address_or_unknown() {
        let named = |value: &str| {
            let mut metadata = Metadata::default();
            metadata.set(CLIENT, value).unwrap();
            client(Some(&metadata))
        };
        assert_eq!(named("192.0.2.1:7"), "192.0.2.1:7");
        assert_eq!(named("[2001:DB8::1]:7"), "[2001:db8::1]:7");
        for forged in ["", "192.0.2.1", "root", "192.0.2.1:7\n", "host:7"] {
            assert_eq!(named(forged), "session", "{forged}");
        }
        assert_eq!(client(None), "session");
    }

    #[test]
    fn a_line_has_an_end_and_no_other_line_in_it() {
        let mut metadata = Metadata::default();
        metadata.insert("a", "x\n\u{1b}[2J\"").unwrap();
        assert_eq!(Pairs(&metadata).to_string(), r#"a="x\n\u{1b}[2J\"""#);
        for key in ["b", "c", "d"] {
            metadata.insert(key, &"v".repeat(256)).unwrap();
        }
        let line = Pairs(&metadata).to_string();
        assert!(line.len() < LINE_BYTES_MAX + 16 && line.ends_with(" …"));
    }
}
