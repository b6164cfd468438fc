//! What protects a queue pair's TCP connection: a handshake, then records that carry the bytes of
//! MPA (docs/protocol/sealed.md).

use std::ops::Range;

use haul_seal::handshake::{Handshake, HandshakeError};
use haul_seal::record::{
    Content, HEADER_LEN, PAYLOAD_MAX, RECORD_MAX, RecordError, RecordOpener, RecordSealer, Records,
    record_len,
};
use haul_seal::{Keys, SealError, Side};

use super::plain_peer::mpa_refusal;

/// See the module.
#[derive(Debug)]
pub(in crate::rnic) struct SealedStream {
    side: Side,
    state: State,
    /// Bytes that arrived and are not whole: of a record, or of the handshake.
    rest: Vec<u8>,
    out: Records,
    /// How much of `out` the socket has taken.
    sent: usize,
    failure: Option<String>,
}

#[derive(Debug)]
enum State {
    Handshake(Box<dyn Handshake>),
    Open(Box<Open>),
    Failed,
}

#[derive(Debug)]
struct Open {
    sealer: RecordSealer,
    opener: RecordOpener,
    /// Of the end that connects, until the peer's first record has opened: it may refuse instead.
    unconfirmed: Option<Box<dyn Handshake>>,
}

/// The connection cannot go on; [`SealedStream::failure`] returns the reason.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// What the bytes at the front of the inbox are.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Opened {
    /// Bytes that are done with once `data` is.
    pub(super) consumed: usize,
    /// What the peer's MPA sent.
    pub(super) data: Range<usize>,
}

impl SealedStream {
    /// Begins with `handshake`, of the end that connects or of the one that accepts.
    pub(in crate::rnic) fn new(handshake: Box<dyn Handshake>, side: Side) -> Self {
        Self {
            side,
            state: State::Handshake(handshake),
            rest: Vec::new(),
            out: Records::default(),
            sent: 0,
            failure: None,
        }
    }

    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    // ---- inward

    /// Puts what was kept at the front of `inbox`; how many bytes that is.
    pub(super) fn restore(&mut self, inbox: &mut [u8]) -> usize {
        let kept = self.rest.len();
        inbox[..kept].copy_from_slice(&self.rest);
        self.rest.clear();
        kept
    }

    /// Keeps bytes that are not whole. There are less than a record.
    pub(super) fn keep(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
    }

    /// Opens what `inbox` begins with, in place; none where more has to arrive.
    pub(super) fn open(&mut self, inbox: &mut [u8]) -> Result<Option<Opened>, Broken> {
        if inbox.is_empty() {
            return Ok(None);
        }
        match &mut self.state {
            State::Handshake(handshake) => {
                let read = handshake.read(inbox);
                let consumed = read.map_err(|error| self.refuse(inbox, &error))?;
                self.note_keys()?;
                let data = 0..0;
                Ok((consumed > 0).then_some(Opened { consumed, data }))
            }
            State::Open(open) => match open.next(inbox) {
                Ok(opened) => Ok(opened),
                Err(why) => Err(self.break_off(&why)),
            },
            State::Failed => Err(Broken),
        }
    }

    /// The handshake failed: whatever tells the peer why is to be sent.
    fn refuse(&mut self, inbox: &[u8], error: &HandshakeError) -> Broken {
        let mut last = Vec::new();
        if let State::Handshake(handshake) = &mut self.state {
            handshake.write(&mut last);
        }
        if *error == HandshakeError::Unprotected && self.side == Side::Responder {
            last = mpa_refusal(inbox);
        }
        self.out.append_plain(&last);
        self.break_off(&error.to_string())
    }

    fn break_off(&mut self, why: &str) -> Broken {
        self.failure.get_or_insert_with(|| why.to_owned());
        self.state = State::Failed;
        Broken
    }

    /// Goes over to records once there are keys.
    fn note_keys(&mut self) -> Result<(), Broken> {
        let State::Handshake(handshake) = &mut self.state else {
            return Ok(());
        };
        let mut last = Vec::new();
        handshake.write(&mut last);
        self.out.append_plain(&last);
        let Some(seal) = handshake.seal() else {
            return Ok(());
        };
        let keys = Keys::new(&seal.secret, seal.cipher, self.side, &[]);
        let Some(keys) = keys else {
            return Err(self.break_off("this host has no such cipher"));
        };
        let state = std::mem::replace(&mut self.state, State::Failed);
        let State::Handshake(handshake) = state else {
            return Ok(());
        };
        self.state = State::Open(Box::new(Open {
            sealer: RecordSealer::new(keys.sealer),
            opener: RecordOpener::new(keys.opener),
            unconfirmed: (self.side == Side::Initiator).then_some(handshake),
        }));
        Ok(())
    }

    // ---- outward

    /// Whether MPA's bytes can be sent.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// What the socket is to take next.
    pub(super) fn pending(&mut self) -> &[u8] {
        if let State::Handshake(handshake) = &mut self.state {
            let mut bytes = Vec::new();
            handshake.write(&mut bytes);
            self.out.append_plain(&bytes);
        }
        &self.out.as_bytes()[self.sent..]
    }

    /// Notes that the socket has taken so much.
    pub(super) fn advance(&mut self, sent: usize) {
        self.sent += sent;
        if self.sent == self.out.as_bytes().len() {
            self.out.clear();
            self.sent = 0;
        }
    }

    /// Seals bytes of MPA.
    pub(super) fn seal(&mut self, bytes: &[u8]) -> Result<(), SealError> {
        let State::Open(open) = &mut self.state else {
            return Ok(());
        };
        for payload in bytes.chunks(PAYLOAD_MAX) {
            let fill = |room: &mut [u8]| {
                room.copy_from_slice(payload);
                Ok::<_, SealError>(())
            };
            open.sealer.append(&mut self.out, payload.len(), fill)?;
        }
        Ok(())
    }
}

impl Open {
    /// Opens the record that `inbox` begins with.
    fn next(&mut self, inbox: &mut [u8]) -> Result<Option<Opened>, String> {
        let Some(header) = inbox.first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let consumed = match record_len(*header) {
            Ok(len) if len <= inbox.len() => len,
            Ok(_) => return Ok(None),
            Err(error) => return Err(self.say(inbox, error)),
        };
        let record = &mut inbox[..consumed];
        // Opening overwrites it.
        let copy = self.unconfirmed.is_some().then(|| record.to_vec());
        let len = match self.opener.open(record) {
            Ok(Content::Data(data)) => data.len(),
            Ok(Content::KeyUpdate) => 0,
            // MPA has its own end of a stream.
            Ok(Content::End) => return Err(RecordError::Content.to_string()),
            Err(error) => return Err(self.say(&copy.unwrap_or_default(), error)),
        };
        self.unconfirmed = None;
        let data = HEADER_LEN..HEADER_LEN + len;
        Ok(Some(Opened { consumed, data }))
    }

    /// Why the peer's bytes are no record.
    fn say(&mut self, bytes: &[u8], error: RecordError) -> String {
        let refusal = self
            .unconfirmed
            .as_mut()
            .and_then(|handshake| handshake.refusal(bytes));
        refusal.map_or_else(|| error.to_string(), |refusal| refusal.to_string())
    }
}

/// A record always has room beside what was received before it.
const _: () = assert!(RECORD_MAX < super::env::BUFFER / 2);
