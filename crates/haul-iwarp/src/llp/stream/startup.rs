//! The two state machines of start-up (RFC 5044 §7.1, RFC 6581): frames in, frames out, then
//! [`Params`].

use super::config::StreamConfig;
use crate::error::{Error, Incompatible, PostError};
use crate::llp::Params;
use crate::llp::agree::{answer, common_kinds, conclude};
use crate::wire::Features;
use crate::wire::mpa::{
    self, Capabilities, Enhanced, FRAME_LEN, FrameHead, FrameKind, PRIVATE_DATA_MAX, RtrKinds,
};

/// Start-up, while it lasts.
#[derive(Debug)]
pub(super) struct Startup {
    phase: Phase,
    /// The frame that is being received.
    input: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    AwaitReply,
    AwaitRequest,
    /// The responder's user is to decide.
    Decide(Offer),
    Over,
}

/// The content of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Offer {
    head: FrameHead,
    enhanced: Option<Enhanced>,
    capabilities: Option<Capabilities>,
}

/// The state of start-up.
pub(super) enum Step {
    /// It goes on.
    Pending,
    /// Responder: a request is there, with this private data.
    Request(Box<[u8]>),
    /// Initiator: the reply is there, with this private data; the kinds are those of a peer-to-peer
    /// connection.
    Reply(Box<[u8]>, Result<(Params, Option<RtrKinds>), Agreement>),
    /// Initiator: refused, with this private data.
    Rejected(Box<[u8]>),
    /// The input is no start-up frame.
    Failed(Error),
}

/// A valid reply whose parameters this end does not accept.
pub(super) struct Agreement {
    pub(super) why: Incompatible,
    /// The parameters of the Terminate that reports it.
    pub(super) params: Params,
}

