//! The paths of a session: its route's rules, and peers' requests for the segments behind this
//! gateway.

use haul_xsp::wire::{HOPS_MAX, PathAction, PathState};

use super::super::circuit::Circuit;
use super::Worker;
use super::paths::Asked;
use crate::config::PathRule;
use crate::host::{Shown, hex};
use crate::log::Level;
use crate::path::{Request, word, words};
use crate::shared::SessionCommand;
use crate::status::{Path, Role};

/// Peers' requests at a time.
const PATHS_MAX: usize = 8;
/// The request of this end's own route.
const OWN: u32 = 1;

impl Worker {
    /// Asks for the paths of the route, here and at all gateways on the way.
    pub(super) fn open_paths(&mut self) {
        if self.paths.rules.is_empty() || !self.paths.asked.is_empty() {
            return;
        }
        let rules = self.paths.rules.clone();
        self.ask_others();
        if !self.shared.path().is_nobody()
            && let Err(why) = self.ask_path(None, OWN, rules)
        {
            self.shared
                .log(Level::Warning, format!("cannot ask for a path: {why}"));
        }
    }

    /// Asks the gateways on a new way of the session.
    pub(super) fn open_paths_anew(&mut self) {
        if self.part.role() == Role::Opener && !self.paths.rules.is_empty() {
            self.paths.heard.clear();
            self.ask_others();
        }
    }

    /// Asks all gateways on the way for the paths of the route.
    pub(super) fn ask_others(&mut self) {
        let text = self.paths.rules.iter().map(ToString::to_string).collect();
        if let Some(session) = self.body.session(0)
            && let Err(error) = session.request_path(PathAction::Create, OWN, text)
        {
            self.shared
                .log(Level::Warning, format!("cannot ask for a path: {error}"));
        }
    }

    /// Handles a peer's request.
    pub(super) fn on_path_request(
        &mut self,
        side: usize,
        action: PathAction,
        request: u32,
        rules: &[String],
    ) {
        let is_it = |asked: &Asked| asked.from == Some((side, request));
        let known = self.paths.asked.iter().position(is_it);
        let answer = match (action, known) {
            (PathAction::Create, None) => self.create_path(side, request, rules),
            // Its owner has come by another way.
            (PathAction::Create, Some(at))
                if self.paths.asked[at].shown.rules == rules.join("; ") =>
            {
                Ok(self.paths.asked[at].told())
            }
            (PathAction::Create, Some(_)) => Err("already asked for".to_owned()),
            (PathAction::Delete, Some(at)) => {
                self.paths.asked[at].circuit = None;
                Ok((PathState::Pending, "it is being taken down".to_owned()))
            }
            (PathAction::Query, Some(at)) => Ok(self.paths.asked[at].told()),
            (_, Some(_)) => {
                Err("a path cannot be changed: delete it and create another".to_owned())
            }
            (_, None) => Err("never asked for".to_owned()),
        };
        let (state, text) = answer.unwrap_or_else(|why| (PathState::Failed, why));
        self.report_path(side, request, state, &text);
    }

    pub(super) fn create_path(
        &mut self,
        side: usize,
        request: u32,
        rules: &[String],
    ) -> Result<(PathState, String), String> {
        if self.shared.path().is_nobody() {
            return Err("this gateway has no back end for paths".to_owned());
        }
        if self.paths.asked.len() >= PATHS_MAX {
            return Err("too many paths for one session".to_owned());
        }
        let rules = rules.iter().map(|rule| rule.parse::<PathRule>());
        let rules = rules
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())?;
        self.ask_path(Some((side, request)), request, rules)?;
        Ok((PathState::Pending, String::new()))
    }

    pub(super) fn ask_path(
        &mut self,
        from: Option<(usize, u32)>,
        request: u32,
        rules: Vec<PathRule>,
    ) -> Result<(), String> {
        let Some(session) = self.body.session(0) else {
            return Ok(());
        };
        let gateway = self.shared.config().name.clone();
        let shown = Path {
            rules: text(&rules),
            gateway: gateway.clone(),
            state: word(PathState::Pending),
            text: String::new(),
        };
        let mut asked = Request::new(&gateway, hex(&session.id().0), request, rules);
        let hops = session.hops().iter();
        asked.hops = hops.map(|hop| Shown(&hop.endpoint).to_string()).collect();
        asked.position = match self.part.role() {
            Role::Opener => 0,
            _ => usize::from(session.hop_index()) + 1,
        };
        let (number, handle) = (self.paths.next, self.handle.clone());
        let circuit = Circuit::ask(&self.shared, asked, move |state, text| {
            // The session may have ended.
            let _ = handle.send(SessionCommand::Path(number, state, text.to_owned()));
        })?;
        self.paths.next += 1;
        self.paths.asked.push(Asked {
            number,
            from,
            shown,
            circuit: Some(circuit),
        });
        Ok(())
    }

    /// Handles a state from this gateway's back end.
    pub(super) fn on_path_news(&mut self, number: u32, state: PathState, text: &str) {
        let Some(asked) = self
            .paths
            .asked
            .iter_mut()
            .find(|asked| asked.number == number)
        else {
            return;
        };
        (asked.shown.state, asked.shown.text) = (word(state), text.to_owned());
        let (line, from) = (line(&asked.shown), asked.from);
        let is_ending = asked.circuit.is_none();
        if !is_ending {
            self.log_path(state, &line);
        } else if state != PathState::Pending {
            self.paths.asked.retain(|asked| asked.number != number);
        }
        if let Some((side, request)) = from {
            self.report_path(side, request, state, text);
        }
    }

    pub(super) fn report_path(&mut self, side: usize, request: u32, state: PathState, text: &str) {
        // The reporting gateway stands first: no other gateway adds it.
        let text = format!("{}: {text}", self.shared.config().name);
        if let Some(session) = self.body.session(side) {
            // The session may no longer be open.
            let _ = session.path_status(request, state, &text);
        }
    }

    /// Handles another gateway's report about a path that this end has asked for.
    pub(super) fn on_path_status(&mut self, request: u32, state: PathState, text: &str) {
        if request != OWN || self.paths.rules.is_empty() {
            return;
        }
        let text = words(text);
        let (gateway, text) = text.split_once(':').unwrap_or(("", &text));
        let said = Path {
            rules: self::text(&self.paths.rules),
            gateway: gateway.trim().to_owned(),
            state: word(state),
            text: text.trim().to_owned(),
        };
        self.log_path(state, &line(&said));
        let heard = &mut self.paths.heard;
        let known = heard.iter().position(|known| known.gateway == said.gateway);
        match known {
            Some(at) => heard[at] = said,
            None if heard.len() < HOPS_MAX => heard.push(said),
            None => {}
        }
    }

    pub(super) fn log_path(&self, state: PathState, line: &str) {
        let level = match state {
            PathState::Failed => Level::Warning,
            _ => Level::Info,
        };
        self.shared.log(level, line);
    }
}

fn line(path: &Path) -> String {
    let Path {
        rules,
        gateway,
        state,
        text,
    } = path;
    let colon = if text.is_empty() { "" } else { ": " };
    format!("path '{rules}' at {gateway} is {state}{colon}{text}")
}

fn text(rules: &[PathRule]) -> String {
    let rules: Vec<String> = rules.iter().map(ToString::to_string).collect();
    rules.join("; ")
}
