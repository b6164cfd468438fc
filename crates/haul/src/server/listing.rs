//! Clients that list.

use std::sync::Arc;

use haul_control::server::{Client, HANDSHAKE, Service};
use haul_control::trust::Rights;

use super::permit::permit;
use super::shared::{Record, Shared};
use crate::fault::{Code, Fault};
use crate::listing::server::{Link, Root, serve};
use crate::listing::wire::{self, List, Message, SERVICE};
use crate::printable;
use crate::report::count_of;

/// Serves listings of what the transfers serve.
pub(super) struct Listing(pub(super) Arc<Shared>);

impl Service for Listing {
    fn name(&self) -> &'static str {
        SERVICE
    }

    fn serve(&self, client: Client) {
        let Client {
            mut connection,
            greeting,
            rights,
            name,
            dead_after,
        } = client;
        if let Err(fault) = permit(rights.read, &rights, "list files of this server") {
            // It takes no place from those that may.
            return connection.refuse(&fault);
        }
        let Some(slot) = self.0.take_slot(&mut connection, greeting.task, &name) else {
            return;
        };
        slot.hold(connection.closer());
        let Ok((sender, receiver)) = connection.split(dead_after, wire::decode) else {
            return;
        };
        let link = Link { sender, receiver };
        let mut record = Record::begin();
        record.operation = "list";
        let result = request(&link).and_then(|list| {
            slot.note_asked();
            record.path = printable(&list.path);
            let mut deleted = 0;
            let result = answer(&self.0, &link, &rights, &list, &mut deleted);
            if deleted > 0 {
                record.operation = "delete";
                let deleted = count_of(deleted, "entry", "entries");
                (self.0.log)(&format!(
                    "{name}: {deleted} deleted below '{}'",
                    record.path
                ));
            }
            result
        });
        if let Err(fault) = &result {
            link.sender.report(fault);
        }
        self.0.end(&rights, &name, &record, result.as_ref().err());
    }
}

/// Blocks for the request of a client, which has no reason to wait.
fn request(link: &Link) -> Result<List, Fault> {
    let silent = |_| Err(Fault::new(Code::PeerGone, "the client sent no request"));
    let asked = link.receiver.incoming().recv_timeout(HANDSHAKE);
    match asked.unwrap_or_else(silent)? {
        Message::List(list) => Ok(list),
        other => Err(other.misplaced()),
    }
}

fn answer(
    shared: &Shared,
    link: &Link,
    rights: &Rights,
    request: &List,
    deleted: &mut u64,
) -> Result<(), Fault> {
    let may_delete = || permit_deletion(shared, rights);
    if request.deletes {
        may_delete()?;
    }
    let place = shared.root.below(&rights.directory)?;
    let root = match place.directory(named(&request.path)) {
        Ok(dir) => Root::Directory(dir),
        Err(fault) if fault.code == Code::DirectoryNotFound => {
            Root::File(place.open(&request.path)?)
        }
        Err(fault) => return Err(fault),
    };
    serve(link, &root, request, &may_delete, deleted)
}

/// Refuses clients that may not delete.
pub(super) fn permit_deletion(shared: &Shared, rights: &Rights) -> Result<(), Fault> {
    if shared.read_only {
        let fault = Fault::new(Code::Refused, "it is read-only and deletes no files");
        return Err(fault.hint("start it without --read-only"));
    }
    let may = rights.write && !rights.drop_only;
    permit(may, rights, "delete files of this server")
}

/// Returns a path without slashes at its end, which would have a directory made.
fn named(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/');
    match end {
        Some(end) => &path[..=end],
        // The root of the file system, or of what is served.
        None => &path[..path.len().min(1)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_at_the_end_has_nothing_made() {
        assert_eq!(named(b"a/b//"), b"a/b");
        assert_eq!(named(b"a"), b"a");
        assert_eq!(named(b""), b"");
        assert_eq!(named(b"//"), b"/");
    }
}
