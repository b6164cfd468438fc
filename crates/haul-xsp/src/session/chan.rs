//! Data channels of a segment: agreed on here, connected by the engine, which shows the cookie.

use super::{Event, Session, State};
use crate::ChanId;
use crate::auth::same;
use crate::error::{Error, Misbehaviour, Misuse};
use crate::wire::{ChanParams, EARLY_CHANS_MAX, NackStatus, Pdu, ProtoOffer, SessAck};

#[derive(Debug)]
pub(super) struct Chan {
    params: ChanParams,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The peer has not answered.
    Asking,
    /// This end has not answered.
    Asked,
    /// The data connection has to show the cookie.
    Expected,
    /// There, or the peer's to expect.
    Up,
}

/// Numbers of channels that the acceptor of a control connection asks for have this bit.
const BY_ACCEPTOR: u32 = 1 << 31;

impl Session {
    // Channels that are asked for along with the session (SESS_OPEN).

    /// They get the first numbers.
    pub(super) fn numbered(&mut self, mut early: Vec<ChanParams>) -> Vec<ChanParams> {
        early.truncate(EARLY_CHANS_MAX.min(self.config.chans_max));
        for params in &mut early {
            (params.chan, params.cookie) = (ChanId(self.next_chan), None);
            self.next_chan += 1;
        }
        early
    }

    /// Whether the peer's count as asked for, with what was agreed on for the segment. If not, it asks when the session is open.
    pub(super) fn takes_early(&mut self, agreed: Option<&ProtoOffer>) -> bool {
        let is_agreed =
            |params: &ChanParams| agreed.is_some_and(|agreed| agreed.proto == params.proto);
        let is_theirs = |(number, params): (u32, &ChanParams)| params.chan.0 == number;
        let fits = self.early.len() <= self.config.chans_max
            && self.early.iter().all(is_agreed)
            && (1..).zip(&self.early).all(is_theirs);
        if !fits {
            self.early.clear();
        }
        !self.early.is_empty()
    }

    /// The session is open: they are asked for.
    pub(super) fn take_early(&mut self) {
        for params in std::mem::take(&mut self.early) {
            let phase = Phase::Asked;
            self.chans.insert(
                params.chan,
                Chan {
                    params: params.clone(),
                    phase,
                },
            );
            self.events.push_back(Event::ChanRequest(params));
        }
    }

    /// The session is open: what the acceptor has taken will be answered.
    pub(super) fn expect_early(&mut self, ack: &SessAck) {
        if !ack.takes_chans {
            self.early.clear();
        }
        for params in &self.early {
            let (params, phase) = (params.clone(), Phase::Asking);
            self.chans.insert(params.chan, Chan { params, phase });
        }
    }

    /// The engine has heard what has become of it, or wants it no more.
    pub(super) fn forget_early(&mut self, chan: ChanId) {
        self.early.retain(|early| early.chan != chan);
    }

    /// Asks for a data channel; `chan` of `params` is chosen here. One that was asked for along with the session is not asked for
    /// again.
    ///
    /// # Errors
    /// The session is not open, or has too many channels.
    pub fn open_chan(&mut self, mut params: ChanParams) -> Result<ChanId, Misuse> {
        params.cookie = None;
        let is_it = |early: &ChanParams| {
            let chan = early.chan;
            *early
                == ChanParams {
                    chan,
                    ..params.clone()
                }
        };
        if self.state == State::Open
            && let Some(index) = self.early.iter().position(is_it)
        {
            return Ok(self.early.remove(index).chan);
        }
        if self.chans.len() >= self.config.chans_max {
            return Err(Misuse::Full);
        }
        let side = if self.is_opener { 0 } else { BY_ACCEPTOR };
        params.chan = ChanId(self.next_chan | side);
        self.tell(&Pdu::ChanOpen(params.clone()))?;
        self.next_chan = (self.next_chan + 1) & !BY_ACCEPTOR;
        let chan = params.chan;
        self.chans.insert(
            chan,
            Chan {
                params,
                phase: Phase::Asking,
            },
        );
        Ok(chan)
    }

