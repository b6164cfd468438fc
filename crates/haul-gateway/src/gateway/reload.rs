//! Applies a changed configuration: new sessions and connections use it, existing ones go on.

use std::io;
use std::path::Path;

use haul_extender::Plan;

use super::{Gateway, OpenListener, StartError, open};
use crate::access::AccessWriter;
use crate::config::{self, Config, Problem};
use crate::listener::OpenError;
use crate::log::Level;
use crate::path::Backend;
use crate::shared::{Secrets, SessionCommand};
use crate::sync::lock;
use haul_io::thread::Thread;

impl Gateway {
    /// Reads the configuration again and applies it: routes, exits, next hops, keys, certificates
    /// and listeners. Sessions whose route is gone end after their connections. A log line names
    /// each change that needs a restart.
    ///
    /// # Errors
    /// The configuration is invalid, a key is unusable, or a listener cannot be opened. Nothing has
    /// changed.
    pub fn reload(&mut self, path: &Path) -> Result<(), StartError> {
        let read = Config::load_usable(path).map_err(|problems| {
            let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
            format!("{}: {}", path.display(), lines.join("; "))
        });
        let taken = read.and_then(|config| self.take(config));
        let shared = &self.shared;
        match &taken {
            Ok(changes) => {
                shared.count(|totals| totals.reloads += 1);
                shared.log(Level::Info, format!("configuration taken: {changes}"));
            }
            Err(why) => {
                shared.count(|totals| totals.reloads_failed += 1);
                shared.log(
                    Level::Error,
                    format!("configuration not taken, nothing has changed: {why}"),
                );
            }
        }
        taken.map(drop).map_err(StartError)
    }

    /// Returns a description of the changes.
    fn take(&mut self, config: Config) -> Result<String, String> {
        if self.shared.is_draining() {
            return Err("this gateway is being stopped".to_owned());
        }
        let secrets = Secrets::load(&config)?;
        let path = Backend::new(&config.path)?;
        // The file may have been moved away: a new one is begun.
        let access = config.access_log.as_ref().map(AccessWriter::open);
        let access = access.transpose()?;
        let before = self.shared.config();
        let listeners = self.change_listeners(&config.listeners)?;
        let routes = Change::of(&before.routes, &config.routes);
        for text in too_late(&before, &config) {
            self.shared.log(Level::Warning, text);
        }
        for route in &config.routes {
            let kinds = route.all_channels();
            for kind in kinds.filter(|kind| self.shared.network(*kind).is_none()) {
                let text = format!(
                    "{kind}: this kind of data channel was not there when the gateway was started"
                );
                self.shared.log(Level::Warning, text);
            }
        }
        // Holding the lock keeps sessions of removed routes from being opened.
        let opening = lock(&self.shared.opening);
        let (sessions_max, allowed) = (config.sessions, config.allowed());
        self.shared.directory().set_rules(sessions_max, allowed);
        self.shared.set_config(config, secrets, path);
        self.shared.set_access(access);
        self.end_routes();
        drop(opening);
        self.ready.iter().chain(&self.health).for_each(Thread::wake);
        Ok(format!("{routes} routes, {listeners} listeners"))
    }

    /// Drains the sessions of removed routes.
    fn end_routes(&self) {
        let config = self.shared.config();
        let mut registers = self.shared.registers();
        let is_there = |(route, _): &(config::Route, _)| config.routes.contains(route);
        let (stay, go) = std::mem::take(&mut registers.openers)
            .into_iter()
            .partition(is_there);
        registers.openers = stay;
        drop(registers);
        let go: Vec<(config::Route, _)> = go;
        for (_, opener) in go {
            // The session may have ended.
            let _ = opener.send(SessionCommand::Drain);
        }
    }

    /// Opens new listeners and closes removed ones. If one cannot be opened, nothing changes.
    fn change_listeners(&mut self, wanted: &[config::Listener]) -> Result<Change, String> {
        let had: Vec<config::Listener> = self
            .listeners
            .iter()
            .map(|(listener, _)| listener.clone())
            .collect();
        let change = Change::of(&had, wanted);
        let mut fresh = Vec::new();
        let mut blocked = Vec::new();
        for listener in wanted.iter().filter(|listener| !had.contains(listener)) {
            match open(&self.shared, listener) {
                Ok(opened) => fresh.push((listener.clone(), opened)),
                Err(OpenError::System { source, .. })
                    if source.kind() == io::ErrorKind::AddrInUse =>
                {
                    blocked.push(listener);
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        let (stay, go): (Vec<_>, Vec<_>) = std::mem::take(&mut self.listeners)
            .into_iter()
            .partition(|(listener, _)| wanted.contains(listener));
        self.listeners = stay;
        let go: Vec<config::Listener> = go.into_iter().map(|(listener, _)| listener).collect();
        // A listener that was just closed may have had the address.
        let opened: Result<Vec<_>, OpenError> = blocked
            .into_iter()
            .map(|listener| Ok((listener.clone(), open(&self.shared, listener)?)))
            .collect();
        match opened {
            Ok(opened) => {
                self.listeners.extend(fresh);
                self.listeners.extend(opened);
                self.sort_listeners(wanted);
                Ok(change)
            }
            Err(error) => {
                drop(fresh);
                self.reopen(&go);
                self.sort_listeners(&had);
                Err(error.to_string())
            }
        }
    }

    fn reopen(&mut self, listeners: &[config::Listener]) {
        for listener in listeners {
            match open(&self.shared, listener) {
                Ok(opened) => self.listeners.push((listener.clone(), opened)),
                Err(error) => self.shared.log(Level::Error, error.to_string()),
            }
        }
    }

    fn sort_listeners(&mut self, order: &[config::Listener]) {
        let place = |(listener, _): &(config::Listener, OpenListener)| {
            order.iter().position(|other| other == listener)
        };
        self.listeners.sort_by_key(place);
    }
}

/// Numbers of new, removed and unchanged items.
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

/// The settings of `[rdma]` that are read only at the start.
fn device(config: &Config) -> Option<(&str, Plan, u16)> {
    let rdma = config.rdma.as_ref()?;
    Some((&rdma.device, rdma.plan(), rdma.connections))
}

/// Names each change that needs a restart.
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
