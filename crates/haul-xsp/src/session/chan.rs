//! Data channels of a segment: agreed on here, connected by the engine, which shows the cookie.

use super::entry::{Chan, ChanPhase};
use super::{Event, Session};
use crate::ChanId;
use crate::auth::same;
use crate::error::{Error, Misbehaviour, Misuse};
use crate::wire::{ChanParams, NackStatus, Pdu};

/// Numbers of channels that the acceptor of a control connection asks for have this bit.
const BY_ACCEPTOR: u32 = 1 << 31;

impl Session {
    /// Asks for a data channel; `chan` of `params` is chosen here.
    ///
    /// # Errors
    /// The session is not open, or has too many channels.
    pub fn open_chan(&mut self, mut params: ChanParams) -> Result<ChanId, Misuse> {
        if self.chans.len() >= self.config.chans_max {
            return Err(Misuse::Full);
        }
        let side = if self.is_opener { 0 } else { BY_ACCEPTOR };
        params.chan = ChanId(self.next_chan | side);
        params.cookie = None;
        self.send(&Pdu::ChanOpen(params.clone()))?;
        self.next_chan = (self.next_chan + 1) & !BY_ACCEPTOR;
        let chan = params.chan;
        self.chans.insert(
            chan,
            Chan {
                params,
                phase: ChanPhase::Asking,
            },
        );
        Ok(chan)
    }

    /// Accepts a channel with what this end chose: parameters, and endpoints to connect to. The
    /// answer carries the cookie, which is returned, that the data connection must begin with.
    ///
    /// # Errors
    /// It was not requested.
    pub fn accept_chan(&mut self, mut params: ChanParams) -> Result<[u8; 16], Misuse> {
        let known = self
            .chans
            .get(&params.chan)
            .filter(|known| known.phase == ChanPhase::Asked);
        known.ok_or(Misuse::NoRequest)?;
        let [cookie, _] = *self.secrets.draw().as_chunks().0 else {
            return Err(Misuse::NoRequest);
        };
        params.cookie = Some(cookie);
        self.send(&Pdu::ChanAck(params.clone()))?;
        self.chans.insert(
            params.chan,
            Chan {
                params,
                phase: ChanPhase::Expected,
            },
        );
        Ok(cookie)
    }

    /// Refuses a channel; the peer may ask for another protocol.
    ///
    /// # Errors
    /// It was not requested.
    pub fn refuse_chan(
        &mut self,
        chan: ChanId,
        status: NackStatus,
        text: &str,
    ) -> Result<(), Misuse> {
        self.chans
            .get(&chan)
            .filter(|known| known.phase == ChanPhase::Asked)
            .ok_or(Misuse::NoRequest)?;
        self.chans.remove(&chan);
        self.send(&Pdu::ChanNack {
            chan,
            status,
            text: text.to_owned(),
        })
    }

    /// Which channel a data connection belongs to, by the cookie that it began with. A cookie is
    /// good once.
    pub fn check_cookie(&mut self, cookie: &[u8; 16]) -> Option<ChanId> {
        let mut found = None;
        for (chan, known) in &mut self.chans {
            let fits = known
                .params
                .cookie
                .as_ref()
                .is_some_and(|own| same(own, cookie));
            if fits && known.phase == ChanPhase::Expected {
                known.phase = ChanPhase::Up;
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
            .is_some_and(|known| known.phase == ChanPhase::Up)
    }

    /// Closes a channel.
    ///
    /// # Errors
    /// There is none.
    pub fn close_chan(&mut self, chan: ChanId, reason: NackStatus) -> Result<(), Misuse> {
        self.chans.remove(&chan).ok_or(Misuse::NoRequest)?;
        self.send(&Pdu::ChanClose { chan, reason })
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
                        phase: ChanPhase::Asked,
                    },
                );
                self.events.push_back(Event::ChanRequest(params));
            }
            Pdu::ChanAck(params) => {
                let Some(known) = self
                    .chans
                    .get_mut(&params.chan)
                    .filter(|known| known.phase == ChanPhase::Asking)
                else {
                    return out_of_turn();
                };
                known.phase = ChanPhase::Up;
                known.params = params.clone();
                self.events.push_back(Event::ChanUp(params));
            }
            Pdu::ChanNack { chan, status, text } => {
                if self
                    .chans
                    .get(&chan)
                    .is_none_or(|known| known.phase != ChanPhase::Asking)
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
