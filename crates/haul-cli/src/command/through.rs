//! `--gateway`: this process is the near end of a session through gateways.

#![expect(clippy::disallowed_types, reason = "haul-io has made the stream")]

use std::fmt;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use haul::dial::Dialer;
use haul::fault::{Code, Fault};
use haul_gateway::config::{ClientMeans, HostPort, NoHostPort, SessionMetadata, Tls};
use haul_gateway::{Caller, Cause, Config, Gateway, Level, Log, Refusal};

use crate::args;
use crate::provider;

/// How long gateways may take to see the session end.
const GOODBYE: Duration = Duration::from_secs(2);

/// How often data in flight is examined.
const LOOK: Duration = Duration::from_millis(100);

/// The session, and what it needs.
#[derive(Debug)]
pub(crate) struct Through {
    gateway: Gateway,
    hops: Vec<HostPort>,
    reporter: Arc<Mutex<Reporter>>,
}

/// Tells people what does not work as it should: not before the session is there, for where it does
/// not come to be, that is one line.
struct Reporter {
    say: Box<dyn Fn(&str) + Send>,
    is_heard: bool,
    held: Vec<String>,
    last: String,
}

impl Reporter {
    fn hear(&mut self, line: &str) {
        if self.last == line {
            return;
        }
        line.clone_into(&mut self.last);
        if self.is_heard {
            (self.say)(line);
        } else {
            self.held.push(line.to_owned());
        }
    }

    fn begin(&mut self) {
        self.is_heard = true;
        for line in std::mem::take(&mut self.held) {
            (self.say)(&line);
        }
    }

    /// The session is being ended: that its channels end is as it should be.
    fn end(&mut self) {
        self.say = Box::new(|_| {});
    }
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reporter({})", self.last)
    }
}

