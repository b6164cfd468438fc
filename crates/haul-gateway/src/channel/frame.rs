//! Frames of data channels that are byte streams (docs/protocol/xsp.md, "Data channels over byte
//! streams").

use haul_xsp::wire::Key;

/// Length of a header, bytes.
pub(crate) const HEADER_LEN: usize = 24;
/// Longest payload behind a header, bytes; the length of every DATA but the last of a response.
pub(crate) const PIECE_BYTES: u32 = 256 << 10;
/// Longest GET, bytes: 64 pieces.
pub(crate) const GET_BYTES_MAX: u32 = 64 * PIECE_BYTES;

const READY: u8 = 1;
const GET: u8 = 2;
const DATA: u8 = 3;
const PUT: u8 = 4;
const PLACED: u8 = 5;
const WRITTEN: u8 = 6;

/// A validated header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame {
    /// Confirms the cookie. The first frame of the accepting end.
    Ready,
    /// Requests bytes of the peer's memory. `1 <= len <= GET_BYTES_MAX`
    Get { id: u32, key: Key, len: u32 },
    /// The piece of this number of a GET, on any connection. `1 <= len <= PIECE_BYTES` bytes
    /// follow.
    Data { id: u32, piece: u8, len: u32 },
    /// Bytes for the peer's memory. `1 <= len <= PIECE_BYTES` bytes follow.
    Put { id: u32, key: Key, len: u32 },
    /// Acknowledges a PUT that is in place.
    Placed { id: u32 },
    /// The PUTs of a slab are those up to this number.
    Written { id: u32, slab: u64 },
}

/// States why a header is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a frame of unknown type {0}")]
    Type(u8),
    #[error("a frame with a field set that it does not have")]
    Reserved,
    #[error("a frame for {0} bytes")]
    Length(u32),
    #[error("a frame for bytes from {0} on, where no piece begins")]
    Offset(u64),
}

impl Frame {
    pub(crate) fn parse(header: &[u8; HEADER_LEN]) -> Result<Self, FrameError> {
        let [
            kind,
            a,
            b,
            c,
            l0,
            l1,
            l2,
            l3,
            i0,
            i1,
            i2,
            i3,
            s0,
            s1,
            s2,
            s3,
            to @ ..,
        ] = *header;
        let len = u32::from_be_bytes([l0, l1, l2, l3]);
        let id = u32::from_be_bytes([i0, i1, i2, i3]);
        let key = Key {
            stag: u32::from_be_bytes([s0, s1, s2, s3]),
            to: u64::from_be_bytes(to),
        };
        if [a, b, c] != [0; 3] {
            return Err(FrameError::Reserved);
        }
        let within = |most: u32| {
            let fits = (1..=most).contains(&len);
            fits.then_some(len).ok_or(FrameError::Length(len))
        };
        match kind {
            READY if (len, id, key) == (0, 0, Key::default()) => Ok(Self::Ready),
            PLACED if (len, key) == (0, Key::default()) => Ok(Self::Placed { id }),
            WRITTEN if (len, key.stag) == (0, 0) => Ok(Self::Written { id, slab: key.to }),
            GET => Ok(Self::Get {
                id,
                key,
                len: within(GET_BYTES_MAX)?,
            }),
            PUT => Ok(Self::Put {
                id,
                key,
                len: within(PIECE_BYTES)?,
            }),
            DATA if key.stag == 0 => Ok(Self::Data {
                id,
                piece: piece(key.to)?,
                len: within(PIECE_BYTES)?,
            }),
            READY | PLACED | DATA | WRITTEN => Err(FrameError::Reserved),
            other => Err(FrameError::Type(other)),
        }
    }

    pub(crate) fn emit(&self) -> [u8; HEADER_LEN] {
        let none = Key::default();
        let (kind, len, id, key) = match *self {
            Self::Ready => (READY, 0, 0, none),
            Self::Get { id, key, len } => (GET, len, id, key),
            Self::Data { id, piece, len } => {
                let to = u64::from(piece) * u64::from(PIECE_BYTES);
                (DATA, len, id, Key { stag: 0, to })
            }
            Self::Put { id, key, len } => (PUT, len, id, key),
            Self::Placed { id } => (PLACED, 0, id, none),
            Self::Written { id, slab } => (WRITTEN, 0, id, Key { stag: 0, to: slab }),
        };
        let mut header = [0; HEADER_LEN];
        header[0] = kind;
        header[4..8].copy_from_slice(&len.to_be_bytes());
        header[8..12].copy_from_slice(&id.to_be_bytes());
        header[12..16].copy_from_slice(&key.stag.to_be_bytes());
        header[16..].copy_from_slice(&key.to.to_be_bytes());
        header
    }
}

