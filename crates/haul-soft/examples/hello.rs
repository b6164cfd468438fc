//! Writes into the memory of a peer, then sends it a message. Both ends are in this process.
use haul_soft::rnic::{Options, provider};
use haul_soft::verbs::cm::{CmEvent, ConnParam};
use haul_soft::verbs::{AccessFlags, QpInit, RecvWr, Region, SendOp, SendWr, WorkCompletion};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = &provider(Options::default()).devices()?[0]; // soft-tcp
    let context = device.open()?; // ibv_open_device
    let pd = context.alloc_pd()?; // ibv_alloc_pd
    let memory = Region::map(1 << 20)?; // here both ends use one region
    let mr = pd.reg_mr(&memory, AccessFlags::all())?; // ibv_reg_mr
    let near_cq = context.create_cq(16, None, 0)?; // ibv_create_cq
    let far_cq = context.create_cq(16, None, 0)?;
    let near = pd.create_qp(&QpInit::new(&near_cq))?; // ibv_create_qp
    let far = pd.create_qp(&QpInit::new(&far_cq))?;

    // The far end listens, the near end connects.
    let near_events = context.create_event_channel()?; // rdma_create_event_channel
    let far_events = context.create_event_channel()?;
    let listener = context.listen("127.0.0.1:0".parse()?, &far_events, 8)?; // rdma_listen
    near.connect(listener.local_addr(), &ConnParam::default(), &near_events)?; // rdma_connect
    let Some(CmEvent::ConnectRequest(request)) = far_events.wait(None)? else {
        return Err("no connection request".into());
    };
    far.post_recv(&[RecvWr::new(7, mr.sge(0, 64))])?; // before the first Send can arrive
    request.accept(&far, &ConnParam::default())?; // rdma_accept
    near_events.wait(None)?; // CmEvent::Established

    // A Write of 13 bytes to the peer's offset 4096, then a Send that notifies the peer.
    memory.write(1024, b"hello, region")?;
    let write = SendOp::RdmaWrite(mr.remote(4096)); // two processes exchange key and address
    near.post_send(&[SendWr::new(1, write, mr.sge(1024, 13))])?; // ibv_post_send
    near.post_send(&[SendWr::new(2, SendOp::Send, mr.sge(1024, 5))])?;

    // When the receive completes, the Write before it is placed.
    let mut wc = [WorkCompletion::default()];
    far_cq.wait(&mut wc, None)?; // ibv_poll_cq, then sleeps
    wc[0].result()?;
    let mut text = [0; 13];
    memory.read(4096, &mut text)?;
    println!("{}", String::from_utf8_lossy(&text));
    Ok(())
}
