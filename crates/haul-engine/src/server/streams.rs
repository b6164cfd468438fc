//! Byte streams of a client.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use haul_soft::udt::LinkError;
use haul_soft::udt::stream::{Listener, Served};
use haul_verbs::{Error, Transport};

use super::end::{INVALID, SYSTEM};
use super::objects::{Object, Outbox, SharedListener};
use super::requests::Answer;
use super::session::Session;
use crate::message::{Reply, StreamOptions};

/// Streams of a listener whose keys are being made, at most: it is charged for them in advance.
const OPENING_MAX: usize = 64;

impl Session {
    pub(super) fn connect_stream(
        &mut self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        options: &StreamOptions,
    ) -> Answer {
        self.check_streams()?;
        let options = options.get(&self.streams).ok_or(INVALID)?;
        let bytes = Served::memory_bytes(&options);
        self.check_memory(bytes)?;
        let stream = match local {
            None => Served::connect(peer, &options),
            Some(local) => Served::rendezvous(local, peer, &options),
        };
        let stream = stream.map_err(cannot)?;
        let number = self.add_charged(Object::Stream(Box::new(stream)), bytes)?;
        self.hand_over(number)
    }

    pub(super) fn listen_for_streams(
        &mut self,
        address: SocketAddr,
        options: &StreamOptions,
    ) -> Answer {
        self.check_streams()?;
        let options = options.get(&self.streams).ok_or(INVALID)?;
        let bytes = Served::memory_bytes(&options);
        let charge = match &options.protect {
            None => 0,
            Some(_) => bytes.saturating_mul(OPENING_MAX),
        };
        self.check_memory(charge)?;
        let listener = Listener::bind(address, options).map_err(Error::os("listening"))?;
        let address = listener.local_addr();
        let (to, far) = Outbox::new().map_err(SYSTEM)?;
        let listener = Object::StreamListener(Box::new(SharedListener {
            listener,
            bytes,
            waiting: VecDeque::new(),
            to,
        }));
        let listener = self.add_charged(listener, charge)?;
        Ok((Reply::Listener { listener, address }, vec![far]))
    }

    pub(super) fn accept_stream(&mut self, listener: u32) -> Answer {
        let Some(Object::StreamListener(from)) = self.objects.get_mut(&listener) else {
            return Err(INVALID);
        };
        match from.waiting.pop_front() {
            Some(stream) => self.hand_over(stream),
            None => Ok((Reply::Done, Vec::new())),
        }
    }

    /// Gives a stream to the client.
    fn hand_over(&mut self, number: u32) -> Answer {
        let Some(Object::Stream(stream)) = self.objects.get_mut(&number) else {
            return Err(INVALID);
        };
        let ends = stream.take_ends().ok_or(INVALID)?;
        let reply = Reply::Stream {
            stream: number,
            peer: stream.peer(),
            ring_bytes: (ends.send_bytes as u64, ends.receive_bytes as u64),
        };
        Ok((reply, vec![ends.memory, ends.watch, ends.waiters]))
    }

    /// Streams are UDT's.
    fn check_streams(&self) -> Result<(), Error> {
        match self.context.attributes()?.transport {
            Transport::IwarpUdt => Ok(()),
            _ => Err(Error::Unsupported("byte streams")),
        }
    }
}

/// Why a stream cannot begin.
fn cannot(error: LinkError) -> Error {
    let source = match error {
        LinkError::Network(source) | LinkError::System(source) => source,
        other => io::Error::other(other),
    };
    Error::Os {
        what: "connecting",
        source,
    }
}
