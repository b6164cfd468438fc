//! All PDUs as one enumeration: the body of each is read and written here.

use super::code::{AuthMethod, NackStatus, PathAction, PathState};
use super::codec::{CRITICAL, Reader, Writer};
use super::first::{FIRSTS_MAX, First, emit_wish, parse_wish};
use super::hop::{TLV_ENDPOINT, TLV_HOP, TLV_PROTO, cut};
use super::slab::{SlabAck, SlabAnnounce};
use super::{Endpoint, FLAG_RESP, HEADER_LEN, HOPS_MAX, Header, Hop, Params, ParseError, Proto};
use super::{Metadata, ProtoOffer, RECORDS_MAX};
use crate::{ChanId, ConnId, SessionId, SlabSeq};

/// Most bytes of a text.
pub const TEXT_MAX: usize = 1_024;
/// Bytes of a ticket.
pub const TICKET_LEN: usize = 56;
/// Most connections in one element; more take several.
const CONNS_PER_TLV: usize = 2_048;
/// Most rules of a request for a path.
const RULES_MAX: usize = 64;
/// Most counters of a STATS.
const COUNTERS_MAX: usize = 64;

const TLV_AUTH_METHODS: u16 = 4;
const TLV_TEXT: u16 = 6;
const TLV_TICKET: u16 = 7;
const TLV_COOKIE: u16 = 8;
const TLV_PATH_RULE: u16 = 9;
const TLV_CONNS: u16 = 0x30;
const TLV_CLAIM: u16 = 0x33;
const TLV_FIRST: u16 = 0x35;
const TLV_COUNTERS: u16 = 0x31;
const TLV_HOP_INDEX: u16 = 0x32;

/// SESS_OPEN: requests a session over hops.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessOpen {
    /// Outlives its control connections.
    pub resumable: bool,
    /// Connections are acknowledged from end to end.
    pub end_to_end: bool,
    /// Only whether it could be opened.
    pub dry_run: bool,
    /// The asker takes first bytes with CONN_OPEN, and so do all hops before it.
    pub takes_early: bool,
    /// Which of `hops` is asked.
    pub hop_index: u16,
    /// Most bytes of a body that the asker takes.
    pub max_ctrl: u32,
    /// Time between signs of life, ms.
    pub keepalive_ms: u32,
    /// All hops, the terminus last.
    pub hops: Vec<Hop>,
    /// Of a session that was open before and whose way has changed.
    pub ticket: Option<[u8; TICKET_LEN]>,
    /// With a ticket: the delivered offset of each connection at the requester's end.
    pub conns: Vec<ConnState>,
    /// With a ticket: which of its owner's claims to the session this is.
    pub claim: Claim,
    /// Without one: connections requested for as soon as the session is open, separate for each
    /// segment.
    pub firsts: Vec<First>,
}

/// Counts the owner's requests for a session, to distinguish delayed requests from new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Claim {
    /// Openings of the session on a new way; 0 is the first.
    pub way: u32,
    /// Resumptions on this way, each segment's own.
    pub turn: u32,
}

/// SESS_ACK: the session is open.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessAck {
    /// It outlives its control connections.
    pub resumable: bool,
    /// Connections are acknowledged from end to end.
    pub end_to_end: bool,
    /// It was open before, and goes on.
    pub resumed: bool,
    /// Connections that were asked for along with it are answered without being asked for again.
    pub firsts: bool,
    /// This end takes first bytes with CONN_OPEN, and so do all hops behind it.
    pub takes_early: bool,
    /// Time between signs of life, ms.
    pub keepalive_ms: u32,
    /// How long it outlives a control connection, s.
    pub lifetime_s: u64,
    /// The protocol of each segment, nearest first.
    pub segments: Vec<ProtoOffer>,
    /// Proves the session's owner later; the terminus's.
    pub ticket: Option<[u8; TICKET_LEN]>,
    /// With `resumed`: the delivered offset of each connection at the terminus.
    pub conns: Vec<ConnState>,
}

