//! What applications say about a session and its connections, as far as it is kept.

use super::{Event, Session, State};
use crate::ConnId;
use crate::wire::{Endpoint, Metadata, Pdu};

/// Option of APP_DATA: the session's metadata.
const OPTION: u32 = 1;
/// Most bytes of memory for metadata of connections that the peer has opened: what it says of more
/// is dropped.
const KEPT_MAX: usize = 1 << 20;
/// Bytes that a pair takes beside its own.
const PAIR_BYTES: usize = 128;

impl Session {
    /// Tells all on the way to the terminus what the application says about the session: now or
    /// when it is open, and again whenever it goes on, since it may have been lost.
    pub fn set_metadata(&mut self, metadata: Metadata) {
        self.metadata = metadata;
        self.send_metadata();
    }

    /// What the application says about a connection that there is.
    #[must_use]
    pub fn conn_metadata(&self, conn: ConnId) -> Option<&Metadata> {
        let known = self.conns.get(&conn)?;
        Some(&known.metadata)
    }

    /// Connections of which something is said, where they go, and what.
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

    /// What is to be told about the session: the last of it, however often it was said since there
    /// was room.
    pub(super) fn poll_metadata(&mut self) -> Option<Pdu> {
        std::mem::take(&mut self.is_metadata_due).then(|| Pdu::AppData {
            option: OPTION,
            octets: self.metadata.to_octets(),
        })
    }

    pub(super) fn on_app_data(&mut self, option: u32, octets: Vec<u8>) {
        // A terminus has nothing to say by this option.
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
