//! One control connection: PDUs in and out of its octets, numbers, authentication, signs of life.

use std::collections::VecDeque;

use crate::SessionId;
use crate::auth::{AuthConfig, Handshake};
use crate::error::{Error, Misbehaviour};
use crate::time::Time;
use crate::wire::{HEADER_LEN, Header, Pdu};

/// Silence of so many intervals ends a control connection (part B3, failures).
const MISSES_MAX: u64 = 3;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) handshake: Handshake,
    /// The beginning of a PDU, at most a header and `body_max` octets.
    input: Vec<u8>,
    body_max: u32,
    seq_in: u32,
    seq_out: u32,
    pub(super) out: VecDeque<Vec<u8>>,
    /// `None` until the first PDU says which, at the acceptor.
    pub(super) session: Option<SessionId>,
    last_in: Time,
    last_ping: Time,
    pub(super) keepalive_ns: u64,
    /// What the opener wants has been said.
    pub(super) has_asked: bool,
    /// The peer's clock in its last PING, to be echoed.
    pub(super) pong_due: Option<u64>,
    pub(super) began: Time,
}

impl Link {
    pub(super) fn new(
        now: Time,
        is_opener: bool,
        session: Option<SessionId>,
        nonce: [u8; 32],
        body_max: u32,
        keepalive_ns: u64,
    ) -> Self {
        Self {
            handshake: Handshake::new(is_opener, nonce),
            input: Vec::new(),
            body_max,
            seq_in: 1,
            seq_out: 1,
            out: VecDeque::new(),
            session,
            last_in: now,
            last_ping: now,
            keepalive_ns,
            has_asked: false,
            pong_due: None,
            began: now,
        }
    }

    pub(super) fn begin(&mut self, config: &AuthConfig) {
        for pdu in self.handshake.begin(config) {
            self.send(&pdu);
        }
    }

    pub(super) fn send(&mut self, pdu: &Pdu) {
        let octets = self.encode(pdu);
        self.out.push_back(octets);
    }

    /// Says what the opener wants. No proof covers it, though the last may be still to come.
    pub(super) fn ask(&mut self, pdu: &Pdu) {
        let octets = self.number(pdu);
        self.out.push_back(octets);
        self.has_asked = true;
    }

    pub(super) fn encode(&mut self, pdu: &Pdu) -> Vec<u8> {
        let octets = self.number(pdu);
        if !self.handshake.is_done() {
            self.handshake.hear(true, &octets);
        }
        octets
    }

    fn number(&mut self, pdu: &Pdu) -> Vec<u8> {
        let octets = pdu.emit(self.session.unwrap_or(SessionId([0; 16])), 0, self.seq_out);
        self.seq_out = self.seq_out.wrapping_add(1);
        octets
    }

    /// Takes octets up to the end of a PDU: how many, and the PDU if it is whole.
    pub(super) fn take(
        &mut self,
        now: Time,
        octets: &[u8],
    ) -> Result<(usize, Option<Pdu>), Misbehaviour> {
        let mut taken = self.fill(HEADER_LEN, octets);
        let Some(head) = self.input.first_chunk::<HEADER_LEN>() else {
            return Ok((taken, None));
        };
        let header = Header::parse(head)?;
        if header.len > self.body_max {
            return Err(Misbehaviour::TooLarge(header.len));
        }
        let whole = HEADER_LEN + header.len as usize;
        taken += self.fill(whole, &octets[taken..]);
        if self.input.len() < whole {
            return Ok((taken, None));
        }
        if header.seq != self.seq_in {
            let (expected, found) = (self.seq_in, header.seq);
            return Err(Misbehaviour::Sequence { expected, found });
        }
        if *self.session.get_or_insert(header.session) != header.session {
            return Err(Misbehaviour::Session);
        }
        let pdu = Pdu::parse(header.kind, &self.input[HEADER_LEN..])?;
        self.seq_in = self.seq_in.wrapping_add(1);
        self.last_in = now;
        Ok((taken, Some(pdu)))
    }

    fn fill(&mut self, until: usize, octets: &[u8]) -> usize {
        let wanted = until.saturating_sub(self.input.len()).min(octets.len());
        self.input.extend_from_slice(&octets[..wanted]);
        wanted
    }

    /// One step of authentication.
    pub(super) fn authenticate(&mut self, config: &AuthConfig, pdu: &Pdu) -> Result<(), Error> {
        let session = self.session.unwrap_or(SessionId([0; 16]));
        let octets = std::mem::take(&mut self.input);
        let answers = match self.handshake.handle_proof(config, session, pdu, &octets) {
            Some(answers) => answers?,
            None => {
                self.handshake.hear(false, &octets);
                self.handshake.handle(config, session, pdu)?
            }
        };
        answers.iter().for_each(|answer| self.send(answer));
        Ok(())
    }

    /// The PDU that `take` gave is done with.
    pub(super) fn clear(&mut self) {
        // What a large PDU needed is not kept for small ones.
        if self.input.capacity() > 4 * HEADER_LEN {
            self.input = Vec::new();
        } else {
            self.input.clear();
        }
    }

    pub(super) fn is_silent(&self, now: Time) -> bool {
        now >= self.dead_at()
    }

    fn dead_at(&self) -> Time {
        self.last_in
            .after(self.keepalive_ns.saturating_mul(MISSES_MAX))
    }

    pub(super) fn ping_due(&mut self, now: Time) -> bool {
        let due = now >= self.last_ping.after(self.keepalive_ns);
        if due {
            self.last_ping = now;
        }
        due
    }

    pub(super) fn poll_timeout(&self) -> Time {
        self.dead_at().min(self.last_ping.after(self.keepalive_ns))
    }
}
