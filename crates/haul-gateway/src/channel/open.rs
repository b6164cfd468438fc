//! Creates the data channels of a kind.

use haul_io::stream::Stream;
use haul_slab::Region;
use haul_soft::udt::plain;

use super::connected::Connected;
use super::datagram::Datagram;
use super::fabric::{Fabric, Lost, Wanted};
use super::network::{Means, Network};
use super::pipe::udt_options;
use super::streams::Streams;
use crate::config::ChannelKind;

/// Returns the bytes that a channel of this kind takes beside the session's ring and arena.
pub(crate) fn lane_bytes(kind: ChannelKind) -> u64 {
    match kind {
        ChannelKind::Udt => plain::memory_bytes(&udt_options()),
        _ => 0,
    }
}

/// Creates the fabric of a network's kind, without channels. Reads go to `arena`.
pub(crate) fn create_fabric(
    network: &Network,
    arena: &Region,
    wanted: Wanted,
) -> Result<Box<dyn Fabric>, Lost> {
    let kind = network.kind;
    match &network.means {
        Means::Tcp => {
            let streams = Streams::<Stream>::new(kind, arena, wanted)?;
            Ok(Box::new(streams))
        }
        Means::Udt => {
            let streams = Streams::<plain::Stream>::new(kind, arena, wanted)?;
            Ok(Box::new(streams))
        }
        Means::Datagram { context } => Ok(Box::new(Datagram::new(
            kind,
            context,
            network.listen,
            arena,
            wanted,
        )?)),
        Means::Connected { context, .. } => {
            Ok(Box::new(Connected::new(kind, context, arena, wanted)?))
        }
    }
}