/// How far a connection has got at one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnState {
    /// Which.
    pub conn: ConnId,
    /// All before this offset of the stream that comes in has been delivered.
    pub delivered: u64,
    /// The end of the stream that comes in has been delivered too.
    pub finished: bool,
}

/// The parameters of a data channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChanParams {
    /// Which.
    pub chan: ChanId,
    /// Its protocol.
    pub proto: Proto,
    /// The end that connects: 0 the requester, 1 the responder, 2 both.
    pub role: u16,
    /// Its parameters.
    pub params: Params,
    /// Where to connect to.
    pub endpoints: Vec<Endpoint>,
    /// The bytes that the connection must begin with.
    pub cookie: Option<[u8; 16]>,
}

/// A PDU of a control connection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "fields are named as on the wire: docs/protocol/xsp.md"
)]
pub enum Pdu {
    SessOpen(SessOpen),
    SessAck(SessAck),
    SessNack {
        status: NackStatus,
        hop_index: u16,
        text: String,
    },
    /// `abort` does not wait for data in flight.
    SessClose {
        reason: NackStatus,
        abort: bool,
    },
    AuthType {
        methods: Vec<AuthMethod>,
    },
    AuthToken {
        step: u8,
        token: Vec<u8>,
    },
    Ping {
        t_us: u64,
        echo_us: u64,
    },
    Pong {
        t_us: u64,
        echo_us: u64,
    },
    ChanOpen(ChanParams),
    ChanAck(ChanParams),
    ChanNack {
        chan: ChanId,
        status: NackStatus,
        text: String,
    },
    ChanClose {
        chan: ChanId,
        reason: NackStatus,
    },
    NetPath {
        action: PathAction,
        request: u32,
        rules: Vec<String>,
    },
    PathStatus {
        request: u32,
        state: PathState,
        text: String,
    },
    AppData {
        option: u32,
        octets: Vec<u8>,
    },
    ConnOpen {
        conn: ConnId,
        credit: u64,
        to: Endpoint,
        metadata: Metadata,
        /// The first bytes of its stream, at most [`EARLY_MAX`](super::EARLY_MAX).
        early: Vec<u8>,
    },
    /// Zero `status` accepts.
    ConnAck {
        conn: ConnId,
        status: u16,
        credit: u64,
    },
    ConnFin {
        conn: ConnId,
        end: u64,
    },
    ConnReset {
        conn: ConnId,
        code: u16,
    },
    ConnCredit {
        conn: ConnId,
        credit: u64,
    },
    ConnAcked {
        conn: ConnId,
        delivered: u64,
    },
    SlabAnnounce(SlabAnnounce),
    SlabCredit(SlabAck),
    SlabAck(SlabAck),
    SlabNack {
        seq: SlabSeq,
        code: u16,
        records: Vec<u16>,
    },
    SlabRevoke {
        seq: SlabSeq,
    },
    SlabPushed(SlabAnnounce),
    Resume {
        next: SlabSeq,
        ticket: [u8; TICKET_LEN],
        conns: Vec<ConnState>,
        claim: Claim,
    },
    ResumeAck {
        next: SlabSeq,
        conns: Vec<ConnState>,
    },
    Error {
        status: NackStatus,
        severity: u16,
        ref_seq: u32,
        hop_index: Option<u16>,
        text: String,
    },
    Notice {
        code: u16,
        severity: u16,
        ref_seq: u32,
        text: String,
    },
    Stats {
        counters: Vec<u64>,
    },
}

