//! The answering end.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use anyhow::{Result, anyhow, ensure};
use haul_verbs::cm::{CmEvent, ConnParam, ConnectRequest, EventChannel};
use haul_verbs::{Endpoint, Mr, QpState, SendOp, SendWr, SrqInit, WcData, WcStatus};

use crate::device::{End, Opened, PATIENCE, RECEIVE_BYTES, RECEIVES};
use crate::message::{LAST, MESSAGE_BYTES, Message, REJECT_ME, SHARED, ask, is};
use crate::pattern;

const ANSWER: u64 = 1 << 32;

/// One connection after the other.
pub(crate) fn run(device: &Opened, at: SocketAddr) -> Result<()> {
    let channel = device.context.create_event_channel()?;
    let listener = device.context.listen(at, &channel, 4)?;
    ensure!(listener.local_addr() == at, "listening elsewhere");
    println!("serving on {at}");
    loop {
        let request = match channel.wait(Some(PATIENCE * 2))? {
            Some(CmEvent::ConnectRequest(request)) => request,
            Some(event) => {
                println!("server: late: {event:?}");
                continue;
            }
            None => return Err(anyhow!("nobody has come")),
        };
        let private_data = request.private_data.clone();
        if is(&private_data, LAST) {
            request.reject(&[])?;
            return Ok(());
        }
        if is(&private_data, REJECT_ME) {
            request.reject(REJECT_ME)?;
            continue;
        }
        if is(&private_data, b"endpoint") {
            request.reject(&[])?;
            without_cm(device, at)?;
            continue;
        }
        if let Err(error) = connection(device, &channel, request) {
            println!("server: {error:#}");
        }
    }
}

fn connection(device: &Opened, channel: &EventChannel, request: ConnectRequest) -> Result<()> {
    let srq = if is(&request.private_data, SHARED) {
        Some(device.pd.create_srq(&SrqInit::default())?)
    } else {
        None
    };
    let end = End::new(device, srq, false)?;
    let private_data = Message::of_memory(&end.memory, device.served).emit();
    let mut param = ConnParam::default();
    param.private_data = &private_data;
    param.responder_resources = request.initiator_depth;
    request.accept(&end.qp, &param)?;
    match channel.wait(Some(PATIENCE))? {
        Some(CmEvent::Established { qp_num, .. }) if qp_num == end.qp.qp_num() => {}
        other => return Err(anyhow!("not established: {other:?}")),
    }
    let mut server = Server::new(device, end);
    let served = server.run();
    // A connection that failed has an end too.
    loop {
        match channel.wait(Some(PATIENCE))? {
            Some(CmEvent::Disconnected { qp_num, .. }) if qp_num == server.end.qp.qp_num() => break,
            Some(CmEvent::ConnectRequest(_)) | None => return Err(anyhow!("no disconnection")),
            Some(_) => {}
        }
    }
    ensure!(server.end.qp.state() == QpState::Err, "not in error");
    served
}

/// Endpoints are told over TCP.
fn without_cm(device: &Opened, at: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind((at.ip(), at.port() + 1))?;
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let end = End::new(device, None, false)?;
    let peer = exchange(&mut stream, &end.qp.endpoint()?)?;
    end.qp
        .connect_endpoint(&peer, &ConnParam::default(), PATIENCE)?;
    stream.write_all(&Message::of_memory(&end.memory, device.served).emit())?;
    Server::new(device, end).run()
}

