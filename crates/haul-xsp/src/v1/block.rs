//! The data of blocks of version 1, in the layouts of the original's structures.

use super::field::{Kind, array_at, u16_at};
use crate::SessionId;
use crate::wire::{Key, ParseError};

const HOP: u16 = 1;
const AUTH_TYPE: u16 = 2;
const AUTH_TOKEN: u16 = 3;
const NACK: u16 = 4;
const DATA: u16 = 5;
const PATH: u16 = 6;
const SLAB: u16 = 7;

/// Bytes of a hop.
const HOP_LEN: usize = 84;
/// Bytes of a hop's name, of which the last stays zero.
const HOP_ID_LEN: usize = 63;
const NAME_LEN: usize = 10;
const SLAB_RECORD_LEN: usize = 56;
/// Bytes of a rule: a C structure of the host that sent it.
const RULE_LEN: usize = 488;
/// The original's `sport` of all blocks.
const SPORT: u16 = 1;

/// A hop of version 1's tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// `host/port`, at most 63 bytes.
    pub id: String,
    /// Name of the protocol, at most 10 bytes.
    pub protocol: String,
    /// Flags; 1 is a native hop.
    pub flags: u16,
    /// Children behind it, in pre-order.
    pub children: u16,
}

/// A record of a slab as version 1 has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlabRecord {
    /// The session it belongs to.
    pub session: SessionId,
    /// Flags.
    pub flags: u16,
    /// Offset, bytes.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
    /// Checksum; the original leaves its kind open.
    pub crc: u32,
    /// Where it may be read. In the order of the sender's bytes: the original's hosts are
    /// little-endian.
    pub key: Key,
    /// Bytes of the memory region.
    pub size: u64,
}

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in the original")]
pub enum Block {
    /// Of SESS_OPEN.
    Hops {
        session: SessionId,
        flags: u32,
        hops: Vec<Hop>,
    },
    AuthType(String),
    AuthToken(Vec<u8>),
    Nack(String),
    DataChan {
        flags: u16,
        hop: String,
        protocol: String,
    },
    /// Rules are structures of the sender's compiler; they are counted and kept as they are.
    Path {
        action: u16,
        rules: Vec<Vec<u8>>,
    },
    Slab {
        seq: u32,
        length: u32,
        records: Vec<SlabRecord>,
    },
    /// Of APP_DATA, where the block's type is the application's option, and of what else is not
    /// looked into.
    Other {
        kind: u16,
        sport: u16,
        data: Vec<u8>,
    },
}

impl Block {
    /// Reads the block of a message of type `message`.
    pub(super) fn parse(
        message: Kind,
        kind: u16,
        sport: u16,
        data: &[u8],
    ) -> Result<Self, ParseError> {
        let other = || Self::Other {
            kind,
            sport,
            data: data.to_vec(),
        };
        // An application's options are numbered over the same range.
        if message == Kind::AppData {
            return Ok(other());
        }
        match kind {
            HOP => parse_hops(data),
            AUTH_TYPE => Ok(Self::AuthType(name(take(data, 0, NAME_LEN)?)?)),
            AUTH_TOKEN => Ok(Self::AuthToken(counted(data)?.to_vec())),
            NACK => {
                let text = std::str::from_utf8(counted(data)?).map_err(|_| ParseError::Text)?;
                Ok(Self::Nack(text.to_owned()))
            }
            DATA => Ok(Self::DataChan {
                flags: u16_at(take(data, 0, 4)?, 0),
                hop: name(take(data, 4, HOP_ID_LEN)?)?,
                protocol: name(take(data, 67, NAME_LEN)?)?,
            }),
            PATH => parse_path(data),
            SLAB => parse_slab(data),
            _ => Ok(other()),
        }
    }

    /// Type, `sport`, data.
    pub(super) fn emit(&self) -> (u16, u16, Vec<u8>) {
        let mut out = Vec::new();
        let kind = match self {
            Self::Hops {
                session,
                flags,
                hops,
            } => {
                out.extend(session.0);
                out.extend(flags.to_be_bytes());
                hops.iter().for_each(|hop| emit_hop(&mut out, hop));
                HOP
            }
            Self::AuthType(method) => {
                emit_name(&mut out, method, NAME_LEN);
                AUTH_TYPE
            }
            Self::AuthToken(token) => {
                emit_counted(&mut out, token);
                AUTH_TOKEN
            }
            Self::Nack(text) => {
                emit_counted(&mut out, text.as_bytes());
                NACK
            }
            Self::DataChan {
                flags,
                hop,
                protocol,
            } => {
                out.extend(flags.to_be_bytes());
                out.extend([0; 2]);
                emit_name(&mut out, hop, HOP_ID_LEN);
                emit_name(&mut out, protocol, NAME_LEN);
                out.extend([0; 3]);
                DATA
            }
            Self::Path { action, rules } => {
                out.extend(action.to_be_bytes());
                out.extend(u16::try_from(rules.len()).unwrap_or(u16::MAX).to_be_bytes());
                rules.iter().for_each(|rule| out.extend(rule));
                PATH
            }
            Self::Slab {
                seq,
                length,
                records,
            } => {
                let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
                [*seq, *length, count]
                    .iter()
                    .for_each(|number| out.extend(number.to_be_bytes()));
                records
                    .iter()
                    .for_each(|record| emit_record(&mut out, record));
                SLAB
            }
            Self::Other { kind, sport, data } => return (*kind, *sport, data.clone()),
        };
        (kind, SPORT, out)
    }
}

