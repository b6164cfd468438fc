//! Events for the engine.

use crate::error::Error;
use crate::wire::{
    ChanParams, Claim, ConnState, Endpoint, Metadata, NackStatus, PathAction, PathState, SessAck,
    SessOpen, TICKET_LEN,
};
use crate::{ChanId, ConnId, SlabSeq};

/// An event of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The peer requests a session: answer with `accept_session` or `refuse_session`; or, at a
    /// terminus that holds the session of its ticket, with that session's `adopt`.
    OpenRequest(SessOpen),
    /// The peer requests to resume: answer with the `adopt` of the session that the ticket is of,
    /// or with `refuse_session`.
    ResumeRequest(ResumeRequest),
    /// The session is open.
    Opened(SessAck),
    /// The control connection is gone. Reads in flight are to be reported when they are over;
    /// channels are gone.
    Suspended,
    /// There is a control connection again. With `anew` the way is another one: everything read and
    /// not released is handed out again, and no read of the old way may write any more.
    Resumed {
        /// The way is another one.
        anew: bool,
    },
    /// A repeated request was refused for a reason that may be temporary: [`Self::Suspended`] is
    /// next.
    PutOff {
        /// Why.
        status: NackStatus,
        /// Which hop.
        hop_index: u16,
        /// In words.
        text: String,
    },
    /// The session is over.
    Closed(Error),
    /// The peer opens a connection: answer with `accept_conn` or `refuse_conn`.
    ConnRequest {
        /// Which.
        conn: ConnId,
        /// Where to.
        to: Endpoint,
        /// Metadata of its application.
        metadata: Metadata,
        /// The first bytes of its stream: they go before what the consumer has.
        early: Vec<u8>,
    },
    /// A connection that this end opened is there.
    ConnAccepted(ConnId),
    /// A connection that this end opened is refused.
    ConnRefused {
        /// Which.
        conn: ConnId,
        /// Why.
        status: u16,
    },
    /// The peer has closed its receiving side of a connection: written data is lost. Its earlier
    /// data still arrives, then its reset.
    Stopped {
        /// Which.
        conn: ConnId,
        /// Why.
        code: u16,
    },
    /// Both directions are done with.
    ConnClosed(ConnId),
    /// The far end does not know the connection any more.
    ConnLost(ConnId),
    /// There is something to read.
    Readable(ConnId),
    /// The far end has all before this offset; the end of the stream counts as one byte. At
    /// gateways.
    Delivered {
        /// Which.
        conn: ConnId,
        /// Before which offset.
        delivered: u64,
    },
    /// The peer requests a data channel: answer with `accept_chan` or `refuse_chan`.
    ChanRequest(ChanParams),
    /// A data channel is agreed on.
    ChanUp(ChanParams),
    /// A data channel is refused.
    ChanRefused {
        /// Which.
        chan: ChanId,
        /// Why.
        status: NackStatus,
        /// In words.
        text: String,
    },
    /// A data channel is closed by the peer.
    ChanClosed(ChanId),
    /// A request about a path: answer with `path_status`, any number of times.
    PathRequest {
        /// The action.
        action: PathAction,
        /// For the answer.
        request: u32,
        /// `type key=value …`
        rules: Vec<String>,
    },
    /// How a path is that was asked for.
    PathStatus {
        /// Of which request.
        request: u32,
        /// How it is.
        state: PathState,
        /// In words.
        text: String,
    },
    /// Metadata of the session, or that it was dropped. It may be repeated.
    Metadata(Metadata),
    /// Other data of the application.
    App {
        /// The kind, as numbered by the application.
        option: u32,
        /// The data.
        octets: Vec<u8>,
    },
    /// For the log; from a gateway with the code of [`NackStatus::CannotConnect`], that its next
    /// hop cannot be reached again.
    Notice {
        /// Code.
        code: u16,
        /// In words.
        text: String,
    },
}

/// The request of a peer that resumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeRequest {
    /// Proves that the session is its own.
    pub ticket: [u8; TICKET_LEN],
    /// All slabs before this one are done with at its end.
    pub next: SlabSeq,
    /// How far its connections are.
    pub conns: Vec<ConnState>,
    /// Which of its claims to the session this is.
    pub claim: Claim,
}
