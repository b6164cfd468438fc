//! One control connection: PDUs in and out of its bytes, numbers, authentication, signs of life.

use std::collections::VecDeque;

use crate::SessionId;
use crate::auth::{AuthConfig, Handshake};
use crate::crc::{crc32c, crc32c_continued};
use crate::error::{Error, Misbehaviour};
use crate::time::Time;
use crate::wire::{FLAG_CHECK, FLAG_OPTIONAL, HEADER_LEN, Header, ParseError, Pdu, version};

/// Silence of so many intervals ends a control connection (part B3, failures).
const MISSES_MAX: u64 = 3;

/// Where a PDU has its check: the channel, which is 0 in every PDU of a session.
const CHECK: std::ops::Range<usize> = 24..28;

/// CRC32C of a PDU with zeros for its check.
fn check(octets: &[u8]) -> u32 {
    let before = crc32c_continued(crc32c(&octets[..CHECK.start]), &[0; 4]);
    crc32c_continued(before, &octets[CHECK.end..])
}

/// Adds its check to a PDU.
fn seal(octets: &mut [u8]) {
    octets[1] |= FLAG_CHECK;
    let check = check(octets);
    octets[CHECK].copy_from_slice(&check.to_be_bytes());
}

/// Whether a complete PDU is damaged. One without a check has zeros for it, or damage has cleared
/// its flag.
fn is_damaged(header: &Header, octets: &[u8]) -> bool {
    if header.flags & FLAG_CHECK == 0 {
        return header.chan != 0;
    }
    header.chan != check(octets)
}

#[derive(Debug)]
pub(super) struct ControlLink {
    pub(super) handshake: Handshake,
    /// The beginning of a PDU, at most a header and `body_max` bytes.
    input: Vec<u8>,
    body_max: u32,
    seq_in: u32,
    seq_out: u32,
    pub(super) out: VecDeque<Vec<u8>>,
    /// At the acceptor, `None` until the first PDU states it.
    pub(super) session: Option<SessionId>,
    pub(super) last_in: Time,
    pub(super) last_ping: Time,
    pub(super) keepalive_ns: u64,
    /// The opener's request has been sent.
    pub(super) has_asked: bool,
    /// The peer's clock in its last PING, to be echoed.
    pub(super) pong_due: Option<u64>,
    pub(super) began: Time,
    /// This end sends nothing more; until then it reads the peer's remaining messages.
    pub(super) finished_until: Option<Time>,
}

