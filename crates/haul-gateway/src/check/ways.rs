//! Checks the gateways on the ways of a route.

use haul_xsp::wire::HOPS_MAX;

use super::{Check, Place};
use crate::config::{FURTHER_MAX, HostPort, ROUTE, Route, Via, way_in_words as words};
use crate::host;

impl Check<'_> {
    pub(super) fn ways(&mut self, route: &Route, number: usize) {
        let place = Place::Table(ROUTE, number, "or_via");
        if route.or_via.len() > FURTHER_MAX {
            self.error(
                place,
                format!("it has {} further ways", route.or_via.len()),
                "name 8 at most",
            );
        }
        let ways: Vec<&[Via]> = route.written_ways().collect();
        for (index, way) in ways.iter().enumerate() {
            let place = Place::Table(ROUTE, number, if index == 0 { "via" } else { "or_via" });
            self.way(way, place);
            let text = words(way);
            let is_again = ways[..index].iter().any(|other| words(other) == text);
            if is_again && !way.is_empty() {
                self.error(
                    place,
                    format!("{text} is named twice"),
                    "name each way once",
                );
            }
        }
        let last = |way: &[Via]| way.last().map(Via::gateway).cloned();
        let ends_elsewhere = |way: &&&[Via]| !way.is_empty() && last(way) != last(&route.via);
        if route.end_to_end
            && let Some(way) = ways.iter().find(ends_elsewhere)
        {
            self.warn(
                place,
                format!("{} ends at another gateway than via: sessions that there are do not change to it, new ones do", words(way)),
                "let all ways end at the same gateway, if sessions are to go on over another",
            );
        }
    }

    /// Checks one way.
    fn way(&mut self, way: &[Via], place: Place) {
        if way.is_empty() || way.len() > HOPS_MAX {
            self.error(
                place,
                format!("it has {} gateways", way.len()),
                "name 1 to 16",
            );
        }
        let gateways: Vec<&HostPort> = way.iter().map(Via::gateway).collect();
        for (index, gateway) in gateways.iter().enumerate() {
            let is_own = self
                .config
                .listen
                .is_some_and(|listen| host::endpoint(listen) == *gateway.endpoint());
            if is_own || gateways[..index].contains(gateway) {
                self.error(
                    place,
                    format!("{gateway} makes it a loop"),
                    "name each other gateway once",
                );
            }
        }
        if let Some(last) = way.last().filter(|last| last.is_optional()) {
            self.error(
                place,
                format!(
                    "{} connects to the destination and cannot be left out",
                    last.gateway()
                ),
                "only those before the last may be optional",
            );
        }
        let firsts = way.iter().take_while(|via| via.is_optional()).count() + 1;
        for via in way.iter().skip(firsts).filter(|via| via.key().is_some()) {
            self.error(
                place,
                format!(
                    "{} is never the first: this gateway proves nothing to it",
                    via.gateway()
                ),
                "leave its key out",
            );
        }
    }

    pub(super) fn channels(&mut self, route: &Route, number: usize) {
        let own = route.written_ways().flatten().filter_map(Via::channels);
        for channels in own.chain([route.channels.as_slice()]) {
            let repeats = (1..channels.len()).find(|at| channels[..*at].contains(&channels[*at]));
            let place = Place::Table(ROUTE, number, "channels");
            if channels.is_empty() {
                self.error(
                    place,
                    "none is named",
                    "name those that may be used, the best first",
                );
            } else if let Some(at) = repeats {
                self.error(
                    place,
                    format!("{} is named twice", channels[at]),
                    "name each once, the best first",
                );
            }
        }
    }

    /// Checks how this gateway authenticates to the next one.
    pub(super) fn proof(&mut self, route: &Route, number: usize) {
        let config = self.config;
        let place = Place::Table(ROUTE, number, "key");
        let own = route.written_ways().flatten().filter_map(Via::key);
        for name in own.chain(route.key.as_deref()) {
            if config.keys.iter().all(|key| key.name != name) {
                let text = format!("there is no [[key]] '{name}'");
                self.error(place, text, "add it, or name another");
            }
        }
        match &route.key {
            None if config.tls.is_none() && config.keys.is_empty() && !config.anonymous => {
                self.error(
                    place,
                    "the next gateway cannot be shown who this one is",
                    "add [tls] or a [[key]]; anonymous = true for closed networks",
                );
            }
            _ => {}
        }
    }
}