impl Startup {
    /// The initiator's: the request goes to `out`.
    pub(super) fn connect(
        config: &StreamConfig,
        private: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Self, PostError> {
        let enhanced = Enhanced {
            peer_to_peer: config.peer_to_peer,
            ird: config.qp.ird,
            ord: config.qp.ord,
        };
        let offer = Offer {
            head: FrameHead {
                kind: FrameKind::Request,
                markers: config.markers,
                crc: config.crc,
                reject: false,
                enhanced: config.revision == 2,
                revision: config.revision,
                private_len: 0,
            },
            enhanced: (config.revision == 2).then_some(enhanced),
            capabilities: config.capabilities(),
        };
        offer.emit(private, out)?;
        Ok(Self::at(Phase::AwaitReply))
    }

    /// The responder's.
    pub(super) fn accept() -> Self {
        Self::at(Phase::AwaitRequest)
    }

    fn at(phase: Phase) -> Self {
        Self {
            phase,
            input: Vec::new(),
        }
    }

    /// Whether a reply is awaited.
    pub(super) fn is_initiator(&self) -> bool {
        self.phase == Phase::AwaitReply
    }

    /// Takes bytes of the stream, and returns how many.
    pub(super) fn handle_bytes(&mut self, config: &StreamConfig, bytes: &[u8]) -> (usize, Step) {
        let kind = match self.phase {
            Phase::AwaitReply => FrameKind::Reply,
            Phase::AwaitRequest => FrameKind::Request,
            // Nothing may follow a request before its reply (RFC 5044 §7.1.2).
            Phase::Decide(_) if !bytes.is_empty() => {
                let error = crate::wire::ParseError::Role;
                return (bytes.len(), Step::Failed(Error::Startup(error)));
            }
            Phase::Decide(_) | Phase::Over => return (0, Step::Pending),
        };
        let mut taken = self.fill(bytes, FRAME_LEN);
        let Some(fixed) = self.input.first_chunk::<FRAME_LEN>() else {
            return (taken, Step::Pending);
        };
        let head = match FrameHead::parse(fixed, kind) {
            Ok(head) => head,
            Err(error) => return (bytes.len(), Step::Failed(Error::Startup(error))),
        };
        let whole = FRAME_LEN + usize::from(head.private_len);
        taken += self.fill(&bytes[taken..], whole);
        if self.input.len() < whole {
            return (taken, Step::Pending);
        }
        (taken, self.conclude(config, head))
    }

    fn fill(&mut self, bytes: &[u8], to: usize) -> usize {
        let more = to.saturating_sub(self.input.len()).min(bytes.len());
        self.input.extend_from_slice(&bytes[..more]);
        more
    }

    /// A frame is whole.
    fn conclude(&mut self, config: &StreamConfig, head: FrameHead) -> Step {
        let (offer, private) = match Offer::parse(head, &self.input[FRAME_LEN..]) {
            Ok((offer, private)) => (offer, Box::<[u8]>::from(private)),
            Err(error) => return Step::Failed(Error::Startup(error)),
        };
        self.input = Vec::new();
        if head.kind == FrameKind::Request {
            self.phase = Phase::Decide(offer);
            return Step::Request(private);
        }
        self.phase = Phase::Over;
        if head.reject {
            return Step::Rejected(private);
        }
        Step::Reply(private, reply_to_params(config, &offer))
    }

    /// IRD and ORD of the request that waits for a decision.
    pub(super) fn requested(&self) -> Option<(u16, u16)> {
        let Phase::Decide(asked) = &self.phase else {
            return None;
        };
        asked.enhanced.map(|enhanced| (enhanced.ird, enhanced.ord))
    }

    /// The responder's yes: the reply goes to `out`.
    pub(super) fn reply(
        &mut self,
        config: &StreamConfig,
        private: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(Params, RtrKinds), PostError> {
        let Phase::Decide(asked) = self.phase else {
            return Err(PostError::NoRequest);
        };
        let (reply, params, kinds) = asked.answer(config);
        reply.emit(private, out)?;
        self.phase = Phase::Over;
        Ok((params, kinds))
    }

    /// The responder's no: the reply goes to `out`.
    pub(super) fn refuse(
        &mut self,
        config: &StreamConfig,
        private: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), PostError> {
        let Phase::Decide(asked) = self.phase else {
            return Err(PostError::NoRequest);
        };
        let (mut reply, ..) = asked.answer(config);
        reply.head.reject = true;
        reply.emit(private, out)?;
        self.phase = Phase::Over;
        Ok(())
    }
}

impl Offer {
    fn parse(head: FrameHead, data: &[u8]) -> Result<(Self, &[u8]), crate::wire::ParseError> {
        let (enhanced, rest) = if head.enhanced {
            let (enhanced, rest) = Enhanced::parse(data)?;
            (Some(enhanced), rest)
        } else {
            (None, data)
        };
        let (capabilities, private) = Capabilities::parse(rest);
        let offer = Self {
            head,
            enhanced,
            capabilities,
        };
        Ok((offer, private))
    }

    fn emit(mut self, private: &[u8], out: &mut Vec<u8>) -> Result<(), PostError> {
        let enhanced = self.enhanced.map(|enhanced| enhanced.emit());
        let capabilities = self.capabilities.map(|capabilities| capabilities.emit());
        let len = private.len()
            + enhanced.iter().flatten().count()
            + capabilities.iter().flatten().count();
        if len > PRIVATE_DATA_MAX {
            return Err(PostError::PrivateData);
        }
        self.head.private_len = u16::try_from(len).map_err(|_| PostError::PrivateData)?;
        out.extend_from_slice(&self.head.emit());
        out.extend(enhanced.into_iter().flatten());
        // Applications behind foreign ends see them too, so their own data comes first.
        out.extend_from_slice(private);
        out.extend(capabilities.into_iter().flatten());
        Ok(())
    }

    /// Returns the responder's reply to this request, and its own parameters.
    fn answer(&self, config: &StreamConfig) -> (Self, Params, RtrKinds) {
        let mut params = config.params(self.head.revision);
        params.crc = config.crc || self.head.crc;
        params.markers_out = self.head.markers;
        let mut kinds = RtrKinds::default();
        let enhanced = self.enhanced.map(|asked| {
            let mut answer = answer(config.qp.ird, config.qp.ord, asked.ird, asked.ord);
            if let Some(offered) = asked.peer_to_peer {
                kinds = common_kinds(config.rtr_kinds(), offered);
                if kinds.read && answer.ird == 0 {
                    (answer.ird, answer.said_ird) = (1, 1); // RFC 6581 §6: a read may come
                }
            }
            (params.ird, params.ord) = (answer.ird, answer.ord);
            params.peer_to_peer = asked.peer_to_peer.is_some();
            Enhanced {
                peer_to_peer: asked.peer_to_peer.map(|_| kinds),
                ird: answer.said_ird,
                ord: answer.said_ord,
            }
        });
        let capabilities = self.capabilities.and_then(|_| config.capabilities());
        config.extend(&mut params, self.capabilities);
        let reply = Self {
            head: FrameHead {
                kind: FrameKind::Reply,
                markers: config.markers,
                crc: params.crc,
                reject: false,
                enhanced: enhanced.is_some(),
                revision: self.head.revision,
                private_len: 0,
            },
            enhanced,
            capabilities,
        };
        (reply, params, kinds)
    }
}

/// Handles a reply at the initiator.
fn reply_to_params(
    config: &StreamConfig,
    reply: &Offer,
) -> Result<(Params, Option<RtrKinds>), Agreement> {
    let mut params = config.params(reply.head.revision);
    params.crc = config.crc || reply.head.crc;
    params.markers_out = reply.head.markers;
    config.extend(&mut params, reply.capabilities);
    let (Some(enhanced), 2) = (reply.enhanced, config.revision) else {
        return Ok((params, None));
    };
    let agreed = conclude(config.qp.ird, config.qp.ord, enhanced.ird, enhanced.ord);
    let Some(ord) = agreed else {
        let why = Incompatible::Reads;
        return Err(Agreement { why, params });
    };
    params.ord = ord;
    let kinds = config.peer_to_peer.and(enhanced.peer_to_peer);
    params.peer_to_peer = kinds.is_some();
    if let (Some(own), Some(peer)) = (config.peer_to_peer, kinds) {
        let usable = RtrKinds {
            send: own.send && peer.send,
            write: own.write && peer.write,
            read: own.read && peer.read && ord > 0,
        };
        if usable == RtrKinds::default() {
            let why = Incompatible::ReadyToReceive;
            return Err(Agreement { why, params });
        }
        return Ok((params, Some(usable)));
    }
    Ok((params, None))
}

impl StreamConfig {
    fn capabilities(&self) -> Option<Capabilities> {
        let units = u16::try_from(self.fpdu_max / 256).unwrap_or(u16::MAX);
        self.extensions.then_some(Capabilities {
            features: Features::ALL,
            fpdu_units: units,
        })
    }

    fn rtr_kinds(&self) -> RtrKinds {
        self.peer_to_peer.unwrap_or(RtrKinds {
            send: true,
            write: true,
            read: true,
        })
    }

    /// Before anything is known of the peer.
    fn params(&self, revision: u8) -> Params {
        Params {
            ird: self.qp.ird,
            ord: self.qp.ord,
            crc: true,
            markers_out: false,
            markers_in: self.markers,
            ulpdu_max: 0,
            features: Features::default(),
            extended: false,
            revision,
            peer_to_peer: false,
        }
    }

    /// Adds the common capabilities of two Longhaul ends, and the size of segments.
    fn extend(&self, params: &mut Params, peer: Option<Capabilities>) {
        let common = self
            .capabilities()
            .zip(peer)
            .map(|(own, peer)| own.common(peer));
        params.ulpdu_max = mpa::mulpdu(self.emss, params.markers_out);
        let Some(common) = common else {
            return;
        };
        params.extended = true;
        params.features = common.features;
        let fpdu_max = u32::from(common.fpdu_units) * 256;
        let beyond = mpa::mulpdu(fpdu_max, false);
        if !params.markers_out && beyond > params.ulpdu_max {
            params.ulpdu_max = beyond;
        }
    }
}
