//! Kinds of data channels on the wire.

use haul_xsp::wire::Proto;

use crate::config::ChannelKind;

/// Returns the number of a kind.
pub(crate) const fn proto(kind: ChannelKind) -> Proto {
    match kind {
        ChannelKind::Tcp => Proto::Tcp,
        ChannelKind::Udp => Proto::IwarpRd,
        ChannelKind::Udt => Proto::Udt,
        ChannelKind::IwarpTcp => Proto::IwarpTcp,
        ChannelKind::IwarpUdt => Proto::IwarpUdt,
        ChannelKind::Verbs => Proto::VerbsRc,
    }
}

/// Returns the kind of a number; `None` for those not supported.
pub(crate) const fn kind(proto: Proto) -> Option<ChannelKind> {
    match proto {
        Proto::Tcp => Some(ChannelKind::Tcp),
        Proto::IwarpRd => Some(ChannelKind::Udp),
        Proto::Udt => Some(ChannelKind::Udt),
        Proto::IwarpTcp => Some(ChannelKind::IwarpTcp),
        Proto::IwarpUdt => Some(ChannelKind::IwarpUdt),
        Proto::VerbsRc => Some(ChannelKind::Verbs),
        Proto::Udp | Proto::IwarpUd | Proto::TlsTcp => None,
    }
}