impl Pdu {
    /// The type on the wire.
    #[must_use]
    pub const fn kind(&self) -> u16 {
        match self {
            Self::SessOpen(_) => 1,
            Self::SessAck(_) => 2,
            Self::SessClose { .. } => 3,
            Self::AuthType { .. } => 5,
            Self::AuthToken { .. } => 6,
            Self::SessNack { .. } => 7,
            Self::Ping { .. } => 8,
            Self::Pong { .. } => 9,
            Self::ChanOpen(_) => 10,
            Self::NetPath { .. } => 11,
            Self::AppData { .. } => 12,
            Self::SlabAnnounce(_) => 13,
            Self::ChanAck(_) => 16,
            Self::ChanNack { .. } => 17,
            Self::ChanClose { .. } => 18,
            Self::PathStatus { .. } => 19,
            Self::ConnOpen { .. } => 20,
            Self::ConnAck { .. } => 21,
            Self::ConnFin { .. } => 22,
            Self::ConnReset { .. } => 23,
            Self::ConnCredit { .. } => 24,
            Self::ConnAcked { .. } => 25,
            Self::SlabCredit(_) => 32,
            Self::SlabAck(_) => 33,
            Self::SlabNack { .. } => 34,
            Self::SlabRevoke { .. } => 35,
            Self::SlabPushed(_) => 36,
            Self::Resume { .. } => 40,
            Self::ResumeAck { .. } => 41,
            Self::Error { .. } => 48,
            Self::Notice { .. } => 49,
            Self::Stats { .. } => 50,
        }
    }

    /// Reads the body of a PDU of type `kind`.
    ///
    /// # Errors
    /// The type is unknown, or the body is not one of it.
    pub fn parse(kind: u16, body: &[u8]) -> Result<Self, ParseError> {
        let r = &mut Reader::new(body, name(kind));
        let pdu = match kind {
            1 => Self::SessOpen(parse_open(r)?),
            2 => Self::SessAck(parse_ack(r)?),
            3 | 5..=9 | 48..=50 => parse_session(kind, r)?,
            10 | 16 => {
                let params = parse_chan(r)?;
                if kind == 10 {
                    Self::ChanOpen(params)
                } else {
                    Self::ChanAck(params)
                }
            }
            17 => {
                let (status, _, chan) = (status(r)?, r.u16()?, ChanId(r.u32()?));
                let text = parse_text(r)?;
                Self::ChanNack { chan, status, text }
            }
            18 => {
                let (reason, _, chan) = (status(r)?, r.u16()?, ChanId(r.u32()?));
                Self::ChanClose { chan, reason }
            }
            11 | 19 => parse_path(kind, r)?,
            12 => Self::AppData {
                option: r.u32()?,
                octets: r.rest().to_vec(),
            },
            20..=25 => parse_conn(kind, r)?,
            13 => Self::SlabAnnounce(SlabAnnounce::parse(r)?),
            36 => Self::SlabPushed(SlabAnnounce::parse(r)?),
            32 => Self::SlabCredit(SlabAck::parse(r)?),
            33 => Self::SlabAck(SlabAck::parse(r)?),
            34 => {
                let (seq, code, count) = (SlabSeq(r.u64()?), r.u16()?, usize::from(r.u16()?));
                if count > RECORDS_MAX {
                    return Err(ParseError::TooMany("failed records"));
                }
                let records: Result<_, _> = (0..count).map(|_| r.u16()).collect();
                Self::SlabNack {
                    seq,
                    code,
                    records: records?,
                }
            }
            35 => Self::SlabRevoke {
                seq: SlabSeq(r.u64()?),
            },
            40 => {
                let (next, _count) = (SlabSeq(r.u64()?), r.u32()?);
                let (ticket, claim, conns) = parse_states(r)?;
                let ticket = ticket.ok_or(ParseError::Short("ticket"))?;
                let claim = claim.ok_or(ParseError::Short("claim"))?;
                Self::Resume {
                    next,
                    ticket,
                    conns,
                    claim,
                }
            }
            41 => {
                let (next, _count) = (SlabSeq(r.u64()?), r.u32()?);
                let (_, _, conns) = parse_states(r)?;
                Self::ResumeAck { next, conns }
            }
            _ => {
                return Err(ParseError::Unknown {
                    what: "type",
                    code: kind,
                });
            }
        };
        // Fields that a newer version adds.
        while let Some(tlv) = r.tlv()? {
            tlv.unknown()?;
        }
        Ok(pdu)
    }

