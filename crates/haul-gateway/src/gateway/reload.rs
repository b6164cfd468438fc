//! A changed configuration: what is new takes effect for what comes, what there is goes on.

use std::io;
use std::path::Path;

use super::{Gateway, OpenDoor, StartError, open};
use crate::config::{self, Config, Problem};
use crate::door::OpenError;
use crate::extender::Plan;
use crate::house::{Letter, Secrets, lock};
use crate::log::Level;
use crate::path::Backend;
use crate::thread::Thread;

impl Gateway {
    /// Reads the configuration again, and takes it: routes, exits, next hops, keys, certificates
    /// and doors. Sessions go on; those of routes that are gone end when their connections have.
    /// What takes effect only when the gateway is started again is logged.
    ///
    /// # Errors
    /// The configuration is broken, a key cannot be read, a door cannot be opened: nothing has
    /// changed.
    pub fn reload(&mut self, path: &Path) -> Result<(), StartError> {
        let read = Config::load_usable(path).map_err(|problems| {
            let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
            format!("{}: {}", path.display(), lines.join("; "))
        });
        let taken = read.and_then(|config| self.take(config));
        let house = &self.house;
        match &taken {
            Ok(changes) => {
                house.count(|totals| totals.reloads += 1);
                house.say(Level::Info, format!("configuration taken: {changes}"));
            }
            Err(why) => {
                house.count(|totals| totals.reloads_failed += 1);
                house.say(
                    Level::Error,
                    format!("configuration not taken, nothing has changed: {why}"),
                );
            }
        }
        taken.map(drop).map_err(StartError)
    }

    /// What has changed, in words.
    fn take(&mut self, config: Config) -> Result<String, String> {
        if self.house.is_draining() {
            return Err("this gateway is being stopped".to_owned());
        }
        let secrets = Secrets::load(&config)?;
        let path = Backend::new(&config.path)?;
        let before = self.house.config();
        let doors = self.change_doors(&config.doors)?;
        let routes = Change::of(&before.routes, &config.routes);
        for text in too_late(&before, &config) {
            self.house.say(Level::Warning, text);
        }
        for route in &config.routes {
            let kinds = route.all_channels();
            for kind in kinds.filter(|kind| self.house.network(*kind).is_none()) {
                let text = format!(
                    "{kind}: this kind of data channel was not there when the gateway was started"
                );
                self.house.say(Level::Warning, text);
            }
        }
        // Nobody opens a session for a route that is gone meanwhile.
        let opening = lock(&self.house.opening);
        let (sessions_max, allowed) = (config.sessions, config.allowed());
        self.house.directory().set_rules(sessions_max, allowed);
        self.house.set_config(config, secrets, path);
        self.end_routes();
        drop(opening);
        self.keeper.iter().for_each(Thread::wake);
        Ok(format!("{routes} routes, {doors} doors"))
    }

    /// Sessions of routes that are gone take nothing new, and end.
    fn end_routes(&self) {
        let config = self.house.config();
        let mut registers = self.house.registers();
        let is_there = |(route, _): &(config::Route, _)| config.routes.contains(route);
        let (stay, go) = std::mem::take(&mut registers.openers)
            .into_iter()
            .partition(is_there);
        registers.openers = stay;
        drop(registers);
        let go: Vec<(config::Route, _)> = go;
        for (_, opener) in go {
            // Who is gone needs no letter.
            let _ = opener.post(Letter::Drain);
        }
    }

    /// Opens doors that are new and closes those that are gone; all of it or, where one cannot be
    /// opened, nothing.
    fn change_doors(&mut self, wanted: &[config::Door]) -> Result<Change, String> {
        let had: Vec<config::Door> = self.doors.iter().map(|(door, _)| door.clone()).collect();
        let change = Change::of(&had, wanted);
        let mut fresh = Vec::new();
        let mut blocked = Vec::new();
        for door in wanted.iter().filter(|door| !had.contains(door)) {
            match open(&self.house, door) {
                Ok(opened) => fresh.push((door.clone(), opened)),
                Err(OpenError::System { source, .. })
                    if source.kind() == io::ErrorKind::AddrInUse =>
                {
                    blocked.push(door);
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        let (stay, go): (Vec<_>, Vec<_>) = std::mem::take(&mut self.doors)
            .into_iter()
            .partition(|(door, _)| wanted.contains(door));
        self.doors = stay;
        let go: Vec<config::Door> = go.into_iter().map(|(door, _)| door).collect();
        // An address may be that of a door which has just been closed.
        let opened: Result<Vec<_>, OpenError> = blocked
            .into_iter()
            .map(|door| Ok((door.clone(), open(&self.house, door)?)))
            .collect();
        match opened {
            Ok(opened) => {
                self.doors.extend(fresh);
                self.doors.extend(opened);
                self.sort_doors(wanted);
                Ok(change)
            }
            Err(error) => {
                drop(fresh);
                self.reopen(&go);
                self.sort_doors(&had);
                Err(error.to_string())
            }
        }
    }

    fn reopen(&mut self, doors: &[config::Door]) {
        for door in doors {
            match open(&self.house, door) {
                Ok(opened) => self.doors.push((door.clone(), opened)),
                Err(error) => self.house.say(Level::Error, error.to_string()),
            }
        }
    }

    fn sort_doors(&mut self, order: &[config::Door]) {
        let place =
            |(door, _): &(config::Door, OpenDoor)| order.iter().position(|other| other == door);
        self.doors.sort_by_key(place);
    }
}

/// How many are new, gone, and as before.
struct Change {
    new: usize,
    gone: usize,
    kept: usize,
}

impl Change {
    fn of<T: PartialEq>(before: &[T], after: &[T]) -> Self {
        let kept = after.iter().filter(|item| before.contains(item)).count();
        Self {
            new: after.len() - kept,
            gone: before.iter().filter(|item| !after.contains(item)).count(),
            kept,
        }
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { new, gone, kept } = self;
        write!(f, "{new} new, {gone} gone and {kept} kept")
    }
}

/// What of `[rdma]` is taken at the start.
fn device(config: &Config) -> Option<(&str, Plan, u16)> {
    let rdma = config.rdma.as_ref()?;
    Some((&rdma.device, rdma.plan(), rdma.connections))
}

/// What has changed and needs a new start.
fn too_late(before: &Config, after: &Config) -> Vec<String> {
    let changed = [
        ("listen", before.listen != after.listen),
        ("memory", before.memory != after.memory),
        ("channel", before.channels != after.channels),
        ("admin", before.admin != after.admin),
        ("rdma", device(before) != device(after)),
    ];
    let changed = changed.into_iter().filter(|(_, has_changed)| *has_changed);
    let text = |(name, _)| {
        format!("`{name}` has changed: it takes effect when the gateway is started again")
    };
    changed.map(text).collect()
}
