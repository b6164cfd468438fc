//! The end that asks for a measurement of the path.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use haul::fault::{Code, Fault};
use haul_control::trust::ClientConfig;
use haul_report::machine::Machine;
use haul_verbs::Device;

use super::engine::StreamSet;
use super::plan::{Engine, PathPlan};
use super::record::Run;
use super::session::{Progress, Role, Session};
use super::store::Files;
use super::{tcp, udp, udt};
use crate::control::{self, Control, Message, Reach};
use crate::error::verb;
use crate::plan::{Op, Service, Wire};
use crate::report::{Row, Summary, VerbsObserver};

/// Opens a device with the transport of a plan.
pub type Devices<'a> = &'a (dyn Fn(Service, &Wire) -> Result<Device, Fault> + Sync);

/// The server to measure with, and the plan.
pub struct Config<'a> {
    /// The server.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// This end's files.
    pub files: Files,
    /// This end's devices, for engines that are RDMA.
    pub devices: Devices<'a>,
    /// Identity of this end, and which servers it trusts.
    pub control: ClientConfig,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// A peer that is silent for this long counts as gone.
    pub dead_after: Duration,
}

impl std::fmt::Debug for Config<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("host", &self.host)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// The result of a measurement.
#[derive(Debug, Clone)]
pub struct Found {
    /// The figures.
    pub run: Run,
    /// The server's address.
    pub peer: SocketAddr,
    /// The server's machine; unknown where the engine is RDMA.
    pub server: Option<Machine>,
}

/// Measures once.
///
/// # Errors
/// The plan makes no sense; the server cannot be reached or refuses; a connection breaks.
pub fn measure(
    config: &Config<'_>,
    plan: &PathPlan,
    progress: &dyn Fn(Progress),
) -> Result<Found, Fault> {
    plan.validate()?;
    if plan.engine.verbs().is_some() {
        return verbs(config, plan);
    }
    let role = Role::of(plan, true, &config.files)?;
    let reach = Reach {
        host: &config.host,
        port: config.port,
        control: &config.control,
        connect_timeout: config.connect_timeout,
        dead_after: config.dead_after,
    };
    let ask = Message::Ask { plan: plan.clone() };
    let (control, _, peer) = control::open(&reach, &resolve(config)?, &ask)?;
    let result = converse(config, plan, &control, peer, &role, progress);
    if let Err(fault) = &result {
        control.fail(fault);
    }
    result
}

fn converse(
    config: &Config<'_>,
    plan: &PathPlan,
    control: &Control,
    peer: SocketAddr,
    role: &Role,
    progress: &dyn Fn(Progress),
) -> Result<Found, Fault> {
    let (ports, ticket, machine) = match control.receive()? {
        Message::Listening {
            ports,
            ticket,
            machine,
            ..
        } => (ports, ticket, machine),
        other => return Err(other.misplaced()),
    };
    let engine = connect(config, plan, control, peer, &ports, ticket)
        .map_err(|fault| control.account_of(fault))?;
    control.send(&Message::Connected)?;
    let session = Session {
        plan,
        control,
        engine: &*engine,
        role,
        progress,
        is_client: true,
    };
    let (own, theirs) = session.run()?;
    let (sender, receiver) = if plan.reverse {
        (theirs, own)
    } else {
        (own, theirs)
    };
    Ok(Found {
        run: Run::of(plan, &sender, &receiver)?.judged(),
        peer,
        server: Some(printable(machine)),
    })
}

/// Opens the streams; they are open at the server too when this returns.
fn connect(
    config: &Config<'_>,
    plan: &PathPlan,
    control: &Control,
    peer: SocketAddr,
    ports: &[u16],
    ticket: u64,
) -> Result<Box<dyn StreamSet>, Fault> {
    let port = || {
        let first = ports.first().copied();
        first.ok_or_else(|| Fault::protocol("the server has no port for data"))
    };
    let open = || match control.receive()? {
        Message::Connected => Ok(()),
        other => Err(other.misplaced()),
    };
    let limits = (config.connect_timeout, config.dead_after);
    match plan.engine {
        Engine::Tcp => {
            let server = SocketAddr::new(peer.ip(), port()?);
            let streams = tcp::Tcp::connect(plan, server, ticket, limits)?;
            open()?;
            Ok(Box::new(streams))
        }
        Engine::Udt => {
            let server = SocketAddr::new(peer.ip(), port()?);
            let streams = udt::Udt::connect(plan, server, ticket, limits)?;
            open()?;
            Ok(Box::new(streams))
        }
        Engine::Udp => {
            let deadline = Instant::now() + config.connect_timeout;
            let heard = || match control.poll()? {
                Some(Message::Connected) => Ok(true),
                Some(other) => Err(other.misplaced()),
                None if Instant::now() > deadline => {
                    let text = "the server receives no datagrams";
                    Err(Fault::new(Code::Unreachable, text)
                        .hint("is UDP let through to the server?"))
                }
                None => Ok(false),
            };
            Ok(Box::new(udp::Udp::connect(
                plan,
                peer.ip(),
                ports,
                ticket,
                heard,
            )?))
        }
        _ => Err(Fault::new(Code::Usage, "not an engine of the path bench")),
    }
}

/// Measures by the verbs benchmarks, and reports in the same format.
fn verbs(config: &Config<'_>, plan: &PathPlan) -> Result<Found, Fault> {
    let for_a_time = || Fault::new(Code::Usage, "RDMA is measured for a time");
    let mut plan = plan.clone();
    let asked = plan.to_verbs().ok_or_else(for_a_time)?;
    let device = (config.devices)(asked.service, &asked.wire)?;
    if plan.op == Op::Read {
        // As many as the device can have outstanding.
        let most = device.attributes().map_err(verb)?.max_init_rd_atomic;
        plan.depth = plan.depth.min(most).max(1);
    }
    let verbs = plan.to_verbs().ok_or_else(for_a_time)?;
    let config = crate::client::VerbsConfig {
        host: config.host.clone(),
        port: config.port,
        plan: verbs,
        device,
        file: None,
        control: config.control.clone(),
        connect_timeout: config.connect_timeout,
        dead_after: config.dead_after,
    };
    let summary = crate::client::run(&config, &Silent)?;
    let row = summary.rows.first();
    let row = row.ok_or_else(|| Fault::new(Code::Other, "nothing was measured"))?;
    let peer = summary.peer.parse();
    Ok(Found {
        run: Run::of_verbs(&plan, row)?.judged(),
        peer: peer.map_err(|_| Fault::new(Code::Other, "the server has no address"))?,
        server: None,
    })
}

struct Silent;

impl VerbsObserver for Silent {
    fn connected(&self, _: &Summary) {}
    fn row(&self, _: &Row) {}
    fn note(&self, _: &str) {}
}

fn resolve(config: &Config<'_>) -> Result<Vec<SocketAddr>, Fault> {
    crate::client::resolve(&config.host, config.port)
}

/// A description that a peer sent, without control characters.
fn printable(machine: Machine) -> Machine {
    let clean = |text: String| haul::printable(text.as_bytes());
    Machine {
        cpu: clean(machine.cpu),
        kernel: clean(machine.kernel),
        haul_version: clean(machine.haul_version),
        haul_commit: machine.haul_commit.map(clean),
        iperf3: machine.iperf3.map(clean),
        date: clean(machine.date),
        ..machine
    }
}
