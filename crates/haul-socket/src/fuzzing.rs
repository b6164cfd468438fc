//! What an unknown peer may send, for the target in `fuzz/`.

use crate::frame;
use crate::table::Named;
use crate::wire::Message;

/// A datagram to the agent, and the same to a socket that speaks.
///
/// # Panics
/// If what is read is not what was there.
pub fn datagram(octets: &[u8]) {
    if let Some(message) = Message::parse(octets) {
        assert_eq!(Message::parse(&message.emit()), Some(message));
    }
    let own = Named {
        qpn: 0x12,
        epoch: 0x1122_3301,
    };
    let start = &octets[..octets.len().min(frame::SEND_HEAD)];
    if let Some(head) = frame::parse(start, octets.len(), own) {
        assert!(head.len + head.payload < octets.len());
    }
}
