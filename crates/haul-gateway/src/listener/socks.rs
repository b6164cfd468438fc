//! SOCKS 5 (RFC 1928): CONNECT without authentication.

use haul_xsp::wire::{Address, Endpoint};

use super::step::Step;
use crate::answer::socks_refusal;
use crate::host;
use crate::refusal::reply;

const VERSION: u8 = 5;
/// "No authentication required", and "no acceptable methods" (§3).
const METHOD_NONE: u8 = 0;
const METHOD_NO_ACCEPTABLE: u8 = 0xff;
const COMMAND_CONNECT: u8 = 1;
/// Types of address (§5).
const ADDRESS_V4: u8 = 1;
const ADDRESS_NAME: u8 = 3;
const ADDRESS_V6: u8 = 4;
/// The longest message: a request with a name of 255 bytes.
const MESSAGE_MAX: usize = 4 + 1 + 255 + 2;

/// The handshake so far.
#[derive(Debug, Default)]
pub(crate) struct Socks {
    /// The current message. At most [`MESSAGE_MAX`].
    message: Vec<u8>,
    is_greeted: bool,
}

impl Socks {
    pub(super) fn handle(&mut self, octets: &[u8]) -> (usize, Step) {
        let mut taken = 0;
        loop {
            let wanted = if self.is_greeted {
                request_len(&self.message)
            } else {
                greeting_len(&self.message)
            };
            let wanted = match wanted {
                Ok(wanted) => wanted.min(MESSAGE_MAX),
                Err(refusal) => return (taken, Step::Refuse(refusal)),
            };
            if self.message.len() == wanted {
                let message = std::mem::take(&mut self.message);
                let step = if self.is_greeted {
                    request(&message)
                } else {
                    self.greeting(&message)
                };
                return (taken, step);
            }
            let missing = wanted - self.message.len();
            let piece = &octets[taken..octets.len().min(taken + missing)];
            if piece.is_empty() {
                return (taken, Step::More);
            }
            self.message.extend_from_slice(piece);
            taken += piece.len();
        }
    }

    /// Handles version, number of methods, methods (§3).
    fn greeting(&mut self, message: &[u8]) -> Step {
        if !message[2..].contains(&METHOD_NONE) {
            return Step::Refuse(vec![VERSION, METHOD_NO_ACCEPTABLE]);
        }
        self.is_greeted = true;
        Step::Reply(&[VERSION, METHOD_NONE])
    }
}

/// Returns the length of a greeting, as far as it is known.
fn greeting_len(message: &[u8]) -> Result<usize, Vec<u8>> {
    match *message {
        [] => Ok(1),
        // SOCKS 4, or no SOCKS at all: the client would understand no answer.
        [version, ..] if version != VERSION => Err(Vec::new()),
        [_] => Ok(2),
        [_, methods, ..] => Ok(2 + usize::from(methods)),
    }
}

/// Returns the length of a request, as far as it is known: version, command, a zero, address type,
/// address, port (§4).
fn request_len(message: &[u8]) -> Result<usize, Vec<u8>> {
    match *message {
        [] => Ok(1),
        [version, ..] if version != VERSION => Err(Vec::new()),
        [_, _, _, ADDRESS_V4, ..] => Ok(4 + 4 + 2),
        [_, _, _, ADDRESS_V6, ..] => Ok(4 + 16 + 2),
        [_, _, _, ADDRESS_NAME] => Ok(4 + 1),
        [_, _, _, ADDRESS_NAME, len, ..] => Ok(4 + 1 + usize::from(len) + 2),
        [_, _, _, _, ..] => Err(socks_refusal(reply::ADDRESS_TYPE).to_vec()),
        _ => Ok(4),
    }
}