    /// The whole PDU. Texts and lists beyond their limits are cut.
    #[must_use]
    pub fn emit(&self, session: SessionId, chan: u32, seq: u32) -> Vec<u8> {
        let mut out = Writer::default();
        out.bytes(&[0; HEADER_LEN]);
        self.emit_body(&mut out);
        let mut out = out.0;
        let is_answer = matches!(
            self,
            Self::SessAck(_)
                | Self::SessNack { .. }
                | Self::Pong { .. }
                | Self::ChanAck(_)
                | Self::ChanNack { .. }
                | Self::ConnAck { .. }
                | Self::ResumeAck { .. }
        );
        let header = Header {
            flags: if is_answer { FLAG_RESP } else { 0 },
            kind: self.kind(),
            len: u32::try_from(out.len() - HEADER_LEN).unwrap_or(u32::MAX),
            session,
            chan,
            seq,
        };
        out[..HEADER_LEN].copy_from_slice(&header.emit());
        out
    }

    fn emit_body(&self, out: &mut Writer) {
        match self {
            Self::SessOpen(open) => emit_open(out, open),
            Self::SessAck(ack) => emit_ack(out, ack),
            Self::SessNack {
                status,
                hop_index,
                text,
            } => {
                out.u16(status.code()).u16(*hop_index).u32(0);
                emit_text(out, text);
            }
            Self::SessClose { reason, abort } => {
                out.u16(reason.code()).u16(u16::from(*abort)).u32(0);
            }
            Self::AuthType { methods } => {
                out.tlv(CRITICAL | TLV_AUTH_METHODS, |out| {
                    methods.iter().take(16).for_each(|method| {
                        out.u16(method.code());
                    });
                });
            }
            Self::AuthToken { step, token } => {
                out.u8(*step).bytes(token);
            }
            Self::Ping { t_us, echo_us } | Self::Pong { t_us, echo_us } => {
                out.u64(*t_us).u64(*echo_us);
            }
            Self::ChanOpen(params) | Self::ChanAck(params) => emit_chan(out, params),
            Self::ChanNack { chan, status, text } => {
                out.u16(status.code()).u16(0).u32(chan.0);
                emit_text(out, text);
            }
            Self::ChanClose { chan, reason } => {
                out.u16(reason.code()).u16(0).u32(chan.0);
            }
            Self::NetPath {
                action,
                request,
                rules,
            } => {
                let count = rules.len().min(RULES_MAX);
                out.u16(action.code())
                    .u16(u16::try_from(count).unwrap_or(0))
                    .u32(*request);
                for rule in rules.iter().take(count) {
                    out.tlv(CRITICAL | TLV_PATH_RULE, |out| {
                        out.bytes(cut(rule, TEXT_MAX).as_bytes());
                    });
                }
            }
            Self::PathStatus {
                request,
                state,
                text,
            } => {
                out.u32(*request).u16(state.code()).u16(0);
                emit_text(out, text);
            }
            Self::AppData { option, octets } => {
                out.u32(*option).bytes(octets);
            }
            _ => self.emit_rest(out),
        }
    }

