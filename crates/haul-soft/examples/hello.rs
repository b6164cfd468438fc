use std::net::{Ipv4Addr, SocketAddr};

use haul_soft::rnic::{Options, provider};
use haul_soft::verbs::cm::{CmEvent, ConnParam, EventChannel};
use haul_soft::verbs::{
    AccessFlags, Context, Cq, Mr, Qp, QpInit, RecvWr, Region, SendOp, SendWr, WorkCompletion,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A queue pair with what it needs. Two processes do the same; here both ends are in one.
fn end(context: &Context) -> Result<(Qp, Cq, Mr, EventChannel)> {
    let pd = context.alloc_pd()?; // ibv_alloc_pd
    let cq = context.create_cq(256, None, 0)?; // ibv_create_cq
    let qp = pd.create_qp(&QpInit::new(&cq))?; // ibv_create_qp
    let memory = Region::map(1 << 20)?; // memory that a peer may write
    let mr = pd.reg_mr(&memory, AccessFlags::all())?; // ibv_reg_mr
    Ok((qp, cq, mr, context.create_event_channel()?)) // rdma_create_event_channel
}

/// Waits for one completion and checks its status.
fn done(cq: &Cq) -> Result<WorkCompletion> {
    let mut wc = [WorkCompletion::default()];
    cq.wait(&mut wc, None)?; // ibv_poll_cq, then sleeps
    wc[0].result()?;
    Ok(wc[0])
}

pub(crate) fn main() -> Result<()> {
    let device = &provider(Options::default()).devices()?[0]; // soft-tcp
    let context = device.open()?; // ibv_open_device
    let (near, near_cq, near_mr, near_events) = end(&context)?;
    let (far, far_cq, far_mr, far_events) = end(&context)?;
    let listener = context.listen((Ipv4Addr::LOCALHOST, 0).into(), &far_events, 8)?;
    let address: SocketAddr = listener.local_addr();
    near.connect(address, &ConnParam::default(), &near_events)?; // rdma_connect
    let Some(CmEvent::ConnectRequest(request)) = far_events.wait(None)? else {
        return Err("no request".into());
    };
    far.post_recv(&[RecvWr::new(7, far_mr.sge(0, 64))])?; // before the first Send may come
    request.accept(&far, &ConnParam::default())?; // rdma_accept
    near_events.wait(None)?; // CmEvent::Established
    near_mr.region().write(0, b"hello, region")?;
    let write = SendOp::RdmaWrite(far_mr.remote(4096)); // the peer tells its key and address
    near.post_send(&[SendWr::new(1, write, near_mr.sge(0, 13))])?;
    near.post_send(&[SendWr::new(2, SendOp::Send, near_mr.sge(0, 5))])?;
    done(&near_cq)?;
    done(&near_cq)?;
    done(&far_cq)?; // the Send is received: the Write before it is placed
    let mut seen = [0; 13];
    far_mr.region().read(4096, &mut seen)?;
    println!("{}", String::from_utf8_lossy(&seen));
    Ok(())
}
