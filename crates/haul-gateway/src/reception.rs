//! Where control connections and data channels of others come in.

mod guests;
mod strangers;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use haul_io::clock::Clock;
use haul_io::poller::{Events, Interest, Poller};
use haul_io::stream::Acceptor;
use haul_soft::udt::plain;
use haul_verbs::cm::{CmEvent, EventChannel};
use haul_xsp::SECOND_NS;

use crate::config::{ChannelKind, Config};
use crate::control::Control;
use crate::engine::{Accepted, Knock, Worker, prepare};
use crate::house::{House, Letter, Means};
use crate::log::Level;
use crate::thread::{Stop, Thread};
use crate::watch::Watch;

use guests::GUESTS_MAX;
pub(crate) use guests::{Guests, Standing};
use strangers::{Guest, STRANGERS_MAX, Strangers};

/// Octets that each of the guests may take: what is read at a time, a message, and what waits to be
/// sent.
const GUEST_BYTES: u64 = (64 << 10) + (1 << 20) + (256 << 10);
/// Time to wait where the system has no descriptor or thread left, ns.
const PAUSE_NS: u64 = SECOND_NS / 5;
/// Data connections that are taken, or events of connections, before others have their turn.
const ACCEPT_MAX: usize = 16;
/// Time to wait where all places are taken, by some who have just come or are about to leave, ns.
const SOON_NS: u64 = SECOND_NS / 100;

/// Octets that those may take who have not shown who they are: on control connections what has come
/// of one message, and on data connections what a transport in this process holds.
pub(crate) fn strangers_bytes(config: &Config) -> u64 {
    let has = |kind| config.channels.iter().any(|channel| channel.kind == kind);
    let control = match config.listen {
        Some(_) => GUESTS_MAX as u64 * GUEST_BYTES,
        None => 0,
    };
    let udt = match has(ChannelKind::Udt) {
        true => STRANGERS_MAX as u64 * plain::GREETING_MEMORY_BYTES,
        false => 0,
    };
    control + udt
}

/// What tokens are of.
const FAMILY: u64 = 3 << 60;
const NETWORK: u64 = 0;
const CONTROL: u64 = 1 << 60;
const ENTRANCE: u64 = 2 << 60;
const STRANGER: u64 = 3 << 60;

/// The thread that takes what comes in; it ends when this is dropped: control connections at
/// `control`, and data connections where there are entrances or networks.
pub(crate) fn open(
    house: &Arc<House>,
    control: Option<Acceptor>,
    entrances: Vec<Entrance>,
) -> io::Result<Thread> {
    let poller = Poller::new()?;
    for (token, network) in (NETWORK..).zip(&house.networks) {
        if let Means::Connected { events, .. } = &network.means {
            poller.add(events.fd(), token, Interest::READ)?;
        }
    }
    let house = Arc::clone(house);
    Thread::spawn("haul-reception", poller, |poller, stop| {
        let desk = Desk {
            house,
            control: control.map(|control| Watch::new(control, CONTROL)),
            entrances: (ENTRANCE..)
                .zip(entrances)
                .map(|(token, entrance)| Watch::new(entrance, token))
                .collect(),
            strangers: Strangers::new(STRANGER),
            poller,
            stop,
            deaf_until_ns: 0,
        };
        desk.run();
    })
}

/// Where data connections that are byte streams come in.
#[derive(Debug)]
pub(crate) enum Entrance {
    Tcp(Acceptor),
    Udt(Box<plain::Listener>),
}

impl Entrance {
    const fn kind(&self) -> ChannelKind {
        match self {
            Self::Tcp(_) => ChannelKind::Tcp,
            Self::Udt(_) => ChannelKind::Udt,
        }
    }

    fn accept(&mut self) -> io::Result<Option<(Guest, IpAddr)>> {
        match self {
            Self::Tcp(acceptor) => {
                let Some((stream, from)) = acceptor.accept()? else {
                    return Ok(None);
                };
                prepare(&stream)?;
                Ok(Some((Guest::Tcp(stream), from.ip())))
            }
            Self::Udt(listener) => Ok(listener.accept()?.map(|stream| {
                let from = stream.peer().ip();
                (Guest::Udt(stream.into()), from)
            })),
        }
    }
}

impl AsFd for Entrance {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(acceptor) => acceptor.as_fd(),
            Self::Udt(listener) => listener.as_fd(),
        }
    }
}

struct Desk {
    house: Arc<House>,
    control: Option<Watch<Acceptor>>,
    entrances: Vec<Watch<Entrance>>,
    strangers: Strangers,
    poller: Poller,
    stop: Stop,
    /// There were no descriptors or threads left.
    deaf_until_ns: u64,
}

impl Desk {
    fn run(mut self) {
        let clock = Clock::new();
        let mut events = Events::with_capacity(16);
        while !self.stop.is_set() {
            let now_ns = clock.now_ns();
            for token in self.strangers.handle_timeout(&self.poller, now_ns) {
                self.hear(token);
            }
            let again = self.listen(now_ns);
            let until = [again, self.strangers.poll_timeout()];
            let until = until.into_iter().flatten().min();
            if let Err(error) = self.poller.wait(&mut events, until, clock) {
                self.house
                    .say(Level::Error, format!("nothing comes in any more: {error}"));
                return;
            }
            let tokens: Vec<u64> = events.iter().map(|event| event.token).collect();
            for token in tokens {
                self.on_ready(token, clock.now_ns());
            }
        }
    }