    /// Connections and slabs, resumption, reports.
    fn emit_rest(&self, out: &mut Writer) {
        match self {
            Self::ConnOpen {
                conn,
                credit,
                to,
                metadata,
                early,
            } => emit_wish(out, *conn, *credit, to, metadata, early),
            Self::ConnAck {
                conn,
                status,
                credit,
            } => {
                out.u32(conn.0).u16(*status).u16(0).u64(*credit);
            }
            Self::ConnFin { conn, end: value }
            | Self::ConnCredit {
                conn,
                credit: value,
            }
            | Self::ConnAcked {
                conn,
                delivered: value,
            } => {
                out.u32(conn.0).u32(0).u64(*value);
            }
            Self::ConnReset { conn, code } => {
                out.u32(conn.0).u16(*code).u16(0);
            }
            Self::SlabAnnounce(slab) | Self::SlabPushed(slab) => slab.emit(out),
            Self::SlabCredit(ack) | Self::SlabAck(ack) => ack.emit(out),
            Self::SlabNack { seq, code, records } => {
                let count = records.len().min(RECORDS_MAX);
                out.u64(seq.0)
                    .u16(*code)
                    .u16(u16::try_from(count).unwrap_or(0));
                records.iter().take(count).for_each(|index| {
                    out.u16(*index);
                });
            }
            Self::SlabRevoke { seq } => {
                out.u64(seq.0);
            }
            Self::Resume {
                next,
                ticket,
                conns,
                claim,
            } => {
                out.u64(next.0).u32(count32(conns));
                out.tlv(CRITICAL | TLV_TICKET, |out| {
                    out.bytes(ticket);
                });
                emit_claim(out, claim);
                emit_conns(out, conns);
            }
            Self::ResumeAck { next, conns } => {
                out.u64(next.0).u32(count32(conns));
                emit_conns(out, conns);
            }
            Self::Error {
                status,
                severity,
                ref_seq,
                hop_index,
                text,
            } => {
                out.u16(status.code()).u16(*severity).u32(*ref_seq);
                if let Some(index) = hop_index {
                    out.tlv(TLV_HOP_INDEX, |out| {
                        out.u16(*index);
                    });
                }
                emit_text(out, text);
            }
            Self::Notice {
                code,
                severity,
                ref_seq,
                text,
            } => {
                out.u16(*code).u16(*severity).u32(*ref_seq);
                emit_text(out, text);
            }
            Self::Stats { counters } => {
                out.u16(0).u16(0).u32(0);
                out.tlv(TLV_COUNTERS, |out| {
                    counters.iter().take(COUNTERS_MAX).for_each(|counter| {
                        out.u64(*counter);
                    });
                });
            }
            // The others are written by `emit_body`.
            _ => {}
        }
    }
}

const fn name(kind: u16) -> &'static str {
    match kind {
        1 => "SESS_OPEN",
        2 => "SESS_ACK",
        13 => "SLAB_ANNOUNCE",
        20 => "CONN_OPEN",
        40 => "RESUME",
        _ => "PDU",
    }
}

fn status(r: &mut Reader<'_>) -> Result<NackStatus, ParseError> {
    r.u16().map(NackStatus::from_code)
}

fn count32(conns: &[ConnState]) -> u32 {
    u32::try_from(conns.len()).unwrap_or(u32::MAX)
}

fn emit_text(out: &mut Writer, text: &str) {
    if !text.is_empty() {
        out.tlv(TLV_TEXT, |out| {
            out.bytes(cut(text, TEXT_MAX).as_bytes());
        });
    }
}

fn parse_text(r: &mut Reader<'_>) -> Result<String, ParseError> {
    let mut text = String::new();
    while let Some(mut tlv) = r.tlv()? {
        match tlv.kind {
            TLV_TEXT => text = tlv.value.text(TEXT_MAX)?,
            _ => tlv.unknown()?,
        }
    }
    Ok(text)
}

fn emit_conns(out: &mut Writer, conns: &[ConnState]) {
    for part in conns.chunks(CONNS_PER_TLV) {
        out.tlv(CRITICAL | TLV_CONNS, |out| {
            for state in part {
                out.u32(state.conn.0)
                    .u32(u32::from(state.finished))
                    .u64(state.delivered);
            }
        });
    }
}

fn parse_conns(value: &mut Reader<'_>, conns: &mut Vec<ConnState>) -> Result<(), ParseError> {
    while !value.is_empty() {
        let (conn, flags, delivered) = (ConnId(value.u32()?), value.u32()?, value.u64()?);
        if flags > 1 {
            return Err(ParseError::Value("state of a connection"));
        }
        conns.push(ConnState {
            conn,
            delivered,
            finished: flags == 1,
        });
    }
    Ok(())
}

fn emit_claim(out: &mut Writer, claim: &Claim) {
    out.tlv(CRITICAL | TLV_CLAIM, |out| {
        out.u32(claim.way).u32(claim.turn);
    });
}

