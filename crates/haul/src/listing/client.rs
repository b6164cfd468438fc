//! The client's end of a listing.

use haul_control::duplex;

use super::delete::Outcome;
use super::digest::BlockDigests;
use super::wire::{
    self, BATCH_BYTES, BATCH_ENTRIES, Blocks, Delete, Deleted, Item, List, Message, SERVICE, encode,
};
use crate::choice::{Choice, Rule, check_rules};
use crate::client::{Config, open_control};
use crate::fault::{Code, Fault};
use crate::fs::entry::Entry;
use crate::fs::filter::Action;
use crate::fs::path::Relative;
use crate::printable;

pub use crate::room::Room;

/// The request of a listing.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// A directory or file of the server.
    pub path: Vec<u8>,
    /// With all that lies below the directory.
    pub is_recursive: bool,
    /// With the BLAKE3 hash of each file.
    pub with_digests: bool,
    /// Which entries to take, without a list.
    pub choice: Choice,
    /// To remove entries of it: a server that does not let this client refuses the listing.
    pub deletes: bool,
}

impl Request {
    /// Asks only whether the server has the directory, and what is free there.
    pub(crate) fn nothing_of(directory: &[u8]) -> Self {
        Self {
            path: directory.to_vec(),
            choice: Choice {
                rules: vec![(Action::Exclude, "*".to_owned())],
                ..Choice::default()
            },
            ..Self::default()
        }
    }
}

/// A result of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// An entry; with its hash if it is a file and the request asked for it. Its identity and
    /// number of links are unknown. The path is empty if the request named a file.
    Entry(Entry, Option<[u8; 32]>),
    /// What the server cannot examine or read; the listing is incomplete.
    Failed {
        /// Where, below the directory of the request.
        path: Vec<u8>,
        /// What and why.
        text: String,
    },
}

/// The end of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// Entries that were excluded.
    pub excluded: u64,
    /// Which file system the directory is on; `None` if that is unknown.
    pub file_system: Option<u64>,
    /// What is free there.
    pub room: Option<Room>,
}

/// A connection for one listing.
#[derive(Debug)]
pub struct Session {
    sender: duplex::Sender,
    receiver: duplex::Receiver<Message>,
}

impl Session {
    /// Connects and asks for a listing. Where the configuration has an access, it has been
    /// prepared.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    pub fn open(config: &Config, request: &Request) -> Result<Self, Fault> {
        let list = List {
            path: request.path.clone(),
            recursive: request.is_recursive,
            digests: request.with_digests,
            rules: request.choice.rules.iter().map(Rule::new).collect(),
            ignore_files: request.choice.reads_ignore_files,
            deletes: request.deletes,
        };
        check_rules(&list.rules)?;
        let connection = open_control(config, SERVICE, &[encode(&Message::List(list))?])?;
        let (sender, receiver) = connection.split(config.dead_after, wire::decode)?;
        Ok(Self { sender, receiver })
    }

    /// Hands each entry to `each`, a directory before its content.
    ///
    /// # Errors
    /// The connection or the server failed, or `each` did.
    pub fn list(&self, mut each: impl FnMut(Found) -> Result<(), Fault>) -> Result<Listed, Fault> {
        loop {
            match self.receiver.receive()? {
                Message::Batch(batch) => {
                    self.sender.send(encode(&Message::Credit)?)?;
                    for item in batch.items {
                        let (entry, digest) = item.into_entry()?;
                        each(Found::Entry(entry, digest))?;
                    }
                    for failed in batch.failures {
                        let text = printable(failed.text.as_bytes());
                        let path = failed.path;
                        each(Found::Failed { path, text })?;
                    }
                }
                Message::End(end) => {
                    return Ok(Listed {
                        excluded: end.excluded,
                        file_system: end.file_system,
                        room: end.room,
                    });
                }
                other => return Err(other.misplaced()),
            }
        }
    }

    fn remove(&self, delete: Delete) -> Result<Deleted, Fault> {
        self.sender.send(encode(&Message::Delete(delete))?)?;
        match self.receiver.receive()? {
            Message::Deleted(deleted) => Ok(deleted),
            other => Err(other.misplaced()),
        }
    }

    /// Removes entries of the listing, which has ended, in this order. What has changed since it
    /// was listed stays.
    ///
    /// # Errors
    /// The connection failed, or the client may not remove anything.
    pub fn delete(&self, entries: &[Entry]) -> Result<Outcome, Fault> {
        let mut outcome = Outcome::default();
        let mut items = entries
            .iter()
            .map(|entry| Item::new(entry, None))
            .peekable();
        while items.peek().is_some() {
            let (mut delete, mut bytes) = (Delete::default(), 0);
            while delete.items.len() < BATCH_ENTRIES
                && bytes < BATCH_BYTES
                && let Some(item) = items.next()
            {
                bytes += item.len();
                delete.items.push(item);
            }
            let deleted = self.remove(delete)?;
            outcome.deleted = outcome.deleted.saturating_add(deleted.count);
            let failures = deleted.failures.into_iter();
            let failures = failures.map(|one| (one.path, printable(one.text.as_bytes())));
            outcome.failures.extend(failures);
            let not_empty = deleted.not_empty.into_iter();
            outcome.not_empty.extend(not_empty.map(Into::into));
        }
        Ok(outcome)
    }

    /// Returns the digests of the blocks of a file of the listing, which has ended.
    ///
    /// # Errors
    /// The connection failed, or the server cannot read the file.
    pub fn blocks(&self, path: &Relative) -> Result<BlockDigests, Fault> {
        let path = path.as_bytes().to_vec();
        let request = Message::Blocks(Blocks { path: path.clone() });
        self.sender.send(encode(&request)?)?;
        let digests = match self.receiver.receive()? {
            Message::Digests(digests) => digests,
            other => return Err(other.misplaced()),
        };
        if let Some(why) = digests.failure {
            let (path, why) = (printable(&path), printable(why.as_bytes()));
            let text = format!("the server cannot read '{path}': {why}");
            return Err(Fault::new(Code::FileError, text));
        }
        BlockDigests::new(digests.size, &digests.digests)
            .ok_or_else(|| Fault::protocol("the server sent digests of another file"))
    }
}
