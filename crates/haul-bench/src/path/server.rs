//! The end that takes part in measurements of the path.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use haul::fault::{Code, Fault};
use haul_report::machine::Machine;

use super::engine::StreamSet;
use super::patience::Patience;
use super::plan::{Engine, PathPlan};
use super::session::{Role, Session};
use super::store::Files;
use super::{tcp, udp, udt};
use crate::control::{Control, Message};

/// Time limit for a client to open its streams, and to report that.
const OPENING: Duration = Duration::from_secs(20);

/// The context of a server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Means {
    pub(crate) files: Files,
    /// The first port of data; any free one where it is zero.
    pub(crate) data_port: u16,
    /// A client whose data connections show no life for this long counts as gone.
    pub(crate) dead_after: Duration,
}

/// Takes part in one measurement; returns the payload that arrived, bytes.
pub(crate) fn serve(
    means: &Means,
    control: &Control,
    own: IpAddr,
    plan: &PathPlan,
) -> Result<u64, Fault> {
    if plan.engine.verbs().is_some() {
        let text = "RDMA is asked for by another protocol";
        return Err(Fault::protocol(text));
    }
    let role = Role::of(plan, false, &means.files)?;
    let engine = open(means, control, own, plan)?;
    control.send(&Message::Connected)?;
    match control.receive_within(OPENING)? {
        Message::Connected => {}
        other => return Err(other.misplaced()),
    }
    let session = Session {
        plan,
        control,
        engine: &*engine,
        role: &role,
        progress: &|_| {},
        is_client: false,
    };
    let (own, peer) = session.run()?;
    let received = own.received.or(peer.received);
    Ok(received.map_or(0, |received| received.bytes))
}

/// Binds, sends the client the address, and waits for its streams.
fn open(
    means: &Means,
    control: &Control,
    ip: IpAddr,
    plan: &PathPlan,
) -> Result<Box<dyn StreamSet>, Fault> {
    let random = haul_io::random::bytes::<8>()
        .map_err(|error| Fault::new(Code::Other, format!("no random bytes: {error}")))?;
    let ticket = u64::from_be_bytes(random);
    let address = SocketAddr::new(ip, means.data_port);
    let failed = |error: std::io::Error| {
        let text = format!("cannot take data at {address}: {error}");
        Fault::new(Code::Other, text)
    };
    let patience = Patience::new(control, OPENING);
    let tell = |ports: Vec<u16>| {
        control.send(&Message::Listening {
            software: haul::SOFTWARE.into(),
            ports,
            ticket,
            machine: Machine::describe(),
        })
    };
    match plan.engine {
        Engine::Tcp => {
            let listener = haul_io::tcp::listen(address).map_err(failed)?;
            tcp::prepare(plan, &listener).map_err(failed)?;
            tell(vec![listener.local_addr().map_err(failed)?.port()])?;
            Ok(Box::new(tcp::Tcp::accept(
                plan,
                &listener,
                ticket,
                &patience,
                means.dead_after,
            )?))
        }
        Engine::Udt => {
            let mut listener = udt::listen(plan, address)?;
            tell(vec![listener.local_addr().port()])?;
            Ok(Box::new(udt::Udt::accept(
                plan,
                &mut listener,
                ticket,
                &patience,
                means.dead_after,
            )?))
        }
        Engine::Udp => {
            let sockets = udp::bind(plan, ip, means.data_port).map_err(failed)?;
            tell(
                sockets
                    .iter()
                    .map(|socket| socket.local_addr().port())
                    .collect(),
            )?;
            Ok(Box::new(udp::Udp::accept(sockets, ticket, &patience)?))
        }
        _ => Err(Fault::new(Code::Usage, "not an engine of the path bench")),
    }
}
