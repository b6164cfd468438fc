//! Whether sessions of routes could be had, asked without opening any.

use std::time::Duration;

use crossbeam_channel::bounded;
use haul_xsp::wire::NackStatus;

use super::Gateway;
use crate::caller::Refusal;
use crate::config::{ChannelKind, Route};
use crate::engine::Worker;
use crate::house::code;

/// Whether the session of a route could be had.
#[derive(Debug)]
pub struct Reach {
    /// Where the route leads.
    pub to: String,
    /// The gateways on the way, and what would carry the octets to each; or why it cannot be had.
    pub hops: Result<Vec<(String, Option<ChannelKind>)>, Refusal>,
}

impl Gateway {
    /// Asks all gateways on the way of each route whether its session could be had, one route after the other, for `patience` each.
    /// Nothing is left of it anywhere.
    #[must_use]
    pub fn reach(&self, patience: Duration) -> Vec<Reach> {
        let config = self.house.config();
        let reach = |route: &Route| {
            let to: Vec<String> = route.to.iter().map(ToString::to_string).collect();
            Reach {
                to: to.join(", "),
                hops: self.reach_route(route, patience),
            }
        };
        config.routes.iter().map(reach).collect()
    }

    fn reach_route(
        &self,
        route: &Route,
        patience: Duration,
    ) -> Result<Vec<(String, Option<ChannelKind>)>, Refusal> {
        let (sender, result) = bounded(1);
        Worker::probe(&self.house, route, sender)
            .map_err(|why| Refusal::new(code(NackStatus::Busy), Some(&why)))?;
        let kinds = result.recv_timeout(patience).map_err(|_| {
            let why = "no answer came in time";
            Refusal::new(code(NackStatus::TimedOut), Some(why))
        })??;
        let hops = route.via.iter().map(|via| via.gateway().to_string());
        Ok(hops.zip(kinds).collect())
    }
}
