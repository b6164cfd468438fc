//! Data connections that are byte streams, until they have sent a cookie.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd as _;

use haul_io::address::source;
use haul_io::poller::{Interest, Poller};
use haul_io::stream::Stream;
use haul_xsp::SECOND_NS;

/// Length of a cookie, bytes.
const COOKIE_LEN: usize = 16;
/// Most pending connections. For a new one, the oldest of the source with most of them is closed: a
/// genuine peer sends its cookie at once.
const PENDING_DATA_MAX: usize = 64;
/// Timeout of the cookie, ns.
const PATIENCE_NS: u64 = 10 * SECOND_NS;

/// A connection that has sent a cookie, which is not verified yet.
#[derive(Debug)]
pub(super) struct Identified {
    pub(super) stream: Stream,
    pub(super) cookie: [u8; COOKIE_LEN],
}

#[derive(Debug)]
struct PendingStream {
    token: u64,
    stream: Stream,
    from: IpAddr,
    cookie: [u8; COOKIE_LEN],
    /// Bytes of the cookie received.
    have: usize,
    until_ns: u64,
}

impl PendingStream {
    /// Reads the cookie and nothing behind it. Returns whether it is complete.
    fn read(&mut self) -> io::Result<bool> {
        while self.have < COOKIE_LEN {
            match self.stream.read(&mut self.cookie[self.have..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.have += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Pending data connections. See the module.
#[derive(Debug)]
pub(super) struct PendingData {
    /// Oldest first.
    waiting: VecDeque<PendingStream>,
    /// The next token.
    next: u64,
}

impl PendingData {
    /// Creates an empty set, whose tokens begin with `first`.
    pub(super) const fn new(first: u64) -> Self {
        Self {
            waiting: VecDeque::new(),
            next: first,
        }
    }

    /// Returns when the oldest times out, ns.
    pub(super) fn poll_timeout(&self) -> Option<u64> {
        self.waiting.front().map(|pending| pending.until_ns)
    }

    /// Adds a connection from this address. If the limit is reached, another is read once more
    /// before it is closed; the cookie that it has sent by then is returned.
    pub(super) fn admit(
        &mut self,
        poller: &Poller,
        now_ns: u64,
        stream: Stream,
        from: IpAddr,
    ) -> io::Result<Option<Identified>> {
        let token = self.next;
        self.next += 1;
        poller.add(stream.as_fd(), token, Interest::READ)?;
        let mut identified = None;
        if self.waiting.len() == PENDING_DATA_MAX {
            let leaver = self.next_to_leave();
            identified = leaver.and_then(|leaver| self.receive(poller, leaver));
            if self.waiting.len() == PENDING_DATA_MAX {
                let at = self
                    .waiting
                    .iter()
                    .position(|one| Some(one.token) == leaver);
                self.remove(poller, at.unwrap_or(0));
            }
        }
        self.waiting.push_back(PendingStream {
            token,
            stream,
            from: source(from),
            cookie: [0; COOKIE_LEN],
            have: 0,
            until_ns: now_ns.saturating_add(PATIENCE_NS),
        });
        Ok(identified)
    }

    /// Returns the oldest of the source with most connections.
    fn next_to_leave(&self) -> Option<u64> {
        let all = || self.waiting.iter();
        let of_source = |one: &PendingStream| all().filter(|other| other.from == one.from).count();
        // Among equals, the first is the oldest.
        let next = all().min_by_key(|one| Reverse(of_source(one)));
        next.map(|one| one.token)
    }

    /// Reads from the connection with this token. Returns it once its cookie is complete.
    pub(super) fn receive(&mut self, poller: &Poller, token: u64) -> Option<Identified> {
        let at = self.waiting.iter().position(|one| one.token == token)?;
        match self.waiting[at].read() {
            Ok(false) => None,
            Ok(true) => {
                let PendingStream { stream, cookie, .. } = self.remove(poller, at)?;
                Some(Identified { stream, cookie })
            }
            Err(_) => {
                self.remove(poller, at);
                None
            }
        }
    }

    /// Closes connections whose time is over.
    pub(super) fn handle_timeout(&mut self, poller: &Poller, now_ns: u64) {
        let is_over = |pending: &PendingStream| pending.until_ns <= now_ns;
        while self.waiting.front().is_some_and(is_over) {
            self.remove(poller, 0);
        }
    }

    fn remove(&mut self, poller: &Poller, at: usize) -> Option<PendingStream> {
        let pending = self.waiting.remove(at)?;
        // It is the caller's now, or closed.
        let _ = poller.remove(pending.stream.as_fd());
        Some(pending)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use haul_io::clock::Clock;
    use haul_io::notify;
    use haul_io::poller::Events;
    use haul_io::stream::Acceptor;

    use super::*;

    const FIRST: u64 = 1_000;

    struct Harness {
        acceptor: Acceptor,
        poller: Poller,
        pending: PendingData,
    }

    impl Harness {
        fn new() -> Self {
            Self {
                acceptor: Acceptor::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap(),
                poller: Poller::new().unwrap(),
                pending: PendingData::new(FIRST),
            }
        }

        fn connect(&mut self, now_ns: u64) -> Stream {
            let (near, identified) = self.connect_and_receive(now_ns);
            assert!(identified.is_none());
            near
        }

        fn connect_and_receive(&mut self, now_ns: u64) -> (Stream, Option<Identified>) {
            let near = Stream::start_connect(self.acceptor.local_addr().unwrap()).unwrap();
            notify::wait_readable([self.acceptor.as_fd()], None).unwrap();
            let (far, _) = self.acceptor.accept().unwrap().unwrap();
            let identified = self.admit(now_ns, far, Ipv4Addr::LOCALHOST);
            (near, identified)
        }

        fn admit(&mut self, now_ns: u64, far: Stream, from: Ipv4Addr) -> Option<Identified> {
            let admitted = self.pending.admit(&self.poller, now_ns, far, from.into());
            admitted.unwrap()
        }

        /// Waits until something arrives, and reads all connections.
        fn receive(&mut self) -> Vec<Identified> {
            let mut events = Events::with_capacity(8);
            self.poller.wait(&mut events, None, Clock::new()).unwrap();
            let tokens: Vec<u64> = events.iter().map(|event| event.token).collect();
            let identified = tokens
                .into_iter()
                .filter_map(|token| self.pending.receive(&self.poller, token));
            identified.collect()
        }
    }

    #[test]
    fn a_cookie_in_pieces_is_a_cookie_and_what_follows_it_is_left() {
        let mut harness = Harness::new();
        let near = harness.connect(0);
        near.write(&[7; 9]).unwrap();
        assert!(harness.receive().is_empty());
        near.write(&[7; 10]).unwrap();
        let identified = harness.receive().pop().unwrap();
        assert_eq!(identified.cookie, [7; 16]);
        let mut rest = [0; 8];
        assert_eq!(identified.stream.read(&mut rest).unwrap(), 3);
        assert!(harness.pending.waiting.is_empty());
    }

    #[test]
    fn state_of_a_disconnected_client_is_dropped() {
        let mut harness = Harness::new();
        let near = harness.connect(0);
        near.write(&[7; 15]).unwrap();
        drop(near);
        assert!(harness.receive().is_empty());
        assert!(harness.pending.waiting.is_empty());
    }

    #[test]
    fn a_silent_client_is_disconnected_at_its_timeout() {
        let mut harness = Harness::new();
        let near = harness.connect(5);
        let until = harness.pending.poll_timeout().unwrap();
        assert_eq!(until, 5 + PATIENCE_NS);
        harness.pending.handle_timeout(&harness.poller, until - 1);
        assert_eq!(harness.pending.waiting.len(), 1);
        harness.pending.handle_timeout(&harness.poller, until);
        assert!(harness.pending.waiting.is_empty());
        notify::wait_readable([near.as_fd()], None).unwrap();
        assert_eq!(near.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn an_unread_cookie_counts_when_many_connections_arrive_at_once() {
        let mut harness = Harness::new();
        let near = harness.connect(0);
        near.write(&[9; 16]).unwrap();
        let _silent: Vec<Stream> = (1..PENDING_DATA_MAX).map(|_| harness.connect(0)).collect();
        let (_last, identified) = harness.connect_and_receive(0);
        assert_eq!(identified.unwrap().cookie, [9; 16]);
    }

    #[test]
    fn many_of_one_source_make_room_before_one_of_another() {
        let mut harness = Harness::new();
        let acceptor = harness.acceptor.local_addr().unwrap();
        let near = Stream::start_connect(acceptor).unwrap();
        notify::wait_readable([harness.acceptor.as_fd()], None).unwrap();
        let (far, _) = harness.acceptor.accept().unwrap().unwrap();
        assert!(harness.admit(0, far, Ipv4Addr::new(192, 0, 2, 1)).is_none());
        let _flood: Vec<Stream> = (0..2 * PENDING_DATA_MAX)
            .map(|_| harness.connect(0))
            .collect();
        assert_eq!(harness.pending.waiting.len(), PENDING_DATA_MAX);
        near.write(&[9; 16]).unwrap();
        assert_eq!(harness.receive().pop().unwrap().cookie, [9; 16]);
    }

    #[test]
    fn many_silent_clients_keep_no_other_out() {
        let mut harness = Harness::new();
        let silent: Vec<Stream> = (0..PENDING_DATA_MAX).map(|_| harness.connect(0)).collect();
        let near = harness.connect(0);
        assert_eq!(harness.pending.waiting.len(), PENDING_DATA_MAX);
        near.write(&[9; 16]).unwrap();
        assert_eq!(harness.receive().pop().unwrap().cookie, [9; 16]);
        // The oldest was closed.
        assert_eq!(silent[0].read(&mut [0]).unwrap(), 0);
        let kept = silent[1].read(&mut [0]).unwrap_err();
        assert_eq!(kept.kind(), io::ErrorKind::WouldBlock);
    }
}