fn parse_claim(value: &mut Reader<'_>) -> Result<Claim, ParseError> {
    let (way, turn) = (value.u32()?, value.u32()?);
    value.end()?;
    Ok(Claim { way, turn })
}

type States = (Option<[u8; TICKET_LEN]>, Option<Claim>, Vec<ConnState>);

fn parse_states(r: &mut Reader<'_>) -> Result<States, ParseError> {
    let (mut ticket, mut claim, mut conns) = (None, None, Vec::new());
    while let Some(mut tlv) = r.tlv()? {
        match tlv.kind {
            TLV_TICKET => {
                ticket = Some(tlv.value.array()?);
                tlv.value.end()?;
            }
            TLV_CLAIM => claim = Some(parse_claim(&mut tlv.value)?),
            TLV_CONNS => parse_conns(&mut tlv.value, &mut conns)?,
            _ => tlv.unknown()?,
        }
    }
    Ok((ticket, claim, conns))
}

fn emit_open(out: &mut Writer, open: &SessOpen) {
    let flags = u32::from(open.resumable)
        | u32::from(open.end_to_end) << 1
        | u32::from(open.dry_run) << 2
        | u32::from(open.takes_early) << 5;
    let count = open.hops.len().min(HOPS_MAX);
    out.u32(flags)
        .u16(open.hop_index)
        .u16(u16::try_from(count).unwrap_or(0));
    out.u32(open.max_ctrl).u32(open.keepalive_ms);
    open.hops.iter().take(count).for_each(|hop| hop.emit(out));
    if let Some(ticket) = &open.ticket {
        out.tlv(CRITICAL | TLV_TICKET, |out| {
            out.bytes(ticket);
        });
        emit_claim(out, &open.claim);
    }
    emit_conns(out, &open.conns);
    for first in open.firsts.iter().take(FIRSTS_MAX) {
        // A peer that does not know it receives the request again.
        out.tlv(TLV_FIRST, |out| first.emit(out));
    }
}

fn parse_open(r: &mut Reader<'_>) -> Result<SessOpen, ParseError> {
    let (flags, hop_index, count) = (r.u32()?, r.u16()?, r.u16()?);
    let mut open = SessOpen {
        resumable: flags & 1 != 0,
        end_to_end: flags & 2 != 0,
        dry_run: flags & 4 != 0,
        takes_early: flags & 32 != 0,
        hop_index,
        max_ctrl: r.u32()?,
        keepalive_ms: r.u32()?,
        ..SessOpen::default()
    };
    if usize::from(count) > HOPS_MAX {
        return Err(ParseError::TooMany("hops"));
    }
    while let Some(mut tlv) = r.tlv()? {
        match tlv.kind {
            TLV_HOP if open.hops.len() == HOPS_MAX => return Err(ParseError::TooMany("hops")),
            TLV_HOP => open.hops.push(Hop::parse(&mut tlv.value)?),
            TLV_TICKET => {
                open.ticket = Some(tlv.value.array()?);
                tlv.value.end()?;
            }
            TLV_CLAIM => open.claim = parse_claim(&mut tlv.value)?,
            TLV_CONNS => parse_conns(&mut tlv.value, &mut open.conns)?,
            TLV_FIRST if open.firsts.len() == FIRSTS_MAX => {
                return Err(ParseError::TooMany("connections along with a session"));
            }
            TLV_FIRST => open.firsts.push(First::parse(&mut tlv.value)?),
            _ => tlv.unknown()?,
        }
    }
    if open.ticket.is_some() && !open.firsts.is_empty() {
        return Err(ParseError::Value("connections along with a ticket"));
    }
    if open.hops.len() != usize::from(count) || hop_index >= count {
        return Err(ParseError::Value("number of hops"));
    }
    if open.ticket.is_none() && open.claim != Claim::default() {
        return Err(ParseError::Value("claim"));
    }
    Ok(open)
}

