//! Messages of a listing in CBOR, as docs/protocol/listing.md lays down.

use haul_io::file::FileTime;
use minicbor::{Decode, Encode};

use crate::choice::Rule;
use crate::fault::{Code, Fault};
use crate::fs::entry::{Entry, Kind, Stat};
use crate::fs::path::Relative;
use crate::room::Room;

/// Name of the service in the greeting of a control connection.
pub(crate) const SERVICE: &str = "listing";
/// A batch is sent once its paths and targets have this many bytes.
pub(crate) const BATCH_BYTES: usize = 128 << 10;
/// A batch is sent once it has this many entries.
pub(crate) const BATCH_ENTRIES: usize = 1024;
/// Batches that the server sends ahead of the client.
pub(crate) const WINDOW: usize = 8;

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) enum Message {
    /// Client to server: list this.
    #[n(1)]
    List(#[n(0)] List),
    /// Server to client: further entries.
    #[n(2)]
    Batch(#[n(0)] Batch),
    /// Client to server: room for one more batch.
    #[n(3)]
    Credit,
    /// Server to client: these were all.
    #[n(4)]
    End(#[n(0)] End),
    /// Client to server, after `End`: the digests of the blocks of this file.
    #[n(5)]
    Blocks(#[n(0)] Blocks),
    /// Server to client: the answer.
    #[n(6)]
    Digests(#[n(0)] Digests),
    /// Client to server, after `End`: remove these entries, in this order.
    #[n(7)]
    Delete(#[n(0)] Delete),
    /// Server to client: the answer.
    #[n(8)]
    Deleted(#[n(0)] Deleted),
}

#[derive(Debug, Clone, Default, PartialEq, Encode, Decode)]
pub(crate) struct List {
    /// A directory or file, as in a request of a transfer.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub(crate) path: Vec<u8>,
    /// With all that lies below the directory.
    #[n(1)]
    pub(crate) recursive: bool,
    /// With the digest of each file.
    #[n(2)]
    pub(crate) digests: bool,
    #[n(3)]
    pub(crate) rules: Vec<Rule>,
    /// `.haulignore` counts.
    #[n(4)]
    pub(crate) ignore_files: bool,
    /// The client will remove entries. A server that does not let it refuses the listing.
    #[cbor(
        n(5),
        skip_if = "crate::wire::is_unset",
        decode_with = "crate::wire::flag"
    )]
    pub(crate) deletes: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Encode, Decode)]
pub(crate) struct Batch {
    #[n(0)]
    pub(crate) items: Vec<Item>,
    #[n(1)]
    pub(crate) failures: Vec<Failed>,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Item {
    /// Below the directory that was asked for; empty if that is a file.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub(crate) path: Vec<u8>,
    /// 0 file, 1 directory, 2 symbolic link, 3 hard link, 4 special.
    #[n(1)]
    pub(crate) kind: u8,
    #[n(2)]
    pub(crate) size: u64,
    #[n(3)]
    pub(crate) allocated: u64,
    #[n(4)]
    pub(crate) seconds: i64,
    #[n(5)]
    pub(crate) nanos: u32,
    #[n(6)]
    pub(crate) mode: u32,
    #[n(7)]
    pub(crate) uid: u32,
    #[n(8)]
    pub(crate) gid: u32,
    /// Of a symbolic link; of a hard link, the path that named the file first.
    #[cbor(n(9), with = "minicbor::bytes")]
    pub(crate) target: Option<Vec<u8>>,
    #[cbor(n(10), with = "minicbor::bytes")]
    pub(crate) blake3: Option<[u8; 32]>,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Failed {
    #[cbor(n(0), with = "minicbor::bytes")]
    pub(crate) path: Vec<u8>,
    #[n(1)]
    pub(crate) text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(crate) struct End {
    /// What was asked for is a file, not a directory.
    #[n(0)]
    pub(crate) is_file: bool,
    /// Entries that the rules left out.
    #[n(1)]
    pub(crate) excluded: u64,
    /// Which file system the directory is on; `None` if that is unknown.
    #[n(2)]
    pub(crate) file_system: Option<u64>,
    /// Bytes and inodes that are free there.
    #[n(3)]
    pub(crate) room: Option<Room>,
}

/// Entries to remove, as the listing showed them: what has changed since stays.
#[derive(Debug, Clone, Default, PartialEq, Encode, Decode)]
pub(crate) struct Delete {
    #[n(0)]
    pub(crate) items: Vec<Item>,
}

#[derive(Debug, Clone, Default, PartialEq, Encode, Decode)]
pub(crate) struct Deleted {
    /// Entries that were removed.
    #[n(0)]
    pub(crate) count: u64,
    /// Entries that could not be removed.
    #[n(1)]
    pub(crate) failures: Vec<Failed>,
    /// Directories that are not empty.
    #[n(2)]
    pub(crate) not_empty: Vec<minicbor::bytes::ByteVec>,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Blocks {
    /// As in an [`Item`].
    #[cbor(n(0), with = "minicbor::bytes")]
    pub(crate) path: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Digests {
    /// Bytes that were hashed.
    #[n(0)]
    pub(crate) size: u64,
    /// 32 bytes for each block.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub(crate) digests: Vec<u8>,
    /// Why there are none.
    #[n(2)]
    pub(crate) failure: Option<String>,
}

impl Message {
    pub(crate) fn misplaced(&self) -> Fault {
        Fault::protocol("the peer sent a message of a listing at the wrong time")
    }
}

impl Item {
    pub(crate) fn new(entry: &Entry, blake3: Option<[u8; 32]>) -> Self {
        let (kind, target) = match &entry.kind {
            Kind::File => (0, None),
            Kind::Directory => (1, None),
            Kind::Symlink(target) => (2, Some(target.to_vec())),
            Kind::HardLink(first) => (3, Some(first.as_bytes().to_vec())),
            Kind::Special => (4, None),
        };
        let stat = &entry.stat;
        Self {
            path: entry.path.as_bytes().to_vec(),
            kind,
            size: stat.size,
            allocated: stat.allocated,
            seconds: stat.modified.seconds,
            nanos: stat.modified.nanos,
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
            target,
            blake3,
        }
    }

    /// Returns the bytes that it adds to a batch, about.
    pub(crate) fn len(&self) -> usize {
        self.path.len() + self.target.as_ref().map_or(0, Vec::len)
    }

    /// Returns the entry. Its identity and number of links are unknown here.
    pub(crate) fn into_entry(self) -> Result<(Entry, Option<[u8; 32]>), Fault> {
        let wrong = || Fault::protocol("the server sent an entry that there is not");
        let kind = match (self.kind, self.target) {
            (0, None) => Kind::File,
            (1, None) => Kind::Directory,
            (2, Some(target)) => Kind::Symlink(target.into()),
            (3, Some(first)) => Kind::HardLink(Relative::new(&first)?),
            (4, None) => Kind::Special,
            _ => return Err(wrong()),
        };
        if self.nanos >= 1_000_000_000 {
            return Err(wrong());
        }
        let stat = Stat {
            size: self.size,
            allocated: self.allocated,
            modified: FileTime {
                seconds: self.seconds,
                nanos: self.nanos,
            },
            changed: FileTime {
                seconds: 0,
                nanos: 0,
            },
            identity: (0, 0),
            links: 1,
            mode: self.mode & 0o7777,
            uid: self.uid,
            gid: self.gid,
        };
        let path = Relative::new(&self.path)?;
        Ok((Entry { path, kind, stat }, self.blake3))
    }
}

pub(crate) fn encode(message: &Message) -> Result<Vec<u8>, Fault> {
    minicbor::to_vec(message)
        .map(haul_control::next::extend)
        .map_err(|error| Fault::new(Code::Other, format!("cannot encode a message: {error}")))
}

/// Reads a message; `None` if its kind is unknown, as of a newer peer.
pub(crate) fn decode(body: &[u8]) -> Result<Option<Message>, Fault> {
    match minicbor::decode(body) {
        Ok(message) => Ok(Some(message)),
        Err(error) if error.is_unknown_variant() => Ok(None),
        Err(error) => Err(Fault::protocol(format!(
            "the peer sent a message that cannot be read: {error}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn item(kind: u8, target: Option<&[u8]>) -> Item {
        Item {
            path: b"a/b".to_vec(),
            kind,
            size: 5,
            allocated: 4096,
            seconds: -1,
            nanos: 999_999_999,
            mode: 0o644,
            uid: 1,
            gid: 2,
            target: target.map(<[u8]>::to_vec),
            blake3: None,
        }
    }

    #[test]
    fn an_entry_arrives_as_it_was() {
        for item in [
            item(0, None),
            item(1, None),
            item(2, Some(b"/x\xff")),
            item(3, Some(b"a/a")),
            item(4, None),
        ] {
            let message = Message::Batch(Batch {
                items: vec![item.clone()],
                failures: Vec::new(),
            });
            let decoded = decode(&encode(&message).unwrap()).unwrap().unwrap();
            assert_eq!(decoded, message);
            let (entry, digest) = item.clone().into_entry().unwrap();
            assert_eq!(Item::new(&entry, digest), item);
        }
    }

    #[test]
    fn entries_that_there_are_not_are_refused() {
        for wrong in [
            item(5, None),
            item(0, Some(b"x")),
            item(2, None),
            item(3, Some(b"../x")),
            Item {
                nanos: 1_000_000_000,
                ..item(0, None)
            },
            Item {
                path: b"/etc".to_vec(),
                ..item(0, None)
            },
            Item {
                path: b"a/../../b".to_vec(),
                ..item(0, None)
            },
        ] {
            assert!(wrong.clone().into_entry().is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn junk_is_an_error_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(Some(Message::Batch(batch))) = decode(&bytes) {
                for item in batch.items {
                    let _ = item.into_entry();
                }
            }
        }
    }
}
