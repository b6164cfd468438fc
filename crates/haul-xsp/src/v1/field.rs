//! The kinds of messages, and fields that messages and blocks share.

use crate::wire::ParseError;

/// Types of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "named as in the original")]
pub enum Kind {
    SessOpen = 1,
    SessAck = 2,
    SessClose = 3,
    BlockHeader = 4,
    AuthType = 5,
    AuthToken = 6,
    SessNack = 7,
    Ping = 8,
    Pong = 9,
    DataChan = 10,
    NetPath = 11,
    AppData = 12,
    SlabInfo = 13,
    InfData = 14,
}

impl Kind {
    const ALL: [Self; 14] = [
        Self::SessOpen,
        Self::SessAck,
        Self::SessClose,
        Self::BlockHeader,
        Self::AuthType,
        Self::AuthToken,
        Self::SessNack,
        Self::Ping,
        Self::Pong,
        Self::DataChan,
        Self::NetPath,
        Self::AppData,
        Self::SlabInfo,
        Self::InfData,
    ];

    pub(super) fn from_code(code: u16) -> Result<Self, ParseError> {
        let known = Self::ALL.into_iter().find(|kind| *kind as u16 == code);
        known.ok_or(ParseError::Unknown { what: "type", code })
    }
}

/// Sixteen bits at `at`; callers have checked the length.
pub(super) fn u16_at(octets: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([octets[at], octets[at + 1]])
}

/// `N` bytes at `at`; callers have checked the length.
pub(super) fn array_at<const N: usize>(octets: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|index| octets[at + index])
}