fn emit_ack(out: &mut Writer, ack: &SessAck) {
    let flags = u32::from(ack.resumable)
        | u32::from(ack.end_to_end) << 1
        | u32::from(ack.resumed) << 3
        | u32::from(ack.firsts) << 4
        | u32::from(ack.takes_early) << 5;
    out.u32(flags).u32(ack.keepalive_ms).u64(ack.lifetime_s);
    ack.segments
        .iter()
        .take(HOPS_MAX)
        .for_each(|segment| segment.emit(out));
    if let Some(ticket) = &ack.ticket {
        out.tlv(CRITICAL | TLV_TICKET, |out| {
            out.bytes(ticket);
        });
    }
    emit_conns(out, &ack.conns);
}

fn parse_ack(r: &mut Reader<'_>) -> Result<SessAck, ParseError> {
    let flags = r.u32()?;
    let mut ack = SessAck {
        resumable: flags & 1 != 0,
        end_to_end: flags & 2 != 0,
        resumed: flags & 8 != 0,
        firsts: flags & 16 != 0,
        takes_early: flags & 32 != 0,
        keepalive_ms: r.u32()?,
        lifetime_s: r.u64()?,
        ..SessAck::default()
    };
    while let Some(mut tlv) = r.tlv()? {
        match tlv.kind {
            TLV_PROTO if ack.segments.len() == HOPS_MAX => {
                return Err(ParseError::TooMany("segments"));
            }
            TLV_PROTO => ack.segments.extend(ProtoOffer::parse(&mut tlv.value)?),
            TLV_TICKET => {
                ack.ticket = Some(tlv.value.array()?);
                tlv.value.end()?;
            }
            TLV_CONNS => parse_conns(&mut tlv.value, &mut ack.conns)?,
            _ => tlv.unknown()?,
        }
    }
    Ok(ack)
}

fn parse_session(kind: u16, r: &mut Reader<'_>) -> Result<Pdu, ParseError> {
    Ok(match kind {
        3 => {
            let (reason, mode, _) = (status(r)?, r.u16()?, r.u32()?);
            if mode > 1 {
                return Err(ParseError::Value("mode of a close"));
            }
            Pdu::SessClose {
                reason,
                abort: mode == 1,
            }
        }
        5 => {
            let mut methods = Vec::new();
            while let Some(mut tlv) = r.tlv()? {
                if tlv.kind != TLV_AUTH_METHODS {
                    tlv.unknown()?;
                    continue;
                }
                while !tlv.value.is_empty() {
                    if methods.len() == 16 {
                        return Err(ParseError::TooMany("methods"));
                    }
                    methods.push(AuthMethod::from_code(tlv.value.u16()?));
                }
            }
            Pdu::AuthType { methods }
        }
        6 => Pdu::AuthToken {
            step: r.u8()?,
            token: r.rest().to_vec(),
        },
        7 => {
            let (status, hop_index, _) = (status(r)?, r.u16()?, r.u32()?);
            Pdu::SessNack {
                status,
                hop_index,
                text: parse_text(r)?,
            }
        }
        8 => Pdu::Ping {
            t_us: r.u64()?,
            echo_us: r.u64()?,
        },
        9 => Pdu::Pong {
            t_us: r.u64()?,
            echo_us: r.u64()?,
        },
        _ => parse_report(kind, r)?,
    })
}

/// ERROR, NOTICE and STATS.
fn parse_report(kind: u16, r: &mut Reader<'_>) -> Result<Pdu, ParseError> {
    let (code, severity, ref_seq) = (r.u16()?, r.u16()?, r.u32()?);
    let (mut text, mut hop_index, mut counters) = (String::new(), None, Vec::new());
    while let Some(mut tlv) = r.tlv()? {
        match tlv.kind {
            TLV_TEXT => text = tlv.value.text(TEXT_MAX)?,
            TLV_HOP_INDEX => {
                hop_index = Some(tlv.value.u16()?);
                tlv.value.end()?;
            }
            TLV_COUNTERS => {
                while !tlv.value.is_empty() {
                    if counters.len() == COUNTERS_MAX {
                        return Err(ParseError::TooMany("counters"));
                    }
                    counters.push(tlv.value.u64()?);
                }
            }
            _ => tlv.unknown()?,
        }
    }
    Ok(match kind {
        48 => {
            let status = NackStatus::from_code(code);
            Pdu::Error {
                status,
                severity,
                ref_seq,
                hop_index,
                text,
            }
        }
        49 => Pdu::Notice {
            code,
            severity,
            ref_seq,
            text,
        },
        _ => Pdu::Stats { counters },
    })
}

