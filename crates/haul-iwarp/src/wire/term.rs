//! The codes of a Terminate (RFC 5040 §4.8, RFC 5041 §7.2, RFC 5044 §8, RFC 6581 §8).

use std::fmt;

/// An error as a Terminate carries it: layer, type and code.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TermCode {
    /// 0 RDMAP, 1 DDP, 2 the lower layer.
    pub layer: u8,
    /// Error type, 4 bits.
    pub etype: u8,
    /// Error code.
    pub code: u8,
}

macro_rules! codes {
    ($($name:ident = $layer:literal / $etype:literal / $code:literal, $text:literal;)*) => {
        impl TermCode {
            $(#[doc = $text] pub const $name: Self = Self::new($layer, $etype, $code);)*

            /// Returns the code in words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match (self.layer, self.etype, self.code) {
                    $(($layer, $etype, $code) => $text,)*
                    (0, 0, _) => "local catastrophic error",
                    _ => "error unknown to the RFCs",
                }
            }
        }
    };
}

codes! {
    // RFC 5040 §4.8, Figure 9.
    LOCAL_CATASTROPHIC = 0 / 0 / 0, "local catastrophic error";
    INVALID_STAG = 0 / 1 / 0x00, "invalid STag";
    BOUNDS = 0 / 1 / 0x01, "base or bounds violation";
    ACCESS = 0 / 1 / 0x02, "access rights violation";
    NOT_ASSOCIATED = 0 / 1 / 0x03, "STag not associated with the stream";
    TO_WRAP = 0 / 1 / 0x04, "tagged offset wraps";
    PROTECTION_CANNOT_INVALIDATE = 0 / 1 / 0x09, "STag cannot be invalidated";
    RDMAP_VERSION = 0 / 2 / 0x05, "invalid RDMAP version";
    UNEXPECTED_OPCODE = 0 / 2 / 0x06, "unexpected opcode";
    STREAM_CATASTROPHIC = 0 / 2 / 0x07, "catastrophic error of this stream";
    UNSPECIFIED = 0 / 2 / 0xff, "unspecified remote operation error";
    // RFC 5041 §7.2.
    DDP_CATASTROPHIC = 1 / 0 / 0x00, "DDP: local catastrophic error";
    DDP_INVALID_STAG = 1 / 1 / 0x00, "DDP: invalid STag";
    DDP_BOUNDS = 1 / 1 / 0x01, "DDP: base or bounds violation";
    DDP_NOT_ASSOCIATED = 1 / 1 / 0x02, "DDP: STag not associated with the stream";
    DDP_TO_WRAP = 1 / 1 / 0x03, "DDP: tagged offset wraps";
    DDP_VERSION_TAGGED = 1 / 1 / 0x04, "DDP: invalid version, tagged";
    DDP_INVALID_QN = 1 / 2 / 0x01, "DDP: invalid queue number";
    DDP_NO_BUFFER = 1 / 2 / 0x02, "DDP: no buffer is posted";
    DDP_INVALID_MSN = 1 / 2 / 0x03, "DDP: message sequence number out of range";
    DDP_INVALID_MO = 1 / 2 / 0x04, "DDP: invalid message offset";
    DDP_TOO_LONG = 1 / 2 / 0x05, "DDP: message too long for its buffer";
    DDP_VERSION_UNTAGGED = 1 / 2 / 0x06, "DDP: invalid version, untagged";
    // RFC 5044 §8, RFC 6581 §8.
    MPA_CLOSED = 2 / 0 / 0x01, "MPA: connection lost";
    MPA_CRC = 2 / 0 / 0x02, "MPA: CRC mismatch";
    MPA_MARKER = 2 / 0 / 0x03, "MPA: marker and length disagree";
    MPA_STARTUP = 2 / 0 / 0x04, "MPA: invalid start-up frame";
    MPA_CATASTROPHIC = 2 / 0 / 0x05, "MPA: local catastrophic error";
    MPA_IRD = 2 / 0 / 0x06, "MPA: insufficient IRD";
    MPA_RTR = 2 / 0 / 0x07, "MPA: no matching ready-to-receive kind";
    // No RFC's: no error, but the end of a connection (docs/protocol/iwarp.md, close notice).
    CLOSE_NOTICE = 15 / 0 / 0x00, "close notice";
}

impl TermCode {
    /// Makes a code, possibly one that no RFC has.
    #[must_use]
    pub const fn new(layer: u8, etype: u8, code: u8) -> Self {
        Self { layer, etype, code }
    }

    /// Returns whether layer and type are in the RFCs' tables.
    #[must_use]
    pub const fn is_known_layer(self) -> bool {
        matches!((self.layer, self.etype), (0, 0..=2) | (1, 0..=3) | (2, 0))
    }
}

impl fmt::Debug for TermCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "TermCode({}/{}/{:02x})",
            self.layer, self.etype, self.code
        )
    }
}

impl fmt::Display for TermCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layer, etype, code } = self;
        write!(f, "{} ({layer}/{etype}/{code:02x})", self.text())
    }
}
