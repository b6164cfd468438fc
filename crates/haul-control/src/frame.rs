//! Frames inside TLS: a length, a kind, and a body.

use minicbor::{Decode, Encode};

use crate::fault::{Code, Fault};
use crate::{abridged, next};

/// Length field before a frame, bytes.
const LENGTH: usize = 4;
/// Maximum frame without its length: bounds what a peer can have this end keep.
pub const FRAME_MAX: usize = 8 << 20;
/// Maximum frame before the greetings are exchanged, without its length.
pub const GREETING_MAX: usize = 64 << 10;

/// First frame of each end.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Greeting {
    /// Software and its version, for people.
    #[n(0)]
    pub software: String,
    /// Name of the service that a client asks for; empty from a server.
    #[n(1)]
    pub service: String,
    /// What this end can do beyond the protocol version; unknown bits are ignored.
    #[n(2)]
    pub features: u64,
    /// Peer timeout of both ends, milliseconds, as the client chooses it; 0 from a server.
    #[n(3)]
    pub dead_after_ms: u32,
    /// Random number of the client's task, which it keeps when it connects again; zeros from a
    /// server.
    #[cbor(n(4), with = "minicbor::bytes")]
    pub task: TaskId,
}

/// Identifies a task of a client.
pub type TaskId = [u8; 16];

#[derive(Debug, Encode, Decode)]
struct WireFault {
    #[n(0)]
    code: u16,
    #[n(1)]
    text: String,
    #[n(2)]
    hint: Option<String>,
}

/// What one end sends to the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The first of each end.
    Greeting(Greeting),
    /// A message of the service.
    Message(Vec<u8>),
    /// Heartbeat.
    Ping,
    /// The last of an end that gives up.
    Fault(Fault),
}

impl Frame {
    const GREETING: u8 = 0;
    const MESSAGE: u8 = 1;
    const PING: u8 = 2;
    const FAULT: u8 = 3;

    /// Appends the frame to `out`.
    ///
    /// # Errors
    /// The message is longer than [`FRAME_MAX`].
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), Fault> {
        match self {
            Self::Greeting(greeting) => {
                let greeting = Greeting {
                    software: next::software(&greeting.software),
                    service: greeting.service.clone(),
                    ..*greeting
                };
                write(Self::GREETING, &encode(&greeting)?, out)
            }
            Self::Message(message) => {
                for (kind, body) in next::added(message) {
                    write(kind, body, out)?;
                }
                write(Self::MESSAGE, message, out)
            }
            Self::Ping => write(Self::PING, &[], out),
            Self::Fault(fault) => {
                let fault = WireFault {
                    code: fault.code.number(),
                    text: fault.text.clone(),
                    hint: fault.hint.clone(),
                };
                write(Self::FAULT, &encode(&fault)?, out)
            }
        }
    }

    /// Takes the first frame out of `bytes`, once it is complete, with its length in bytes. The
    /// frame is `None` if its kind is unknown, as of a newer peer.
    ///
    /// # Errors
    /// The length is out of range, or the body cannot be read.
    pub fn read(bytes: &[u8], max: usize) -> Result<Option<(Option<Self>, usize)>, Fault> {
        let Some((length, rest)) = bytes.split_first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        if !(1..=max).contains(&length) {
            return Err(Fault::protocol(format!(
                "the peer sent {length} bytes as one frame"
            )));
        }
        let Some((&kind, body)) = rest.get(..length).and_then(<[u8]>::split_first) else {
            return Ok(None);
        };
        let frame = match kind {
            Self::GREETING => Some(Self::Greeting(decode(body)?)),
            Self::MESSAGE => Some(Self::Message(body.to_vec())),
            Self::PING => Some(Self::Ping),
            Self::FAULT => {
                let fault: WireFault = decode(body)?;
                let text = abridged(&fault.text);
                let made = Fault::new(Code::from_number(fault.code), text);
                Some(Self::Fault(match fault.hint {
                    Some(hint) => made.hint(abridged(&hint)),
                    None => made,
                }))
            }
            _ => None,
        };
        Ok(Some((frame, LENGTH + length)))
    }
}

/// Appends a frame.
fn write(kind: u8, body: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
    let length = body.len() + 1;
    let length = u32::try_from(length).ok().filter(|_| length <= FRAME_MAX);
    let length = length.ok_or_else(|| Fault::new(Code::Other, "a message is too long"))?;
    out.extend(length.to_be_bytes());
    out.push(kind);
    out.extend_from_slice(body);
    Ok(())
}

fn encode(value: &impl Encode<()>) -> Result<Vec<u8>, Fault> {
    minicbor::to_vec(value)
        .map(next::extend)
        .map_err(|error| Fault::new(Code::Other, format!("cannot encode a message: {error}")))
}

fn decode<'a, T: Decode<'a, ()>>(body: &'a [u8]) -> Result<T, Fault> {
    minicbor::decode(body).map_err(|error| {
        Fault::protocol(format!(
            "the peer sent a frame that cannot be read: {error}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(frame: &Frame) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame.write(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn frames_survive_the_wire() {
        let greeting = Greeting {
            software: "haul 9".into(),
            service: "files".into(),
            features: 1 << 40,
            dead_after_ms: 20_000,
            task: [7; 16],
        };
        for frame in [
            Frame::Greeting(greeting),
            Frame::Message(b"\0\xff".to_vec()),
            Frame::Message(Vec::new()),
            Frame::Ping,
            Frame::Fault(Fault::new(Code::DiskFull, "no room").hint("make some")),
        ] {
            let bytes = bytes(&frame);
            let read = Frame::read(&bytes, FRAME_MAX).unwrap();
            assert_eq!(read, Some((Some(frame), bytes.len())));
            for cut in 0..bytes.len() {
                assert_eq!(Frame::read(&bytes[..cut], FRAME_MAX).unwrap(), None);
            }
        }
    }

    #[test]
    fn a_length_out_of_range_is_refused_before_its_body_arrives() {
        for (length, max) in [(0, 9), (10, 9), (u32::MAX, FRAME_MAX)] {
            let fault = Frame::read(&length.to_be_bytes(), max).unwrap_err();
            assert_eq!(fault.code, Code::Protocol);
        }
        let mut out = Vec::new();
        let long = Frame::Message(vec![0; FRAME_MAX]);
        assert!(long.write(&mut out).is_err());
    }

    #[test]
    fn a_frame_of_a_newer_version_is_skipped() {
        let read = Frame::read(&[0, 0, 0, 2, 99, 1, 7], FRAME_MAX).unwrap();
        assert_eq!(read, Some((None, 6)));
    }

    #[test]
    fn a_peer_that_talks_too_much_is_cut_short() {
        let fault = Fault::new(Code::Other, "ä".repeat(1 << 20)).hint("ß".repeat(1 << 20));
        let read = Frame::read(&bytes(&Frame::Fault(fault)), FRAME_MAX).unwrap();
        let Some((Some(Frame::Fault(fault)), _)) = read else {
            panic!("{read:?}");
        };
        assert!(fault.text.len() < 13_000 && fault.hint.unwrap().len() < 13_000);
    }

    proptest! {
        #[test]
        fn junk_is_an_error_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Frame::read(&bytes, GREETING_MAX);
        }
    }
}
