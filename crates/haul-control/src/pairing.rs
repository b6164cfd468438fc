//! Pairing: a short code, which two people tell each other, proves two keys to each other once.
//!
//! SPAKE2 over the control connection, whose exporter is part of both names: an attacker between
//! two connections gets two different secrets. The client confirms first. Each run tests one guess
//! and no more, at either end, and after three wrong ones the receiver ends.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use aws_lc_rs::hmac;
use spake2::{Ed25519Group, Identity, Password, Spake2};

use crate::connection::Connection;
use crate::fault::{Code, Fault};
use crate::identity::{PeerIdentity, PublicKey};
use crate::lock;
use crate::server::{Client, Service};
use crate::trust::{Refusal, Rights};

/// The service by which a client asks to be paired.
pub const SERVICE: &str = "pair";
/// Label of the exporter.
const LABEL: &str = "EXPORTER-haul-pairing";
/// Length of a message of SPAKE2, bytes.
const ELEMENT: usize = 33;
/// Length of a confirmation, bytes.
const PROOF: usize = 32;
/// Digits of a code.
const DIGITS: usize = 8;
/// Wrong codes that end a pairing.
const TRIES: u32 = 3;
/// Maximum frame of a client that is being paired, bytes.
const MESSAGE_MAX: usize = 64 << 10;
/// Maximum number of clients that are being paired at once; beyond it they are refused.
const CLIENTS_MAX: usize = 16;

/// A code: eight decimal digits.
#[derive(Clone, PartialEq, Eq)]
pub struct PairingCode([u8; DIGITS]);

impl PairingCode {
    /// Draws a code.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub fn random() -> Result<Self, Fault> {
        let bytes = haul_io::random::bytes::<8>().map_err(|error| {
            Fault::new(Code::Other, format!("cannot read random bytes: {error}"))
        })?;
        // The remainder favours none by more than 1 in 10^11.
        let mut number = u64::from_ne_bytes(bytes);
        let mut digits = [0; DIGITS];
        for digit in &mut digits {
            *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
            number /= 10;
        }
        Ok(Self(digits))
    }

    /// Parses what a person typed: blanks and dashes do not count.
    ///
    /// # Errors
    /// It is no code.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let digits: Vec<u8> = text
            .bytes()
            .filter(|byte| !matches!(byte, b' ' | b'-' | b'\t' | b'\r' | b'\n'))
            .collect();
        let digits = <[u8; DIGITS]>::try_from(digits).ok();
        digits
            .filter(|digits| digits.iter().all(u8::is_ascii_digit))
            .map(Self)
            .ok_or_else(|| {
                Fault::new(Code::NotAuthenticated, "that is no code")
                    .hint("a code is eight digits, as haul receive prints it")
            })
    }
}

impl fmt::Display for PairingCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, second) = self.0.split_at(DIGITS / 2);
        for (part, end) in [(first, "-"), (second, "")] {
            f.write_str(std::str::from_utf8(part).unwrap_or_default())?;
            f.write_str(end)?;
        }
        Ok(())
    }
}

impl fmt::Debug for PairingCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PairingCode")
    }
}

/// The two confirmations of a run.
struct Proofs {
    client: [u8; PROOF],
    receiver: [u8; PROOF],
}

/// One side of a run, before the peer's message.
struct Run {
    state: Spake2<Ed25519Group>,
    message: Vec<u8>,
}

impl Run {
    fn start(code: &PairingCode, binding: &[u8; 32], is_client: bool) -> Self {
        let password = Password::new(code.0);
        let name = |role: &[u8]| Identity::new(&[role, binding].concat());
        let (client, receiver) = (name(b"haul client"), name(b"haul receiver"));
        let (state, message) = match is_client {
            true => Spake2::<Ed25519Group>::start_a(&password, &client, &receiver),
            false => Spake2::<Ed25519Group>::start_b(&password, &client, &receiver),
        };
        Self { state, message }
    }

    /// Derives the confirmations from the peer's message.
    fn finish(self, message: &[u8]) -> Result<Proofs, Fault> {
        let broken = || Fault::protocol("the peer sent no valid message of SPAKE2");
        if message.len() != ELEMENT {
            return Err(broken());
        }
        let secret = self.state.finish(message).map_err(|_| broken())?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let proof = |role: &[u8]| {
            let mut proof = [0; PROOF];
            proof.copy_from_slice(hmac::sign(&key, role).as_ref());
            proof
        };
        Ok(Proofs {
            client: proof(b"haul client"),
            receiver: proof(b"haul receiver"),
        })
    }
}

fn equal(ours: &[u8; PROOF], theirs: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(ours, theirs).is_ok()
}

