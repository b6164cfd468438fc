//! Metadata that applications declare about a session and its connections.

use super::{Event, Session, State};
use crate::ConnId;
use crate::wire::{Endpoint, Metadata, Pdu};

/// Option of APP_DATA: the session's metadata.
const OPTION: u32 = 1;
/// Most bytes of memory for metadata of connections that the peer has opened: further metadata is
/// dropped.
const KEPT_MAX: usize = 4 << 20;
/// Bytes that a pair takes beside its own.
const PAIR_BYTES: usize = 128;

impl Session {
    /// Sends the application's metadata of the session to all hops up to the terminus: now or when
    /// it is open, and again after each resumption, since it may have been lost.
    pub fn set_metadata(&mut self, metadata: Metadata) {
        self.metadata = metadata;
        self.send_metadata();
    }

    /// Returns the metadata of an existing connection.
    #[must_use]
    pub fn conn_metadata(&self, conn: ConnId) -> Option<&Metadata> {
        let known = self.conns.get(&conn)?;
        Some(&known.metadata)
    }

    /// Connections with metadata: destination and metadata.
    pub fn described_conns(&self) -> impl Iterator<Item = (ConnId, &Endpoint, &Metadata)> {
        let conns = self.conns.iter();
        conns
            .filter(|(_, known)| !known.metadata.is_empty())
            .map(|(conn, known)| (*conn, &known.to, &known.metadata))
    }

    pub(super) fn send_metadata(&mut self) {
        let is_open = matches!(self.state, State::Open | State::Draining);
        self.is_metadata_due = self.is_opener && is_open && !self.metadata.is_empty();
    }

    /// Takes the session's pending metadata: only the latest, even if it changed several times.
    pub(super) fn poll_metadata(&mut self) -> Option<Pdu> {
        std::mem::take(&mut self.is_metadata_due).then(|| Pdu::AppData {
            option: OPTION,
            octets: self.metadata.to_octets(),
        })
    }

    pub(super) fn on_app_data(&mut self, option: u32, octets: Vec<u8>) {
        // Only an opener sends session metadata by this option; from a terminus it is application
        // data.
        let event = match option {
            OPTION if !self.is_opener => Event::Metadata(Metadata::from_octets(&octets)),
            _ => Event::App { option, octets },
        };
        self.events.push_back(event);
    }

    /// Metadata of a connection that the peer opens, if there is room for it.
    pub(super) fn admit_metadata(&mut self, metadata: Metadata) -> Metadata {
        let octets = self.metadata_octets + kept(&metadata);
        if octets > KEPT_MAX {
            return Metadata::dropped();
        }
        self.metadata_octets = octets;
        metadata
    }

    /// Such a connection is gone.
    pub(super) fn release_metadata(&mut self, metadata: &Metadata, is_own: bool) {
        if !is_own {
            self.metadata_octets -= kept(metadata);
        }
    }
}

/// Bytes of memory that metadata takes, about.
fn kept(metadata: &Metadata) -> usize {
    metadata.octets() + PAIR_BYTES * metadata.len()
}