    fn on_ready(&mut self, token: u64, now_ns: u64) {
        let index = usize::try_from(token & !FAMILY).unwrap_or(usize::MAX);
        match token & FAMILY {
            CONTROL => self.accept(now_ns),
            ENTRANCE => self.accept_data(index, now_ns),
            STRANGER => self.hear(token),
            _ => {
                let network = self.house.networks.get(index);
                if let Some((Means::Connected { events, .. }, kind)) =
                    network.map(|network| (&network.means, network.kind))
                {
                    self.take_events(kind, events);
                }
            }
        }
    }

    fn hear(&mut self, token: u64) {
        if let Some(shown) = self.strangers.hear(&self.poller, token) {
            introduce(&self.house, shown.kind, shown.cookie, shown.guest.into());
        }
    }

    /// Heeds what may come while there is room for more. When it is to be asked again, where it
    /// does not heed all.
    fn listen(&mut self, now_ns: u64) -> Option<u64> {
        let can_hear = now_ns >= self.deaf_until_ns;
        let has_room = can_hear && self.house.registers().guests.has_room(now_ns);
        let mut heeds_all = true;
        if let Some(control) = &mut self.control {
            heeds_all &= control.set(&self.poller, has_room).is_ok() && control.is_on();
        }
        for entrance in &mut self.entrances {
            heeds_all &= entrance.set(&self.poller, can_hear).is_ok() && entrance.is_on();
        }
        let wait_ns = if has_room || !can_hear {
            PAUSE_NS
        } else {
            SOON_NS
        };
        (!heeds_all).then_some(now_ns + wait_ns)
    }

    /// Something is short in this system: what comes waits in the kernel for a moment.
    fn pause(&mut self, now_ns: u64, why: &str) {
        self.house.say_short(why);
        self.deaf_until_ns = now_ns + PAUSE_NS;
    }

    fn accept(&mut self, now_ns: u64) {
        let Some(control) = &self.control else {
            return;
        };
        match control.listener.accept() {
            Ok(Some((stream, peer))) => {
                self.make_room(now_ns);
                let control = match self.house.tls() {
                    Some(context) => Control::tls_server(stream, &context),
                    None => Ok(Control::new(stream)),
                };
                let greeted = control
                    .map_err(|error| error.to_string())
                    .and_then(|control| Worker::greet(&self.house, control, peer));
                if let Err(why) = greeted {
                    self.pause(now_ns, &format!("{peer} is turned away: {why}"));
                }
            }
            Ok(None) => {}
            Err(error) => self.pause(
                now_ns,
                &format!(
                    "control connections cannot be taken: {error}; they wait until there is room"
                ),
            ),
        }
    }

    /// Asks a control connection to leave that has shown nothing, where one that has come would be
    /// one too many.
    fn make_room(&self, now_ns: u64) {
        let leaver = self.house.registers().guests.make_room(now_ns);
        if let Some(leaver) = leaver {
            // Who has left by now has made room as well.
            let _ = leaver.post(Letter::MakeRoom(None));
            self.house.say_short(
                "more control connections than there are places for: those that say nothing make room",
            );
        }
    }

    fn accept_data(&mut self, index: usize, now_ns: u64) {
        let Some(entrance) = self.entrances.get_mut(index) else {
            return;
        };
        let entrance = &mut entrance.listener;
        let kind = entrance.kind();
        for _ in 0..ACCEPT_MAX {
            let admitted = entrance.accept().and_then(|accepted| match accepted {
                Some((guest, from)) => self
                    .strangers
                    .admit(&self.poller, now_ns, kind, guest, from)
                    .map(Some),
                None => Ok(None),
            });
            match admitted {
                Ok(Some(shown)) => {
                    if let Some(shown) = shown {
                        introduce(&self.house, shown.kind, shown.cookie, shown.guest.into());
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    let text = format!(
                        "data connections ({kind}) cannot be taken: {error}; they wait until there is room"
                    );
                    return self.pause(now_ns, &text);
                }
            }
        }
    }

    fn take_events(&self, kind: ChannelKind, events: &EventChannel) {
        for _ in 0..ACCEPT_MAX {
            match events.poll() {
                Ok(Some(event)) => self.on_event(kind, event),
                Ok(None) => return,
                Err(error) => {
                    self.house.say(Level::Error, format!("{kind}: {error}"));
                    return;
                }
            }
        }
    }

    fn on_event(&self, kind: ChannelKind, event: CmEvent) {
        let (qp_num, news) = match event {
            CmEvent::ConnectRequest(request) => {
                let Some(cookie) = request.private_data.first_chunk::<16>().copied() else {
                    return;
                };
                introduce(&self.house, kind, cookie, Knock::Request(request));
                return;
            }
            CmEvent::Established { qp_num, .. } => (qp_num, Accepted::Up),
            CmEvent::Rejected { qp_num, .. } => {
                (qp_num, Accepted::Down("it was rejected".to_owned()))
            }
            CmEvent::Unreachable { qp_num, failure } => {
                (qp_num, Accepted::Down(failure.to_string()))
            }
            CmEvent::Disconnected { qp_num, failure } => {
                let why =
                    failure.map_or_else(|| "the peer closed it".to_owned(), |why| why.to_string());
                (qp_num, Accepted::Down(why))
            }
            _ => return,
        };
        self.house.registers().tell_qp(kind, qp_num, news);
    }
}

/// Hands a data connection to the session that expects its cookie. Whoever has none, or an old one,
/// is turned away with the drop of its connection.
fn introduce(house: &House, kind: ChannelKind, cookie: [u8; 16], knock: Knock) {
    // Good once.
    let owner = house.registers().cookies.remove(&cookie);
    if let Some(owner) = owner {
        let letter = Letter::Knock {
            kind,
            cookie,
            knock,
        };
        let _ = owner.post(letter);
    }
}
