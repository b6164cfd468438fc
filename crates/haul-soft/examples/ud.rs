//! Unreliable datagrams between two processes: `ud` answers, and says how; `ud ADDRESS NUMBER`
//! asks.
//!
//! `cargo run -p haul-soft --example ud`, then in another terminal what it prints.
use std::time::Duration;

use haul_soft::rnic::{Options, provider};
use haul_soft::verbs::{
    AccessFlags, Cq, Mr, Peer, Qp, QpInit, QpType, RecvWr, Region, SendOp, SendWr, WcOpcode,
    WorkCompletion,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct End {
    qp: Qp,
    cq: Cq,
    mr: Mr,
    own: Peer,
}

fn end() -> Result<End> {
    let devices = provider(Options::default()).devices()?;
    let device = devices.iter().find(|device| device.name() == "soft-udp");
    let context = device.ok_or("no device for datagrams")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(64, None, 0)?;
    let mut init = QpInit::new(&cq);
    init.qp_type = QpType::Ud;
    let qp = pd.create_qp(&init)?;
    let mr = pd.reg_mr(&Region::map(4096)?, AccessFlags::LOCAL_WRITE)?;
    let own = Peer::new(qp.bind("127.0.0.1:0".parse()?)?, qp.qp_num());
    Ok(End { qp, cq, mr, own })
}

impl End {
    fn receive(&self) -> Result<()> {
        Ok(self.qp.post_recv(&[RecvWr::new(1, self.mr.sge(0, 64))])?)
    }

    fn send(&self, text: &str, to: Peer) -> Result<()> {
        self.mr.region().write(1024, text.as_bytes())?;
        let data = self.mr.sge(1024, u32::try_from(text.len())?);
        Ok(self
            .qp
            .post_send(&[SendWr::new(2, SendOp::Send, data).to(to)])?)
    }

    /// The next message and its sender; none if none comes for a second.
    fn message(&self) -> Result<Option<(String, Peer)>> {
        let mut wc = [WorkCompletion::default()];
        while self.cq.wait(&mut wc, Some(Duration::from_secs(1)))? == 1 {
            wc[0].result()?;
            if let (WcOpcode::Recv, Some(sender)) = (wc[0].opcode, wc[0].src) {
                let mut bytes = vec![0; wc[0].byte_len as usize];
                self.mr.region().read(0, &mut bytes)?;
                return Ok(Some((String::from_utf8(bytes)?, sender)));
            }
        }
        Ok(None)
    }
}

/// Answers `count` questions.
pub(crate) fn answer(count: usize) -> Result<()> {
    let end = end()?;
    end.receive()?;
    println!("ask me: {} {}", end.own.addr, end.own.qp_num);
    for _ in 0..count {
        let (question, asker) = loop {
            if let Some(message) = end.message()? {
                break message;
            }
        };
        end.receive()?;
        end.send(&format!("received: {question}"), asker)?;
    }
    // The answer has left when it is complete.
    end.message()?;
    Ok(())
}

/// Asks until an answer comes: a datagram may be lost.
pub(crate) fn ask(peer: Peer) -> Result<String> {
    let end = end()?;
    end.receive()?;
    loop {
        end.send("who is there?", peer)?;
        if let Some((answer, _)) = end.message()? {
            return Ok(answer);
        }
    }
}

pub(crate) fn main() -> Result<()> {
    match &std::env::args().skip(1).collect::<Vec<_>>()[..] {
        [] => answer(1),
        [address, number] => {
            println!("{}", ask(Peer::new(address.parse()?, number.parse()?))?);
            Ok(())
        }
        _ => Err("say nothing, or an address and a number".into()),
    }
}
