//! Asks whether the sessions of routes and their data channels can be opened.

use std::time::Duration;

use super::Gateway;
use crate::config::{ChannelKind, Route, Via};
use crate::probe;
use crate::refusal::Refusal;

/// Whether the session of a route can be opened by one of its ways.
#[derive(Debug)]
pub struct Reach {
    /// The destinations of the route.
    pub to: String,
    /// The gateways on the way with the channel kind to each; or why the session cannot be opened.
    pub hops: Result<Vec<(String, Option<ChannelKind>)>, Refusal>,
    /// Each kind of data channel that the route lists and the first gateway offers; and why it
    /// cannot be opened. The other gateways on the way open theirs themselves.
    pub channels: Vec<(ChannelKind, Result<(), Refusal>)>,
}

impl Gateway {
    /// Asks the gateways on each way of each route, one way after the other, whether the session
    /// can be opened. Then it opens a session for each kind of data channel to the first gateway,
    /// and ends it. Blocks at most `patience` for each question.
    #[must_use]
    pub fn reach(&self, patience: Duration) -> Vec<Reach> {
        let config = self.shared.config();
        let ways = config.routes.iter().flat_map(|route| {
            let of_way = |way: &[Via]| probe::by_way(route, way);
            route.written_ways().map(of_way)
        });
        let reach = |route: Route| {
            let to: Vec<String> = route.to.iter().map(ToString::to_string).collect();
            let kinds = probe::session(&self.shared, &route, patience);
            let channels = match kinds {
                Ok(_) => self.reach_channels(&route, patience),
                Err(_) => Vec::new(),
            };
            Reach {
                to: to.join(", "),
                hops: kinds.map(|kinds| named(&route.via, kinds)),
                channels,
            }
        };
        ways.map(reach).collect()
    }

    fn reach_channels(
        &self,
        route: &Route,
        patience: Duration,
    ) -> Vec<(ChannelKind, Result<(), Refusal>)> {
        let kinds = route.first_channels(&route.via).iter().copied();
        // A route may name kinds that this machine lacks.
        let own = kinds.filter(|kind| self.shared.network(*kind).is_some());
        let reach = |kind| Some((kind, probe::channel(&self.shared, route, kind, patience)?));
        own.filter_map(reach).collect()
    }
}

/// Pairs each gateway with its channel kind. If only some optional gateways were left out, it is
/// unknown which.
fn named(way: &[Via], kinds: Vec<Option<ChannelKind>>) -> Vec<(String, Option<ChannelKind>)> {
    let name = |via: &Via| via.gateway().to_string();
    let certain = || way.iter().filter(|via| !via.is_optional());
    if kinds.len() == way.len() {
        way.iter().map(name).zip(kinds).collect()
    } else if kinds.len() == certain().count() {
        certain().map(name).zip(kinds).collect()
    } else {
        way.iter().map(|via| (name(via), None)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn gateways_that_have_been_left_out_have_no_kind() {
        let text = "name = 'g'\n[[route]]\nto = ['*']\nvia = ['a:1', { gateway = 'b:1', optional = true }, \
                    { gateway = 'c:1', optional = true }, 'd:1']\n";
        let config = Config::parse(text).unwrap();
        let kinds = [
            ChannelKind::Tcp,
            ChannelKind::IwarpUdt,
            ChannelKind::Verbs,
            ChannelKind::Tcp,
        ];
        let named = |count: usize| {
            let kinds = kinds[..count].iter().copied().map(Some).collect();
            let named = named(&config.routes[0].via, kinds);
            let words = named.into_iter().map(|(name, kind)| match kind {
                Some(kind) => format!("{name} {kind}"),
                None => name,
            });
            words.collect::<Vec<_>>().join(", ")
        };
        assert_eq!(named(4), "a:1 tcp, b:1 iwarp/udt, c:1 verbs, d:1 tcp");
        assert_eq!(named(2), "a:1 tcp, d:1 iwarp/udt");
        assert_eq!(named(3), "a:1, b:1, c:1, d:1");
    }
}
