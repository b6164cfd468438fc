//! Answers connection requests statelessly until the client has proved, by returning a cookie, that
//! it receives at its source address.

use std::hash::Hasher;
use std::net::SocketAddr;

use haul_cc::Time;
use haul_cc::time::SECOND_NS;
use siphasher::sip::SipHasher24;

use crate::config::Config;
use crate::handshake::Identity;
use crate::wire::{
    Control, ControlWriter, Handshake, Offer, Packet, RequestKind, SocketId, SocketKind,
};

/// A client's request with a valid cookie: sufficient to create a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Where it came from.
    pub from: SocketAddr,
    /// The client's handshake.
    pub handshake: Handshake,
    /// The client's offer beyond UDT4.
    pub offer: Offer,
}

impl Request {
    /// Returns the identity that the client chose for its end.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        Identity {
            socket: self.handshake.socket,
            initial: self.handshake.initial,
        }
    }
}

/// The action for a datagram that belongs to no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// Nothing: it is not a request, or its cookie is not ours.
    Ignore,
    /// Send the reply in the buffer; it is no longer than the request.
    Reply,
    /// Make a connection, unless this client has one.
    Accept(Request),
}

/// A listener's secret and its parameters.
#[derive(Debug)]
pub struct Listener {
    secret: [u8; 16],
    kind: SocketKind,
    mtu: u32,
    flight_packets: u32,
}

/// A cookie holds for this minute and the one before.
const COOKIE_PERIOD_NS: u64 = 60 * SECOND_NS;
const VERSION: u32 = crate::wire::UDT_VERSION;

impl Listener {
    /// Makes a listener. `secret` must be random: it keeps cookies unforgeable.
    #[must_use]
    pub fn new(config: &Config, secret: [u8; 16]) -> Self {
        Self {
            secret,
            kind: config.kind,
            mtu: config.mtu,
            flight_packets: config.receive_slots(),
        }
    }

    /// Takes a datagram from `from`; a reply is written to `out`.
    pub fn handle_datagram(
        &self,
        now: Time,
        from: SocketAddr,
        datagram: &[u8],
        out: &mut Vec<u8>,
    ) -> Reaction {
        let Ok(Packet::Control(Control::Handshake {
            destination,
            body,
            offer,
        })) = Packet::parse(datagram)
        else {
            return Reaction::Ignore;
        };
        if destination != SocketId(0) {
            return Reaction::Ignore;
        }
        let compatible = body.version == VERSION && body.kind == self.kind;
        match body.request {
            RequestKind::Induction => {
                self.reply(
                    &body,
                    RequestKind::Induction,
                    self.cookie(from, minute(now)),
                    offer,
                    out,
                );
                Reaction::Reply
            }
            RequestKind::Conclusion if !self.cookie_holds(now, from, body.cookie) => {
                Reaction::Ignore
            }
            RequestKind::Conclusion if !compatible => {
                let code = RequestKind::Rejected(crate::wire::REJECT_INCOMPATIBLE);
                self.reply(&body, code, body.cookie, offer, out);
                Reaction::Reply
            }
            RequestKind::Conclusion => Reaction::Accept(Request {
                from,
                handshake: body,
                offer,
            }),
            RequestKind::Rendezvous | RequestKind::Agreement | RequestKind::Rejected(_) => {
                Reaction::Ignore
            }
        }
    }

    /// Writes a refusal of `request` with libudt's `code` (above 1000).
    pub fn refuse(&self, request: &Request, code: u32, out: &mut Vec<u8>) {
        let kind = RequestKind::Rejected(code);
        let cookie = request.handshake.cookie;
        self.reply(&request.handshake, kind, cookie, request.offer, out);
    }

    /// This agrees to nothing: the reply repeats the request's offer for the sake of its check.
    fn reply(
        &self,
        body: &Handshake,
        request: RequestKind,
        cookie: u32,
        offer: Offer,
        out: &mut Vec<u8>,
    ) {
        let answer = Handshake {
            version: VERSION,
            mss: self.mtu.min(body.mss),
            flight: self.flight_packets,
            request,
            cookie,
            ..*body
        };
        ControlWriter::new(out, body.socket).handshake(&answer, offer);
    }

    fn cookie_holds(&self, now: Time, from: SocketAddr, cookie: u32) -> bool {
        let minute = minute(now);
        cookie == self.cookie(from, minute)
            || minute
                .checked_sub(1)
                .is_some_and(|last| cookie == self.cookie(from, last))
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the handshake has 32 bits for it"
    )]
    fn cookie(&self, from: SocketAddr, minute: u64) -> u32 {
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        match from {
            SocketAddr::V4(v4) => hasher.write(&v4.ip().octets()),
            SocketAddr::V6(v6) => hasher.write(&v6.ip().octets()),
        }
        hasher.write_u16(from.port());
        hasher.write_u64(minute);
        hasher.finish() as u32
    }
}

fn minute(now: Time) -> u64 {
    now.as_ns() / COOKIE_PERIOD_NS
}
