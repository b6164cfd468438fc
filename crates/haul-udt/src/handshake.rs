//! Handshakes of clients and of rendezvous ends (libudt `core.cpp` connect; docs/protocol/udt.md).

use std::net::IpAddr;

use haul_cc::Time;
use haul_cc::time::MILLISECOND_NS;

use crate::config::{Config, Params};
use crate::error::Error;
use crate::seq::Seq;
use crate::wire::{ControlWriter, Handshake, Offer, RequestKind, SocketId, UDT_VERSION};

/// libudt's interval between repeated requests.
const RETRY_NS: u64 = 250 * MILLISECOND_NS;

/// The identity of a connection's end: choose both parts at random.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// This socket; not zero.
    pub socket: SocketId,
    /// First sequence number of this end.
    pub initial: Seq,
}

/// The state of a connection before it is established.
#[derive(Debug)]
pub(crate) struct Opening {
    role: Role,
    body: Handshake,
    destination: SocketId,
    /// The first handshake of a rendezvous peer.
    met: Option<Handshake>,
    offer: Offer,
    /// The words of the offer as they were sent last, check included.
    sent_offer: [u8; 8],
    deadline: Time,
    /// When to send the next request.
    due: Time,
    sent: Sent,
}

/// How often this request was sent: the answer to one that was repeated measures no round trip.
#[derive(Debug, Clone, Copy)]
enum Sent {
    Not,
    Once(Time),
    Again,
}

/// Where a handshake packet has its offer.
const OFFER: std::ops::Range<usize> = 4..12;
/// The check comes first.
const CHECK_LEN: usize = 2;

/// How a connection begins at this end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Asks a listener.
    Client,
    /// Connects to, and accepts from, a peer in the same role.
    Rendezvous,
}

impl Role {
    fn first_request(self) -> RequestKind {
        match self {
            Self::Client => RequestKind::Induction,
            Self::Rendezvous => RequestKind::Rendezvous,
        }
    }
}

/// The agreement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Agreed {
    pub(crate) params: Params,
    pub(crate) peer: SocketId,
    /// First sequence number of the peer's packets.
    pub(crate) peer_initial: u32,
    pub(crate) rtt_ns: Option<u64>,
    pub(crate) seal: Option<SealContext>,
}

/// The key-derivation context of a sealed connection. If handshakes were modified on the path, the
/// two ends have different contexts and cannot open each other's datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealContext {
    /// This end is the one that is called the initiator: the client, or of two rendezvous ends the
    /// one with the greater socket id.
    pub is_initiator: bool,
    /// The same bytes at both ends.
    pub bytes: [u8; Self::LEN],
}

impl SealContext {
    const WORDS: usize = 6;
    /// Bytes of a context.
    pub const LEN: usize = 2 * 4 * Self::WORDS;

    /// Returns the context of an end that sent `own` and received `peer`; `None` if the socket id
    /// decides the role and both have the same.
    pub(crate) fn new(
        role: Option<Role>,
        own: (&Handshake, Offer),
        peer: (&Handshake, Offer),
    ) -> Option<Self> {
        let is_initiator = match role {
            Some(Role::Client) => true,
            None => false,
            Some(Role::Rendezvous) if own.0.socket == peer.0.socket => return None,
            Some(Role::Rendezvous) => own.0.socket > peer.0.socket,
        };
        let (initiator, responder) = if is_initiator {
            (own, peer)
        } else {
            (peer, own)
        };
        let mut bytes = [0; Self::LEN];
        let words = [initiator, responder].into_iter().flat_map(words);
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
            chunk.copy_from_slice(&word.to_be_bytes());
        }
        Some(Self {
            is_initiator,
            bytes,
        })
    }
}

/// The content of an end's last handshake.
fn words((body, offer): (&Handshake, Offer)) -> [u32; SealContext::WORDS] {
    [
        offer.to_words().0,
        body.kind.to_wire(),
        body.initial.get(),
        body.mss,
        body.flight,
        body.socket.0,
    ]
}

impl Opening {
    pub(crate) fn new(now: Time, config: &Config, role: Role, own: Identity, peer: IpAddr) -> Self {
        Self {
            role,
            body: own_body(config, role.first_request(), own, peer),
            destination: SocketId(0),
            met: None,
            offer: config.offer(),
            sent_offer: [0; 8],
            deadline: now.after(config.connect_timeout_ns),
            due: now,
            sent: Sent::Not,
        }
    }

    pub(crate) fn due(&self) -> Time {
        self.due.min(self.deadline)
    }

    pub(crate) fn is_overdue(&self, now: Time) -> bool {
        now >= self.deadline
    }

    /// Writes the next request if it is time.
    pub(crate) fn write(&mut self, now: Time, out: &mut Vec<u8>) -> bool {
        if now < self.due {
            return false;
        }
        self.sent = match self.sent {
            Sent::Not => Sent::Once(now),
            Sent::Once(_) | Sent::Again => Sent::Again,
        };
        self.due = now.after(RETRY_NS);
        ControlWriter::new(out, self.destination).handshake(&self.body, self.offer);
        if let Some(offer) = out.get(OFFER) {
            self.sent_offer.copy_from_slice(offer);
        }
        true
    }