impl ControlLink {
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
            finished_until: None,
        }
    }

    pub(super) fn begin(&mut self, config: &AuthConfig) {
        for pdu in self.handshake.begin(config) {
            self.send(&pdu);
        }
    }

    /// Stops sending.
    pub(super) fn finish(&mut self, until: Time) {
        self.out.clear();
        self.pong_due = None;
        self.finished_until.get_or_insert(until);
    }

    pub(super) fn send(&mut self, pdu: &Pdu) {
        if self.finished_until.is_some() {
            return;
        }
        let octets = self.encode(pdu);
        self.out.push_back(octets);
        #[cfg(debug_assertions)]
        if self.handshake.is_done()
            && let Some(mut added) = super::added::added(self.session, self.seq_out)
        {
            seal(&mut added);
            self.seq_out = self.seq_out.wrapping_add(1);
            self.out.push_back(added);
        }
    }

    /// Sends the opener's request. No proof covers it, though the last may be still to come.
    pub(super) fn ask(&mut self, pdu: &Pdu) {
        let octets = self.number(pdu);
        self.out.push_back(octets);
        self.has_asked = true;
    }

    pub(super) fn encode(&mut self, pdu: &Pdu) -> Vec<u8> {
        let octets = self.number(pdu);
        if !self.handshake.is_done() {
            self.handshake.record(true, &octets);
        }
        octets
    }

    fn number(&mut self, pdu: &Pdu) -> Vec<u8> {
        let mut octets = pdu.emit(self.session.unwrap_or(SessionId([0; 16])), 0, self.seq_out);
        #[cfg(debug_assertions)]
        super::added::extend(&mut octets);
        seal(&mut octets);
        self.seq_out = self.seq_out.wrapping_add(1);
        octets
    }

    /// Takes bytes up to the end of a PDU: how many, and the PDU if it is whole and known.
    pub(super) fn take(
        &mut self,
        now: Time,
        octets: &[u8],
    ) -> Result<(usize, Option<Pdu>), Misbehaviour> {
        let mut taken = self.fill(HEADER_LEN, octets);
        let Some(head) = self.input.first_chunk::<HEADER_LEN>() else {
            return Ok((taken, None));
        };
        let header = match Header::parse(head) {
            Ok(header) if header.len <= self.body_max => header,
            // No peer that adds checks sends these; damage makes them.
            Ok(Header { flags, .. }) if flags & FLAG_CHECK != 0 => {
                return Err(Misbehaviour::Damaged);
            }
            Ok(header) => return Err(Misbehaviour::TooLarge(header.len)),
            Err(ParseError::Version(theirs)) if self.seq_in == 1 => {
                return self.take_other_version(theirs, taken, octets);
            }
            Err(_) if head[1] & FLAG_CHECK != 0 => return Err(Misbehaviour::Damaged),
            Err(error) => return Err(error.into()),
        };
        let whole = HEADER_LEN + header.len as usize;
        taken += self.fill(whole, &octets[taken..]);
        if self.input.len() < whole {
            return Ok((taken, None));
        }
        if is_damaged(&header, &self.input) {
            return Err(Misbehaviour::Damaged);
        }
        if header.seq != self.seq_in {
            let (expected, found) = (self.seq_in, header.seq);
            return Err(Misbehaviour::Sequence { expected, found });
        }
        if *self.session.get_or_insert(header.session) != header.session {
            return Err(Misbehaviour::Session);
        }
        let pdu = match Pdu::parse(header.kind, &self.input[HEADER_LEN..]) {
            Ok(pdu) => Some(pdu),
            // A newer peer sends none before the proofs, which would cover it.
            Err(ParseError::Unknown { what: "type", .. })
                if header.flags & FLAG_OPTIONAL != 0 && self.handshake.is_done() =>
            {
                self.clear();
                None
            }
            Err(error) => return Err(error.into()),
        };
        self.seq_in = self.seq_in.wrapping_add(1);
        self.last_in = now;
        Ok((taken, pdu))
    }

    /// Takes the first PDU of a peer whose version is not this one, or damaged: its check tells.
    /// Length and check are where they are in all versions since this one.
    fn take_other_version(
        &mut self,
        theirs: u8,
        taken: usize,
        octets: &[u8],
    ) -> Result<(usize, Option<Pdu>), Misbehaviour> {
        let Some(head) = self.input.first_chunk::<HEADER_LEN>() else {
            return Ok((taken, None));
        };
        if head[1] & FLAG_CHECK == 0 {
            return Err(ParseError::Version(theirs).into());
        }
        let mut head = *head;
        head[0] = version();
        let header = Header::parse(&head).ok();
        let Some(header) = header.filter(|header| header.len <= self.body_max) else {
            return Err(Misbehaviour::Damaged);
        };
        let whole = HEADER_LEN + header.len as usize;
        let taken = taken + self.fill(whole, &octets[taken..]);
        if self.input.len() < whole {
            return Ok((taken, None));
        }
        if is_damaged(&header, &self.input) {
            return Err(Misbehaviour::Damaged);
        }
        Err(Misbehaviour::Version(theirs))
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
                self.handshake.record(false, &octets);
                self.handshake.handle(config, session, pdu)?
            }
        };
        answers.iter().for_each(|answer| self.send(answer));
        Ok(())
    }

    /// The PDU that `take` gave is done with.
    pub(super) fn clear(&mut self) {
        // The buffer of a large PDU is not kept for small ones.
        if self.input.capacity() > 4 * HEADER_LEN {
            self.input = Vec::new();
        } else {
            self.input.clear();
        }
    }

    pub(super) fn is_silent(&self, now: Time) -> bool {
        now >= self.dead_at()
    }

    pub(super) fn dead_at(&self) -> Time {
        let silent = self.keepalive_ns.saturating_mul(MISSES_MAX);
        let at = self.last_in.after(silent);
        self.finished_until.map_or(at, |until| until.min(at))
    }

    pub(super) fn ping_due(&mut self, now: Time, every_ns: u64) -> bool {
        let due = now >= self.last_ping.after(every_ns);
        if due {
            self.last_ping = now;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(is_opener: bool) -> ControlLink {
        let session = is_opener.then_some(SessionId([7; 16]));
        ControlLink::new(Time::from_ns(0), is_opener, session, [0; 32], 1 << 20, 1)
    }

    #[test]
    fn every_flipped_bit_of_a_pdu_is_noticed() {
        let pdu = Pdu::Ping {
            t_us: 77,
            echo_us: 5,
        };
        let octets = link(true).encode(&pdu);
        let taken = link(false).take(Time::from_ns(0), &octets);
        assert_eq!(taken, Ok((octets.len(), Some(pdu.clone()))));
        for bit in 0..octets.len() * 8 {
            let mut damaged = octets.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // A longer one waits for the rest, and silence ends the connection.
            let taken = link(false).take(Time::from_ns(0), &damaged);
            let waits = taken == Ok((octets.len(), None)) && (32..64).contains(&bit);
            assert!(
                waits || taken == Err(Misbehaviour::Damaged),
                "{bit}: {taken:?}"
            );
        }
    }

    #[test]
    fn a_pdu_of_a_peer_without_checks_is_taken() {
        let pdu = Pdu::Ping {
            t_us: 77,
            echo_us: 5,
        };
        let octets = pdu.emit(SessionId([7; 16]), 0, 1);
        let taken = link(false).take(Time::from_ns(0), &octets);
        assert_eq!(taken, Ok((octets.len(), Some(pdu))));
    }
}
