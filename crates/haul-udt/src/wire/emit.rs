//! Any packet back to bytes: what tests and fuzz targets hold against the parser.

use super::{Control, ControlWriter, LossRanges, Packet, SocketId, push_range};

/// The bytes of `packet`; none for kinds that are only read.
#[must_use]
pub fn emit(packet: &Packet<'_>, destination: SocketId) -> Vec<u8> {
    let mut out = Vec::new();
    let writer = ControlWriter::new(&mut out, destination);
    match packet {
        Packet::Data(data) => return data.emit().to_vec(),
        Packet::Control(control) => match control {
            Control::Handshake { body, offer, .. } => writer.handshake(body, *offer),
            Control::KeepAlive => writer.keep_alive(),
            Control::Ack { number, body } => writer.ack(*number, body),
            Control::Nak(losses) => {
                writer.nak();
                push_ranges(&mut out, *losses);
            }
            Control::Shutdown => writer.shutdown(),
            Control::Ack2 { number } => writer.ack2(*number),
            Control::DropRequest {
                message,
                first,
                last,
            } => writer.drop_request(*message, first.get().into(), last.get().into()),
            Control::Feedback(feedback) => {
                writer.feedback(feedback.number, feedback);
                push_ranges(&mut out, feedback.gaps);
            }
            Control::SenderInfo(info) => writer.sender_info(*info),
            Control::Probe { number } => writer.probe(*number, 0),
            Control::ProbeAnswer { number } => writer.probe_answer(*number),
            Control::CongestionWarning | Control::PeerError(_) | Control::User(_) => {}
        },
    }
    out
}

fn push_ranges(out: &mut Vec<u8>, ranges: LossRanges<'_>) {
    for (first, last) in ranges.iter() {
        push_range(out, first.get().into(), last.get().into());
    }
}
