//! The end that asks for a bench.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use haul::fault::{Code, Fault};
use haul_control::trust::ClientConfig;
use haul_verbs::Device;

use crate::control::{self, Control, Message, Place, Reach};
use crate::disk::Disk;
use crate::end::End;
use crate::plan::{Connect, Plan, Service, Test};
use crate::report::{
    self, Cpu, Figure, PathSeen, Row, Spent, Summary, VerbsObserver, bandwidth, cpu, datagram,
    delivered, latency, same_file, warnings,
};
use crate::session::{Measured, Session};

/// The measurement and its server.
#[derive(Debug, Clone)]
pub struct VerbsConfig {
    /// The server.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The measurement. [`Plan::file`] is filled in from `file`.
    pub plan: Plan,
    /// This end's device.
    pub device: Device,
    /// A file that is sent instead of memory.
    pub file: Option<PathBuf>,
    /// Identity of this end, and which servers it trusts.
    pub control: ClientConfig,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// A peer that is silent for this long counts as gone.
    pub dead_after: Duration,
}

/// Measures.
///
/// # Errors
/// The server cannot be reached or refuses; a connection breaks; received bytes differ from the
/// sent ones.
pub fn run(config: &VerbsConfig, observer: &dyn VerbsObserver) -> Result<Summary, Fault> {
    let mut plan = config.plan.clone();
    let disk = match &config.file {
        Some(path) => {
            let (disk, len) = Disk::source(path)?;
            plan.file = Some(len);
            disk
        }
        None => Disk::nowhere(),
    };
    plan.validate()?;
    let mut end = End::open(&config.device, &plan)?;
    end.create_qps()?;
    let reach = Reach {
        host: &config.host,
        port: config.port,
        control: &config.control,
        connect_timeout: config.connect_timeout,
        dead_after: config.dead_after,
    };
    let hello = Message::Hello {
        plan: end.plan.clone(),
    };
    let addresses = resolve(&config.host, config.port)?;
    let (control, own, peer) = control::open(&reach, &addresses, &hello)?;
    let result = converse(config, &mut end, &control, &disk, (own, peer), observer);
    if let Err(fault) = &result {
        control.fail(fault);
    }
    result
}

fn converse(
    config: &VerbsConfig,
    end: &mut End,
    control: &Control,
    disk: &Disk,
    (own, address): (SocketAddr, SocketAddr),
    observer: &dyn VerbsObserver,
) -> Result<Summary, Fault> {
    let (software, port, ticket, peer) = match control.receive()? {
        Message::Welcome {
            software,
            port,
            ticket,
            place,
        } => (software, port, ticket, place),
        other => return Err(other.misplaced()),
    };
    if end.plan.service != Service::Rc {
        end.bind_all(own.ip(), 0)?;
        end.meet_peers(&peer, address.ip())?;
    }
    control.send(&Message::Join {
        place: end.place()?,
    })?;
    match end.plan.connect {
        _ if end.plan.service != Service::Rc => Ok(()),
        Connect::Cm => end.connect_all(control, SocketAddr::new(address.ip(), port), ticket),
        Connect::Exchange => end.connect_endpoints(&peer, address.ip()),
    }
    .map_err(|fault| control.account_of(fault))?;
    let end = &*end;
    let mut session = Session::new(end, &peer, control, disk, config.dead_after);
    session.meet()?;
    let mut summary = summary(end, &peer, address, &software);
    observer.connected(&summary);
    if end.plan.test == Test::Idle {
        summary.idle = Some(idle(&session)?);
    } else {
        for size in &end.plan.sizes {
            let row = row(&end.plan, *size, session.measure(*size)?)?;
            observer.row(&row);
            summary.rows.push(row);
        }
    }
    control.send(&Message::End)?;
    Ok(summary)
}

/// The addresses of a server.
pub(crate) fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, Fault> {
    match (host, port).to_socket_addrs() {
        Ok(addresses) => Ok(addresses.collect()),
        Err(error) => Err(Fault::new(
            Code::Unreachable,
            format!("cannot resolve '{host}': {error}"),
        )),
    }
}

fn summary(end: &End, peer: &Place, address: SocketAddr, software: &str) -> Summary {
    let plan = &end.plan;
    let mut server_device = peer.device.clone();
    for text in [
        &mut server_device.provider,
        &mut server_device.name,
        &mut server_device.transport,
    ] {
        *text = haul::printable(text.as_bytes());
    }
    Summary {
        peer: address.to_string(),
        software: haul::printable(software.as_bytes()),
        service: plan.service,
        op: plan.op,
        test: plan.test,
        qps: plan.qps,
        depth: plan.depth,
        bidirectional: plan.bidirectional,
        client_device: end.info.clone(),
        server_device,
        rows: Vec::new(),
        idle: None,
    }
}

fn idle(session: &Session<'_>) -> Result<report::Idle, Fault> {
    let own = session.idle()?;
    match session.control.receive()? {
        Message::Memory { memory } => Ok(report::idle(session.end.plan.qps, &own, &memory)),
        other => Err(other.misplaced()),
    }
}

fn row(plan: &Plan, bytes: u32, measured: Measured) -> Result<Row, Fault> {
    let Measured {
        client,
        server,
        samples,
        steps,
    } = measured;
    let file_blake3 = same_file(&client, &server)?;
    let datagram = datagram(plan, &client, &server);
    let path = PathSeen::of(match plan.op {
        crate::Op::Read => &server,
        _ => &client,
    });
    let (client, server) = delivered(plan, client, server);
    let figure = match plan.test {
        Test::Lat if samples.is_empty() => {
            return Err(Fault::new(
                Code::Other,
                "not one message came back in the time given",
            ));
        }
        Test::Lat => {
            let parts = if plan.op == crate::Op::Read { 1 } else { 2 };
            Figure::Latency(latency(samples, parts, client.ns))
        }
        Test::Bw | Test::Idle => Figure::Bandwidth(bandwidth(&client, &server)),
    };
    let (total, seconds) = match &figure {
        Figure::Bandwidth(bandwidth) => (bandwidth.total_bytes, bandwidth.seconds),
        Figure::Latency(latency) => (client.bytes, latency.seconds),
    };
    let spent = |spent: &Spent| -> Cpu { cpu(spent, total, seconds) };
    Ok(Row {
        bytes,
        client: spent(&client),
        server: spent(&server),
        verified_messages: client.verified + server.verified,
        file_blake3,
        datagram,
        path,
        warnings: warnings(&figure, plan),
        figure,
        steps,
    })
}
