//! The checks.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use haul_verbs::cm::{CmEvent, ConnParam};
use haul_verbs::{
    Blame, Data, DeviceCaps, Error, Notify, QpState, Remote, SendOp, SendWr, SgeList, WcOpcode,
    WcStatus,
};

use crate::client::{Client, FIRST, quiet};
use crate::device::{End, MEMORY_BYTES, Opened, PATIENCE, RECEIVE_BYTES};
use crate::message::{LAST, MESSAGE_BYTES, Message, REJECT_ME, SHARED, ask, is};
use crate::{pattern, serve};

type Check = fn(&Opened, SocketAddr) -> Result<()>;

/// What is checked, where the device has what it needs.
const CHECKS: &[(&str, DeviceCaps, Check)] = &[
    ("messages_go_back_and_forth", DeviceCaps::empty(), ping_pong),
    ("sends_of_all_sizes_arrive", DeviceCaps::empty(), sends),
    ("writes_land_where_they_should", DeviceCaps::empty(), writes),
    ("a_batch_of_writes_lands_whole", DeviceCaps::empty(), batch),
    ("reads_bring_what_is_there", DeviceCaps::empty(), reads),
    (
        "inline_data_is_copied_when_posted",
        DeviceCaps::empty(),
        inline,
    ),
    ("events_wake_who_armed", DeviceCaps::empty(), events),
    ("atomics_give_the_old_value", DeviceCaps::ATOMIC, atomics),
    (
        "immediate_data_arrives",
        DeviceCaps::SEND_WITH_IMM,
        immediate,
    ),
    (
        "a_write_can_bring_immediate_data",
        DeviceCaps::WRITE_WITH_IMM,
        write_immediate,
    ),
    ("receives_can_be_shared", DeviceCaps::SRQ, shared),
    (
        "a_wrong_key_ends_the_connection",
        DeviceCaps::empty(),
        wrong_key,
    ),
    (
        "nothing_is_read_past_the_end",
        DeviceCaps::empty(),
        past_the_end,
    ),
    (
        "a_send_can_end_a_region",
        DeviceCaps::SEND_WITH_INVALIDATE,
        invalidate,
    ),
    (
        "the_other_end_can_disconnect",
        DeviceCaps::empty(),
        disconnect,
    ),
    ("a_rejection_has_private_data", DeviceCaps::empty(), reject),
    (
        "a_port_without_listener_is_unreachable",
        DeviceCaps::empty(),
        nobody,
    ),
    (
        "endpoints_connect_without_the_manager",
        DeviceCaps::ENDPOINTS,
        endpoints,
    ),
];

/// Runs the checks whose name contains `only`; how many failed.
pub(crate) fn run(device: &Opened, at: SocketAddr, only: &str, keep: bool) -> Result<usize> {
    let begun = Instant::now();
    let client = loop {
        match Client::connect(device, at, &[]) {
            Ok(client) => break client,
            // The server may not be there yet.
            Err(error) if begun.elapsed() > PATIENCE => return Err(error),
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(200)),
        }
    };
    let both = client.served & device.attributes.caps;
    client.finish()?;
    let (mut passed, mut failed) = (0, 0);
    for (name, caps, check) in CHECKS.iter().filter(|(name, ..)| name.contains(only)) {
        if !both.contains(*caps) {
            println!("test {name} ... not between these devices");
            continue;
        }
        let begun = Instant::now();
        match check(device, at) {
            Ok(()) => {
                passed += 1;
                println!("test {name} ... ok ({:.1?})", begun.elapsed());
            }
            Err(error) => {
                failed += 1;
                println!("test {name} ... FAILED\n{error:#}");
            }
        }
    }
    if !keep {
        // The server rejects it and ends.
        let _ = request(device, at, LAST);
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {word}. {passed} passed; {failed} failed; 0 ignored");
    Ok(failed)
}

fn ping_pong(device: &Opened, at: SocketAddr) -> Result<()> {
    let mut client = Client::connect(device, at, &[])?;
    let begun = Instant::now();
    for number in 0..200 {
        let message = [ask::ECHO, number, !number, number << 32];
        ensure!(client.ask(message)?.0 == message, "another echo");
    }
    println!("  round trip {:.0?}", begun.elapsed() / 200);
    client.finish()
}

