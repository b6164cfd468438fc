//! Two gateways of this process between applications with RDMA: each ends the connections that come
//! to its device, and what is sent on the one comes out of the other.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use haul_gateway::Gateway;
use haul_verbs::cm::{CmEvent, ConnParam, EventChannel};
use haul_verbs::{
    AccessFlags, Context, Cq, Mr, Qp, QpInit, RecvWr, Region, SendOp, SendWr, WcData, WcStatus,
    WorkCompletion,
};

use crate::{gateways, pattern};

/// Bytes of the longest message.
const MESSAGE: usize = 64 << 10;
/// Receives that an application posts.
const POSTED: usize = 8;
/// Messages each way.
const MESSAGES: usize = 60;
/// Without news for so long it has failed.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub(crate) struct Edges {
    /// Device of the near gateway, and of the application that is reached
    #[arg(long)]
    device: String,
    /// Its address
    #[arg(long)]
    at: IpAddr,
    /// Device of the far gateway, and of the application that connects
    #[arg(long)]
    peer: String,
    /// Port of an application that is reached there; with `listener`, the gateways run for others'
    /// applications, until they are killed
    #[arg(long, requires = "listener")]
    to: Option<u16>,
    /// Port at which applications come in
    #[arg(long)]
    listener: Option<u16>,
}

impl Edges {
    pub(crate) fn run(&self) -> Result<()> {
        if let Some(to) = self.to {
            let _gateways = self.gateways(SocketAddr::new(self.at, to))?;
            println!("gateways are there");
            loop {
                std::thread::park();
            }
        }
        self.exchange()
    }

    /// The near gateway, and the far one.
    fn gateways(&self, to: SocketAddr) -> Result<(Gateway, Gateway)> {
        let Self {
            device, peer, at, ..
        } = self;
        let host = IpAddr::from([127, 0, 0, 1]);
        let (far, _) = gateways::start(&format!(
            "name = 'exit'\nlisten = '{host}:0'\nanonymous = true\nring = '8MiB'\n\
             [rdma]\ndevice = '{peer}'\nexit = ['{to}']\n[[channel]]\nkind = 'tcp'\nlisten = '{host}:0'\n"
        ))?;
        let via = far.listen_addr().context("no address")?;
        let listener = SocketAddr::new(*at, self.listener.unwrap_or(0));
        let (near, _) = gateways::start(&format!(
            "name = 'entry'\nanonymous = true\n[rdma]\ndevice = '{device}'\n\
             [[listener]]\nkind = 'rdma'\nlisten = '{listener}'\nto = '{to}'\n\
             [[route]]\nto = ['*']\nvia = ['{via}']\nchannels = ['tcp']\nring = '8MiB'\n"
        ))?;
        Ok((near, far))
    }

    /// Messages of all lengths go both ways.
    fn exchange(&self) -> Result<()> {
        let context = |name| -> Result<Context> {
            let device = gateways::device_of(Some(name));
            Ok(device.map_err(anyhow::Error::msg)?.open()?)
        };
        let (here, there) = (context(&self.device)?, context(&self.peer)?);
        let events = here.create_event_channel()?;
        let listener = here.listen(SocketAddr::new(self.at, 0), &events, 1)?;
        let (near, _far) = self.gateways(listener.local_addr())?;

        let client = App::new(&there, there.create_event_channel()?)?;
        let mut hello = ConnParam::default();
        hello.private_data = b"hello";
        let listener = near.listener_addrs()[0];
        client.qp.connect(listener, &hello, &client.events)?;
        let CmEvent::ConnectRequest(request) = event(&events)? else {
            bail!("no request came");
        };
        ensure!(request.private_data.starts_with(b"hello"), "{request:?}");
        let served = App::new(&here, events)?;
        let mut welcome = ConnParam::default();
        welcome.private_data = b"welcome";
        request.accept(&served.qp, &welcome)?;
        let made = event(&served.events)?;
        ensure!(matches!(made, CmEvent::Established { .. }), "{made:?}");
        let CmEvent::Established { established, .. } = event(&client.events)? else {
            bail!("the client is not connected");
        };
        let answer = established.private_data;
        ensure!(answer.starts_with(b"welcome"), "{answer:?}");

        let lens = [1, 0, 4095, 4096, 10_007, MESSAGE];
        for (number, len) in lens.into_iter().cycle().take(MESSAGES).enumerate() {
            let number = number as u64;
            let immediate = (number % 2 == 1).then_some(0x0102_0300 + number as u32);
            for (from, to, seed) in [(&client, &served, number), (&served, &client, !number)] {
                let sent = pattern::bytes(seed, len);
                from.send(&sent, immediate)?;
                let (came, data) = to.take()?;
                let wanted = immediate.map_or(WcData::None, WcData::Imm);
                ensure!(came == sent && data == wanted, "message {number}, {len}");
            }
        }
        // What was sent before the end arrives before it.
        let last = pattern::bytes(7, MESSAGE);
        client.send(&last, None)?;
        client.qp.disconnect()?;
        ensure!(served.take()?.0 == last, "the last message");
        let end = event(&served.events)?;
        ensure!(matches!(end, CmEvent::Disconnected { .. }), "{end:?}");
        Ok(())
    }
}

fn event(events: &EventChannel) -> Result<CmEvent> {
    events.wait(Some(PATIENCE))?.context("nothing happened")
}

/// An application's end.
struct App {
    qp: Qp,
    cq: Cq,
    events: EventChannel,
    inbox: Mr,
    outbox: Mr,
}

impl App {
    /// With its receives posted.
    fn new(context: &Context, events: EventChannel) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(64, None, 0)?;
        let inbox = pd.reg_mr(&Region::map(POSTED * MESSAGE)?, AccessFlags::LOCAL_WRITE)?;
        let outbox = pd.reg_mr(&Region::map(MESSAGE)?, AccessFlags::empty())?;
        let app = Self {
            qp: pd.create_qp(&QpInit::new(&cq))?,
            cq,
            events,
            inbox,
            outbox,
        };
        for slot in 0..POSTED {
            app.receive(slot)?;
        }
        Ok(app)
    }

    fn receive(&self, slot: usize) -> Result<()> {
        let place = self.inbox.sge((slot * MESSAGE) as u64, MESSAGE as u32);
        Ok(self.qp.post_recv(&[RecvWr::new(slot as u64, place)])?)
    }

    fn send(&self, octets: &[u8], immediate: Option<u32>) -> Result<()> {
        self.outbox.region().write(0, octets)?;
        let op = immediate.map_or(SendOp::Send, SendOp::SendWithImm);
        let place = self.outbox.sge(0, octets.len() as u32);
        self.qp.post_send(&[SendWr::new(99, op, place)])?;
        self.complete().map(drop)
    }

    fn take(&self) -> Result<(Vec<u8>, WcData)> {
        let done = self.complete()?;
        let slot = done.wr_id as usize;
        let mut octets = vec![0; done.byte_len as usize];
        self.inbox.region().read(slot * MESSAGE, &mut octets)?;
        // One who is going needs no more.
        let _ = self.receive(slot);
        Ok((octets, done.data))
    }

    fn complete(&self) -> Result<WorkCompletion> {
        let mut done = [WorkCompletion::default()];
        let count = self.cq.wait(&mut done, Some(PATIENCE))?;
        ensure!(count == 1, "nothing was completed");
        ensure!(done[0].status == WcStatus::Success, "{:?}", done[0]);
        Ok(done[0])
    }
}