fn emit_chan(out: &mut Writer, chan: &ChanParams) {
    out.u16(chan.proto.code()).u16(chan.role).u32(chan.chan.0);
    chan.params.emit(out);
    chan.endpoints
        .iter()
        .take(8)
        .for_each(|endpoint| endpoint.emit(out));
    if let Some(cookie) = &chan.cookie {
        out.tlv(CRITICAL | TLV_COOKIE, |out| {
            out.bytes(cookie);
        });
    }
}

fn parse_chan(r: &mut Reader<'_>) -> Result<ChanParams, ParseError> {
    let code = r.u16()?;
    let proto = Proto::from_code(code).ok_or(ParseError::Unknown {
        what: "protocol",
        code,
    })?;
    let (role, chan) = (r.u16()?, ChanId(r.u32()?));
    if role > 2 {
        return Err(ParseError::Value("role in a channel"));
    }
    let (mut endpoints, mut cookie) = (Vec::new(), None);
    let params = Params::parse(r, |mut tlv| {
        match tlv.kind {
            TLV_ENDPOINT if endpoints.len() == 8 => return Err(ParseError::TooMany("endpoints")),
            TLV_ENDPOINT => endpoints.push(Endpoint::parse(&mut tlv.value)?),
            TLV_COOKIE => {
                cookie = Some(tlv.value.array()?);
                tlv.value.end()?;
            }
            _ => tlv.unknown()?,
        }
        Ok(())
    })?;
    Ok(ChanParams {
        chan,
        proto,
        role,
        params,
        endpoints,
        cookie,
    })
}

fn parse_path(kind: u16, r: &mut Reader<'_>) -> Result<Pdu, ParseError> {
    if kind == 19 {
        let (request, state, _) = (r.u32()?, PathState::from_code(r.u16()?), r.u16()?);
        return Ok(Pdu::PathStatus {
            request,
            state,
            text: parse_text(r)?,
        });
    }
    let (action, count, request) = (PathAction::from_code(r.u16()?), r.u16()?, r.u32()?);
    let mut rules = Vec::new();
    while let Some(mut tlv) = r.tlv()? {
        match tlv.kind {
            TLV_PATH_RULE if rules.len() == RULES_MAX => return Err(ParseError::TooMany("rules")),
            TLV_PATH_RULE => rules.push(tlv.value.text(TEXT_MAX)?),
            _ => tlv.unknown()?,
        }
    }
    if rules.len() != usize::from(count) {
        return Err(ParseError::Value("number of rules"));
    }
    Ok(Pdu::NetPath {
        action,
        request,
        rules,
    })
}

fn parse_conn(kind: u16, r: &mut Reader<'_>) -> Result<Pdu, ParseError> {
    let conn = ConnId(r.u32()?);
    Ok(match kind {
        20 => {
            let (credit, to, metadata, early) = parse_wish(r)?;
            Pdu::ConnOpen {
                conn,
                credit,
                to,
                metadata,
                early,
            }
        }
        21 => {
            let (status, _, credit) = (r.u16()?, r.u16()?, r.u64()?);
            Pdu::ConnAck {
                conn,
                status,
                credit,
            }
        }
        23 => {
            let (code, _) = (r.u16()?, r.u16()?);
            Pdu::ConnReset { conn, code }
        }
        _ => {
            let (_, value) = (r.u32()?, r.u64()?);
            match kind {
                22 => Pdu::ConnFin { conn, end: value },
                24 => Pdu::ConnCredit {
                    conn,
                    credit: value,
                },
                _ => Pdu::ConnAcked {
                    conn,
                    delivered: value,
                },
            }
        }
    })
}