fn take(data: &[u8], at: usize, len: usize) -> Result<&[u8], ParseError> {
    data.get(at..at + len).ok_or(ParseError::Short("block"))
}

/// A name that zeros fill up.
fn name(octets: &[u8]) -> Result<String, ParseError> {
    let end = octets
        .iter()
        .position(|octet| *octet == 0)
        .unwrap_or(octets.len());
    let text = std::str::from_utf8(&octets[..end]).map_err(|_| ParseError::Text)?;
    Ok(text.to_owned())
}

fn emit_name(out: &mut Vec<u8>, name: &str, len: usize) {
    let used = name.len().min(len);
    out.extend(&name.as_bytes()[..used]);
    out.resize(out.len() + len - used, 0);
}

/// `u32 len` and as many bytes; the length is written with `htons`.
fn counted(data: &[u8]) -> Result<&[u8], ParseError> {
    let len = usize::from(u16_at(take(data, 0, 4)?, 0));
    take(data, 4, len)
}

fn emit_counted(out: &mut Vec<u8>, octets: &[u8]) {
    let len = u16::try_from(octets.len()).unwrap_or(u16::MAX);
    out.extend(len.to_be_bytes());
    out.extend([0; 2]);
    out.extend(&octets[..usize::from(len)]);
}

fn parse_hops(data: &[u8]) -> Result<Block, ParseError> {
    let head = take(data, 0, 20)?;
    let (hops, rest) = data[20..].as_chunks::<HOP_LEN>();
    if !rest.is_empty() {
        return Err(ParseError::Long("hop"));
    }
    let hops: Result<Vec<_>, _> = hops
        .iter()
        .map(|octets| {
            Ok(Hop {
                id: name(&octets[..HOP_ID_LEN])?,
                protocol: name(&octets[HOP_ID_LEN..HOP_ID_LEN + NAME_LEN])?,
                flags: u16_at(octets, 76),
                children: u16_at(octets, 80),
            })
        })
        .collect();
    let hops = hops?;
    // A forest has as many children as there are hops that are not roots.
    let children: usize = hops.iter().map(|hop| usize::from(hop.children)).sum();
    if children > hops.len().saturating_sub(1) {
        return Err(ParseError::Value("tree of hops"));
    }
    Ok(Block::Hops {
        session: SessionId(array_at(head, 0)),
        flags: u32::from_be_bytes(array_at(head, 16)),
        hops,
    })
}

fn emit_hop(out: &mut Vec<u8>, hop: &Hop) {
    emit_name(out, &hop.id, HOP_ID_LEN);
    emit_name(out, &hop.protocol, NAME_LEN);
    out.extend([0; 3]);
    out.extend(hop.flags.to_be_bytes());
    out.extend([0; 2]);
    out.extend(hop.children.to_be_bytes());
    out.extend([0; 2]);
}

/// Rules follow each other. The last field but one of each is the length of its data, in the
/// sender's byte order.
fn parse_path(data: &[u8]) -> Result<Block, ParseError> {
    let head = take(data, 0, 4)?;
    let (action, count) = (u16_at(head, 0), u16_at(head, 2));
    let mut rest = &data[4..];
    let mut rules = Vec::new();
    for _ in 0..count {
        let size: [u8; 4] = array_at(take(rest, 484, 4)?, 0);
        let size = usize::try_from(u32::from_le_bytes(size)).unwrap_or(usize::MAX);
        let len = RULE_LEN
            .checked_add(size)
            .ok_or(ParseError::Short("rule"))?;
        let (rule, behind) = rest
            .split_at_checked(len)
            .ok_or(ParseError::Short("rule"))?;
        rules.push(rule.to_vec());
        rest = behind;
    }
    if !rest.is_empty() {
        return Err(ParseError::Long("path"));
    }
    Ok(Block::Path { action, rules })
}

fn parse_slab(data: &[u8]) -> Result<Block, ParseError> {
    let head = take(data, 0, 12)?;
    let number = |at| u32::from_be_bytes(array_at(head, at));
    let (records, rest) = data[12..].as_chunks::<SLAB_RECORD_LEN>();
    if !rest.is_empty() || usize::try_from(number(8)) != Ok(records.len()) {
        return Err(ParseError::Value("number of records"));
    }
    Ok(Block::Slab {
        seq: number(0),
        length: number(4),
        records: records.iter().map(parse_record).collect(),
    })
}

fn parse_record(octets: &[u8; SLAB_RECORD_LEN]) -> SlabRecord {
    let number = |at| u32::from_be_bytes(array_at(octets, at));
    SlabRecord {
        session: SessionId(array_at(octets, 0)),
        flags: u16_at(octets, 16),
        offset: number(20),
        len: number(24),
        crc: number(28),
        key: Key {
            to: u64::from_le_bytes(array_at(octets, 32)),
            stag: u32::from_le_bytes(array_at(octets, 48)),
        },
        size: u64::from_le_bytes(array_at(octets, 40)),
    }
}

fn emit_record(out: &mut Vec<u8>, record: &SlabRecord) {
    out.extend(record.session.0);
    out.extend(record.flags.to_be_bytes());
    out.extend([0; 2]);
    [record.offset, record.len, record.crc]
        .iter()
        .for_each(|number| out.extend(number.to_be_bytes()));
    out.extend(record.key.to.to_le_bytes());
    out.extend(record.size.to_le_bytes());
    out.extend(record.key.stag.to_le_bytes());
    out.extend([0; 4]);
}