    /// Accepts a channel with what this end chose: parameters, and endpoints to connect to. The answer carries the cookie, which
    /// is returned, that the data connection must begin with.
    ///
    /// # Errors
    /// Nobody asked for it.
    pub fn accept_chan(&mut self, mut params: ChanParams) -> Result<[u8; 16], Misuse> {
        let known = self
            .chans
            .get(&params.chan)
            .filter(|known| known.phase == Phase::Asked);
        known.ok_or(Misuse::NoRequest)?;
        let [cookie, _] = *self.secrets.draw().as_chunks().0 else {
            return Err(Misuse::NoRequest);
        };
        params.cookie = Some(cookie);
        self.tell(&Pdu::ChanAck(params.clone()))?;
        self.chans.insert(
            params.chan,
            Chan {
                params,
                phase: Phase::Expected,
            },
        );
        Ok(cookie)
    }

    /// Refuses a channel; the peer may ask for another protocol.
    ///
    /// # Errors
    /// Nobody asked for it.
    pub fn refuse_chan(
        &mut self,
        chan: ChanId,
        status: NackStatus,
        text: &str,
    ) -> Result<(), Misuse> {
        self.chans
            .get(&chan)
            .filter(|known| known.phase == Phase::Asked)
            .ok_or(Misuse::NoRequest)?;
        self.chans.remove(&chan);
        self.tell(&Pdu::ChanNack {
            chan,
            status,
            text: text.to_owned(),
        })
    }

    /// Which channel a data connection belongs to, by the cookie that it began with. A cookie is good once.
    pub fn check_cookie(&mut self, cookie: &[u8; 16]) -> Option<ChanId> {
        let mut found = None;
        for (chan, known) in &mut self.chans {
            let fits = known
                .params
                .cookie
                .as_ref()
                .is_some_and(|own| same(own, cookie));
            if fits && known.phase == Phase::Expected {
                known.phase = Phase::Up;
                found = Some(*chan);
            }
        }
        found
    }

    /// Whether both ends have agreed on a channel.
    #[must_use]
    pub fn is_chan_up(&self, chan: ChanId) -> bool {
        self.chans
            .get(&chan)
            .is_some_and(|known| known.phase == Phase::Up)
    }

    /// Closes a channel.
    ///
    /// # Errors
    /// There is none.
    pub fn close_chan(&mut self, chan: ChanId, reason: NackStatus) -> Result<(), Misuse> {
        self.chans.remove(&chan).ok_or(Misuse::NoRequest)?;
        self.forget_early(chan);
        self.tell(&Pdu::ChanClose { chan, reason })
    }

    pub(super) fn on_chan_pdu(&mut self, pdu: Pdu) -> Result<(), Error> {
        let kind = pdu.kind();
        let out_of_turn = || Err(Misbehaviour::OutOfTurn(kind).into());
        match pdu {
            Pdu::ChanOpen(params) => {
                let is_theirs = (params.chan.0 & BY_ACCEPTOR != 0) == self.is_opener;
                if !is_theirs || self.chans.contains_key(&params.chan) {
                    return out_of_turn();
                }
                if self.chans.len() >= self.config.chans_max {
                    let text = "too many channels".to_owned();
                    if let Some(link) = &mut self.link {
                        link.send(&Pdu::ChanNack {
                            chan: params.chan,
                            status: NackStatus::Busy,
                            text,
                        });
                    }
                    return Ok(());
                }
                self.chans.insert(
                    params.chan,
                    Chan {
                        params: params.clone(),
                        phase: Phase::Asked,
                    },
                );
                self.events.push_back(Event::ChanRequest(params));
            }
            Pdu::ChanAck(params) => {
                let Some(known) = self
                    .chans
                    .get_mut(&params.chan)
                    .filter(|known| known.phase == Phase::Asking)
                else {
                    return out_of_turn();
                };
                known.phase = Phase::Up;
                known.params = params.clone();
                self.events.push_back(Event::ChanUp(params));
            }
            Pdu::ChanNack { chan, status, text } => {
                if self
                    .chans
                    .get(&chan)
                    .is_none_or(|known| known.phase != Phase::Asking)
                {
                    return out_of_turn();
                }
                self.chans.remove(&chan);
                self.events
                    .push_back(Event::ChanRefused { chan, status, text });
            }
            Pdu::ChanClose { chan, .. } => {
                // Both ends may close it at the same time.
                if self.chans.remove(&chan).is_some() {
                    self.events.push_back(Event::ChanClosed(chan));
                }
            }
            _ => return out_of_turn(),
        }
        Ok(())
    }
}
