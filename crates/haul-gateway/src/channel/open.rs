//! Creates the data channels of a kind.

use haul_slab::Region;

use super::connected::Connected;
use super::fabric::{Fabric, Lost, Wanted};
use super::network::{Means, Network};
use super::streams::Streams;

/// Creates the fabric of a network's kind, without channels. Reads go to `arena`.
pub(crate) fn create_fabric(
    network: &Network,
    arena: &Region,
    wanted: Wanted,
) -> Result<Box<dyn Fabric>, Lost> {
    Ok(match &network.means {
        Means::Tcp => Box::new(Streams::new(arena, wanted)?),
        Means::Connected { context, .. } => {
            Box::new(Connected::new(network.kind, context, arena, wanted)?)
        }
    })
}
