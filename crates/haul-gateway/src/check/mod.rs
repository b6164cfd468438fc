//! Checks that a configuration makes sense as a whole.
//!
//! Map: `ways` gateways on the ways of a route, and how this gateway authenticates to them.

mod ways;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use crate::config::{
    ByteCount, CHANNEL, CLASS, ChannelKind, Config, DOOR, GUEST_CLASS, INBOUND_CLASS, KEY,
    LISTENER, Listen, Listener, ListenerKind, Problem, ROUTE, Rdma, Route, Severity,
    default_regions,
};
use crate::path::Backend;
use crate::rates::REST;
use crate::session::Shape;
use crate::tls::{self, TlsError};

/// A ring needs one region to fill, one to drain, and one in flight.
const REGIONS_MIN: u16 = 3;
/// Smallest region, bytes: below, slabs cost more than they carry.
const REGION_BYTES_MIN: u64 = 1 << 20;
/// The least that a stream sends at a time, bytes.
const PACKET_BYTES: u64 = 1_500;
/// Longest message of an application, and most messages in flight, that memory is kept for.
const MESSAGE_MAX: ByteCount = ByteCount(16 << 20);
const DEPTH_MAX: u16 = 1024;
/// Longest name, bytes (part B3 of the protocol's limits).
const NAME_MAX: usize = 255;

impl Config {
    /// Reads a file that a gateway can be started with.
    ///
    /// # Errors
    /// Those of [`Config::load`], or all errors that [`Config::check`] finds.
    pub fn load_usable(path: &Path) -> Result<Self, Vec<Problem>> {
        let config = Self::load(path)?;
        let mut problems = config.check();
        problems.retain(Problem::is_error);
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(problems)
        }
    }

    /// Finds all errors, and what may not be intended. Reads the files that the configuration
    /// names.
    #[must_use]
    pub fn check(&self) -> Vec<Problem> {
        let mut check = Check {
            config: self,
            problems: Vec::new(),
        };
        check.whole();
        check.peers();
        check.certificates();
        check.sockets();
        check.admin();
        check.signalling();
        check.classes();
        check.rdma();
        for number in 0..self.channels.len() {
            check.channel(number);
        }
        for number in 0..self.keys.len() {
            check.key(number);
        }
        for number in 0..self.listeners.len() {
            check.listener(number);
        }
        for number in 0..self.routes.len() {
            check.route(number);
        }
        check.memory();
        check.problems.sort_by_key(|problem| problem.line);
        check.problems
    }

    /// Finds the RDMA devices that the configuration names and `find` does not know.
    #[must_use]
    pub fn check_devices(&self, find: impl Fn(&str) -> Result<(), String>) -> Vec<Problem> {
        let mut check = Check {
            config: self,
            problems: Vec::new(),
        };
        for (number, channel) in self.channels.iter().enumerate() {
            if let (ChannelKind::Verbs, Some(name)) = (channel.kind, &channel.device) {
                check.device(Place::Table(CHANNEL, number, "device"), name, &find);
            }
        }
        if let Some(rdma) = &self.rdma {
            check.device(Place::Setting("rdma"), &rdma.device, &find);
        }
        check.problems
    }
}

/// The place of a setting.
#[derive(Clone, Copy)]
enum Place {
    Setting(&'static str),
    /// A setting of the table of this name and number, from 0.
    Table(&'static str, usize, &'static str),
}

struct Check<'a> {
    config: &'a Config,
    problems: Vec<Problem>,
}

