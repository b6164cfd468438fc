//! Authentication of the peer: proofs of a shared key over the transcript, and tickets that only
//! their issuer can create.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::SessionId;
use crate::time::Time;
use crate::wire::{AuthMethod, NackStatus, Pdu, TICKET_LEN};

type HmacSha256 = Hmac<Sha256>;

/// Bytes of a nonce, a proof, a seed.
const LEN: usize = 32;
/// Most bytes of the name of a key.
const NAME_MAX: usize = 255;

/// A key that both ends have, and its name.
#[derive(Clone)]
pub struct SharedKey {
    name: String,
    secret: Vec<u8>,
}

impl std::fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedKey({:?})", self.name)
    }
}

impl SharedKey {
    /// A shared key. An eavesdropper can test guesses against the proof: use 32 random bytes, not a
    /// password.
    #[must_use]
    pub fn new(name: &str, secret: &[u8]) -> Self {
        Self {
            name: name.to_owned(),
            secret: secret.to_vec(),
        }
    }
}

/// How this end authenticates itself, and what it requires of the peer.
#[derive(Debug, Clone, Default)]
pub struct AuthConfig {
    /// Accepted methods, the best first. An end that lists [`AuthMethod::Anonymous`] accepts any
    /// peer.
    pub methods: Vec<AuthMethod>,
    /// The opener proves the first; the other end knows all.
    pub keys: Vec<SharedKey>,
    /// The channel binding of the proof: a TLS exporter value, or zeros.
    pub binding: [u8; LEN],
    /// The peer's identity by [`AuthMethod::Tls`] or [`AuthMethod::Ssh`], which are accepted only
    /// if it is set.
    pub peer_below: Option<String>,
}

/// Why the authentication of a peer failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// No method that both ends would use.
    #[error("no common method of authentication")]
    Method,
    /// Its proof is wrong. The peer does not learn whether the name or the key is.
    #[error("the proof of the key is wrong")]
    Proof,
    /// The peer rejected this end.
    #[error("it refuses what this end shows: it has another key, or wants one")]
    Refused,
    /// A step that is not this one's turn, or not formed as it must be.
    #[error("a step of authentication out of turn")]
    Step,
}

/// Unpredictable numbers, from a seed of the engine.
#[derive(Clone)]
pub(crate) struct Secrets {
    seed: [u8; LEN],
    drawn: u64,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secrets({} drawn)", self.drawn)
    }
}

impl Secrets {
    pub(crate) const fn new(seed: [u8; LEN]) -> Self {
        Self { seed, drawn: 0 }
    }

    pub(crate) fn draw(&mut self) -> [u8; LEN] {
        self.drawn += 1;
        mac(&self.seed, &[b"haul-xsp draw", &self.drawn.to_be_bytes()])
            .finalize()
            .into_bytes()
            .into()
    }
}

fn mac(key: &[u8], parts: &[&[u8]]) -> HmacSha256 {
    // HMAC takes keys of every length.
    let mut mac =
        HmacSha256::new_from_slice(key).unwrap_or_else(|_| HmacSha256::new(&Default::default()));
    parts.iter().for_each(|part| mac.update(part));
    mac
}

/// Tickets of sessions: `session (16) | expiry, ns (8) | HMAC-SHA256 (32)`. They hold no secret and
/// are not encrypted: their issuer keeps the session's state.
#[derive(Debug, Clone)]
pub struct Ticketer {
    secrets: Secrets,
}

impl Ticketer {
    /// From a seed of the engine. The seed must outlive the sessions.
    #[must_use]
    pub const fn new(seed: [u8; LEN]) -> Self {
        Self {
            secrets: Secrets::new(seed),
        }
    }

    /// Issues a ticket for a session, valid until `expires`.
    #[must_use]
    pub fn issue(&self, session: SessionId, expires: Time) -> [u8; TICKET_LEN] {
        let mut ticket = [0; TICKET_LEN];
        ticket[..16].copy_from_slice(&session.0);
        ticket[16..24].copy_from_slice(&expires.as_ns().to_be_bytes());
        let mac = mac(&self.secrets.seed, &[b"haul-xsp ticket", &ticket[..24]]);
        ticket[24..].copy_from_slice(&mac.finalize().into_bytes());
        ticket
    }

    /// Returns the session of a ticket that this end issued and that has not expired.
    #[must_use]
    pub fn check(&self, now: Time, ticket: &[u8; TICKET_LEN]) -> Option<SessionId> {
        let (head, proof) = ticket.split_at(24);
        mac(&self.secrets.seed, &[b"haul-xsp ticket", head])
            .verify_slice(proof)
            .ok()?;
        let (session, expires) = head.split_first_chunk::<16>()?;
        let expires = u64::from_be_bytes(expires.try_into().ok()?);
        (now.as_ns() <= expires).then_some(SessionId(*session))
    }
}