fn wrong_code() -> Fault {
    Fault::new(Code::NotAuthenticated, "the code is wrong").hint(
        "compare it with what haul receive prints; if it is right, somebody is between both ends",
    )
}

/// Proves the code as the client, and has the receiver prove it. Returns the receiver's key.
///
/// # Errors
/// [`Code::NotAuthenticated`] for a wrong code; else the connection's.
pub fn prove(connection: &mut Connection, code: &PairingCode) -> Result<PublicKey, Fault> {
    let binding = connection.export(LABEL, b"")?;
    let run = Run::start(code, &binding, true);
    connection.send(&run.message)?;
    let answer = connection.receive()?;
    let proofs = run.finish(&answer)?;
    connection.send(&proofs.client)?;
    let proof = connection.receive()?;
    if !equal(&proofs.receiver, &proof) {
        return Err(wrong_code());
    }
    match connection.peer() {
        PeerIdentity::Key(key) => Ok(*key),
        _ => Err(Fault::protocol("the receiver has no key")),
    }
}

/// A receiver that waits for the one client that knows its code.
pub struct PairingService {
    code: PairingCode,
    until: Instant,
    state: Mutex<State>,
    clients: AtomicUsize,
    changed: Box<dyn Fn(&Outcome) + Send + Sync>,
}

struct State {
    tries_left: u32,
    paired: Option<PublicKey>,
}

/// What became of an attempt to pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A client has proved the code.
    Paired(PublicKey),
    /// A client had a wrong code; so many more may be tried.
    Wrong(u32),
}

impl fmt::Debug for PairingService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PairingService").finish_non_exhaustive()
    }
}

impl PairingService {
    /// Waits until `until` for a client with this code; `changed` learns of each attempt.
    #[must_use]
    pub fn new(
        code: PairingCode,
        until: Instant,
        changed: impl Fn(&Outcome) + Send + Sync + 'static,
    ) -> Self {
        Self {
            code,
            until,
            state: Mutex::new(State {
                tries_left: TRIES,
                paired: None,
            }),
            clients: AtomicUsize::new(0),
            changed: Box::new(changed),
        }
    }

    /// Admits every key for pairing only, until one is paired: then that one for sending, and no
    /// other.
    ///
    /// # Errors
    /// The client has no key, or another one is paired.
    pub fn admit(&self, peer: &PeerIdentity) -> Result<Rights, Refusal> {
        let PeerIdentity::Key(key) = peer else {
            return Err(Refusal {
                text: "the receiver requires a key".to_owned(),
                hint: Some("use haul send … haul:HOST:PORT".to_owned()),
            });
        };
        let paired = lock(&self.state).paired;
        if paired.is_some_and(|paired| paired != *key) {
            return Err(Refusal {
                text: USED.to_owned(),
                hint: Some(AGAIN.to_owned()),
            });
        }
        Ok(Rights {
            read: false,
            write: paired.is_some(),
            bench: false,
            drop_only: true,
            plain: false,
            ..Rights::all(&key.to_string())
        })
    }

    /// Returns how many clients are being paired.
    #[cfg(test)]
    pub(crate) fn clients(&self) -> usize {
        self.clients.load(Ordering::Acquire)
    }

    /// Answers one client.
    fn pair(&self, connection: &mut Connection) -> Result<PublicKey, Fault> {
        let PeerIdentity::Key(key) = *connection.peer() else {
            return Err(Fault::protocol("the client has no key"));
        };
        let binding = connection.export(LABEL, b"")?;
        let run = Run::start(&self.code, &binding, false);
        let message = connection.receive_within(MESSAGE_MAX)?;
        let answer = run.message.clone();
        let proofs = run.finish(&message)?;
        connection.send(&answer)?;
        let proof = connection.receive_within(MESSAGE_MAX)?;
        {
            // One at a time: clients that come together test no more codes than those in turn.
            let mut state = lock(&self.state);
            if state.paired.is_some() {
                return Err(over(USED));
            }
            if state.tries_left == 0 || Instant::now() >= self.until {
                return Err(over("the code is not valid any more"));
            }
            if !equal(&proofs.client, &proof) {
                state.tries_left -= 1;
                let left = state.tries_left;
                drop(state);
                (self.changed)(&Outcome::Wrong(left));
                return Err(wrong_code());
            }
            state.paired = Some(key);
        }
        connection.send(&proofs.receiver).inspect_err(|_| {
            // The client does not know that it is paired, and comes with another key.
            lock(&self.state).paired = None;
        })?;
        Ok(key)
    }
}

/// Why a client is refused after another one was paired.
const USED: &str = "another sender has used the code";
/// What it can do.
const AGAIN: &str = "start haul receive again for another code";

