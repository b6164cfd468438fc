//! Kinds of data channels on the wire.

use haul_xsp::wire::Proto;

use crate::config::ChannelKind;

/// Returns the number of a kind.
pub(crate) const fn proto(kind: ChannelKind) -> Proto {
    match kind {
        ChannelKind::Tcp => Proto::Tcp,
        ChannelKind::IwarpUdt => Proto::IwarpUdt,
        ChannelKind::Verbs => Proto::VerbsRc,
    }
}

/// Returns the kind of a number; `None` for those not supported, which peers of earlier versions
/// may still ask for.
pub(crate) const fn kind(proto: Proto) -> Option<ChannelKind> {
    match proto {
        Proto::Tcp => Some(ChannelKind::Tcp),
        Proto::IwarpUdt => Some(ChannelKind::IwarpUdt),
        Proto::VerbsRc => Some(ChannelKind::Verbs),
        Proto::Udp
        | Proto::Udt
        | Proto::IwarpTcp
        | Proto::IwarpUd
        | Proto::IwarpRd
        | Proto::TlsTcp => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_removed_kinds_are_of_no_kind_here() {
        for removed in [Proto::Udt, Proto::IwarpTcp, Proto::IwarpRd] {
            assert_eq!(kind(removed), None);
        }
        for kept in ["tcp", "iwarp/udt", "verbs"] {
            let kept: ChannelKind = kept.parse().unwrap();
            assert_eq!(kind(proto(kept)), Some(kept));
        }
    }
}