impl Check<'_> {
    fn tell(&mut self, severity: Severity, place: Place, text: impl Into<String>, hint: &str) {
        let lines = &self.config.lines;
        let (line, place) = match place {
            Place::Setting(name) => (lines.of(name), name.to_owned()),
            Place::Table(table, number, setting) => {
                let place = format!("[[{table}]] {}: {setting}", number + 1);
                (lines.of_number(table, number), place)
            }
        };
        self.problems.push(Problem {
            severity,
            line,
            place,
            text: text.into(),
            hint: Some(hint.to_owned()),
        });
    }

    fn error(&mut self, place: Place, text: impl Into<String>, hint: &str) {
        self.tell(Severity::Error, place, text, hint);
    }

    fn warn(&mut self, place: Place, text: impl Into<String>, hint: &str) {
        self.tell(Severity::Warning, place, text, hint);
    }

    fn whole(&mut self) {
        let config = self.config;
        if config.name.is_empty()
            || config.name.len() > NAME_MAX
            || config.name.contains(char::is_control)
        {
            self.error(
                Place::Setting("name"),
                "it must have 1 to 255 printable bytes",
                "the host's name will do",
            );
        }
        if config.listen.is_none() && config.listeners.is_empty() {
            self.error(
                Place::Setting("listen"),
                "nothing can connect",
                "set listen, or add a [[listener]]",
            );
        }
        if config.lines.of(DOOR).is_some() {
            self.warn(
                Place::Setting(DOOR),
                "[[door]] is the old name of [[listener]]",
                "write [[listener]]",
            );
        }
        if config.sessions == 0 {
            self.error(
                Place::Setting("sessions"),
                "no session is allowed",
                "allow one at least",
            );
        }
        if config.keepalive == 0 {
            self.error(
                Place::Setting("keepalive"),
                "the interval must be at least a second",
                "leave it out, or count from 1",
            );
        }
        if config.session.outage == 0 {
            self.error(
                Place::Setting("session"),
                "`outage` must be at least a second",
                "leave it out, or count from 1",
            );
        }
        // The number of regions of inbound sessions is fixed.
        self.ring(config.ring.0, default_regions(), Place::Setting("ring"));
    }

    /// Checks what peers need.
    fn peers(&mut self) {
        let config = self.config;
        let Some(listen) = config.listen else {
            for (place, is_set) in [
                ("channel", !config.channels.is_empty()),
                ("exit", !config.exit.is_empty()),
                ("rdma", config.rdma.iter().any(|rdma| !rdma.exit.is_empty())),
                ("next", !config.next.is_empty()),
                ("proxy_protocol", !config.proxy_protocol.is_empty()),
            ] {
                if is_set {
                    self.warn(
                        Place::Setting(place),
                        "it is for inbound sessions, and none can connect",
                        "set listen",
                    );
                }
            }
            return;
        };
        let place = Place::Setting("listen");
        if config.tls.is_none() && config.keys.is_empty() && !config.anonymous {
            self.error(
                place,
                "no peer can authenticate",
                "add [tls] or a [[key]]; anonymous = true for closed networks",
            );
        }
        if config.anonymous && !listen.ip().is_loopback() {
            self.warn(
                Place::Setting("anonymous"),
                format!("whoever reaches {listen} may use this gateway"),
                "use [tls] or [[key]] instead, unless the network is closed",
            );
        }
        if config.channels.is_empty() {
            self.error(
                place,
                "inbound sessions have no data channel",
                "add a [[channel]]",
            );
        }
        if !config.has_exit() && config.next.is_empty() {
            self.error(
                place,
                "inbound sessions have no destination",
                "set exit to the destinations allowed, or next to the next hops",
            );
        }
    }

    fn certificates(&mut self) {
        let Some(Err(error)) = self.config.tls.as_ref().map(tls::check) else {
            return;
        };
        let place = Place::Setting("tls");
        match error {
            TlsError::ForeignRoots { .. } => self.warn(
                place,
                error.to_string(),
                "peers with the same roots will refuse it",
            ),
            error => self.error(
                place,
                error.to_string(),
                "see docs/gateway-reference.md for how to make certificates",
            ),
        }
    }

    /// Finds two listeners at one address.
    fn sockets(&mut self) {
        let config = self.config;
        let mut taken: Vec<(Place, Protocol, SocketAddr)> = Vec::new();
        let listens = config
            .listen
            .map(|listen| (Place::Setting("listen"), Protocol::Tcp, listen));
        let admin = config
            .admin
            .as_ref()
            .map(|admin| (Place::Setting("admin"), Protocol::Tcp, admin.listen));
        let channels = config.channels.iter().enumerate().map(|(number, channel)| {
            (
                Place::Table(CHANNEL, number, "listen"),
                protocol(channel.kind),
                channel.listen,
            )
        });
        let listeners = config
            .listeners
            .iter()
            .enumerate()
            .map(|(number, listener)| {
                let protocol = match listener.kind {
                    ListenerKind::Rdma => Protocol::Verbs,
                    _ => Protocol::Tcp,
                };
                (
                    Place::Table(LISTENER, number, "listen"),
                    protocol,
                    listener.listen,
                )
            });
        for (place, protocol, address) in listens
            .into_iter()
            .chain(admin)
            .chain(channels)
            .chain(listeners)
        {
            if taken
                .iter()
                .any(|(_, other, at)| *other == protocol && overlap(*at, address))
            {
                self.error(
                    place,
                    format!("{address} is taken by another setting"),
                    "give each its own port",
                );
            }
            taken.push((place, protocol, address));
        }
    }

    fn admin(&mut self) {
        let admin = self.config.admin.as_ref();
        let Some(admin) = admin.filter(|admin| !admin.listen.ip().is_loopback()) else {
            return;
        };
        let place = Place::Setting("admin");
        if admin.allow_remote {
            self.warn(
                place,
                "the page has no authentication",
                "make sure that only operators reach it",
            );
        } else {
            self.error(
                place,
                format!(
                    "whoever reaches {} would see what this gateway carries",
                    admin.listen
                ),
                "listen at 127.0.0.1 or [::1], or set allow_remote = true where that is meant",
            );
        }
    }

    /// Checks the back end for paths.
    fn signalling(&mut self) {
        if let Err(why) = Backend::new(&self.config.path) {
            self.error(Place::Setting("path"), why, "see docs/gateway-reference.md");
        }
    }

    fn channel(&mut self, number: usize) {
        let Listen {
            kind,
            public,
            device,
            ..
        } = &self.config.channels[number];
        let is_first = self.config.channels[..number]
            .iter()
            .all(|other| other.kind != *kind);
        if !is_first {
            self.error(
                Place::Table(CHANNEL, number, "kind"),
                format!("{kind} is there already"),
                "one of each kind is enough",
            );
        }
        if public.is_some_and(|public| public.ip().is_unspecified() || public.port() == 0) {
            self.error(
                Place::Table(CHANNEL, number, "public"),
                "peers cannot connect to it",
                "give the address and the port that they reach",
            );
        }
        let place = Place::Table(CHANNEL, number, "device");
        match (kind, device) {
            (ChannelKind::Verbs, None) => {
                self.error(place, "it is missing", "haul devices lists them")
            }
            (ChannelKind::Verbs, Some(_)) | (_, None) => {}
            (_, Some(_)) => self.error(place, "only verbs takes a device", "remove it"),
        }
    }

    /// Checks applications' RDMA connections.
    fn rdma(&mut self) {
        let config = self.config;
        let Some(rdma) = &config.rdma else {
            return;
        };
        let place = Place::Setting("rdma");
        if rdma.message.0 == 0 || rdma.message.0 > MESSAGE_MAX.0 {
            self.error(
                place,
                format!(
                    "messages may be of 1 octet to {MESSAGE_MAX}, not {}",
                    rdma.message
                ),
                "set message to what the applications send at most",
            );
        }
        if rdma.depth == 0 || rdma.depth > DEPTH_MAX {
            self.error(
                place,
                format!(
                    "a depth may be of 1 to {DEPTH_MAX} messages, not {}",
                    rdma.depth
                ),
                "leave it out for 32",
            );
        }
        if rdma.connections == 0 {
            self.error(
                place,
                "no connection is allowed",
                "leave connections out for 64",
            );
        }
        if rdma.answer == 0 {
            self.error(
                place,
                "the timeout must be at least a second",
                "leave answer out for 30 s",
            );
        }
        let is_rdma = |listener: &Listener| listener.kind == ListenerKind::Rdma;
        if rdma.exit.is_empty() && !config.listeners.iter().any(is_rdma) {
            self.warn(
                place,
                "nothing uses it",
                "add a [[listener]] of kind rdma, or set its exit",
            );
        }
    }

    fn device(&mut self, place: Place, name: &str, find: &dyn Fn(&str) -> Result<(), String>) {
        if let Err(why) = find(name) {
            self.error(place, why, "haul devices lists those of this machine");
        }
    }

    fn key(&mut self, number: usize) {
        let key = &self.config.keys[number];
        if self.config.keys[..number]
            .iter()
            .any(|other| other.name == key.name)
        {
            self.error(
                Place::Table(KEY, number, "name"),
                format!("'{}' is there already", key.name),
                "give each key its own name",
            );
        }
        if let Err(error) = key.read() {
            self.error(
                Place::Table(KEY, number, "file"),
                error.to_string(),
                "the same 32 bytes go to both peers",
            );
        }
    }

    fn listener(&mut self, number: usize) {
        let listener = &self.config.listeners[number];
        let place = |setting| Place::Table(LISTENER, number, setting);
        match (listener.kind, &listener.to) {
            (ListenerKind::Forward | ListenerKind::Rdma, None) => self.error(
                place("to"),
                "it is missing",
                "forward and rdma need HOST:PORT, where all connections go",
            ),
            (ListenerKind::Forward | ListenerKind::Rdma, Some(to))
                if self.config.route_number(to.endpoint()).is_none() =>
            {
                self.error(
                    place("to"),
                    format!("no route leads to {to}"),
                    "add a [[route]] for it",
                );
            }
            (ListenerKind::Forward | ListenerKind::Rdma, Some(_)) => {}
            (_, Some(_)) => self.error(
                place("to"),
                "only forward and rdma have one destination",
                "remove it",
            ),
            (_, None) if self.config.routes.is_empty() => {
                self.error(place("kind"), "no route leads anywhere", "add a [[route]]")
            }
            (_, None) => {}
        }
        if listener.kind == ListenerKind::Rdma && self.config.rdma.is_none() {
            self.error(
                place("kind"),
                "it needs a device",
                "add [rdma] with the device; haul devices lists them",
            );
        }
        if is_open(listener) {
            self.error(
                place("clients"),
                format!(
                    "whoever reaches {} could use it to go anywhere that routes lead",
                    listener.listen
                ),
                "list the prefixes of your clients",
            );
        }
    }

    fn route(&mut self, number: usize) {
        let route = &self.config.routes[number];
        let place = |setting| Place::Table(ROUTE, number, setting);
        self.ring(route.ring.0, route.regions, place("ring"));
        if route.to.is_empty() {
            self.error(
                place("to"),
                "it has no destination",
                "list destinations, or '*' for all",
            );
        }
        let earlier = self.config.routes[..number]
            .iter()
            .flat_map(|route| &route.to);
        let earlier: Vec<_> = earlier.collect();
        for to in &route.to {
            if earlier.iter().any(|other| *other == to || other.is_any()) {
                self.warn(
                    place("to"),
                    format!("{to} never comes here: an earlier route takes it"),
                    "put the narrower route first",
                );
            }
        }
        self.ways(route, number);
        self.channels(route, number);
        self.rates(route, number);
        self.proof(route, number);
    }

    fn rates(&mut self, route: &Route, number: usize) {
        let place = |setting| Place::Table(ROUTE, number, setting);
        if route.rate.is_some_and(|rate| rate.0 == 0) {
            self.error(
                place("rate"),
                "a rate or burst of 0 sends nothing",
                "leave it out for no limit",
            );
        }
        if route.burst.is_some_and(|burst| burst.0 == 0) {
            self.error(
                place("burst"),
                "a rate or burst of 0 sends nothing",
                "leave it out unless there is a policer",
            );
        }
        let least = u64::from(route.streams) * 2 * PACKET_BYTES;
        if route
            .burst
            .is_some_and(|burst| (1..least).contains(&burst.0))
        {
            self.warn(
                place("burst"),
                format!(
                    "its {} streams send a packet at a time, together more than half of it",
                    route.streams
                ),
                "fewer streams",
            );
        }
        if route.streams == 0 {
            self.error(
                place("streams"),
                "there must be one",
                "leave it out, or count from 1",
            );
        }
    }

    /// Checks rate limits and classes.
    fn classes(&mut self) {
        let config = self.config;
        if config.rate.is_some_and(|rate| rate.0 == 0) {
            self.error(
                Place::Setting("rate"),
                "a rate or burst of 0 sends nothing",
                "leave it out for no limit",
            );
        }
        for (number, class) in config.classes.iter().enumerate() {
            let place = |setting| Place::Table(CLASS, number, setting);
            let is_again = config.classes[..number]
                .iter()
                .any(|other| other.name == class.name);
            if class.name.is_empty() || class.name == REST || is_again {
                let text = format!("'{}' is no name of its own", class.name);
                self.error(
                    place("name"),
                    text,
                    "choose another name; 'rest' is for sessions in no class",
                );
            }
            if class.share == 0 {
                self.error(
                    place("share"),
                    "a share of 0 sends nothing",
                    "give it 1 of 100 at least",
                );
            }
            if class.rate.is_some_and(|rate| rate.0 == 0) {
                self.error(
                    place("rate"),
                    "a rate or burst of 0 sends nothing",
                    "leave it out",
                );
            }
            if config.rate.is_none() && class.rate.is_none() {
                self.warn(
                    place("share"),
                    "the rate that it is a share of is unknown",
                    "set `rate` to what the link carries",
                );
            }
        }
        let shares = config.classes.iter().map(|class| u32::from(class.share));
        if shares.sum::<u32>() > 99 {
            self.error(
                Place::Table(CLASS, config.classes.len() - 1, "share"),
                "no share is left for sessions in no class",
                "make the shares less than 100 together",
            );
        }
        let keys = config.keys.iter().enumerate();
        let keys = keys.map(|(number, key)| (Place::Table(KEY, number, "class"), &key.class));
        let routes = config.routes.iter().enumerate();
        let routes =
            routes.map(|(number, route)| (Place::Table(ROUTE, number, "class"), &route.class));
        let mut inbound = Place::Setting(INBOUND_CLASS);
        if config.lines.of(GUEST_CLASS).is_some() {
            inbound = Place::Setting(GUEST_CLASS);
            self.warn(
                inbound,
                "guest_class is the old name of inbound_class",
                "write inbound_class",
            );
        }
        let inbound = (inbound, &config.inbound_class);
        for (place, name) in keys.chain(routes).chain([inbound]) {
            if let Some(name) = name
                && config.classes.iter().all(|class| class.name != *name)
            {
                let text = format!("there is no [[class]] '{name}'");
                self.error(place, text, "add it, or name another");
            }
        }
    }

    fn ring(&mut self, ring: u64, regions: u16, place: Place) {
        let size = ByteCount(ring);
        if regions < REGIONS_MIN {
            self.error(
                place,
                format!("it has {regions} regions"),
                "use at least three: one is filled, one drained, one in flight",
            );
        }
        if !ring.is_power_of_two() {
            self.error(
                place,
                format!("{size} is no power of two"),
                "write it like 64MiB",
            );
        }
        if ring < u64::from(regions) * REGION_BYTES_MIN {
            self.error(
                place,
                format!("{size} is less than 1MiB for each of {regions} regions"),
                "make it larger, or the regions fewer",
            );
        }
    }

    /// Checks the memory: one session for each route, the RDMA connections, and the rest for
    /// inbound sessions.
    fn memory(&mut self) {
        let config = self.config;
        let (place, memory) = (Place::Setting("memory"), config.memory);
        let routes = config
            .routes
            .iter()
            .map(|route| Shape::of_route(config, route).first_bytes(true));
        let routes = routes.fold(0, u64::saturating_add);
        if routes > memory.0 {
            let needed = ByteCount(routes);
            self.error(
                place,
                format!("sessions of all routes take {needed} at their opening, which is more than {memory}"),
                "raise it, or make rings smaller",
            );
            return;
        }
        let rdma = config.rdma.as_ref();
        // Longer messages are reported elsewhere.
        let rdma = rdma.filter(|rdma| rdma.message.0 <= MESSAGE_MAX.0);
        let rdma = rdma.map_or(0, Rdma::bytes);
        if rdma > memory.0 - routes {
            let needed = ByteCount(rdma);
            self.error(
                Place::Setting("rdma"),
                format!("its connections may take {needed}, and {memory} have room for less beside sessions of all routes"),
                "raise memory, or make connections, depth or message less",
            );
            return;
        }
        if config.listen.is_none() {
            return;
        }
        let first_bytes = Shape::of_incoming(config).first_bytes(true);
        let fit = (memory.0 - routes - rdma) / first_bytes.max(1);
        let expected = config.sessions.saturating_sub(config.routes.len());
        if fit == 0 && expected > 0 {
            self.error(
                place,
                "no inbound session fits beside those of the routes",
                "raise it, or make rings smaller",
            );
        } else if fit < expected as u64 {
            self.warn(
                place,
                format!("{memory} has room for {fit} sessions that come in, not for {expected}: further ones are refused"),
                "raise it, make ring smaller, or lower sessions",
            );
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
    Verbs,
}

const fn protocol(kind: ChannelKind) -> Protocol {
    match kind {
        ChannelKind::Tcp => Protocol::Tcp,
        ChannelKind::IwarpUdt => Protocol::Udp,
        ChannelKind::Verbs => Protocol::Verbs,
    }
}

/// Whether both addresses cannot be listened at together.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let covers = |one: IpAddr, other: IpAddr| {
        one == other || one.is_unspecified() && one.is_ipv4() == other.is_ipv4()
    };
    let ips = covers(one.ip(), other.ip()) || covers(other.ip(), one.ip());
    ips && one.port() == other.port() && one.port() != 0
}

/// Whether clients name their destination and may come from anywhere.
const fn is_open(listener: &Listener) -> bool {
    let says_where = matches!(listener.kind, ListenerKind::Socks5 | ListenerKind::Http);
    says_where && !listener.listen.ip().is_loopback() && listener.clients.is_empty()
}

#[cfg(test)]
mod tests;