fn over(text: &str) -> Fault {
    Fault::new(Code::NotAuthenticated, text).hint(AGAIN)
}

impl Service for PairingService {
    fn name(&self) -> &'static str {
        SERVICE
    }

    fn serve(&self, mut client: Client) {
        let others = self.clients.fetch_add(1, Ordering::AcqRel);
        let result = if others < CLIENTS_MAX {
            self.pair(&mut client.connection)
        } else {
            Err(Fault::new(Code::ServerBusy, "too many senders enter codes")
                .hint("try again in 10 s"))
        };
        match result {
            Ok(key) => (self.changed)(&Outcome::Paired(key)),
            // Telling why takes a second; nobody is owed that in a flood.
            Err(fault) if others < 2 * CLIENTS_MAX => client.connection.refuse(&fault),
            Err(_) => {}
        }
        self.clients.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::identity::{Identity as Own, PrivateKey};
    use crate::tests::join;
    use crate::trust::{ClientConfig, ServerConfig, Trust};

    #[test]
    fn a_client_that_does_not_learn_of_its_pairing_is_not_paired() {
        let own = Own::Key(PrivateKey::generate().unwrap());
        let client = ClientConfig::new(Some(&own), &Trust::Anyone).unwrap();
        let (near, far) = join(&client, &ServerConfig::insecure().unwrap());
        let (mut near, mut far) = (near.unwrap(), far.unwrap());
        far.receive().unwrap();
        let (closer, code) = (far.closer(), PairingCode::random().unwrap());
        let service = PairingService::new(
            code.clone(),
            Instant::now() + Duration::from_secs(60),
            |_| {},
        );
        std::thread::scope(|scope| {
            let state = lock(&service.state);
            let receiver = scope.spawn(|| service.pair(&mut far));
            let binding = near.export(LABEL, b"").unwrap();
            let run = Run::start(&code, &binding, true);
            near.send(&run.message).unwrap();
            let proofs = run.finish(&near.receive().unwrap()).unwrap();
            near.send(&proofs.client).unwrap();
            // Until the receiver has read that, and waits for the lock.
            std::thread::sleep(Duration::from_millis(300));
            closer.cancel();
            drop(state);
            receiver.join().unwrap().unwrap_err();
        });
        let state = lock(&service.state);
        assert_eq!((state.paired, state.tries_left), (None, TRIES));
    }

    fn both(client: (&str, u8), receiver: (&str, u8)) -> (Proofs, Proofs) {
        let start = |(code, binding): (&str, u8), is_client| {
            Run::start(
                &PairingCode::parse(code).unwrap(),
                &[binding; 32],
                is_client,
            )
        };
        let (client, receiver) = (start(client, true), start(receiver, false));
        let (to_receiver, to_client) = (client.message.clone(), receiver.message.clone());
        (
            client.finish(&to_client).unwrap(),
            receiver.finish(&to_receiver).unwrap(),
        )
    }

    #[test]
    fn one_code_on_one_connection_gives_both_ends_the_same_proofs() {
        let (client, receiver) = both(("1234-5678", 1), ("12345678", 1));
        assert_eq!(client.client, receiver.client);
        assert_eq!(client.receiver, receiver.receiver);
        assert_ne!(client.client, client.receiver);
    }

    #[test]
    fn another_code_or_another_connection_gives_others() {
        for (client, receiver) in [
            (("1234-5678", 1), ("1234-5679", 1)),
            // Somebody between two connections, who knows neither end's code.
            (("1234-5678", 1), ("1234-5678", 2)),
        ] {
            let (client, receiver) = both(client, receiver);
            assert_ne!(client.client, receiver.client);
            assert_ne!(client.receiver, receiver.receiver);
        }
    }

    #[test]
    fn a_reflected_message_proves_nothing() {
        let code = PairingCode::parse("00000000").unwrap();
        let run = Run::start(&code, &[1; 32], true);
        let own = run.message.clone();
        assert!(run.finish(&own).is_err());
        let run = Run::start(&code, &[1; 32], true);
        assert!(run.finish(&[0; 7]).is_err());
    }

    #[test]
    fn a_code_is_eight_digits_however_it_is_typed() {
        let code = PairingCode::random().unwrap();
        assert_eq!(PairingCode::parse(&format!(" {code}\n")).unwrap(), code);
        assert_eq!(
            PairingCode::parse("1 2 3 4-5678").unwrap().to_string(),
            "1234-5678"
        );
        assert_eq!(format!("{code:?}"), "PairingCode");
        for bad in ["", "1234567", "123456789", "1234567x", "１２３４５６７８"] {
            assert_eq!(PairingCode::parse(bad).unwrap_err().exit(), 12, "{bad}");
        }
    }
}