fn sends(device: &Opened, at: SocketAddr) -> Result<()> {
    let mut client = Client::connect(device, at, &[])?;
    for (seed, len) in (1..).zip([
        0,
        1,
        3,
        1_000,
        1_460,
        4_096,
        65_537,
        RECEIVE_BYTES - MESSAGE_BYTES,
    ]) {
        let payload = pattern::bytes(seed, len);
        let message = Message([ask::SUM_OF_MESSAGE, 0, 0, 0]);
        let answer = client.ask_with(SendOp::Send, message, &payload)?;
        ensure!(answer.0[0] == pattern::sum(&payload), "{len} bytes");
    }
    client.finish()
}

fn writes(device: &Opened, at: SocketAddr) -> Result<()> {
    let mut client = Client::connect(device, at, &[])?;
    for (seed, offset, len) in [
        (1, 0, MEMORY_BYTES),
        (2, 1, 1),
        (3, 4_095, 2),
        (4, 100_001, 333_333),
        (5, MEMORY_BYTES - 1_461, 1_461),
    ] {
        client.write(offset, len, seed)?;
        client.must_have(offset, len, seed)?;
    }
    client.finish()
}

fn batch(device: &Opened, at: SocketAddr) -> Result<()> {
    const EACH: usize = 3_000;
    const COUNT: usize = 40;
    let mut client = Client::connect(device, at, &[])?;
    let bytes = pattern::bytes(11, EACH * COUNT);
    client.end.memory.region().write(0, &bytes)?;
    let mut requests: Vec<_> = (0..COUNT)
        .map(|index| {
            let offset = index * EACH;
            let write = SendOp::RdmaWrite(client.at(offset));
            // Two pieces that are one after the other at the server.
            let first = client.end.memory.sge(offset as u64, 1_000);
            let second = client.end.memory.sge(offset as u64 + 1_000, 2_000);
            let pieces = SgeList::new(&[first, second]).unwrap_or_default();
            SendWr::new(FIRST + (1 << 20) + index as u64, write, pieces)
        })
        .collect();
    quiet(&mut requests);
    client.end.qp.post_send(&requests)?;
    client.end.done(FIRST + (1 << 20) + COUNT as u64 - 1)?;
    client.must_have(0, EACH * COUNT, 11)?;
    client.finish()
}

fn reads(device: &Opened, at: SocketAddr) -> Result<()> {
    let mut client = Client::connect(device, at, &[])?;
    for (seed, offset, len) in [
        (1, 0, 700_000),
        (2, 7, 1),
        (3, 4_000, 200),
        (4, 65_535, 300_001),
    ] {
        client.ask([ask::FILL, offset as u64, len as u64, seed])?;
        let sink = client.end.memory.sge(offset as u64, u32::try_from(len)?);
        let read = client.perform(SendOp::RdmaRead(client.at(offset)), sink)?;
        ensure!(read.opcode == WcOpcode::RdmaRead, "{read:?}");
        let mut seen = vec![0; len];
        client.end.memory.region().read(offset, &mut seen)?;
        ensure!(seen == pattern::bytes(seed, len), "{len} bytes at {offset}");
    }
    client.finish()
}

fn inline(device: &Opened, at: SocketAddr) -> Result<()> {
    let mut client = Client::connect(device, at, &[])?;
    let len = client.end.qp.capacity().max_inline.min(32) as usize;
    ensure!(len > 0, "the device has no inline data");
    let mut bytes = pattern::bytes(5, len);
    let wr_id = client.post(SendOp::RdmaWrite(client.remote), Data::Inline(&bytes))?;
    bytes.fill(0);
    client.end.done(wr_id)?;
    client.must_have(0, len, 5)?;
    client.finish()
}

fn events(device: &Opened, at: SocketAddr) -> Result<()> {
    const TOKEN: u64 = 77;
    let channel = device.context.create_completion_channel()?;
    let cq = device.context.create_cq(64, Some(&channel), TOKEN)?;
    let end = End::on(device, cq, None, false)?;
    let mut client = Client::connect_with(device, at, &[], end)?;
    ensure!(
        channel.poll_event()?.is_none(),
        "an event before any was asked for"
    );
    for round in 0..20 {
        client.end.cq.arm(Notify::Any)?;
        client.end.memory.region().fill(0, 8, round)?;
        let sge = client.end.memory.sge(0, 8);
        let wr_id = client.post(SendOp::RdmaRead(client.remote), sge)?;
        ensure!(
            channel.wait_event(Some(PATIENCE))? == Some(TOKEN),
            "no event"
        );
        client.end.done(wr_id)?;
    }
    ensure!(channel.poll_event()?.is_none(), "an event too many");
    client.finish()
}