    /// libudt's listener answers in the packet that it got, so that the offer comes back with the
    /// request's check. Such an answer comes from a plain peer, which has no check.
    pub(crate) fn without_echo(&self, datagram: &[u8]) -> Option<Vec<u8>> {
        let has_check = self.sent_offer[..CHECK_LEN] != [0; CHECK_LEN];
        let is_echo = has_check && datagram.get(OFFER) == Some(&self.sent_offer[..]);
        is_echo.then(|| {
            let mut plain = datagram.to_vec();
            plain[OFFER][..CHECK_LEN].fill(0);
            plain
        })
    }

    pub(crate) fn handle(
        &mut self,
        now: Time,
        config: &Config,
        answer: &Handshake,
        offer: Offer,
    ) -> Result<Option<Agreed>, Error> {
        let mut answer = *answer;
        if self.role == Role::Rendezvous
            && answer.request == RequestKind::Agreement
            && answer.version == 0
        {
            // The last handshake of a connected libudt omits values of its first one.
            let Some(met) = self.met.filter(|met| met.socket == answer.socket) else {
                return Ok(None);
            };
            (answer.version, answer.kind) = (met.version, met.kind);
        }
        if answer.version != UDT_VERSION {
            return Err(Error::Incompatible("it does not speak UDT4"));
        }
        match self.role {
            Role::Client => self.handle_as_client(now, config, &answer, offer),
            Role::Rendezvous => self.handle_as_rendezvous(now, config, &answer, offer),
        }
    }

    fn handle_as_client(
        &mut self,
        now: Time,
        config: &Config,
        answer: &Handshake,
        offer: Offer,
    ) -> Result<Option<Agreed>, Error> {
        match (self.body.request, answer.request) {
            (_, RequestKind::Rejected(code)) => Err(Error::Refused(code)),
            (RequestKind::Induction, RequestKind::Induction) => {
                self.body.request = RequestKind::Conclusion;
                self.body.cookie = answer.cookie;
                self.due = now;
                self.sent = Sent::Not;
                Ok(None)
            }
            (RequestKind::Conclusion, RequestKind::Conclusion) => {
                if answer.initial != self.body.initial {
                    return Err(Error::Incompatible("it did not return the sequence number"));
                }
                self.agree(now, config, answer, offer).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn handle_as_rendezvous(
        &mut self,
        now: Time,
        config: &Config,
        answer: &Handshake,
        offer: Offer,
    ) -> Result<Option<Agreed>, Error> {
        if answer.kind != config.kind {
            return Err(Error::Incompatible("it uses the other socket type"));
        }
        // libudt takes the received values as the agreed ones.
        self.body.mss = self.body.mss.min(answer.mss);
        match (self.body.request, answer.request) {
            (_, RequestKind::Rejected(code)) => Err(Error::Refused(code)),
            (_, RequestKind::Induction) => Ok(None),
            (RequestKind::Rendezvous, _) | (_, RequestKind::Rendezvous) => {
                self.body.request = RequestKind::Conclusion;
                self.destination = answer.socket;
                self.met = Some(*answer);
                self.due = now;
                self.sent = Sent::Not;
                Ok(None)
            }
            (_, RequestKind::Conclusion | RequestKind::Agreement) => {
                self.agree(now, config, answer, offer).map(Some)
            }
        }
    }

    fn agree(
        &self,
        now: Time,
        config: &Config,
        answer: &Handshake,
        offer: Offer,
    ) -> Result<Agreed, Error> {
        let params = Params::negotiate(config, answer.mss, answer.flight, offer)?;
        let context = SealContext::new(Some(self.role), (&self.body, self.offer), (answer, offer));
        let same_id = Error::Incompatible("it has the same socket id");
        Ok(Agreed {
            seal: params.seal.then(|| context.ok_or(same_id)).transpose()?,
            params,
            peer: answer.socket,
            peer_initial: answer.initial.get(),
            rtt_ns: match self.sent {
                Sent::Once(at) => Some(now.since(at)),
                Sent::Not | Sent::Again => None,
            },
        })
    }

    pub(crate) fn initial(&self) -> u32 {
        self.body.initial.get()
    }

    /// The reply of a connected rendezvous socket to handshakes that its peer repeats.
    pub(crate) fn repeat(&self) -> (Handshake, Offer) {
        (
            Handshake {
                request: RequestKind::Agreement,
                cookie: 0,
                ..self.body
            },
            self.offer,
        )
    }

    pub(crate) fn is_rendezvous(&self) -> bool {
        self.role == Role::Rendezvous
    }
}

/// This end's handshake body.
pub(crate) fn own_body(
    config: &Config,
    request: RequestKind,
    own: Identity,
    peer: IpAddr,
) -> Handshake {
    Handshake {
        version: UDT_VERSION,
        kind: config.kind,
        initial: own.initial,
        mss: config.mtu,
        flight: config.receive_slots(),
        request,
        socket: own.socket,
        cookie: 0,
        peer: peer.into(),
    }
}
