//! Seals and opens the datagrams of one host, and checks that no nonce repeats.

use haul_cc::Time;
use haul_seal::{Keys, Seal, Side, TAG_LEN};
use haul_udt::wire::{HEADER_LEN, Sealed};
use haul_udt::{Connection, Opener};

#[derive(Debug)]
pub(crate) struct Sealing {
    seal: Seal,
    keys: Option<Keys>,
    /// The generation and the number of the next datagram are not below these.
    next: (u64, u64),
    count: usize,
}

impl Sealing {
    pub(crate) fn new(seal: Seal) -> Self {
        Self {
            seal,
            keys: None,
            next: (0, 0),
            count: 0,
        }
    }

    /// How many datagrams were sealed.
    pub(crate) fn sealed(&self) -> usize {
        self.count
    }

    /// How often the key has changed.
    pub(crate) fn generations(&self) -> u64 {
        self.next.0
    }

    /// Seals `packet`.
    pub(crate) fn seal(
        &mut self,
        connection: &Connection,
        sealed: Sealed,
        packet: &[u8],
    ) -> Vec<u8> {
        let Sealed { generation, number } = sealed;
        let (oldest, first) = self.next;
        assert!(generation >= oldest && number >= first, "{sealed:?} twice");
        self.next = (generation, number + 1);
        self.count += 1;
        let (header, body) = packet.split_first_chunk::<HEADER_LEN>().expect("a header");
        let head = sealed.head(header);
        let mut text = vec![0; body.len() + TAG_LEN];
        let keys = self.keys(connection).expect("an open connection");
        let done = keys.sealer.seal(generation, number, &head, body, &mut text);
        done.expect("ascending numbers");
        [&head[..], &text].concat()
    }

    fn keys(&mut self, connection: &Connection) -> Option<&mut Keys> {
        if self.keys.is_none() {
            let context = connection.seal_context()?;
            let side = if context.is_initiator {
                Side::Initiator
            } else {
                Side::Responder
            };
            self.keys = Keys::new(&self.seal.secret, self.seal.cipher, side, &context.bytes);
        }
        self.keys.as_mut()
    }
}

/// What was in a datagram; none where it is to be dropped.
pub(crate) fn open(
    sealing: &mut Option<Sealing>,
    connection: &mut Connection,
    now: Time,
    datagram: &[u8],
) -> Option<Vec<u8>> {
    let keys = sealing.as_mut().and_then(|it| it.keys(connection));
    let mut opener = keys.map(|keys| Opening(&mut keys.opener));
    let opener = opener.as_mut().map(|it| it as &mut dyn Opener);
    let mut datagram = datagram.to_vec();
    connection
        .open(now, &mut datagram, opener)
        .map(<[u8]>::to_vec)
}

struct Opening<'a>(&'a mut haul_seal::Opener);

impl Opener for Opening<'_> {
    fn open(&mut self, sealed: Sealed, head: &[u8], text: &mut [u8]) -> Option<usize> {
        self.0.open(sealed.generation, sealed.number, head, text)
    }

    fn forget_previous(&mut self) {
        self.0.forget_previous();
    }
}