fn atomics(device: &Opened, at: SocketAddr) -> Result<()> {
    let mut client = Client::connect(device, at, &[])?;
    let zero = client.end.memory.sge(64, 8);
    client.perform(SendOp::RdmaWrite(client.at(8)), zero)?;
    let (remote, sink) = (client.at(8), client.end.memory.sge(0, 8));
    let old = |client: &Client| -> Result<u64> {
        let mut bytes = [0; 8];
        client.end.memory.region().read(0, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    };
    for round in 0..50 {
        let done = client.perform(SendOp::FetchAdd { remote, add: 3 }, sink)?;
        ensure!(done.opcode == WcOpcode::FetchAdd, "{done:?}");
        ensure!(old(&client)? == 3 * round, "fetch and add");
    }
    for (compare, swap, was) in [(150, 7, 150), (150, 8, 7), (7, u64::MAX, 7)] {
        let done = client.perform(
            SendOp::CompareSwap {
                remote,
                compare,
                swap,
            },
            sink,
        )?;
        ensure!(done.opcode == WcOpcode::CompSwap, "{done:?}");
        ensure!(old(&client)? == was, "compare and swap");
    }
    client.perform(SendOp::FetchAdd { remote, add: 2 }, sink)?;
    client.perform(SendOp::RdmaRead(remote), sink)?;
    ensure!(old(&client)? == 1, "the sum does not wrap");
    client.finish()
}

fn immediate(device: &Opened, at: SocketAddr) -> Result<()> {
    let mut client = Client::connect(device, at, &[])?;
    let payload = pattern::bytes(3, 5_000);
    let message = Message([ask::SUM_OF_MESSAGE, 0, 0, 0]);
    let answer = client.ask_with(SendOp::SendWithImm(0xdead_beef), message, &payload)?;
    ensure!(answer.0[0] == pattern::sum(&payload), "the payload");
    ensure!(
        client.ask([ask::IMM, 0, 0, 0])?.0[0] == 0xdead_beef,
        "the immediate data"
    );
    client.finish()
}

fn write_immediate(device: &Opened, at: SocketAddr) -> Result<()> {
    let mut client = Client::connect(device, at, &[])?;
    let bytes = pattern::bytes(4, 10_000);
    client.end.memory.region().write(0, &bytes)?;
    let sge = client.end.memory.sge(0, 10_000);
    client.perform(SendOp::RdmaWriteWithImm(client.remote, 0x0102_0304), sge)?;
    ensure!(
        client.ask([ask::IMM, 0, 0, 0])?.0[0] == 0x0102_0304,
        "the immediate data"
    );
    client.must_have(0, 10_000, 4)?;
    client.finish()
}

fn shared(device: &Opened, at: SocketAddr) -> Result<()> {
    let mut client = Client::connect(device, at, SHARED)?;
    for number in 0..50 {
        let message = [ask::ECHO, number, 0, 0];
        ensure!(client.ask(message)?.0 == message, "another echo");
    }
    client.finish()
}

fn wrong_key(device: &Opened, at: SocketAddr) -> Result<()> {
    let mut client = Client::connect(device, at, &[])?;
    client.write(0, 100, 1)?;
    client.must_have(0, 100, 1)?;
    let rkey = client.remote.rkey ^ 0x0001_0100;
    let remote = Remote {
        rkey,
        ..client.remote
    };
    refused(client, remote, 100)
}

fn past_the_end(device: &Opened, at: SocketAddr) -> Result<()> {
    let client = Client::connect(device, at, &[])?;
    let remote = client.at(MEMORY_BYTES - 99);
    refused(client, remote, 100)
}

/// A read that the server must not allow.
fn refused(mut client: Client, remote: Remote, len: u32) -> Result<()> {
    let sink = client.end.memory.sge(0, len);
    client.end.memory.region().fill(0, len as usize, 0x5a)?;
    let (completion, failure) = client.fail(SendOp::RdmaRead(remote), sink)?;
    ensure!(
        completion.status != WcStatus::Success,
        "the server allowed it"
    );
    let over = client.disconnected()?;
    let failure = failure.or(over);
    // A device may know no more than that its request was in the way.
    ensure!(
        completion.status == WcStatus::WrFlushErr
            || failure.is_some_and(|failure| failure.blame == Blame::PeerComplains),
        "{completion:?}"
    );
    ensure!(client.end.qp.state() == QpState::Err, "not in error");
    let mut seen = vec![0; len as usize];
    client.end.memory.region().read(0, &mut seen)?;
    ensure!(seen.iter().all(|byte| *byte == 0x5a), "bytes were placed");
    // What is posted now is flushed, or refused.
    let write = SendOp::RdmaWrite(client.remote);
    let late = SendWr::new(FIRST + (1 << 20), write, sink);
    match client.end.qp.post_send(&[late]) {
        Ok(()) => {
            let flushed = client.end.completion(|done| done.wr_id == late.wr_id)?;
            ensure!(flushed.status == WcStatus::WrFlushErr, "{flushed:?}");
        }
        Err(refused) => ensure!(
            matches!(refused.error, Error::State(QpState::Err)),
            "{refused:?}"
        ),
    }
    Ok(())
}

fn invalidate(device: &Opened, at: SocketAddr) -> Result<()> {
    let mut client = Client::connect(device, at, &[])?;
    let extra = client.ask([ask::MEMORY, 0, 4_096, 0])?.memory();
    let sge = client.end.memory.sge(0, 64);
    client.perform(SendOp::RdmaWrite(extra), sge)?;
    let message = Message([ask::ECHO, 1, 2, 3]);
    let answer = client.ask_with(SendOp::SendWithInv(extra.rkey), message, &[])?;
    ensure!(answer == message, "another echo");
    let invalidated = client.ask([ask::INVALIDATED, 0, 0, 0])?.0[0];
    ensure!(
        invalidated == u64::from(extra.rkey),
        "key {invalidated:#x} was ended"
    );
    refused(client, extra, 64)
}

fn disconnect(device: &Opened, at: SocketAddr) -> Result<()> {
    let mut client = Client::connect(device, at, &[])?;
    client.say(SendOp::Send, Message([ask::DISCONNECT, 0, 0, 0]), &[])?;
    let failure = client.disconnected()?;
    ensure!(failure.is_none(), "{failure:?}");
    let flushed = client
        .end
        .completion(|completion| completion.wr_id < FIRST)?;
    ensure!(flushed.status == WcStatus::WrFlushErr, "{flushed:?}");
    Ok(())
}

/// What comes of a request.
fn request(device: &Opened, at: SocketAddr, private_data: &[u8]) -> Result<CmEvent> {
    let end = End::new(device, None, false)?;
    let channel = device.context.create_event_channel()?;
    let mut param = ConnParam::default();
    param.private_data = private_data;
    end.qp.connect(at, &param, &channel)?;
    channel
        .wait(Some(PATIENCE))?
        .ok_or_else(|| anyhow!("no answer"))
}

fn reject(device: &Opened, at: SocketAddr) -> Result<()> {
    match request(device, at, REJECT_ME)? {
        CmEvent::Rejected { private_data, .. } if is(&private_data, REJECT_ME) => Ok(()),
        other => Err(anyhow!("{other:?}")),
    }
}

fn nobody(device: &Opened, at: SocketAddr) -> Result<()> {
    match request(device, SocketAddr::new(at.ip(), at.port() + 7), &[])? {
        CmEvent::Unreachable { failure, .. } if failure.blame == Blame::Network => Ok(()),
        other => Err(anyhow!("{other:?}")),
    }
}

fn endpoints(device: &Opened, at: SocketAddr) -> Result<()> {
    ensure!(matches!(
        request(device, at, b"endpoint")?,
        CmEvent::Rejected { .. }
    ));
    let begun = Instant::now();
    let mut stream = loop {
        match TcpStream::connect((at.ip(), at.port() + 1)) {
            Ok(stream) => break stream,
            Err(error) if begun.elapsed() > PATIENCE => return Err(error.into()),
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(50)),
        }
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    let end = End::new(device, None, false)?;
    let peer = serve::exchange(&mut stream, &end.qp.endpoint()?)?;
    end.qp
        .connect_endpoint(&peer, &ConnParam::default(), PATIENCE)?;
    let mut told = [0; MESSAGE_BYTES];
    stream.read_exact(&mut told)?;
    let mut client = Client::over(device, end, Message::parse(&told))?;
    client.write(0, 100_000, 9)?;
    client.must_have(0, 100_000, 9)?;
    // Nobody tells the server that this end is gone but a violation.
    let remote = Remote {
        rkey: client.remote.rkey ^ 0x0001_0100,
        ..client.remote
    };
    let sink = client.end.memory.sge(0, 8);
    let (completion, _) = client.fail(SendOp::RdmaRead(remote), sink)?;
    ensure!(
        completion.status == WcStatus::RemAccessErr,
        "{completion:?}"
    );
    Ok(())
}