/// Handles a complete request.
fn request(message: &[u8]) -> Step {
    let refuse = |code| Step::Refuse(socks_refusal(code).to_vec());
    let ([_, command, _, kind, rest @ ..], Some(port)) = (message, message.last_chunk::<2>())
    else {
        return refuse(reply::FAILURE);
    };
    if *command != COMMAND_CONNECT {
        return refuse(reply::COMMAND);
    }
    let address = &rest[..rest.len() - port.len()];
    let address = match *kind {
        ADDRESS_V4 => address.try_into().ok().map(Address::V4),
        ADDRESS_V6 => address.try_into().ok().map(Address::V6),
        _ => std::str::from_utf8(&address[1..]).ok().and_then(host::host),
    };
    match (address, u16::from_be_bytes(*port)) {
        (Some(address), port) if port != 0 => Step::Done(Endpoint { address, port }),
        _ => refuse(reply::HOST_UNREACHABLE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::handshake::Handshake;
    use crate::listener::handshake::tests::run;

    const GREETING: &[u8] = &[5, 1, 0];

    fn start() -> Handshake {
        Handshake::Socks(Socks::default())
    }

    fn ask(request: &[u8]) -> (Vec<u8>, usize, Step) {
        run(start, &[GREETING, request].concat())
    }

    fn done(address: Address, port: u16) -> Step {
        Step::Done(Endpoint { address, port })
    }

    #[test]
    fn a_client_may_name_an_address_of_either_kind_or_a_name() {
        let v4 = ask(&[5, 1, 0, 1, 192, 0, 2, 1, 0, 80]);
        assert_eq!(v4, (vec![5, 0], 13, done(Address::V4([192, 0, 2, 1]), 80)));
        let mut v6 = vec![5, 1, 0, 4, 0x20, 1, 0xd, 0xb8];
        v6.extend([0; 12]);
        v6.extend([1, 187]);
        let Step::Done(to) = ask(&v6).2 else { panic!() };
        assert_eq!(host::Shown(&to).to_string(), "[2001:db8::]:443");
        let name = ask(b"\x05\x01\x00\x03\x0bexample.org\x00\x50");
        assert_eq!(name.2, done(Address::Name("example.org".to_owned()), 80));
    }

    #[test]
    fn an_address_written_as_a_name_is_an_address() {
        let name = ask(b"\x05\x01\x00\x03\x09127.0.0.1\x00\x50");
        assert_eq!(name.2, done(Address::V4([127, 0, 0, 1]), 80));
    }

    #[test]
    fn bytes_after_the_request_are_left() {
        let (_, taken, step) = ask(b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50GET / HTTP/1.1");
        assert_eq!((taken, step), (13, done(Address::V4([127, 0, 0, 1]), 80)));
    }

    #[test]
    fn what_cannot_be_done_is_answered_with_its_code() {
        let code = |request: &[u8]| match ask(request).2 {
            Step::Refuse(refusal) => refusal[1],
            step => panic!("{step:?}"),
        };
        assert_eq!(code(&[5, 2, 0, 1, 192, 0, 2, 1, 0, 80]), reply::COMMAND);
        assert_eq!(code(&[5, 3, 0, 1, 192, 0, 2, 1, 0, 80]), reply::COMMAND);
        assert_eq!(code(&[5, 1, 0, 2]), reply::ADDRESS_TYPE);
        assert_eq!(
            code(&[5, 1, 0, 1, 192, 0, 2, 1, 0, 0]),
            reply::HOST_UNREACHABLE
        );
        assert_eq!(code(&[5, 1, 0, 3, 0, 0, 80]), reply::HOST_UNREACHABLE);
        assert_eq!(
            code(b"\x05\x01\x00\x03\x03\xff\xfe\xfd\x00\x50"),
            reply::HOST_UNREACHABLE
        );
        assert_eq!(
            code(b"\x05\x01\x00\x03\x05127.1\x00\x50"),
            reply::HOST_UNREACHABLE
        );
    }

    #[test]
    fn a_client_that_insists_on_authentication_is_refused() {
        for methods in [&[5, 0][..], &[5, 1, 2], &[5, 2, 1, 2]] {
            assert_eq!(run(start, methods).2, Step::Refuse(vec![5, 0xff]));
        }
        assert_eq!(run(start, &[5, 3, 2, 1, 0]).0, [5, 0]);
    }

    #[test]
    fn other_protocols_get_no_answer() {
        for octets in [
            &b"\x04\x01\x00\x50"[..],
            b"GET / HTTP/1.1\r\n",
            b"\x16\x03\x01",
        ] {
            assert_eq!(
                run(start, octets),
                (Vec::new(), 0, Step::Refuse(Vec::new()))
            );
        }
        assert_eq!(ask(&[4, 1, 0]).2, Step::Refuse(Vec::new()));
    }

    #[test]
    fn a_handshake_that_stops_waits_for_more() {
        let whole = b"\x05\x01\x00\x05\x01\x00\x03\x0bexample.org\x00\x50";
        for len in 0..whole.len() {
            assert_eq!(run(start, &whole[..len]).2, Step::More, "{len}");
        }
    }
}