fn lock(reporter: &Mutex<Reporter>) -> MutexGuard<'_, Reporter> {
    reporter.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Through {
    /// Opens the session that the command line asks for, as long as `goes_on` returns true; none,
    /// if it names no gateway. `say` gets lines for people about what does not work as it should,
    /// later on.
    ///
    /// # Errors
    /// In one line, with the hop that is the reason and what to do.
    pub(crate) fn start(
        args: &args::ThroughArgs,
        patience: Duration,
        goes_on: impl FnMut() -> bool,
        say: impl Fn(&str) + Send + 'static,
    ) -> Result<Option<Self>, Fault> {
        let Some(first) = args.gateway.first() else {
            return Ok(None);
        };
        let reporter = Arc::new(Mutex::new(Reporter {
            say: Box::new(say),
            is_heard: false,
            held: Vec::new(),
            last: String::new(),
        }));
        let own = Arc::clone(&reporter);
        let log = Log::new(move |level, line| {
            if level <= Level::Warning {
                lock(&own).hear(line);
            }
        });
        let config = Config::of_client(args.gateway.clone(), means(args)?);
        let gateway = Gateway::start(config, provider::of_channel, log)
            .map_err(|error| Fault::new(Code::Usage, error.to_string()))?;
        let hops = args.gateway.clone();
        let through = Self {
            gateway,
            hops,
            reporter,
        };
        let opened = through.gateway.open_session(first, patience, goes_on);
        opened.map_err(|refusal| through.fault(&refusal, None))?;
        lock(&through.reporter).begin();
        Ok(Some(through))
    }

    /// Asks for a connection; `caller` learns what becomes of it.
    pub(crate) fn call(&self, from: &str, to: &HostPort, caller: Box<dyn Caller>) {
        self.gateway.call(from, to, caller);
    }

    /// Drains the session until its data has not moved for `patience`, or `goes_on` returns false.
    /// Returns whether nothing is left.
    pub(crate) fn finish(mut self, patience: Duration, mut goes_on: impl FnMut() -> bool) -> bool {
        lock(&self.reporter).end();
        self.gateway.begin_drain();
        let moved = |gateway: &Gateway| -> u64 {
            let sessions = gateway.sessions();
            let segments = sessions.iter().flat_map(|session| &session.segments);
            segments
                .map(|segment| segment.octets_in + segment.octets_out)
                .sum()
        };
        let (mut before, mut still) = (moved(&self.gateway), Duration::ZERO);
        while !self.gateway.wait(LOOK) {
            let now = moved(&self.gateway);
            still = if now == before {
                still + LOOK
            } else {
                Duration::ZERO
            };
            if still >= patience || !goes_on() {
                return false;
            }
            before = now;
        }
        true
    }

    /// Formats a refusal for the user; `to` is the refused destination.
    fn fault(&self, refusal: &Refusal, to: Option<&HostPort>) -> Fault {
        let hops: Vec<String> = self.hops.iter().map(ToString::to_string).collect();
        let last = hops.last().map_or("", String::as_str);
        let text = match (refusal.cause, to) {
            (Cause::Gateway | Cause::Channel | Cause::Trust, _) | (_, None) => refusal.text.clone(),
            (Cause::Forbidden, Some(to)) => format!("{to}: gateway {last} does not allow it"),
            (_, Some(to)) => format!("{to} through gateway {}: {}", hops.join(", "), refusal.text),
        };
        let (code, hint) = match refusal.cause {
            Cause::Gateway => (
                Code::Unreachable,
                "check that 'haul gateway run' runs there, and what it says; and the addresses after --gateway".to_owned(),
            ),
            Cause::Channel => (
                Code::Unreachable,
                "have firewalls let the ports of the gateway's data channels through, or choose what passes with --gateway-channel"
                    .to_owned(),
            ),
            Cause::Trust => (
                Code::NotAuthenticated,
                "the same key, under the same name, must be at both ends (--gateway-key), or certificates of the same roots"
                    .to_owned(),
            ),
            Cause::Forbidden => (
                Code::Refused,
                format!("have the destination added to `exit` in the configuration of gateway {last}"),
            ),
            Cause::Unresolved => (
                Code::Unreachable,
                format!("check the name, and that gateway {last} can resolve it"),
            ),
            Cause::Refused | Cause::Unreachable | Cause::TimedOut => (
                Code::Unreachable,
                format!("check that the server runs there, and that gateway {last} reaches it"),
            ),
        };
        Fault::new(code, text).hint(hint)
    }
}

/// The gateways see the session end in order.
impl Drop for Through {
    fn drop(&mut self) {
        lock(&self.reporter).end();
        self.gateway.drain(GOODBYE);
    }
}

impl Dialer for Through {
    fn connect(&self, host: &str, port: u16, timeout: Duration) -> Result<TcpStream, Fault> {
        let text = match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        let to: HostPort = text
            .parse()
            .map_err(|error: NoHostPort| Fault::new(Code::Usage, error.to_string()))?;
        let connected = self.gateway.connect("haul", &to, timeout);
        connected.map_err(|refusal| self.fault(&refusal, Some(&to)))
    }
}

fn means(args: &args::ThroughArgs) -> Result<ClientMeans, Fault> {
    let tls = (
        &args.gateway_tls_certificate,
        &args.gateway_tls_key,
        &args.gateway_tls_roots,
    );
    let tls = match tls {
        (Some(certificate), Some(key), Some(roots)) => Some(Tls {
            certificate: certificate.clone(),
            key: key.clone(),
            roots: roots.clone(),
        }),
        _ => None,
    };
    let mut metadata = SessionMetadata::default();
    for pair in &args.metadata {
        let taken = metadata.insert_pair(pair);
        taken.map_err(|why| Fault::new(Code::Usage, format!("--metadata {pair}: {why}")))?;
    }
    Ok(ClientMeans {
        or_hops: args.gateway_or.iter().map(|way| way.0.clone()).collect(),
        channels: args.gateway_channel.clone(),
        key: args.gateway_key.clone(),
        tls,
        metadata,
    })
}