/// Returns the piece of a response that begins at this offset.
fn piece(offset: u64) -> Result<u8, FrameError> {
    let begins = offset.is_multiple_of(PIECE_BYTES.into()) && offset < GET_BYTES_MAX.into();
    let number = u8::try_from(offset / u64::from(PIECE_BYTES)).ok();
    number.filter(|_| begins).ok_or(FrameError::Offset(offset))
}

#[cfg(test)]
#[path = "../../../../tests/fixtures/recorded.rs"]
mod recorded;

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key {
        stag: 0x0102_0304,
        to: 0x1112_1314_1516_1718,
    };

    #[test]
    fn headers_are_those_of_the_first_release() {
        let (id, key, len) = (7, KEY, 4096);
        let made = [
            ("READY", Frame::Ready),
            ("GET", Frame::Get { id, key, len }),
            ("DATA", Frame::Data { id, piece: 3, len }),
            ("PUT", Frame::Put { id, key, len }),
            ("PLACED", Frame::Placed { id }),
            ("WRITTEN", Frame::Written { id, slab: 9 }),
        ];
        let made = made.map(|(name, frame)| {
            assert_eq!(Frame::parse(&frame.emit()), Ok(frame), "{name}");
            (name, frame.emit().to_vec())
        });
        recorded::assert_recorded("gateway-streams", &made);
    }

    #[test]
    fn headers_are_laid_out_as_documented() {
        let frame = Frame::Get {
            id: 0x2122_2324,
            key: KEY,
            len: 0x0003_3234,
        };
        let octets = [
            2, 0, 0, 0, 0, 3, 0x32, 0x34, 0x21, 0x22, 0x23, 0x24, 1, 2, 3, 4, 0x11, 0x12, 0x13,
            0x14, 0x15, 0x16, 0x17, 0x18,
        ];
        assert_eq!(frame.emit(), octets);
        assert_eq!(Frame::parse(&octets), Ok(frame));
    }

    #[test]
    fn what_is_emitted_is_parsed() {
        let frames = [
            Frame::Ready,
            Frame::Get {
                id: u32::MAX,
                key: KEY,
                len: GET_BYTES_MAX,
            },
            Frame::Data {
                id: 1,
                piece: 63,
                len: PIECE_BYTES,
            },
            Frame::Put {
                id: 2,
                key: KEY,
                len: 1,
            },
            Frame::Placed { id: 3 },
            Frame::Written {
                id: 4,
                slab: u64::MAX - 1,
            },
        ];
        for frame in frames {
            assert_eq!(Frame::parse(&frame.emit()), Ok(frame));
        }
    }

    #[test]
    fn lengths_beyond_the_limits_are_refused() {
        let id = 1;
        for frame in [
            Frame::Get {
                id,
                key: KEY,
                len: 0,
            },
            Frame::Get {
                id,
                key: KEY,
                len: GET_BYTES_MAX + 1,
            },
            Frame::Put {
                id,
                key: KEY,
                len: PIECE_BYTES + 1,
            },
            Frame::Data {
                id,
                piece: 0,
                len: PIECE_BYTES + 1,
            },
        ] {
            let parsed = Frame::parse(&frame.emit());
            assert!(matches!(parsed, Err(FrameError::Length(_))), "{frame:?}");
        }
    }

    #[test]
    fn pieces_begin_where_pieces_begin() {
        let whole = Frame::Data {
            id: 1,
            piece: 0,
            len: 1,
        };
        for offset in [
            1,
            u64::from(PIECE_BYTES) - 1,
            GET_BYTES_MAX.into(),
            u64::MAX,
        ] {
            let mut header = whole.emit();
            header[16..].copy_from_slice(&offset.to_be_bytes());
            assert_eq!(Frame::parse(&header), Err(FrameError::Offset(offset)));
        }
    }

    #[test]
    fn unknown_types_and_fields_that_are_not_there_are_refused() {
        let mut header = Frame::Ready.emit();
        for kind in [0, 7, 255] {
            header[0] = kind;
            assert_eq!(Frame::parse(&header), Err(FrameError::Type(kind)));
        }
        let mark = Frame::Written { id: 1, slab: 0 };
        let offsets: [&[usize]; 2] = [&[1, 3, 7, 15, 23], &[1, 3, 7, 15]];
        for (frame, offsets) in [
            (Frame::Ready, offsets[0]),
            (Frame::Placed { id: 1 }, offsets[0]),
            (mark, offsets[1]),
        ] {
            for &at in offsets {
                let mut header = frame.emit();
                header[at] = 1;
                assert_eq!(Frame::parse(&header), Err(FrameError::Reserved), "{at}");
            }
        }
    }
}
