//! The send queue of datagrams other than DATA. It is short and drops what does not fit: all of
//! them are responses, or are repeated.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::config::UdConfig;
use super::wire::{
    Body, CONTROL_MAX, Cookie, Flags, Hello, Kind, MsgId, Notice, NoticeCode, Probe, Psn, Rate,
    Shim, Terms,
};
use crate::address::Destination;
use crate::time::{SECOND_NS, Time};

/// Datagrams that may wait.
const QUEUE: usize = 256;
/// Notices in a second, to all together.
const NOTICES_PER_SECOND: u64 = 10;

/// A datagram that is not DATA.
#[derive(Debug, Clone, Copy)]
pub(super) enum Control {
    Hello(Option<Cookie>),
    Cookie(Cookie),
    Ready,
    Notice(NoticeCode),
    Rate(Rate),
    Probe(Probe),
    ProbeAck(Probe),
}

#[derive(Debug)]
pub(super) struct Controls {
    queue: VecDeque<(Destination, MsgId, Control)>,
    pub(super) unanswered: u64,
    next_notice: Time,
    terms: Terms<'static>,
}

impl Controls {
    pub(super) fn new(config: &UdConfig) -> Self {
        Self {
            queue: VecDeque::new(),
            unanswered: 0,
            next_notice: Time::default(),
            terms: Terms {
                max_seg: u16::try_from(config.datagram_max).unwrap_or(u16::MAX),
                ..Terms::default()
            },
        }
    }

    /// Queues a datagram that is not longer than `limit` bytes; others are left out.
    pub(super) fn push(&mut self, to: Destination, id: MsgId, control: Control, limit: usize) {
        if self.queue.len() >= QUEUE || self.len_of(&control) > limit {
            self.unanswered += 1;
            return;
        }
        self.queue.push_back((to, id, control));
    }

    /// Whether it is not too soon for another notice; it is one then.
    pub(super) fn may_notice(&mut self, now: Time) -> bool {
        let may = now >= self.next_notice;
        if may {
            self.next_notice = now.after(SECOND_NS / NOTICES_PER_SECOND);
        }
        may
    }

    fn len_of(&self, control: &Control) -> usize {
        if let Control::Probe(probe) = control {
            return probe.size as usize;
        }
        let shim = shim(1, 1, 0, MsgId(0));
        self.body(control).emit(&shim, &mut [0; CONTROL_MAX])
    }

    fn body(&self, control: &Control) -> Body<'static> {
        match *control {
            Control::Hello(cookie) => Body::Hello(Hello {
                cookie,
                terms: self.terms,
            }),
            Control::Cookie(cookie) => Body::Cookie(cookie),
            Control::Ready => Body::Ready(self.terms),
            Control::Notice(code) => Body::Notice(Notice { code, detail: 0 }),
            Control::Rate(rate) => Body::Rate(rate),
            Control::Probe(probe) => Body::Probe(probe),
            Control::ProbeAck(probe) => Body::ProbeAck(probe),
        }
    }

    /// The next one, whole, in `out`.
    pub(super) fn poll(
        &mut self,
        config: &UdConfig,
        out: &mut [u8],
    ) -> Option<(SocketAddr, usize)> {
        loop {
            let (to, id, control) = self.queue.pop_front()?;
            let shim = shim(config.qpn, config.epoch, to.qpn, id);
            let len = self.body(&control).emit(&shim, out);
            if len > 0 {
                return Some((to.addr, len));
            }
            // The probe does not fit into `out`.
            self.unanswered += 1;
        }
    }
}

/// Packets that are not DATA have no number.
const fn shim(src_qpn: u32, epoch: u32, dst_qpn: u32, msg_id: MsgId) -> Shim {
    Shim {
        kind: Kind::Hello,
        flags: Flags::NONE,
        dst_qpn,
        src_qpn,
        epoch,
        psn: Psn(0),
        msg_id,
        msg_len: 0,
        seg_off: 0,
    }
}
