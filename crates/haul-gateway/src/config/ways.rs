//! The ways of a route: the gateways of its sessions, and the alternatives.

use serde::Serialize;

use super::channel::ChannelKind;
use super::model::{Config, Route};
use super::via::Via;

/// Most alternative ways of a route.
pub(crate) const FURTHER_MAX: usize = 8;

impl Route {
    /// Returns the ways as they are written, best first.
    pub(crate) fn written_ways(&self) -> impl Iterator<Item = &[Via]> {
        let further = self.or_via.iter().map(Vec::as_slice);
        [self.via.as_slice()].into_iter().chain(further)
    }

    /// Returns the ways as they are tried, best first. A way that begins with an optional gateway
    /// is followed by the same way without it.
    pub(crate) fn ways(&self) -> Vec<&[Via]> {
        let mut ways: Vec<&[Via]> = Vec::new();
        for mut way in self.written_ways() {
            loop {
                if !ways.contains(&way) {
                    ways.push(way);
                }
                match way {
                    [first, rest @ ..] if first.is_optional() && !rest.is_empty() => way = rest,
                    _ => break,
                }
            }
        }
        ways
    }

    /// Returns the channel kinds of the segment to the first gateway of a way.
    pub(crate) fn first_channels<'a>(&'a self, way: &'a [Via]) -> &'a [ChannelKind] {
        let own = way.first().and_then(Via::channels);
        own.unwrap_or(&self.channels)
    }

    /// Returns all channel kinds that the route names.
    pub(crate) fn all_channels(&self) -> impl Iterator<Item = ChannelKind> {
        let own = self.written_ways().flatten().filter_map(Via::channels);
        own.chain([self.channels.as_slice()]).flatten().copied()
    }
}

/// The ways of a route's sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RouteWays {
    /// The destinations of the route.
    pub to: String,
    /// The gateways of each way, in order; the ways in the order of attempts. Optional gateways
    /// behind the first are included.
    pub ways: Vec<Vec<String>>,
}

impl std::fmt::Display for RouteWays {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ways: Vec<String> = self.ways.iter().map(|way| way.join(", ")).collect();
        write!(
            f,
            "the route to {} goes by {}",
            self.to,
            ways.join("; or by ")
        )
    }
}

impl Config {
    /// Returns the ways of all routes.
    #[must_use]
    pub fn ways(&self) -> Vec<RouteWays> {
        let ways = |route: &Route| {
            let to: Vec<String> = route.to.iter().map(ToString::to_string).collect();
            let gateways = |way: &[Via]| way.iter().map(|via| via.gateway().to_string()).collect();
            RouteWays {
                to: to.join(", "),
                ways: route.ways().into_iter().map(gateways).collect(),
            }
        };
        self.routes.iter().map(ways).collect()
    }
}

/// Describes a way: its gateways in order.
pub(crate) fn words(way: &[Via]) -> String {
    let gateway = |via: &Via| match via.is_optional() {
        true => format!("{} if it can be had", via.gateway()),
        false => via.gateway().to_string(),
    };
    way.iter().map(gateway).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(via: &str) -> Vec<String> {
        let text = format!("name = 'g'\n[[route]]\nto = ['*']\n{via}\n");
        let config = Config::parse(&text).unwrap();
        config.routes[0].ways().into_iter().map(words).collect()
    }

    #[test]
    fn ways_are_said_in_order() {
        let text = "name = 'g'\n[[route]]\nto = ['.a', '*']\nvia = ['a:1', 'c:1']\nor_via = [['b:1', 'c:1']]\n";
        let said = Config::parse(text).unwrap().ways();
        let line = "the route to .a, * goes by a:1, c:1; or by b:1, c:1";
        assert_eq!((said.len(), said[0].to_string().as_str()), (1, line));
    }

    #[test]
    fn a_way_that_begins_with_an_optional_gateway_is_tried_without_it_next() {
        let a = "{ gateway = 'a:1', optional = true }";
        let b = "{ gateway = 'b:1', optional = true }";
        let (a_words, b_words) = ("a:1 if it can be had", "b:1 if it can be had");
        assert_eq!(
            ways(&format!(
                "via = [{a}, {b}, 'c:1']\nor_via = [['d:1', {b}, 'c:1'], ['c:1']]"
            )),
            [
                format!("{a_words}, {b_words}, c:1"),
                format!("{b_words}, c:1"),
                "c:1".to_owned(),
                format!("d:1, {b_words}, c:1"),
            ]
        );
        assert_eq!(ways("via = ['a:1']"), ["a:1"]);
    }
}