/// Whether two secrets are the same, in a time that does not depend on where they differ.
pub(crate) fn same<const N: usize>(a: &[u8; N], b: &[u8; N]) -> bool {
    a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Acceptor: for the methods. Initiator: for the choice.
    Methods,
    /// Acceptor: the key's name and the nonce.
    Name,
    /// Initiator: the acceptor's nonce.
    Nonce,
    /// Acceptor: the initiator's proof. Initiator: the acceptor's.
    Proof,
    Done,
}

/// The beginning of a control connection, at one end (docs/protocol/xsp.md, authentication).
#[derive(Debug)]
pub(crate) struct Handshake {
    is_opener: bool,
    step: Step,
    /// The transcripts: of the opener, of the acceptor.
    said: [Sha256; 2],
    nonces: [[u8; LEN]; 2],
    name: String,
    identity: Option<String>,
}

const NONE: [u8; LEN] = [0; LEN];

impl Handshake {
    pub(crate) fn new(is_opener: bool, nonce: [u8; LEN]) -> Self {
        Self {
            is_opener,
            step: Step::Methods,
            said: [Sha256::new(), Sha256::new()],
            nonces: if is_opener {
                [nonce, NONE]
            } else {
                [NONE, nonce]
            },
            name: String::new(),
            identity: None,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.step == Step::Done
    }

    /// Whether the opener may send its request before authentication is complete: the peer accepts
    /// the request only after it has accepted the preceding method or proof.
    pub(crate) fn may_ask(&self, config: &AuthConfig) -> bool {
        match (self.step, config.methods.as_slice()) {
            // Nothing else can be chosen, and nothing is left to be proved.
            (Step::Methods, [AuthMethod::Anonymous | AuthMethod::Tls | AuthMethod::Ssh]) => {
                self.is_opener
            }
            (Step::Proof, _) => self.is_opener,
            _ => false,
        }
    }

    /// The authenticated peer; `None` if authentication was not required.
    pub(crate) fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    /// A PDU has been sent or received, header and all. Each direction for itself: how they
    /// interleave differs.
    pub(crate) fn record(&mut self, is_own: bool, octets: &[u8]) {
        let of_acceptor = usize::from(is_own != self.is_opener);
        self.said[of_acceptor].update(octets);
    }

    /// Returns whether a PDU is the first step of a shared key that the opener sent before it knew
    /// that this end chose another method. It may do so once.
    pub(crate) fn drops_step(&mut self, pdu: &Pdu) -> bool {
        let Pdu::AuthToken { step: 1, token } = pdu else {
            return false;
        };
        let is_unused = !self.is_opener && self.nonces[0] == NONE;
        let nonce = token.first_chunk().filter(|_| is_unused);
        self.nonces[0] = nonce.copied().unwrap_or(self.nonces[0]);
        nonce.is_some()
    }

    /// The first message of the opener.
    pub(crate) fn begin(&self, config: &AuthConfig) -> Vec<Pdu> {
        let mut pdus = vec![Pdu::AuthType {
            methods: config.methods.clone(),
        }];
        if let Some(key) = config
            .keys
            .first()
            .filter(|_| config.methods.contains(&AuthMethod::SharedKey))
        {
            let token = [
                &self.nonces[0],
                crate::wire::cut(&key.name, NAME_MAX).as_bytes(),
            ]
            .concat();
            pdus.push(Pdu::AuthToken { step: 1, token });
        }
        pdus
    }

    /// Returns the reply. The PDU is recorded already; replies are recorded when they are sent.
    pub(crate) fn handle(
        &mut self,
        config: &AuthConfig,
        session: SessionId,
        pdu: &Pdu,
    ) -> Result<Vec<Pdu>, AuthError> {
        match (self.is_opener, self.step, pdu) {
            (false, Step::Methods, Pdu::AuthType { methods }) => self.choose(config, methods),
            (true, Step::Methods, Pdu::AuthType { methods }) => {
                let [method] = methods.as_slice() else {
                    return Err(AuthError::Step);
                };
                if !config.methods.contains(method) {
                    return Err(AuthError::Method);
                }
                self.chosen(*method, config, Step::Nonce)?;
                Ok(Vec::new())
            }
            (false, Step::Name, Pdu::AuthToken { step: 1, token }) => {
                let (nonce, name) = token.split_first_chunk::<LEN>().ok_or(AuthError::Step)?;
                self.nonces[0] = *nonce;
                self.name = std::str::from_utf8(name)
                    .map_err(|_| AuthError::Step)?
                    .to_owned();
                self.step = Step::Proof;
                Ok(vec![Pdu::AuthToken {
                    step: 2,
                    token: self.nonces[1].to_vec(),
                }])
            }
            (true, Step::Nonce, Pdu::AuthToken { step: 2, token }) => {
                self.nonces[1] = token.as_slice().try_into().map_err(|_| AuthError::Step)?;
                let key = config.keys.first().ok_or(AuthError::Method)?;
                self.name.clone_from(&key.name);
                let token = self
                    .proof(config, session, true)
                    .finalize()
                    .into_bytes()
                    .to_vec();
                self.step = Step::Proof;
                Ok(vec![Pdu::AuthToken { step: 3, token }])
            }
            (true, _, Pdu::SessNack { status, .. }) if *status == NackStatus::NotAuthenticated => {
                Err(AuthError::Refused)
            }
            _ => Err(AuthError::Step),
        }
    }

    /// Checks the proof of the peer, before it is recorded: a proof covers the transcript before
    /// it. `None`: the PDU is no proof.
    pub(crate) fn handle_proof(
        &mut self,
        config: &AuthConfig,
        session: SessionId,
        pdu: &Pdu,
        octets: &[u8],
    ) -> Option<Result<Vec<Pdu>, AuthError>> {
        let Pdu::AuthToken { step, token } = pdu else {
            return None;
        };
        if self.step != Step::Proof {
            return None;
        }
        if *step != if self.is_opener { 4 } else { 3 } {
            return Some(Err(AuthError::Step));
        }
        let proof = self.proof(config, session, !self.is_opener);
        // A name that is not known fails here like a wrong key: its key is the nonce that was drawn
        // for this.
        if proof.verify_slice(token).is_err() || self.key(config).is_none() {
            return Some(Err(AuthError::Proof));
        }
        self.record(false, octets);
        self.identity = Some(self.name.clone());
        self.step = Step::Done;
        if self.is_opener {
            return Some(Ok(Vec::new()));
        }
        let token = self
            .proof(config, session, false)
            .finalize()
            .into_bytes()
            .to_vec();
        Some(Ok(vec![Pdu::AuthToken { step: 4, token }]))
    }

    fn choose(
        &mut self,
        config: &AuthConfig,
        offered: &[AuthMethod],
    ) -> Result<Vec<Pdu>, AuthError> {
        let common = |method: &&AuthMethod| offered.contains(method) && self.may(config, **method);
        let method = *config
            .methods
            .iter()
            .find(common)
            .ok_or(AuthError::Method)?;
        self.chosen(method, config, Step::Name)?;
        Ok(vec![Pdu::AuthType {
            methods: vec![method],
        }])
    }

    fn may(&self, config: &AuthConfig, method: AuthMethod) -> bool {
        match method {
            AuthMethod::Anonymous => true,
            AuthMethod::SharedKey => !config.keys.is_empty(),
            AuthMethod::Tls | AuthMethod::Ssh => self.is_opener || config.peer_below.is_some(),
            AuthMethod::Other(_) => false,
        }
    }

    fn chosen(
        &mut self,
        method: AuthMethod,
        config: &AuthConfig,
        next: Step,
    ) -> Result<(), AuthError> {
        if !self.may(config, method) {
            return Err(AuthError::Method);
        }
        match method {
            AuthMethod::SharedKey => self.step = next,
            AuthMethod::Tls | AuthMethod::Ssh => {
                self.identity.clone_from(&config.peer_below);
                self.step = Step::Done;
            }
            _ => self.step = Step::Done,
        }
        Ok(())
    }

    fn key<'a>(&self, config: &'a AuthConfig) -> Option<&'a SharedKey> {
        config.keys.iter().find(|key| key.name == self.name)
    }

    /// `HMAC(key, role | session | nonces | binding | SHA-256 of the opener's transcript | of the
    /// acceptor's)`.
    fn proof(&self, config: &AuthConfig, session: SessionId, of_opener: bool) -> HmacSha256 {
        let role: &[u8] = if of_opener {
            b"haul-xsp opener"
        } else {
            b"haul-xsp acceptor"
        };
        let key = self
            .key(config)
            .map_or(self.nonces[1].as_slice(), |key| key.secret.as_slice());
        let [by_opener, by_acceptor] = self.said.clone().map(Sha256::finalize);
        let [nonce, answer] = &self.nonces;
        mac(
            key,
            &[
                role,
                &session.0,
                nonce,
                answer,
                &config.binding,
                &by_opener,
                &by_acceptor,
            ],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_opens_its_session_until_it_expires_and_nothing_else() {
        let ticketer = Ticketer::new([7; 32]);
        let (session, expires) = (SessionId([3; 16]), Time::from_ns(50));
        let ticket = ticketer.issue(session, expires);
        assert_eq!(ticketer.check(Time::from_ns(50), &ticket), Some(session));
        assert_eq!(ticketer.check(Time::from_ns(51), &ticket), None);
        assert_eq!(
            Ticketer::new([8; 32]).check(Time::from_ns(0), &ticket),
            None
        );
        for at in 0..TICKET_LEN {
            let mut forged = ticket;
            forged[at] ^= 1;
            assert_eq!(
                ticketer.check(Time::from_ns(0), &forged),
                None,
                "octet {at}"
            );
        }
    }

    #[test]
    fn hmac_sha256_is_rfc_4231s() {
        // RFC 4231 §4.3, test case 2.
        let proof = mac(b"Jefe", &[b"what do ya want ", b"for nothing?"])
            .finalize()
            .into_bytes();
        assert_eq!(proof[..8], [0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e]);
    }
}
