//! The two directions of a byte stream: frames from a ledger and into one, payload without a copy.

use std::io;
use std::ops::Range;

use super::fabric::{Lost, News};
use super::frame::{Frame, HEADER_LEN};
use super::ledger::{Breach, Incoming, Ledger, Part, Span};

/// Frames without payload that leave in one call.
const SHORT_MAX: usize = 64;
/// Bytes received beside payload: headers, and what arrived with them.
const BESIDE_BYTES: usize = 512;

/// Outgoing frames.
#[derive(Debug, Default)]
pub(crate) struct Outlet {
    /// Headers; the payload belongs to the last of them.
    head: Vec<u8>,
    /// `0 <= sent <= head.len()`
    sent: usize,
    payload: Option<Span>,
}

/// The outcome of an attempt to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// There is nothing to send.
    Nothing,
    /// So many bytes have left.
    Some(usize),
    /// The stream is full.
    Blocked,
}

impl Outlet {
    /// Begins with these bytes.
    pub(crate) fn new(first: &[u8]) -> Self {
        Self {
            head: first.to_vec(),
            ..Self::default()
        }
    }

    /// Whether a frame is partly sent.
    pub(crate) fn is_amid(&self) -> bool {
        self.sent < self.head.len() || self.payload.is_some()
    }

    /// Sends some of the current frame, or of the next ones of the ledger.
    pub(crate) fn turn(
        &mut self,
        ledger: &mut Ledger,
        send: impl FnOnce(&[u8], Option<Part<'_>>) -> io::Result<usize>,
    ) -> Result<Sent, Lost> {
        if !self.is_amid() && !self.load(ledger) {
            return Ok(Sent::Nothing);
        }
        let head = &self.head[self.sent..];
        let result = match &self.payload {
            Some(span) => ledger.part(span, |part| send(head, Some(part)))?,
            None => send(head, None),
        };
        match result {
            Ok(count) => {
                self.advance(count);
                Ok(Sent::Some(count))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Sent::Blocked),
            Err(error) => Err(Lost(error.to_string())),
        }
    }

    fn load(&mut self, ledger: &mut Ledger) -> bool {
        self.head.clear();
        self.sent = 0;
        let short = std::iter::from_fn(|| ledger.poll_short()).take(SHORT_MAX);
        for frame in short {
            self.head.extend_from_slice(&frame.emit());
        }
        if let Some((frame, span)) = ledger.poll_long() {
            self.head.extend_from_slice(&frame.emit());
            self.payload = Some(span);
        }
        self.is_amid()
    }

    fn advance(&mut self, count: usize) {
        let of_head = count.min(self.head.len() - self.sent);
        self.sent += of_head;
        if let Some(span) = &mut self.payload {
            span.advance(count - of_head);
            if span.len() == 0 {
                self.payload = None;
            }
        }
    }
}

/// Incoming frames.
#[derive(Debug)]
pub(crate) struct Inlet {
    beside: Box<[u8; BESIDE_BYTES]>,
    /// The part of `beside` in use: less than a header between two calls.
    have: Range<usize>,
    payload: Option<Incoming>,
    /// The peer must begin with [`Frame::Ready`].
    awaits_ready: bool,
}

impl Inlet {
    pub(crate) fn new(awaits_ready: bool) -> Self {
        Self {
            beside: Box::new([0; BESIDE_BYTES]),
            have: 0..0,
            payload: None,
            awaits_ready,
        }
    }

    /// Whether the peer has not confirmed the cookie yet.
    pub(crate) const fn awaits_ready(&self) -> bool {
        self.awaits_ready
    }

    /// Receives once and handles the input. Returns the number of bytes; `None` if nothing has
    /// arrived.
    pub(crate) fn turn(
        &mut self,
        ledger: &mut Ledger,
        news: &mut Vec<News>,
        receive: impl FnOnce(Option<Part<'_>>, &mut [u8]) -> io::Result<usize>,
    ) -> Result<Option<usize>, Lost> {
        let beside = &mut self.beside[self.have.end..];
        let result = match &self.payload {
            Some(incoming) => ledger.part(&incoming.span, |part| receive(Some(part), beside))?,
            None => receive(None, beside),
        };
        let count = match result {
            Ok(0) => return Err(Lost("the peer closed it".to_owned())),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(Lost(error.to_string())),
        };
        let placed = self.note_placed(count, ledger, news);
        self.have.end += count - placed;
        self.read_beside(ledger, news)?;
        Ok(Some(count))
    }

    /// Counts the bytes that belong to the current payload, and returns their number.
    fn note_placed(&mut self, count: usize, ledger: &mut Ledger, news: &mut Vec<News>) -> usize {
        let Some(incoming) = &mut self.payload else {
            return 0;
        };
        let placed = count.min(incoming.span.len());
        incoming.span.advance(placed);
        if incoming.span.len() == 0 {
            ledger.handle_placed(incoming, news);
            self.payload = None;
        }
        placed
    }

    /// Handles what arrived beside payload: headers, and the beginning of what follows them.
    fn read_beside(&mut self, ledger: &mut Ledger, news: &mut Vec<News>) -> Result<(), Breach> {
        while !self.have.is_empty() {
            let octets = &self.beside[self.have.clone()];
            if let Some(incoming) = &self.payload {
                let len = octets.len().min(incoming.span.len());
                // Only a part outside its region is refused.
                let written = ledger.part(&incoming.span, |part| {
                    part.region.write(part.at, &octets[..len]).is_ok()
                })?;
                if !written {
                    return Err(Breach::Unasked);
                }
                self.have.start += self.note_placed(len, ledger, news);
                continue;
            }
            let Some(header) = octets.first_chunk::<HEADER_LEN>() else {
                break;
            };
            let frame = Frame::parse(header)?;
            self.have.start += HEADER_LEN;
            match frame {
                Frame::Ready if self.awaits_ready => self.awaits_ready = false,
                _ if self.awaits_ready => return Err(Breach::Order),
                frame => self.payload = ledger.handle(frame, news)?,
            }
        }
        self.beside.copy_within(self.have.clone(), 0);
        self.have = 0..self.have.len();
        Ok(())
    }
}

impl From<Breach> for Lost {
    fn from(breach: Breach) -> Self {
        Self(format!("the peer broke the protocol: {breach}"))
    }
}