/// Tells and asks for an endpoint. The software provider names no address: it is reached where this
/// stream is.
pub(crate) fn exchange(stream: &mut TcpStream, own: &Endpoint) -> Result<Endpoint> {
    let mut own = *own;
    if own.port != 0 {
        own.gid = match stream.local_addr()?.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
    }
    let mut bytes = [0; 28];
    bytes[..4].copy_from_slice(&own.qp_num.to_be_bytes());
    bytes[4..8].copy_from_slice(&own.psn.to_be_bytes());
    bytes[8..10].copy_from_slice(&own.lid.to_be_bytes());
    bytes[10..12].copy_from_slice(&own.port.to_be_bytes());
    bytes[12..].copy_from_slice(&own.gid);
    stream.write_all(&bytes)?;
    stream.read_exact(&mut bytes)?;
    let [qp_num, psn] =
        [&bytes[..4], &bytes[4..8]].map(|word| word.try_into().map(u32::from_be_bytes));
    let [lid, port] =
        [&bytes[8..10], &bytes[10..12]].map(|word| word.try_into().map(u16::from_be_bytes));
    let gid = bytes[12..].try_into()?;
    Ok(Endpoint::new(qp_num?, psn?, lid?, gid, port?))
}

struct Server<'a> {
    device: &'a Opened,
    end: End,
    imm: u64,
    invalidated: u64,
    extra: Vec<Mr>,
}

impl<'a> Server<'a> {
    fn new(device: &'a Opened, end: End) -> Self {
        Self {
            device,
            end,
            imm: 0,
            invalidated: 0,
            extra: Vec::new(),
        }
    }

    /// Until the connection ends.
    fn run(&mut self) -> Result<()> {
        loop {
            let receive = self
                .end
                .completion(|completion| completion.wr_id < RECEIVES as u64);
            let receive = match receive {
                Err(_) if self.end.qp.state() == QpState::Err => return Ok(()),
                receive => receive?,
            };
            if receive.status != WcStatus::Success {
                return Ok(());
            }
            let slot = usize::try_from(receive.wr_id)?;
            match receive.data {
                WcData::Imm(imm) => self.imm = imm.into(),
                WcData::InvalidatedRkey(rkey) => self.invalidated = rkey.into(),
                _ => {}
            }
            if receive.opcode == haul_verbs::WcOpcode::RecvRdmaWithImm {
                self.end.post_recv(slot)?;
                continue;
            }
            let mut message = vec![0; receive.byte_len as usize];
            let incoming = self.end.incoming.region();
            incoming.read(slot * RECEIVE_BYTES, &mut message)?;
            self.end.post_recv(slot)?;
            if let Some(answer) = self.answer(&message)? {
                self.end.outgoing.region().write(0, &answer.emit())?;
                let sge = self.end.outgoing.sge(0, MESSAGE_BYTES as u32);
                let request = SendWr::new(ANSWER, SendOp::Send, sge);
                self.end.qp.post_send(&[request])?;
                self.end.done(ANSWER)?;
            }
        }
    }

    fn answer(&mut self, message: &[u8]) -> Result<Option<Message>> {
        let head = message.first_chunk::<MESSAGE_BYTES>();
        let Some(head) = head.map(Message::parse) else {
            return Ok(None);
        };
        let [question, offset, len, seed] = head.0;
        let (offset, len) = (usize::try_from(offset)?, usize::try_from(len)?);
        let memory = self.end.memory.region();
        let value = match question {
            ask::ECHO => return Ok(Some(head)),
            ask::SUM => {
                let mut bytes = vec![0; len];
                memory.read(offset, &mut bytes)?;
                pattern::sum(&bytes)
            }
            ask::FILL => {
                memory.write(offset, &pattern::bytes(seed, len))?;
                0
            }
            ask::SUM_OF_MESSAGE => pattern::sum(&message[MESSAGE_BYTES..]),
            ask::IMM => self.imm,
            ask::INVALIDATED => self.invalidated,
            ask::MEMORY => {
                self.extra.push(self.device.memory(len)?);
                let extra = self.extra.last();
                return Ok(extra.map(|extra| Message::of_memory(extra, self.device.served)));
            }
            ask::DISCONNECT => {
                self.end.qp.disconnect()?;
                return Ok(None);
            }
            other => return Err(anyhow!("no such question: {other}")),
        };
        Ok(Some(Message([value, 0, 0, 0])))
    }
}
