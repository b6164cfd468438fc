//! How a session begins that has a data channel.

use std::time::Duration;

use haul_control::server::HANDSHAKE;
use haul_control::trust::Rights;

use super::shared::Shared;
use crate::channel::{Opening, Setup};
use crate::fault::{Code, Fault};
use crate::link::Link;
use crate::wire::Message;

/// Blocks for the next message of a client that has no reason to wait.
pub(super) fn next(link: &Link) -> Result<Message, Fault> {
    link.incoming()
        .recv_timeout(HANDSHAKE)
        .unwrap_or_else(|_| Err(Fault::new(Code::PeerGone, "the client sent no request")))
}

/// Begins to accept the channel that the client offers. Returns the rate that it declared, too.
pub(super) fn open_channel(
    shared: &Shared,
    link: &Link,
    rights: &Rights,
    dead_after: Duration,
) -> Result<(Opening, Option<u64>), Fault> {
    let open = match next(link)? {
        Message::OpenChannel(open) => open,
        other => return Err(other.misplaced()),
    };
    let mut setup = Setup::from_message(&open, link.cipher(), dead_after)?;
    let seal = setup.seal(&open.arrived, |label, context| link.export(label, context))?;
    if seal.is_none() && !rights.plain {
        let text = "data channels without encryption are not admitted";
        return Err(Fault::new(Code::NotAuthenticated, text)
            .hint("leave --allow-insecure out at the client"));
    }
    let declared = setup.rate_bps;
    if let Some(most) = rights.rate_bps {
        setup.rate_bps = Some(declared.unwrap_or(most).min(most));
    }
    let mut opening = Opening::accept(&setup, &shared.acceptors, HANDSHAKE)?;
    if let Some(seal) = seal {
        opening.set_seal(seal);
    }
    Ok((opening, declared))
}
